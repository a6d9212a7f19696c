"""The tier scenario with lists: exclusive LRU tiers, a hit goes to the top and each tier sinks its oldest block."""


def replay_exclusive_tiers(keys, admitted, sizes):
    """Hits by tier, moves between tiers, and blocks in each tier at the end."""
    tiers = [[] for _ in sizes]  # oldest first
    hits, moves = [0] * len(sizes), 0
    for key, may_come in zip(keys, admitted, strict=True):
        home = next((k for k, tier in enumerate(tiers) if key in tier), None)
        if home is not None:
            hits[home] += 1
            moves += home  # a promotion crosses each boundary on its way
            tiers[home].remove(key)
        elif not may_come:
            continue
        tiers[0].append(key)
        for k, size in enumerate(sizes):
            if len(tiers[k]) > size:
                sunk = tiers[k].pop(0)
                if k + 1 < len(sizes):
                    tiers[k + 1].append(sunk)
                    moves += 1
    return hits, moves, [len(tier) for tier in tiers]
