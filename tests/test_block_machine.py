"""Pool and table against their plain-Python twins: the same calls on both sides, the whole state compared after each.

Small pools and tiny alphabets, so that sharing, eviction, copies and refusals happen within a few steps. Every call is
made as a batch here and one by one there; illegal batches must raise and change nothing.
"""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvarray import BlockAllocator, BlockStateError, BlockTable, CapacityError, index
from kvarray.block import CLEARED, STORED, pool
from kvarray.policies import lru
from tests.reference.block import PoolReference, RefusedError, TableReference

FEW = index._FEW, pool.FEW
SYMBOLS = st.lists(st.integers(0, 1), max_size=4)  # contents of the full blocks of a sequence
POLICIES = {None: "lru", "lru": lambda columns: lru(columns), "lfu": "lfu", "fifo": "fifo"}


def chain(symbols):
    """Hashes that stand for whole prefixes: the symbols so far as binary digits after a 1."""
    return [int("1" + "".join(map(str, symbols[: i + 1])), 2) for i in range(len(symbols))]


def same_arrays(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


class BlockMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(1, 9),
        block_size=st.integers(1, 3),
        key=st.sampled_from(sorted(POLICIES, key=str)),
        release_order=st.sampled_from(["unhashed_first", "all_to_tail"]),
        removed_at=st.sampled_from(["last_copy", "every_copy"]),
        watermark=st.integers(0, 1),
        recompute_last=st.booleans(),
        events=st.booleans(),
        few=st.sampled_from([(0, 0), FEW]),
    )
    def start(self, num_blocks, block_size, key, release_order, removed_at, watermark, recompute_last, events, few):
        index._FEW, pool.FEW = few  # small batches both ways: in NumPy calls, and in loops over integers
        sizes = {"block_size": block_size, "max_sequences": 4, "max_blocks": 5}
        self.pool = BlockAllocator(
            num_blocks, policy=POLICIES[key], release_order=release_order, removed_at=removed_at, events=events
        )
        self.table = BlockTable(self.pool, watermark_blocks=watermark, recompute_last=recompute_last, **sizes)
        self.pool_twin = PoolReference(
            num_blocks,
            key=key,
            unhashed_first=release_order == "unhashed_first",
            removed_at_last=removed_at == "last_copy",
        )
        self.table_twin = TableReference(self.pool_twin, watermark=watermark, recompute_last=recompute_last, **sizes)
        self.key, self.removed_at, self.has_events = key, removed_at, events
        self.num_blocks, self.block_size = num_blocks, block_size
        self.handle_of = {}  # number of the twin's sequence -> handle
        self.mine = []  # blocks held outside of the table, once for each time
        self.known = set()  # hashes that events have told of

    def teardown(self):
        index._FEW, pool.FEW = FEW

    # Both sides of a call

    def both(self, call, twin_calls):
        """Make the call, and the twin's calls; either both are refused, and nothing changes, or none is."""
        before = self.pool.snapshot(), self.table.snapshot()
        try:
            expected = self.table_twin.all_or_nothing(twin_calls)
        except RefusedError:
            with pytest.raises((CapacityError, BlockStateError)):
                call()
            self.unchanged(before)
            return None, None
        return call(), expected

    def unchanged(self, before):
        assert same_arrays(self.pool.snapshot(), before[0])
        assert same_arrays(self.table.snapshot(), before[1])

    def numbers(self, data, **options):
        numbers = sorted(self.table_twin.sequences)
        return data.draw(st.lists(st.sampled_from(numbers), **options)) if numbers else []

    def handles(self, numbers):
        return np.array([self.handle_of[n] for n in numbers], dtype=np.int64)

    # The table

    @rule(prompts=st.lists(st.tuples(SYMBOLS, st.integers(0, 2)), max_size=3))
    def admit(self, prompts):
        prompts = [(symbols, max(1, len(symbols) * self.block_size + extra)) for symbols, extra in prompts]
        hashes = [chain(symbols) for symbols, _ in prompts]
        got, expected = self.both(
            lambda: self.table.admit(
                np.array([n for _, n in prompts], dtype=np.int64),
                hashes=np.array([h for row in hashes for h in row], dtype=np.uint64),
                hash_offsets=np.cumsum([0, *map(len, hashes)]),
            ),
            [lambda n=n, h=h: self.table_twin.admit(n, h) for (_, n), h in zip(prompts, hashes, strict=True)],
        )
        if got is not None:
            assert got.hit_blocks.tolist() == [hits for _, hits in expected]
            assert got.hit_tokens.tolist() == [hits * self.block_size for _, hits in expected]
            self.handle_of.update(zip([number for number, _ in expected], got.handles.tolist(), strict=True))

    @rule(data=st.data())
    def append(self, data):
        numbers = self.numbers(data, unique=True, max_size=4)
        counts = [data.draw(st.integers(0, 4)) for _ in numbers]
        hashes = []
        for number, count in zip(numbers, counts, strict=True):
            sequence = self.table_twin.sequences[number]
            unnamed = (sequence.num_tokens + count) // self.block_size - sequence.num_hashed
            symbols = data.draw(st.lists(st.integers(0, 1), max_size=unnamed))
            last = sequence.last_hash or 1
            hashes.append([int(bin(last)[2:] + "".join(map(str, symbols[: i + 1])), 2) for i in range(len(symbols))])
        offsets = np.cumsum([0, *map(len, hashes)])
        copies, expected = self.both(
            lambda: self.table.append(
                self.handles(numbers),
                np.array(counts, dtype=np.int64),
                hashes=np.array([h for row in hashes for h in row], dtype=np.uint64),
                hash_offsets=offsets if offsets[-1] else None,
            ),
            [
                lambda n=n, c=c, h=h: self.table_twin.append(n, c, h)
                for n, c, h in zip(numbers, counts, hashes, strict=True)
            ],
        )
        self.same_copies(copies, expected)

    @rule(data=st.data())
    def write(self, data):
        numbers = [n for n in self.numbers(data, max_size=5) if self.table_twin.sequences[n].num_tokens]
        positions = [data.draw(st.integers(0, self.table_twin.sequences[n].num_tokens - 1)) for n in numbers]
        copies, expected = self.both(
            lambda: self.table.write(self.handles(numbers), np.array(positions, dtype=np.int64)),
            [lambda n=n, p=p: self.table_twin.write(n, p) for n, p in zip(numbers, positions, strict=True)],
        )
        self.same_copies(copies, expected)

    def same_copies(self, copies, expected):
        if copies is not None:
            pairs = list(zip(copies.source.tolist(), copies.target.tolist(), strict=True))
            assert pairs == [pair for pairs in expected for pair in pairs]

    @rule(data=st.data())
    def fork(self, data):
        numbers = self.numbers(data, max_size=3)
        got, expected = self.both(
            lambda: self.table.fork(self.handles(numbers)), [lambda n=n: self.table_twin.fork(n) for n in numbers]
        )
        if got is not None:
            self.handle_of.update(zip(expected, got.tolist(), strict=True))

    @rule(data=st.data())
    def truncate(self, data):
        numbers = self.numbers(data, unique=True, max_size=3)
        lengths = [data.draw(st.integers(0, self.table_twin.sequences[n].num_tokens)) for n in numbers]
        self.both(
            lambda: self.table.truncate(self.handles(numbers), np.array(lengths, dtype=np.int64)),
            [lambda n=n, k=k: self.table_twin.truncate(n, k) for n, k in zip(numbers, lengths, strict=True)],
        )

    @rule(data=st.data())
    def free(self, data):
        numbers = self.numbers(data, unique=True, max_size=3)
        self.both(
            lambda: self.table.free(self.handles(numbers)), [lambda n=n: self.table_twin.free(n) for n in numbers]
        )
        freed = self.handles(numbers)
        for number in numbers:
            del self.handle_of[number]
        if len(freed):
            with pytest.raises(BlockStateError, match="freed or never admitted"):
                self.table.lengths(freed)

    # The allocator by itself

    @rule(count=st.integers(0, 10))
    def allocate(self, count):
        ids, expected = self.both(lambda: self.pool.allocate(count), [lambda: self.pool_twin.allocate(count)])
        if ids is not None:
            assert ids.tolist() == expected[0]
            self.mine += expected[0]

    @rule(data=st.data())
    def release(self, data):
        ids = data.draw(st.permutations(self.mine))[: data.draw(st.integers(0, len(self.mine)))]
        self.both(lambda: self.pool.release(np.array(ids, dtype=np.int64)), [lambda: self.pool_twin.release(ids)])
        for i in ids:
            self.mine.remove(i)

    @rule(data=st.data(), touch=st.booleans())
    def hold_or_touch(self, data, touch):
        ids = data.draw(st.lists(st.integers(0, self.num_blocks - 1), max_size=12))
        mine, twin = (self.pool.touch, self.pool_twin.touch) if touch else (self.pool.hold, self.pool_twin.hold)
        _, expected = self.both(lambda: mine(np.array(ids, dtype=np.int64)), [lambda: twin(ids)])
        if expected is not None and not touch:
            self.mine += ids

    @precondition(lambda self: self.mine)
    @rule(data=st.data())
    def register(self, data):
        ids = data.draw(st.lists(st.sampled_from(sorted(set(self.mine))), max_size=4))
        hashes = [data.draw(st.integers(2, 9)) for _ in ids]
        parents = [h // 2 if h > 3 else 0 for h in hashes]
        self.both(
            lambda: self.pool.register(
                np.array(ids, dtype=np.int64),
                np.array(hashes, dtype=np.uint64),
                parent_hashes=np.array(parents, dtype=np.uint64),
            ),
            [lambda: self.pool_twin.register(ids, hashes, parents)],
        )

    @rule(data=st.data())
    def evict(self, data):
        ids = data.draw(st.lists(st.integers(0, self.num_blocks - 1), max_size=4))
        got, expected = self.both(
            lambda: self.pool.evict(np.array(ids, dtype=np.int64)), [lambda: self.pool_twin.evict(ids)]
        )
        assert got.tolist() == expected[0]

    @rule()
    def reset(self):
        self.both(self.pool.reset, [self.pool_twin.reset])

    @rule()
    def restore(self):
        kept = self.pool.snapshot(), self.table.snapshot()
        self.pool.restore(kept[0])
        self.table.restore(kept[1])
        self.unchanged(kept)

    # Illegal batches

    @rule(data=st.data())
    def illegal(self, data):
        calls = [
            lambda: self.pool.allocate(-1),
            lambda: self.pool.allocate(1.0),
            lambda: self.pool.release([self.num_blocks]),
            lambda: self.pool.hold([-1]),
            lambda: self.pool.evict([0.5]),
            lambda: self.pool.touch([[0]]),
            lambda: self.pool.lookup([0]),
            lambda: self.table.admit([0]),
            lambda: self.table.admit([1], hashes=[1], hash_offsets=[0]),
            lambda: self.table.admit([self.block_size * 6]),
            lambda: self.table.free([0]),
            lambda: self.table.free([2**40]),
        ]
        held = sorted({i for i, block in enumerate(self.pool_twin.blocks) if block.holders})
        if held:
            i = data.draw(st.sampled_from(held))
            times = self.pool_twin.blocks[i].holders + 1
            calls += [lambda: self.pool.release([i] * times), lambda: self.pool.register([i, i], [5, 6])]
        if self.handle_of:
            handle = data.draw(st.sampled_from(sorted(self.handle_of.values())))
            length = int(self.table.lengths([handle])[0])
            calls += [
                lambda: self.table.free([handle, handle]),
                lambda: self.table.append([handle], [-1]),
                lambda: self.table.append([handle], [1, 1]),
                lambda: self.table.append([handle], [0], hashes=[1] * 9, hash_offsets=[0, 9]),
                lambda: self.table.write([handle], [length]),
                lambda: self.table.slots([handle], [-1]),
                lambda: self.table.truncate([handle], [length + 1]),
                lambda: self.table.append([handle], [6 * self.block_size]),
            ]
        before = self.pool.snapshot(), self.table.snapshot()
        with pytest.raises((ValueError, TypeError, BlockStateError, CapacityError)):
            data.draw(st.sampled_from(calls))()
        self.unchanged(before)

    # After every step

    @invariant()
    def agree(self):
        self.pool.check()
        self.table.check()
        twin = self.pool_twin
        assert self.pool.queue().tolist() == twin.queue
        assert self.pool.ref_count.tolist() == [block.holders for block in twin.blocks]
        assert self.pool.block_hash.tolist() == [block.hash for block in twin.blocks]
        assert self.pool.parent_hash.tolist() == [block.parent for block in twin.blocks]
        for h, blocks in twin.with_hash.items():
            assert self.pool.lookup([h]).tolist() == blocks[:1]
        stats = self.pool.stats()
        assert stats.num_cached == len(twin.cached())
        assert stats.num_free + stats.num_cached == twin.num_available()
        assert stats.num_held == sum(block.holders > 0 for block in twin.blocks)
        assert (stats.evictions, stats.duplicates, stats.orphans) == (twin.evictions, twin.duplicates(), twin.orphans())

    @invariant()
    def tables_agree(self):
        numbers = sorted(self.table_twin.sequences)
        sequences = [self.table_twin.sequences[n] for n in numbers]
        handles = self.handles(numbers)
        blocks, offsets = self.table.tables(handles)
        assert blocks.tolist() == [i for sequence in sequences for i in sequence.blocks]
        assert offsets.tolist() == np.cumsum([0, *(len(sequence.blocks) for sequence in sequences)]).tolist()
        assert self.table.lengths(handles).tolist() == [sequence.num_tokens for sequence in sequences]
        assert self.table.num_hashed(handles).tolist() == [sequence.num_hashed for sequence in sequences]
        assert self.table.last_hash(handles).tolist() == [sequence.last_hash for sequence in sequences]
        for handle, sequence in zip(handles, sequences, strict=True):
            positions = np.arange(sequence.num_tokens)
            slots = [sequence.blocks[p // self.block_size] * self.block_size + p % self.block_size for p in positions]
            assert self.table.slots(np.full(len(positions), handle), positions).tolist() == slots
        stats = self.table.stats()
        assert (stats.block_queries, stats.block_hits, stats.copies, stats.sequences) == (
            self.table_twin.queries, self.table_twin.hits, self.table_twin.copies, len(numbers),
        )  # fmt: skip

    @invariant()
    def events_agree(self):
        """Of one call, what was removed comes in the order of the twin, and so does what was stored."""
        said, self.pool_twin.events = self.pool_twin.events, []
        if not self.has_events:
            return
        events = self.pool.drain_events()
        told = []
        for kind, h, parent in zip(events.kind, events.block_hash.tolist(), events.parent_hash.tolist(), strict=True):
            if kind == CLEARED:
                told.append(("cleared",))
                self.known.clear()
            elif kind == STORED:
                told.append(("stored", h, parent))
                self.known.add(h)
            else:
                told.append(("removed", h))
                self.known.discard(h)
        stored = [event for event in told if event[0] == "stored"]
        assert stored == [event for event in said if event[0] == "stored"]
        if self.removed_at == "every_copy":
            assert [e for e in told if e not in stored] == [e for e in said if e not in stored]
        else:
            assert self.known == set(self.pool_twin.with_hash)


TestBlockMachine = BlockMachine.TestCase
TestBlockMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
