"""W-TinyLFU: a filter by frequency before a segmented LRU."""

from kvarray.policies.frequency import Frequencies
from kvarray.policies.order import ALL, Slru
from kvarray.policies.runs import Run, RunQueue

__all__ = ["WTinyLfu"]


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
                return candidate, excess if excess > 0 else ALL
            self.winner = True
            return resident, min(excess, candidate.stop - candidate.start)
        return resident, ALL

    def evicted(self, part: Run) -> None:
        """Let the winner in."""
        if self.winner:
            self.move(self.window, self.probation, part.stop - part.start)
