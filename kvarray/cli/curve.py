"""`kvarray curve`: the hit rate of every cache size, exactly."""

import argparse
from typing import Any

import numpy as np

from kvarray.cli.arguments import (
    add_output_flags,
    add_trace_arguments,
    add_weight_arguments,
    bytes_per_block,
    list_of,
    load_trace,
)
from kvarray.cli.output import print_csv, print_json, print_table
from kvarray.reuse import UNITS, HitCurve, hit_curve, optimal_hits, prefix_runs, stream_curve, ttl_curve
from kvarray.trace import Trace
from kvarray.units import format_bytes, parse_bytes, parse_count, parse_seconds

__all__ = ["add_parser", "run"]

_EPILOG = """examples:
  kvarray curve                                              a built-in workload
  kvarray curve trace.jsonl --block-size 512 --optimal       with the most any policy could hit
  kvarray curve trace.jsonl --memory 64GiB,1TB --model llama-3.1-70b --dtype fp8
  kvarray curve trace.jsonl --ttl 1min,1h --window 0.5       entries that expire; later half counted
"""


def add_parser(subparsers: Any) -> None:
    """Declare the flags of `kvarray curve`."""
    parser = subparsers.add_parser(
        "curve",
        help="hit rate of every cache size",
        description="Hit rate of an LRU prefix cache of every size on a trace of requests.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_trace_arguments(parser)
    what = parser.add_argument_group("what to ask for (default: a ladder of capacities)")
    what.add_argument("--capacity", type=list_of(parse_count), metavar="N,...", help="capacities in blocks (10k)")
    what.add_argument("--memory", type=list_of(parse_bytes), metavar="SIZE,...", help="capacities in bytes (64GiB)")
    what.add_argument("--ttl", type=list_of(parse_seconds), metavar="T,...", help="times to live (90, 10min) instead")
    what.add_argument("--target", type=list_of(_rate), metavar="RATE,...", help="smallest that reaches a hit rate")
    what.add_argument("--share", type=list_of(_rate), metavar="SHARE,...", help="... or a share of the ceiling (90%%)")
    how = parser.add_argument_group("how to count")
    how.add_argument("--unit", choices=UNITS, help="unit of --target, --share and --plot; token")
    how.add_argument(
        "--window", type=float, default=0.0, metavar="W", help="share of requests that only warm the cache"
    )
    how.add_argument(
        "--optimal", action="store_true", help="beside it the most blocks any policy could hit: farthest next use"
    )
    how.add_argument("--stream", choices=("head_first", "tail_first"), help="plain LRU over the stream of blocks")
    add_weight_arguments(parser.add_argument_group("what a block weighs"))
    add_output_flags(parser)
    parser.add_argument("--plot", metavar="FILE", help="draw the curve (png, svg, pdf)")
    parser.set_defaults(run=run)


def _rate(text: str) -> float:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise ValueError(f"a rate must be a number such as 0.3 or 30%: got {text!r}") from None


def run(args: argparse.Namespace) -> None:
    """Answer `kvarray curve`."""
    _refuse_mixtures(args)
    trace = load_trace(args)
    block_bytes = bytes_per_block(args, trace)
    runs = None if args.stream else prefix_runs(trace)
    if args.ttl is not None:
        curve = ttl_curve(trace, window=args.window, runs=runs)
    elif args.stream:
        curve = stream_curve(trace, order=args.stream, window=args.window)
    else:
        curve = hit_curve(trace, window=args.window, runs=runs)
    levels = _levels(args, curve, block_bytes)
    points = _points(curve, levels, block_bytes)
    if args.optimal:
        best = optimal_hits(trace, levels, window=args.window, runs=runs)
        for k, point in enumerate(points):
            point["optimal_hit_blocks"] = int(best.hit_blocks[k])
            point["optimal_hit_tokens"] = int(best.hit_tokens[k])
            point["optimal_token_hit_rate"] = int(best.hit_tokens[k]) / max(curve.totals["token"], 1)
    if args.plot is not None:
        _plot(args, trace, curve, points, levels, block_bytes)
    if args.json:
        print_json(_as_json(args, trace, curve, points))
    elif args.csv:
        print_csv(points)
    else:
        _print_text(trace, curve, points)


def _refuse_mixtures(args: argparse.Namespace) -> None:
    weighs = [flag for flag in ("model", "bytes_per_token", "bytes_per_block") if getattr(args, flag) is not None]
    if args.ttl is not None:
        for flag in ("capacity", "memory", "optimal", "stream", *weighs):
            if getattr(args, flag):
                raise ValueError(f"--ttl asks for times, --{flag.replace('_', '-')} for capacities: give one of them")
    if args.optimal and args.stream:
        raise ValueError("--optimal is the optimum for prefixes: it does not go with --stream")
    if args.memory and not weighs:
        raise ValueError(
            "--memory needs to know what a block weighs: give --model, --bytes-per-token or --bytes-per-block"
        )
    if args.unit is not None and not (args.target or args.share or args.plot is not None):
        raise ValueError("--unit is the unit of --target, --share and --plot: the table has them all")


def _levels(args: argparse.Namespace, curve: HitCurve, block_bytes: int | None) -> Any:
    """Return the levels asked for, in order, each once; a ladder where none is."""
    asked: list[float] = []
    if args.ttl is not None:
        asked += args.ttl
    asked += args.capacity or []
    if args.memory and block_bytes:
        asked += [size // block_bytes for size in args.memory]
    asked += [curve.level_for(rate, unit=args.unit or UNITS[0]) for rate in args.target or []]
    asked += [curve.level_for_share(share, unit=args.unit or UNITS[0]) for share in args.share or []]
    if not asked:
        asked = _ladder(int(curve.highest_level))
    return np.unique(np.array(asked, dtype=np.float64 if args.ttl is not None else np.int64))


def _ladder(highest: int) -> list[float]:
    """Return 1, 2, 5, 10, ... up to `highest`, the last few decades of it, and `highest` itself."""
    steps = [base * 10**power for power in range(19) for base in (1, 2, 5)]
    below = [step for step in steps if step < highest]
    return [*below[-12:], highest]


def _points(curve: HitCurve, levels: Any, block_bytes: int | None) -> list[dict[str, Any]]:
    """Return one row for each level: what it is, its hits as integers, its rates by every unit."""
    name = "blocks" if curve.axis == "blocks" else "ttl_s"
    columns: dict[str, Any] = {name: levels}
    if block_bytes is not None and curve.axis == "blocks":
        columns["bytes"] = [level * block_bytes for level in levels.tolist()]
    columns |= {
        "hit_blocks": curve.hit_blocks(levels),
        "hit_tokens": curve.hit_tokens(levels),
        "hit_full_blocks": curve.hit_full_blocks(levels),
        "whole_requests": curve.whole_requests(levels),
    }
    columns |= {f"{unit}_hit_rate": curve.hit_rate(levels, unit=unit) for unit in UNITS}
    rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _as_json(args: argparse.Namespace, trace: Trace, curve: HitCurve, points: list[dict[str, Any]]) -> dict[str, Any]:
    ceiling = _points(curve, np.array([curve.highest_level]), None)[0]
    return {
        "trace": {
            "requests": trace.num_requests,
            "blocks": trace.num_blocks,
            "block_size": trace.block_size,
            "skipped": trace.skipped.num_records,
        },
        "model": args.model,
        "steps": args.stream or "requests",
        "window": args.window,
        "distinct_blocks": curve.num_distinct,
        "totals": curve.totals,
        "ceiling": ceiling,
        "points": points,
    }


def _print_text(trace: Trace, curve: HitCurve, points: list[dict[str, Any]]) -> None:
    totals = curve.totals
    print(
        f"{trace.num_requests:,} requests, {trace.num_blocks:,} blocks of {trace.block_size} tokens, "
        f"{curve.num_distinct:,} distinct; counted: {totals['request']:,} requests, {totals['token']:,} tokens"
    )
    if trace.skipped.num_records:
        print(f"left out {trace.skipped.num_records:,} malformed records, first: {trace.skipped.messages[0]}")
    hit = int(curve.hit_tokens(curve.highest_level))
    what = "infinite cache" if curve.axis == "blocks" else "entries that never expire"
    print(f"{what}: {hit:,} tokens hit, {curve.ceiling():.2%}")
    print_table([_text_row(point, curve.ceiling()) for point in points])


def _text_row(point: dict[str, Any], ceiling: float) -> dict[str, str]:
    row = {"blocks": f"{point['blocks']:,}"} if "blocks" in point else {"ttl s": f"{point['ttl_s']:.10g}"}
    if "bytes" in point:
        row["memory"] = format_bytes(point["bytes"])
    row["hit tokens"] = f"{point['hit_tokens']:,}"
    row["token"] = f"{point['token_hit_rate']:.2%}"
    row["block"] = f"{point['block_hit_rate']:.2%}"
    row["full block"] = f"{point['full_block_hit_rate']:.2%}"
    row["of ceiling"] = f"{point['token_hit_rate'] / ceiling if ceiling else 0:.1%}"
    if "optimal_token_hit_rate" in point:
        row["optimal"] = f"{point['optimal_token_hit_rate']:.2%}"
    return row


def _plot(
    args: argparse.Namespace,
    trace: Trace,
    curve: HitCurve,
    points: list[dict[str, Any]],
    levels: Any,
    block_bytes: int | None,
) -> None:
    from kvarray.plot import plot_curve, save_figure

    unit, beside = args.unit or UNITS[0], {}
    if args.optimal:
        if unit not in ("token", "block"):
            raise ValueError(f"--optimal is plotted by token or block: got --unit {unit}")
        key, total = f"optimal_hit_{unit}s", max(curve.totals[unit], 1)
        beside["optimal"] = (levels, [point[key] / total for point in points])
    title = f"{trace.num_requests:,} requests, {curve.num_distinct:,} distinct blocks of {trace.block_size} tokens"
    figure = plot_curve(curve, levels=levels, unit=unit, beside=beside, bytes_per_block=block_bytes, title=title)
    save_figure(figure, args.plot)
