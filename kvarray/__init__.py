"""KV-cache infrastructure of LLM serving as NumPy arrays."""

from kvarray.errors import BlockStateError, CapacityError, InvariantError, KVArrayError, TraceError
from kvarray.policies import POLICIES
from kvarray.reuse import HitCurve, hit_curve, optimal_hits, stream_curve, ttl_curve, working_set
from kvarray.trace import (
    Trace,
    agent_trace,
    builtin_trace,
    bursty_arrivals,
    chat_trace,
    document_trace,
    poisson_arrivals,
    read_trace,
    write_trace,
    zipf_trace,
)

__all__ = [
    "POLICIES",
    "BlockStateError",
    "CapacityError",
    "HitCurve",
    "InvariantError",
    "KVArrayError",
    "Trace",
    "TraceError",
    "agent_trace",
    "builtin_trace",
    "bursty_arrivals",
    "chat_trace",
    "document_trace",
    "hit_curve",
    "optimal_hits",
    "poisson_arrivals",
    "read_trace",
    "stream_curve",
    "ttl_curve",
    "working_set",
    "write_trace",
    "zipf_trace",
]

__version__ = "0.1.0"
