"""Schedules of prefill, transfer and decoding: the transfer scenario, examples, the twin, and the laws."""

import math
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvarray.economics.latency import PrefillFlops, PrefillTime
from kvarray.economics.loading import overlapped_seconds
from kvarray.errors import TransferError
from kvarray.migrate import (
    PDScheduler,
    TransferEngine,
    best_chunk,
    best_group,
    overlap_bandwidth,
    schedule_batch,
)
from tests.data import published_cases
from tests.reference import migrate as twin

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
BYTES = st.integers(0, 12).map(float)
SECONDS = st.sampled_from([0.0, 0.25, 1.0, 3.0])
NAMES = ("sequential", "pipelined", "layered", "chunked")


@st.composite
def engines(draw, *, num_streams=None):
    """An engine as the twin takes it."""
    count = num_streams or draw(st.integers(1, 3))

    def each(values):
        return draw(st.lists(values, min_size=count, max_size=count))

    return {
        "bytes_per_second": each(st.integers(1, 8).map(float)),
        "latency_s": each(st.sampled_from([0.0, 0.5])),
        "alpha_s": each(st.sampled_from([0.0, 0.25])),
        "fail_s": [math.inf] * count,
        "fragment_bytes": draw(st.none() | st.integers(1, 5)),
        "assignment": draw(st.sampled_from(["round_robin", "least_loaded"])),
    }


@st.composite
def requests(draw):
    """Bytes, prefill times and decode steps of one request."""
    count = draw(st.integers(1, 8))
    columns = [draw(st.lists(values, min_size=count, max_size=count)) for values in (BYTES, SECONDS, SECONDS)]
    return tuple(np.array(column) for column in columns)


def draw_schedule(scheduler, name, size, prefill, steps, *, num_streams=1, group=1):
    """Call the method of a name."""
    if name == "sequential":
        return scheduler.sequential(size, prefill_s=prefill, decode_s=steps, num_streams=num_streams)
    if name == "layered":
        return scheduler.layered(size, prefill_s=prefill, decode_s=steps, group_layers=group)
    return getattr(scheduler, name)(size, prefill_s=prefill, decode_s=steps)


# ----------------------------------------------------------------------------------------------------------- scenario


def test_the_transfer_scenario():
    """64 blocks of 1 MiB over 2 streams of 25 GB/s each, 4 ms of decoding per block."""
    engine = TransferEngine(25e9, num_streams=2)
    blocks, scheduler = np.full(64, 2**20), PDScheduler(engine)
    one_by_one = scheduler.sequential(blocks, decode_s=4e-3)
    both = scheduler.sequential(blocks, decode_s=4e-3, num_streams=2)
    pipelined = scheduler.pipelined(blocks, decode_s=4e-3)
    for schedule in (one_by_one, both, pipelined):
        schedule.check()

    def ms(seconds, places):
        return round(float(seconds) * 1e3, places)

    assert ms(pipelined.transfer.arrive_s[0], 4) == 0.0419
    assert ms(one_by_one.ttft_s, 2) == 6.68
    assert ms(one_by_one.exposed_transfer_s, 2) == 2.68
    assert ms(both.ttft_s, 3) == 5.342
    assert ms(both.exposed_transfer_s, 3) == 1.342
    assert ms(pipelined.ttft_s, 2) == 4.04
    assert ms(pipelined.makespan_s, 2) == 256.04
    assert ms(pipelined.overlap_gain_s(one_by_one), 2) == 2.64
    assert ms(pipelined.exposed_transfer_s, 3) == 0.042


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.pipelined([], decode_s=1.0), r"block_bytes must have one item or more: got shape \(0,\)"),
        (lambda s: s.sequential([], decode_s=1.0), "block_bytes must have one item or more"),
        (lambda s: s.layered([], decode_s=1.0), "layer_bytes must have one item or more"),
        (lambda s: s.chunked([], prefill_s=1.0, decode_s=1.0), "chunk_bytes must have one item or more"),
        (lambda s: s.pipelined(1.0, decode_s=1.0), r"block_bytes must have one item or more: got shape \(\)"),
        (lambda s: s.pipelined([1.0, math.nan], decode_s=1.0), "block_bytes must be finite"),
        (lambda s: s.pipelined([1.0, 1.0], decode_s=[1.0]), "one step for each of 2 blocks: got 1"),
        (lambda s: s.pipelined([1.0], decode_s=-1.0), "decode_s must be 0 or more: got -1.0"),
        (lambda s: s.layered([1.0], decode_s=[]), "decode_s must have one step or more"),
        (lambda s: s.layered([1.0], decode_s=1.0, group_layers=0), "group_layers must be 1 or more: got 0"),
        (
            lambda s: s.chunked([1.0, 1.0], prefill_s=[1.0] * 3, decode_s=1.0),
            "chunk_bytes and prefill_s must broadcast",
        ),
        (lambda s: s.chunked([1.0], prefill_s=[1.0, 1.0], decode_s=1.0), "one item for each of 1 pieces: got shape"),
        (lambda s: s.sequential([1.0], decode_s=1.0, num_streams=0), "num_streams must be 1 or more: got 0"),
        (lambda s: s.sequential([1.0], decode_s=1.0, num_streams=3), "num_streams must be 2 or fewer: got 3"),
        (
            lambda s: s.pipelined(np.ones((3, 1)), decode_s=np.ones((2, 1))),
            "engine, overlap_efficiency, block_bytes, prefill_s and decode_s must broadcast",
        ),
        (lambda s: s.pipelined(np.ones((3, 1)), prefill_s=np.ones((2, 1)), decode_s=1.0), "must broadcast"),
    ],
)
def test_a_schedule_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call(PDScheduler(TransferEngine(1.0, num_streams=2)))


@pytest.mark.parametrize(
    ("engine", "efficiency", "message"),
    [
        (TransferEngine(1.0), 1.5, "overlap_efficiency must be 1 or less: got 1.5"),
        (TransferEngine(1.0), -0.5, "overlap_efficiency must be 0 or more: got -0.5"),
        (TransferEngine(1.0), math.nan, "overlap_efficiency must be finite"),
        (
            TransferEngine(np.ones((3, 1))),
            [0.5, 0.5],
            r"engine and overlap_efficiency must broadcast: got \(3,\) and \(2,\)",
        ),
        (TransferEngine(1.0, fail_s=1.0), 0.5, "overlap_efficiency must be 1 where streams may fail"),
        (TransferEngine(1.0, stream_node=[0], numa_penalty=2.0), 1.0, "engine must have no NUMA penalty"),
    ],
)
def test_a_scheduler_refuses(engine, efficiency, message):
    with pytest.raises(ValueError, match=message):
        PDScheduler(engine, overlap_efficiency=efficiency)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"arrival_s": [1.0, 0.0]}, r"arrival_s must not fall, .* arrival_s\[1\] = 0.0"),
        ({"piece_offsets": [0, 2, 2]}, r"piece_offsets must rise, .* piece_offsets\[2\] = 2"),
        ({"piece_offsets": [0, 1]}, "piece_offsets must begin at 0 and end at the number of values, 2"),
        ({"piece_offsets": [0, 2]}, "piece_offsets must be of 2 requests: got 1"),
        ({"decode_s": [1.0, 1.0, 1.0]}, r"decode_s must have one item for each of 2 requests: got shape \(3,\)"),
        ({"prefill_s": [1.0, 1.0, 1.0]}, r"prefill_s must have one item for each of 2 pieces: got shape \(3,\)"),
        ({"piece_bytes": 1.0}, "piece_bytes must have an axis of pieces"),
        ({"piece_bytes": [1.0, -1.0]}, "piece_bytes must be 0 or more"),
        ({"name": "eager"}, "name must be one of sequential, pipelined, layered, chunked: got 'eager'"),
    ],
)
def test_a_batch_refuses(arguments, message):
    well = {
        "name": "layered",
        "arrival_s": [0.0, 1.0],
        "piece_bytes": [1.0, 1.0],
        "piece_offsets": [0, 1, 2],
        "decode_s": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        schedule_batch(PDScheduler(TransferEngine(1.0)), **{**well, **arguments})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PDScheduler(5), "engine must be a TransferEngine: got 5"),
        (lambda: TransferEngine.over(5), "link must be a Link: got 5"),
        (
            lambda: schedule_batch(5, "layered", arrival_s=[], piece_bytes=[], piece_offsets=[0], decode_s=1.0),
            "scheduler must be a PDScheduler: got 5",
        ),
        (lambda: best_group(5, [1.0], decode_s=1.0), "scheduler must be a PDScheduler: got 5"),
        (
            lambda: best_chunk(5, None, num_tokens=1, kv_bytes_per_token=1.0, chunk_tokens=[1], decode_s=1.0),
            "scheduler must be a PDScheduler: got 5",
        ),
        (
            lambda: best_chunk(
                PDScheduler(TransferEngine(1.0)), 5,
                num_tokens=1, kv_bytes_per_token=1.0, chunk_tokens=[1], decode_s=1.0,
            ),
            "prefill must be a PrefillTime: got 5",
        ),
        (
            lambda: PDScheduler(TransferEngine(1.0)).pipelined([1.0], decode_s=1.0).overlap_gain_s(5),
            "baseline must be a Schedule: got 5",
        ),
    ],
)  # fmt: skip
def test_what_is_of_another_class_is_refused(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_a_group_may_be_larger_than_all_layers():
    scheduler = PDScheduler(TransferEngine(1.0))
    whole, beyond = (scheduler.layered([1.0, 2.0], decode_s=1.0, group_layers=n) for n in (2, 2**62))
    assert whole.ttft_s == beyond.ttft_s


def test_schedules_of_worlds_that_do_not_meet_have_no_gain():
    two, three = (PDScheduler(TransferEngine(np.ones((worlds, 1)))).pipelined([1.0], decode_s=1.0) for worlds in (2, 3))
    with pytest.raises(ValueError, match=r"the schedule and baseline must broadcast: got \(2,\) and \(3,\)"):
        two.overlap_gain_s(three)


def test_searches_refuse():
    scheduler = PDScheduler(TransferEngine(1.0))
    with pytest.raises(ValueError, match="group_layers must have one size or more: got none"):
        best_group(scheduler, [], decode_s=1.0)
    with pytest.raises(ValueError, match="group_layers must be 1 or more"):
        best_group(scheduler, [1.0], decode_s=1.0, group_layers=[0])
    with pytest.raises(ValueError, match="cached_tokens must be less than num_tokens, 10: got 10"):
        best_chunk(
            scheduler, PrefillTime(0.0, 1.0, 0.0),
            num_tokens=10, cached_tokens=10, kv_bytes_per_token=1.0, chunk_tokens=[1], decode_s=0.0,
        )  # fmt: skip
    with pytest.raises(ValueError, match="piece_bytes must have two pieces or more"):
        overlap_bandwidth([1.0], [1.0])
    with pytest.raises(ValueError, match=r"stream_shares must have one item for each stream: got shape \(0,\)"):
        overlap_bandwidth([1.0, 1.0], [1.0, 1.0], stream_shares=[])
    with pytest.raises(ValueError, match="piece_bytes, compute_s, overhead_s and latency_s must broadcast"):
        overlap_bandwidth(np.ones((2, 2)), [1.0, 1.0], latency_s=[1.0, 1.0, 1.0])


def test_a_schedule_over_streams_that_all_fail():
    with pytest.raises(TransferError):
        PDScheduler(TransferEngine(1.0, fail_s=1.5)).pipelined([1.0, 1.0], decode_s=1.0)


# ----------------------------------------------------------------------------------------------------------- examples


def test_one_block_has_nothing_to_overlap():
    scheduler = PDScheduler(TransferEngine(1.0))
    for name in NAMES:
        assert draw_schedule(scheduler, name, [2.0], [1.0], [3.0]).ttft_s == 6.0


def test_fast_decoding_waits_for_the_link():
    schedule = PDScheduler(TransferEngine(1.0)).pipelined(np.ones(4), decode_s=0.5)
    assert schedule.makespan_s == 4.5
    assert schedule.bubble_s == 1.5


def test_slow_decoding_hides_the_link():
    schedule = PDScheduler(TransferEngine(1.0)).pipelined(np.ones(4), decode_s=2.0)
    assert schedule.makespan_s == 9.0
    assert schedule.bubble_s == 0.0


def test_a_second_stream_halves_the_wait_for_all_blocks_and_not_for_the_first():
    one, two = (PDScheduler(TransferEngine(1.0, num_streams=n)) for n in (1, 2))
    assert one.pipelined(np.ones(4), decode_s=1.0).ttft_s == two.pipelined(np.ones(4), decode_s=1.0).ttft_s == 2.0
    assert two.sequential(np.ones(4), decode_s=1.0, num_streams=2).ttft_s == 3.0
    assert two.sequential(np.ones(4), decode_s=1.0).ttft_s == 5.0


def test_layers_are_pushed_while_the_next_is_computed():
    # computed at 1, 2, 3; moved (0.5 each) by 1.5, 2.5, 3.5; the thirds of the first step of 3 s end at 2.5, 3.5, 4.5
    schedule = PDScheduler(TransferEngine(1.0)).layered([0.5] * 3, prefill_s=1.0, decode_s=[3.0, 1.0])
    schedule.check()
    assert schedule.transfer.arrive_s.tolist() == [1.5, 2.5, 3.5]
    assert schedule.ttft_s == 4.5
    assert schedule.makespan_s == 5.5
    assert schedule.exposed_transfer_s == 0.5


def test_a_slow_link_rules_a_layered_schedule():
    schedule = PDScheduler(TransferEngine(1.0)).layered([2.0] * 3, prefill_s=1.0, decode_s=0.0)
    assert schedule.ttft_s == 1.0 + 3 * 2.0


def test_groups_of_layers_pay_fewer_fragments_and_hide_less():
    scheduler = PDScheduler(TransferEngine(1.0, alpha_s=1.0))
    by_layer, by_pair = (scheduler.layered([1.0] * 5, prefill_s=1.0, decode_s=0.0, group_layers=g) for g in (1, 2))
    assert by_layer.ttft_s == 1.0 + 5 * 2.0
    assert by_pair.transfer.arrive_s.tolist() == [5.0, 8.0, 10.0]


def test_chunks_grow_with_what_is_before_them():
    seconds = PrefillTime(0.0, 0.0, 1.0).chunk_seconds(6, 2)
    assert seconds.tolist() == [4.0, 12.0, 20.0]
    schedule = PDScheduler(TransferEngine(1.0)).chunked([8.0] * 3, prefill_s=seconds, decode_s=1.0)
    schedule.check()
    assert schedule.ttft_s == 36.0 + 8.0 + 1.0


def test_half_of_the_overlap():
    ideal, half, none = (
        PDScheduler(TransferEngine(1.0), overlap_efficiency=eta).layered(np.ones(4), prefill_s=2.0, decode_s=1.0)
        for eta in (1.0, 0.5, 0.0)
    )
    assert none.ttft_s == 4 * 2.0 + 4 * 1.0 + 1.0
    assert half.ttft_s == (ideal.ttft_s + none.ttft_s) / 2


def test_a_failing_stream_delays_the_schedule():
    healthy = PDScheduler(TransferEngine([1.0, 1.0])).pipelined(np.ones(6), decode_s=0.1)
    failing = PDScheduler(TransferEngine([1.0, 1.0], fail_s=[math.inf, 1.5])).pipelined(np.ones(6), decode_s=0.1)
    failing.check()
    assert failing.transfer.retried.any()
    assert failing.makespan_s > healthy.makespan_s


def test_a_thousand_bandwidths_in_one_call():
    bandwidth = np.linspace(1e9, 100e9, 1000)[:, None]
    schedule = PDScheduler(TransferEngine(bandwidth)).pipelined(np.full(64, 2**20), decode_s=4e-3)
    assert schedule.ttft_s.shape == (1000,)
    assert (np.diff(schedule.ttft_s) < 0.0).all()
    assert schedule.ttft_s[0] == pytest.approx(4e-3 + 2**20 / 1e9)


def test_requests_queue_for_the_link():
    # both are prefilled by 1 and 2; the link has 4 s of each, so the second waits 3 s for it
    batch = schedule_batch(
        PDScheduler(TransferEngine(1.0)), "chunked",
        arrival_s=[0.0, 0.5], piece_bytes=[4.0, 4.0], piece_offsets=[0, 1, 2], prefill_s=1.0, decode_s=0.25,
    )  # fmt: skip
    batch.check()
    assert batch.prefilled_s.tolist() == [1.0, 2.0]
    assert batch.arrived_s.tolist() == [5.0, 9.0]
    assert batch.ttft_s.tolist() == [5.25, 8.75]
    assert batch.exposed_transfer_s.tolist() == [4.0, 7.0]
    assert batch.makespan_s == 9.25


@pytest.mark.parametrize("name", NAMES)
def test_no_requests(name):
    batch = schedule_batch(
        PDScheduler(TransferEngine([1.0, 1.0]), overlap_efficiency=0.5), name,
        arrival_s=[], piece_bytes=[], piece_offsets=[0], decode_s=1.0,
    )  # fmt: skip
    batch.check()
    assert batch.ttft_s.shape == (0,)
    assert batch.makespan_s == 0.0


def test_the_best_group_trades_fragments_for_overlap():
    scheduler = PDScheduler(TransferEngine(1.0, alpha_s=[[1.0], [0.0]]))
    found = best_group(scheduler, np.ones(6), prefill_s=1.0, decode_s=0.0)
    assert found.size.tolist() == [1, 2, 3, 4, 5, 6]
    assert found.best_size.tolist() == [2, 1]
    assert found.best_ttft_s.tolist() == found.ttft_s.min(axis=-1).tolist()


# --------------------------------------------------------------------------------------------------------- properties


@given(engines(), requests(), st.sampled_from(NAMES), st.integers(1, 4))
def test_schedules_agree_with_the_twin(figures, request_, name, group):
    size, prefill, steps = request_
    count = len(figures["fail_s"])
    schedule = draw_schedule(
        PDScheduler(TransferEngine(**figures)), name, size, prefill, steps, num_streams=count, group=group
    )
    schedule.check()
    expected = twin.schedule(name, size.tolist(), prefill.tolist(), steps.tolist(), figures, group=group)
    np.testing.assert_allclose((schedule.ttft_s, schedule.makespan_s), expected, **CLOSE)


@settings(max_examples=50)
@given(engines(), requests(), st.sampled_from(NAMES[1:]))
def test_no_overlap_is_serial_and_full_overlap_is_ideal(figures, request_, name):
    size, prefill, steps = request_
    engine = TransferEngine(**figures)
    ideal = draw_schedule(PDScheduler(engine), name, size, prefill, steps)
    mixed = draw_schedule(PDScheduler(engine, overlap_efficiency=[1.0, 0.0, 0.25]), name, size, prefill, steps)
    mixed.check()
    np.testing.assert_array_equal(mixed.ttft_s[0], ideal.ttft_s)
    streams = ideal.transfer.timeline.resource
    moved = engine.transfer(size, ready_s=prefill.sum(), streams=streams).arrive_s.max()
    np.testing.assert_allclose(mixed.makespan_s[1], moved + steps.sum(), **CLOSE)
    first = steps[0]
    np.testing.assert_allclose(mixed.ttft_s[1], moved + first, **CLOSE)
    np.testing.assert_allclose(mixed.ttft_s[2], 0.75 * mixed.ttft_s[1] + 0.25 * mixed.ttft_s[0], **CLOSE)


@given(st.integers(1, 9), st.integers(1, 9), st.floats(0.0, 1.0))
def test_many_small_pieces_follow_the_formula_of_overlap(load, compute, efficiency):
    """T = compute + load - eta min(compute, load), up to one piece."""
    scheduler = PDScheduler(TransferEngine(1.0), overlap_efficiency=efficiency)
    schedule = scheduler.layered(np.full(1000, load / 1000), prefill_s=compute / 1000, decode_s=0.0)
    formula = float(overlapped_seconds(compute, load, overlap_efficiency=efficiency))
    assert abs(float(schedule.ttft_s) - formula) <= max(load, compute) / 1000 + 1e-9


@settings(max_examples=50)
@given(engines(), requests())
def test_pipelined_is_never_later_than_sequential(figures, request_):
    """Where a piece pays no more per byte than the whole: the same pieces over the same streams."""
    figures["assignment"] = "round_robin"
    size, prefill, steps = request_
    engine = TransferEngine(**figures)
    sequential = PDScheduler(engine).sequential(size, prefill_s=prefill, decode_s=steps, num_streams=engine.num_streams)
    pipelined = PDScheduler(engine).pipelined(size, prefill_s=prefill, decode_s=steps)
    for name in ("ttft_s", "makespan_s", "exposed_transfer_s"):
        if name != "exposed_transfer_s" or not prefill.any():
            assert getattr(pipelined, name) <= getattr(sequential, name) + 1e-9
    assert pipelined.overlap_gain_s(sequential) >= -1e-9


@settings(max_examples=50)
@given(engines(), requests(), st.sampled_from(NAMES))
def test_the_makespan_lies_between_the_busiest_resource_and_all_the_work(figures, request_, name):
    size, prefill, steps = request_
    engine = TransferEngine(**figures)
    schedule = draw_schedule(PDScheduler(engine), name, size, prefill, steps, num_streams=engine.num_streams)
    busiest = max(part.busy_s.max() for part in (schedule.prefill, schedule.transfer.timeline, schedule.decode))
    latency = max(figures["latency_s"])
    total = prefill.sum() + schedule.transfer.timeline.busy_s.sum() + latency + steps.sum()
    assert busiest <= schedule.makespan_s + 1e-9
    assert schedule.makespan_s <= total + 1e-9
    assert schedule.exposed_transfer_s >= -1e-9
    assert schedule.bubble_s >= 0.0


@settings(max_examples=50)
@given(requests(), st.sampled_from(NAMES), st.sampled_from([2.0, 16.0]))
def test_scaling_bytes_and_bandwidth_together_changes_nothing(request_, name, scale):
    size, prefill, steps = request_
    one = draw_schedule(PDScheduler(TransferEngine([3.0, 5.0])), name, size, prefill, steps)
    other = draw_schedule(PDScheduler(TransferEngine([3.0 * scale, 5.0 * scale])), name, size * scale, prefill, steps)
    assert one.ttft_s == other.ttft_s
    assert one.makespan_s == other.makespan_s


@settings(max_examples=50)
@given(engines(num_streams=2), requests(), st.sampled_from(NAMES), st.lists(st.integers(1, 4), min_size=2, max_size=3))
def test_worlds_never_meet(figures, request_, name, scales):
    size, prefill, steps = request_
    bandwidth = np.array(figures["bytes_per_second"]) * np.array(scales)[:, None]
    eta = np.linspace(0.0, 1.0, len(scales))
    together = draw_schedule(
        PDScheduler(TransferEngine(**figures | {"bytes_per_second": bandwidth}), overlap_efficiency=eta),
        name, size, prefill, steps,
    )  # fmt: skip
    together.check()
    for world in range(len(scales)):
        engine = TransferEngine(**figures | {"bytes_per_second": bandwidth[world]})
        alone = draw_schedule(PDScheduler(engine, overlap_efficiency=eta[world]), name, size, prefill, steps)
        for column in ("ttft_s", "makespan_s", "exposed_transfer_s", "bubble_s"):
            np.testing.assert_allclose(getattr(together, column)[world], getattr(alone, column), **CLOSE)


@st.composite
def batches(draw):
    """Arrivals, pieces, prefill times and decode steps of requests."""
    count = draw(st.integers(0, 5))
    arrival = sorted(draw(st.lists(st.sampled_from([0.0, 1.0, 2.5, 7.0]), min_size=count, max_size=count)))
    lengths = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    pieces = [draw(st.lists(BYTES, min_size=n, max_size=n)) for n in lengths]
    prefill = [draw(st.lists(SECONDS, min_size=n, max_size=n)) for n in lengths]
    return arrival, pieces, prefill, draw(st.lists(SECONDS, min_size=count, max_size=count))


def run_batch(scheduler, name, batch):
    arrival, pieces, prefill, step = batch
    return schedule_batch(
        scheduler,
        name,
        arrival_s=np.array(arrival),
        piece_bytes=np.array([size for row in pieces for size in row]),
        piece_offsets=np.cumsum([0] + [len(row) for row in pieces]),
        prefill_s=np.array([time for row in prefill for time in row]),
        decode_s=np.array(step),
    )


@given(engines(), batches(), st.sampled_from(NAMES))
def test_batches_agree_with_the_twin(figures, batch, name):
    result = run_batch(PDScheduler(TransferEngine(**figures)), name, batch)
    result.check()
    expected = twin.batch(name, *batch, figures)
    columns = np.array(expected).reshape(-1, 4).T
    for column, values in zip(("prefilled_s", "arrived_s", "first_token_s", "finish_s"), columns, strict=True):
        np.testing.assert_allclose(getattr(result, column), values, **CLOSE)


@settings(max_examples=50)
@given(engines(), requests(), st.sampled_from(NAMES))
def test_a_batch_of_one_is_the_schedule_of_one(figures, request_, name):
    size, prefill, steps = request_
    engine = TransferEngine(**figures)
    scheduler = PDScheduler(engine, overlap_efficiency=0.5)
    same = np.full(len(steps), steps[0]) if name in ("sequential", "pipelined") else steps[:1]
    alone = draw_schedule(scheduler, name, size, prefill, same, num_streams=engine.num_streams)
    batch = run_batch(scheduler, name, ([0.0], [size.tolist()], [prefill.tolist()], steps[:1].tolist()))
    batch.check()
    np.testing.assert_allclose(batch.ttft_s[0], alone.ttft_s, **CLOSE)
    np.testing.assert_allclose(batch.finish_s[0], alone.makespan_s, **CLOSE)
    np.testing.assert_allclose(batch.exposed_transfer_s[0], alone.exposed_transfer_s, **CLOSE)


@settings(max_examples=50)
@given(engines(num_streams=1), batches(), st.sampled_from(NAMES), st.integers(0, 5))
def test_later_requests_change_nothing_for_earlier_ones(figures, batch, name, cut):
    scheduler = PDScheduler(TransferEngine(**figures))
    whole = run_batch(scheduler, name, batch)
    first = run_batch(scheduler, name, tuple(column[:cut] for column in batch))
    np.testing.assert_allclose(whole.first_token_s[:cut], first.first_token_s, **CLOSE)
    np.testing.assert_allclose(whole.finish_s[:cut], first.finish_s, **CLOSE)


POSITIVE = st.integers(1, 20).map(float)


@given(
    st.lists(st.tuples(st.integers(0, 20).map(float), POSITIVE), min_size=2, max_size=8),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.13]),
    st.sampled_from([0.0, 0.37]),
)
@example([(5.0, 5.0)] * 4, [1, 1, 1, 1], 0.0, 0.0)  # each stream has the time of one layer, not of four
@example([(5.0, 5.0)] * 4, [1], 0.0, 0.37)
def test_the_overlap_bandwidth_is_the_smallest_without_stall(pieces, shares, overhead, latency):
    size, compute = np.array(pieces).T
    needed = float(overlap_bandwidth(size, compute, overhead_s=overhead, latency_s=latency, stream_shares=shares))
    expected = twin.overlap_bandwidth(
        size.tolist(), compute.tolist(), overhead=overhead, latency=latency, shares=shares, low=1e-3
    )
    assert needed == pytest.approx(expected, rel=1e-6, abs=1.1e-3)
    if not 0.0 < needed < math.inf:
        return
    engine = TransferEngine(needed * np.array(shares) / sum(shares), latency_s=latency, alpha_s=overhead)
    schedule = PDScheduler(engine).layered(size, prefill_s=compute, decode_s=0.0)
    assert schedule.transfer.arrive_s[:-1].max() <= schedule.prefill.finish_s[-1] * (1 + 1e-9)
    last = engine.transfer(size[-1:], streams=[(len(size) - 1) % len(shares)])
    assert schedule.exposed_transfer_s == pytest.approx(last.arrive_s[0])


@given(st.lists(st.lists(POSITIVE, min_size=3, max_size=3), min_size=1, max_size=3), st.integers(1, 3))
def test_bandwidths_of_worlds_that_never_meet(sizes, num_streams):
    compute, latency, shares = [1.0, 2.0, 3.0], np.arange(len(sizes)) / 4, np.ones(num_streams)
    together = overlap_bandwidth(sizes, compute, latency_s=latency, stream_shares=shares)
    alone = [
        overlap_bandwidth(size, compute, latency_s=one, stream_shares=shares).tolist()
        for size, one in zip(sizes, latency, strict=True)
    ]
    assert together.tolist() == alone


def test_overheads_can_be_too_much_for_any_bandwidth():
    assert overlap_bandwidth([1.0, 1.0], [2.0, 2.0], overhead_s=1.0).tolist() == 1.0
    assert overlap_bandwidth([1.0, 1.0], [2.0, 2.0], overhead_s=2.0).tolist() == math.inf
    assert overlap_bandwidth([1.0, 1.0], [2.0, 2.0], latency_s=2.0).tolist() == math.inf
    assert overlap_bandwidth([1e60, 1.0], [0.0, 1e-300]).tolist() == math.inf
    assert overlap_bandwidth([0.0, 1.0], [2.0, 2.0]).tolist() == 0.0
    assert overlap_bandwidth([0.0, 1.0], [2.0, 2.0], overhead_s=3.0, latency_s=3.0).tolist() == 0.0  # nothing to move


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 30))
def test_chunks_together_cost_the_whole_and_their_starts(num_tokens, chunk, cached):
    model = PrefillTime(0.5, 0.25, 0.125)
    cached = min(cached, num_tokens - 1)
    seconds = model.chunk_seconds(num_tokens, chunk, cached_tokens=cached)
    assert len(seconds) == -(-(num_tokens - cached) // chunk)
    whole = float(model.seconds(num_tokens, cached_tokens=cached))
    assert seconds.sum() == pytest.approx(whole + 0.5 * (len(seconds) - 1))


# ---------------------------------------------------------------------------------------------------------- published


@pytest.mark.parametrize("case", published_cases("overlap_bandwidth"))
def test_published_overlap_bandwidth(case):
    """B = G x 2 d s / (gqa (a p d + b d^2)): KV bytes of a layer by the time of its a d p^2 + b d^2 p operations."""
    given_ = case["inputs"]
    d, prompt = given_["d"], given_["prompt"]
    flops = PrefillFlops(per_token=given_["b"] * d * d, per_pair=given_["a"] * d)
    compute = [float(flops.time(rate).seconds(prompt)) for rate in given_["G_flops"]]
    layer_bytes = prompt * 2 * d * given_["s"] / given_["gqa"]
    needed = overlap_bandwidth(np.full(2, layer_bytes), np.array(compute)[:, None] * np.ones(2)) / 1e9
    assert needed.round().tolist() == case["published"]["min_GBps"]
    if case.get("check"):
        np.testing.assert_allclose(needed, case["check"]["min_GBps"], rtol=1e-9)


@pytest.mark.parametrize("case", published_cases("overlap_bandwidth_per_layer"))
def test_published_overlap_bandwidth_per_layer(case):
    d, kv, ff = (
        int(case["inputs"].get(name) or re.search(rf"\b{name} (\d+)", case["definition"])[1])
        for name in ("d", "kv", "ff")
    )
    peak, share = (float(figure) for figure in re.search(r"([\d.]+) TF at ([\d.]+) %", case["inputs"]["gpu"]).groups())
    tokens, published = np.array(case["inputs"]["n"]), case["published"]
    layer = PrefillFlops.of_shape(num_layers=1, d_model=d, kv_width=kv, ff_width=ff)
    compute = layer.time(peak * 1e12 * share / 100).seconds(tokens)
    layer_bytes = 2.0 * tokens * kv * 2
    needed = overlap_bandwidth(layer_bytes[:, None] * np.ones(2), compute[:, None] * np.ones(2))

    def as_printed(values, figures):
        places = [len(str(figure).partition(".")[2]) for figure in figures]
        return [round(float(value), place) for value, place in zip(values, places, strict=True)]

    assert as_printed(layer_bytes / 2**20, published["kv_layer_MB"]) == published["kv_layer_MB"]
    assert as_printed(layer.flops(tokens) / 1e12, published["flops_T"]) == published["flops_T"]
    assert as_printed(compute * 1e3, published["compute_ms"]) == published["compute_ms"]
    assert as_printed(needed / 1e9, published["min_GBps"]) == published["min_GBps"]
