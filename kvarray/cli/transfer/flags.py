"""The flags of `kvarray transfer`: how they are read, and what makes no sense together."""

import argparse
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from kvarray.arrays import Seconds
from kvarray.cli.arguments import add_output_flags, flag_type, list_of
from kvarray.economics.latency import PREFILL_TIMES
from kvarray.link import LINKS
from kvarray.units import parse_bytes, parse_count, parse_rate, parse_seconds

__all__ = ["SCHEDULES", "SWEPT", "add_flags", "complete"]

_EPILOG = """examples:
  kvarray transfer                                       64 blocks of 1 MiB over two streams of 25 GB/s
  kvarray transfer --compare --prefill 200ms             every schedule side by side
  kvarray transfer --schedule layered --group best --alpha 20us --prefill 5ms
  kvarray transfer --link net-200g --streams 4 --plot gantt.png
  kvarray transfer --bandwidth 50GB/s,25GB/s --assignment least_loaded --fail 1@0.5ms
  kvarray transfer --compare --sweep bandwidth=10GB/s:400GB/s --plot ttft.png
"""
SCHEDULES = ("sequential", "pipelined", "layered", "chunked")
SWEPT: dict[str, tuple[str, float]] = {
    "bandwidth": ("bandwidth of a stream, GB/s", 1e-9),
    "latency": ("latency, ms", 1e3),
    "alpha": ("cost of a fragment, us", 1e6),
    "overlap": ("overlap efficiency", 1.0),
}
"""What a sweep goes over: its label, and the scale of the label's unit."""
_READ_BY = {"layers": ("layered",), "group": ("layered",), "chunk": ("chunked",), "overlap": SCHEDULES[1:]}
_DEFAULTS = {"schedule": "pipelined", "layers": 80, "group": 1, "chunk": 8, "block_tokens": 16}
_LIMITS = {"blocks": 10**6, "block_tokens": 10**6, "layers": 10**4, "group": 10**4, "chunk": 10**6}


def add_flags(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the flags of `kvarray transfer`; those that only some schedules read have no default yet."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
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
    parser.add_argument("--block-tokens", type=flag_type(parse_count), metavar="N", help="for the model: 16")
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
    shape.add_argument("--schedule", choices=SCHEDULES, help="default: pipelined")
    shape.add_argument("--layers", type=flag_type(parse_count), metavar="N", help="of the model: 80")
    shape.add_argument("--group", type=flag_type(_size), metavar="N", help="layers moved as one, or best: 1")
    shape.add_argument("--chunk", type=flag_type(_size), metavar="N", help="blocks of a chunk, or best: 8")
    shape.add_argument(
        "--overlap", type=flag_type(_number), metavar="ETA", help="overlap efficiency, 0 to 1; default: 1"
    )
    shape.add_argument("--compare", action="store_true", help="all schedules side by side")
    shape.add_argument(
        "--sweep", type=flag_type(_sweep), metavar="NAME=LOW:HIGH", help=f"of {', '.join(SWEPT)}; 200 values"
    )
    add_output_flags(parser)
    parser.add_argument("--plot", metavar="FILE", help="draw the schedule, or the sweep (png, svg, pdf)")
    return parser


def _failure(text: str) -> tuple[int, float]:
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*@(.*)", text)
    if match is None:
        raise ValueError(f"a failure must be STREAM@TIME, such as 1@2ms: got {text!r}")
    return int(match[1]), parse_seconds(match[2])


def _size(text: str) -> int | str:
    return "best" if text == "best" else parse_count(text)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise ValueError(f"an overlap efficiency must be a number from 0 to 1: got {text!r}")
    return number


_PARSERS: dict[str, Callable[[str], float]] = {"bandwidth": parse_rate, "overlap": _number}


def _sweep(text: str) -> tuple[str, Seconds]:
    """Return the quantity and its values: in equal ratios, or in equal steps where they begin at 0."""
    name, equals, span = text.partition("=")
    low, colon, high = span.partition(":")
    if not equals or not colon or name not in SWEPT:
        raise ValueError(f"a sweep must be one of {', '.join(SWEPT)} = LOW:HIGH: got {text!r}")
    parse = _PARSERS.get(name, parse_seconds)
    first, last = parse(low), parse(high)
    if not first < last:
        raise ValueError(f"a sweep must go from a lower to a higher value: got {text!r}")
    return name, np.geomspace(first, last, 200) if first > 0.0 and name != "overlap" else np.linspace(first, last, 200)


def complete(args: argparse.Namespace) -> None:
    """Refuse flags that nothing would read and counts out of range, then fill in what was not given."""
    if args.compare and args.schedule:
        raise ValueError("--schedule and --compare exclude each other: --compare draws every schedule")
    if args.compare and args.plot and not args.sweep:
        raise ValueError("--plot draws one schedule or a --sweep: leave --compare out, or add a sweep")
    _refuse_idle(args)
    for name, value in _DEFAULTS.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    for name, most in _LIMITS.items():
        value = getattr(args, name)
        if value != "best" and not 1 <= value <= most:
            rule = "1 or more" if value < 1 else f"{most} or less"
            raise ValueError(f"--{name.replace('_', '-')} must be {rule}: got {value}")
    for asked, flag, most in ((args.sweep, "--sweep", 10**5), (args.chunk == "best", "--chunk best", 10**4)):
        if asked and args.blocks > most:
            raise ValueError(f"--blocks must be {most} or less with {flag}: got {args.blocks}")


def _refuse_idle(args: argparse.Namespace) -> None:
    """Refuse a flag, or a sweep, that the schedules asked for do not read."""
    computes = bool(args.prefill or args.prefill_model)
    drawn = SCHEDULES if args.compare else (args.schedule or _DEFAULTS["schedule"],)
    for name, readers in _READ_BY.items():
        is_swept = bool(args.sweep) and args.sweep[0] == name
        if (getattr(args, name) is not None or is_swept) and not set(readers) & set(drawn):
            flag = f"--sweep {name}" if is_swept else f"--{name}"
            raise ValueError(f"{flag} needs --schedule {' or '.join(readers)}, or --compare: got {drawn[0]}")
    if args.sweep and getattr(args, args.sweep[0]) is not None:
        raise ValueError(f"--sweep {args.sweep[0]} and --{args.sweep[0]} exclude each other")
    if args.chunk is not None and args.compare and not computes:
        raise ValueError("--chunk needs --prefill or --prefill-model: without them there is nothing to chunk")
    if args.chunk == "best" and not args.prefill_model:
        raise ValueError(
            "--chunk best needs --prefill-model: chunks that cost nothing each are best as small as can be"
        )
    if args.sweep and "best" in (args.group, args.chunk):
        raise ValueError("best sizes are of one schedule: give a number in a --sweep")
    if args.block_tokens is not None and not args.prefill_model:
        raise ValueError("--block-tokens needs --prefill-model: nothing else counts tokens")
    costs = args.alpha if args.alpha is not None else LINKS[args.link].alpha_s if args.link else 0.0
    if args.fragment is not None and not costs and not (args.sweep and args.sweep[0] == "alpha"):
        raise ValueError("--fragment needs --alpha: fragments that cost nothing each make no difference")
