"""Tiers: a million splits at once, whole traces under every policy, and batches of single accesses.

With the extra `peers` installed, kvcache-simulator's C++ core and libcachesim answer for the same blocks at the same
capacities in the same groups; skipped otherwise. libcachesim's caches are streams of blocks with a hash table sized to
the trace, so its hits are not ours: only the work is alike.
"""

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from kvarray import Link, TieredCache, TierSpec, optimal_hits, read_trace, step_policy, tier_curve
from kvarray.policies import ORDERS
from kvarray.reuse import prefix_runs
from tests.data import data_file
from tests.reference.replay_lru import replay_lru
from tests.reference.tier import Tiers

TRACES = [
    pytest.param(("traces/mooncake_conversation.jsonl", 512), id="conversation"),
    pytest.param(("traces/claude_code_small.jsonl.gz", 64), id="claude_code_small"),
]
PEERS = {
    "arc": "ARC",
    "fifo": "FIFO",
    "gdsf": "GDSF",
    "lfu": "LFU",
    "lfu_aged": "LFUDA",
    "lru": "LRU",
    "random": "Random",
    "s3_fifo": "S3FIFO",
    "sieve": "Sieve",
    "slru": "SLRU",
    "two_q": "TwoQ",
    "w_tinylfu": "WTinyLFU",
}


@pytest.fixture(scope="module", params=TRACES)
def real(request):
    """A trace whose ids are known, its file, and 15 capacities."""
    path, block_size = request.param
    trace = read_trace(data_file(path), block_size=block_size)
    assert len(trace.prefix_ids) == trace.num_blocks
    return trace, data_file(path), np.geomspace(100, trace.num_distinct, 15).astype(np.int64)


@pytest.fixture(scope="module")
def splits(real):
    """A million splits of three tiers."""
    low = real[2][3]
    axes = [np.linspace(low, low * scale, 100).astype(np.int64) for scale in (10, 40, 160)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)


# ---- surfaces -------------------------------------------------------------------------------------------------------


@pytest.mark.benchmark(group="tier.surface")
@pytest.mark.parametrize("ask", ["hits", "flows", "net gain"])
def bench_a_million_splits(benchmark, real, splits, ask):
    """From known distances: hits by tier; all flows; all flows and what they cost."""
    trace, _, _ = real
    runs, link = prefix_runs(trace), Link(16e9)

    def surface():
        curve = tier_curve(trace, runs=runs)
        if ask == "hits":
            return curve.hits(splits)
        flows = curve.flows(splits)
        if ask == "flows":
            return flows.hits
        return flows.cost([link] * 2, [link] * 2, block_bytes=2**24, block_s=0.05).net_s

    result = benchmark.pedantic(surface, rounds=5)
    benchmark.extra_info |= {"splits": splits[..., 0].size}
    if ask != "net gain":
        assert (result.sum(axis=-1).ravel()[::99_999] == _exclusive(trace, splits.reshape(-1, 3)[::99_999])).all()


def _exclusive(trace, sizes):
    return step_policy(trace, "lru", sizes.sum(axis=-1)).hits[:, 0]


@pytest.mark.benchmark(group="tier.surface")
def bench_one_split_by_dictionary(benchmark, real, splits):
    """The total of one split, the plain way."""
    trace, _, _ = real
    rows = [trace.block_ids[a:b].tolist() for a, b in zip(trace.offsets[:-1], trace.offsets[1:], strict=True)]
    capacity = int(splits[50, 50, 50].sum())
    hits = benchmark.pedantic(replay_lru, args=(rows, capacity), rounds=2)
    benchmark.extra_info |= {"splits": 1}
    assert hits == tier_curve(trace).hits(splits[50, 50, 50]).sum()


# ---- policies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ORDERS)
def bench_policy(benchmark, real, policy):
    """Fifteen capacities, one after the other; one where timing is disabled."""
    trace, _, capacities = real
    benchmark.group = f"tier.policy {policy}"
    capacities = capacities[7:8] if benchmark.disabled else capacities
    settings = {"rng": 1} if policy == "random" else {}
    flows = benchmark.pedantic(step_policy, args=(trace, policy, capacities), kwargs=settings, rounds=1)
    benchmark.extra_info |= {"capacities": len(capacities), "references": trace.num_blocks}
    assert (flows.hits[:, 0] <= optimal_hits(trace, capacities).hit_blocks).all()


@pytest.mark.parametrize("policy", PEERS)
def bench_policy_libcachesim(benchmark, real, policy, tmp_path):
    lcs = pytest.importorskip("libcachesim", reason="needs the peers extra")
    trace, _, capacities = real
    benchmark.group = f"tier.policy {policy}"
    path = tmp_path / "trace.txt"
    path.write_text("\n".join(map(str, (trace.stream_ids + 1).tolist())))  # ids from 1: it takes 0 for none
    hashpower = max(int(trace.num_distinct_blocks).bit_length(), 10)

    def replay():
        misses = []
        for capacity in (capacities[7:8] if benchmark.disabled else capacities).tolist():
            settings = lcs.ReaderInitParam(ignore_obj_size=True)
            reader = lcs.TraceReader(str(path), lcs.TraceType.PLAIN_TXT_TRACE, settings)
            cache = getattr(lcs, PEERS[policy])(capacity, hashpower=hashpower)
            misses.append(cache.process_trace(reader)[0])
        return misses

    assert min(benchmark.pedantic(replay, rounds=1)) >= 0


@pytest.mark.parametrize("policy", ["fifo", "lru", "optimal"])
def bench_core(benchmark, real, policy):
    """What kvcache-simulator answers: hit tokens of the later half of the requests."""
    trace, _, capacities = real
    benchmark.group = f"tier.core {policy}"
    hits = benchmark.pedantic(_core_hits, args=(trace, policy, capacities), rounds=5, warmup_rounds=1)
    assert len(hits) == len(capacities)


def _core_hits(trace, policy, capacities):
    if policy == "optimal":
        return optimal_hits(trace, capacities, window=0.5).hit_tokens
    step = "block" if policy == "fifo" else "request"
    return step_policy(trace, policy, capacities, step=step, window=0.5).hit_tokens[:, 0]


@pytest.mark.parametrize("policy", ["fifo", "lru", "optimal"])
def bench_core_kvcache_simulator(benchmark, real, policy):
    """Its compiled core on binary files that are there already; a cache not full by half time gets no answer."""
    pytest.importorskip("kvcache_sim", reason="needs the peers extra")
    from kvcache_sim import cpp_backend
    from kvcache_sim.trace import parse_trace_file

    trace, path, capacities = real
    benchmark.group = f"tier.core {policy}"
    data = parse_trace_file(str(path), block_size=trace.block_size)
    with tempfile.TemporaryDirectory() as folder:
        files = cpp_backend._write_binary_trace(data, Path(folder))
        command = [str(cpp_backend.ensure_cpp_simulator()), "--policy", "batch", "--policies", policy]
        command += ["--ids", str(files.ids), "--tokens", str(files.tokens), "--request-ends", str(files.request_ends)]
        command += ["--request-count", str(data.request_count), "--total-blocks", str(len(data.ids))]
        command += ["--warmup-requests", str(data.request_count // 2), "--capacities", ",".join(map(str, capacities))]
        out = benchmark.pedantic(subprocess.check_output, args=(command,), rounds=3)
    longest = trace.block_counts.max() if policy == "lru" else 0  # its LRU cuts such a request in another way
    points = [point for point in json.loads(out)["points"] if point[policy]["measurementStartRequest"] >= 0]
    points = [point for point in points if point["cacheBlocks"] >= longest]
    expected = _core_hits(trace, policy, [point["cacheBlocks"] for point in points])
    assert [point[policy]["hitTokens"] for point in points] == expected.tolist()


# ---- single accesses ------------------------------------------------------------------------------------------------

KEYS = np.random.default_rng(0).zipf(1.1, 200_000) % 20_000


def _specs():
    return [TierSpec("gpu", blocks=500), TierSpec("cpu", blocks=2_000), TierSpec("ssd", blocks=8_000)]


@pytest.mark.benchmark(group="tier.access")
@pytest.mark.parametrize("batch", [1, 256, 65_536], ids="batch={}".format)
@pytest.mark.parametrize("write_mode", ["exclusive", "write_through"])
def bench_access(benchmark, batch, write_mode):
    def warm():
        cache = TieredCache(_specs(), write_mode=write_mode)
        cache.access(KEYS[:20_000])
        return (cache, KEYS[20_000 : 20_000 + batch]), {}

    access = benchmark.pedantic(lambda cache, keys: cache.access(keys), setup=warm, rounds=3)
    benchmark.extra_info |= {"keys": batch}
    assert len(access.tier) == batch


@pytest.mark.benchmark(group="tier.access")
def bench_access_plain(benchmark):
    """The plain-Python tiers, smaller ones: it looks at every block of a tier for each victim."""

    def warm():
        return (Tiers([50, 200, 800]), KEYS[:256].tolist()), {}

    def replay(plain, keys):
        return [plain.step([key])[0] for key in keys]

    served = benchmark.pedantic(replay, setup=warm, rounds=3)
    benchmark.extra_info |= {"keys": 256}
    assert len(served) == 256
