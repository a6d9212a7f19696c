"""Plain-Python twin of `kvarray.deploy`: a deployment as objects that serve one request after the other.

A request is a dict: blocks (its path as a list of tuples), tokens, hashed (tokens that blocks cover), output, arrival,
session. A deployment is a dict, see `simulate`. Times are those of first-come, first-served resources: each knows from
when it is free.
"""

import heapq

from tests.reference import migrate


class LruTiers:
    """Exclusive or write-through LRU tiers: one list of blocks, the latest used first, cut at some places."""

    def __init__(self, sizes, exclusive):
        self.recent = []
        self.cuts = [sum(sizes[: k + 1]) if exclusive else max(sizes[: k + 1]) for k in range(len(sizes))]

    def tier_of(self, block):
        if block not in self.recent:
            return None
        place = self.recent.index(block)
        return next((k for k, cut in enumerate(self.cuts) if place < cut), None)

    def use(self, path):
        for block in reversed(path):
            if block in self.recent:
                self.recent.remove(block)
            self.recent.insert(0, block)


class FifoTier:
    """One tier that drops what came first; what a request uses goes last, and of it the tail first."""

    def __init__(self, sizes):
        self.queue = []  # the oldest first
        self.size = sizes[0]

    def tier_of(self, block):
        return 0 if block in self.queue else None

    def use(self, path):
        new = [block for block in reversed(path) if block not in self.queue]
        self.queue += new
        while len(self.queue) > self.size:
            unused = [block for block in self.queue if block not in path]
            self.queue.remove(unused[0] if unused else self.queue[0])


class Resource:
    """A link or a worker: does one job at a time, in the order in which jobs are given to it."""

    def __init__(self):
        self.free = float("-inf")

    def do(self, ready, seconds):
        self.free = max(ready, self.free) + seconds
        return self.free


class Replica:
    """Tiers, links, a worker, and the requests in flight."""

    def __init__(self, deployment):
        self.tiers = deployment["new_tiers"]()
        self.links = [Resource() for _ in deployment["links"]]
        self.direct = [Resource() for _ in deployment["links"]]
        self.worker = Resource()
        self.in_flight = []
        self.history = []  # for prefill and decode apart: (request, when its prefill may begin, cached tokens)


def leading_tiers(tiers, path):
    """The tier of each leading block that is cached."""
    found = []
    for block in path:
        tier = tiers.tier_of(block)
        if tier is None:
            break
        found.append(tier)
    return found


def link_seconds(link, blocks, block_bytes):
    if not blocks:
        return 0.0
    pieces = blocks * (-(-block_bytes // link["fragment"]) if link["fragment"] else 1)
    return link["latency"] + pieces * link["alpha"] + blocks * block_bytes / link["rate"]


def alone(deployment, request, tiers):
    """(seconds on each link up, on each direct link, of prefill, of loading, hidden, cached tokens) of a request that
    uses leading blocks from these tiers."""
    links = deployment["links"]
    up, direct = [], []
    for k, link in enumerate(links):  # link k leads up from tier k + 1
        over = [t for t in tiers if t >= k + 1 and links[t - 1]["direct"] is None]
        up.append(link_seconds(link, len(over), deployment["block_bytes"]))
        straight = [t for t in tiers if t == k + 1 and link["direct"] is not None]
        direct.append(link_seconds(link["direct"], len(straight), deployment["block_bytes"]) if straight else 0.0)
    chain = 0.0
    for seconds in reversed(up):
        chain += seconds
    load = max([chain, *direct])
    cached = min(len(tiers) * deployment["block_size"], request["hashed"])
    cached = min(cached, max(request["tokens"] - deployment["min_prefill_tokens"], 0))
    a, b, c = deployment["prefill"]
    n = request["tokens"]
    prefill = a + (n - cached) * (b + c * (n + cached)) if n > cached else 0.0
    return up, direct, prefill, load, deployment["overlap"] * min(prefill, load), cached


def leading(tiers, depth):
    """The leading part that lies in tiers 0 to `depth`."""
    part = []
    for tier in tiers:
        if tier > depth:
            break
        part.append(tier)
    return part


def choose(deployment, request, tiers):
    """What a request uses of its hit, and its times."""
    most = max(request["tokens"] - deployment["min_prefill_tokens"], 0)
    tiers = tiers[: -(-most // deployment["block_size"])]

    def worth(part):
        return sum(tier > 0 for tier in part) * deployment["block_size"] >= deployment["min_load_tokens"]

    deepest = len(deployment["links"])
    if not deployment["recompute_slow"]:
        return alone(deployment, request, tiers if worth(tiers) else leading(tiers, 0))
    best = alone(deployment, request, leading(tiers, 0))
    for depth in range(1, deepest + 1):
        part = leading(tiers, depth)
        times = alone(deployment, request, part)
        if worth(part) and times[2] + times[3] - times[4] <= best[2] + best[3] - best[4]:
            best = times
    return best


def route(deployment, replicas, number, request, sessions):
    """The replica of a request, which arrives now."""
    count = len(replicas)
    if count == 1:
        return 0
    if deployment["routing"] == "round_robin":
        return number % count
    if deployment["routing"] == "session":
        return sessions.setdefault(request["session"], len(sessions)) % count
    if deployment["routing"] == "prefix_hash":
        return deployment["hash"](request) % count
    costs = []
    for replica in replicas:
        while replica.in_flight and replica.in_flight[0][0] <= request["arrival"]:
            heapq.heappop(replica.in_flight)
        if deployment["routing"] == "least_loaded":
            costs.append(len(replica.in_flight))
        else:
            cached = len(leading_tiers(replica.tiers, request["blocks"]))
            decoding = sum(blocks for _, blocks in replica.in_flight)
            costs.append(deployment["overlap_weight"] * (len(request["blocks"]) - cached) + decoding)
    return costs.index(min(costs))


def serve(deployment, replica, request):
    """Serve a request on a replica and return a row of figures."""
    tiers = leading_tiers(replica.tiers, request["blocks"])
    replica.tiers.use(request["blocks"])
    up, direct, prefill, load, hidden, cached = choose(deployment, request, tiers)
    now = request["arrival"]
    if deployment["queueing"]:
        chain = loaded = now
        for k in reversed(range(len(up))):
            if up[k]:
                chain = replica.links[k].do(chain, up[k])
            if direct[k]:
                loaded = max(loaded, replica.direct[k].do(now, direct[k]))
        ready = max(loaded, chain) - hidden
        end = replica.worker.do(ready, prefill)
    else:
        ready = now + (load - hidden)
        end = ready + prefill
    blocks = -(-request["tokens"] // deployment["block_size"])
    heapq.heappush(replica.in_flight, (end + step(deployment, request) * request["output"], blocks))
    replica.history.append((request, ready, cached, prefill))
    return {
        "hit_blocks": [tiers.count(k) for k in range(len(up) + 1)],
        "used_tokens": cached,
        "load_s": load - hidden,
        "prefill_s": prefill,
        "ttft_s": end - now,
    }


def step(deployment, request):
    base, per_request, per_token = deployment["decode"]
    return base + per_request + per_token * request["tokens"]


def simulate(requests, deployment):
    """A row of figures for each request.

    The deployment: new_tiers, replicas, routing, overlap_weight, hash, links (a dict for each lower tier: rate,
    latency, alpha, fragment, direct: another link or None), block_bytes, block_size, bytes_per_token, prefill (a, b,
    c), decode (base, per request, per token), overlap, min_load_tokens, recompute_slow, min_prefill_tokens, queueing,
    separation.
    """
    replicas = [Replica(deployment) for _ in range(deployment["replicas"])]
    sessions = {}
    rows = []
    for number, request in enumerate(requests):
        chosen = route(deployment, replicas, number, request, sessions)
        rows.append({"replica": chosen, **serve(deployment, replicas[chosen], request)})
    if deployment["separation"] is not None:
        for chosen, replica in enumerate(replicas):
            mine = [row for row in rows if row["replica"] == chosen]
            for row, figures in zip(mine, separated(deployment, replica.history), strict=True):
                row |= figures
    for row in rows:
        row["transfer_s"] = row.get("transfer_s", 0.0)
        row["decode_s"] = row.get("decode_s", 0.0)
        row["queue_s"] = row["ttft_s"] - sum(row[name] for name in ("load_s", "prefill_s", "transfer_s", "decode_s"))
    return rows


def pieces(deployment, request, cached, prefill):
    """(bytes, seconds) of each piece of a prompt."""
    how, n, (a, b, c) = deployment["separation"], request["tokens"], deployment["prefill"]
    if how["schedule"] == "layered":
        layers = how["layers"]
        return [(n * deployment["bytes_per_token"] / layers, prefill / layers)] * layers
    size = how["chunk_tokens"] if how["schedule"] == "chunked" else deployment["block_size"]
    result, started = [], False
    for begin in range(0, max(n, 1), size):
        end = min(begin + size, n)
        fresh = list(range(max(begin, cached), end))
        seconds = b * len(fresh) + c * (end * end - fresh[0] * fresh[0]) if fresh else 0.0
        if fresh and (how["schedule"] == "chunked" or not started):
            seconds += a
            started = True
        result.append(((end - begin) * deployment["bytes_per_token"], seconds))
    return result


def separated(deployment, history):
    """Figures of the requests of a replica whose KV moves to a decode node."""
    how = deployment["separation"]
    engine = {
        "bytes_per_second": [how["rate"]] * how["streams"],
        "alpha_s": [how["alpha"]] * how["streams"],
        "latency_s": [how["latency"]] * how["streams"],
        "fail_s": [float("inf")] * how["streams"],
        "fragment_bytes": None,
        "assignment": "round_robin",
    }
    cut = [pieces(deployment, request, cached, prefill) for request, _, cached, prefill in history]
    ready = [when for _, when, _, _ in history]
    steps = [step(deployment, request) for request, *_ in history]
    groups = [range(len(history))] if deployment["queueing"] else [[i] for i in range(len(history))]
    for group in groups:
        group = list(group)
        sizes = [[size for size, _ in cut[i]] for i in group]
        times = [[seconds for _, seconds in cut[i]] for i in group]
        begin = [ready[i] for i in group]
        step_s = [steps[i] for i in group]
        name = how["schedule"]
        moved = migrate.batch(name, begin, sizes, times, step_s, engine)
        free = migrate.batch(name, begin, [[0.0] * len(row) for row in sizes], times, step_s, engine)
        for i, row, ideal in zip(group, moved, free, strict=True):
            request = history[i][0]
            yield {
                "prefill_s": sum(seconds for _, seconds in cut[i]),
                "transfer_s": row[2] - ideal[2],
                "decode_s": ideal[2] - row[0],
                "ttft_s": row[2] - request["arrival"],
            }
