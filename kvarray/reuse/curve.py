"""`HitCurve`: what every capacity, or every time to live, would have hit.

A curve is made of the runs of a trace (`distances`) and the totals to divide by. Asking it costs a binary search per
capacity and never a pass over the trace; the curve is exact for each capacity, and its rates carry their integers.

What counts as a hit, and what it is divided by:

================  ==========================================  ===========================================
unit              hits                                        total
================  ==========================================  ===========================================
``block``         hit blocks; a partial last block is one     blocks named by the requests
``token``         tokens of hit blocks                        input tokens, unhashed ones included
``full_block``    hit blocks that are full                    ``input_tokens // block_size``, summed
``request``       requests all of whose blocks hit            requests
``mean_token``    the token hit rate of each request          mean over requests that have tokens
``mean_block``    the block hit rate of each request          mean over requests that have blocks
================  ==========================================  ===========================================

Not modelled here: serving engines never reuse a partial block, and recompute the last token of a prompt that is all
cached; `full_block` comes nearest to what vLLM reports.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvarray.arrays import Flags, Ids, Seconds, as_floats, as_ints, as_real
from kvarray.reuse.distances import Runs, runs_of, stream_runs
from kvarray.trace import Trace

__all__ = ["UNITS", "HitCurve", "first_counted", "hit_curve", "stream_curve", "ttl_curve"]

UNITS = ("token", "block", "full_block", "request", "mean_token", "mean_block")
"""What a hit rate can count."""


@dataclass(frozen=True, eq=False)
class _Counted:
    """The requests of a trace that a curve counts: those from `first` on."""

    first: int
    block_size: int
    block_counts: Ids
    last_tokens: Ids
    input_tokens: Ids

    @classmethod
    def of(cls, trace: Trace, window: float) -> "_Counted":
        first = first_counted(trace, window)
        assert trace.block_size is not None  # the trace has block ids
        return cls(
            first=first,
            block_size=trace.block_size,
            block_counts=trace.block_counts[first:],
            last_tokens=trace.last_block_tokens[first:],
            input_tokens=trace.input_tokens[first:],
        )


def first_counted(trace: Trace, window: float) -> int:
    """Return the first request that a window counts: ``floor(window * num_requests)``.

    Raises
    ------
    ValueError
        Unless ``0 <= window < 1``.

    Examples
    --------
    >>> first_counted(Trace([7, 8, 9], [0, 1, 2, 3], block_size=16), 0.5)
    1
    """
    window = as_real("window", window, low=0.0)
    if window >= 1.0:
        raise ValueError(f"window must be less than 1, the share of requests that only warm the cache: got {window}")
    return int(np.floor(trace.num_requests * window))


class _Steps:
    """The weight of all items whose threshold is reached, for any level: ``sum(weight[threshold <= level])``."""

    def __init__(self, thresholds: NDArray[Any], weights: Ids) -> None:
        order = np.argsort(thresholds, kind="stable")
        self.thresholds = thresholds[order]
        self.reached: Ids = np.concatenate([[0], np.cumsum(weights[order])])

    def __call__(self, level: NDArray[Any]) -> Ids:
        return self.reached.take(np.searchsorted(self.thresholds, level, side="right"))


class _Ramps:
    """Items that are reached one by one: ``sum(clip(level - first, 0, length))``."""

    def __init__(self, first: Ids, length: Ids) -> None:
        self.begin, self.end = np.sort(first), np.sort(first + length)
        self.begin_sums, self.end_sums = (np.concatenate([[0], np.cumsum(x)]) for x in (self.begin, self.end))

    def __call__(self, level: NDArray[Any]) -> Ids:
        level = np.minimum(level, self.end.max(initial=0))  # all are reached there, and no product overflows
        begun, ended = np.searchsorted(self.begin, level), np.searchsorted(self.end, level)
        since_begin: Ids = level * begun - self.begin_sums[begun]
        since_end: Ids = level * ended - self.end_sums[ended]
        return since_begin - since_end


def _to_the_microsecond(seconds: Seconds) -> Seconds:
    """Round times so that those written alike are equal: as floats, 0.4 - 0.1 is more than 0.3."""
    with np.errstate(over="ignore"):  # times beyond 1e302 s become infinite
        return np.round(seconds, 6)


class HitCurve:
    """Hits of every capacity at once; made by `hit_curve`, `stream_curve` and `ttl_curve`.

    Where the text says *level*, read a capacity in blocks, or for `ttl_curve` a time to live in seconds. Levels may
    be an array of any shape or one number, and answers have its shape.

    Attributes
    ----------
    axis : {"blocks", "seconds"}
        What a level is.
    num_distinct : int
        Distinct blocks of the whole trace: the capacity from which on nothing is evicted.
    totals : dict of str to int
        By unit, what the hits are divided by: blocks, input tokens, full blocks, requests; and ``hashed_token``, the
        tokens that blocks cover, without those never hashed.

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)
    >>> curve = hit_curve(trace)
    >>> curve.hit_blocks([1, 2, 3, 4])
    array([2, 4, 4, 5])
    >>> curve.hit_rate(4, unit="block")
    0.5555555555555556
    >>> curve.level_for(0.5, unit="block"), curve.ceiling(unit="block")
    (4, 0.5555555555555556)
    """

    def __init__(
        self,
        counted: _Counted,
        *,
        axis: str,
        request: Ids,
        length: Ids,
        first: NDArray[Any],
        holds_last: Flags,
        rises: bool,
        num_distinct: int,
    ) -> None:
        """Take the runs that can hit at all: run i hits ``clip(level - first + 1, 0, length)`` blocks if it `rises`.

        Otherwise it hits all its blocks from the level `first` on.
        """
        self.axis = axis
        self.num_distinct = num_distinct
        self._counted = counted
        self._request, self._length, self._first, self._rises = request, length, first, rises
        self._begins = np.searchsorted(request, np.arange(len(counted.block_counts) + 1))  # of each request's runs
        self._blocks: _Ramps | _Steps = _Ramps(first - 1, length) if rises else _Steps(first, length)

        # The last block of a request may be partial: it counts less than a block in tokens, from its own level on.
        self._last_request = request[holds_last]
        self._last_level = (first + length - 1 if rises else first)[holds_last]
        self._last_missing = counted.block_size - counted.last_tokens[self._last_request]
        self._missing = _Steps(self._last_level, self._last_missing)
        self._partial = _Steps(self._last_level, (self._last_missing > 0).astype(np.int64))
        self._whole = _Steps(*self._whole_requests())

        counts = counted.block_counts
        size = counted.block_size
        has_any = counts > 0
        self.totals = {
            "block": int(counts.sum()),
            "token": int(counted.input_tokens.sum()),
            "full_block": int((counted.input_tokens // size).sum()),
            "request": len(counts),
            "hashed_token": int((np.maximum(counts - 1, 0) * size + counted.last_tokens)[has_any].sum()),
        }

    def _whole_requests(self) -> tuple[NDArray[Any], Ids]:
        """Return the levels from which on requests hit with all their blocks, and how many requests at each."""
        if self._rises:  # the last block of a path is the last to hit
            return self._last_level, np.ones(len(self._last_level), dtype=np.int64)
        level = np.zeros(len(self._counted.block_counts), dtype=self._first.dtype)
        np.maximum.at(level, self._request, self._first)
        counts = self._counted.block_counts
        can_hit = (self._sum_by_request(self._length) == counts) & (counts > 0)
        return level[can_hit], np.ones(int(can_hit.sum()), dtype=np.int64)

    def _sum_by_request(self, values: Ids) -> Ids:
        """Return the sum of columns of the runs over each counted request, shape (..., B)."""
        running = np.zeros((*values.shape[:-1], values.shape[-1] + 1), dtype=np.int64)
        np.cumsum(values, axis=-1, out=running[..., 1:])
        return np.diff(running.take(self._begins, axis=-1))

    def _levels(self, levels: ArrayLike) -> NDArray[Any]:
        if self.axis == "seconds":
            return _to_the_microsecond(as_floats("ttl_s", levels, low=0.0, finite=False))
        array = np.asarray(levels)
        return as_ints("capacities", array.ravel(), low=0).reshape(array.shape)

    def hit_blocks(self, levels: ArrayLike) -> Ids:
        """Return the number of hit blocks at each level, int64."""
        return self._blocks(self._levels(levels))

    def hit_tokens(self, levels: ArrayLike) -> Ids:
        """Return the number of tokens of hit blocks at each level, int64."""
        at = self._levels(levels)
        return self._blocks(at) * self._counted.block_size - self._missing(at)

    def hit_full_blocks(self, levels: ArrayLike) -> Ids:
        """Return the number of hit blocks that are full at each level, int64."""
        at = self._levels(levels)
        return self._blocks(at) - self._partial(at)

    def whole_requests(self, levels: ArrayLike) -> Ids:
        """Return the number of requests all of whose blocks hit at each level, int64. A request has to have one."""
        return self._whole(self._levels(levels))

    def request_hit_blocks(self, levels: ArrayLike) -> Ids:
        """Return the hit blocks of each counted request, int64, shape (..., B) for levels of shape (...).

        O(M) for each level.
        """
        at = self._levels(levels)[..., None]
        if self._rises:
            hits = at - (self._first - 1)
            np.clip(hits, 0, self._length, out=hits)
        else:
            hits = np.where(self._first <= at, self._length, 0)
        return self._sum_by_request(hits)

    def request_hit_tokens(self, levels: ArrayLike) -> Ids:
        """Return the tokens of the hit blocks of each counted request; shapes and cost as of `request_hit_blocks`."""
        return self.tokens_of_blocks(self.request_hit_blocks(levels), levels)

    def tokens_of_blocks(self, hit_blocks: Ids, levels: ArrayLike) -> Ids:
        """Return the tokens of what `request_hit_blocks` gave for the same levels."""
        tokens = hit_blocks * self._counted.block_size
        has_hit = self._last_level <= self._levels(levels)[..., None]
        tokens[..., self._last_request] -= np.where(has_hit, self._last_missing, 0)
        return tokens

    def hit_rate(self, levels: ArrayLike, *, unit: str = "token") -> Any:
        """Return hits over total at each level.

        Parameters
        ----------
        levels : array_like
            Capacities in blocks, or times to live in seconds.
        unit : {"token", "block", "full_block", "request", "mean_token", "mean_block"}, optional
            What is counted; see the table at the head of this module.

        Returns
        -------
        float or ndarray of float64
            Of the shape of `levels`; 0 where there is nothing to divide by.

        Raises
        ------
        ValueError
            If the unit is unknown, or a level is negative.

        Notes
        -----
        O(log M) per level; the two means are O(M) per level.
        """
        if unit in ("mean_token", "mean_block"):
            at = self._levels(levels)
            rates = np.array([self._mean_rate(level, unit) for level in at.ravel()]).reshape(at.shape)
        else:
            rates = self.hits(levels, unit=unit) / max(self.totals[unit], 1)
        return float(rates) if np.ndim(rates) == 0 else rates

    def hits(self, levels: ArrayLike, *, unit: str = "token") -> Ids:
        """Return the hits at each level, int64, counted by a unit that has hits (the means have none).

        Raises
        ------
        ValueError
            If the unit is unknown or a mean.
        """
        counts = {
            "block": self.hit_blocks,
            "token": self.hit_tokens,
            "full_block": self.hit_full_blocks,
            "request": self.whole_requests,
        }
        if unit not in counts:
            raise ValueError(f"unit must be one of {', '.join(UNITS if unit not in UNITS else counts)}: got {unit!r}")
        return counts[unit](levels)

    def _mean_rate(self, level: float, unit: str) -> float:
        tokens = unit == "mean_token"
        hits = self.request_hit_tokens(level) if tokens else self.request_hit_blocks(level)
        totals = self._counted.input_tokens if tokens else self._counted.block_counts
        some = totals > 0
        return float((hits[some] / totals[some]).mean()) if some.any() else 0.0

    @property
    def highest_level(self) -> int | float:
        """The level from which on nothing more is gained."""
        last = self._first + self._length - 1 if self._rises else self._first
        highest: int | float = last.max(initial=0).item()
        return highest

    def ceiling(self, *, unit: str = "token") -> float:
        """Return the hit rate of an infinite cache, or of entries that never expire."""
        return float(self.hit_rate(self.highest_level, unit=unit))

    def level_for(self, rate: float, *, unit: str = "token") -> int | float:
        """Return the smallest capacity, or the shortest time to live, whose hit rate is at least `rate`.

        Parameters
        ----------
        rate : float
            Between 0 and the ceiling.
        unit : str, optional
            As in `hit_rate`.

        Raises
        ------
        ValueError
            If the rate is out of reach; the message gives the ceiling.
        """
        rate = as_real("rate", rate, low=0.0)
        ceiling = self.ceiling(unit=unit)
        if rate > ceiling:
            raise ValueError(f"rate must be at most the ceiling of the trace, {ceiling:.6g} by {unit}: got {rate:g}")
        if self.axis == "seconds":
            steps = np.unique(np.append(self._first, 0.0))
            return float(steps[_first_true(len(steps), lambda i: self.hit_rate(steps[i], unit=unit) >= rate)])
        return _first_true(int(self.highest_level) + 1, lambda level: self.hit_rate(level, unit=unit) >= rate)

    def level_for_share(self, share: float, *, unit: str = "token") -> int | float:
        """Return the smallest level that reaches a share, 0 to 1, of the ceiling.

        Raises
        ------
        ValueError
            If the share is not within 0 and 1.
        """
        share = as_real("share", share, low=0.0)
        if share > 1.0:
            raise ValueError(f"share must be at most 1: got {share:g}")
        return self.level_for(share * self.ceiling(unit=unit), unit=unit)


def _first_true(stop: int, holds: Callable[[int], bool]) -> int:
    """Return the first i of ``0 <= i < stop`` for which `holds`, which once true stays true; at most `stop` - 1."""
    low, high = 0, stop - 1
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def hit_curve(trace: Trace, *, window: float = 0.0, runs: Runs | None = None) -> HitCurve:
    """Return the hits of an LRU prefix cache of every capacity.

    Requests are atomic steps in file order: a request's hit is the longest resident prefix of its blocks, then all its
    blocks are used, tail first, and the cache is cut to its capacity.

    Parameters
    ----------
    trace : Trace
        With block ids.
    window : float, optional
        Count only the requests from ``floor(window * num_requests)`` on; the earlier ones warm the cache.
    runs : Runs, optional
        `prefix_runs` of the same trace, where they are there already.

    Returns
    -------
    HitCurve
        Over capacities in blocks.

    Raises
    ------
    TraceError
        If the trace has no block ids.
    ValueError
        If the window is not within 0 and 1.

    Notes
    -----
    O(N + M log M) once; see `distances`.

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)
    >>> hit_curve(trace, window=0.5).hit_blocks([1, 2, 3, 4])
    array([2, 4, 4, 5])
    """
    return _capacity_curve(trace, runs_of(trace, runs), window)


def stream_curve(trace: Trace, *, order: str = "head_first", window: float = 0.0) -> HitCurve:
    """Return the hits of a plain LRU cache over the stream of blocks, of every capacity.

    Every reference is a step of its own, and any resident block is a hit, whatever stands before it: what cache
    libraries count that know nothing of prefixes.

    Parameters
    ----------
    trace : Trace
        With block ids.
    order : {"head_first", "tail_first"}, optional
        Order in which a request's blocks are used.
    window : float, optional
        As in `hit_curve`.

    Returns
    -------
    HitCurve
        Over capacities in blocks.

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)
    >>> stream_curve(trace).hit_blocks([1, 2, 3, 4])
    array([0, 0, 4, 5])
    """
    return _capacity_curve(trace, stream_runs(trace, order=order), window)


def _capacity_curve(trace: Trace, runs: Runs, window: float) -> HitCurve:
    counted = _Counted.of(trace, window)
    wanted = runs.is_hot & (runs.request >= counted.first)
    return HitCurve(
        counted,
        axis="blocks",
        request=runs.request[wanted] - counted.first,
        length=runs.length[wanted],
        first=runs.distance[wanted] + 1,
        holds_last=runs.holds_last[wanted],
        rises=runs.rises,
        num_distinct=runs.num_distinct,
    )


def ttl_curve(trace: Trace, *, window: float = 0.0, runs: Runs | None = None) -> HitCurve:
    """Return the hits of a cache of any size whose entries live for a given time, for every such time.

    A block hits when the request that used it last arrived at most the time to live before; a use renews its lease.
    Deeper blocks were never used later, so the hits of a request are a prefix here too. Times are compared to the
    microsecond.

    Parameters
    ----------
    trace : Trace
        With block ids and arrivals.
    window, runs
        As in `hit_curve`.

    Returns
    -------
    HitCurve
        Over times to live in seconds.

    Examples
    --------
    >>> trace = Trace([1, 2, 1, 2], [0, 2, 4], block_size=16, arrival_s=[0.0, 60.0])
    >>> ttl_curve(trace).hit_blocks([59.9, 60.0])
    array([0, 2])
    """
    runs = runs_of(trace, runs)
    counted = _Counted.of(trace, window)
    wanted = runs.is_hot & (runs.request >= counted.first)
    request = runs.request[wanted]
    return HitCurve(
        counted,
        axis="seconds",
        request=request - counted.first,
        length=runs.length[wanted],
        first=_to_the_microsecond(trace.arrival_s[request] - trace.arrival_s[runs.previous[wanted]]),
        holds_last=runs.holds_last[wanted],
        rises=False,
        num_distinct=runs.num_distinct,
    )
