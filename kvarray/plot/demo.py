"""Pictures of the demo: a prefix tree, which tier served each access, and bars."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvarray.demo import Scenario
from kvarray.plot.figure import new_figure
from kvarray.plot.transfer import plot_schedule
from kvarray.prefix import RadixTree
from kvarray.tier import TierAccess

__all__ = ["plot_bars", "plot_scenario", "plot_tier_access", "plot_tree"]


def plot_scenario(scenario: Scenario) -> dict[str, Any]:
    """Return the matplotlib figures of a scenario by kind: tree, tiers, gantt or bars; one may have none.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    figures = {}
    for kind, shown in scenario.pictured.items():
        if kind == "tree":
            figures[kind] = plot_tree(shown, title=scenario.title)
        elif kind == "tiers":
            access, names = shown
            figures[kind] = plot_tier_access(access, names=names, title=scenario.title)
        elif kind == "gantt":
            figures[kind] = plot_schedule(shown, title=scenario.title)
        else:
            bars, label = shown
            figures[kind] = plot_bars(bars, label=label, title=scenario.title)
    return figures


def plot_tree(tree: RadixTree, *, title: str = "") -> Any:
    """Return a matplotlib figure of a prefix tree: a bar per edge, as long as its tokens, below its parent.

    Parameters
    ----------
    tree : RadixTree
        A small one: every node is drawn, siblings in order of their rows.
    title : str, optional

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    columns = tree.columns
    rows = _depth_first(columns["parent"])
    figure, axes = new_figure(height=1.2 + 0.4 * len(rows))
    place = {node: i for i, node in enumerate(rows)}
    for node in rows:
        parent, depth, length = (int(columns[name][node]) for name in ("parent", "depth", "edge_length"))
        start, y = depth - length, place[node]
        color = "C0" if columns["num_children"][node] else "C2"
        axes.broken_barh([(start, length)], (y - 0.3, 0.6), facecolors=color)
        locks = ", locked" if columns["lock_count"][node] else ""
        axes.annotate(
            f"{length} tokens{locks}", (depth, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
        )
        if parent in place:
            axes.plot([start, start], [place[parent] + 0.3, y - 0.3], color="0.4", linewidth=1)
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.25 * max(int(columns["depth"].max()), 1))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("tokens from the root")
    axes.set_title(title, fontsize=10)
    return figure


def _depth_first(parent: Any) -> list[int]:
    """Return the nodes below the root, each before its children."""
    order: list[int] = []
    rest = np.flatnonzero(parent == 0)[::-1].tolist()
    while rest:
        node = rest.pop()
        order.append(node)
        rest += np.flatnonzero(parent == node)[::-1].tolist()
    return order


def plot_tier_access(access: TierAccess, *, names: Sequence[str], title: str = "") -> Any:
    """Return a matplotlib figure of the tier that served each access, one column an access.

    Parameters
    ----------
    access : TierAccess
    names : sequence of str, length K
        Names of the tiers, the fastest first.
    title : str, optional

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    rows = [*names, "miss"]
    figure, axes = new_figure(height=1.4 + 0.4 * len(rows))
    for tier, name in enumerate(rows):
        at = np.flatnonzero(access.tier == tier)
        color = "0.6" if name == "miss" else f"C{tier}"
        axes.broken_barh([(place, 0.9) for place in at.tolist()], (tier - 0.36, 0.72), facecolors=color)
        axes.annotate(
            f"{len(at)}",
            (1.01, tier),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=9,
            annotation_clip=False,
        )
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, max(len(access.tier), 1))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("access")
    axes.set_title(title, fontsize=10)
    return figure


def plot_bars(bars: Mapping[str, Mapping[str, float]], *, label: str, title: str = "") -> Any:
    """Return a matplotlib figure of bars: a group for each inner name, a colour for each outer one.

    Parameters
    ----------
    bars : mapping of str to mapping of str to float
        Series of values by name; all of the same names.
    label : str
        What the values are, with their unit.
    title : str, optional

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If there is no series.
    """
    if not bars:
        raise ValueError("bars must have one series or more: got none")
    figure, axes = new_figure()
    groups = list(next(iter(bars.values())))
    width = 0.8 / len(bars)
    for i, (name, values) in enumerate(bars.items()):
        at = np.arange(len(groups)) + (i - (len(bars) - 1) / 2) * width
        drawn = axes.bar(at, [values[group] for group in groups], width=width, label=name)
        axes.bar_label(drawn, fmt="{:.4g}", fontsize=8, padding=2)
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=10)
    if len(bars) > 1:
        axes.legend(frameon=False)
    return figure
