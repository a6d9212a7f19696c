"""`Replay`: what became of each request of a trace, and what it adds up to.

The hit of a request, and so every hit rate, is what `kvarray.reuse` counts: the tokens of its leading blocks that some
tier of its replica holds. What a prompt then takes is another matter: a few tokens are computed in any case, and loads
may be left out (`Deployment`).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Flags, Ids, Seconds, as_floats
from kvarray.deploy.deployment import Deployment
from kvarray.deploy.misses import Misses, misses_of
from kvarray.deploy.routing import Routed
from kvarray.reuse import UNITS, TierFlows
from kvarray.trace import Trace

if TYPE_CHECKING:
    from kvarray.deploy.advice import Answer

__all__ = ["COLUMNS", "Replay"]

COLUMNS = (
    "replica", "hit_blocks", "hit_tokens", "used_tokens", "loaded_bytes", "queue_s", "load_s", "prefill_s",
    "transfer_s", "decode_s", "ttft_s",
)  # fmt: skip
"""The columns of a `Replay`."""

_DAY = 86400.0


@dataclass(frozen=True, eq=False)
class Replay:
    """What became of each request, and what it adds up to.

    Columns are in the order of the trace. Those with a unit of seconds add up: `ttft_s` is the sum of the others.

    ==============  =======  =======  ======  ==============================================================
    column          dtype    shape    unit    meaning
    ==============  =======  =======  ======  ==============================================================
    `replica`       int64    (B,)     -       where it ran
    `hit_blocks`    int64    (B, K)   blocks  leading blocks that each tier held
    `hit_tokens`    int64    (B, K)   tokens  their tokens
    `used_tokens`   int64    (B,)     tokens  cached tokens that were not computed again
    `loaded_bytes`  int64    (B,)     bytes   what came up from lower tiers
    `queue_s`       float64  (B,)     s       waiting behind others, for links and for the worker
    `load_s`        float64  (B,)     s       loading alone, beyond what computing hides
    `prefill_s`     float64  (B,)     s       computing
    `transfer_s`    float64  (B,)     s       waiting for KV to move to a decode node
    `decode_s`      float64  (B,)     s       the first step on the decode node, see `QueueTimes`
    `ttft_s`        float64  (B,)     s       from its arrival to its first token
    ==============  =======  =======  ======  ==============================================================

    Attributes
    ----------
    trace : Trace
        In the blocks of the deployment.
    deployment : Deployment
    routed : Routed
    flows : TierFlows
        Blocks that each request made come, go and move, columns of shape (B, K).
    reach : ndarray of int64, shape (B, K, K), or None
        See `TierHits`.
    way_names : tuple of str
        The links up, the deepest first; direct ones last.
    way_bytes, way_s : ndarray, shape (W, B)
        What each request loaded over each link, and how long it was busy with that.
    moving_s : ndarray of float64, shape (B,)
        How long its KV kept the streams to its decode node busy.
    saved_s, gain_s : ndarray of float64, shape (B,)
        Seconds of prefill that the tiers saved each request; and the same less what loading cost it.

    Sums count the requests from the deployment's window on.
    """

    trace: Trace
    deployment: Deployment
    routed: Routed
    flows: TierFlows
    reach: Ids | None
    replica: Ids
    hit_blocks: Ids
    hit_tokens: Ids
    used_tokens: Ids
    loaded_bytes: Ids
    queue_s: Seconds
    load_s: Seconds
    prefill_s: Seconds
    transfer_s: Seconds
    decode_s: Seconds
    ttft_s: Seconds
    way_names: tuple[str, ...]
    way_bytes: Ids
    way_s: Seconds
    moving_s: Seconds
    saved_s: Seconds
    gain_s: Seconds

    # ---- hits ------------------------------------------------------------------------------------------------

    @cached_property
    def is_counted(self) -> Flags:
        """Whether each request counts, shape (B,)."""
        counted = np.empty(len(self.replica), dtype=np.bool_)
        counted[self.routed.order] = self.routed.is_counted
        return counted

    @cached_property
    def hits(self) -> dict[str, int]:
        """Hits of the counted requests by unit, as `kvarray.reuse.HitCurve.hits` counts them."""
        counted = self.is_counted
        blocks, counts = self.hit_blocks.sum(axis=1)[counted], self.trace.block_counts[counted]
        is_partial = (self.trace.last_block_tokens < self.routed.block_size)[counted]
        has_last = (blocks == counts) & (counts > 0)
        return {
            "block": int(blocks.sum()),
            "token": int(self.hit_tokens[counted].sum()),
            "full_block": int(blocks.sum() - (has_last & is_partial).sum()),
            "request": int(has_last.sum()),
        }

    @cached_property
    def totals(self) -> dict[str, int]:
        """What `hits` are divided by."""
        counted = self.is_counted
        tokens = self.trace.input_tokens[counted]
        return {
            "block": int(self.trace.block_counts[counted].sum()),
            "token": int(tokens.sum()),
            "full_block": int((tokens // self.routed.block_size).sum()),
            "request": int(counted.sum()),
        }

    def hit_rate(self, unit: str | None = None) -> float:
        """Return the hit rate by a unit of `kvarray.reuse.UNITS`; by the deployment's where none is given.

        Raises
        ------
        ValueError
            If the unit is unknown.
        """
        unit = self.deployment.unit if unit is None else unit
        if unit not in UNITS:
            raise ValueError(f"unit must be one of {', '.join(UNITS)}: got {unit!r}")
        if unit in self.hits:
            return self.hits[unit] / max(self.totals[unit], 1)
        tokens = unit == "mean_token"
        hits = (self.hit_tokens if tokens else self.hit_blocks).sum(axis=1)[self.is_counted]
        totals = (self.trace.input_tokens if tokens else self.trace.block_counts)[self.is_counted]
        some = totals > 0
        return float((hits[some] / totals[some]).mean()) if some.any() else 0.0

    @property
    def tier_hit_tokens(self) -> Ids:
        """Hit tokens of each tier, shape (K,)."""
        total: Ids = self.hit_tokens[self.is_counted].sum(axis=0)
        return total

    @cached_property
    def misses(self) -> Misses:
        """Why each missed token missed; O(N + M log M) when first asked."""
        return misses_of(self.routed, self.hit_blocks[self.routed.order].sum(axis=1))

    # ---- times -----------------------------------------------------------------------------------------------

    def ttft_quantile(self, share: ArrayLike) -> Seconds:
        """Return the time to first token that a share of the requests do not exceed; 0 without requests.

        Examples
        --------
        >>> from kvarray.deploy import replay
        >>> from kvarray.economics.latency import PrefillTime
        >>> from kvarray.tier import TierSpec
        >>> trace = Trace([1, 2, 3, 4], [0, 1, 2, 4], block_size=16, arrival_s=[0.0, 20.0, 40.0])
        >>> tiers = (TierSpec("gpu", blocks=9),)
        >>> result = replay(trace, Deployment(tiers, bytes_per_token=1, prefill=PrefillTime(0.0, 1.0, 0.0)))
        >>> result.ttft_quantile([0.5, 1.0])
        array([16., 32.])
        """
        shares = as_floats("share", share, low=0.0)
        counted = self.ttft_s[self.is_counted]
        if not len(counted):
            return np.zeros(shares.shape)
        return np.asarray(np.quantile(counted, shares, method="inverted_cdf"))

    @property
    def mean_ttft_s(self) -> float:
        """Mean time to first token; 0 without requests."""
        counted = self.ttft_s[self.is_counted]
        return float(counted.mean()) if len(counted) else 0.0

    def share_within(self, seconds: float | None = None) -> float | None:
        """Return the share of requests with their first token in time; None where no time is given anywhere."""
        limit = self.deployment.target_ttft_s if seconds is None else seconds
        counted = self.ttft_s[self.is_counted]
        if limit is None or not len(counted):
            return None
        return float((counted <= limit).mean())

    @cached_property
    def busy_s(self) -> dict[str, Seconds]:
        """Seconds that each resource of each replica works on counted requests, by name, shape (R,)."""
        replicas, counted = self.routed.num_replicas, self.is_counted
        work: dict[str, Seconds] = {"prefill": self.prefill_s}
        work |= dict(zip(self.way_names, self.way_s, strict=True))
        if self.deployment.separation is not None:
            work["transfer"] = self.moving_s
        return {
            name: np.bincount(self.replica[counted], seconds[counted], minlength=replicas).astype(np.float64)
            for name, seconds in work.items()
        }

    @property
    def throughput_ceiling(self) -> float | None:
        """Requests a second at which the busiest resource never rests, hits and routing staying as they are."""
        busiest = max(float(seconds.max(initial=0.0)) for seconds in self.busy_s.values())
        return int(self.is_counted.sum()) / busiest if busiest > 0.0 else None

    @property
    def duration_s(self) -> float:
        """Time from the first counted arrival to the last."""
        arrival = self.routed.arrival_s[self.routed.is_counted]
        return float(arrival.max() - arrival.min()) if len(arrival) else 0.0

    # ---- bytes -----------------------------------------------------------------------------------------------

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.routed.block_size * self.deployment.bytes_per_token

    @property
    def link_loaded_bytes(self) -> dict[str, int]:
        """Bytes that counted requests loaded over each link up."""
        totals = self.way_bytes[:, self.is_counted].sum(axis=1)
        return dict(zip(self.way_names, totals.tolist(), strict=True))

    @property
    def link_down_bytes(self) -> dict[str, int]:
        """Bytes that went down between each two tiers: demotions and copies."""
        names = self.deployment.tier_names
        moved = self.flows.down[self.is_counted].sum(axis=0) * self.block_bytes
        return {f"{names[k]}->{names[k + 1]}": int(moved[k]) for k in range(len(names) - 1)}

    @property
    def transfer_bytes(self) -> int:
        """Bytes that moved to decode nodes; 0 where decode is not separate."""
        if self.deployment.separation is None:
            return 0
        return self.totals["token"] * self.deployment.bytes_per_token

    @property
    def written_bytes(self) -> Ids:
        """Bytes written to each tier of all replicas together, shape (K,): what wears an SSD."""
        written: Ids = self.flows.written[self.is_counted].sum(axis=0) * self.block_bytes
        return written

    @property
    def written_bytes_per_day(self) -> Seconds | None:
        """Bytes written to each tier of all replicas in a day at this rate, shape (K,); None without a duration."""
        if self.duration_s == 0.0:
            return None
        return self.written_bytes.astype(np.float64) * (_DAY / self.duration_s)

    @property
    def drive_writes_per_day(self) -> Seconds | None:
        """How often a day each tier is written over, shape (K,); None without a duration."""
        per_day = self.written_bytes_per_day
        if per_day is None:
            return None
        size = self.deployment.tier_blocks(self.routed.block_size).astype(np.float64) * self.block_bytes
        return per_day / (size * self.routed.num_replicas)

    def summary(self) -> dict[str, Any]:
        """Return every sum as plain numbers, lists and dicts; None where a figure cannot be told.

        Returns
        -------
        dict
        """
        counted = self.is_counted
        names = self.deployment.tier_names
        quantiles = {f"p{share:g}": float(self.ttft_quantile(share / 100)) for share in (50, 90, 95, 99)}
        per_day, overwritten = self.written_bytes_per_day, self.drive_writes_per_day
        return {
            "requests": self.totals["request"],
            "replicas": self.routed.num_replicas,
            "block_size": self.routed.block_size,
            "hits": self.hits,
            "totals": self.totals,
            "hit_rates": {unit: self.hit_rate(unit) for unit in UNITS},
            "tier_hit_tokens": dict(zip(names, self.tier_hit_tokens.tolist(), strict=True)),
            "missed_tokens": self.misses.totals(),
            "recomputed_tokens": int((self.hit_tokens.sum(axis=1) - self.used_tokens)[counted].sum()),
            "ttft_s": {"mean": self.mean_ttft_s, **quantiles, "max": float(self.ttft_quantile(1.0))},
            "target_ttft_s": self.deployment.target_ttft_s,
            "share_within_target": self.share_within(),
            "parts_s": {
                name: float(getattr(self, name)[counted].sum())
                for name in ("queue_s", "load_s", "prefill_s", "transfer_s", "decode_s")
            },
            "requests_per_s": (self.totals["request"] / self.duration_s) if self.duration_s else None,
            "throughput_ceiling": self.throughput_ceiling,
            "saved_s": float(self.saved_s[counted].sum()),
            "gain_s": float(self.gain_s[counted].sum()),
            "loaded_bytes": int(self.loaded_bytes[counted].sum()),
            "link_loaded_bytes": self.link_loaded_bytes,
            "link_down_bytes": self.link_down_bytes,
            "transfer_bytes": self.transfer_bytes,
            "written_bytes": dict(zip(names, self.written_bytes.tolist(), strict=True)),
            "written_bytes_per_day": None if per_day is None else dict(zip(names, per_day.tolist(), strict=True)),
            "drive_writes_per_day": None
            if overwritten is None
            else dict(zip(names, overwritten.tolist(), strict=True)),
        }

    def explain(self) -> "list[Answer]":
        """Return answers in words, see `kvarray.deploy.advice`."""
        from kvarray.deploy.advice import explain  # which reads this class

        return explain(self)

    def rows(self) -> dict[str, Any]:
        """Return the columns by name, one for each tier where they have tiers, in the order in which to print them."""
        rows: dict[str, Any] = {"request": np.arange(len(self.replica)), "arrival_s": self.trace.arrival_s}
        rows["input_tokens"] = self.trace.input_tokens
        for name in COLUMNS:
            column = getattr(self, name)
            if column.ndim == 1:
                rows[name] = column
                continue
            rows |= {f"{name}_{tier}": column[:, k] for k, tier in enumerate(self.deployment.tier_names)}
        return rows
