"""KV-cache infrastructure of LLM serving as NumPy arrays."""

from kvarray.errors import BlockStateError, CapacityError, InvariantError, KVArrayError, TraceError
from kvarray.policies import POLICIES
from kvarray.prefix import RadixTree

__all__ = [
    "POLICIES",
    "BlockStateError",
    "CapacityError",
    "InvariantError",
    "KVArrayError",
    "RadixTree",
    "TraceError",
]

__version__ = "0.1.0"
