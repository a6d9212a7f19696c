"""`kvarray size`: what a model's cache costs in bytes, what fits, and what it costs in money."""

import argparse
from typing import Any

from kvarray.cli.arguments import add_output_flags, flag_type, list_of, model_spec
from kvarray.cli.output import print_csv, print_json, print_table
from kvarray.economics import (
    FixedState,
    Footprint,
    KVDtype,
    KVStream,
    MemoryPrice,
    ModelSpec,
    cost_per_million_tokens,
    kv_dtype,
)  # fmt: skip
from kvarray.economics.dtypes import takes_groups
from kvarray.units import format_bytes, parse_bytes, parse_count

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the flags of `kvarray size`."""
    parser = subparsers.add_parser(
        "size",
        help="bytes of KV per token, block and sequence of a model",
        description="What a model's KV cache costs, and how much of it fits. Figures are those of one rank (one GPU of"
        " --tp) unless they say otherwise.",
    )
    parser.add_argument("model", metavar="MODEL_OR_CONFIG", help="a model's name, or the path of its config.json")
    parser.add_argument(
        "--tokens", type=list_of(parse_count), default=[131072], metavar="N,...", help="lengths; 128K by default"
    )
    parser.add_argument(
        "--dtype", type=list_of(str.strip), default=["bf16"], metavar="NAME,...", help="formats of the cache; bf16"
    )
    parser.add_argument("--group-size", type=flag_type(parse_count), metavar="N", help="numbers that share a scale")
    parser.add_argument("--scale-dtype", metavar="NAME", help="with --group-size: their format; fp16 by default")
    parser.add_argument("--tp", type=flag_type(parse_count), default=1, metavar="N", help="ranks that share the heads")
    parser.add_argument("--block-size", type=flag_type(parse_count), default=1, metavar="N", help="tokens of a block")
    parser.add_argument(
        "--memory", type=flag_type(parse_bytes), metavar="SIZE", help="each rank's memory for the cache"
    )
    parser.add_argument(
        "--price", type=flag_type(MemoryPrice.parse), metavar="P/UNIT", help="price of memory, such as 2.5/GiB-month"
    )
    parser.add_argument("--drafts", action="store_true", help="count the draft (multi-token prediction) layers too")
    add_output_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Answer `kvarray size`."""
    spec = model_spec(args.model)
    table = Footprint.of(
        [spec] * len(args.dtype), dtype=_formats(args), tp=args.tp,
        with_drafts=args.drafts,
    )  # fmt: skip
    rows = _rows(spec, table, args)
    if args.json:
        print_json(_result(spec, table, rows, args))
    elif args.csv:
        print_csv(rows)
    else:
        _print(spec, table, rows, args)


def _formats(args: argparse.Namespace) -> list[KVDtype]:
    """Return the formats, those that take groups with the groups that were asked for."""
    plain = [kv_dtype(name) for name in args.dtype]
    if args.group_size is None:
        if args.scale_dtype is not None:
            raise ValueError("--scale-dtype is the format of the scales of groups: it needs --group-size")
        return plain
    grouped = [
        kv_dtype(name, group_size=args.group_size, scale_dtype=args.scale_dtype or "fp16")
        if takes_groups(number_format)
        else number_format
        for name, number_format in zip(args.dtype, plain, strict=True)
    ]
    if grouped == plain:
        raise ValueError(
            f"--group-size is for formats of 8 bits or fewer without groups of their own: got {', '.join(args.dtype)}"
        )
    return grouped


def _rows(spec: ModelSpec, table: Footprint, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each format and length, all its figures plain numbers."""
    sequence = table.bytes_per_sequence(args.tokens, block_size=args.block_size)
    token, state = table.bytes_per_token(), table.state_bytes
    block = table.bytes_per_block(args.block_size) if args.block_size > 1 else None
    fits = longest = cost = None
    if args.memory is not None:
        fits = table.sequences_that_fit(args.memory, args.tokens, block_size=args.block_size)
        longest = table.tokens_that_fit(args.memory, block_size=args.block_size)
    if args.price is not None:
        cost = cost_per_million_tokens(table, args.tokens, price=args.price, block_size=args.block_size)
    rows = []
    for b, name in enumerate(args.dtype):
        for k, tokens in enumerate(args.tokens):
            row = {"model": spec.name, "dtype": name, "tp": args.tp, "tokens": tokens, "token_bytes": int(token[b])}
            if block is not None:
                row["block_bytes"] = int(block[b])
            row["state_bytes"] = int(state[b])
            row["sequence_bytes"] = int(sequence[b, k])
            row["all_ranks_bytes"] = int(sequence[b, k]) * args.tp
            if fits is not None and longest is not None:
                row["sequences_that_fit"] = int(fits[b, k])
                row["tokens_that_fit"] = int(longest[b])
            if cost is not None:
                row["million_tokens_hour_cost"] = float(cost[b, k])
            rows.append(row)
    return rows


def _result(spec: ModelSpec, table: Footprint, rows: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": spec.name,
        "tp": args.tp,
        "block_size": args.block_size,
        "memory_bytes": args.memory,
        "price": None if args.price is None else f"{args.price.amount:g}/{args.price.unit}",
        "keeps": [_describe(part) for part in _parts(spec, args)],
        "assumptions": [*spec.assumptions, *_notes(spec, table, args)],
        "rows": rows,
    }


def _print(spec: ModelSpec, table: Footprint, rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    ranks = f", each of {args.tp} ranks" if args.tp > 1 else ""
    print(f"{spec.name}{ranks}")
    for part in _parts(spec, args):
        print(f"  {_describe(part)}")
    print()
    print_table([_cells(row) for row in rows])
    lines = [*spec.assumptions, *_notes(spec, table, args)]
    if lines:
        print("\nAssumed:")
    for line in lines:
        print(f"  {line}")


def _cells(row: dict[str, Any]) -> dict[str, str]:
    """Return a row as people read it: sizes with units, no column that says nothing."""
    cells = {"dtype": row["dtype"], "tokens": str(row["tokens"]), "per token": format_bytes(row["token_bytes"])}
    if "block_bytes" in row:
        cells["per block"] = format_bytes(row["block_bytes"])
    if row["state_bytes"]:
        cells["fixed state"] = format_bytes(row["state_bytes"])
    cells["per sequence"] = format_bytes(row["sequence_bytes"])
    if row["tp"] > 1:
        cells["all ranks"] = format_bytes(row["all_ranks_bytes"])
    if "sequences_that_fit" in row:
        cells["sequences fit"] = str(row["sequences_that_fit"])
        cells["longest fit"] = str(row["tokens_that_fit"])
    if "million_tokens_hour_cost" in row:
        cells["1M tokens, 1 h"] = f"{row['million_tokens_hour_cost']:.4g}"
    return cells


def _parts(spec: ModelSpec, args: argparse.Namespace) -> list[KVStream | FixedState]:
    return [*spec.streams, *(spec.draft_streams if args.drafts else ()), *spec.states]


def _describe(part: KVStream | FixedState) -> str:
    """Return what layers keep in one line.

    Examples
    --------
    >>> _describe(KVStream("sliding", 8, (64, 64), window=128, layers=12))
    '12 x sliding: 8 heads of 64 + 64 for the last 128 tokens'
    """
    heads = f"{part.heads} head{'s' * (part.heads > 1)}"
    if isinstance(part, FixedState):
        return f"{part.layers} x {part.kind} state: {heads} of {part.width} in {part.dtype}, whatever the length"
    text = f"{part.layers} x {part.kind}: {heads} of {' + '.join(map(str, part.widths))}"
    if part.ratio > 1:
        text += f" for each {part.ratio} tokens"
    if part.window is not None:
        text += f" for {'a chunk of' if part.aligned else 'the last'} {part.window} tokens"
    return text


def _notes(spec: ModelSpec, table: Footprint, args: argparse.Namespace) -> list[str]:
    """Return what the figures take for granted beyond the model."""
    notes = []
    longest = max(args.tokens)
    if spec.max_tokens is not None and longest > spec.max_tokens:
        notes.append(
            f"{longest} tokens are more than the {spec.max_tokens} that the config names as its longest context"
        )
    if spec.draft_streams and not args.drafts:
        layers = sum(stream.layers for stream in spec.draft_streams if stream.kind != "index")
        notes.append(f"{layers} draft layer{'s' * (layers > 1)} not counted (--drafts counts them)")
    if args.drafts and not spec.draft_streams:
        notes.append("no draft layers to count: the config names none")
    if args.group_size is not None:
        without = [name for name, made in zip(args.dtype, table.dtypes, strict=True) if made == kv_dtype(name)]
        notes += [f"{name} takes no groups: --group-size is not for it" for name in dict.fromkeys(without)]
    return notes
