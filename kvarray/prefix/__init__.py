"""The radix prefix cache: `RadixTree` and what its operations return."""

from kvarray.prefix.results import (
    CLEARED,
    REMOVED,
    SPLIT,
    STORED,
    Evicted,
    Lock,
    Match,
    MatchBatch,
    ServedBatch,
    TreeEvents,
    TreeStats,
)
from kvarray.prefix.tree import RadixTree

__all__ = [
    "CLEARED",
    "REMOVED",
    "SPLIT",
    "STORED",
    "Evicted",
    "Lock",
    "Match",
    "MatchBatch",
    "RadixTree",
    "ServedBatch",
    "TreeEvents",
    "TreeStats",
]
