"""What the tiers of every replica hold for each request.

Replicas share nothing, so each is a trace of its own. LRU tiers, exclusive or write-through, are one recency list cut
at some places: then the hits of any sizes come from one pass (`LruHits`). Everything else is stepped. Both count what
`kvarray.reuse` and `kvarray.stepping` count, in requests that are atomic steps.

Where a load is left out, whatever lies behind it in the path is of no use. In LRU tiers deeper blocks of a path lie in
deeper tiers, so nothing more need be known; in others `reach` says what is left.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Ids, as_ints, refuse
from kvarray.deploy.caches import Caches, usable_blocks
from kvarray.deploy.deployment import Deployment
from kvarray.deploy.routing import Routed
from kvarray.reuse import TierFlows, hit_curve, tier_curve
from kvarray.stepping import step_requests
from kvarray.trace import Trace

__all__ = ["LruHits", "TierHits", "stepped_reach", "tier_hits"]


@dataclass(frozen=True, eq=False)
class TierHits:
    """What each tier serves of each request, in the order of `Routed.order`.

    ========  ===============  ==========================================================================
    column    shape            meaning, int64
    ========  ===============  ==========================================================================
    `blocks`  (..., B, K)      blocks served by each tier
    `tokens`  (..., B, K)      their tokens
    `usable`  (B,)             leading blocks that a request can use, since some tokens are computed in any case
    `reach`   (..., B, K, K)   ``reach[..., m, k]``: blocks of tier k in the leading, usable part that tiers 0 to m
                               serve; None where deeper blocks of a path lie in deeper tiers
    ========  ===============  ==========================================================================

    Leading axes are sizes of tiers. `flows` counts what moved, columns of shape (B, K); None with leading axes.
    """

    blocks: Ids
    tokens: Ids
    usable: Ids
    reach: Ids | None = None
    flows: TierFlows | None = None

    def reached(self, depth: int) -> Ids:
        """Return the blocks of each tier in the leading, usable part that tiers 0 to `depth` serve: (..., B, K)."""
        if self.reach is not None:
            return self.reach[..., depth, :]
        blocks = self.blocks.copy()
        blocks[..., depth + 1 :] = 0
        left: Ids = self.usable
        for tier in range(depth + 1):
            np.minimum(blocks[..., tier], left, out=blocks[..., tier])
            left = left - blocks[..., tier]
        return blocks


def tier_hits(routed: Routed, deployment: Deployment) -> TierHits:
    """Return what the tiers of each replica serve.

    Parameters
    ----------
    routed : Routed
    deployment : Deployment

    Returns
    -------
    TierHits
        With `flows`.

    Raises
    ------
    ValueError
        If write-through tiers shrink from one to the next, and `smaller_below` is not set.

    Notes
    -----
    O(N + M log M) for LRU; else a loop over the segments of all requests.

    Examples
    --------
    >>> from kvarray.deploy import route
    >>> from kvarray.economics.latency import PrefillTime
    >>> from kvarray.tier import TierSpec
    >>> from kvarray.trace import Trace
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16, arrival_s=[0.0, 1.0, 2.0])
    >>> tiers = TierSpec.parse("gpu=3blocks"), TierSpec.parse("cpu=4blocks@1GB/s")
    >>> deployment = Deployment(tiers, bytes_per_token=1, prefill=PrefillTime(0.0, 1.0, 0.0))
    >>> tier_hits(route(trace, deployment), deployment).blocks
    array([[0, 0],
           [2, 0],
           [2, 1]])
    """
    sizes = deployment.tier_blocks(routed.block_size)
    parts = [_flows(routed.part(replica), deployment, sizes) for replica in range(routed.num_replicas)]
    flows = parts[0] if len(parts) == 1 else _join(parts)
    assert flows.hit_tokens is not None  # blocks of a trace have tokens
    usable = usable_blocks(routed.trace, deployment)[routed.order]
    is_cut = deployment.recompute_slow or deployment.min_load_tokens or (flows.hits.sum(axis=1) > usable).any()
    needs_order = len(sizes) > 1 and not deployment.is_stack and is_cut
    reach = stepped_reach(routed, deployment) if needs_order else None
    return TierHits(flows.hits, flows.hit_tokens, usable, reach, flows)


def _flows(trace: Trace, deployment: Deployment, sizes: Ids) -> TierFlows:
    """Return what the tiers of one replica serve and move for each request."""
    if deployment.is_stack:
        curve = tier_curve(trace, write_mode=deployment.write_mode, smaller_below=deployment.smaller_below)
        return curve.request_flows(sizes)
    return step_requests(
        trace,
        deployment.policy,
        sizes,
        write_mode=deployment.write_mode,
        write_at=deployment.write_at,
        promote_at=deployment.promote_at,
        admission=[tier.admission for tier in deployment.tiers],
        min_tokens=[tier.min_tokens for tier in deployment.tiers],
        smaller_below=deployment.smaller_below,
        rng=deployment.seed,
    )


def _join(parts: list[TierFlows]) -> TierFlows:
    return TierFlows(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in TierFlows.__dataclass_fields__}
    )


def stepped_reach(routed: Routed, deployment: Deployment) -> Ids:
    """Return `TierHits.reach` of tiers that are no stack, by stepping them; see there."""
    caches, usable = Caches(routed.trace, deployment), usable_blocks(routed.trace, deployment).tolist()
    reach = []
    for replica in range(routed.num_replicas):
        tiers = caches.stepped()
        rows = routed.order[routed.offsets[replica] : routed.offsets[replica + 1]]
        reach += [tiers.serve(caches.paths[row], usable=usable[row]) for row in rows.tolist()]
    num_tiers = len(deployment.tiers)
    return np.array(reach, dtype=np.int64).reshape(-1, num_tiers, num_tiers)


class LruHits:
    """The hits of LRU tiers of any sizes, from one pass over the trace.

    Parameters
    ----------
    routed : Routed
    deployment : Deployment
        Whose tiers are a stack, see `Deployment.is_stack`; their sizes are not asked.

    Attributes
    ----------
    curve : HitCurve
        Of all replicas together, each with its own blocks: what any one size hits.
    usable : ndarray of int64, shape (B,)
        As in `TierHits`.

    Raises
    ------
    ValueError
        If the tiers are no stack.

    Examples
    --------
    >>> from kvarray.deploy import route
    >>> from kvarray.economics.latency import PrefillTime
    >>> from kvarray.tier import TierSpec
    >>> from kvarray.trace import Trace
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16, arrival_s=[0.0, 1.0, 2.0])
    >>> tiers = TierSpec.parse("gpu=3blocks"), TierSpec.parse("cpu=4blocks@1GB/s")
    >>> deployment = Deployment(tiers, bytes_per_token=1, prefill=PrefillTime(0.0, 1.0, 0.0))
    >>> LruHits(route(trace, deployment), deployment).at([[3, 4], [1, 1]]).blocks.sum(axis=1)
    array([[4, 1],
           [2, 2]])
    """

    def __init__(self, routed: Routed, deployment: Deployment) -> None:
        if not deployment.is_stack:
            raise ValueError(
                "the tiers must be a stack: LRU, exclusive or write_through, every hit promoted, all admitted"
            )
        self._exclusive = deployment.write_mode == "exclusive"
        self._smaller_below = deployment.smaller_below
        self.curve = hit_curve(routed.joined)
        self._most = routed.trace.num_blocks
        self.usable = usable_blocks(routed.trace, deployment)[routed.order]

    def at(self, sizes: ArrayLike) -> TierHits:
        """Return the hits of tiers of some sizes.

        Parameters
        ----------
        sizes : array_like of int, shape (..., K)
            Blocks of each tier of a replica, ``>= 1``.

        Returns
        -------
        TierHits
            Columns of shape (..., B, K), without flows.

        Raises
        ------
        TypeError, ValueError
            If a size is no integer or less than 1, or write-through tiers shrink from one to the next.

        Notes
        -----
        Snapshot law. O(M) for each distinct cut of the recency list, and O(B K) for each configuration.
        """
        cuts = self.cuts(sizes)
        levels, place = np.unique(cuts, return_inverse=True)
        blocks, tokens = self.up_to(levels)
        place = place.reshape(cuts.shape)
        return TierHits(_by_tier(blocks, place), _by_tier(tokens, place), self.usable)

    def cuts(self, sizes: ArrayLike) -> Ids:
        """Return the places at which sizes cut the recency list, int64, shape (..., K); errors as in `at`."""
        array = np.asarray(sizes)
        if array.ndim == 0:
            raise ValueError("sizes must have the capacity of each tier along the last axis: got one number")
        array = as_ints("sizes", array.ravel(), low=1).reshape(array.shape)
        if self._exclusive:
            cuts = np.cumsum(np.minimum(array, self._most + 1), axis=-1)
        else:
            shrinks = np.zeros(array.shape, dtype=np.bool_)
            np.less(array[..., 1:], array[..., :-1], out=shrinks[..., 1:])
            if not self._smaller_below:
                refuse("sizes", "not fall from tier to tier under write-through", shrinks, array)
            cuts = np.maximum.accumulate(array, axis=-1)
        capped: Ids = np.minimum(cuts, self._most + 1)
        return capped

    def up_to(self, levels: Ids) -> tuple[Ids, Ids]:
        """Return the hit blocks and hit tokens of each request above some cuts, shape (levels, B). O(M) for each."""
        blocks = self.curve.request_hit_blocks(levels)
        return blocks, self.curve.tokens_of_blocks(blocks, levels)


def _by_tier(column: Ids, place: Ids) -> Ids:
    """Return what lies between the cuts `place`, shape (..., K), of counts up to each cut: shape (..., B, K)."""
    up_to = np.moveaxis(column[place], -2, -1)
    return np.diff(up_to, axis=-1, prepend=0)
