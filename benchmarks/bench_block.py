"""The block pool and the block table, in items per second, against their plain-Python twins.

Sizes are those of one call. The pool has 65,536 blocks; to evict, all of them are cached. Beside each figure stands
what vLLM 0.33 was measured to do on a core of this kind, in the same unit, for whoever reads the two together.
"""

from itertools import pairwise

import numpy as np
import pytest

from kvarray import BlockAllocator, BlockTable, content_hashes, read_trace
from kvarray.ragged import lengths_to_offsets, ranges
from tests.data import data_file
from tests.reference.block import PoolReference, TableReference

NUM_BLOCKS = 65_536
SIZES = [1, 16, 256, 4096]
VLLM_MILLION_BLOCKS_PER_S = {
    "allocate": [1.2, 1.9, 2.2, 2.6],
    "evict": [0.7, 0.8, 1.0, 1.1],
    "release": [1.2, 4.2, 5.7, 5.8],
    "register": [0.45, 0.64, 0.78, 0.78],
    "touch": [3.9, 4.9, 5.6, 5.7],
}
VLLM_DECODE_S_PER_SEQUENCE = 7.4e-6
VLLM_REQUESTS_PER_S = 11_000

sizes = pytest.mark.parametrize("size", SIZES, ids=[f"blocks={size}" for size in SIZES])


def note(benchmark, operation, size):
    """Put items per second beside vLLM's."""
    if benchmark.stats is None:  # timing is switched off
        return
    per_s = size / benchmark.stats.stats.min
    vllm = VLLM_MILLION_BLOCKS_PER_S[operation][SIZES.index(size)] * 1e6
    benchmark.extra_info |= {"items_per_s": round(per_s), "times_vllm": round(per_s / vllm, 2)}


def hashes_for(count, seed=0):
    return np.random.default_rng(seed).integers(1, 2**63, count).astype(np.uint64)


@pytest.fixture
def cached():
    """A pool of which every block is cached."""
    pool = BlockAllocator(NUM_BLOCKS)
    ids = pool.allocate(NUM_BLOCKS)
    pool.register(ids, hashes_for(NUM_BLOCKS))
    pool.release(ids[::-1])
    return pool


@sizes
@pytest.mark.benchmark(group="block.allocate")
def bench_allocate(benchmark, size):
    pool = BlockAllocator(NUM_BLOCKS)
    taken = []

    def give_back():
        if taken:
            pool.release(taken.pop())

    benchmark.pedantic(lambda: taken.append(pool.allocate(size)), setup=give_back, rounds=300)
    note(benchmark, "allocate", size)
    assert pool.num_held == size


@sizes
@pytest.mark.benchmark(group="block.evict")
def bench_allocate_that_evicts(benchmark, cached, size):
    taken = []

    def cache_again():
        if taken:
            ids = taken.pop()
            cached.register(ids, hashes_for(size, seed=int(ids[0])))
            cached.release(ids[::-1])

    benchmark.pedantic(lambda: taken.append(cached.allocate(size)), setup=cache_again, rounds=300)
    note(benchmark, "evict", size)
    assert cached.stats().evictions >= size


@sizes
@pytest.mark.benchmark(group="block.release")
def bench_release(benchmark, cached, size):
    def take():
        ids = cached.allocate(size)
        cached.register(ids, hashes_for(size, seed=int(ids[0])))
        return (ids[::-1].copy(),), {}

    benchmark.pedantic(cached.release, setup=take, rounds=300)
    note(benchmark, "release", size)
    assert cached.num_cached == NUM_BLOCKS


@sizes
@pytest.mark.benchmark(group="block.register")
def bench_register(benchmark, cached, size):
    held = []

    def take():
        if held:
            cached.release(held.pop()[::-1])
        held.append(cached.allocate(size))
        return (held[0], hashes_for(size, seed=int(held[0][0]))), {}

    benchmark.pedantic(cached.register, setup=take, rounds=300)
    note(benchmark, "register", size)
    assert cached.num_cached == NUM_BLOCKS - size


@sizes
@pytest.mark.benchmark(group="block.lookup")
def bench_lookup(benchmark, cached, size):
    hashes = np.random.default_rng(1).permutation(cached.block_hash)[:size]
    found = benchmark(cached.lookup, hashes)
    if benchmark.stats is not None:
        benchmark.extra_info["items_per_s"] = round(size / benchmark.stats.stats.min)
    assert np.array_equal(cached.block_hash[found], hashes)


@sizes
@pytest.mark.benchmark(group="block.touch")
def bench_touch(benchmark, cached, size):
    """What vLLM calls touch: cached blocks are held, and leave the queue."""
    order = np.random.default_rng(1).permutation(NUM_BLOCKS)
    held = []

    def let_go():
        if held:
            cached.release(held.pop())
        held.append(order[:size])
        return (held[0],), {}

    benchmark.pedantic(cached.hold, setup=let_go, rounds=300)
    note(benchmark, "touch", size)
    assert cached.num_held == size


@sizes
@pytest.mark.benchmark(group="block.evict")
def bench_twin_allocates_and_releases(benchmark, size):
    """The plain-Python twin: allocate with eviction, register and release, all three."""
    twin = PoolReference(4 * size)
    twin.register(twin.allocate(4 * size), range(1, 4 * size + 1), range(4 * size))
    twin.release(range(4 * size))

    def cycle():
        ids = twin.allocate(size)
        twin.register(ids, [10**9 + i for i in ids], [0] * size)
        twin.release(ids)

    benchmark.pedantic(cycle, rounds=3)
    assert len(twin.queue) == 4 * size


@pytest.mark.parametrize("running", [1, 64, 256, 4096], ids=lambda n: f"sequences={n}")
@pytest.mark.benchmark(group="block.decode")
def bench_decode_step(benchmark, running):
    """One token more for every running sequence, of which one in sixteen needs a block."""
    table = BlockTable(BlockAllocator(NUM_BLOCKS), block_size=16, max_sequences=4096, max_blocks=16)
    lengths = np.arange(running) % 16 + 16
    handles = table.admit(lengths).handles
    ones = np.ones(running, dtype=np.int64)
    most = 16 * 16 - 40

    def start_again():
        if table.lengths(handles).max() > most:
            table.truncate(handles, lengths)

    benchmark.pedantic(table.append, args=(handles, ones), setup=start_again, rounds=100)
    if benchmark.stats is not None:
        seconds = benchmark.stats.stats.min / running
        benchmark.extra_info |= {
            "sequences_per_s": round(1 / seconds),
            "times_vllm": round(VLLM_DECODE_S_PER_SEQUENCE / seconds, 2),
        }
    table.check()


@pytest.fixture(scope="module")
def requests():
    """12,000 requests of the conversation trace: tokens, hashes, offsets."""
    trace = read_trace(data_file("traces/mooncake_conversation.jsonl"), block_size=512)
    tokens = trace.input_tokens[:12_000]
    lengths = np.minimum(np.diff(trace.offsets)[:12_000], tokens // 512)  # full blocks only
    block_ids = trace.block_ids[ranges(trace.offsets[:12_000], lengths)]
    return tokens, content_hashes(block_ids.reshape(-1, 1)), lengths_to_offsets(lengths)


def batches(requests, *, most):
    """The requests cut into batches of at most `most` that have nothing in common but the first block.

    The first block is that of all requests of this trace, and always cached.
    """
    tokens, hashes, offsets = requests
    cuts, of_batch = [0], set()
    for i, (a, b) in enumerate(pairwise(offsets)):
        row = hashes[a + 1 : b].tolist()
        if i - cuts[-1] == most or not of_batch.isdisjoint(row):
            cuts.append(i)
            of_batch = set()
        of_batch.update(row)
    cuts.append(len(tokens))
    return [(tokens[a:b], hashes[offsets[a] : offsets[b]], offsets[a : b + 1] - offsets[a]) for a, b in pairwise(cuts)]


@pytest.mark.parametrize("most", [1, 256], ids=["singly", "in batches"])
@pytest.mark.parametrize("num_blocks", [10_000, 50_000], ids=lambda n: f"pool={n}")
@pytest.mark.benchmark(group="block.trace")
def bench_trace(benchmark, requests, num_blocks, most):
    """Admit and free 12,000 requests of a real trace."""
    calls = batches(requests, most=most)

    def replay(table):
        for tokens, hashes, offsets in calls:
            table.free(table.admit(tokens, hashes=hashes, hash_offsets=offsets).handles)
        return table

    def new_table():
        pool = BlockAllocator(num_blocks)
        return (BlockTable(pool, block_size=512, max_sequences=256, max_blocks=512),), {}

    table = benchmark.pedantic(replay, setup=new_table, rounds=3)
    if benchmark.stats is not None:
        per_s = len(requests[0]) / benchmark.stats.stats.min
        benchmark.extra_info |= {
            "requests_per_s": round(per_s),
            "times_vllm": round(per_s / VLLM_REQUESTS_PER_S, 2),
            "requests_per_call": round(len(requests[0]) / len(calls), 1),
        }
    assert table.stats().admitted == len(requests[0])
    assert table.allocator.num_held == 0


@pytest.mark.benchmark(group="block.trace")
def bench_twin_trace(benchmark, requests):
    """The plain-Python twin on the first 300 requests."""
    tokens, hashes, offsets = requests
    rows = [(int(n), hashes[a:b].tolist()) for n, a, b in zip(tokens[:300], offsets[:300], offsets[1:301], strict=True)]

    def replay(table):
        for num_tokens, row in rows:
            table.free(table.admit(num_tokens, row)[0])
        return table

    def new_table():
        return (TableReference(PoolReference(2_000), block_size=512, max_sequences=4, max_blocks=512),), {}

    twin = benchmark.pedantic(replay, setup=new_table, rounds=1)
    table = BlockTable(BlockAllocator(2_000), block_size=512, max_sequences=4, max_blocks=512)
    for num_tokens, row in rows:
        table.free(table.admit([num_tokens], hashes=row, hash_offsets=[0, len(row)]).handles)
    assert (table.stats().block_hits, table.stats().block_queries) == (twin.hits, twin.queries)
    assert table.allocator.queue().tolist() == twin.pool.queue
