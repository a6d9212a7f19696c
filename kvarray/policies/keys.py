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

from numpy.typing import NDArray

__all__ = ["POLICIES", "Columns", "Keys", "Policy", "fifo", "lfu", "lru"]

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


POLICIES: Mapping[str, Policy] = {"fifo": fifo, "lfu": lfu, "lru": lru}
"""Key functions by name, for traces, plots and the command line."""
