"""A multimap from 64-bit keys to rows, in arrays, for whole batches and for single items.

What finds a block by its hash, and a child of a tree by its parent and first page. Rows are the row numbers of the
columns of some state class; each row carries at most one key at a time, several rows may carry the same one, and a
lookup returns the oldest of them. Keys are hashes: where two different contents could share a key, the caller
compares the contents of what `HashIndex.find` returns and walks on with `HashIndex.find_after`.

The rows of a bucket are chained through one array of *links*. A link is a place that names a row, or none::

    links[0 : S]           link b names the first row of bucket b
    links[S : S + rows]    link S + r names the row after row r, in the same bucket

`link_of[r]` is the link that names row r. A new row is hung on the last link of its bucket, so rows stand in order
of age and the first match is the oldest; a row is taken out by writing its successor into the link that named it.
Compared with open addressing there are no tombstones and no rebuilds, deletion takes constant time, and the order
of equal keys needs no further column, for the same memory. A batch walks all its chains at once, one step a round;
the few items left after a few rounds are finished one by one, which is cheaper than calling NumPy for them.

Like other kernels it trusts its callers: keys and rows in range, rows unique within a batch, rows to insert without
a key and rows to remove with one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import NO_HASH, Flags, Hashes, Ids, as_int
from kvarray.errors import InvariantError

__all__ = ["HashIndex"]

_NO_ROW = -1  # as an index it reaches the spare last row of `_keys` and `_link_of`, which belongs to no one
_SPREAD = 0xD6E8FEB86659FD93  # the high bits of products with it spread consecutive keys, and multiples of them
_MASK = 2**64 - 1
_MARK = 1  # key of rows that a removal has in hand; no lookup sees it
_SPARE_KEY = 1  # of the spare row, which stands for the end of a chain and is never taken out
_FEW = 64  # items for which a loop in Python is cheaper than another round of NumPy calls


class HashIndex:
    """Rows by key; equal keys oldest first.

    Parameters
    ----------
    num_rows : int
        Rows are ``0 .. num_rows - 1``. Memory is fixed by it: 20 to 24 bytes a row, the keys included.

    Notes
    -----
    Batches obey the sequential law: the same as one item at a time, in order. `find` and `find_after` change nothing.
    The methods that end in ``_one`` take and return Python integers, and cost less than a microsecond.

    Invariants, verified by `check`:

    I1. A row is in exactly one chain if it has a key (is not `NO_HASH`); else it is in none, and its link names none.
    I2. It is in the chain of its key's bucket.
    I3. ``links[link_of[row]] == row`` for each row that has a key.
    I4. ``len(index)`` is the number of rows that have a key.

    Examples
    --------
    >>> index = HashIndex(4)
    >>> index.insert(np.array([77, 88, 77], dtype=np.uint64), np.array([3, 0, 1]))
    >>> index.find(np.array([77, 88, 99], dtype=np.uint64))
    array([ 3,  0, -1])
    >>> index.find_after(np.array([3, 1]))
    array([ 1, -1])
    >>> index.remove(np.array([3]))
    >>> index.find_one(77)
    1
    """

    def __init__(self, num_rows: int) -> None:
        num_rows = as_int("num_rows", num_rows, low=1, high=2**29)
        bits = num_rows.bit_length()  # 1 to 2 buckets a row
        self._num_buckets = 1 << bits
        self._num_rows = num_rows
        self._shift = 64 - bits
        self._spread = np.array(_SPREAD, dtype=np.uint64)  # as arrays without axes they cost least beside an array
        self._shift_array = np.array(self._shift, dtype=np.uint64)
        self._keys = np.full(num_rows + 1, NO_HASH, dtype=np.uint64)
        self._keys[_NO_ROW] = _SPARE_KEY
        self._links = np.full(self._num_buckets + num_rows, _NO_ROW, dtype=np.int32)
        self._link_of = np.full(num_rows + 1, _NO_ROW, dtype=np.int32)
        self._count = 0
        # Views for single items: indexing a memoryview takes a third of the time of indexing an array.
        self._key_items = self._keys.data
        self._link_items = self._links.data
        self._link_of_items = self._link_of.data
        self._key_view = self._keys[:num_rows].view()
        self._key_view.flags.writeable = False

    def __len__(self) -> int:
        """Return how many rows have a key."""
        return self._count

    @property
    def keys(self) -> Hashes:
        """Key of each row, `NO_HASH` where it has none; read-only, shape (num_rows,)."""
        return self._key_view

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self._keys.nbytes + self._links.nbytes + self._link_of.nbytes

    def find(self, keys: Hashes) -> Ids:
        """Return the oldest row of each key, -1 where there is none.

        Parameters
        ----------
        keys : ndarray of uint64, shape (B,)
            Keys; not `NO_HASH`. They may repeat.

        Returns
        -------
        ndarray of int64, shape (B,)

        Notes
        -----
        Snapshot law, O(B).
        """
        if len(keys) <= _FEW:
            return np.array(self._find_few(keys.tolist(), self.buckets_of_few(keys)), dtype=np.int64)
        return self._walk(keys, self._buckets(keys))

    def find_after(self, rows: Ids) -> Ids:
        """Return the next younger row with the same key as each row, -1 where there is none.

        Parameters
        ----------
        rows : ndarray of int64, shape (B,)
            Rows that have a key.

        Returns
        -------
        ndarray of int64, shape (B,)
        """
        return self._walk(self._keys.take(rows), rows + self._num_buckets)

    def insert(self, keys: Hashes, rows: Ids) -> None:
        """Give each row its key; it becomes the youngest of that key.

        Parameters
        ----------
        keys : ndarray of uint64, shape (B,)
            Keys; not `NO_HASH`. They may repeat, and then the earlier item is the older.
        rows : ndarray of int64, shape (B,)
            Different rows without a key.
        """
        if len(rows) <= _FEW:
            self.insert_few(keys.tolist(), rows.tolist(), self.buckets_of_few(keys))
            return
        self._count += len(rows)
        self._keys[rows] = keys
        links = self._buckets(keys)
        while len(rows) > _FEW:
            self._walk_to_end(links)
            # Of several rows that are to hang on one link the first in the batch must be the one that does. Backwards,
            # because the last of several writes to one place is the one that stays.
            self._links[links[::-1]] = rows[::-1]
            self._link_of[rows] = links
            rest = np.flatnonzero(self._links.take(links) != rows)
            rows, links = rows.take(rest), links.take(rest)
        if len(rows):
            self._hang(self._keys.take(rows).tolist(), rows.tolist(), links.tolist())

    def remove(self, rows: Ids) -> None:
        """Take the key from each row.

        Parameters
        ----------
        rows : ndarray of int64, shape (B,)
            Different rows that have a key.
        """
        if len(rows) <= _FEW:
            self.remove_few(rows.tolist())
            return
        self._count -= len(rows)
        self._keys[rows] = NO_HASH
        nexts = rows + self._num_buckets
        successors = self._links.take(nexts)
        gone = np.flatnonzero(self._keys.take(successors) == NO_HASH)
        if len(gone):
            # Neighbours of a chain go together. Only the first of them is named by a link that stays; let it be
            # followed by the first successor that stays.
            self._keys[successors.take(gone)] = _MARK
            is_first = self._keys.take(rows) != _MARK
            self._keys[successors.take(gone)] = NO_HASH
            firsts, successors = rows[is_first], successors[is_first]
            gone = np.flatnonzero(self._keys.take(successors) == NO_HASH)
            while len(gone):
                successors[gone] = self._links.take(successors.take(gone) + self._num_buckets)
                gone = gone[self._keys.take(successors.take(gone)) == NO_HASH]
            links = self._link_of.take(firsts)
        else:
            links = self._link_of.take(rows)
        self._links[links] = successors
        self._link_of[successors] = links
        self._links[nexts] = _NO_ROW

    def clear(self) -> None:
        """Take the key from every row."""
        self._keys[:_NO_ROW] = NO_HASH
        self._links.fill(_NO_ROW)
        self._link_of.fill(_NO_ROW)
        self._count = 0

    def find_one(self, key: int) -> int:
        """Return the oldest row of a key, or -1; see `find`."""
        return self._find_few([key], [(key * _SPREAD & _MASK) >> self._shift])[0]

    def find_after_one(self, row: int) -> int:
        """Return the next younger row with the same key, or -1; see `find_after`."""
        return self._find_few([self._key_items[row]], [row + self._num_buckets])[0]

    def insert_one(self, key: int, row: int) -> None:
        """Give a row its key; see `insert`."""
        self.insert_few([key], [row], [(key * _SPREAD & _MASK) >> self._shift])

    def remove_one(self, row: int) -> None:
        """Take the key from a row; see `remove`."""
        self.remove_few([row])

    def remove_few(self, rows: list[int]) -> None:
        """Take the key from each of a few rows; see `remove`."""
        self._count -= len(rows)
        nexts, link_of, key_of, num_buckets = self._link_items, self._link_of_items, self._key_items, self._num_buckets
        for row in rows:
            link, successor = link_of[row], nexts[row + num_buckets]
            nexts[link] = successor
            if successor >= 0:
                link_of[successor] = link
                nexts[row + num_buckets] = _NO_ROW
            key_of[row] = 0

    def find_leading(self, keys: list[int], buckets: list[int]) -> list[int]:
        """Return the oldest row of each key up to the first key that no row has; see `find`.

        `buckets` come from `buckets_of_few`.
        """
        nexts, key_of, num_buckets = self._link_items, self._key_items, self._num_buckets
        found: list[int] = []
        for key, link in zip(keys, buckets, strict=False):
            row = nexts[link]
            while row >= 0 and key_of[row] != key:
                row = nexts[row + num_buckets]
            if row < 0:
                break
            found.append(row)
        return found

    def insert_few(self, keys: list[int], rows: list[int], buckets: list[int]) -> None:
        """Give each of a few rows its key; see `insert`. `buckets` come from `buckets_of_few`."""
        self._count += len(keys)
        self._hang(keys, rows, buckets)

    def buckets_of_few(self, keys: Hashes) -> list[int]:
        """Return the bucket of each of a few keys."""
        if len(keys) > 3:
            buckets: list[int] = (keys * self._spread >> self._shift_array).tolist()
            return buckets
        return [(key * _SPREAD & _MASK) >> self._shift for key in keys.tolist()]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of the arrays that are the whole state, for `restore`."""
        return {"keys": self._keys.copy(), "links": self._links.copy(), "link_of": self._link_of.copy()}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Return to the state of which `arrays` made copies, in an index of as many rows."""
        self._keys[:] = arrays["keys"]
        self._links[:] = arrays["links"]
        self._link_of[:] = arrays["link_of"]
        self._count = int(np.count_nonzero(self._keys[:_NO_ROW]))

    def check(self) -> None:
        """Raise `InvariantError`, naming invariant and rows, unless I1 to I4 hold; O(rows)."""
        seen = np.zeros(self._num_rows, dtype=np.int64)
        met = self._links[: self._num_buckets].astype(np.int64)
        buckets = np.flatnonzero(met >= 0)
        met = met[buckets]
        while len(met):
            np.add.at(seen, met, 1)
            if seen.max() > 1:
                self._fail("I1: rows reached twice", seen > 1)
            wrong = met[self._buckets(self._keys.take(met)) != buckets]
            if len(wrong):
                raise InvariantError(f"I2: rows in a chain that is not their key's: {wrong[:5].tolist()}")
            met = self._links.take(met + self._num_buckets).astype(np.int64)
            buckets, met = buckets[met >= 0], met[met >= 0]
        has_key = self._keys[:_NO_ROW] != NO_HASH
        self._fail("I1: rows without a key whose link names one", ~has_key & (self._links[self._num_buckets :] >= 0))
        self._fail("I1: rows that have a key and are in no chain, or the reverse", (seen > 0) != has_key)
        rows = np.flatnonzero(has_key)
        wrong = rows[self._links[self._link_of[rows]] != rows]
        if len(wrong):
            raise InvariantError(f"I3: rows that their link does not name: {wrong[:5].tolist()}")
        if len(rows) != self._count:
            raise InvariantError(f"I4: {len(rows)} rows have a key, {self._count} are counted")

    def _fail(self, what: str, is_wrong: Flags) -> None:
        """Raise for the rows where a mask is true, if there are any."""
        wrong = np.flatnonzero(is_wrong)
        if len(wrong):
            raise InvariantError(f"{what}: {wrong[:5].tolist()}")

    def _buckets(self, keys: Hashes) -> Ids:
        """Return the bucket of each key."""
        buckets = keys * self._spread
        buckets >>= self._shift_array
        return buckets.view(np.int64)

    def _walk(self, keys: Hashes, links: Ids) -> Ids:
        """Return the first row with its key that each item meets from its link on, or -1."""
        found = self._links.take(links).astype(np.int64)
        rest = np.flatnonzero((self._keys.take(found) != keys) & (found >= 0))
        while len(rest) > _FEW:
            met = self._links.take(found.take(rest) + self._num_buckets).astype(np.int64)
            found[rest] = met
            rest = rest[(self._keys.take(met) != keys.take(rest)) & (met >= 0)]
        if len(rest):
            links = found.take(rest) + self._num_buckets
            found[rest] = self._find_few(keys.take(rest).tolist(), links.tolist())
        return found

    def _walk_to_end(self, links: Ids) -> None:
        """Replace each link by the last one of its chain."""
        met = self._links.take(links)
        rest = np.flatnonzero(met >= 0)
        met = met.take(rest)
        while len(rest):
            further = np.add(met, self._num_buckets, dtype=np.int64)
            links[rest] = further
            met = self._links.take(further)
            goes_on = met >= 0
            rest, met = rest[goes_on], met[goes_on]

    def _find_few(self, keys: list[int], links: list[int]) -> list[int]:
        """Return the first row with its key that each item meets from its link on, or -1."""
        nexts, key_of, num_buckets = self._link_items, self._key_items, self._num_buckets
        found = []
        for key, link in zip(keys, links, strict=True):
            row = nexts[link]
            while row >= 0 and key_of[row] != key:
                row = nexts[row + num_buckets]
            found.append(row)
        return found

    def _hang(self, keys: list[int], rows: list[int], links: list[int]) -> None:
        """Hang each row on the last link of its chain, seeking from its link on."""
        nexts, link_of, key_of, num_buckets = self._link_items, self._link_of_items, self._key_items, self._num_buckets
        for key, row, link in zip(keys, rows, links, strict=False):
            met = nexts[link]
            while met >= 0:
                link = met + num_buckets
                met = nexts[link]
            nexts[link] = row
            link_of[row] = link
            key_of[row] = key
