"""KV-cache infrastructure of LLM serving as NumPy arrays."""

from kvarray.economics import (
    FixedState,
    Footprint,
    KVDtype,
    KVStream,
    MemoryPrice,
    ModelSpec,
    cost_per_million_tokens,
    kv_dtype,
)
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
    "FixedState",
    "Footprint",
    "HitCurve",
    "InvariantError",
    "KVArrayError",
    "KVDtype",
    "KVStream",
    "MemoryPrice",
    "ModelSpec",
    "Trace",
    "TraceError",
    "agent_trace",
    "builtin_trace",
    "bursty_arrivals",
    "chat_trace",
    "cost_per_million_tokens",
    "document_trace",
    "hit_curve",
    "kv_dtype",
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
