"""Recency distances of a whole trace, by runs.

The distance of a reference is the place of its block in the list of blocks by recency, 0 for the latest used. An LRU
cache of C blocks holds the first C places, so one distance per reference answers for every capacity at once.

*Request steps.* All blocks of a request are looked up, then all are used, tail first and head last. Deeper blocks of a
path were then used no later than those above them, so the list never holds a block above its parent, and a request's
hit is the part of its path whose distances lie below C. Two neighbours that were last used by the same request keep
their order, so a path falls into few *runs* of neighbours, and distances rise by one along a run.

*Stream steps.* Every reference is looked up and used by itself, in a given order. Two neighbours that were neighbours
at their last use too have the same distance: between the two uses one block left the count and one came in. Here the
distance is constant along a run.

Either way, what is left is one number per run: how many blocks were used since. It is the length of all earlier runs
whose own last use lies before this one's, less the references up to there (each block used since is counted at its
first use since); a weighted count of earlier points of lower rank, which `earlier_below` gives for all at once.
Everything here is O(N) with a small constant plus O(M log M), where M, the number of runs, is a few per request
whatever the block size.

What is modelled is the order of use alone: no time, no partial admission, no pinned blocks.

References
----------
.. [1] R. L. Mattson, J. Gecsei, D. R. Slutz, I. L. Traiger, "Evaluation techniques for storage hierarchies", IBM
   Systems Journal 9, 1970.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from kvarray.arrays import Flags, Ids
from kvarray.trace import Trace

__all__ = ["NEVER", "Runs", "earlier_below", "prefix_runs", "runs_of", "stream_runs"]

NEVER = 1 << 62
"""Distance of a block that was not used before: beyond every capacity."""

_LONG = 64  # mean blocks a request from which on a loop over requests beats one sort of all references
_PIECE = 1 << 16  # references in flight in that loop: few enough for the processor to keep at hand


@dataclass(frozen=True, eq=False)
class Runs:
    """The references of a trace as runs of neighbours that were used together last time.

    ============  =====  ============================================================================
    column        dtype  meaning, shape (M,)
    ============  =====  ============================================================================
    `request`     int64  the request that the run is part of; never falls
    `depth`       int64  place of its first block in the path of the request
    `length`      int64  number of blocks, 1 or more
    `previous`    int64  the request that used them last, -1 where none did
    `distance`    int64  recency distance of its first block, `NEVER` where it was never used
    `holds_last`  bool   whether the last block of the request's path is one of them
    ============  =====  ============================================================================

    `rises` says whether distances rise by one from block to block of a run (request steps) or stay as they are (stream
    steps); `num_distinct` is the number of distinct blocks.
    """

    request: Ids
    depth: Ids
    length: Ids
    previous: Ids
    distance: Ids
    holds_last: Flags
    rises: bool
    num_distinct: int

    def __len__(self) -> int:
        return len(self.request)

    @property
    def is_hot(self) -> Flags:
        """Whether the blocks of each run were used before, shape (M,)."""
        return self.previous >= 0


def prefix_runs(trace: Trace) -> Runs:
    """Return the runs of a trace whose requests are atomic steps.

    Parameters
    ----------
    trace : Trace
        With block ids.

    Returns
    -------
    Runs
        With ``rises=True``: block j of run i has distance ``distance[i] + j``.

    Raises
    ------
    TraceError
        If the trace has no block ids.

    Notes
    -----
    O(N + M log M). Where requests are short, finding each block's last use is one sort of (block, position) keys;
    where they are long, a loop over requests, whose passes each cost a NumPy call or two.

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)
    >>> runs = prefix_runs(trace)
    >>> runs.length[runs.is_hot], runs.distance[runs.is_hot]
    (array([2, 2, 1]), array([0, 0, 3]))
    """
    ids, offsets, limit = trace.prefix_ids, trace.offsets, trace.prefix_limit
    return _runs(ids, offsets, limit, rises=True, distinct=True, num_distinct=trace.num_distinct)


def runs_of(trace: Trace, runs: Runs | None) -> Runs:
    """Return `runs` after a look whether they can be `prefix_runs` of the trace, or those where there are none yet.

    Raises
    ------
    ValueError
        If they are those of stream steps, or of a trace of another shape.

    Examples
    --------
    >>> trace = Trace([1, 2, 1, 2], [0, 2, 4], block_size=16)
    >>> runs_of(trace, stream_runs(trace))
    Traceback (most recent call last):
        ...
    ValueError: runs must be prefix_runs of the same trace
    """
    if runs is None:
        return prefix_runs(trace)
    blocks = np.bincount(runs.request, weights=runs.length, minlength=trace.num_requests)
    if not runs.rises or not np.array_equal(blocks, trace.block_counts):
        raise ValueError("runs must be prefix_runs of the same trace")
    return runs


def stream_runs(trace: Trace, *, order: str = "head_first") -> Runs:
    """Return the runs of a trace whose every reference is a step of its own.

    Parameters
    ----------
    trace : Trace
        With block ids. A block is its id within its namespace, whatever stands before it.
    order : {"head_first", "tail_first"}, optional
        Order of the blocks of a request; `depth` counts in this order.

    Returns
    -------
    Runs
        With ``rises=False``: all blocks of run i have distance ``distance[i]``.

    Raises
    ------
    ValueError
        If `order` is neither.
    TraceError
        If the trace has no block ids.

    Notes
    -----
    O(N log N) where an id may stand twice in a request, else as `prefix_runs`.

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)
    >>> runs = stream_runs(trace)
    >>> runs.length[runs.is_hot], runs.distance[runs.is_hot]
    (array([2, 2, 1]), array([2, 2, 3]))
    """
    if order not in ("head_first", "tail_first"):
        raise ValueError(f"order must be head_first or tail_first: got {order!r}")
    ids, offsets = trace.stream_ids, trace.offsets
    if order == "tail_first":
        ids = ids[np.repeat(offsets[:-1] + offsets[1:] - 1, trace.block_counts) - np.arange(len(ids))]
    # As many prefixes as ids: each id has one place in one path, so no request holds it twice.
    distinct = trace.num_distinct == trace.num_distinct_blocks
    runs = _runs(
        ids, offsets, trace.stream_limit, rises=False, distinct=distinct, num_distinct=trace.num_distinct_blocks
    )
    return replace(runs, holds_last=runs.depth == 0) if order == "tail_first" else runs


def _runs(ids: Ids, offsets: Ids, limit: int, *, rises: bool, distinct: bool, num_distinct: int) -> Runs:
    """Return the runs of the references `ids`; `distinct` promises that no row holds an id twice."""
    starts, last_use = _cut(ids, offsets, limit, distinct=distinct)
    request = np.searchsorted(offsets, starts, side="right") - 1
    length = np.diff(starts, append=len(ids))
    is_hot = last_use >= 0
    previous = np.full(len(starts), -1)
    previous[is_hot] = np.searchsorted(offsets, last_use[is_hot], side="right") - 1
    # References up to the end of the step that was the last use: a whole request, or one block.
    references_then = offsets[previous + 1] if rises else last_use + 1
    depth = starts - offsets[request]
    return Runs(
        request=request,
        depth=depth,
        length=length,
        previous=previous,
        distance=_distances(last_use, length, references_then),
        holds_last=depth + length == np.diff(offsets)[request],
        rises=rises,
        num_distinct=num_distinct,
    )


def _distances(last_use: Ids, length: Ids, references_then: Ids) -> Ids:
    """Return the distance of each run's first block, from the position of its last use (negative: none)."""
    is_hot = last_use >= 0
    cold_before = np.cumsum(np.where(is_hot, 0, length))[is_hot]
    used_before = cold_before + earlier_below(last_use[is_hot], length[is_hot])
    distance = np.full(len(last_use), NEVER)
    distance[is_hot] = used_before - references_then[is_hot]
    return distance


def _cut(ids: Ids, offsets: Ids, limit: int, *, distinct: bool) -> tuple[Ids, Ids]:
    """Return the runs' first positions and, for each, the position of its block's last use, or a negative number."""
    num_rows = len(offsets) - 1
    packable = int(max(limit, 1)).bit_length() + len(ids).bit_length() < 64
    if packable and not (distinct and len(ids) > _LONG * num_rows):
        return _cut_piece(_last_uses_by_sort(ids), offsets, 0)
    latest = np.full(limit, -1)
    cuts = np.unique(np.searchsorted(offsets, np.arange(0, len(ids) + _PIECE, _PIECE)).clip(max=num_rows))
    pieces = [
        _cut_piece(_last_uses_by_row(ids, offsets[lo : hi + 1], latest), offsets[lo : hi + 1], int(offsets[lo]))
        for lo, hi in pairwise(cuts)
    ]
    empty = np.zeros(0, dtype=np.int64)
    return (
        np.concatenate([starts for starts, _ in pieces] or [empty]),
        np.concatenate([last_use for _, last_use in pieces] or [empty]),
    )


def _last_uses_by_sort(ids: Ids) -> Ids:
    """Return the position of each reference's last use; -1 where there is none."""
    bits = len(ids).bit_length()
    keys = ids << bits
    keys |= np.arange(len(ids))
    keys.sort()
    same = np.flatnonzero((keys[1:] ^ keys[:-1]) < (1 << bits))
    keys &= (1 << bits) - 1
    last_use = np.full(len(ids), -1)
    last_use[keys[same + 1]] = keys[same]
    return last_use


def _last_uses_by_row(ids: Ids, offsets: Ids, latest: Ids) -> Ids:
    """Return the same for some rows, none of which holds an id twice; `latest` holds each id's latest position.

    The loop is over rows, which the caller found to be long.
    """
    first = int(offsets[0])
    positions = np.arange(first, int(offsets[-1]))
    last_use = np.empty(len(positions), dtype=np.int64)
    bounds = (offsets - first).tolist()
    piece = ids[first : first + len(positions)]
    for lo, hi in pairwise(bounds):
        row = piece[lo:hi]
        latest.take(row, out=last_use[lo:hi], mode="clip")  # "clip" spares a buffer; all ids are in range
        latest[row] = positions[lo:hi]
    return last_use


def _cut_piece(last_use: Ids, offsets: Ids, first: int) -> tuple[Ids, Ids]:
    """Cut rows where the step back to the last use changes; `last_use` begins at position `first`."""
    if not len(last_use):
        return last_use, last_use
    back = np.arange(first, first + len(last_use))
    back -= last_use
    back[last_use < 0] = 0  # no last use: a run of its own kind
    is_start = np.empty(len(back), dtype=np.bool_)
    np.not_equal(back[1:], back[:-1], out=is_start[1:])
    heads = offsets[:-1] - first
    is_start[heads[heads < len(back)]] = True
    starts = np.flatnonzero(is_start)
    return starts + first, last_use[starts]


def earlier_below(keys: Ids, weights: Ids) -> Ids:
    """Return, for each item, the weight of all earlier items with a smaller key.

    Parameters
    ----------
    keys : ndarray of int64, shape (M,)
        Distinct, ``0 <= key``; ``key * 2 M`` must fit 63 bits.
    weights : ndarray of int64, shape (M,)

    Returns
    -------
    ndarray of int64, shape (M,)
        ``sum(weights[j] for j < i if keys[j] < keys[i])``.

    Notes
    -----
    O(M log M): items are ranked by key and halved by the bits of the rank, highest first, each half in its order of
    coming. At each halving an item of the upper half has below it, of all that it will ever meet there, exactly the
    earlier items of the lower half: one cumulative sum. (A wavelet tree that is built, asked and forgotten level by
    level.)

    Examples
    --------
    >>> earlier_below(np.array([3, 1, 2, 9]), np.array([10, 20, 30, 40]))
    array([ 0,  0, 20, 60])
    """
    num = len(keys)
    bits = num.bit_length()
    by_key = (keys << bits) | np.arange(num)
    by_key.sort()
    by_key &= (1 << bits) - 1
    rank = np.empty(num, dtype=np.int64)
    rank[by_key] = np.arange(num)

    weight = weights
    total = np.zeros(num, dtype=np.int64)
    half = (1 << max(num - 1, 0).bit_length()) >> 1
    while half:  # groups of 2 * half ranks, the last of which may be short
        is_lower = (rank & half) == 0
        lower = np.flatnonzero(is_lower)
        upper = np.flatnonzero(~is_lower)
        running = np.zeros(len(lower) + 1, dtype=np.int64)
        np.cumsum(weight.take(lower), out=running[1:])

        # Lower items before an upper one: its place less the upper ones before it. Of these, the groups before its
        # own hold `half` each.
        num_whole = num // (2 * half)
        in_whole = num_whole * half
        gain = running.take(upper - np.arange(len(upper)))
        gain[:in_whole].reshape(num_whole, half)[...] -= running[:in_whole:half, None]
        gain[in_whole:] -= running[in_whole]
        total[upper] += gain

        order = np.empty(num, dtype=np.int64)
        halves = order[: 2 * in_whole].reshape(num_whole, 2, half)
        halves[:, 0] = lower[:in_whole].reshape(num_whole, half)
        halves[:, 1] = upper[:in_whole].reshape(num_whole, half)
        np.concatenate([lower[in_whole:], upper[in_whole:]], out=order[2 * in_whole :])
        rank, weight, total = rank.take(order), weight.take(order), total.take(order)
        half >>= 1

    result = np.empty(num, dtype=np.int64)
    result[by_key] = total  # by now in order of rank
    return result
