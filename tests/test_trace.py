"""Traces: what a constructor refuses, a worked example, and the columns and cuts of a trace against lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarray import Trace, TraceError
from tests import strategies
from tests.reference import trace as reference

GOOD = {"block_size": 4, "input_tokens": [8, 5], "arrival_s": [0.0, 1.0], "output_tokens": [1, 2]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_ids": [1.5, 2, 3, 4]}, "block_ids must be integers: got float64"),
        ({"block_ids": [True, False, True, True]}, "block_ids must be integers: got bool"),
        ({"block_ids": ["a", "b", "c", "d"]}, "block_ids must be integers"),
        ({"block_ids": [[1, 2], [3, 4]]}, "block_ids must be one-dimensional"),
        ({"block_ids": None}, "block_ids and offsets must be given together"),
        ({"offsets": None}, "block_ids and offsets must be given together"),
        ({"offsets": [0, 3]}, r"offsets must begin at 0 and end at the number of values, 4: got 0 and 3"),
        ({"offsets": [0, 5, 4]}, r"offsets must not decrease: offsets\[2\] = 4"),
        ({"block_size": None}, "block_size must be given for a trace with block ids"),
        ({"block_size": 0}, "block_size must be 1 or more: got 0"),
        ({"block_size": 2.5}, "block_size must be an integer: got 2.5"),
        ({"input_tokens": [8, 4]}, r"input_tokens must explain all blocks, 4 tokens each: input_tokens\[1\] = 4"),
        ({"input_tokens": [8]}, r"input_tokens must have one item per request, 2: got shape \(1,\)"),
        ({"input_tokens": [8, -5]}, r"input_tokens must be 0 or more: input_tokens\[1\] = -5"),
        ({"input_tokens": [8, 2**63]}, r"input_tokens must fit 64 bits: input_tokens\[1\] = 9223372036854775808"),
        ({"input_tokens": [2**62, 2**62]}, r"input_tokens must sum to less than 2\^63"),
        ({"output_tokens": [0.5, 1]}, "output_tokens must be integers"),
        ({"arrival_s": [0.0, float("nan")]}, r"arrival_s must be finite: arrival_s\[1\] = nan"),
        ({"arrival_s": [2.0, 1.0]}, r"arrival_s must not decrease: arrival_s\[1\] = 1.0"),
        ({"arrival_s": [[0.0, 1.0]]}, r"arrival_s must have one item per request, 2: got shape \(1, 2\)"),
        ({"session": [1, 2, 3]}, "session must have one item per request"),
        ({"session": [0, 2], "session_labels": ["a", "b"]}, r"session must be less than 2: session\[1\] = 2"),
        ({"session": [0, 1], "session_labels": ["a", "a"]}, "session_labels must be distinct: got .'a', 'a'."),
        ({"session_labels": ["a"]}, "session_labels must not be given without session"),
        ({"namespace": [0.5, 1.0]}, "namespace must be integers"),
    ],
)
def test_malformed_columns_are_refused(change, message):
    columns = {"block_ids": [1, 2, 1, 3], "offsets": [0, 2, 4], **GOOD} | change
    with pytest.raises((ValueError, TypeError), match=message):
        Trace(columns.pop("block_ids"), columns.pop("offsets"), **columns)


def test_a_trace_of_lengths_alone_says_that_it_has_no_blocks():
    trace = Trace(None, None, block_size=None, input_tokens=[5, 6])
    assert (trace.num_requests, trace.num_blocks, trace.has_blocks) == (2, 0, False)
    assert trace.unhashed_tokens.tolist() == [5, 6]
    for ask in ("prefix_ids", "prefix_limit", "num_distinct", "stream_ids", "num_distinct_blocks"):
        with pytest.raises(TraceError, match=r"^the trace has no block ids .*: no prefix, no hit rate$"):
            getattr(trace, ask)
    with pytest.raises(TraceError, match="no block ids"):
        trace.reblock(4)
    assert trace.describe()["num_distinct"] is None


def test_columns_cannot_be_written():
    trace = Trace([1, 2, 1, 3], [0, 2, 4], session=[0, 1], **GOOD)
    for column in ("block_ids", "offsets", "input_tokens", "output_tokens", "arrival_s", "session", "prefix_ids"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(trace, column)[0] = 1
        with pytest.raises(AttributeError):
            setattr(trace, column, None)


def test_two_requests_with_a_shared_head():
    #   1 - 2      8 tokens, blocks of 4: two full ones
    #   1 - 3 (1)  5 tokens: a full one and one of 1 token; another 6 were never hashed in the third
    #   1 ......   10 tokens
    trace = Trace([1, 2, 1, 3, 1], [0, 2, 4, 5], block_size=4, input_tokens=[8, 5, 10])
    assert trace.block_counts.tolist() == [2, 2, 1]
    assert trace.block_tokens.tolist() == [4, 4, 4, 1, 4]
    assert trace.last_block_tokens.tolist() == [4, 1, 4]
    assert trace.unhashed_tokens.tolist() == [0, 0, 6]
    assert trace.num_distinct == 3
    assert repr(trace) == "<Trace: 3 requests, 5 blocks of 4 tokens, 23 input tokens>"
    assert trace.describe() == {
        "num_requests": 3,
        "num_sessions": None,
        "num_namespaces": None,
        "block_size": 4,
        "num_blocks": 5,
        "num_distinct": 3,
        "input_tokens": 23,
        "unhashed_tokens": 6,
        "output_tokens": 0,
        "duration_s": 0.0,
        "mean_input_tokens": 23 / 3,
        "max_input_tokens": 10,
        "mean_output_tokens": 0.0,
        "max_output_tokens": 0,
    }


def test_an_empty_trace_is_a_trace():
    trace = Trace([], [0], block_size=4)
    assert (trace.num_requests, trace.num_blocks, trace.num_distinct, trace.prefix_limit) == (0, 0, 0, 0)
    assert trace.describe()["duration_s"] is None
    assert trace.reblock(8).num_requests == 0
    assert trace.requests(0, 0) == trace


@given(strategies.traces(named=True))
def test_tokens_of_blocks(trace):
    rows, input_tokens = strategies.rows_of(trace), trace.input_tokens.tolist()
    assert trace.block_tokens.tolist() == reference.block_tokens(rows, input_tokens, trace.block_size)
    assert trace.unhashed_tokens.tolist() == reference.unhashed_tokens(rows, input_tokens, trace.block_size)


@given(strategies.traces(named=True), st.data())
def test_slices_are_the_requests_they_name_and_join_to_the_whole(trace, data):
    cut = data.draw(st.integers(0, trace.num_requests))
    head, tail = trace.requests(0, cut), trace.requests(cut, trace.num_requests)
    assert strategies.rows_of(head) + strategies.rows_of(tail) == strategies.rows_of(trace)
    assert Trace.concatenate([head, tail]) == trace
    assert Trace.concatenate([trace]) == trace


@given(strategies.traces(), st.floats(0, 6), st.floats(0, 6))
def test_between_times(trace, one, other):
    start_s, stop_s = sorted([one, other])
    rows = strategies.rows_of(trace)
    expected = [row for row, t in zip(rows, trace.arrival_s.tolist(), strict=True) if start_s <= t < stop_s]
    assert strategies.rows_of(trace.between(start_s, stop_s)) == expected


@pytest.mark.parametrize(("start", "stop", "message"), [(-1, 1, "start must be 0"), (1, 0, "stop"), (0, 3, "stop")])
def test_slices_beyond_the_trace_are_refused(start, stop, message):
    with pytest.raises(ValueError, match=message):
        Trace([1, 2], [0, 1, 2], block_size=1).requests(start, stop)
    with pytest.raises(ValueError, match="stop_s must be 2 or more"):
        Trace([1, 2], [0, 1, 2], block_size=1).between(2.0, 1.0)


@given(st.lists(strategies.traces(max_requests=4), min_size=1, max_size=4), st.data())
def test_interleaving_merges_by_time(sessions, data):
    sessions = [Trace(t.block_ids, t.offsets, block_size=8, arrival_s=t.arrival_s) for t in sessions]
    starts_s = data.draw(st.lists(st.integers(0, 3), min_size=len(sessions), max_size=len(sessions)))
    merged = Trace.interleave(sessions, starts_s=starts_s)
    lists = [list(zip(t.arrival_s.tolist(), strategies.rows_of(t), strict=True)) for t in sessions]
    expected = reference.interleave(lists, starts_s)
    assert merged.arrival_s.tolist() == [arrival_s for arrival_s, _ in expected]
    flat = [block for _, row in expected for block in row]
    assert merged.block_counts.tolist() == [len(row) for _, row in expected]
    if flat and min(flat) < 0 and max(flat) >= 2**63:  # no dtype holds both: ids are new, and equal where they were
        assert reference.first_appearance(merged.block_ids.tolist()) == reference.first_appearance(flat)
    else:
        assert merged.block_ids.tolist() == flat


def test_interleaved_requests_take_all_columns_along():
    one = Trace([1, 2], [0, 1, 2], block_size=4, input_tokens=[3, 4], arrival_s=[0, 5], session=[7, 7])
    other = Trace([9], [0, 1], block_size=4, input_tokens=[2], output_tokens=[6], arrival_s=[1], session=[8])
    expected = Trace(
        [1, 9, 2],
        [0, 1, 2, 3],
        block_size=4,
        input_tokens=[3, 2, 4],
        output_tokens=[0, 6, 0],
        arrival_s=[0, 1, 5],
        session=[7, 8, 7],
    )
    assert Trace.interleave([one, other]) == expected


def test_joined_names_are_the_same_session_when_they_are_equal():
    one = Trace([1], [0, 1], block_size=1, session=[0], session_labels=["a"], namespace=[5])
    other = Trace([2, 3], [0, 1, 2], block_size=1, session=[1, 0], session_labels=["a", "b"])
    joined = Trace.concatenate([one, other])
    assert joined.session.tolist() == [0, 1, 0]
    assert joined.session_labels == ("a", "b")
    assert joined.namespace.tolist() == [0, 1, 1]
    assert joined.namespace_labels == (5, None)


@given(strategies.traces(), strategies.traces())
def test_namespaces_keep_traces_apart(one, other):
    one, other = (Trace(t.block_ids, t.offsets, block_size=1) for t in (one, other))
    joined = Trace.concatenate([one.in_namespace("one"), other.in_namespace(2)])
    assert joined.num_distinct == one.num_distinct + other.num_distinct
    assert joined.num_distinct_blocks == one.num_distinct_blocks + other.num_distinct_blocks
    assert one.in_namespace("one").requests(0, one.num_requests) == one.in_namespace("one")
    with pytest.raises(ValueError, match="the trace must have no namespaces yet"):
        one.in_namespace("one").in_namespace("three")


def test_traces_that_do_not_fit_are_not_joined():
    trace = Trace([1], [0, 1], block_size=1, arrival_s=[1.0])
    with pytest.raises(ValueError, match="traces must agree in block_size: got 1, 2"):
        Trace.concatenate([trace, Trace([1], [0, 1], block_size=2)])
    with pytest.raises(ValueError, match="traces must agree in has_blocks: got True, False"):
        Trace.concatenate([trace, Trace(None, None, block_size=1, input_tokens=[1])])
    with pytest.raises(ValueError, match="traces must hold at least one trace"):
        Trace.concatenate([])
    with pytest.raises(ValueError, match=r"arrival_s must not decrease: arrival_s\[1\] = 0.0"):
        Trace.concatenate([trace, Trace([1], [0, 1], block_size=1)])
    with pytest.raises(ValueError, match="starts_s must have one item per trace, 1"):
        Trace.interleave([trace], starts_s=[0, 1])


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=14), st.integers(0, 14)), max_size=6),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_larger_blocks_are_those_cut_from_the_tokens(prompts, block_size, factor):
    prompts = [(tokens, min(hashed // block_size * block_size, len(tokens))) for tokens, hashed in prompts]
    prompts = [(tokens, len(tokens) if len(tokens) % 3 == 0 else hashed) for tokens, hashed in prompts]
    names = {}

    def at(size):
        rows = [
            [names.setdefault(block, len(names)) for block in reference.cut(tokens, hashed, size)]
            for tokens, hashed in prompts
        ]
        input_tokens = [len(tokens) for tokens, _ in prompts]
        flat = strategies.as_block_ids(rows)
        return Trace(flat, np.cumsum([0, *map(len, rows)]), block_size=size, input_tokens=input_tokens)

    found, expected = at(block_size).reblock(block_size * factor), at(block_size * factor)
    assert found.offsets.tolist() == expected.offsets.tolist()
    assert found.block_size == expected.block_size
    assert reference.first_appearance(found.prefix_ids.tolist()) == reference.first_appearance(
        expected.prefix_ids.tolist()
    )


@pytest.mark.parametrize("block_size", [6, 2, 0, True])
def test_blocks_are_only_ever_joined_whole(block_size):
    trace = Trace([1], [0, 1], block_size=4)
    with pytest.raises((ValueError, TypeError), match="block_size must be"):
        trace.reblock(block_size)


def test_a_list_of_ids_of_any_64_bits_is_taken():
    assert Trace([1, 2**64 - 1], [0, 2], block_size=1).block_ids.tolist() == [1, 2**64 - 1]
    assert Trace([-1, 2**63 - 1], [0, 2], block_size=1).block_ids.tolist() == [-1, 2**63 - 1]
    with pytest.raises(ValueError, match=r"block_ids must fit 64 bits: block_ids\[1\] = 9223372036854775808"):
        Trace([-1, 2**63], [0, 2], block_size=1)


def test_equality_is_about_meaning():
    one = Trace([1, 2], [0, 1, 2], block_size=1, session=[0, 1], session_labels=["a", "b"])
    assert one == Trace([1, 2], [0, 1, 2], block_size=1, session=[1, 0], session_labels=["b", "a"])
    assert one != Trace([1, 2], [0, 1, 2], block_size=1, session=[0, 1])
    assert one != Trace([1, 2], [0, 1, 2], block_size=1)
    assert one != Trace([1, 3], [0, 1, 2], block_size=1, session=[0, 1], session_labels=["a", "b"])
    assert one != "a trace"
    assert Trace([1], [0, 1], block_size=1) != Trace([1], [0, 1], block_size=2, input_tokens=[1])
