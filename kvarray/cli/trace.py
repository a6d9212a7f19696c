"""`kvarray trace`: look at traces, turn one kind of file into another, make them up, cut them."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from kvarray.cli.arguments import add_trace_arguments, flag_type, load_trace
from kvarray.cli.output import print_json, print_table
from kvarray.trace import (
    Trace,
    agent_trace,
    bursty_arrivals,
    chat_trace,
    document_trace,
    poisson_arrivals,
    write_trace,
    zipf_trace,
)
from kvarray.units import format_seconds, parse_count, parse_seconds

__all__ = ["add_parser", "run"]

_EPILOG = """examples:
  kvarray trace describe trace.jsonl --block-size 512
  kvarray trace convert trace.jsonl.gz --output trace.npz --block-size 512 --reblock 1024
  kvarray trace generate chat --count 1000 --rate 0.5 --rng 7 --output chat.jsonl
  kvarray trace slice trace.npz --from 10min --to 20min --output part.npz
"""

GENERATORS: dict[str, Callable[..., Trace]] = {
    "chat": chat_trace,
    "agent": agent_trace,
    "document": document_trace,
    "zipf": zipf_trace,
}
"""What `kvarray trace generate` can make."""


def add_parser(subparsers: Any) -> None:
    """Declare the flags of `kvarray trace`."""
    parser = subparsers.add_parser(
        "trace",
        help="describe, convert, generate and slice traces",
        description="Look at traces of requests, turn one kind of file into another, make them up, cut them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_describe(actions)
    _add_convert(actions)
    _add_generate(actions)
    _add_slice(actions)
    parser.set_defaults(run=run)


def _add_describe(actions: Any) -> None:
    describe = actions.add_parser("describe", help="the figures to know a trace by")
    add_trace_arguments(describe)
    describe.add_argument("--json", action="store_true", help="print them as JSON")


def _add_convert(actions: Any) -> None:
    convert = actions.add_parser("convert", help="the same requests in another kind of file")
    add_trace_arguments(convert)
    _add_output(convert)
    convert.add_argument("--reblock", type=flag_type(parse_count), metavar="N", help="in larger blocks of N tokens")


def _add_generate(actions: Any) -> None:
    generate = actions.add_parser("generate", help="a made-up workload, the same for the same --rng")
    generate.add_argument("kind", choices=tuple(GENERATORS))
    generate.add_argument(
        "--count", type=flag_type(parse_count), required=True, metavar="N", help="sessions, or requests"
    )
    generate.add_argument("--rate", type=float, required=True, metavar="X", help="how many begin in a second")
    generate.add_argument("--rng", type=flag_type(parse_count), required=True, metavar="SEED")
    generate.add_argument(
        "--variation",
        type=float,
        default=1.0,
        metavar="X",
        help="of the gaps, over their mean: 1 is Poisson, above in bursts",
    )
    generate.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the generator; repeat"
    )
    generate.add_argument("--block-size", type=flag_type(parse_count), metavar="N", help="tokens of a block")
    _add_output(generate)


def _add_slice(actions: Any) -> None:
    cut = actions.add_parser("slice", help="some of the requests, by time or by number")
    add_trace_arguments(cut)
    _add_output(cut)
    cut.add_argument(
        "--from", dest="start_s", type=flag_type(parse_seconds), metavar="T", help="since the first request"
    )
    cut.add_argument("--to", dest="stop_s", type=flag_type(parse_seconds), metavar="T", help="not itself included")
    cut.add_argument("--first", type=flag_type(parse_count), metavar="N", help="number of the first request, from 0")
    cut.add_argument("--last", type=flag_type(parse_count), metavar="N", help="number of the request to stop before")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", required=True, metavar="FILE", help="to write: .jsonl, .jsonl.gz or .npz")
    parser.add_argument("--force", action="store_true", help="write over a file that is there")
    parser.add_argument("--compressed", action="store_true", help="pack an .npz")


def run(args: argparse.Namespace) -> None:
    """Answer `kvarray trace`."""
    {"describe": _describe, "convert": _convert, "generate": _generate, "slice": _slice}[args.action](args)


def _describe(args: argparse.Namespace) -> None:
    trace = load_trace(args)
    figures = trace.describe()
    if args.json:
        skipped = {"skipped": trace.skipped.num_records, "skipped_because": list(trace.skipped.messages)}
        print_json(figures | skipped)
        return
    print_table([{"figure": name.replace("_", " "), "value": _shown(name, value)} for name, value in figures.items()])
    if trace.skipped.num_records:
        print(f"left out {trace.skipped.num_records:,} malformed records, first: {trace.skipped.messages[0]}")


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name.endswith("_s"):
        return format_seconds(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _convert(args: argparse.Namespace) -> None:
    trace = load_trace(args)
    _write(args, trace if args.reblock is None else trace.reblock(args.reblock))


def _generate(args: argparse.Namespace) -> None:
    make = GENERATORS[args.kind]
    options = dict(_option(args.kind, text) for text in args.set)
    if args.block_size is not None:
        options["block_size"] = args.block_size
    generator = np.random.default_rng(args.rng)
    if args.variation == 1.0:
        starts_s = poisson_arrivals(args.count, rate_per_s=args.rate, rng=generator)
    else:
        starts_s = bursty_arrivals(args.count, rate_per_s=args.rate, variation=args.variation, rng=generator)
    _write(args, make(starts_s, rng=generator, **options))


def _option(kind: str, text: str) -> tuple[str, float]:
    """Return a parameter of a generator and its value."""
    import inspect

    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    parameters = inspect.signature(GENERATORS[kind]).parameters
    known = [each for each in parameters if parameters[each].default is not inspect.Parameter.empty]
    if name not in known:
        from difflib import get_close_matches

        near = get_close_matches(name, known, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(known)}"
        raise ValueError(f"--set must name a parameter of {kind}: got {name!r}; {hint}")
    if not equals:
        raise ValueError(f"--set must be NAME=VALUE: got {text!r}")
    if isinstance(parameters[name].default, int):
        return name, parse_count(value)
    try:
        return name, float(value)
    except ValueError:
        raise ValueError(f"--set {name} must be a number: got {value!r}") from None


def _slice(args: argparse.Namespace) -> None:
    by_time = args.start_s is not None or args.stop_s is not None
    by_number = args.first is not None or args.last is not None
    if by_time == by_number:
        raise ValueError("give either --from and --to, or --first and --last")
    trace = load_trace(args)
    if by_time:
        begin = float(trace.arrival_s[0]) if trace.num_requests else 0.0
        start_s = begin + (args.start_s or 0.0)
        stop_s = np.inf if args.stop_s is None else begin + args.stop_s
        if stop_s < start_s:
            raise ValueError(f"--to must not be before --from: got {args.stop_s:g} and {args.start_s:g} s")
        part = trace.between(start_s, stop_s)
    else:
        first, last = args.first or 0, trace.num_requests if args.last is None else args.last
        if not first <= last <= trace.num_requests:
            raise ValueError(
                f"--first and --last must lie in order within the {trace.num_requests} requests of the trace: "
                f"got {first} and {last}"
            )
        part = trace.requests(first, last)
    if not part.num_requests:
        raise ValueError(f"no request of the {trace.num_requests} lies in what was asked for")
    _write(args, part)


def _write(args: argparse.Namespace, trace: Trace) -> None:
    """Write a trace where no file is yet, and say so on stderr."""
    if os.path.exists(args.output) and not args.force:
        raise ValueError(f"{args.output} is there already: give another --output, or --force")
    write_trace(trace, args.output, compressed=args.compressed)
    blocks = f", {trace.num_blocks:,} blocks of {trace.block_size} tokens" if trace.has_blocks else ""
    print(f"wrote {args.output}: {trace.num_requests:,} requests{blocks}", file=sys.stderr)
