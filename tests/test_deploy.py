"""Deployments and replays: bad input, worked examples, the plain-Python twin, laws, and real traces."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarray import (
    DecodeTime,
    Deployment,
    Link,
    OversizeError,
    PrefillTime,
    Separation,
    Trace,
    TraceError,
    builtin_trace,
    hit_curve,
    read_trace,
    replay,
)
from kvarray.deploy import (
    COLUMNS,
    REASONS,
    ROUTINGS,
    LruHits,
    prefix_aware_costs,
    queue_times,
    route,
    service_times,
    tier_hits,
)
from kvarray.deploy.routing import _prefix_hashes
from kvarray.reuse import UNITS, tier_curve
from kvarray.stepping import step_requests
from kvarray.tier import TierSpec
from tests.data import data_file, published_cases
from tests.reference import replay as twin
from tests.strategies import chained

GPU = TierSpec("gpu", blocks=64)
BASE = Deployment((GPU,), bytes_per_token=1, prefill=PrefillTime(0.0, 1.0, 0.0))


# ---- a deployment and its twin ---------------------------------------------------------------------------------------

SECONDS = st.sampled_from([0.0, 0.125, 0.5, 1.0, 3.0])
RATES = st.sampled_from([0.5, 2.0, 16.0, 1024.0])


@st.composite
def links(draw, with_direct=True):
    return {
        "rate": draw(RATES),
        "latency": draw(SECONDS),
        "alpha": draw(SECONDS),
        "fragment": draw(st.sampled_from([None, 1, 3, 1000])),
        "direct": draw(st.none() | links(with_direct=False)) if with_direct else None,
    }


def as_link(link):
    return Link(link["rate"], link["latency"], link["alpha"], link["fragment"])


@st.composite
def separations(draw):
    return {
        "schedule": draw(st.sampled_from(["sequential", "pipelined", "layered", "chunked"])),
        "rate": draw(RATES),
        "latency": draw(SECONDS),
        "alpha": draw(SECONDS),
        "streams": draw(st.integers(1, 3)),
        "layers": draw(st.integers(1, 4)),
        "chunk_tokens": draw(st.integers(1, 6)),
    }


@st.composite
def served_traces(draw):
    """Traces with arrivals and sessions."""
    rows = chained(draw(st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=2, max_size=10)))
    size = draw(st.integers(1, 3))
    tokens = [draw(st.integers((len(row) - 1) * size + 1 if row else 0, (len(row) + 1) * size)) for row in rows]
    count = len(rows)
    gaps = draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 10.0]), min_size=count, max_size=count))
    gaps[-1] = gaps[-1] or 1.0  # some time has to pass
    return Trace(
        [block for row in rows for block in row],
        np.cumsum([0, *map(len, rows)]),
        block_size=size,
        input_tokens=tokens,
        output_tokens=draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)),
        arrival_s=100.0 + np.cumsum(gaps),
        session=draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count)),
    )


@st.composite
def deployments(draw, block_size=2, policies=("lru", "fifo"), routings=ROUTINGS, separated=None):
    """A deployment, and the same as a dict for the twin."""
    policy = draw(st.sampled_from(policies))
    num_tiers = 1 if policy == "fifo" else draw(st.integers(1, 3))
    exclusive = draw(st.booleans())
    sizes = draw(st.lists(st.integers(1, 6), min_size=num_tiers, max_size=num_tiers))
    below = draw(st.lists(links(), min_size=num_tiers - 1, max_size=num_tiers - 1))
    separation = draw(separations()) if (draw(st.booleans()) if separated is None else separated) else None
    plain = {
        "replicas": draw(st.integers(1, 3)),
        "routing": draw(st.sampled_from(routings)),
        "overlap_weight": draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
        "min_load_tokens": draw(st.sampled_from([0, 0, 2, 5])),
        "recompute_slow": draw(st.booleans()),
        "min_prefill_tokens": draw(st.integers(0, 2)),
        "queueing": draw(st.sampled_from([True, True, False])),
    }
    overlap = draw(st.sampled_from([0.0, 0.5, 1.0]))
    bytes_per_token = draw(st.integers(1, 3))
    prefill = tuple(draw(SECONDS) for _ in range(3))
    decode = tuple(draw(SECONDS) for _ in range(3))
    tiers = [TierSpec("t0", blocks=sizes[0])] + [
        TierSpec(f"t{k + 1}", blocks=size, up=as_link(link), direct=as_link(link["direct"]) if link["direct"] else None)
        for k, (size, link) in enumerate(zip(sizes[1:], below, strict=True))
    ]
    deployment = Deployment(
        tuple(tiers),
        bytes_per_token=bytes_per_token,
        prefill=PrefillTime(*prefill),
        decode=DecodeTime(*decode),
        policy=policy,
        write_mode="exclusive" if exclusive else "write_through",
        smaller_below=True,
        overlap_efficiency=overlap,
        allow_oversize=True,
        separation=separation
        and Separation(
            Link(separation["rate"], separation["latency"], separation["alpha"]),
            separation["schedule"],
            streams=separation["streams"],
            layers=separation["layers"],
            chunk_tokens=separation["chunk_tokens"],
        ),
        **plain,
    )
    as_dict = plain | {
        "new_tiers": lambda: twin.FifoTier(sizes) if policy == "fifo" else twin.LruTiers(sizes, exclusive),
        "links": below,
        "bytes_per_token": bytes_per_token,
        "prefill": prefill,
        "decode": decode,
        "overlap": overlap,
        "separation": separation,
    }
    return deployment, as_dict


def as_requests(trace):
    """The requests of a trace for the twin, arrivals counted from the first."""
    ids, cuts = trace.block_ids.tolist(), trace.offsets.tolist()
    rows = [ids[a:b] for a, b in pairwise(cuts)]
    arrival = (trace.arrival_s - trace.arrival_s[0]).tolist()
    return [
        {
            "blocks": [tuple(row[: i + 1]) for i in range(len(row))],
            "tokens": tokens,
            "hashed": min(len(row) * trace.block_size, tokens),
            "output": output,
            "arrival": when,
            "session": session,
            "number": number,
        }
        for number, (row, tokens, output, when, session) in enumerate(
            zip(
                rows,
                trace.input_tokens.tolist(),
                trace.output_tokens.tolist(),
                arrival,
                trace.session.tolist(),
                strict=True,
            )
        )
    ]


def run_twin(trace, as_dict):
    hashes = _prefix_hashes(trace, 1).tolist()
    block_size = trace.block_size
    return twin.simulate(
        as_requests(trace),
        as_dict
        | {
            "block_size": block_size,
            "block_bytes": block_size * as_dict["bytes_per_token"],
            "hash": lambda request: hashes[request["number"]],
        },
    )


def close(got, expected, clock):
    """Whether times agree at 1e-12 relative plus 1e-12 of the largest time on the clock."""
    got, expected = np.asarray(got), np.asarray(expected)
    return bool((np.abs(got - expected) <= 1e-12 * np.abs(expected) + 1e-12 * clock).all())


@given(served_traces(), deployments())
def test_a_replay_is_what_its_twin_simulates(trace, both):
    deployment, as_dict = both
    result, rows = replay(trace, deployment), run_twin(trace, as_dict)
    for name in ("replica", "hit_blocks", "used_tokens"):
        assert getattr(result, name).tolist() == [row[name] for row in rows], name
    clock = float(trace.arrival_s[-1] - trace.arrival_s[0]) + max(row["ttft_s"] for row in rows)
    for name in ("load_s", "prefill_s", "transfer_s", "decode_s", "queue_s", "ttft_s"):
        assert close(getattr(result, name), [row[name] for row in rows], clock), name


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tiers": ()}, "tiers must have at least one tier"),
        ({"tiers": (GPU, TierSpec("cpu", blocks=4))}, "tier 'cpu' must have a link up"),
        ({"tiers": (GPU, GPU)}, "names of their own"),
        ({"tiers": (TierSpec("gpu", capacity_bytes=2),), "bytes_per_token": 3}, "must hold a block of 3 bytes"),
        ({"bytes_per_token": 0}, "bytes_per_token must be"),
        ({"policy": "lruu"}, "policy must be one of"),
        ({"policy": "random"}, "seed must be given for the policy random"),
        ({"seed": 3}, "seed must be given for the policy random, and for no other"),
        ({"write_mode": "inclusive"}, "write_mode must be one of"),
        ({"routing": "random"}, "routing must be one of round_robin"),
        ({"replicas": 0}, "replicas must be"),
        ({"block_size": 0}, "block_size must be"),
        ({"overlap_efficiency": 1.5}, "overlap_efficiency must be 1 or less"),
        ({"overlap_weight": -1.0}, "overlap_weight must be 0"),
        ({"min_load_tokens": -1}, "min_load_tokens must be 0 or more"),
        ({"window": 1.0}, "window must be less than 1"),
        ({"unit": "tokens"}, "unit must be one of"),
        ({"target_ttft_s": 0.0}, "target_ttft_s must be"),
        ({"prefix_blocks": 0}, "prefix_blocks must be"),
    ],
)
def test_a_deployment_refuses_what_makes_no_sense(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(BASE, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefill": 3.0}, "prefill must be a PrefillTime"),
        ({"decode": None}, "decode must be a DecodeTime"),
        ({"queueing": 1}, "queueing must be true or false"),
        ({"separation": "layered"}, "separation must be a Separation"),
        ({"replicas": 2.5}, "replicas must be an integer"),
        ({"tiers": ("gpu",)}, "tiers must be TierSpecs"),
    ],
)
def test_a_deployment_refuses_what_is_of_another_kind(changes, message):
    with pytest.raises(TypeError, match=message):
        replace(BASE, **changes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schedule": "layer"}, "schedule must be one of"),
        ({"schedule": "layered"}, "layers must be given for the layered schedule"),
        ({"schedule": "chunked"}, "chunk_tokens must be given for the chunked schedule"),
        ({"schedule": "sequential", "streams": 0}, "streams must be"),
        ({"schedule": "sequential", "overlap_efficiency": 2.0}, "overlap_efficiency of the separation must be 1"),
    ],
)
def test_a_separation_refuses_what_makes_no_sense(fields, message):
    with pytest.raises(ValueError, match=message):
        Separation(Link(1.0), **fields)


def _trace(**columns):
    given = {"block_size": 16, "arrival_s": [0.0, 1.0, 2.0]} | columns
    return Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], **given)


def test_a_replay_refuses_traces_that_lack_what_it_needs():
    lengths = Trace(None, None, block_size=None, input_tokens=[5], arrival_s=[0.0])
    with pytest.raises(TraceError, match="no block ids"):
        replay(lengths, BASE)
    with pytest.raises(TraceError, match="no sessions, which routing by session needs"):
        replay(_trace(), replace(BASE, routing="session", replicas=2))
    still = _trace(arrival_s=[5.0, 5.0, 5.0])
    with pytest.raises(TraceError, match=r"no arrivals \(all 3 requests at 5 s\)"):
        replay(still, BASE)
    alone = replace(BASE, queueing=False)
    assert replay(still, alone).ttft_s.tolist() == [48.0, 16.0, 1.0]
    with pytest.raises(TraceError, match="no arrivals"):
        replay(still, replace(alone, replicas=2, routing="least_loaded"))
    with pytest.raises(ValueError, match="block_size must be a multiple of 16"):
        replay(_trace(), replace(BASE, block_size=24))
    with pytest.raises(ValueError, match="rate_scale must be"):
        replay(_trace(), BASE, rate_scale=0.0)
    small = TierSpec("cpu", blocks=8, up=Link(1.0))
    with pytest.raises(ValueError, match="not fall from tier to tier"):
        replay(_trace(), replace(BASE, tiers=(GPU, small), write_mode="write_through"))


def test_a_deployment_must_hold_its_largest_request():
    trace = _trace(output_tokens=[0, 17, 0])
    tiers = (TierSpec("gpu", blocks=4),)
    with pytest.raises(
        OversizeError, match=r"tier 'gpu' must hold the largest request: request 1 has 65 tokens, 5 blocks"
    ):
        replay(trace, replace(BASE, tiers=tiers))
    assert replay(trace, replace(BASE, tiers=tiers, allow_oversize=True)).hits["block"] == 5
    apart = Separation(Link(1.0), "sequential")  # the answer is decoded elsewhere
    assert replay(trace, replace(BASE, tiers=tiers, separation=apart)).hits["block"] == 5


def test_steps_refuse_arrays_that_do_not_fit():
    tiers = (GPU, TierSpec("cpu", blocks=9, up=Link(1.0)))
    deployment = replace(BASE, tiers=tiers)
    routed = route(_trace(), deployment)
    hits = tier_hits(routed, deployment)
    with pytest.raises(ValueError, match="one item for each of 1 lower tiers"):
        service_times(routed, deployment, hits, bytes_per_second=[1.0, 2.0])
    with pytest.raises(ValueError, match="bytes_per_second must be"):
        service_times(routed, deployment, hits, bytes_per_second=[0.0])
    service = service_times(routed, deployment, hits)
    with pytest.raises(ValueError, match="not fall"):
        queue_times(routed, deployment, service, arrival_s=[2.0, 1.0, 3.0])
    with pytest.raises(ValueError, match="service and arrival_s"):
        queue_times(routed, deployment, service, arrival_s=[1.0, 2.0])
    with pytest.raises(ValueError, match="sizes must"):
        LruHits(routed, deployment).at(3)
    with pytest.raises(ValueError, match="sizes must"):
        LruHits(routed, deployment).at([0, 1])
    with pytest.raises(ValueError, match="must be a stack"):
        LruHits(routed, replace(deployment, policy="fifo"))


# ---- worked examples -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", published_cases("router_cost"))
def test_a_router_costs_what_dynamo_documents(case):
    costs = prefix_aware_costs(
        case["request_blocks"],
        case["cached_blocks"],
        decode_blocks=case["decode_blocks"],
        overlap_weight=case["overlap_weight"],
    )
    assert costs.tolist() == case["costs"]
    assert int(costs.argmin()) == case["chosen"]


@pytest.mark.parametrize("case", published_cases("equal_turns"))
def test_equal_turns_hit_as_published(case):
    """Sessions whose every turn resends all before it and adds one of equal size."""
    rounds, sessions, turn = len(case["rounds"]), 20, 4
    rows = [[session * 1000 + i for i in range(turn * (r + 1))] for r in range(rounds) for session in range(sessions)]
    trace = Trace(
        [block for row in rows for block in row],
        np.cumsum([0, *map(len, rows)]),
        block_size=64,
        arrival_s=np.arange(len(rows), dtype=float),
        session=[session for _ in range(rounds) for session in range(sessions)],
    )
    for deployment in (
        replace(BASE, tiers=(TierSpec("gpu", blocks=10_000),)),
        replace(BASE, tiers=(TierSpec("gpu", blocks=10_000),), replicas=3, routing="session"),
    ):
        result = replay(trace, deployment)
        hits = result.hit_tokens.sum(axis=1).reshape(rounds, sessions).sum(axis=1)
        rates = hits / trace.input_tokens.reshape(rounds, sessions).sum(axis=1)
        for number, expected in enumerate(case["rounds"]):
            assert rates[number] == pytest.approx(number / (number + 1), abs=1e-12)
            if expected is not None:
                assert rates[number] == pytest.approx(expected, abs=case["tolerance"])


def test_a_story_of_two_replicas_told_by_hand():
    """Tokens take a second each to compute and 1/4 second to load; a block is 4 tokens.

    Round robin: requests 0 and 2 run on replica 0, requests 1 and 3 on replica 1.
    """
    trace = Trace(
        [1, 2, 1, 3, 1, 2, 4, 5, 1, 2],
        [0, 2, 4, 7, 10],
        block_size=4,
        input_tokens=[8, 8, 12, 10],
        arrival_s=[0.0, 1.0, 2.0, 30.0],
    )
    # Request 3 is [5, 1, 2]: other paths than [1, 2], though the ids are the same; its last block holds 2 tokens.
    tiers = (TierSpec("gpu", blocks=1), TierSpec("cpu", blocks=8, up=Link(4.0)))
    deployment = replace(BASE, tiers=tiers, replicas=2, allow_oversize=True)
    result = replay(trace, deployment)
    assert result.replica.tolist() == [0, 1, 0, 1]
    # Replica 0 keeps block 1 in the GPU and block 2 below it. Request 2 hits both and computes 4 tokens.
    assert result.hit_blocks.tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]
    assert result.loaded_bytes.tolist() == [0, 0, 4, 0]
    # It comes at 2, has loaded at 3, waits for request 0 until 8 and computes until 12.
    assert result.ttft_s.tolist() == [8.0, 8.0, 10.0, 10.0]
    assert result.load_s.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert result.queue_s.tolist() == [0.0, 0.0, 5.0, 0.0]
    missed = result.misses
    assert missed.never_seen.tolist() == [8, 4, 4, 8]
    assert missed.other_replica.tolist() == [0, 4, 0, 0]
    assert missed.partial_block.tolist() == [0, 0, 0, 2]
    assert missed.evicted.tolist() == [0, 0, 0, 0]


def test_state_is_looked_at_when_a_request_arrives():
    """Three long requests and a short one: the least loaded replica is the one whose request has ended."""
    trace = Trace(
        [1, 2, 3, 4], [0, 1, 2, 3, 4], block_size=8, input_tokens=[8, 2, 8, 8], arrival_s=[0.0, 1.0, 4.0, 5.0]
    )
    deployment = replace(BASE, replicas=2, routing="least_loaded")
    assert replay(trace, deployment).replica.tolist() == [0, 1, 1, 0]  # the second has ended at 3; then a tie
    slow = replace(deployment, decode=DecodeTime(1.0, 0.0, 0.0))
    answers = Trace(
        trace.block_ids, trace.offsets, block_size=8, input_tokens=trace.input_tokens, output_tokens=[0, 9, 0, 0],
        arrival_s=trace.arrival_s,
    )  # fmt: skip
    assert replay(answers, slow).replica.tolist() == [0, 1, 0, 1]  # the second decodes until 12


def test_prefix_aware_routing_weighs_prefill_against_decoding():
    trace = Trace([1, 2, 1, 2, 1, 2], [0, 2, 4, 6], block_size=8, arrival_s=[0.0, 1.0, 2.0])
    deployment = replace(BASE, replicas=2, routing="prefix_aware")
    assert replay(trace, replace(deployment, overlap_weight=2.0)).replica.tolist() == [0, 0, 0]
    assert replay(trace, replace(deployment, overlap_weight=0.5)).replica.tolist() == [0, 1, 0]


# ---- the same integers as elsewhere ----------------------------------------------------------------------------------


@given(served_traces(), st.integers(1, 9), st.sampled_from([0.0, 0.3, 0.7]))
def test_hit_rates_are_those_of_the_curve(trace, blocks, window):
    deployment = replace(BASE, tiers=(TierSpec("gpu", blocks=blocks),), allow_oversize=True, window=window)
    result, curve = replay(trace, deployment), hit_curve(trace, window=window)
    for unit in UNITS:
        assert result.hit_rate(unit) == pytest.approx(curve.hit_rate(blocks, unit=unit), abs=1e-15), unit
        if unit in result.hits:
            assert result.hits[unit] == int(curve.hits(blocks, unit=unit))
            assert result.totals[unit] == curve.totals[unit]


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


@given(served_traces(), deployments(routings=STATELESS), st.sampled_from([1.5, 2.0, 8.0]))
def test_a_higher_rate_never_lowers_the_mean_time_to_first_token(trace, both, scale):
    deployment, _ = both
    slow, fast = replay(trace, deployment), replay(trace, deployment, rate_scale=scale)
    assert fast.mean_ttft_s >= slow.mean_ttft_s * (1 - 1e-12)
    assert fast.hit_tokens.tolist() == slow.hit_tokens.tolist()


@given(served_traces(), deployments(routings=STATELESS, policies=("lru",)), st.data())
def test_more_of_any_tier_never_lowers_the_hits_of_lru(trace, both, data):
    deployment, _ = both
    place = data.draw(st.integers(0, len(deployment.tiers) - 1))
    tier = deployment.tiers[place]
    larger = replace(tier, blocks=tier.blocks + data.draw(st.integers(1, 5)))
    tiers = (*deployment.tiers[:place], larger, *deployment.tiers[place + 1 :])
    less, more = replay(trace, deployment), replay(trace, replace(deployment, tiers=tiers))
    assert (more.hit_tokens.sum(axis=1) >= less.hit_tokens.sum(axis=1)).all()


@given(served_traces(), st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_where_loading_is_faster_than_computing_more_hits_never_raise_the_time(trace, fewer, more, queueing):
    """Computing takes a second a token and more; loading none at all with queues, little without."""
    link = Link(np.inf) if queueing else Link(trace.block_size * 4.0)
    prefill = PrefillTime(0.5, 1.0, 0.25)

    def run(blocks):
        tiers = (TierSpec("gpu", blocks=1), TierSpec("cpu", blocks=blocks, up=link))
        return replay(trace, replace(BASE, tiers=tiers, prefill=prefill, queueing=queueing, allow_oversize=True))

    one, other = run(fewer), run(fewer + more)
    assert (other.ttft_s <= one.ttft_s * (1 + 1e-12)).all()


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


@given(served_traces(), deployments())
def test_the_same_input_gives_the_same_bits(trace, both):
    deployment, _ = both
    one, other = replay(trace, deployment), replay(trace, deployment)
    for name in COLUMNS:
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


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


# ---- sums ------------------------------------------------------------------------------------------------------------


def test_what_moved_is_what_the_tiers_moved():
    trace = builtin_trace().requests(0, 800)
    tiers = (TierSpec("gpu", blocks=3000), TierSpec("cpu", blocks=9000, up=Link(1e9)))
    deployment = replace(BASE, tiers=tiers, bytes_per_token=10)
    result = replay(trace, deployment)
    flows = tier_curve(trace).flows([3000, 9000])
    assert result.tier_hit_tokens.tolist() == flows.hit_tokens.tolist()
    assert result.link_down_bytes == {"gpu->cpu": int(flows.down[0]) * 160}
    assert result.written_bytes.tolist() == (flows.written * 160).tolist()
    assert result.link_loaded_bytes == {"cpu->gpu": int(flows.hits[1]) * 160}
    per_day = 86400.0 / result.duration_s
    assert result.drive_writes_per_day == pytest.approx(result.written_bytes * per_day / (np.array([3000, 9000]) * 160))


def test_a_summary_counts_the_window_alone_and_is_plain():
    import json

    trace = builtin_trace().requests(0, 500)
    tiers = (TierSpec("gpu", blocks=3000), TierSpec("cpu", blocks=9000, up=Link(1e9)))
    deployment = replace(BASE, tiers=tiers, replicas=3, routing="prefix_hash", window=0.5, target_ttft_s=2000.0)
    result = replay(trace, deployment)
    summary = json.loads(json.dumps(result.summary(), allow_nan=False))
    assert summary["requests"] == 250
    assert sum(summary["missed_tokens"].values()) + summary["hits"]["token"] == summary["totals"]["token"]
    assert summary["hit_rates"]["token"] == summary["hits"]["token"] / summary["totals"]["token"]
    later = result.ttft_s[250:]
    assert summary["ttft_s"]["max"] == later.max()
    assert summary["ttft_s"]["p50"] == np.sort(later)[124]
    assert summary["share_within_target"] == (later <= 2000.0).mean()
    busiest = max(result.prefill_s[250:][result.replica[250:] == r].sum() for r in range(3))
    assert summary["throughput_ceiling"] == pytest.approx(250 / busiest)
    assert summary["saved_s"] == pytest.approx((trace.input_tokens - result.prefill_s)[250:].sum())


def test_an_empty_trace_has_a_replay():
    trace = Trace([], [0], block_size=16)
    for changes in ({}, {"replicas": 3, "routing": "prefix_aware"}, {"separation": Separation(Link(1.0), "pipelined")}):
        result = replay(trace, replace(BASE, **changes))
        assert result.summary()["hits"] == {"block": 0, "token": 0, "full_block": 0, "request": 0}
        assert result.explain()


# ---- words -----------------------------------------------------------------------------------------------------------


def _cause(result):
    return result.explain()[0].figures["cause"]


def test_words_name_what_keeps_the_hit_rate_low():
    times = {"arrival_s": np.arange(4.0)}
    fresh = Trace([1, 2, 3, 4], [0, 1, 2, 3, 4], block_size=16, **times)
    assert _cause(replay(fresh, BASE)) == "the workload"
    often = Trace([1] * 8, range(9), block_size=16, arrival_s=np.arange(8.0))
    assert _cause(replay(often, replace(BASE, replicas=8))) == "the routing"
    thrash = Trace([1, 2] * 4, range(9), block_size=16, arrival_s=np.arange(8.0))
    assert _cause(replay(thrash, replace(BASE, tiers=(TierSpec("gpu", blocks=1),)))) == "the capacity"
    tails = Trace([1, 2, 3, 4], [0, 1, 2, 3, 4], block_size=16, input_tokens=[9, 9, 9, 9], **times)
    assert _cause(replay(tails, BASE)) == "the block size"
    assert _cause(replay(Trace([], [0], block_size=16), BASE)) is None


def test_words_on_tiers_modes_memory_and_blocks():
    trace = builtin_trace().requests(0, 600)
    slow, fast = Link(1.0), Link(1e9)
    tiers = (
        TierSpec("gpu", blocks=300),
        TierSpec("cpu", blocks=300, up=fast),
        TierSpec("ssd", blocks=30000, up=slow),
    )
    deployment = replace(BASE, tiers=tiers, block_size=64)
    answers = {(a.question, a.figures.get("tier")): a for a in replay(trace, deployment).explain()}
    assert "worth it, by" in answers["tier", "cpu"].text
    assert "not worth it" in answers["tier", "ssd"].text
    assert answers["tier", "cpu"].figures["pays_from_tokens"] == 0
    assert answers["tier", "ssd"].figures["pays_from_tokens"] is None
    modes = answers["write_mode", None].figures
    assert modes["token_hit_rates"]["exclusive"] == replay(trace, deployment).hit_rate("token")
    assert modes["best"] == min(
        modes["down_bytes"], key=lambda m: (-modes["token_hit_rates"][m], modes["down_bytes"][m])
    )
    finer = answers["block_size", None].figures
    assert finer["trace_ceiling"] == hit_curve(trace).ceiling() > finer["ceiling"]
    memory = answers["memory", None].figures
    assert memory["bytes_for_nine_tenths"] < memory["bytes_for_all_hits"]
    enough = replace(
        deployment, tiers=(TierSpec("gpu", capacity_bytes=memory["bytes_for_all_hits"]),), allow_oversize=True
    )
    assert replay(trace, enough).misses.totals()["evicted"] == 0


# ---- real traces -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def conversation():
    return read_trace(data_file("traces/mooncake_conversation.jsonl"), block_size=512)


@pytest.mark.parametrize("routing", ["round_robin", "prefix_hash", "prefix_aware"])
def test_the_conversation_trace_goes_through_three_tiers_and_eight_replicas(conversation, routing):
    deployment = Deployment.from_dict({
        "model": "llama-3.1-70b",
        "gpu": "h100",
        "gpus": 8,
        "replicas": 8,
        "routing": routing,
        "tiers": ["gpu=100GiB", "cpu=256GiB@dram-pcie5", "ssd=1TiB@nvme-gen4"],
        "recompute_slow": True,
    })  # fmt: skip
    result = replay(conversation, deployment)
    sizes = deployment.tier_blocks(512)
    assert sizes.tolist() == [640, 1638, 6553]
    total = np.zeros(3, dtype=np.int64)
    for replica in range(8):
        total += tier_curve(result.routed.part(replica)).hit_tokens(sizes)
    assert result.tier_hit_tokens.tolist() == total.tolist()
    missed = result.misses.totals()
    ceiling = int(hit_curve(conversation).hit_tokens(2**40))
    assert missed["evicted"] + missed["other_replica"] + int(total.sum()) == ceiling
    assert 0.0 < float(result.ttft_quantile(0.5)) < float(result.ttft_quantile(0.99))
    assert result.summary()["gain_s"] > 0.0
