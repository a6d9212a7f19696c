"""Resources that do one job at a time: one of them, several side by side, several in a row.

Each is a max-plus scan, ``finish[i] = max(ready[i], finish[i - 1]) + work[i]``. Unrolled, it is the running sum of
the work plus the running maximum of *ready minus work before*, which NumPy does along the jobs for all worlds at
once. Jobs are served in array order, whenever they become ready: a late job holds up those behind it.
"""

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import (
    Ids,
    Seconds,
    as_amounts,
    as_array,
    as_floats,
    as_ids,
    as_int,
    check_broadcast,
    check_items,
    refuse,
)
from kvarray.timeline.timeline import Timeline

__all__ = [
    "as_arrivals",
    "as_num_resources",
    "assigned_timeline",
    "fcfs_queue",
    "least_loaded_timeline",
    "pipeline_timeline",
    "round_robin_timeline",
    "serial_scan",
    "serial_timeline",
]

_ALWAYS: Seconds = np.array(-np.inf)
_MOST_RESOURCES = 2**16


def serial_timeline(work_s: ArrayLike, *, ready_s: ArrayLike = 0.0, free_s: ArrayLike = _ALWAYS) -> Timeline:
    """Return when one resource does its jobs, in array order.

    Parameters
    ----------
    work_s : array_like of float, shape (..., N)
        Time the resource needs for each job, ``>= 0``.
    ready_s : array_like of float, shape (..., N), optional
        Time from which a job may start.
    free_s : array_like of float, shape (...), optional
        Time from which the resource is free; always, where it is not given.

    Returns
    -------
    Timeline
        ``finish[i] = max(ready[i], finish[i - 1]) + work[i]``, beginning with ``free_s``.

    Raises
    ------
    TypeError, ValueError
        If an argument is no number, NaN, infinite or negative work, or the shapes do not broadcast.

    Notes
    -----
    Sequential law, O(N) for each world.

    References
    ----------
    .. [1] D. V. Lindley, "The theory of queues with a single server", 1952.

    Examples
    --------
    >>> serial_timeline([4.0, 2.0, 1.0], ready_s=[0.0, 1.0, 9.0]).finish_s
    array([ 4.,  6., 10.])
    """
    return round_robin_timeline(work_s, 1, ready_s=ready_s, free_s=np.asarray(free_s)[..., None])


def round_robin_timeline(
    work_s: ArrayLike, num_streams: int, *, ready_s: ArrayLike = 0.0, free_s: ArrayLike = _ALWAYS
) -> Timeline:
    """Return when several streams do their jobs, job i on stream ``i % num_streams``.

    Parameters
    ----------
    work_s : array_like of float, shape (..., N)
        Time of each job on the stream that it goes to, ``>= 0``.
    num_streams : int
        Number of streams, 1 to 65,536; call it S.
    ready_s : array_like of float, shape (..., N), optional
        Time from which a job may start.
    free_s : array_like of float, shape (..., S), optional
        Time from which each stream is free; always, where it is not given.

    Returns
    -------
    Timeline
        Each stream is a `serial_timeline` of its jobs.

    Raises
    ------
    TypeError, ValueError
        As `serial_timeline`, or if there is no stream.

    Notes
    -----
    Sequential law, O(N) for each world; the loop is over streams.

    Examples
    --------
    >>> round_robin_timeline([3.0, 1.0, 1.0, 1.0], 2).finish_s
    array([3., 1., 4., 2.])
    """
    num_streams = as_num_resources("num_streams", num_streams)
    work, ready = _jobs(work_s, ready_s)
    free = _as_free(free_s)
    lead = check_broadcast("work_s, ready_s and free_s", work.shape[:-1], ready.shape[:-1], free.shape[:-1])
    num_jobs = check_broadcast("work_s and ready_s", work.shape[-1:], ready.shape[-1:])[0]
    check_items("free_s", free, num_streams, of="streams")
    free = np.broadcast_to(free, (*free.shape[:-1], num_streams))

    shape = (*lead, num_jobs)
    start, finish = np.empty(shape), np.empty(shape)
    for stream in range(min(num_streams, num_jobs)):
        mine = (..., slice(stream, None, num_streams))
        serial_scan(
            work[mine] if work.shape[-1] == num_jobs else work,
            ready[mine] if ready.shape[-1] == num_jobs else ready,
            free[..., stream],
            start=start[mine],
            finish=finish[mine],
        )
    resource = np.arange(num_jobs) % num_streams
    return _timeline(ready, start, finish, work, resource, num_streams)


def assigned_timeline(work_s: ArrayLike, streams: ArrayLike, num_streams: int, *, ready_s: ArrayLike = 0.0) -> Timeline:
    """Return when several streams do the jobs that are assigned to them.

    Parameters
    ----------
    work_s : array_like of float, shape (..., N)
        Time of each job on its stream, ``>= 0``.
    streams : array_like of int, shape (..., N)
        The stream of each job, ``0 <= stream < num_streams``.
    num_streams : int
        Number of streams, 1 to 65,536.
    ready_s : array_like of float, shape (..., N), optional
        Time from which a job may start.

    Returns
    -------
    Timeline
        Each stream is a `serial_timeline` of its jobs.

    Raises
    ------
    TypeError, ValueError
        As `serial_timeline`, or if a stream is not there.

    Notes
    -----
    Sequential law, O(N `num_streams`) for each world: every stream scans all jobs, those of others taking no time.

    Examples
    --------
    >>> assigned_timeline([3.0, 1.0, 1.0], [0, 1, 1], 2).finish_s
    array([3., 1., 2.])
    """
    num_streams = as_num_resources("num_streams", num_streams)
    work, ready = _jobs(work_s, ready_s)
    assigned = as_array("streams", streams)
    assigned = as_ids("streams", assigned.reshape(-1), num_streams).reshape(assigned.shape)
    shape = check_broadcast("work_s, streams and ready_s", work.shape, assigned.shape, ready.shape)
    start, finish = np.empty(shape), np.empty(shape)
    mine_start, mine_finish = np.empty(shape), np.empty(shape)
    for stream in range(num_streams):
        mine = np.broadcast_to(assigned == stream, shape)
        serial_scan(
            np.where(mine, work, 0.0), np.where(mine, ready, -np.inf), _ALWAYS, start=mine_start, finish=mine_finish
        )
        np.copyto(start, mine_start, where=mine)
        np.copyto(finish, mine_finish, where=mine)
    return _timeline(ready, start, finish, work, assigned, num_streams)


def least_loaded_timeline(work_s: ArrayLike, *, ready_s: ArrayLike = 0.0, free_s: ArrayLike = _ALWAYS) -> Timeline:
    """Return when several streams do their jobs, each job on the stream that will have done it first.

    Parameters
    ----------
    work_s : array_like of float, shape (..., N, S)
        Time of each job on each stream, ``>= 0``.
    ready_s : array_like of float, shape (..., N), optional
        Time from which a job may start.
    free_s : array_like of float, shape (..., S), optional
        Time from which each stream is free; always, where it is not given.

    Returns
    -------
    Timeline
        Job i goes to the stream s with the smallest ``max(ready[i], free[s]) + work[i, s]``, the lowest such s, which
        is then free from that time on. With equal streams that is the one with the least work left.

    Raises
    ------
    TypeError, ValueError
        As `serial_timeline`, or if there is no stream.

    Notes
    -----
    Sequential law, O(N S) for each world. The loop is over jobs, since each choice depends on those before it;
    worlds go side by side.

    Examples
    --------
    >>> timeline = least_loaded_timeline([[3.0, 3.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    >>> timeline.finish_s, timeline.resource
    (array([3., 1., 2., 3.]), array([0, 1, 1, 1]))
    """
    work = as_amounts("work_s", work_s, low=0.0)
    if work.ndim < 2 or work.shape[-1] == 0:
        raise ValueError(f"work_s must have an axis of jobs and one of 1 stream or more: got shape {work.shape}")
    ready, free = as_amounts("ready_s", ready_s), _as_free(free_s)
    check_items("free_s", free, work.shape[-1], of="streams")
    return _to_the_soonest(work, ready, free)


def _to_the_soonest(work: Seconds, ready: Seconds, free: Seconds) -> Timeline:
    """Put each job on the stream that will have done it first; columns are checked, but for broadcasting."""
    num_streams = work.shape[-1]
    if ready.ndim == 0:
        ready = ready[None]
    lead = check_broadcast("work_s, ready_s and free_s", work.shape[:-2], ready.shape[:-1], free.shape[:-1])
    num_jobs = check_broadcast("work_s and ready_s", work.shape[-2:-1], ready.shape[-1:])[0]

    work = np.broadcast_to(work, (*work.shape[:-2], num_jobs, num_streams))
    ready = np.broadcast_to(ready, (*lead, num_jobs))
    free = np.array(np.broadcast_to(free, (*lead, num_streams)))
    taken = np.empty((*lead, num_jobs, 1), dtype=np.int64)
    finish = np.empty((*lead, num_jobs))
    for job in range(num_jobs):
        done = np.maximum(free, ready[..., job, None]) + work[..., job, :]  # [..., S]
        stream = done.argmin(axis=-1, keepdims=True)
        soonest = np.take_along_axis(done, stream, axis=-1)
        np.put_along_axis(free, stream, soonest, axis=-1)
        taken[..., job, :] = stream
        finish[..., job] = soonest[..., 0]
    chosen = np.take_along_axis(np.broadcast_to(work, (*lead, num_jobs, num_streams)), taken, axis=-1)[..., 0]
    return _timeline(ready, finish - chosen, finish, chosen, taken[..., 0], num_streams)


def fcfs_queue(arrival_s: ArrayLike, work_s: ArrayLike, *, num_servers: int = 1) -> Timeline:
    """Return when the jobs of a first-come, first-served queue are done.

    Parameters
    ----------
    arrival_s : array_like of float, shape (..., N)
        Times at which jobs join, never falling.
    work_s : array_like of float, shape (..., N)
        Time a server needs for each job, ``>= 0``.
    num_servers : int, optional
        Equal servers, 1 to 65,536; the first free one takes the next job.

    Returns
    -------
    Timeline
        With one server ``finish[i] = max(arrival[i], finish[i - 1]) + work[i]``, Lindley's recursion.

    Raises
    ------
    TypeError, ValueError
        As `serial_timeline`; also if the arrivals are out of order.

    Notes
    -----
    Sequential law; O(N) with one server, O(N `num_servers`) in a loop over jobs with several.

    Examples
    --------
    >>> fcfs_queue([0.0, 0.0, 1.0], [2.0, 2.0, 2.0], num_servers=2).finish_s
    array([2., 2., 4.])
    """
    arrival = as_arrivals(arrival_s)
    num_servers = as_num_resources("num_servers", num_servers)
    if num_servers == 1:
        return serial_timeline(work_s, ready_s=arrival)
    work = as_amounts("work_s", work_s, low=0.0)
    if work.ndim == 0:
        raise ValueError("work_s must have an axis of jobs: got one number")
    return _to_the_soonest(np.broadcast_to(work[..., None], (*work.shape, num_servers)), arrival, _ALWAYS)


def pipeline_timeline(work_s: ArrayLike, *, ready_s: ArrayLike = 0.0) -> Timeline:
    """Return when jobs pass through a row of serial stages.

    Parameters
    ----------
    work_s : array_like of float, shape (..., K, N)
        Time of each job in each of K stages, ``>= 0``.
    ready_s : array_like of float, shape (..., N), optional
        Time from which a job may enter the first stage.

    Returns
    -------
    Timeline
        Of shape ``[..., K, N]``, each stage a world with one resource:
        ``finish[k, i] = max(finish[k - 1, i], finish[k, i - 1]) + work[k, i]``.

    Raises
    ------
    TypeError, ValueError
        As `serial_timeline`, or if there is no stage.

    Notes
    -----
    Sequential law, O(K N) for each world; the loop is over stages. Between stages there is room for every job.

    Examples
    --------
    >>> pipeline_timeline([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]).finish_s
    array([[1., 2., 3.],
           [3., 5., 7.]])
    """
    work = as_amounts("work_s", work_s, low=0.0)
    if work.ndim < 2 or work.shape[-2] == 0:
        raise ValueError(f"work_s must have an axis of 1 stage or more and one of jobs: got shape {work.shape}")
    entry = as_amounts("ready_s", ready_s)
    lead = check_broadcast("work_s and ready_s", work.shape[:-2], entry.shape[:-1])
    num_jobs = check_broadcast("work_s and ready_s", work.shape[-1:], entry.shape[-1:] or (1,))[0]

    num_stages = work.shape[-2]
    shape = (*lead, num_stages, num_jobs)
    ready, start, finish = np.empty(shape), np.empty(shape), np.empty(shape)
    ready[..., 0, :] = entry
    for stage in range(num_stages):
        mine = (..., stage, slice(None))
        if stage:
            ready[mine] = finish[..., stage - 1, :]
        serial_scan(work[mine], ready[mine], _ALWAYS, start=start[mine], finish=finish[mine])
    return _timeline(ready, start, finish, work, np.zeros(1, dtype=np.int64), 1)


def serial_scan(work: Seconds, ready: Seconds, free: Seconds, *, start: Seconds, finish: Seconds) -> None:
    """Fill in the times of one serial resource; the kernel of this module, which trusts its caller.

    Parameters
    ----------
    work, ready : ndarray of float64, shape (..., N) or (..., 1)
        Broadcast to `finish`.
    free : ndarray of float64, shape (...)
        Time from which the resource is free.
    start, finish : ndarray of float64, shape (..., N)
        Written.
    """
    if finish.shape[-1] == 0:
        return
    if work.shape[-1] != finish.shape[-1]:
        work = np.broadcast_to(work, (*work.shape[:-1], finish.shape[-1]))
    if ready.shape[-1] == 1:  # all ready at once: it idles before the first job only
        begin = np.maximum(ready[..., 0], free)
        np.cumsum(np.broadcast_to(work, finish.shape), axis=-1, out=finish)
        if begin.any():
            finish += begin[..., None]
        start[..., 0] = begin
        start[..., 1:] = finish[..., :-1]
        return
    done = np.cumsum(work, axis=-1)  # finish times of a resource that never idles
    np.subtract(ready, done - work, out=finish)
    np.maximum(finish[..., 0], free, out=finish[..., 0])
    np.maximum.accumulate(finish, axis=-1, out=finish)
    finish += done
    np.maximum(ready[..., 0], free, out=start[..., 0])
    np.maximum(ready[..., 1:], finish[..., :-1], out=start[..., 1:])


def as_num_resources(name: str, value: object) -> int:
    """Return a number of streams or servers, 1 to 65,536; loops go over them, and results have a column for each."""
    return as_int(name, value, low=1, high=_MOST_RESOURCES + 1)


def as_arrivals(arrival_s: ArrayLike) -> Seconds:
    """Return arrival times as float64 of one axis or more, or raise where they fall along the last."""
    arrival = as_amounts("arrival_s", arrival_s)
    if arrival.ndim == 0:
        raise ValueError("arrival_s must have an axis of jobs: got one number")
    falls = np.zeros(arrival.shape, dtype=np.bool_)
    np.less(arrival[..., 1:], arrival[..., :-1], out=falls[..., 1:])
    if falls.any():
        refuse("arrival_s", "not fall, since jobs are served in order of arrival", falls, arrival)
    return arrival


def _jobs(work_s: ArrayLike, ready_s: ArrayLike) -> tuple[Seconds, Seconds]:
    work, ready = as_amounts("work_s", work_s, low=0.0), as_amounts("ready_s", ready_s)
    if work.ndim == 0:
        raise ValueError("work_s must have an axis of jobs: got one number")
    return work, ready[None] if ready.ndim == 0 else ready


def _as_free(free_s: ArrayLike) -> Seconds:
    free = as_floats("free_s", free_s, finite=False)
    refuse("free_s", "not be infinite, since jobs would never start", np.isposinf(free), free)
    return free


def _timeline(
    ready: Seconds, start: Seconds, finish: Seconds, work: Seconds, resource: Ids, num_resources: int
) -> Timeline:
    shape = finish.shape
    return Timeline(
        np.broadcast_to(ready, shape),
        start,
        finish,
        np.broadcast_to(work, shape),
        np.broadcast_to(resource, shape),
        num_resources,
    )
