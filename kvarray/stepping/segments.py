"""A trace as segments: blocks that are always used together, and so need only be looked at once.

Two neighbouring blocks of a path are used together, always, exactly when they occur equally often in the trace.
Cutting paths where that changes leaves a few segments a request whatever the block size is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import Ids
from kvarray.trace import Trace

__all__ = ["Segments", "segments", "single_blocks"]


@dataclass(frozen=True, eq=False)
class Segments:
    """The paths of a trace as segments.

    =========  =====  ========  ================================================================
    column     dtype  shape     meaning
    =========  =====  ========  ================================================================
    `row`      int64  (M,)      which segment, in ``[0, num_rows)``; request i's path at
                                ``offsets[i]:offsets[i + 1]``, from head to tail
    `blocks`   int64  (M,)      how many blocks it has, the same each time
    `first`    int64  (M,)      position of its first block among the references of the trace
    `offsets`  int64  (B + 1,)  where each request's path begins and ends
    =========  =====  ========  ================================================================
    """

    row: Ids
    blocks: Ids
    first: Ids
    offsets: Ids
    num_rows: int


def segments(trace: Trace, *, alike: Sequence[NDArray[Any]] = ()) -> Segments:
    """Return the paths of a trace cut into segments.

    Parameters
    ----------
    trace : Trace
        With block ids.
    alike : sequence of ndarray, shape (N,), optional
        Cut where neighbours differ in one of these as well; a block must have the same value each time.

    Returns
    -------
    Segments

    Raises
    ------
    TraceError
        If the trace has no block ids.

    Notes
    -----
    O(N + M log M).

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)
    >>> paths = segments(trace)
    >>> paths.row, paths.blocks
    (array([0, 1, 0, 2, 0, 1]), array([2, 1, 2, 1, 2, 1]))
    """
    ids, offsets = trace.prefix_ids, trace.offsets
    times = np.bincount(ids)[ids] if len(ids) else ids
    is_first = np.ones(len(ids), dtype=np.bool_)
    np.not_equal(times[1:], times[:-1], out=is_first[1:])
    for column in alike:
        is_first[1:] |= column[1:] != column[:-1]
    heads = offsets[:-1]
    is_first[heads[heads < len(ids)]] = True
    return _cut(trace, ids, np.flatnonzero(is_first))


def single_blocks(trace: Trace, *, by_prefix: bool = True) -> Segments:
    """Return the paths of a trace as segments of one block each, known by its whole prefix or by its id alone.

    Examples
    --------
    >>> single_blocks(Trace([7, 8, 7], [0, 2, 3], block_size=16)).row
    array([0, 1, 0])
    """
    return _cut(trace, trace.prefix_ids if by_prefix else trace.stream_ids, np.arange(trace.num_blocks))


def _cut(trace: Trace, ids: Ids, first: Ids) -> Segments:
    names, row = np.unique(ids[first], return_inverse=True)
    return Segments(
        row=row,
        blocks=np.diff(first, append=trace.num_blocks),
        first=first,
        offsets=np.searchsorted(first, trace.offsets),
        num_rows=len(names),
    )
