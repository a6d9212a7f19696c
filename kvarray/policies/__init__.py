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
from kvarray.policies.order import Order
from kvarray.policies.orders import ORDERS, order_maker

__all__ = [
    "ORDERS",
    "POLICIES",
    "Columns",
    "Keys",
    "Order",
    "Policy",
    "fifo",
    "filo",
    "lfu",
    "lru",
    "mru",
    "order_maker",
    "priority",
    "slru",
    "smallest",
    "tlru",
]
