"""The order of chance: every block with the same."""

from collections.abc import Callable, Iterator

import numpy as np

from kvarray.arrays import Flags, Ids
from kvarray.policies.order import ALL, Order
from kvarray.policies.runs import Run, RunQueue

__all__ = ["RandomOrder", "draw_places", "fill_holes"]


def draw_places(rng: "np.random.Generator", size: int, need: int, is_spared: Callable[[Ids], Flags]) -> Ids:
    """Return places that are drawn without replacement, `need` of them or fewer where some are spared.

    Parameters
    ----------
    rng : numpy.random.Generator
    size : int
        Places to draw from, ``>= 1``.
    need : int
        How many are wanted, ``>= 1``.
    is_spared : callable
        Says of an array of places which of them are not to be drawn.

    Returns
    -------
    ndarray of int64
        None only where all places are spared. Draw again, after taking these out, for what is missing.

    Examples
    --------
    >>> draw_places(np.random.default_rng(0), 3, 5, lambda places: places == 1).tolist()
    [2, 0]
    """
    places = rng.choice(size, min(need, size), replace=False)
    free: Ids = places[~is_spared(places)]
    if not len(free):
        free = np.flatnonzero(~is_spared(np.arange(size)))
        if len(free) > need:
            free = rng.choice(free, need, replace=False)
    return free


def fill_holes(places: Ids, size: int) -> tuple[Ids, Ids]:
    """Return which of the last items of a list move where, when those at `places` are taken out.

    Parameters
    ----------
    places : ndarray of int64, shape (N,)
        Distinct, ``0 <= place < size``.
    size : int
        Length of the list before.

    Returns
    -------
    holes, movers : ndarray of int64
        Item ``movers[i]`` moves to ``holes[i]``; then the list is cut to ``size - N``.

    Examples
    --------
    >>> fill_holes(np.array([4, 0, 2]), 6)
    (array([0, 2]), array([3, 5]))
    """
    kept = size - len(places)
    stays = np.ones(len(places), dtype=np.bool_)
    stays[places[places >= kept] - kept] = False
    return np.sort(places[places < kept]), kept + np.flatnonzero(stays)


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
        """Draw one block."""
        places = self._draw(1, step)
        return (self.held[int(places[0])], ALL) if len(places) else None

    def evict(self, need: int, step: int) -> list[Run]:
        """Draw as many blocks as are needed, together; in the order they were drawn."""
        parts: list[Run] = []
        while need > 0 and len(places := self._draw(need, step)):
            chosen = [self.held[place] for place in places.tolist()]
            holes, movers = fill_holes(places, len(self.held))
            for run in chosen:
                super().remove(run)
            for hole, mover in zip(holes.tolist(), movers.tolist(), strict=True):
                self.held[hole] = self.held[mover]
                self.held[hole].mark = hole
            del self.held[len(self.held) - len(chosen) :]
            need -= len(chosen)
            parts += chosen
        return parts

    def _draw(self, need: int, step: int) -> Ids:
        def is_spared(places: Ids) -> Flags:
            runs = (self.held[place] for place in places.tolist())
            return np.array([run.step == step or run.pins > 0 for run in runs], dtype=np.bool_)

        return draw_places(self.rng, len(self.held), need, is_spared) if self.held else np.zeros(0, dtype=np.int64)
