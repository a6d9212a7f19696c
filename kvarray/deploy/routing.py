"""Which replica serves each request.

=================  ======================================================================================
routing            a request goes to
=================  ======================================================================================
``round_robin``    replica i mod R, i being its number
``session``        the replica of its session; sessions are dealt in order of their first request
``prefix_hash``    the replica that the hash of its first few blocks names
``least_loaded``   the replica with the fewest requests in flight
``prefix_aware``   the replica with the lowest cost: overlap weight x blocks to prefill + blocks decoding
=================  ======================================================================================

The lowest replica wins a tie. The last two look at the state of all replicas when a request arrives: their tiers, and
the requests in flight there. A request is in flight from its arrival until its last token, and so long its blocks
count as decoding, as in Dynamo's router, whose cost function this is. Blocks cached in any tier need no prefill.

Left out: what a router knows late or wrongly, requests that move to another replica, and, in what the router sees, the
way of KV to decode nodes. Dynamo can draw a replica at random by its cost; here the lowest wins.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Flags, Hashes, Ids, Seconds, as_amount, as_floats, as_real, check_broadcast, check_type
from kvarray.deploy.caches import Caches
from kvarray.deploy.deployment import Deployment
from kvarray.deploy.servers import Server
from kvarray.errors import OversizeError, TraceError
from kvarray.hashing import chain_hashes
from kvarray.ragged import lengths_to_offsets, take_rows
from kvarray.reuse.curve import first_counted
from kvarray.trace import Trace

__all__ = ["Routed", "check_fit", "prefix_aware_costs", "route"]


@dataclass(frozen=True, eq=False)
class Routed:
    """The requests of a trace, replica after replica.

    ==========  =====  ========  ===========================================================================
    column      dtype  shape     meaning
    ==========  =====  ========  ===========================================================================
    `replica`   int64  (B,)      where each request of the trace runs
    `order`     int64  (B,)      the requests replica after replica, each in order of arrival
    `offsets`   int64  (R + 1,)  replica r serves ``order[offsets[r]:offsets[r + 1]]``
    ==========  =====  ========  ===========================================================================

    Attributes
    ----------
    trace : Trace
        In blocks of the deployment's size.
    source : Trace
        As it was given.
    rate_scale : float
        By how much faster than in the trace requests arrive.
    window : float
        Share of the requests that is not counted.

    The properties are columns in the order of `order`.
    """

    trace: Trace
    source: Trace
    replica: Ids
    order: Ids
    offsets: Ids
    rate_scale: float = 1.0
    window: float = 0.0

    @property
    def num_replicas(self) -> int:
        """Number of replicas, R; some may serve nothing."""
        return len(self.offsets) - 1

    @property
    def block_size(self) -> int:
        """Tokens of a full block."""
        assert self.trace.block_size is not None  # the trace has block ids
        return self.trace.block_size

    @cached_property
    def arrival_s(self) -> Seconds:
        """Arrival in seconds after the first request of the trace, float64, shape (B,)."""
        arrival = self.trace.arrival_s
        since: Seconds = (arrival - arrival[:1]) / self.rate_scale
        return since[self.order]

    @cached_property
    def input_tokens(self) -> Ids:
        """Tokens of the prompts, shape (B,)."""
        return self.trace.input_tokens[self.order]

    @cached_property
    def output_tokens(self) -> Ids:
        """Tokens of the answers, shape (B,)."""
        return self.trace.output_tokens[self.order]

    @cached_property
    def hashed_tokens(self) -> Ids:
        """Tokens of the prompts that blocks cover, shape (B,)."""
        return (self.trace.input_tokens - self.trace.unhashed_tokens)[self.order]

    @cached_property
    def is_counted(self) -> Flags:
        """Whether requests count, or only warm the tiers, shape (B,)."""
        return self.order >= first_counted(self.trace, self.window)

    def part(self, replica: int) -> Trace:
        """Return the requests of one replica as a trace whose blocks are named by their prefixes."""
        if self.num_replicas == 1:
            return self.trace
        rows = self.order[self.offsets[replica] : self.offsets[replica + 1]]
        ids, offsets = take_rows(self.trace.prefix_ids, self.trace.offsets, rows)
        return Trace(
            ids,
            offsets,
            block_size=self.trace.block_size,
            input_tokens=self.trace.input_tokens[rows],
            arrival_s=self.trace.arrival_s[rows],
        )

    @cached_property
    def joined(self) -> Trace:
        """The requests in the order of `order`, blocks named so that no two replicas share one."""
        if self.num_replicas == 1:
            return self.trace
        ids, offsets = take_rows(self.trace.prefix_ids, self.trace.offsets, self.order)
        blocks = np.diff(offsets[self.offsets])  # of each replica
        ids = ids + np.repeat(np.arange(self.num_replicas) * self.trace.prefix_limit, blocks)
        tokens = self.trace.input_tokens[self.order]
        return Trace(ids, offsets, block_size=self.trace.block_size, input_tokens=tokens)


def route(trace: Trace, deployment: Deployment, *, rate_scale: float = 1.0) -> Routed:
    """Return which replica of a deployment serves each request of a trace.

    Parameters
    ----------
    trace : Trace
        With block ids; with sessions or arrivals where the routing looks at them.
    deployment : Deployment
    rate_scale : float, optional
        By how much faster than in the trace requests arrive, ``> 0``.

    Returns
    -------
    Routed

    Raises
    ------
    TraceError
        If the trace has no block ids, or lacks the sessions or arrivals that it needs.
    OversizeError
        If a request does not fit the first tier, and `allow_oversize` is not set.
    ValueError
        If the blocks of the deployment are no multiple of the trace's.

    Notes
    -----
    O(B) where routing looks at no state, and O(N) once for *prefix_hash*. Otherwise a loop over requests, each looked
    up on every replica: O(requests x segments of a path x replicas).

    Examples
    --------
    >>> from kvarray.economics.latency import PrefillTime
    >>> from kvarray.tier import TierSpec
    >>> trace = Trace([1, 2, 1, 3, 1, 2], [0, 2, 4, 6], block_size=16, arrival_s=[0.0, 1.0, 2.0])
    >>> deployment = Deployment(
    ...     (TierSpec("gpu", blocks=8),), bytes_per_token=1, prefill=PrefillTime(0.0, 1.0, 0.0), replicas=2
    ... )
    >>> route(trace, deployment).replica
    array([0, 1, 0])
    """
    check_type("trace", trace, Trace)
    check_type("deployment", deployment, Deployment)
    source = trace
    scale = as_amount("rate_scale", rate_scale, low=0.0, open_low=True)
    if deployment.block_size is not None and deployment.block_size != trace.block_size:
        trace = trace.reblock(deployment.block_size)
    if not trace.has_blocks:
        raise TraceError("the trace has no block ids (lengths and arrivals alone): nothing can be cached")
    check_fit(trace, deployment)
    looks_at_state = deployment.replicas > 1 and deployment.routing in ("least_loaded", "prefix_aware")
    arrival = trace.arrival_s
    if (deployment.queueing or looks_at_state) and trace.num_requests > 1 and arrival[0] == arrival[-1]:
        raise TraceError(
            f"the trace has no arrivals (all {trace.num_requests} requests at {arrival[0]:g} s): "
            "give queueing=False and a routing that does not look at state, or arrivals"
        )

    requests = np.arange(trace.num_requests)
    if deployment.replicas == 1:
        replica = np.zeros_like(requests)
    elif looks_at_state:
        replica = _by_state(trace, deployment, (arrival - arrival[:1]) / scale)
    elif deployment.routing == "round_robin":
        replica = requests % deployment.replicas
    elif deployment.routing == "session":
        replica = _by_session(trace) % deployment.replicas
    else:
        hashes = _prefix_hashes(trace, deployment.prefix_blocks)
        replica = (hashes % np.uint64(deployment.replicas)).astype(np.int64)
    order = np.argsort(replica, kind="stable") if deployment.replicas > 1 else requests
    offsets = lengths_to_offsets(np.bincount(replica, minlength=deployment.replicas))
    return Routed(trace, source, replica, order, offsets, scale, deployment.window)


def prefix_aware_costs(
    request_blocks: ArrayLike, cached_blocks: ArrayLike, *, decode_blocks: ArrayLike, overlap_weight: float
) -> Seconds:
    """Return what a prefix-aware router takes each replica to cost; it chooses the first of the lowest.

    Parameters
    ----------
    request_blocks : array_like of int, shape (...)
        Blocks of the prompt.
    cached_blocks : array_like of int, shape (...)
        Leading ones of them that each replica has.
    decode_blocks : array_like of int, shape (...)
        Blocks of the requests in flight on each replica.
    overlap_weight : float
        What a block to prefill weighs against one of these.

    Returns
    -------
    ndarray of float64
        ``overlap_weight * (request_blocks - cached_blocks) + decode_blocks``.

    References
    ----------
    .. [1] NVIDIA Dynamo documentation, "KV router", cost function.

    Examples
    --------
    >>> costs = prefix_aware_costs(10, [2, 5, 8], decode_blocks=[10, 5, 9], overlap_weight=1.0)
    >>> costs, int(costs.argmin())
    (array([18., 10., 11.]), 1)
    """
    request = as_floats("request_blocks", request_blocks, low=0.0)
    cached, decode = as_floats("cached_blocks", cached_blocks, low=0.0), as_floats("decode_blocks", decode_blocks)
    check_broadcast("request_blocks, cached_blocks and decode_blocks", request.shape, cached.shape, decode.shape)
    return as_real("overlap_weight", overlap_weight, low=0.0) * (request - cached) + decode


def check_fit(trace: Trace, deployment: Deployment) -> None:
    """Refuse a trace whose largest request does not fit the first tier of a replica, or whose bytes fit no total."""
    assert trace.block_size is not None  # the trace has block ids
    moves = trace.num_blocks * (len(deployment.tiers) + 1)  # a reference crosses each link once, if at all
    if moves * trace.block_size * deployment.bytes_per_token >= 2**63:
        raise ValueError(
            "bytes_per_token must be small enough for the bytes of all blocks moved to fit 64 bits: "
            f"got {deployment.bytes_per_token} for {trace.num_blocks} blocks of {trace.block_size} tokens"
        )
    room = int(deployment.tier_blocks(trace.block_size)[0])
    if deployment.allow_oversize or not trace.num_requests:
        return
    tokens = trace.input_tokens if deployment.separation is not None else trace.input_tokens + trace.output_tokens
    largest = int(tokens.argmax())
    needed = -(-int(tokens[largest]) // trace.block_size)
    if needed > room:
        raise OversizeError(
            f"tier {deployment.tiers[0].name!r} must hold the largest request: request {largest} has "
            f"{tokens[largest]} tokens, {needed} blocks of {trace.block_size}, and the tier {room} blocks "
            "(allow_oversize=True lets it pass)",
            requested=needed,
            available=room,
        )


def _by_session(trace: Trace) -> Ids:
    """Return the number of each request's session, in order of their first requests."""
    if trace.session is None:
        raise TraceError("the trace has no sessions, which routing by session needs")
    _, first, session = np.unique(trace.session, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[session]


def _prefix_hashes(trace: Trace, prefix_blocks: int) -> Hashes:
    """Return the hash of the first blocks of each request: of all it has, where these are fewer."""
    lengths = np.minimum(trace.block_counts, prefix_blocks)
    last = trace.offsets[:-1] + lengths - 1
    ids = np.where(lengths > 0, trace.prefix_ids[np.maximum(last, 0)] + 1 if trace.num_blocks else 0, 0)
    return chain_hashes(ids.astype(np.uint64), np.arange(trace.num_requests + 1))


def _by_state(trace: Trace, deployment: Deployment, arrival_s: Seconds) -> Ids:
    """Route requests one by one, each by the state that those before it left."""
    caches = Caches(trace, deployment)
    servers = [Server(trace, deployment, caches.new()) for _ in range(deployment.replicas)]
    weight = float(deployment.overlap_weight)
    chosen = []
    by_load = deployment.routing == "least_loaded"
    for request, now in enumerate(arrival_s.tolist()):
        path = caches.paths[request]
        costs: list[float] = []
        blocks = 0 if by_load else sum([count for _, count in path])
        for server in servers:
            server.finish_until(now)
            if by_load:
                costs.append(len(server.in_flight))
            else:
                costs.append(weight * (blocks - server.tiers.cached(path)) + server.blocks_in_flight)
        replica = costs.index(min(costs))
        servers[replica].take(request, path, now)
        chosen.append(replica)
    return np.array(chosen, dtype=np.int64)
