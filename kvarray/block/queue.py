"""The free queue: ids in the order in which they will be handed out, without a linked list.

A buffer of entries, an id each, of which the stretch ``[head, tail)`` is in use. Both of its ends can grow, and ids
are taken from its head. `place[i]` is where id i stands. An id that leaves the middle only loses its place: its entry
stays behind and is *stale*, which shows in that the id's place is another, and is skipped when the head comes by. A
buffer of twice as many entries as there are ids runs into one of its ends at most once in half as many pushes; the
entries that are not stale are then moved to its middle. All operations are slices and gathers, and cost amortised
constant time an id.

Kernels that trust their callers: ids in range, pushed ids different and not in the queue, removed ids in the queue.
"""

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import Flags, Ids
from kvarray.errors import InvariantError

__all__ = ["FreeQueue"]

_OUT = -1  # place of an id that left the middle; any place is meaningless while its id is not in the queue


class FreeQueue:
    """Ids ``0 .. num_ids - 1``, each in the queue once or not at all; at first all are, in order.

    Invariants, verified by `check`:

    Q1. No id has two entries that are not stale.
    Q2. ``len(queue)`` is the number of entries that are not stale.

    Examples
    --------
    >>> queue = FreeQueue(4)
    >>> ids, end = queue.peek(2)
    >>> queue.pop(2, end)
    >>> queue.push_back(np.array([1]))
    >>> queue.remove(np.array([2]))
    1
    >>> queue.push_front(np.array([0, 2]))
    >>> queue.order()
    array([0, 2, 3, 1])
    """

    def __init__(self, num_ids: int) -> None:
        size = 2 * num_ids
        self._entries = np.empty(size, dtype=np.int32)
        self._place = np.empty(num_ids, dtype=np.int32)
        self._entry_items = self._entries.data
        self._place_items = self._place.data
        self.assign(np.arange(num_ids))

    def __len__(self) -> int:
        """Return how many ids are in the queue."""
        return self._tail - self._head - self._num_stale

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self._entries.nbytes + self._place.nbytes

    def order(self) -> Ids:
        """Return all ids in the queue, the next to be taken first."""
        return self.peek(len(self))[0]

    def assign(self, ids: Ids) -> None:
        """Let the queue consist of these ids, in this order."""
        self._head = (len(self._entries) - len(ids)) // 2
        self._tail = self._head + len(ids)
        self._num_stale = 0
        self._entries[self._head : self._tail] = ids
        self._place[ids] = np.arange(self._head, self._tail, dtype=np.int32)

    def peek(self, count: int) -> tuple[Ids, int]:
        """Return the first `count` ids, and the place after the last of them; nothing changes.

        There must be as many.
        """
        end = self._head + count
        if self._num_stale == 0:
            return self._entries[self._head : end].astype(np.int64), end
        live = self._live(count)
        return self._entries.take(live).astype(np.int64), int(live[-1]) + 1 if count else self._head

    def pop(self, count: int, end: int) -> None:
        """Take the first `count` ids out, the last of which stands before the place `end`, as `peek` said."""
        self._num_stale -= end - self._head - count
        self._head = end

    def is_among_first(self, counts: Ids, ids: Ids) -> Flags:
        """Return which of these ids, all in the queue, are among its first ones, of which each has its own count."""
        places = self._place.take(ids)
        is_near = places < self._head + counts + self._num_stale
        if self._num_stale == 0 or not np.count_nonzero(is_near):
            return is_near
        is_among: Flags = np.searchsorted(self._live(min(int(counts.max()), len(self))), places) < counts
        return is_among

    def push_back(self, ids: Ids) -> None:
        """Append ids at the tail, in the order given."""
        if self._tail + len(ids) > len(self._entries):
            self._centre()
        end = self._tail + len(ids)
        self._entries[self._tail : end] = ids
        self._place[ids] = np.arange(self._tail, end, dtype=np.int32)
        self._tail = end

    def push_front(self, ids: Ids) -> None:
        """Put ids before the head; the first of them will be the first of the queue."""
        if self._head < len(ids):
            self._centre()
        start = self._head - len(ids)
        self._entries[start : self._head] = ids
        self._place[ids] = np.arange(start, self._head, dtype=np.int32)
        self._head = start

    def remove(self, ids: Ids) -> int:
        """Take ids out of the queue, wherever they stand; ids may repeat. Returns how many different ones they are."""
        marks = np.arange(_OUT - len(ids), _OUT, dtype=np.int32)  # negative, so no places
        self._place[ids] = marks
        count = int(np.count_nonzero(self._place.take(ids) == marks))
        self._num_stale += count
        return count

    def places(self, ids: Ids) -> NDArray[np.int32]:
        """Return where ids stand, for `put_back`."""
        return self._place.take(ids)

    def put_back(self, ids: Ids, places: NDArray[np.int32]) -> None:
        """Undo `remove`, if nothing else has happened to the queue."""
        self._place[ids] = places
        self._num_stale -= len(np.unique(places))

    def last_of_each(self, ids: Ids) -> NDArray[np.int32] | None:
        """Return, for each item, where the last item with the same id stands in `ids`; None if all ids differ.

        The ids must not be in the queue: their places, meaningless for now, serve as scratch.
        """
        if len(ids) < 2:
            return None
        marks = np.arange(_OUT - len(ids), _OUT, dtype=np.int32)  # negative, so that no stale entry comes to life
        self._place[ids] = marks  # of several writes to one place the last one stays
        last = self._place.take(ids)
        return None if np.count_nonzero(last == marks) == len(ids) else last - marks[0]

    def pop_few(self, count: int) -> list[int]:
        """Take the first `count` ids one by one; there must be as many."""
        head = self._head
        if self._num_stale == 0:
            self._head = head + count
            first: list[int] = self._entry_items[head : head + count].tolist()
            return first
        entries, place = self._entry_items, self._place_items
        taken: list[int] = []
        while len(taken) < count:
            item = entries[head]
            if place[item] == head:
                taken.append(item)
            head += 1
        self._num_stale -= head - self._head - count
        self._head = head
        return taken

    def push_back_few(self, ids: list[int]) -> None:
        """Append a few ids at the tail; see `push_back`."""
        if self._tail + len(ids) > len(self._entries):
            self._centre()
        entries, place = self._entry_items, self._place_items
        for at, item in enumerate(ids, self._tail):
            entries[at] = item
            place[item] = at
        self._tail += len(ids)

    def push_front_few(self, ids: list[int]) -> None:
        """Put a few ids before the head; see `push_front`."""
        if self._head < len(ids):
            self._centre()
        self._head -= len(ids)
        entries, place = self._entry_items, self._place_items
        for at, item in enumerate(ids, self._head):
            entries[at] = item
            place[item] = at

    def remove_few(self, ids: list[int]) -> None:
        """Take a few different ids out, wherever they stand; see `remove`."""
        place = self._place_items
        for item in ids:
            place[item] = _OUT
        self._num_stale += len(ids)

    def check(self) -> None:
        """Raise `InvariantError` unless Q1 and Q2 hold; O(ids)."""
        window = self._entries[self._head : self._tail]
        live = window[self._place[window] == np.arange(self._head, self._tail)]
        counts = np.bincount(live, minlength=len(self._place))
        if (counts > 1).any():
            raise InvariantError(f"Q1: ids twice in the queue: {np.flatnonzero(counts > 1)[:5].tolist()}")
        if len(live) != len(self):
            raise InvariantError(f"Q2: {len(live)} ids in the queue, {len(self)} are counted")

    def _live(self, count: int) -> Ids:
        """Return the places of the first `count` ids; there must be as many."""
        wide = count + 16
        while True:  # the window doubles, so the work is that of the entries skipped
            end = min(self._head + wide, self._tail)
            is_live = self._place.take(self._entries[self._head : end]) == np.arange(self._head, end, dtype=np.int32)
            live = np.flatnonzero(is_live)
            if len(live) >= count:
                return live[:count] + self._head
            wide *= 2

    def _centre(self) -> None:
        """Drop the stale entries and move the others to the middle of the buffer."""
        self.assign(self.order())
