"""Blocks, worked by hand: what is refused and how it is said, then one case of each kind, then laws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarray import (
    BlockAllocator,
    BlockStateError,
    BlockTable,
    CapacityError,
    InvariantError,
    OversizeError,
    TokenTable,
)
from kvarray.block import CLEARED, REMOVED, STORED
from kvarray.block import pool as block_pool
from kvarray.hashing import hash_blocks, image_block_keys, namespace_hash


def table_of(
    num_blocks, *, block_size=4, max_sequences=8, max_blocks=8, watermark_blocks=0, recompute_last=True, **pool
):
    return BlockTable(
        BlockAllocator(num_blocks, **pool),
        block_size=block_size,
        max_sequences=max_sequences,
        max_blocks=max_blocks,
        watermark_blocks=watermark_blocks,
        recompute_last=recompute_last,
    )


def admit(table, num_tokens, hashes=()):
    """Admit one sequence; returns its handle as an array of one."""
    return table.admit([num_tokens], hashes=hashes, hash_offsets=[0, len(hashes)]).handles


def ids_of(table, handles):
    return table.tables(handles)[0].tolist()


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "random"}, r"policy must be a function or one of fifo, .*lru.*: got 'random'"),
        ({"policy": "priority"}, "policy must read columns that blocks have .* reads 'priority'"),
        ({"policy": lambda columns: columns["color"]}, r"policy must read columns that blocks have .* reads 'color'"),
        ({"release_order": "front"}, "release_order must be one of unhashed_first, all_to_tail: got 'front'"),
        ({"removed_at": "never"}, "removed_at must be one of last_copy, every_copy"),
        ({"num_blocks": 0}, "num_blocks must be 1 or more: got 0"),
    ],
)
def test_a_pool_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BlockAllocator(**{"num_blocks": 4, **options})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: p.allocate(-1), ValueError, "count must be 0 or more: got -1"),
        (lambda p: p.allocate(3), CapacityError, "allocate 3 blocks: 1 are free and 1 cached"),
        (lambda p: p.release([4]), ValueError, r"block_ids must be less than 4: block_ids\[0\] = 4"),
        (lambda p: p.release([0, -1]), ValueError, r"block_ids must be 0 or more: block_ids\[1\] = -1"),
        (lambda p: p.release([0, 3]), BlockStateError, r"release \[3\]: nobody holds them"),
        (
            lambda p: p.release([0, 1, 1]),
            BlockStateError,
            r"release \[1\]: they come more often than they have holders",
        ),
        (lambda p: p.release([[0]]), ValueError, r"block_ids must be one-dimensional: got shape \(1, 1\)"),
        (lambda p: p.release([0.0]), TypeError, "block_ids must be integers: got float64"),
        (lambda p: p.release([True]), TypeError, "block_ids must be integers: got bool"),
        (lambda p: p.hold([0, 3]), BlockStateError, r"hold \[3\]: they are free"),
        (lambda p: p.touch([3]), BlockStateError, r"touch \[3\]: they are free"),
        (lambda p: p.register([2], [7]), BlockStateError, r"register \[2\]: nobody holds them"),
        (lambda p: p.register([0], [7]), BlockStateError, r"register \[0\]: they have a hash"),
        (lambda p: p.register([1, 1], [7, 8]), BlockStateError, r"register \[1\]: they come twice"),
        (lambda p: p.register([1], [0]), ValueError, "hashes must not be 0"),
        (lambda p: p.register([1], [7, 8]), ValueError, "block_ids and hashes must have the same length: got 1 and 2"),
        (lambda p: p.register([1], [7], parent_hashes=[-1]), ValueError, "parent_hashes must be 0 or more"),
        (lambda p: p.lookup([0]), ValueError, "hashes must not be 0"),
        (lambda p: p.evict([9]), ValueError, "block_ids must be less than 4"),
        (lambda p: p.reset(), BlockStateError, r"reset \[0, 1\]: somebody holds them"),
        (lambda p: p.drain_events(), ValueError, "events must be True"),
        (lambda p: p.restore({}), ValueError, "snapshot must hold an array 'ref_count'"),
    ],
)
def test_calls_of_a_pool_are_refused(call, error, message):
    pool = BlockAllocator(4)  # block 0 held and hashed, 1 held, 2 cached, 3 free
    pool.allocate(3)
    pool.register([0, 2], [50, 52])
    pool.release([2])
    before = pool.snapshot()
    with pytest.raises(error, match=message):
        call(pool)
    after = pool.snapshot()
    assert all(np.array_equal(after[name], before[name]) for name in before)
    pool.check()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t, a, old: t.lengths(old), BlockStateError, "use sequences .* they were freed or never admitted"),
        (lambda t, a, old: t.append(old, [1]), BlockStateError, "freed or never admitted"),
        (lambda t, a, old: t.free([7]), BlockStateError, "freed or never admitted"),
        (lambda t, a, old: t.free([-1]), BlockStateError, "freed or never admitted"),
        (lambda t, a, old: t.free(np.append(a, a)), ValueError, r"handles must be different: handles\[0\] = "),
        (lambda t, a, old: t.admit([0]), ValueError, r"num_tokens must be 1 or more: num_tokens\[0\] = 0"),
        (lambda t, a, old: t.admit([4], hashes=[1, 2], hash_offsets=[0, 2]), ValueError, "no more hashes than blocks"),
        (lambda t, a, old: t.admit([4], hashes=[1]), ValueError, "hash_offsets must begin at 0 and end at .* 1: got 0"),
        (lambda t, a, old: t.admit([4, 4], hashes=[1], hash_offsets=[0, 1]), ValueError, "than there are sequences, 2"),
        (lambda t, a, old: t.admit([21]), OversizeError, "sequence 0 of the batch needs 6 blocks: a row has 5"),
        (lambda t, a, old: t.admit([1] * 3), CapacityError, "admit 3 sequences: 2 of 3 rows are free"),
        (lambda t, a, old: t.admit([20]), CapacityError, "admit: 5 blocks are needed, 4 are free or cached"),
        (lambda t, a, old: t.append(a, [1, 2]), ValueError, "handles and num_tokens must have the same length"),
        (lambda t, a, old: t.append(a, [-1]), ValueError, "num_tokens must be 0 or more"),
        (lambda t, a, old: t.append(a, [15]), OversizeError, "needs 6 blocks"),
        (lambda t, a, old: t.append(a, [2], hashes=[9, 9], hash_offsets=[0, 2]), ValueError, "full and not hashed"),
        (lambda t, a, old: t.append(a, [2**63 - 1]), OversizeError, "needs 2305843009213693954 blocks: a row has 5"),
        (lambda t, a, old: t.append(a, [2**63 - 6]), OversizeError, "needs 2305843009213693952 blocks"),
        (lambda t, a, old: t.append(a, [2**63 - 8]), OversizeError, "needs 2305843009213693952 blocks"),
        (lambda t, a, old: t.append(a, [2**63 - 1], hashes=[9], hash_offsets=[0, 1]), OversizeError, "a row has 5"),
        (lambda t, a, old: t.fork(np.repeat(a, 3)), CapacityError, "fork 3 sequences: 2 of 3 rows are free"),
        (lambda t, a, old: t.write(a, [6]), ValueError, r"positions must be before the end .* positions\[0\] = 6"),
        (lambda t, a, old: t.write(a, [2**63 - 1]), ValueError, r"positions must be before the end"),
        (lambda t, a, old: t.slots(a, [2**63 - 1]), ValueError, r"positions must be before the end"),
        (lambda t, a, old: t.slots(a, [-1]), ValueError, "positions must be 0 or more"),
        (lambda t, a, old: t.truncate(a, [7]), ValueError, "num_tokens must be no more than the sequence has"),
        (lambda t, a, old: t.truncate(a, [2**63 - 1]), ValueError, "num_tokens must be no more than the sequence has"),
    ],
)
def test_calls_of_a_table_are_refused(call, error, message):
    table = table_of(6, max_sequences=3, max_blocks=5)
    old = admit(table, 3)
    table.free(old)
    running = admit(table, 6, [41])  # takes the row of the one freed
    before = table.snapshot(), table.allocator.snapshot()
    with pytest.raises(error, match=message):
        call(table, running, old)
    for was, now in zip(before, (table.snapshot(), table.allocator.snapshot()), strict=True):
        assert all(np.array_equal(was[name], now[name]) for name in was)
    table.check()


@pytest.mark.parametrize("num_tokens", [2**63 - 1, 2**63 - 3, 2**63 - 4])
@pytest.mark.parametrize("block_size", [1, 4, 2**32])
@pytest.mark.parametrize("ahead", [[], [3]])
def test_lengths_near_64_bits_are_too_long(num_tokens, block_size, ahead):
    table = table_of(6, block_size=block_size, max_blocks=5)
    running = admit(table, 3)
    before = table.snapshot(), table.allocator.snapshot()
    needs = {"admit": -(-num_tokens // block_size), "append": -(-(num_tokens + 3) // block_size)}
    with pytest.raises(OversizeError, match=f"sequence {len(ahead)} of the batch") as admission:
        table.admit([*ahead, num_tokens])
    assert (admission.value.requested, admission.value.available) == (needs["admit"], 5)
    with pytest.raises(OversizeError, match="sequence 0 of the batch") as appending:
        table.append(running, [num_tokens])
    assert (appending.value.requested, appending.value.available) == (needs["append"], 5)
    for was, now in zip(before, (table.snapshot(), table.allocator.snapshot()), strict=True):
        assert all(np.array_equal(was[name], now[name]) for name in was)
    table.check()


def test_a_batch_with_one_append_near_64_bits_is_too_long():
    table = table_of(6, max_blocks=5)
    running = table.admit([3, 3]).handles
    before = table.snapshot(), table.allocator.snapshot()
    with pytest.raises(OversizeError, match="sequence 1 of the batch needs 2305843009213693953 blocks"):
        table.append(running, [1, 2**63 - 1])
    for was, now in zip(before, (table.snapshot(), table.allocator.snapshot()), strict=True):
        assert all(np.array_equal(was[name], now[name]) for name in was)
    table.check()


@pytest.mark.parametrize("num_blocks", [1, 3, 4])
def test_slots_fit_64_bits(num_blocks):
    most = (2**63 - 1) // num_blocks - 1
    table = table_of(num_blocks, block_size=most, max_blocks=num_blocks)
    running = admit(table, most)
    with pytest.raises(OversizeError):
        table.append(running, [2**63 - 1])
    assert table.slots(running, [most - 1]).tolist() == [most - 1]
    with pytest.raises(ValueError, match=f"block_size must be less than {most + 1}: got"):
        table_of(num_blocks, block_size=most + 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockAllocator(3, sink=3), "sink must be a function or None: got 3"),
        (lambda: BlockAllocator(3, events="yes"), "events must be a bool: got 'yes'"),
        (
            lambda: BlockTable(3, block_size=4, max_sequences=1, max_blocks=1),
            "allocator must be a BlockAllocator: got 3",
        ),
        (lambda: table_of(3, recompute_last="no"), "recompute_last must be a bool: got 'no'"),
        (lambda: TokenTable(3), "table must be a BlockTable: got 3"),
        (lambda: TokenTable(table_of(3), hasher=3), "hasher must be a function: got 3"),
    ],
)
def test_parts_of_other_types_are_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_a_capacity_error_says_what_was_asked_and_what_there_was():
    pool = BlockAllocator(3)
    pool.allocate(1)
    with pytest.raises(CapacityError) as caught:
        pool.allocate(5)
    assert (caught.value.requested, caught.value.available) == (5, 2)


def test_reference_counts_do_not_overflow():
    pool = BlockAllocator(1)
    pool.allocate(1)
    state = pool.snapshot()
    state["ref_count"][:] = 2**62
    pool.restore(state)
    with pytest.raises(BlockStateError, match=r"hold \[0\]: they have too many holders"):
        pool.hold([0])


# One case of each kind


def test_01_blocks_come_in_order_and_go_back_to_the_front():
    pool = BlockAllocator(4)
    assert pool.allocate(2).tolist() == [0, 1]
    pool.release([1, 0])
    assert pool.queue().tolist() == [1, 0, 2, 3]  # without a hash: reused first
    assert (pool.num_free, pool.num_cached, pool.num_held) == (4, 0, 0)


def test_02_a_released_block_with_a_hash_is_cached_at_the_tail():
    pool = BlockAllocator(3)
    pool.register(pool.allocate(2), [71, 72])
    pool.release([1, 0])  # deepest first
    assert pool.queue().tolist() == [2, 1, 0]
    assert (pool.num_free, pool.num_cached, pool.num_held) == (1, 2, 0)
    assert pool.usage == 0.0  # a cached block is not used


def test_03_earlier_releases_all_went_to_the_tail():
    pool = BlockAllocator(4, release_order="all_to_tail")
    pool.allocate(2)
    pool.register([0], [71])
    pool.release([1, 0])
    assert pool.queue().tolist() == [2, 3, 1, 0]


def test_04_the_least_recently_released_block_is_evicted():
    pool = BlockAllocator(3)
    pool.register(pool.allocate(3), [71, 72, 73])
    pool.release([1])
    pool.release([2, 0])
    assert pool.allocate(2).tolist() == [1, 2]
    assert pool.lookup([71, 72, 73]).tolist() == [0, -1, -1]
    assert pool.stats().evictions == 2


def test_05_a_held_block_is_never_evicted():
    pool = BlockAllocator(2)
    pool.register(pool.allocate(2), [71, 72])
    pool.release([0, 1])
    pool.hold([0])
    assert pool.allocate(1).tolist() == [1]
    with pytest.raises(CapacityError):
        pool.allocate(1)
    assert pool.lookup([71]).tolist() == [0]


def test_06_a_touch_makes_recent():
    pool = BlockAllocator(3)
    pool.register(pool.allocate(3), [71, 72, 73])
    pool.release([0, 1, 2])
    pool.touch([0, 1, 0])  # the last time counts
    assert pool.queue().tolist() == [2, 1, 0]


def test_07_a_pin_is_one_holder_more():
    pool = BlockAllocator(1)
    pool.register(pool.allocate(1), [71])
    pool.hold([0, 0])
    pool.release([0, 0])
    assert pool.ref_count.tolist() == [1]
    pool.release([0])
    assert pool.num_cached == 1


def test_08_a_lookup_returns_the_oldest_copy():
    pool = BlockAllocator(3)
    pool.allocate(3)
    pool.register([2, 0, 1], [71, 71, 71])
    assert pool.lookup([71]).tolist() == [2]
    assert pool.stats().duplicates == 2
    pool.evict([2])
    assert pool.lookup([71]).tolist() == [0]


def test_09_eviction_on_demand_keeps_the_place_in_the_queue_and_the_holders():
    pool = BlockAllocator(3)
    pool.register(pool.allocate(3), [71, 72, 73])
    pool.release([0, 1])
    assert pool.evict([1, 2, 1]).tolist() == [1, 2]
    assert pool.queue().tolist() == [0, 1]
    assert (pool.num_free, pool.num_cached, pool.num_held) == (1, 1, 1)


def test_10_a_reset_forgets_all_hashes_and_keeps_the_queue():
    pool = BlockAllocator(3, events=True)
    pool.register(pool.allocate(3), [71, 72, 73])
    pool.release([2, 0, 1])
    pool.reset()
    assert pool.queue().tolist() == [2, 0, 1]
    assert pool.num_cached == 0
    assert pool.drain_events().kind.tolist() == [STORED] * 3 + [CLEARED]


def test_11_scenario_fork_copy_on_write_evict():
    """The first scenario of the spec, number for number."""
    table = table_of(3)
    pool = table.allocator
    parent = admit(table, 8, [71, 72])
    child = table.fork(parent)
    assert pool.ref_count[ids_of(table, parent)].tolist() == [2, 2]
    table.write(parent, [0])
    both = np.concatenate((parent, child))
    assert pool.num_held == 3
    assert table.stats().copies == 1
    assert pool.ref_count[table.tables(both)[0]].tolist() == [1, 2, 1, 2]

    table.free(child)
    assert (pool.num_free, pool.num_cached) == (0, 1)
    pool.allocate(1)
    assert pool.stats().evictions == 1
    assert pool.num_free == 0


def test_12_a_second_prompt_shares_the_prefix():
    table = table_of(8)
    admit(table, 10, [71, 72])  # blocks 0, 1, 2
    second = table.admit([9], hashes=[71, 72], hash_offsets=[0, 2])
    assert second.hit_tokens.tolist() == [8]
    assert ids_of(table, second.handles) == [0, 1, 3]
    assert (table.stats().block_queries, table.stats().block_hits) == (4, 2)


def test_13_a_fully_cached_prompt_recomputes_its_last_block():
    table = table_of(4)
    admit(table, 8, [71, 72])
    again = table.admit([8], hashes=[71, 72], hash_offsets=[0, 2])
    assert again.hit_blocks.tolist() == [1]
    assert ids_of(table, again.handles) == [0, 2]
    assert table.allocator.stats().duplicates == 1  # blocks 1 and 2 have one hash

    eager = table_of(4, recompute_last=False)
    admit(eager, 8, [71, 72])
    assert eager.admit([8], hashes=[71, 72], hash_offsets=[0, 2]).hit_blocks.tolist() == [2]


def test_14_a_hit_stops_at_the_first_miss():
    table = table_of(4)
    admit(table, 13, [71, 72, 73])
    table.allocator.evict([1])
    assert table.allocator.stats().orphans == 1  # block 2, whose parent is gone
    table.free(admit_handles := table.fork([]))  # nothing at all is fine
    assert len(admit_handles) == 0
    pool = table.allocator
    assert pool.lookup([71, 72, 73]).tolist() == [0, -1, 2]


def test_15_cached_hits_take_room_as_well():
    table = table_of(4)
    first = admit(table, 12, [71, 72, 73])
    table.free(first)  # 3 cached, 1 free
    pool = table.allocator
    pool.allocate(1)
    with pytest.raises(CapacityError) as caught:  # 2 hits leave the queue, 2 new blocks do not fit
        table.admit([16], hashes=[71, 72], hash_offsets=[0, 2])
    assert (caught.value.requested, caught.value.available) == (4, 3)
    assert pool.num_cached == 3


def test_16_an_admission_leaves_the_watermark_and_an_append_may_take_it():
    table = table_of(4, watermark_blocks=1)
    running = admit(table, 12)
    with pytest.raises(CapacityError):
        table.admit([1])
    table.append(running, [4])
    assert table.allocator.num_available == 0
    with pytest.raises(OversizeError, match="the pool 4, 1 of them kept back"):
        table.admit([16])


def test_17_a_decode_step_takes_a_block_where_one_is_full():
    table = table_of(8)
    handles = table.admit([4, 3, 5]).handles  # blocks 0 | 1 | 2 3
    table.append(handles, [1, 1, 1])
    assert table.tables(handles)[0].tolist() == [0, 4, 1, 2, 3]
    assert table.slots(handles, [4, 3, 5]).tolist() == [16, 7, 13]


def test_18_appended_blocks_are_registered_when_they_are_full():
    table = table_of(4, events=True)
    handle = admit(table, 6, [71])
    table.append(handle, [2], hashes=[72], hash_offsets=[0, 1])
    events = table.allocator.drain_events()
    assert events.block_hash.tolist() == [71, 72]
    assert events.parent_hash.tolist() == [0, 71]
    assert table.last_hash(handle).tolist() == [72]


def test_19_forks_that_append_copy_the_block_that_is_not_full():
    table = table_of(6)
    parent = admit(table, 6)  # blocks 0, 1
    family = np.concatenate((parent, table.fork(np.repeat(parent, 2))))
    copies = table.append(family, [1, 1, 1])
    assert copies.source.tolist() == [1, 1]
    assert copies.target.tolist() == [2, 3]
    assert table.tables(family)[0].tolist() == [0, 2, 0, 3, 0, 1]  # the last writes in place
    assert table.allocator.ref_count.tolist() == [3, 1, 1, 1, 0, 0]


def test_20_a_write_in_place_drops_the_hash():
    table = table_of(4)
    handle = admit(table, 8, [71, 72])
    assert len(table.write(handle, [5]).source) == 0
    assert table.allocator.lookup([71, 72]).tolist() == [0, -1]
    assert table.num_hashed(handle).tolist() == [1]


def test_21_truncation_releases_the_deepest_first():
    table = table_of(4)
    handle = admit(table, 16, [71, 72, 73, 74])
    table.truncate(handle, [5])
    assert table.allocator.queue().tolist() == [3, 2]
    assert table.lengths(handle).tolist() == [5]
    table.append(handle, [1])  # into block 1, which is full under hash 72
    assert table.allocator.lookup([71, 72]).tolist() == [0, -1]


def test_22_a_handle_dies_with_its_sequence_though_the_row_lives_on():
    table = table_of(4, max_sequences=1)
    old = admit(table, 1)
    table.free(old)
    new = admit(table, 2)
    assert old.tolist() != new.tolist()
    with pytest.raises(BlockStateError) as caught:
        table.lengths(old)
    assert caught.value.ids == tuple(old.tolist())


def test_23_removed_is_said_when_the_last_copy_goes():
    for removed_at, expected in (("last_copy", [[], [71]]), ("every_copy", [[71], [71]])):
        pool = BlockAllocator(2, events=True, removed_at=removed_at)
        pool.register(pool.allocate(2), [71, 71])
        pool.drain_events()
        said = []
        for i in (0, 1):
            pool.evict([i])
            events = pool.drain_events()
            assert set(events.kind.tolist()) <= {REMOVED}
            said.append(events.block_hash.tolist())
        assert said == expected


def test_24_lfu_fifo_and_a_function_of_ones_own():
    def evicted(policy):
        pool = BlockAllocator(3, policy=policy)
        pool.register(pool.allocate(3), [91, 92, 93])
        pool.hold([0, 0])  # block 0 is used most
        pool.release([0, 0, 1, 2, 0])  # and released last
        pool.touch([1, 1, 1, 1])
        return pool.allocate(1).tolist()

    assert evicted("fifo") == [0]
    assert evicted("lru") == [2]
    assert evicted("lfu") == [2]
    assert evicted(lambda columns: -columns["last_use"]) == [1]
    assert evicted(lambda columns: columns["block_hash"] % 3) == [2]
    assert evicted(lambda columns: np.zeros(len(columns["uses"]))) == [0]  # ties go to the lowest id


def test_25_a_prompt_of_a_batch_hits_what_the_one_before_it_brought():
    table = table_of(8)
    admission = table.admit([9, 9], hashes=[71, 72, 71, 73], hash_offsets=[0, 2, 4])
    assert admission.hit_blocks.tolist() == [0, 1]
    assert table.tables(admission.handles)[0].tolist() == [0, 1, 2, 0, 3, 4]


def test_26_a_prompt_of_a_batch_loses_what_the_one_before_it_evicted():
    table = table_of(3)
    table.free(admit(table, 12, [71, 72, 73]))  # queue 2 1 0
    admission = table.admit([4, 5], hashes=[81, 71], hash_offsets=[0, 1, 2])
    assert admission.hit_blocks.tolist() == [0, 1]
    with pytest.raises(CapacityError):  # the first would evict what the second hits, and then there is no room
        table.admit([4], hashes=[91], hash_offsets=[0, 1])


# A sink, namespaces, tokens


class Tier:
    """A stand-in for a slower tier: takes blocks as long as it has room."""

    def __init__(self, capacity):
        self.capacity, self.kept = capacity, {}

    def __call__(self, block_ids, hashes):
        if len(self.kept) + len(hashes) > self.capacity:
            raise CapacityError("tier is full", requested=len(hashes), available=self.capacity - len(self.kept))
        self.kept.update(zip(hashes.tolist(), block_ids.tolist(), strict=True))


@pytest.mark.parametrize("policy", ["lru", "fifo"])
def test_victims_sink_before_they_are_reused(policy):
    tier = Tier(2)
    pool = BlockAllocator(4, sink=tier, policy=policy, events=True)
    pool.register(pool.allocate(3), [71, 72, 73])
    pool.release([2, 1, 0])
    assert len(pool.allocate(3)) == 3  # the free one, and two victims
    assert tier.kept == ({73: 2, 72: 1} if policy == "lru" else {71: 0, 72: 1})
    before = pool.snapshot()
    with pytest.raises(CapacityError, match="tier is full"):
        pool.allocate(1)
    after = pool.snapshot()
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_a_sink_that_refuses_leaves_an_admission_undone(policy):
    table = table_of(3, sink=Tier(0), policy=policy, events=True)
    table.free(admit(table, 12, [71, 72, 73]))
    before = table.snapshot(), table.allocator.snapshot()
    with pytest.raises(CapacityError, match="tier is full"):
        table.admit([8], hashes=[71, 99], hash_offsets=[0, 2])  # holds block 0, then needs a victim
    with pytest.raises(CapacityError, match="tier is full"):  # and again after a first run that succeeds
        table.admit([4, 8], hashes=[71, 71, 99], hash_offsets=[0, 1, 3])
    for was, now in zip(before, (table.snapshot(), table.allocator.snapshot()), strict=True):
        assert all(np.array_equal(was[name], now[name]) for name in was)
    table.check()
    table.allocator.check()


def test_a_sink_is_not_asked_for_what_is_evicted_on_demand():
    pool = BlockAllocator(1, sink=Tier(0))
    pool.register(pool.allocate(1), [71])
    assert pool.evict([0]).tolist() == [0]


def test_the_same_tokens_in_two_namespaces_share_nothing():
    texts = TokenTable(table_of(8, block_size=2))
    tokens, offsets = [1, 2, 3, 4, 5] * 3, [0, 5, 10, 15]
    names = [namespace_hash(lora="a"), namespace_hash(salt="a"), namespace_hash(lora="a")]
    assert texts.admit(tokens, offsets, namespaces=names).hit_blocks.tolist() == [0, 0, 2]


def test_images_part_what_placeholders_have_in_common():
    texts = TokenTable(table_of(16, block_size=2))
    tokens, offsets = [7, 7, 0, 0, 7] * 3, [0, 5, 10, 15]
    keys = image_block_keys(
        ["cat", "dog", "cat"], rows=[0, 1, 2], starts=[2] * 3, lengths=[2] * 3, offsets=offsets, block_size=2
    )
    assert texts.admit(tokens, offsets, block_keys=keys).hit_blocks.tolist() == [0, 1, 2]


def weak_hasher(tokens, offsets, **options):
    """Chained hashes of which only one bit is left."""
    hashes, hash_offsets = hash_blocks(tokens, offsets, **options)
    return hashes % np.uint64(2) + np.uint64(1), hash_offsets


def test_collisions_are_noticed_where_tokens_are_at_hand():
    """With hashes of one bit everything collides, and still no prompt gets blocks of other tokens."""
    texts = TokenTable(table_of(64, block_size=1, max_sequences=32), hasher=weak_hasher)
    rng = np.random.default_rng(5)
    prompts = rng.integers(0, 3, (20, 4))
    for prompt in prompts:
        admission = texts.admit(prompt, [0, 4])
        assert texts.tokens(admission.handles)[0].tolist() == prompt.tolist()
    assert texts.table.stats().collisions > 0


@settings(max_examples=60)
@given(st.data())
def test_texts_stay_what_they_are(data):
    """Admissions, appends, writes, forks and frees, with good and bad hashes: each sequence keeps its own tokens."""
    size = data.draw(st.integers(1, 3))
    hasher = data.draw(st.sampled_from([hash_blocks, weak_hasher]))
    texts = TokenTable(table_of(24, block_size=size, max_sequences=5, max_blocks=8), hasher=hasher)
    expected = {}
    symbols = st.integers(0, 1)
    for _ in range(data.draw(st.integers(1, 12))):
        kind = data.draw(st.sampled_from(["admit", "append", "write", "fork", "free"]))
        handles = data.draw(st.lists(st.sampled_from(sorted(expected)), unique=True, max_size=3)) if expected else []
        before = texts.table.snapshot(), texts.table.allocator.snapshot()
        try:
            if kind == "admit":
                rows = data.draw(st.lists(st.lists(symbols, min_size=1, max_size=7), max_size=3))
                admission = texts.admit([x for row in rows for x in row], np.cumsum([0, *map(len, rows)]))
                expected.update(zip(admission.handles.tolist(), rows, strict=True))
            elif kind == "append":
                rows = [data.draw(st.lists(symbols, max_size=4)) for _ in handles]
                texts.append(handles, [x for row in rows for x in row], np.cumsum([0, *map(len, rows)]))
                for handle, row in zip(handles, rows, strict=True):
                    expected[handle] = expected[handle] + row
            elif kind == "write":
                places = [data.draw(st.integers(0, len(expected[h]) - 1)) for h in handles]
                values = [data.draw(symbols) for _ in handles]
                texts.write(handles, places, values)
                for handle, place, value in zip(handles, places, values, strict=True):
                    expected[handle] = [*expected[handle][:place], value, *expected[handle][place + 1 :]]
            elif kind == "fork":
                for child, handle in zip(texts.fork(handles).tolist(), handles, strict=True):
                    expected[child] = expected[handle]
            else:
                texts.table.free(handles)
                for handle in handles:
                    del expected[handle]
        except CapacityError:
            for was, now in zip(before, (texts.table.snapshot(), texts.table.allocator.snapshot()), strict=True):
                assert all(np.array_equal(was[name], now[name]) for name in was)
        for handle, row in expected.items():
            assert texts.tokens([handle])[0].tolist() == row
        texts.table.check()
        texts.table.allocator.check()


# Laws


@given(st.lists(st.integers(0, 5), max_size=12))
def test_an_lru_key_function_is_the_queue(ids):
    """The same victims from the free queue and from the smallest `last_use`."""
    pools = [BlockAllocator(6), BlockAllocator(6, policy=lambda columns: columns["last_use"])]
    for pool in pools:
        pool.register(pool.allocate(6), np.arange(1, 7))
        pool.release([3, 1, 4, 0, 5, 2])
        pool.touch(np.array(ids, dtype=np.int64))
    assert pools[0].allocate(6).tolist() == pools[1].allocate(6).tolist()


def observed(table, handles):
    """All that can be seen of a table and its pool, events aside."""
    pool = table.allocator
    pool.check()
    table.check()
    seen = [
        *table.tables(handles), table.num_hashed(handles), table.last_hash(handles),
        pool.ref_count, pool.block_hash, pool.parent_hash, pool.queue(), pool.lookup(np.arange(1, 64)),
    ]  # fmt: skip
    return [array.tolist() for array in seen], pool.stats(), table.stats()


def one_call(rng, table, handles):
    """Draw what one sequence does next, as a function of a table with the same handles."""
    name = str(rng.choice(["admit", "append", "append", "fork", "write", "truncate", "free"]))
    symbols, size = rng.integers(0, 2, 4).tolist(), table.block_size
    if name == "admit" or not handles:
        hashes = np.array([int("1" + "".join(map(str, symbols[: i + 1])), 2) for i in range(4)], dtype=np.uint64)
        hashes = hashes[: rng.integers(0, 5)]
        count = np.array([max(1, len(hashes) * size + int(rng.integers(-1, 3)))])
        return lambda t: t.admit(count, hashes=hashes, hash_offsets=np.array([0, len(hashes)]))
    one = np.array([rng.choice(handles)])
    length = int(table.lengths(one)[0])
    if name == "append":
        count = int(rng.integers(0, 5))
        most = max((length + count) // size - int(table.num_hashed(one)[0]), 0)
        hashes = rng.integers(1, 64, most + 1).astype(np.uint64)[: rng.integers(0, most + 2)]
        return lambda t: t.append(one, np.array([count]), hashes=hashes, hash_offsets=np.array([0, len(hashes)]))
    if name == "write" or name == "truncate":
        place = np.array([rng.integers(0, length + 1)])
        return lambda t: getattr(t, name)(one, place)
    return lambda t: getattr(t, name)(one)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["unhashed_first", "all_to_tail"]), st.booleans())
def test_one_sequence_a_call_is_the_same_with_and_without_events(seed, release_order, is_loop):
    """A pool without events, sinks and key functions lets calls of one sequence take a shorter path."""
    rng, handles = np.random.default_rng(seed), []
    tables = [table_of(12, block_size=2, release_order=release_order, events=events) for events in (False, True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_pool, "FEW", block_pool.FEW if is_loop else 0)
        for _ in range(40):
            call, results = one_call(rng, tables[0], handles), []
            for table in tables:
                try:
                    got = call(table)
                    results.append([array.tolist() for array in got] if isinstance(got, tuple) else got)
                except (BlockStateError, CapacityError, OversizeError, ValueError) as error:
                    results.append(repr(error))
            assert str(results[0]) == str(results[1])
            tickets = tables[0].snapshot()["ticket"]
            handles = tickets[tickets > 0].tolist()
            assert observed(tables[0], handles) == observed(tables[1], handles)


@pytest.mark.parametrize("num_sequences", [1, 2])
def test_hashes_without_offsets_are_refused(num_sequences):
    table = table_of(8)
    handles = table.admit([3] * num_sequences).handles
    with pytest.raises(ValueError, match="hash_offsets must begin at 0 and end at the number of values, 1"):
        table.append(handles, [1] * num_sequences, hashes=[71])
    with pytest.raises(TypeError, match="hash_offsets must be integers"):
        table.admit([4], hashes=np.array([71], dtype=np.uint64), hash_offsets=[0.0, 1.0])
    assert table.lengths(handles).tolist() == [3] * num_sequences


@pytest.mark.parametrize("num_blocks", [1_000, 2**16, 2**16 + 1, 100_000, 2**20])
def test_a_block_takes_at_most_64_bytes(num_blocks):
    for policy in ("lru", "lfu", "fifo", "filo", "mru", "slru"):
        assert BlockAllocator(num_blocks, policy=policy).nbytes <= 64 * num_blocks

    def all_columns(columns):
        return columns["uses"], columns["created"], columns["last_use"]

    assert BlockAllocator(num_blocks, policy=all_columns).nbytes <= 64 * num_blocks + 12


@pytest.mark.parametrize("policy", ["lfu", "fifo", lambda c: (c["created"] < c["last_use"], c["created"])])
def test_ticks_counted_anew_keep_their_order(monkeypatch, policy):
    """With a clock that is set back every few steps, the same blocks are evicted in the same order."""

    def evicted():
        pool, rng, taken = BlockAllocator(8, policy=policy), np.random.default_rng(3), []
        for step in range(200):
            ids = pool.allocate(3)
            taken.append(ids.tolist())
            pool.register(ids, np.arange(3) + 3 * step + 1)
            pool.release(ids)
            pool.touch(rng.choice(np.flatnonzero(pool.block_hash), 3))
        return taken

    expected = evicted()
    monkeypatch.setattr(block_pool, "_MOST_TICKS", 25)
    assert evicted() == expected


def test_uses_stay_at_the_most_that_their_column_holds(monkeypatch):
    monkeypatch.setattr(block_pool, "_MOST_USES", 3)
    seen = []

    def policy(columns):
        seen.append(columns["uses"].tolist())
        return columns["uses"]

    pool = BlockAllocator(2, policy=policy)
    pool.register(pool.allocate(2), [5, 6])
    for _ in range(9):
        pool.touch([1])
    pool.release([0, 1])
    assert pool.allocate(1).tolist() == [0]
    assert seen[-1] == [1, 3]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10**6))
def test_the_cost_of_a_block_does_not_grow_with_the_work_done(num_blocks, batch, seed):
    """The queue's buffer is compacted in place: thousands of releases and touches stay within it."""
    rng = np.random.default_rng(seed)
    pool = BlockAllocator(num_blocks)
    size = pool.nbytes
    for step in range(30):
        ids = pool.allocate(min(batch, pool.num_available))
        is_named = rng.random(len(ids)) < 0.5
        pool.register(ids[is_named], rng.integers(1, 50, int(is_named.sum())))
        pool.release(rng.permutation(ids))
        pool.touch(np.flatnonzero(pool.block_hash))
        if step % 7 == 0:
            pool.reset()
        pool.check()
    assert pool.nbytes == size


def test_saved_state_comes_back(tmp_path):
    table = table_of(8, events=True, policy="lfu")
    admit(table, 10, [71, 72])
    kept = admit(table, 5, [71])
    table.allocator.save(tmp_path / "pool.npz")
    table.save(tmp_path / "table.npz")
    again = table_of(8, events=True, policy="lfu")
    again.allocator.load(tmp_path / "pool.npz")
    again.load(tmp_path / "table.npz")
    assert ids_of(again, kept) == ids_of(table, kept)
    assert again.allocator.drain_events().block_hash.tolist() == [71, 72]
    again.free(kept)
    with pytest.raises(ValueError, match=r"snapshot must hold 'ref_count' as int64 of shape \(4,\)"):
        BlockAllocator(4).load(tmp_path / "pool.npz")
    with pytest.raises(ValueError, match=r"snapshot must hold an array 'column\.created'"):
        BlockAllocator(8, policy="fifo").load(tmp_path / "pool.npz")


@pytest.mark.parametrize(
    ("name", "place", "value", "invariant"),
    [
        ("ref_count", 0, -1, "B1"),
        ("ref_count", 0, 0, "B2"),
        ("ref_count", 3, 1, "B2"),
        ("index.keys", 0, 5, "I2"),
        ("counters", 1, 3, "B4"),
        ("parent_hash", 3, 5, "B5"),
        ("queue", 0, 2, "Q2"),
        ("queue", 0, 9, "out of range"),
        ("index.links", 0, 9, "out of range"),
    ],
)
def test_what_is_broken_is_named_and_not_taken_over(name, place, value, invariant):
    pool = BlockAllocator(4)
    pool.register(pool.allocate(3), [71, 72, 73])
    pool.release([2])
    before = pool.snapshot()
    broken = pool.snapshot()
    broken[name][place] = value
    with pytest.raises(InvariantError, match=invariant):
        pool.restore(broken)
    after = pool.snapshot()
    assert all(np.array_equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(
    ("name", "place", "value", "invariant"),
    [
        ("num_tokens", 1, 3, "T1"),
        ("num_tokens", 0, 33, "T1: a row has more tokens than room"),
        ("num_tokens", 0, 2**63 - 1, "T1: a row has more tokens than room"),
        ("block_ids", (0, 0), 9, "T1"),
        ("block_ids", (0, 0), 3, "T2"),
        ("num_hashed", 0, 2, "T3"),
        ("ticket", 1, 2**32 + 1, "T4"),
        ("ticket", 1, -5, "T4"),
    ],
)
def test_what_is_broken_in_a_table_is_named(name, place, value, invariant):
    table = table_of(4)
    admit(table, 6, [71])
    broken = table.snapshot()
    broken[name][place] = value
    with pytest.raises(InvariantError, match=invariant):
        table.restore(broken)
    table.check()
