"""Eviction orders: key functions first, those with queues of their own after them."""

from kvarray.policies.keys import POLICIES, Columns, Keys, Policy, fifo, lfu, lru, smallest

__all__ = ["POLICIES", "Columns", "Keys", "Policy", "fifo", "lfu", "lru", "smallest"]
