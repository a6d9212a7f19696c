"""What planners ask of a sweep, answered in words with the figures behind them.

Each axis is looked at from the best combination there is: the other axes stay as they are there. The best is the one
that meets the target at the least cost where target and prices are given, else the one with the largest gain.
"""

from typing import Any

import numpy as np

from kvarray.deploy.advice import Answer
from kvarray.grid.axes import Axis
from kvarray.grid.result import Sweep
from kvarray.units import format_seconds

__all__ = ["best_row", "describe_row", "explain_sweep"]

_SHARE = 0.95  # of what the best size gains: where more stops paying


def best_row(result: Sweep) -> int:
    """Return the combination to look at the others from."""
    target = _target(result)
    if target is not None and "cost_per_hour" in result.columns:
        row = result.cheapest(at_most={"ttft_p90_s": target})
        if row is not None:
            return row
    return int(np.argmax(result["gain_s"]))


def explain_sweep(result: Sweep) -> list[Answer]:
    """Return what a sweep says of each of its axes, and of cost where prices are given."""
    if not len(result):
        return []
    row = best_row(result)
    answers = [_of_axis(result, axis, row) for axis in result.grid.axes if len(axis) > 1]
    if "cost_per_hour" in result.columns:
        answers.append(_of_cost(result))
        answers.append(_of_front(result))
    return answers


def _target(result: Sweep) -> float | None:
    if "ttft_p90_s" not in result.columns or not len(result):
        return None
    return result.deployment(0).target_ttft_s


def _of_axis(result: Sweep, axis: Axis, row: int) -> Answer:
    """Say what an axis brings: from which value on it stops paying, or which value is best."""
    gain = result.line("gain_s", axis.name, row=row)
    figures: dict[str, Any] = {"values": list(axis.values), "gain_s": gain.tolist()}
    if "mean_ttft_s" in result.columns:
        figures["mean_ttft_s"] = result.line("mean_ttft_s", axis.name, row=row).tolist()
    if not axis.is_numeric or not axis.unit[0]:
        best = int(np.argmax(gain))
        text = f"{axis.name}: {axis.label(best)} gains most, {_spans(axis, gain)}"
        return Answer(axis.name, text + _and_ttft(result, axis, row, best), figures)
    unit, size = axis.unit
    order = np.argsort(np.array(axis.values, dtype=np.float64), kind="stable")
    enough = order[int(np.argmax(gain[order] >= gain.min() + _SHARE * (gain.max() - gain.min())))]
    low, high = int(order[0]), int(order[-1])
    rise = float(gain[high] - gain[low])
    if float(np.ptp(gain)) <= 1e-9 * float(np.abs(gain).max()):
        text = f"{axis.name}: makes no difference between {axis.label(low)} and {axis.label(high)}"
    else:
        each = rise / ((axis.values[high] - axis.values[low]) / size)
        stops = f"{axis.label(int(enough))} has {_SHARE:.0%} of it, more stops paying"
        if enough == high:
            stops = f"it still pays at {axis.label(high)}"
        text = (
            f"{axis.name}: from {axis.label(low)} to {axis.label(high)} the gain moves by {_signed(rise)}, "
            f"{_signed(each)} a {unit} on the mean; {stops}"
        )
        text += _and_ttft(result, axis, row, int(enough))
        figures |= {"enough": axis.values[int(enough)], f"gain_s_per_{unit}": each}
        if "mean_ttft_s" in result.columns:
            ttft = result.line("mean_ttft_s", axis.name, row=row)
            slope = float(ttft[high] - ttft[low]) / ((axis.values[high] - axis.values[low]) / size)
            figures[f"mean_ttft_s_per_{unit}"] = slope
            text += f", {_signed(slope)} a {unit} on the mean"
    if "cost_per_hour" in result.columns:
        cost = result.line("cost_per_hour", axis.name, row=row)
        if cost[high] != cost[low] and "enough" in figures:
            figures["gain_s_per_cost"] = rise / float(cost[high] - cost[low])
            text += f"; {_signed(figures['gain_s_per_cost'])} for each further 1 an hour"
    return Answer(axis.name, text, figures)


def _and_ttft(result: Sweep, axis: Axis, row: int, place: int) -> str:
    if "mean_ttft_s" not in result.columns:
        return ""
    ttft = result.line("mean_ttft_s", axis.name, row=row)
    return f"; mean TTFT {format_seconds(float(ttft[place]))} there, {_range(ttft)} over all"


def _range(times: Any) -> str:
    return f"{format_seconds(float(times.min()))} to {format_seconds(float(times.max()))}"


def _spans(axis: Axis, gain: Any) -> str:
    shown = [f"{axis.label(k)} {_signed(float(gain[k]))}" for k in range(min(len(axis), 6))]
    return ", ".join(shown) + (", ..." if len(axis) > 6 else "")


def _signed(seconds: float) -> str:
    return ("-" if seconds < 0 else "") + format_seconds(abs(seconds))


def describe_row(result: Sweep, row: int) -> str:
    """Return the values of a row's axes as a person reads them."""
    places = np.unravel_index(row, result.grid.shape) if result.grid.axes else ()
    named = [f"{axis.name} {axis.label(int(place))}" for axis, place in zip(result.grid.axes, places, strict=True)]
    return ", ".join(named) or "the one combination"


def _of_cost(result: Sweep) -> Answer:
    """Say which deployment is the cheapest that meets the target."""
    target = _target(result)
    if target is None:
        row = result.cheapest()
        assert row is not None  # there are rows, and no limits
        text = f"no target is given; the cheapest of all costs {result['cost_per_hour'][row]:.4g} an hour"
        return Answer("cheapest", f"{text}: {describe_row(result, row)}", {"row": row})
    limits = {"ttft_p90_s": target}
    row_or_none = result.cheapest(at_most=limits)
    if row_or_none is None:
        least = float(result["ttft_p90_s"].min())
        text = (
            f"none has 90 % of its first tokens within {format_seconds(target)}: the best takes {format_seconds(least)}"
        )
        return Answer("cheapest", text, {"row": None, "least_ttft_p90_s": least})
    text = (
        f"the cheapest with 90 % of its first tokens within {format_seconds(target)} costs "
        f"{result['cost_per_hour'][row_or_none]:.4g} an hour: {describe_row(result, row_or_none)}; "
        f"{int(result.meets(at_most=limits).sum())} of {len(result)} meet it"
    )
    return Answer("cheapest", text, {"row": row_or_none})


def _of_front(result: Sweep) -> Answer:
    """Say what is worth its cost."""
    goal = "mean_ttft_s" if "mean_ttft_s" in result.columns else None
    front = (
        result.pareto(least=["cost_per_hour", goal])
        if goal
        else result.pareto(least=["cost_per_hour"], most=["gain_s"])
    )
    what = "a lower mean TTFT" if goal else "a larger gain"
    cost = result["cost_per_hour"][front]
    text = (
        f"{len(front)} of {len(result)} are worth their cost (no other has {what} for less): "
        f"from {cost[0]:.4g} to {cost[-1]:.4g} an hour"
    )
    return Answer("front", text, {"rows": front.tolist()})
