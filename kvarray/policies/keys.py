"""Key functions: which entry goes first.

A *key function* takes the columns of the candidates and returns their keys; the entry with the smallest key goes
first, ties go to the lowest id. Keys are one array, or a tuple of arrays compared one after the other (the first
decides, the next breaks its ties). Passing a function of one's own is the way to extend: nobody subclasses.

Columns are a mapping from name to array, one item per candidate. The names are the same in every mechanism; a
mechanism documents which of them it keeps:

==============  =======  =====================================================
column          dtype    meaning
==============  =======  =====================================================
``last_use``    int64    tick of the latest use
``created``     int64    tick at which the entry came in
``uses``        int64    number of uses so far
``priority``    int64    given by the caller; higher stays longer
==============  =======  =====================================================
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import Ids, refuse

__all__ = ["POLICIES", "Columns", "Keys", "Policy", "fifo", "lfu", "lru", "smallest"]

Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""Columns of the candidates, by name."""
Keys: TypeAlias = NDArray[Any] | tuple[NDArray[Any], ...]
"""One key per candidate: an array, or a tuple of arrays with the most significant first."""
Policy: TypeAlias = Callable[[Columns], Keys]
"""From columns to keys; the smallest key goes first."""


def lru(columns: Columns) -> Keys:
    """Least recently used first.

    Examples
    --------
    >>> import numpy as np
    >>> lru({"last_use": np.array([5, 3, 9])})
    array([5, 3, 9])
    """
    return columns["last_use"]


def lfu(columns: Columns) -> Keys:
    """Least often used first; among equals the least recently used."""
    return columns["uses"], columns["last_use"]


def fifo(columns: Columns) -> Keys:
    """First in, first out: uses do not matter."""
    return columns["created"]


def smallest(keys: Keys, count: int) -> Ids:
    """Return the places of the `count` smallest keys, smallest first, equal keys in the order of their places.

    Parameters
    ----------
    keys : ndarray or tuple of ndarrays, shape (N,) each
        As a `Policy` returns them.
    count : int
        How many are wanted, ``0 <= count <= N``.

    Returns
    -------
    ndarray of int64, shape (count,)

    Raises
    ------
    ValueError
        If the shapes differ, or a key is NaN, which has no place in an order.

    Notes
    -----
    O(N + count log count) for one array, O(N log N) for a tuple.

    Examples
    --------
    >>> import numpy as np
    >>> smallest(np.array([4, 1, 7, 1]), 3)
    array([1, 3, 0])
    """
    columns = [np.asarray(column) for column in (keys if isinstance(keys, tuple) else (keys,))]
    if any(column.shape != columns[0].shape or column.ndim != 1 for column in columns):
        raise ValueError(f"keys must be one-dimensional and of one length: got {[c.shape for c in columns]}")
    for column in columns:
        if column.dtype.kind == "f":
            refuse("keys", "not be NaN", np.isnan(column), column)
    if len(columns) > 1:
        return np.lexsort(columns[::-1])[:count]
    (column,) = columns
    if 0 < count < len(column):
        limit = np.partition(column, count - 1)[count - 1]
        within = np.flatnonzero(column <= limit)
    else:
        within = np.arange(len(column))
    return within[np.argsort(column[within], kind="stable")][:count]


POLICIES: Mapping[str, Policy] = {"fifo": fifo, "lfu": lfu, "lru": lru}
"""Key functions by name, for traces, plots and the command line."""
