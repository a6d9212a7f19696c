"""Schedules of one request between a prefill node and a decode node: what overlaps with what.

A request's KV is computed in pieces, each piece is moved when it is there, and decoding waits for those it needs.
Schedules differ in what a piece is and how long decoding waits:

==============  ==========================  ================================================
schedule        a piece is                  decoding
==============  ==========================  ================================================
sequential      a block of tokens           waits for all of them, moved after all of prefill
pipelined       a block of tokens           step i waits for block i
layered         a layer, or some of them    goes through its first step layer by layer
chunked         a chunk of prefill          waits for all of them
==============  ==========================  ================================================

*Overlap efficiency* is the share of the ideal overlap that is had: 1 is the schedule as drawn, 0 is prefill, transfer
and decoding one after the other, and between them every time is the mean of the two. Copies share memory bandwidth
with kernels and kernels launch late, which is why real systems are below 1.

Left out: what other requests do to the nodes (`kvarray.migrate.batch` shares the link among requests), and the cost
of announcing a piece. vLLM and SGLang start to decode when all KV is there; the pipelined schedule is the bound that
block by block consumption would reach, layered is what layer-wise connectors do.
"""

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Seconds, as_amounts, as_positive_int, check_broadcast, check_items, check_type, refuse
from kvarray.migrate.engine import Transfer, TransferEngine
from kvarray.migrate.schedule import Schedule, mix
from kvarray.timeline import Timeline, serial_timeline

__all__ = ["PDScheduler"]


class PDScheduler:
    """Schedules of prefill, transfer and decoding over the streams of an engine.

    Parameters
    ----------
    engine : TransferEngine
        What moves the KV. Leading axes of its figures are worlds of their own.
    overlap_efficiency : array_like of float, shape (...), optional
        Share of the ideal overlap that is had, ``0 <= efficiency <= 1``.

    Raises
    ------
    TypeError, ValueError
        If there is no engine, or the efficiency is no number, out of range, or does not broadcast with the engine. Or
        if it is not 1 while streams may fail: failures happen at a time, which a mean of two schedules does not have.
        Or if the engine has a NUMA penalty.

    Examples
    --------
    >>> scheduler = PDScheduler(TransferEngine(25e9, num_streams=2))
    >>> schedule = scheduler.pipelined(np.full(64, 2**20), decode_s=4e-3)
    >>> round(float(schedule.ttft_s) * 1e3, 2), round(float(schedule.makespan_s) * 1e3, 2)
    (4.04, 256.04)
    """

    def __init__(self, engine: TransferEngine, *, overlap_efficiency: ArrayLike = 1.0) -> None:
        self.engine = check_type("engine", engine, TransferEngine)
        self.overlap_efficiency = as_amounts("overlap_efficiency", overlap_efficiency, low=0.0)
        refuse("overlap_efficiency", "be 1 or less", self.overlap_efficiency > 1.0, self.overlap_efficiency)
        check_broadcast("engine and overlap_efficiency", engine.lead, self.overlap_efficiency.shape)
        if engine.numa_penalty != 1.0:
            raise ValueError("engine must have no NUMA penalty, since pieces of a schedule have no node")
        if engine.may_fail and (self.overlap_efficiency != 1.0).any():
            raise ValueError("overlap_efficiency must be 1 where streams may fail at a time")

    def sequential(
        self, block_bytes: ArrayLike, *, decode_s: ArrayLike, prefill_s: ArrayLike = 0.0, num_streams: int = 1
    ) -> Schedule:
        """Return the schedule in which everything is computed, then moved, then decoded.

        Parameters
        ----------
        block_bytes : array_like of float, shape (..., N)
            Bytes of each block; one or more.
        decode_s : array_like of float, shape (..., D)
            Time of each decode step; one number stands for one step per block.
        prefill_s : array_like of float, shape (..., N), optional
            Time to compute each block.
        num_streams : int, optional
            How many of the engine's streams are used. One by default: the baseline moves block after block.

        Returns
        -------
        Schedule
            ``ttft = prefill + transfer of all blocks + decode[0]``. Overlap efficiency has nothing to act on.

        Raises
        ------
        TypeError, ValueError
            If there is no block or step, an argument is no number or out of range, or the shapes do not broadcast.
        TransferError
            If all streams fail before all blocks are through.

        Examples
        --------
        >>> scheduler, blocks = PDScheduler(TransferEngine(25e9, num_streams=2)), np.full(64, 2**20)
        >>> one, both = (scheduler.sequential(blocks, decode_s=4e-3, num_streams=n) for n in (1, 2))
        >>> round(float(one.ttft_s) * 1e3, 2), round(float(both.ttft_s) * 1e3, 3)
        (6.68, 5.342)
        """
        size, prefill = _as_pieces("block_bytes", block_bytes, prefill_s)
        decode = _as_steps(decode_s, size.shape[-1])
        self._check_worlds("block_bytes", size, prefill, decode)
        computed = serial_timeline(prefill)
        transfer = self.engine.first_streams(num_streams).transfer(size, ready_s=_end(computed))
        return _serial("sequential", computed, transfer, decode, 0)

    def pipelined(self, block_bytes: ArrayLike, *, decode_s: ArrayLike, prefill_s: ArrayLike = 0.0) -> Schedule:
        """Return the schedule in which step i of decoding starts as soon as blocks 0 to i are there.

        Parameters
        ----------
        block_bytes : array_like of float, shape (..., N)
            Bytes of each block; one or more.
        decode_s : array_like of float, shape (..., N)
            Time of the decode step that each block allows; one number stands for all of them.
        prefill_s : array_like of float, shape (..., N), optional
            Time to compute each block.

        Returns
        -------
        Schedule
            ``ttft = arrival of the first block + decode[0]`` where overlap is ideal.

        Raises
        ------
        TypeError, ValueError
            As `sequential`, or if there are not as many steps as blocks.
        TransferError
            As `sequential`.

        Examples
        --------
        >>> PDScheduler(TransferEngine(1.0)).pipelined([1.0, 5.0], decode_s=2.0).bubble_s.tolist()
        3.0
        """
        size, prefill = _as_pieces("block_bytes", block_bytes, prefill_s)
        num_blocks = size.shape[-1]
        decode = _as_steps(decode_s, num_blocks)
        if decode.shape[-1] != num_blocks:
            raise ValueError(f"decode_s must have one step for each of {num_blocks} blocks: got {decode.shape[-1]}")
        self._check_worlds("block_bytes", size, prefill, decode)
        return self._overlapped("pipelined", prefill, size, decode, waits_for_all=False, first_token=0)

    def layered(
        self, layer_bytes: ArrayLike, *, decode_s: ArrayLike, prefill_s: ArrayLike = 0.0, group_layers: int = 1
    ) -> Schedule:
        """Return the schedule in which layers are moved behind prefill, and the first step of decoding behind them.

        Parameters
        ----------
        layer_bytes : array_like of float, shape (..., L)
            Bytes of each layer, of all tokens; one layer or more.
        decode_s : array_like of float, shape (..., D)
            Time of each decode step; one number stands for one step.
        prefill_s : array_like of float, shape (..., L), optional
            Time to compute each layer.
        group_layers : int, optional
            How many layers are moved as one, ``>= 1``.

        Returns
        -------
        Schedule
            ``moved[g] = max(moved[g - 1], computed[g]) + move[g]`` over one stream, and likewise the parts of the
            first decode step, of which each group takes its share of the layers. The first token is out when the last
            group is through; then come the other steps.

        Raises
        ------
        TypeError, ValueError
            As `sequential`.
        TransferError
            As `sequential`.

        Examples
        --------
        >>> scheduler = PDScheduler(TransferEngine(25e9))
        >>> layers = np.full(80, 64 * 2**20 / 80)
        >>> round(float(scheduler.layered(layers, decode_s=4e-3).ttft_s) * 1e3, 3)
        4.034
        """
        size, prefill = _as_pieces("layer_bytes", layer_bytes, prefill_s)
        steps = _as_steps(decode_s, 1)
        self._check_worlds("layer_bytes", size, prefill, steps)
        starts = np.arange(0, size.shape[-1], min(as_positive_int("group_layers", group_layers), size.shape[-1]))
        share = np.diff(starts, append=size.shape[-1]) / size.shape[-1]  # of the layers, in each group
        size, prefill = np.add.reduceat(size, starts, axis=-1), np.add.reduceat(prefill, starts, axis=-1)

        decode = np.concatenate((steps[..., :1] * share, steps[..., 1:]), axis=-1)
        return self._overlapped("layered", prefill, size, decode, waits_for_all=False, first_token=len(starts) - 1)

    def chunked(self, chunk_bytes: ArrayLike, *, decode_s: ArrayLike, prefill_s: ArrayLike) -> Schedule:
        """Return the schedule in which chunks of prefill are moved while the next ones are computed.

        Parameters
        ----------
        chunk_bytes : array_like of float, shape (..., P)
            Bytes of each chunk; one or more.
        decode_s : array_like of float, shape (..., D)
            Time of each decode step; one number stands for one step.
        prefill_s : array_like of float, shape (..., P)
            Time to compute each chunk, which grows with the tokens before it: see `PrefillTime.chunk_seconds`.

        Returns
        -------
        Schedule
            ``ttft = arrival of the last chunk + decode[0]`` where overlap is ideal.

        Raises
        ------
        TypeError, ValueError
            As `sequential`.
        TransferError
            As `sequential`.

        Examples
        --------
        >>> PDScheduler(TransferEngine(1.0)).chunked([1.0, 1.0], prefill_s=[2.0, 3.0], decode_s=0.5).ttft_s.tolist()
        6.5
        """
        size, prefill = _as_pieces("chunk_bytes", chunk_bytes, prefill_s)
        decode = _as_steps(decode_s, 1)
        self._check_worlds("chunk_bytes", size, prefill, decode)
        return self._overlapped("chunked", prefill, size, decode, waits_for_all=True, first_token=0)

    def _check_worlds(self, name: str, size: Seconds, prefill: Seconds, decode: Seconds) -> None:
        """Refuse leading axes that do not broadcast, with those of the engine and of the overlap efficiency."""
        check_broadcast(
            f"engine, overlap_efficiency, {name}, prefill_s and decode_s",
            *(self.engine.lead, self.overlap_efficiency.shape),
            *(column.shape[:-1] for column in (size, prefill, decode)),
        )

    def _overlapped(
        self, name: str, prefill: Seconds, size: Seconds, decode: Seconds, *, waits_for_all: bool, first_token: int
    ) -> Schedule:
        """Draw a schedule, mixed with the serial one where overlap is not ideal."""
        computed = serial_timeline(prefill)
        ready = computed.finish_s if prefill.any() else np.zeros(1)
        transfer = self.engine.transfer(size, ready_s=ready)
        ideal = Schedule(
            name,
            computed,
            transfer,
            _decode(decode, transfer.arrive_s, waits_for_all),
            first_token,
            _decode(decode, computed.finish_s, waits_for_all).finish_s[..., first_token],
        )
        if (self.overlap_efficiency == 1.0).all():
            return ideal
        again = self.engine.transfer(size, ready_s=_end(computed), streams=transfer.timeline.resource)
        return mix(_serial(name, computed, again, decode, first_token), ideal, self.overlap_efficiency)


def _serial(name: str, computed: Timeline, transfer: Transfer, decode: Seconds, first_token: int) -> Schedule:
    """Decode after a transfer that came after prefill."""
    free = _decode(decode, computed.finish_s, True).finish_s[..., first_token]
    return Schedule(name, computed, transfer, _decode(decode, transfer.arrive_s, True), first_token, free)


def _decode(decode: Seconds, arrive: Seconds, waits_for_all: bool) -> Timeline:
    """Decode jobs behind pieces: each behind its own, those beyond the last piece behind that one; or all behind all.

    A job behind its own piece is behind the earlier ones as well, since the job before it was.
    """
    if waits_for_all:
        return serial_timeline(decode, ready_s=arrive.max(axis=-1, keepdims=True))
    if decode.shape[-1] > arrive.shape[-1]:
        arrive = arrive[..., np.minimum(np.arange(decode.shape[-1]), arrive.shape[-1] - 1)]
    return serial_timeline(decode, ready_s=arrive)


def _end(computed: Timeline) -> Seconds:
    return computed.finish_s[..., -1:]


def _as_pieces(name: str, num_bytes: ArrayLike, prefill_s: ArrayLike) -> tuple[Seconds, Seconds]:
    """Return bytes and prefill times of the pieces, which are of one number."""
    size, prefill = as_amounts(name, num_bytes, low=0.0), as_amounts("prefill_s", prefill_s, low=0.0)
    if size.ndim == 0 or size.shape[-1] == 0:
        raise ValueError(f"{name} must have one item or more: got shape {size.shape}")
    check_broadcast(f"{name} and prefill_s", size.shape, prefill.shape)
    check_items("prefill_s", prefill, size.shape[-1], of="pieces")
    return size, np.broadcast_to(prefill, (*prefill.shape[:-1], size.shape[-1]))


def _as_steps(decode_s: ArrayLike, num_steps: int) -> Seconds:
    decode = as_amounts("decode_s", decode_s, low=0.0)
    if decode.ndim == 0:
        return np.broadcast_to(decode, (num_steps,))
    if decode.shape[-1] == 0:
        raise ValueError(f"decode_s must have one step or more: got shape {decode.shape}")
    return decode
