"""Generated workloads: what each promises about prompts, sharing and arrivals, whatever the parameters."""

import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvarray
from kvarray import (
    agent_trace,
    builtin_trace,
    bursty_arrivals,
    chat_trace,
    document_trace,
    poisson_arrivals,
    zipf_trace,
)
from kvarray.trace import arrivals, generate
from tests import strategies
from tests.reference import trace as reference

GENERATORS = [chat_trace, agent_trace, document_trace, zipf_trace]
STARTS = st.lists(st.floats(0, 100), max_size=5)


def _small(generator, start_s, seed, **options):
    """A trace whose texts are a few blocks long."""
    known = inspect.signature(generator).parameters
    means = {name: 9.0 for name in known if name.startswith("mean_") and name.endswith("tokens")}
    return generator(start_s, rng=seed, block_size=4, **means, **options)


@pytest.mark.parametrize("generator", GENERATORS)
@settings(max_examples=30)
@given(start_s=STARTS, seed=st.integers(0, 2**32))
def test_prompts_extend_the_session_and_share_full_blocks_alone(generator, start_s, seed):
    trace = _small(generator, start_s, seed)
    rows, input_tokens = strategies.rows_of(trace), trace.input_tokens.tolist()
    assert trace.num_blocks == 0 or np.shares_memory(trace.prefix_ids, trace.block_ids)  # chained, and small
    assert trace.unhashed_tokens.sum() == 0
    assert [len(row) for row in rows] == [-(-tokens // 4) for tokens in input_tokens]
    partial = [row[-1] for row, tokens in zip(rows, input_tokens, strict=True) if tokens % 4]
    assert all(sum(block in row for row in rows) == 1 for block in partial)
    last = {}
    for session, row, tokens, answer in zip(
        trace.session.tolist(), rows, input_tokens, trace.output_tokens.tolist(), strict=True
    ):
        before_row, before_tokens, before_answer = last.get(session, ([], 0, 0))
        assert tokens > before_tokens + before_answer
        num_full = before_tokens // 4
        assert row[:num_full] == before_row[:num_full]
        last[session] = row, tokens, answer
    assert set(np.unique(trace.session)) == set(range(len(start_s)))


@pytest.mark.parametrize("generator", GENERATORS)
def test_seeds_decide(generator):
    start_s = [0.0, 1.0, 2.0]
    assert _small(generator, start_s, 7) == _small(generator, start_s, np.random.default_rng(7))
    assert _small(generator, start_s, 7) != _small(generator, start_s, 8)
    assert inspect.signature(generator).parameters["rng"].default is inspect.Parameter.empty


@pytest.mark.parametrize("generator", GENERATORS)
def test_nothing_comes_of_nothing(generator):
    assert generator([], rng=0).num_requests == 0
    assert _small(generator, [0.0], 0, max_input_tokens=1).num_blocks == 0


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_s": [-1.0]}, "start_s must be 0 or more"),
        ({"start_s": [[1.0]]}, "start_s must be one-dimensional"),
        ({"start_s": [float("nan")]}, "start_s must be finite"),
        ({"block_size": 0}, "block_size must be 1 or more"),
        ({"mean_answer_tokens": 0.5}, "mean_answer_tokens must be 1 or more"),
        ({"max_input_tokens": 0}, "max_input_tokens must be 1 or more"),
    ],
)
def test_malformed_arguments_are_refused(generator, options, message):
    options = dict(options)
    with pytest.raises(ValueError, match=message):
        generator(options.pop("start_s", [0.0]), rng=0, **options)


def test_prompts_stay_within_the_limit():
    trace = agent_trace([0.0] * 20, rng=0, max_input_tokens=20_000)
    assert trace.input_tokens.max() <= 20_000
    assert trace.num_requests > 20


def test_arrivals_are_whole_milliseconds_in_order():
    trace = chat_trace(poisson_arrivals(200, rate_per_s=3.0, rng=1), rng=2)
    assert (np.diff(trace.arrival_s) >= 0).all()
    assert (trace.arrival_s == np.rint(trace.arrival_s * 1000) / 1000).all()


def test_means_are_what_was_asked():
    trace = chat_trace(np.zeros(20_000), rng=0, mean_turns=3.0, mean_answer_tokens=50.0, max_input_tokens=10**6)
    assert trace.num_requests / 20_000 == pytest.approx(3.0, rel=0.03)
    assert trace.output_tokens.mean() == pytest.approx(50.0, rel=0.03)


def test_popularity_falls_with_rank():
    trace = zipf_trace(np.zeros(20_000), rng=0, num_prefixes=4, exponent=1.0, mean_prefix_tokens=500.0)
    heads = np.bincount(trace.block_ids[trace.offsets[:-1]])
    shares = heads[heads > 1] / 20_000
    assert shares == pytest.approx(np.array([12, 6, 4, 3]) / 25, abs=0.02)


def test_documents_share_the_instruction_alone():
    trace = document_trace(np.arange(50.0), rng=0, block_size=16, instruction_tokens=100)
    assert trace.num_blocks - trace.num_distinct == 49 * 6


@pytest.mark.parametrize("variation", [0.5, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_variation_asked_for(variation):
    gaps = np.diff(bursty_arrivals(200_000, rate_per_s=5.0, variation=variation, rng=3))
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": -1}, "count must be 0 or more"),
        ({"rate_per_s": 0.0}, "rate_per_s must be more than 0"),
        ({"variation": 0.0}, "variation must be more than 0"),
    ],
)
def test_malformed_arrivals_are_refused(options, message):
    options = {"count": 3, "rate_per_s": 1.0, "variation": 1.0} | options
    with pytest.raises(ValueError, match=message):
        bursty_arrivals(options.pop("count"), rng=0, **options)


def test_no_arrivals_are_no_arrivals():
    assert poisson_arrivals(0, rate_per_s=1.0, rng=0).tolist() == []


def test_the_builtin_workload_is_always_the_same_and_worth_a_curve():
    trace = builtin_trace()
    assert trace == builtin_trace()
    assert 2_000 < trace.num_requests < 10_000
    # An LRU stack of prefixes: reuse must be spread over orders of magnitude of capacity.
    gaps = _gaps(reference.first_appearance(trace.prefix_ids.tolist()))
    spread = np.quantile(gaps, [0.05, 0.95])
    assert spread[1] > 50 * spread[0]


def _gaps(ids):
    last, gaps = {}, []
    for place, block in enumerate(ids):
        if block in last:
            gaps.append(place - last[block])
        last[block] = place
    return gaps


def test_generators_are_public():
    assert {*generate.__all__, *arrivals.__all__} - {"Seed"} <= set(kvarray.__all__)
