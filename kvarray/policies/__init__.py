"""Eviction orders: key functions first, those with queues of their own after them."""

from kvarray.policies.keys import (
    POLICIES,
    Columns,
    Keys,
    Policy,
    fifo,
    filo,
    lfu,
    lru,
    mru,
    priority,
    slru,
    smallest,
    tlru,
)

__all__ = [
    "POLICIES",
    "Columns",
    "Keys",
    "Policy",
    "fifo",
    "filo",
    "lfu",
    "lru",
    "mru",
    "priority",
    "slru",
    "smallest",
    "tlru",
]
