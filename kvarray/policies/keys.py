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
``length``      int64    size of the candidate (tokens of a leaf)
``depth``       int64    size of its whole path, itself included
``keep``        int64    what stays of that path when its next unit goes
``reach``       int64    size of the longest path ever stored through it
==============  =======  =====================================================

The functions here work on single integers as well as on arrays, which lets a mechanism rank one entry at a time.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import Ids, refuse

__all__ = [
    "POLICIES",
    "Columns",
    "Keys",
    "Policy",
    "fifo",
    "filo",
    "lfu",
    "lru",
    "mru",
    "priority",
    "slru",
    "smallest",
    "tlru",
]

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


def filo(columns: Columns) -> Keys:
    """First in, last out: the newest entry goes."""
    return -columns["created"]


def mru(columns: Columns) -> Keys:
    """Most recently used first, for scans longer than the cache."""
    return -columns["last_use"]


def priority(columns: Columns) -> Keys:
    """Lowest priority first; among equals the least recently used."""
    return columns["priority"], columns["last_use"]


def slru(columns: Columns, *, protected_uses: int = 2) -> Keys:
    """Segmented: entries of fewer than `protected_uses` uses first, each segment least recently used first.

    Pass ``functools.partial(slru, protected_uses=3)`` for another threshold.

    Examples
    --------
    >>> import numpy as np
    >>> slru({"uses": np.array([1, 2]), "last_use": np.array([9, 4])})
    (array([False,  True]), array([9, 4]))
    """
    return columns["uses"] >= protected_uses, columns["last_use"]


def tlru(columns: Columns, *, threshold: int = 0, next_prompt: int = 0) -> Keys:
    """Tail-safe first: what a conversation's next prefill can spare; then the least recently used.

    A conversation of `reach` tokens whose next turn adds `next_prompt` meets its time to first token as long as at
    most `threshold` tokens have to be computed; so ``reach + next_prompt - threshold`` tokens must stay and what
    lies beyond is free to go. Pass ``functools.partial(tlru, threshold=4096, next_prompt=200)``; with the defaults
    nothing is safe and the order is `lru`.

    References
    ----------
    .. [1] Zhang, Li, Moallemi, Peng, "Tail-Optimized Caching for LLM Inference", 2025, arXiv:2510.15152.

    Examples
    --------
    >>> import numpy as np
    >>> columns = {"reach": np.array([900, 80]), "keep": np.array([500, 0]), "last_use": np.array([1, 2])}
    >>> tlru(columns, threshold=100)
    (array([ True, False]), array([1, 2]))
    """
    # No maximum with 0 is needed: what stays is never negative, so a negative budget spares everything as 0 does.
    is_needed = columns["keep"] < columns["reach"] + (next_prompt - threshold)
    return is_needed, columns["last_use"]


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


POLICIES: Mapping[str, Policy] = {
    "fifo": fifo,
    "filo": filo,
    "lfu": lfu,
    "lru": lru,
    "mru": mru,
    "priority": priority,
    "slru": slru,
    "tlru": tlru,
}
"""Key functions by name, for traces, plots and the command line."""
