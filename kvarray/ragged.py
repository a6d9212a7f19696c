"""Ragged arrays: flat values cut into rows by offsets, as in Arrow.

Row i of ``(values, offsets)`` is ``values[offsets[i]:offsets[i + 1]]``; offsets have one item more than there are
rows, begin at 0 and never fall. Rows may be empty. These kernels trust their callers; `arrays.check_offsets` is the
check at the edge.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import Ids

__all__ = [
    "lengths_to_offsets",
    "ranges",
    "ranks",
    "row_ids",
    "row_sums",
    "take_rows",
]

_Item = TypeVar("_Item", bound=np.generic)


def lengths_to_offsets(lengths: Ids) -> Ids:
    """Return the offsets of rows of the given lengths.

    Parameters
    ----------
    lengths : ndarray of int64, shape (B,)
        Items of each row, ``>= 0``.

    Returns
    -------
    ndarray of int64, shape (B + 1,)

    Examples
    --------
    >>> lengths_to_offsets(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    offsets = np.empty(len(lengths) + 1, dtype=np.int64)
    offsets[0] = 0
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def row_ids(offsets: Ids) -> Ids:
    """Return, for each value, the row it belongs to.

    Examples
    --------
    >>> row_ids(np.array([0, 2, 2, 5]))
    array([0, 0, 2, 2, 2])
    """
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def ranks(offsets: Ids) -> Ids:
    """Return, for each value, its place within its row.

    Examples
    --------
    >>> ranks(np.array([0, 2, 2, 5]))
    array([0, 1, 0, 1, 2])
    """
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def ranges(starts: Ids, lengths: Ids) -> Ids:
    """Return the ranges ``starts[i] : starts[i] + lengths[i]``, one after the other.

    Parameters
    ----------
    starts, lengths : ndarray of int64, shape (B,)
        First item and number of items of each range, ``lengths >= 0``.

    Returns
    -------
    ndarray of int64, shape (sum of lengths,)

    Examples
    --------
    >>> ranges(np.array([10, 5]), np.array([3, 2]))
    array([10, 11, 12,  5,  6])
    """
    offsets = lengths_to_offsets(lengths)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)


def row_sums(values: NDArray[_Item], offsets: Ids) -> NDArray[_Item]:
    """Return the sum of each row; 0 for an empty one.

    Integers only: the sums are differences of one running sum, which floats would not survive.

    Examples
    --------
    >>> row_sums(np.array([1, 2, 3, 4]), np.array([0, 2, 2, 4]))
    array([3, 0, 7])
    """
    running = np.zeros(len(values) + 1, dtype=values.dtype)
    np.cumsum(values, out=running[1:])
    return running[offsets[1:]] - running[offsets[:-1]]


def take_rows(values: NDArray[_Item], offsets: Ids, rows: Ids) -> tuple[NDArray[_Item], Ids]:
    """Return the given rows, in the order given, as a ragged array of their own.

    Parameters
    ----------
    values : ndarray, shape (N,)
    offsets : ndarray of int64, shape (B + 1,)
    rows : ndarray of int64, shape (K,)
        Row numbers; they may repeat.

    Returns
    -------
    values : ndarray, shape (sum of the lengths,)
    offsets : ndarray of int64, shape (K + 1,)

    Examples
    --------
    >>> take_rows(np.array([7, 8, 9]), np.array([0, 2, 3]), np.array([1, 0]))
    (array([9, 7, 8]), array([0, 1, 3]))
    """
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    return values[ranges(starts, lengths)], lengths_to_offsets(lengths)
