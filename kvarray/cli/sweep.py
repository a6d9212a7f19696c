"""`kvarray sweep`: what every combination of sizes, links, policies ... would have cost."""

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from kvarray.arrays import as_positive_int
from kvarray.cli.arguments import add_output_flags, add_trace_arguments, flag_type, load_trace
from kvarray.cli.output import print_csv, print_json, print_table, progress_bar
from kvarray.cli.replay import add_deployment_flags, read_flags
from kvarray.errors import SweepError
from kvarray.grid import Grid, Sweep, sweep
from kvarray.grid.answers import best_row, describe_row, explain_sweep
from kvarray.grid.axes import Axis
from kvarray.grid.kept import read_parts, sweep_key, write_parts
from kvarray.trace import Trace
from kvarray.units import format_bytes, format_seconds, parse_count

__all__ = ["add_parser", "run"]

_EPILOG = """examples:
  kvarray sweep                                               a built-in workload, host memory and SSD varied
  kvarray sweep trace.jsonl --block-size 512 --vary cpu.capacity=64GiB:4TiB:7 --vary replicas=1,2,4,8
  kvarray sweep trace.jsonl --config grid.toml --html what-if.html --plot sweep.png
  kvarray sweep trace.jsonl --config grid.toml --target 2s --price cpu=2.5/GiB-month --price replica=24
  kvarray sweep trace.jsonl --config grid.toml --hits-only --csv > table.csv

Axes are keys of a deployment (replicas, policy, block_size, write_mode, routing ...), TIER.capacity, TIER.blocks,
TIER.bandwidth, TIER.link, TIER.admission, TIER.min_tokens, separation.FIELD and rate_scale. Values are a list, or a
ladder LOW:HIGH:COUNT in equal ratios. A TOML file has them in its table [grid], and prices in [prices].
"""


def add_parser(subparsers: Any) -> None:
    """Declare the flags of `kvarray sweep`."""
    parser = subparsers.add_parser(
        "sweep",
        help="thousands of deployments at once",
        description="Hits, gain and times to first token of every combination of some fields of a deployment.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_trace_arguments(parser)
    grid = parser.add_argument_group("what varies")
    grid.add_argument("--vary", action="append", default=[], metavar="AXIS=VALUES", help="an axis; repeat")
    grid.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="NAME=PRICE",
        help=("of a tier (cpu=2.5/GiB-month), a GB/s for an hour (cpu.bandwidth=0.01), a replica for one (replica=24)"),
    )
    grid.add_argument("--limit", type=flag_type(parse_count), default=1_000_000, metavar="N", help="most combinations")
    how = parser.add_argument_group("how it is run")
    how.add_argument("--hits-only", action="store_true", help="hits, bytes and gain; no request is timed")
    how.add_argument(
        "--samples", type=flag_type(parse_count), default=0, metavar="N", help="of sessions, for intervals"
    )
    how.add_argument("--rng", type=flag_type(parse_count), metavar="SEED", help="of the samples")
    how.add_argument("--confidence", type=float, default=0.9, metavar="C", help="of the intervals; default: 0.9")
    how.add_argument("--processes", type=flag_type(parse_count), default=1, metavar="N", help="default: this one alone")
    how.add_argument("--cluster", metavar="ADDRESS", help="of a dask scheduler (tcp://host:8786) to run on")
    how.add_argument("--keep", metavar="FILE", help="where finished parts are kept if one is lost, and taken up again")
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--at-most", action="append", default=[], metavar="COLUMN=X", help="only such combinations")
    shown.add_argument("--at-least", action="append", default=[], metavar="COLUMN=X", help="only such combinations")
    shown.add_argument("--sort", metavar="COLUMN", help="smallest first; with - before it, largest first")
    shown.add_argument("--top", type=flag_type(_positive), default=20, metavar="N", help="rows of the table; 20")
    add_deployment_flags(parser)
    add_output_flags(parser)
    parser.add_argument("--plot", metavar="FILE", help="draw the first axes (png, svg, pdf)")
    parser.add_argument("--html", metavar="FILE", help="a page with a slider for each axis; needs no network")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Answer `kvarray sweep`."""
    grid = _grid(args)
    if args.samples and args.rng is None:
        raise ValueError("--samples needs --rng: the seed of what is drawn")
    grid.check_size(args.limit)
    trace = load_trace(args)
    print(f"{_counted(grid)} of {trace.num_requests:,} requests", file=sys.stderr)
    result = _sweep(args, trace, grid)
    rows = _rows(args, result)
    if args.plot:
        from kvarray.plot import plot_grid, save_figure

        save_figure(plot_grid(result, title=_trace_line(trace)), args.plot)
    if args.html:
        from kvarray.plot import sweep_page

        page = sweep_page(result, title="What if", about=f"{_trace_line(trace)}; {_counted(grid)}")
        with open(args.html, "w", encoding="utf-8") as file:
            file.write(page)
    if args.json:
        print_json(_as_json(trace, result, rows))
    elif args.csv:
        table = result.rows()
        print_csv([_plain(table[row], result.grid.axes) for row in rows])
    else:
        _print_text(args, trace, result, rows)


def _positive(text: str) -> int:
    return as_positive_int("a number of rows", parse_count(text))


def _grid(args: argparse.Namespace) -> Grid:
    """Return the grid of file and flags; of sizes of the lower tiers, where neither says what varies."""
    fields = read_flags(args)
    axes = dict(fields.pop("grid", None) or {})
    varied = [_pair("--vary", text) for text in args.vary]
    for place, (name, _) in enumerate(varied):
        if name in dict(varied[:place]):
            raise ValueError(f"--vary must name each axis once: got {name} again")
    axes |= dict(varied)
    if not axes:
        axes = dict(_ladder(fields))
    if args.rate_scale != 1.0:
        axes.setdefault("rate_scale", [args.rate_scale])
    prices = dict(fields.pop("prices", None) or {})
    for text in args.price:
        name, price = _pair("--price", text)
        prices[name] = price if "/" in price else _number("--price", text, price)
    try:
        return Grid.from_dict(fields | {"grid": axes} | ({"prices": prices} if prices else {}))
    except TypeError as error:  # a file can hold a value of any type: no fault of the program
        raise ValueError(str(error)) from None


def _ladder(fields: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return sizes of the tiers below the first, from an eighth of what they have to eight times that."""
    from kvarray.deploy import Deployment

    axes: list[tuple[str, Any]] = []
    for tier in Deployment.from_dict(fields).tiers[1:]:
        field, size = ("capacity", tier.capacity_bytes) if tier.blocks is None else ("blocks", tier.blocks)
        axes.append((f"{tier.name}.{field}", sorted({max(1, int((size or 1) * 2.0**power)) for power in range(-3, 4)})))
    if not axes:
        raise ValueError("what varies must be said where there is one tier: give --vary, or a table grid in --config")
    return axes


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise ValueError(f"{flag} must be NAME=VALUE: got {text!r}")
    return name.strip(), value.strip()


def _number(flag: str, text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{flag} must have a number: got {text!r}") from None


def _sweep(args: argparse.Namespace, trace: Trace, grid: Grid) -> Sweep:
    """Run the sweep, from where it stopped if it did, and keep what is finished if it stops again."""
    options = {
        "ttft": not args.hits_only,
        "samples": args.samples,
        "confidence": args.confidence,
        "rng": args.rng,
    }
    key = sweep_key(trace, grid, **options) if args.keep else ""
    finished = read_parts(args.keep, key) if args.keep and os.path.exists(args.keep) else {}
    with ExitStack() as stack:
        executor, workers = _executor(args, stack)
        try:
            return sweep(
                trace,
                grid,
                limit=args.limit,
                executor=executor,
                parts=4 * workers,
                finished=finished,
                progress=progress_bar("deployments", total=grid.size),
                **options,
            )
        except SweepError as error:
            if not args.keep:
                raise ValueError(f"{error}; with --keep FILE the finished parts would be kept") from None
            write_parts(args.keep, key, error.finished)
            raise ValueError(f"{error}; the finished parts are in {args.keep}, run this again to go on") from None


def _executor(args: argparse.Namespace, stack: ExitStack) -> tuple[Any, int]:
    """Return where parts run and how many workers there are; None for this process."""
    if args.cluster and args.processes > 1:
        raise ValueError("--cluster has workers of its own: it does not go with --processes")
    if args.cluster:
        try:
            import distributed
        except ImportError:
            raise ImportError("--cluster needs dask: pip install 'kvarray[dask]'") from None
        connect: Any = distributed.Client  # untyped, where it is installed
        client = stack.enter_context(connect(args.cluster))
        return stack.enter_context(client.get_executor()), max(1, len(client.ncores()))
    if args.processes > 1:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        # A fresh interpreter each: nothing of this one's threads and locks is carried over.
        return stack.enter_context(ProcessPoolExecutor(args.processes, mp_context=get_context("spawn"))), args.processes
    return None, 1


def _rows(args: argparse.Namespace, result: Sweep) -> Any:
    """Return the rows to show, in the order to show them."""
    limits = {}
    for flag, texts in (("at_most", args.at_most), ("at_least", args.at_least)):
        pairs = [(text, *_pair(f"--{flag.replace('_', '-')}", text)) for text in texts]
        limits[flag] = {name: _number(f"--{flag.replace('_', '-')}", text, value) for text, name, value in pairs}
    rows = np.flatnonzero(result.meets(**limits))
    if not args.sort:
        return rows
    column = result[args.sort.removeprefix("-")][rows]
    return rows[np.argsort(-column if args.sort.startswith("-") else column, kind="stable")]


def _counted(grid: Grid) -> str:
    by = f" ({' x '.join(map(str, grid.shape))})" if len(grid.axes) > 1 else ""
    return f"{grid.size:,} deployments{by}"


def _trace_line(trace: Trace) -> str:
    return f"{trace.num_requests:,} requests, {trace.num_blocks:,} blocks of {trace.block_size} tokens"


def _plain(row: dict[str, Any], axes: tuple[Axis, ...]) -> dict[str, Any]:
    """Return a row whose values all go into a file of text."""
    texts = {
        axis.name: axis.label(place)
        for axis in axes
        for place, value in enumerate(axis.values)
        if row[axis.name] is value and not isinstance(value, int | float | str)
    }
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value for name, value in row.items()
    } | texts


def _as_json(trace: Trace, result: Sweep, rows: Any) -> dict[str, Any]:
    table = result.rows()
    return {
        "trace": {"requests": trace.num_requests, "blocks": trace.num_blocks, "block_size": trace.block_size},
        "axes": {axis.name: [axis.label(place) for place in range(len(axis))] for axis in result.grid.axes},
        "combinations": len(result),
        "best": best_row(result) if len(result) else None,
        "rows": [_plain(table[row], result.grid.axes) | {"row": int(row)} for row in rows],
        "answers": [
            {"question": answer.question, "text": answer.text, "figures": _finite(answer.figures)}
            for answer in explain_sweep(result)
        ],
    }


def _finite(value: Any) -> Any:
    """Return plain values without numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, int | float | str | None) else str(value)


def _print_text(args: argparse.Namespace, trace: Trace, result: Sweep, rows: Any) -> None:
    print(f"{_trace_line(trace)}; {_counted(result.grid)}")
    shown = rows[: args.top]
    print()
    if len(shown):
        print_table([_text_row(result, int(row)) for row in shown])
    else:
        print("no combination keeps within these limits")
    if len(rows) > len(shown):
        print(f"... {len(rows) - len(shown):,} more: --top, --csv or --json show them")
    if not len(result):
        return
    best = best_row(result)
    print(f"\nlooked at from {describe_row(result, best)}:")
    for answer in explain_sweep(result):
        print(answer.text)


_SHOWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("hit_rate", "hit", lambda value: f"{value:.2%}"),
    ("gain_s", "gain", lambda value: ("-" if value < 0 else "") + format_seconds(abs(value))),
    ("loaded_bytes", "loaded", format_bytes),
    ("mean_ttft_s", "mean TTFT", format_seconds),
    ("ttft_p50_s", "p50", format_seconds),
    ("ttft_p90_s", "p90", format_seconds),
    ("ttft_p99_s", "p99", format_seconds),
    ("share_within_target", "in target", lambda value: f"{value:.1%}"),
    ("cost_per_hour", "cost/h", lambda value: f"{value:.4g}"),
)
"""Columns of the table: heading, and how a value is written."""


def _text_row(result: Sweep, row: int) -> dict[str, str]:
    places = np.unravel_index(row, result.grid.shape) if result.grid.axes else ()
    cells = {axis.name: axis.label(int(place)) for axis, place in zip(result.grid.axes, places, strict=True)}
    for name, heading, write in _SHOWN:
        if name in result.columns:
            cells[heading] = write(result[name][row].item())
        if f"{name}_low" in result.columns:
            low, high = result[f"{name}_low"][row].item(), result[f"{name}_high"][row].item()
            cells[f"{heading} within"] = f"{write(low)} to {write(high)}"
    return cells
