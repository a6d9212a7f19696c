"""LRU tiers that a router can look at between requests, in closed form.

Blocks that a replica used last in its request q, and that lie on the path of a new request, are neighbours there: a
run. The first of them is as many places down the recency list as there are blocks that were used after q, and the
others follow it one by one. So all that has to be kept is who used a segment last, and for each request how many
blocks nobody used since: a Fenwick tree, whose sums are the distances. It is `kvarray.reuse.distances`, one request
at a time.

References
----------
.. [1] P. M. Fenwick, "A new data structure for cumulative frequency tables", Software: Practice and Experience 24,
   1994.
"""

from collections.abc import Iterator, Sequence

__all__ = ["RecencyTiers"]


class RecencyTiers:
    """LRU tiers of one replica, exclusive or write-through.

    Parameters
    ----------
    cuts : sequence of int
        Places of the recency list that lie in tier k or above it: ``cuts[k]``, never falling.
    num_requests : int
        How many requests there will be at most.

    Examples
    --------
    >>> tiers = RecencyTiers([2, 5], 3)
    >>> tiers.serve([(0, 2), (1, 1)], usable=9), tiers.serve([(2, 1)], usable=9)
    ([[0, 0], [0, 0]], [[0, 0], [0, 0]])
    >>> tiers.cached([(0, 2), (1, 1)]), tiers.serve([(0, 2), (1, 1)], usable=9)
    (3, [[1, 0], [1, 2]])
    """

    def __init__(self, cuts: Sequence[int], num_requests: int) -> None:
        self._cuts = list(cuts)
        self._last: dict[int, int] = {}  # segment -> number of the request that used it last, from 1 on
        self._tree = [0] * (num_requests + 1)
        self._served = 0
        self._held = 0  # blocks used so far, each once

    def cached(self, path: Sequence[tuple[int, int]]) -> int:
        """Return how many leading blocks of a path some tier holds; nothing is used."""
        last_cut = self._cuts[-1]
        cached = 0
        for distance, blocks in self._runs(path):
            cached += min(last_cut - distance, blocks)
        return cached

    def serve(self, path: Sequence[tuple[int, int]], *, usable: int) -> list[list[int]]:
        """Serve a request; see `kvarray.deploy.caches.SteppedTiers.serve`."""
        hits = [0] * len(self._cuts)
        for distance, blocks in self._runs(path):
            below = 0
            for tier, cut in enumerate(self._cuts):
                reached = min(max(cut - distance, 0), blocks)
                used = min(reached - below, usable)
                hits[tier] += used
                usable -= used
                below = reached
        self._use(path)
        return [[hit if tier <= depth else 0 for tier, hit in enumerate(hits)] for depth in range(len(hits))]

    def _runs(self, path: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield distance and length of the runs that lie within the tiers, at least with their first block."""
        last, tree, end = self._last, self._tree, self._cuts[-1]
        user, blocks = 0, 0
        for row, count in [*path, (-1, 0)]:
            found = last.get(row, 0)
            if found != user:
                if user:
                    distance, place = self._held, user
                    while place:
                        distance -= tree[place]
                        place &= place - 1
                    if distance >= end:
                        return
                    yield distance, blocks
                user, blocks = found, 0
            if not found:
                return
            blocks += count

    def _use(self, path: Sequence[tuple[int, int]]) -> None:
        """Bring all blocks of a path to the head of the recency list."""
        self._served += 1
        now, total = self._served, 0
        moved: dict[int, int] = {}
        for row, blocks in path:
            before = self._last.get(row, 0)
            self._last[row] = now
            moved[before] = moved.get(before, 0) + blocks
            total += blocks
        self._held += moved.pop(0, 0)
        for request, blocks in moved.items():
            self._add(request, -blocks)
        if total:
            self._add(now, total)

    def _add(self, request: int, blocks: int) -> None:
        tree, size = self._tree, len(self._tree)
        while request < size:
            tree[request] += blocks
            request += request & -request
