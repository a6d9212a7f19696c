"""Sequences as rows of a preallocated table of block ids.

What an engine's scheduler does to its block tables, for whole batches of sequences in one call: admit with the cached
prefix found first, append tokens (a decode step), fork, write with copy-on-write, truncate, free; and what a kernel
needs of them: ragged tables and slot numbers. Blocks come from a `BlockAllocator`, in the order in which vLLM's v1
block manager would take and release them.

Left out: sliding windows and other layouts in which a sequence drops blocks from its front, and blocks allocated
ahead for speculative tokens. A block that is full when it is admitted can be found by its hash at once, before it
could have been computed, as in vLLM.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import (
    NO_HASH,
    Flags,
    Hashes,
    Ids,
    as_hashes,
    as_int,
    as_ints,
    check_offsets,
    check_same_length,
    check_type,
    refuse,
)
from kvarray.block.admission import Content, Plan, plan_run
from kvarray.block.allocator import BlockAllocator
from kvarray.block.pool import keep_first, refuse_ids
from kvarray.block.saving import Snapshot
from kvarray.block.sequences import Sequences
from kvarray.errors import CapacityError, OversizeError
from kvarray.ragged import ranges, ranks

__all__ = ["Admission", "BlockTable", "Copies", "TableStats"]


_NO_IDS = np.empty(0, dtype=np.int64)
_NO_HASHES = np.empty(0, dtype=np.uint64)


class Admission(NamedTuple):
    """Sequences that were admitted.

    Parameters
    ----------
    handles : ndarray of int64, shape (B,)
        Names of the sequences, for all other calls.
    hit_blocks : ndarray of int64, shape (B,)
        Leading blocks of each that were found in the prefix cache.
    hit_tokens : ndarray of int64, shape (B,)
        The tokens in them, which need no prefill.
    """

    handles: Ids
    hit_blocks: Ids
    hit_tokens: Ids


class Copies(NamedTuple):
    """Blocks to copy before the tokens of a call are written, each to its own target.

    Parameters
    ----------
    source, target : ndarray of int64, shape (K,)
        Block ids.
    """

    source: Ids
    target: Ids


@dataclass(frozen=True)
class TableStats:
    """Counts of a block table since its start; batches that were refused count for nothing.

    Parameters
    ----------
    sequences : int
        Sequences now in the table.
    admitted : int
        Sequences admitted; forks are not admissions.
    block_queries : int
        Full blocks of admitted sequences that were looked up by hash.
    block_hits : int
        Those of them found as part of a leading run.
    copies : int
        Blocks copied on write.
    collisions : int
        Blocks found under the right hash with other content.
    """

    sequences: int
    admitted: int
    block_queries: int
    block_hits: int
    copies: int
    collisions: int


class BlockTable(Sequences):
    """Block ids and lengths of the sequences that run.

    The columns, and the invariants that `check` verifies, are those of `Sequences`. A sequence is named by a *handle*,
    which is refused once the sequence was freed, though its row be in use again.

    Parameters
    ----------
    allocator : BlockAllocator
        Where blocks come from. Several tables may share one.
    block_size : int
        T, the tokens of a block; the slots of the pool must fit 64 bits.
    max_sequences : int
        R, the rows.
    max_blocks : int
        W, the most blocks of one sequence.
    watermark_blocks : int, optional
        An admission must leave as many blocks to allocate, so that running sequences can go on.
    recompute_last : bool, optional
        Whether a prompt that is cached to its last token still computes its last block, since the model must see at
        least one token (vLLM); on by default.

    Notes
    -----
    Batches are atomic, and obey the sequential law but for the order of events: a batch says what it removed before
    what it stored.

    Examples
    --------
    >>> table = BlockTable(BlockAllocator(8), block_size=4, max_sequences=4, max_blocks=8)
    >>> parent = table.admit([8], hashes=[71, 72], hash_offsets=[0, 2]).handles
    >>> child = table.fork(parent)
    >>> copies = table.write(parent, [0])
    >>> copies.source, copies.target
    (array([0]), array([2]))
    >>> table.tables(np.concatenate((parent, child)))
    (array([2, 1, 0, 1]), array([0, 2, 4]))
    """

    def __init__(
        self,
        allocator: BlockAllocator,
        *,
        block_size: int,
        max_sequences: int,
        max_blocks: int,
        watermark_blocks: int = 0,
        recompute_last: bool = True,
    ) -> None:
        super().__init__(allocator, block_size=block_size, max_sequences=max_sequences, max_blocks=max_blocks)
        self._watermark = as_int("watermark_blocks", watermark_blocks, low=0)
        # Last tokens of a prompt that are computed in any case.
        self._uncached = 1 if check_type("recompute_last", recompute_last, bool) else 0

    def stats(self) -> TableStats:
        """Return the counts since the start."""
        return TableStats(
            sequences=self._num_rows - self._num_free_rows,
            admitted=self._admitted,
            block_queries=self._block_queries,
            block_hits=self._block_hits,
            copies=self._copies,
            collisions=self._collisions,
        )

    # Operations

    def admit(
        self,
        num_tokens: ArrayLike,
        *,
        hashes: ArrayLike = _NO_HASHES,
        hash_offsets: ArrayLike | None = None,
        content: Content | None = None,
    ) -> Admission:
        """Admit sequences: hold the cached blocks of each prefix, allocate the rest, register full blocks; all or none.

        Parameters
        ----------
        num_tokens : array_like of int, shape (B,)
            Tokens of each prompt, ``>= 1``.
        hashes : array_like of uint64, shape (H,), optional
            Chained hashes of full blocks, as of `hash_blocks`: each stands for its whole prefix.
        hash_offsets : array_like of int, shape (B + 1,), optional
            Prompt i has ``hashes[hash_offsets[i]:hash_offsets[i + 1]]``, at most as many as it has full blocks.
            Default: no hashes.
        content : Content, optional
            Knows the tokens: blocks that have the right hash and other content are passed over and counted as
            collisions. Without it equal hashes are taken for equal content.

        Returns
        -------
        Admission

        Raises
        ------
        OversizeError
            If a sequence can never fit: it needs more blocks than a row or the pool has, watermark left aside.
        CapacityError
            If the batch does not fit now. `requested` counts new blocks, and cached ones that were hit, which leave
            the free queue as well; `available` is what may be allocated above the watermark.

        Notes
        -----
        Sequential law: later prompts find what earlier ones of the batch brought, and lose what they evict. Runs of
        prompts that do not affect each other in this way are done at once, in O(blocks); a batch is cut before each
        prompt that depends on one of its run.
        """
        if content is None and self._pool.is_plain:
            admission = self._admit_one(np.asarray(num_tokens), np.asarray(hashes), hash_offsets)
            if admission is not None:
                return admission
        counts = as_ints("num_tokens", num_tokens, low=1)
        hashes, offsets = _ragged_hashes(hashes, hash_offsets, len(counts))
        num_hashes = np.diff(offsets)
        num_full = counts // self._block_size
        refuse("hash_offsets", "give no more hashes than blocks are full", num_hashes > num_full, num_hashes)
        num_blocks = self._blocks_for(counts)
        self._check_size(num_blocks, watermark=self._watermark)
        self._check_rows(len(counts), "admit")
        limits = np.minimum((counts - self._uncached) // self._block_size, num_hashes)

        parts: list[Admission] = []
        undo: tuple[Snapshot, Snapshot] | None = None
        start = 0
        try:
            while start < len(counts) or not parts:
                plan = plan_run(
                    self._pool,
                    hashes,
                    offsets[start:],
                    limits=limits[start:],
                    num_blocks=num_blocks[start:],
                    content=content,
                )
                end = start + len(plan.hits)
                if start == 0 and end < len(counts) and not self._is_sure_to_fit(num_blocks):
                    undo = self._allocator.snapshot(), self.snapshot()
                run = slice(start, end)
                parts.append(
                    self._admit_run(counts[run], num_blocks[run], hashes, offsets[start : end + 1], plan, content)
                )
                start = end
        except Exception:
            if undo is not None:
                self._pool.assign(undo[0])
                self._assign(undo[1])
            raise
        return parts[0] if len(parts) == 1 else _joined(parts)

    def append(
        self,
        handles: ArrayLike,
        num_tokens: ArrayLike,
        *,
        hashes: ArrayLike = _NO_HASHES,
        hash_offsets: ArrayLike | None = None,
    ) -> Copies:
        """Make room for more tokens at the end of sequences: a decode step, or a chunk of prefill.

        Parameters
        ----------
        handles : array_like of int, shape (B,)
            Different sequences.
        num_tokens : array_like of int, shape (B,)
            Tokens to add to each, ``>= 0``.
        hashes, hash_offsets : array_like, optional
            Hashes of the blocks that are full afterwards, as in `admit`, those of the first `num_hashed` blocks of a
            sequence left out. Blocks whose hashes are not given yet can be registered by a later call.

        Returns
        -------
        Copies
            A last block that is shared and not full is copied before tokens are written to it.

        Raises
        ------
        OversizeError
            If a sequence outgrows its row or the pool.
        CapacityError
            If there are not enough blocks; the watermark does not count here.
        BlockStateError
            If a sequence was freed, or a block to register has another hash.

        Notes
        -----
        Sequential law: of n sequences that share a last block, the first n - 1 get copies.
        """
        if self._append_one(np.asarray(handles), np.asarray(num_tokens), np.asarray(hashes), hash_offsets):
            return Copies(source=_NO_IDS, target=_NO_IDS)
        rows = self._different_rows(handles)
        counts = as_ints("num_tokens", num_tokens, low=0)
        check_same_length(handles=rows, num_tokens=counts)
        old = self._num_tokens.take(rows)
        new = old + counts
        if np.count_nonzero(new < old):  # more than 64 bits, which no pool holds: exact for the refusal
            new = old.astype(object) + counts
        old_blocks, num_blocks = self._blocks_for(old), self._blocks_for(new)
        self._check_size(num_blocks)
        is_written = (counts > 0) & (old % self._block_size > 0)  # sequences that write to their last block
        tails = (rows * self._width + old_blocks - 1)[is_written]
        is_copied = self._is_copied(tails)
        num_new = num_blocks - old_blocks
        num_copies = int(np.count_nonzero(is_copied))
        if num_copies:
            num_new[np.flatnonzero(is_written)[is_copied]] += 1
        naming = None
        if hash_offsets is not None or np.size(hashes):
            naming = self._check_naming(rows, new, old_blocks - is_written, hashes, hash_offsets)
        total = int(np.add.reduce(num_new))
        self._check_capacity(total, "append")

        taken = self._pool.take(total)
        targets = taken[:0]
        if num_copies:  # the first new block of a sequence is the copy of its last one
            is_target = np.zeros(total, dtype=np.bool_)
            is_target[(np.cumsum(num_new) - num_new)[is_written][is_copied]] = True
            targets, taken = taken[is_target], taken[~is_target]
        copies = self._copy(tails, is_copied, targets)
        if len(taken):
            added = num_blocks - old_blocks
            grows = np.flatnonzero(added)
            cells = rows[grows] * self._width + old_blocks[grows]
            self._cells[cells if len(cells) == len(taken) else ranges(cells, added[grows])] = taken
        self._num_tokens[rows] = new
        if naming is not None:
            self._name(rows, *naming)
        return copies

    def fork(self, handles: ArrayLike) -> Ids:
        """Return new sequences that share all blocks of the ones given.

        Parameters
        ----------
        handles : array_like of int, shape (B,)
            Sequences; one that comes n times is forked n times.

        Returns
        -------
        ndarray of int64, shape (B,)
            Handles of the new sequences.

        Raises
        ------
        CapacityError
            If there are not enough rows.
        """
        rows = self._rows(handles)
        self._check_rows(len(rows), "fork")
        blocks, _ = self.tables(handles)

        self._pool.hold(blocks, self._pool.ref_count.take(blocks))
        new_rows = self._take_rows(len(rows))
        self._block_ids[new_rows] = self._block_ids[rows]
        for column in (self._num_tokens, self._num_hashed, self._last_hash):
            column[new_rows] = column[rows]
        return self._handles(new_rows)

    def write(self, handles: ArrayLike, positions: ArrayLike) -> Copies:
        """Prepare to overwrite tokens: a shared block is copied first, one of a single holder loses its hash.

        Parameters
        ----------
        handles : array_like of int, shape (B,)
            Sequence of each token; they may repeat.
        positions : array_like of int, shape (B,)
            Place of each token in its sequence, before its end.

        Returns
        -------
        Copies

        Raises
        ------
        CapacityError
            If there are not enough blocks for the copies.

        Notes
        -----
        Sequential law: of n sequences that share a block and all write to it, the first n - 1 get copies. Blocks
        after the written one keep what hash they have; the sequence counts them as not registered.
        """
        rows, positions = self._places(handles, positions)
        cells = keep_first(rows * self._width + positions // self._block_size)
        is_copied = self._is_copied(cells)
        total = int(np.count_nonzero(is_copied))
        self._check_capacity(total, "write")

        copies = self._copy(cells, is_copied, self._pool.take(total))
        self._unhash(*np.divmod(cells, self._width))
        return copies

    def truncate(self, handles: ArrayLike, num_tokens: ArrayLike) -> None:
        """Cut sequences to their first tokens and release the blocks after them, deepest first.

        Parameters
        ----------
        handles : array_like of int, shape (B,)
            Different sequences.
        num_tokens : array_like of int, shape (B,)
            Tokens that remain of each, at most as many as it has.
        """
        rows = self._different_rows(handles)
        counts = as_ints("num_tokens", num_tokens, low=0)
        check_same_length(handles=rows, num_tokens=counts)
        old = self._num_tokens[rows]
        refuse("num_tokens", "be no more than the sequence has", counts > old, counts)

        self._release(rows, self._blocks_for(counts), self._blocks_for(old))
        self._num_tokens[rows] = counts
        self._unhash(rows, counts // self._block_size)

    def free(self, handles: ArrayLike) -> None:
        """Release all blocks of sequences, deepest first, one sequence after the other, and give up their rows.

        Parameters
        ----------
        handles : array_like of int, shape (B,)
            Different sequences.
        """
        row = self._row_of_one(np.asarray(handles))
        if row >= 0:
            self._free_one(row)
            return
        rows = self._different_rows(handles)

        self._release(rows, np.zeros(len(rows), dtype=np.int64), self._blocks_for(self._num_tokens.take(rows)))
        self._give_rows(rows)

    # Within

    def _admit_run(
        self, counts: Ids, num_blocks: Ids, hashes: Hashes, offsets: Ids, plan: Plan, content: Content | None
    ) -> Admission:
        """Admit prompts that do not depend on each other; raise before anything changes if they do not fit."""
        num_hashes = np.diff(offsets)
        hits = plan.hits
        num_new = num_blocks - hits
        total_new = int(np.add.reduce(num_new))
        if total_new + len(plan.hit_ids) > self._pool.num_available - self._watermark and len(counts):
            cached = keep_first(plan.hit_ids[plan.ref_counts == 0])  # blocks hit that will leave the free queue
            self._check_capacity(total_new + len(cached), "admit", watermark=self._watermark)

        taken = self._pool.hold_and_take(plan.hit_ids, plan.ref_counts, total_new)
        rows = self._take_rows(len(counts))
        starts = rows * self._width
        self._cells[ranges(starts, hits)] = plan.hit_ids
        self._cells[ranges(starts + hits, num_new)] = taken
        self._num_tokens[rows] = counts
        self._num_hashed[rows] = num_hashes
        self._last_hash[rows] = np.where(num_hashes > 0, hashes[offsets[1:] - 1], NO_HASH) if len(hashes) else NO_HASH
        num_named = num_hashes - hits  # new blocks of each that have a hash
        places = ranges(offsets[:-1] + hits, num_named)
        if len(places):
            named = taken[ranges(np.cumsum(num_new) - num_new, num_named)]
            parents = hashes[places - 1]
            is_root = (hits == 0) & (num_named > 0)
            parents[(np.cumsum(num_named) - num_named)[is_root]] = NO_HASH
            self._pool.name(named, hashes[places], parents)
            if content is not None:
                content.put(named, places)
        self._admitted += len(counts)
        self._block_queries += int(num_hashes.sum())
        self._block_hits += int(hits.sum())
        self._collisions += plan.collisions
        return Admission(handles=self._handles(rows), hit_blocks=hits, hit_tokens=hits * self._block_size)

    def _admit_one(self, counts: Ids, hashes: Hashes, hash_offsets: ArrayLike | None) -> Admission | None:
        """Admit one prompt to a plain pool as `admit` does; None for several, and where it would or might refuse.

        Called for every request of a trace that is stepped singly, so it counts microseconds: a lookup that ends at
        the first miss, loops over integers, and no array that is not needed.
        """
        if counts.shape != (1,) or counts.dtype != np.int64:
            return None
        keys = _keys_of_one(hashes, hash_offsets)
        if keys is None:
            return None
        count, size = counts.item(), self._block_size
        num_hashes, num_blocks = len(keys), -(-count // size)
        if count < 1 or num_hashes > count // size or num_blocks > self._width or self._num_free_rows == 0:
            return None
        start = self._next_row() * self._width
        num_hits = self._pool.admit_one(
            hashes,
            keys,
            limit=(count - self._uncached) // size,
            cells=self._cells[start : start + num_blocks],
            watermark=self._watermark,
        )
        if num_hits < 0:
            return None

        row, handle = self._take_row()
        self._token_items[row] = count
        if num_hashes:
            self._num_hashed_items[row] = num_hashes
            self._last_hash_items[row] = keys[-1]
        self._admitted += 1
        self._block_queries += num_hashes
        self._block_hits += num_hits
        result = np.array([handle, num_hits, num_hits * size])
        return Admission(result[:1], result[1:2], result[2:])

    def _append_one(self, handles: Ids, counts: Ids, hashes: Hashes, hash_offsets: ArrayLike | None) -> bool:
        """Append to one sequence as `append` does; False for several, for copies, and where it would refuse."""
        row = self._row_of_one(handles)
        if row < 0 or counts.shape != (1,) or counts.dtype != np.int64:
            return False
        keys = _keys_of_one(hashes, hash_offsets)
        if keys is None:
            return False
        old, size = self._token_items[row], self._block_size
        new = old + counts.item()
        old_blocks, num_blocks = -(-old // size), -(-new // size)
        num_new = num_blocks - old_blocks
        if new < old or num_blocks > self._width or num_new > self._pool.num_available:
            return False
        end = row * self._width + old_blocks
        if new > old and old % size and not self._pool.is_writable(self._cell_items[end - 1]):
            return False
        if keys and not self._can_name_one(row, len(keys), num_held=old_blocks, num_full=new // size):
            return False

        if num_new:
            self._cells[end : end + num_new] = self._pool.take(num_new)
        self._token_items[row] = new
        if keys:
            self._name_one(row, hashes, keys)
        return True

    def _can_name_one(self, row: int, num_hashes: int, *, num_held: int, num_full: int) -> bool:
        """Return whether `_name_one` can register blocks of a sequence, of which the first `num_held` are there now."""
        first = self._num_hashed_items[row]
        end = first + num_hashes
        held = self._block_ids[row, first : min(end, num_held)]
        return self._pool.is_plain and end <= num_full and not np.count_nonzero(self._pool.block_hash.take(held))

    def _name_one(self, row: int, hashes: Hashes, keys: list[int]) -> None:
        """Register blocks, which have no hash, of one sequence of a plain pool as `_name` does."""
        first = self._num_hashed_items[row]
        end = first + len(keys)
        buckets = self._pool.index.buckets_of_few(hashes)
        self._pool.name_few(self._block_ids[row, first:end].tolist(), keys, buckets, parent=self._last_hash_items[row])
        self._num_hashed_items[row] = end
        self._last_hash_items[row] = keys[-1]

    def _free_one(self, row: int) -> None:
        """Free the sequence in a row as `free` does."""
        start = row * self._width
        end = start - (-self._token_items[row] // self._block_size)
        self._pool.drop_row(self._cells[start:end][::-1])
        self._give_row(row)

    def _check_naming(
        self, rows: Ids, num_tokens: Ids, num_held: Ids, hashes: ArrayLike, hash_offsets: ArrayLike | None
    ) -> tuple[Hashes, Ids]:
        """Return the hashes of an append, or raise if they are too many or do not go with those of blocks that stay.

        `num_held` counts the blocks of each sequence that stay as they are; those after them will be new or rewritten.
        """
        hashes, offsets = _ragged_hashes(hashes, hash_offsets, len(rows))
        num_hashes = np.diff(offsets)
        first = self._num_hashed[rows]
        is_too_many = first + num_hashes > num_tokens // self._block_size
        refuse("hash_offsets", "give no more hashes than blocks are full and not hashed", is_too_many, num_hashes)
        is_held = ranks(offsets) + np.repeat(first, num_hashes) < np.repeat(num_held, num_hashes)
        blocks = self._cells[ranges(rows * self._width + first, num_hashes)[is_held]]
        wanted = hashes[is_held]
        has = self._pool.block_hash[blocks]
        refuse_ids("register", blocks[(has != NO_HASH) & (has != wanted)], "they have another hash")
        last = self._pool.queue.last_of_each(blocks)
        if last is not None:
            refuse_ids("register", blocks[wanted[last] != wanted], "they come with different hashes")
        return hashes, offsets

    def _name(self, rows: Ids, hashes: Hashes, offsets: Ids) -> None:
        """Register the blocks of sequences that follow those registered."""
        num_hashes = np.diff(offsets)
        if len(hashes) == 0:
            return
        first = self._num_hashed[rows]
        blocks = self._cells[ranges(rows * self._width + first, num_hashes)]
        is_some = num_hashes > 0
        parents = np.empty(len(hashes), dtype=np.uint64)
        parents[1:] = hashes[:-1]
        parents[offsets[:-1][is_some]] = self._last_hash[rows[is_some]]
        self._num_hashed[rows] = first + num_hashes
        self._last_hash[rows[is_some]] = hashes[offsets[1:][is_some] - 1]
        is_new = self._pool.block_hash.take(blocks) == NO_HASH
        last = self._pool.queue.last_of_each(blocks[::-1])
        if last is not None:  # forks that register a block they share: the first does
            is_new &= (last == np.arange(len(blocks)))[::-1]
        self._pool.name(blocks[is_new], hashes[is_new], parents[is_new])

    def _is_copied(self, cells: Ids) -> Flags:
        """Return which of different cells of the table need a copy of their block before they can be written."""
        blocks = self._cells.take(cells)
        num_holders = self._pool.ref_count.take(blocks)
        is_shared = num_holders > 1
        if not np.count_nonzero(is_shared):
            return is_shared
        order = np.argsort(blocks, kind="stable")
        is_first = np.append(True, blocks[order[1:]] != blocks[order[:-1]])
        rank = np.empty(len(blocks), dtype=np.int64)  # how many writers of the same block come before
        rank[order] = ranks(np.append(np.flatnonzero(is_first), len(blocks)))
        return rank < num_holders - 1

    def _copy(self, cells: Ids, is_copied: Flags, targets: Ids) -> Copies:
        """Let cells be written: give new blocks to those to be copied, and take the hash of the others."""
        blocks = self._cells.take(cells)
        in_place = blocks[~is_copied] if len(targets) else blocks
        hashes = self._pool.block_hash.take(in_place)
        if np.count_nonzero(hashes):
            self._pool.evict(in_place[hashes != NO_HASH])
        if len(targets) == 0:
            return Copies(source=targets, target=targets)
        sources = blocks[is_copied]
        self._cells[cells[is_copied]] = targets
        self._pool.drop_shared(sources)
        self._copies += len(sources)
        return Copies(source=sources, target=targets)

    def _unhash(self, rows: Ids, num_blocks: Ids) -> None:
        """Count at most as many leading blocks of each sequence as registered; rows may repeat."""
        is_less = num_blocks < self._num_hashed.take(rows)
        if not is_less.any():
            return
        np.minimum.at(self._num_hashed, rows[is_less], num_blocks[is_less])
        rows = rows[is_less]
        num_hashed = self._num_hashed[rows]
        last = self._cells[rows * self._width + np.maximum(num_hashed - 1, 0)]
        self._last_hash[rows] = np.where(num_hashed > 0, self._pool.block_hash[last], NO_HASH)

    def _release(self, rows: Ids, first: Ids, end: Ids) -> None:
        """Release blocks ``first .. end - 1`` of each sequence, deepest first, one sequence after the other."""
        lengths = end - first
        total = int(lengths.sum())
        if total:
            last = rows * self._width + end - 1
            offsets = np.cumsum(lengths) - lengths
            cells = np.repeat(last + offsets, lengths) - np.arange(total)
            self._pool.drop(self._cells.take(cells), np.repeat(np.arange(len(rows)), lengths))

    def _check_size(self, num_blocks: Ids, *, watermark: int = 0) -> None:
        """Raise if a sequence has more blocks than it can ever get."""
        limit = min(self._width, self._pool.num_blocks - watermark)
        if len(num_blocks) and num_blocks.max() > limit:
            i = int(np.argmax(num_blocks > limit))
            raise OversizeError(
                f"sequence {i} of the batch needs {num_blocks[i]} blocks: a row has {self._width}, "
                f"the pool {self._pool.num_blocks}, {watermark} of them kept back",
                requested=int(num_blocks[i]),
                available=limit,
            )

    def _is_sure_to_fit(self, num_blocks: Ids) -> bool:
        """Return whether prompts can be admitted whatever they hit, so that nothing will have to be undone."""
        return self._pool.sink is None and int(num_blocks.sum()) <= self._pool.num_available - self._watermark

    def _check_capacity(self, count: int, doing: str, *, watermark: int = 0) -> None:
        """Raise unless as many blocks can be taken from the free queue."""
        available = self._pool.num_available
        if count > available - watermark:
            raise CapacityError(
                f"{doing}: {count} blocks are needed, {available} are free or cached, {watermark} of them kept back",
                requested=count,
                available=available - watermark,
            )


def _keys_of_one(hashes: Hashes, hash_offsets: ArrayLike | None) -> list[int] | None:
    """Return the hashes of one sequence as integers; None where they are not what they should be, or not arrays yet."""
    if hash_offsets is None:
        return [] if hashes.shape == (0,) else None
    offsets = np.asarray(hash_offsets)
    if hashes.ndim != 1 or hashes.dtype != np.uint64 or offsets.dtype != np.int64:
        return None
    if offsets.tolist() != [0, len(hashes)]:
        return None
    keys: list[int] = hashes.tolist()
    return None if 0 in keys else keys


def _ragged_hashes(hashes: ArrayLike, hash_offsets: ArrayLike | None, num_rows: int) -> tuple[Hashes, Ids]:
    """Return hashes and their offsets as arrays that fit together."""
    values = as_hashes("hashes", hashes)
    offsets = np.zeros(num_rows + 1, dtype=np.int64) if hash_offsets is None else as_ints("hash_offsets", hash_offsets)
    check_offsets("hash_offsets", offsets, len(values))
    if len(offsets) != num_rows + 1:
        raise ValueError(
            f"hash_offsets must have one item more than there are sequences, {num_rows}: got {len(offsets)}"
        )
    return values, offsets


def _joined(parts: Sequence[Admission]) -> Admission:
    """Return the admissions of the runs of a batch as one."""
    return Admission(
        handles=np.concatenate([part.handles for part in parts]),
        hit_blocks=np.concatenate([part.hit_blocks for part in parts]),
        hit_tokens=np.concatenate([part.hit_tokens for part in parts]),
    )
