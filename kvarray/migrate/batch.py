"""Many requests between one prefill node and one decode node: they share the prefill worker and the link.

Requests are prefilled in order of arrival, one at a time, and their pieces go over the engine's streams in that
order; each request decodes in a place of its own, as a batch does. The schedules are those of
`kvarray.migrate.scheduler`. Decoding is followed up to the first token, and by the schedules that have a step for
each block (sequential and pipelined) up to the last of these. Left out: that decode steps slow down as the batch
grows.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import (
    Ids,
    Seconds,
    as_amounts,
    as_ints,
    check_broadcast,
    check_items,
    check_offsets,
    check_type,
    refuse,
)
from kvarray.errors import InvariantError
from kvarray.migrate.engine import Transfer
from kvarray.migrate.schedule import mix_timelines
from kvarray.migrate.scheduler import PDScheduler
from kvarray.ragged import row_ids
from kvarray.timeline import Timeline, serial_timeline
from kvarray.timeline.streams import as_arrivals

__all__ = ["BatchSchedule", "ScheduleName", "schedule_batch"]

ScheduleName: TypeAlias = Literal["sequential", "pipelined", "layered", "chunked"]


@dataclass(frozen=True, eq=False)
class BatchSchedule:
    """Requests that share a prefill worker and a link; columns of shape ``[..., B]`` unless said otherwise.

    ====================  ====  ==================================================================
    column                unit  meaning
    ====================  ====  ==================================================================
    `arrival_s`           s     when the request came
    `prefilled_s`         s     when its last piece was computed
    `arrived_s`           s     when its last piece was at the decode node
    `first_token_s`       s     when its first token was out
    `finish_s`            s     when its last decode job was done
    `free_first_token_s`  s     when its first token would be out if moving took no time
    ====================  ====  ==================================================================

    Attributes
    ----------
    prefill : Timeline
        Pieces of all requests on the prefill worker, shape ``[..., N]``.
    transfer : Transfer
        Pieces of all requests on the link, shape ``[..., N]``.
    """

    arrival_s: Seconds
    prefilled_s: Seconds
    arrived_s: Seconds
    first_token_s: Seconds
    finish_s: Seconds
    free_first_token_s: Seconds
    prefill: Timeline
    transfer: Transfer

    @property
    def ttft_s(self) -> Seconds:
        """Time to first token of each request."""
        return self.first_token_s - self.arrival_s

    @property
    def exposed_transfer_s(self) -> Seconds:
        """How much of the time to first token is waiting for KV to move, behind others' KV included."""
        return self.first_token_s - self.free_first_token_s

    @property
    def makespan_s(self) -> Seconds:
        """First arrival to the end of the last decode job, shape ``[...]``; 0 without requests."""
        if self.finish_s.shape[-1] == 0:
            return np.zeros(self.finish_s.shape[:-1])
        return np.asarray(self.finish_s.max(axis=-1) - self.arrival_s.min(axis=-1))

    def check(self) -> None:
        """Raise `InvariantError` unless the timelines hold and every request goes through its stages in order."""
        self.prefill.check()
        self.transfer.check()
        slack = 1e-9 * float(np.abs(self.finish_s).max(initial=0.0))
        for earlier, later in (
            ("arrival_s", "prefilled_s"),
            ("prefilled_s", "arrived_s"),
            ("free_first_token_s", "first_token_s"),
            ("first_token_s", "finish_s"),
            ("arrived_s", "finish_s"),
        ):
            if (getattr(self, later) < getattr(self, earlier) - slack).any():
                raise InvariantError(f"{later} is before {earlier}")


def schedule_batch(
    scheduler: PDScheduler,
    name: ScheduleName,
    *,
    arrival_s: ArrayLike,
    piece_bytes: ArrayLike,
    piece_offsets: ArrayLike,
    decode_s: ArrayLike,
    prefill_s: ArrayLike = 0.0,
) -> BatchSchedule:
    """Return when requests that share a prefill worker and a link get their first token.

    Parameters
    ----------
    scheduler : PDScheduler
        The link and the overlap efficiency; leading axes of their figures are worlds of their own.
    name : {"sequential", "pipelined", "layered", "chunked"}
        The schedule of every request; pieces are blocks, blocks, layers or groups of them, chunks.
    arrival_s : array_like of float, shape (..., B)
        When each request comes, never falling.
    piece_bytes : array_like of float, shape (..., N)
        Bytes of each piece, request after request.
    piece_offsets : array_like of int, shape (B + 1,)
        Request r has the pieces ``piece_offsets[r] : piece_offsets[r + 1]``, one or more.
    decode_s : array_like of float, shape (..., B)
        Time of a decode step of each request.
    prefill_s : array_like of float, shape (..., N), optional
        Time to compute each piece.

    Returns
    -------
    BatchSchedule

    Raises
    ------
    TypeError, ValueError
        If an argument is no number or out of range, shapes do not fit, arrivals are out of order, or a request has no
        piece.
    TransferError
        If all streams fail before all pieces are through.

    Notes
    -----
    Sequential law in order of arrival, O(N) for each world. Steps of one request are alike, so the end of a row of
    them behind pieces is a maximum: ``max over i of arrival[i] + steps from i on``.

    Examples
    --------
    >>> from kvarray.migrate import TransferEngine
    >>> batch = schedule_batch(
    ...     PDScheduler(TransferEngine(1.0)), "layered", arrival_s=[0.0, 0.0],
    ...     piece_bytes=[2.0, 2.0, 2.0, 2.0], piece_offsets=[0, 2, 4], prefill_s=1.0, decode_s=0.5,
    ... )
    >>> batch.ttft_s, batch.exposed_transfer_s
    (array([5.25, 9.25]), array([3., 5.]))
    """
    if name not in get_args(ScheduleName):
        raise ValueError(f"name must be one of {', '.join(get_args(ScheduleName))}: got {name!r}")
    check_type("scheduler", scheduler, PDScheduler)
    arrival = as_arrivals(arrival_s)
    size, prefill = as_amounts("piece_bytes", piece_bytes, low=0.0), as_amounts("prefill_s", prefill_s, low=0.0)
    decode = as_amounts("decode_s", decode_s, low=0.0)
    offsets = _as_rows(piece_offsets, size, arrival)
    check_items("prefill_s", prefill, size.shape[-1], of="pieces")
    check_items("decode_s", decode, arrival.shape[-1], of="requests")
    check_broadcast(
        "engine, overlap_efficiency, arrival_s, piece_bytes, prefill_s and decode_s",
        *(scheduler.engine.lead, scheduler.overlap_efficiency.shape),
        *(column.shape[:-1] for column in (arrival, size, prefill, decode)),
    )
    prefill = np.broadcast_to(prefill, np.broadcast_shapes(prefill.shape, size.shape[-1:]))

    computed = serial_timeline(prefill, ready_s=arrival[..., row_ids(offsets)])
    if name == "sequential":
        transfer = scheduler.engine.transfer(size, ready_s=_all_computed(computed, offsets))
        return _rows(name, arrival, computed, transfer, offsets, decode)
    transfer = scheduler.engine.transfer(size, ready_s=computed.finish_s)
    ideal = _rows(name, arrival, computed, transfer, offsets, decode)
    if (scheduler.overlap_efficiency == 1.0).all():
        return ideal
    streams = transfer.timeline.resource
    again = scheduler.engine.transfer(size, ready_s=_all_computed(computed, offsets), streams=streams)
    without: ScheduleName = "sequential" if name == "pipelined" else "chunked"  # as many steps, behind all pieces
    serial = _rows(without, arrival, computed, again, offsets, decode)
    return _mix(serial, ideal, scheduler.overlap_efficiency)


def _all_computed(computed: Timeline, offsets: Ids) -> Seconds:
    """Return for each piece, shape [..., N], when the last piece of its request is computed."""
    return computed.finish_s[..., np.repeat(offsets[1:] - 1, np.diff(offsets))]


def _rows(
    name: ScheduleName, arrival: Seconds, computed: Timeline, transfer: Transfer, offsets: Ids, decode: Seconds
) -> BatchSchedule:
    """Decode every request behind its pieces, and behind pieces that are moved in no time."""
    num_pieces = np.diff(offsets)
    prefilled, arrived = computed.finish_s[..., offsets[1:] - 1], _row_max(transfer.arrive_s, offsets)
    if name in ("sequential", "chunked"):
        first, free_first = arrived + decode, prefilled + decode
        finish = first + decode * (num_pieces - 1) if name == "sequential" else first
    else:
        step = np.broadcast_to(decode, (*decode.shape[:-1], len(num_pieces)))
        step = step if name == "pipelined" else step / num_pieces
        to_go = np.repeat(offsets[1:], num_pieces) - np.arange(offsets[-1])  # steps from each piece on
        rest = step[..., row_ids(offsets)] * to_go
        first = finish = _row_max(transfer.arrive_s + rest, offsets)
        if name == "pipelined":
            first, free_first = (
                column[..., offsets[:-1]] + decode for column in (transfer.arrive_s, computed.finish_s)
            )
        else:
            free_first = _row_max(computed.finish_s + rest, offsets)
    return BatchSchedule(arrival, prefilled, arrived, first, finish, free_first, computed, transfer)


def _row_max(column: Seconds, offsets: Ids) -> Seconds:
    """Return the largest of each row, shape [..., B]; no row is empty."""
    if len(offsets) == 1:
        return np.zeros((*column.shape[:-1], 0))
    return np.maximum.reduceat(column, offsets[:-1], axis=-1)


def _mix(serial: BatchSchedule, ideal: BatchSchedule, efficiency: Seconds) -> BatchSchedule:
    """Take every time between the two schedules; see `kvarray.migrate.schedule.mix`."""
    share = efficiency[..., None]
    timeline = mix_timelines(serial.transfer.timeline, ideal.transfer.timeline, efficiency)
    arrive = (1.0 - share) * serial.transfer.arrive_s + share * ideal.transfer.arrive_s
    between = {
        name: (1.0 - share) * getattr(serial, name) + share * getattr(ideal, name)
        for name in ("arrived_s", "first_token_s", "finish_s", "free_first_token_s")
    }
    return replace(ideal, transfer=replace(ideal.transfer, timeline=timeline, arrive_s=arrive), **between)


def _as_rows(piece_offsets: ArrayLike, size: Seconds, arrival: Seconds) -> Ids:
    """Return the offsets of the requests' pieces, or raise unless every request has one."""
    if size.ndim == 0:
        raise ValueError("piece_bytes must have an axis of pieces: got one number")
    offsets = as_ints("piece_offsets", piece_offsets)
    check_offsets("piece_offsets", offsets, size.shape[-1])
    if len(offsets) - 1 != arrival.shape[-1]:
        raise ValueError(f"piece_offsets must be of {arrival.shape[-1]} requests: got {len(offsets) - 1}")
    is_empty = np.zeros(len(offsets), dtype=np.bool_)
    np.equal(offsets[1:], offsets[:-1], out=is_empty[1:])
    refuse("piece_offsets", "rise, since each request has one piece or more", is_empty, offsets)
    return offsets
