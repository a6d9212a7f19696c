"""The columns of a block pool and the kernels that move them from state to state.

`BlockAllocator` and `BlockTable` stand on these; they check what callers give them, and say what the operations mean.
The kernels trust them. Where a few blocks are concerned, loops over Python integers take the place of NumPy calls;
they know nothing of sinks, events and key functions, which a *plain* pool has none of.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import NO_HASH, Flags, Hashes, Ids
from kvarray.block.events import EventLog
from kvarray.block.queue import FreeQueue
from kvarray.errors import BlockStateError, InvariantError
from kvarray.index import HashIndex
from kvarray.policies import Columns, Policy, smallest

__all__ = ["FEW", "BlockPool", "Sink", "keep_first", "keep_last", "refuse_ids"]

Sink: TypeAlias = Callable[[Ids, Hashes], None]
"""Called with the ids and hashes of victims before their blocks are reused; raises to refuse."""

FEW = 64  # blocks for which loops over Python integers are cheaper than NumPy calls, most of all in a cold cache
_POLICY_COLUMNS = ("last_use", "created", "uses")
_MOST_TICKS = 2**31 - 1  # before the clock is set back; two columns of 2^29 blocks have at most half as many
_MOST_USES = 2**31 - 1


class BlockPool:
    """Columns and kernels; see `BlockAllocator` for what they mean."""

    def __init__(
        self,
        num_blocks: int,
        *,
        policy: Policy | None,
        unhashed_first: bool,
        removed_at_last: bool,
        log: EventLog | None,
        sink: Sink | None,
    ) -> None:
        self.num_blocks = num_blocks
        self.policy = policy
        self.sink = sink
        self.log = log
        self.is_plain = policy is None and sink is None and log is None
        self.num_cached = 0
        self.evictions = 0
        self.ref_count = np.zeros(num_blocks, dtype=np.int64)
        self.parent_hash = np.full(num_blocks, NO_HASH, dtype=np.uint64)
        self.index = HashIndex(num_blocks)
        self.block_hash = self.index.keys
        self.queue = FreeQueue(num_blocks)
        self._unhashed_first = unhashed_first
        self._removed_at_last = removed_at_last
        self._clock = 0
        self._ref_items = self.ref_count.data
        self._hash_items = self.block_hash.data
        self._parent_items = self.parent_hash.data
        self._columns = {} if policy is None else self._columns_read(policy)

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated."""
        return len(self.queue) + (self.num_cached if self.policy else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        columns: list[NDArray[Any]] = [self.ref_count, self.parent_hash, *self._columns.values()]
        return sum(column.nbytes for column in columns) + self.index.nbytes + self.queue.nbytes

    def is_taken_by(self, counts: Ids, ids: Ids) -> Flags:
        """Return which cached blocks allocations of these sizes might take; more is said than is so."""
        return self.queue.is_among_first(counts, ids) if self.policy is None else counts > len(self.queue)

    def take(self, count: int) -> Ids:
        """Allocate blocks, of which there are enough."""
        if count <= FEW and self.is_plain:
            return np.array(self.take_few(count), dtype=np.int64)
        from_queue = min(count, len(self.queue))
        ids, end = self.queue.peek(from_queue)
        if from_queue < count:
            victims = self._smallest_keys(count - from_queue)
            ids = np.concatenate((ids, victims))
        elif self.num_cached and self.policy is None:
            victims = ids[self.block_hash.take(ids) != NO_HASH]
        else:
            victims = ids[:0]
        if self.sink and len(victims):
            self.sink(victims.copy(), self.block_hash.take(victims))

        self.queue.pop(from_queue, end)
        if len(victims):
            self.unname(victims)
            self.num_cached -= len(victims)
        self.ref_count[ids] = 1
        if self.policy:
            self._stamp(ids, "created", "last_use")
            if "uses" in self._columns:
                self._columns["uses"][ids] = 1
        return ids

    def take_few(self, count: int) -> list[int]:
        """Allocate a few blocks of a plain pool one by one; there are enough."""
        ids = self.queue.pop_few(count)
        hash_of, ref_count, parent_of = self._hash_items, self._ref_items, self._parent_items
        victims = []
        for i in ids:
            ref_count[i] = 1
            if hash_of[i]:
                victims.append(i)
                parent_of[i] = 0
        if victims:
            self.index.remove_few(victims)
            self.num_cached -= len(victims)
            self.evictions += len(victims)
        return ids

    def admit_one(self, hashes: Hashes, keys: list[int], *, limit: int, cells: Ids, watermark: int) -> int:
        """Give blocks to one prompt of a plain pool; -1, and nothing changes, unless there are enough whatever it hits.

        Holds the leading blocks with these hashes that are there, at most `limit`, allocates the others, and registers
        them as far as they have a hash. `keys` are the hashes as integers. All blocks are written to `cells`, as many
        as it has room for; returns how many were there.
        """
        if len(cells) > len(self.queue) - watermark:
            return -1
        buckets = self.index.buckets_of_few(hashes)
        hits = self.index.find_leading(keys[:limit], buckets)
        num_hits = len(hits)
        num_new = len(cells) - num_hits
        self.hold_few(hits)
        if num_new <= FEW:
            new = self.take_few(num_new)
            cells[:] = hits + new
            if num_hits < len(keys):
                parent = keys[num_hits - 1] if num_hits else 0
                self.name_few(new, keys[num_hits:], buckets[num_hits:], parent=parent)
        else:
            cells[:num_hits] = hits
            cells[num_hits:] = self.take(num_new)
            if num_hits < len(keys):
                parents = hashes[num_hits - 1 : -1] if num_hits else np.append(NO_HASH, hashes[:-1])
                self.name(cells[num_hits : len(keys)], hashes[num_hits:], parents)
        return num_hits

    def name_few(self, ids: list[int], keys: list[int], buckets: list[int], *, parent: int) -> None:
        """Give hashes, of which each is the parent of the next, to the first of a few blocks; see `name`."""
        self.index.insert_few(keys, ids, buckets)
        parent_of = self._parent_items
        for i, key in zip(ids, keys, strict=False):
            parent_of[i] = parent
            parent = key

    def is_writable(self, i: int) -> bool:
        """Return whether a held block can be written in place: it has one holder and no hash."""
        return self._ref_items[i] == 1 and not self._hash_items[i]

    def drop(self, ids: Ids, rows: Ids | None = None) -> None:
        """Release blocks.

        `rows` says to which group each belongs; the unhashed blocks of a group stand at the front of the queue in the
        order given, those of a later group before them.

        Raises
        ------
        BlockStateError
            If a block has fewer holders than it comes up.
        """
        if len(ids) <= FEW and self.is_plain and rows is None:
            few = ids.tolist()
            if len(set(few)) == len(few) and 0 not in [self._ref_items[i] for i in few]:
                self._drop_few(few)
                return
        counts = self.ref_count.take(ids)
        if np.count_nonzero(counts) < len(ids):
            refuse_ids("release", ids[counts == 0], "nobody holds them")
        last = self.queue.last_of_each(ids)
        if last is None:
            left = counts - 1
        else:  # count how often each comes, and go on with the place where it comes last
            times = np.bincount(last, minlength=len(ids))
            places = np.flatnonzero(times)
            ids, times = ids[places], times[places]
            left = counts[places] - times
            refuse_ids("release", ids[left < 0], "they come more often than they have holders")
            rows = None if rows is None else rows[places]

        self.ref_count[ids] = left
        if np.count_nonzero(left):
            is_left = left == 0
            ids = ids[is_left]
            rows = None if rows is None else rows[is_left]
        self._queue_up(ids, rows)

    def drop_row(self, ids: Ids) -> None:
        """Release blocks that have a holder for each time they come."""
        if len(ids) <= FEW and self.is_plain:
            self._drop_few(ids.tolist())
            return
        left = self.ref_count.take(ids) - 1
        if np.count_nonzero(left):  # some have other holders, or come twice
            self.drop(ids)
            return
        self.ref_count[ids] = 0
        self._queue_up(ids, None)

    def _drop_few(self, ids: list[int]) -> None:
        """Release blocks of a plain pool one by one; they have a holder for each time they come."""
        ref_count, hash_of, unhashed_first = self._ref_items, self._hash_items, self._unhashed_first
        front, back, num_hashed = [], [], 0
        for i in ids:
            left = ref_count[i] - 1
            ref_count[i] = left
            if left:
                continue
            if hash_of[i]:
                num_hashed += 1
                back.append(i)
            elif unhashed_first:
                front.append(i)
            else:
                back.append(i)
        if front:
            self.queue.push_front_few(front)
        if back:
            self.queue.push_back_few(back)
        self.num_cached += num_hashed

    def drop_shared(self, ids: Ids) -> None:
        """Release blocks that keep holders afterwards; they may repeat."""
        np.subtract.at(self.ref_count, ids, 1)

    def hold(self, ids: Ids, counts: Ids) -> None:
        """Add a holder to held and cached blocks, whose reference counts are given; they may repeat."""
        if len(ids) <= FEW and self.is_plain:
            self.hold_few(ids.tolist())
            return
        if np.count_nonzero(counts) < len(ids):
            cached = ids[counts == 0]
            self.num_cached -= self.queue.remove(cached) if self.policy is None else len(keep_first(cached))
        np.add.at(self.ref_count, ids, 1)
        if self.policy:
            self._use(ids)

    def hold_few(self, ids: list[int]) -> None:
        """Add a holder to held and cached blocks of a plain pool one by one."""
        ref_count = self._ref_items
        cached = []
        for i in ids:
            count = ref_count[i]
            if count == 0:
                cached.append(i)
            ref_count[i] = count + 1
        if cached:
            self.queue.remove_few(cached)
            self.num_cached -= len(cached)

    def hold_and_take(self, ids: Ids, counts: Ids, count: int) -> Ids:
        """Hold blocks as `hold` does, then allocate others; if a sink refuses, neither."""
        if self.sink is None:
            self.hold(ids, counts)
            return self.take(count)
        cached = ids[counts == 0]
        num_cached, clock = self.num_cached, self._clock
        places = self.queue.places(cached)
        columns = {name: column.copy() for name, column in self._columns.items()}
        self.hold(ids, counts)
        try:
            return self.take(count)
        except Exception:
            self.ref_count[ids] = counts
            self.num_cached, self._clock = num_cached, clock
            if self.policy is None:
                self.queue.put_back(cached, places)
            for name, column in columns.items():
                self._columns[name][:] = column
            raise

    def touch(self, ids: Ids, counts: Ids) -> None:
        """Use held and cached blocks, whose reference counts are given; they may repeat."""
        if self.policy:
            self._use(ids)
            return
        cached = keep_last(ids[counts == 0])
        self.queue.remove(cached)
        self.queue.push_back(cached)

    def name(self, ids: Ids, hashes: Hashes, parents: Hashes | None = None) -> None:
        """Give hashes to different blocks that have none; held ones, so none of them becomes cached."""
        self.index.insert(hashes, ids)
        if parents is not None:
            self.parent_hash[ids] = parents
        if self.log and len(ids):
            parents = self.parent_hash[ids]
            # A run of blocks goes on as long as each block's parent is the block before it.
            is_first = np.append(True, parents[1:] != hashes[:-1])
            self.log.stored(hashes.copy(), parents, np.flatnonzero(is_first | (parents == NO_HASH)))

    def unname(self, ids: Ids) -> None:
        """Drop the hashes of different blocks that have one; the caller sees to `num_cached`."""
        hashes = self.block_hash.take(ids) if self.log else None
        self.index.remove(ids)
        self.parent_hash[ids] = NO_HASH
        self.evictions += len(ids)
        if self.log and hashes is not None:
            self.log.removed(keep_last(hashes[self.index.find(hashes) < 0]) if self._removed_at_last else hashes)

    def evict(self, ids: Ids) -> None:
        """Drop the hashes of different blocks that have one, held or cached."""
        cached = ids[self.ref_count.take(ids) == 0]
        self.unname(ids)
        self.num_cached -= len(cached)
        if self.policy:
            (self.queue.push_front if self._unhashed_first else self.queue.push_back)(cached)

    def reset(self) -> None:
        """Drop all hashes of a pool of which nothing is held."""
        if self.policy:
            self.queue.push_back(np.flatnonzero(self.block_hash))
        self.index.clear()
        self.parent_hash.fill(NO_HASH)
        self.num_cached = 0
        if self.log:
            self.log.cleared()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of the whole state, for `assign`."""
        arrays: dict[str, NDArray[Any]] = {
            "ref_count": self.ref_count.copy(),
            "parent_hash": self.parent_hash.copy(),
            "queue": self.queue.order(),
            "counters": np.array([self._clock, self.num_cached, self.evictions]),
        }
        arrays.update((f"index.{name}", array) for name, array in self.index.arrays().items())
        arrays.update((f"column.{name}", array.copy()) for name, array in self._columns.items())
        if self.log:
            arrays.update((f"events.{name}", array) for name, array in self.log.arrays().items())
        return arrays

    def assign(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over a state."""
        self.ref_count[:] = arrays["ref_count"]
        self.parent_hash[:] = arrays["parent_hash"]
        self.queue.assign(arrays["queue"])
        self.index.restore({name: arrays[f"index.{name}"] for name in ("keys", "links", "link_of")})
        self._clock, self.num_cached, self.evictions = arrays["counters"].tolist()
        for name, column in self._columns.items():
            column[:] = arrays[f"column.{name}"]
        if self.log:
            self.log.restore({key[7:]: array for key, array in arrays.items() if key.startswith("events.")})

    def check(self) -> None:
        """Raise `InvariantError`, naming invariant and ids, unless B1 to B5 of `BlockAllocator` hold; O(N)."""
        _fail_where("B1: blocks with less than no holders", self.ref_count < 0)
        self.queue.check()
        self.index.check()
        is_hashed = self.block_hash != NO_HASH
        is_cached = is_hashed & (self.ref_count == 0)
        is_queued = np.zeros(self.num_blocks, dtype=np.bool_)
        is_queued[self.queue.order()] = True
        belongs = (self.ref_count == 0) & ~is_cached if self.policy else self.ref_count == 0
        _fail_where("B2: blocks wrongly in or out of the free queue", is_queued != belongs)
        if np.count_nonzero(is_cached) != self.num_cached:
            raise InvariantError(f"B4: {np.count_nonzero(is_cached)} blocks are cached, {self.num_cached} counted")
        _fail_where("B5: blocks with a parent and without a hash", ~is_hashed & (self.parent_hash != NO_HASH))

    def _queue_up(self, ids: Ids, rows: Ids | None) -> None:
        """Put blocks that have lost their last holder where they belong."""
        hashes = self.block_hash.take(ids)
        num_hashed = int(np.count_nonzero(hashes))
        self.num_cached += num_hashed
        if self.policy:
            self._stamp(ids, "last_use")
        if num_hashed < len(ids) and (self.policy or self._unhashed_first):
            is_hashed = hashes != NO_HASH
            unhashed = ids[~is_hashed]
            if not self._unhashed_first:
                self.queue.push_back(unhashed)
            elif rows is None:
                self.queue.push_front(unhashed)
            else:  # the blocks of a later group stand before those of an earlier one
                self.queue.push_front(unhashed[np.argsort(-rows[~is_hashed], kind="stable")])
            ids = ids[is_hashed]
        if self.policy is None:
            self.queue.push_back(ids)

    def _smallest_keys(self, count: int) -> Ids:
        """Return the cached blocks that the policy gives up first."""
        assert self.policy is not None
        candidates = np.flatnonzero((self.ref_count == 0) & (self.block_hash != NO_HASH))
        columns = {**self._own_columns(), **self._columns}
        candidate_columns = {name: column.take(candidates) for name, column in columns.items()}
        for name in self._columns:  # a policy may multiply them
            candidate_columns[name] = candidate_columns[name].astype(np.int64)
        keys = self.policy(candidate_columns)
        return candidates[smallest(keys, count)]

    def _use(self, ids: Ids) -> None:
        """Count a use of each block, as far as the column goes."""
        if "uses" in self._columns:
            uses = self._columns["uses"]
            np.add.at(uses, ids[uses.take(ids) <= _MOST_USES - len(ids)], 1)
        self._stamp(ids, "last_use")

    def _stamp(self, ids: Ids, *names: str) -> None:
        """Let the clock tick once an item, and note the tick in columns; the last of equal ids counts."""
        if self._clock + len(ids) > _MOST_TICKS:
            self._count_anew()
        ticks = np.arange(self._clock, self._clock + len(ids))
        for name in names:
            if name in self._columns:
                self._columns[name][ids] = ticks
        self._clock += len(ids)

    def _count_anew(self) -> None:
        """Give the ticks that are noted new numbers, from 0 on and in the same order."""
        columns = [self._columns[name] for name in ("last_use", "created") if name in self._columns]
        ticks = np.unique(np.array(columns, dtype=np.int32))
        for column in columns:
            column[:] = np.searchsorted(ticks, column)
        self._clock = len(ticks)

    def _own_columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns that are there whatever the policy reads."""
        return {"ref_count": self.ref_count, "block_hash": self.block_hash, "parent_hash": self.parent_hash}

    def _columns_read(self, policy: Policy) -> dict[str, NDArray[np.int32]]:
        """Return new columns for what a policy reads, which a call without candidates tells."""
        asked = _AskedColumns({**self._own_columns(), **dict.fromkeys(_POLICY_COLUMNS, self.ref_count)})
        smallest(policy(asked), 0)
        return {name: np.zeros(self.num_blocks, dtype=np.int32) for name in _POLICY_COLUMNS if name in asked.read}


class _AskedColumns(dict[str, NDArray[Any]]):
    """Columns without candidates, which note what is read."""

    def __init__(self, columns: Columns) -> None:
        super().__init__((name, column[:0]) for name, column in columns.items())
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self:
            raise ValueError(f"policy must read columns that blocks have ({', '.join(self)}): it reads {name!r}")
        self.read.add(name)
        return super().__getitem__(name)


def keep_first(values: NDArray[Any]) -> NDArray[Any]:
    """Return the different values in the order in which they first come."""
    return values[np.sort(np.unique(values, return_index=True)[1])]


def keep_last(values: NDArray[Any]) -> NDArray[Any]:
    """Return the different values in the order in which they last come."""
    return keep_first(values[::-1])[::-1]


def refuse_ids(doing: str, ids: Ids, why: str) -> None:
    """Raise `BlockStateError` naming the first of these ids, if there are any."""
    if len(ids):
        more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
        raise BlockStateError(f"{doing} {ids[:5].tolist()}{more}: {why}", ids=ids)


def _fail_where(what: str, is_wrong: Flags) -> None:
    """Raise `InvariantError` naming the first ids where a mask is true, if there are any."""
    wrong = np.flatnonzero(is_wrong)
    if len(wrong):
        raise InvariantError(f"{what}: {wrong[:5].tolist()}")
