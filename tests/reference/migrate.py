"""Plain-Python twin of `kvarray.migrate`: blocks, pieces and requests one at a time."""

import math

from tests.reference import timeline

NEVER = -math.inf


def occupancy(size, stream, engine, node=None):
    """How long a block keeps a stream busy."""
    if size == 0:
        return 0.0
    seconds = size / engine["bytes_per_second"][stream]
    if node is not None and engine["stream_node"][stream] != node:
        seconds *= engine["numa_penalty"]
    fragment = engine.get("fragment_bytes")
    return seconds + (math.ceil(size / fragment) if fragment else 1) * engine["alpha_s"][stream]


def transfer(sizes, ready, engine, nodes=None):
    """(stream, start, finish, arrive, attempts) of each block; engine is a dict of lists, one item a stream."""
    nodes = nodes or [None] * len(sizes)
    fail = engine["fail_s"]
    blocks = [{"attempts": 0} for _ in sizes]

    def send(waiting, alive, moment):
        """Assign blocks in order, behind what the streams alive have to do."""
        free = {s: max((b["finish"] for b in blocks if b.get("stream") == s), default=NEVER) for s in alive}
        for rank, i in enumerate(waiting):
            begin = max(ready[i], moment)
            work = {s: occupancy(sizes[i], s, engine, nodes[i]) for s in alive}
            if engine["assignment"] == "round_robin":
                stream = alive[rank % len(alive)]
            else:
                stream = min(alive, key=lambda s: (max(begin, free[s]) + work[s], s))
            start = max(begin, free[stream])
            free[stream] = start + work[stream]
            blocks[i] |= {"stream": stream, "start": start, "finish": free[stream]}
            blocks[i]["attempts"] += 1

    send(range(len(sizes)), list(range(len(fail))), NEVER)
    for moment in sorted(set(fail)):
        left = [i for i, block in enumerate(blocks) if fail[block["stream"]] == moment and block["finish"] > moment]
        if not left:
            continue
        alive = [s for s in range(len(fail)) if fail[s] > moment]
        if not alive:
            return None
        for i in left:
            blocks[i]["stream"] = None
        send(left, alive, moment)
    return [
        (
            block["stream"],
            block["start"],
            block["finish"],
            block["finish"] + (engine["latency_s"][block["stream"]] if size else 0.0),
            block["attempts"],
        )
        for block, size in zip(blocks, sizes, strict=True)
    ]


def arrivals(sizes, ready, engine):
    return [row[3] for row in transfer(sizes, ready, engine)]


def steps_behind(steps, arrive, waits_for_all):
    """Finish of decode steps, step i behind piece i (the last piece, beyond it) or behind all of them."""
    if waits_for_all:
        return timeline.serial(steps, [max(arrive)] * len(steps))
    latest = NEVER
    ready = []
    for i in range(len(steps)):
        latest = max(latest, arrive[i]) if i < len(arrive) else latest
        ready.append(latest)
    return timeline.serial(steps, ready)


def schedule(name, sizes, prefill, steps, engine, *, group=1):
    """(first token, finish of the last step) of one request."""
    waits_for_all, first = name in ("sequential", "chunked"), 0
    if name == "layered":
        groups = [range(i, min(i + group, len(sizes))) for i in range(0, len(sizes), group)]
        steps = [steps[0] * len(one) / len(sizes) for one in groups] + steps[1:]
        sizes, prefill = (
            [sum(sizes[i] for i in one) for one in groups],
            [sum(prefill[i] for i in one) for one in groups],
        )
        first = len(groups) - 1
    computed = timeline.serial(prefill, [0.0] * len(prefill), 0.0)
    if name == "sequential":
        computed = [computed[-1]] * len(computed)
    finish = steps_behind(steps, arrivals(sizes, computed, engine), waits_for_all)
    return finish[first], finish[-1]


def batch(name, arrival, pieces, prefill, step, engine):
    """(prefilled, arrived, first token, finish) of each request; pieces and prefill are lists of lists."""
    free, computed = NEVER, []
    for request, times in zip(arrival, prefill, strict=True):
        row = timeline.serial(times, [request] * len(times), free)
        computed.append(row)
        free = row[-1]
    flat_ready = [row[-1] if name == "sequential" else done for row in computed for done in row]
    flat_arrive = iter(arrivals([size for row in pieces for size in row], flat_ready, engine))
    result = []
    for row, done, seconds in zip(pieces, computed, step, strict=True):
        arrive = [next(flat_arrive) for _ in row]
        if name == "layered":
            finish = steps_behind([seconds / len(row)] * len(row), arrive, False)
            first = finish[-1]
        elif name == "chunked":
            finish = [max(arrive) + seconds]
            first = finish[0]
        else:
            finish = steps_behind([seconds] * len(row), arrive, name == "sequential")
            first = finish[0]
        result.append((done[-1], max(arrive), first, finish[-1]))
    return result


def overlap_bandwidth(sizes, compute, *, overhead=0.0, latency=0.0, shares=(1.0,), low=1.0, high=1e15):
    """Bisection for the smallest bandwidth at which all pieces but the last are there when the last is computed."""
    computed = timeline.serial(compute, [0.0] * len(compute))
    engine = {
        "latency_s": [latency] * len(shares),
        "alpha_s": [overhead] * len(shares),
        "fail_s": [math.inf] * len(shares),
        "assignment": "round_robin",
    }

    def stalls(bandwidth):
        engine["bytes_per_second"] = [bandwidth * share / sum(shares) for share in shares]
        return max(arrivals(sizes, computed, engine)[:-1]) > computed[-1] * (1 + 1e-12)

    if stalls(high):
        return math.inf
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if stalls(middle) else (low, middle)
    return high
