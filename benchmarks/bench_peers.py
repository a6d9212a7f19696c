"""kvarray beside simulators from PyPI, on the same blocks: `pip install 'kvarray[peers,bench]'`; else skipped.

kvcache-simulator is timed as a whole command and as its C++ core alone, at its own default budgets; libcachesim with
its hash table sized to the trace, because the default costs it a sixth of a second for each cache. Results are compared
where both answer the same question: kvcache-simulator gives none for a cache that is not full when counting begins, and
its LRU admits a request that is longer than the whole cache block by block instead of cutting it to size.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kvarray.reuse import hit_curve, optimal_hits, stream_curve
from kvarray.trace import Trace, read_trace
from tests.data import data_file

MODEL, BLOCK_BYTES_PER_TOKEN = "llama-3.1-70b", 327_680
BUDGETS_GIB = [1 << power for power in range(15)]
TRACES = [
    pytest.param(("traces/mooncake_conversation.jsonl", 512), id="conversation"),
    pytest.param(("traces/claude_code_small.jsonl.gz", 64), id="claude_code_small"),
]


@pytest.fixture(scope="module", params=TRACES)
def peer(request):
    """A trace, and the capacities in blocks that the peer's default budgets come to."""
    path, block_size = request.param
    trace = read_trace(data_file(path), block_size=block_size)
    capacities = [(gib << 30) // (BLOCK_BYTES_PER_TOKEN * block_size) for gib in BUDGETS_GIB]
    return data_file(path), trace, [c for c in capacities if 0 < c <= trace.num_distinct]


def _compare(trace, policy, hit_tokens):
    """The peer's hits, where its definition is ours."""
    longest = trace.block_counts.max() if policy == "lru" else 0
    capacities = [c for c in hit_tokens if c >= longest]
    if policy == "lru":
        expected = hit_curve(trace, window=0.5).hit_tokens(capacities)
    else:
        expected = optimal_hits(trace, capacities, window=0.5).hit_tokens
    assert [hit_tokens[c] for c in capacities] == expected.tolist()


def _anew(trace):
    return Trace(trace.block_ids, trace.offsets, block_size=trace.block_size, input_tokens=trace.input_tokens)


# --- the whole command


@pytest.mark.benchmark(group="peers.command")
def bench_command_kvarray(benchmark, peer):
    path, trace, capacities = peer
    command = [sys.executable, "-m", "kvarray", "curve", str(path), "--json", "--window", "0.5", "--optimal"]
    command += ["--block-size", str(trace.block_size), "--capacity", ",".join(map(str, capacities))]
    out = benchmark.pedantic(subprocess.check_output, args=(command,), rounds=3)
    assert [point["blocks"] for point in json.loads(out)["points"]] == capacities


@pytest.mark.benchmark(group="peers.command")
@pytest.mark.parametrize("policies", ["lru,optimal", "fifo,lru,optimal"])
def bench_command_kvcache_simulator(benchmark, peer, policies):
    pytest.importorskip("kvcache_sim", reason="needs the peers extra")
    path, trace, _ = peer
    command = [sys.executable, "-m", "kvcache_sim", "run", "--trace", str(path), "--model", MODEL]
    command += ["--block-size", str(trace.block_size), "--policies", policies, "--no-progress", "--format", "json"]
    subprocess.check_output(command)  # compiles its core at the first call
    out = benchmark.pedantic(subprocess.check_output, args=(command,), rounds=2)
    for point in json.loads(out)["points"]:
        _compare(trace, "lru", {point["cacheBlocks"]: point["results"]["lru"]["hitTokens"]})


# --- the core alone


@pytest.mark.benchmark(group="peers.core")
@pytest.mark.parametrize("policy", ["lru", "optimal"])
def bench_core_kvarray(benchmark, peer, policy):
    _, trace, capacities = peer
    if policy == "lru":
        ask = lambda anew: hit_curve(anew, window=0.5).hit_tokens(capacities)  # noqa: E731
    else:
        ask = lambda anew: optimal_hits(anew, capacities, window=0.5).hit_tokens  # noqa: E731
    hits = benchmark.pedantic(ask, setup=lambda: ((_anew(trace),), {}), rounds=5)
    assert len(hits) == len(capacities)


@pytest.mark.benchmark(group="peers.core")
@pytest.mark.parametrize("policy", ["lru", "optimal"])
def bench_core_kvcache_simulator(benchmark, peer, policy):
    """The compiled program on binary files that are there already."""
    pytest.importorskip("kvcache_sim", reason="needs the peers extra")
    from kvcache_sim import cpp_backend
    from kvcache_sim.trace import parse_trace_file

    path, trace, capacities = peer
    data = parse_trace_file(str(path), block_size=trace.block_size)
    with tempfile.TemporaryDirectory() as folder:
        files = cpp_backend._write_binary_trace(data, Path(folder))
        command = [str(cpp_backend.ensure_cpp_simulator()), "--policy", "batch", "--policies", policy]
        command += ["--ids", str(files.ids), "--tokens", str(files.tokens), "--request-ends", str(files.request_ends)]
        command += ["--request-count", str(data.request_count), "--total-blocks", str(len(data.ids))]
        command += ["--warmup-requests", str(data.request_count // 2), "--capacities", ",".join(map(str, capacities))]
        out = benchmark.pedantic(subprocess.check_output, args=(command,), rounds=3)
    full = [point for point in json.loads(out)["points"] if point[policy]["measurementStartRequest"] >= 0]
    _compare(trace, policy, {point["cacheBlocks"]: point[policy]["hitTokens"] for point in full})


# --- one block at a time


@pytest.mark.benchmark(group="peers.stream")
def bench_stream_kvarray(benchmark, peer):
    _, trace, capacities = peer
    ask = lambda anew: stream_curve(anew).hit_blocks(capacities)  # noqa: E731
    hits = benchmark.pedantic(ask, setup=lambda: ((_anew(trace),), {}), rounds=5)
    assert len(hits) == len(capacities)


@pytest.mark.benchmark(group="peers.stream")
def bench_stream_libcachesim(benchmark, peer, tmp_path):
    """Plain LRU at every capacity, each over the stream of blocks."""
    lcs = pytest.importorskip("libcachesim", reason="needs the peers extra")
    _, trace, capacities = peer
    path = tmp_path / "trace.txt"
    path.write_text("\n".join(map(str, (trace.stream_ids + 1).tolist())))  # ids from 1: it takes 0 for none
    hashpower = max(int(trace.num_distinct_blocks).bit_length(), 10)

    def replay():
        misses = []
        for capacity in capacities:
            reader = lcs.TraceReader(
                str(path), lcs.TraceType.PLAIN_TXT_TRACE, lcs.ReaderInitParam(ignore_obj_size=True)
            )
            cache = lcs.LRU(capacity, hashpower=hashpower)
            misses.append(cache.process_trace(reader)[0])
        return misses

    rates = benchmark.pedantic(replay, rounds=1)
    expected = 1 - stream_curve(trace).hit_blocks(capacities) / trace.num_blocks
    assert rates == pytest.approx(expected.tolist(), abs=1e-6)
