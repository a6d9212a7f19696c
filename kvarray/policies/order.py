"""Eviction orders as small classes with one interface, and the plain ones among them.

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

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from kvarray.policies.frequency import Frequencies
from kvarray.policies.keys import Policy, smallest
from kvarray.policies.runs import Ghosts, Run, RunQueue

__all__ = ["ALL", "Fifo", "Keyed", "Lru", "Order", "Slru"]


ALL = 2**62
"""No limit to how much of a run goes."""


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
        return None if run is None else (run, ALL)

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
        return None if run is None else (run, ALL)

    def settle(self, over: int) -> None:
        """Send the oldest back on probation until the protected section fits."""
        self.move(self.protected, self.probation, self.protected.size - self.protected_capacity)


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
        return runs[int(smallest(self.policy(columns), 1)[0])], ALL
