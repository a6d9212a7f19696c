"""Decimal integers in text as arrays: what a JSON parser would return, without an object for each number.

Eight digits are one little-endian 64-bit word, and three multiplications turn it into a number: neighbouring digits
become two-digit numbers, those four-digit ones, those eight-digit ones, in all lanes at once. A 64-bit integer takes
three such words at most.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvarray.arrays import Flags, Hashes, Ids

__all__ = ["Integers", "parse_integers"]

_LONGEST = 20  # digits of 2^64 - 1
_PAD = b"0" * 24  # three words may be read before the first number
_DIGITS = np.uint64(0x0F0F0F0F0F0F0F0F)
_KEEP_LAST = np.array([0] + [(2**64 - 1) << 8 * (8 - n) & (2**64 - 1) for n in range(1, 9)], dtype=np.uint64) & _DIGITS
_TOP = np.uint64(2**64 // 10**16)  # digits of 2^64 - 1 before the last sixteen, and those
_LOWEST = np.uint64(2**63)  # magnitude of the lowest signed integer
_REST = np.uint64((2**64 - 1) % 10**16)


class Integers(NamedTuple):
    """64-bit integers in rows: their bits as int64, and which of them stand for values of 2^63 or more."""

    bits: Ids
    counts: Ids  # of each row
    is_large: Flags | None
    has_negative: bool


def parse_integers(rows: Sequence[bytes]) -> Integers | None:
    """Return the integers that texts list, or None where one is anything but such a list.

    Parameters
    ----------
    rows : sequence of bytes
        Decimal integers as JSON writes them, with a comma and at most one space between neighbours. May be empty.

    Returns
    -------
    Integers or None
        None where JSON might read something else, or nothing at all: another character, a leading zero, an empty
        item, a number beyond 64 bits. The caller then finds the fault in its own way.

    Notes
    -----
    About 20 ns a number; `json.loads` needs three times as long.

    Examples
    --------
    >>> parse_integers([b"7, -12,900", b""]).bits
    array([  7, -12, 900])
    >>> parse_integers([b"7, 08"]) is None
    True
    """
    text = b",".join([_PAD, *filter(None, rows), b""])
    buffer = np.frombuffer(text, dtype=np.uint8)
    commas = np.flatnonzero(buffer == ord(","))
    starts, ends = commas[:-1] + 1, commas[1:]
    num_others = len(commas)  # bytes that are not digits
    if b" " in text:
        has_space = buffer[starts] == ord(" ")
        starts += has_space
        num_others += int(np.count_nonzero(has_space))
    is_negative = None
    if b"-" in text:
        is_negative = buffer[starts] == ord("-")
        starts += is_negative
        num_others += int(np.count_nonzero(is_negative))
    lengths = ends - starts
    longest = int(lengths.max(initial=0))
    num_digits = int(np.count_nonzero(buffer - np.uint8(ord("0")) <= 9))
    if num_digits + num_others < len(buffer) or longest > _LONGEST or lengths.min(initial=1) < 1:
        return None
    if ((buffer[starts] == ord("0")) & (lengths > 1)).any():
        return None
    magnitude = _magnitude(buffer, ends, lengths, longest)
    if magnitude is None or (is_negative is not None and (is_negative & (magnitude > _LOWEST)).any()):
        return None
    return _with_signs(magnitude, _counts(rows, commas), is_negative)


def _counts(rows: Sequence[bytes], commas: Ids) -> Ids:
    """Return the number of integers of each row, from the places of the commas in the text that joins them."""
    lengths = np.array(list(map(len, rows)), dtype=np.int64)
    ends = len(_PAD) + np.cumsum(lengths + (lengths > 0))  # of each row: the comma after it, or that of the row before
    return np.diff(np.searchsorted(commas, ends), prepend=0)


def _magnitude(buffer: np.ndarray, ends: Ids, lengths: Ids, longest: int) -> Hashes | None:
    """Return the numbers whose digits end before `ends`, or None where one exceeds 64 bits."""
    words = np.ndarray((len(buffer) - 7,), dtype="<u8", buffer=buffer, strides=(1,))  # word i: bytes i to i + 7
    values = _eight_digits(words[ends - 8], np.minimum(lengths, 8))
    if longest > 8:
        values += _eight_digits(words[ends - 16], np.clip(lengths - 8, 0, 8)) * np.uint64(10**8)
    if longest > 16:
        top = _eight_digits(words[ends - 24], np.clip(lengths - 16, 0, 8))
        if ((top > _TOP) | ((top == _TOP) & (values > _REST))).any():
            return None
        values += top * np.uint64(10**16)
    return values


def _eight_digits(words: Hashes, lengths: Ids) -> Hashes:
    """Return the numbers that the last `lengths` bytes of each word spell; the first byte is the lowest."""
    words = words & _KEEP_LAST[lengths]
    words = (words * np.uint64(10 << 8 | 1)) >> np.uint64(8)
    words = ((words & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(100 << 16 | 1)) >> np.uint64(16)
    return ((words & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(10000 << 32 | 1)) >> np.uint64(32)


def _with_signs(magnitude: Hashes, counts: Ids, is_negative: Flags | None) -> Integers:
    is_large = magnitude > np.uint64(2**63 - 1)
    bits = magnitude.view(np.int64)
    if is_negative is not None:
        is_large &= ~is_negative
        bits = np.where(is_negative, -bits, bits)
    has_negative = is_negative is not None and bool((is_negative & (magnitude > 0)).any())
    return Integers(bits, counts, is_large if is_large.any() else None, has_negative)
