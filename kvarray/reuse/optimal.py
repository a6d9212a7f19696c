"""The best that any eviction policy could have hit: farthest next use, for prefixes.

With the future known, a cache keeps what is used next soonest and may refuse to admit what is used later than all it
holds. Blocks of one path have next uses that never fall with depth, so the best choice keeps paths whole from the head,
and only one number matters: how many resident blocks have their next use at each request. A hot run of the trace, read
the other way round, is an edge from the request that used it last to the one that uses it next; `optimal_hits` moves
the lengths of these edges in and out of one bucket per request, and never looks at a block.

References
----------
.. [1] L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5, 1966.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Ids, as_ints
from kvarray.ragged import lengths_to_offsets
from kvarray.reuse.curve import first_counted
from kvarray.reuse.distances import Runs, prefix_runs
from kvarray.trace import Trace

__all__ = ["OptimalHits", "optimal_hits"]


@dataclass(frozen=True, eq=False)
class OptimalHits:
    """Hits of the prefix-aware optimum at some capacities: int64 columns of shape (K,), one item per capacity."""

    capacities: Ids
    hit_blocks: Ids
    hit_tokens: Ids


def optimal_hits(trace: Trace, capacities: ArrayLike, *, window: float = 0.0, runs: Runs | None = None) -> OptimalHits:
    """Return the most hits that any eviction policy could have had.

    Parameters
    ----------
    trace : Trace
        With block ids. Requests are atomic steps, as in `hit_curve`.
    capacities : array_like of int, shape (K,)
        In blocks, ``>= 0``.
    window : float, optional
        Count only the requests from ``floor(window * num_requests)`` on.
    runs : Runs, optional
        `prefix_runs` of the same trace, where they are there already.

    Returns
    -------
    OptimalHits

    Raises
    ------
    TraceError
        If the trace has no block ids.
    ValueError
        If a capacity is negative, or the window is not within 0 and 1.

    Notes
    -----
    O((B + M) log M) per capacity, in a Python loop over requests and edges, a few per request whatever the block size.

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)
    >>> optimal_hits(trace, [1, 2, 3, 4]).hit_blocks
    array([2, 4, 5, 5])
    """
    levels = as_ints("capacities", np.atleast_1d(np.asarray(capacities)), low=0)
    runs = prefix_runs(trace) if runs is None else runs
    first = first_counted(trace, window)
    assert trace.block_size is not None  # the trace has block ids
    missing = trace.block_size - trace.last_block_tokens
    offsets, targets, lengths = _edges(runs, trace.num_requests)
    counts = trace.block_counts
    hit_blocks, hit_tokens = np.zeros((2, len(levels)), dtype=np.int64)
    for k, capacity in enumerate(levels.tolist()):
        hits = np.array(_serve(capacity, offsets, targets, lengths), dtype=np.int64)
        is_whole = (hits == counts) & (counts > 0)
        tokens = hits * trace.block_size - np.where(is_whole, missing, 0)
        hit_blocks[k] = hits[first:].sum()
        hit_tokens[k] = tokens[first:].sum()
    return OptimalHits(levels, hit_blocks, hit_tokens)


def _edges(runs: Runs, num_requests: int) -> tuple[list[int], list[int], list[int]]:
    """Return, for each request, the requests that use its blocks next, nearest first, and how many blocks each."""
    hot = np.flatnonzero(runs.is_hot)
    hot = hot[np.argsort(runs.previous[hot], kind="stable")]  # runs come in order of request: nearest first
    offsets = lengths_to_offsets(np.bincount(runs.previous[hot], minlength=num_requests))
    return offsets.tolist(), runs.request[hot].tolist(), runs.length[hot].tolist()


def _serve(capacity: int, offsets: list[int], targets: list[int], lengths: list[int]) -> list[int]:
    """Return the hit blocks of each request. The loop is over requests and, inside, over their edges."""
    num_requests = len(offsets) - 1
    bucket = [0] * num_requests  # resident blocks by the request that uses them next
    farthest: list[int] = []  # a heap of minus the requests whose bucket has been filled
    resident = 0
    for now in range(num_requests):
        resident -= bucket[now]
        for edge in range(offsets[now], offsets[now + 1]):
            target = targets[edge]
            if not bucket[target]:
                heappush(farthest, -target)
            bucket[target] += lengths[edge]
            resident += lengths[edge]
        while resident > capacity:  # the farthest bucket still to be served holds something
            last = -farthest[0]
            excess = resident - capacity
            if bucket[last] > excess:
                bucket[last] -= excess
                resident = capacity
            else:
                heappop(farthest)
                resident -= bucket[last]
                bucket[last] = 0
    return bucket
