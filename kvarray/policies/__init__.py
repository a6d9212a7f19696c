"""Eviction orders: key functions first, those with queues of their own after them."""

from kvarray.policies.keys import POLICIES, Columns, Keys, Policy, fifo, lfu, lru
from kvarray.policies.queues import ORDERS, Order, order_maker

__all__ = ["ORDERS", "POLICIES", "Columns", "Keys", "Order", "Policy", "fifo", "lfu", "lru", "order_maker"]
