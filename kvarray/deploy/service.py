"""How long each request takes by itself: what it loads, what it computes, and what of that overlaps.

A request whose prompt has n tokens of which p are cached computes for ``prefill(n, p)`` seconds, and loads the cached
blocks that lie below the first tier, which takes as long as its way up: the links it crosses one after the other, a
direct link beside them. The overlap efficiency hides a share of the lesser behind the greater, so that alone it has

    compute + load - efficiency x min(compute, load)

seconds until its prefill ends. Where the deployment sets limits, a request may leave loads out and compute instead:
of the tiers 0 to m it uses those that bring its prefill to an end first on an idle replica.

Left out: what loading costs the GPU beside time, and loads that begin before the request arrives.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Flags, Ids, Seconds, as_floats, check_broadcast
from kvarray.deploy.deployment import Deployment
from kvarray.deploy.hits import TierHits
from kvarray.deploy.routing import Routed
from kvarray.deploy.ways import Way, ways_up

__all__ = ["ServiceTimes", "service_times"]


@dataclass(frozen=True, eq=False)
class ServiceTimes:
    """What each request takes on an idle replica, in the order of `Routed.order`.

    ================  =======  ======  =====================================================================
    column            dtype    unit    meaning, shape (..., B)
    ================  =======  ======  =====================================================================
    `used_tokens`     int64    tokens  cached tokens that are not computed
    `loaded_blocks`   int64    blocks  blocks that come up from lower tiers
    `prefill_s`       float64  s       computing the rest
    `load_s`          float64  s       loading
    `hidden_s`        float64  s       what of these overlaps
    ================  =======  ======  =====================================================================

    Columns have the shape of the worlds that they differ in, `load_s` and `hidden_s` that of all.

    Attributes
    ----------
    ways : list of Way
        The links.
    way_blocks, way_s : tuple of ndarray, shape (..., B)
        Blocks that cross each, and what it takes.
    """

    used_tokens: Ids
    loaded_blocks: Ids
    prefill_s: Seconds
    load_s: Seconds
    hidden_s: Seconds
    ways: list[Way]
    way_blocks: tuple[Ids, ...]
    way_s: tuple[Seconds, ...]

    @property
    def alone_s(self) -> Seconds:
        """Seconds to the end of its prefill, shape (..., B): the closed formula."""
        return self.prefill_s + self.load_s - self.hidden_s


def service_times(
    routed: Routed, deployment: Deployment, hits: TierHits, *, bytes_per_second: ArrayLike | None = None
) -> ServiceTimes:
    """Return what each request takes by itself.

    Parameters
    ----------
    routed : Routed
    deployment : Deployment
    hits : TierHits
        Of shape (..., B, K).
    bytes_per_second : array_like of float, shape (..., K - 1), optional
        Bandwidth of the link up from each lower tier, instead of the deployment's; the leading axes broadcast with
        those of the hits.

    Returns
    -------
    ServiceTimes

    Raises
    ------
    TypeError, ValueError
        If a bandwidth is no number or not above 0, or the shapes do not broadcast.

    Notes
    -----
    Snapshot law: each request is by itself. O(B K) for each world, and K times that with `recompute_slow`.

    Examples
    --------
    >>> from kvarray.deploy import route, tier_hits
    >>> from kvarray.economics.latency import PrefillTime
    >>> from kvarray.tier import TierSpec
    >>> from kvarray.trace import Trace
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16, arrival_s=[0.0, 1.0, 2.0])
    >>> tiers = TierSpec.parse("gpu=3blocks"), TierSpec.parse("cpu=4blocks@64B/s")
    >>> deployment = Deployment(tiers, bytes_per_token=1, prefill=PrefillTime(0.0, 1.0, 0.0))
    >>> routed = route(trace, deployment)
    >>> times = service_times(routed, deployment, tier_hits(routed, deployment))
    >>> times.prefill_s, times.load_s  # of the last prompt a token is computed, though all are cached
    (array([48., 16.,  1.]), array([0.  , 0.  , 0.25]))
    """
    ways = ways_up(deployment, routed.block_size)
    rates, lead = _rates(deployment, ways, bytes_per_second)
    deepest = hits.blocks.shape[-1] - 1
    chosen = _alone(routed, deployment, ways, rates, lead, hits.reached(deepest))
    if deployment.recompute_slow:
        found = _alone(routed, deployment, ways, rates, lead, hits.reached(0))
        for depth in range(1, deepest + 1):
            deeper = _alone(routed, deployment, ways, rates, lead, hits.reached(depth))
            found = _choose(deeper, found, _may_load(routed, deployment, deeper) & (deeper.alone_s <= found.alone_s))
        return found
    if deployment.min_load_tokens and deepest:
        return _choose(
            chosen,
            _alone(routed, deployment, ways, rates, lead, hits.reached(0)),
            _may_load(routed, deployment, chosen),
        )
    return chosen


def _rates(
    deployment: Deployment, ways: list[Way], bytes_per_second: ArrayLike | None
) -> tuple[list[Any], tuple[int, ...]]:
    """Return the bandwidth of each way, a number or an array of shape (..., 1), and the leading axes."""
    if bytes_per_second is None:
        return [way.link.bytes_per_second for way in ways], ()
    given = as_floats("bytes_per_second", bytes_per_second, low=0.0, open_low=True, finite=False)
    lower = len(deployment.tiers) - 1
    if given.ndim == 0 or given.shape[-1] != lower:
        raise ValueError(
            f"bytes_per_second must have one item for each of {lower} lower tiers: got shape {given.shape}"
        )
    rates = [way.link.bytes_per_second if way.is_direct else given[..., way.below - 1, None] for way in ways]
    return rates, given.shape[:-1]


def _alone(
    routed: Routed, deployment: Deployment, ways: list[Way], rates: list[Any], lead: tuple[int, ...], blocks: Ids
) -> ServiceTimes:
    """Return the times of requests that use these blocks of each tier, shape (..., B, K)."""
    shape = check_broadcast("hits and bytes_per_second", blocks.shape[:-1], (*lead, 1))
    cached = np.minimum(blocks.sum(axis=-1) * routed.block_size, routed.hashed_tokens)
    used = np.minimum(cached, np.maximum(routed.input_tokens - deployment.min_prefill_tokens, 0))
    prefill_s = deployment.prefill.seconds(routed.input_tokens, cached_tokens=used)

    way_blocks, way_s = [], []
    chain: Any = np.zeros(1)
    direct: Any = np.zeros(1)
    for way, rate in zip(ways, rates, strict=True):
        moved = blocks[..., way.tiers[0]] if len(way.tiers) == 1 else blocks[..., list(way.tiers)].sum(axis=-1)
        seconds = np.where(moved > 0, way.start_seconds(moved) + moved * way.block_bytes / rate, 0.0)
        way_blocks.append(moved)
        way_s.append(seconds)
        if way.is_direct:
            direct = np.maximum(direct, seconds)
        else:
            chain = chain + seconds
    load_s = np.zeros(shape)
    np.maximum(chain, direct, out=load_s)
    hidden_s = deployment.overlap_efficiency * np.minimum(prefill_s, load_s)
    loaded = blocks[..., 1:].sum(axis=-1)
    return ServiceTimes(used, loaded, prefill_s, load_s, hidden_s, ways, tuple(way_blocks), tuple(way_s))


def _may_load(routed: Routed, deployment: Deployment, times: ServiceTimes) -> Flags:
    """Whether what requests would load is worth beginning with."""
    flags: Flags = times.loaded_blocks * routed.block_size >= deployment.min_load_tokens
    return flags


def _choose(one: ServiceTimes, other: ServiceTimes, takes_one: Flags) -> ServiceTimes:
    """Return the first times where `takes_one`, and the second elsewhere."""

    def pick(a: Any, b: Any) -> Any:
        return np.where(takes_one, a, b)

    return ServiceTimes(
        pick(one.used_tokens, other.used_tokens),
        pick(one.loaded_blocks, other.loaded_blocks),
        pick(one.prefill_s, other.prefill_s),
        pick(one.load_s, other.load_s),
        pick(one.hidden_s, other.hidden_s),
        one.ways,
        tuple(pick(a, b) for a, b in zip(one.way_blocks, other.way_blocks, strict=True)),
        tuple(pick(a, b) for a, b in zip(one.way_s, other.way_s, strict=True)),
    )
