"""A trace through a whole deployment: replicas, tiers, links, queues, and the time to each first token.

The steps are pure functions, so that whoever asks for many deployments does each only once:

    routed = route(trace, deployment)                       which replica serves each request
    hits = tier_hits(routed, deployment)                    [B, K], or LruHits(routed, deployment).at(sizes): [..., B, K]
    service = service_times(routed, deployment, hits)       [..., B]: prefill and loads, each request alone
    queued = queue_times(routed, deployment, service)       [..., B]: with the others before it
    replay(trace, deployment)                               all of it, as columns in the order of the trace

All between the first and the last are in the order of `Routed.order`: replica after replica, each in order of arrival.
"""

from kvarray.deploy.deployment import ROUTINGS, Deployment, Separation

__all__ = ["ROUTINGS", "Deployment", "Separation"]
