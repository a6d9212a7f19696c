"""What `kvarray transfer` prints and draws: schedules piece by piece, schedules side by side, or a sweep."""

import argparse
from typing import Any

import numpy as np

from kvarray.cli.output import print_csv, print_json, print_table
from kvarray.cli.transfer.flags import SWEPT
from kvarray.migrate import Schedule
from kvarray.units import format_bytes, format_seconds

__all__ = ["show_schedules", "show_sweep"]

_SHOWN = 12  # pieces that the table shows before the last, and values of a sweep


def show_schedules(args: argparse.Namespace, schedules: dict[str, Schedule], hides_from: float | None) -> None:
    """Show schedules, and from which bandwidth on layers hide behind prefill where that is known."""
    if args.plot:
        _plot_schedule(args, schedules)
    rows = [_summary(label, schedule, schedules) for label, schedule in schedules.items()]
    pieces = [] if args.compare else _pieces(next(iter(schedules.values())))
    if args.json:
        answer: dict[str, Any] = {"overlap_bytes_per_second": hides_from, "schedules": rows}
        print_json(answer | {"pieces": pieces} if pieces else answer)
    elif args.csv:
        print_csv(pieces or rows)
    else:
        _print_text(args, rows, pieces)
        if hides_from is not None:
            layers = "layers" if args.group == 1 else f"groups of {args.group} layers"
            print(
                f"all {layers} but the last have arrived when prefill ends from {hides_from / 1e9:.4g} GB/s on, "
                "all streams together"
            )


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


def show_sweep(args: argparse.Namespace, schedules: dict[str, Schedule]) -> None:
    """Show the time to first token for every value of a sweep."""
    name, values = args.sweep
    label, scale = SWEPT[name]
    ttft = {one: np.broadcast_to(schedule.ttft_s, values.shape) for one, schedule in schedules.items()}
    if args.plot:
        from kvarray.plot import plot_sweep, save_figure

        title = f"{args.blocks:,} blocks of {format_bytes(args.block_bytes)}, decode {format_seconds(args.decode)}"
        save_figure(plot_sweep(values * scale, ttft, label=label, title=title), args.plot)
    columns = {name: values.tolist()} | {f"{one} ttft_s": seconds.tolist() for one, seconds in ttft.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if args.json:
        print_json({"sweep": name, "values": values, "ttft_s": ttft})
    elif args.csv:
        print_csv(rows)
    else:
        shown = [rows[i] for i in np.linspace(0, len(rows) - 1, _SHOWN).round().astype(int)]
        head = {name: label} | {f"{one} ttft_s": one for one in ttft}
        print(f"time to first token, {len(shown)} of {len(rows)} values; --csv prints all")
        print_table([_sweep_row(row, head, name, scale) for row in shown])


def _sweep_row(row: dict[str, Any], head: dict[str, str], name: str, scale: float) -> dict[str, str]:
    return {head[key]: f"{value * scale:.4g}" if key == name else format_seconds(value) for key, value in row.items()}


def _plot_schedule(args: argparse.Namespace, schedules: dict[str, Schedule]) -> None:
    from kvarray.plot import plot_schedule, save_figure

    label, schedule = next(iter(schedules.items()))
    title = f"{label}: {args.blocks:,} blocks of {format_bytes(args.block_bytes)}"
    save_figure(plot_schedule(schedule, title=title), args.plot)
