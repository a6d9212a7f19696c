"""KV-cache infrastructure of LLM serving as NumPy arrays."""

from kvarray.errors import BlockStateError, CapacityError, InvariantError, KVArrayError, TraceError
from kvarray.policies import POLICIES
from kvarray.prefix import RadixTree
from kvarray.trace import Trace, read_trace, write_trace

__all__ = [
    "POLICIES",
    "BlockStateError",
    "CapacityError",
    "InvariantError",
    "KVArrayError",
    "RadixTree",
    "Trace",
    "TraceError",
    "read_trace",
    "write_trace",
]

__version__ = "0.1.0"
