"""Mechanisms put together: an allocator over tiers, and a radix tree over an allocator."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarray import (
    BlockAllocator,
    BlockTable,
    CapacityError,
    Link,
    RadixTree,
    TieredCache,
    TierSpec,
    hash_blocks,
)
from kvarray.demo import admit_over_tiers, admit_to_tree, sink_into, tree_over
from tests.reference.composition import TreeOfBlocks, WorldOverTiers


def tiers_below(*sizes, policy="lru"):
    """Exclusive tiers below a GPU."""
    names = ("cpu", "ssd")
    specs = [TierSpec(name, blocks=n, up=Link(16e9)) for name, n in zip(names, sizes, strict=False)]
    return TieredCache(specs, block_bytes=2**20, policy=policy)


def keys_of(hashes):
    return hashes.view(np.int64)


# --- an allocator whose sink is a tiered cache


def test_a_block_that_leaves_the_gpu_is_found_in_the_cpu_tier_and_comes_back():
    below = tiers_below(4)
    pool = BlockAllocator(2, sink=sink_into(below))
    table = BlockTable(pool, block_size=4, max_sequences=2, max_blocks=2, recompute_last=False)
    (first, second) = (hash_blocks(range(i, i + 8), [0, 8], block_size=4)[0] for i in (0, 100))

    table.free(table.admit([8], hashes=first, hash_offsets=[0, 2]).handles)
    assert pool.lookup(first).tolist() == [1, 0] or pool.lookup(first).tolist() == [0, 1]
    assert below.tier_of(keys_of(first)).tolist() == [1, 1]  # not there

    table.free(table.admit([8], hashes=second, hash_offsets=[0, 2]).handles)
    assert pool.lookup(first).tolist() == [-1, -1]  # left the GPU ...
    assert below.tier_of(keys_of(first)).tolist() == [0, 0]  # ... for the CPU

    admission, loaded = admit_over_tiers(table, below, 8, hashes=first)
    assert (admission.hit_blocks.tolist(), loaded.tolist()) == ([0], [0, 0])  # nothing to compute
    assert (pool.lookup(first) >= 0).all()  # and is back
    assert below.tier_of(keys_of(second)).tolist() == [0, 0]  # what it pushed out took its way
    for part in (pool, table, below):
        part.check()


def test_what_the_cpu_has_no_room_for_sinks_to_the_ssd_and_comes_back_from_there():
    below = tiers_below(2, 8)
    pool = BlockAllocator(2, sink=sink_into(below))
    table = BlockTable(pool, block_size=1, max_sequences=1, max_blocks=2, recompute_last=False)
    chains = [hash_blocks([i, i + 1], [0, 2], block_size=1)[0] for i in (10, 20, 30, 40)]
    for hashes in chains:
        table.free(table.admit([2], hashes=hashes, hash_offsets=[0, 2]).handles)
    assert below.tier_of(keys_of(chains[0])).tolist() == [1, 1]
    _, loaded = admit_over_tiers(table, below, 2, hashes=chains[0])
    assert loaded.tolist() == [1, 1]
    assert below.flows.up.tolist() == [2, 0]  # over the CPU, as the tiers promote


def test_only_the_leading_part_counts_and_the_gpu_part_is_not_read():
    below = tiers_below(8)
    pool = BlockAllocator(4, sink=sink_into(below))
    table = BlockTable(pool, block_size=1, max_sequences=2, max_blocks=4, recompute_last=False)
    chain, _ = hash_blocks([1, 2, 3, 4], [0, 4], block_size=1)
    table.free(table.admit([1], hashes=chain[:1], hash_offsets=[0, 1]).handles)
    below.access(keys_of(chain[[1, 3]]))  # block 2 is nowhere
    admission, loaded = admit_over_tiers(table, below, 4, hashes=chain)
    assert (admission.hit_blocks.tolist(), loaded.tolist()) == ([1], [0])


def test_a_sink_that_fails_keeps_the_gpu_as_it_was():
    below = tiers_below(1)
    write = sink_into(below)

    def one_at_a_time(ids, hashes):
        if len(ids) > 1:
            raise CapacityError("one at a time", requested=len(ids), available=1)
        write(ids, hashes)

    pool = BlockAllocator(2, sink=one_at_a_time)
    pool.register(pool.allocate(2), [71, 72])
    pool.release([0, 1])
    before = pool.snapshot()
    with pytest.raises(CapacityError, match="one at a time"):
        pool.allocate(2)
    assert all(np.array_equal(before[name], now) for name, now in pool.snapshot().items())
    assert below.occupancy.tolist() == [0]
    pool.allocate(1)
    assert below.tier_of([71, 72]).tolist() == [0, 1]


def test_an_admission_that_does_not_fit_leaves_the_gpu_as_it_was():
    below = tiers_below(4)
    pool = BlockAllocator(2, sink=sink_into(below))
    table = BlockTable(pool, block_size=1, max_sequences=2, max_blocks=2, recompute_last=False)
    first, second = (hash_blocks([i, i + 1], [0, 2], block_size=1)[0] for i in (10, 20))
    below.access(keys_of(second))
    table.admit([2], hashes=first, hash_offsets=[0, 2])
    before = {**pool.snapshot(), **table.snapshot()}
    with pytest.raises(CapacityError):
        admit_over_tiers(table, below, 2, hashes=second)
    after = {**pool.snapshot(), **table.snapshot()}
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert below.tier_of(keys_of(second)).tolist() == [0, 0]


@given(
    gpu=st.integers(3, 5),
    cpu=st.integers(1, 5),
    ssd=st.integers(1, 5),
    requests=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), max_size=25),
)
def test_an_allocator_over_tiers_is_lists_of_blocks(gpu, cpu, ssd, requests):
    """Requests one after the other: what each hits, loads and computes, and where all blocks are."""
    below = tiers_below(cpu, ssd)
    pool = BlockAllocator(gpu, sink=sink_into(below))
    table = BlockTable(pool, block_size=1, max_sequences=1, max_blocks=3, recompute_last=False)
    world = WorldOverTiers(gpu, (cpu, ssd))
    seen = {}
    for tokens in requests:
        hashes, _ = hash_blocks(tokens, [0, len(tokens)], block_size=1)
        paths = [tuple(tokens[: i + 1]) for i in range(len(tokens))]
        seen.update(zip(paths, hashes, strict=True))
        hits, loaded = world.serve(paths)
        admission, read_from = admit_over_tiers(table, below, len(tokens), hashes=hashes)
        assert (admission.hit_blocks.tolist(), read_from.tolist()) == ([hits], loaded)
        table.free(admission.handles)

        for path, value in seen.items():
            one = np.array([value])
            assert (pool.lookup(one)[0] >= 0) == (path in world.gpu)
            assert below.tier_of(keys_of(one))[0] == world.tier_of(path)
        for part in (pool, table, below):
            part.check()
    # Every block that was evicted had been written below first.
    assert pool.stats().evictions == world.evictions


# --- a radix tree whose values are blocks


def blocks_in(tree):
    """Blocks of all prompts in the tree, by path."""
    columns = tree.columns
    leaves = [i for i, parent in enumerate(columns["parent"]) if parent >= 0 and columns["num_children"][i] == 0]
    blocks = {}
    for leaf in leaves:
        tokens = tree.tokens_of(leaf)
        for i, block in enumerate(tree.peek(tokens).values.tolist()):
            blocks[tuple(tokens[: (i + 1) * tree.page_size].tolist())] = block
    return blocks


def check_together(tree, pool):
    """The tree holds each of its blocks once, and nobody else holds any."""
    tree.check()
    pool.check()
    blocks = blocks_in(tree)
    assert len(set(blocks.values())) == len(blocks) == tree.cached_tokens // tree.page_size == pool.num_held
    assert (pool.ref_count[list(blocks.values())] == 1).all()
    return blocks


def test_a_tree_shares_blocks_and_gives_them_back():
    pool = BlockAllocator(4)
    tree = tree_over(pool, block_size=2)
    first, ids = admit_to_tree(tree, pool, [1, 2, 3, 4, 5])
    assert ids.tolist() == [0, 1]  # the fifth token fills no block
    second, ids = admit_to_tree(tree, pool, [1, 2, 7, 8])
    assert ids.tolist() == [0, 2]
    assert check_together(tree, pool) == {(1, 2): 0, (1, 2, 3, 4): 1, (1, 2, 7, 8): 2}
    # root -> 1 2 -> 3 4 (locked), 7 8 (locked): nothing can go
    assert tree.evict(100).num_tokens == 0
    tree.unlock(first)
    gone = tree.evict(100)
    assert gone.values.tolist() == [1]
    pool.release(gone.values)
    assert check_together(tree, pool) == {(1, 2): 0, (1, 2, 7, 8): 2}
    assert pool.num_free == 2
    tree.unlock(second)


def test_locks_hold_blocks_and_a_prompt_that_finds_no_room_changes_nothing():
    pool = BlockAllocator(2)
    tree = tree_over(pool, block_size=1)
    lock, _ = admit_to_tree(tree, pool, [1, 2])
    before = check_together(tree, pool)
    with pytest.raises(CapacityError, match=r"admit 1 blocks: 0 are free, 0 tokens evictable") as refused:
        admit_to_tree(tree, pool, [1, 3])
    assert (refused.value.requested, refused.value.available) == (1, 0)
    assert check_together(tree, pool) == before
    assert tree.protected_tokens == 2
    tree.unlock(lock)
    assert tree.protected_tokens == 0
    _, ids = admit_to_tree(tree, pool, [1, 3])
    assert ids.tolist() == [0, 1]  # the block of 2 was released and taken again
    assert check_together(tree, pool) == {(1,): 0, (1, 3): 1}


def test_what_a_prompt_finds_does_not_go_to_make_room_for_its_rest():
    pool = BlockAllocator(3)
    tree = tree_over(pool, block_size=1)
    for tokens in ([1], [2, 3]):
        tree.unlock(admit_to_tree(tree, pool, tokens)[0])
    _, ids = admit_to_tree(tree, pool, [1, 5])  # [1] is the oldest, and the only one that is of use
    assert ids[0] == 0
    assert set(check_together(tree, pool)) == {(1,), (1, 5), (2,)}


def test_a_tree_over_a_pool_needs_values_and_whole_blocks():
    pool = BlockAllocator(2)
    with pytest.raises(ValueError, match="tree must keep a value per page"):
        admit_to_tree(RadixTree(8), pool, [1, 2])
    with pytest.raises(TypeError, match="tokens"):
        admit_to_tree(tree_over(pool, block_size=1), pool, [0.5])


@given(
    num_blocks=st.integers(1, 6),
    block_size=st.integers(1, 2),
    steps=st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 1), max_size=8)), max_size=25),
)
def test_a_tree_over_an_allocator_is_a_dictionary_of_blocks(num_blocks, block_size, steps):
    """Requests that stay for a while or end at once, against paths in a dictionary."""
    pool = BlockAllocator(num_blocks)
    tree = tree_over(pool, block_size=block_size)
    plain = TreeOfBlocks(num_blocks, block_size)
    running, blocks = [], {}
    for stays, tokens in steps:
        wanted = plain.admit(tokens)
        if wanted is None:
            with pytest.raises(CapacityError):
                admit_to_tree(tree, pool, tokens)
            if running:  # let the oldest finish, as a scheduler would
                lock, path = running.pop(0)
                tree.unlock(lock)
                plain.unlock(path)
        else:
            lock, ids = admit_to_tree(tree, pool, tokens)
            known, count = wanted
            assert ids[: len(known)].tolist() == [blocks[path] for path in known]
            assert len(ids) == count
            path = plain.paths(tokens)
            if stays:
                running.append((lock, path))
            else:
                tree.unlock(lock)
                plain.unlock(path)
        blocks = check_together(tree, pool)
        assert set(blocks) == set(plain.locks)
        assert tree.protected_tokens == block_size * sum(count > 0 for count in plain.locks.values())
