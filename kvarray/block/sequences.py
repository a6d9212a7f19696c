"""The sequences of a block table as rows of columns: handles, what is read of them, and their snapshots.

The state under `BlockTable`, apart from what changes it.
"""

from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvarray.arrays import (
    NO_BLOCK,
    NO_HASH,
    Hashes,
    Ids,
    as_int,
    as_ints,
    as_positive_int,
    check_same_length,
    check_type,
    refuse,
)
from kvarray.block.allocator import BlockAllocator
from kvarray.block.pool import refuse_ids
from kvarray.block.saving import Snapshot, load_snapshot, replace_state, save_snapshot
from kvarray.errors import CapacityError, InvariantError
from kvarray.ragged import lengths_to_offsets, ranges

__all__ = ["Sequences", "row_of"]

_ROW_BITS = 32
_GENERATION = 1 << _ROW_BITS  # what the handles of two sequences that follow each other in a row differ by


class Sequences:
    """Rows of block ids, lengths and hashes.

    ===============  ======  ==========================================================================
    column           dtype   meaning
    ===============  ======  ==========================================================================
    `block_ids`      int64   row of block ids, shape (R, W); meaningless after the sequence's last
    `num_tokens`     int64   tokens of the sequence
    `num_hashed`     int64   its leading blocks that were found or registered under their hash
    `last_hash`      uint64  hash of the last of those; `NO_HASH` if there is none or it was dropped
    `ticket`         int64   handle of the row's sequence; without one, minus the handle of the next
    ===============  ======  ==========================================================================

    A *handle* names a sequence: row and generation in one integer, so that a handle kept after its sequence was freed
    is refused even if the row is in use again.

    Parameters
    ----------
    allocator : BlockAllocator
        Where blocks come from.
    block_size : int
        T, the tokens of a block; the slots of the pool must fit 64 bits.
    max_sequences : int
        R, the rows.
    max_blocks : int
        W, the most blocks of one sequence.

    Notes
    -----
    Invariants, verified by `check`:

    T1. The first ``ceil(num_tokens / T)`` ids of a row are blocks; a row without a sequence has 0 tokens.
    T2. Each block has at least as many holders as it has places in the table.
    T3. ``num_hashed <= num_tokens // T``.
    T4. The stack of free rows holds each row without a sequence exactly once, and no other.
    """

    def __init__(self, allocator: BlockAllocator, *, block_size: int, max_sequences: int, max_blocks: int) -> None:
        self._allocator = check_type("allocator", allocator, BlockAllocator)
        self._pool = allocator.pool
        # All slots fit 64 bits, so a sequence whose length does not is one that the pool cannot hold.
        self._block_size = as_int("block_size", block_size, low=1, high=(2**63 - 1) // allocator.num_blocks)
        self._num_rows = as_int("max_sequences", max_sequences, low=1, high=2**_ROW_BITS)
        self._width = as_positive_int("max_blocks", max_blocks)
        self._block_ids = np.full((self._num_rows, self._width), NO_BLOCK, dtype=np.int64)
        self._cells = self._block_ids.reshape(-1)  # the same memory, one-dimensional
        self._num_tokens = np.zeros(self._num_rows, dtype=np.int64)
        self._num_hashed = np.zeros(self._num_rows, dtype=np.int64)
        self._last_hash = np.full(self._num_rows, NO_HASH, dtype=np.uint64)
        self._ticket = -(np.arange(self._num_rows) | _GENERATION)
        self._free_rows = np.arange(self._num_rows)[::-1].copy()  # a stack, its top at the end
        self._num_free_rows = self._num_rows
        # Views for single items: indexing a memoryview takes a third of the time of indexing an array.
        self._cell_items = self._cells.data
        self._token_items = self._num_tokens.data
        self._num_hashed_items = self._num_hashed.data
        self._last_hash_items = self._last_hash.data
        self._ticket_items = self._ticket.data
        self._free_row_items = self._free_rows.data
        self._admitted = self._block_queries = self._block_hits = self._copies = self._collisions = 0

    @property
    def block_size(self) -> int:
        """T, the tokens of a block."""
        return self._block_size

    @property
    def max_sequences(self) -> int:
        """R, the rows."""
        return self._num_rows

    @property
    def allocator(self) -> BlockAllocator:
        """Where blocks come from."""
        return self._allocator

    # What sequences have

    def lengths(self, handles: ArrayLike) -> Ids:
        """Return the number of tokens of each sequence."""
        return self._num_tokens[self._rows(handles)]

    def num_hashed(self, handles: ArrayLike) -> Ids:
        """Return how many leading blocks of each sequence were found or registered under their hash.

        The hashes to pass to `append` are those of the full blocks after them.
        """
        return self._num_hashed[self._rows(handles)]

    def last_hash(self, handles: ArrayLike) -> Hashes:
        """Return the hash of the last of those blocks, from which the chain goes on; `NO_HASH` where there is none."""
        return self._last_hash[self._rows(handles)]

    def tables(self, handles: ArrayLike) -> tuple[Ids, Ids]:
        """Return the block ids of sequences, first block first.

        Parameters
        ----------
        handles : array_like of int, shape (B,)
            Sequences; they may repeat.

        Returns
        -------
        block_ids : ndarray of int64, shape (blocks of all,)
        offsets : ndarray of int64, shape (B + 1,)
            Sequence i has ``block_ids[offsets[i]:offsets[i + 1]]``.
        """
        rows = self._rows(handles)
        num_blocks = self._blocks_for(self._num_tokens[rows])
        return self._cells[ranges(rows * self._width, num_blocks)], lengths_to_offsets(num_blocks)

    def slots(self, handles: ArrayLike, positions: ArrayLike) -> Ids:
        """Return where tokens are in the memory of the pool.

        Parameters
        ----------
        handles : array_like of int, shape (B,)
            Sequence of each token; they may repeat.
        positions : array_like of int, shape (B,)
            Place of each token in its sequence, before its end.

        Returns
        -------
        ndarray of int64, shape (B,)
            ``block id * T + position % T``.
        """
        rows, positions = self._places(handles, positions)
        blocks, places = np.divmod(positions, self._block_size)
        slots: Ids = self._cells[rows * self._width + blocks] * self._block_size + places
        return slots

    # State

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return copies of the whole state but the allocator's, as named arrays; O(R W)."""
        counters = (self._admitted, self._block_queries, self._block_hits, self._copies, self._collisions)
        return {
            **{name: column.copy() for name, column in self._columns().items()},
            "free_rows": self._free_rows[: self._num_free_rows].copy(),
            "counters": np.array(counters),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Return to the state of a snapshot, of a table of the same sizes; the allocator is restored by itself first.

        Raises
        ------
        ValueError
            If arrays are missing or of other shapes.
        InvariantError
            If the snapshot is not a state that the table can be in over its allocator.
        """
        replace_state(self.snapshot(), snapshot, assign=self._assign, check=self.check, ragged=["free_rows"])

    def save(self, path: str | PathLike[str]) -> None:
        """Write a snapshot to a ``.npz`` file."""
        save_snapshot(path, self.snapshot())

    def load(self, path: str | PathLike[str]) -> None:
        """Restore the snapshot in a ``.npz`` file; see `restore`."""
        self.restore(load_snapshot(path))

    def check(self) -> None:
        """Raise `InvariantError`, naming invariant and rows or blocks, unless T1 to T4 hold; O(R W)."""
        is_live = self._ticket > 0
        if not np.array_equal(row_of(np.abs(self._ticket)), np.arange(self._num_rows)):
            raise InvariantError("T4: a row has the ticket of another")
        if (self._num_tokens < 0).any() or self._num_tokens[~is_live].any():
            raise InvariantError("T1: a row has fewer than no tokens, or tokens and no sequence")
        rows = np.flatnonzero(is_live)
        num_blocks = self._blocks_for(self._num_tokens[rows])
        if (num_blocks > self._width).any():
            raise InvariantError("T1: a row has more tokens than room for them")
        blocks = self._cells[ranges(rows * self._width, num_blocks)]
        if len(blocks) and (blocks.min() < 0 or blocks.max() >= self._pool.num_blocks):
            raise InvariantError("T1: a row holds ids that are no blocks")
        places = np.bincount(blocks, minlength=self._pool.num_blocks)
        short = np.flatnonzero(places > self._pool.ref_count)
        if len(short):
            raise InvariantError(f"T2: blocks with fewer holders than places: {short[:5].tolist()}")
        over = np.flatnonzero(self._num_hashed > self._num_tokens // self._block_size)
        if len(over):
            raise InvariantError(f"T3: rows with more blocks hashed than full: {over[:5].tolist()}")
        free = np.sort(self._free_rows[: self._num_free_rows])
        if not np.array_equal(free, np.flatnonzero(~is_live)):
            raise InvariantError("T4: the stack of free rows is not the rows without a sequence")

    # Within

    def _columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name."""
        return {
            "block_ids": self._block_ids,
            "num_tokens": self._num_tokens,
            "num_hashed": self._num_hashed,
            "last_hash": self._last_hash,
            "ticket": self._ticket,
        }

    def _assign(self, snapshot: Snapshot) -> None:
        """Take over a state."""
        for name, column in self._columns().items():
            column[:] = snapshot[name]
        self._num_free_rows = len(snapshot["free_rows"])
        self._free_rows[: self._num_free_rows] = snapshot["free_rows"]
        counters = snapshot["counters"].tolist()
        self._admitted, self._block_queries, self._block_hits, self._copies, self._collisions = counters

    def _take_rows(self, count: int) -> Ids:
        """Take rows from the stack and begin a new generation of each."""
        top = self._num_free_rows
        rows = self._free_rows[top - count : top][::-1].copy()
        self._num_free_rows = top - count
        self._ticket[rows] = -self._ticket[rows]
        return rows

    def _give_rows(self, rows: Ids) -> None:
        """Give up rows: their handles are of the past."""
        self._num_tokens[rows] = 0
        self._num_hashed[rows] = 0
        self._last_hash[rows] = NO_HASH
        self._ticket[rows] = -(self._ticket[rows] + _GENERATION)
        self._free_rows[self._num_free_rows : self._num_free_rows + len(rows)] = rows
        self._num_free_rows += len(rows)

    def _next_row(self) -> int:
        """Return the row that will be taken next; there is one."""
        row: int = self._free_row_items[self._num_free_rows - 1]
        return row

    def _take_row(self) -> tuple[int, int]:
        """Take one row; returns it and its handle."""
        self._num_free_rows -= 1
        row = self._free_row_items[self._num_free_rows]
        handle = -self._ticket_items[row]
        self._ticket_items[row] = handle
        return row, handle

    def _give_row(self, row: int) -> None:
        """Give up one row."""
        self._token_items[row] = 0
        self._num_hashed_items[row] = 0
        self._last_hash_items[row] = 0
        self._ticket_items[row] = -(self._ticket_items[row] + _GENERATION)
        self._free_row_items[self._num_free_rows] = row
        self._num_free_rows += 1

    def _handles(self, rows: Ids) -> Ids:
        """Return the handles of the sequences that are in rows now."""
        return self._ticket.take(rows)

    def _rows(self, handles: ArrayLike) -> Ids:
        """Return the rows of sequences, or raise if one was freed."""
        handles = as_ints("handles", handles)
        rows = row_of(handles)
        # A row out of range is looked up as the last row, whose ticket is not the handle.
        is_live = (self._ticket.take(rows, mode="clip") == handles) & (handles > 0)
        if np.count_nonzero(is_live) < len(rows):
            refuse_ids("use sequences", handles[~is_live], "they were freed or never admitted")
        return rows

    def _row_of_one(self, handles: Ids) -> int:
        """Return the row of the only sequence; -1 for several, and for one that was freed."""
        if handles.shape != (1,) or handles.dtype != np.int64:
            return -1
        handle: int = handles.item()
        row = handle & (_GENERATION - 1)
        is_live = handle > 0 and row < self._num_rows and self._ticket_items[row] == handle
        return row if is_live else -1

    def _different_rows(self, handles: ArrayLike) -> Ids:
        """Return the rows of sequences, or raise if one comes twice."""
        rows = self._rows(handles)
        if len(rows) > 1:
            order = np.sort(rows)
            if np.count_nonzero(order[1:] == order[:-1]):
                twice = np.isin(rows, order[1:][order[1:] == order[:-1]])
                refuse("handles", "be different", twice, np.asarray(handles))
        return rows

    def _places(self, handles: ArrayLike, positions: ArrayLike) -> tuple[Ids, Ids]:
        """Return the rows and positions of tokens, or raise if one is not in its sequence."""
        rows = self._rows(handles)
        positions = as_ints("positions", positions, low=0)
        check_same_length(handles=rows, positions=positions)
        refuse("positions", "be before the end of the sequence", positions >= self._num_tokens[rows], positions)
        return rows, positions

    def _blocks_for(self, num_tokens: Ids) -> Ids:
        """Return how many blocks hold as many tokens."""
        return -(-num_tokens // self._block_size)  # adding T - 1 could take more than 64 bits

    def _check_rows(self, count: int, doing: str) -> None:
        """Raise unless there are rows for as many new sequences."""
        if count > self._num_free_rows:
            raise CapacityError(
                f"{doing} {count} sequences: {self._num_free_rows} of {self._num_rows} rows are free",
                requested=count,
                available=self._num_free_rows,
            )


def row_of(handles: Ids) -> Ids:
    """Return the row that each handle names."""
    rows: Ids = handles & (_GENERATION - 1)
    return rows
