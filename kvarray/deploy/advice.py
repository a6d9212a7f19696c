"""Answers in words to what planners ask of a replay, with the figures that they rest on.

*Why is the hit rate no higher?* Four things lie between it and 1: the workload never repeats itself, blocks are too
large to hold what it repeats, the tiers are too small, or requests go to a replica that does not hold their prefix.
*Is a tier worth it?* If what its hits save in prefill is more than what loading them takes, each request by itself.
*How much memory is worth having?* As much as the last hit of an LRU cache needs. *Inclusive or exclusive?* Both are
tried on the trace.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvarray.deploy.caches import usable_blocks
from kvarray.deploy.deployment import Deployment
from kvarray.deploy.hits import TierHits, stepped_reach, tier_hits
from kvarray.deploy.misses import REASONS
from kvarray.deploy.result import Replay
from kvarray.deploy.service import service_times
from kvarray.deploy.ways import ways_up
from kvarray.economics.loading import break_even_tokens
from kvarray.link import Link
from kvarray.reuse import hit_curve
from kvarray.units import format_bytes, format_seconds

__all__ = ["Answer", "explain"]

_CAUSES = {
    "never_seen": "the workload",
    "evicted": "the capacity",
    "partial_block": "the block size",
    "other_replica": "the routing",
}


@dataclass(frozen=True, eq=False)
class Answer:
    """An answer.

    Attributes
    ----------
    question : str
        A word for it: ``hit_rate``, ``block_size``, ``memory``, ``tier`` or ``write_mode``.
    text : str
        One or two sentences.
    figures : dict
        The numbers in them, plain.
    """

    question: str
    text: str
    figures: dict[str, Any]


def explain(result: Replay) -> list[Answer]:
    """Return what can be said of a replay.

    Parameters
    ----------
    result : Replay

    Returns
    -------
    list of Answer
        On the hit rate; on the block size, where it is not the trace's; on memory, where tiers are LRU; on each lower
        tier; on inclusive or exclusive tiers, where there is a choice.

    Notes
    -----
    A few passes over the trace, and a replay of its hits in the other write mode.

    Examples
    --------
    >>> from kvarray.deploy import Deployment, replay
    >>> from kvarray.economics.latency import PrefillTime
    >>> from kvarray.tier import TierSpec
    >>> from kvarray.trace import Trace
    >>> trace = Trace([1, 2, 1, 2, 3, 4, 1, 2], [0, 2, 4, 6, 8], block_size=16, arrival_s=[0.0, 60.0, 120.0, 180.0])
    >>> tiers = (TierSpec("gpu", blocks=3),)
    >>> result = replay(trace, Deployment(tiers, bytes_per_token=1, prefill=PrefillTime(0.0, 1.0, 0.0)))
    >>> print(explain(result)[0].text)
    37.5% of the tokens hit, of 50.0% that one cache without end would hit. Of those that missed: never seen 80.0%,
    evicted 20.0%. More than anything else it is the workload that keeps it there; of what can be changed, the capacity.
    """
    return [
        _hit_rate(result),
        *_block_size(result),
        *_memory(result),
        *_tiers(result),
        *_write_mode(result),
    ]


def _hit_rate(result: Replay) -> Answer:
    missed = result.misses.totals()
    total = sum(missed.values())
    tokens = max(result.totals["token"], 1)
    ceiling = 1.0 - (missed["never_seen"] + missed["partial_block"]) / tokens
    ceiling = ceiling if result.totals["token"] else 0.0
    figures = {"token_hit_rate": result.hit_rate("token"), "ceiling": ceiling, "missed_tokens": missed}
    head = f"{result.hit_rate('token'):.1%} of the tokens hit, of {ceiling:.1%} that one cache without end would hit."
    if not total:
        return Answer("hit_rate", f"{head} Nothing missed.", figures | {"cause": None})
    parts = sorted(((missed[reason], reason) for reason in REASONS if missed[reason]), reverse=True)
    shares = ", ".join(f"{reason.replace('_', ' ')} {count / total:.1%}" for count, reason in parts)
    cause = parts[0][1]
    text = f"{head} Of those that missed: {shares}. More than anything else it is {_CAUSES[cause]} that keeps it there"
    changeable = [reason for _, reason in parts if reason != "never_seen"]
    if cause == "never_seen" and changeable:
        text += f"; of what can be changed, {_CAUSES[changeable[0]]}"
    return Answer("hit_rate", f"{text}.", figures | {"cause": _CAUSES[cause]})


def _block_size(result: Replay) -> list[Answer]:
    """Return what larger blocks than the trace's cost."""
    source, routed = result.routed.source, result.routed
    if source.block_size == routed.block_size:
        return []
    ours = hit_curve(routed.trace, window=routed.window).ceiling()
    finest = hit_curve(source, window=routed.window).ceiling()
    text = (
        f"In blocks of {routed.block_size} tokens no cache could hit more than {ours:.1%} of the tokens; "
        f"in blocks of {source.block_size}, as in the trace, {finest:.1%}."
    )
    figures = {"block_size": routed.block_size, "ceiling": ours, "trace_block_size": source.block_size}
    return [Answer("block_size", text, figures | {"trace_ceiling": finest})]


def _memory(result: Replay) -> list[Answer]:
    """Return how much memory of a replica is worth having, as LRU uses it."""
    if not result.deployment.is_stack:
        return []
    curve = hit_curve(result.routed.joined)
    most, block = int(curve.highest_level), result.block_bytes
    if not most:
        return []
    nearly = int(curve.level_for_share(0.9))
    sizes = result.deployment.tier_blocks(result.routed.block_size)
    have = int(sizes.sum() if result.deployment.write_mode == "exclusive" else sizes.max())
    text = (
        f"With this routing, nothing is gained beyond {format_bytes(most * block)} a replica, and nine tenths of all "
        f"hits need {format_bytes(nearly * block)}; it has {format_bytes(have * block)}."
    )
    figures = {"bytes": have * block, "bytes_for_all_hits": most * block, "bytes_for_nine_tenths": nearly * block}
    return [Answer("memory", text, figures)]


def _tiers(result: Replay) -> list[Answer]:
    """Return whether each lower tier is worth loading from."""
    order = result.routed.order
    reach = None if result.reach is None else result.reach[order]
    if reach is None and not result.deployment.is_stack:
        reach = stepped_reach(result.routed, result.deployment)
    usable = usable_blocks(result.trace, result.deployment)[order]
    hits = TierHits(result.hit_blocks[order], result.hit_tokens[order], usable, reach)
    plain = replace(result.deployment, recompute_slow=False, min_load_tokens=0)
    counted = result.routed.is_counted
    answers = []
    above = service_times(result.routed, plain, replace(hits, blocks=hits.reached(0), reach=None))
    for depth in range(1, len(plain.tiers)):
        here = service_times(result.routed, plain, replace(hits, blocks=hits.reached(depth), reach=None))
        saved = float((above.prefill_s - here.prefill_s)[counted].sum())
        costs = float(((here.load_s - here.hidden_s) - (above.load_s - above.hidden_s))[counted].sum())
        answers.append(_tier(result, depth, saved, costs))
        above = here
    return answers


def _tier(result: Replay, depth: int, saved: float, costs: float) -> Answer:
    deployment, name = result.deployment, result.deployment.tier_names[depth]
    least = float(
        break_even_tokens(
            deployment.prefill, _way_from(deployment, depth, result.routed.block_size),
            kv_bytes_per_token=float(deployment.bytes_per_token),
        )
    )  # fmt: skip
    pays = "never pays" if np.isinf(least) else f"pays from {least:,.0f} tokens on"
    if not result.hit_tokens[:, depth].any():
        verdict = "nothing is served from it"
    elif saved > costs:
        verdict = f"worth it, by {format_seconds(saved - costs)} in all"
    else:
        verdict = f"not worth it, computing is faster by {format_seconds(costs - saved)} in all"
    text = (
        f"Tier {name}: its hits save {format_seconds(saved)} of prefill and take {format_seconds(costs)} to load: "
        f"{verdict}. Loading from it {pays}."
    )
    figures = {"tier": name, "saved_s": saved, "load_s": costs, "pays_from_tokens": None if np.isinf(least) else least}
    overwritten = result.drive_writes_per_day
    if overwritten is not None:
        text += f" It is written over {overwritten[depth]:.3g} times a day."
        figures["drive_writes_per_day"] = float(overwritten[depth])
    return Answer("tier", text, figures)


def _way_from(deployment: Deployment, depth: int, block_size: int) -> Link:
    """Return the whole way up from a tier as one link, fragments spread over the bytes."""
    ways = [way for way in ways_up(deployment, block_size) if depth in way.tiers]
    per_byte = sum(1.0 / way.link.bytes_per_second + way.fragments * way.link.alpha_s / way.block_bytes for way in ways)
    return Link(1.0 / per_byte if per_byte else np.inf, latency_s=sum(way.link.latency_s for way in ways))


def _write_mode(result: Replay) -> list[Answer]:
    """Return what the other of exclusive and write-through tiers would hit and move."""
    deployment = result.deployment
    if len(deployment.tiers) < 2:
        return []
    other = "write_through" if deployment.write_mode == "exclusive" else "exclusive"
    hits = tier_hits(result.routed, replace(deployment, write_mode=other, smaller_below=True))
    assert hits.flows is not None  # of one configuration
    counted = result.routed.is_counted
    tokens = max(result.totals["token"], 1)
    rates = {
        deployment.write_mode: result.hit_rate("token"),
        other: int(hits.tokens[counted].sum()) / tokens,
    }
    moved = {
        deployment.write_mode: sum(result.link_down_bytes.values()),
        other: int(hits.flows.down[counted, :-1].sum()) * result.block_bytes,
    }
    best = max(rates, key=lambda mode: (rates[mode], -moved[mode]))
    said = "; ".join(
        f"{mode.replace('_', '-')} tiers hit {rates[mode]:.2%} of the tokens and move {format_bytes(moved[mode])} down"
        for mode in rates
    )
    text = f"{said[:1].upper()}{said[1:]}: {best.replace('_', '-')} is the better of the two here."
    return [Answer("write_mode", text, {"token_hit_rates": rates, "down_bytes": moved, "best": best})]
