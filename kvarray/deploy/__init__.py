"""A trace through a whole deployment: replicas, tiers, links, queues, and the time to each first token.

The steps are pure functions, so that whoever asks for many deployments does each only once:

    routed = route(trace, deployment)                       which replica serves each request
    hits = tier_hits(routed, deployment)                    [B, K]; LruHits(...).at(sizes): [..., B, K]
    service = service_times(routed, deployment, hits)       [..., B]: prefill and loads, each request alone
    queued = queue_times(routed, deployment, service)       [..., B]: with the others before it
    ttft = first_token_times(routed, deployment, service)   [..., B]: its sum alone
    replay(trace, deployment)                               all of it, as columns in the order of the trace

All between the first and the last are in the order of `Routed.order`: replica after replica, each in order of arrival.
"""

from kvarray.deploy.deployment import ROUTINGS, Deployment, Separation
from kvarray.deploy.hits import LruHits, TierHits, tier_hits
from kvarray.deploy.misses import REASONS, Misses, misses_of
from kvarray.deploy.queues import QueueTimes, first_token_times, queue_times
from kvarray.deploy.replay import replay
from kvarray.deploy.result import COLUMNS, Replay
from kvarray.deploy.routing import Routed, prefix_aware_costs, route
from kvarray.deploy.service import ServiceTimes, service_times

__all__ = [
    "COLUMNS",
    "REASONS",
    "ROUTINGS",
    "Deployment",
    "LruHits",
    "Misses",
    "QueueTimes",
    "Replay",
    "Routed",
    "Separation",
    "ServiceTimes",
    "TierHits",
    "first_token_times",
    "misses_of",
    "prefix_aware_costs",
    "queue_times",
    "replay",
    "route",
    "service_times",
    "tier_hits",
]
