"""The orders by name."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kvarray.policies.drawn import RandomOrder
from kvarray.policies.keys import Policy
from kvarray.policies.order import Fifo, Keyed, Lru, Order, Slru
from kvarray.policies.queues import Arc, S3Fifo, Sieve, TwoQ
from kvarray.policies.ranked import Gdsf, Lfu, LfuAged
from kvarray.policies.tinylfu import WTinyLfu

__all__ = ["ORDERS", "order_maker"]


ORDERS: Mapping[str, Callable[..., Order]] = {
    "arc": Arc,
    "fifo": Fifo,
    "gdsf": Gdsf,
    "lfu": Lfu,
    "lfu_aged": LfuAged,
    "lru": Lru,
    "random": RandomOrder,
    "s3_fifo": S3Fifo,
    "sieve": Sieve,
    "slru": Slru,
    "two_q": TwoQ,
    "w_tinylfu": WTinyLfu,
}
"""Orders by name."""


def order_maker(policy: str | Policy, *, rng: Any = None) -> Callable[[int], Order]:
    """Return what makes the order of a tier from its capacity.

    Parameters
    ----------
    policy : str or callable
        A name out of `ORDERS`, or a key function of one's own.
    rng : optional
        Seed or generator; needed for ``"random"`` and for no other.

    Raises
    ------
    ValueError
        If the name is unknown (the message lists the known ones), or `rng` is missing or not needed.
    TypeError
        If it is neither a name nor a function.

    Examples
    --------
    >>> order_maker("lfu")(100).capacity
    100
    >>> order_maker("mfu")
    Traceback (most recent call last):
        ...
    ValueError: policy must be one of arc, fifo, gdsf, lfu, lfu_aged, lru, random, s3_fifo, sieve, slru, two_q,
    w_tinylfu, or a key function: got 'mfu'
    """
    if callable(policy):
        return lambda capacity: Keyed(capacity, policy)
    if not isinstance(policy, str):
        raise TypeError(f"policy must be a name or a key function: got {policy!r}")
    if policy not in ORDERS:
        raise ValueError(f"policy must be one of {', '.join(ORDERS)}, or a key function: got {policy!r}")
    if (policy == "random") != (rng is not None):
        raise ValueError(f"rng must be given for the policy 'random' and for no other: got {rng!r} for {policy!r}")
    if policy == "random":
        generator = np.random.default_rng(rng)
        return lambda capacity: RandomOrder(capacity, generator)
    return ORDERS[policy]
