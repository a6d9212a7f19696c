"""The most blocks that any eviction policy could have hit: farthest next use, for prefixes.

With the future known, a cache keeps what is used next soonest and may refuse to admit what is used later than all it
holds. Blocks of one path have next uses that never fall with depth, so the best choice keeps paths whole from the
head, and only one number matters: how many of the blocks that request t uses next are still there. A hot run of the
trace is an interval from the request that used it last to the one that uses it next; keeping it takes as many of the
cache's slots for that long.

Taken in the order in which they end, an interval is kept exactly if slots are free for it beside all that end sooner
(evicting the farthest comes to the same: what it drops could not have stayed). Each takes the slots that came free
latest before it begins. What a larger cache could not keep a smaller one cannot either, so capacities are served from
the largest down, each with what the one before it kept; and where the cache has room for everything, nothing is served
at all. Blocks that all requests share, such as a system prompt, are always used next by the next request: they are kept
first, and leave a smaller cache to the rest.

References
----------
.. [1] L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5, 1966.
.. [2] M. C. Carlisle, E. L. Lloyd, "On the k-coloring of intervals", Discrete Applied Mathematics 59, 1995.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Ids, as_ints
from kvarray.reuse.curve import first_counted
from kvarray.reuse.distances import Runs, runs_of
from kvarray.trace import Trace

__all__ = ["OptimalHits", "optimal_hits"]


@dataclass(frozen=True, eq=False)
class OptimalHits:
    """Hits of the prefix-aware optimum at some capacities: int64 columns of shape (K,), one item per capacity."""

    capacities: Ids
    hit_blocks: Ids
    hit_tokens: Ids


def optimal_hits(trace: Trace, capacities: ArrayLike, *, window: float = 0.0, runs: Runs | None = None) -> OptimalHits:
    """Return the hits of a cache that keeps what is used next soonest: the most blocks any policy could have hit.

    The most blocks, over the whole trace: where partial blocks are few tokens, or a window counts only the end, another
    policy may have more tokens, or more in the window.

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
    O(B + M) for each capacity that cannot hold everything, but for an inverse Ackermann factor, in a Python loop over
    the runs that the next larger capacity kept: a few per request, whatever the block size.

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)
    >>> optimal_hits(trace, [1, 2, 3, 4]).hit_blocks
    array([2, 4, 5, 5])
    """
    levels = as_ints("capacities", np.atleast_1d(np.asarray(capacities)), low=0)
    runs = runs_of(trace, runs)
    first = first_counted(trace, window)
    counts = trace.block_counts
    missing = (trace.block_size or 0) - trace.last_block_tokens

    # Runs come in the order of the requests that use them, and of a request the head comes first.
    hot = np.flatnonzero(runs.is_hot)
    begin, end, kept = runs.previous[hot], runs.request[hot], runs.length[hot]
    shared = _blocks_of_all(begin, end, kept, trace.num_requests)
    kept = np.where(end - begin == 1, kept - shared, kept)
    some = np.flatnonzero(kept)
    begin, end, kept = begin[some], end[some], kept[some]

    left = _next_places(end, trace.num_requests)
    places = (begin + 1).tolist(), (end + 1).tolist()
    hit_blocks, hit_tokens = np.zeros((2, len(levels)), dtype=np.int64)
    for k in np.argsort(-levels, kind="stable"):
        of_all = min(shared, int(levels[k]))
        capacity = int(levels[k]) - of_all
        if _most_at_once(begin, end, kept, trace.num_requests) > capacity:
            kept = np.array(_take_slots(capacity, places, kept.tolist(), left.copy()), dtype=np.int64)
        hits = np.bincount(end, weights=kept, minlength=trace.num_requests).astype(np.int64)
        hits[1:] += of_all
        is_whole = (hits == counts) & (counts > 0)
        tokens = hits * (trace.block_size or 0) - np.where(is_whole, missing, 0)
        hit_blocks[k], hit_tokens[k] = hits[first:].sum(), tokens[first:].sum()
    return OptimalHits(levels, hit_blocks, hit_tokens)


def _blocks_of_all(begin: Ids, end: Ids, length: Ids, num_requests: int) -> int:
    """Return how many leading blocks all requests share."""
    with_the_next = length[end - begin == 1]
    return int(with_the_next.min()) if len(with_the_next) == num_requests - 1 > 0 else 0


def _most_at_once(begin: Ids, end: Ids, length: Ids, num_requests: int) -> float:
    """Return the most blocks that are kept at one time."""
    change = np.bincount(begin, weights=length, minlength=num_requests)
    change -= np.bincount(end, weights=length, minlength=num_requests)
    return float(np.cumsum(change).max(initial=0.0))


def _next_places(end: Ids, num_requests: int) -> list[int]:
    """Return, for each place, itself or the next one to its left at which slots ever come free; see `_take_slots`."""
    ever_free = np.zeros(num_requests + 2, dtype=np.int64)
    ever_free[1] = 1
    ever_free[end + 1] = end + 1
    places: list[int] = np.maximum.accumulate(ever_free).tolist()
    return places


def _take_slots(capacity: int, places: tuple[list[int], list[int]], kept: list[int], left: list[int]) -> list[int]:
    """Cut `kept`, the blocks of each interval, to those that find a slot. The loop is over intervals, by their ends.

    Slots come free at a place: all of them at place 1, before request 0, and at place t + 1 those of blocks that
    request t used. An interval takes slots at or left of the place of its begin. Empty places are passed over by a
    forest of pointers to the left, flattened as it is walked; place 0 is the end of the way. Once empty, a place stays
    so: slots come free in order of their places, and are taken only by intervals that end later.
    """
    free = [0] * len(left)
    free[1] = capacity
    for i, (place, to) in enumerate(zip(*places, strict=True)):
        missing = kept[i]
        while missing:
            here = left[place]
            while here != place:
                left[place] = place = left[here]
                here = left[place]
            spare = free[place] - missing
            if spare >= 0:
                free[place] = spare
                break
            if not place:
                kept[i] -= missing
                break
            missing, free[place] = -spare, 0
            left[place] = place = place - 1
        free[to] += kept[i]
    return kept
