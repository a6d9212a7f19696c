"""Nodes of a radix tree as columns, their tokens in one pool, and the index that finds a child.

A node is a row of the columns. Its *edge* is the run of tokens between its parent and itself, a range of the token
pool; the root is row 0 and has none. Splitting an edge moves no token: the two nodes share out the range. Ranges that
evicted nodes leave behind are waste until the pool is full, and then the edges that live are moved together. The pool
holds twice the capacity, so half of it at least is free again after that, and the cost stays constant per token.

The index files a node under a hash of (parent, namespace at the root, first page of the edge). A hash is only a hint:
whoever finds a row there compares parent, namespace and tokens.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from kvarray.arrays import NO_NODE, Hashes, Ids
from kvarray.index import HashIndex
from kvarray.ragged import lengths_to_offsets, ranges

__all__ = ["COLUMNS", "FREE_NODE", "MAX_PAGES", "NO_NAMESPACE", "ROOT", "WIDE", "Namespaces", "Nodes"]

ROOT = 0
"""Row of the root."""
FREE_NODE = -2
"""Parent of a row that holds no node."""
NO_NAMESPACE = -1
"""Id of a namespace under which nothing is cached."""
MAX_PAGES = 2**29 - 1
"""Pages of the largest tree, plus one: the index has room for so many rows."""
WIDE = 128
"""Tokens of an edge that a batch compares at once; the pool has so many to spare at its end."""

COLUMNS = (
    "parent",
    "edge_offset",
    "edge_length",
    "depth",
    "num_children",
    "lock_count",
    "last_use",
    "created",
    "uses",
    "priority",
    "reach",
    "namespace",
)
"""Names of the columns, all int64; `RadixTree` says what they mean."""

_MASK = 2**64 - 1
# Odd multipliers of the key, below 2^63 so that they are int64 as well. What they are does not matter.
_PARENT_FACTOR = 0x2545F4914F6CDD1D
_NAMESPACE_FACTOR = 0x1B873593CC9E2D51
_TOKEN_FACTOR = 0x5851F42D4C957F2D


class Namespaces:
    """Ids of the namespaces that have nodes; an id is free again when the last of its nodes has gone.

    The namespace None has id 0 for good.
    """

    def __init__(self) -> None:
        self.ids: dict[str | None, int] = {None: 0}
        self._names: list[str | None] = [None]
        self._counts = [0]  # children of the root
        self._free: list[int] = []

    def id_of(self, name: str | None) -> int:
        """Return the id of a namespace, `NO_NAMESPACE` where it has no nodes."""
        return self.ids.get(name, NO_NAMESPACE)

    def name_of(self, number: int) -> str | None:
        """Return the name that goes with an id."""
        return self._names[number]

    def count_of(self, number: int) -> int:
        """Return how many children of the root are of a namespace."""
        return self._counts[number]

    def open(self, name: str | None) -> int:
        """Return the id of a namespace, giving it one where it has none."""
        number = self.id_of(name)
        if number == NO_NAMESPACE:
            if not self._free:
                self._free.append(len(self._names))
                self._names.append(None)
                self._counts.append(0)
            number = self._free.pop()
            self._names[number] = name
            self.ids[name] = number
        return number

    def hold(self, number: int) -> None:
        """Count one more child of the root."""
        self._counts[number] += 1

    def release(self, number: int) -> None:
        """Count one child of the root less."""
        self._counts[number] -= 1
        if number and not self._counts[number]:
            del self.ids[self._names[number]]
            self._names[number] = None
            self._free.append(number)

    def is_whole(self) -> bool:
        """Return whether each id is either taken or listed once as free, and those that are free count nothing."""
        numbers = sorted([*self.ids.values(), *self._free])
        return numbers == list(range(len(self._counts))) and not any(self._counts[number] for number in self._free)

    def arrays(self) -> dict[str, Any]:
        """Return the state as arrays, for `restore`."""
        return {
            "namespace_names": np.array([name or "" for name in self._names], dtype=np.str_),
            "namespace_counts": np.array(self._counts, dtype=np.int64),
            "namespace_free": np.array(self._free, dtype=np.int64),
        }

    def restore(self, arrays: dict[str, Any]) -> None:
        """Return to the state that `arrays` holds."""
        self._counts = arrays["namespace_counts"].tolist()
        self._free = arrays["namespace_free"].tolist()
        free = {0, *self._free}
        names = arrays["namespace_names"].tolist()
        self._names = [None if number in free else name for number, name in enumerate(names)]
        self.ids = {name: number for number, name in enumerate(self._names) if number == 0 or number not in free}


class Nodes:
    """The columns, the pool and the index. It keeps no rules of caching; `RadixTree` does.

    Parameters
    ----------
    capacity : int
        Tokens that may be cached at once, a multiple of `page_size`.
    page_size : int
        Tokens of a page, ``>= 1``; every edge is whole pages.
    value_size : int
        Tokens that share one stored value: 0 where none are kept, else 1 or `page_size`.

    Notes
    -----
    `columns` are the arrays; the attributes named like them are views of the same memory that cost a third as much
    to read or write one item.
    """

    parent: memoryview
    edge_offset: memoryview
    edge_length: memoryview
    depth: memoryview
    num_children: memoryview
    lock_count: memoryview
    last_use: memoryview
    created: memoryview
    uses: memoryview
    priority: memoryview
    reach: memoryview
    namespace: memoryview

    def __init__(self, capacity: int, page_size: int, value_size: int) -> None:
        self.page_size = page_size
        self.value_size = value_size
        # Item i of a page counts with its own odd factor, so that its hash depends on the order.
        self.page_factors = np.array([pow(_TOKEN_FACTOR, i + 1, 2**63) for i in range(page_size)], dtype=np.int64)
        self._allocate(capacity)
        self.clear()

    def _allocate(self, capacity: int) -> None:
        """Make the arrays for a capacity; what is in them is set by `clear` or `load`."""
        self.capacity = capacity
        self.max_nodes = capacity // self.page_size + 1  # each edge is a page at least
        table = np.zeros((len(COLUMNS), self.max_nodes), dtype=np.int64)
        self.columns = dict(zip(COLUMNS, table, strict=True))
        for name, column in self.columns.items():
            setattr(self, name, column.data)
        self.pool = np.zeros(2 * capacity + WIDE, dtype=np.int64)
        self.values = np.zeros(2 * capacity // self.value_size if self.value_size else 0, dtype=np.int64)
        self.index = HashIndex(self.max_nodes)

    def clear(self) -> None:
        """Leave the root alone."""
        self.num_rows = 1  # rows that were ever used; those above are free
        self.free_rows: list[int] = []
        self.pool_end = 0
        self.num_compactions = 0
        self.namespaces = Namespaces()
        self.index.clear()
        for column in self.columns.values():
            column[ROOT] = 0
        self.columns["parent"].fill(FREE_NODE)
        self.parent[ROOT] = NO_NODE

    @property
    def num_nodes(self) -> int:
        """Nodes, the root included."""
        return self.num_rows - len(self.free_rows)

    def live(self) -> Ids:
        """Return the rows that hold a node, the root included, in ascending order."""
        return np.flatnonzero(self.columns["parent"][: self.num_rows] != FREE_NODE)

    # Keys of the index

    def key_one(self, parent: int, namespace: int, tokens: Ids, place: int) -> int:
        """Return the key of a child from its parent, its namespace and its first page, which begins at a place."""
        if self.page_size == 1:
            number = tokens.item(place) * _TOKEN_FACTOR
        else:
            number = int(tokens[place : place + self.page_size].dot(self.page_factors))
        number += parent * _PARENT_FACTOR
        if parent == ROOT:
            number += namespace * _NAMESPACE_FACTOR
        return number & _MASK | 1  # odd, so never `NO_HASH`

    def keys(self, parents: Ids, namespaces: Ids, tokens: Ids, places: Ids) -> Hashes:
        """Return the keys of many children; integers wrap as in `key_one`."""
        if self.page_size == 1:
            keys: Ids = tokens.take(places) * _TOKEN_FACTOR
        else:
            keys = tokens[places[:, None] + np.arange(self.page_size)] @ self.page_factors
        keys += parents * _PARENT_FACTOR
        if namespaces.any():
            keys += namespaces * _NAMESPACE_FACTOR * (parents == ROOT)
        keys |= 1
        return keys.view(np.uint64)

    # One node at a time

    def add_leaf(self, parent: int, namespace: int, tokens: Ids, values: Ids, stamp: int, priority: int) -> int:
        """Hang a new leaf below a node and return its row. There must be room for it."""
        size = len(tokens)
        if self.pool_end + size > 2 * self.capacity:
            self.compact()
        offset = self.pool_end
        self.pool_end = offset + size
        self.pool[offset : self.pool_end] = tokens
        if self.value_size:
            self.values[offset // self.value_size : self.pool_end // self.value_size] = values
        node = self._new_row()
        depth = self.depth[parent] + size
        self.parent[node] = parent
        self.edge_offset[node] = offset
        self.edge_length[node] = size
        self.depth[node] = depth
        self.num_children[node] = 0
        self.lock_count[node] = 0
        self.last_use[node] = stamp
        self.created[node] = stamp
        self.uses[node] = 1
        self.priority[node] = priority
        self.reach[node] = depth
        self.namespace[node] = namespace
        self.num_children[parent] += 1
        if parent == ROOT:
            self.namespaces.hold(namespace)
        self.index.insert_one(self.key_one(parent, namespace, tokens, 0), node)
        return node

    def split(self, lower: int, size: int, stamp: int) -> int:
        """Put a new node above the first `size` tokens of an edge and return its row.

        The new upper node takes over what held for the whole edge: locks, uses, priority, creation, reach.
        """
        upper = self._new_row()
        offset, rest = self.edge_offset[lower], self.edge_length[lower] - size
        parent, namespace = self.parent[lower], self.namespace[lower]
        self.parent[upper] = parent
        self.edge_offset[upper] = offset
        self.edge_length[upper] = size
        self.depth[upper] = self.depth[lower] - rest
        self.num_children[upper] = 1
        self.lock_count[upper] = self.lock_count[lower]
        self.last_use[upper] = max(stamp, self.last_use[lower])
        self.created[upper] = self.created[lower]
        self.uses[upper] = self.uses[lower]
        self.priority[upper] = self.priority[lower]
        self.reach[upper] = self.reach[lower]
        self.namespace[upper] = namespace
        self.parent[lower] = upper
        self.edge_offset[lower] = offset + size
        self.edge_length[lower] = rest
        self.index.remove_one(lower)
        self.index.insert_one(self.key_one(parent, namespace, self.pool, offset), upper)
        self.index.insert_one(self.key_one(upper, namespace, self.pool, offset + size), lower)
        return upper

    def trim(self, node: int, size: int) -> None:
        """Cut the last tokens off an edge, not all of them."""
        self.edge_length[node] -= size
        self.depth[node] -= size

    def remove(self, leaves: list[int]) -> None:
        """Take out nodes whose children have gone, or go as well. `num_children` of parents is the caller's task."""
        parent, remove_one = self.parent, self.index.remove_one
        for node in leaves:
            remove_one(node)
            if parent[node] == ROOT:
                self.namespaces.release(self.namespace[node])
            parent[node] = FREE_NODE
        self.free_rows += leaves

    def _new_row(self) -> int:
        if self.free_rows:
            return self.free_rows.pop()
        self.num_rows += 1
        return self.num_rows - 1

    def name_of(self, node: int) -> str | None:
        """Return the name of a node's namespace."""
        return self.namespaces.name_of(self.namespace[node])

    # Values

    def values_of(self, path: Iterable[tuple[int, int]]) -> Ids:
        """Return the values stored for the leading tokens of edges, given as (node, number of tokens)."""
        size = self.value_size
        starts = ((self.edge_offset[node] // size, length // size) for node, length in path)
        pieces = [self.values[start : start + count] for start, count in starts]
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)

    # The whole state

    def compact(self) -> None:
        """Move the edges together at the beginning of the pool, in the order of their rows."""
        self.num_compactions += 1
        rows = self.live()
        offsets = self.columns["edge_offset"][rows]
        lengths = self.columns["edge_length"][rows]
        starts = lengths_to_offsets(lengths)
        self.pool_end = int(starts[-1])
        self.pool[: self.pool_end] = self.pool[ranges(offsets, lengths)]
        if self.value_size:
            size = self.value_size
            moved = self.values[ranges(offsets // size, lengths // size)]
            self.values[: len(moved)] = moved
        self.columns["edge_offset"][rows] = starts[:-1]

    def enlarge(self, capacity: int) -> None:
        """Make room for more tokens; nothing else changes."""
        arrays = self.arrays()
        compactions = self.num_compactions
        self._allocate(capacity)
        self.load(arrays)
        self.num_compactions = compactions

    def arrays(self) -> dict[str, Any]:
        """Return copies of the state, for `load`."""
        return {
            "nodes": np.stack([column[: self.num_rows] for column in self.columns.values()]),
            "free_rows": np.array(self.free_rows, dtype=np.int64),
            "tokens": self.pool[: self.pool_end].copy(),
            "values": self.values[: self.pool_end // self.value_size if self.value_size else 0].copy(),
            **self.namespaces.arrays(),
        }

    def load(self, arrays: dict[str, Any]) -> None:
        """Return to the state that `arrays` holds, in arrays that are large enough."""
        table = arrays["nodes"]
        self.columns["parent"].fill(FREE_NODE)
        self.num_rows = table.shape[1]
        for column, saved in zip(self.columns.values(), table, strict=True):
            column[: self.num_rows] = saved
        self.free_rows = arrays["free_rows"].tolist()
        self.pool_end = len(arrays["tokens"])
        self.pool[: self.pool_end] = arrays["tokens"]
        self.values[: len(arrays["values"])] = arrays["values"]
        self.namespaces.restore(arrays)
        rows = self.live()[1:]
        self.index.clear()
        self.index.insert(self.keys_of(rows), rows)

    def keys_of(self, rows: Ids) -> Hashes:
        """Return the key under which each node belongs in the index."""
        columns = self.columns
        return self.keys(columns["parent"][rows], columns["namespace"][rows], self.pool, columns["edge_offset"][rows])
