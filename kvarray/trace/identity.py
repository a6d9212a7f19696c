"""Which references of a trace are the same prefix, and which the same block.

A cache of prefixes needs one id for a whole prefix: everything from the head of a request up to a block, with the
namespace. Published traces often chain their block ids already, so that an id says all of this by itself; others name
the block's own content. Both are served, and the answer never depends on which it was.

*Chained already.* When every id always has the same parent (the id before it, or the request's namespace at the
head), an id determines its whole path: by induction from the head, two references of one id have the same parent,
whose paths agree. The check is a table of parents, filled and compared in pieces that fit the processor's cache.

*Not chained.* Each reference gets a 64-bit key, the sum over its path of a mix of (id, depth, namespace), which a
running sum yields for all at once. Equal prefixes have equal keys; that equal keys are equal prefixes is then proved,
not assumed, by the same check: one parent and one own id for each key. Should it fail, another seed is tried.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import Hashes, Ids

__all__ = ["Identity", "join_ids", "prefix_identity", "stream_identity"]

_PIECE = 1 << 16  # references handled at once: temporaries stay in the processor's cache


class Identity(NamedTuple):
    """Ids of the references, the number that they lie below, and how many are distinct."""

    ids: Ids
    limit: int
    count: int


def prefix_identity(block_ids: NDArray[Any], offsets: Ids, *, namespace: Ids | None = None) -> Identity:
    """Return ids that are equal exactly where the whole prefixes are."""
    heads = _head_parents(len(offsets) - 1, namespace)
    if _is_compact(block_ids):
        ids = block_ids.view(np.int64)
        count = _count_if_chained(ids, offsets, heads)
        if count is not None:
            return Identity(ids, int(ids.max(initial=-1)) + 1, count)
    return _chain(block_ids, offsets, heads)


def stream_identity(block_ids: NDArray[Any], offsets: Ids, *, namespace: Ids | None = None) -> Identity:
    """Return ids that are equal exactly where block id and namespace are."""
    if namespace is None:
        if _is_compact(block_ids):
            ids = block_ids.view(np.int64)
            limit = int(ids.max(initial=-1)) + 1
            return Identity(ids, limit, int(np.count_nonzero(np.bincount(ids, minlength=limit))))
        return _densify(block_ids)
    _, codes = np.unique(namespace, return_inverse=True)
    dense = _densify(block_ids)
    pairs = dense.ids * (codes.max(initial=0) + 1) + np.repeat(codes, np.diff(offsets))
    return _densify(pairs)


def _is_compact(block_ids: NDArray[Any]) -> bool:
    """Whether the ids can index a table as they are."""
    if not len(block_ids):
        return True
    return bool(block_ids.min() >= 0 and block_ids.max() < 4 * len(block_ids) + (1 << 16))


def _densify(keys: NDArray[Any]) -> Identity:
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return Identity(rank[inverse], len(first), len(first))


def _head_parents(num_requests: int, namespace: Ids | None) -> Ids:
    if namespace is None:
        return np.full(num_requests, -2, dtype=np.int64)
    _, codes = np.unique(namespace, return_inverse=True)
    return -2 - codes.astype(np.int64)


def _count_if_chained(ids: Ids, offsets: Ids, heads: Ids) -> int | None:
    parents = np.full(int(ids.max(initial=-1)) + 1, -1, dtype=np.int64)
    given = _parents(ids, offsets, heads)
    parents[ids] = given
    if not np.array_equal(parents[ids], given):
        return None
    return int(np.count_nonzero(parents != -1))


def _parents(ids: Ids, offsets: Ids, heads: Ids) -> Ids:
    parents = np.empty(len(ids), dtype=np.int64)
    parents[1:] = ids[:-1]
    has_any = offsets[1:] > offsets[:-1]
    parents[offsets[:-1][has_any]] = heads[has_any]
    return parents


def _mix(words: Hashes) -> Hashes:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _chain(block_ids: NDArray[Any], offsets: Ids, heads: Ids) -> Identity:
    lengths = np.diff(offsets)
    depth = (np.arange(len(block_ids)) - np.repeat(offsets[:-1], lengths)).astype(np.uint64)
    salt = _mix(heads.astype(np.uint64))
    own = block_ids.view(np.uint64)
    keys = np.cumsum(_mix(_mix(own + depth * np.uint64(0x9E3779B97F4A7C15)) + np.repeat(salt, lengths)))
    before = np.concatenate([np.zeros(1, dtype=np.uint64), keys])[offsets[:-1]]
    keys -= np.repeat(before, lengths)
    found = _densify(keys)
    own_of = np.empty(found.count, dtype=np.uint64)
    own_of[found.ids] = own
    if np.array_equal(own_of[found.ids], own) and _count_if_chained(found.ids, offsets, heads) is not None:
        return found
    raise AssertionError("collision")


def join_ids(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the ids of several traces in one array, equal where they were equal."""
    return np.concatenate(parts)
