"""KV-cache infrastructure of LLM serving as NumPy arrays."""

from kvarray.errors import BlockStateError, CapacityError, InvariantError, KVArrayError, TraceError
from kvarray.link import LINKS, Link, LinkFit, fit_link
from kvarray.policies import POLICIES

__all__ = [
    "LINKS",
    "POLICIES",
    "BlockStateError",
    "CapacityError",
    "InvariantError",
    "KVArrayError",
    "Link",
    "LinkFit",
    "TraceError",
    "fit_link",
]

__version__ = "0.1.0"
