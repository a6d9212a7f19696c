"""What can be read of a radix tree without changing it."""

from collections.abc import Mapping, Sequence
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import NO_NODE, Ids, as_int, as_ints, as_positive_int, check_offsets, refuse
from kvarray.prefix.batch import values_of_rows
from kvarray.prefix.checks import check_candidates, check_counts, check_locks, check_nodes
from kvarray.prefix.drawing import draw_tree
from kvarray.prefix.engine import Engine
from kvarray.prefix.nodes import ROOT
from kvarray.prefix.results import Match, MatchBatch, TreeStats
from kvarray.prefix.saving import state_arrays
from kvarray.prefix.walk import Walk, Walks, walk, walk_batch

__all__ = ["TreeView", "check_namespace"]


class TreeView:
    """The reading half of `RadixTree`."""

    _engine: Engine

    @property
    def capacity(self) -> int:
        """Tokens that may be cached at once, whole pages."""
        return self._engine.nodes.capacity

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self._engine.nodes.page_size

    @property
    def values_per(self) -> str:
        """What a value is stored for: "token", "page", or "none"."""
        return self._engine.values_per

    @property
    def tick(self) -> int:
        """Operations so far."""
        return self._engine.tick

    @property
    def num_nodes(self) -> int:
        """Nodes, the root included."""
        return self._engine.nodes.num_nodes

    @property
    def cached_tokens(self) -> int:
        """Tokens cached."""
        return self._engine.cached

    @property
    def protected_tokens(self) -> int:
        """Tokens that a lock protects."""
        return self._engine.protected

    @property
    def evictable_tokens(self) -> int:
        """Tokens that could be evicted now."""
        return self._engine.cached - self._engine.protected

    @property
    def columns(self) -> Mapping[str, Ids]:
        """Read-only columns by name; see the notes of the class. They follow the tree until `reserve`."""
        views = {name: column.view() for name, column in self._engine.nodes.columns.items()}
        for view in views.values():
            view.flags.writeable = False
        return MappingProxyType(views)

    def stats(self) -> TreeStats:
        """Return counts since construction or `reset`, and what is there now; O(nodes)."""
        live = self._engine.nodes.live()[1:]
        return TreeStats(
            **self._engine.counts,
            compactions=self._engine.nodes.num_compactions,
            num_nodes=self.num_nodes,
            num_leaves=int(np.count_nonzero(self._engine.nodes.columns["num_children"][live] == 0)),
            num_locks=len(self._engine.locks),
            cached_tokens=self._engine.cached,
            evictable_tokens=self.evictable_tokens,
            protected_tokens=self._engine.protected,
        )

    def tokens_of(self, node: int) -> Ids:
        """Return the tokens of the path from the root to a node.

        Raises
        ------
        ValueError
            If the row holds no node.
        """
        node = as_int("node", node, low=0, high=self._engine.nodes.num_rows)
        pieces = []
        while node != ROOT:
            if self._engine.nodes.parent[node] < ROOT:
                raise ValueError(f"node must be a row that holds a node: row {node} is free")
            offset = self._engine.nodes.edge_offset[node]
            pieces.append(self._engine.nodes.pool[offset : offset + self._engine.nodes.edge_length[node]])
            node = self._engine.nodes.parent[node]
        return np.concatenate(pieces[::-1]) if pieces else np.empty(0, dtype=np.int64)

    def peek(self, tokens: ArrayLike, *, namespace: str | None = None) -> Match:
        """Return the longest cached prefix of a prompt and change nothing, not even recency.

        Parameters
        ----------
        tokens : array_like of int, shape (n,)
            Token ids, ``>= 0``.
        namespace : str, optional
            Prompts of different namespaces share nothing.

        Returns
        -------
        Match
            `node` is the one in whose edge the match ends; it is not split.

        Raises
        ------
        TypeError
            If the tokens are not integers, or the namespace is not a string.
        ValueError
            If a token is negative or does not fit 64 bits.
        """
        array = as_ints("tokens", tokens)
        found = self._walk(array, namespace)
        node = found.lower if found.lower != NO_NODE else found.path[-1] if found.path else ROOT
        return Match(found.num_tokens, node, self._engine.values_of(found))

    def peek_batch(
        self, tokens: ArrayLike, offsets: ArrayLike, *, namespaces: Sequence[str | None] | None = None
    ) -> MatchBatch:
        """Return the longest cached prefix of each prompt and change nothing.

        Parameters
        ----------
        tokens : array_like of int, shape (n,)
            Token ids, ``>= 0``, of all prompts.
        offsets : array_like of int, shape (B + 1,)
            Prompt i is ``tokens[offsets[i] : offsets[i + 1]]``.
        namespaces : sequence of (str or None), length B, optional
            Namespace of each prompt.

        Returns
        -------
        MatchBatch

        Raises
        ------
        TypeError, ValueError
            As `peek`, and if offsets or namespaces do not fit.

        Notes
        -----
        Snapshot law, which nothing can tell from the sequential one here. A round of array operations per level.
        """
        found, *_ = self._walk_batch(tokens, offsets, namespaces)
        nodes = np.where(found.lower != NO_NODE, found.lower, found.last)
        return MatchBatch(found.num_tokens, nodes, *values_of_rows(self._engine, found))

    def check(self) -> None:
        """Raise `InvariantError`, naming invariant and rows, unless R1 to R12 hold; O(state), changes nothing."""
        check_nodes(self._engine.nodes)
        check_locks(self._engine.nodes, self._engine.locks, self._engine.pins, self._engine.tick)
        check_counts(self.stats(), self._engine.nodes)
        check_candidates(self._engine.candidates)

    def to_text(self, *, max_nodes: int = 100, max_tokens: int = 6) -> str:
        """Return a drawing of the tree: a line per node, edges shortened, locks marked.

        Parameters
        ----------
        max_nodes : int, optional
            Nodes that are drawn, children in order of their first tokens.
        max_tokens : int, optional
            Tokens of an edge that are written out before it is shortened, ``>= 2``.
        """
        return draw_tree(
            self._engine.nodes, as_positive_int("max_nodes", max_nodes), as_int("max_tokens", max_tokens, low=2)
        )

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state as arrays by name, for `restore`; O(state). Events not taken are no part of it."""
        return state_arrays(self._engine)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the whole state to a ``.npz`` file, for `load`."""
        np.savez_compressed(path, **state_arrays(self._engine))

    def _walk(self, tokens: Ids, namespace: str | None) -> Walk:
        """Walk a prompt and check it: tokens that match are valid, because the tree holds no others."""
        check_namespace("namespace", namespace)
        found = walk(self._engine.nodes, tokens, self._engine.nodes.namespaces.id_of(namespace))
        rest = tokens[found.num_tokens :]
        if len(rest) and rest.min() < 0:
            refuse("tokens", "be 0 or more", tokens < 0, tokens)
        return found

    def _walk_batch(
        self, tokens: ArrayLike, offsets: ArrayLike, namespaces: Sequence[str | None] | None
    ) -> tuple[Walks, Ids, Ids, Ids]:
        """Walk a batch and check it, as `_walk` does; return tokens, offsets and ids of namespaces as well."""
        array = np.ascontiguousarray(as_ints("tokens", tokens))
        array, bounds, numbers = self._check_batch(array, offsets, namespaces)
        found = walk_batch(self._engine.nodes, array, bounds, numbers)
        if len(array) and found.num_tokens.sum() < len(array) and array.min() < 0:
            refuse("tokens", "be 0 or more", array < 0, array)
        return found, array, bounds, numbers

    def _check_batch(
        self, array: Ids, offsets: ArrayLike, namespaces: Sequence[str | None] | None
    ) -> tuple[Ids, Ids, Ids]:
        """Return tokens, offsets and ids of namespaces of a batch."""
        bounds = as_ints("offsets", offsets)
        check_offsets("offsets", bounds, len(array))
        num_rows = len(bounds) - 1
        if namespaces is None:
            return array, bounds, np.zeros(num_rows, dtype=np.int64)
        if isinstance(namespaces, str) or len(namespaces) != num_rows:
            raise ValueError(f"namespaces must be one per prompt, {num_rows}: got {namespaces!r}")
        for row, name in enumerate(namespaces):
            check_namespace(f"namespaces[{row}]", name)
        id_of = self._engine.nodes.namespaces.id_of
        return array, bounds, np.fromiter((id_of(name) for name in namespaces), dtype=np.int64, count=num_rows)


def check_namespace(name: str, value: object) -> None:
    """Raise unless a namespace is None or a string that arrays of strings can hold."""
    if value is None:
        return
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string or None: got {value!r}")
    if value.endswith("\0"):
        raise ValueError(f"{name} must not end in a null character: got {value!r}")
