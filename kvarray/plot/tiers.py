"""Tiers as pictures: hit rate against size under several policies, and what two tier sizes gain."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvarray.plot.figure import new_figure

__all__ = ["plot_gain", "plot_policies"]


def plot_policies(
    capacities: ArrayLike,
    rates: Mapping[str, ArrayLike],
    *,
    optimal: ArrayLike | None = None,
    ylabel: str = "hit rate",
    bytes_per_block: float | None = None,
    title: str = "",
) -> Any:
    """Return a matplotlib figure of hit rates against capacity, one line a policy, the optimum above them.

    Parameters
    ----------
    capacities : array_like of int, shape (C,)
        In blocks.
    rates : mapping of str to array_like of float, shape (C,)
        Hit rate at each capacity, by policy.
    optimal : array_like of float, shape (C,), optional
        The most that any policy could reach.
    ylabel, title : str, optional
    bytes_per_block : float, optional
        Adds an axis of capacity in GiB.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    figure, axes = new_figure()
    if optimal is not None:
        axes.plot(capacities, optimal, color="0.3", linestyle="--", linewidth=1, label="optimum")
    for policy, rate in rates.items():
        axes.plot(capacities, rate, marker=".", linewidth=1.2, label=policy)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("capacity, blocks")
    axes.set_ylabel(ylabel)
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False, fontsize=8, ncols=2)
    if bytes_per_block is not None:
        gib = bytes_per_block / 2**30
        above = axes.secondary_xaxis("top", functions=(lambda x: x * gib, lambda x: x / gib))
        above.set_xlabel("capacity, GiB")
    return figure


def plot_gain(
    first: ArrayLike,
    second: ArrayLike,
    net_s: ArrayLike,
    *,
    names: tuple[str, str],
    unit: str = "blocks",
    chosen: tuple[float, float] | None = None,
    title: str = "",
) -> Any:
    """Return a matplotlib heat map of the net gain over the sizes of two tiers.

    Parameters
    ----------
    first, second : array_like of float, shapes (X,) and (Y,)
        Sizes of the two tiers.
    net_s : array_like of float, shape (X, Y)
        Seconds saved less seconds spent.
    names : tuple of str
        What the tiers are called.
    unit, title : str, optional
    chosen : tuple of float, optional
        A pair of sizes to mark.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    figure, axes = new_figure()
    axes.grid(visible=False)
    gain = np.asarray(net_s, dtype=np.float64)
    limit = max(float(np.abs(gain).max(initial=0.0)), 1e-12)
    mesh = axes.pcolormesh(
        first, second, gain.T, shading="nearest", cmap="RdBu", vmin=-limit, vmax=limit, rasterized=True
    )
    figure.colorbar(mesh, ax=axes, label="net gain, s")
    if chosen is not None:
        axes.plot(*chosen, "o", color="black", markerfacecolor="none", label="asked for")
        axes.legend(frameon=False)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"{names[0]}, {unit}")
    axes.set_ylabel(f"{names[1]}, {unit}")
    axes.set_title(title, fontsize=10)
    return figure
