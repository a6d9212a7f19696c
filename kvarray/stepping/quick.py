"""Replays of one tier under policies that need no queues: FIFO of single blocks, and chance.

Both give what the eviction orders of `kvarray.policies` give, faster: the one by counting, the other by taking each
request's blocks as one array.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kvarray.arrays import Flags, Ids
from kvarray.policies.drawn import draw_places, fill_holes
from kvarray.ragged import lengths_to_offsets
from kvarray.stepping.segments import Segments

__all__ = ["FifoPaths", "RequestCounts", "fifo_requests", "random_requests"]


@dataclass(frozen=True, eq=False)
class RequestCounts:
    """What each request hit and moved, arrays of shape (B,): blocks, and whether its last block was hit."""

    hits: Ids
    hits_last: Flags
    created: Ids
    dropped: Ids


@dataclass(frozen=True, eq=False)
class FifoPaths:
    """Paths as lists that a Python loop reads.

    `rows` and `blocks` have an item for each segment of each path; `starts`, `stops` and `tails` one for each request:
    its segments from ``starts[i]`` to ``stops[i]``, and the blocks of one more at its end if no other request ever
    uses that one. Such a tail just comes in.
    """

    paths: Segments
    rows: list[int]
    blocks: list[int]
    starts: list[int]
    stops: list[int]
    tails: list[int]

    @classmethod
    def of(cls, paths: Segments) -> "FifoPaths":
        """Make lists of paths."""
        starts, stops = paths.offsets[:-1], paths.offsets[1:]
        is_single = np.bincount(paths.row, minlength=paths.num_rows)[paths.row] == 1
        has_any = stops > starts
        has_tail = np.zeros(len(stops), dtype=np.bool_)
        has_tail[has_any] = is_single[stops[has_any] - 1]
        tails = np.zeros(len(stops), dtype=np.int64)
        tails[has_tail] = paths.blocks[stops[has_tail] - 1]
        columns = (paths.row, paths.blocks, starts, stops - has_tail, tails)
        return cls(paths, *(column.tolist() for column in columns))


def fifo_requests(lists: FifoPaths, capacity: int, *, by_lookup: bool) -> RequestCounts:
    """Replay a FIFO whose steps are single blocks, head first.

    Parameters
    ----------
    lists : FifoPaths
    capacity : int
        Blocks of the tier, ``>= 1``.
    by_lookup : bool
        Whether a hit is the leading part that is there when the request comes, or each block that is there in turn.

    Notes
    -----
    A block is there while fewer than `capacity` blocks came in after it. A segment comes in as a whole, head first,
    and once its head has gone, each block of it that comes in again pushes out the next: it comes in again as a
    whole. So the number of its head's coming says all. The loop is over segments, a few a request.
    """
    rows, blocks = lists.rows, lists.blocks
    came = [-(2**62)] * lists.paths.num_rows
    count = 0  # blocks that came in so far
    counts, whole, hits_last = [0], [], []
    for start, stop, tail in zip(lists.starts, lists.stops, lists.tails, strict=True):
        oldest = count - capacity
        place = start
        while place < stop and came[rows[place]] >= oldest:
            place += 1
        whole.append(place)
        is_hit = True
        while place < stop:
            row = rows[place]
            is_hit = came[row] >= count - capacity
            if not is_hit:
                came[row] = count
                count += blocks[place]
            place += 1
        hits_last.append(is_hit and not tail)
        count += tail
        counts.append(count)

    coming = np.array(counts, dtype=np.int64)
    created, dropped = np.diff(coming), np.diff(np.maximum(coming - capacity, 0))
    before = lengths_to_offsets(lists.paths.blocks)[lists.paths.offsets]
    used = np.diff(before)
    if not by_lookup:
        return RequestCounts(used - created, np.array(hits_last, dtype=np.bool_), created, dropped)
    hits = lengths_to_offsets(lists.paths.blocks)[np.array(whole, dtype=np.int64)] - before[:-1]
    return RequestCounts(hits, hits == used, created, dropped)


def random_requests(paths: Segments, capacity: int, rng: "np.random.Generator") -> RequestCounts:
    """Replay a tier that evicts at random, whose steps are requests.

    Parameters
    ----------
    paths : Segments
        Of one block each.
    capacity : int
        Blocks of the tier, ``>= 1``.
    rng : numpy.random.Generator

    Notes
    -----
    The same draws as `kvarray.policies.drawn.RandomOrder`; a handful of NumPy calls a request.
    """
    tier = _Drawn(paths.num_rows, capacity + int(np.diff(paths.offsets).max(initial=0)), rng)
    counts = np.zeros((4, len(paths.offsets) - 1), dtype=np.int64)
    for request, (start, stop) in enumerate(pairwise(paths.offsets.tolist())):
        path = paths.row[start:stop]
        is_here = tier.place[path] >= 0
        missing = path[~is_here]
        hits = len(path) if not len(missing) else int(np.argmin(is_here))
        size = tier.size
        tier.evict(size + len(missing) - capacity, path[is_here])
        tier.insert(missing[::-1])
        tier.evict(tier.size - capacity, path[:0])
        stayed = int((tier.place[missing] >= 0).sum())  # what does not fit, since the request is too long, never came
        counts[:, request] = hits, hits == len(path), stayed, size + stayed - tier.size
    return RequestCounts(counts[0], counts[1].astype(np.bool_), counts[2], counts[3])


class _Drawn:
    """A tier as two arrays: the rows that it holds, in the order of the list that is drawn from, and their places."""

    def __init__(self, num_rows: int, room: int, rng: "np.random.Generator") -> None:
        self.place = np.full(num_rows, -1)
        self.held = np.zeros(room, dtype=np.int64)
        self.is_spared = np.zeros(room, dtype=np.bool_)
        self.size = 0
        self.rng = rng

    def insert(self, rows: Ids) -> None:
        """Put rows at the end of the list."""
        places = np.arange(self.size, self.size + len(rows))
        self.held[places] = rows
        self.place[rows] = places
        self.size += len(rows)

    def evict(self, need: int, spared: Ids) -> None:
        """Draw rows and take them out, but none of `spared`."""
        if need <= 0:
            return
        while need > 0 and self.size:
            at = self.place[spared]
            self.is_spared[at] = True
            places = draw_places(self.rng, self.size, need, self.is_spared.take)
            self.is_spared[at] = False
            if not len(places):
                break
            self.place[self.held[places]] = -1
            holes, movers = fill_holes(places, self.size)
            moved = self.held[movers]
            self.held[holes] = moved
            self.place[moved] = holes
            self.size -= len(places)
            need -= len(places)
