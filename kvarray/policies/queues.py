"""Orders of several queues: what was used once is kept apart from what was used again."""

import math
from collections.abc import Sequence

from kvarray.policies.order import ALL, Order
from kvarray.policies.runs import Ghosts, Run, RunQueue

__all__ = ["Arc", "S3Fifo", "Sieve", "TwoQ"]


class _Remembering(Order):
    """Tells newcomers that it remembers from those that it does not: the remembered enter at a better place."""

    def put_parts(self, run: Run, ghosts: Sequence[Run], known: RunQueue, unknown: RunQueue) -> None:
        """Push the parts of a run that have ghosts, marked 1, and the others, marked 0; ghosts deepest first."""
        for ghost in ghosts:
            if ghost.stop < run.stop:
                self._put(run.split(run.stop - ghost.stop), 0, unknown)
            if ghost.start == run.start:
                return self._put(run, 1, known)
            self._put(run.split(ghost.stop - ghost.start), 1, known)
        return self._put(run, 0, unknown)

    def _put(self, run: Run, mark: int, queue: RunQueue) -> None:
        run.mark = mark
        self.put(run, queue)


class TwoQ(_Remembering):
    """2Q, full version: a FIFO for newcomers, an LRU for what comes back after leaving it [1]_.

    Newcomers may take a quarter of the tier (``Kin``) and are remembered for half of it (``Kout``), the authors'
    settings.

    References
    ----------
    .. [1] T. Johnson, D. Shasha, "2Q: a low overhead high performance buffer management replacement algorithm", 1994.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.newcomers, self.main, self.left = RunQueue(), RunQueue(), Ghosts()
        self.queues = {"newcomers": self.newcomers, "main": self.main}
        self.ghosts = {"left": self.left}
        self.newcomers_share = max(1, capacity // 4)
        self.left_capacity = max(1, capacity // 2)
        self.others = 0  # unknown newcomers of the step beside the last

    def expect(self, newcomers: Sequence[Run]) -> None:
        """Count those that are not remembered."""
        new = sum(run.stop - run.start - self.left.covered(run.row, run.start, run.stop) for run in newcomers)
        self.others = max(0, new - 1)

    def insert(self, run: Run) -> None:
        """Take in a run: what is remembered goes to the main queue."""
        self.put_parts(run, self.left.pop(run.row, run.start, run.stop), self.main, self.newcomers)

    def touch(self, run: Run) -> None:
        """Renew a run of the main queue; a use of a newcomer does not count."""
        if run.queue is self.main:
            self.main.renew(run)

    def victim(self, step: int) -> tuple[Run, int] | None:
        """Return the oldest newcomer while they exceed their share, or else the oldest of the main queue."""
        excess = self.newcomers.size + self.others - self.newcomers_share
        if excess > 0 and (run := self.newcomers.oldest(step)) is not None:
            return run, excess
        run = self.main.oldest(step) or self.newcomers.oldest(step)
        return None if run is None else (run, ALL)

    def evicted(self, part: Run) -> None:
        """Remember a newcomer."""
        if part.mark == 0:
            self.left.push(part)

    def settle(self, over: int) -> None:
        """Forget the oldest of those that left."""
        self.others = 0
        self.left.trim(self.left_capacity)


class Arc(_Remembering):
    """ARC: one LRU of entries used once, one of those used again, and a target between them that adapts [1]_.

    A step with hits in both ghost lists moves the target by both, at the lengths the lists had before the step.

    References
    ----------
    .. [1] N. Megiddo, D. S. Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003, figure 4.
    """

    scalars = ("target",)

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.once, self.again, self.once_left, self.again_left = RunQueue(), RunQueue(), Ghosts(), Ghosts()
        self.queues = {"once": self.once, "again": self.again}
        self.ghosts = {"once_left": self.once_left, "again_left": self.again_left}
        self.target = 0.0  # what `once` should hold
        self.others = 0  # unknown newcomers of the step beside the last
        self.all_again = False  # all newcomers of the step are remembered as used again

    def expect(self, newcomers: Sequence[Run]) -> None:
        """Move the target towards the list whose ghosts come back."""
        total = sum(run.stop - run.start for run in newcomers)
        once = sum(self.once_left.covered(run.row, run.start, run.stop) for run in newcomers)
        again = sum(self.again_left.covered(run.row, run.start, run.stop) for run in newcomers)
        if once:
            self.target += once * max(1.0, self.again_left.size / self.once_left.size)
        if again:
            self.target -= again * max(1.0, self.once_left.size / self.again_left.size)
        self.target = min(max(self.target, 0.0), float(self.capacity))
        self.others = max(0, total - once - again - 1)
        self.all_again = 0 < again == total

    def insert(self, run: Run) -> None:
        """Take in a run: what is remembered counts as used again."""
        where = run.row, run.start, run.stop
        known = [*self.once_left.pop(*where), *self.again_left.pop(*where)]
        known.sort(key=lambda ghost: -ghost.start)
        self.put_parts(run, known, self.again, self.once)

    def touch(self, run: Run) -> None:
        """Count a run as used again."""
        assert run.queue is not None
        run.queue.remove(run)
        run.mark = 1
        self.again.push(run)

    def victim(self, step: int) -> tuple[Run, int] | None:
        """Return the oldest of the list that exceeds the target."""
        excess = self.once.size + self.others - self.target
        limit = math.floor(excess) + 1 if self.all_again else math.ceil(excess)
        if limit > 0 and (run := self.once.oldest(step)) is not None:
            return run, limit
        run = self.again.oldest(step) or self.once.oldest(step)
        return None if run is None else (run, ALL)

    def evicted(self, part: Run) -> None:
        """Remember what left in the list it left from."""
        (self.again_left if part.mark else self.once_left).push(part)

    def settle(self, over: int) -> None:
        """Forget the oldest ghosts beyond what the lists may hold: one capacity for `once`, two for all."""
        self.others = 0
        self.all_again = False
        self.once_left.trim(max(0, self.capacity - self.once.size))
        held = self.once.size + self.again.size + self.once_left.size
        self.again_left.trim(max(0, 2 * self.capacity - held))


class S3Fifo(_Remembering):
    """S3-FIFO: a small FIFO filters out what is used once, a main one gives second chances [1]_.

    The small queue is a tenth of the tier, as many ghosts are kept as the main queue has blocks, and what was used
    more than once in the small queue moves on, its uses forgotten. The main queue is cut where the authors' own
    implementation does it: at the next eviction.

    References
    ----------
    .. [1] J. Yang, Y. Zhang, Z. Qiu, Y. Yue, R. Vinayak, "FIFO queues are all you need for cache eviction",
       SOSP 2023, algorithm 1.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.small, self.main, self.left = RunQueue(), RunQueue(), Ghosts()
        self.queues = {"small": self.small, "main": self.main}
        self.ghosts = {"left": self.left}
        self.main_capacity = capacity - max(1, capacity // 10)
        self.others = 0  # remembered newcomers of the step beside the last
        self.from_small = False

    def expect(self, newcomers: Sequence[Run]) -> None:
        """Count those that are remembered."""
        known = sum(self.left.covered(run.row, run.start, run.stop) for run in newcomers)
        self.others = max(0, known - 1)

    def insert(self, run: Run) -> None:
        """Take in a run: what is remembered goes to the main queue."""
        self.put_parts(run, self.left.pop(run.row, run.start, run.stop), self.main, self.small)

    def _put(self, run: Run, mark: int, queue: RunQueue) -> None:
        super()._put(run, 0, queue)

    def touch(self, run: Run) -> None:
        """Count a use, up to three."""
        run.mark = min(run.mark + 1, 3)

    def victim(self, step: int) -> tuple[Run, int] | None:
        """Return the oldest of the small queue, or of the main one when that is more than full."""
        self.from_small = False
        excess = self._main_excess()
        if excess > 0 and (run := self._main_victim(step)) is not None:
            return run, excess
        while (run := self.small.oldest(step)) is not None:
            if run.mark < 2:
                self.from_small = True
                return run, 1 if self._main_excess() > 0 else ALL
            self.small.remove(run)
            run.mark = 0
            self.main.push(run)
        run = self._main_victim(step)
        return None if run is None else (run, ALL)

    def _main_excess(self) -> int:
        return self.main.size + self.others - self.main_capacity

    def _main_victim(self, step: int) -> Run | None:
        """Give second chances until the oldest has none left."""
        while (run := self.main.oldest(step)) is not None and run.mark:
            run.mark -= 1
            self.main.renew(run)
        return run

    def evicted(self, part: Run) -> None:
        """Remember what left the small queue."""
        if self.from_small:
            self.left.push(part)

    def settle(self, over: int) -> None:
        """Forget the oldest ghosts."""
        self.others = 0
        self.left.trim(self.main_capacity)


class Sieve(Order):
    """SIEVE: a hand moves from old to young, spares what was visited, and nothing moves but the hand [1]_.

    The queue is kept in two parts, what the hand has passed and what lies ahead of it. What a step uses or a pin
    holds is passed with its visit still counting.

    References
    ----------
    .. [1] Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi, "SIEVE is simpler than LRU", NSDI 2024,
       algorithm 1.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.passed, self.ahead = RunQueue(), RunQueue()
        self.queues = {"passed": self.passed, "ahead": self.ahead}

    def insert(self, run: Run) -> None:
        """Take in a run, not visited."""
        run.mark = 0
        self.put(run, self.ahead)

    def touch(self, run: Run) -> None:
        """Mark a run as visited."""
        run.mark = 1

    def remove(self, run: Run) -> None:
        """Let a run go; the hand wraps where it was the last ahead."""
        super().remove(run)
        self._wrap()

    def _wrap(self) -> None:
        """Put the hand back at the oldest once it has passed the youngest."""
        if not self.ahead.runs:
            self.passed, self.ahead = self.ahead, self.passed
            self.queues = {"passed": self.passed, "ahead": self.ahead}

    def victim(self, step: int) -> tuple[Run, int] | None:
        """Move the hand to what was not visited."""
        for _ in range(2 * (len(self.passed.runs) + len(self.ahead.runs))):
            run = next(iter(self.ahead))
            spared = run.step == step or run.pins
            if not spared and not run.mark:
                return run, ALL
            if not spared:
                run.mark = 0
            self.ahead.remove(run)
            self.passed.push(run)
            self._wrap()
        return None

    def evicted(self, part: Run) -> None:
        """Wrap the hand where the last ahead went."""
        self._wrap()
