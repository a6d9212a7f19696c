"""The engine and the schedules that the flags of `kvarray transfer` ask for."""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from kvarray.arrays import Seconds
from kvarray.cli.transfer.flags import SCHEDULES
from kvarray.economics.latency import PREFILL_TIMES
from kvarray.link import LINKS
from kvarray.migrate import PDScheduler, Schedule, TransferEngine, best_chunk, best_group, overlap_bandwidth
from kvarray.timeline.streams import as_num_resources

__all__ = ["hiding_bandwidth", "make_scheduler", "make_schedules"]


def make_scheduler(args: argparse.Namespace) -> PDScheduler:
    """Return the scheduler of the flags, a world for each value of a sweep; best sizes become numbers in `args`."""
    name, values = args.sweep or ("", np.zeros(0))
    efficiency = values if name == "overlap" else 1.0 if args.overlap is None else args.overlap
    scheduler = PDScheduler(_engine(args), overlap_efficiency=efficiency)
    if args.group == "best":
        times = {"decode_s": args.decode, "prefill_s": _prefill_s(args) / args.layers}
        args.group = int(best_group(scheduler, _layers(args), **times).best_size)
    if args.chunk == "best":
        found = best_chunk(
            scheduler,
            PREFILL_TIMES[args.prefill_model],
            num_tokens=args.blocks * args.block_tokens,
            kv_bytes_per_token=args.block_bytes / args.block_tokens,
            chunk_tokens=np.arange(1, args.blocks + 1) * args.block_tokens,
            decode_s=args.decode,
        )
        args.chunk = int(found.best_size) // args.block_tokens
    return scheduler


def _engine(args: argparse.Namespace) -> TransferEngine:
    """Return the engine of the flags; what is swept has an axis of worlds and one of streams."""
    link = LINKS[args.link] if args.link else None
    rates = args.bandwidth or [link.bytes_per_second if link else 25e9]
    num_streams = as_num_resources("num_streams", args.streams if args.streams is not None else max(len(rates), 2))
    figures: dict[str, Any] = {
        "latency": args.latency if args.latency is not None else (link.latency_s if link else 0.0),
        "alpha": args.alpha if args.alpha is not None else (link.alpha_s if link else 0.0),
        "bandwidth": np.array(rates),
    }
    if args.sweep:
        figures[args.sweep[0]] = args.sweep[1][:, None]
    fail_s = np.full(num_streams, np.inf)
    for stream, seconds in args.fail:
        if stream >= num_streams:
            raise ValueError(f"--fail must name one of {num_streams} streams, 0 to {num_streams - 1}: got {stream}")
        fail_s[stream] = min(fail_s[stream], seconds)
    return TransferEngine(
        figures["bandwidth"],
        num_streams=num_streams,
        latency_s=figures["latency"],
        alpha_s=figures["alpha"],
        fragment_bytes=args.fragment if args.fragment is not None else (link.fragment_bytes if link else None),
        assignment=args.assignment,
        fail_s=fail_s,
    )


def make_schedules(args: argparse.Namespace, scheduler: PDScheduler) -> dict[str, Schedule]:
    """Return the schedules asked for, by label, the one asked for first."""
    if not args.compare:
        return _one(args, scheduler, args.schedule)
    found: dict[str, Schedule] = {}
    for name in SCHEDULES:
        if name != "chunked" or args.prefill or args.prefill_model:  # without prefill there is nothing to chunk
            found |= _one(args, scheduler, name)
    return found


def _one(args: argparse.Namespace, scheduler: PDScheduler, name: str) -> dict[str, Schedule]:
    """Return the schedule of a name by its label; to compare with, the sequential one over one stream as well."""
    blocks, steps = np.full(args.blocks, float(args.block_bytes)), np.full(args.blocks, args.decode)
    if name == "layered":
        per_layer = _prefill_s(args) / args.layers
        layered = scheduler.layered(_layers(args), group_layers=args.group, decode_s=steps, prefill_s=per_layer)
        return {f"layered, {args.group} at once": layered}
    if name == "chunked":
        sizes, seconds = _chunks(args)
        return {f"chunked by {args.chunk}": scheduler.chunked(sizes, decode_s=steps, prefill_s=seconds)}
    seconds = _block_seconds(args)
    if name == "pipelined":
        return {name: scheduler.pipelined(blocks, decode_s=steps, prefill_s=seconds)}
    used = {scheduler.engine.num_streams}
    if args.compare and not scheduler.engine.may_fail:
        used.add(1)  # the baseline that moves block after block
    return {
        f"sequential, {n} stream{'s' if n > 1 else ''}": scheduler.sequential(
            blocks, decode_s=steps, prefill_s=seconds, num_streams=n
        )
        for n in sorted(used)
    }


def hiding_bandwidth(args: argparse.Namespace, scheduler: PDScheduler) -> float | None:
    """Return from which bandwidth on, of all streams together, layers hide behind prefill.

    All groups of layers but the last have then arrived when prefill ends. None where no layers are drawn, where no
    bandwidth is enough, or where more than bandwidth decides: streams that fail or overlap less than ideally, and
    unequal ones of which the least loaded is chosen.
    """
    engine = scheduler.engine
    is_equal = bool((engine.bytes_per_second == engine.bytes_per_second[0]).all())
    is_in_turn = is_equal or engine.assignment == "round_robin"
    is_ideal = bool((scheduler.overlap_efficiency == 1.0).all())
    starts = np.arange(0, args.layers, args.group)
    if not (args.compare or args.schedule == "layered") or engine.may_fail or not is_in_turn or not is_ideal:
        return None
    if len(starts) < 2:
        return None
    num_layers = np.diff(starts, append=args.layers)
    size = num_layers * _layers(args)[0]
    fragments = np.ones(len(size)) if engine.fragment_bytes is None else np.ceil(size / engine.fragment_bytes)
    needed = overlap_bandwidth(
        size,
        num_layers * (_prefill_s(args) / args.layers),
        overhead_s=fragments * engine.alpha_s[0],
        latency_s=engine.latency_s[0],
        stream_shares=np.broadcast_to(engine.bytes_per_second, engine.num_streams),
    )
    return float(needed) if np.isfinite(needed) else None


def _layers(args: argparse.Namespace) -> Seconds:
    """Bytes of each layer."""
    return np.full(args.layers, args.blocks * float(args.block_bytes) / args.layers)


def _prefill_s(args: argparse.Namespace) -> float:
    if not args.prefill_model:
        return float(args.prefill)
    return float(PREFILL_TIMES[args.prefill_model].seconds(args.blocks * args.block_tokens))


def _block_seconds(args: argparse.Namespace) -> Seconds:
    """Time to compute each block in one prefill: it starts once, and later blocks attend to more."""
    if not args.prefill_model:
        return np.full(args.blocks, args.prefill / args.blocks)
    model = PREFILL_TIMES[args.prefill_model]
    seconds = replace(model, start_s=0.0).chunk_seconds(args.blocks * args.block_tokens, args.block_tokens)
    seconds[0] += model.start_s
    return seconds


def _chunks(args: argparse.Namespace) -> tuple[Seconds, Seconds]:
    """Bytes and prefill time of chunks of some blocks."""
    num_blocks = np.diff(np.append(np.arange(0, args.blocks, args.chunk), args.blocks))
    if not args.prefill_model:
        return num_blocks * float(args.block_bytes), num_blocks * (args.prefill / args.blocks)
    model, tokens = PREFILL_TIMES[args.prefill_model], args.block_tokens
    return num_blocks * float(args.block_bytes), model.chunk_seconds(args.blocks * tokens, args.chunk * tokens)
