"""The radix prefix cache: `RadixTree` and what its operations return."""

from kvarray.prefix.results import (
    REMOVED,
    SPLIT,
    STORED,
    Evicted,
    Lock,
    Match,
    MatchBatch,
    TreeEvents,
    TreeStats,
)
from kvarray.prefix.tree import RadixTree

__all__ = [
    "REMOVED",
    "SPLIT",
    "STORED",
    "Evicted",
    "Lock",
    "Match",
    "MatchBatch",
    "RadixTree",
    "TreeEvents",
    "TreeStats",
]
