"""Moving blocks over several streams, which may differ in speed, sit on different sockets and fail.

Modelled: each stream moves one block at a time and is busy for its fragments and its bytes; a block has arrived one
latency after its stream is done with it, and the stream does not wait for that. Blocks are assigned when the batch is
submitted, round robin or each to the stream that will have moved it first, and keep their order on a stream. When
streams fail, the blocks on their way and those behind them are assigned anew in order of the batch, by the same rule
(round robin begins with the first stream that is left), behind what the streams left have to do already. Streams that
fail at one moment fail together. What had left its stream, if only just, arrives.

Left out: repair of a stream, and the time it takes to notice a failure. Mooncake's engine cuts requests into slices
and picks a device for each, NIXL leaves the choice to its backend: here a block goes to one stream as a whole, so
that a result can be read block by block.
"""

import math
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal, NoReturn, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import (
    Flags,
    Ids,
    Seconds,
    as_amount,
    as_amounts,
    as_array,
    as_floats,
    as_ids,
    as_int,
    as_positive_int,
    check_broadcast,
    check_items,
    check_type,
)
from kvarray.errors import InvariantError, TransferError
from kvarray.link import Link
from kvarray.timeline import Timeline, assigned_timeline, least_loaded_timeline, round_robin_timeline
from kvarray.timeline.streams import as_num_resources

__all__ = ["LostAttempts", "Transfer", "TransferEngine"]

Assignment: TypeAlias = Literal["round_robin", "least_loaded"]


@dataclass(frozen=True, eq=False)
class LostAttempts:
    """Blocks that were on their way when their stream failed, one row each.

    Attributes
    ----------
    world : ndarray of int64, shape (A,)
        Index into the flattened leading axes; 0 where there are none.
    block, stream : ndarray of int64, shape (A,)
    start_s, finish_s : ndarray of float64, shape (A,)
        From the start of the block to the failure of the stream.
    """

    world: Ids
    block: Ids
    stream: Ids
    start_s: Seconds
    finish_s: Seconds


@dataclass(frozen=True, eq=False)
class Transfer:
    """What became of a batch of blocks.

    Attributes
    ----------
    timeline : Timeline
        When each block was on its stream (`resource`), in the attempt that got through.
    arrive_s : ndarray of float64, shape (..., N)
        When each block is at its destination.
    attempts : ndarray of int64, shape (..., N)
        How often each block was assigned to a stream; 1 unless streams failed.
    lost : LostAttempts
        The attempts cut short by a failure.
    fail_s : ndarray of float64, shape (S,)
        When each stream fails; infinity for never.

    Notes
    -----
    Invariants, verified by `check` beside those of the timeline:

    T1. Each block gets through exactly once, before its stream fails.
    T2. A lost attempt ends when its stream fails, and its block was assigned again.
    """

    timeline: Timeline
    arrive_s: Seconds
    attempts: Ids
    lost: LostAttempts
    fail_s: Seconds

    @property
    def retried(self) -> Flags:
        """Which blocks had to be sent again, on their way or waiting when their stream failed, shape ``[..., N]``."""
        return self.attempts > 1

    def check(self) -> None:
        """Raise `InvariantError` unless T1, T2 and the laws of the timeline hold."""
        self.timeline.check()
        streams = self.timeline.resource
        is_late = ~(self.timeline.finish_s <= self.fail_s[streams])
        if is_late.any():
            raise InvariantError(f"T1: {is_late.sum()} blocks got through a stream that had failed")
        attempts = self.attempts.reshape(math.prod(self.attempts.shape[:-1]), self.timeline.num_jobs)
        wrong = (self.lost.finish_s != self.fail_s[self.lost.stream]) | (self.lost.start_s >= self.lost.finish_s)
        wrong |= attempts[self.lost.world, self.lost.block] < 2
        if wrong.any():
            raise InvariantError(f"T2: {wrong.sum()} lost attempts do not end with their stream, or without another")


class TransferEngine:
    """Streams that move blocks.

    Parameters
    ----------
    bytes_per_second : array_like of float, shape (..., S)
        Bandwidth of each stream, ``> 0``. Leading axes are worlds of their own: a thousand link speeds in one call.
    num_streams : int, optional
        S, where it is not the last axis of `bytes_per_second`, which then broadcasts to it.
    latency_s : array_like of float, shape (..., S), optional
        From the end of a block on its stream to its arrival.
    alpha_s : array_like of float, shape (..., S), optional
        What each fragment keeps a stream busy beside its bytes.
    fragment_bytes : int, optional
        Largest fragment. A block is one, contiguous, where it is not given; a block that lies in one piece per layer
        has fragments of a layer's share.
    assignment : {"round_robin", "least_loaded"}, optional
        Block i to stream ``i % S``, or each to the stream that will have moved it first.
    stream_node : array_like of int, shape (S,), optional
        NUMA node of each stream.
    numa_penalty : float, optional
        By what factor, ``>= 1``, the bytes of a block on another node take longer.
    fail_s : array_like of float, shape (S,), optional
        When each stream fails; infinity for never.

    Raises
    ------
    TypeError, ValueError
        If a figure is no number, NaN or out of range, the shapes do not broadcast, or there is no stream.

    Examples
    --------
    >>> engine = TransferEngine(25e9, num_streams=2)
    >>> moved = engine.transfer(np.full(64, 2**20))
    >>> round(float(moved.arrive_s[0]) * 1e3, 4), round(float(moved.arrive_s.max()) * 1e3, 3)
    (0.0419, 1.342)
    """

    def __init__(
        self,
        bytes_per_second: ArrayLike,
        *,
        num_streams: int | None = None,
        latency_s: ArrayLike = 0.0,
        alpha_s: ArrayLike = 0.0,
        fragment_bytes: int | None = None,
        assignment: Assignment = "round_robin",
        stream_node: ArrayLike | None = None,
        numa_penalty: float = 1.0,
        fail_s: ArrayLike = np.inf,
    ) -> None:
        self.bytes_per_second = _per_stream("bytes_per_second", bytes_per_second, open_low=True)
        self.latency_s = _per_stream("latency_s", latency_s)
        self.alpha_s = _per_stream("alpha_s", alpha_s)
        self.num_streams = as_num_resources(
            "num_streams", self.bytes_per_second.shape[-1] if num_streams is None else num_streams
        )
        self.fragment_bytes = (
            None if fragment_bytes is None else as_int("fragment_bytes", fragment_bytes, low=1, high=2**63)
        )
        self.assignment = assignment
        self.stream_node = None if stream_node is None else as_ids("stream_node", stream_node, 2**31)
        self.numa_penalty = as_amount("numa_penalty", numa_penalty, low=1.0)
        fail = np.array(as_floats("fail_s", fail_s, low=0.0, finite=False))
        self.fail_s = np.broadcast_to(fail, (self.num_streams,)) if fail.ndim == 0 else fail
        self._check_streams()
        self.lead = check_broadcast(
            "bytes_per_second, latency_s and alpha_s",
            self.bytes_per_second.shape[:-1],
            self.latency_s.shape[:-1],
            self.alpha_s.shape[:-1],
        )

    def _check_streams(self) -> None:
        """Refuse figures that do not fit the number of streams, or each other."""
        if self.assignment not in get_args(Assignment):
            raise ValueError(f"assignment must be one of {', '.join(get_args(Assignment))}: got {self.assignment!r}")
        if self.stream_node is None and self.numa_penalty != 1.0:
            raise ValueError("numa_penalty needs stream_node, the NUMA node of each stream")
        for name in ("bytes_per_second", "latency_s", "alpha_s"):
            if getattr(self, name).shape[-1] not in (1, self.num_streams):
                self._misfit(name)
        for name in ("stream_node", "fail_s"):
            if getattr(self, name) is not None and getattr(self, name).shape != (self.num_streams,):
                self._misfit(name)

    def _misfit(self, name: str) -> NoReturn:
        raise ValueError(
            f"{name} must have one item for each of {self.num_streams} streams: got shape {getattr(self, name).shape}"
        )

    @classmethod
    def over(cls, link: Link, *, num_streams: int = 1, assignment: Assignment = "round_robin") -> "TransferEngine":
        """Return an engine of equal streams, each with the figures of a link.

        Examples
        --------
        >>> from kvarray import LINKS
        >>> TransferEngine.over(LINKS["net-200g"], num_streams=8).num_streams
        8
        """
        check_type("link", link, Link)
        return cls(
            link.bytes_per_second,
            num_streams=num_streams,
            latency_s=link.latency_s,
            alpha_s=link.alpha_s,
            fragment_bytes=link.fragment_bytes,
            assignment=assignment,
        )

    @property
    def may_fail(self) -> bool:
        """Whether a stream has a time at which it fails."""
        return bool(np.isfinite(self.fail_s).any())

    def first_streams(self, num_streams: int) -> "TransferEngine":
        """Return an engine of the first `num_streams` streams of this one.

        Examples
        --------
        >>> TransferEngine([25e9, 50e9]).first_streams(1).bytes_per_second
        array([2.5e+10])
        """
        num_streams = as_positive_int("num_streams", num_streams)
        if num_streams > self.num_streams:
            raise ValueError(f"num_streams must be {self.num_streams} or fewer: got {num_streams}")
        return TransferEngine(
            self.bytes_per_second[..., :num_streams],
            num_streams=num_streams,
            latency_s=self.latency_s[..., :num_streams],
            alpha_s=self.alpha_s[..., :num_streams],
            fragment_bytes=self.fragment_bytes,
            assignment=self.assignment,
            stream_node=None if self.stream_node is None else self.stream_node[:num_streams],
            numa_penalty=self.numa_penalty,
            fail_s=self.fail_s[:num_streams],
        )

    def transfer(
        self,
        block_bytes: ArrayLike,
        *,
        ready_s: ArrayLike = 0.0,
        block_node: ArrayLike | None = None,
        streams: ArrayLike | None = None,
    ) -> Transfer:
        """Return what becomes of a batch of blocks.

        Parameters
        ----------
        block_bytes : array_like of float, shape (..., N)
            Size of each block, ``>= 0``.
        ready_s : array_like of float, shape (..., N), optional
            Time from which a block can be read.
        block_node : array_like of int, shape (N,), optional
            NUMA node of each block, where streams have one.
        streams : array_like of int, shape (..., N), optional
            The stream of each block, instead of the engine's assignment; blocks of failed streams are assigned anew.

        Returns
        -------
        Transfer
            Per block, ``arrive = finish on its stream + latency``; a block of no bytes is there at once.

        Raises
        ------
        TypeError, ValueError
            If an argument is no number or out of range, or the shapes do not broadcast.
        TransferError
            If all streams fail before all blocks are through. The engine keeps no state, so nothing has changed.

        Notes
        -----
        Sequential law in the order of the blocks, O(N S) for each world and moment at which streams fail.

        Examples
        --------
        >>> engine = TransferEngine([1e6, 1e6], fail_s=[np.inf, 1.5])
        >>> moved = engine.transfer([1e6, 1e6, 1e6, 1e6])
        >>> moved.arrive_s, moved.retried  # the last block was half way when stream 1 failed
        (array([1., 1., 2., 3.]), array([False, False, False,  True]))
        """
        size, ready, node = self._as_blocks(block_bytes, ready_s, block_node)
        given = None if streams is None else self._as_streams(streams, size, ready)

        if given is None:
            timeline = self._assign(size, ready, node, np.arange(self.num_streams), free=_ALWAYS)
        else:
            timeline = assigned_timeline(self._work(size, node, given), given, self.num_streams, ready_s=ready)
        attempts = np.broadcast_to(np.int64(1), timeline.finish_s.shape)
        lost: list[LostAttempts] = []
        if self.may_fail and timeline.finish_s.size:
            timeline, attempts, lost = self._survive(timeline, size, node)
        arrive = timeline.finish_s
        if self.latency_s.any():
            arrive = arrive + np.where(size > 0.0, _at_stream(self.latency_s, timeline.resource), 0.0)
        return Transfer(timeline, arrive, attempts, _join(lost), self.fail_s)

    def _as_blocks(
        self, block_bytes: ArrayLike, ready_s: ArrayLike, block_node: ArrayLike | None
    ) -> tuple[Seconds, Seconds, Ids | None]:
        size, ready = as_amounts("block_bytes", block_bytes, low=0.0), as_amounts("ready_s", ready_s)
        if size.ndim == 0:
            raise ValueError("block_bytes must have an axis of blocks: got one number")
        ready = ready[None] if ready.ndim == 0 else ready
        num_blocks = check_broadcast("block_bytes and ready_s", size.shape[-1:], ready.shape[-1:])[0]
        lead = check_broadcast(
            "bytes_per_second, block_bytes and ready_s", self.lead, size.shape[:-1], ready.shape[:-1]
        )
        size = np.broadcast_to(size, (*size.shape[:-1], num_blocks))
        ready = np.broadcast_to(ready, (*lead, ready.shape[-1]))
        if block_node is None:
            if self.numa_penalty != 1.0:
                raise ValueError("block_node must be given, since streams on another NUMA node are slower")
            return size, ready, None
        if self.stream_node is None:
            raise ValueError("block_node needs an engine with stream_node, the NUMA node of each stream")
        node = as_ids("block_node", block_node, 2**31)
        if len(node) != num_blocks:
            raise ValueError(f"block_node must have one item for each of {num_blocks} blocks: got {len(node)}")
        return size, ready, node

    def _as_streams(self, streams: ArrayLike, size: Seconds, ready: Seconds) -> Ids:
        raw = as_array("streams", streams)
        given = as_ids("streams", raw.reshape(-1), self.num_streams).reshape(raw.shape)
        if given.ndim == 0:
            raise ValueError("streams must have an axis of blocks: got one number")
        check_items("streams", given, size.shape[-1], of="blocks")
        names = "bytes_per_second, block_bytes and ready_s with streams"
        check_broadcast(names, np.broadcast_shapes(size.shape[:-1], ready.shape[:-1]), given.shape[:-1])
        return given

    def _work(self, size: Seconds, node: Ids | None, streams: Ids) -> Seconds:
        """How long blocks, shape [..., N], keep the streams they go to, shape [..., N] or [1], busy."""
        work = size / _at_stream(self.bytes_per_second, streams)
        if node is not None and self.stream_node is not None:
            work = work * np.where(self.stream_node[streams] == node, 1.0, self.numa_penalty)
        if not self.alpha_s.any():
            return work
        fragments = size > 0.0 if self.fragment_bytes is None else np.ceil(size / self.fragment_bytes)
        return work + fragments * _at_stream(self.alpha_s, streams)

    def _assign(self, size: Seconds, ready: Seconds, node: Ids | None, streams: Ids, *, free: Seconds) -> Timeline:
        """Put blocks on the given streams, which are free from `free`, shape [..., streams] or [1]."""
        if self.assignment == "round_robin":
            turn = streams[np.arange(size.shape[-1]) % len(streams)]
            timeline = round_robin_timeline(self._work(size, node, turn), len(streams), ready_s=ready, free_s=free)
        else:
            on_each = [self._work(size, node, stream) for stream in streams[:, None]]
            work = np.stack(np.broadcast_arrays(*on_each), axis=-1)
            timeline = least_loaded_timeline(work, ready_s=ready, free_s=free)
        if len(streams) == self.num_streams:
            return timeline
        return replace(timeline, resource=streams[timeline.resource], num_resources=self.num_streams)

    def _survive(self, timeline: Timeline, size: Seconds, node: Ids | None) -> tuple[Timeline, Ids, list[LostAttempts]]:
        """Send again what failing streams have not moved; the loop is over the moments at which some fail."""
        shape = timeline.finish_s.shape
        size = np.broadcast_to(size, shape)
        nodes = None if node is None else np.broadcast_to(node, shape)
        start, finish, work = timeline.start_s, timeline.finish_s, np.array(timeline.work_s)
        stream, attempts = np.array(timeline.resource), np.ones(shape, dtype=np.int64)
        lost: list[LostAttempts] = []
        for moment in np.unique(self.fail_s):
            is_lost = (self.fail_s[stream] == moment) & (finish > moment)
            if not is_lost.any():
                continue
            alive = np.flatnonzero(self.fail_s > moment)
            if not len(alive):
                _strand(finish > moment, moment)
            lost.append(_cut_short(is_lost & (start < moment), stream, start, moment))

            # The lost blocks come first, in their order; behind them, blocks of no bytes fill up the shorter rows.
            order = np.argsort(~is_lost, axis=-1, kind="stable")[..., : is_lost.sum(axis=-1).max()]
            pick = partial(np.take_along_axis, indices=order, axis=-1)
            is_again = pick(is_lost)
            free = np.stack([np.where(stream == one, finish, -np.inf).max(axis=-1) for one in alive], axis=-1)
            again = self._assign(
                np.where(is_again, pick(size), 0.0),
                np.maximum(pick(timeline.ready_s), moment),
                None if nodes is None else pick(nodes),
                alive,
                free=free,
            )
            attempts += is_lost
            for column, new in (
                (start, again.start_s),
                (finish, again.finish_s),
                (work, again.work_s),
                (stream, again.resource),
            ):
                np.put_along_axis(column, order, np.where(is_again, new, pick(column)), axis=-1)
        return Timeline(timeline.ready_s, start, finish, work, stream, self.num_streams), attempts, lost


_ALWAYS = np.array([-np.inf])


def _per_stream(name: str, figures: ArrayLike, *, open_low: bool = False) -> Seconds:
    array = np.atleast_1d(np.array(as_amounts(name, figures, low=0.0, open_low=open_low)))
    array.setflags(write=False)
    return array


def _at_stream(figures: Seconds, streams: Ids) -> Seconds:
    """Return the figures, shape [..., S] or [..., 1], of streams, shape [N] or [..., N]."""
    if figures.shape[-1] == 1:
        return figures
    if streams.ndim == 1 or figures.ndim == 1:
        return figures[..., streams]
    lead = np.broadcast_shapes(figures.shape[:-1], streams.shape[:-1])
    figures = np.broadcast_to(figures, (*lead, figures.shape[-1]))
    return np.take_along_axis(figures, np.broadcast_to(streams, (*lead, streams.shape[-1])), axis=-1)


def _strand(is_left: Flags, moment: float) -> NoReturn:
    blocks = np.flatnonzero(is_left.reshape(-1, is_left.shape[-1]).any(axis=0))
    raise TransferError(
        f"all streams have failed at {moment:g} s, with {len(blocks)} blocks to go, the first {blocks[:5].tolist()}",
        ids=blocks,
    )


def _cut_short(is_cut: Flags, stream: Ids, start: Seconds, moment: float) -> LostAttempts:
    world, block = np.nonzero(is_cut.reshape(-1, is_cut.shape[-1]))
    return LostAttempts(world, block, stream[is_cut], start[is_cut], np.full(len(block), moment))


def _join(lost: list[LostAttempts]) -> LostAttempts:
    if not lost:
        none = np.zeros(0, dtype=np.int64)
        return LostAttempts(none, none, none, np.zeros(0), np.zeros(0))
    return LostAttempts(*(np.concatenate([getattr(one, f.name) for one in lost]) for f in fields(LostAttempts)))
