"""`kvarray transfer`: what moving KV from prefill to decode does to the time to first token."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kvarray.arrays import Seconds
from kvarray.cli.arguments import add_output_flags, flag_type, list_of
from kvarray.cli.output import print_csv, print_json, print_table
from kvarray.economics.latency import PREFILL_TIMES
from kvarray.link import LINKS
from kvarray.migrate import PDScheduler, Schedule, TransferEngine, best_chunk, best_group, overlap_bandwidth
from kvarray.units import format_bytes, format_seconds, parse_bytes, parse_count, parse_rate, parse_seconds

__all__ = ["add_parser", "run"]

_EPILOG = """examples:
  kvarray transfer                                       64 blocks of 1 MiB over two streams of 25 GB/s
  kvarray transfer --compare --prefill 200ms             every schedule side by side
  kvarray transfer --schedule layered --group best --alpha 20us --prefill 5ms
  kvarray transfer --link net-200g --streams 4 --plot gantt.png
  kvarray transfer --bandwidth 50GB/s,25GB/s --assignment least_loaded --fail 1@0.5ms
  kvarray transfer --compare --sweep bandwidth=10GB/s:400GB/s --plot ttft.png
"""
_SCHEDULES = ("sequential", "pipelined", "layered", "chunked")
_SHOWN = 12  # pieces that the table shows before the last
_LABELS = {
    "bandwidth": "bandwidth of a stream, GB/s",
    "latency": "latency, ms",
    "alpha": "cost of a fragment, us",
    "overlap": "overlap efficiency",
}
_PARSERS: dict[str, Callable[[str], float]] = {"bandwidth": parse_rate, "overlap": float}
_SCALES = {"bandwidth": 1e-9, "latency": 1e3, "alpha": 1e6, "overlap": 1.0}


def add_parser(subparsers: Any) -> None:
    """Declare the flags of `kvarray transfer`."""
    parser = subparsers.add_parser(
        "transfer",
        help="prefill-decode transfer: schedules and time to first token",
        description="The schedule of a request whose KV is computed on one node, moved, and decoded on another.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what is moved")
    what.add_argument("--blocks", type=flag_type(parse_count), default=64, metavar="N", help="default: 64")
    what.add_argument("--block-bytes", type=flag_type(parse_bytes), default=2**20, metavar="SIZE", help="1MiB")
    what.add_argument(
        "--decode", type=flag_type(parse_seconds), default=4e-3, metavar="T", help="a step, per block: 4ms"
    )
    how = parser.add_argument_group("how it is computed").add_mutually_exclusive_group()
    how.add_argument("--prefill", type=flag_type(parse_seconds), default=0.0, metavar="T", help="all of it; default: 0")
    how.add_argument("--prefill-model", choices=tuple(PREFILL_TIMES), help="a fitted model and its GPUs instead")
    parser.add_argument(
        "--block-tokens", type=flag_type(parse_count), default=16, metavar="N", help="for the model: 16"
    )
    link = parser.add_argument_group("what moves it")
    rate = link.add_mutually_exclusive_group()
    rate.add_argument(
        "--bandwidth", type=list_of(parse_rate), metavar="RATE,...", help="of a stream, or of each; default: 25GB/s"
    )
    rate.add_argument("--link", choices=tuple(LINKS), help="a link by name, with its latency and cost per fragment")
    link.add_argument("--streams", type=flag_type(parse_count), metavar="N", help="default: 2, or one per bandwidth")
    link.add_argument("--latency", type=flag_type(parse_seconds), metavar="T", help="of a block; default: 0")
    link.add_argument("--alpha", type=flag_type(parse_seconds), metavar="T", help="of a fragment; default: 0")
    link.add_argument("--fragment", type=flag_type(parse_bytes), metavar="SIZE", help="largest; default: contiguous")
    link.add_argument("--assignment", choices=("round_robin", "least_loaded"), default="round_robin")
    link.add_argument("--fail", type=list_of(_failure), default=[], metavar="STREAM@T,...", help="streams that fail")
    shape = parser.add_argument_group("schedule")
    shape.add_argument("--schedule", choices=_SCHEDULES, default="pipelined")
    shape.add_argument("--layers", type=flag_type(parse_count), default=80, metavar="N", help="of the model: 80")
    shape.add_argument("--group", type=flag_type(_size), default=1, metavar="N", help="layers moved as one, or best")
    shape.add_argument("--chunk", type=flag_type(_size), default=8, metavar="N", help="blocks of a chunk, or best: 8")
    shape.add_argument("--overlap", type=float, metavar="ETA", help="overlap efficiency, 0 to 1; default: 1")
    shape.add_argument("--compare", action="store_true", help="all schedules side by side")
    shape.add_argument(
        "--sweep", type=flag_type(_sweep), metavar="NAME=LOW:HIGH", help=f"of {', '.join(_LABELS)}; 200 values"
    )
    add_output_flags(parser)
    parser.add_argument("--plot", metavar="FILE", help="draw the schedule, or the sweep (png, svg, pdf)")
    parser.set_defaults(run=run)


def _failure(text: str) -> tuple[int, float]:
    stream, at, seconds = text.partition("@")
    if not at or not stream.strip().isdigit():
        raise ValueError(f"a failure must be STREAM@TIME, such as 1@2ms: got {text!r}")
    return int(stream), parse_seconds(seconds)


def _size(text: str) -> int | str:
    return "best" if text == "best" else parse_count(text)


def _sweep(text: str) -> tuple[str, Seconds]:
    """Return the quantity and its values: in equal ratios, or in equal steps where they begin at 0."""
    name, equals, span = text.partition("=")
    low, colon, high = span.partition(":")
    if not equals or not colon or name not in _LABELS:
        raise ValueError(f"a sweep must be one of {', '.join(_LABELS)} = LOW:HIGH: got {text!r}")
    parse = _PARSERS.get(name, parse_seconds)
    first, last = parse(low), parse(high)
    if not first < last:
        raise ValueError(f"a sweep must go from a lower to a higher value: got {text!r}")
    return name, np.geomspace(first, last, 200) if first > 0.0 and name != "overlap" else np.linspace(first, last, 200)


def run(args: argparse.Namespace) -> None:
    """Answer `kvarray transfer`."""
    if args.sweep:
        _run_sweep(args)
        return
    scheduler = PDScheduler(_engine(args), overlap_efficiency=1.0 if args.overlap is None else args.overlap)
    schedules = _schedules(args, scheduler)
    if args.plot:
        _plot_schedule(args, schedules)
    rows = [_summary(label, schedule, schedules) for label, schedule in schedules.items()]
    pieces = [] if args.compare else _pieces(next(iter(schedules.values())))
    if args.json:
        answer: dict[str, Any] = {"overlap_bytes_per_second": _hides_from(args, scheduler), "schedules": rows}
        print_json(answer | {"pieces": pieces} if pieces else answer)
    elif args.csv:
        print_csv(pieces or rows)
    else:
        _print_text(args, rows, pieces)
        hides_from = _hides_from(args, scheduler)
        if hides_from is not None:
            print(f"layers are moved behind prefill from {hides_from / 1e9:.4g} GB/s on, all streams together")


def _hides_from(args: argparse.Namespace, scheduler: PDScheduler) -> float | None:
    """Return from which bandwidth on layers hide behind prefill; None where they cannot, or nothing is computed."""
    if args.layers < 2:
        return None
    layers = np.full(args.layers, args.blocks * args.block_bytes / args.layers)
    engine = scheduler.engine
    per_layer = 1 if engine.fragment_bytes is None else np.ceil(layers / engine.fragment_bytes)
    overhead = per_layer * engine.alpha_s.max() / engine.num_streams
    needed = float(overlap_bandwidth(layers, np.full(args.layers, _prefill_s(args) / args.layers), overhead_s=overhead))
    return needed if np.isfinite(needed) else None


def _engine(args: argparse.Namespace, *, swept: Seconds | None = None) -> TransferEngine:
    """Return the engine of the flags; `swept` has an axis of worlds and one of streams."""
    link = LINKS[args.link] if args.link else None
    rates = args.bandwidth or [link.bytes_per_second if link else 25e9]
    num_streams = args.streams if args.streams is not None else (len(rates) if len(rates) > 1 else 2)
    figures: dict[str, Any] = {
        "latency": args.latency if args.latency is not None else (link.latency_s if link else 0.0),
        "alpha": args.alpha if args.alpha is not None else (link.alpha_s if link else 0.0),
        "bandwidth": np.array(rates),
    }
    if swept is not None:
        figures[args.sweep[0]] = swept
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


def _schedules(args: argparse.Namespace, scheduler: PDScheduler) -> dict[str, Schedule]:
    """Return the schedules asked for, by label, the one asked for first."""
    for flag in ("blocks", "layers", "block_tokens"):
        if getattr(args, flag) < 1:
            raise ValueError(f"--{flag.replace('_', '-')} must be 1 or more: got {getattr(args, flag)}")
    if not args.compare:
        return _one(args, scheduler, args.schedule)
    found: dict[str, Schedule] = {}
    for name in _SCHEDULES:
        if name != "chunked" or args.prefill or args.prefill_model:  # without prefill there is nothing to chunk
            found |= _one(args, scheduler, name)
    return found


def _one(args: argparse.Namespace, scheduler: PDScheduler, name: str) -> dict[str, Schedule]:
    """Return the schedule of a name by its label; to compare with, the sequential one over one stream as well."""
    blocks, steps = np.full(args.blocks, float(args.block_bytes)), np.full(args.blocks, args.decode)
    if name == "layered":
        layers = np.full(args.layers, blocks.sum() / args.layers)
        times = {"decode_s": steps, "prefill_s": _prefill_s(args) / args.layers}
        group = args.group
        if group == "best":
            group = _only(best_group(scheduler, layers, **times).best_size)
        return {f"layered, {group} at once": scheduler.layered(layers, group_layers=group, **times)}
    if name == "chunked":
        chunk = _best_chunk(args, scheduler, steps) if args.chunk == "best" else args.chunk
        sizes, seconds = _chunks(args, chunk)
        return {f"chunked by {chunk}": scheduler.chunked(sizes, decode_s=steps, prefill_s=seconds)}
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


def _chunks(args: argparse.Namespace, chunk: int) -> tuple[Seconds, Seconds]:
    """Bytes and prefill time of chunks of some blocks."""
    if chunk < 1:
        raise ValueError(f"--chunk must be 1 or more: got {chunk}")
    num_blocks = np.diff(np.append(np.arange(0, args.blocks, chunk), args.blocks))
    if not args.prefill_model:
        return num_blocks * float(args.block_bytes), num_blocks * (args.prefill / args.blocks)
    model, tokens = PREFILL_TIMES[args.prefill_model], args.block_tokens
    return num_blocks * float(args.block_bytes), model.chunk_seconds(args.blocks * tokens, chunk * tokens)


def _best_chunk(args: argparse.Namespace, scheduler: PDScheduler, steps: Seconds) -> int:
    if not args.prefill_model:
        raise ValueError(
            "--chunk best needs --prefill-model: chunks that cost nothing each are best as small as can be"
        )
    found = best_chunk(
        scheduler,
        PREFILL_TIMES[args.prefill_model],
        num_tokens=args.blocks * args.block_tokens,
        kv_bytes_per_token=args.block_bytes / args.block_tokens,
        chunk_tokens=np.arange(1, args.blocks + 1) * args.block_tokens,
        decode_s=steps,
    )
    return _only(found.best_size) // int(args.block_tokens)


def _only(best: Any) -> int:
    """Return the best size of one world; in a sweep every world could have its own."""
    if best.ndim:
        raise ValueError("best sizes are of one schedule: give a number in a --sweep")
    return int(best)


def _summary(label: str, schedule: Schedule, schedules: dict[str, Schedule]) -> dict[str, Any]:
    """Return one row of figures, arrays where worlds were swept."""
    baseline = next(iter(schedules.values()))
    row = {
        "schedule": label,
        "ttft_s": schedule.ttft_s,
        "exposed_transfer_s": schedule.exposed_transfer_s,
        "makespan_s": schedule.makespan_s,
        "bubble_s": schedule.bubble_s,
        "overlap_gain_s": schedule.overlap_gain_s(baseline),
        "resent": schedule.transfer.retried.sum(axis=-1),
    }
    return {name: value if isinstance(value, str) else np.asarray(value).tolist() for name, value in row.items()}


def _pieces(schedule: Schedule) -> list[dict[str, Any]]:
    moved = schedule.transfer.timeline
    columns = {
        "piece": np.arange(moved.num_jobs),
        "stream": moved.resource,
        "computed_s": np.broadcast_to(schedule.prefill.finish_s, moved.finish_s.shape),
        "start_s": moved.start_s,
        "arrive_s": schedule.transfer.arrive_s,
        "attempts": schedule.transfer.attempts,
        "decode_start_s": schedule.decode.start_s[: moved.num_jobs],
        "decode_finish_s": schedule.decode.finish_s[: moved.num_jobs],
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _print_text(args: argparse.Namespace, rows: list[dict[str, Any]], pieces: list[dict[str, Any]]) -> None:
    total = format_bytes(args.blocks * args.block_bytes)
    print(f"{args.blocks:,} blocks of {format_bytes(args.block_bytes)}, {total}; decode {format_seconds(args.decode)}")
    hidden = set() if any(row["resent"] for row in rows) else {"resent"}
    if len(rows) == 1:
        hidden.add("overlap_gain_s")  # over itself
    _print_rows(rows, hidden)
    if not pieces:
        return
    print()
    shown = pieces if len(pieces) <= _SHOWN + 2 else [*pieces[:_SHOWN], pieces[-1]]
    _print_rows(shown, set())
    if len(shown) < len(pieces):
        print(f"{len(pieces) - len(shown)} pieces before the last are left out; --csv prints all")


def _print_rows(rows: list[dict[str, Any]], hidden: set[str]) -> None:
    print_table(
        [
            {name.removesuffix("_s").replace("_", " "): _text(name, row[name]) for name in row if name not in hidden}
            for row in rows
        ]
    )


def _text(name: str, value: Any) -> str:
    return format_seconds(value) if name.endswith("_s") else str(value)


def _run_sweep(args: argparse.Namespace) -> None:
    """Answer for 200 values of a quantity in one call."""
    name, values = args.sweep
    if getattr(args, name) is not None:
        raise ValueError(f"--sweep {name} and --{name} exclude each other")
    if name == "overlap":
        scheduler = PDScheduler(_engine(args), overlap_efficiency=values)
    else:
        scheduler = PDScheduler(
            _engine(args, swept=values[:, None]), overlap_efficiency=1.0 if args.overlap is None else args.overlap
        )
    ttft = {label: np.broadcast_to(one.ttft_s, values.shape) for label, one in _schedules(args, scheduler).items()}
    if args.plot:
        from kvarray.plot import plot_sweep, save_figure

        title = f"{args.blocks:,} blocks of {format_bytes(args.block_bytes)}, decode {format_seconds(args.decode)}"
        save_figure(plot_sweep(values * _SCALES[name], ttft, label=_LABELS[name], title=title), args.plot)
    columns = {name: values.tolist()} | {f"{label} ttft_s": seconds.tolist() for label, seconds in ttft.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if args.json:
        print_json({"sweep": name, "values": values, "ttft_s": ttft})
    elif args.csv:
        print_csv(rows)
    else:
        shown = [rows[i] for i in np.linspace(0, len(rows) - 1, _SHOWN).round().astype(int)]
        head = {name: _LABELS[name]} | {f"{label} ttft_s": label for label in ttft}
        print(f"time to first token, {len(shown)} of {len(rows)} values; --csv prints all")
        print_table([_sweep_row(row, head, name) for row in shown])


def _sweep_row(row: dict[str, Any], head: dict[str, str], name: str) -> dict[str, str]:
    return {
        head[key]: f"{value * _SCALES[name]:.4g}" if key == name else format_seconds(value)
        for key, value in row.items()
    }


def _plot_schedule(args: argparse.Namespace, schedules: dict[str, Schedule]) -> None:
    from kvarray.plot import plot_schedule, save_figure

    if args.compare:
        raise ValueError("--plot draws one schedule or a --sweep: leave --compare out, or add a sweep")
    label, schedule = next(iter(schedules.items()))
    title = f"{label}: {args.blocks:,} blocks of {format_bytes(args.block_bytes)}"
    save_figure(plot_schedule(schedule, title=title), args.plot)
