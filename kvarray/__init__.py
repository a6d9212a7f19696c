"""KV-cache infrastructure of LLM serving as NumPy arrays."""

from kvarray.errors import BlockStateError, CapacityError, InvariantError, KVArrayError, TraceError
from kvarray.policies import POLICIES
from kvarray.reuse import HitCurve, hit_curve, optimal_hits, stream_curve, ttl_curve, working_set
from kvarray.trace import Trace, read_trace
from kvarray.trace import Trace, read_trace

__all__ = [
    "POLICIES",
    "BlockStateError",
    "CapacityError",
    "HitCurve",
    "InvariantError",
    "KVArrayError",
    "Trace",
    "TraceError",
    "read_trace",
]

__version__ = "0.1.0"
