"""A sweep as one page that needs no network: sliders for the axes, and the figures of where they stand.

Nothing is computed in the browser: the page holds the table, and a slider chooses a row. Where the sliders stand is in
the address behind ``#`` (``#cpu.capacity=2&replicas=0``, values numbered from 0), so that a view can be sent on.
"""

from typing import Any

import numpy as np

from kvarray.grid import Sweep
from kvarray.grid.answers import best_row, explain_sweep

__all__ = ["PAGE_ROWS", "sweep_page"]

PAGE_ROWS = 100_000
"""Combinations that a page holds at most."""

_SHOWN = {
    "hit_rate": ("hit rate", "%", True),
    "mean_ttft_s": ("mean time to first token", "s", False),
    "ttft_p50_s": ("TTFT, half of the requests within", "s", False),
    "ttft_p90_s": ("TTFT, 90 % within", "s", False),
    "ttft_p99_s": ("TTFT, 99 % within", "s", False),
    "share_within_target": ("share within the target", "%", True),
    "gain_s": ("gain: prefill saved less loading", "s", True),
    "cost_per_hour": ("cost per hour", "", False),
}
"""Columns of a page: label, unit, and whether more is better."""


def sweep_page(result: Sweep, *, title: str = "What if", about: str = "") -> str:
    """Return a page of HTML.

    Parameters
    ----------
    result : Sweep
    title, about : str, optional
        Heading, and a line on trace and deployment.

    Raises
    ------
    ValueError
        If there is no combination, or there are more than `PAGE_ROWS`.
    """
    if not 0 < len(result) <= PAGE_ROWS:
        raise ValueError(f"a page holds from 1 to {PAGE_ROWS:,} combinations: got {len(result):,}")
    import json
    from html import escape
    from importlib.resources import files

    # A value never ends the script that holds it, whatever it says.
    data = json.dumps(_data(result), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    page = files("kvarray.plot").joinpath("page.html").read_text(encoding="utf-8")
    for mark, text in (("TITLE", escape(title)), ("ABOUT", escape(about)), ("DATA", data)):
        page = page.replace(f"@{mark}@", text)
    return page


def _data(result: Sweep) -> dict[str, Any]:
    """Return what the page shows, as plain values."""
    row = best_row(result)
    places = np.unravel_index(row, result.grid.shape) if result.grid.axes else ()
    tiers = [name.removeprefix("hit_tokens_") for name in result.columns if name.startswith("hit_tokens_")]
    return {
        "axes": [
            {"name": axis.name, "labels": [axis.label(k) for k in range(len(axis))], "at": int(place)}
            for axis, place in zip(result.grid.axes, places, strict=True)
        ],
        "metrics": [
            {"name": name, "label": label, "unit": unit, "more": more, "values": _rounded(result[name])}
            for name, (label, unit, more) in _SHOWN.items()
            if name in result.columns
        ],
        "tiers": [
            {"name": tier, "values": _rounded(result[f"hit_tokens_{tier}"] / np.maximum(result["tokens"], 1))}
            for tier in tiers
        ],
        "answers": [answer.text for answer in explain_sweep(result)],
    }


def _rounded(column: Any) -> list[float]:
    """Return numbers to six figures: what a page shows."""
    return [float(f"{value:.6g}") for value in np.asarray(column, dtype=np.float64).tolist()]
