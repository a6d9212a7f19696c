"""`step_prefix`: a whole trace through the radix tree."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvarray import Trace, TraceError, hit_curve, read_trace, step_prefix
from tests.data import data_file, published_cases
from tests.reference.prefix import tail_first_lru_hits


def trace_of(requests, **options):
    offsets = np.cumsum([0, *map(len, requests)])
    ids = np.array([block for blocks in requests for block in blocks], dtype=np.int64)
    return Trace(ids, offsets, block_size=16, **options)


@pytest.mark.parametrize(("capacity", "error"), [(0, ValueError), (2.5, TypeError), (True, TypeError)])
def test_bad_capacities_are_refused(capacity, error):
    with pytest.raises(error, match="capacity must be"):
        step_prefix(trace_of([[1, 2]]), capacity)


def test_a_trace_without_blocks_is_refused():
    with pytest.raises(TraceError, match="no block ids"):
        step_prefix(Trace(None, None, block_size=None, input_tokens=[5, 6]), 3)


def test_an_empty_trace_has_no_hits():
    steps = step_prefix(trace_of([]), 3)
    assert (steps.hit_blocks.tolist(), steps.block_hit_rate, steps.token_hit_rate) == ([], 0.0, 0.0)
    assert step_prefix(trace_of([[], []]), 3).hit_blocks.tolist() == [0, 0]


def test_a_partial_last_block_has_its_own_tokens():
    steps = step_prefix(trace_of([[1, 2], [1, 2]], input_tokens=[20, 20]), 2)
    assert steps.hit_blocks.tolist() == [0, 2]
    assert (steps.hit_tokens.tolist(), steps.num_tokens, steps.token_hit_rate) == ([0, 20], 40, 0.5)


def test_a_request_longer_than_the_cache_leaves_its_head():
    steps = step_prefix(trace_of([[1, 2, 3, 4, 5]] * 2), 2)
    assert (steps.hit_blocks.tolist(), steps.evicted_blocks.tolist()) == ([0, 2], [3, 3])


REQUESTS = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=30)


@given(requests=REQUESTS, capacity=st.integers(1, 12))
@example(requests=[[0, 1, 2, 0, 1]], capacity=2)
def test_pages_in_lru_order_are_the_tail_first_lru(requests, capacity):
    trace = trace_of(requests)
    hits = step_prefix(trace, capacity).hit_blocks
    assert hits.tolist() == tail_first_lru_hits(requests, capacity)
    assert np.array_equal(hits, hit_curve(trace).request_hit_blocks(capacity))


@pytest.mark.parametrize("case", published_cases("trace_hits"))
def test_published_lru_hits(case):
    """Every capacity of a published case, and request by request what the closed form says."""
    trace = read_trace(data_file(case["trace"]), block_size=case["block_size"])
    curve = hit_curve(trace)
    first = int(trace.num_requests * case["window"])
    for point in case["points"]:
        steps = step_prefix(trace, point["blocks"])
        assert np.array_equal(steps.hit_blocks, curve.request_hit_blocks(point["blocks"]))
        assert steps.token_hit_rate == curve.hit_rate(point["blocks"], unit="token")
        hits = steps.hit_blocks if case["unit"] == "blocks" else steps.hit_tokens
        assert int(hits[first:].sum()) == point["lru"], point
