"""`kvarray replay`: a trace through a whole deployment."""

import argparse
from typing import Any, get_args

import numpy as np

from kvarray.cli.arguments import add_output_flags, add_trace_arguments, load_trace
from kvarray.cli.output import print_csv, print_json, print_table
from kvarray.deploy import REASONS, ROUTINGS, Deployment, Replay, replay
from kvarray.deploy.config import read_toml
from kvarray.economics.latency import GPUS, PREFILL_TIMES
from kvarray.migrate.batch import ScheduleName
from kvarray.policies import ORDERS
from kvarray.reuse import UNITS
from kvarray.tier.cascade import WRITE_MODES
from kvarray.units import format_bytes, format_seconds

__all__ = ["add_deployment_flags", "add_parser", "read_flags", "run"]

_EPILOG = """examples:
  kvarray replay                                             a built-in workload on a built-in deployment
  kvarray replay trace.jsonl --block-size 512 --replicas 8 --routing prefix_aware --target 1s
  kvarray replay trace.jsonl --model llama-3.1-8b --prefill llama-3.1-8b-h100 --tier gpu=40GiB --tier cpu=1TiB@50GB/s
  kvarray replay --config deployment.toml --pd layered --pd-link net-400g --plot replay.png
"""

_DEFAULTS: dict[str, Any] = {
    "model": "llama-3.1-70b",
    "gpu": "h100",
    "gpus": 8,
    "tiers": [
        {"name": "gpu", "capacity": "300GiB"},
        {"name": "cpu", "capacity": "1TiB", "link": {"name": "dram-pcie5-dma", "count": 8}},
        {"name": "ssd", "capacity": "8TiB", "link": {"name": "nvme-gen4", "count": 4}},
    ],
}
"""What a deployment is where neither a file nor a flag says: a server of eight H100 with four drives."""


def add_parser(subparsers: Any) -> None:
    """Declare the flags of `kvarray replay`."""
    parser = subparsers.add_parser(
        "replay",
        help="a trace through a whole deployment",
        description="Hits by tier, times to first token, gain and traffic of a deployment that serves a trace.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_trace_arguments(parser)
    add_deployment_flags(parser)
    add_output_flags(parser)
    parser.add_argument("--plot", metavar="FILE", help="draw waiting times and where tokens came from (png, svg, pdf)")
    parser.set_defaults(run=run)


def add_deployment_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe a deployment; `read_flags` reads them."""
    parser.add_argument("--config", metavar="FILE", help="a deployment in TOML; flags go before what it says")
    what = parser.add_argument_group("the model and what computes it (default: Llama-3.1-70B on 8 H100)")
    what.add_argument("--model", metavar="NAME", help="of the catalogue, or the path of a config.json")
    what.add_argument("--dtype", metavar="NAME", help="of the cache: bf16, fp8, int4 ...")
    what.add_argument("--bytes-per-token", metavar="SIZE", help="of KV, instead of the model's")
    what.add_argument("--gpu", choices=tuple(GPUS), help="of a replica")
    what.add_argument("--gpus", metavar="N", help="of a replica")
    what.add_argument("--parameters", metavar="N", help="active ones of the model (70.6G); default: by its name")
    what.add_argument("--prefill", metavar="NAME", help=f"a fitted prefill time: {', '.join(PREFILL_TIMES)}")
    memory = parser.add_argument_group("its memory")
    memory.add_argument(
        "--tier", action="append", metavar="NAME=SIZE[@UP[,DOWN]]", help="a tier, the fastest first; repeat"
    )
    memory.add_argument("--reblock", metavar="N", help="serve in larger blocks of so many tokens")
    memory.add_argument("--policy", choices=tuple(ORDERS), help="eviction order; default: lru")
    memory.add_argument("--write-mode", choices=WRITE_MODES, help="default: exclusive")
    memory.add_argument("--smaller-below", action="store_true", default=None, help="of write-through tiers")
    memory.add_argument("--seed", type=int, metavar="N", help="of the policy random")
    memory.add_argument("--allow-oversize", action="store_true", default=None, help="requests beyond the first tier")
    route = parser.add_argument_group("its replicas")
    route.add_argument("--replicas", metavar="N", help="default: 1")
    route.add_argument("--routing", choices=ROUTINGS, help="default: round_robin")
    route.add_argument("--overlap-weight", type=float, metavar="W", help="of prefix_aware; default: 1")
    route.add_argument("--prefix-blocks", metavar="N", help="of prefix_hash; default: 1")
    apart = parser.add_argument_group("prefill and decode apart")
    apart.add_argument("--pd", choices=get_args(ScheduleName), help="the schedule")
    apart.add_argument("--pd-link", metavar="LINK", help="a rate or a name; default: net-400g")
    apart.add_argument("--pd-streams", metavar="N", help="of the link; default: 1")
    apart.add_argument("--pd-chunk", metavar="N", help="tokens of a chunk; default: 2048")
    apart.add_argument("--pd-layers", metavar="N", help="pieces of a layered prompt; default: the model's layers")
    times = parser.add_argument_group("time")
    times.add_argument("--overlap", type=float, metavar="ETA", help="efficiency of loading while computing; default: 0")
    times.add_argument("--min-load", metavar="N", help="load only if it is so many tokens")
    times.add_argument("--recompute-slow", action="store_true", default=None, help="compute what loads later")
    times.add_argument("--no-queueing", action="store_false", default=None, dest="queueing", help="each request alone")
    times.add_argument("--target", metavar="T", help="time to first token that counts as met")
    times.add_argument("--rate-scale", type=float, default=1.0, metavar="X", help="requests arrive so much faster")
    count = parser.add_argument_group("what is counted")
    count.add_argument("--window", type=float, metavar="W", help="share of requests that only warm the tiers")
    count.add_argument("--unit", choices=UNITS, help="of the hit rate shown; default: token")


_KEYS = {
    "model": "model", "dtype": "dtype", "bytes_per_token": "bytes_per_token", "gpu": "gpu", "gpus": "gpus",
    "parameters": "parameters", "prefill": "prefill", "tier": "tiers", "reblock": "block_size", "policy": "policy",
    "write_mode": "write_mode", "smaller_below": "smaller_below", "seed": "seed", "allow_oversize": "allow_oversize",
    "replicas": "replicas", "routing": "routing", "overlap_weight": "overlap_weight", "prefix_blocks": "prefix_blocks",
    "overlap": "overlap_efficiency", "min_load": "min_load_tokens", "recompute_slow": "recompute_slow",
    "queueing": "queueing", "target": "target_ttft", "window": "window", "unit": "unit",
}  # fmt: skip
"""The keys of a deployment that flags set."""


def read_flags(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of the deployment that file and flags describe, for `Deployment.from_dict`."""
    given = {key: value for flag, key in _KEYS.items() if (value := getattr(args, flag)) is not None}
    for key in ("gpus", "replicas", "prefix_blocks", "min_load_tokens", "block_size"):
        if key in given:
            given[key] = str(given[key])
    if args.config is not None:
        fields = read_toml(args.config) | given
    else:
        fields = {key: value for key, value in _DEFAULTS.items() if key == "tiers" or _needs(key, given)} | given
    apart = _separation(args)
    if apart:
        fields["separation"] = {"link": "net-400g"} | dict(fields.get("separation") or {}) | apart
    return fields


def _needs(key: str, given: dict[str, Any]) -> bool:
    """Whether the built-in model or its GPUs are asked for, since flags do not say all there is to know."""
    if key == "model":
        return "bytes_per_token" not in given or "prefill" not in given
    return "prefill" not in given


def _separation(args: argparse.Namespace) -> dict[str, Any]:
    """Return what flags say of prefill and decode apart."""
    flags = {"schedule": args.pd, "link": args.pd_link, "streams": args.pd_streams, "layers": args.pd_layers}
    apart = {key: value for key, value in flags.items() if value is not None}
    if args.pd_chunk is not None or args.pd == "chunked":
        apart["chunk_tokens"] = args.pd_chunk or 2048
    return apart


def run(args: argparse.Namespace) -> None:
    """Answer `kvarray replay`."""
    deployment = Deployment.from_dict(read_flags(args))
    result = replay(load_trace(args), deployment, rate_scale=args.rate_scale)
    if args.plot:
        from kvarray.plot import plot_replay, save_figure

        save_figure(plot_replay(result, title=f"{_trace_line(result)}\n{_deployment_line(result)}"), args.plot)
    if args.json:
        print_json(_as_json(result))
    elif args.csv:
        columns = result.rows()
        rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
        print_csv([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        _print_text(result)


def _as_json(result: Replay) -> dict[str, Any]:
    deployment = result.deployment
    sizes = deployment.tier_blocks(result.routed.block_size)
    return {
        "trace": {
            "requests": result.trace.num_requests,
            "blocks": result.trace.num_blocks,
            "block_size": result.trace.block_size,
            "skipped": result.trace.skipped.num_records,
        },
        "deployment": {
            "model": deployment.model,
            "bytes_per_token": deployment.bytes_per_token,
            "replicas": deployment.replicas,
            "routing": deployment.routing,
            "policy": deployment.policy,
            "write_mode": deployment.write_mode,
            "tiers": dict(zip(deployment.tier_names, sizes.tolist(), strict=True)),
        },
        **result.summary(),
        "answers": [
            {"question": answer.question, "text": answer.text, "figures": answer.figures} for answer in result.explain()
        ],
    }


def _trace_line(result: Replay) -> str:
    trace = result.trace
    return (
        f"{trace.num_requests:,} requests, {trace.num_blocks:,} blocks of {trace.block_size} tokens, "
        f"{int(trace.input_tokens.sum()):,} tokens"
    )


def _deployment_line(result: Replay) -> str:
    deployment = result.deployment
    many = f"{deployment.replicas} replicas ({deployment.routing})" if deployment.replicas > 1 else "1 replica"
    apart = f", {deployment.separation.schedule} to decode nodes" if deployment.separation is not None else ""
    return (
        f"{deployment.model or 'a model'} of {format_bytes(deployment.bytes_per_token)} a token on {many}, "
        f"{deployment.policy if isinstance(deployment.policy, str) else 'own policy'}, {deployment.write_mode}{apart}"
    )


def _print_text(result: Replay) -> None:
    print(_trace_line(result))
    skipped = result.trace.skipped
    if skipped.num_records:
        print(f"left out {skipped.num_records:,} malformed records, first: {skipped.messages[0]}")
    print(_deployment_line(result))
    print()
    print_table(_tier_rows(result))
    print()
    _print_times(result)
    print()
    _print_misses(result)
    print()
    for answer in result.explain():
        print(answer.text)


def _tier_rows(result: Replay) -> list[dict[str, str]]:
    """Return a row for each tier, and one for all of them."""
    deployment = result.deployment
    sizes = deployment.tier_blocks(result.routed.block_size) * result.block_bytes
    tokens, total = result.tier_hit_tokens.tolist(), max(result.totals["token"], 1)
    per_day, overwritten = result.written_bytes_per_day, result.drive_writes_per_day
    rows = []
    for k, name in enumerate(deployment.tier_names):
        rows.append({
            "tier": name,
            "size": format_bytes(int(sizes[k])),
            "hit tokens": f"{tokens[k]:,}",
            "hit rate": f"{tokens[k] / total:.2%}",
            "written": format_bytes(int(result.written_bytes[k])),
            "a day": "-" if per_day is None else format_bytes(float(per_day[k])),
            "times over": "-" if overwritten is None else f"{overwritten[k]:.3g}",
        })  # fmt: skip
    written = result.written_bytes
    rows.append({
        "tier": "all",
        "size": format_bytes(int(sizes.sum())),
        "hit tokens": f"{sum(tokens):,}",
        "hit rate": f"{sum(tokens) / total:.2%}",
        "written": format_bytes(int(written.sum())),
        "a day": "-" if per_day is None else format_bytes(float(per_day.sum())),
        "times over": "-",
    })  # fmt: skip
    return rows


def _print_times(result: Replay) -> None:
    """Print the time to first token and what it is made of."""
    shares = {f"p{share}": share / 100 for share in (50, 90, 95, 99)} | {"max": 1.0}
    seconds = {"mean": result.mean_ttft_s} | {name: float(result.ttft_quantile(q)) for name, q in shares.items()}
    print_table([{"first token": "", **{name: format_seconds(value) for name, value in seconds.items()}}])
    counted, count = result.is_counted, max(result.totals["request"], 1)
    parts = {
        name: float(getattr(result, f"{name}_s")[counted].sum()) / count
        for name in ("queue", "load", "prefill", "transfer", "decode")
    }
    mean = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in parts.items() if seconds)
    print(f"mean of {mean or 'nothing'}")
    within, ceiling = result.share_within(), result.throughput_ceiling
    if within is not None and result.deployment.target_ttft_s is not None:
        print(f"{within:.2%} within {format_seconds(result.deployment.target_ttft_s)}")
    if result.duration_s and ceiling is not None:
        rate = result.totals["request"] / result.duration_s
        print(f"{rate:.4g} requests a second; no more than {ceiling:.4g} with these hits and this routing")
    saved, gain = float(result.saved_s[counted].sum()), float(result.gain_s[counted].sum())
    print(f"prefill saved {format_seconds(saved)}, gain after loading {format_seconds(gain)}")
    for name, moved in result.link_loaded_bytes.items():
        print(f"loaded {name}: {format_bytes(moved)}")
    if result.transfer_bytes:
        print(f"moved to decode nodes: {format_bytes(result.transfer_bytes)}")


def _print_misses(result: Replay) -> None:
    """Print hit rates by every definition, and why tokens missed."""
    print_table([{"hit rate by": "", **{unit.replace("_", " "): f"{result.hit_rate(unit):.2%}" for unit in UNITS}}])
    missed = result.misses.totals()
    total = sum(missed.values())
    print(f"missed {total:,} tokens: " + ", ".join(f"{name.replace('_', ' ')} {missed[name]:,}" for name in REASONS))
