"""Plain-Python caches, one request and one block at a time: what `kvarray.reuse` has to agree with.

A request is ``(namespace, ids, input_tokens)``; a cache is a list with the latest used block first. A block is known by
its whole path (request steps) or by its id (stream steps), within its namespace.
"""


def paths(request):
    """The blocks of a request, each as the path from the head of the request to itself."""
    namespace, ids, _ = request
    return [(namespace, tuple(ids[: i + 1])) for i in range(len(ids))]


def names(request):
    """The blocks of a request, each as its id."""
    namespace, ids, _ = request
    return [(namespace, i) for i in ids]


def block_tokens(request, block_size):
    """Tokens of each block: full but the last, which holds what remains."""
    _, ids, input_tokens = request
    return [min(block_size, input_tokens - i * block_size) for i in range(len(ids))]


def leading(hits):
    """The number of leading true values."""
    count = 0
    for hit in hits:
        if not hit:
            break
        count += 1
    return count


def lru_steps(requests, capacity):
    """Hit blocks of each request: atomic steps, tail first, then cut to the capacity."""
    recent, result = [], []
    for request in requests:
        blocks = paths(request)
        result.append(leading(block in recent for block in blocks))
        for block in reversed(blocks):
            if block in recent:
                recent.remove(block)
            recent.insert(0, block)
        del recent[capacity:]
    return result


def ttl_steps(requests, arrivals, ttl):
    """Hit blocks of each request when a block lives for `ttl` after its latest use; times count in microseconds."""
    arrivals, ttl = [round(t * 1e6) for t in arrivals], round(ttl * 1e6)
    used, result = {}, []
    for request, now in zip(requests, arrivals, strict=True):
        blocks = paths(request)
        result.append(leading(block in used and now - used[block] <= ttl for block in blocks))
        used.update(dict.fromkeys(blocks, now))
    return result


def lru_stream(requests, capacity, order):
    """Whether each block of each request hits, in path order: each reference a step of its own."""
    recent, result = [], []
    for request in requests:
        blocks = names(request)
        places = range(len(blocks)) if order == "head_first" else reversed(range(len(blocks)))
        hits = [False] * len(blocks)
        for place in places:
            hits[place] = blocks[place] in recent
            if hits[place]:
                recent.remove(blocks[place])
            recent.insert(0, blocks[place])
            del recent[capacity:]
        result.append(hits)
    return result


def optimal_steps(requests, capacity):
    """Hit blocks of each request when the cache keeps what is used next soonest, at a tie what is less deep."""

    def next_use(block, now):
        later = (t for t in range(now + 1, len(requests)) if block in paths(requests[t]))
        return next(later, len(requests))

    cache, result = set(), []
    for now, request in enumerate(requests):
        blocks = paths(request)
        result.append(leading(block in cache for block in blocks))
        cache |= set(blocks)
        ranked = sorted(cache, key=lambda block: (next_use(block, now), len(block[1]), block))
        cache = set(ranked[:capacity])
    return result


def best_possible_blocks(requests, capacity):
    """The most blocks any choice of what to keep could hit, found by trying them all."""
    from itertools import combinations

    states = {frozenset(): 0}
    for request in requests:
        blocks = paths(request)
        after = {}
        for cache, hits in states.items():
            gained = hits + leading(block in cache for block in blocks)
            union = cache | set(blocks)
            for kept in combinations(sorted(union), min(capacity, len(union))):
                after[frozenset(kept)] = max(after.get(frozenset(kept), 0), gained)
        states = after
    return max(states.values())


def working_set(requests, start, stop):
    """Distinct blocks used by the requests of a window."""
    return len({block for request in requests[start:stop] for block in paths(request)})


def definitions(requests, hits, block_size, first):
    """Every total and rate of the counted requests, from the hit blocks of each request in path order (booleans)."""
    counted = list(zip(requests, hits, strict=True))[first:]
    tokens = [block_tokens(request, block_size) for request, _ in counted]
    hit_tokens = [
        sum(t for t, hit in zip(ts, hs, strict=True) if hit) for ts, (_, hs) in zip(tokens, counted, strict=True)
    ]
    shares_t = [h / r[2] for h, (r, _) in zip(hit_tokens, counted, strict=True) if r[2]]
    shares_b = [sum(hs) / len(hs) for _, hs in counted if hs]
    return {
        "block": (sum(sum(hs) for _, hs in counted), sum(len(hs) for _, hs in counted)),
        "token": (sum(hit_tokens), sum(r[2] for r, _ in counted)),
        "full_block": (
            sum(
                t == block_size
                for ts, (_, hs) in zip(tokens, counted, strict=True)
                for t, hit in zip(ts, hs, strict=True)
                if hit
            ),
            sum(r[2] // block_size for r, _ in counted),
        ),
        "request": (sum(bool(hs) and all(hs) for _, hs in counted), len(counted)),
        "mean_token": sum(shares_t) / len(shares_t) if shares_t else 0.0,
        "mean_block": sum(shares_b) / len(shares_b) if shares_b else 0.0,
        "hashed_token": sum(sum(ts) for ts in tokens),
    }
