"""Which references of a trace are the same prefix, and which the same block.

A cache of prefixes needs one id for a whole prefix: everything from the head of a request up to a block, with the
namespace. Published traces often chain their block ids already, so that an id says all of this by itself; others name
the block's own content. Both are served, and the answer never depends on which it was.

*Chained already.* When every id always has the same parent (the id before it, or the request's namespace at the
head), an id determines its whole path: by induction from the head, two references of one id have the same parent,
whose paths agree. A table of parents proves it, filled and compared in pieces that fit the processor's cache.

*Not chained.* Each reference gets a 64-bit key, the sum over its path of a mix of (id, depth, namespace), which a
running sum yields for all at once. Equal prefixes have equal keys; that equal keys are equal prefixes is then proved,
not assumed, by the same table: one parent and one own id for each key. Should it fail, another seed is tried.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import Flags, Hashes, Ids
from kvarray.ragged import ranks

__all__ = ["Identity", "join_ids", "mix", "prefix_identity", "stream_identity", "unite_ids"]

_PIECE = 1 << 16  # references handled at once: temporaries stay in the processor's cache
_UNSET = -1  # parent of an id not seen yet
_HEAD = -2  # parent of a head in the first namespace; those of others are below it
_SEEDS = tuple(range(8))
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Mixer = Callable[[Hashes], Hashes]


class Identity(NamedTuple):
    """Ids of the references, the number that they lie below, and how many are distinct."""

    ids: Ids
    limit: int
    num_distinct: int


def prefix_identity(
    block_ids: NDArray[Any], offsets: Ids, *, namespace: Ids | None = None, mixer: Mixer | None = None
) -> Identity:
    """Return ids that are equal exactly where the whole prefixes and their namespaces are.

    Parameters
    ----------
    block_ids : ndarray of int64 or uint64, shape (N,)
    offsets : ndarray of int64, shape (B + 1,)
    namespace : ndarray of int64, shape (B,), optional
        Requests of different namespaces share nothing.
    mixer : callable, optional
        Scatters the 64-bit words that the keys are made of; default `mix`. The answer does not depend on it.

    Returns
    -------
    Identity
        `block_ids` themselves where they are chained already and index a table as they are; else numbers in order of
        first appearance.

    Notes
    -----
    O(N); about 2 ns a reference for ids that are chained already, some 60 ns for others, which are sorted once.

    Examples
    --------
    >>> prefix_identity(np.array([3, 4, 5, 4]), np.array([0, 2, 4])).ids
    array([0, 1, 2, 3])
    """
    codes = None if namespace is None else np.unique(namespace, return_inverse=True)[1].astype(np.int64)
    if _is_compact(block_ids):
        ids = block_ids.view(np.int64)
        count = _count_if_chained(ids, offsets, codes)
        if count is not None:
            return Identity(ids, int(ids.max(initial=-1)) + 1, count)
    for seed in _SEEDS:
        found = _number(_path_keys(block_ids, offsets, codes, seed, mixer or mix))
        if _is_function(found, block_ids) and _count_if_chained(found.ids, offsets, codes) is not None:
            return found
    raise RuntimeError("different prefixes have equal 64-bit keys for every seed: a bug of the mixer")


def stream_identity(block_ids: NDArray[Any], offsets: Ids, *, namespace: Ids | None = None) -> Identity:
    """Return ids that are equal exactly where block id and namespace are; what stands before a block does not count.

    Examples
    --------
    >>> stream_identity(np.array([3, 4, 5, 4]), np.array([0, 2, 4])).num_distinct
    3
    """
    if namespace is not None:
        codes = np.unique(namespace, return_inverse=True)[1].astype(np.int64)
        block_ids = _number(block_ids).ids * (codes.max(initial=0) + 1)
        block_ids += np.repeat(codes, np.diff(offsets))
    if not _is_compact(block_ids):
        return _number(block_ids)
    ids = block_ids.view(np.int64)
    is_used = np.zeros(int(ids.max(initial=-1)) + 1, dtype=np.bool_)
    is_used[ids] = True
    return Identity(ids, len(is_used), int(np.count_nonzero(is_used)))


def _is_compact(block_ids: NDArray[Any]) -> bool:
    """Return whether the ids can index a table as they are."""
    if not len(block_ids):
        return True
    return bool(block_ids.min() >= 0 and block_ids.max() < 2 * len(block_ids) + (1 << 16))


def _pieces(offsets: Ids) -> Iterator[tuple[slice, slice]]:
    """Yield slices of whole requests, and of their references, of about `_PIECE` references each."""
    start, num_requests = 0, len(offsets) - 1
    while start < num_requests:
        stop = int(np.searchsorted(offsets, offsets[start] + _PIECE, side="right")) - 1
        stop = min(max(stop, start + 1), num_requests)
        yield slice(start, stop), slice(int(offsets[start]), int(offsets[stop]))
        start = stop


def _count_if_chained(ids: Ids, offsets: Ids, codes: Ids | None) -> int | None:
    """Return the number of distinct ids if each has one parent, else None.

    A reference mostly repeats what its id has shown before, so that reading the table and comparing settles it; only
    ids that are new to a piece are written.
    """
    parents = np.full(int(ids.max(initial=-1)) + 1, _UNSET, dtype=np.int64)
    for requests, references in _pieces(offsets):
        own = ids[references]
        given = np.empty_like(own)
        given[1:] = own[:-1]
        heads = offsets[requests] - references.start
        has_any = heads < offsets[requests.start + 1 : requests.stop + 1] - references.start
        given[heads[has_any]] = _HEAD if codes is None else _HEAD - codes[requests][has_any]
        fresh = np.flatnonzero(parents[own] != given)
        own, given = own[fresh], given[fresh]
        if (parents[own] != _UNSET).any():
            return None
        parents[own] = given
        if (parents[own] != given).any():
            return None
    return int(np.count_nonzero(parents != _UNSET))


def _is_function(found: Identity, block_ids: NDArray[Any]) -> bool:
    """Return whether equal numbers always go with equal block ids."""
    own = np.empty(found.limit, dtype=block_ids.dtype)
    own[found.ids] = block_ids
    return all(
        np.array_equal(own[found.ids[i : i + _PIECE]], block_ids[i : i + _PIECE])
        for i in range(0, len(block_ids), _PIECE)
    )


def mix(words: Hashes) -> Hashes:
    """Return 64-bit words scattered over all 64 bits: the finaliser of SplitMix64, a bijection.

    References
    ----------
    .. [1] G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

    Examples
    --------
    >>> mix(np.array([1], dtype=np.uint64))
    array([6238072747940578789], dtype=uint64)
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _path_keys(block_ids: NDArray[Any], offsets: Ids, codes: Ids | None, seed: int, mixer: Mixer) -> Hashes:
    """Return a key of each reference's path: its sum of ``mixer(mixer(id) + step * depth + namespace)`` mod 2^64."""
    keys = np.empty(len(block_ids), dtype=np.uint64)
    for requests, references in _pieces(offsets):
        cuts = offsets[requests.start : requests.stop + 1] - references.start
        lengths = np.diff(cuts)
        words = mixer(block_ids[references].view(np.uint64) + np.uint64(seed))
        words += ranks(cuts).view(np.uint64) * _GOLDEN
        if codes is not None:
            words += np.repeat(mixer(codes[requests].view(np.uint64) + _GOLDEN), lengths)
        sums = np.zeros(len(words) + 1, dtype=np.uint64)
        np.cumsum(mixer(words), out=sums[1:])
        keys[references] = sums[1:] - np.repeat(sums[cuts[:-1]], lengths)
    return keys


def _number(keys: NDArray[Any]) -> Identity:
    """Return numbers of the distinct keys in order of first appearance."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return Identity(rank[inverse], len(first), len(first))


def unite_ids(bits: Ids, is_large: Flags) -> Ids:
    """Return numbers, in order of first appearance, for ids of which some are negative and others 2^63 or more.

    Parameters
    ----------
    bits : ndarray of int64, shape (N,)
        The ids modulo 2^64.
    is_large : ndarray of bool, shape (N,)
        True where the bits stand for a value of 2^63 or more.
    """
    numbers = _number(bits).ids * 2
    numbers += is_large
    return _number(numbers).ids


def join_ids(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the ids of several traces in one array, equal exactly where they were.

    int64 where that holds them all, else uint64; renumbered as by `unite_ids` where neither does.

    Examples
    --------
    >>> join_ids([np.array([-1]), np.array([2**64 - 1], dtype=np.uint64)])
    array([0, 1])
    """
    is_signed = [part.dtype == np.int64 for part in parts]
    if all(is_signed):
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    bits = np.concatenate([part.view(np.int64) for part in parts])
    has_negative = any(bool(part.min(initial=0) < 0) for part, signed in zip(parts, is_signed, strict=True) if signed)
    is_large = np.repeat(~np.array(is_signed), [len(part) for part in parts]) & (bits < 0)
    if not is_large.any():
        return bits
    return unite_ids(bits, is_large) if has_negative else bits.view(np.uint64)
