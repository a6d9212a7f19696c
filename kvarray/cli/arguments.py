"""Arguments that several commands share: the trace, lists of sizes and counts, and how a result is shown."""

import argparse
import os
from collections.abc import Callable
from typing import TypeVar

from kvarray.cli.output import progress_bar
from kvarray.economics import ModelSpec
from kvarray.trace import Trace, builtin_trace, read_trace
from kvarray.units import parse_bytes, parse_count

__all__ = [
    "add_output_flags",
    "add_trace_arguments",
    "add_weight_arguments",
    "bytes_per_block",
    "flag_type",
    "list_of",
    "load_trace",
    "model_spec",
]

_Item = TypeVar("_Item")


def flag_type(parse: Callable[[str], _Item]) -> Callable[[str], _Item]:
    """Return `parse` as an argparse type: its `ValueError` becomes the one line the user sees.

    Examples
    --------
    >>> flag_type(int)("x")
    Traceback (most recent call last):
        ...
    argparse.ArgumentTypeError: invalid literal for int() with base 10: 'x'
    """

    def parse_flag(text: str) -> _Item:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_flag


def list_of(parse: Callable[[str], _Item]) -> Callable[[str], list[_Item]]:
    """Return an argparse type for a comma-separated list of what `parse` understands.

    Examples
    --------
    >>> list_of(int)("3,4")
    [3, 4]
    """

    def parse_list(text: str) -> list[_Item]:
        items = text.split(",")
        if not all(item.strip() for item in items):
            raise ValueError(f"a list must have no empty items: got {text!r}")
        return [parse(item) for item in items]

    return flag_type(parse_list)


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` and ``--csv``, of which one may be given; without either the result is a table."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="print the result as JSON")
    group.add_argument("--csv", action="store_true", help="print the rows as CSV")


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the trace and how to read it; `load_trace` reads it."""
    parser.add_argument("trace", nargs="?", metavar="TRACE", help="a trace file, or - for stdin; default: built in")
    parser.add_argument("--block-size", type=flag_type(parse_count), metavar="N", help="tokens of a block")
    parser.add_argument("--format", choices=("jsonl", "csv", "npz"), help="of the file; default: by its content")
    parser.add_argument("--skip-bad", action="store_true", help="leave malformed records out and count them")


def load_trace(args: argparse.Namespace) -> Trace:
    """Return the trace that the arguments name, or the built-in workload."""
    if args.trace is None:
        given = [
            flag for flag in ("--block-size", "--format", "--skip-bad") if getattr(args, flag[2:].replace("-", "_"))
        ]
        if given:
            raise ValueError(f"{given[0]} needs a TRACE: the built-in workload is as it is")
        return builtin_trace()
    return read_trace(
        args.trace,
        block_size=args.block_size,
        format=args.format,
        on_error="skip" if args.skip_bad else "raise",
        progress=progress_bar("B"),
    )


def model_spec(text: str) -> ModelSpec:
    """Return the model that a command names: the path of a config where there is one, else a name.

    Examples
    --------
    >>> model_spec("qwen3-32b").name
    'Qwen3-32B'
    """
    is_folder = os.path.isdir(text) and os.path.exists(os.path.join(text, "config.json"))
    if is_folder or os.path.isfile(text) or text.endswith(".json"):
        return ModelSpec.from_file(text)
    return ModelSpec.from_name(text)


def add_weight_arguments(group: argparse._ArgumentGroup) -> None:
    """Add what a block weighs: by a model, by token or by block; `bytes_per_block` reads it."""
    size = group.add_mutually_exclusive_group()
    size.add_argument("--model", metavar="NAME", help="a model's name or config.json: its bytes, of one rank")
    size.add_argument("--bytes-per-token", type=flag_type(_weight), metavar="SIZE")
    size.add_argument("--bytes-per-block", type=flag_type(_weight), metavar="SIZE")
    group.add_argument("--dtype", metavar="NAME", help="with --model: format of the cache; bf16")
    group.add_argument("--tp", type=flag_type(parse_count), metavar="N", help="with --model: ranks of a group; 1")


def _weight(text: str) -> int:
    size = parse_bytes(text)
    if size < 1:
        raise ValueError(f"a weight must be 1 byte or more: got {text!r}")
    return size


def bytes_per_block(args: argparse.Namespace, trace: Trace) -> int | None:
    """Return what a block of the trace weighs in bytes; None where nothing was said of it."""
    if args.model is None and (args.dtype is not None or args.tp is not None):
        raise ValueError("--dtype and --tp say how a model keeps its cache: they need --model")
    block_size = trace.block_size or 1
    if args.model is not None:
        tp = 1 if args.tp is None else args.tp
        return model_spec(args.model).bytes_per_block(block_size, dtype=args.dtype or "bf16", tp=tp)
    if args.bytes_per_token is not None:
        return int(args.bytes_per_token) * block_size
    return None if args.bytes_per_block is None else int(args.bytes_per_block)
