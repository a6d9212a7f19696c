"""The moves between tiers that one step makes: promotion, room, demotion, copies.

A cascade holds one eviction order a tier and replays steps on rows, blocks that are always used together; rows of
one block are plain keys. It knows nothing of bytes and seconds: it counts blocks that cross each boundary.

One step, for the path of a request from its head to its tail:

1. Every tier is looked up before anything moves. A hit is served by the uppermost tier that holds the block.
2. The top takes the step's blocks, tail first: hits below it that are promoted, and what is new. Room is made first,
   among what the step does not use.
3. What leaves a tier sinks to the next one (*exclusive*), or is dropped there since copies below are made at another
   time: when a block is created (*write_through*), at its k-th use (*selective*), or when it leaves (*write_back*).
4. What does not fit, since one request is longer than a tier, sinks at once, tail first. A block counts as moved from
   where it was before the step to where it is after it: what passed through the top on the way did not move there.

A block that falls or climbs several tiers crosses every boundary between. A boundary has the number of the tier above
it.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from kvarray.policies.frequency import Frequencies
from kvarray.policies.order import Order
from kvarray.policies.runs import NOBODY, Run

__all__ = ["WRITE_MODES", "Cascade", "Cell", "Flows"]

WRITE_MODES = ("exclusive", "write_through", "selective", "write_back")
"""When a block is copied to the tier below."""

Cell = tuple[int, int, int, int, Run | None]
"""Blocks of a path that are alike: row, first block, the one after the last, serving tier, its run there."""


class Flows:
    """Blocks counted since the cascade was made, one item a tier.

    Parameters
    ----------
    tiers : int
        Number of tiers.

    Notes
    -----
    ==========  ===============================================================================
    count       blocks
    ==========  ===============================================================================
    `accesses`  looked up
    `hits`      served by each tier; what lies behind the first miss of a request is no hit
    `created`   came into the cache from outside, by the tier they came to
    `up`        crossed the boundary below each tier upwards: promotions, copies read up
    `down`      crossed it downwards: demotions, copies written down
    `dropped`   content or copies that left each tier and were not moved
    ==========  ===============================================================================

    What came into a tier, ``created[k] + down[k - 1] + up[k]``, is what left it or is there still:
    ``dropped[k]``, and with exclusive tiers ``down[k] + up[k - 1]`` as well.
    """

    __slots__ = ("accesses", "created", "down", "dropped", "hits", "up")

    def __init__(self, tiers: int) -> None:
        self.accesses = 0
        self.hits = [0] * tiers
        self.created = [0] * tiers
        self.up = [0] * tiers
        self.down = [0] * tiers
        self.dropped = [0] * tiers


class Cascade:
    """Tiers of blocks, one eviction order each, stepped request by request.

    Parameters
    ----------
    orders : sequence of Order
        One a tier, the fastest first; each knows its capacity.
    write_mode : str
        One of `WRITE_MODES`.
    write_at : int
        Use at which *selective* copies a block down, its creation being the first.
    promote_at : int or None
        Hit at which a block is promoted; None reads it where it is, always.
    min_tokens : sequence of int
        Tokens that a block must have to come into each tier from above or outside.
    by_frequency : sequence of bool
        Tiers that take a block from above or outside only when it was used more often lately than what goes for it.
    tokens, weights : sequence or mapping by row, optional
        Tokens of each block of a row; what it is worth to keep one.
    record : bool
        Keep the moves of a step by row, for rows of one block.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        *,
        write_mode: str = "exclusive",
        write_at: int = 2,
        promote_at: int | None = 1,
        min_tokens: Sequence[int] = (),
        by_frequency: Sequence[bool] = (),
        tokens: Sequence[int] | Mapping[int, int] | None = None,
        weights: Sequence[float] | Mapping[int, float] | None = None,
        record: bool = False,
    ) -> None:
        self.orders = list(orders)
        self.tiers = len(self.orders)
        self.exclusive = write_mode == "exclusive"
        self.writes_back = write_mode == "write_back"
        self.write_at = {"write_through": 1, "selective": write_at}.get(write_mode, 0)
        self.promote_at = promote_at
        self.min_tokens = list(min_tokens) or [0] * self.tiers
        self.by_frequency = list(by_frequency) or [False] * self.tiers
        self.tokens = tokens
        self.weights = weights
        self.step = 0
        self.flows = Flows(self.tiers)
        self.entered: dict[tuple[int, int], int] = {}  # (row, tier) -> tier it came from, in this step
        self.left: list[tuple[int, int]] = []  # (row, tier) of what was dropped in this step
        self.record = record
        self.frequencies = Frequencies(10 * sum(order.capacity for order in orders))
        self._recorders = [order.frequencies for order in orders if order.frequencies is not None]
        if any(self.by_frequency):
            self._recorders.append(self.frequencies)
        if write_mode == "selective" or (promote_at or 0) > 1:
            for order in self.orders:
                order.weighs_uses = True

    # ---- one step ------------------------------------------------------------------------------------------

    def use(self, path: Sequence[tuple[int, int]], *, refused: Collection[int] = ()) -> list[Cell]:
        """Take one step: all blocks of a path are looked up, then used.

        Parameters
        ----------
        path : sequence of (row, blocks)
            Distinct rows from the head of the path to its tail.
        refused : collection of int
            Rows that do not come in if they are not there.

        Returns
        -------
        list of Cell
            What the lookup found, from the head to the tail.
        """
        self._begin()
        cells = self._look_up(path)
        for frequencies in self._recorders:
            for row, blocks in path:
                frequencies.record(row, blocks)
        if self.exclusive:
            self._use_exclusive(cells, refused)
        else:
            self._use_copies(path, cells, refused)
        for frequencies in self._recorders:
            frequencies.settle()
        return cells

    def _begin(self) -> None:
        self.step += 1
        if self.record:
            self.entered.clear()
            self.left.clear()

    def _look_up(self, path: Sequence[tuple[int, int]]) -> list[Cell]:
        """Find the path in all tiers, count its hits and mark what it uses."""
        cells: list[Cell] = []
        step, flows, outside = self.step, self.flows, self.tiers
        leading = True
        for row, blocks in path:
            flows.accesses += blocks
            found: list[tuple[int, Run]] = []
            for tier, order in enumerate(self.orders):
                for run in order.rows.get(row, ()):
                    run.step = step
                    run.origin = tier
                    run.uses += 1
                    found.append((tier, run))
            if not found:
                leading = False
                cells.append((row, 0, blocks, outside, None))
                continue
            if len(found) == 1 and found[0][1].stop - found[0][1].start == blocks:
                here: list[Cell] = [(row, 0, blocks, *found[0])]
            else:
                here = self._cells(row, blocks, found)
            for cell in here:
                if cell[3] == outside:
                    leading = False
                elif leading:
                    flows.hits[cell[3]] += cell[2] - cell[1]
            cells += here
        return cells

    def _cells(self, row: int, blocks: int, found: list[tuple[int, Run]]) -> list[Cell]:
        """Cut a row where what the tiers hold of it begins or ends."""
        cuts = sorted({0, blocks, *(run.start for _, run in found), *(run.stop for _, run in found)})
        cells: list[Cell] = []
        for start, stop in pairwise(cuts):
            for tier, run in found:  # uppermost first
                if run.start <= start and stop <= run.stop:
                    cells.append((row, start, stop, tier, run))
                    break
            else:
                cells.append((row, start, stop, self.tiers, None))
        return cells

    def _promotes(self, run: Run) -> bool:
        return self.promote_at is not None and run.uses > self.promote_at and not run.pins

    def _create(self, row: int, start: int, stop: int) -> Run:
        """Return a run for blocks that no tier holds."""
        run = Run(row, start, stop, step=self.step)
        run.origin = self.tiers
        if self.weights is not None:
            run.weight = self.weights[row]
        if self.tokens is not None:
            run.tokens = self.tokens[row]
        return run

    def _copy(self, source: Run, start: int, stop: int, origin: int) -> Run:
        """Return a copy of blocks of a run, made in this step and come from the tier `origin`."""
        copy = source.copy(start, stop)
        copy.step, copy.origin = self.step, origin
        return copy

    # ---- exclusive tiers -----------------------------------------------------------------------------------

    def _use_exclusive(self, cells: list[Cell], refused: Collection[int]) -> None:
        """Bring the path to the top and let what leaves a tier sink to the next."""
        used: list[list[Run]] = [[] for _ in range(self.tiers)]
        for row, start, stop, tier, run in reversed(cells):
            if run is None:
                if row not in refused:
                    used[0].append(self._create(row, start, stop))
            elif tier and self._promotes(run):
                self.orders[tier].remove(run)
                used[0].append(run)
            else:
                used[tier].append(run)
        self._fill_exclusive(used)

    def _fill_exclusive(self, used: list[list[Run]]) -> None:
        """Let each tier take its runs, from the top down, and what leaves it sink to the next."""
        last = self.tiers - 1
        sinking: list[Run] = []
        for tier, runs in enumerate(used):
            if not (sinking or runs):
                continue
            sinking = self._enter(tier, sinking, runs)
            for run in sinking:
                if run.step == self.step and run.origin > tier:
                    self._pass(run, tier)
                elif tier == last:
                    self._drop(run, tier)

    # ---- copies --------------------------------------------------------------------------------------------

    def _use_copies(self, path: Sequence[tuple[int, int]], cells: list[Cell], refused: Collection[int]) -> None:
        """Refresh all copies of the path, make those that the mode asks for, and let the top's victims sink."""
        self._fill_copies([self._copies(tier, path, cells, refused) for tier in range(self.tiers)])

    def _fill_copies(self, used: list[list[Run]]) -> None:
        """Let each tier take its runs, from the top down; what leaves it may be written to the next."""
        sinking: list[Run] = []
        for tier in range(self.tiers):
            if not (sinking or used[tier]):
                continue
            leaving = self._enter(tier, sinking, used[tier])
            sinking = []
            for run in leaving:
                if run.step == self.step and run.origin != tier:
                    self._pass(run, tier)
                else:
                    self._drop(run, tier)
                if self.writes_back and tier + 1 < self.tiers:
                    sinking += self._missing(run, tier + 1, used[tier + 1])

    def _copies(
        self, tier: int, path: Sequence[tuple[int, int]], cells: list[Cell], refused: Collection[int]
    ) -> list[Run]:
        """Return the runs of the path that are in a tier, and new ones for it, the deepest first."""
        rows = self.orders[tier].rows
        used = [run for row, _ in path for run in rows.get(row, ())]
        places = {row: place for place, (row, _) in enumerate(path)}
        for row, start, stop, serving, source in cells:
            if tier == serving or (source is None and row in refused):
                continue
            if any(held.start <= start and stop <= held.stop for held in rows.get(row, ())):
                continue
            if tier < serving and source is not None:
                if self._promotes(source):
                    used.append(self._copy(source, start, stop, tier + 1))
            elif tier == 0:
                used.append(self._create(row, start, stop))
            elif 0 < self.write_at <= (1 if source is None else source.uses):
                used.append(self._copy(source or self._create(row, start, stop), start, stop, tier - 1))
        used.sort(key=lambda run: (-places[run.row], -run.start))
        return used

    def _missing(self, run: Run, tier: int, coming: list[Run]) -> list[Run]:
        """Return copies of those parts of a run that a tier neither holds nor takes in this step, deepest first."""
        held = [*self.orders[tier].rows.get(run.row, ()), *(new for new in coming if new.row == run.row)]
        held.sort(key=lambda other: -other.start)
        missing = []
        stop = run.stop
        for other in held:
            if other.start < stop and other.stop > run.start:
                if other.stop < stop:
                    missing.append(run.copy(other.stop, stop))
                stop = max(run.start, other.start)
        if run.start < stop:
            missing.append(run.copy(run.start, stop))
        return missing

    # ---- by hand -------------------------------------------------------------------------------------------

    def find(self, row: int) -> tuple[int, Run] | None:
        """Return the uppermost tier that holds a row of one block, and its run there."""
        for tier, order in enumerate(self.orders):
            runs = order.rows.get(row)
            if runs:
                return tier, runs[0]
        return None

    def move(self, row: int, target: int) -> None:
        """Bring a row of one block to the top, or one tier down, as a step of its own."""
        self._begin()
        found = self.find(row)
        assert found is not None
        tier, run = found
        used: list[list[Run]] = [[] for _ in range(self.tiers)]
        run.step, run.origin = self.step, tier
        if self.exclusive:
            self.orders[tier].remove(run)
            used[target].append(run)
            self._fill_exclusive(used)
            return
        if target > tier:
            self.orders[tier].remove(run)
            self._drop(run, tier)
        for place in (target,) if target > tier else range(tier):
            if row not in self.orders[place].rows:
                used[place].append(self._copy(run, run.start, run.stop, place + 1 if target < tier else tier))
        self._fill_copies(used)

    def evict(self, row: int) -> None:
        """Drop a row of one block from all tiers, as a step of its own."""
        self._begin()
        for tier, order in enumerate(self.orders):
            for run in tuple(order.rows.get(row, ())):
                order.remove(run)
                self._drop(run, tier)

    # ---- one tier ------------------------------------------------------------------------------------------

    def _enter(self, tier: int, sinking: list[Run], used: list[Run]) -> list[Run]:
        """Let runs into a tier, touch those that are there, and return what leaves it for them."""
        order = self.orders[tier]
        least = self.min_tokens[tier]
        if least:
            sinking = [run for run in sinking if run.tokens >= least or self._refuse(run, tier)]
            used = [run for run in used if run.tokens >= least or not self._is_offered(run, tier)]
        coming = sinking + [run for run in used if run.queue is None]
        leaving: list[Run] = []
        if not coming:
            for run in used:
                order.touch(run)
            order.settle(order.size - order.capacity)
            self._join(order, used)
            return leaving
        order.expect(coming)
        leaving = self._make_room(tier, coming)
        for run in sinking:
            if run.start < run.stop:
                self._let_in(run, tier, sunk=True)
        for run in used:
            if run.queue is not None:
                order.touch(run)
            elif run.start < run.stop:
                self._let_in(run, tier, sunk=False)
        over = order.size - order.capacity
        order.settle(over)
        if over > 0:
            leaving += order.evict(over, NOBODY)
        self._join(order, sinking)
        self._join(order, used)
        return leaving

    @staticmethod
    def _join(order: Order, runs: Sequence[Run]) -> None:
        """Join what lies side by side of the rows of some runs."""
        for run in runs:
            if len(order.rows.get(run.row, ())) > 1:
                order.join(run.row)

    def _make_room(self, tier: int, coming: list[Run]) -> list[Run]:
        """Evict for newcomers what the step does not use, and turn away newcomers that are used too rarely."""
        order = self.orders[tier]
        if not self.by_frequency[tier]:
            need = order.size - order.capacity + sum([run.stop - run.start for run in coming])
            return order.evict(need, self.step) if need > 0 and order.room_first else []
        leaving: list[Run] = []
        room = order.capacity - order.size
        for run in coming:
            need = run.stop - run.start - room
            room = max(0, -need)
            while need > 0 and (choice := order.victim(self.step)) is not None:
                if self._is_offered(run, tier) and self.frequencies[run.row] <= self.frequencies[choice[0].row]:
                    accepted = run.split(run.stop - run.start - need)
                    self._refuse(run, tier)
                    run.start, run.stop = accepted.start, accepted.stop
                    break
                part = order.take(choice, need)
                need -= part.stop - part.start
                leaving.append(part)
        return leaving

    def _is_offered(self, run: Run, tier: int) -> bool:
        """Whether a run comes to a tier from above or outside, so that the tier may turn it away."""
        return run.step != self.step or run.origin < tier or run.origin == self.tiers

    def _let_in(self, run: Run, tier: int, *, sunk: bool) -> None:
        """Insert a run and count the boundaries that it crossed on its way."""
        flows, blocks = self.flows, run.stop - run.start
        source = run.origin if run.step == self.step else tier - 1
        if source < tier:
            flows.down[tier - 1] += blocks
        elif source == self.tiers:
            flows.created[tier] += blocks
        elif not sunk:
            for boundary in range(tier, source):
                flows.up[boundary] += blocks
        if self.record and source != tier:
            self.entered[run.row, tier] = source
        run.mark = 0
        self.orders[tier].insert(run)

    def _pass(self, run: Run, tier: int) -> None:
        """Take back what was counted when a run came to a tier in this step: it does not stay."""
        flows, blocks = self.flows, run.stop - run.start
        if run.origin == self.tiers:
            flows.created[tier] -= blocks
        elif run.origin > tier:
            flows.up[tier] -= blocks
        else:
            flows.down[tier - 1] -= blocks
        self.entered.pop((run.row, tier), None)

    def _drop(self, run: Run, tier: int) -> None:
        self.flows.dropped[tier] += run.stop - run.start
        if self.record:
            self.left.append((run.row, tier))

    def _refuse(self, run: Run, tier: int) -> bool:
        """Turn a run away from a tier; with exclusive tiers its content is lost, and counts as dropped above it."""
        source = run.origin if run.step == self.step else tier - 1
        if self.exclusive and source < self.tiers:
            self._drop(run, tier - 1 if source < tier else tier)
        return False
