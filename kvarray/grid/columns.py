"""What the requests of combinations add up to: the columns of a sweep.

======================  =======  =====================================================================
column                  unit     meaning
======================  =======  =====================================================================
`hit_rate`              -        by the deployment's own unit
`UNIT_hit_rate`         -        by tokens, blocks, full blocks, whole requests
`hit_UNITs`, `UNITs`    -        the integers they are made of
`hit_tokens_TIER`       tokens   served by each tier
`loaded_bytes`          bytes    what came up from lower tiers
`up_bytes_TIER`         bytes    what crossed the links up from a tier
`written_bytes_TIER`    bytes    written to a tier of all replicas
`saved_s`, `gain_s`     s        prefill saved; the same less what loading cost
`mean_ttft_s`           s        mean time to first token
`ttft_pQ_s`, `max`      s        that which Q per cent of the requests do not exceed, and the largest
`PART_s`                s        sums of its parts: `queue_s`, `load_s`, `prefill_s`, `transfer_s`, `decode_s`
`share_within_target`   -        share of requests with their first token in time, where a target is given
`throughput_ceiling`    1/s      requests a second at which the busiest resource never rests
`cost_per_hour`         -        where prices are given
======================  =======  =====================================================================

All count what `kvarray.Replay` counts: the requests from the deployment's window on.
"""

from typing import Any, TypeAlias

import numpy as np

from kvarray.arrays import Flags, Ids, Seconds
from kvarray.deploy.deployment import Deployment
from kvarray.deploy.hits import TierHits
from kvarray.deploy.queues import QueueTimes
from kvarray.deploy.routing import Routed
from kvarray.deploy.service import ServiceTimes

__all__ = [
    "COUNTED",
    "QUANTILES",
    "Columns",
    "ceiling",
    "counted_sum",
    "hit_columns",
    "queue_columns",
    "rate_columns",
    "service_columns",
    "ttft_columns",
]

Columns: TypeAlias = dict[str, Any]
"""Arrays by name, of one shape."""

QUANTILES = (50, 90, 95, 99)
"""Percentiles of the time to first token, beside the largest."""

COUNTED = ("token", "block", "full_block", "request")
"""Units in which hits are whole numbers."""

_PARTS = ("queue_s", "load_s", "prefill_s", "transfer_s", "decode_s")


def counted_sum(column: Any, counted: Flags) -> Any:
    """Return the sum of a column over the requests that count, the last axis."""
    return column.sum(axis=-1) if counted.all() else column.sum(axis=-1, where=counted)


def rate_columns(routed: Routed, unit: str, blocks: Ids, tokens: Ids) -> Columns:
    """Return hits and hit rates, given each request's hit blocks and tokens, shape (S, B)."""
    counted, trace = routed.is_counted, routed.trace
    counts = trace.block_counts[routed.order]
    is_partial = trace.last_block_tokens[routed.order] < routed.block_size
    has_last = (blocks == counts) & (counts > 0) & counted
    hit_blocks = counted_sum(blocks, counted)
    hits = {
        "token": counted_sum(tokens, counted),
        "block": hit_blocks,
        "full_block": hit_blocks - (has_last & is_partial).sum(axis=-1),
        "request": has_last.sum(axis=-1),
    }
    totals = {
        "token": routed.input_tokens[counted].sum(),
        "block": counts[counted].sum(),
        "full_block": (routed.input_tokens[counted] // routed.block_size).sum(),
        "request": counted.sum(),
    }
    rates = {name: hits[name] / max(int(totals[name]), 1) for name in COUNTED}
    columns = {"hit_rate": rates[unit] if unit in rates else _mean_rate(routed, unit, blocks, tokens)}
    columns |= {f"{name}_hit_rate": rates[name] for name in COUNTED}
    columns |= {f"hit_{name}s": hits[name] for name in COUNTED}
    return columns | {f"{name}s": np.full(len(blocks), totals[name]) for name in COUNTED}


def _mean_rate(routed: Routed, unit: str, blocks: Ids, tokens: Ids) -> Seconds:
    """Return the mean over requests of their own hit rate."""
    hits, totals = tokens, routed.input_tokens
    if unit == "mean_block":
        hits, totals = blocks, routed.trace.block_counts[routed.order]
    some = (totals > 0) & routed.is_counted
    if not some.any():
        return np.zeros(len(blocks))
    rates: Seconds = (hits[:, some] / totals[some]).mean(axis=-1)
    return rates


def hit_columns(routed: Routed, deployment: Deployment, hits: TierHits) -> Columns:
    """Return what tiers serve, shape (S,), given hits of shape (S, B, K)."""
    columns = rate_columns(routed, deployment.unit, hits.blocks.sum(axis=-1), hits.tokens.sum(axis=-1))
    counted = routed.is_counted
    for k, name in enumerate(deployment.tier_names):
        columns[f"hit_tokens_{name}"] = counted_sum(hits.tokens[..., k], counted)
    return columns


def service_columns(routed: Routed, deployment: Deployment, service: ServiceTimes, shape: tuple[int, ...]) -> Columns:
    """Return bytes loaded and seconds gained, broadcast to `shape` without its axis of requests."""
    counted = routed.is_counted
    block_bytes = routed.block_size * deployment.bytes_per_token
    whole_s = deployment.prefill.seconds(routed.input_tokens)
    columns: Columns = {"loaded_bytes": counted_sum(service.loaded_blocks, counted) * block_bytes}
    for k, name in enumerate(deployment.tier_names):
        if k:
            ways = [place for place, way in enumerate(service.ways) if way.below == k]
            moved: Any = sum(counted_sum(service.way_blocks[place], counted) for place in ways)
            columns[f"up_bytes_{name}"] = moved * block_bytes
    columns["saved_s"] = counted_sum(whole_s - service.prefill_s, counted)
    columns["gain_s"] = counted_sum(whole_s - service.alone_s, counted)
    return {name: np.broadcast_to(column, shape) for name, column in columns.items()}


def ttft_columns(routed: Routed, deployment: Deployment, ttft: Seconds) -> Columns:
    """Return mean and percentiles of times to first token, given those of all requests, shape (..., B)."""
    counted = routed.is_counted
    if not counted.all():
        ttft = ttft[..., counted]
    number = ttft.shape[-1]
    columns: Columns = {"mean_ttft_s": ttft.sum(axis=-1) / max(number, 1)}
    if deployment.target_ttft_s is not None:
        columns["share_within_target"] = (ttft <= deployment.target_ttft_s).sum(axis=-1) / max(number, 1)
    names = [f"ttft_p{share}_s" for share in QUANTILES] + ["max_ttft_s"]
    if not number:
        return columns | {name: np.zeros(ttft.shape[:-1]) for name in names}
    begin, rest = 0, ttft
    for name, share in zip(names, (*QUANTILES, 100), strict=True):  # each among those above the one before
        place = max(-(-share * number // 100), 1) - 1
        rest = np.partition(rest, place - begin, axis=-1)[..., place - begin :]
        columns[name] = rest[..., 0]
        begin = place
    return columns


def queue_columns(
    routed: Routed, deployment: Deployment, service: ServiceTimes, queued: QueueTimes, shape: tuple[int, ...]
) -> Columns:
    """Return what the times to first token come to, broadcast to `shape` without its axis of requests."""
    counted = routed.is_counted
    ttft = np.broadcast_to(queued.ttft_s, (*shape, len(counted)))
    columns = ttft_columns(routed, deployment, ttft)
    for name in _PARTS:
        columns[name] = counted_sum(getattr(queued, name), counted)
    columns["throughput_ceiling"] = _ceiling(routed, deployment, service, queued, int(counted.sum()))
    return {name: np.broadcast_to(column, shape) for name, column in columns.items()}


def ceiling(number: int, busiest_s: Seconds) -> Seconds:
    """Return requests over the seconds that the busiest worker or link is busy; infinite where none is."""
    found = np.full(np.shape(busiest_s), np.inf)
    np.divide(number, busiest_s, out=found, where=busiest_s > 0.0)
    return found


def _ceiling(routed: Routed, deployment: Deployment, service: ServiceTimes, queued: QueueTimes, number: int) -> Seconds:
    """Return requests over the seconds that the busiest worker or link is busy; infinite where none is."""
    counted = routed.is_counted
    work: list[Seconds] = [queued.prefill_s, *service.way_s]
    separation = deployment.separation
    if separation is not None:
        work.append(separation.link.seconds(routed.input_tokens * deployment.bytes_per_token) / separation.streams)
    busiest: Any = np.zeros(1)
    for seconds in work:
        mine = np.where(counted, seconds, 0.0)
        for replica in range(routed.num_replicas):
            part = mine[..., routed.offsets[replica] : routed.offsets[replica + 1]]
            busiest = np.maximum(busiest, part.sum(axis=-1))
    return ceiling(number, busiest)
