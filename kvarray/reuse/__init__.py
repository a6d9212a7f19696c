"""Closed forms over a whole trace: recency distances, hit curves, bounds."""

from kvarray.reuse.curve import UNITS, HitCurve, hit_curve, stream_curve, ttl_curve
from kvarray.reuse.distances import NEVER, Runs, prefix_runs, stream_runs
from kvarray.reuse.optimal import OptimalHits, optimal_hits
from kvarray.reuse.tiers import TierCost, TierCurve, TierFlows, tier_curve
from kvarray.reuse.working_set import working_set

__all__ = [
    "NEVER",
    "UNITS",
    "HitCurve",
    "OptimalHits",
    "Runs",
    "TierCost",
    "TierCurve",
    "TierFlows",
    "hit_curve",
    "optimal_hits",
    "prefix_runs",
    "stream_curve",
    "stream_runs",
    "tier_curve",
    "ttl_curve",
    "working_set",
]
