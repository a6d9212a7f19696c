"""Deployments and replays: bad input, worked examples, sums, words, and real traces."""

from dataclasses import replace

import numpy as np
import pytest

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
    LruHits,
    prefix_aware_costs,
    queue_times,
    route,
    service_times,
    tier_hits,
)
from kvarray.reuse import tier_curve
from kvarray.tier import TierSpec
from tests.data import data_file, published_cases
from tests.deployments import BASE, GPU

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


def test_what_loads_as_fast_as_it_computes_is_loaded():
    """Two blocks of 4 tokens lie in the CPU; they load in 8 seconds, as long as they take to compute."""
    trace = Trace([1, 2, 3, 1, 2, 3], [0, 3, 6], block_size=4, arrival_s=[0.0, 100.0])
    tiers = (TierSpec("gpu", blocks=1), TierSpec("cpu", blocks=8, up=Link(1.0)))
    deployment = replace(BASE, tiers=tiers, allow_oversize=True, min_prefill_tokens=0, recompute_slow=True)
    result = replay(trace, deployment)
    assert result.loaded_bytes.tolist() == [0, 8]
    assert result.ttft_s.tolist() == [12.0, 8.0]
    slower = (tiers[0], replace(tiers[1], up=Link(0.99)))
    assert replay(trace, replace(deployment, tiers=slower)).loaded_bytes.tolist() == [0, 0]
    least = replace(deployment, recompute_slow=False, min_load_tokens=8)
    assert replay(trace, least).loaded_bytes.tolist() == [0, 8]
    assert replay(trace, replace(least, min_load_tokens=9)).loaded_bytes.tolist() == [0, 0]


def test_a_block_of_which_no_token_is_used_is_not_loaded():
    """All of the second prompt is cached, but its last token is computed, and it is all that its last block holds."""
    trace = Trace([1, 2, 1, 2], [0, 2, 4], block_size=4, input_tokens=[5, 5], arrival_s=[0.0, 100.0])
    tiers = (TierSpec("gpu", blocks=1), TierSpec("cpu", blocks=8, up=Link(1.0)))
    deployment = replace(BASE, tiers=tiers, allow_oversize=True)
    result = replay(trace, deployment)
    assert result.hit_blocks.tolist() == [[0, 0], [1, 1]]
    assert (result.used_tokens.tolist(), result.loaded_bytes.tolist()) == ([0, 4], [0, 0])
    assert result.ttft_s.tolist() == [5.0, 1.0]
    whole = replay(trace, replace(deployment, min_prefill_tokens=0))
    assert (whole.used_tokens.tolist(), whole.loaded_bytes.tolist()) == ([0, 5], [0, 4])
    assert whole.ttft_s.tolist() == [5.0, 4.0]


def test_a_worker_takes_requests_in_order():
    """A load that takes long holds up the requests behind it, loads or none; overlap hides the prefill of its own."""
    trace = Trace([1, 2, 1, 2, 1], [0, 2, 4, 5], block_size=4, input_tokens=[8, 8, 4], arrival_s=[0.0, 100.0, 101.0])
    tiers = (TierSpec("gpu", blocks=1), TierSpec("cpu", blocks=8, up=Link(0.1)))
    result = replay(trace, replace(BASE, tiers=tiers, allow_oversize=True, prefill=PrefillTime(0.0, 0.0, 0.0)))
    assert result.ttft_s.tolist() == [0.0, 40.0, 39.0]
    two = replace(BASE, tiers=tiers, allow_oversize=True, overlap_efficiency=1.0)
    assert replay(trace, two).ttft_s.tolist() == [8.0, 40.0, 40.0]


def test_a_direct_link_takes_blocks_past_the_tiers_between():
    trace = Trace([1, 2, 3, 1, 2, 3], [0, 3, 6], block_size=4, arrival_s=[0.0, 100.0])
    cpu = TierSpec("cpu", blocks=1, up=Link(1.0))
    ssd = TierSpec("ssd", blocks=1, up=Link(0.5))
    gpu = TierSpec("gpu", blocks=1)
    deployment = replace(BASE, tiers=(gpu, cpu, ssd), allow_oversize=True, min_prefill_tokens=0)
    over_both = replay(trace, deployment)
    assert over_both.way_names == ("ssd->cpu", "cpu->gpu")
    assert over_both.way_s[:, 1].tolist() == [8.0, 8.0]
    assert over_both.ttft_s.tolist() == [12.0, 16.0]
    straight = replay(trace, replace(deployment, tiers=(gpu, cpu, replace(ssd, direct=Link(0.8)))))
    assert straight.way_names == ("cpu->gpu", "ssd->gpu direct")
    assert straight.way_s[:, 1].tolist() == [4.0, 5.0]
    assert straight.ttft_s.tolist() == [12.0, 5.0]  # side by side


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


@pytest.mark.parametrize("schedule", ["sequential", "layered", "chunked"])
def test_kv_that_moves_to_decode_nodes_is_counted(schedule):
    trace = _trace(input_tokens=[48, 48, 40])
    link = Link(2.0, latency_s=5.0, alpha_s=0.5)
    apart = Separation(link, schedule, streams=2, layers=4, chunk_tokens=24)
    result = replay(trace, replace(BASE, separation=apart, bytes_per_token=3))
    assert result.transfer_bytes == result.summary()["transfer_bytes"] == 136 * 3
    pieces = {"sequential": 9, "layered": 12, "chunked": 6}[schedule]  # each takes the cost of a fragment
    assert result.busy_s["transfer"].sum() == pytest.approx((136 * 3 / 2.0 + pieces * 0.5) / 2)
    assert result.throughput_ceiling == pytest.approx(3 / max(float(busy.max()) for busy in result.busy_s.values()))


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
