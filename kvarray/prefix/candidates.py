"""Which leaf goes next: the unlocked leaves of a tree in the order of a policy.

Looking at every leaf at each eviction costs time that grows with the cache. Here each candidate has an *entry* in one
of two queues: entries that arrive in ascending order (under lru and fifo nearly all do) form a plain queue, the
others a heap; the next victim is the smaller of the two heads. An entry is never sought out to be removed: every new
one gets a serial number, `filed` keeps the number of the one that counts, and entries of other numbers are dropped
where they surface, or all at once when they outnumber the valid ones.

A use changes a leaf's key, and most uses are followed by others before anything is evicted. So a use only notes the
leaf; its key is computed when the next victim is asked for, or when many leaves are noted, then for all of them in
one call of the policy.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import Flags, Ids
from kvarray.policies import POLICIES, Policy
from kvarray.prefix.nodes import ROOT, Nodes

__all__ = ["Candidates", "columns_read"]

_FEW = 16  # noted leaves whose keys are computed one at a time
_MANY = 512  # noted leaves that are filed without waiting for an eviction
_STORED = ("last_use", "created", "uses", "priority", "depth", "reach", "namespace")
_NAMES = (*_STORED, "length", "keep")
_CHANGED_BY_TRIM = {"depth", "length", "keep"}

_Entry = tuple[Any, int, int, int]  # key, last use, node, serial


class _OneRow(Mapping[str, int]):
    """The columns of one node, computed when read."""

    def __init__(self, nodes: Nodes, whole_leaves: bool) -> None:
        self.node = ROOT
        self._nodes = nodes
        self._whole_leaves = whole_leaves
        self._views: dict[str, memoryview] = {name: getattr(nodes, name) for name in _STORED}

    def __getitem__(self, name: str) -> int:
        view = self._views.get(name)
        if view is not None:
            return view[self.node]
        length = self._nodes.edge_length[self.node]
        if name == "length":
            return length
        if name == "keep":
            return self._nodes.depth[self.node] - (length if self._whole_leaves else self._nodes.page_size)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


class _Recorder(dict[str, NDArray[Any]]):
    """Columns of one candidate, all 1, that note which of them are read."""

    def __init__(self) -> None:
        super().__init__({name: np.ones(1, dtype=np.int64) for name in _NAMES})
        self.read: list[str] = []

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self:
            raise ValueError(f"policy must read columns that a tree has, {', '.join(_NAMES)}: it reads {name!r}")
        self.read.append(name)
        return super().__getitem__(name)


def columns_read(policy: Policy) -> tuple[str, ...]:
    """Return the names of the columns that a policy reads.

    Raises
    ------
    TypeError
        If it is not a function, or its keys are not arrays of one item per candidate.
    ValueError
        If it reads a column that a tree does not have.

    Examples
    --------
    >>> columns_read(POLICIES["lfu"])
    ('uses', 'last_use')
    """
    if not callable(policy):
        raise TypeError(f"policy must be a function of columns: got {policy!r}")
    recorder = _Recorder()
    keys = policy(recorder)
    parts = keys if isinstance(keys, tuple) else (keys,)
    if any(np.shape(part) != (1,) for part in parts):
        raise TypeError(f"policy must return keys of one item per candidate: for one candidate it returned {keys!r}")
    return tuple(dict.fromkeys(recorder.read))


class Candidates:
    """The unlocked leaves of `nodes`, next victim first.

    Parameters
    ----------
    nodes : Nodes
    policy : Policy
        Key function; the smallest key goes first, ties go to the oldest use, then to the lowest row.
    whole_leaves : bool
        Whether what goes is a whole leaf, or a page of it; it decides the column `keep`.
    """

    def __init__(self, nodes: Nodes, policy: Policy, *, whole_leaves: bool) -> None:
        self.nodes = nodes
        self.policy = policy
        self.whole_leaves = whole_leaves
        self.names = columns_read(policy)
        self.trim_changes_key = bool(_CHANGED_BY_TRIM.intersection(self.names))
        # The key functions of kvarray also take the integers of one row; other functions get arrays of one item.
        function = policy.func if isinstance(policy, partial) else policy
        self._takes_integers = function in POLICIES.values()
        self.rebuild()

    def rebuild(self) -> None:
        """Begin again from the columns of `nodes`, which may be other arrays than before."""
        self._row = _OneRow(self.nodes, self.whole_leaves)
        self._filed = np.zeros(self.nodes.max_nodes, dtype=np.int64)
        self._filed_items = self._filed.data
        self._num_filed = 0
        self._serial = 0
        self._queue: deque[_Entry] = deque()
        self._heap: list[_Entry] = []
        self._noted: dict[int, None] = dict.fromkeys(self.nodes.live()[1:].tolist())  # an ordered set
        self._file_noted()

    def note(self, node: int) -> None:
        """Note that a node was used, or became a leaf, or lost its last lock."""
        self._noted[node] = None

    def note_many(self, nodes: list[int]) -> None:
        """Note several nodes; see `note`."""
        self._noted.update(dict.fromkeys(nodes))

    def settle(self) -> None:
        """File what was noted if that is much, so that no eviction has to make up for all uses before it."""
        if len(self._noted) > _MANY:
            self._file_noted()

    def withdraw(self, node: int) -> None:
        """Take out a node that got a child or a lock, or goes."""
        if self._filed_items[node]:
            self._filed_items[node] = 0
            self._num_filed -= 1

    def best(self) -> int:
        """Return the next victim, or -1 where there is no candidate."""
        if self._noted:
            self._file_noted()
        queue, heap, filed = self._queue, self._heap, self._filed_items
        while queue and filed[queue[0][2]] != queue[0][3]:
            queue.popleft()
        while heap and filed[heap[0][2]] != heap[0][3]:
            heappop(heap)
        if not heap:
            return queue[0][2] if queue else -1
        return queue[0][2] if queue and queue[0] < heap[0] else heap[0][2]

    def file(self, node: int) -> None:
        """Give a candidate an entry with its present key."""
        if self._filed_items[node] == 0:
            self._num_filed += 1
        self._serial += 1
        self._filed_items[node] = self._serial
        if self._takes_integers:
            self._row.node = node
            key: Any = self.policy(self._row)  # type: ignore[arg-type]
        else:
            key = self._keys(np.array([node]))[0]
        self._push((key, self.nodes.last_use[node], node, self._serial))

    def filed(self) -> dict[int, Any]:
        """Return the candidates and the keys under which they are filed."""
        self._file_noted()
        return {node: key for key, _, node, serial in (*self._queue, *self._heap) if self._filed_items[node] == serial}

    def keys(self, rows: Ids) -> dict[int, Any]:
        """Return the present keys of nodes."""
        return dict(zip(rows.tolist(), self._keys(rows), strict=True))

    def are_candidates(self, rows: Ids) -> Flags:
        """Return which nodes are unlocked leaves."""
        columns = self.nodes.columns
        is_candidate: Flags = columns["num_children"][rows] == 0
        is_candidate &= columns["lock_count"][rows] == 0
        is_candidate &= columns["parent"][rows] >= ROOT
        return is_candidate

    def _push(self, entry: _Entry) -> None:
        queue = self._queue
        if not queue or queue[-1] < entry:
            queue.append(entry)
        else:
            heappush(self._heap, entry)

    def _file_noted(self) -> None:
        """File what was noted and is a candidate."""
        noted = self._noted
        if len(noted) <= _FEW:
            parent, num_children, lock_count = self.nodes.parent, self.nodes.num_children, self.nodes.lock_count
            for node in noted:
                if num_children[node] == 0 and lock_count[node] == 0 and parent[node] >= ROOT:
                    self.file(node)
        else:
            rows = np.fromiter(noted, dtype=np.int64, count=len(noted))
            self._file_many(rows[self.are_candidates(rows)])
        noted.clear()
        if len(self._queue) + len(self._heap) > 2 * self._num_filed + _MANY:
            self._drop_stale()

    def _file_many(self, rows: Ids) -> None:
        """`file` for many candidates, whose keys are one call of the policy."""
        self._num_filed += len(rows) - int(np.count_nonzero(self._filed[rows]))
        serials = np.arange(self._serial + 1, self._serial + 1 + len(rows))
        self._serial += len(rows)
        self._filed[rows] = serials
        last_use = self.nodes.columns["last_use"][rows].tolist()
        entries = sorted(zip(self._keys(rows), last_use, rows.tolist(), serials.tolist(), strict=True))
        if entries and (not self._queue or self._queue[-1] < entries[0]):
            self._queue.extend(entries)
        else:
            self._heap += entries
            heapify(self._heap)

    def _keys(self, rows: Ids) -> list[Any]:
        """Return the key of each row as a number, or as a tuple of numbers."""
        keys = self.policy({name: self._column(name, rows) for name in self.names})
        if isinstance(keys, tuple):
            return list(zip(*(part.tolist() for part in keys), strict=True))
        items: list[Any] = keys.tolist()
        return items

    def _column(self, name: str, rows: Ids) -> Ids:
        columns = self.nodes.columns
        if name == "length":
            return columns["edge_length"][rows]
        if name == "keep":
            return columns["depth"][rows] - (
                columns["edge_length"][rows] if self.whole_leaves else self.nodes.page_size
            )
        return columns[name][rows]

    def _drop_stale(self) -> None:
        """Keep the entries that count, in one ascending queue."""
        filed = self._filed_items
        self._queue = deque(sorted(entry for entry in (*self._queue, *self._heap) if filed[entry[2]] == entry[3]))
        self._heap = []
