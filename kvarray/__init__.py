"""KV-cache infrastructure of LLM serving as NumPy arrays."""

from kvarray.block import (
    Admission,
    BlockAllocator,
    BlockEvents,
    BlockStats,
    BlockTable,
    Copies,
    TableStats,
    TokenTable,
)
from kvarray.errors import (
    BlockStateError,
    CapacityError,
    InvariantError,
    KVArrayError,
    OversizeError,
    TraceError,
)
from kvarray.hashing import chain_hashes, content_hashes, hash_blocks, image_block_keys, namespace_hash
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
    "Admission",
    "BlockAllocator",
    "BlockEvents",
    "BlockStateError",
    "BlockStats",
    "BlockTable",
    "CapacityError",
    "Copies",
    "HitCurve",
    "InvariantError",
    "KVArrayError",
    "OversizeError",
    "TableStats",
    "TokenTable",
    "Trace",
    "TraceError",
    "agent_trace",
    "builtin_trace",
    "bursty_arrivals",
    "chain_hashes",
    "chat_trace",
    "content_hashes",
    "document_trace",
    "hash_blocks",
    "hit_curve",
    "image_block_keys",
    "namespace_hash",
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
