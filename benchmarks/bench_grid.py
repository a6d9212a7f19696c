"""Thousands of deployments on the conversation trace, against a replay of each."""

import pytest

from kvarray import Grid, read_trace, replay, sweep
from tests.data import data_file
from tests.reference import grid as reference

BASE = {
    "model": "llama-3.1-70b",
    "gpu": "h100",
    "gpus": 8,
    "replicas": 8,
    "tiers": ["gpu=200GiB", "cpu=1TiB@dram-pcie5", "ssd=8TiB@nvme-gen4"],
}
SIZES_AND_LINKS = {
    "gpu.capacity": "80GiB:400GiB:5",
    "cpu.capacity": "128GiB:4TiB:10",
    "ssd.capacity": "1TiB:32TiB:10",
    "cpu.bandwidth": "10GB/s:100GB/s:5",
    "ssd.bandwidth": "2GB/s:14GB/s:4",
}
EVERYTHING = {
    "policy": ["lru", "lfu", "fifo", "slru"],
    "write_mode": ["exclusive", "write_through"],
    "block_size": [512, 1024],
    "replicas": [1, 2, 4],
    "cpu.bandwidth": ["25GB/s", "100GB/s"],
}
"""96 deployments of all kinds."""


@pytest.fixture(scope="module")
def trace():
    return read_trace(data_file("traces/mooncake_conversation.jsonl"), block_size=512)


def _told(benchmark, deployments):
    benchmark.extra_info["deployments"] = deployments
    if benchmark.stats is not None:
        benchmark.extra_info["deployments_per_s"] = round(deployments / benchmark.stats.stats.min, 1)


def _check_row(trace, result, row):
    found = reference.row(trace, result.deployment(row))
    for name in result.columns:
        assert result[name][row] == pytest.approx(found[name], rel=1e-9, abs=1e-9), name


@pytest.mark.benchmark(group="sweep.sizes and bandwidths")
def bench_hits_bytes_gain(benchmark, trace):
    """10,000 deployments: what they hit, move and gain."""
    grid = Grid(BASE, SIZES_AND_LINKS)
    result = benchmark.pedantic(sweep, args=(trace, grid), kwargs={"ttft": False}, rounds=3)
    _told(benchmark, grid.size)
    _check_row(trace, result, 4_321)


@pytest.mark.benchmark(group="sweep.sizes and bandwidths")
def bench_queues_and_ttft(benchmark, trace):
    """10,000 deployments with their queues and percentiles of the time to first token."""
    grid = Grid(BASE, SIZES_AND_LINKS)
    result = benchmark.pedantic(sweep, args=(trace, grid), rounds=2)
    _told(benchmark, grid.size)
    _check_row(trace, result, 4_321)


@pytest.mark.benchmark(group="sweep.sizes and bandwidths")
def bench_replay_one_by_one(benchmark, trace):
    """Four of these deployments, each replayed by itself."""
    grid = Grid(BASE, SIZES_AND_LINKS)
    rows = (0, 3_333, 6_666, 9_999)
    found = benchmark.pedantic(lambda: [replay(trace, grid.deployment(row)).summary() for row in rows], rounds=2)
    _told(benchmark, len(rows))
    assert found[0]["hits"]["token"] <= found[-1]["hits"]["token"]


@pytest.mark.benchmark(group="sweep.everything")
def bench_everything(benchmark, trace):
    """96 deployments that differ in policy, mode, block size, replicas and bandwidth."""
    part, grid = trace.requests(0, 1_500), Grid(BASE, EVERYTHING)
    result = benchmark.pedantic(sweep, args=(part, grid), rounds=2)
    _told(benchmark, grid.size)
    _check_row(part, result, 95)


@pytest.mark.benchmark(group="sweep.everything")
def bench_everything_one_by_one(benchmark, trace):
    """Every eighth of them, each replayed by itself."""
    part, grid = trace.requests(0, 1_500), Grid(BASE, EVERYTHING)
    rows = range(0, grid.size, 8)
    found = benchmark.pedantic(lambda: [replay(part, grid.deployment(row)).summary() for row in rows], rounds=2)
    _told(benchmark, len(rows))
    assert len(found) == 12
