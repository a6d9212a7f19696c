"""Orders by rank: how often an entry was used, above the age of the cache, weighed or not."""

from abc import abstractmethod
from collections.abc import Iterator
from heapq import heappop, heappush

from kvarray.policies.order import ALL, Order
from kvarray.policies.runs import Run, RunQueue

__all__ = ["Gdsf", "Lfu", "LfuAged"]


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

    @abstractmethod
    def rank(self, run: Run) -> float:
        """Return the rank of a run that was just used."""

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
            return run, ALL
        for rank in sorted(self.ranks):  # all of the lowest are spared
            run = self.ranks[rank].oldest(step)
            if run is not None:
                return run, ALL
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
