"""Whole traces under every policy: the published hits, and the stepped cache."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarray import TieredCache, TierSpec, Trace, optimal_hits, read_trace, step_policy
from kvarray.policies import ORDERS, lfu
from kvarray.stepping import step_requests
from kvarray.stepping.segments import segments
from kvarray.tier.cascade import WRITE_MODES
from tests.data import data_file, published_cases
from tests.reference.policies import Fifo
from tests.strategies import traces

COUNTS = ("accesses", "hits", "created", "up", "down", "dropped")
TRACE = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16, input_tokens=[48, 40, 48])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"policy": "belady"}, ValueError, "policy must be one of arc, fifo, .*: got 'belady'"),
        ({"step": "batch"}, ValueError, "step must be one of request, block, stream: got 'batch'"),
        ({"write_mode": "x"}, ValueError, "write_mode must be one of exclusive, write_through, selective, write_back"),
        ({"capacities": [0]}, ValueError, r"capacities must be 1 or more: capacities\[0\] = 0"),
        ({"capacities": 5}, ValueError, r"capacities must have shape \(C,\) or \(C, K\): got \(\)"),
        ({"capacities": [1.5]}, TypeError, "capacities must be integers"),
        ({"admission": "never"}, ValueError, "admission must be one of always, frequency: got 'never'"),
        ({"admission": ["always"] * 2}, ValueError, "admission must be one, or one for each of 1 tiers: got 2"),
        ({"min_tokens": -1}, ValueError, "min_tokens must be 0 or more"),
        ({"promote_at": 0}, ValueError, "promote_at must be 1 or more: got 0"),
        ({"policy": "random"}, ValueError, "rng must be given for the policy 'random'"),
        ({"policy": "gdsf", "weights": [1.0]}, ValueError, "weights and block_ids must have the same length"),
        ({"processes": 0}, ValueError, "processes must be 1 or more: got 0"),
        (
            {"policy": "arc", "capacities": [[4, 2]], "write_mode": "write_through"},
            ValueError,
            "capacities must not fall from tier to tier under write-through",
        ),
    ],
)
def test_malformed_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        step_policy(TRACE, **{"policy": "lfu", "capacities": [2], **arguments})


# ---- worked examples ------------------------------------------------------------------------------------------------


def test_segments_are_cut_where_use_changes():
    paths = segments(TRACE)
    assert (paths.row.tolist(), paths.blocks.tolist()) == ([0, 1, 0, 2, 0, 1], [2, 1, 2, 1, 2, 1])
    assert (paths.first.tolist(), paths.offsets.tolist(), paths.num_rows) == ([0, 2, 3, 5, 6, 8], [0, 2, 4, 6], 3)
    by_size = segments(TRACE, alike=[TRACE.block_tokens])
    assert by_size.blocks.tolist() == [2, 1, 2, 1, 2, 1]


def test_a_fifo_of_blocks_loses_heads_before_tails():
    """Capacity 3: 1 2 3 come, 4 pushes out 1, so the last request misses at its head, and 2 and 3 go in turn."""
    flows = step_requests(TRACE, "fifo", [3], step="block")
    assert flows.hits[:, 0].tolist() == [0, 2, 0]
    assert flows.created[:, 0].tolist() == [3, 1, 3]
    assert flows.dropped[:, 0].tolist() == [0, 1, 3]
    stream = step_requests(TRACE, "fifo", [3], step="stream")
    assert stream.hits[:, 0].tolist() == [0, 2, 0]
    assert stream.hit_tokens[:, 0].tolist() == [0, 32, 0]


def test_a_partial_block_counts_its_tokens():
    trace = Trace([1, 2, 1, 2], [0, 2, 4], block_size=16, input_tokens=[20, 20])
    for policy in ("lru", "fifo", "arc"):
        for step in ("request", "block", "stream"):
            flows = step_policy(trace, policy, [4], step=step)
            assert (flows.hits.tolist(), flows.hit_tokens.tolist()) == ([[2]], [[20]]), (policy, step)


def test_processes_change_nothing():
    sizes = [[2, 2], [1, 4], [3, 1]]
    one, two = (step_policy(TRACE, "s3_fifo", sizes, processes=processes) for processes in (1, 2))
    assert all((getattr(one, count) == getattr(two, count)).all() for count in COUNTS)


def test_empty_traces_and_no_configurations():
    empty = Trace([], [0], block_size=16)
    for policy in ("lru", "fifo", "two_q"):
        for step in ("request", "block", "stream"):
            assert step_policy(empty, policy, [2, 3], step=step).hits.tolist() == [[0], [0]]
            assert step_policy(TRACE, policy, np.zeros((0, 2), dtype=int), step=step).hits.shape == (0, 2)
            assert step_requests(empty, policy, [2], step=step).hits.shape == (0, 1)


# ---- published cases ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", published_cases("trace_hits"))
def test_published_hits(case):
    trace = read_trace(data_file(case["trace"]), block_size=case["block_size"])
    capacities = [point["blocks"] for point in case["points"]]
    unit = {"tokens": "hit_tokens", "blocks": "hits"}[case["unit"]]
    policies = [name for name in ("fifo", "lru", "optimal") if name in case["points"][0]]
    assert policies
    for policy in policies:
        if policy == "optimal":
            best = optimal_hits(trace, capacities, window=case["window"])
            hits = {"tokens": best.hit_tokens, "blocks": best.hit_blocks}[case["unit"]]
        else:
            step = "block" if policy == "fifo" else "request"
            hits = getattr(step_policy(trace, policy, capacities, step=step, window=case["window"]), unit)[:, 0]
        assert hits.tolist() == [point[policy] for point in case["points"]], policy


# ---- properties -----------------------------------------------------------------------------------------------------

MODES = st.fixed_dictionaries(
    {
        "write_mode": st.sampled_from(WRITE_MODES),
        "write_at": st.integers(1, 3),
        "promote_at": st.sampled_from([1, 1, 2, None]),
        "smaller_below": st.just(True),
    }
)


def stepped(trace, policy, sizes, *, step, admission="always", min_tokens=0, rng=None, **modes):
    """Flows of a cache stepped through a trace, by request, and the hits of its requests."""
    specs = [
        TierSpec(f"t{place}", blocks=blocks, admission=admission, min_tokens=min_tokens)
        for place, blocks in enumerate(sizes)
    ]
    cache = TieredCache(specs, policy=policy, rng=rng, **modes)
    ids = trace.stream_ids if step == "stream" else trace.prefix_ids
    first = dict(zip(ids[::-1].tolist(), trace.block_tokens[::-1].tolist(), strict=True))
    tokens = np.array([first[key] for key in ids.tolist()], dtype=int)  # those of a block's first use count
    columns = {"tokens": tokens, "weights": tokens / trace.block_size}
    if step == "request":
        access = cache.access_prefix(ids, trace.offsets, **columns)
        return access.flows, access.flows.hits
    rows, hits = [], []
    for start, stop in zip(trace.offsets[:-1], trace.offsets[1:], strict=True):
        found = cache.tier_of(ids[start:stop])
        leading = np.cumprod(found < len(sizes)).astype(bool)
        access = cache.access(ids[start:stop], **{name: column[start:stop] for name, column in columns.items()})
        served = found[leading] if step == "block" else access.tier
        hits.append([(served == tier).sum() for tier in range(len(sizes))])
        rows.append([getattr(access.flows, count).sum(axis=0) for count in COUNTS[2:]])
    return rows, np.array(hits).reshape(-1, len(sizes))


def same(one, other):
    return all((getattr(one, count) == getattr(other, count)).all() for count in COUNTS)


@pytest.mark.parametrize("policy", ORDERS)
@settings(max_examples=30)
@given(trace=traces(max_requests=12), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3), modes=MODES)
def test_a_trace_is_its_stepped_cache(policy, trace, sizes, modes):
    rng = 11 if policy == "random" else None
    flows, _ = stepped(trace, policy, sizes, step="request", rng=rng, **modes)
    by_request = step_requests(trace, policy, sizes, rng=rng, **modes)
    assert same(by_request, flows)
    total = step_policy(trace, policy, [sizes, sizes], rng=rng, **modes)
    for count in (*COUNTS, "hit_tokens"):
        assert (getattr(total, count)[1] == getattr(by_request, count).sum(axis=0)).all()
    assert (total.misses + total.hits.sum(axis=-1) == total.accesses).all()


@given(
    trace=traces(max_requests=10),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=2),
    policy=st.sampled_from(["lru", "fifo", "fifo", "lfu", "sieve", "arc", "s3_fifo"]),
    step=st.sampled_from(["block", "stream"]),
    modes=MODES,
)
def test_steps_of_blocks_are_the_stepped_cache(trace, sizes, policy, step, modes):
    rows, hits = stepped(trace, policy, sizes, step=step, **modes)
    flows = step_requests(trace, policy, sizes, step=step, **modes)
    assert flows.hits.tolist() == hits.tolist()
    moved = np.array(rows, dtype=int).reshape(-1, 4, len(sizes))
    for place, count in enumerate(COUNTS[2:]):
        assert (getattr(flows, count) == moved[:, place]).all(), count


@given(
    trace=traces(max_requests=10),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    policy=st.sampled_from(["lru", "gdsf", "two_q", "w_tinylfu"]),
    admission=st.sampled_from(["always", "frequency"]),
    min_tokens=st.integers(0, 3),
    modes=MODES,
)
def test_admission_over_a_trace(trace, sizes, policy, admission, min_tokens, modes):
    given = {"admission": admission, "min_tokens": min_tokens, **modes}
    flows, _ = stepped(trace, policy, sizes, step="request", **given)
    assert same(step_requests(trace, policy, sizes, **given), flows)


@given(trace=traces(max_requests=12), capacity=st.integers(1, 8))
def test_a_key_function_over_a_trace(trace, capacity):
    assert same(step_policy(trace, lfu, [capacity]), step_policy(trace, "lfu", [capacity]))


@settings(max_examples=40)
@given(trace=traces(max_requests=12), capacities=st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_no_policy_beats_the_optimum(trace, capacities):
    best = optimal_hits(trace, capacities).hit_blocks
    for policy in ORDERS:
        hits = step_policy(trace, policy, capacities, rng=2 if policy == "random" else None).hits[:, 0]
        assert (hits <= best).all(), policy


@given(trace=traces(max_requests=12), capacity=st.integers(1, 8))
def test_a_counted_fifo_is_the_paper(trace, capacity):
    plain = Fifo(capacity)
    hits = sum(plain.access(key) for key in trace.stream_ids.tolist())
    assert int(step_policy(trace, "fifo", [capacity], step="stream").hits[0, 0]) == hits


@given(trace=traces(max_requests=12), capacity=st.integers(1, 8), window=st.floats(0, 0.99))
def test_windows_count_the_later_requests(trace, capacity, window):
    for step in ("request", "block"):
        late = step_policy(trace, "fifo", [capacity], step=step, window=window)
        rows = step_requests(trace, "fifo", [capacity], step=step)
        first = int(np.floor(trace.num_requests * window))
        assert (late.hits[0] == rows.hits[first:].sum(axis=0)).all()
        assert (late.hit_tokens[0] == rows.hit_tokens[first:].sum(axis=0)).all()
