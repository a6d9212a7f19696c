"""A block table that knows the tokens in its blocks, so it hashes them itself and notices hash collisions."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvarray.arrays import (
    NO_HASH,
    Flags,
    Hashes,
    Ids,
    as_hashes,
    as_ints,
    as_uint64,
    check_offsets,
    check_same_length,
    check_type,
)
from kvarray.block.sequences import row_of
from kvarray.block.table import Admission, BlockTable, Copies
from kvarray.hashing import Hasher, hash_blocks, namespace_hash
from kvarray.ragged import lengths_to_offsets, ranges, ranks

__all__ = ["TokenTable"]


class TokenTable:
    """A `BlockTable` with the token of each slot beside it.

    Costs 8 bytes a slot and 16 a block more than a table alone. Sequences are freed, truncated and looked at through
    `table`, with the same handles; what writes tokens, and `fork`, go through here.

    Parameters
    ----------
    table : BlockTable
        An empty table.
    hasher : callable, optional
        Function with the arguments of `hash_blocks`.

    Notes
    -----
    A cached block is taken for a hit only if it holds the same tokens, under the same key of an image, after the same
    parent. Others with the same hash are passed over and counted in ``table.stats().collisions``.

    Where a sequence was overwritten, the blocks after the written one keep the hashes that they have, and are not
    registered under others.

    Examples
    --------
    >>> from kvarray.block.allocator import BlockAllocator
    >>> table = BlockTable(BlockAllocator(8), block_size=2, max_sequences=4, max_blocks=8)
    >>> texts = TokenTable(table)
    >>> first = texts.admit([5, 6, 7, 8, 9], [0, 5])
    >>> texts.admit([5, 6, 7, 0, 0], [0, 5]).hit_tokens
    array([2])
    >>> _ = texts.append(first.handles, [4], [0, 1])
    >>> texts.tokens(first.handles)
    (array([5, 6, 7, 8, 9, 4]), array([0, 6]))
    """

    def __init__(self, table: BlockTable, *, hasher: Hasher = hash_blocks) -> None:
        self._table = check_type("table", table, BlockTable)
        if not callable(hasher):
            raise TypeError(f"hasher must be a function: got {hasher!r}")
        num_blocks = table.allocator.num_blocks
        self._hasher = hasher
        self._tokens = np.zeros((num_blocks, table.block_size), dtype=np.int64)
        self._slots = self._tokens.reshape(-1)
        self._chained_from = np.full(num_blocks, NO_HASH, dtype=np.uint64)  # parent or namespace, for hashed blocks
        self._block_key = np.zeros(num_blocks, dtype=np.uint64)
        self._namespace = np.full(table.max_sequences, NO_HASH, dtype=np.uint64)

    @property
    def table(self) -> BlockTable:
        """The table underneath."""
        return self._table

    def tokens(self, handles: ArrayLike) -> tuple[Ids, Ids]:
        """Return the tokens of sequences as values and offsets."""
        handles = as_ints("handles", handles)
        lengths = self._table.lengths(handles)
        positions = ranges(np.zeros_like(lengths), lengths)
        return self._slots[self._table.slots(np.repeat(handles, lengths), positions)], lengths_to_offsets(lengths)

    def admit(
        self,
        tokens: ArrayLike,
        offsets: ArrayLike,
        *,
        namespaces: ArrayLike | None = None,
        block_keys: ArrayLike | None = None,
    ) -> Admission:
        """Admit prompts; see `BlockTable.admit`.

        Parameters
        ----------
        tokens : array_like of int, shape (sum of lengths,)
        offsets : array_like of int, shape (B + 1,)
            Prompt i is ``tokens[offsets[i]:offsets[i + 1]]``.
        namespaces : array_like of uint64, shape (B,), optional
            `namespace_hash` of each prompt; default the one without names.
        block_keys : array_like of uint64, shape (number of full blocks,), optional
            As of `image_block_keys`.

        Notes
        -----
        Sequential law, as of `BlockTable.admit`.
        """
        tokens = as_ints("tokens", tokens, low=0)
        offsets = as_ints("offsets", offsets)
        check_offsets("offsets", offsets, len(tokens))
        num_rows, size = len(offsets) - 1, self._table.block_size
        if namespaces is None:
            starts = np.full(num_rows, namespace_hash(), dtype=np.uint64)
        else:
            starts = as_hashes("namespaces", namespaces)
        check_same_length(namespaces=starts, rows=offsets[1:])
        hashes, hash_offsets = self._hasher(
            tokens, offsets, block_size=size, parent_hashes=starts, block_keys=block_keys
        )
        full = _Full(
            self,
            tokens=tokens[ranges(offsets[:-1], np.diff(hash_offsets) * size)].reshape(-1, size),
            chained_from=_parents(hashes, hash_offsets, starts),
            keys=np.zeros(len(hashes), dtype=np.uint64) if block_keys is None else as_uint64("block_keys", block_keys),
        )

        try:
            admission = self._table.admit(np.diff(offsets), hashes=hashes, hash_offsets=hash_offsets, content=full)
        except Exception:
            full.undo()
            raise
        self._namespace[row_of(admission.handles)] = starts
        self._put_tail(admission.handles, tokens, offsets, num_full=np.diff(hash_offsets))
        return admission

    def append(self, handles: ArrayLike, tokens: ArrayLike, offsets: ArrayLike) -> Copies:
        """Add tokens to the end of sequences, and register the blocks that they fill; see `BlockTable.append`.

        Parameters
        ----------
        handles : array_like of int, shape (B,)
            Different sequences.
        tokens : array_like of int, shape (sum of lengths,)
        offsets : array_like of int, shape (B + 1,)
            Sequence i gets ``tokens[offsets[i]:offsets[i + 1]]``.
        """
        handles = as_ints("handles", handles)
        tokens = as_ints("tokens", tokens, low=0)
        offsets = as_ints("offsets", offsets)
        check_offsets("offsets", offsets, len(tokens))
        check_same_length(handles=handles, offsets=offsets[1:])
        old = self._table.lengths(handles)
        hashes, hash_offsets, chained_from = self._hashes_to_name(handles, tokens, offsets)
        first = self._table.num_hashed(handles)

        copies = self._table.append(handles, np.diff(offsets), hashes=hashes, hash_offsets=hash_offsets)
        self._tokens[copies.target] = self._tokens[copies.source]
        self._slots[self._slots_of(handles, old, np.diff(offsets))] = tokens
        num_named = np.diff(hash_offsets)
        blocks, block_offsets = self._table.tables(handles)
        named = blocks[ranges(block_offsets[:-1] + first, num_named)]
        self._chained_from[named] = chained_from
        self._block_key[named] = 0
        return copies

    def write(self, handles: ArrayLike, positions: ArrayLike, tokens: ArrayLike) -> Copies:
        """Overwrite tokens; see `BlockTable.write`. Where a place comes twice, the last token stays.

        Parameters
        ----------
        handles, positions, tokens : array_like of int, shape (B,)
            Sequence, place within it, and new token.
        """
        handles = as_ints("handles", handles)
        positions = as_ints("positions", positions)
        tokens = as_ints("tokens", tokens, low=0)
        check_same_length(handles=handles, positions=positions, tokens=tokens)

        copies = self._table.write(handles, positions)
        self._tokens[copies.target] = self._tokens[copies.source]
        self._slots[self._table.slots(handles, positions)] = tokens
        return copies

    def fork(self, handles: ArrayLike) -> Ids:
        """Return new sequences that share all blocks of the ones given; see `BlockTable.fork`."""
        handles = as_ints("handles", handles)
        children = self._table.fork(handles)
        self._namespace[row_of(children)] = self._namespace[row_of(handles)]
        return children

    def _hashes_to_name(self, handles: Ids, tokens: Ids, offsets: Ids) -> tuple[Hashes, Ids, Hashes]:
        """Return the hashes to pass to `BlockTable.append`, their offsets, and from which hash each is chained."""
        size = self._table.block_size
        first = self._table.num_hashed(handles)
        last = self._table.last_hash(handles)
        # A chain goes on from the last block registered, or from the first block where that one has lost its hash.
        starts = np.where(last == NO_HASH, 0, first)
        parents = np.where(last == NO_HASH, self._namespace[row_of(handles)], last)
        old = self._table.lengths(handles)
        text, text_offsets = self._continued(handles, starts * size, old, tokens, offsets)
        hashes, hash_offsets = self._hasher(text, text_offsets, block_size=size, parent_hashes=parents)
        num_hashes = np.diff(hash_offsets)

        # It ends at a block that stays and has another hash, from before an earlier one was overwritten.
        places = ranks(hash_offsets) + np.repeat(starts, num_hashes)  # of each block in its sequence
        stays = np.flatnonzero((places >= np.repeat(first, num_hashes)) & (places < np.repeat(old // size, num_hashes)))
        blocks, block_offsets = self._table.tables(handles)
        has = self._table.allocator.block_hash[blocks[(places + np.repeat(block_offsets[:-1], num_hashes))[stays]]]
        ends = np.append(stays[(has != NO_HASH) & (has != hashes[stays])], len(hashes))
        end = np.minimum(ends[np.searchsorted(ends, hash_offsets[:-1])], hash_offsets[1:])
        begin = hash_offsets[:-1] + first - starts
        num_wanted = np.maximum(end - begin, 0)
        wanted = ranges(begin, num_wanted)
        return hashes[wanted], lengths_to_offsets(num_wanted), _parents(hashes, hash_offsets, parents)[wanted]

    def _continued(self, handles: Ids, starts: Ids, ends: Ids, tokens: Ids, offsets: Ids) -> tuple[Ids, Ids]:
        """Return the tokens ``starts .. ends - 1`` of each sequence, followed by the new ones."""
        kept = ends - starts
        text_offsets = lengths_to_offsets(kept + np.diff(offsets))
        text = np.empty(text_offsets[-1], dtype=np.int64)
        is_kept = ranks(text_offsets) < np.repeat(kept, np.diff(text_offsets))
        text[is_kept] = self._slots[self._slots_of(handles, starts, kept)]
        text[~is_kept] = tokens
        return text, text_offsets

    def _slots_of(self, handles: Ids, starts: Ids, lengths: Ids) -> Ids:
        """Return the slots of the tokens ``starts .. starts + lengths - 1`` of sequences."""
        return self._table.slots(np.repeat(handles, lengths), ranges(starts, lengths))

    def _put_tail(self, handles: Ids, tokens: Ids, offsets: Ids, *, num_full: Ids) -> None:
        """Write the tokens after the last full block of each prompt."""
        starts = num_full * self._table.block_size
        lengths = np.diff(offsets) - starts
        self._slots[self._slots_of(handles, starts, lengths)] = tokens[ranges(offsets[:-1] + starts, lengths)]


class _Full:
    """The `Content` of an admission: the full blocks of its prompts, by the places of their hashes."""

    def __init__(self, owner: TokenTable, *, tokens: Ids, chained_from: Hashes, keys: Hashes) -> None:
        self._mine = (tokens, chained_from, keys)
        self._theirs = (owner._tokens, owner._chained_from, owner._block_key)
        self._overwritten: list[tuple[Ids, tuple[Ids, Hashes, Hashes]]] = []

    def is_same(self, block_ids: Ids, places: Ids) -> Flags:
        """Return which blocks hold what the hashes at these places stand for."""
        tokens, chained_from, keys = (there[block_ids] == here[places] for there, here in self._pairs())
        is_same: Flags = tokens.all(axis=1) & chained_from & keys
        return is_same

    def put(self, block_ids: Ids, places: Ids) -> None:
        """Learn that blocks hold what the hashes at these places stand for."""
        tokens, chained_from, keys = (there[block_ids] for there, _ in self._pairs())
        self._overwritten.append((block_ids, (tokens, chained_from, keys)))
        for there, here in self._pairs():
            there[block_ids] = here[places]

    def undo(self) -> None:
        """Forget what was learned."""
        for block_ids, values in reversed(self._overwritten):
            for there, value in zip(self._theirs, values, strict=True):
                there[block_ids] = value

    def _pairs(self) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        return list(zip(self._theirs, self._mine, strict=True))


def _parents(hashes: Hashes, offsets: Ids, starts: Hashes) -> Hashes:
    """Return the hash before each hash of each row, the row's start before its first."""
    parents = np.empty(len(hashes), dtype=np.uint64)
    parents[1:] = hashes[:-1]
    is_some = np.diff(offsets) > 0
    parents[offsets[:-1][is_some]] = starts[is_some]
    return parents
