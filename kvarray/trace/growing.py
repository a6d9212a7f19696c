"""Columns that grow while a file is read: memory in proportion to what they hold, and no copy at the end."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from kvarray.arrays import Flags, Hashes, Ids
from kvarray.trace.identity import unite_ids

__all__ = ["GrowingColumn", "GrowingIds"]


class GrowingColumn:
    """A one-dimensional array to append to."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._room: NDArray[Any] = np.empty(1024, dtype=dtype)
        self._size = 0

    def __len__(self) -> int:
        """Return the number of items so far."""
        return self._size

    def extend(self, values: ArrayLike) -> None:
        """Append `values`."""
        added = np.asarray(values)
        size = self._size + len(added)
        if size > len(self._room):
            # In place: the system moves pages rather than bytes, so that large columns are never held twice.
            self._room.resize(size + size // 8, refcheck=False)
        self._room[self._size : size] = added
        self._size = size

    def take(self) -> NDArray[Any]:
        """Return the array, and start again with none."""
        room, size = self._room, self._size
        self._room, self._size = np.empty(0, dtype=room.dtype), 0
        room.resize(size, refcheck=False)
        return room


class GrowingIds:
    """Block ids, signed or unsigned, to append to."""

    def __init__(self) -> None:
        self._bits = GrowingColumn(np.int64)
        self._large_places = GrowingColumn(np.int64)
        self._has_negative = False

    def extend(self, bits: Ids, *, is_large: Flags | None, has_negative: bool) -> None:
        """Append ids given by their bits; `is_large` marks those that stand for values of 2^63 or more."""
        if is_large is not None:
            self._large_places.extend(len(self._bits) + np.flatnonzero(is_large))
        self._has_negative |= has_negative
        self._bits.extend(bits)

    def take(self) -> Ids | Hashes:
        """Return the ids: int64, or uint64, or renumbered where neither holds them all."""
        bits, large_places = self._bits.take(), self._large_places.take()
        if not len(large_places):
            return bits
        if not self._has_negative:
            return bits.view(np.uint64)
        is_large = np.zeros(len(bits), dtype=np.bool_)
        is_large[large_places] = True
        return unite_ids(bits, is_large)
