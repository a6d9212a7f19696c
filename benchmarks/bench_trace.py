"""Reading, writing and generating traces, and knowing their prefixes, on real and on large made ones."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest

from kvarray import (
    Trace,
    agent_trace,
    builtin_trace,
    chat_trace,
    document_trace,
    poisson_arrivals,
    read_trace,
    write_trace,
    zipf_trace,
)
from kvarray.trace import identity
from tests import strategies
from tests.data import data_file
from tests.reference import trace as reference

REAL = {
    "conversation": ("traces/mooncake_conversation.jsonl", 512),
    "claude_code_small": ("traces/claude_code_small.jsonl.gz", None),
}


@pytest.fixture(scope="module", params=REAL)
def real(request, tmp_path_factory):
    """A real trace as an unpacked file, and its block size where the file does not say it."""
    relative, block_size = REAL[request.param]
    path = tmp_path_factory.mktemp("traces") / f"{request.param}.jsonl"
    data = data_file(relative).read_bytes()
    path.write_bytes(gzip.decompress(data) if relative.endswith(".gz") else data)
    return path, block_size


def _note(benchmark, items, unit="references"):
    """Put the number of items, and how many a second, beside the times."""
    benchmark.extra_info[unit] = items
    if not benchmark.disabled:
        benchmark.extra_info[f"{unit}_per_s"] = round(items / benchmark.stats.stats.min)


@pytest.mark.benchmark(group="trace.read")
def bench_read_json_lines(benchmark, real):
    """The whole reader: parsed, checked, as columns."""
    path, block_size = real
    trace = benchmark.pedantic(read_trace, args=(path,), kwargs={"block_size": block_size}, rounds=10)
    _note(benchmark, trace.num_blocks)
    assert trace.num_distinct > 0


@pytest.mark.benchmark(group="trace.read")
def bench_json_loads_per_line(benchmark, real):
    """What any reader in Python pays before it has looked at a single value."""
    path, block_size = real

    def parse():
        with path.open("rb") as file:
            return sum(len(json.loads(line)["hash_ids"]) for line in file)

    num_blocks = benchmark.pedantic(parse, rounds=10)
    _note(benchmark, num_blocks)
    assert num_blocks == read_trace(path, block_size=block_size).num_blocks


@pytest.mark.benchmark(group="trace.read csv")
def bench_read_csv(benchmark):
    trace = benchmark.pedantic(read_trace, args=(data_file("traces/azure2023_conv.csv"),), rounds=5)
    _note(benchmark, trace.num_requests, "requests")
    assert trace.num_requests == 19_366


@pytest.mark.benchmark(group="trace.write and read again")
@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.npz"])
def bench_write(benchmark, real, tmp_path, name):
    trace = read_trace(real[0], block_size=real[1])
    benchmark.pedantic(write_trace, args=(trace, tmp_path / name), rounds=3)
    _note(benchmark, trace.num_blocks)
    assert read_trace(tmp_path / name) == trace


@pytest.mark.benchmark(group="trace.write and read again")
def bench_read_archive(benchmark, real, tmp_path):
    trace = read_trace(real[0], block_size=real[1])
    write_trace(trace, tmp_path / "t.npz")
    again = benchmark.pedantic(read_trace, args=(tmp_path / "t.npz",), rounds=5)
    _note(benchmark, trace.num_blocks)
    assert again == trace


KINDS = {
    "chained": lambda ids: ids,
    "hashes": lambda ids: identity.mix(ids.view(np.uint64) + np.uint64(1)),
    "content": lambda ids: ids % 10_007,
}


@pytest.mark.benchmark(group="trace.identity")
@pytest.mark.parametrize("kind", KINDS)
def bench_prefix_ids(benchmark, real, kind):
    """Chained ids as they are; ids scattered over 64 bits; ids that say nothing of what stands before them."""
    trace = read_trace(real[0], block_size=real[1])
    ids = KINDS[kind](trace.block_ids)
    found = benchmark.pedantic(identity.prefix_identity, args=(ids, trace.offsets), rounds=10)
    _note(benchmark, trace.num_blocks)
    assert found.num_distinct == trace.num_distinct or (kind == "content" and found.num_distinct < trace.num_distinct)


@pytest.mark.benchmark(group="trace.identity")
def bench_prefix_trie(benchmark, real):
    """The same with a dictionary, one block at a time."""
    trace = read_trace(real[0], block_size=real[1])
    rows = strategies.rows_of(trace)
    numbers = benchmark.pedantic(reference.prefix_numbers, args=(rows,), rounds=2)
    _note(benchmark, trace.num_blocks)
    assert max(numbers) + 1 == trace.num_distinct


@pytest.fixture(scope="module")
def session_starts(request):
    """As many coding sessions as make thirty million references; a few where nothing is timed."""
    sessions = 5 if request.config.getoption("benchmark_disable") else 700
    return poisson_arrivals(sessions, rate_per_s=0.05, rng=0)


@pytest.mark.benchmark(group="trace.identity of 30 million")
def bench_prefix_ids_of_long_requests(benchmark, session_starts):
    trace = agent_trace(session_starts, rng=1)
    found = benchmark.pedantic(identity.prefix_identity, args=(trace.block_ids, trace.offsets), rounds=5)
    _note(benchmark, trace.num_blocks)
    assert np.shares_memory(found.ids, trace.block_ids)


@pytest.mark.benchmark(group="trace.generate")
def bench_generate_30_million(benchmark, session_starts):
    trace = benchmark.pedantic(agent_trace, args=(session_starts,), kwargs={"rng": 1}, rounds=2)
    _note(benchmark, trace.num_blocks)
    assert trace.block_counts.mean() > 500


@pytest.mark.benchmark(group="trace.generate")
@pytest.mark.parametrize("generator", [chat_trace, document_trace, zipf_trace])
def bench_generate(benchmark, generator):
    starts = poisson_arrivals(10_000, rate_per_s=1.0, rng=0)
    trace = benchmark.pedantic(generator, args=(starts,), kwargs={"rng": 1}, rounds=3)
    _note(benchmark, trace.num_blocks)
    assert trace.num_requests >= 9_000


@pytest.mark.benchmark(group="trace.generate")
def bench_builtin_trace(benchmark):
    trace = benchmark.pedantic(builtin_trace, rounds=10)
    _note(benchmark, trace.num_blocks)
    assert trace.num_requests > 2_000


@pytest.mark.benchmark(group="trace.change")
def bench_reblock(benchmark, real):
    trace = read_trace(real[0], block_size=real[1])
    assert trace.num_distinct > 0  # known beforehand, so that re-blocking alone is timed
    larger = benchmark.pedantic(trace.reblock, args=(4 * trace.block_size,), rounds=5)
    _note(benchmark, trace.num_blocks)
    assert larger.num_blocks < trace.num_blocks / 2


@pytest.mark.benchmark(group="trace.change")
def bench_interleave(benchmark, real):
    trace = read_trace(real[0], block_size=real[1])
    merged = benchmark.pedantic(Trace.interleave, args=([trace] * 4,), rounds=3)
    _note(benchmark, merged.num_blocks)
    assert merged.num_distinct == trace.num_distinct


PROBE = """
import re, sys, time
from pathlib import Path
from kvarray import hit_curve, read_trace
begin = time.perf_counter()
trace = read_trace(sys.argv[1], block_size=512)
read = time.perf_counter()
hits = hit_curve(trace).hit_blocks(10**9)
end = time.perf_counter()
# The peak of this program alone: what getrusage says begins with that of the process which started it.
status = Path("/proc/self/status")
peak = int(re.search(r"VmHWM:\\s*(\\d+)", status.read_text())[1]) * 1024 / 1e9 if status.exists() else 0.0
print(trace.num_blocks, int(hits), round(read - begin, 2), round(end - read, 2), round(peak, 3))
"""


@pytest.mark.benchmark(group="trace.from file to curve")
def bench_a_hundred_conversations(benchmark, tmp_path):
    """A hundred copies of the conversation trace, none sharing a block with another: time, and peak memory in GB."""
    folds = 2 if benchmark.disabled else 100
    trace = read_trace(data_file("traces/mooncake_conversation.jsonl"), block_size=512)
    step, span_s = int(trace.block_ids.max()) + 1, float(trace.arrival_s[-1]) + 1
    with (tmp_path / "large.jsonl").open("wb") as file:
        for fold in range(folds):
            ids, arrival_s = trace.block_ids + fold * step, trace.arrival_s + fold * span_s
            copy = Trace(ids, trace.offsets, block_size=512, input_tokens=trace.input_tokens, arrival_s=arrival_s)
            write_trace(copy, tmp_path / "part.jsonl")
            file.write((tmp_path / "part.jsonl").read_bytes())
    command = [sys.executable, "-c", PROBE, tmp_path / "large.jsonl"]
    done = benchmark.pedantic(subprocess.run, args=(command,), kwargs={"capture_output": True, "check": True}, rounds=1)
    num_blocks, hits, read_s, curve_s, peak_gb = map(float, done.stdout.split())
    benchmark.extra_info |= {"references": num_blocks, "read_s": read_s, "curve_s": curve_s, "peak_gb": peak_gb}
    assert (num_blocks, hits) == (folds * 288_500, folds * 105_710)
    assert peak_gb < 1.5 or benchmark.disabled  # a target for a hundred copies, and no gate
