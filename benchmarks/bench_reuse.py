"""Whole hit-rate curves against an ordered-dictionary replay of one capacity, on real and on large made traces."""

import subprocess
import sys

import numpy as np
import pytest

from kvarray.reuse import hit_curve, optimal_hits, prefix_runs, stream_curve, ttl_curve, working_set
from kvarray.trace import Trace, read_trace
from tests.data import data_file
from tests.reference.replay_lru import replay_lru

TRACES = [
    pytest.param(("traces/mooncake_conversation.jsonl", 512, 30_000), id="conversation"),
    pytest.param(("traces/claude_code_small.jsonl.gz", None, 20_000), id="claude_code_small"),
]


@pytest.fixture(scope="module", params=TRACES)
def real(request):
    path, block_size, capacity = request.param
    trace = read_trace(data_file(path), block_size=block_size)
    rows = [trace.block_ids[a:b].tolist() for a, b in zip(trace.offsets[:-1], trace.offsets[1:], strict=True)]
    return trace, rows, capacity


def _anew(trace):
    """The same columns as a new trace, so that nothing is known of it yet."""
    return Trace(trace.block_ids, trace.offsets, block_size=trace.block_size, input_tokens=trace.input_tokens)


@pytest.mark.benchmark(group="reuse.lru")
def bench_whole_curve(benchmark, real):
    """Every capacity, from a trace whose block ids nobody has looked at yet."""
    trace, rows, capacity = real
    curve = benchmark.pedantic(hit_curve, setup=lambda: ((_anew(trace),), {}), rounds=10)
    benchmark.extra_info |= {"references": trace.num_blocks, "capacities": "all"}
    assert curve.hit_blocks(capacity) == replay_lru(rows, capacity)


@pytest.mark.benchmark(group="reuse.lru")
def bench_ordered_dictionary(benchmark, real):
    """One capacity, the plain way."""
    trace, rows, capacity = real
    hits = benchmark.pedantic(replay_lru, args=(rows, capacity), rounds=2)
    benchmark.extra_info |= {"references": trace.num_blocks, "capacities": 1}
    assert hits == hit_curve(trace).hit_blocks(capacity)


@pytest.mark.benchmark(group="reuse.closed forms")
@pytest.mark.parametrize("ask", [stream_curve, ttl_curve], ids=["stream", "ttl"])
def bench_other_curves(benchmark, real, ask):
    trace, _, _ = real
    curve = benchmark.pedantic(ask, setup=lambda: ((trace,), {}), rounds=5)
    assert curve.ceiling() > 0


@pytest.mark.benchmark(group="reuse.optimal")
def bench_optimal_per_capacity(benchmark, real):
    """One capacity of the optimum, the runs of the trace being there."""
    trace, _, capacity = real
    runs = prefix_runs(trace)
    best = benchmark.pedantic(optimal_hits, args=(trace, [capacity]), kwargs={"runs": runs}, rounds=5)
    assert best.hit_blocks[0] >= hit_curve(trace, runs=runs).hit_blocks(capacity)


@pytest.mark.benchmark(group="reuse.working set")
def bench_working_sets(benchmark, real):
    """A thousand windows at once."""
    trace, _, _ = real
    runs = prefix_runs(trace)
    starts = np.linspace(0, trace.num_requests // 2, 1_000).astype(np.int64)
    stops = starts + trace.num_requests // 2
    sizes = benchmark.pedantic(working_set, args=(trace, starts, stops), kwargs={"runs": runs}, rounds=5)
    assert sizes.max() <= trace.num_distinct


@pytest.mark.benchmark(group="reuse.curve queries")
def bench_a_million_capacities(benchmark, real):
    """A million capacities asked of a curve that is there."""
    trace, _, _ = real
    curve = hit_curve(trace)
    capacities = np.arange(1_000_000)
    hits = benchmark.pedantic(curve.hit_tokens, args=(capacities,), rounds=3)
    assert hits[-1] == curve.hit_tokens(trace.num_distinct)


SESSIONS = 800  # about thirty million references

_LARGE = """
import sys, time, tracemalloc
from kvarray import Trace, agent_trace, hit_curve, poisson_arrivals

made = agent_trace(poisson_arrivals(int(sys.argv[1]), rate_per_s=0.5, rng=0), rng=1)
anew = lambda: Trace(made.block_ids, made.offsets, block_size=made.block_size, input_tokens=made.input_tokens)
start = time.perf_counter()
curve = hit_curve(anew())
seconds = time.perf_counter() - start
tracemalloc.start()
hit_curve(anew())
print(made.num_blocks, seconds, tracemalloc.get_traced_memory()[1], curve.ceiling())
"""


@pytest.mark.benchmark(group="reuse.large")
def bench_thirty_million_references(benchmark, request):
    """Long requests, in a process of its own, which says its throughput and the peak of what it allocates."""
    sessions = 5 if request.config.getoption("benchmark_disable") else SESSIONS

    def measure():
        out = subprocess.run([sys.executable, "-c", _LARGE, str(sessions)], capture_output=True, text=True, check=True)
        return [float(word) for word in out.stdout.split()]

    references, seconds, extra, ceiling = benchmark.pedantic(measure, rounds=1)
    benchmark.extra_info |= {
        "references": references,
        "references per second": references / seconds,
        "peak bytes per reference beside the trace": extra / references,
    }
    print(
        f"\n{references:,.0f} references: {references / seconds:,.0f}/s, {extra / references:.1f} B each beside the ids"
    )
    assert 0 < ceiling < 1
