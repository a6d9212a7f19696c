"""Resources that divide themselves among the jobs present: processor sharing, and max-min fair links.

A network shares its links fairly between flows, so a transfer slows down while others are under way; first come,
first served (`kvarray.timeline.streams`) is the other extreme. Both are exact here: rates change only when a job
arrives or departs, so time goes from event to event. Rates follow at once, as in a fluid; the ramp of a congestion
control is left out.
"""

import heapq
import math
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvarray.arrays import Flags, Ids, Seconds, as_amounts, as_array, as_ints, check_broadcast, check_items
from kvarray.timeline.streams import as_arrivals
from kvarray.timeline.timeline import Timeline

__all__ = ["max_min_queue", "max_min_rates", "processor_sharing_queue", "share_evenly", "share_evenly_alone"]

_SIDE_BY_SIDE = 32  # worlds from which steps of all of them beat one after the other

_Item = TypeVar("_Item", bound=np.generic)


def processor_sharing_queue(arrival_s: ArrayLike, work_s: ArrayLike) -> Timeline:
    """Return when the jobs of a resource that divides itself evenly among those present are done.

    Parameters
    ----------
    arrival_s : array_like of float, shape (..., N)
        Times at which jobs join, never falling.
    work_s : array_like of float, shape (..., N)
        Time each job takes when it is alone, ``>= 0``.

    Returns
    -------
    Timeline
        Shared; with n jobs present each gets 1 / n of the resource.

    Raises
    ------
    TypeError, ValueError
        If an argument is no number, NaN, infinite or negative work, the shapes do not broadcast, or the arrivals are
        out of order.

    Notes
    -----
    Sequential law; 2 N events for each world, which go side by side where there are many. A *shared clock* runs at
    1 / n of time: in one of its seconds every job present gets one second of work, and a job leaves when the clock
    has advanced by its work since it came. The clock starts anew whenever the resource falls idle, so that rounding
    does not pile up.

    References
    ----------
    .. [1] L. Kleinrock, "Time-shared systems: a theoretical treatment", 1967.

    Examples
    --------
    >>> processor_sharing_queue([0.0, 1.0], [2.0, 2.0]).finish_s  # alone for 1 s, then together
    array([3., 4.])
    """
    arrival, work = as_arrivals(arrival_s), as_amounts("work_s", work_s, low=0.0)
    shape = check_broadcast("arrival_s and work_s", arrival.shape, work.shape)
    arrival, work = np.broadcast_to(arrival, shape), np.broadcast_to(work, shape)
    worlds = _rows(arrival), _rows(work)
    if len(worlds[0]) < _SIDE_BY_SIDE:
        finish = np.array([share_evenly_alone(*world) for world in zip(*worlds, strict=True)]).reshape(shape)
    else:
        finish = share_evenly(*worlds).reshape(shape)
    return Timeline(arrival, arrival, finish, work, np.zeros(shape, dtype=np.int64), shared=True)


def share_evenly_alone(arrival: Seconds, work: Seconds) -> list[float]:
    """Return the finish times of the jobs of one world, shape (N,); the loop is over events, of which it has 2 N."""
    finish = [0.0] * len(arrival)
    leaves_at: list[tuple[float, int]] = []  # on the shared clock, a heap of the jobs present
    now = clock = 0.0
    for job, (comes, needs) in enumerate(zip([*arrival.tolist(), math.inf], [*work.tolist(), 0.0], strict=True)):
        while leaves_at and now + (leaves_at[0][0] - clock) * len(leaves_at) <= comes:
            mark, first = leaves_at[0]
            now += (mark - clock) * len(leaves_at)
            clock, finish[first] = mark, now
            heapq.heappop(leaves_at)
        clock = clock + (comes - now) / len(leaves_at) if leaves_at else 0.0
        now = comes
        if job < len(finish):
            heapq.heappush(leaves_at, (clock + needs, job))
    return finish


def share_evenly(arrival: Seconds, work: Seconds) -> Seconds:
    """Return the finish times of many worlds, shape (L, N); the loop is over events, of which each has one at a step.

    A step costs a call of NumPy or two dozen, which pays from a few dozen worlds on.
    """
    num_rows, num_jobs = arrival.shape
    rows = np.arange(num_rows)
    finish = np.empty((num_rows, num_jobs))
    leaves_at = np.full((num_rows, num_jobs), np.inf)  # on the shared clock; infinite for jobs not present
    upcoming = np.concatenate((arrival, np.full((num_rows, 1), np.inf)), axis=1)
    arrived = np.zeros(num_rows, dtype=np.int64)
    present = np.zeros(num_rows)
    now, clock = np.zeros(num_rows), np.zeros(num_rows)
    window = slice(0, 1)
    for _ in range(2 * num_jobs):
        window = _window(window, arrived, num_jobs, np.isfinite(leaves_at[:, window.start]))
        first = leaves_at[:, window].argmin(axis=1) + window.start
        departure = now + (leaves_at[rows, first] - clock) * np.maximum(present, 1.0)
        arrival_next = upcoming[rows, arrived]
        departs = departure <= arrival_next

        # An idle resource's clock stands at 0; a departure sets the clock to the very mark that was waited for.
        passed = (arrival_next - now) / np.maximum(present, 1.0)
        clock = np.where(departs, leaves_at[rows, first], np.where(present > 0.0, clock + passed, 0.0))
        now = np.where(departs, departure, arrival_next)
        left, came = rows[departs], rows[~departs]
        finish[left, first[departs]] = now[departs]
        leaves_at[left, first[departs]] = np.inf
        leaves_at[came, arrived[came]] = clock[came] + work[came, arrived[came]]
        arrived[came] += 1
        present += np.where(departs, -1.0, 1.0)
    return finish


def _window(window: slice, arrived: Ids, num_jobs: int, is_present: Flags) -> slice:
    """Return the jobs of which some row may have one present, given where the oldest one is; at least one job."""
    start = window.start
    if start < min(int(arrived.min()), num_jobs - 1) and not is_present.any():
        start += 1
    return slice(start, max(int(arrived.max()), start + 1))


def max_min_rates(endpoints: ArrayLike, bytes_per_second: ArrayLike, *, active: ArrayLike = True) -> Seconds:
    """Return the max-min fair rate of each flow.

    Parameters
    ----------
    endpoints : array_like of int, shape (N, P)
        The endpoints each flow passes, ``0 <= endpoint < E``: source and target, and links between them if there are.
    bytes_per_second : array_like of float, shape (..., E)
        What each endpoint carries, ``> 0``.
    active : array_like of bool, shape (..., N), optional
        Which flows there are; the others get 0.

    Returns
    -------
    ndarray of float64, shape (..., N)
        Rates of which none can grow without taking from a flow that has no more.

    Raises
    ------
    TypeError, ValueError
        If an endpoint is not there, a rate is not above 0, or the shapes do not fit.

    Notes
    -----
    Progressive filling: all flows grow alike until an endpoint is full, its flows stay, the others go on. Snapshot
    law over worlds; at most E rounds of O(N E).

    References
    ----------
    .. [1] D. Bertsekas and R. Gallager, "Data Networks", 2nd edition, 1992, section 6.5.2.

    Examples
    --------
    >>> max_min_rates([[0, 2], [0, 3], [1, 3]], [10.0, 10.0, 4.0, 10.0])
    array([4., 5., 5.])
    """
    capacity = _as_capacity(bytes_per_second)
    passes, route = _as_routes(endpoints, capacity.shape[-1])
    going = as_array("active", active)
    if going.dtype != np.bool_:
        raise TypeError(f"active must be booleans: got {going.dtype}")
    going = going[None] if going.ndim == 0 else going
    check_items("active", going, len(route), of="flows")
    lead = check_broadcast("bytes_per_second and active", capacity.shape[:-1], going.shape[:-1])
    capacity = np.broadcast_to(capacity, (*lead, capacity.shape[-1]))
    going = np.broadcast_to(going, (*lead, len(route)))
    flows = going.astype(np.float64) @ (route[:, None] == np.arange(len(passes)))  # [..., routes]
    rates = _fill(passes, _rows(capacity), _rows(flows)).reshape(flows.shape)
    return np.where(going, rates[..., route], 0.0)


def _fill(passes: Seconds, capacity: Seconds, flows: Seconds) -> Seconds:
    """Max-min rate of a flow of each route, in rows of worlds; flows with the same route always have the same rate.

    Parameters are which endpoints a route passes [R, E], what they carry [L, E], and how many flows there are [L, R].
    Each round fills at least one endpoint of every row that still has flows, so there are at most E.
    """
    rates = np.zeros(flows.shape)
    growing = flows.copy()
    left = capacity.copy()
    while growing.any():
        sharers = growing @ passes  # [L, E]
        share = np.divide(left, sharers, out=np.full(left.shape, np.inf), where=sharers > 0.0)
        level = share.min(axis=1, keepdims=True)
        is_full = (share <= level) & (sharers > 0.0)
        stays = (growing > 0.0) & (is_full @ passes.T > 0.0)
        np.copyto(rates, level, where=stays)
        left = np.maximum(left - np.where(stays, growing * rates, 0.0) @ passes, 0.0)
        growing[stays] = 0.0
    return rates


def max_min_queue(
    arrival_s: ArrayLike, num_bytes: ArrayLike, *, endpoints: ArrayLike, bytes_per_second: ArrayLike
) -> Timeline:
    """Return when flows between endpoints are done, sharing them max-min fairly.

    Parameters
    ----------
    arrival_s : array_like of float, shape (..., N)
        Times at which flows join, never falling.
    num_bytes : array_like of float, shape (..., N)
        Bytes of each flow, ``>= 0``.
    endpoints : array_like of int, shape (N, P)
        The endpoints each flow passes, as for `max_min_rates`.
    bytes_per_second : array_like of float, shape (..., E)
        What each endpoint carries, ``> 0``.

    Returns
    -------
    Timeline
        Shared; flows with the same endpoints are one resource. The work of a flow is its time when it is alone.

    Raises
    ------
    TypeError, ValueError
        If an argument is no number or out of range, the shapes do not fit, or the arrivals are out of order.

    Notes
    -----
    Sequential law, 2 N events, each with one `max_min_rates`; worlds go side by side. With one endpoint it is
    `processor_sharing_queue`.

    Examples
    --------
    >>> flows = [[0, 2], [1, 2]]  # two prefill nodes into one decode node
    >>> max_min_queue([0.0, 0.0], [1e9, 4e9], endpoints=flows, bytes_per_second=[2e9, 1e9, 2e9]).finish_s
    array([1., 4.])
    """
    arrival, size = as_arrivals(arrival_s), as_amounts("num_bytes", num_bytes, low=0.0)
    capacity = _as_capacity(bytes_per_second)
    passes, route = _as_routes(endpoints, capacity.shape[-1])
    lead = check_broadcast(
        "arrival_s, num_bytes and bytes_per_second", arrival.shape[:-1], size.shape[:-1], capacity.shape[:-1]
    )
    check_items("arrival_s", arrival, len(route), of="flows")
    check_items("num_bytes", size, len(route), of="flows")

    shape = (*lead, len(route))
    arrival, size = np.broadcast_to(arrival, shape), np.broadcast_to(size, shape)
    capacity = np.broadcast_to(capacity, (*lead, capacity.shape[-1]))
    finish = _flow(_rows(arrival), _rows(size), route, passes, _rows(capacity)).reshape(shape)
    narrowest = np.where(passes > 0.0, capacity[..., None, :], np.inf).min(axis=-1)  # [..., routes]
    work = size / narrowest[..., route]
    return Timeline(arrival, arrival, finish, work, np.broadcast_to(route, shape), len(passes), shared=True)


def _flow(arrival: Seconds, size: Seconds, route: Ids, passes: Seconds, capacity: Seconds) -> Seconds:
    """Finish times of rows of flows; the loop is over events, of which each row has one at each step."""
    num_rows, num_jobs = arrival.shape
    rows = np.arange(num_rows)
    finish = np.empty((num_rows, num_jobs))
    left = np.zeros((num_rows, num_jobs))
    going = np.zeros((num_rows, num_jobs), dtype=np.bool_)
    flows = np.zeros((num_rows, len(passes)))
    upcoming = np.concatenate((arrival, np.full((num_rows, 1), np.inf)), axis=1)
    arrived = np.zeros(num_rows, dtype=np.int64)
    now = np.zeros(num_rows)
    window = slice(0, 1)
    for _ in range(2 * num_jobs if num_rows else 0):
        window = _window(window, arrived, num_jobs, going[:, window.start])
        rates = np.where(going[:, window], _fill(passes, capacity, flows)[:, route[window]], 0.0)
        needs = np.divide(left[:, window], rates, out=np.full(rates.shape, np.inf), where=going[:, window])
        soonest = needs.argmin(axis=1)
        first = soonest + window.start
        departure, arrival_next = now + needs[rows, soonest], upcoming[rows, arrived]
        departs = departure <= arrival_next

        passed = np.where(departs, needs[rows, soonest], arrival_next - now)
        left[:, window] = np.maximum(left[:, window] - rates * passed[:, None], 0.0)
        now = np.where(departs, departure, arrival_next)
        gone, came = rows[departs], rows[~departs]
        finish[gone, first[departs]] = now[departs]
        going[gone, first[departs]] = False
        flows[gone, route[first[departs]]] -= 1.0
        going[came, arrived[came]] = True
        flows[came, route[arrived[came]]] += 1.0
        left[came, arrived[came]] = size[came, arrived[came]]
        arrived[came] += 1
    return finish


def _rows(column: NDArray[_Item]) -> NDArray[_Item]:
    """Return a column of shape [..., N] as rows, shape [L, N]."""
    return column.reshape(math.prod(column.shape[:-1]), column.shape[-1])


def _as_capacity(bytes_per_second: ArrayLike) -> Seconds:
    capacity = as_amounts("bytes_per_second", bytes_per_second, low=0.0, open_low=True)
    if capacity.ndim == 0 or capacity.shape[-1] == 0:
        raise ValueError(f"bytes_per_second must have one item for each endpoint: got shape {capacity.shape}")
    return capacity


def _as_routes(endpoints: ArrayLike, num_endpoints: int) -> tuple[Seconds, Ids]:
    """Return the distinct routes, as 0 or 1 for each endpoint they pass, shape [R, E], and the route of each flow."""
    ids = as_array("endpoints", endpoints)
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise ValueError(f"endpoints must be of shape (flows, endpoints of a flow): got {ids.shape}")
    flat = as_ints("endpoints", ids.reshape(-1), low=0, high=num_endpoints)
    passes = np.zeros((len(ids), num_endpoints))
    passes[np.arange(len(ids))[:, None], flat.reshape(ids.shape)] = 1.0
    routes, route = np.unique(passes, axis=0, return_inverse=True)
    return routes, route.reshape(-1)
