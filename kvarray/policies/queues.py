"""Eviction orders that keep queues of their own, as small classes with one interface.

An order holds the runs of one tier (`kvarray.policies.runs`) and says which goes next. A *step* uses many blocks at
once, a whole request; a step of one block is each paper's algorithm to the letter. For longer ones:

1. `expect` is told of all runs that will come in, and of the step's tail before its head, as everywhere below;
2. room is made for all of them at once with `evict`, which spares what the step uses. Rules that compare sizes see
   those that the last newcomer would see, so that a long request does not drain the queue it does not enter;
3. `insert` and `touch` are called for the step's runs, tail first, so that a tail is always older than its head;
4. `settle` ends the step: sections are cut to their sizes and ghosts are forgotten.

Whatever then exceeds the tier, because one request is longer than it, is evicted without sparing the step.

Left out: W-TinyLFU and admission by frequency count exactly instead of in a count-min sketch, so nothing depends on
hash functions; counters are halved and forgotten as in the paper. Differences from a paper are named in each class.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, ClassVar

import numpy as np

from kvarray.policies.keys import Policy, smallest
from kvarray.policies.runs import Ghosts, Run, RunQueue

__all__ = [
    "ORDERS",
    "Arc",
    "Fifo",
    "Frequencies",
    "Gdsf",
    "Keyed",
    "Lfu",
    "LfuAged",
    "Lru",
    "Order",
    "RandomOrder",
    "S3Fifo",
    "Sieve",
    "Slru",
    "TwoQ",
    "WTinyLfu",
    "order_maker",
]

_ALL = 2**62  # no limit to how much of a run goes


class Order:
    """What a tier holds and which blocks go first; the base of all orders.

    Parameters
    ----------
    capacity : int
        Blocks of the tier.

    Notes
    -----
    An order of its own gives `victim`, and `insert` and `touch` where one queue is not enough.
    """

    weighs_uses: bool = False
    """Whether blocks that were used differently often are told apart."""
    room_first: ClassVar[bool] = True
    """Whether room is made before newcomers come in; otherwise they compete for it."""
    single_blocks: ClassVar[bool] = False
    """Whether it needs rows of one block."""
    scalars: ClassVar[tuple[str, ...]] = ()
    """Attributes that are part of the state, beside the queues."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.rows: dict[int, list[Run]] = {}
        self.queues: dict[str, RunQueue] = {"queue": RunQueue()}
        self.ghosts: dict[str, Ghosts] = {}
        self.frequencies: Frequencies | None = None

    def expect(self, newcomers: Sequence[Run]) -> None:
        """Hear of all runs that will come in in this step, before room is made for them."""

    def insert(self, run: Run) -> None:
        """Take in a run as the youngest."""
        self.put(run, self.queues["queue"])

    def put(self, run: Run, queue: RunQueue) -> None:
        """Push a run that was not here onto a queue."""
        queue.push(run)
        self.size += run.stop - run.start
        self.rows.setdefault(run.row, []).append(run)

    def touch(self, run: Run) -> None:
        """Hear of a use of a run that is here."""

    def remove(self, run: Run) -> None:
        """Let a run go that is not evicted: it is promoted or taken out by hand."""
        assert run.queue is not None
        run.queue.remove(run)
        self.size -= run.stop - run.start
        self._forget(run)

    def _forget(self, run: Run) -> None:
        runs = self.rows[run.row]
        if len(runs) == 1:
            del self.rows[run.row]
        else:
            runs.remove(run)

    def move(self, source: RunQueue, target: RunQueue, count: int) -> None:
        """Move the oldest `count` blocks of a queue to the young end of another one."""
        while count > 0:
            run = next(iter(source))
            part = source.take(run, count)
            if part is not run:
                self.rows[part.row].append(part)
            count -= part.stop - part.start
            target.push(part)

    def victim(self, step: int) -> tuple[Run, int] | None:
        """Return the run that goes next and how many of its blocks may go before asking again."""
        run = self.queues["queue"].oldest(step)
        return None if run is None else (run, _ALL)

    def evicted(self, part: Run) -> None:
        """Hear of the blocks that were evicted, on the advice of `victim`."""

    def settle(self, over: int) -> None:
        """End the step; `over` blocks are still to be evicted."""

    def evict(self, need: int, step: int) -> list[Run]:
        """Evict blocks and return them as runs, in the order they go.

        Parameters
        ----------
        need : int
            How many; fewer go where everything else is spared.
        step : int
            Runs last used in this step are spared, pinned ones as well.
        """
        parts: list[Run] = []
        while need > 0 and (choice := self.victim(step)) is not None:
            part = self.take(choice, need)
            need -= part.stop - part.start
            parts.append(part)
        return parts

    def take(self, choice: tuple[Run, int], need: int) -> Run:
        """Evict up to `need` blocks of what `victim` chose and return them."""
        run, limit = choice
        assert run.queue is not None
        part = run.queue.take(run, min(need, limit))
        if part is run:
            self._forget(run)
        self.size -= part.stop - part.start
        self.evicted(part)
        return part

    def join(self, row: int) -> None:
        """Join the runs of a row that lie side by side and are alike in all that matters."""
        runs = self.rows[row]
        runs.sort(key=_start)
        kept = runs[-1:]
        for head in reversed(runs[:-1]):
            tail = kept[-1]
            alike = head.uses == tail.uses or not self.weighs_uses
            if alike and head.queue is not None and head.queue.absorb(head, tail):
                kept[-1] = head
            else:
                kept.append(head)
        self.rows[row] = kept

    def runs(self) -> Iterator[tuple[str, Run]]:
        """Iterate over the runs and the queues they are in, oldest first."""
        return ((name, run) for name, queue in self.queues.items() for run in queue)

    def restore(self, queue: str, run: Run) -> None:
        """Put a run back; called for all of them in the order of `runs`."""
        self.put(run, self.queues[queue])


def _start(run: Run) -> int:
    return run.start


class Fifo(Order):
    """First in, first out: uses do not matter."""


class Lru(Order):
    """Least recently used first."""

    def touch(self, run: Run) -> None:
        """Make a run the youngest."""
        self.queues["queue"].renew(run)


class _Ranked(Order):
    """Lowest rank first, among equals the least recently used: a queue for each rank."""

    weighs_uses = True
    scalars = ("age",)

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.age = 0.0  # rank of the last victim
        self.queues = {}
        self.ranks: dict[float, RunQueue] = {}
        self.lowest: list[float] = []  # heap of ranks; emptied ones linger

    def rank(self, run: Run) -> float:
        raise NotImplementedError

    def insert(self, run: Run) -> None:
        self.put(run, self._queue(run))

    def touch(self, run: Run) -> None:
        assert run.queue is not None
        run.queue.remove(run)
        self._clear(run.mark)
        self._queue(run).push(run)

    def _queue(self, run: Run) -> RunQueue:
        """Rank a run anew and return the queue of that rank."""
        run.mark = self.rank(run)
        return self._of_rank(run.mark)

    def _of_rank(self, rank: float) -> RunQueue:
        queue = self.ranks.get(rank)
        if queue is None:
            queue = self.ranks[rank] = RunQueue()
            heappush(self.lowest, rank)
        return queue

    def _clear(self, rank: float) -> None:
        if not self.ranks[rank].runs:
            del self.ranks[rank]

    def remove(self, run: Run) -> None:
        super().remove(run)
        self._clear(run.mark)

    def victim(self, step: int) -> tuple[Run, int] | None:
        while self.lowest and self.lowest[0] not in self.ranks:
            heappop(self.lowest)
        if not self.lowest:
            return None
        run = self.ranks[self.lowest[0]].oldest(step)
        if run is not None:
            return run, _ALL
        for rank in sorted(self.ranks):  # all of the lowest are spared
            run = self.ranks[rank].oldest(step)
            if run is not None:
                return run, _ALL
        return None

    def evicted(self, part: Run) -> None:
        self.age = part.mark
        self._clear(part.mark)

    def runs(self) -> Iterator[tuple[str, Run]]:
        return (("rank", run) for rank in sorted(self.ranks) for run in self.ranks[rank])

    def restore(self, queue: str, run: Run) -> None:
        self.put(run, self._of_rank(run.mark))


class Lfu(_Ranked):
    """Least often used first, among equals the least recently used."""

    def rank(self, run: Run) -> float:
        """Return the uses."""
        return run.uses


class LfuAged(_Ranked):
    """LFU with dynamic ageing: the rank is the uses plus the age of the cache, the rank of its last victim [1]_.

    References
    ----------
    .. [1] M. Arlitt, L. Cherkasova, J. Dilley, R. Friedrich, T. Jin, "Evaluating content management techniques for
       web proxy caches", 2000.
    """

    def rank(self, run: Run) -> float:
        """Return the uses, above the age of the cache."""
        return self.age + run.uses


class Gdsf(_Ranked):
    """Greedy-Dual-Size-Frequency: rank = age + uses x weight, the weight being cost / size [1]_.

    References
    ----------
    .. [1] L. Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy", 1998.
    """

    def rank(self, run: Run) -> float:
        """Return the value of keeping it, above the age of the cache."""
        return self.age + run.uses * run.weight


class Slru(Order):
    """Segmented LRU: a second use moves an entry to a protected section, four fifths of the tier [1]_.

    References
    ----------
    .. [1] R. Karedla, J. S. Love, B. G. Wherry, "Caching strategies to improve disk system performance", 1994.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.probation, self.protected = RunQueue(), RunQueue()
        self.queues = {"probation": self.probation, "protected": self.protected}
        self.protected_capacity = capacity * 4 // 5

    def insert(self, run: Run) -> None:
        """Take in a run on probation."""
        self.put(run, self.probation)

    def touch(self, run: Run) -> None:
        """Protect a run."""
        assert run.queue is not None
        run.queue.remove(run)
        self.protected.push(run)

    def victim(self, step: int) -> tuple[Run, int] | None:
        """Return the oldest on probation, or else the oldest of all."""
        run = self.probation.oldest(step) or self.protected.oldest(step)
        return None if run is None else (run, _ALL)

    def settle(self, over: int) -> None:
        """Send the oldest back on probation until the protected section fits."""
        self.move(self.protected, self.probation, self.protected.size - self.protected_capacity)


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
        return None if run is None else (run, _ALL)

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
        known.sort(key=_start, reverse=True)
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
        return None if run is None else (run, _ALL)

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
                return run, 1 if self._main_excess() > 0 else _ALL
            self.small.remove(run)
            run.mark = 0
            self.main.push(run)
        run = self._main_victim(step)
        return None if run is None else (run, _ALL)

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
                return run, _ALL
            if not spared:
                run.mark = 0
            self.ahead.remove(run)
            self.passed.push(run)
            self._wrap()
        return None

    def evicted(self, part: Run) -> None:
        """Wrap the hand where the last ahead went."""
        self._wrap()


class Frequencies:
    """How often blocks were used lately: counters up to 15, all halved after a sample of uses [1]_.

    Counters are exact, one a row, instead of a count-min sketch; those that fall to 0 are forgotten, so there are
    never more than the sample has uses.

    Parameters
    ----------
    sample : int
        Uses, in blocks, between two halvings.

    References
    ----------
    .. [1] G. Einziger, R. Friedman, B. Manes, "TinyLFU: a highly efficient cache admission policy", 2017.
    """

    def __init__(self, sample: int) -> None:
        self.sample = sample
        self.counts: dict[int, int] = {}
        self.uses = 0

    def record(self, row: int, blocks: int) -> None:
        """Count a use of all blocks of a row."""
        self.counts[row] = min(self.counts.get(row, 0) + 1, 15)
        self.uses += blocks

    def settle(self) -> None:
        """Halve the counters where the sample is full; called once a step."""
        while self.uses >= self.sample:
            self.uses //= 2
            self.counts = {row: count // 2 for row, count in self.counts.items() if count > 1}

    def __getitem__(self, row: int) -> int:
        """Return the counter of a row."""
        return self.counts.get(row, 0)


class WTinyLfu(Slru):
    """W-TinyLFU: newcomers pass a small window, then compete by frequency with the victim of an SLRU [1]_.

    The window is a hundredth of the tier, the sample ten times the tier. A newcomer that loses is evicted, so room
    is made after a step has come in.

    References
    ----------
    .. [1] G. Einziger, R. Friedman, B. Manes, "TinyLFU: a highly efficient cache admission policy", 2017.
    """

    room_first = False

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.window = RunQueue()
        self.queues["window"] = self.window
        self.window_capacity = max(1, capacity // 100)
        self.protected_capacity = (capacity - self.window_capacity) * 4 // 5
        self.frequencies = Frequencies(10 * capacity)
        self.winner = False

    def insert(self, run: Run) -> None:
        """Take in a run to the window."""
        self.put(run, self.window)

    def touch(self, run: Run) -> None:
        """Renew a run of the window; protect any other."""
        if run.queue is self.window:
            self.window.renew(run)
        else:
            super().touch(run)

    def settle(self, over: int) -> None:
        """Let those that leave the window in while there is room."""
        super().settle(over)
        self.move(self.window, self.probation, self.window.size - self.window_capacity - max(0, over))

    def victim(self, step: int) -> tuple[Run, int] | None:
        """Return the less frequent one of the window's candidate and the victim of the rest."""
        assert self.frequencies is not None
        self.winner = False
        resident = self.probation.oldest(step) or self.protected.oldest(step)
        excess = self.window.size - self.window_capacity
        candidate = self.window.oldest(step)
        if resident is None or (excess > 0 and candidate is not None):
            if candidate is None:
                return None
            if resident is None or self.frequencies[candidate.row] <= self.frequencies[resident.row]:
                return candidate, excess if excess > 0 else _ALL
            self.winner = True
            return resident, min(excess, candidate.stop - candidate.start)
        return resident, _ALL

    def evicted(self, part: Run) -> None:
        """Let the winner in."""
        if self.winner:
            self.move(self.window, self.probation, part.stop - part.start)


class RandomOrder(Order):
    """Any block with the same chance; rows must be single blocks.

    Parameters
    ----------
    capacity : int
        Blocks of the tier.
    rng : numpy.random.Generator
        Where the draws come from.
    """

    single_blocks = True

    def __init__(self, capacity: int, rng: "np.random.Generator") -> None:
        super().__init__(capacity)
        self.rng = rng
        self.held: list[Run] = []

    def put(self, run: Run, queue: RunQueue) -> None:
        """Take in a run at the end of the list that is drawn from."""
        super().put(run, queue)
        run.mark = len(self.held)
        self.held.append(run)

    def runs(self) -> Iterator[tuple[str, Run]]:
        """Iterate over the runs in the order of the list that is drawn from."""
        return (("queue", run) for run in self.held)

    def remove(self, run: Run) -> None:
        """Let a run go."""
        super().remove(run)
        self.evicted(run)

    def evicted(self, part: Run) -> None:
        """Fill the hole with the last of the list."""
        last = self.held.pop()
        if last is not part:
            last.mark = part.mark
            self.held[int(part.mark)] = last

    def victim(self, step: int) -> tuple[Run, int] | None:
        """Draw a block; where it is spared, take the next in the list that is not."""
        if not self.held:
            return None
        first = int(self.rng.integers(len(self.held)))
        for place in range(first - len(self.held), first):  # from there around the list
            run = self.held[place]
            if run.step != step and not run.pins:
                return run, _ALL
        return None


class Keyed(Order):
    """The order of a key function: smallest key first, ties go to what came in first; rows must be single blocks.

    Parameters
    ----------
    capacity : int
        Blocks of the tier.
    policy : callable
        Key function over the columns ``last_use``, ``created`` and ``uses``.

    Notes
    -----
    All keys are computed anew for each eviction, O(tier).
    """

    single_blocks = True

    def __init__(self, capacity: int, policy: Policy) -> None:
        super().__init__(capacity)
        self.policy = policy
        self.ticks = 0

    scalars = ("ticks",)

    def insert(self, run: Run) -> None:
        """Take in a run, created and used now."""
        super().insert(run)
        self.touch(run)

    def touch(self, run: Run) -> None:
        """Note the use."""
        self.ticks += 1
        run.mark = self.ticks

    def victim(self, step: int) -> tuple[Run, int] | None:
        """Return the run with the smallest key."""
        runs = [run for run in self.queues["queue"] if run.step != step and not run.pins]
        if not runs:
            return None
        columns = {
            "last_use": np.array([run.mark for run in runs], dtype=np.int64),
            "created": np.array([run.place for run in runs], dtype=np.int64),
            "uses": np.array([run.uses for run in runs], dtype=np.int64),
        }
        return runs[int(smallest(self.policy(columns), 1)[0])], _ALL


ORDERS: Mapping[str, Callable[..., Order]] = {
    "arc": Arc,
    "fifo": Fifo,
    "gdsf": Gdsf,
    "lfu": Lfu,
    "lfu_aged": LfuAged,
    "lru": Lru,
    "random": RandomOrder,
    "s3_fifo": S3Fifo,
    "sieve": Sieve,
    "slru": Slru,
    "two_q": TwoQ,
    "w_tinylfu": WTinyLfu,
}
"""Orders by name."""


def order_maker(policy: str | Policy, *, rng: Any = None) -> Callable[[int], Order]:
    """Return what makes the order of a tier from its capacity.

    Parameters
    ----------
    policy : str or callable
        A name out of `ORDERS`, or a key function of one's own.
    rng : optional
        Seed or generator; needed for ``"random"`` and for no other.

    Raises
    ------
    ValueError
        If the name is unknown (the message lists the known ones), or `rng` is missing or not needed.
    TypeError
        If it is neither a name nor a function.

    Examples
    --------
    >>> order_maker("lfu")(100).capacity
    100
    >>> order_maker("mfu")
    Traceback (most recent call last):
        ...
    ValueError: policy must be one of arc, fifo, gdsf, lfu, lfu_aged, lru, random, s3_fifo, sieve, slru, two_q,
    w_tinylfu, or a key function: got 'mfu'
    """
    if callable(policy):
        return lambda capacity: Keyed(capacity, policy)
    if not isinstance(policy, str):
        raise TypeError(f"policy must be a name or a key function: got {policy!r}")
    if policy not in ORDERS:
        raise ValueError(f"policy must be one of {', '.join(ORDERS)}, or a key function: got {policy!r}")
    if (policy == "random") != (rng is not None):
        raise ValueError(f"rng must be given for the policy 'random' and for no other: got {rng!r} for {policy!r}")
    if policy == "random":
        generator = np.random.default_rng(rng)
        return lambda capacity: RandomOrder(capacity, generator)
    return ORDERS[policy]
