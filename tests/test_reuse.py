"""Hit curves, bounds and working sets: errors, examples by hand, and equality with plain-Python caches."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvarray import reuse
from kvarray.errors import TraceError
from kvarray.reuse.curve import first_counted
from kvarray.reuse.distances import earlier_below
from kvarray.trace import Trace, read_trace
from tests.data import data_file, published_cases
from tests.reference import reuse as twin
from tests.reference.replay_lru import replay_lru

BLOCK = 4


def make_trace(requests, arrivals=None):
    """A trace of requests ``(namespace, ids, input_tokens)``."""
    return Trace(
        [i for _, ids, _ in requests for i in ids],
        np.cumsum([0] + [len(ids) for _, ids, _ in requests]),
        block_size=BLOCK,
        input_tokens=[tokens for _, _, tokens in requests],
        namespace=[namespace for namespace, _, _ in requests],
        arrival_s=arrivals,
    )


@st.composite
def requests(draw, chained=None, max_size=9):
    """A few requests over few ids, so that prefixes recur; ids chained, or free and possibly twice in a request."""
    chained = draw(st.booleans()) if chained is None else chained
    rows = draw(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=max_size))
    known = {}
    result = []
    for row in rows:
        namespace = draw(st.integers(0, 1))
        ids = row
        if chained:
            path = [(namespace, *row[: i + 1]) for i in range(len(row))]
            ids = [known.setdefault(prefix, len(known)) for prefix in path]
        short = draw(st.integers(1, BLOCK)) if ids else 0  # tokens of the last block
        unhashed = draw(st.integers(0, 2 * BLOCK)) if short == BLOCK or not ids else 0
        result.append((namespace, ids, max(len(ids) - 1, 0) * BLOCK + short + unhashed))
    return result


WINDOWS = st.sampled_from([0.0, 0.3, 0.5, 0.99])
CAPACITIES = [*range(9), 100]
STORY = [(0, [1, 2, 3], 12), (0, [1, 2, 4], 12), (0, [1, 2, 3], 10)]


# --- errors


def test_a_trace_without_block_ids_says_so():
    trace = Trace(None, None, block_size=None, input_tokens=[5, 7], arrival_s=[0.0, 1.0])
    for ask in (reuse.hit_curve, reuse.stream_curve, reuse.ttl_curve, reuse.prefix_runs):
        with pytest.raises(TraceError, match="no block ids"):
            ask(trace)


@pytest.mark.parametrize("window", [-0.1, 1.0, float("nan"), float("inf")])
def test_windows_out_of_range(window):
    with pytest.raises(ValueError, match="window must be"):
        reuse.hit_curve(make_trace(STORY), window=window)
    with pytest.raises(ValueError, match="window must be"):
        reuse.optimal_hits(make_trace(STORY), [3], window=window)


@pytest.mark.parametrize("bad", [[-1], [0, -5]])
def test_negative_capacities(bad):
    curve = reuse.hit_curve(make_trace(STORY))
    for ask in (curve.hit_blocks, curve.hit_tokens, curve.whole_requests, curve.hit_rate):
        with pytest.raises(ValueError, match="capacities must be 0 or more"):
            ask(bad)
    with pytest.raises(ValueError, match="capacities must be 0 or more"):
        reuse.optimal_hits(make_trace(STORY), bad)


def test_fractional_capacities():
    with pytest.raises(TypeError, match="capacities must be integers"):
        reuse.hit_curve(make_trace(STORY)).hit_blocks([1.5])


def test_unknown_unit_and_order():
    with pytest.raises(ValueError, match="unit must be one of token, block"):
        reuse.hit_curve(make_trace(STORY)).hit_rate(3, unit="tokens")
    with pytest.raises(ValueError, match="order must be head_first or tail_first"):
        reuse.stream_curve(make_trace(STORY), order="random")


def test_a_rate_out_of_reach_gives_the_ceiling():
    curve = reuse.hit_curve(make_trace(STORY))
    with pytest.raises(ValueError, match=r"at most the ceiling of the trace, 0\.529412 by token: got 0\.9"):
        curve.level_for(0.9)
    with pytest.raises(ValueError, match="share must be at most 1"):
        curve.level_for_share(1.5)


def test_windows_of_requests_out_of_range():
    trace = make_trace(STORY)
    with pytest.raises(ValueError, match=r"stops must be less than 4: stops\[0\] = 4"):
        reuse.working_set(trace, [0], [4])
    with pytest.raises(ValueError, match="stops must not be less than starts"):
        reuse.working_set(trace, [2], [1])
    with pytest.raises(ValueError, match="same length"):
        reuse.working_set(trace, [0, 1], [1])


def test_negative_ttl():
    with pytest.raises(ValueError, match="ttl_s must be 0 or more"):
        reuse.ttl_curve(make_trace(STORY)).hit_blocks(-1.0)


def test_many_levels_for_single_requests():
    curve = reuse.hit_curve(make_trace(STORY))
    for ask in (curve.request_hit_blocks, curve.request_hit_tokens):
        assert ask([[1, 2], [0, 9]]).tolist() == [
            [ask(1).tolist(), ask(2).tolist()],
            [ask(0).tolist(), ask(9).tolist()],
        ]


def test_runs_of_something_else():
    trace = make_trace(STORY)
    for runs in (reuse.stream_runs(trace), reuse.prefix_runs(make_trace(STORY[:2]))):
        for ask in (reuse.hit_curve, reuse.ttl_curve):
            with pytest.raises(ValueError, match="runs must be prefix_runs of the same trace"):
                ask(trace, runs=runs)
        with pytest.raises(ValueError, match="runs must be prefix_runs of the same trace"):
            reuse.optimal_hits(trace, [1], runs=runs)
        with pytest.raises(ValueError, match="runs must be prefix_runs of the same trace"):
            reuse.working_set(trace, [0], [1], runs=runs)


# --- by hand


def test_story():
    # recency after each request, latest first:  1 2 3 | 1 2 4 3 | 1 2 3 4
    curve = reuse.hit_curve(make_trace(STORY))
    assert curve.hit_blocks(CAPACITIES).tolist() == [0, 2, 4, 4, 5, 5, 5, 5, 5, 5]
    assert curve.hit_tokens([3, 4]).tolist() == [16, 18]  # the last block of the third request holds two tokens
    assert curve.hit_full_blocks([3, 4]).tolist() == [4, 4]
    assert curve.whole_requests([3, 4]).tolist() == [0, 1]
    assert curve.level_for(0.5, unit="block") == 4
    assert curve.level_for(0.0) == 0
    assert curve.num_distinct == 4


def test_stories_of_time():
    curve = reuse.ttl_curve(make_trace(STORY, arrivals=[0.0, 10.0, 30.0]))
    assert curve.hit_blocks([9.9, 10.0, 20.0, 29.0, 30.0, np.inf]).tolist() == [0, 2, 4, 4, 5, 5]
    assert curve.level_for_share(1.0) == 30.0
    assert curve.level_for(0.0) == 0.0


def test_a_gap_of_exactly_the_time_to_live():
    # 0.4 - 0.1 is 0.30000000000000004 as floats
    curve = reuse.ttl_curve(make_trace([(0, [1], 4)] * 2, arrivals=[0.1, 0.4]))
    assert curve.hit_blocks([0.299999, 0.3]).tolist() == [0, 1]
    assert curve.level_for_share(1.0) == 0.3


def test_an_empty_trace_has_an_empty_curve():
    for trace in (make_trace([]), make_trace([(0, [], 0), (0, [], 7)])):
        for curve in (reuse.hit_curve(trace), reuse.stream_curve(trace), reuse.ttl_curve(trace)):
            assert curve.hit_blocks([0, 10]).tolist() == [0, 0]
            assert [curve.ceiling(unit=unit) for unit in reuse.UNITS] == [0.0] * 6
            assert curve.level_for_share(1.0) == 0
        assert reuse.optimal_hits(trace, [0, 3]).hit_blocks.tolist() == [0, 0]
        assert reuse.working_set(trace, [0], [0]).tolist() == [0]


def test_answers_have_the_shape_of_the_question():
    curve = reuse.hit_curve(make_trace(STORY))
    assert curve.hit_blocks([[1, 2], [3, 4]]).tolist() == [[2, 4], [4, 5]]
    assert curve.hit_blocks(4) == 5
    assert isinstance(curve.hit_rate(4), float)
    assert curve.hit_rate([[4]], unit="mean_token").shape == (1, 1)
    assert curve.hit_blocks(2**63 - 1) == 5


# --- against the twin


def _check(curve, rows, hits_at, levels, first):
    """Every unit of a curve against the definitions, at each level."""
    for level in levels:
        expected = twin.definitions(rows, hits_at(level), BLOCK, first)
        assert curve.hit_blocks(level) == expected["block"][0]
        assert curve.hit_tokens(level) == expected["token"][0]
        assert curve.hit_full_blocks(level) == expected["full_block"][0]
        assert curve.whole_requests(level) == expected["request"][0]
        assert curve.hit_rate(level, unit="mean_block") == pytest.approx(expected["mean_block"], rel=1e-12)
        for unit in ("block", "token", "full_block", "request"):
            assert curve.totals[unit] == expected[unit][1]
        assert curve.totals["hashed_token"] == expected["hashed_token"]
        hits = [sum(row) for row in hits_at(level)[first:]]
        assert curve.request_hit_blocks(level).tolist() == hits


def _spread(rows, counts):
    return [[i < n for i in range(len(ids))] for (_, ids, _), n in zip(rows, counts, strict=True)]


@given(requests(), WINDOWS)
@example([(0, [0, 0, 0], 12)] * 3, 0.0)
@example([(0, [7], 1)], 0.0)
def test_request_steps_equal_a_list(rows, window):
    first = int(len(rows) * window)
    curve = reuse.hit_curve(make_trace(rows), window=window)

    def hits_at(capacity):
        return _spread(rows, twin.lru_steps(rows, capacity))

    _check(curve, rows, hits_at, CAPACITIES, first)
    for capacity in CAPACITIES:
        mean = twin.definitions(rows, hits_at(capacity), BLOCK, first)["mean_token"]
        assert curve.hit_rate(capacity, unit="mean_token") == pytest.approx(mean, rel=1e-12)


@given(requests(), WINDOWS, st.sampled_from(["head_first", "tail_first"]))
def test_stream_steps_equal_a_list(rows, window, order):
    curve = reuse.stream_curve(make_trace(rows), order=order, window=window)
    first = int(len(rows) * window)
    for level in CAPACITIES:
        hits = twin.lru_stream(rows, level, order)
        expected = twin.definitions(rows, hits, BLOCK, first)
        assert curve.hit_blocks(level) == expected["block"][0]
        assert curve.hit_tokens(level) == expected["token"][0]
        assert curve.hit_full_blocks(level) == expected["full_block"][0]
        assert curve.whole_requests(level) == expected["request"][0]
        assert curve.request_hit_blocks(level).tolist() == [sum(row) for row in hits[first:]]
        for unit in ("mean_block", "mean_token"):
            assert curve.hit_rate(level, unit=unit) == pytest.approx(expected[unit], rel=1e-12)


@given(requests(), WINDOWS, st.data())
def test_times_to_live_equal_a_dictionary(rows, window, data):
    gaps = data.draw(st.lists(st.sampled_from([0.0, 0.1, 0.3, 2.5]), min_size=len(rows), max_size=len(rows)))
    arrivals = list(np.cumsum(gaps))
    curve = reuse.ttl_curve(make_trace(rows, arrivals), window=window)

    def hits_at(ttl):
        return _spread(rows, twin.ttl_steps(rows, arrivals, ttl))

    _check(curve, rows, hits_at, [0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 2.5, 2.9, 100.0], int(len(rows) * window))


@given(requests(max_size=7), WINDOWS)
def test_the_optimum_equals_farthest_next_use(rows, window):
    trace, first = make_trace(rows), int(len(rows) * window)
    found = reuse.optimal_hits(trace, CAPACITIES, window=window)
    for k, capacity in enumerate(CAPACITIES):
        hits = _spread(rows, twin.optimal_steps(rows, capacity))
        expected = twin.definitions(rows, hits, BLOCK, first)
        assert (found.hit_blocks[k], found.hit_tokens[k]) == (expected["block"][0], expected["token"][0])


@given(st.lists(st.lists(st.integers(0, 1), max_size=3), max_size=4), st.integers(0, 3))
def test_no_choice_of_victims_beats_the_optimum(rows, capacity):
    rows = [(0, ids, len(ids) * BLOCK) for ids in rows]
    assert reuse.optimal_hits(make_trace(rows), [capacity]).hit_blocks[0] == twin.best_possible_blocks(rows, capacity)


@given(requests(), st.data())
def test_working_sets_equal_sets(rows, data):
    ends = st.tuples(st.integers(0, len(rows)), st.integers(0, len(rows))).map(sorted)
    windows = data.draw(st.lists(ends, max_size=5))
    found = reuse.working_set(make_trace(rows), [a for a, _ in windows], [b for _, b in windows])
    assert found.tolist() == [twin.working_set(rows, a, b) for a, b in windows]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), unique_by=lambda pair: pair[0]))
def test_earlier_below_equals_its_definition(pairs):
    keys = np.array([k for k, _ in pairs], dtype=np.int64)
    weights = np.array([w for _, w in pairs], dtype=np.int64)
    expected = [sum(w for k, w in pairs[:i] if k < key) for i, (key, _) in enumerate(pairs)]
    assert earlier_below(keys, weights).tolist() == expected


# --- laws


@given(requests())
def test_more_room_never_hits_less(rows):
    trace = make_trace(rows)
    for curve in (reuse.hit_curve(trace), reuse.stream_curve(trace)):
        assert (np.diff(curve.hit_blocks(range(30))) >= 0).all()
        assert curve.hit_blocks(curve.num_distinct) == curve.hit_blocks(10**12)
    best = reuse.optimal_hits(trace, range(30)).hit_blocks
    assert (best >= reuse.hit_curve(trace).hit_blocks(range(30))).all()


@given(requests(), st.permutations(range(40)))
def test_relabelling_changes_nothing(rows, names):
    other = [(namespace, [names[i] - 20 for i in ids], tokens) for namespace, ids, tokens in rows]
    one, two = make_trace(rows), make_trace(other)
    assert reuse.hit_curve(one).hit_tokens(range(30)).tolist() == reuse.hit_curve(two).hit_tokens(range(30)).tolist()
    assert (
        reuse.stream_curve(one).hit_tokens(range(30)).tolist() == reuse.stream_curve(two).hit_tokens(range(30)).tolist()
    )


@given(requests(), WINDOWS)
def test_a_window_and_what_comes_before_it_make_the_whole(rows, window):
    trace = make_trace(rows)
    first = first_counted(trace, window)
    whole = reuse.hit_curve(trace).hit_tokens(range(12))
    before = reuse.hit_curve(trace.requests(0, first)).hit_tokens(range(12))
    assert (before + reuse.hit_curve(trace, window=window).hit_tokens(range(12))).tolist() == whole.tolist()


@given(requests(chained=True), st.integers(1, 8), st.booleans())
def test_long_and_short_requests_take_the_same_way(rows, piece, long):
    trace = make_trace(rows)
    expected = reuse.prefix_runs(trace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvarray.reuse.distances._LONG", -1 if long else 10**9)
        patch.setattr("kvarray.reuse.distances._PIECE", piece)
        found = reuse.prefix_runs(trace)
    for column in ("request", "depth", "length", "previous", "distance"):
        assert getattr(found, column).tolist() == getattr(expected, column).tolist()


@given(requests(), st.floats(0.0, 1.0), st.sampled_from(reuse.UNITS))
def test_the_smallest_level_is_the_smallest(rows, share, unit):
    curve = reuse.hit_curve(make_trace(rows))
    level = curve.level_for_share(share, unit=unit)
    wanted = share * curve.ceiling(unit=unit)
    assert curve.hit_rate(level, unit=unit) >= wanted
    assert level == 0 or curve.hit_rate(level - 1, unit=unit) < wanted


# --- published results


def _trace(case):
    return read_trace(data_file(case["trace"]), block_size=case["block_size"])


@pytest.mark.parametrize("case", published_cases("trace_hits"))
def test_published_hits(case):
    trace = _trace(case)
    curve = reuse.hit_curve(trace, window=case.get("window", 0.0))
    blocks = [point["blocks"] for point in case["points"]]
    hits, total = (
        (curve.hit_tokens, curve.totals["hashed_token"])
        if case["unit"] == "tokens"
        else (curve.hit_blocks, curve.totals["block"])
    )
    assert total == case[f"total_{case['unit']}"]
    if "infinite" in case:
        assert hits(curve.num_distinct) == case["infinite"]
    if "unique_blocks" in case:
        assert curve.num_distinct == case["unique_blocks"]
    assert hits(blocks).tolist() == [point["lru"] for point in case["points"]]
    if all("optimal" in point for point in case["points"]):
        best = reuse.optimal_hits(trace, blocks, window=case.get("window", 0.0))
        found = best.hit_tokens if case["unit"] == "tokens" else best.hit_blocks
        assert found.tolist() == [point["optimal"] for point in case["points"]]


@pytest.mark.parametrize("case", published_cases("stream_lru"))
def test_published_stream_hits(case):
    curve = reuse.stream_curve(_trace(case), order=case["touch"], window=case.get("window", 0.0))
    assert curve.totals["block"] == case["total_blocks"]
    found = curve.hit_blocks([point["blocks"] for point in case["points"]])
    assert found.tolist() == [point["hit_blocks"] for point in case["points"]]
    for hits, point in zip(found, case["points"], strict=True):
        if "published" in point:
            assert round(hits / case["total_blocks"], 3) == point["published"]


@pytest.mark.parametrize("case", published_cases("hit_definitions"))
def test_published_definitions(case):
    trace = _trace(case)
    units = {"mean_of_requests_tokens": "mean_token", "mean_of_requests_blocks": "mean_block",
             "whole_request": "request", "second_half_tokens": "token"}  # fmt: skip
    for name, point in case["points"].items():
        unit = units.get(name, name)
        curve = reuse.hit_curve(trace, window=point.get("window", 0.0))
        if "rate" in point:
            assert curve.ceiling(unit=unit) == pytest.approx(point["rate"], rel=1e-12)
        else:
            assert curve.hits(curve.num_distinct, unit=unit) == point["hit"]
            assert curve.totals[unit] == point["total"]


def test_a_real_trace_equals_an_ordered_dictionary():
    trace = read_trace(data_file("traces/claude_code_small.jsonl.gz")).requests(0, 300)
    rows = [trace.block_ids[a:b].tolist() for a, b in zip(trace.offsets[:-1], trace.offsets[1:], strict=True)]
    for capacity in (500, 5_000):
        assert reuse.hit_curve(trace).hit_blocks(capacity) == replay_lru(rows, capacity)
