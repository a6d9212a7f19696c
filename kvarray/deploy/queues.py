"""When each first token is out: requests queue for links and workers, replica by replica.

A request begins to load when it arrives; the loads of a replica queue on each link, deepest first, and its prefills on
its worker, all in order of arrival. A prefill begins when the worker is free and all is loaded but what still hides
behind it, so that a request that never waits takes what `ServiceTimes.alone_s` says. With prefill and decode apart,
the KV of the prompts queues on the way to the decode node (`kvarray.migrate`). Every time is a maximum of sums, so
worlds broadcast, and more work or earlier arrivals never shorten a wait.

Left out: batches of prefills, prefills that overtake one that waits for its load, decode steps that hold up prefills,
and that links also carry what goes down.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Seconds, check_broadcast
from kvarray.deploy.deployment import Deployment
from kvarray.deploy.pieces import Pieces, pieces_of
from kvarray.deploy.routing import Routed
from kvarray.deploy.service import ServiceTimes
from kvarray.migrate import BatchSchedule, PDScheduler, TransferEngine, schedule_batch
from kvarray.timeline.streams import as_arrivals, serial_scan

__all__ = ["QueueTimes", "first_token_times", "queue_times"]

_ALWAYS: Seconds = np.array(-np.inf)


@dataclass(frozen=True, eq=False)
class QueueTimes:
    """What the time to each first token is made of, in the order of `Routed.order`.

    =============  ====================================================================================
    column         seconds, shape (..., B)
    =============  ====================================================================================
    `ttft_s`       from arrival to the first token: the sum of those below
    `queue_s`      waiting behind others, for links and for the worker
    `load_s`       loading alone, beyond what computing hides
    `prefill_s`    computing
    `transfer_s`   waiting for KV to move to the decode node; 0 where decode is not separate
    `decode_s`     the first decode step after prefill where decode is separate; below 0 where the schedule lets
                   it end before the last piece is computed
    `moving_s`     how long the KV of each request keeps the streams to its decode node busy; no part of the sum
    =============  ====================================================================================
    """

    ttft_s: Seconds
    queue_s: Seconds
    load_s: Seconds
    prefill_s: Seconds
    transfer_s: Seconds
    decode_s: Seconds
    moving_s: Seconds


def queue_times(
    routed: Routed, deployment: Deployment, service: ServiceTimes, *, arrival_s: ArrayLike | None = None
) -> QueueTimes:
    """Return the time to the first token of each request, and what it is made of.

    Parameters
    ----------
    routed : Routed
    deployment : Deployment
    service : ServiceTimes
        Of shape (..., B).
    arrival_s : array_like of float, shape (..., B), optional
        Arrivals in the order of `Routed.order`, instead of the trace's; they broadcast.

    Returns
    -------
    QueueTimes

    Raises
    ------
    TypeError, ValueError
        If arrivals are no numbers, fall within a replica, or do not broadcast.

    Notes
    -----
    Sequential law within a replica. O(B) scans for each world, link and worker.

    Examples
    --------
    >>> from kvarray.deploy import route, service_times, tier_hits
    >>> from kvarray.economics.latency import PrefillTime
    >>> from kvarray.tier import TierSpec
    >>> from kvarray.trace import Trace
    >>> trace = Trace([1, 2, 3, 4, 1, 2], [0, 2, 4, 6], block_size=16, arrival_s=[0.0, 1.0, 2.0])
    >>> deployment = Deployment((TierSpec("gpu", blocks=9),), bytes_per_token=1, prefill=PrefillTime(0.0, 1.0, 0.0))
    >>> routed = route(trace, deployment)
    >>> queue_times(routed, deployment, service_times(routed, deployment, tier_hits(routed, deployment))).ttft_s
    array([32., 63., 63.])
    """
    arrival, shape = _arrivals(routed, service, arrival_s)
    pieces = None if deployment.separation is None else pieces_of(routed, deployment, service)
    out = {name: np.zeros(shape) for name in QueueTimes.__dataclass_fields__}
    if pieces is not None and deployment.separation is not None:
        out["moving_s"][...] = pieces.moving_s(deployment.separation.link) / deployment.separation.streams
    if not deployment.queueing:
        _fill_alone(out, service, deployment, pieces)
        return QueueTimes(**out)
    for mine, begin, served in _served(routed, deployment, service, pieces, arrival, shape):
        load_s = (service.load_s - service.hidden_s)[..., mine]
        for name, column in (
            ("ttft_s", served.first_token_s - begin),
            ("queue_s", np.maximum(served.prefilled_s - begin - served.prefill_s - load_s, 0.0)),
            ("load_s", load_s),
            ("prefill_s", served.prefill_s),
            ("transfer_s", served.first_token_s - served.free_first_token_s),
            ("decode_s", served.free_first_token_s - served.prefilled_s),
        ):
            out[name][..., mine] = column
    return QueueTimes(**out)


def first_token_times(
    routed: Routed, deployment: Deployment, service: ServiceTimes, *, arrival_s: ArrayLike | None = None
) -> Seconds:
    """Return `QueueTimes.ttft_s` alone, for many worlds in less time and memory than `queue_times` takes.

    Parameters
    ----------
    routed, deployment, service, arrival_s
        As for `queue_times`; so are the errors.

    Returns
    -------
    ndarray of float64, shape (..., B)

    Examples
    --------
    >>> from kvarray.deploy import route, service_times, tier_hits
    >>> from kvarray.economics.latency import PrefillTime
    >>> from kvarray.tier import TierSpec
    >>> from kvarray.trace import Trace
    >>> trace = Trace([1, 2, 3, 4, 1, 2], [0, 2, 4, 6], block_size=16, arrival_s=[0.0, 1.0, 2.0])
    >>> deployment = Deployment((TierSpec("gpu", blocks=9),), bytes_per_token=1, prefill=PrefillTime(0.0, 1.0, 0.0))
    >>> routed = route(trace, deployment)
    >>> service = service_times(routed, deployment, tier_hits(routed, deployment))
    >>> first_token_times(routed, deployment, service, arrival_s=[[0.0, 1.0, 2.0], [0.0, 100.0, 200.0]])
    array([[32., 63., 63.],
           [32., 32.,  1.]])
    """
    if not deployment.queueing:
        return queue_times(routed, deployment, service, arrival_s=arrival_s).ttft_s
    arrival, shape = _arrivals(routed, service, arrival_s)
    pieces = None if deployment.separation is None else pieces_of(routed, deployment, service)
    ttft = np.empty(shape)
    for mine, begin, served in _served(routed, deployment, service, pieces, arrival, shape):
        np.subtract(served.first_token_s, begin, out=ttft[..., mine])
    return ttft


class _Served(NamedTuple):
    """When the requests of one replica are through, shape (..., B)."""

    prefilled_s: Seconds
    first_token_s: Seconds
    free_first_token_s: Seconds
    prefill_s: Seconds


def _arrivals(routed: Routed, service: ServiceTimes, arrival_s: ArrayLike | None) -> tuple[Seconds, tuple[int, ...]]:
    """Return the arrivals, and the shape of all worlds together."""
    arrival = routed.arrival_s if arrival_s is None else np.asarray(arrival_s)
    return arrival, check_broadcast("service and arrival_s", service.load_s.shape, arrival.shape)


def _served(
    routed: Routed,
    deployment: Deployment,
    service: ServiceTimes,
    pieces: Pieces | None,
    arrival: Seconds,
    shape: tuple[int, ...],
) -> Iterator[tuple[slice, Seconds, _Served]]:
    """Let the requests of each replica queue; with each come their places and arrivals."""
    for first, last in pairwise(routed.offsets.tolist()):
        if first == last:
            continue
        mine = slice(first, last)
        begin = as_arrivals(arrival[..., mine])
        ready = _loaded(service, begin, mine, shape)
        if service.hidden_s.any():
            ready = ready - service.hidden_s[..., mine]
        if pieces is None:
            prefill_s = service.prefill_s[..., mine]
            prefilled = _scan(prefill_s, ready)
            yield mine, begin, _Served(prefilled, prefilled, prefilled, prefill_s)
        else:
            part = pieces.part(mine)
            batch = _schedule(deployment, part, np.maximum.accumulate(ready, axis=-1))
            yield mine, begin, _Served(batch.prefilled_s, batch.first_token_s, batch.free_first_token_s, part.prefill_s)


def _loaded(service: ServiceTimes, arrival: Seconds, mine: slice, shape: tuple[int, ...]) -> Seconds:
    """Return when all that each request of a replica loads is there.

    Who loads nothing is let through a link behind those before it, which costs it nothing: the worker takes them in
    the same order.
    """
    shape = (*shape[:-1], mine.stop - mine.start)
    chain = direct = np.broadcast_to(arrival, shape)
    for way, work in zip(service.ways, service.way_s, strict=True):
        seconds = work[..., mine]
        if not seconds.any():
            continue
        if way.is_direct:
            direct = np.maximum(direct, _scan(seconds, arrival))
        else:
            chain = _scan(seconds, chain)
    return np.maximum(chain, direct) if any(way.is_direct for way in service.ways) else chain


def _scan(work: Seconds, ready: Seconds) -> Seconds:
    """Return when one resource has done its jobs, in array order."""
    shape = np.broadcast_shapes(work.shape, ready.shape)
    start, finish = np.empty(shape), np.empty(shape)
    serial_scan(work, np.broadcast_to(ready, shape), _ALWAYS, start=start, finish=finish)
    return finish


def _schedule(deployment: Deployment, pieces: Pieces, ready: Seconds) -> BatchSchedule:
    """Return the schedule of the requests of one replica, whose prefills may begin when they are ready."""
    separation = deployment.separation
    assert separation is not None  # the caller looked
    engine = TransferEngine.over(separation.link, num_streams=separation.streams)
    return schedule_batch(
        PDScheduler(engine, overlap_efficiency=separation.overlap_efficiency),
        separation.schedule,
        arrival_s=ready,
        piece_bytes=pieces.num_bytes,
        piece_offsets=pieces.offsets,
        decode_s=pieces.step_s,
        prefill_s=pieces.seconds,
    )


def _fill_alone(out: dict[str, Seconds], service: ServiceTimes, deployment: Deployment, pieces: Pieces | None) -> None:
    """Fill in the times of requests that have the deployment for themselves."""
    out["load_s"][...] = service.load_s - service.hidden_s
    if pieces is None:
        out["prefill_s"][...] = service.prefill_s
        out["ttft_s"][...] = service.alone_s
        return
    out["prefill_s"][...] = pieces.prefill_s
    for rows, alike in pieces.by_count():
        batch = _schedule(deployment, alike, np.zeros((len(rows), 1)))
        for name, column in (
            ("ttft_s", batch.first_token_s),
            ("transfer_s", batch.first_token_s - batch.free_first_token_s),
            ("decode_s", batch.free_first_token_s - batch.prefilled_s),
        ):
            out[name][..., rows] = column[..., 0]
    out["ttft_s"] += out["load_s"]
