"""The hit-rate curve of a trace, as a picture."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvarray.arrays import Ids
from kvarray.plot.figure import new_figure
from kvarray.reuse import HitCurve

__all__ = ["plot_curve"]


def plot_curve(
    curve: HitCurve,
    *,
    levels: Any = (),
    unit: str = "token",
    beside: Mapping[str, tuple[Any, Any]] | None = None,
    bytes_per_block: float | None = None,
    title: str = "",
) -> Any:
    """Return a matplotlib figure of hit rate against capacity, or against time to live.

    Parameters
    ----------
    curve : HitCurve
    levels : array_like, optional
        Capacities or times to live to mark on the curve.
    unit : str, optional
        What the hit rate counts; see `HitCurve.hit_rate`.
    beside : mapping of str to (levels, rates), optional
        Other curves to draw with this one, by name.
    bytes_per_block : float, optional
        Adds an axis of capacity in GiB.
    title : str, optional

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    figure, axes = new_figure()
    highest = max(float(curve.highest_level), 1.0)
    grid = _grid(curve, highest)
    axes.plot(grid, curve.hit_rate(grid, unit=unit), label="LRU" if curve.axis == "blocks" else "time to live")
    axes.axhline(curve.ceiling(unit=unit), color="0.4", linestyle="--", linewidth=1, label="infinite cache")
    for name, (at, rates) in (beside or {}).items():
        axes.plot(at, rates, label=name, linewidth=1.2)
    marked = np.asarray(levels)
    if marked.size:
        axes.plot(marked, curve.hit_rate(marked, unit=unit), "o", color="C0", label="asked for")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("capacity, blocks" if curve.axis == "blocks" else "time to live, s")
    axes.set_ylabel(f"{unit.replace('_', ' ')} hit rate")
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False)
    if bytes_per_block is not None and curve.axis == "blocks":
        gib = bytes_per_block / 2**30
        above = axes.secondary_xaxis("top", functions=(lambda x: x * gib, lambda x: x / gib))
        above.set_xlabel("capacity, GiB")
    return figure


def _grid(curve: HitCurve, highest: float) -> Ids | Any:
    """Return levels from the lowest to a little above the highest, evenly on a logarithmic axis."""
    if curve.axis == "seconds":
        return np.geomspace(min(1e-3 * highest, highest), highest * 2, 300)
    return np.unique(np.geomspace(1, highest * 2, 300).astype(np.int64))
