"""Mechanisms put together: a tree over a pool of blocks, and a pool over slower tiers.

*A radix tree over an allocator* (SGLang's arrangement): the tree stores one block id per page and is the one holder of
those blocks. Who reads a prefix locks its path; evicting from the tree gives block ids, which are released.

*An allocator over tiers* (LMCache's): the sink of the allocator writes what it evicts to a `TieredCache` of the memory
below, under the bits of its hash. What a prompt does not find on the GPU is looked up there, read, and admitted to the
GPU again; the copy below stays until the tiers need its place.

Both are a few calls of public methods, shown here to be copied and changed.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Hashes, Ids, as_ints
from kvarray.block import Admission, BlockAllocator, BlockTable
from kvarray.errors import CapacityError
from kvarray.prefix import Lock, RadixTree
from kvarray.tier import TieredCache

__all__ = ["admit_over_tiers", "admit_to_tree", "sink_into", "tree_over"]


def tree_over(pool: BlockAllocator, *, block_size: int) -> RadixTree:
    """Return an empty tree for prompts whose KV lies in the blocks of a pool."""
    capacity = pool.num_blocks * block_size  # the pool is what runs out, so the tree never evicts by itself
    return RadixTree(capacity, page_size=block_size, granularity="page", values_per="page")


def admit_to_tree(tree: RadixTree, pool: BlockAllocator, tokens: ArrayLike) -> tuple[Lock, Ids]:
    """Cache the full blocks of a prompt, and lock them.

    Parameters
    ----------
    tree : RadixTree
        Made by `tree_over`. Only it holds the blocks that it stores.
    pool : BlockAllocator
    tokens : array_like of int, shape (n,)

    Returns
    -------
    lock : Lock
        For `RadixTree.unlock` when the request is done.
    block_ids : ndarray of int64, shape (n // block_size,)
        Where the KV of each full block is, or goes.

    Raises
    ------
    TypeError, ValueError
        If the tokens are malformed, or the tree keeps no value per page.
    CapacityError
        If free blocks and those that no lock protects are too few. Only recency has changed then.

    Examples
    --------
    >>> pool = BlockAllocator(4)
    >>> tree = tree_over(pool, block_size=2)
    >>> first, second = (admit_to_tree(tree, pool, tokens) for tokens in ([1, 2, 3, 4], [1, 2, 5, 6, 7]))
    >>> second[1], pool.num_free
    (array([0, 2]), 1)
    """
    array = as_ints("tokens", tokens, low=0)
    if tree.values_per != "page":
        raise ValueError(f"tree must keep a value per page, as of tree_over: it keeps {tree.values_per}")
    path = tree.lock(array)  # what is found must not go to make room for the rest
    try:
        known = tree.peek(array).values
        assert known is not None
        missing = len(array) // tree.page_size - len(known)
        short = missing - pool.num_available
        if short * tree.page_size > tree.evictable_tokens:
            raise CapacityError(
                f"admit {missing} blocks: {pool.num_available} are free, {tree.evictable_tokens} tokens evictable",
                requested=missing,
                available=pool.num_available + tree.evictable_tokens // tree.page_size,
            )

        if short > 0:
            evicted = tree.evict(short * tree.page_size).values
            assert evicted is not None
            pool.release(evicted)
        block_ids = np.concatenate((known, pool.allocate(missing)))
        tree.insert(array, block_ids)
        return tree.lock(array), block_ids
    finally:
        tree.unlock(path)


def sink_into(below: TieredCache) -> Callable[[Ids, Hashes], None]:
    """Return a sink for `BlockAllocator` that writes what it evicts to tiers.

    Examples
    --------
    >>> from kvarray.tier import TierSpec
    >>> below = TieredCache([TierSpec("cpu", blocks=8)])
    >>> pool = BlockAllocator(1, sink=sink_into(below))
    >>> pool.register(pool.allocate(1), [71])
    >>> pool.release([0]), pool.allocate(1), below.tier_of([71])
    (None, array([0]), array([0]))
    """

    def write(block_ids: Ids, hashes: Hashes) -> None:
        below.access(hashes.view(np.int64))

    return write


def admit_over_tiers(
    table: BlockTable, below: TieredCache, num_tokens: int, *, hashes: Hashes
) -> tuple[Admission, Ids]:
    """Admit a prompt, reading from tiers what the GPU does not have.

    Parameters
    ----------
    table : BlockTable
        Over an allocator whose sink is `sink_into` the same tiers.
    below : TieredCache
    num_tokens : int
    hashes : ndarray of uint64, shape (H,)
        Chained hashes of the full blocks of the prompt.

    Returns
    -------
    admission : Admission
        What was found on the GPU.
    loaded : ndarray of int64
        The tier that each of the blocks after those was read from; the rest has to be computed.

    Raises
    ------
    CapacityError
        As `BlockTable.admit`. Only the recency of the tiers has changed then.
    """
    on_gpu = table.allocator.lookup(hashes) >= 0
    keys = hashes[int(np.append(on_gpu, False).argmin()) :].view(np.int64)
    # Read first: what the admission pushes out of the GPU may push these out of the tiers.
    read = below.access_prefix(keys, admit=np.zeros(len(keys), dtype=np.bool_))

    admission = table.admit([num_tokens], hashes=hashes, hash_offsets=[0, len(hashes)])
    return admission, read.tier[read.hit]
