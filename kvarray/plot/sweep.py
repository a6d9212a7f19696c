"""A sweep as a picture: what one axis does to gain, hit rate and time to first token."""

from typing import Any

import numpy as np

from kvarray.grid import Sweep
from kvarray.grid.answers import best_row
from kvarray.grid.axes import Axis
from kvarray.plot.figure import new_figure

__all__ = ["plot_grid"]

_LINES = 8  # values of the second axis that are drawn


def plot_grid(result: Sweep, *, x: str | None = None, lines: str | None = None, title: str = "") -> Any:
    """Return a matplotlib figure with a panel for each of gain, hit rate and, if they are there, times.

    Parameters
    ----------
    result : Sweep
    x : str, optional
        Axis along the pictures; the first with two values or more by default.
    lines : str, optional
        Axis with a line for each value, at most eight of them; the second one by default, if there is one.
    title : str, optional

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If no axis has two values, or an axis is not there.
    """
    names = [axis.name for axis in result.grid.axes if len(axis) > 1]
    if not names:
        raise ValueError("a plot needs an axis of two values or more")
    along = result.axis(x or names[0])
    others = [name for name in names if name != along.name]
    across = result.axis(lines) if lines is not None else result.axis(others[0]) if others else None
    panels = {"hit_rate": "hit rate", "gain_s": "gain, s"}
    panels |= {
        name: label
        for name, label in (("mean_ttft_s", "mean TTFT, s"), ("ttft_p90_s", "TTFT, 90 %, s"))
        if name in result.columns
    }
    figure, first = new_figure(width=3.6 * len(panels), height=3.6)
    first.remove()
    row = best_row(result)
    at, labels = _positions(along)
    for axes, (name, label) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for line_label, rows in _lines(result, along, across, row):
            axes.plot(at, result[name][rows], marker="o", markersize=3, label=line_label)
        _dress(axes, along, at, labels, label)
    if across is not None:
        axes.legend(frameon=False, fontsize=7, title=across.name, title_fontsize=7)
    figure.suptitle(title, fontsize=10)
    return figure


def _lines(result: Sweep, along: Axis, across: Axis | None, row: int) -> list[tuple[str, Any]]:
    """Return the rows of each line and what it is called; the other axes are as in `row`."""
    if across is None:
        return [("", result.along(along.name, row=row))]
    starts = result.along(across.name, row=row)
    step = max(1, -(-len(starts) // _LINES))
    return [
        (across.label(place), result.along(along.name, row=int(starts[place]))) for place in range(0, len(starts), step)
    ]


def _positions(axis: Axis) -> tuple[Any, list[str]]:
    """Return where values stand: numbers where they are, else one after the other."""
    labels = [axis.label(place) for place in range(len(axis))]
    if axis.is_numeric:
        return np.array(axis.values, dtype=np.float64) / axis.unit[1], labels
    return np.arange(len(axis)), labels


def _dress(axes: Any, along: Axis, at: Any, labels: list[str], label: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.set_ylabel(label)
    unit = along.unit[0]
    axes.set_xlabel(f"{along.name}, {unit}" if unit else along.name)
    if not along.is_numeric:
        axes.set_xticks(at, labels)
    elif at.min() > 0.0 and at.max() > 8.0 * at.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
