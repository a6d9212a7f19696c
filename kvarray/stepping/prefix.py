"""A whole trace through the radix prefix cache, one token a block.

Each request is one atomic step: its blocks are looked up, the hit is the leading part that is cached, then all of it
is cached, then the cache is cut to size. With ``granularity="page"`` and lru this is the tail-first LRU of single
blocks, and its hits are those of the closed forms of `kvarray.reuse`; other policies have no closed form.

Blocks are told apart by their whole prefix (`Trace.prefix_ids`). The tree would tell them apart by their path all the
same, so ids that are not chained may be given as well; the prefix ids also keep namespaces apart and are never
negative, whatever the ids of the trace are.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvarray.arrays import Ids, as_int
from kvarray.policies import Policy
from kvarray.prefix import RadixTree
from kvarray.ragged import row_sums
from kvarray.trace import Trace

__all__ = ["PrefixSteps", "step_prefix"]


@dataclass(frozen=True, eq=False)
class PrefixSteps:
    """What each request of a trace found.

    Parameters
    ----------
    hit_blocks, hit_tokens : ndarray of int64, shape (B,)
        Leading blocks that were cached, and the tokens in them.
    evicted_blocks : ndarray of int64, shape (B,)
        Blocks that went after the request.
    num_blocks, num_tokens : int
        Blocks and input tokens of the trace: what the hit rates divide by.
    """

    hit_blocks: Ids
    hit_tokens: Ids
    evicted_blocks: Ids
    num_blocks: int
    num_tokens: int

    @property
    def block_hit_rate(self) -> float:
        """Blocks hit over blocks, whole trace; 0 for an empty one."""
        return int(self.hit_blocks.sum()) / self.num_blocks if self.num_blocks else 0.0

    @property
    def token_hit_rate(self) -> float:
        """Tokens hit over input tokens, whole trace; 0 for an empty one. Tokens that were never hashed cannot hit."""
        return int(self.hit_tokens.sum()) / self.num_tokens if self.num_tokens else 0.0


def step_prefix(
    trace: Trace,
    capacity: int,
    *,
    policy: str | Policy = "lru",
    granularity: Literal["leaf", "page"] = "page",
) -> PrefixSteps:
    """Return what each request of a trace finds in a radix prefix cache.

    Parameters
    ----------
    trace : Trace
        With block ids; requests in the order in which they are served.
    capacity : int
        Blocks that may stay cached after each request, ``>= 1``.
    policy, granularity : optional
        As in `RadixTree`. Whole leaves may free more than is needed; single pages are exact.

    Returns
    -------
    PrefixSteps

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    TraceError
        If the trace has no block ids.

    Notes
    -----
    Sequential law. O(requests x edges of a path), whatever the capacity. A request longer than the capacity is cached
    as a whole for the moment of its step; what stays of it is its head.

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)
    >>> steps = step_prefix(trace, 3)
    >>> steps.hit_blocks, steps.evicted_blocks, steps.block_hit_rate
    (array([0, 2, 2]), array([0, 1, 1]), 0.4444444444444444)
    """
    capacity = as_int("capacity", capacity, low=1)
    ids, offsets = trace.prefix_ids, trace.offsets
    longest = int(np.diff(offsets).max(initial=0))
    room = min(capacity, trace.num_blocks) + longest
    tree = RadixTree(max(room, 1), policy=policy, granularity=granularity)
    served = tree.serve_batch(ids, offsets, limit=capacity)
    # Blocks of each request's hit, then their tokens: the last block of a request may be partial.
    is_hit = np.arange(trace.num_blocks) - np.repeat(offsets[:-1] + served.num_tokens, np.diff(offsets)) < 0
    return PrefixSteps(
        hit_blocks=served.num_tokens,
        hit_tokens=row_sums(trace.block_tokens * is_hit, offsets),
        evicted_blocks=served.evicted_tokens,
        num_blocks=trace.num_blocks,
        num_tokens=int(trace.input_tokens.sum()),
    )
