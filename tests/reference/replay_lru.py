"""An ordered-dictionary replay of one capacity: what people write first, and the peer that benchmarks time."""

from collections import OrderedDict


def replay_lru(requests, capacity):
    """Prefix-hit blocks of an LRU cache; `requests` are lists of ids that stand for whole prefixes."""
    cache, hits = OrderedDict(), 0
    for ids in requests:
        for block in ids:
            if block not in cache:
                break
            hits += 1
        for block in reversed(ids):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits
