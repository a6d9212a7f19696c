"""What every split of every size would have hit, moved and cost: LRU tiers in closed form.

Tiers of an LRU cache are one recency list, cut at some places. With *exclusive* tiers (a hit comes to the top, each
tier sinks its least recently used block to the next) the cuts are the sums of the capacities; with *write-through*
tiers (copies below, refreshed by every use) they are the capacities themselves. A reference at distance D and depth d
of its request's path, 0 for the head, is served by the tier whose cuts hold D, and lies at place d after the step. So
what comes into the first B places are the references with ``d < B`` and ``D >= B``, as many go out, less what stays at
the end, and every flow between tiers is a difference of two counts: a lookup in a table over the capacities. Since a
block's ancestors are used with it and later, D is never less than d.

What is modelled is the order of use alone. A block that climbs or falls several tiers crosses every boundary between;
what passes through the top only because its request is longer than it does not count as moved there.
`kvarray.stepping` has the other policies and modes, block moves included; `kvarray.tier` the cache itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Ids, Seconds, as_amount, as_ints, as_positive_int, refuse
from kvarray.link import Link
from kvarray.ragged import lengths_to_offsets
from kvarray.reuse.curve import first_counted
from kvarray.reuse.distances import Runs, prefix_runs, stream_runs
from kvarray.trace import Trace

__all__ = ["TierCost", "TierCurve", "TierFlows", "tier_curve"]


@dataclass(frozen=True, eq=False)
class TierCost:
    """What tiers gave and what they took.

    ===========  =======  ============  ===============================================================
    column       dtype    shape         meaning
    ===========  =======  ============  ===============================================================
    `hit_rate`   float64  (...,)        hit blocks over accesses
    `saved_s`    float64  (...,)        seconds of prefill not done
    `up_s`       float64  (..., K - 1)  seconds spent on each link upwards, link k between tiers k, k + 1
    `down_s`     float64  (..., K - 1)  seconds spent on each link downwards
    `up_bytes`   int64    (..., K - 1)  bytes moved over each link upwards
    `down_bytes` int64    (..., K - 1)  bytes moved over each link downwards
    ===========  =======  ============  ===============================================================
    """

    hit_rate: Seconds
    saved_s: Seconds
    up_s: Seconds
    down_s: Seconds
    up_bytes: Ids
    down_bytes: Ids

    @property
    def cost_s(self) -> Seconds:
        """Seconds spent on all links, shape (...,)."""
        total: Seconds = self.up_s.sum(axis=-1) + self.down_s.sum(axis=-1)
        return total

    @property
    def net_s(self) -> Seconds:
        """Seconds saved less seconds spent, shape (...,)."""
        return self.saved_s - self.cost_s

    @property
    def break_even_hit_rate(self) -> Seconds:
        """Hit rate at which the savings would just pay for the moves made; infinite where no hit pays anything."""
        cost = self.cost_s
        rate = np.where(cost > 0.0, np.inf, 0.0)
        np.divide(self.hit_rate * cost, self.saved_s, out=rate, where=self.saved_s > 0.0)
        return rate


@dataclass(frozen=True, eq=False)
class TierFlows:
    """Blocks that K tiers served and moved: int64 columns with the tiers along the last axis.

    ============  ==========  =======================================================================
    column        shape       blocks
    ============  ==========  =======================================================================
    `accesses`    (...,)      looked up
    `hits`        (..., K)    served by each tier
    `created`     (..., K)    came from outside, by the tier that they came to
    `up`          (..., K)    crossed the boundary below each tier upwards: promotions, copies read up
    `down`        (..., K)    crossed it downwards: demotions, copies written down
    `dropped`     (..., K)    content or copies that left each tier and were not moved
    `hit_tokens`  (..., K)    tokens of `hits`; None where blocks have no tokens
    ============  ==========  =======================================================================

    What came into a tier, `written`, is what left it or is there still.
    """

    accesses: Ids
    hits: Ids
    created: Ids
    up: Ids
    down: Ids
    dropped: Ids
    hit_tokens: Ids | None = None

    @property
    def num_tiers(self) -> int:
        """Number of tiers, K."""
        return int(self.hits.shape[-1])

    @property
    def misses(self) -> Ids:
        """Blocks that no tier served, shape (...,)."""
        misses: Ids = self.accesses - self.hits.sum(axis=-1)
        return misses

    @property
    def hit_rate(self) -> Seconds:
        """Hit blocks over accesses, shape (...,); 0 where there was none."""
        rate: Seconds = self.hits.sum(axis=-1) / np.maximum(self.accesses, 1)
        return rate

    @property
    def written(self) -> Ids:
        """Blocks written to each tier, from outside, above and below; what passes through a tier included."""
        written: Ids = self.created + self.up
        written[..., 1:] += self.down[..., :-1]
        return written

    def written_bytes(self, block_bytes: int) -> Ids:
        """Return the bytes written to each tier, blocks of `block_bytes` bytes: what wears an SSD.

        Raises
        ------
        TypeError, ValueError
            If `block_bytes` is no integer of 1 or more, or the bytes do not fit 64 bits.
        """
        return _block_bytes_of(self.written, as_positive_int("block_bytes", block_bytes))

    def cumulative(self) -> "TierFlows":
        """Return running totals along the first axis, for flows given step by step."""
        totals = {
            name: np.cumsum(column, axis=0)
            for name in self.__dataclass_fields__
            if (column := getattr(self, name)) is not None
        }
        return TierFlows(**totals)

    def cost(
        self,
        up_links: Sequence[Link],
        down_links: Sequence[Link],
        *,
        block_bytes: int,
        block_s: float | None = None,
        token_s: float | None = None,
        direct_links: Sequence[Link | None] | None = None,
    ) -> TierCost:
        """Return seconds saved and spent, and bytes moved.

        Parameters
        ----------
        up_links, down_links : sequence of Link, length K - 1
            Link k joins the tiers k and k + 1, upwards and downwards.
        block_bytes : int
            Bytes of a block, ``>= 1``. Each block is a transfer of its own.
        block_s, token_s : float
            Seconds of prefill that a hit block, or a hit token, saves; one of them.
        direct_links : sequence of Link or None, length K - 1, optional
            Item k, where it is not None, takes the promotions from tier k + 1 to the top past all tiers between.

        Returns
        -------
        TierCost

        Raises
        ------
        ValueError
            If the links are not K - 1, a figure is out of range, both or neither of `block_s` and `token_s` are
            given, tokens are asked for where there are none, or the bytes moved do not fit 64 bits.

        Examples
        --------
        >>> trace = Trace([1, 2, 3, 1], [0, 1, 2, 3, 4], block_size=16)
        >>> flows = tier_curve(trace).flows([2, 2])
        >>> link = Link(1e9)
        >>> cost = flows.cost([link], [link], block_bytes=1_000_000, block_s=0.05)
        >>> cost.saved_s, cost.up_s, cost.down_s
        (np.float64(0.05), array([0.001]), array([0.002]))
        """
        links = self.num_tiers - 1
        for name, given in (("up_links", up_links), ("down_links", down_links), ("direct_links", direct_links)):
            if given is not None and len(given) != links:
                raise ValueError(f"{name} must have one link between each two tiers, {links}: got {len(given)}")
        block_bytes = as_positive_int("block_bytes", block_bytes)
        saved_s = self._saved(block_s, token_s)

        up, down = self.up[..., :links], self.down[..., :links]
        up_bytes, down_bytes = _block_bytes_of(up, block_bytes), _block_bytes_of(down, block_bytes)
        up_cost = np.array([float(link.seconds(block_bytes)) for link in up_links])
        down_cost = np.array([float(link.seconds(block_bytes)) for link in down_links])
        up_s, down_s = up * up_cost, down * down_cost
        for place, direct in enumerate(direct_links or ()):
            if direct is not None:
                from_here = up[..., place] - (up[..., place + 1] if place + 1 < links else 0)
                up_s[..., : place + 1] -= from_here[..., None] * up_cost[: place + 1]
                up_s[..., place] += from_here * float(direct.seconds(block_bytes))
        return TierCost(self.hit_rate, saved_s, up_s, down_s, up_bytes, down_bytes)

    def _saved(self, block_s: float | None, token_s: float | None) -> Seconds:
        if (block_s is None) == (token_s is None):
            raise ValueError("one of block_s and token_s must be given")
        if block_s is not None:
            saved: Seconds = self.hits.sum(axis=-1).astype(np.float64) * as_amount("block_s", block_s, low=0.0)
        elif self.hit_tokens is None:
            raise ValueError("token_s needs tokens: these blocks have none, give block_s")
        else:
            saved = self.hit_tokens.sum(axis=-1).astype(np.float64) * as_amount("token_s", token_s, low=0.0)
        return saved


def _block_bytes_of(blocks: Ids, block_bytes: int) -> Ids:
    """Return the bytes of blocks, of which each is `block_bytes` bytes, or raise where they do not fit 64 bits."""
    most = int(blocks.max(initial=1))
    if most * block_bytes >= 2**63:
        raise ValueError(
            f"block_bytes must be small enough for the bytes of all blocks moved to fit 64 bits: got {block_bytes}"
            f" for {most} blocks"
        )
    return blocks * block_bytes


class TierCurve:
    """LRU tiers of every size at once; made by `tier_curve`.

    Attributes
    ----------
    write_mode : {"exclusive", "write_through"}
        Where the recency list is cut.
    num_distinct : int
        Distinct blocks of the whole trace.

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)
    >>> flows = tier_curve(trace).flows([[1, 2], [2, 2]])
    >>> flows.hits
    array([[2, 2],
           [4, 1]])
    >>> flows.created[0], flows.up[0], flows.dropped[0]
    (array([1, 4]), array([0, 0]), array([0, 2]))
    """

    def __init__(self, trace: Trace, runs: Runs, *, write_mode: str, window: float, smaller_below: bool) -> None:
        self.write_mode = write_mode
        self.num_distinct = runs.num_distinct
        self._smaller_below = smaller_below
        self._rises = runs.rises
        self._runs = runs
        self._first = first_counted(trace, window)
        self._num_requests = trace.num_requests
        self._counts = trace.block_counts
        counts = self._counts[self._first :]
        self._accesses = int(counts.sum())
        self._deepest = int(counts.max(initial=0)) if runs.rises else 1
        new = np.where(runs.is_hot, 0, runs.length)
        self._known_before = int(new[: np.searchsorted(runs.request, self._first)].sum())

        hot = runs.is_hot & (runs.request >= self._first)
        self._request, self._depth = runs.request[hot], runs.depth[hot]
        self._distance, self._length = runs.distance[hot], runs.length[hot]
        assert trace.block_size is not None  # the trace has block ids
        self._block_size = trace.block_size
        # The last block of a request may be partial; it counts less in tokens, from its own level on.
        last = runs.holds_last[hot]
        self._last_request = self._request[last] - self._first
        self._last_level = (self._distance + (self._length if runs.rises else 1))[last]
        self._last_missing = trace.block_size - trace.last_block_tokens[self._request[last]]

        # Tables over the levels B = 0 .. num_distinct + 1.
        self._hits = self._table(self._distance, self._length)  # references with D < B
        if runs.rises:  # references with d < B
            self._shallow = self._table(np.zeros(len(counts), dtype=np.int64), counts)
        else:
            self._shallow = self._table(np.zeros(1, dtype=np.int64), np.array([self._accesses]))
        self._missing = self._steps(self._last_level, self._last_missing)

    def _table(self, first: Ids, length: Ids) -> Ids:
        """Return, for each level B, how many blocks of some runs have a value below B, `first` being the first's."""
        if not self._rises:
            return self._steps(first + 1, length)
        slope = self._steps(first, np.ones_like(first)) - self._steps(first + length, np.ones_like(first))
        table = np.zeros_like(slope)
        np.cumsum(slope[:-1], out=table[1:])
        return table

    def _steps(self, level: Ids, weight: Ids) -> Ids:
        """Return, for each level B, the weight of the items with ``level <= B``."""
        top = self.num_distinct + 1
        return np.cumsum(np.bincount(np.minimum(level, top), weight, top + 1)).astype(np.int64)

    def _cuts(self, sizes: ArrayLike) -> Ids:
        """Return the places at which the recency list is cut, at most one beyond all distinct blocks.

        Here and in what follows the tiers are the first axis, (K, ...): NumPy is fast along long axes only.
        """
        array = np.asarray(sizes)
        if array.ndim == 0:
            raise ValueError("sizes must have the capacity of each tier along the last axis: got one number")
        if array.shape[-1] == 0:
            raise ValueError(f"sizes must have one tier or more along the last axis: got shape {array.shape}")
        array = as_ints("sizes", array.ravel()).reshape(array.shape)
        refuse("sizes", "be 1 or more", array < 1, array)
        if self.write_mode == "write_through" and not self._smaller_below:
            shrinks = np.zeros(array.shape, dtype=np.bool_)
            np.less(array[..., 1:], array[..., :-1], out=shrinks[..., 1:])
            refuse("sizes", "not fall from tier to tier under write-through (smaller_below=True)", shrinks, array)
        top = self.num_distinct + 1
        cuts = np.minimum(np.moveaxis(array, -1, 0), top, order="C")
        if self.write_mode == "exclusive":
            for tier in range(1, len(cuts)):
                cuts[tier] = np.minimum(cuts[tier] + cuts[tier - 1], top)
        return cuts

    def hits(self, sizes: ArrayLike) -> Ids:
        """Return the blocks that each tier serves.

        Parameters
        ----------
        sizes : array_like of int, shape (..., K)
            Capacity of each tier in blocks, ``>= 1``, the fastest first; any number of configurations.

        Returns
        -------
        ndarray of int64, shape (..., K)

        Raises
        ------
        TypeError, ValueError
            If a capacity is no integer or less than 1, or there is no tier.

        Notes
        -----
        Snapshot law: each configuration is by itself. O(1) for each.
        """
        held_above, _ = _reaches(self._cuts(sizes))
        return _by_tier(self._hits.take(held_above))

    def hit_tokens(self, sizes: ArrayLike) -> Ids:
        """Return the tokens of the blocks that each tier serves; see `hits`."""
        held_above, _ = _reaches(self._cuts(sizes))
        return _by_tier(self._hits.take(held_above) * self._block_size - self._missing.take(held_above))

    def flows(self, sizes: ArrayLike) -> TierFlows:
        """Return all that each tier serves and moves; parameters, errors and laws as in `hits`.

        Returns
        -------
        TierFlows
            With the shape of `sizes`.

        Notes
        -----
        O(1) for each configuration, and O(M log M) more for each distinct cut shorter than the longest request.
        """
        cuts = self._cuts(sizes)
        held_above, reach = _reaches(cuts)
        return self._assemble(
            accesses=np.full(cuts.shape[1:], self._accesses),
            hits=self._hits.take(held_above),
            missing=self._missing.take(held_above),
            shallow=self._shallow.take(cuts),
            shallow_hits=self._hits.take(cuts),
            within_reach=self._within(cuts, reach),
            within_above=self._within(cuts, held_above),
            grown=np.minimum(cuts, self.num_distinct) - np.minimum(cuts, self._known_before),
        )

    def request_flows(self, sizes: ArrayLike) -> TierFlows:
        """Return what each tier serves and moves for each counted request, with one configuration.

        Parameters
        ----------
        sizes : array_like of int, shape (K,)
            Capacity of each tier in blocks, ``>= 1``.

        Returns
        -------
        TierFlows
            Columns of shape (B, K); `TierFlows.cumulative` makes running totals of them.

        Raises
        ------
        TypeError, ValueError
            If a capacity is no integer or less than 1, there is no tier, or there is more than one configuration.

        Notes
        -----
        O(M K).
        """
        cuts = self._cuts(sizes)
        if cuts.ndim != 1:
            raise ValueError(f"sizes must be one configuration, shape (K,): got shape {np.shape(sizes)}")
        held_above, reach = _reaches(cuts)
        counts = self._counts[self._first :]
        new = np.where(self._runs.is_hot, 0, self._runs.length)
        by_request = np.bincount(self._runs.request, new, self._num_requests).astype(np.int64)
        known = lengths_to_offsets(by_request)[self._first :]
        missing = np.zeros((len(cuts), len(counts)), dtype=np.int64)
        missing[:, self._last_request] = np.where(self._last_level <= held_above[:, None], self._last_missing, 0)
        return self._assemble(
            accesses=counts.copy(),
            hits=self._within_requests(held_above, held_above),
            missing=missing,
            shallow=np.minimum(counts, cuts[:, None]) if self._rises else np.broadcast_to(counts, missing.shape),
            shallow_hits=self._within_requests(cuts, cuts),
            within_reach=self._within_requests(cuts, reach),
            within_above=self._within_requests(cuts, held_above),
            grown=np.diff(np.minimum(known, cuts[:, None]), axis=1),
        )

    def _within_requests(self, depth: Ids, distance: Ids) -> Ids:
        """Return each counted request's references with ``d < depth`` and ``D < distance``, shape (K, B)."""
        reach = distance[:, None] - self._distance
        if self._rises:
            within = np.clip(np.minimum(reach, depth[:, None] - self._depth), 0, self._length)
        else:
            within = np.where(reach > 0, self._length, 0)
        running = np.zeros((len(depth), len(self._length) + 1), dtype=np.int64)
        np.cumsum(within, axis=1, out=running[:, 1:])
        begins = np.searchsorted(self._request, np.arange(self._first, self._num_requests + 1))
        return np.diff(running[:, begins], axis=1)

    def _assemble(
        self,
        *,
        accesses: Ids,
        hits: Ids,
        missing: Ids,
        shallow: Ids,
        shallow_hits: Ids,
        within_reach: Ids,
        within_above: Ids,
        grown: Ids,
    ) -> TierFlows:
        """Make flows of counts at each cut B.

        They are: hits up to the cut and the tokens these lack of full blocks; the references with ``d < B``; of
        these, those with ``D < B``, within reach of any tier, and held by this tier or above; and the places that
        were taken for the first time.
        """
        entered = shallow - shallow_hits
        up = within_reach - within_above
        created, down, dropped = np.zeros_like(up), np.zeros_like(up), entered - grown
        if self.write_mode == "exclusive":
            created += shallow - within_reach
            created[1:] -= created[:-1].copy()
            down[:-1] = dropped[:-1]
            dropped[:-1] = 0
        else:
            created[0] = (entered - up)[0]
            down[:-1] = (entered - up)[1:]
        created, up, down, dropped = (np.moveaxis(column, 0, -1) for column in (created, up, down, dropped))
        tokens = _by_tier(hits * self._block_size - missing)
        return TierFlows(accesses, _by_tier(hits), created, up, down, dropped, tokens)

    def _within(self, depth: Ids, distance: Ids) -> Ids:
        """Return the references with ``d < depth`` and ``D < distance``, for ``depth <= distance``."""
        within = self._hits.take(distance)
        # Nothing lies deeper than the longest request, and what lies as deep as D is no hit below D.
        places = np.flatnonzero((depth < self._deepest) & (depth < distance))
        if not len(places):
            return within
        levels, reach = depth.ravel()[places], distance.ravel()[places]
        by_level = np.argsort(levels, kind="stable")
        cuts = np.flatnonzero(np.diff(levels[by_level], prepend=-1))
        deep = np.empty_like(reach)
        for group in np.split(by_level, cuts[1:]):
            deep[group] = self._deeper(int(levels[group[0]]), reach[group])
        within.ravel()[places] -= deep
        return within

    def _deeper(self, level: int, distance: Ids) -> Ids:
        """Return the references with ``d >= level`` and ``D < distance``, the latter an array."""
        above = np.maximum(level - self._depth, 0)
        is_deep = above < self._length
        first = (self._distance + above)[is_deep]
        begin, end = np.sort(first), np.sort(first + (self._length - above)[is_deep])
        begin_sums, end_sums = lengths_to_offsets(begin), lengths_to_offsets(end)
        begun, ended = np.searchsorted(begin, distance), np.searchsorted(end, distance)
        since: Ids = distance * (begun - ended) - begin_sums[begun] + end_sums[ended]
        return since


def _reaches(cuts: Ids) -> tuple[Ids, Ids]:
    """Return the places that each tier or one above it holds, and those that any tier holds."""
    held_above = np.maximum.accumulate(cuts, axis=0)
    return held_above, np.broadcast_to(held_above[-1], cuts.shape)


def _by_tier(reached: Ids) -> Ids:
    """Return the part of each tier, the tiers last, given what is reached with those above it, the tiers first."""
    parts = reached.copy()
    parts[1:] -= reached[:-1]
    return np.moveaxis(parts, 0, -1)


def tier_curve(
    trace: Trace,
    *,
    write_mode: str = "exclusive",
    step: str = "request",
    window: float = 0.0,
    smaller_below: bool = False,
    runs: Runs | None = None,
) -> TierCurve:
    """Return what LRU tiers of every size would have served and moved.

    Parameters
    ----------
    trace : Trace
        With block ids.
    write_mode : {"exclusive", "write_through"}, optional
        Whether a block is in one tier, or in all tiers below the one that holds it as well.
    step : {"request", "stream"}, optional
        Whether a request is one atomic step, its tail used before its head, or each block a step of its own in the
        order of the path, any block that is there a hit.
    window : float, optional
        Count only the requests from ``floor(window * num_requests)`` on; the earlier ones warm the tiers.
    smaller_below : bool, optional
        Allow write-through tiers that are smaller than one above them.
    runs : Runs, optional
        `prefix_runs` or `stream_runs` of the same trace, where they are there already.

    Returns
    -------
    TierCurve

    Raises
    ------
    TraceError
        If the trace has no block ids.
    ValueError
        If a mode, a kind of step or the window is none of those listed.

    Notes
    -----
    O(N + M log M + distinct), once; every configuration is a few lookups then.

    References
    ----------
    .. [1] R. L. Mattson, J. Gecsei, D. R. Slutz, I. L. Traiger, "Evaluation techniques for storage hierarchies", IBM
       Systems Journal 9, 1970.

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)
    >>> tier_curve(trace, write_mode="write_through").hits([[1, 3], [2, 4]])
    array([[2, 2],
           [4, 1]])
    """
    if write_mode not in ("exclusive", "write_through"):
        raise ValueError(f"write_mode must be exclusive or write_through: got {write_mode!r}")
    if step not in ("request", "stream"):
        raise ValueError(f"step must be request or stream: got {step!r}")
    if runs is None:
        runs = prefix_runs(trace) if step == "request" else stream_runs(trace)
    return TierCurve(trace, runs, write_mode=write_mode, window=window, smaller_below=smaller_below)
