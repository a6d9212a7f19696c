"""Which references of a trace are the same prefix, and which the same block.

A cache of prefixes needs one id for a whole prefix: everything from the head of a request up to a block, with the
namespace. Published traces often chain their block ids already, so that an id says all of this by itself; others name
the block's own content. Both are served, and the answer never depends on which it was.

*Chained already.* When every id always has the same parent (the id before it, or the request's namespace at the
head), an id determines its whole path: by induction from the head, two references of one id have the same parent,
whose paths agree. Ids given out in order of first appearance come in runs of consecutive ids, within which the parent
of an id is the one below it. So a pass over the references finds the runs, and what is left to prove is about runs
alone: the first id of a run always has the same parent, and is never within a run elsewhere.

*Not chained.* Each reference gets a 64-bit key, the sum over its path of a mix of (id, depth, namespace), which a
running sum yields for all at once. Equal prefixes have equal keys; that equal keys are equal prefixes is then proved,
not assumed, by the same table: one parent and one own id for each key. Should it fail, another seed is tried.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import Flags, Hashes, Ids
from kvarray.ragged import ranks

__all__ = ["Identity", "join_ids", "mix", "number_keys", "prefix_identity", "stream_identity", "unite_ids"]

_PIECE = 1 << 17  # references handled at once: temporaries stay in the processor's cache
_LONG = 128  # blocks of a request from which a look at an earlier one is cheaper than a sort
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
    O(N) for ids that are chained already, about 2 ns a reference; others are sorted once, about 60 ns a reference.

    Examples
    --------
    >>> prefix_identity(np.array([3, 4, 5, 4]), np.array([0, 2, 4])).ids
    array([0, 1, 2, 3])
    """
    codes = None if namespace is None else np.unique(namespace, return_inverse=True)[1].astype(np.int64)
    limit = _compact_limit(block_ids)
    if limit is not None:
        ids = block_ids.view(np.int64)
        count = _count_if_chained(ids, limit, offsets, codes)
        if count is not None:
            return Identity(ids, limit, count)
    for seed in _SEEDS:
        found = _number_paths(_path_keys(block_ids, offsets, codes, seed, mixer or mix), offsets)
        if _is_function(found, block_ids) and _count_if_chained(found.ids, found.limit, offsets, codes) is not None:
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
        block_ids = number_keys(block_ids).ids * (codes.max(initial=0) + 1)
        block_ids += np.repeat(codes, np.diff(offsets))
    limit = _compact_limit(block_ids)
    if limit is None:
        return number_keys(block_ids)
    ids = block_ids.view(np.int64)
    cover = _Cover(limit, len(ids))
    for run in _runs(ids, offsets, None):
        cover.add(run.first, run.last)
    return Identity(ids, limit, int(np.count_nonzero(cover.is_covered())))


def _compact_limit(block_ids: NDArray[Any]) -> int | None:
    """Return the number that all ids lie below, or None if they cannot index a table as they are."""
    if not len(block_ids):
        return 0
    limit = int(block_ids.view(np.uint64).max()) + 1  # negative ids are the largest
    return limit if limit <= 2 * len(block_ids) + (1 << 16) else None


def _pieces(offsets: Ids) -> Iterator[tuple[slice, slice]]:
    """Yield slices of whole requests, and of their references, of about `_PIECE` references each."""
    start, num_requests = 0, len(offsets) - 1
    while start < num_requests:
        stop = int(np.searchsorted(offsets, offsets[start] + _PIECE, side="right")) - 1
        stop = min(max(stop, start + 1), num_requests)
        yield slice(start, stop), slice(int(offsets[start]), int(offsets[stop]))
        start = stop


class _Runs(NamedTuple):
    """Runs of consecutive ids within requests: first and last id of each, and the parent of the first."""

    first: Ids
    last: Ids
    parent: Ids


def _runs(ids: Ids, offsets: Ids, codes: Ids | None) -> Iterator[_Runs]:
    """Yield the runs of the ids, piece by piece."""
    pieces = list(_pieces(offsets))
    room = max((references.stop - references.start for _, references in pieces), default=0)
    steps = np.zeros(room, dtype=np.int64)  # both are used again for each piece: fresh memory costs more than the work
    is_first = np.empty(room, dtype=np.bool_)
    for requests, references in pieces:
        own = ids[references]
        if not len(own):
            continue
        heads = offsets[requests] - references.start
        has_any = heads < offsets[requests.start + 1 : requests.stop + 1] - references.start
        heads = heads[has_any]
        np.subtract(own[1:], own[:-1], out=steps[1 : len(own)])
        np.not_equal(steps[: len(own)], 1, out=is_first[: len(own)])
        is_first[heads] = True

        places = np.flatnonzero(is_first[: len(own)])
        parent = own[places - 1]
        parent[np.searchsorted(places, heads)] = _HEAD if codes is None else _HEAD - codes[requests][has_any]
        last = np.empty_like(parent)
        last[:-1] = own[places[1:] - 1]
        last[-1] = own[-1]
        yield _Runs(own[places], last, parent)


class _Cover:
    """Which of the ids below a limit lie in one of many ranges: steps up and down, summed once at the end."""

    def __init__(self, limit: int, most: int) -> None:
        self._dtype = _narrowest(most)
        self._steps = np.zeros(limit + 1, dtype=self._dtype)

    def add(self, first: Ids, last: Ids) -> None:
        """Add the ranges ``first .. last``, which are empty where last is first - 1."""
        np.add.at(self._steps, first, self._dtype(1))
        np.add.at(self._steps, last + 1, self._dtype(-1))

    def is_covered(self) -> Flags:
        """Return a flag for each id; nothing can be added afterwards."""
        np.cumsum(self._steps, dtype=self._dtype, out=self._steps)
        return self._steps[:-1] > 0


def _narrowest(limit: int) -> type[np.int32] | type[np.int64]:
    """Return the dtype for numbers up to a limit: tables of half the size are several times as fast when fresh."""
    return np.int32 if limit < 2**31 else np.int64


def _count_if_chained(ids: Ids, limit: int, offsets: Ids, codes: Ids | None) -> int | None:
    """Return the number of distinct ids, all below `limit`, if each has one parent, else None."""
    parents = np.full(limit, _UNSET, dtype=_narrowest(max(limit, len(offsets))))  # of the first ids of runs
    rests = _Cover(limit, len(ids))  # ids in runs after the first
    for run in _runs(ids, offsets, codes):
        known = parents[run.first]
        fresh = np.flatnonzero(known != run.parent)
        if (known[fresh] != _UNSET).any():
            return None
        first, parent = run.first[fresh], run.parent[fresh]
        parents[first] = parent
        if (parents[first] != parent).any():  # two of this piece
            return None
        rests.add(run.first + 1, run.last)
    is_rest = rests.is_covered()
    is_first = parents != _UNSET
    return None if (is_rest & is_first).any() else int(np.count_nonzero(is_rest | is_first))


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


def number_keys(keys: NDArray[Any], *, mixer: Mixer | None = None) -> Identity:
    """Return numbers of the distinct keys in order of first appearance.

    Parameters
    ----------
    keys : ndarray of int64 or uint64, shape (N,)
    mixer : callable, optional
        Scatters the keys; default `mix`. The answer does not depend on it.

    Returns
    -------
    Identity

    Notes
    -----
    One sort of words that hold a hash of the key in their upper bits and its position below: sorting words alone is
    several times as fast as sorting positions by key. Keys that share a hash are told apart afterwards.

    Examples
    --------
    >>> number_keys(np.array([70, -5, 70, 9])).ids
    array([0, 1, 0, 2])
    """
    size = len(keys)
    if not size:
        return Identity(np.empty(0, dtype=np.int64), 0, 0)
    width = np.uint64((size - 1).bit_length())
    words = (mixer or mix)(keys.view(np.uint64))
    words >>= width
    words <<= width
    words |= np.arange(size, dtype=np.uint64)
    words.sort()

    positions = (words & ((np.uint64(1) << width) - np.uint64(1))).view(np.int64)
    words >>= width
    is_first = np.empty(size, dtype=np.bool_)
    is_first[0] = True
    np.not_equal(words[1:], words[:-1], out=is_first[1:])
    del words
    leaders = np.empty(size, dtype=np.int64)  # for each position, the first one of the same key
    leaders[positions] = np.repeat(positions[is_first], np.diff(np.flatnonzero(is_first), append=size))
    del positions, is_first

    misled = np.flatnonzero(keys != keys[leaders])
    if len(misled):
        members = np.flatnonzero(np.isin(leaders, leaders[misled]))
        _, first, inverse = np.unique(keys[members], return_index=True, return_inverse=True)
        leaders[members] = members[first][inverse]
    numbers = np.cumsum(leaders == np.arange(size)) - 1
    return Identity(numbers[leaders], int(numbers[-1]) + 1, int(numbers[-1]) + 1)


def _number_paths(keys: Hashes, offsets: Ids) -> Identity:
    """Return the same as `number_keys`, faster where long requests repeat earlier ones from their head.

    What a request has in common with an earlier one is copied from there, as a slice; only the rest is sorted. The
    earlier request is looked up by the keys at depths 1, 2, 4, ..., deepest first. Which one is found is a matter of
    speed alone, since only references whose keys are equal are copied.
    """
    if len(keys) < _LONG * (len(offsets) - 1):
        return number_keys(keys)
    leaders = np.arange(len(keys))  # an earlier reference with an equal key, where one is known
    row_at: dict[int, tuple[int, int]] = {}
    probes = (1 << np.arange(63)) - 1
    for start, stop in pairwise(offsets.tolist()):
        row = keys[start:stop]
        seen = row[probes[: (stop - start).bit_length()]].tolist()
        known = next((row_at[key] for key in reversed(seen) if key in row_at), None)
        if known is not None:
            shared = min(known[1] - known[0], stop - start)
            differs = row[:shared] != keys[known[0] : known[0] + shared]
            first = int(differs.argmax())
            shared = first if differs[first] else shared
            leaders[start : start + shared] = leaders[known[0] : known[0] + shared]
        row_at.update(dict.fromkeys(seen, (start, stop)))
    rest = np.flatnonzero(leaders == np.arange(len(keys)))
    found = number_keys(keys[rest])
    numbers = np.empty(len(keys), dtype=np.int64)
    numbers[rest] = found.ids
    return found._replace(ids=numbers[leaders])


def unite_ids(bits: Ids, is_large: Flags) -> Ids:
    """Return numbers, in order of first appearance, for ids of which some are negative and others 2^63 or more.

    Parameters
    ----------
    bits : ndarray of int64, shape (N,)
        The ids modulo 2^64.
    is_large : ndarray of bool, shape (N,)
        True where the bits stand for a value of 2^63 or more.
    """
    numbers = number_keys(bits).ids * 2
    numbers += is_large
    return number_keys(numbers).ids


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
