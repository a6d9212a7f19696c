"""A whole trace through tiers of any policy and mode, request by request.

Policies that are no stacks need a replay for each size; it goes over segments or runs of blocks, never over blocks,
unless the policy tells single blocks apart. LRU with exclusive or write-through tiers needs no replay: there the
answer comes from `kvarray.reuse.tier_curve`. Either way it is what stepping `kvarray.TieredCache` gives.

Three kinds of step:

===========  ===============================================================================================
``request``  a request is one atomic step: all its blocks are looked up, then used, its tail before its head, so
             that tails leave before heads; a hit is its leading part that is there
``block``    its blocks are looked up together, then used one by one, head first, each making its own room; a
             hit is the leading part that was there at the lookup. So does a cache that knows no prefixes
``stream``   each block is a step of its own, head first, known by its id alone; a hit is any that is there
===========  ===============================================================================================

LFU against LRU on the same trace, at three sizes: counting uses keeps what is popular in a small cache, and fills a
large one with what was popular once; ageing the counts mends that.

>>> from kvarray.trace import builtin_trace
>>> trace = builtin_trace()
>>> for policy in ("lru", "lfu", "lfu_aged"):
...     print(policy, step_policy(trace, policy, [500, 2_000, 8_000]).hit_rate.round(3))
lru [0.245 0.571 0.811]
lfu [0.272 0.444 0.517]
lfu_aged [0.273 0.588 0.8  ]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvarray.arrays import Ids, Seconds, as_floats, as_int, as_ints, as_positive_int, check_same_length, refuse
from kvarray.policies import Policy, order_maker
from kvarray.ragged import lengths_to_offsets
from kvarray.reuse import TierCurve, TierFlows, tier_curve
from kvarray.reuse.curve import first_counted
from kvarray.stepping.quick import FifoPaths, fifo_requests, random_requests
from kvarray.stepping.segments import Segments, segments, single_blocks
from kvarray.tier.cascade import WRITE_MODES, Cascade
from kvarray.tier.spec import ADMISSIONS
from kvarray.trace import Trace

__all__ = ["STEPS", "step_policy", "step_requests"]

_Item = TypeVar("_Item", bound=np.generic)
_MOVES = ("created", "up", "down", "dropped")

STEPS = ("request", "block", "stream")
"""What is one step."""


@dataclass(frozen=True)
class _Settings:
    """How the tiers work, checked."""

    policy: str | Policy
    step: str
    write_mode: str
    write_at: int
    promote_at: int | None
    admission: tuple[str, ...]
    min_tokens: tuple[int, ...]
    smaller_below: bool
    seed: Any

    @property
    def admits_all(self) -> bool:
        return set(self.admission) == {"always"} and not any(self.min_tokens)

    @property
    def is_quick(self) -> bool:
        """Whether there is one tier and its policy needs no queues: see `kvarray.stepping.quick`."""
        is_counted = self.policy == "fifo" and self.step != "request"
        is_drawn = self.policy == "random" and self.step == "request"
        return (is_counted or is_drawn) and len(self.admission) == 1 and self.admits_all

    @property
    def is_closed_form(self) -> bool:
        """Whether the tiers are a recency list cut at some places."""
        has_stack = self.write_mode in ("exclusive", "write_through") and self.promote_at == 1
        return self.policy == "lru" and self.step != "block" and has_stack and self.admits_all

    def check_sizes(self, sizes: Ids) -> None:
        """Refuse write-through tiers that are smaller than one above them, unless that is allowed."""
        if self.write_mode == "write_through" and not self.smaller_below:
            shrinks = np.zeros(sizes.shape, dtype=np.bool_)
            np.less(sizes[:, 1:], sizes[:, :-1], out=shrinks[:, 1:])
            refuse("capacities", "not fall from tier to tier under write-through (smaller_below=True)", shrinks, sizes)


@dataclass(frozen=True, eq=False)
class _Replay:
    """A trace made ready for replays of any size: paths as segments, and what each lacks of full blocks."""

    settings: _Settings
    paths: Segments
    block_size: int
    counts: Ids
    missing: Ids
    tokens: Ids | None
    weights: Seconds | None

    @classmethod
    def of(
        cls,
        trace: Trace,
        num_tiers: int,
        *,
        policy: str | Policy,
        step: str = "request",
        write_mode: str = "exclusive",
        write_at: int = 2,
        promote_at: int | None = 1,
        admission: str | Sequence[str] = "always",
        min_tokens: int | Sequence[int] = 0,
        smaller_below: bool = False,
        weights: ArrayLike | None = None,
        rng: Any = None,
    ) -> "_Replay":
        """Check the settings and cut the paths."""
        for name, value, known in (("step", step, STEPS), ("write_mode", write_mode, WRITE_MODES)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}: got {value!r}")
        admissions = (admission,) * num_tiers if isinstance(admission, str) else tuple(admission)
        least = np.broadcast_to(np.asarray(min_tokens), num_tiers) if np.ndim(min_tokens) == 0 else min_tokens
        settings = _Settings(
            policy=policy,
            step=step,
            write_mode=write_mode,
            write_at=as_positive_int("write_at", write_at),
            promote_at=None if promote_at is None else as_positive_int("promote_at", promote_at),
            admission=admissions,
            min_tokens=tuple(as_ints("min_tokens", least, low=0).tolist()),
            smaller_below=smaller_below,
            seed=None if rng is None else as_int("rng", rng, low=0),
        )
        order = order_maker(policy, rng=settings.seed)(1)
        for name, given in (("admission", settings.admission), ("min_tokens", settings.min_tokens)):
            if len(given) != num_tiers:
                raise ValueError(f"{name} must be one, or one for each of {num_tiers} tiers: got {len(given)}")
        for word in settings.admission:
            if word not in ADMISSIONS:
                raise ValueError(f"admission must be one of {', '.join(ADMISSIONS)}: got {word!r}")

        ids = trace.stream_ids if step == "stream" else trace.prefix_ids
        tokens = _of_first_use(ids, trace.block_tokens) if any(settings.min_tokens) else None
        worth = _of_first_use(ids, _weights(trace, weights)) if policy == "gdsf" else None
        is_chained = trace.num_distinct == trace.num_distinct_blocks  # each id stands for one whole prefix
        if order.single_blocks or (step != "request" and not (settings.is_quick and is_chained)):
            paths = single_blocks(trace, by_prefix=step != "stream")
        else:
            paths = segments(trace, alike=[column for column in (tokens, worth) if column is not None])
        assert trace.block_size is not None  # the trace has block ids
        return cls(
            settings=settings,
            paths=paths,
            block_size=trace.block_size,
            counts=trace.block_counts,
            missing=np.where(trace.block_counts > 0, trace.block_size - trace.last_block_tokens, 0),
            tokens=None if tokens is None else _by_row(paths, tokens),
            weights=None if worth is None else _by_row(paths, worth),
        )

    @cached_property
    def _paths(self) -> list[list[tuple[int, int]]]:
        """The path of each request as (row, blocks)."""
        steps = list(zip(self.paths.row.tolist(), self.paths.blocks.tolist(), strict=True))
        return [steps[start:stop] for start, stop in pairwise(self.paths.offsets.tolist())]

    def run(self, sizes: list[int], cuts: list[int]) -> Ids:
        """Return what tiers of one size count between each two of the requests `cuts`, (len(cuts) - 1, 7, K)."""
        if self.settings.is_quick:
            return self._run_quick(sizes[0], cuts)
        settings = self.settings
        make = order_maker(settings.policy, rng=settings.seed)
        cascade = Cascade(
            [make(size) for size in sizes],
            write_mode=settings.write_mode,
            write_at=settings.write_at,
            promote_at=settings.promote_at,
            min_tokens=settings.min_tokens,
            by_frequency=[word == "frequency" for word in settings.admission],
            tokens=None if self.tokens is None else self.tokens.tolist(),
            weights=None if self.weights is None else self.weights.tolist(),
        )
        step = {"request": _step_request, "block": _step_block, "stream": _step_stream}[settings.step]
        lacking = [0] * len(sizes)  # tokens that hits lack of full blocks, by tier
        missing = self.missing.tolist()
        totals = []
        begin = 0
        for cut in cuts:
            for path, short in zip(self._paths[begin:cut], missing[begin:cut], strict=True):
                last = step(cascade, path)
                if short and last < len(sizes):
                    lacking[last] += short
            begin = cut
            flows = cascade.flows
            hits = flows.hits.copy()
            tokens = [hit * self.block_size - short for hit, short in zip(hits, lacking, strict=True)]
            accesses = [flows.accesses] * len(sizes)
            totals.append([accesses, hits, *(getattr(flows, name).copy() for name in _MOVES), tokens])
        return np.diff(np.array(totals, dtype=np.int64), axis=0).astype(np.int64)

    def _run_quick(self, capacity: int, cuts: list[int]) -> Ids:
        """Return the same for the one tier of a policy that needs no queues."""
        if self.settings.policy == "fifo":
            replay = fifo_requests(self._fifo_paths, capacity, by_lookup=self.settings.step == "block")
        else:
            replay = random_requests(self.paths, capacity, np.random.default_rng(self.settings.seed))
        tokens = replay.hits * self.block_size - np.where(replay.hits_last, self.missing, 0)
        nothing = np.zeros_like(tokens)
        columns = [self.counts, replay.hits, replay.created, nothing, nothing, replay.dropped, tokens]
        sums = np.array([lengths_to_offsets(column)[cuts] for column in columns])  # [7, cuts]
        return np.diff(sums, axis=1).T[:, :, None]

    @cached_property
    def _fifo_paths(self) -> FifoPaths:
        return FifoPaths.of(self.paths)


def _step_request(cascade: Cascade, path: list[tuple[int, int]]) -> int:
    """Take one atomic step and return the tier that served the path's last block, if all of it hit."""
    cells = cascade.use(path)
    outside = cascade.tiers
    return cells[-1][3] if cells and all(cell[3] != outside for cell in cells) else outside


def _step_stream(cascade: Cascade, path: list[tuple[int, int]]) -> int:
    """Take one step for each block and return the tier that served the last one."""
    last = cascade.tiers
    for block in path:
        last = cascade.use([block])[0][3]
    return last


def _step_block(cascade: Cascade, path: list[tuple[int, int]]) -> int:
    """Look all blocks up, then take one step for each; count and return as for one atomic step."""
    flows = cascade.flows
    hits = flows.hits.copy()
    last = -1
    for row, _ in path:
        found = cascade.find(row)
        last = cascade.tiers if found is None else found[0]
        if found is None:
            break
        hits[last] += 1
    _step_stream(cascade, path)
    flows.hits = hits
    return last


def _as_sizes(capacities: ArrayLike) -> Ids:
    """Return configurations as an array of shape (C, K)."""
    array = np.asarray(capacities)
    if array.ndim not in (1, 2) or array.shape[-1:] == (0,):
        raise ValueError(f"capacities must have shape (C,) or (C, K): got {array.shape}")
    sizes = as_ints("capacities", array.ravel(), low=1).reshape(array.shape)
    return sizes[:, None] if array.ndim == 1 else sizes


def _curve(trace: Trace, settings: _Settings, window: float) -> TierCurve:
    return tier_curve(
        trace,
        write_mode=settings.write_mode,
        step=settings.step,
        window=window,
        smaller_below=settings.smaller_below,
    )


def _weights(trace: Trace, weights: ArrayLike | None) -> Seconds:
    """Return what each reference's block is worth for its room."""
    if weights is None:
        return trace.block_tokens / max(trace.block_size or 0, 1)
    given = as_floats("weights", weights, low=0.0, open_low=True)
    check_same_length(weights=given, block_ids=trace.block_ids)
    return given


def _of_first_use(ids: Ids, column: NDArray[_Item]) -> NDArray[_Item]:
    """Return, for each reference, a column's value at the first use of its block."""
    first = np.empty(int(ids.max(initial=-1)) + 1, dtype=column.dtype)
    first[ids[::-1]] = column[::-1]  # the last assignment counts
    return first[ids]


def _by_row(paths: Segments, column: NDArray[_Item]) -> NDArray[_Item]:
    """Return the value that a column has for each row, whose blocks are alike in it."""
    values = np.empty(paths.num_rows, dtype=column.dtype)
    values[paths.row] = column[paths.first]
    return values


def _as_flows(counts: Ids) -> TierFlows:
    """Return counts of shape (..., 7, K) as flows."""
    accesses, hits, created, up, down, dropped, tokens = np.moveaxis(counts, -2, 0)
    return TierFlows(accesses[..., 0], hits, created, up, down, dropped, tokens)


def _on_processes(replay: _Replay, sizes: list[list[int]], cuts: list[int], processes: int) -> list[Ids]:
    """Run configurations on several processes, each of which gets the trace once."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(
        min(processes, len(sizes)), mp_context=get_context("spawn"), initializer=_take_over, initargs=(replay, cuts)
    ) as pool:
        return list(pool.map(_run_here, sizes))


_here: list[tuple[_Replay, list[int]]] = []  # what a worker process was started with


def _take_over(replay: _Replay, cuts: list[int]) -> None:
    _here[:] = [(replay, cuts)]


def _run_here(sizes: list[int]) -> Ids:
    replay, cuts = _here[0]
    return replay.run(sizes, cuts)


def step_policy(
    trace: Trace,
    policy: str | Policy,
    capacities: ArrayLike,
    *,
    step: str = "request",
    window: float = 0.0,
    write_mode: str = "exclusive",
    write_at: int = 2,
    promote_at: int | None = 1,
    admission: str | Sequence[str] = "always",
    min_tokens: int | Sequence[int] = 0,
    smaller_below: bool = False,
    weights: ArrayLike | None = None,
    rng: Any = None,
    processes: int = 1,
) -> TierFlows:
    """Return what tiers of some sizes serve and move under a policy, over a whole trace.

    Parameters
    ----------
    trace : Trace
        With block ids.
    policy : str or callable
        A name out of `kvarray.policies.ORDERS`, or a key function; the order of every tier.
    capacities : array_like of int, shape (C,) or (C, K)
        Blocks of the one tier, or of each tier, ``>= 1``, in each of C configurations.
    step : {"request", "block", "stream"}, optional
        What is one step, see the head of this module.
    window : float, optional
        Count only the requests from ``floor(window * num_requests)`` on; the earlier ones warm the tiers.
    write_mode, write_at, promote_at, smaller_below : optional
        As in `kvarray.TieredCache`.
    admission, min_tokens : optional
        As in `kvarray.TierSpec`: one for all tiers, or one for each.
    weights : array_like of float, shape (N,), optional
        Cost over size of each block, ``> 0``, for the policy ``"gdsf"``. That of a block's first use counts. By default
        the share of a full block that it fills, since a partial one saves less in the same room.
    rng : int, optional
        Seed of the policy ``"random"``, required there; each configuration starts from it.
    processes : int, optional
        Work on this many configurations at a time, each in a process started afresh (a script that asks for this
        needs its ``if __name__ == "__main__"``).

    Returns
    -------
    TierFlows
        Columns of shape (C, K); K is 1 where capacities are one number each.

    Raises
    ------
    TraceError
        If the trace has no block ids.
    TypeError, ValueError
        If an argument is malformed, or a policy or mode unknown.

    Notes
    -----
    Snapshot law: each configuration is by itself. A Python loop over the segments of all requests for each; FIFO
    with steps of one block keeps one number a segment.

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)
    >>> step_policy(trace, "lfu", [2, 3]).hits.sum(axis=-1)
    array([4, 4])
    >>> step_policy(trace, "fifo", [3], step="block").hit_tokens
    array([[32]])
    """
    sizes = _as_sizes(capacities)
    first = first_counted(trace, window)
    replay = _Replay.of(
        trace,
        sizes.shape[1],
        policy=policy,
        step=step,
        write_mode=write_mode,
        write_at=write_at,
        promote_at=promote_at,
        admission=admission,
        min_tokens=min_tokens,
        smaller_below=smaller_below,
        weights=weights,
        rng=rng,
    )
    replay.settings.check_sizes(sizes)
    processes = as_positive_int("processes", processes)
    if replay.settings.is_closed_form:
        return _curve(trace, replay.settings, window).flows(sizes)
    cuts = [first, trace.num_requests]
    if processes == 1 or len(sizes) <= 1:
        counts = [replay.run(row, cuts) for row in sizes.tolist()]
    else:
        counts = _on_processes(replay, sizes.tolist(), cuts, processes)
    return _as_flows(np.array(counts, dtype=np.int64).reshape(len(sizes), 7, sizes.shape[1]))


def step_requests(
    trace: Trace, policy: str | Policy, sizes: ArrayLike, *, window: float = 0.0, **settings: Any
) -> TierFlows:
    """Return what tiers of one size serve and move for each request.

    Parameters
    ----------
    trace : Trace
        With block ids.
    policy : str or callable
        As in `step_policy`.
    sizes : array_like of int, shape (K,)
        Blocks of each tier.
    window : float, optional
        Leave out the requests before ``floor(window * num_requests)``.
    **settings
        As in `step_policy`.

    Returns
    -------
    TierFlows
        Columns of shape (B, K); `TierFlows.cumulative` makes running totals of them.

    Raises
    ------
    TraceError, TypeError, ValueError
        As `step_policy`.

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)
    >>> step_requests(trace, "sieve", [2]).hits[:, 0]
    array([0, 2, 2])
    """
    tiers = as_ints("sizes", sizes, low=1)
    first = first_counted(trace, window)
    replay = _Replay.of(trace, len(tiers), policy=policy, **settings)
    replay.settings.check_sizes(tiers[None])
    if replay.settings.is_closed_form:
        return _curve(trace, replay.settings, window).request_flows(tiers)
    cuts = list(range(first, trace.num_requests + 1))
    counts = np.array(replay.run(tiers.tolist(), cuts), dtype=np.int64)
    return _as_flows(counts.reshape(len(cuts) - 1, 7, len(tiers)))
