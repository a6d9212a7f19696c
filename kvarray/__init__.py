"""KV-cache infrastructure of LLM serving as NumPy arrays."""

from kvarray.errors import BlockStateError, CapacityError, InvariantError, KVArrayError, TraceError
from kvarray.policies import POLICIES

__all__ = [
    "POLICIES",
    "BlockStateError",
    "CapacityError",
    "InvariantError",
    "KVArrayError",
    "TraceError",
]

__version__ = "0.1.0"
