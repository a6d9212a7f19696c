"""Why tokens missed.

The blocks of a request fall into four parts, from the head of its path on: what hit; what its replica has used before
but holds no more; what only other replicas have used; what nobody has used. So does every missed token:

=================  ================================================================================
reason             tokens
=================  ================================================================================
``evicted``        of blocks that the replica has used before, and those it holds behind one it lost
``other_replica``  of blocks that only other replicas have used before
``never_seen``     of full blocks that nobody has used before
``partial_block``  that no full block covers: unhashed ones, and those of a partial last block that nobody
                   has used before
=================  ================================================================================
"""

from dataclasses import dataclass

import numpy as np

from kvarray.arrays import Flags, Ids
from kvarray.deploy.routing import Routed
from kvarray.reuse import HitCurve, hit_curve

__all__ = ["REASONS", "Misses", "misses_of"]

REASONS = ("never_seen", "evicted", "partial_block", "other_replica")
"""Why a token missed."""


@dataclass(frozen=True, eq=False)
class Misses:
    """Missed tokens by reason, int64 columns of shape (B,) in the order of the trace; they add up to all there are."""

    never_seen: Ids
    evicted: Ids
    partial_block: Ids
    other_replica: Ids
    is_counted: Flags

    def totals(self) -> dict[str, int]:
        """Return the tokens of the counted requests by reason."""
        return {reason: int(getattr(self, reason)[self.is_counted].sum()) for reason in REASONS}


def misses_of(routed: Routed, hit_blocks: Ids) -> Misses:
    """Return why tokens missed, from the blocks that hit, shape (B,), in the order of `Routed.order`."""
    trace, order = routed.trace, routed.order
    anywhere = _used_before(hit_curve(trace))[order]
    here = anywhere if routed.num_replicas == 1 else _used_before(hit_curve(routed.joined))

    hashed = routed.hashed_tokens
    full = np.where(trace.last_block_tokens < routed.block_size, trace.block_counts - 1, trace.block_counts)[order]

    def tokens(blocks: Ids) -> Ids:
        """Tokens of so many leading blocks of each request."""
        covered: Ids = np.minimum(blocks * routed.block_size, hashed)
        return covered

    new_full = np.maximum(full, anywhere)  # a partial last block that was used before is none of the new ones
    columns = {
        "never_seen": tokens(new_full) - tokens(anywhere),
        "evicted": tokens(here) - tokens(hit_blocks),
        "partial_block": routed.input_tokens - tokens(new_full),
        "other_replica": tokens(anywhere) - tokens(here),
    }
    in_trace = np.empty_like(order)
    in_trace[order] = np.arange(len(order))
    return Misses(
        **{name: column[in_trace] for name, column in columns.items()}, is_counted=routed.is_counted[in_trace]
    )


def _used_before(curve: HitCurve) -> Ids:
    """Return how many leading blocks of each request were used before."""
    return curve.request_hit_blocks(curve.highest_level)
