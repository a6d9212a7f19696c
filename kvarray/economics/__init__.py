"""What KV costs: its bytes, its time, and when to keep it."""

from kvarray.economics.cost import MemoryPrice, cost_per_million_tokens
from kvarray.economics.dtypes import KVDtype, kv_dtype
from kvarray.economics.layers import FixedState, KVStream
from kvarray.economics.memory import Footprint
from kvarray.economics.model import ModelSpec

__all__ = [
    "FixedState",
    "Footprint",
    "KVDtype",
    "KVStream",
    "MemoryPrice",
    "ModelSpec",
    "cost_per_million_tokens",
    "kv_dtype",
]
