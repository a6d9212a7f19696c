"""What a schedule of prefill, transfer and decoding gives, and the mixing of two of them by overlap efficiency."""

from dataclasses import dataclass, replace

import numpy as np

from kvarray.arrays import Seconds, check_broadcast, check_type
from kvarray.errors import InvariantError
from kvarray.migrate.engine import Transfer
from kvarray.timeline import Timeline

__all__ = ["Schedule", "mix", "mix_timelines"]


@dataclass(frozen=True, eq=False)
class Schedule:
    """One request from prefill to its last token; time 0 is its arrival.

    Attributes
    ----------
    name : str
        Which schedule.
    prefill : Timeline
        Pieces being computed, shape ``[..., P]``.
    transfer : Transfer
        Pieces being moved, shape ``[..., P]``.
    decode : Timeline
        Decode jobs, shape ``[..., D]``.
    first_token : int
        The decode job whose end is the first token.
    free_ttft_s : ndarray of float64, shape (...)
        The time to first token if moving took no time.

    Notes
    -----
    Invariants, verified by `check` beside those of the timelines:

    S1. No piece is moved before it is computed, and no token decoded before the first piece is there.
    """

    name: str
    prefill: Timeline
    transfer: Transfer
    decode: Timeline
    first_token: int
    free_ttft_s: Seconds

    @property
    def ttft_s(self) -> Seconds:
        """Arrival to first token, shape ``[...]``."""
        return self.decode.finish_s[..., self.first_token]

    @property
    def makespan_s(self) -> Seconds:
        """Arrival to the end of the last decode job, shape ``[...]``."""
        return self.decode.end_s

    @property
    def exposed_transfer_s(self) -> Seconds:
        """How much of the time to first token is waiting for KV to move, shape ``[...]``."""
        return self.ttft_s - self.free_ttft_s

    @property
    def bubble_s(self) -> Seconds:
        """Time that decoding idles between its first job and its last, waiting for KV, shape ``[...]``."""
        return self.decode.bubble_s[..., 0]

    def overlap_gain_s(self, baseline: "Schedule") -> Seconds:
        """Return how much earlier the first token is than in another schedule, shape ``[...]``.

        Examples
        --------
        >>> from kvarray.migrate import PDScheduler, TransferEngine
        >>> blocks, scheduler = np.full(64, 2**20), PDScheduler(TransferEngine(25e9, num_streams=2))
        >>> one_by_one = scheduler.sequential(blocks, decode_s=4e-3)
        >>> round(float(scheduler.pipelined(blocks, decode_s=4e-3).overlap_gain_s(one_by_one)) * 1e3, 2)
        2.64
        """
        earlier, later = self.ttft_s, check_type("baseline", baseline, Schedule).ttft_s
        check_broadcast("the schedule and baseline", earlier.shape, later.shape)
        return later - earlier

    def check(self) -> None:
        """Raise `InvariantError` unless S1 and the laws of the timelines hold."""
        for part in (self.prefill, self.transfer, self.decode):
            part.check()
        slack = 1e-9 * max(float(np.abs(self.decode.finish_s).max(initial=0.0)), 1e-300)
        if (self.transfer.timeline.start_s < self.prefill.finish_s - slack).any():
            raise InvariantError("S1: a piece is moved before it is computed")
        if (self.decode.start_s[..., 0] < self.transfer.arrive_s[..., 0] - slack).any():
            raise InvariantError("S1: decoding starts before the first piece is there")


def mix(serial: Schedule, ideal: Schedule, efficiency: Seconds) -> Schedule:
    """Return the schedule between one without overlap and the ideal one.

    Parameters
    ----------
    serial, ideal : Schedule
        Of the same jobs on the same streams in the same order.
    efficiency : ndarray of float64, shape (...)
        0 for `serial`, 1 for `ideal`.

    Returns
    -------
    Schedule
        Every time is ``(1 - efficiency) * serial + efficiency * ideal``.

    Notes
    -----
    The laws of a schedule (a job takes its work, starts when it is ready and after the job before it) are linear in
    its times, so a mean of two schedules is one, too. Of two stages of many small pieces, ``compute`` and ``load``
    seconds long, it is ``compute + load - efficiency * min(compute, load)``.

    Examples
    --------
    >>> from kvarray.migrate import PDScheduler, TransferEngine
    >>> half = PDScheduler(TransferEngine(1.0), overlap_efficiency=0.5)
    >>> half.pipelined([1.0, 1.0], decode_s=1.0).makespan_s.tolist()  # between 4 and 3
    3.5
    """
    timeline = mix_timelines(serial.transfer.timeline, ideal.transfer.timeline, efficiency)
    arrive = _between(serial.transfer.arrive_s, ideal.transfer.arrive_s, efficiency[..., None])
    return replace(
        ideal,
        prefill=mix_timelines(serial.prefill, ideal.prefill, efficiency),
        transfer=replace(ideal.transfer, timeline=timeline, arrive_s=arrive),
        decode=mix_timelines(serial.decode, ideal.decode, efficiency),
        free_ttft_s=_between(serial.free_ttft_s, ideal.free_ttft_s, efficiency),
    )


def mix_timelines(serial: Timeline, ideal: Timeline, efficiency: Seconds) -> Timeline:
    """Return the timeline between two of the same jobs on the same resources; see `mix`.

    Examples
    --------
    >>> from kvarray.timeline import serial_timeline
    >>> late, early = serial_timeline([1.0, 1.0], ready_s=4.0), serial_timeline([1.0, 1.0])
    >>> mix_timelines(late, early, np.array(0.25)).finish_s
    array([4., 5.])
    """
    share = efficiency[..., None]
    ready, start, finish = (
        _between(getattr(serial, name), getattr(ideal, name), share) for name in ("ready_s", "start_s", "finish_s")
    )
    return replace(
        ideal,
        ready_s=ready,
        start_s=start,
        finish_s=finish,
        work_s=np.broadcast_to(ideal.work_s, finish.shape),
        resource=np.broadcast_to(ideal.resource, finish.shape),
    )


def _between(serial: Seconds, ideal: Seconds, share: Seconds) -> Seconds:
    between: Seconds = (1.0 - share) * serial + share * ideal
    return between
