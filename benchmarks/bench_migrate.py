"""A thousand link speeds at once, a million queued transfers and a hundred thousand requests, beside plain Python."""

import math

import numpy as np
import pytest

from kvarray.migrate import PDScheduler, TransferEngine, schedule_batch
from kvarray.timeline import (
    fcfs_queue,
    least_loaded_timeline,
    max_min_queue,
    processor_sharing_queue,
)
from tests.reference import migrate as twin_migrate
from tests.reference import timeline as twin

BANDWIDTHS = np.geomspace(1e9, 400e9, 1000)
BLOCKS = np.full(1000, 2.0**20)
DECODE_S = 1e-4


def pipelined(rates):
    return PDScheduler(TransferEngine(rates[:, None], num_streams=2)).pipelined(BLOCKS, decode_s=DECODE_S)


def pipelined_by_twin(rates):
    sizes, steps, none = BLOCKS.tolist(), [DECODE_S] * len(BLOCKS), [0.0] * len(BLOCKS)
    figures = {"latency_s": [0.0] * 2, "alpha_s": [0.0] * 2, "fail_s": [math.inf] * 2, "assignment": "round_robin"}
    return [
        twin_migrate.schedule("pipelined", sizes, none, steps, figures | {"bytes_per_second": [rate] * 2})[1]
        for rate in rates.tolist()
    ]


def pipelined_by_loop(rates):
    """The least that plain Python can do for it: two recurrences, and nothing kept but the end."""
    ends = []
    for rate in rates.tolist():
        free, decoded = [0.0, 0.0], 0.0
        for i, size in enumerate(BLOCKS.tolist()):
            free[i & 1] += size / rate
            decoded = max(decoded, free[i & 1]) + DECODE_S
        ends.append(decoded)
    return ends


@pytest.mark.benchmark(group="migrate.pipelined 1000 bandwidths x 1000 blocks")
def bench_pipelined(benchmark):
    schedule = benchmark(pipelined, BANDWIDTHS)
    benchmark.extra_info["transfers"] = schedule.transfer.arrive_s.size
    np.testing.assert_allclose(schedule.makespan_s, pipelined_by_loop(BANDWIDTHS))


@pytest.mark.benchmark(group="migrate.pipelined 1000 bandwidths x 1000 blocks")
def bench_pipelined_copy(benchmark):
    """Copying the arrays of the result once: the physical limit."""
    schedule = pipelined(BANDWIDTHS)
    arrays = [
        column
        for timeline in (schedule.transfer.timeline, schedule.decode)
        for column in (timeline.start_s, timeline.finish_s)
    ]
    copies = benchmark(lambda: [array.copy() for array in arrays])
    assert sum(copy.nbytes for copy in copies) == 4 * 8 * 10**6


@pytest.mark.benchmark(group="migrate.pipelined 1000 bandwidths x 1000 blocks")
def bench_pipelined_plain_loop(benchmark):
    ends = benchmark.pedantic(pipelined_by_loop, args=(BANDWIDTHS,), rounds=2)
    np.testing.assert_allclose(ends, pipelined(BANDWIDTHS).makespan_s)


@pytest.mark.benchmark(group="migrate.pipelined 10 bandwidths x 1000 blocks")
def bench_pipelined_twin(benchmark):
    """The twin of the tests: a hundredth of the work of the others."""
    ends = benchmark.pedantic(pipelined_by_twin, args=(BANDWIDTHS[::100],), rounds=2)
    benchmark.extra_info["transfers"] = 10 * len(BLOCKS)
    np.testing.assert_allclose(ends, pipelined(BANDWIDTHS[::100]).makespan_s)


@pytest.fixture(scope="module")
def queue():
    """A million transfers that keep a link busy 90 % of the time."""
    rng = np.random.default_rng(7)
    return np.cumsum(rng.exponential(1e-3, 10**6)), rng.exponential(0.9e-3, 10**6)


@pytest.mark.benchmark(group="migrate.queue of 1000000 transfers")
def bench_queue(benchmark, queue):
    timeline = benchmark(fcfs_queue, *queue)
    np.testing.assert_allclose(timeline.finish_s[:1000], twin.serial(queue[1][:1000], queue[0][:1000]))


@pytest.mark.benchmark(group="migrate.queue of 1000000 transfers")
def bench_queue_twin(benchmark, queue):
    arrival, work = (column.tolist() for column in queue)
    finish = benchmark.pedantic(twin.serial, args=(work, arrival), rounds=2)
    np.testing.assert_allclose(finish, fcfs_queue(*queue).finish_s)


@pytest.mark.benchmark(group="migrate.layered 100000 requests x 80 layers")
def bench_layered_requests(benchmark):
    """Each request alone on its link."""
    layers = np.geomspace(1e6, 1e8, 100_000)[:, None] * np.ones(80)
    scheduler = PDScheduler(TransferEngine(25e9))
    schedule = benchmark.pedantic(
        scheduler.layered, args=(layers,), kwargs={"prefill_s": 2e-3, "decode_s": 0.02}, rounds=3
    )
    assert schedule.ttft_s.shape == (100_000,)


@pytest.mark.benchmark(group="migrate.layered 100000 requests x 80 layers")
def bench_layered_batch(benchmark):
    """All requests in one queue for a prefill worker and a link."""
    rng = np.random.default_rng(7)
    requests = {
        "arrival_s": np.cumsum(rng.exponential(0.2, 100_000)),
        "piece_bytes": np.repeat(rng.uniform(1e6, 5e7, 100_000), 80),
        "piece_offsets": np.arange(0, 8_000_001, 80),
        "prefill_s": 2e-3,
        "decode_s": 0.02,
    }
    scheduler = PDScheduler(TransferEngine(25e9))
    batch = benchmark.pedantic(schedule_batch, args=(scheduler, "layered"), kwargs=requests, rounds=3)
    assert batch.ttft_s.shape == (100_000,)
    assert batch.ttft_s.min() > 0.0


@pytest.mark.benchmark(group="migrate.least loaded 1000 worlds x 1000 jobs x 4 streams")
def bench_least_loaded(benchmark):
    work = np.random.default_rng(7).exponential(1.0, (1000, 1000, 4))
    timeline = benchmark.pedantic(least_loaded_timeline, args=(work,), rounds=3)
    finish, _ = twin.least_loaded(work[0].tolist(), [0.0] * 1000)
    np.testing.assert_allclose(timeline.finish_s[0], finish)


@pytest.mark.benchmark(group="migrate.fair sharing 1000 worlds x 100 flows")
def bench_processor_sharing(benchmark):
    rng = np.random.default_rng(7)
    arrival, work = np.cumsum(rng.exponential(1.0, (1000, 100)), axis=1), rng.exponential(0.8, (1000, 100))
    timeline = benchmark.pedantic(processor_sharing_queue, args=(arrival, work), rounds=3)
    np.testing.assert_allclose(timeline.finish_s[0], twin.processor_sharing(arrival[0].tolist(), work[0].tolist()))


@pytest.mark.benchmark(group="migrate.fair sharing 1000 worlds x 100 flows")
def bench_max_min(benchmark):
    rng = np.random.default_rng(7)
    arrival, size = np.cumsum(rng.exponential(1.0, 100)), rng.exponential(2.0, 100)
    endpoints = np.stack((rng.integers(0, 4, 100), rng.integers(4, 8, 100)), axis=1)
    capacity = rng.uniform(0.5, 2.0, (1000, 8))
    timeline = benchmark.pedantic(
        max_min_queue, args=(arrival, size), kwargs={"endpoints": endpoints, "bytes_per_second": capacity}, rounds=2
    )
    expected = twin.max_min_queue(arrival.tolist(), size.tolist(), endpoints.tolist(), capacity[0].tolist())
    np.testing.assert_allclose(timeline.finish_s[0], expected)
