"""The result every schedule and queue gives: when each job was ready, started and finished, and on what.

Job axes come last. Whatever stands before them are worlds of their own, such as a thousand bandwidths; they broadcast
and never meet.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import Flags, Ids, Seconds
from kvarray.errors import InvariantError

__all__ = ["Timeline"]

_ROUNDING = 1e-9  # of the longest time, what the sums of a schedule may lose


@dataclass(frozen=True, eq=False)
class Timeline:
    """When jobs were ready, started and finished, and which resource did them.

    ============  =======  ====  ==========================================================================
    column        dtype    unit  meaning
    ============  =======  ====  ==========================================================================
    `ready_s`     float64  s     time from which the job could start
    `start_s`     float64  s     time at which it started
    `finish_s`    float64  s     time at which it was done
    `work_s`      float64  s     time it takes with a whole resource for itself
    `resource`    int64    -     which resource did it, ``0 <= resource < num_resources``
    ============  =======  ====  ==========================================================================

    All columns have the shape ``[..., N]`` of `finish_s`; some are read-only views of fewer numbers.

    Attributes
    ----------
    num_resources : int
        How many resources there are.
    shared : bool
        Whether a resource divides itself among its jobs; otherwise it does one at a time.

    Notes
    -----
    Invariants, verified by `check`, up to rounding:

    L1. ``ready_s <= start_s <= finish_s``.
    L2. A job takes its work: ``finish_s - start_s == work_s``, or ``>= work_s`` where resources are shared.
    L3. A resource does one job at a time; a shared one never does more than a second of work in a second.
    """

    ready_s: Seconds
    start_s: Seconds
    finish_s: Seconds
    work_s: Seconds
    resource: Ids
    num_resources: int = 1
    shared: bool = False

    @property
    def num_jobs(self) -> int:
        """Number of jobs of one world, the length of the last axis."""
        return int(self.finish_s.shape[-1])

    @property
    def wait_s(self) -> Seconds:
        """How long each job waited after it was ready, shape ``[..., N]``."""
        return self.start_s - self.ready_s

    @property
    def begin_s(self) -> Seconds:
        """When the schedule begins: the first time at which a job is ready, shape ``[...]``; 0 without jobs."""
        return self._reduce(np.min, self.ready_s)

    @property
    def end_s(self) -> Seconds:
        """When the last job is done, shape ``[...]``; 0 without jobs."""
        return self._reduce(np.max, self.finish_s)

    @property
    def makespan_s(self) -> Seconds:
        """Finish of the last job minus the begin of the schedule, shape ``[...]``.

        Examples
        --------
        >>> from kvarray.timeline import serial_timeline
        >>> serial_timeline([4.0, 2.0, 1.0], ready_s=[1.0, 1.0, 9.0]).makespan_s.tolist()
        9.0
        """
        return self.end_s - self.begin_s

    @property
    def busy_s(self) -> Seconds:
        """Work that each resource does, shape ``[..., num_resources]``."""
        return self._per_resource(lambda mine: np.where(mine, self.work_s, 0.0).sum(axis=-1))

    @property
    def bubble_s(self) -> Seconds:
        """Time each resource idles between its first start and its last finish, shape ``[..., num_resources]``."""
        if self.num_jobs == 0:
            return self.busy_s
        first = self._per_resource(lambda mine: np.where(mine, self.start_s, np.inf).min(axis=-1))
        last = self._per_resource(lambda mine: np.where(mine, self.finish_s, -np.inf).max(axis=-1))
        span = np.subtract(last, first, out=np.zeros_like(last), where=last >= first)
        idle = span - self.busy_s
        return np.where(idle > _ROUNDING * span, idle, 0.0)

    def check(self) -> None:
        """Raise `InvariantError` unless L1 to L3 hold; O(jobs x log jobs).

        Examples
        --------
        >>> from dataclasses import replace
        >>> from kvarray.timeline import serial_timeline
        >>> timeline = serial_timeline([4.0, 2.0])
        >>> timeline.check()
        >>> replace(timeline, start_s=timeline.start_s - 1.0).check()
        Traceback (most recent call last):
            ...
        kvarray.errors.InvariantError: L1: 1 jobs start before they are ready, the first at [0]
        """
        if self.finish_s.size == 0:
            return
        columns = (self.ready_s, self.start_s, self.finish_s, self.work_s)
        slack = _ROUNDING * max(float(np.abs(column).max()) for column in columns)
        took = self.finish_s - self.start_s
        _forbid("L1", "jobs start before they are ready", self.start_s < self.ready_s - slack)
        _forbid("L1", "jobs finish before they start", took < -slack)
        _forbid("L2", "jobs take less than their work", took < self.work_s - slack)
        if self.shared:
            self._check_shared(slack)
            return
        _forbid("L2", "jobs take more than their work", took > self.work_s + slack)
        holder = np.where(took > slack, self.resource, self.num_resources)  # a moment occupies nothing
        order = np.lexsort((self.finish_s, self.start_s, holder), axis=-1)
        start, finish, holder = (_take(column, order) for column in (self.start_s, self.finish_s, holder))
        is_held = (holder[..., 1:] == holder[..., :-1]) & (holder[..., 1:] < self.num_resources)
        overlap = is_held & (start[..., 1:] < finish[..., :-1] - slack)
        _forbid("L3", "jobs share a resource that does one at a time", overlap)

    def _check_shared(self, slack: float) -> None:
        """From its first start to any finish, what a resource has finished fits into the time."""
        order = np.argsort(self.finish_s, axis=-1, kind="stable")
        start, finish, work, resource = (
            _take(column, order) for column in (self.start_s, self.finish_s, self.work_s, self.resource)
        )
        for one in range(self.num_resources):
            mine = resource == one
            first = np.where(mine, start, np.inf).min(axis=-1, keepdims=True)
            done = np.cumsum(np.where(mine, work, 0.0), axis=-1)
            _forbid("L3", "jobs get more than the resource has", mine & (first + done > finish + slack))

    def _per_resource(self, reduce: Callable[[Flags], Seconds]) -> Seconds:
        """Apply a reduction over jobs to the mask of each resource; loops over resources, of which there are few."""
        columns = np.empty((*self.finish_s.shape[:-1], self.num_resources))
        for one in range(self.num_resources):
            columns[..., one] = reduce(self.resource == one)
        return columns

    def _reduce(self, reduce: Callable[..., Seconds], column: Seconds) -> Seconds:
        if self.num_jobs == 0:
            return np.zeros(self.finish_s.shape[:-1])
        return np.asarray(reduce(column, axis=-1))


def _take(column: NDArray[Any], order: Ids) -> NDArray[Any]:
    return np.take_along_axis(column, order, axis=-1)


def _forbid(law: str, what: str, bad: Flags) -> None:
    if bad.any():
        raise InvariantError(f"{law}: {bad.sum()} {what}, the first at {np.argwhere(bad)[0].tolist()}")
