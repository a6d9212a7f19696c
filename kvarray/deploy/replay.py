"""`replay`: a trace through a whole deployment, request by request."""

from typing import Any

import numpy as np

from kvarray.deploy.deployment import Deployment
from kvarray.deploy.hits import tier_hits
from kvarray.deploy.queues import queue_times
from kvarray.deploy.result import Replay
from kvarray.deploy.routing import route
from kvarray.deploy.service import service_times
from kvarray.reuse import TierFlows
from kvarray.trace import Trace

__all__ = ["replay"]


def replay(trace: Trace, deployment: Deployment, *, rate_scale: float = 1.0) -> Replay:
    """Return what would have become of each request of a trace.

    Parameters
    ----------
    trace : Trace
        With block ids; with arrivals, unless the deployment has no queues.
    deployment : Deployment
    rate_scale : float, optional
        By how much faster than in the trace requests arrive, ``> 0``.

    Returns
    -------
    Replay

    Raises
    ------
    TraceError
        If the trace has no block ids, or lacks the sessions or arrivals that it needs.
    OversizeError
        If a request does not fit the first tier, and `allow_oversize` is not set.
    TypeError, ValueError
        If an argument is malformed, or trace and deployment do not go together.

    Notes
    -----
    Sequential law in the order of the trace. O(N + M log M) for LRU without a router that looks at state; see
    `route` and `tier_hits`.

    Examples
    --------
    >>> from kvarray.economics.latency import PrefillTime
    >>> from kvarray.tier import TierSpec
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16, arrival_s=[0.0, 60.0, 120.0])
    >>> tiers = TierSpec.parse("gpu=3blocks"), TierSpec.parse("cpu=4blocks@64B/s")
    >>> result = replay(trace, Deployment(tiers, bytes_per_token=1, prefill=PrefillTime(0.0, 1.0, 0.0)))
    >>> result.hit_tokens
    array([[ 0,  0],
           [32,  0],
           [32, 16]])
    >>> result.ttft_s, result.hit_rate()
    (array([48.  , 16.  ,  1.25]), 0.5555555555555556)
    """
    routed = route(trace, deployment, rate_scale=rate_scale)
    hits = tier_hits(routed, deployment)
    assert hits.flows is not None  # of one configuration
    service = service_times(routed, deployment, hits)
    queued = queue_times(routed, deployment, service)
    whole_s = deployment.prefill.seconds(routed.input_tokens)

    place = np.empty_like(routed.order)
    place[routed.order] = np.arange(len(place))  # of each request of the trace

    def column(values: Any) -> Any:
        return values if routed.num_replicas == 1 else values[..., place]

    def rows(values: Any) -> Any:
        return values if routed.num_replicas == 1 else values[place]

    flows = {
        name: rows(value) for name in TierFlows.__dataclass_fields__ if (value := getattr(hits.flows, name)) is not None
    }
    block_bytes = routed.block_size * deployment.bytes_per_token
    shape = (len(service.ways), len(place))
    return Replay(
        trace=routed.trace,
        deployment=deployment,
        routed=routed,
        flows=TierFlows(**flows),
        reach=None if hits.reach is None else rows(hits.reach),
        replica=routed.replica,
        hit_blocks=rows(hits.blocks),
        hit_tokens=rows(hits.tokens),
        used_tokens=column(service.used_tokens),
        loaded_bytes=column(service.loaded_blocks * block_bytes),
        queue_s=column(queued.queue_s),
        load_s=column(queued.load_s),
        prefill_s=column(queued.prefill_s),
        transfer_s=column(queued.transfer_s),
        decode_s=column(queued.decode_s),
        ttft_s=column(queued.ttft_s),
        way_names=tuple(way.name for way in service.ways),
        way_bytes=column(np.array(service.way_blocks, dtype=np.int64).reshape(shape) * block_bytes),
        way_s=column(np.array(service.way_s, dtype=np.float64).reshape(shape)),
        moving_s=column(queued.moving_s),
        saved_s=column(whole_s - service.prefill_s),
        gain_s=column(whole_s - service.alone_s),
    )
