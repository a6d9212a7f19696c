"""Events of a tree, gathered as rows and handed out as columns."""

import numpy as np

from kvarray.arrays import NO_NODE, Ids
from kvarray.prefix.nodes import ROOT, Nodes
from kvarray.prefix.results import CLEARED, REMOVED, SPLIT, STORED, TreeEvents
from kvarray.ragged import lengths_to_offsets

__all__ = ["Recorder"]

_NO_TOKENS = np.empty(0, dtype=np.int64)


class Recorder:
    """Events since the last `take`."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, int, int]] = []
        self._names: list[str | None] = []  # namespace of each row
        self._tokens: list[Ids] = []  # of each row

    def stored(self, tick: int, nodes: Nodes, leaf: int) -> None:
        """Record a new leaf."""
        offset, length = nodes.edge_offset[leaf], nodes.edge_length[leaf]
        self._rows.append((STORED, tick, leaf, nodes.parent[leaf], nodes.depth[leaf] - length, length))
        self._names.append(nodes.name_of(leaf))
        self._tokens.append(nodes.pool[offset : offset + length].copy())

    def split(self, tick: int, nodes: Nodes, upper: int, lower: int) -> None:
        """Record that an edge was split."""
        length = nodes.edge_length[upper]
        self._rows.append((SPLIT, tick, upper, lower, nodes.depth[upper] - length, length))
        self._names.append(nodes.name_of(upper))
        self._tokens.append(_NO_TOKENS)

    def removed(self, tick: int, nodes: Nodes, node: int, start: int, length: int) -> None:
        """Record that the tail of a leaf goes, or all of it; it is still there."""
        self._rows.append((REMOVED, tick, node, nodes.parent[node], start, length))
        self._names.append(nodes.name_of(node))
        self._tokens.append(_NO_TOKENS)

    def cleared(self, tick: int) -> None:
        """Record that everything went."""
        self._rows.append((CLEARED, tick, ROOT, NO_NODE, 0, 0))
        self._names.append(None)
        self._tokens.append(_NO_TOKENS)

    def replaced(self, tick: int, nodes: Nodes) -> None:
        """Record that everything went and what is there now came, parents first."""
        self.cleared(tick)
        rows = nodes.live()[1:]
        for node in rows[np.argsort(nodes.columns["depth"][rows], kind="stable")].tolist():
            self.stored(tick, nodes, node)

    def mark(self) -> int:
        """Return a mark to go back to with `forget`."""
        return len(self._rows)

    def forget(self, mark: int) -> None:
        """Drop the events since a mark."""
        del self._rows[mark:], self._names[mark:], self._tokens[mark:]

    def take(self) -> TreeEvents:
        """Return the events and begin anew."""
        table = np.array(self._rows, dtype=np.int64).reshape(-1, 6)
        names = tuple(self._names)
        lengths = np.array([len(tokens) for tokens in self._tokens], dtype=np.int64)
        tokens = np.concatenate([_NO_TOKENS, *self._tokens])
        self.forget(0)
        kind, tick, node, other, start, length = np.ascontiguousarray(table.T)
        return TreeEvents(kind, tick, node, other, start, length, names, tokens, lengths_to_offsets(lengths))
