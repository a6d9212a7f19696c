"""A fixed set of KV blocks with holders, hashes and an order of eviction.

The block pool of vLLM's v1 engine as columns: reference counts, a prefix cache in which a block that nobody holds
keeps its content until its memory is needed, and a queue of the blocks that can be handed out.

Left out: block contents, and the null block of vLLM (its id 0), which stands for "no block" in its tables; here all
ids are blocks. Different on purpose: figures for *free* and *cached* are separate, "removed" is said when the last
copy of a hash goes, and a batch that cannot be done whole changes nothing; options restore vLLM's habits where a
habit can be told from outside.
"""

from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvarray.arrays import NO_HASH, Hashes, Ids, as_hashes, as_ids, as_int, as_uint64, check_same_length, check_type
from kvarray.block.events import BlockEvents, EventLog
from kvarray.block.pool import BlockPool, Sink, keep_first, refuse_ids
from kvarray.block.saving import Snapshot, load_snapshot, replace_state, save_snapshot
from kvarray.errors import CapacityError
from kvarray.policies import POLICIES, Policy

__all__ = ["BlockAllocator", "BlockStats"]

_MOST_HOLDERS = 2**62


@dataclass(frozen=True)
class BlockStats:
    """Counts of an allocator.

    Parameters
    ----------
    num_free, num_cached, num_held : int
        Blocks in each of the three states; together all blocks.
    evictions : int
        Hashes dropped since the start, to make room or by `BlockAllocator.evict`.
    duplicates : int
        Blocks whose hash an older block has as well.
    orphans : int
        Blocks with a hash, held or not, whose parent's hash no block has: no prefix lookup reaches them.
    """

    num_free: int
    num_cached: int
    num_held: int
    evictions: int
    duplicates: int
    orphans: int


class BlockAllocator:
    """Blocks ``0 .. N - 1``, each free, cached or held.

    *Held* blocks have a reference count above 0. Of the others, those with a hash are *cached* (their content can be
    found and held again), those without are *free*. `allocate` takes free and cached blocks in the order of the free
    queue, at first by id; a cached block that is taken is evicted.

    ==============  ======  ===========================================================================
    column          dtype   meaning
    ==============  ======  ===========================================================================
    `ref_count`     int64   holders of the block
    `block_hash`    uint64  chained hash of its content; `NO_HASH` where it has none
    `parent_hash`   uint64  hash of the block before it; `NO_HASH` at the start of a chain or if unknown
    ==============  ======  ===========================================================================

    Parameters
    ----------
    num_blocks : int
        N. Memory is fixed by it: at most 52 bytes a block, and 4 more for each column that a key function reads; so at
        most 64, and 12 bytes in all.
    policy : str or callable, optional
        ``"lru"``, the default, hands blocks out in the order of the free queue. Any other name of
        `kvarray.policies.POLICIES`, or a key function of the caller's own, chooses among the cached blocks the ones
        with the smallest keys, after all free blocks. It may read the columns ``last_use`` (tick at which a block was
        last allocated, held, touched or released; ticks differ), ``created`` (tick of its allocation), ``uses``
        (holders and touches since), and the three above; one that reads others, such as "priority", is refused. Only
        the order of ticks means something: about every 2^31 of them they are numbered anew; uses are counted up to
        about as many. It costs O(N) an eviction, so allocate in batches.
    release_order : {"unhashed_first", "all_to_tail"}, optional
        Where released blocks stand in the free queue. "unhashed_first": those without a hash at its front, where
        they are reused before any content is lost (vLLM 0.23 and later). "all_to_tail": all at its tail (earlier).
    removed_at : {"last_copy", "every_copy"}, optional
        Whether the event "removed" is said when the last block with a hash loses it, or for each that does (vLLM).
    events : bool, optional
        Record events for `drain_events`.
    sink : callable, optional
        ``sink(ids, hashes)`` is called with the blocks that an allocation evicts, in order, before anything changes,
        for example to copy them to a slower tier. Whatever it raises comes out of the call, which then changes
        nothing. It must not use the allocator.

    Notes
    -----
    Methods take ids as arrays. Each is atomic: an error leaves everything as it was. The sequential law holds
    wherever nothing else is said: a batch is the same as its items one by one.

    Invariants, verified by `check`:

    B1. ``ref_count >= 0``.
    B2. The free queue holds each block without holders exactly once and no other; with a key function, each free one.
    B3. A lookup returns the oldest block with a hash (I1 to I4 of `HashIndex`).
    B4. `num_cached` is the number of blocks with a hash and no holder.
    B5. Blocks without a hash have no parent.

    Examples
    --------
    >>> pool = BlockAllocator(4)
    >>> ids = pool.allocate(3)
    >>> pool.register(ids[:2], [71, 72])
    >>> pool.release(ids[::-1])  # deepest first
    >>> pool.queue()
    array([2, 3, 1, 0])
    >>> pool.lookup([71, 72, 73])
    array([ 0,  1, -1])
    >>> pool.num_free, pool.num_cached, pool.num_held
    (2, 2, 0)
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        policy: str | Policy = "lru",
        release_order: Literal["unhashed_first", "all_to_tail"] = "unhashed_first",
        removed_at: Literal["last_copy", "every_copy"] = "last_copy",
        events: bool = False,
        sink: Sink | None = None,
    ) -> None:
        first = _choice("release_order", release_order, ("unhashed_first", "all_to_tail"))
        last = _choice("removed_at", removed_at, ("last_copy", "every_copy"))
        if sink is not None and not callable(sink):
            raise TypeError(f"sink must be a function or None: got {sink!r}")
        self._pool = BlockPool(
            as_int("num_blocks", num_blocks, low=1, high=2**29),
            policy=_as_policy(policy),
            unhashed_first=first == "unhashed_first",
            removed_at_last=last == "last_copy",
            log=EventLog() if check_type("events", events, bool) else None,
            sink=sink,
        )

    # What there is

    @property
    def pool(self) -> BlockPool:
        """The columns and kernels underneath, which check nothing."""
        return self._pool

    @property
    def num_blocks(self) -> int:
        """N, the number of blocks."""
        return self._pool.num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated: free and cached ones."""
        return self._pool.num_available

    @property
    def num_cached(self) -> int:
        """Blocks with a hash that nobody holds."""
        return self._pool.num_cached

    @property
    def num_free(self) -> int:
        """Blocks without a hash that nobody holds."""
        return self._pool.num_available - self._pool.num_cached

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds."""
        return self._pool.num_blocks - self._pool.num_available

    @property
    def usage(self) -> float:
        """Share of the blocks that somebody holds; a cached block is not used."""
        return self.num_held / self.num_blocks

    @property
    def ref_count(self) -> Ids:
        """Holders of each block; read-only, shape (N,)."""
        return _read_only(self._pool.ref_count)

    @property
    def block_hash(self) -> Hashes:
        """Hash of each block, `NO_HASH` where it has none; read-only, shape (N,)."""
        return self._pool.block_hash

    @property
    def parent_hash(self) -> Hashes:
        """Hash of the block before each block, as registered; read-only, shape (N,)."""
        return _read_only(self._pool.parent_hash)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self._pool.nbytes

    def queue(self) -> Ids:
        """Return the free queue, the next block to be allocated first; with a key function, of free blocks only."""
        return self._pool.queue.order()

    def stats(self) -> BlockStats:
        """Return the counts; O(N), since what can be derived is derived."""
        hashed = np.flatnonzero(self.block_hash)
        parents = self.parent_hash[hashed]
        find = self._pool.index.find
        return BlockStats(
            num_free=self.num_free,
            num_cached=self.num_cached,
            num_held=self.num_held,
            evictions=self._pool.evictions,
            duplicates=int(np.count_nonzero(find(self.block_hash[hashed]) != hashed)),
            orphans=int(np.count_nonzero(find(parents[parents != NO_HASH]) < 0)),
        )

    # Operations

    def allocate(self, count: int) -> Ids:
        """Return `count` blocks, each with one holder and no hash.

        Parameters
        ----------
        count : int
            Blocks wanted, ``>= 0``.

        Returns
        -------
        ndarray of int64, shape (count,)
            Ids in the order of the free queue; with a key function free blocks first, then by key and id.

        Raises
        ------
        CapacityError
            If there are fewer free and cached blocks.

        Notes
        -----
        Sequential law. O(count); with a key function O(N) if it evicts.
        """
        count = as_int("count", count, low=0)
        if count > self.num_available:
            raise CapacityError(
                f"allocate {count} blocks: {self.num_free} are free and {self.num_cached} cached",
                requested=count,
                available=self.num_available,
            )
        return self._pool.take(count)

    def release(self, block_ids: ArrayLike) -> None:
        """Take one holder from each block; those left with none go to the free queue.

        Parameters
        ----------
        block_ids : array_like of int, shape (B,)
            Ids in the order of release, so the deepest block of a sequence first. An id may come as often as it has
            holders, and counts as released where it comes last.

        Raises
        ------
        BlockStateError
            If a block has fewer holders than it comes up.

        Notes
        -----
        Sequential law, but for this: blocks without a hash that one call sends to the front of the queue stand there
        in the order given, as in vLLM, and not each before the last.
        """
        self._pool.drop(self._ids(block_ids))

    def hold(self, block_ids: ArrayLike) -> None:
        """Add one holder to each block: to share it, to pin it, to take it out of the cache (vLLM's touch).

        Parameters
        ----------
        block_ids : array_like of int, shape (B,)
            Held or cached blocks; they may repeat.

        Raises
        ------
        BlockStateError
            If a block is free: it has no content to hold.
        """
        ids = self._ids(block_ids)
        counts = self._counts_of_content("hold", ids)
        if len(ids) and np.maximum.reduce(counts) > _MOST_HOLDERS - len(ids):
            refuse_ids("hold", ids[counts > _MOST_HOLDERS - len(ids)], "they have too many holders")
        self._pool.hold(ids, counts)

    def touch(self, block_ids: ArrayLike) -> None:
        """Count a use of each block; cached ones move to the tail of the free queue, in the order given.

        Parameters
        ----------
        block_ids : array_like of int, shape (B,)
            Held or cached blocks; they may repeat, and the last time counts.

        Raises
        ------
        BlockStateError
            If a block is free.
        """
        ids = self._ids(block_ids)
        self._pool.touch(ids, self._counts_of_content("touch", ids))

    def lookup(self, hashes: ArrayLike) -> Ids:
        """Return the oldest block with each hash, -1 where there is none.

        Parameters
        ----------
        hashes : array_like of uint64, shape (B,)
            Hashes; not `NO_HASH`. They may repeat.

        Returns
        -------
        ndarray of int64, shape (B,)

        Notes
        -----
        Snapshot law; changes nothing.
        """
        return self._pool.index.find(as_hashes("hashes", hashes))

    def register(self, block_ids: ArrayLike, hashes: ArrayLike, *, parent_hashes: ArrayLike | None = None) -> None:
        """Give blocks their hashes, under which they can be found from now on.

        Parameters
        ----------
        block_ids : array_like of int, shape (B,)
            Different blocks that are held and have no hash.
        hashes : array_like of uint64, shape (B,)
            Hash of each; several blocks may have one hash, and the older is found.
        parent_hashes : array_like of uint64, shape (B,), optional
            Hash of the block before each, 0 where there is none.

        Raises
        ------
        BlockStateError
            If a block is not held, has a hash already, or comes twice.
        """
        ids = self._ids(block_ids)
        hashes = as_hashes("hashes", hashes)
        if len(ids) != len(hashes):
            check_same_length(block_ids=ids, hashes=hashes)
        parents = None
        if parent_hashes is not None:
            parents = as_uint64("parent_hashes", parent_hashes)
            check_same_length(block_ids=ids, parent_hashes=parents)
        pool = self._pool
        counts = pool.ref_count.take(ids)
        if np.count_nonzero(counts) < len(ids):
            refuse_ids("register", ids[counts == 0], "nobody holds them")
        has = pool.block_hash.take(ids)
        if np.count_nonzero(has):
            refuse_ids("register", ids[has != NO_HASH], "they have a hash")
        last = pool.queue.last_of_each(ids)  # held, so they are not in the queue
        if last is not None:
            refuse_ids("register", ids[last != np.arange(len(ids))], "they come twice")

        pool.name(ids, hashes, parents)

    def evict(self, block_ids: ArrayLike) -> Ids:
        """Drop the hashes of blocks: held ones stay held, cached ones become free and keep their place in the queue.

        Parameters
        ----------
        block_ids : array_like of int, shape (B,)
            Any blocks; those without a hash are left as they are.

        Returns
        -------
        ndarray of int64
            The blocks that had a hash, in the order given. The sink is not asked: the content is unwanted.
        """
        ids = self._ids(block_ids)
        ids = keep_first(ids[self._pool.block_hash.take(ids) != NO_HASH])
        self._pool.evict(ids)
        return ids

    def reset(self) -> None:
        """Drop every hash; the free queue keeps its order, cached blocks of a key function join it by id.

        Raises
        ------
        BlockStateError
            If a block is held.
        """
        if self.num_held:
            refuse_ids("reset", np.flatnonzero(self.ref_count), "somebody holds them")
        self._pool.reset()

    def drain_events(self) -> BlockEvents:
        """Return the events since the last call; `ValueError` unless the allocator records them."""
        if self._pool.log is None:
            raise ValueError("events must be True for an allocator whose events are asked for")
        return self._pool.log.drain()

    # State

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return copies of the whole state as named arrays, for `restore` or `numpy.savez`; O(N)."""
        return self._pool.arrays()

    def restore(self, snapshot: Snapshot) -> None:
        """Return to the state of a snapshot, taken of an allocator with the same options.

        Raises
        ------
        ValueError
            If arrays are missing or of other shapes, as from other options.
        InvariantError
            If the snapshot is not a state that an allocator can be in.
        """
        now = self.snapshot()
        ragged = [name for name in now if name == "queue" or name.startswith("events.")]
        replace_state(now, snapshot, assign=self._pool.assign, check=self.check, ragged=ragged)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a snapshot to a ``.npz`` file."""
        save_snapshot(path, self.snapshot())

    def load(self, path: str | PathLike[str]) -> None:
        """Restore the snapshot in a ``.npz`` file; see `restore`."""
        self.restore(load_snapshot(path))

    def check(self) -> None:
        """Raise `InvariantError`, naming invariant and ids, unless B1 to B5 hold; O(N)."""
        self._pool.check()

    def _counts_of_content(self, doing: str, ids: Ids) -> Ids:
        """Return the reference counts of blocks, or raise if some are free."""
        counts = self._pool.ref_count.take(ids)
        if np.count_nonzero(counts) < len(ids):
            is_free = (counts == 0) & (self._pool.block_hash.take(ids) == NO_HASH)
            refuse_ids(doing, ids[is_free], "they are free")
        return counts

    def _ids(self, block_ids: ArrayLike) -> Ids:
        """Return `block_ids` as ids of blocks."""
        ids = np.asarray(block_ids)
        if ids.dtype == np.int64 and ids.ndim == 1:
            if len(ids) == 1:
                is_good = 0 <= ids.item() < self._pool.num_blocks
            else:  # one pass finds ids that are too large and, seen as unsigned, ids that are negative
                is_good = len(ids) == 0 or np.maximum.reduce(ids.view(np.uint64)) < self._pool.num_blocks
            if is_good:
                return ids
        return as_ids("block_ids", block_ids, self._pool.num_blocks)


def _as_policy(policy: str | Policy) -> Policy | None:
    """Return the key function of a policy, None where the free queue is the order."""
    if callable(policy):
        return policy
    if policy == "lru":
        return None
    if policy not in POLICIES:
        raise ValueError(f"policy must be a function or one of {', '.join(POLICIES)}: got {policy!r}")
    return POLICIES[policy]


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return a value that is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}: got {value!r}")
    return value


def _read_only(column: NDArray[Any]) -> NDArray[Any]:
    """Return a view that cannot be written to."""
    view = column.view()
    view.flags.writeable = False
    return view
