"""A replay as a picture: how long requests waited, and where their tokens came from."""

from typing import Any

import numpy as np

from kvarray.deploy import Replay
from kvarray.plot.figure import new_figure

__all__ = ["plot_replay"]

_MISSES = ("other_replica", "evicted", "partial_block", "never_seen")  # what could be changed lies next to the hits
_WINDOWS = 60  # of time, over which tokens are summed


def plot_replay(result: Replay, *, title: str = "") -> Any:
    """Return a matplotlib figure: above the distribution of the time to first token, below the tokens over time.

    Parameters
    ----------
    result : Replay
    title : str, optional

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    figure, axes = new_figure(height=6.5)
    above, below = figure.subplots(2, 1, height_ratios=[1, 1.3])
    axes.remove()
    _draw_ttft(above, result)
    _draw_tokens(below, result)
    for one in (above, below):
        one.spines[["top", "right"]].set_visible(False)
        one.grid(alpha=0.3)
    figure.suptitle(title, fontsize=10)
    return figure


def _draw_ttft(axes: Any, result: Replay) -> None:
    """Draw which share of the requests has its first token by when."""
    ttft = np.sort(result.ttft_s[result.is_counted])
    axes.step(ttft, np.arange(1, len(ttft) + 1) / max(len(ttft), 1), where="post", label="requests")
    if len(ttft) and ttft[-1] > 0.0:
        axes.set_xscale("log")
        axes.set_xlim(left=max(float(np.quantile(ttft, 0.01)), float(ttft[-1]) * 1e-6))
    target = result.deployment.target_ttft_s
    if target is not None:
        axes.axvline(target, color="C3", linewidth=1, linestyle="--", label="target")
    axes.set_ylim(0, 1)
    axes.set_xlabel("time to first token, s")
    axes.set_ylabel("share of the requests")
    axes.legend(frameon=False, fontsize=8)


def _draw_tokens(axes: Any, result: Replay) -> None:
    """Draw what became of the tokens that arrived in each window of time, as shares."""
    counted = result.is_counted
    arrival = (result.trace.arrival_s - result.trace.arrival_s[:1]) / result.routed.rate_scale
    edges = np.linspace(0.0, max(float(arrival.max(initial=0.0)), 1e-9), _WINDOWS + 1)
    parts = {name: result.hit_tokens[:, k] for k, name in enumerate(result.deployment.tier_names)}
    parts |= {reason.replace("_", " "): getattr(result.misses, reason) for reason in _MISSES}
    sums = np.array([
        np.histogram(arrival[counted], bins=edges, weights=column[counted])[0] for column in parts.values()
    ])  # fmt: skip
    shares = sums / np.maximum(sums.sum(axis=0), 1.0)
    greys = [str(shade) for shade in np.linspace(0.9, 0.45, len(_MISSES))]
    colours = [f"C{k}" for k in range(len(result.deployment.tier_names))] + greys
    shares = np.append(shares, shares[:, -1:], axis=1)  # the last step ends where the last window does
    axes.stackplot(edges, shares, labels=list(parts), colors=colours, step="post")
    axes.set_ylim(0, 1)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xlabel("arrival, s")
    axes.set_ylabel("share of the tokens")
    axes.legend(frameon=False, fontsize=8, ncols=len(parts), loc="lower center", bbox_to_anchor=(0.5, 1.0))
