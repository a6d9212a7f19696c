"""Chained 64-bit hashes of the full blocks of token arrays.

The hash of a block stands for the block's tokens and for everything before it: two sequences have the same hash at
block j if they agree in their first j + 1 blocks and in their namespace. Only full blocks are hashed. For a batch of
sequences, and for one very long sequence, all blocks are hashed at once::

    content  c[j] = mix(sum over k of  scramble(token[k]) * odd[k]  +  extra key of the block)
    chain    s[j] = s[j-1] * r + c[j]          s[-1] = unmix(parent),  r odd
    hash     h[j] = mix(s[j])                  all modulo 2^64

`mix` is the bijection that ends SplitMix64, so a chain continues from any hash alone. The recurrence is linear, which
is what makes it a scan: ``s[j] = r^(j+1) * (s[-1] + sum over i <= j of c[i] * r^-(i+1))``, a running sum between two
multiplications, exact because r has an inverse. The numbers are the same on every machine and in every run.

These are hashes against accidents, not against attackers (vLLM offers SHA-256 for those). Unrelated contents share a
hash with probability 2^-64; two contents that differ only by blocks swapped 2^m places apart with 2^-(62-m).
Whoever has the tokens at hand should compare them: `BlockTable` does when it keeps tokens.

A *namespace* keeps equal tokens apart that must not share blocks: LoRA adapters, cache salts, image inputs. Names are
encoded with their kind, their type and their length before they are hashed, so that no two different namespaces are
the same bytes. A namespace is where a chain starts (`namespace_hash`); an image concerns the blocks in which its
tokens lie, and those after them, and is mixed in there (`image_block_keys`).
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import (
    NO_HASH,
    Hashes,
    Ids,
    as_hashes,
    as_ints,
    as_positive_int,
    as_uint64,
    check_offsets,
    check_same_length,
    refuse,
)
from kvarray.ragged import lengths_to_offsets, ranges, ranks

__all__ = ["Hasher", "chain_hashes", "content_hashes", "hash_blocks", "image_block_keys", "namespace_hash"]

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_RATIO = 0xD1342543DE82EF95  # of the chain; a multiplier that L'Ecuyer's spectral tests rate well
_MODULUS = 2**64


class Hasher(Protocol):
    """A function with the arguments and results of `hash_blocks`."""

    def __call__(
        self,
        tokens: ArrayLike,
        offsets: ArrayLike,
        *,
        block_size: int,
        parent_hashes: ArrayLike | None = None,
        block_keys: ArrayLike | None = None,
    ) -> tuple[Hashes, Ids]:
        """Return the hashes of full blocks, and their offsets."""


def hash_blocks(
    tokens: ArrayLike,
    offsets: ArrayLike,
    *,
    block_size: int,
    parent_hashes: ArrayLike | None = None,
    block_keys: ArrayLike | None = None,
) -> tuple[Hashes, Ids]:
    """Return the chained hashes of the full blocks of many sequences.

    Parameters
    ----------
    tokens : array_like of int, shape (sum of lengths,)
        Token ids of all sequences, ``>= 0``.
    offsets : array_like of int, shape (B + 1,)
        Sequence i is ``tokens[offsets[i]:offsets[i + 1]]``.
    block_size : int
        Tokens of a block. Tokens after the last full block are not hashed.
    parent_hashes : array_like of uint64, shape (B,), optional
        Hash from which each chain continues: of the block before, or of a namespace. Default `namespace_hash()`.
    block_keys : array_like of uint64, shape (number of full blocks,), optional
        A key to mix into each block, from `image_block_keys`; 0 mixes in nothing.

    Returns
    -------
    hashes : ndarray of uint64, shape (number of full blocks,)
        ``hashes[j]`` of a sequence depends on its parent hash and on its blocks up to j; never `NO_HASH`.
    hash_offsets : ndarray of int64, shape (B + 1,)
        Sequence i has ``hashes[hash_offsets[i]:hash_offsets[i + 1]]``.

    Raises
    ------
    TypeError, ValueError
        If tokens are negative or not integers, or shapes do not fit.

    Notes
    -----
    Snapshot law, O(tokens), in a fixed number of passes whatever the shape of the batch.

    Examples
    --------
    >>> hashes, hash_offsets = hash_blocks([1, 2, 3, 4, 5, 1, 2, 9, 9], [0, 5, 9], block_size=2)
    >>> hash_offsets
    array([0, 2, 4])
    >>> (hashes[:2] == hashes[2:]).tolist()  # both begin with 1, 2 and go on differently
    [True, False]
    """
    block_size = as_positive_int("block_size", block_size)
    tokens = as_ints("tokens", tokens, low=0)
    offsets = as_ints("offsets", offsets)
    check_offsets("offsets", offsets, len(tokens))

    lengths = np.diff(offsets)
    num_blocks = lengths // block_size
    if len(tokens) != int(num_blocks.sum()) * block_size:
        tokens = tokens[ranges(offsets[:-1], num_blocks * block_size)]
    contents = content_hashes(tokens.reshape(-1, block_size))
    if block_keys is not None:
        keys = as_uint64("block_keys", block_keys)
        check_same_length(block_keys=keys, full_blocks=contents)
        contents = np.where(keys == 0, contents, _mix(contents + keys))
    hash_offsets = lengths_to_offsets(num_blocks)
    return chain_hashes(contents, hash_offsets, parent_hashes=parent_hashes), hash_offsets


def content_hashes(blocks: Ids) -> Hashes:
    """Return a hash of each block's tokens alone.

    Parameters
    ----------
    blocks : ndarray of int64, shape (N, T)
        Token ids of each block.

    Returns
    -------
    ndarray of uint64, shape (N,)

    Notes
    -----
    Snapshot law, O(tokens). A multilinear hash of scrambled tokens, mixed at the end.
    """
    scrambled = blocks.astype(np.uint64)
    scrambled += np.uint64(1)  # so that token 0 counts
    scrambled *= np.uint64(_MIX_1)
    scrambled ^= scrambled >> np.uint64(32)
    sums: Hashes = scrambled @ _odd_numbers(blocks.shape[1])
    return _mix(sums)


def chain_hashes(contents: ArrayLike, offsets: ArrayLike, *, parent_hashes: ArrayLike | None = None) -> Hashes:
    """Return the chained hashes of blocks whose contents are hashed already.

    Parameters
    ----------
    contents : array_like of uint64, shape (N,)
        Content hash of each block: of its tokens, or whatever else stands for its content.
    offsets : array_like of int, shape (B + 1,)
        Sequence i has the blocks ``offsets[i]`` to ``offsets[i + 1] - 1``.
    parent_hashes : array_like of uint64, shape (B,), optional
        Hash from which each chain continues. Default `namespace_hash()`.

    Returns
    -------
    ndarray of uint64, shape (N,)
        ``mix(s[j])`` with ``s[j] = s[j - 1] * r + contents[j]``; never `NO_HASH`.

    Notes
    -----
    Snapshot law, O(N). A chain may be cut anywhere and continued from its last hash.

    Examples
    --------
    >>> whole = chain_hashes([5, 6, 7], [0, 3])
    >>> rest = chain_hashes([6, 7], [0, 2], parent_hashes=whole[:1])
    >>> bool((whole[1:] == rest).all())
    True
    """
    contents = as_uint64("contents", contents)
    offsets = as_ints("offsets", offsets)
    check_offsets("offsets", offsets, len(contents))
    num_rows = len(offsets) - 1
    if parent_hashes is None:
        parents = np.full(num_rows, namespace_hash(), dtype=np.uint64)
    else:
        parents = as_hashes("parent_hashes", parent_hashes)
    check_same_length(parent_hashes=parents, rows=offsets[1:])
    if len(contents) == 0:
        return np.empty(0, dtype=np.uint64)

    lengths = np.diff(offsets)
    places = ranks(offsets)
    powers, inverses = _powers(int(lengths.max()))
    sums = np.zeros(len(contents) + 1, dtype=np.uint64)
    np.cumsum(contents * inverses[places], out=sums[1:])
    before = _unmix(parents) - sums[offsets[:-1]]  # what the running sum lacks at the start of each row
    hashes = _mix((sums[1:] + np.repeat(before, lengths)) * powers[places])
    # One state in 2^64 would hash to NO_HASH. It is moved to another value; a chain cannot continue from 0.
    hashes[hashes == NO_HASH] = _GAMMA
    return hashes


def namespace_hash(*, lora: str | int | None = None, salt: str | bytes | None = None) -> np.uint64:
    """Return the hash at which the chains of a namespace start.

    Parameters
    ----------
    lora : str or int, optional
        Name or number of the LoRA adapter that computes the sequence.
    salt : str or bytes, optional
        Cache salt: sequences share blocks only with sequences of the same salt.

    Returns
    -------
    uint64
        To be passed as ``parent_hashes``; never `NO_HASH`.

    Notes
    -----
    vLLM mixes the adapter into every block and the salt into the first. Since hashes are chained, the start is
    enough for both.

    Examples
    --------
    >>> bool(namespace_hash(lora="a", salt="bc") == namespace_hash(lora="ab", salt="c"))
    False
    >>> bool(namespace_hash(lora="x") == namespace_hash(salt="x"))
    False
    """
    return np.uint64(_digest(_encode(b"lora", lora, (str, int)) + _encode(b"salt", salt, (str, bytes))))


def image_block_keys(
    image_ids: Sequence[str | bytes | int],
    *,
    rows: ArrayLike,
    starts: ArrayLike,
    lengths: ArrayLike,
    offsets: ArrayLike,
    block_size: int,
) -> Hashes:
    """Return the keys that images give to the blocks in which their placeholder tokens lie.

    Parameters
    ----------
    image_ids : sequence of str, bytes or int, length K
        What identifies each image, such as a hash of its pixels.
    rows : array_like of int, shape (K,)
        Sequence in which each image lies.
    starts, lengths : array_like of int, shape (K,)
        First placeholder token of each image, counted within its sequence, and how many it has.
    offsets : array_like of int, shape (B + 1,)
        The token offsets of the sequences, as given to `hash_blocks`.
    block_size : int
        Tokens of a block.

    Returns
    -------
    ndarray of uint64, shape (number of full blocks,)
        For ``hash_blocks(..., block_keys=...)``; 0 for blocks without an image.

    Notes
    -----
    A key depends on the image and on where in the block it starts, so that blocks with the same placeholders and
    different images, or with other parts of one image, differ. Several images of one block add up: their starts
    differ, so their order is known.

    Examples
    --------
    >>> keys = image_block_keys(["cat"], rows=[0], starts=[3], lengths=[2], offsets=[0, 8], block_size=2)
    >>> (keys == 0).tolist()  # tokens 3 and 4 lie in blocks 1 and 2
    [True, False, False, True]
    """
    block_size = as_positive_int("block_size", block_size)
    offsets = as_ints("offsets", offsets, low=0)
    check_offsets("offsets", offsets, int(offsets[-1]) if len(offsets) else 0)
    rows = as_ints("rows", rows, low=0, high=len(offsets) - 1)
    starts = as_ints("starts", starts, low=0)
    lengths = as_ints("lengths", lengths, low=0)
    digests = np.array([_digest(_encode(b"image", image, (str, bytes, int))) for image in image_ids], dtype=np.uint64)
    check_same_length(image_ids=digests, rows=rows, starts=starts, lengths=lengths)
    row_lengths = np.diff(offsets)
    is_outside = starts > row_lengths[rows] - lengths  # a sum could take more than 64 bits
    refuse("starts", "leave room for the image's tokens in its sequence", is_outside, starts)

    num_blocks = row_lengths // block_size
    first = starts // block_size
    after = np.where(lengths == 0, first, (starts + lengths - 1) // block_size + 1)
    after = np.minimum(after, num_blocks[rows])  # a tail that is no full block has no hash
    count = np.maximum(after - first, 0)
    block = ranges(first, count)  # within its sequence
    place = np.repeat(starts, count) - block * block_size  # of the image's start; negative in its later blocks
    parts = _mix(np.repeat(digests, count) + place.view(np.uint64) * np.uint64(_GAMMA))
    keys = np.zeros(int(num_blocks.sum()), dtype=np.uint64)
    np.add.at(keys, block + np.repeat(lengths_to_offsets(num_blocks)[rows], count), parts)
    return keys


def _encode(kind: bytes, name: str | bytes | int | None, types: tuple[type, ...]) -> bytes:
    """Return kind, type, length and text of a name (or None): bytes that no other name has."""
    if isinstance(name, bool) or not (name is None or isinstance(name, types)):
        raise TypeError(f"{kind.decode()} must be {' or '.join(t.__name__ for t in types)}: got {name!r}")
    text = b"" if name is None else name if isinstance(name, bytes) else str(name).encode()
    header = b"%s:%s:%d:" % (kind, type(name).__name__.encode(), len(text))
    return header + text


def _digest(text: bytes) -> int:
    """Return a 64-bit hash of bytes that is not 0."""
    from hashlib import blake2b

    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") or _GAMMA


def _mix(values: Hashes) -> Hashes:
    """Return the end of SplitMix64 of each value: a bijection in which every bit changes half of the others."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(_MIX_1)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_MIX_2)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _unmix(values: Hashes) -> Hashes:
    """Return the values that `_mix` sends to these."""
    back: Hashes = values ^ (values >> np.uint64(31)) ^ (values >> np.uint64(62))
    back *= np.uint64(pow(_MIX_2, -1, _MODULUS))
    back ^= (back >> np.uint64(27)) ^ (back >> np.uint64(54))
    back *= np.uint64(pow(_MIX_1, -1, _MODULUS))
    back ^= (back >> np.uint64(30)) ^ (back >> np.uint64(60))
    return back


def _odd_numbers(count: int) -> Hashes:
    """Return the multipliers of a block's tokens: the outputs of SplitMix64, made odd."""
    states = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
    return _mix(states) | np.uint64(1)


def _powers(count: int) -> tuple[Hashes, Hashes]:
    """Return ``r^1 .. r^count`` and their inverses."""
    powers = np.full(count, _RATIO, dtype=np.uint64)
    inverses = np.full(count, pow(_RATIO, -1, _MODULUS), dtype=np.uint64)
    return np.cumprod(powers, dtype=np.uint64), np.cumprod(inverses, dtype=np.uint64)
