"""Timelines: streams, pipelines and queues against their event-by-event twins."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarray.errors import InvariantError
from kvarray.timeline import (
    assigned_timeline,
    fcfs_queue,
    least_loaded_timeline,
    max_min_queue,
    max_min_rates,
    pipeline_timeline,
    processor_sharing_queue,
    round_robin_timeline,
    serial_timeline,
)
from kvarray.timeline.sharing import share_evenly
from tests.reference import timeline as twin

TIMES = st.floats(0.0, 100.0) | st.integers(0, 4).map(float)
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@st.composite
def jobs(draw, *, most=12, in_order=False):
    """Work and ready times of the jobs of one world."""
    count = draw(st.integers(0, most))
    work = draw(st.lists(TIMES, min_size=count, max_size=count))
    ready = draw(st.lists(TIMES, min_size=count, max_size=count))
    return np.array(work), np.array(sorted(ready) if in_order else ready)


@st.composite
def worlds(draw, *, in_order=False):
    """Work of shape (2, 1, N) and ready times of shape (3, N)."""
    count = draw(st.integers(0, 6))
    columns = [draw(st.lists(TIMES, min_size=count, max_size=count)) for _ in range(5)]
    ready = np.array(columns[2:]).reshape(3, count)
    return np.array(columns[:2]).reshape(2, 1, count), np.sort(ready, axis=-1) if in_order else ready


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: serial_timeline([1.0, -1.0]), r"work_s must be 0 or more: work_s\[1\] = -1.0"),
        (lambda: serial_timeline([1.0, math.nan]), r"work_s must be finite: work_s\[1\] = nan"),
        (lambda: serial_timeline([1.0, 1e300]), r"work_s must be 1e\+60 or less: work_s\[1\] = 1e\+300"),
        (lambda: serial_timeline([1.0], ready_s=-1e300), r"ready_s must be 1e\+60 or less"),
        (lambda: max_min_rates([[0]], [1e-300]), "bytes_per_second must be 1e-60 or more"),
        (lambda: serial_timeline([1.0], ready_s=[math.inf]), "ready_s must be finite"),
        (
            lambda: serial_timeline([1.0], free_s=math.inf),
            "free_s must not be infinite, since jobs would never start",
        ),
        (lambda: serial_timeline([1.0], free_s=math.nan), "free_s must not be NaN"),
        (lambda: serial_timeline(1.0), "work_s must have an axis of jobs: got one number"),
        (lambda: serial_timeline([1.0, 2.0], ready_s=[1.0, 2.0, 3.0]), r"must broadcast: got \(2,\) and \(3,\)"),
        (lambda: serial_timeline(np.ones((2, 3)), ready_s=np.ones((4, 3))), r"must broadcast: got \(2,\) and \(4,\)"),
        (lambda: round_robin_timeline([1.0], 0), "num_streams must be 1 or more: got 0"),
        (lambda: round_robin_timeline([1.0], 2, free_s=[0.0, 0.0, 0.0]), "one item for each of 2 streams"),
        (lambda: assigned_timeline([1.0], [2], 2), r"streams must be less than 2: streams\[0\] = 2"),
        (lambda: assigned_timeline([1.0, 2.0], [0, 0, 0], 1), "work_s, streams and ready_s must broadcast"),
        (lambda: least_loaded_timeline([1.0]), r"one of 1 stream or more: got shape \(1,\)"),
        (lambda: least_loaded_timeline(np.ones((3, 0))), r"one of 1 stream or more: got shape \(3, 0\)"),
        (lambda: pipeline_timeline([1.0]), r"an axis of 1 stage or more and one of jobs: got shape \(1,\)"),
        (lambda: pipeline_timeline(np.ones((0, 3))), r"an axis of 1 stage or more"),
        (lambda: fcfs_queue([1.0, 0.5], [1.0, 1.0]), r"arrival_s must not fall, since .* arrival_s\[1\] = 0.5"),
        (lambda: fcfs_queue([1.0], [1.0], num_servers=0), "num_servers must be 1 or more: got 0"),
        (lambda: processor_sharing_queue([1.0, 0.5], [1.0, 1.0]), "arrival_s must not fall"),
        (lambda: processor_sharing_queue(1.0, [1.0]), "arrival_s must have an axis of jobs"),
        (lambda: processor_sharing_queue([1.0, 2.0], [1.0, 1.0, 1.0]), "arrival_s and work_s must broadcast"),
        (lambda: fcfs_queue([1.0], 1.0, num_servers=2), "work_s must have an axis of jobs: got one number"),
        (lambda: fcfs_queue([1.0], [1.0], num_servers=2**40), "num_servers must be less than 65537: got 1099511627776"),
        (lambda: round_robin_timeline([1.0], 2**40), "num_streams must be less than 65537"),
        (lambda: assigned_timeline([1.0], [0], 2**40), "num_streams must be less than 65537"),
        (lambda: max_min_rates([[0]], [1.0], active=[True, False]), "active must have one item for each of 1 flows"),
        (lambda: max_min_rates([[0]], [0.0]), "bytes_per_second must be more than 0"),
        (lambda: max_min_rates([[1]], [1.0]), r"endpoints must be less than 1: endpoints\[0\] = 1"),
        (lambda: max_min_rates([0], [1.0]), "endpoints must be of shape"),
        (lambda: max_min_rates([[0]], 1.0), "bytes_per_second must have one item for each endpoint"),
        (
            lambda: max_min_rates([[0], [0]], [1.0], active=[True] * 3),
            r"active must have one item for each of 2 flows: got shape \(3,\)",
        ),
        (
            lambda: max_min_queue([0.0], [1.0, 2.0, 3.0], endpoints=[[0], [0]], bytes_per_second=[1.0]),
            r"num_bytes must have one item for each of 2 flows: got shape \(3,\)",
        ),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_refuses_what_is_no_number():
    with pytest.raises(TypeError, match="work_s must be real numbers"):
        serial_timeline(["1"])
    with pytest.raises(TypeError, match="active must be booleans"):
        max_min_rates([[0]], [1.0], active=[1])


@pytest.mark.parametrize(
    "timeline",
    [
        serial_timeline([]),
        round_robin_timeline([], 2),
        least_loaded_timeline(np.ones((0, 2))),
        pipeline_timeline(np.ones((2, 0))),
        fcfs_queue([], []),
        processor_sharing_queue([], []),
        max_min_queue([], [], endpoints=np.zeros((0, 2), dtype=int), bytes_per_second=[1.0]),
    ],
    ids=lambda timeline: f"shape={timeline.finish_s.shape}",
)
def test_no_jobs_take_no_time(timeline):
    timeline.check()
    assert not np.any(timeline.makespan_s)
    assert not np.any(timeline.busy_s)
    assert not np.any(timeline.bubble_s)


# ----------------------------------------------------------------------------------------------------------- examples


def test_a_late_job_holds_up_those_behind_it():
    timeline = serial_timeline([1.0, 1.0, 1.0], ready_s=[0.0, 5.0, 0.0])
    assert timeline.start_s.tolist() == [0.0, 5.0, 6.0]
    assert timeline.wait_s.tolist() == [0.0, 0.0, 6.0]
    assert timeline.bubble_s.tolist() == [4.0]


def test_streams_of_different_speed():
    # stream 0 takes 1 s a job, stream 1 takes 3 s: the third job is better off behind two on the fast one
    timeline = least_loaded_timeline([[1.0, 3.0]] * 5)
    assert timeline.resource.tolist() == [0, 0, 0, 1, 0]
    assert timeline.busy_s.tolist() == [4.0, 3.0]


def test_a_pipeline_runs_at_the_pace_of_its_slowest_stage():
    timeline = pipeline_timeline(np.array([[1.0], [3.0], [2.0]]) * np.ones(10))
    assert timeline.finish_s[-1, -1] == 1.0 + 10 * 3.0 + 2.0


def test_three_jobs_share():
    # alone until 1, halves until 2, thirds until the last to come has had its second at 5, then halves until 6
    assert processor_sharing_queue([0.0, 1.0, 2.0], [3.0, 3.0, 1.0]).finish_s.tolist() == [6.0, 7.0, 5.0]


def test_a_check_finds_two_jobs_at_once():
    timeline = serial_timeline([1.0, 1.0])
    with pytest.raises(InvariantError, match="L3: 1 jobs share a resource"):
        replace(timeline, start_s=timeline.start_s * 0, finish_s=timeline.finish_s * 0 + 1.0).check()
    with pytest.raises(InvariantError, match="L2: 2 jobs take more"):
        replace(timeline, work_s=timeline.work_s / 2).check()
    with pytest.raises(InvariantError, match="L3: 1 jobs get more"):
        replace(processor_sharing_queue([0.0, 0.0], [2.0, 2.0]), finish_s=np.array([2.0, 3.0])).check()


# --------------------------------------------------------------------------------------------------------- properties


@given(jobs(), st.none() | TIMES)
def test_serial_is_lindleys_recursion(columns, free):
    work, ready = columns
    free = -math.inf if free is None else free
    timeline = serial_timeline(work, ready_s=ready, free_s=free)
    timeline.check()
    np.testing.assert_allclose(timeline.finish_s, twin.serial(work, ready, free), **CLOSE)


@given(jobs(in_order=True))
def test_a_queue_is_lindleys_recursion(columns):
    work, arrival = columns
    np.testing.assert_allclose(fcfs_queue(arrival, work).finish_s, twin.serial(work, arrival), **CLOSE)


@given(jobs(), st.integers(0, 12))
def test_serial_is_sequential(columns, cut):
    work, ready = columns
    whole = serial_timeline(work, ready_s=ready).finish_s
    first = serial_timeline(work[:cut], ready_s=ready[:cut]).finish_s
    rest = serial_timeline(work[cut:], ready_s=ready[cut:], free_s=first[-1] if len(first) else -math.inf).finish_s
    np.testing.assert_allclose(whole, np.concatenate((first, rest)), **CLOSE)


@given(jobs(), st.lists(TIMES, min_size=1, max_size=4))
def test_round_robin_agrees_with_the_twin(columns, free):
    work, ready = columns
    timeline = round_robin_timeline(work, len(free), ready_s=ready, free_s=free)
    timeline.check()
    np.testing.assert_allclose(timeline.finish_s, twin.round_robin(work, ready, len(free), free), **CLOSE)


@given(jobs(), st.integers(1, 3), st.data())
def test_assigned_streams_agree_with_the_twin(columns, num_streams, data):
    work, ready = columns
    stream = st.integers(0, num_streams - 1)
    streams = data.draw(st.lists(stream, min_size=len(work), max_size=len(work)))
    timeline = assigned_timeline(work, np.array(streams, dtype=int), num_streams, ready_s=ready)
    timeline.check()
    np.testing.assert_allclose(timeline.finish_s, twin.assigned(work, streams, ready, num_streams), **CLOSE)


@given(jobs(), st.lists(TIMES, min_size=1, max_size=4), st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_least_loaded_agrees_with_the_twin(columns, free, speeds):
    work, ready = columns
    each = work[:, None] / np.array(speeds[: len(free)])
    timeline = least_loaded_timeline(each, ready_s=ready, free_s=free)
    timeline.check()
    finish, streams = twin.least_loaded(each.tolist(), ready, free)
    np.testing.assert_allclose(timeline.finish_s, finish, **CLOSE)
    assert timeline.resource.tolist() == streams


@given(jobs(in_order=True), st.integers(1, 4))
def test_several_servers_agree_with_the_twin(columns, num_servers):
    work, arrival = columns
    timeline = fcfs_queue(arrival, work, num_servers=num_servers)
    timeline.check()
    finish, _ = twin.least_loaded([[job] * num_servers for job in work], arrival)
    np.testing.assert_allclose(timeline.finish_s, finish, **CLOSE)


@given(st.integers(1, 4), st.integers(0, 6), st.data())
def test_a_pipeline_agrees_with_the_twin(num_stages, num_jobs, data):
    draw = lambda: data.draw(st.lists(TIMES, min_size=num_jobs, max_size=num_jobs))  # noqa: E731
    work, ready = [draw() for _ in range(num_stages)], draw()
    timeline = pipeline_timeline(np.array(work).reshape(num_stages, num_jobs), ready_s=ready)
    timeline.check()
    np.testing.assert_allclose(timeline.finish_s, twin.pipeline(work, ready), **CLOSE)


@given(jobs(in_order=True))
def test_processor_sharing_agrees_with_the_twin(columns):
    work, arrival = columns
    timeline = processor_sharing_queue(arrival, work)
    timeline.check()
    expected = twin.processor_sharing(arrival, work)
    np.testing.assert_allclose(timeline.finish_s, expected, **CLOSE)
    np.testing.assert_allclose(share_evenly(arrival[None], work[None])[0], expected, **CLOSE)


def test_many_worlds_share_as_each_does_alone():
    rng = np.random.default_rng(1)
    arrival, work = np.sort(rng.uniform(0.0, 30.0, (40, 25)), axis=1), rng.exponential(1.0, (40, 25))
    timeline = processor_sharing_queue(arrival, work)
    timeline.check()
    for world in range(40):
        alone = processor_sharing_queue(arrival[world], work[world])
        np.testing.assert_allclose(timeline.finish_s[world], alone.finish_s, **CLOSE)


@st.composite
def networks(draw):
    """Flows over pairs of up to four endpoints."""
    work, arrival = draw(jobs(most=8, in_order=True))
    capacity = draw(st.lists(st.integers(1, 8).map(float), min_size=1, max_size=4))
    ends = st.integers(0, len(capacity) - 1)
    endpoints = draw(st.lists(st.tuples(ends, ends), min_size=len(work), max_size=len(work)))
    return arrival, work, np.array(endpoints, dtype=int).reshape(-1, 2), capacity


@given(networks())
def test_max_min_flows_agree_with_the_twin(network):
    arrival, size, endpoints, capacity = network
    timeline = max_min_queue(arrival, size, endpoints=endpoints, bytes_per_second=capacity)
    timeline.check()
    expected = twin.max_min_queue(arrival.tolist(), size.tolist(), [set(pair) for pair in endpoints.tolist()], capacity)
    np.testing.assert_allclose(timeline.finish_s, expected, rtol=1e-7, atol=1e-7)


@given(networks(), st.data())
def test_max_min_rates_fill_a_bottleneck_of_every_flow(network, data):
    _, _, endpoints, capacity = network
    active = np.array(data.draw(st.lists(st.booleans(), min_size=len(endpoints), max_size=len(endpoints))), dtype=bool)
    rates = max_min_rates(endpoints, capacity, active=active)
    flows = {flow: set(endpoints[flow].tolist()) for flow in np.flatnonzero(active).tolist()}
    expected = twin.max_min_rates(flows, capacity)
    np.testing.assert_allclose(rates, [expected.get(flow, 0.0) for flow in range(len(endpoints))], **CLOSE)
    for flow, ends in flows.items():  # at a full endpoint nobody has more than a flow held up there
        assert any(
            math.isclose(sum(rates[other] for other in flows if end in flows[other]), capacity[end], rel_tol=1e-9)
            and all(rates[other] <= rates[flow] * (1 + 1e-9) for other in flows if end in flows[other])
            for end in ends
        )


@settings(max_examples=50)
@given(worlds(in_order=True))
def test_worlds_never_meet(columns):
    work, ready = columns  # [2, 1, N], [3, N]
    count = work.shape[-1]
    endpoints, capacity = np.zeros((count, 1), dtype=int), np.ones((1, 3, 1))
    each = work[..., None] * np.array([1.0, 2.0])
    together = [
        serial_timeline(work, ready_s=ready),
        round_robin_timeline(work, 2, ready_s=ready),
        least_loaded_timeline(each, ready_s=ready),
        fcfs_queue(ready, work),
        processor_sharing_queue(ready, work),
        max_min_queue(ready, work, endpoints=endpoints, bytes_per_second=capacity),
    ]
    for timeline in together:
        timeline.check()
        assert timeline.finish_s.shape == (2, 3, count)
        assert timeline.makespan_s.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        alone = [
            serial_timeline(work[i, 0], ready_s=ready[j]),
            round_robin_timeline(work[i, 0], 2, ready_s=ready[j]),
            least_loaded_timeline(each[i, 0], ready_s=ready[j]),
            fcfs_queue(ready[j], work[i, 0]),
            processor_sharing_queue(ready[j], work[i, 0]),
            max_min_queue(ready[j], work[i, 0], endpoints=endpoints, bytes_per_second=[1.0]),
        ]
        for one, all_ in zip(alone, together, strict=True):
            np.testing.assert_allclose(all_.finish_s[i, j], one.finish_s, **CLOSE)


@given(jobs(), st.integers(1, 3))
def test_the_makespan_lies_between_the_busiest_stream_and_all_the_work(columns, num_streams):
    work, _ = columns
    for timeline in (
        round_robin_timeline(work, num_streams),
        least_loaded_timeline(np.repeat(work[:, None], num_streams, axis=1)),
        processor_sharing_queue(np.zeros(len(work)), work),
    ):
        assert timeline.busy_s.max() <= timeline.makespan_s * (1 + 1e-9) + 1e-9
        assert timeline.makespan_s <= work.sum() * (1 + 1e-9) + 1e-9


@given(jobs(in_order=True))
def test_sharing_ends_with_first_come_first_served(columns):
    """No discipline that never idles changes when all the work is done."""
    work, arrival = columns
    np.testing.assert_allclose(processor_sharing_queue(arrival, work).end_s, fcfs_queue(arrival, work).end_s, **CLOSE)
