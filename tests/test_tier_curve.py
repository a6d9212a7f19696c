"""Tiers in closed form against the stepped cache and the plain one."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvarray import Link, TieredCache, TierSpec, Trace, TraceError, read_trace, tier_curve
from tests.data import data_file, published_cases
from tests.reference.tier import Tiers
from tests.strategies import traces

COUNTS = ("hits", "created", "up", "down", "dropped")
SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=4)
TRACE = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        (4, ValueError, "sizes must have the capacity of each tier along the last axis: got one number"),
        ([4, 0], ValueError, r"sizes must be 1 or more: sizes\[1\] = 0"),
        ([], ValueError, r"sizes must have one tier or more along the last axis: got shape \(0,\)"),
        ([[], []], ValueError, r"sizes must have one tier or more along the last axis: got shape \(2, 0\)"),
        ([[4, 4], [2, -1]], ValueError, r"sizes must be 1 or more: sizes\[1, 1\] = -1"),
        ([4.5, 1], TypeError, "sizes must be integers: got float64"),
        (
            [[1, 2], [4, 2]],
            ValueError,
            r"sizes must not fall from tier to tier under write-through .*sizes\[1, 1\] = 2",
        ),
    ],
)
def test_malformed_sizes_are_refused(sizes, error, message):
    curve = tier_curve(TRACE, write_mode="write_through")
    for ask in (curve.hits, curve.hit_tokens, curve.flows, curve.request_flows):
        with pytest.raises(error, match=message):
            ask(sizes)


def test_other_malformed_arguments_are_refused():
    with pytest.raises(ValueError, match="write_mode must be exclusive or write_through: got 'write_back'"):
        tier_curve(TRACE, write_mode="write_back")
    with pytest.raises(ValueError, match="step must be request or stream: got 'block'"):
        tier_curve(TRACE, step="block")
    with pytest.raises(ValueError, match="window must be less than 1"):
        tier_curve(TRACE, window=1.0)
    with pytest.raises(ValueError, match=r"sizes must be one configuration, shape \(K,\): got shape \(1, 2\)"):
        tier_curve(TRACE).request_flows([[1, 2]])
    with pytest.raises(TraceError, match="no block ids"):
        tier_curve(Trace(None, None, block_size=16, input_tokens=[3]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"up_links": []}, "up_links must have one link between each two tiers, 1: got 0"),
        ({"direct_links": [None, None]}, "direct_links must have one link between each two tiers, 1: got 2"),
        ({"block_s": None}, "one of block_s and token_s must be given"),
        ({"token_s": 1.0}, "one of block_s and token_s must be given"),
        ({"block_s": -1.0}, "block_s must be 0 or more: got -1.0"),
        ({"block_bytes": 0}, "block_bytes must be 1 or more: got 0"),
    ],
)
def test_malformed_costs_are_refused(fields, message):
    flows = tier_curve(TRACE).flows([1, 2])
    with pytest.raises(ValueError, match=message):
        flows.cost(**{"up_links": [Link(1e9)], "down_links": [Link(1e9)], "block_bytes": 1, "block_s": 1.0, **fields})


def test_tokens_must_be_there_to_be_priced():
    flows = TieredCache([TierSpec("gpu", blocks=1)]).flows
    with pytest.raises(ValueError, match="token_s needs tokens: these blocks have none, give block_s"):
        flows.cost([], [], block_bytes=1, token_s=1.0)


# ---- worked examples ------------------------------------------------------------------------------------------------


def test_a_trace_by_hand():
    """Requests 1 2 3, 1 2 4, 1 2 3 over two exclusive tiers of 2: 3 sinks for 4, and is hit below."""
    flows = tier_curve(TRACE).request_flows([2, 2])
    assert flows.hits.tolist() == [[0, 0], [2, 0], [2, 1]]
    assert flows.created.tolist() == [[2, 1], [0, 1], [0, 0]]  # the third block of a request never fits the top
    assert flows.hit_tokens.tolist() == [[0, 0], [32, 0], [32, 16]]
    assert flows.cumulative().hits.tolist() == [[0, 0], [2, 0], [4, 1]]


def test_costs_by_token_and_by_block():
    trace = Trace([1, 2, 1, 2], [0, 2, 4], block_size=16, input_tokens=[20, 20])
    flows = tier_curve(trace).flows([4, 4])
    links = {"up_links": [Link(1.0)], "down_links": [Link(1.0)], "block_bytes": 1}
    assert float(flows.cost(**links, block_s=0.5).saved_s) == 1.0
    assert float(flows.cost(**links, token_s=0.5).saved_s) == 10.0


def test_an_empty_trace():
    trace = Trace([], [0], block_size=16)
    for step in ("request", "stream"):
        flows = tier_curve(trace, step=step).flows([[1, 2]])
        assert all(getattr(flows, count).tolist() == [[0, 0]] for count in COUNTS)
        assert float(flows.hit_rate[0]) == 0.0
        assert tier_curve(trace, step=step).request_flows([1, 2]).hits.shape == (0, 2)


# ---- published cases ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", published_cases("two_tier_laws"))
def test_published_two_tier_laws(case):
    trace = read_trace(data_file(case["trace"]), block_size=case["block_size"])
    for mode in ("write_through", "exclusive"):
        sizes = [[point["l1"], point["l2"]] for point in case["points"]]
        hits = tier_curve(trace, write_mode=mode).hits(sizes).sum(axis=-1)
        assert hits.tolist() == [point[mode] for point in case["points"]]


# ---- properties -----------------------------------------------------------------------------------------------------


def steps_of(trace, step):
    """Paths of the trace by request, each as the steps it takes."""
    ids = (trace.prefix_ids if step == "request" else trace.stream_ids).tolist()
    paths = [ids[start:stop] for start, stop in zip(trace.offsets[:-1], trace.offsets[1:], strict=True)]
    return [[path] if step == "request" else [[key] for key in path] for path in paths]


@given(
    trace=traces(max_requests=12, max_blocks=7),
    sizes=SIZES,
    write_mode=st.sampled_from(["exclusive", "write_through"]),
    step=st.sampled_from(["request", "stream"]),
    window=st.sampled_from([0.0, 0.0, 0.5]),
)
@example(trace=TRACE, sizes=[1, 1], write_mode="write_through", step="request", window=0.0)
def test_closed_form_is_the_plain_cache(trace, sizes, write_mode, step, window):
    """Requests longer than a tier, lower tiers smaller than upper ones and windows included."""
    curve = tier_curve(trace, write_mode=write_mode, step=step, window=window, smaller_below=True)
    plain = Tiers(sizes, write_mode=write_mode)
    running = [[list(getattr(plain, count)) for count in COUNTS]]
    for steps in steps_of(trace, step):
        for path in steps:
            plain.step(path)
        running.append([list(getattr(plain, count)) for count in COUNTS])
    wanted = np.diff(np.array(running), axis=0)[int(trace.num_requests * window) :]
    by_request, total = curve.request_flows(sizes), curve.flows([sizes, sizes])
    for place, count in enumerate(COUNTS):
        assert (getattr(by_request, count) == wanted[:, place]).all(), count
        assert (getattr(total, count) == wanted[:, place].sum(axis=0)).all(), count
    assert (by_request.hit_tokens.sum(axis=0) == total.hit_tokens[0]).all()
    assert (curve.hits(sizes) == total.hits[0]).all()
    assert (curve.hit_tokens(sizes) == total.hit_tokens[0]).all()
    assert (total.misses + total.hits.sum(axis=-1) == total.accesses).all()


@given(trace=traces(max_requests=10), sizes=st.lists(SIZES, min_size=1, max_size=5))
def test_configurations_are_independent(trace, sizes):
    together = [row[:1] for row in sizes]
    curve = tier_curve(trace)
    flows = curve.flows(together)
    for place, row in enumerate(together):
        alone = curve.flows(row)
        assert all((getattr(flows, count)[place] == getattr(alone, count)).all() for count in COUNTS)
