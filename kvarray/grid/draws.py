"""Intervals by the bootstrap: sessions drawn again and again from those of the trace.

Requests of one session are alike, so sessions are drawn whole, with replacement, as many as there are. Caches and
queues stay as they were: what varies is which sessions the figures are of.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from kvarray.arrays import Ids, Seconds, as_positive_int, as_real
from kvarray.deploy.deployment import Deployment
from kvarray.deploy.hits import TierHits
from kvarray.deploy.queues import QueueTimes
from kvarray.deploy.routing import Routed
from kvarray.deploy.service import ServiceTimes
from kvarray.errors import TraceError
from kvarray.grid.columns import QUANTILES, Columns
from kvarray.trace import Trace

__all__ = ["Draws"]


@dataclass(frozen=True, eq=False)
class Draws:
    """Sessions drawn, the same ones for every combination.

    Attributes
    ----------
    session : ndarray of int64, shape (B,)
        The session of each request of the trace, numbered from 0.
    times : ndarray of int64, shape (samples, sessions)
        How often each session is drawn.
    confidence : float
        Share of the samples that an interval holds.
    """

    session: Ids
    times: Ids
    confidence: float

    @classmethod
    def of(cls, trace: Trace, samples: int, *, confidence: float, rng: "int | np.random.Generator") -> Self:
        """Return sessions of a trace drawn `samples` times.

        Raises
        ------
        TraceError
            If the trace has no sessions.
        TypeError, ValueError
            If a figure is out of range.
        """
        samples = as_positive_int("samples", samples)
        if not 0.0 < as_real("confidence", confidence) < 1.0:
            raise ValueError(f"confidence must lie between 0 and 1: got {confidence}")
        if trace.session is None:
            raise TraceError("the trace has no sessions, which intervals are drawn from")
        _, session = np.unique(trace.session, return_inverse=True)
        sessions = int(session.max(initial=-1)) + 1
        times = np.zeros((samples, sessions), dtype=np.int64)
        if sessions:
            drawn = np.random.default_rng(rng).integers(sessions, size=(samples, sessions))
            np.add.at(times, (np.arange(samples)[:, None], drawn), 1)
        return cls(session, times, confidence)

    def intervals(
        self,
        routed: Routed,
        deployment: Deployment,
        hits: TierHits,
        service: ServiceTimes,
        queued: QueueTimes | None,
        shape: tuple[int, ...],
    ) -> Columns:
        """Return the lower and upper ends of the intervals of hit rate, gain and times, of `shape`.

        Parameters
        ----------
        routed : Routed
        deployment : Deployment
        hits : TierHits
            Of shape (S, 1, B, K).
        service : ServiceTimes
        queued : QueueTimes or None
        shape : tuple of int
            (S, W).
        """
        counted = routed.is_counted
        session = self.session[routed.order][counted]

        def samples_of(column: Any) -> Seconds:
            """Return the sum of a column over each draw of sessions, shape (..., samples)."""
            mine = np.moveaxis(np.asarray(column)[..., counted], -1, 0)
            by_session = np.zeros((self.times.shape[1], *mine.shape[1:]), dtype=mine.dtype)
            np.add.at(by_session, session, mine)
            drawn = np.moveaxis(by_session, 0, -1)[..., None, :] * self.times
            return np.asarray(drawn.sum(axis=-1))

        requests = np.maximum(samples_of(np.ones(len(counted), dtype=np.int64)), 1)
        tokens = np.maximum(samples_of(routed.input_tokens), 1)
        figures: dict[str, Any] = {"token_hit_rate": samples_of(hits.tokens.sum(axis=-1)) / tokens}
        whole_s = deployment.prefill.seconds(routed.input_tokens)
        figures["gain_s"] = samples_of(whole_s - service.alone_s)
        if queued is not None:
            ttft = np.broadcast_to(queued.ttft_s, (*shape, len(counted)))
            figures["mean_ttft_s"] = samples_of(ttft) / requests
            figures |= self._quantiles(ttft[..., counted], session)
        columns: Columns = {}
        rest = (1.0 - self.confidence) / 2.0
        for name, samples in figures.items():
            low, high = np.quantile(samples, [rest, 1.0 - rest], axis=-1)
            columns[f"{name}_low"] = np.broadcast_to(low, shape)
            columns[f"{name}_high"] = np.broadcast_to(high, shape)
        return columns

    def _quantiles(self, ttft: Seconds, session: Ids) -> dict[str, Seconds]:
        """Return the percentiles of each sample, shape (S, W, samples): one combination after the other."""
        shape = ttft.shape[:-1]
        found = np.zeros((len(QUANTILES), *shape, len(self.times)))
        for world in np.ndindex(shape) if ttft.shape[-1] else ():
            order = np.argsort(ttft[world], kind="stable")
            reached = np.cumsum(self.times[:, session[order]], axis=1)  # [samples, B]
            for at, share in enumerate(QUANTILES):
                needed = -(-share * reached[:, -1:] // 100)
                place = np.minimum((reached < np.maximum(needed, 1)).sum(axis=1), ttft.shape[-1] - 1)
                found[(at, *world)] = ttft[world][order][place]
        return {f"ttft_p{share}_s": found[at] for at, share in enumerate(QUANTILES)}
