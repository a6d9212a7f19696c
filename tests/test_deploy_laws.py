"""Replays against their plain-Python twin, against closed forms and steps, and the laws they obey."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarray import (
    Link,
    PrefillTime,
    Trace,
    hit_curve,
    replay,
)
from kvarray.deploy import (
    COLUMNS,
    REASONS,
    ROUTINGS,
    LruHits,
    first_token_times,
    queue_times,
    route,
    service_times,
    tier_hits,
)
from kvarray.deploy.caches import Caches, usable_blocks
from kvarray.deploy.hits import stepped_reach
from kvarray.reuse import UNITS
from kvarray.stepping import step_requests
from kvarray.tier import TieredCache, TierSpec
from tests.deployments import BASE, RATES, as_requests, close, deployments, run_twin, served_traces
from tests.reference import replay as twin

FEWER = settings(max_examples=max(settings.default.max_examples * 2 // 5, 1))


@given(served_traces(), deployments())
def test_a_replay_is_what_its_twin_simulates(trace, both):
    deployment, as_dict = both
    result, rows = replay(trace, deployment), run_twin(trace, as_dict)
    for name in ("replica", "hit_blocks", "used_tokens"):
        assert getattr(result, name).tolist() == [row[name] for row in rows], name
    clock = float(trace.arrival_s[-1] - trace.arrival_s[0]) + max(row["ttft_s"] for row in rows)
    for name in ("load_s", "prefill_s", "transfer_s", "decode_s", "queue_s", "ttft_s"):
        assert close(getattr(result, name), [row[name] for row in rows], clock), name


# ---- the same integers as elsewhere ----------------------------------------------------------------------------------


@FEWER
@given(served_traces(), st.integers(1, 9), st.sampled_from([0.0, 0.3, 0.7]))
def test_hit_rates_are_those_of_the_curve(trace, blocks, window):
    deployment = replace(BASE, tiers=(TierSpec("gpu", blocks=blocks),), allow_oversize=True, window=window)
    result, curve = replay(trace, deployment), hit_curve(trace, window=window)
    for unit in UNITS:
        assert result.hit_rate(unit) == pytest.approx(curve.hit_rate(blocks, unit=unit), abs=1e-15), unit
        if unit in result.hits:
            assert result.hits[unit] == int(curve.hits(blocks, unit=unit))
            assert result.totals[unit] == curve.totals[unit]


@FEWER
@given(served_traces(), deployments(policies=("lru", "fifo", "lfu", "s3_fifo", "sieve"), separated=False))
def test_hits_are_those_of_each_replica_by_itself(trace, both):
    deployment, _ = both
    routed = route(trace, deployment)
    hits = tier_hits(routed, deployment)
    sizes = deployment.tier_blocks(trace.block_size)
    for replica in range(routed.num_replicas):
        mine = slice(routed.offsets[replica], routed.offsets[replica + 1])
        alone = step_requests(
            routed.part(replica), deployment.policy, sizes, write_mode=deployment.write_mode, smaller_below=True
        )
        assert hits.blocks[mine].tolist() == alone.hits.tolist()
        assert hits.tokens[mine].tolist() == alone.hit_tokens.tolist()
    if hits.reach is not None:
        assert (hits.reach[:, -1].sum(axis=1) == np.minimum(hits.blocks.sum(axis=1), hits.usable)).all()
        assert (np.diff(hits.reach.sum(axis=-1), axis=1) >= 0).all()


@given(served_traces(), deployments(policies=("lru",), separated=False))
def test_lru_that_a_router_looks_at_is_lru_stepped(trace, both):
    deployment, _ = both
    caches, usable = Caches(trace, deployment), usable_blocks(trace, deployment).tolist()
    closed, stepped = caches.new(), caches.stepped()
    for path, most in zip(caches.paths, usable, strict=True):
        assert closed.cached(path) == stepped.cached(path)
        assert closed.serve(path, usable=most) == stepped.serve(path, usable=most)


@given(
    served_traces(),
    st.sampled_from(["lru", "lfu", "s3_fifo", "slru"]),
    st.sampled_from(["exclusive", "write_through", "selective", "write_back"]),
    st.sampled_from([1, 2, None]),
    st.lists(st.integers(1, 5), min_size=2, max_size=3),
)
def test_what_lies_behind_a_tier_that_is_left_out_is_known_block_by_block(trace, policy, mode, promote_at, sizes):
    tiers = tuple(TierSpec(f"t{k}", blocks=size, up=Link(1.0) if k else None) for k, size in enumerate(sizes))
    deployment = replace(
        BASE,
        tiers=tiers,
        policy=policy,
        write_mode=mode,
        promote_at=promote_at,
        smaller_below=True,
        allow_oversize=True,
    )
    routed = route(trace, deployment)
    reach = stepped_reach(routed, deployment)
    cache = TieredCache(tiers, policy=policy, write_mode=mode, promote_at=promote_at, smaller_below=True)
    found = cache.access_prefix(trace.prefix_ids, trace.offsets).tier.tolist()
    usable = usable_blocks(trace, deployment).tolist()
    for number, (start, stop) in enumerate(pairwise(trace.offsets.tolist())):
        path = found[start : min(stop, start + usable[number])]
        for depth in range(len(sizes)):
            part = twin.leading(path, depth)
            assert reach[number, depth].tolist() == [part.count(tier) for tier in range(len(sizes))]


@FEWER
@given(served_traces(), deployments(policies=("lru",)))
def test_hits_of_any_sizes_are_those_of_one_size_after_the_other(trace, both):
    deployment, _ = both
    routed = route(trace, deployment)
    tiers = deployment.tiers
    sizes = [[1] * len(tiers), [2] * len(tiers), [9] * len(tiers), deployment.tier_blocks(trace.block_size).tolist()]
    many = LruHits(routed, deployment).at(np.array(sizes).reshape(2, 2, -1))
    for place, row in enumerate(sizes):
        one = replace(deployment, tiers=tuple(replace(t, blocks=b) for t, b in zip(tiers, row, strict=True)))
        hits = tier_hits(routed, one)
        assert many.blocks[divmod(place, 2)].tolist() == hits.blocks.tolist()
        assert many.tokens[divmod(place, 2)].tolist() == hits.tokens.tolist()


@FEWER
@given(served_traces(), deployments(policies=("lru",)), st.lists(RATES, min_size=1, max_size=3))
def test_worlds_of_sizes_bandwidths_and_rates_are_each_by_itself(trace, both, rates):
    deployment, _ = both
    routed = route(trace, deployment)
    lower = len(deployment.tiers) - 1
    sizes = np.array([[[1] * (lower + 1)], [[4] * (lower + 1)]])  # [2, 1, K]
    hits = LruHits(routed, deployment).at(sizes)
    bandwidths = np.repeat(np.array(rates)[:, None], lower, axis=1)  # [rates, K - 1]
    service = service_times(routed, deployment, hits, bytes_per_second=bandwidths)
    queued = queue_times(routed, deployment, service)
    assert first_token_times(routed, deployment, service).tolist() == queued.ttft_s.tolist()
    assert queued.ttft_s.shape == (2, len(rates), trace.num_requests)
    for i in range(2):
        for j, rate in enumerate(rates):
            tiers = tuple(
                replace(tier, blocks=int(sizes[i, 0, k]), up=replace(tier.up, bytes_per_second=rate) if k else None)
                for k, tier in enumerate(deployment.tiers)
            )
            one = replace(deployment, tiers=tiers)
            alone = queue_times(routed, one, service_times(routed, one, tier_hits(routed, one)))
            for name in ("ttft_s", "queue_s", "load_s", "prefill_s", "transfer_s"):
                assert getattr(queued, name)[i, j].tolist() == getattr(alone, name).tolist(), name


@FEWER
@given(served_traces(), deployments())
def test_every_missed_token_has_one_reason(trace, both):
    deployment, _ = both
    result = replay(trace, deployment)
    missed = sum(getattr(result.misses, reason) for reason in REASONS)
    assert missed.tolist() == (trace.input_tokens - result.hit_tokens.sum(axis=1)).tolist()
    assert all((getattr(result.misses, reason) >= 0).all() for reason in REASONS)
    requests = as_requests(trace)
    for number, request in enumerate(requests):
        before = requests[:number]
        here = [other for other in before if result.replica[other["number"]] == result.replica[number]]
        seen = [any(block in other["blocks"] for other in before) for block in request["blocks"]]
        seen_here = [any(block in other["blocks"] for other in here) for block in request["blocks"]]
        sizes = [min(trace.block_size, request["tokens"] - i * trace.block_size) for i in range(len(seen))]
        new = [size for size, old in zip(sizes, seen, strict=True) if not old]
        assert result.misses.never_seen[number] == sum(size for size in new if size == trace.block_size)
        elsewhere = [size for size, old, mine in zip(sizes, seen, seen_here, strict=True) if old and not mine]
        assert result.misses.other_replica[number] == sum(elsewhere)


@FEWER
@given(served_traces(), deployments())
def test_the_parts_of_the_time_to_first_token_add_up(trace, both):
    deployment, _ = both
    result = replay(trace, deployment)
    parts = [getattr(result, f"{name}_s") for name in ("queue", "load", "prefill", "transfer", "decode")]
    clock = float(trace.arrival_s[-1] - trace.arrival_s[0] + result.ttft_s.max())
    assert close(sum(parts), result.ttft_s, clock)
    assert all((part >= -1e-12 * clock).all() for part in parts[:4])


# ---- laws ------------------------------------------------------------------------------------------------------------


STATELESS = ("round_robin", "session", "prefix_hash")


@FEWER
@given(served_traces(), deployments(routings=STATELESS), st.sampled_from([1.5, 2.0, 8.0]))
def test_a_higher_rate_never_lowers_the_mean_time_to_first_token(trace, both, scale):
    deployment, _ = both
    slow, fast = replay(trace, deployment), replay(trace, deployment, rate_scale=scale)
    assert fast.mean_ttft_s >= slow.mean_ttft_s * (1 - 1e-12)
    assert fast.hit_tokens.tolist() == slow.hit_tokens.tolist()


@FEWER
@given(served_traces(), deployments(routings=STATELESS, policies=("lru",)), st.data())
def test_more_of_any_tier_never_lowers_the_hits_of_lru(trace, both, data):
    deployment, _ = both
    place = data.draw(st.integers(0, len(deployment.tiers) - 1))
    tier = deployment.tiers[place]
    larger = replace(tier, blocks=tier.blocks + data.draw(st.integers(1, 5)))
    tiers = (*deployment.tiers[:place], larger, *deployment.tiers[place + 1 :])
    less, more = replay(trace, deployment), replay(trace, replace(deployment, tiers=tiers))
    assert (more.hit_tokens.sum(axis=1) >= less.hit_tokens.sum(axis=1)).all()


@FEWER
@given(served_traces(), st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_where_loading_is_faster_than_computing_more_hits_never_raise_the_time(trace, fewer, more, queueing):
    """Computing takes a second a token and more; loading next to nothing with queues, little without."""
    link = Link(1e18) if queueing else Link(trace.block_size * 4.0)
    prefill = PrefillTime(0.5, 1.0, 0.25)

    def run(blocks):
        tiers = (TierSpec("gpu", blocks=1), TierSpec("cpu", blocks=blocks, up=link))
        return replay(trace, replace(BASE, tiers=tiers, prefill=prefill, queueing=queueing, allow_oversize=True))

    one, other = run(fewer), run(fewer + more)
    assert (other.ttft_s <= one.ttft_s * (1 + 1e-12)).all()


@FEWER
@given(served_traces(), deployments(separated=False))
def test_one_replica_without_a_queue_takes_what_the_formula_says(trace, both):
    deployment, _ = both
    alone = replace(deployment, replicas=1, queueing=False)
    far = np.arange(trace.num_requests) * 1e6
    apart = Trace(
        trace.block_ids,
        trace.offsets,
        block_size=trace.block_size,
        input_tokens=trace.input_tokens,
        arrival_s=far,
    )
    result, queued = replay(apart, alone), replay(apart, replace(alone, queueing=True))
    expected = deployment.prefill.seconds(trace.input_tokens, cached_tokens=result.used_tokens) + result.load_s
    assert result.ttft_s == pytest.approx(expected, rel=1e-12)
    assert close(queued.ttft_s, result.ttft_s, float(far[-1]) + 1.0)


@FEWER
@given(served_traces(), deployments())
def test_limits_never_make_a_request_slower_by_itself(trace, both):
    deployment, _ = both
    plain = replace(
        deployment, routing="round_robin", queueing=False, separation=None, recompute_slow=False, min_load_tokens=0
    )
    always = replay(trace, plain)
    never = replay(trace, replace(plain, min_load_tokens=10**9))
    best = replay(trace, replace(plain, recompute_slow=True))
    assert (best.ttft_s <= np.minimum(always.ttft_s, never.ttft_s)).all()
    assert not never.loaded_bytes.any()


@FEWER
@given(served_traces(), deployments())
def test_the_same_input_gives_the_same_bits(trace, both):
    deployment, _ = both
    one, other = replay(trace, deployment), replay(trace, deployment)
    for name in COLUMNS:
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


@FEWER
@given(served_traces(), st.integers(1, 4), st.sampled_from(ROUTINGS))
def test_routing_keeps_its_promises(trace, replicas, routing):
    deployment = replace(BASE, replicas=replicas, routing=routing, allow_oversize=True)
    routed = route(trace, deployment)
    assert sorted(routed.order.tolist()) == list(range(trace.num_requests))
    for replica in range(replicas):
        mine = routed.order[routed.offsets[replica] : routed.offsets[replica + 1]]
        assert (routed.replica[mine] == replica).all()
        assert (np.diff(mine) > 0).all()
    if routing == "session":
        assert len({*zip(trace.session.tolist(), routed.replica.tolist(), strict=True)}) == len(
            {*trace.session.tolist()}
        )
    if routing == "prefix_hash":
        heads = [row["blocks"][:1] for row in as_requests(trace)]
        assert len({(str(head), place) for head, place in zip(heads, routed.replica.tolist(), strict=True)}) == len(
            {str(head) for head in heads}
        )
