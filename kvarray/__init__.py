"""KV-cache infrastructure of LLM serving as NumPy arrays."""

from kvarray.errors import BlockStateError, CapacityError, InvariantError, KVArrayError, TraceError
from kvarray.policies import POLICIES
from kvarray.prefix import Evicted, Lock, Match, MatchBatch, RadixTree, ServedBatch, TreeEvents, TreeStats
from kvarray.stepping import PrefixSteps, step_prefix
from kvarray.trace import Trace, read_trace, write_trace

__all__ = [
    "POLICIES",
    "BlockStateError",
    "CapacityError",
    "Evicted",
    "InvariantError",
    "KVArrayError",
    "Lock",
    "Match",
    "MatchBatch",
    "PrefixSteps",
    "RadixTree",
    "ServedBatch",
    "Trace",
    "TraceError",
    "TreeEvents",
    "TreeStats",
    "read_trace",
    "step_prefix",
    "write_trace",
]

__version__ = "0.1.0"
