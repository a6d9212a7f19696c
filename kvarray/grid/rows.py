"""The rows of a sweep, sharing all that combinations have in common.

Routing is done once for all deployments that route alike, the distances of LRU once for all sizes, the hits of a size
once for all bandwidths; queues scan a block of combinations in one call. Combinations whose router looks at the state
of replicas share nothing, and are routed one by one.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from kvarray.arrays import Ids, Seconds
from kvarray.deploy.deployment import Deployment
from kvarray.deploy.hits import LruHits, TierHits, tier_hits
from kvarray.deploy.queues import queue_times
from kvarray.deploy.routing import Routed, check_fit, route
from kvarray.deploy.service import service_times
from kvarray.deploy.ways import Way, ways_up
from kvarray.grid.columns import (
    Columns,
    ceiling,
    counted_sum,
    hit_columns,
    queue_columns,
    rate_columns,
    service_columns,
    ttft_columns,
)
from kvarray.grid.draws import Draws
from kvarray.grid.grid import Grid, Outer
from kvarray.grid.scans import ttft_under_rates
from kvarray.reuse import TierCurve, tier_curve
from kvarray.trace import Trace

__all__ = ["part_columns"]

_CELLS = 1 << 16  # requests times combinations that are timed at once: a few columns of it fit a core's cache
_LEVELS = 1 << 22  # requests times sizes whose hits are counted at once
_SCANNED = 1 << 19  # requests times bandwidths that are scanned at once
_KEPT = 32  # what is shared, and may be large


def part_columns(
    trace: Trace,
    grid: Grid,
    part: tuple[int, int],
    *,
    ttft: bool,
    draws: Draws | None,
    progress: Callable[[int], object] | None = None,
) -> Columns:
    """Return the rows of a part of a grid.

    Parameters
    ----------
    trace : Trace
    grid : Grid
    part : (int, int)
        First of the pairs of outer combination and size, and the one behind the last, counted through `Grid.order`.
    ttft : bool
        Whether times to first token are asked for.
    draws : Draws, optional
        Sessions drawn for intervals.
    progress : callable, optional
        Told of every few combinations how many are done.

    Returns
    -------
    dict of str to ndarray, shape (pairs, bandwidths)
    """
    _, num_sizes, num_rates = grid.order.shape
    shared = _Shared(trace)
    pieces = []
    start, stop = part
    while start < stop:
        number, first = divmod(start, num_sizes)
        last = min(num_sizes, first + stop - start)
        combination = _Combination(shared, grid, grid.outer(number))
        for columns in combination.columns(first, last, ttft=ttft, draws=draws):
            pieces.append(columns)
            if progress is not None:
                progress(len(columns["hit_rate"]) * num_rates)
        start += last - first
    return _joined(pieces)


def _joined(pieces: list[Columns]) -> Columns:
    """Return the columns of several pieces as one; a tier that is not there serves and moves nothing."""
    names = dict.fromkeys(name for piece in pieces for name in piece)
    kinds = {name: next(piece[name].dtype for piece in pieces if name in piece) for name in names}
    return {
        name: np.concatenate(
            [piece[name] if name in piece else np.zeros(piece["hit_rate"].shape, dtype=kinds[name]) for piece in pieces]
        )
        for name in names
    }


class _Shared:
    """What deployments of one trace have in common, each made when it is first asked for."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._kept: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` returned when `key` was asked for first; the oldest are forgotten."""
        if key not in self._kept:
            if len(self._kept) == _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = make()
        return self._kept[key]


class _Combination:
    """One combination of the outer axes, with all sizes and bandwidths."""

    def __init__(self, shared: _Shared, grid: Grid, outer: Outer) -> None:
        self._shared, self._grid = shared, grid
        self._base, self._rate_scale = outer.deployment, outer.rate_scale
        block_size = self._base.block_size or shared.trace.block_size or 1
        self._sizes = grid.sizes(self._base, block_size)
        self._size_bytes = grid.size_bytes(self._base, block_size)
        self._rates = grid.rates(self._base)
        self._block_bytes = block_size * self._base.bytes_per_token
        self._routing = (
            self._base.block_size, self._base.replicas, self._base.routing, self._base.prefix_blocks,
            self._base.queueing, self._base.window, self._rate_scale,
        )  # fmt: skip

    def columns(self, first: int, last: int, *, ttft: bool, draws: Draws | None) -> Iterator[Columns]:
        """Return the columns of the sizes from `first` to before `last`, some sizes at a time."""
        base = self._base
        if base.replicas > 1 and base.routing in ("least_loaded", "prefix_aware"):
            for place in range(first, last):
                rows = [self._alone(place, rate, ttft, draws) for rate in range(len(self._rates))]
                yield {name: np.concatenate([row[name] for row in rows], axis=1) for name in rows[0]}
            return
        tightest = self._sized(int(self._sizes[:, 0].argmin()))
        routed: Routed = self._shared.once(
            ("route", *self._routing), lambda: route(self._shared.trace, tightest, rate_scale=self._rate_scale)
        )
        check_fit(routed.trace, tightest)
        sums_alone = draws is None and self._adds_up and (not ttft or (base.queueing and base.separation is None))
        step = max(1, (_LEVELS if sums_alone else _CELLS) // max(routed.trace.num_requests, 1)) if base.is_stack else 1
        for begin in range(first, last, step):
            end = min(begin + step, last)
            columns = self._written(routed, begin, end)
            if sums_alone:
                columns |= self._summed(routed, begin, end, ttft=ttft)
            else:
                hits = self._hits(routed, begin, end)
                columns |= {name: column[:, None] for name, column in hit_columns(routed, base, hits).items()}
                columns |= self._timed(routed, base, hits, self._rates, ttft, draws)
            yield self._finished(columns, begin, end)

    def _alone(self, place: int, rate: int, ttft: bool, draws: Draws | None) -> Columns:
        """Return the columns of one combination whose routing is its own, shape (1, 1)."""
        deployment = self._sized(place)
        tiers = list(deployment.tiers)
        for k, per_second in enumerate(self._rates[rate].tolist(), start=1):
            up = tiers[k].up
            assert up is not None  # a deployment has links
            tiers[k] = replace(tiers[k], up=replace(up, bytes_per_second=per_second))
        deployment = replace(deployment, tiers=tuple(tiers))
        routed = route(self._shared.trace, deployment, rate_scale=self._rate_scale)
        found = tier_hits(routed, deployment)
        assert found.flows is not None  # of one configuration
        written = found.flows.written[routed.is_counted].sum(axis=0) * self._block_bytes
        columns: Columns = {f"written_bytes_{name}": written[k] for k, name in enumerate(deployment.tier_names)}
        hits = _with_axis(found, 0)
        columns |= {name: column[:, None] for name, column in hit_columns(routed, deployment, hits).items()}
        columns |= self._timed(routed, deployment, hits, self._rates[rate : rate + 1], ttft, draws)
        if self._grid.prices is not None:
            columns["cost_per_hour"] = self._cost(place, place + 1)[:, rate : rate + 1]
        return {name: np.broadcast_to(column, (1, 1)) for name, column in columns.items()}

    def _sized(self, place: int) -> Deployment:
        """Return the deployment with one of the sizes."""
        tiers = [
            replace(tier, blocks=int(blocks), capacity_bytes=None)
            for tier, blocks in zip(self._base.tiers, self._sizes[place], strict=True)
        ]
        return replace(self._base, tiers=tuple(tiers))

    def _finished(self, columns: Columns, first: int, last: int) -> Columns:
        """Return columns of one shape, what the combinations cost among them."""
        if self._grid.prices is not None:
            columns["cost_per_hour"] = self._cost(first, last)
        shape = (last - first, len(self._rates))
        return {name: np.broadcast_to(column, shape) for name, column in columns.items()}

    def _cost(self, first: int, last: int) -> Seconds:
        assert self._grid.prices is not None  # the caller looked
        return self._grid.prices.per_hour(self._base, self._size_bytes[first:last, None], self._rates[None])

    # ---- hits ------------------------------------------------------------------------------------------------

    def _lru(self, routed: Routed) -> LruHits:
        base = self._base
        key = ("lru", *self._routing, base.write_mode, base.smaller_below, base.min_prefill_tokens)
        lru: LruHits = self._shared.once(key, lambda: LruHits(routed, self._base))
        return lru

    def _hits(self, routed: Routed, first: int, last: int) -> TierHits:
        """Return the hits of some sizes, shape (S, B, K)."""
        if self._base.is_stack:
            return self._lru(routed).at(self._sizes[first:last])
        assert last == first + 1  # what is stepped comes size by size
        return _with_axis(self._stepped(routed, first), 0)

    def _stepped(self, routed: Routed, place: int) -> TierHits:
        """Return the hits of one size by stepping, once for all deployments that differ in times alone."""
        base = self._base
        key = (
            "stepped", *self._routing, *self._sizes[place].tolist(), base.policy, base.write_mode, base.write_at,
            base.promote_at, base.smaller_below, base.seed, base.recompute_slow, base.min_load_tokens,
            base.min_prefill_tokens, *((tier.admission, tier.min_tokens) for tier in base.tiers),
        )  # fmt: skip
        hits: TierHits = self._shared.once(key, lambda: tier_hits(routed, self._sized(place)))
        return hits

    def _written(self, routed: Routed, first: int, last: int) -> Columns:
        """Return the bytes that counted requests write to each tier of all replicas together, shape (S, 1)."""
        if self._base.is_stack:
            written = np.zeros((last - first, len(self._base.tiers)), dtype=np.int64)
            for curve in self._curves(routed):
                written += curve.flows(self._sizes[first:last]).written
        else:
            flows = [self._stepped(routed, place).flows for place in range(first, last)]
            written = np.array([one.written[routed.is_counted].sum(axis=0) for one in flows if one is not None])
        names = self._base.tier_names
        return {f"written_bytes_{name}": written[:, k, None] * self._block_bytes for k, name in enumerate(names)}

    def _curves(self, routed: Routed) -> list[TierCurve]:
        """Return the tier curves of the replicas that serve counted requests."""
        base = self._base

        def make() -> list[TierCurve]:
            curves = []
            for replica in range(routed.num_replicas):
                mine = routed.is_counted[routed.offsets[replica] : routed.offsets[replica + 1]]
                warming = int((~mine).sum())
                if mine.any():
                    window = (warming + 0.5) / len(mine) if warming else 0.0  # floors to the requests that warm
                    curves.append(
                        tier_curve(
                            routed.part(replica),
                            write_mode=base.write_mode,
                            smaller_below=base.smaller_below,
                            window=window,
                        )
                    )
            return curves

        curves: list[TierCurve] = self._shared.once(
            ("flows", *self._routing, base.write_mode, base.smaller_below), make
        )
        return curves

    # ---- sums alone ------------------------------------------------------------------------------------------

    @property
    def _adds_up(self) -> bool:
        """Whether seconds of loading are a sum over requests and links, and all hits are loaded."""
        base = self._base
        is_limited = base.recompute_slow or base.min_load_tokens > 0 or base.overlap_efficiency > 0.0
        return base.is_stack and not is_limited and all(tier.direct is None for tier in base.tiers)

    def _summed(self, routed: Routed, first: int, last: int, *, ttft: bool) -> Columns:
        """Return hits, bytes, gain and, if asked for, times, shape (S, W), by what is above each cut."""
        base, lru = self._base, self._lru(routed)
        cuts = lru.cuts(self._sizes[first:last])
        levels, place = np.unique(cuts, return_inverse=True)
        place = place.reshape(cuts.shape)
        sums, usable = self._above(routed, lru, levels)

        columns = {name: column[place[:, -1], None] for name, column in sums.items()}
        by_tier = np.diff(sums["hit_tokens"][place], axis=1, prepend=0)
        columns |= {f"hit_tokens_{name}": by_tier[:, k, None] for k, name in enumerate(base.tier_names)}
        usable_above = counted_sum(usable, routed.is_counted)[place]
        columns["loaded_bytes"] = (usable_above[:, -1] - usable_above[:, 0])[:, None] * self._block_bytes
        load_s: Any = 0.0
        ways = ways_up(base, routed.block_size)
        for way in ways:
            above = way.below - 1
            moved = (usable_above[:, -1] - usable_above[:, above])[:, None]
            columns[f"up_bytes_{base.tier_names[way.below]}"] = moved * self._block_bytes
            if way.link.latency_s:  # once for each request that loads
                pairs, again = np.unique(place[:, [above, -1]], axis=0, return_inverse=True)
                loads = [((usable[low] < usable[high]) & routed.is_counted).sum() for low, high in pairs]
                load_s = load_s + np.array(loads)[again.ravel(), None] * way.link.latency_s
            load_s = load_s + moved * (way.fragments * way.link.alpha_s)
            load_s = load_s + moved * way.block_bytes / self._rates[:, above]
        columns["gain_s"] = columns["saved_s"] - load_s
        if ttft:
            worlds = [
                self._scanned(
                    routed, ways, usable[row[-1]], [usable[row[-1]] - usable[row[way.below - 1]] for way in ways]
                )
                for row in place
            ]
            columns |= {name: np.stack([world[name] for world in worlds]) for name in worlds[0]}
            columns["load_s"] = load_s
            spent_s = columns["mean_ttft_s"] * int(routed.is_counted.sum())
            columns["queue_s"] = np.maximum(spent_s - columns["prefill_s"] - load_s, 0.0)
            columns["transfer_s"] = columns["decode_s"] = np.zeros((1, 1))
        return columns

    def _scanned(self, routed: Routed, ways: list[Way], usable: Ids, way_blocks: list[Ids]) -> Columns:
        """Return times of one size under all bandwidths, shape (W,), a few at a time."""
        base, counted = self._base, routed.is_counted
        computed = np.maximum(routed.input_tokens - base.min_prefill_tokens, 0)
        cached = np.minimum(np.minimum(usable * routed.block_size, routed.hashed_tokens), computed)
        prefill_s = base.prefill.seconds(routed.input_tokens, cached_tokens=cached)
        pieces = []
        step = max(1, _SCANNED // max(len(counted), 1))
        for begin in range(0, len(self._rates), step):
            some = self._rates[begin : begin + step]
            pieces.append(ttft_columns(routed, base, ttft_under_rates(routed, prefill_s, ways, way_blocks, some)))
        columns: Columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        columns["prefill_s"] = np.full(len(self._rates), counted_sum(prefill_s, counted))

        def busiest(column: Any) -> Seconds:
            """Return a sum over the counted requests of each replica, shape (R,)."""
            running = np.concatenate(([0.0], np.cumsum(np.where(counted, column, 0.0))))
            return np.diff(running[routed.offsets])

        busy = np.broadcast_to(busiest(prefill_s).max(initial=0.0), len(self._rates))
        for way, blocks in zip(ways, way_blocks, strict=True):
            start_s = busiest(np.where(blocks > 0, way.start_seconds(blocks), 0.0))
            moving_s = busiest(blocks * way.block_bytes) / self._rates[:, way.below - 1, None]
            busy = np.maximum(busy, (start_s + moving_s).max(axis=-1, initial=0.0))
        columns["throughput_ceiling"] = ceiling(int(counted.sum()), busy)
        return columns

    def _above(self, routed: Routed, lru: LruHits, levels: Ids) -> tuple[Columns, Ids]:
        """Return what lies above each cut, a few cuts at a time: sums by level, and each request's usable blocks."""
        base, counted = self._base, routed.is_counted
        computed = np.maximum(routed.input_tokens - base.min_prefill_tokens, 0)
        whole_s = base.prefill.seconds(routed.input_tokens)
        usable = np.empty((len(levels), len(counted)), dtype=np.int64)
        pieces = []
        step = max(1, _CELLS // max(len(counted), 1))
        for begin in range(0, len(levels), step):
            blocks, tokens = lru.up_to(levels[begin : begin + step])
            np.minimum(blocks, lru.usable, out=usable[begin : begin + step])
            columns = rate_columns(routed, base.unit, blocks, tokens)
            used = np.minimum(tokens, computed)
            columns["saved_s"] = counted_sum(
                whole_s - base.prefill.seconds(routed.input_tokens, cached_tokens=used), counted
            )
            pieces.append(columns)
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}, usable

    # ---- times -----------------------------------------------------------------------------------------------

    def _timed(
        self, routed: Routed, base: Deployment, hits: TierHits, rates: Seconds, ttft: bool, draws: Draws | None
    ) -> Columns:
        """Return bytes, gain and, if asked for, times, shape (S, W); some bandwidths at a time."""
        worlds = len(hits.blocks)
        wide = _with_axis(hits, 1)
        step = max(1, _CELLS // max(worlds * routed.trace.num_requests, 1))
        pieces = []
        for begin in range(0, len(rates), step):
            some = rates[begin : begin + step]
            shape = (worlds, len(some))
            service = service_times(routed, base, wide, bytes_per_second=some)
            queued = queue_times(routed, base, service) if ttft else None
            columns = service_columns(routed, base, service, shape)
            if queued is not None:
                columns |= queue_columns(routed, base, service, queued, shape)
            if draws is not None:
                columns |= draws.intervals(routed, base, wide, service, queued, shape)
            pieces.append(columns)
        return {name: np.concatenate([piece[name] for piece in pieces], axis=1) for name in pieces[0]}


def _with_axis(hits: TierHits, place: int) -> TierHits:
    """Return hits with one more leading axis, of length 1, at a place."""

    def widened(column: Ids) -> Ids:
        return np.expand_dims(column, place)

    reach = None if hits.reach is None else widened(hits.reach)
    return TierHits(widened(hits.blocks), widened(hits.tokens), hits.usable, reach)
