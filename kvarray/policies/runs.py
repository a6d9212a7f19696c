"""Runs of blocks in queues: what eviction orders with a state of their own are made of.

Blocks of a path that are always used together (a *row*) also lie together in every queue, so an order keeps *runs*,
ranges ``start:stop`` of a row's blocks, instead of single blocks. A cache of plain keys has rows of one block. An
eviction may take a part of a run: the deepest blocks first, since a step touches a path's tail before its head, and
the rest keeps its place. Every answer is the one that block-by-block stepping gives; only the work is less.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush

__all__ = ["NOBODY", "Ghosts", "Run", "RunQueue"]

NOBODY = -1
"""A step that no run was used in (steps begin at 1, and 0 is before them): evicting for it spares only pins."""


class Run:
    """Blocks ``start:stop`` of a row, in one queue.

    Parameters
    ----------
    row : int
        The row.
    start, stop : int
        First block and the one after the last.
    step : int
        The latest step that used it; a step never evicts what it used while there is anything else.
    uses : int
        Uses since it came into the cache.
    weight : float
        What it is worth to keep it, for orders that are aware of cost and size.
    tokens : int
        Tokens of each of its blocks, for tiers that take no small ones.

    Examples
    --------
    >>> run = Run(7, 0, 5, step=3)
    >>> part = run.split(2)
    >>> (part.start, part.stop), (run.start, run.stop)
    ((3, 5), (0, 3))
    """

    __slots__ = ("mark", "origin", "pins", "place", "queue", "row", "start", "step", "stop", "tokens", "uses", "weight")

    def __init__(
        self,
        row: int,
        start: int,
        stop: int,
        *,
        step: int = 0,
        uses: int = 1,
        weight: float = 1.0,
        tokens: int = 0,
    ) -> None:
        self.row = row
        self.start = start
        self.stop = stop
        self.step = step
        self.uses = uses
        self.weight = weight
        self.tokens = tokens
        self.origin = 0  # tier that held it when the latest step began
        self.mark: float = 0  # the order's own: visited, section or rank
        self.pins = 0
        self.place = 0  # number of its push into `queue`
        self.queue: RunQueue | None = None

    def split(self, count: int) -> "Run":
        """Cut off the deepest `count` blocks and return them as a run that lies in no queue."""
        part = self.copy(self.stop - count, self.stop)
        part.step, part.origin, part.mark = self.step, self.origin, self.mark
        self.stop -= count
        return part

    def copy(self, start: int, stop: int) -> "Run":
        """Return a run for some of its blocks, with what is known of them, for another tier."""
        return Run(self.row, start, stop, uses=self.uses, weight=self.weight, tokens=self.tokens)


class RunQueue:
    """Runs in the order they were pushed, oldest first, and the blocks they hold.

    Examples
    --------
    >>> queue = RunQueue()
    >>> queue.push(Run(0, 0, 3))
    >>> queue.push(Run(1, 0, 1))
    >>> [run.row for run in queue], queue.size
    ([0, 1], 4)
    """

    __slots__ = ("pushes", "runs", "size")

    def __init__(self) -> None:
        self.runs: OrderedDict[Run, None] = OrderedDict()
        self.size = 0
        self.pushes = 0

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def push(self, run: Run) -> None:
        """Add a run at the young end."""
        self.runs[run] = None
        self.size += run.stop - run.start
        self.pushes += 1
        run.place = self.pushes
        run.queue = self

    def renew(self, run: Run) -> None:
        """Move a run of this queue to its young end."""
        self.runs.move_to_end(run)
        self.pushes += 1
        run.place = self.pushes

    def remove(self, run: Run) -> None:
        """Take a run out."""
        del self.runs[run]
        self.size -= run.stop - run.start
        run.queue = None

    def take(self, run: Run, count: int) -> Run:
        """Take the deepest `count` blocks of a run out, as a run of their own where that leaves some."""
        if count >= run.stop - run.start:
            self.remove(run)
            return run
        self.size -= count
        return run.split(count)

    def oldest(self, step: int) -> Run | None:
        """Return the oldest run that is not pinned and that `step` did not use; None where there is none."""
        for run in self.runs:
            if run.step != step and not run.pins:
                return run
        return None

    def absorb(self, head: Run, tail: Run) -> bool:
        """Join two neighbouring runs of a row where nothing lies between them and the tail is the older one."""
        lies_beside = tail.queue is self and head.place == tail.place + 1 and head.stop == tail.start
        if not lies_beside or head.mark != tail.mark:
            return False
        del self.runs[tail]
        tail.queue = None
        head.stop = tail.stop
        return True


class Ghosts:
    """Blocks that an order remembers without holding their content, found by row, forgotten oldest first.

    Examples
    --------
    >>> ghosts = Ghosts()
    >>> ghosts.push(Run(0, 2, 5))
    >>> ghosts.covered(0, 0, 5)
    3
    >>> ghosts.trim(1)
    >>> [(ghost.start, ghost.stop) for ghost in ghosts.pop(0, 0, 5)], ghosts.size
    ([(2, 3)], 0)
    """

    __slots__ = ("added", "ages", "pushes", "rows", "size")

    def __init__(self) -> None:
        self.rows: dict[int, list[Run]] = {}
        self.ages: list[tuple[int, int, int, Run]] = []  # heap: push, minus start, a number; forgotten ones linger
        self.size = 0
        self.pushes = 0
        self.added = 0

    def __iter__(self) -> Iterator[Run]:
        """Iterate over the ghosts, oldest first."""
        return (ghost for *_, ghost in sorted(self.ages) if ghost.start < ghost.stop)

    def push(self, run: Run) -> None:
        """Remember the blocks of an evicted run, as the youngest; the run itself goes its own way."""
        self.pushes += 1
        self._add(run.row, run.start, run.stop, self.pushes)

    def _add(self, row: int, start: int, stop: int, place: int) -> None:
        ghost = Run(row, start, stop)
        ghost.place = place
        self.rows.setdefault(row, []).append(ghost)
        self.added += 1
        heappush(self.ages, (place, -start, self.added, ghost))
        self.size += stop - start

    def _forget(self, ghost: Run) -> None:
        """Take a ghost out of its row; in the heap it stays, as an empty one."""
        ghosts = self.rows[ghost.row]
        ghosts.remove(ghost)
        if not ghosts:
            del self.rows[ghost.row]
        self.size -= ghost.stop - ghost.start
        ghost.stop = ghost.start

    def covered(self, row: int, start: int, stop: int) -> int:
        """Count the blocks of a range that are remembered."""
        ghosts = self.rows.get(row)
        if not ghosts:
            return 0
        return sum(max(0, min(ghost.stop, stop) - max(ghost.start, start)) for ghost in ghosts)

    def pop(self, row: int, start: int, stop: int) -> list[Run]:
        """Forget the blocks of a range and return those that were remembered, as runs, the deepest first."""
        found = []
        for ghost in tuple(self.rows.get(row, ())):
            low, high = max(ghost.start, start), min(ghost.stop, stop)
            if low < high:
                first, last, place = ghost.start, ghost.stop, ghost.place
                self._forget(ghost)
                if first < low:
                    self._add(row, first, low, place)
                if high < last:
                    self._add(row, high, last, place)
                found.append(Run(row, low, high))
        found.sort(key=lambda ghost: -ghost.start)
        return found

    def trim(self, size: int) -> None:
        """Forget the oldest until at most `size` blocks are remembered."""
        while self.size > size:
            ghost = self.ages[0][3]
            excess = self.size - size
            if ghost.stop - ghost.start > excess:
                ghost.stop -= excess
                self.size = size
            else:
                if ghost.start < ghost.stop:
                    self._forget(ghost)
                heappop(self.ages)
