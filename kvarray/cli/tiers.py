"""`kvarray tiers`: what tiers of memory hit, move, cost and gain, under several policies and write modes."""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from kvarray.arrays import Ids, as_ints, as_positive_int, as_real
from kvarray.cli.arguments import (
    add_output_flags,
    add_trace_arguments,
    add_weight_arguments,
    bytes_per_block,
    flag_type,
    list_of,
    load_trace,
)
from kvarray.cli.output import print_csv, print_json, print_table, progress_bar
from kvarray.policies import ORDERS
from kvarray.reuse import TierCost, TierFlows, optimal_hits, tier_curve
from kvarray.stepping import step_policy
from kvarray.tier.cascade import WRITE_MODES
from kvarray.tier.spec import TierSpec, check_tiers, links_between
from kvarray.trace import Trace
from kvarray.units import format_bytes, format_seconds, parse_count, parse_seconds

__all__ = ["add_parser", "run"]

_EPILOG = """examples:
  kvarray tiers --tier gpu=500blocks --tier cpu=4000blocks --policy lru,lfu,s3_fifo --optimal
  kvarray tiers trace.jsonl --block-size 512 --model llama-3.1-70b --prefill-per-token 100us \\
      --tier gpu=64GiB --tier cpu=512GiB@50GB/s --tier ssd=4TiB@7GB/s,3GB/s
  kvarray tiers trace.jsonl ... --write-mode exclusive,write_through,write_back --csv
"""


def add_parser(subparsers: Any) -> None:
    """Declare the flags of `kvarray tiers`."""
    parser = subparsers.add_parser(
        "tiers",
        help="hits, bytes, cost and gain of GPU, CPU and SSD tiers",
        description="What tiers of memory hit, move, cost and gain on a trace of requests.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_trace_arguments(parser)
    parser.add_argument(
        "--tier",
        action="append",
        type=flag_type(TierSpec.parse),
        metavar="NAME=SIZE[@UP[,DOWN]]",
        help="a tier, the fastest first: its size (64GiB, 5000blocks), its links to the tier above (50GB/s, nvme-gen4)",
    )
    how = parser.add_argument_group("how the tiers work")
    how.add_argument(
        "--policy", type=list_of(_policy), default=["lru"], metavar="NAME,...", help=f"of {', '.join(_POLICIES)}; lru"
    )
    how.add_argument(
        "--write-mode",
        type=list_of(_write_mode),
        default=["exclusive"],
        metavar="MODE,...",
        help=f"of {', '.join(WRITE_MODES)}; exclusive",
    )
    how.add_argument("--write-at", type=flag_type(_count), metavar="K", help="selective: copy at this use; 2")
    how.add_argument("--promote", type=flag_type(_promote), default=1, metavar="K", help="at this hit, or never; 1")
    how.add_argument("--step", choices=("request", "block", "stream"), default="request", help="what is one step")
    how.add_argument(
        "--window", type=float, default=0.0, metavar="W", help="share of requests that only warm the tiers"
    )
    how.add_argument("--smaller-below", action="store_true", help="allow write-through tiers smaller than one above")
    how.add_argument("--seed", type=flag_type(parse_count), metavar="N", help="of the policy random; 0")
    how.add_argument("--processes", type=flag_type(_count), metavar="N", help="for the sizes of the plot; 1")
    how.add_argument("--optimal", action="store_true", help="beside them the most that any policy could hit")
    worth = parser.add_argument_group("what a block weighs, and what a hit saves")
    add_weight_arguments(worth)
    saves = worth.add_mutually_exclusive_group()
    saves.add_argument(
        "--prefill-per-token", type=flag_type(parse_seconds), metavar="T", help="seconds a hit token saves"
    )
    saves.add_argument(
        "--prefill-per-block", type=flag_type(parse_seconds), metavar="T", help="seconds a hit block saves"
    )
    add_output_flags(parser)
    parser.add_argument("--plot", metavar="FILE", help="draw hit rate against size, one line a policy, and the optimum")
    parser.add_argument("--plot-gain", metavar="FILE", help="draw the net gain over the sizes of the first two tiers")
    parser.set_defaults(run=run)


_POLICIES = tuple(ORDERS)


def _one_of(known: tuple[str, ...], what: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        name = text.strip()
        if name not in known:
            raise ValueError(f"{what} must be one of {', '.join(known)}: got {text!r}")
        return name

    return parse


_policy = _one_of(_POLICIES, "a policy")
_write_mode = _one_of(WRITE_MODES, "a write mode")


def _count(text: str) -> int:
    return as_positive_int("a count", parse_count(text))


def _promote(text: str) -> int | None:
    return None if text == "never" else _count(text)


def run(args: argparse.Namespace) -> None:
    """Answer `kvarray tiers`."""
    _refuse_mixtures(args)
    trace = load_trace(args)
    block_bytes = bytes_per_block(args, trace)
    sizes = as_ints("blocks of the tiers", check_tiers(args.tier, block_bytes))
    rows = []
    for mode in args.write_mode:
        for policy in args.policy:
            flows = _step(args, trace, policy, mode, sizes[None])
            rows.append({"policy": policy, "write_mode": mode, **_row(args, trace, flows, block_bytes)})
    if args.optimal:
        best = optimal_hits(trace, [min(sum(sizes.tolist()), trace.num_blocks)], window=args.window)
        hits = {"hit_blocks": int(best.hit_blocks[0]), "hit_tokens": int(best.hit_tokens[0])}
        rows.append({"policy": "optimal", "write_mode": "any", **hits, **_rates(args, trace, hits)})
    if args.plot:
        _plot(args, trace, sizes, block_bytes)
    if args.plot_gain:
        _plot_gain(args, trace, sizes, block_bytes)
    if args.json:
        print_json(_as_json(args, trace, sizes, rows))
    elif args.csv:
        names = dict.fromkeys(name for row in rows for name in _flat(args, row))
        print_csv([{**dict.fromkeys(names, ""), **_flat(args, row)} for row in rows])
    else:
        _print_text(args, trace, sizes, rows)


def _refuse_mixtures(args: argparse.Namespace) -> None:
    if not args.tier:
        raise ValueError("give at least one --tier, such as --tier gpu=64GiB --tier cpu=512GiB@50GB/s")
    if args.optimal and args.step != "request":
        raise ValueError("--optimal is the optimum for prefixes: it does not go with --step block or stream")
    if args.plot_gain and (len(args.tier) < 2 or not _saving(args)):
        raise ValueError("--plot-gain needs two tiers and --prefill-per-token or --prefill-per-block")
    weighs = args.model or args.bytes_per_token or args.bytes_per_block
    if _saving(args) and not weighs:
        raise ValueError("a gain needs what a block weighs: give --model, --bytes-per-token or --bytes-per-block")
    if _saving(args):
        links_between(args.tier)  # a gain needs what moves cost
    as_real("--window", args.window, low=0.0)
    _refuse_unused(args)


def _refuse_unused(args: argparse.Namespace) -> None:
    """Raise for a flag that nothing of what was asked for reads."""
    without_effect = {
        "--seed": (args.seed is not None and "random" not in args.policy, "--policy random"),
        "--write-at": (args.write_at is not None and "selective" not in args.write_mode, "--write-mode selective"),
        "--smaller-below": (
            args.smaller_below and "write_through" not in args.write_mode,
            "--write-mode write_through",
        ),
        "--processes": (args.processes is not None and not args.plot, "--plot"),
    }
    for flag, (is_unused, needed) in without_effect.items():
        if is_unused:
            raise ValueError(f"{flag} does nothing without {needed}")


def _saving(args: argparse.Namespace) -> dict[str, float]:
    """Return what a hit saves, by the name that `TierFlows.cost` has for it."""
    given = {"block_s": args.prefill_per_block, "token_s": args.prefill_per_token}
    return {name: seconds for name, seconds in given.items() if seconds is not None}


def _step(args: argparse.Namespace, trace: Trace, policy: str, mode: str, sizes: Ids) -> TierFlows:
    return step_policy(
        trace,
        policy,
        sizes,
        step=args.step,
        window=args.window,
        write_mode=mode,
        write_at=args.write_at or 2,
        promote_at=args.promote,
        smaller_below=args.smaller_below,
        rng=(args.seed or 0) if policy == "random" else None,
        processes=args.processes or 1,
    )


def _cost(args: argparse.Namespace, flows: TierFlows, block_bytes: int | None) -> TierCost | None:
    """Return the cost of the moves, where it is known what a block weighs and what the links are."""
    if block_bytes is None or any(tier.up is None for tier in args.tier[1:]):
        return None
    up, down, direct = links_between(args.tier)
    return flows.cost(up, down, block_bytes=block_bytes, direct_links=direct, **(_saving(args) or {"block_s": 0.0}))


def _totals(args: argparse.Namespace, trace: Trace) -> tuple[int, int]:
    """Return the blocks and the input tokens of the counted requests."""
    first = int(trace.num_requests * args.window)
    return int(trace.block_counts[first:].sum()), int(trace.input_tokens[first:].sum())


def _rates(args: argparse.Namespace, trace: Trace, hits: dict[str, int]) -> dict[str, float]:
    blocks, tokens = _totals(args, trace)
    return {
        "block_hit_rate": hits["hit_blocks"] / max(blocks, 1),
        "token_hit_rate": hits["hit_tokens"] / max(tokens, 1),
    }


def _row(args: argparse.Namespace, trace: Trace, flows: TierFlows, block_bytes: int | None) -> dict[str, Any]:
    """Return what one configuration, the only one of `flows`, did; lists have an item for each tier or link."""
    assert flows.hit_tokens is not None  # blocks of a trace have tokens
    hits = {"hit_blocks": int(flows.hits.sum()), "hit_tokens": int(flows.hit_tokens.sum())}
    row: dict[str, Any] = {
        **hits,
        **_rates(args, trace, hits),
        "tier_hit_blocks": flows.hits[0].tolist(),
        "tier_hit_tokens": flows.hit_tokens[0].tolist(),
        "created_blocks": flows.created[0].tolist(),
        "promoted_blocks": flows.up[0, :-1].tolist(),
        "demoted_blocks": flows.down[0, :-1].tolist(),
        "dropped_blocks": flows.dropped[0].tolist(),
    }
    if block_bytes is not None:
        row["written_bytes"] = flows.written_bytes(block_bytes)[0].tolist()
    cost = _cost(args, flows, block_bytes)
    if cost is not None:
        row |= {"up_bytes": cost.up_bytes[0].tolist(), "down_bytes": cost.down_bytes[0].tolist()}
        row |= {"up_s": cost.up_s[0].tolist(), "down_s": cost.down_s[0].tolist(), "cost_s": float(cost.cost_s[0])}
    if cost is not None and _saving(args):
        even = float(cost.break_even_hit_rate[0])
        row |= {"saved_s": float(cost.saved_s[0]), "net_s": float(cost.net_s[0])}
        row["break_even_block_hit_rate"] = even if np.isfinite(even) else None
    return row


def _as_json(args: argparse.Namespace, trace: Trace, sizes: Ids, rows: list[dict[str, Any]]) -> dict[str, Any]:
    blocks, tokens = _totals(args, trace)
    return {
        "trace": {"requests": trace.num_requests, "blocks": trace.num_blocks, "block_size": trace.block_size},
        "step": args.step,
        "window": args.window,
        "totals": {"block": blocks, "token": tokens},
        "tiers": [{"name": tier.name, "blocks": int(size)} for tier, size in zip(args.tier, sizes, strict=True)],
        "rows": rows,
    }


def _flat(args: argparse.Namespace, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose lists are columns of their own, named after their tier; links after the lower one."""
    names = [tier.name for tier in args.tier]
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, list):
            owners = names if len(value) == len(names) else names[1:]
            flat |= {f"{owner}_{name}": item for owner, item in zip(owners, value, strict=True)}
        else:
            flat[name] = value
    return flat


def _print_text(args: argparse.Namespace, trace: Trace, sizes: Ids, rows: list[dict[str, Any]]) -> None:
    blocks, tokens = _totals(args, trace)
    print(
        f"{trace.num_requests:,} requests, {trace.num_blocks:,} blocks of {trace.block_size} tokens; "
        f"counted: {blocks:,} blocks, {tokens:,} tokens"
    )
    print("tiers: " + ", ".join(f"{tier.name} {size:,} blocks" for tier, size in zip(args.tier, sizes, strict=True)))
    table = [_text_row(args, row) for row in rows]
    names = dict.fromkeys(name for row in table for name in row)
    print_table([{**dict.fromkeys(names, ""), **row} for row in table])


def _text_row(args: argparse.Namespace, row: dict[str, Any]) -> dict[str, str]:
    text = {"policy": row["policy"], "write mode": row["write_mode"], "token": f"{row['token_hit_rate']:.2%}"}
    text["hit blocks"] = f"{row['hit_blocks']:,}"
    names = [tier.name for tier in args.tier]
    for name, hits in zip(names, row.get("tier_hit_blocks", []), strict=False):
        text[f"hit {name}"] = f"{hits:,}"
    unit, counts = ("bytes", format_bytes) if "up_bytes" in row else ("blocks", lambda count: f"{count:,}")
    for what, key in (("up", "promoted_blocks"), ("down", "demoted_blocks")):
        moved = row.get(f"{what}_bytes" if unit == "bytes" else key, [])
        for name, count in zip(names[1:], moved, strict=False):
            text[f"{what} {name}"] = counts(count)
    for name in ("cost", "saved", "net"):
        if f"{name}_s" in row:
            text[name] = format_seconds(row[f"{name}_s"])
    return text


def _plot(args: argparse.Namespace, trace: Trace, sizes: Ids, block_bytes: int | None) -> None:
    """Draw the token hit rate of one tier of many sizes under each policy."""
    from kvarray.plot import plot_policies, save_figure

    highest = max(int(trace.num_distinct), 2)
    ladder = np.unique(np.geomspace(max(highest // 1000, 1), highest, 16).astype(np.int64))
    total = max(_totals(args, trace)[1], 1)
    advance = progress_bar("size", total=len(ladder) * len(args.policy))
    rates = {}
    for policy in args.policy:
        hits = []
        for size in ladder if args.processes in (None, 1) else [ladder]:
            flows = _step(args, trace, policy, "exclusive", np.atleast_1d(size)[:, None])
            assert flows.hit_tokens is not None
            hits.append(flows.hit_tokens[:, 0])
            if advance is not None:
                advance(len(flows.hits))
        rates[policy] = np.concatenate(hits) / total
    best = None
    if args.step == "request":
        best = optimal_hits(trace, ladder, window=args.window).hit_tokens / total
    title = f"{trace.num_requests:,} requests, one tier"
    figure = plot_policies(
        ladder, rates, optimal=best, ylabel="token hit rate", bytes_per_block=block_bytes, title=title
    )
    save_figure(figure, args.plot)


def _plot_gain(args: argparse.Namespace, trace: Trace, sizes: Ids, block_bytes: int | None) -> None:
    """Draw the net gain of LRU tiers over the sizes of the first two, from a sixteenth to sixteen times as large."""
    from kvarray.plot import plot_gain, save_figure

    mode = args.write_mode[0]
    if mode not in ("exclusive", "write_through") or args.step == "block" or args.promote != 1:
        raise ValueError(
            "--plot-gain shows LRU tiers that are exclusive or write_through, promote at once, no --step block"
        )
    curve = tier_curve(trace, write_mode=mode, step=args.step, window=args.window, smaller_below=True)
    first, second = (
        np.unique(np.geomspace(max(size // 16, 1), min(size * 16, 2**62), 60).astype(np.int64))
        for size in sizes[:2].tolist()
    )
    grid = np.empty((len(first), len(second), len(sizes)), dtype=np.int64)
    grid[...] = sizes
    grid[..., 0], grid[..., 1] = first[:, None], second
    cost = _cost(args, curve.flows(grid), block_bytes)
    assert block_bytes is not None  # checked at the start, as is the cost
    assert cost is not None
    scale = block_bytes / 2**30
    figure = plot_gain(
        first * scale,
        second * scale,
        cost.net_s,
        names=(args.tier[0].name, args.tier[1].name),
        unit="GiB",
        chosen=(float(sizes[0]) * scale, float(sizes[1]) * scale),
        title=f"{trace.num_requests:,} requests, LRU, {mode.replace('_', '-')}",
    )
    save_figure(figure, args.plot_gain)
