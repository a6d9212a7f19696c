"""`RadixTree`: which prompts' KV is cached, as a tree of shared prefixes.

What is modelled: SGLang's RadixAttention. Prompts are paths from the root; each edge holds a run of tokens, split
where prompts part; a lookup finds the longest cached prefix; eviction takes leaves, so that what stays is always
reachable from the root. The KV itself is not here: where the tree is to say where it lies, it stores one number per
token or page (`values`) and hands it back.

Where it differs from SGLang on purpose:

- A match refreshes what it matched. SGLang also refreshes the rest of the edge in which the match ends, so that a
  prompt that was left long ago lives on with its neighbours; ``refresh="edge"`` does that.
- Eviction may trim leaves page by page (``granularity="page"``), which frees what was asked for and no more; with lru
  it makes the tree the exact tail-first LRU of single pages.
- Creation is a property of tokens: a node made by a split is as old as the edge it comes from.
- The capacity belongs to the tree: an insertion evicts what it needs.
- Time is a count of operations, never a clock.

Left out: what HiCache keeps of a node on the host or on disk (see `kvarray.TieredCache`), and bigram keys.
"""

from collections.abc import Mapping, Sequence
from heapq import heappush
from os import PathLike
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import NO_NODE, Ids, as_int, as_ints, as_positive_int, check_offsets, refuse
from kvarray.errors import BlockStateError
from kvarray.policies import POLICIES, Policy
from kvarray.prefix.batch import insert_rows, serve_rows, use_rows, values_of_rows
from kvarray.prefix.checks import check_candidates, check_counts, check_locks, check_nodes
from kvarray.prefix.drawing import draw_tree
from kvarray.prefix.engine import Engine
from kvarray.prefix.nodes import ROOT
from kvarray.prefix.results import Evicted, Lock, Match, MatchBatch, ServedBatch, TreeEvents, TreeStats
from kvarray.prefix.saving import check_snapshot, load_state, state_arrays
from kvarray.prefix.walk import Walk, Walks, walk, walk_batch
from kvarray.ragged import lengths_to_offsets, ranges

__all__ = ["RadixTree"]


class RadixTree:
    """A radix tree of cached prompts over columns of nodes.

    Parameters
    ----------
    capacity : int
        Tokens that may be cached at once, ``>= page_size``; what is left over of a page is not used.
    page_size : int, optional
        Tokens of a page. Lookups and insertions round down to whole pages, and prompts that differ inside a page
        share nothing of it.
    policy : str or callable, optional
        Which leaf goes first: a name in `POLICIES` or a key function (see `kvarray.policies.keys`) of the columns
        ``last_use``, ``created``, ``uses``, ``priority``, ``length``, ``depth``, ``keep``, ``reach`` and
        ``namespace``. Ties go to the oldest use, then to the lowest row.
    granularity : {"leaf", "page"}, optional
        What goes at once: a whole leaf, or the last page of one.
    refresh : {"matched", "edge"}, optional
        What a use refreshes where it ends inside an edge: what it matched, or the rest of the edge as well.
    count_uses : {"inserts", "touches"}, optional
        What adds to ``uses``: insertions only, or matches and locks as well.
    values_per : {"none", "token", "page"}, optional
        Whether a number is stored with each token or page.
    record_events : bool, optional
        Whether `take_events` has something to say.

    Notes
    -----
    Columns of a node, all int64, by row; `columns` shows them. Rows without a node have parent -2, the root is row 0.

    ===============  ======  ================================================================
    column           unit    meaning
    ===============  ======  ================================================================
    `parent`         -       row of the parent, `NO_NODE` for the root
    `edge_offset`    tokens  where its edge begins in the token pool
    `edge_length`    tokens  length of its edge, whole pages
    `depth`          tokens  length of its path from the root, its edge included
    `num_children`   1       children
    `lock_count`     1       locks held on paths through it
    `last_use`       stamp   latest use: 4 tick (+ 1 for a node split off on top, + 2 for a new leaf)
    `created`        stamp   insertion of its tokens
    `uses`           1       insertions (or all uses) that matched it whole, that of its creation included
    `priority`       1       highest priority of an insertion through it
    `reach`          tokens  longest prompt ever inserted through it
    `namespace`      -       id of its namespace
    ===============  ======  ================================================================

    The *tick* counts operations that use the tree: each match, insertion, lock and pin, so a batch of n is n ticks.

    Batches obey the sequential law: the same as their rows one by one, in order. Memory: 16 bytes per token of
    capacity (32 with a value per token) and about 130 bytes per page, all allocated at construction.

    Invariants, verified by `check`:

    R1.  The root has no parent, no edge and no lock, and is never evicted.
    R2.  Every other node has a live parent; its edge is one page or more; its depth is its parent's plus its edge.
    R3.  `num_children` is the number of nodes that name a node as parent.
    R4.  No two children of a node begin with the same page, and the index finds every child by its first page.
    R5.  A node is of its parent's namespace, and a namespace is known as long as it has nodes.
    R6.  `lock_count` is the number of live locks on the node and below it.
    R7.  ``cached = evictable + protected <= capacity`` tokens, each the sum of the edges it stands for.
    R8.  Edges do not overlap in the pool, and end before its end, which is at most twice the capacity.
    R9.  Every row holds a node or is listed once as free.
    R10. The candidates for eviction are the unlocked leaves, each filed under its present key.
    R11. No stamp lies in the future, and every pin is a live lock that ends in the future.
    R12. ``cached = inserted - evicted`` tokens.

    Examples
    --------
    >>> tree = RadixTree(1000)
    >>> system = list(range(64))
    >>> tree.insert(system + [101, 102, 103])
    0
    >>> tree.insert(system + [201, 202])
    64
    >>> tree.match(system + [7]).num_tokens, tree.cached_tokens, tree.num_nodes
    (64, 69, 4)
    >>> print(tree.to_text())
    root: 69 tokens in 4 nodes
    `- 0 1 2 3 .. 63 (64)
       |- 101 102 103 (3)
       `- 201 202 (2)
    """

    def __init__(
        self,
        capacity: int,
        *,
        page_size: int = 1,
        policy: str | Policy = "lru",
        granularity: Literal["leaf", "page"] = "leaf",
        refresh: Literal["matched", "edge"] = "matched",
        count_uses: Literal["inserts", "touches"] = "inserts",
        values_per: Literal["none", "token", "page"] = "none",
        record_events: bool = False,
    ) -> None:
        page_size = as_positive_int("page_size", page_size)
        capacity = as_int("capacity", capacity, low=page_size)
        _check_choice("granularity", granularity, ("leaf", "page"))
        _check_choice("refresh", refresh, ("matched", "edge"))
        _check_choice("count_uses", count_uses, ("inserts", "touches"))
        _check_choice("values_per", values_per, ("none", "token", "page"))
        if isinstance(policy, str):
            _check_choice("policy", policy, tuple(POLICIES))
            policy = POLICIES[policy]
        self._engine = Engine(
            capacity,
            page_size,
            policy,
            granularity=granularity,
            refresh=refresh,
            count_uses=count_uses,
            values_per=values_per,
            record_events=record_events,
        )

    # What is there

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

    # Lookups

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

    def match(self, tokens: ArrayLike, *, namespace: str | None = None) -> Match:
        """Return the longest cached prefix of a prompt and refresh its recency.

        A match that ends inside an edge splits it there, because from then on the two parts differ in recency. That
        may add a node; it never changes which tokens are cached.

        Parameters
        ----------
        tokens : array_like of int, shape (n,)
            Token ids, ``>= 0``. Only whole pages can match.
        namespace : str, optional
            Prompts of different namespaces share nothing.

        Returns
        -------
        Match
            `node` is the one that the match ends at, `ROOT` (0) where nothing matched.

        Raises
        ------
        TypeError
            If the tokens are not integers, or the namespace is not a string.
        ValueError
            If a token is negative or does not fit 64 bits.

        Examples
        --------
        >>> tree = RadixTree(100, page_size=4)
        >>> tree.insert(range(10))
        0
        >>> tree.match([0, 1, 2, 3, 4, 5, 66]).num_tokens
        4
        """
        array = as_ints("tokens", tokens)
        found = self._walk(array, namespace)

        values = self._engine.values_of(found)
        path = self._engine.use(found, len(array))
        self._engine.finish()
        return Match(found.num_tokens, path[-1] if path else ROOT, values)

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

    def match_batch(
        self, tokens: ArrayLike, offsets: ArrayLike, *, namespaces: Sequence[str | None] | None = None
    ) -> MatchBatch:
        """Return the longest cached prefix of each prompt and refresh its recency.

        Parameters
        ----------
        tokens, offsets, namespaces
            As in `peek_batch`.

        Returns
        -------
        MatchBatch
            `nodes` are those that the matches end at when the call returns.

        Raises
        ------
        TypeError, ValueError
            As `match`, and if offsets or namespaces do not fit.

        Notes
        -----
        Sequential law: the tree afterwards is what a `match` per row, in order, leaves. A round of array operations
        per level; rows that end inside an edge, which splits it, cost a few microseconds each on top.
        """
        found, array, bounds, numbers = self._walk_batch(tokens, offsets, namespaces)

        values, value_offsets = values_of_rows(self._engine, found)
        nodes = use_rows(self._engine, found, array, bounds, numbers)
        self._engine.finish()
        return MatchBatch(found.num_tokens, nodes, values, value_offsets)

    # Insertions

    def insert(
        self, tokens: ArrayLike, values: ArrayLike | None = None, *, namespace: str | None = None, priority: int = 0
    ) -> int:
        """Cache a prompt and return how many of its tokens were there already.

        What is there is refreshed and keeps its values; the rest becomes one new leaf. Where room is wanting, leaves
        are evicted by policy, never those of the prompt itself.

        Parameters
        ----------
        tokens : array_like of int, shape (n,)
            Token ids, ``>= 0``. A partial page at the end does not enter.
        values : array_like of int, optional
            Numbers to store, for a tree that keeps them: one per token, or one per whole page.
        namespace : str, optional
            Prompts of different namespaces share nothing.
        priority : int, optional
            What is matched is raised to it, what is added has it.

        Returns
        -------
        int
            Tokens that were there, whole pages; ``values`` of these were not taken.

        Raises
        ------
        TypeError, ValueError
            As `match`, and if the values do not fit.
        CapacityError
            If locks leave too little room.

        Examples
        --------
        >>> tree = RadixTree(8, values_per="token")
        >>> tree.insert([5, 6, 7], [50, 60, 70])
        0
        >>> tree.insert([5, 6, 9, 9], [1, 2, 3, 4])
        2
        >>> tree.peek([5, 6, 9, 9]).values
        array([50, 60,  3,  4])
        """
        array = as_ints("tokens", tokens, low=0)
        numbers = self._check_values(values, self._num_values(len(array)))
        _check_namespace("namespace", namespace)
        priority = int(as_ints("priority", [as_int("priority", priority)])[0])
        return self._engine.insert(array, numbers, namespace, priority)

    def insert_batch(
        self,
        tokens: ArrayLike,
        offsets: ArrayLike,
        *,
        values: ArrayLike | None = None,
        namespaces: Sequence[str | None] | None = None,
        priorities: ArrayLike | None = None,
    ) -> Ids:
        """Cache prompts and return how many tokens of each were there already.

        Parameters
        ----------
        tokens, offsets, namespaces
            As in `peek_batch`.
        values : array_like of int, optional
            Values of all prompts, one prompt after the other; see `insert`.
        priorities : array_like of int, shape (B,), optional
            Priority of each prompt, 0 where not given.

        Returns
        -------
        ndarray of int64, shape (B,)

        Raises
        ------
        TypeError, ValueError, CapacityError
            As `insert`; nothing is inserted then.

        Notes
        -----
        Sequential law: an insertion sees what the earlier rows left. One at a time, therefore.
        """
        array, bounds, _ = self._check_batch(as_ints("tokens", tokens, low=0), offsets, namespaces)
        names: Sequence[str | None] = namespaces if namespaces is not None else [None] * (len(bounds) - 1)
        lengths = np.diff(bounds)
        value_bounds = lengths_to_offsets(self._num_values(lengths))
        numbers = self._check_values(values, int(value_bounds[-1]))
        ranks = as_ints("priorities", priorities if priorities is not None else np.zeros(len(lengths), dtype=np.int64))
        if len(ranks) != len(lengths):
            raise ValueError(f"priorities must be one per prompt, {len(lengths)}: got {len(ranks)}")

        return insert_rows(self._engine, array, bounds, numbers, value_bounds, names, ranks)

    def serve_batch(
        self,
        tokens: ArrayLike,
        offsets: ArrayLike,
        *,
        limit: int,
        values: ArrayLike | None = None,
        namespaces: Sequence[str | None] | None = None,
    ) -> ServedBatch:
        """Serve requests one after the other: match, insert, then evict down to `limit` tokens.

        This is the request step that traces are replayed with: a request is in the cache as a whole before anything
        is evicted, its own tail included. It needs room for the longest request on top of `limit`.

        Parameters
        ----------
        tokens, offsets, namespaces
            As in `peek_batch`.
        limit : int
            Tokens that may stay after each request, ``>= 0``; locks may keep more.
        values : array_like of int, optional
            As in `insert_batch`.

        Returns
        -------
        ServedBatch

        Raises
        ------
        TypeError, ValueError, CapacityError
            As `insert_batch`; nothing is changed then.

        Notes
        -----
        Sequential law: the same as `match`, `insert` and `evict` for one request after the other.

        Examples
        --------
        >>> tree = RadixTree(20, granularity="page")
        >>> served = tree.serve_batch([1, 2, 3, 1, 2, 4, 5, 1, 2, 3], [0, 3, 7, 10], limit=4)
        >>> served.num_tokens, served.evicted_tokens
        (array([0, 2, 2]), array([0, 1, 1]))
        """
        array, bounds, _ = self._check_batch(as_ints("tokens", tokens, low=0), offsets, namespaces)
        names: Sequence[str | None] = namespaces if namespaces is not None else [None] * (len(bounds) - 1)
        value_bounds = lengths_to_offsets(self._num_values(np.diff(bounds)))
        numbers = self._check_values(values, int(value_bounds[-1]))
        limit = as_int("limit", limit, low=0)
        return ServedBatch(*serve_rows(self._engine, array, bounds, numbers, value_bounds, names, limit))

    # Locks

    def lock(self, tokens: ArrayLike, *, namespace: str | None = None) -> Lock:
        """Match a prompt and keep what matched from being evicted until `unlock`.

        Parameters
        ----------
        tokens, namespace
            As in `match`.

        Returns
        -------
        Lock
            Handle for `unlock`. Locks are counted: a path is free again when all of its locks are gone.

        Raises
        ------
        TypeError, ValueError
            As `match`.

        Examples
        --------
        >>> tree = RadixTree(100)
        >>> tree.insert([1, 2, 3])
        0
        >>> lock = tree.lock([1, 2, 9])
        >>> tree.evict(100).num_tokens, tree.protected_tokens
        (1, 2)
        >>> tree.unlock(lock)
        >>> tree.evictable_tokens
        2
        """
        array = as_ints("tokens", tokens)
        found = self._walk(array, namespace)

        lock = self._engine.lock(found, len(array))
        self._engine.finish()
        return lock

    def pin(self, tokens: ArrayLike, *, ttl: int, namespace: str | None = None) -> Lock:
        """Lock what matches for the next `ttl` ticks.

        Parameters
        ----------
        tokens, namespace
            As in `match`.
        ttl : int
            Operations for which the pin holds, ``>= 1``; the last of them is still protected. `advance` counts.

        Returns
        -------
        Lock
            Handle with which `unlock` ends the pin earlier.

        Raises
        ------
        TypeError, ValueError
            As `match`, and if `ttl` is not an integer of 1 or more.
        """
        ttl = as_positive_int("ttl", ttl)
        array = as_ints("tokens", tokens)
        found = self._walk(array, namespace)

        lock = self._engine.lock(found, len(array))
        heappush(self._engine.pins, (self._engine.tick + ttl, lock.serial))
        self._engine.finish()
        return lock

    def unlock(self, lock: Lock) -> None:
        """Drop one lock of a path.

        Raises
        ------
        TypeError
            If it is not a handle.
        BlockStateError
            If the handle is not held: unlocked or expired already, or from before a reset.
        """
        if not isinstance(lock, Lock):
            raise TypeError(f"lock must be what lock() or pin() returned: got {lock!r}")
        if lock.serial not in self._engine.locks:
            raise BlockStateError(
                f"unlock {lock.serial}: it is not held; it was unlocked or expired, or is from before a reset",
                ids=[lock.serial],
            )
        self._engine.unlock(lock.serial)

    def advance(self, ticks: int) -> None:
        """Let `ticks` operations' worth of time pass, so that pins run out.

        Raises
        ------
        ValueError
            If `ticks` is negative.
        """
        self._engine.tick += as_int("ticks", ticks, low=0)
        self._engine.finish()

    # Evictions and the whole state

    def evict(self, num_tokens: int) -> Evicted:
        """Free at least `num_tokens` unlocked tokens, leaves first, in the order of the policy.

        Parameters
        ----------
        num_tokens : int
            Tokens to free, ``>= 0``.

        Returns
        -------
        Evicted
            What went. It is less than asked for only where no unlocked token is left (`Evicted.is_short`).

        Raises
        ------
        ValueError
            If `num_tokens` is negative.

        Notes
        -----
        Cost per leaf that goes, whatever the number of leaves. Evicting is not a use: the tick stays.

        Examples
        --------
        >>> tree = RadixTree(100, granularity="page", page_size=2)
        >>> tree.insert([1, 2, 3, 4, 5, 6])
        0
        >>> gone = tree.evict(3)
        >>> gone.num_tokens, gone.tokens
        (4, array([3, 4, 5, 6]))
        """
        num_tokens = as_int("num_tokens", num_tokens, low=0)
        gone = self._engine.evict(num_tokens)
        columns = [np.array(column, dtype=np.int64) for column in zip(*gone, strict=True)] or [_NONE] * 4
        nodes, depths, offsets, lengths = columns
        size = self._engine.nodes.value_size
        return Evicted(
            requested=num_tokens,
            num_tokens=int(lengths.sum()),
            nodes=nodes,
            depths=depths,
            lengths=lengths,
            tokens=self._engine.nodes.pool[ranges(offsets, lengths)],
            values=self._engine.nodes.values[ranges(offsets // size, lengths // size)] if size else None,
        )

    def reserve(self, capacity: int) -> None:
        """Enlarge the capacity; what is cached, rows and handles stay. O(new capacity).

        Raises
        ------
        ValueError
            If `capacity` is below the present one.
        """
        capacity = as_int("capacity", capacity, low=self.capacity)
        self._engine.enlarge(capacity)

    def reset(self) -> None:
        """Drop everything, locks included: handles given before are refused from now on. Counts begin again."""
        self._engine.reset()

    def take_events(self) -> TreeEvents:
        """Return what happened to the nodes since the last call, in order.

        Raises
        ------
        ValueError
            If the tree was not made with ``record_events=True``.
        """
        if self._engine.recorder is None:
            raise ValueError("take_events needs a tree made with record_events=True")
        return self._engine.recorder.take()

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

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Return to a state that `snapshot` gave, of this tree or of one made alike.

        Handles that were held then are held again. Serials of locks go on from the later state, so a handle given
        since then is refused.

        Raises
        ------
        ValueError
            If it is no snapshot, or of a tree with another page size or values, or of more tokens than fit.
        """
        check_snapshot(snapshot, self._engine)
        load_state(self._engine, snapshot)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the whole state to a ``.npz`` file, for `load`."""
        np.savez_compressed(path, **state_arrays(self._engine))

    @classmethod
    def load(cls, path: str | PathLike[str], *, policy: str | Policy | None = None) -> Self:
        """Return the tree that `save` wrote.

        Parameters
        ----------
        path : path
            The ``.npz`` file.
        policy : str or callable, optional
            Needed where the policy was not one of `POLICIES`.

        Raises
        ------
        ValueError
            If the file is not of a tree, or its policy has no name and none is given.
        """
        with np.load(path) as file:
            snapshot = dict(file)
        check_snapshot(snapshot)
        page_size, capacity = (int(snapshot[name]) for name in ("page_size", "capacity"))
        policy = policy if policy is not None else str(snapshot["policy"])
        if policy == "":
            raise ValueError("policy must be given: the tree was saved with a function that has no name in POLICIES")
        options = {name: str(snapshot[name]) for name in ("granularity", "refresh", "count_uses", "values_per")}
        tree = cls(capacity, page_size=page_size, policy=policy, **options)  # type: ignore[arg-type]
        load_state(tree._engine, snapshot)
        return tree

    # Checks

    def _walk(self, tokens: Ids, namespace: str | None) -> Walk:
        """Walk a prompt and check it: tokens that match are valid, because the tree holds no others."""
        _check_namespace("namespace", namespace)
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
            _check_namespace(f"namespaces[{row}]", name)
        id_of = self._engine.nodes.namespaces.id_of
        return array, bounds, np.fromiter((id_of(name) for name in namespaces), dtype=np.int64, count=num_rows)

    def _num_values(self, num_tokens: Any) -> Any:
        """Return how many values go with prompts of so many tokens (int or array)."""
        if self._engine.values_per == "none":
            return num_tokens * 0
        return num_tokens if self._engine.values_per == "token" else num_tokens // self.page_size

    def _check_values(self, values: ArrayLike | None, wanted: int) -> Ids:
        """Return values as an array; `wanted` are needed, none where the tree keeps none."""
        if self._engine.values_per == "none":
            if values is not None:
                raise ValueError("values must not be given: the tree was made with values_per='none'")
            return _NONE
        if values is None:
            raise ValueError(f"values must be given, one per {self._engine.values_per}: the tree keeps them")
        array = as_ints("values", values)
        if len(array) != wanted:
            raise ValueError(f"values must be one per {self._engine.values_per}, {wanted}: got {len(array)}")
        return array


_NONE = np.empty(0, dtype=np.int64)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise `ValueError` unless a value is one of some names."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}: got {value!r}")


def _check_namespace(name: str, value: object) -> None:
    """Raise unless a namespace is None or a string that arrays of strings can hold."""
    if value is None:
        return
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string or None: got {value!r}")
    if value.endswith("\0"):
        raise ValueError(f"{name} must not end in a null character: got {value!r}")
