"""Schedules and timelines as Gantt charts, and times to first token against what was swept."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvarray.migrate import Schedule
from kvarray.plot.figure import new_figure
from kvarray.timeline import Timeline

__all__ = ["plot_schedule", "plot_sweep", "plot_timeline"]

_COLORS = {"prefill": ("C2", "#a6d7a6"), "stream": ("C0", "#9dc3e6"), "decode": ("C1", "#ffc48a"), "lost": ("C3", "C3")}


def plot_schedule(schedule: Schedule, *, title: str = "") -> Any:
    """Return a matplotlib figure of a schedule: a row for prefill, for each stream and for decoding.

    Parameters
    ----------
    schedule : Schedule
        Of one world: without leading axes.
    title : str, optional

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If the schedule has leading axes.
    """
    if schedule.decode.finish_s.ndim != 1:
        raise ValueError(f"schedule must be of one world: got leading axes {schedule.decode.finish_s.shape[:-1]}")
    streams = schedule.transfer.timeline
    rows = [f"stream {one}" for one in range(streams.num_resources)] + ["decode"]
    if schedule.prefill.work_s.any():
        rows.insert(0, "prefill")
    figure, axes, scale, unit = _new_chart(rows, float(schedule.makespan_s), title)

    if "prefill" in rows:
        _bars(axes, schedule.prefill, rows.index("prefill"), scale, "prefill")
    for one in range(streams.num_resources):
        _bars(axes, streams, rows.index(f"stream {one}"), scale, "stream", resource=one)
    lost = schedule.transfer.lost
    for stream, start, finish in zip(lost.stream.tolist(), lost.start_s, lost.finish_s, strict=True):
        _bar(axes, rows.index(f"stream {stream}"), [(start * scale, (finish - start) * scale)], "lost")
    _bars(axes, schedule.decode, rows.index("decode"), scale, "decode")

    first_token = float(schedule.ttft_s) * scale
    axes.axvline(first_token, color="0.2", linestyle="--", linewidth=1)
    axes.annotate(
        f"first token {first_token:.4g} {unit}",
        (first_token, -0.62),
        xytext=(4, 0),
        textcoords="offset points",
        fontsize=8,
        annotation_clip=False,
    )
    return figure


def plot_timeline(timeline: Timeline, *, title: str = "") -> Any:
    """Return a matplotlib figure of a timeline: a row for each resource, or for each job where resources are shared.

    Parameters
    ----------
    timeline : Timeline
        Of one world: without leading axes.
    title : str, optional

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If the timeline has leading axes.
    """
    if timeline.finish_s.ndim != 1:
        raise ValueError(f"timeline must be of one world: got leading axes {timeline.finish_s.shape[:-1]}")
    if timeline.shared:
        num_rows, row_of = timeline.num_jobs, np.arange(timeline.num_jobs)
    else:
        num_rows, row_of = timeline.num_resources, timeline.resource
    name = "job" if timeline.shared else "resource"
    figure, axes, scale, _ = _new_chart([f"{name} {row}" for row in range(num_rows)], float(timeline.end_s), title)
    by_row = replace(timeline, resource=row_of)
    for row in range(num_rows):
        _bars(axes, by_row, row, scale, "stream", resource=row)
    return figure


def _new_chart(rows: list[str], end_s: float, title: str) -> tuple[Any, Any, float, str]:
    """Return a figure, its axes with named rows, and the scale and unit of its times."""
    figure, axes = new_figure(height=1.4 + 0.4 * len(rows))
    scale, unit = (1.0, "s") if end_s >= 10.0 else (1e3, "ms") if end_s >= 1e-2 else (1e6, "us")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.4, -0.8)
    axes.set_xlim(0.0, end_s * scale * 1.02 or 1.0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"time, {unit}")
    axes.set_title(title, fontsize=10)
    return figure, axes, scale, unit


def _bars(axes: Any, timeline: Timeline, row: int, scale: float, kind: str, *, resource: int = 0) -> None:
    mine = np.flatnonzero((timeline.resource == resource) & (timeline.work_s > 0.0))
    start, finish = timeline.start_s[mine], timeline.finish_s[mine]
    spans = np.stack((start, finish - start), axis=-1)[np.argsort(start, kind="stable")] * scale
    _bar(axes, row, spans.tolist(), kind)


def _bar(axes: Any, row: int, spans: list[Any], kind: str) -> None:
    """Draw spans in two shades by turns, so that neighbours can be told apart however narrow they are."""
    colors = [_COLORS[kind][i % 2] for i in range(len(spans))]
    axes.broken_barh(spans, (row - 0.36, 0.72), facecolors=colors)


def plot_sweep(swept: ArrayLike, ttft_s: Mapping[str, ArrayLike], *, label: str, title: str = "") -> Any:
    """Return a matplotlib figure of times to first token against a quantity.

    Parameters
    ----------
    swept : array_like of float, shape (K,)
        Values of the quantity; the axis is logarithmic where they are above 0 and span more than a decade.
    ttft_s : mapping of str to array_like of float, shape (K,)
        Times to first token, by name of the schedule.
    label : str
        Name and unit of the quantity.
    title : str, optional

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    figure, axes = new_figure()
    at = np.asarray(swept, dtype=np.float64)
    for name, seconds in ttft_s.items():
        axes.plot(at, np.asarray(seconds) * 1e3, label=name)
    if at.size and at.min() > 0.0 and at.max() > 10.0 * at.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel(label)
    axes.set_ylabel("time to first token, ms")
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False)
    return figure
