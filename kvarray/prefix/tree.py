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
from heapq import heappop, heappush
from os import PathLike
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import NO_NODE, Ids, as_int, as_ints, as_positive_int, check_offsets, refuse
from kvarray.errors import BlockStateError, CapacityError
from kvarray.policies import POLICIES, Policy
from kvarray.prefix.candidates import Candidates
from kvarray.prefix.checks import check_candidates, check_counts, check_locks, check_nodes
from kvarray.prefix.drawing import draw_tree
from kvarray.prefix.nodes import ROOT, Nodes
from kvarray.prefix.recorder import Recorder
from kvarray.prefix.results import Evicted, Lock, Match, MatchBatch, TreeEvents, TreeStats
from kvarray.prefix.walk import Walk, Walks, walk, walk_batch
from kvarray.ragged import lengths_to_offsets, ranges

__all__ = ["RadixTree"]

_STAMPS = 4  # stamps of one tick: an operation stamps its path, then what it split, then what it added
_COUNTS = (
    "matches",
    "matched_tokens",
    "asked_tokens",
    "inserts",
    "found_tokens",
    "inserted_tokens",
    "splits",
    "evicted_nodes",
    "evicted_tokens",
)


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
        Which leaf goes first: a name in `POLICIES` or a key function of columns (see `kvarray.policies.keys`). Columns
        are ``last_use``, ``created``, ``uses``, ``priority``, ``length``, ``depth``, ``keep``, ``reach`` and
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

    Batches obey the sequential law: the same as their rows one by one, in order. Memory: 16 bytes per token of capacity
    (32 with a value per token) and about 130 bytes per page, all allocated at construction.

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
        self._granularity = granularity
        self._refresh_edge = refresh == "edge"
        self._count_touches = count_uses == "touches"
        self._values_per = values_per
        value_size = {"none": 0, "token": 1, "page": page_size}[values_per]
        self._nodes = Nodes(capacity - capacity % page_size, page_size, value_size)
        self._candidates = Candidates(self._nodes, policy, whole_leaves=granularity == "leaf")
        self._recorder = Recorder() if record_events else None
        self._tick = 0
        self._serial = 0  # of the latest lock
        self._empty()

    def _empty(self) -> None:
        """Set what an empty tree begins with; tick and serial go on."""
        self._cached = 0
        self._protected = 0
        self._locks: dict[int, int] = {}  # serial -> node at the end of the path
        self._pins: list[tuple[int, int]] = []  # heap of (last tick, serial); some may have been unlocked
        self._counts = dict.fromkeys(_COUNTS, 0)

    # What is there

    @property
    def capacity(self) -> int:
        """Tokens that may be cached at once, whole pages."""
        return self._nodes.capacity

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self._nodes.page_size

    @property
    def tick(self) -> int:
        """Operations so far."""
        return self._tick

    @property
    def num_nodes(self) -> int:
        """Nodes, the root included."""
        return self._nodes.num_nodes

    @property
    def cached_tokens(self) -> int:
        """Tokens cached."""
        return self._cached

    @property
    def protected_tokens(self) -> int:
        """Tokens that a lock protects."""
        return self._protected

    @property
    def evictable_tokens(self) -> int:
        """Tokens that could be evicted now."""
        return self._cached - self._protected

    @property
    def columns(self) -> Mapping[str, Ids]:
        """Read-only columns by name; see the notes of the class. They follow the tree until `reserve`."""
        views = {name: column.view() for name, column in self._nodes.columns.items()}
        for view in views.values():
            view.flags.writeable = False
        return MappingProxyType(views)

    def stats(self) -> TreeStats:
        """Return counts since construction or `reset`, and what is there now; O(nodes)."""
        live = self._nodes.live()[1:]
        return TreeStats(
            **self._counts,
            compactions=self._nodes.num_compactions,
            num_nodes=self.num_nodes,
            num_leaves=int(np.count_nonzero(self._nodes.columns["num_children"][live] == 0)),
            num_locks=len(self._locks),
            cached_tokens=self._cached,
            evictable_tokens=self.evictable_tokens,
            protected_tokens=self._protected,
        )

    def tokens_of(self, node: int) -> Ids:
        """Return the tokens of the path from the root to a node.

        Raises
        ------
        ValueError
            If the row holds no node.
        """
        node = as_int("node", node, low=0, high=self._nodes.num_rows)
        pieces = []
        while node != ROOT:
            if self._nodes.parent[node] < ROOT:
                raise ValueError(f"node must be a row that holds a node: row {node} is free")
            offset = self._nodes.edge_offset[node]
            pieces.append(self._nodes.pool[offset : offset + self._nodes.edge_length[node]])
            node = self._nodes.parent[node]
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
        return Match(found.num_tokens, node, self._values_of(found))

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

        values = self._values_of(found)
        path = self._use(found, len(array))
        self._finish()
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
        array, bounds, numbers = self._check_batch(tokens, offsets, namespaces)
        found = walk_batch(self._nodes, array, bounds, numbers)
        nodes = np.where(found.lower != NO_NODE, found.lower, found.last)
        return MatchBatch(found.num_tokens, nodes, *self._values_of_batch(found))

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
        array, bounds, numbers = self._check_batch(tokens, offsets, namespaces)
        found = walk_batch(self._nodes, array, bounds, numbers)

        values, value_offsets = self._values_of_batch(found)
        nodes = self._use_batch(found, array, bounds, numbers)
        self._finish()
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
        return self._insert(array, numbers, namespace, priority)

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
        array, bounds, _ = self._check_batch(tokens, offsets, namespaces)
        names: Sequence[str | None] = namespaces if namespaces is not None else [None] * (len(bounds) - 1)
        lengths = np.diff(bounds)
        value_bounds = lengths_to_offsets(self._num_values(lengths))
        numbers = self._check_values(values, int(value_bounds[-1]))
        ranks = as_ints(
            "priorities", priorities if priorities is not None else np.zeros(len(lengths), dtype=np.int64)
        )
        if len(ranks) != len(lengths):
            raise ValueError(f"priorities must be one per prompt, {len(lengths)}: got {len(ranks)}")

        # Where even the longest prompt finds room beside the locks, no row can fail; else be ready to go back.
        longest = int(lengths.max(initial=0))
        saved = None if longest + self._protected <= self.capacity else self._arrays()
        events = self._recorder.mark() if self._recorder else 0
        found = np.zeros(len(lengths), dtype=np.int64)
        cuts, value_cuts = bounds.tolist(), value_bounds.tolist()
        try:
            for row, (name, rank) in enumerate(zip(names, ranks.tolist(), strict=True)):
                row_values = numbers[value_cuts[row] : value_cuts[row + 1]]
                found[row] = self._insert(array[cuts[row] : cuts[row + 1]], row_values, name, rank)
        except CapacityError as error:
            assert saved is not None  # no row fails when there is room for the longest
            self._load(saved)
            if self._recorder:
                self._recorder.forget(events)
            message = f"prompt {row} of the batch: {error}"
            raise CapacityError(message, requested=error.requested, available=error.available) from None
        return found

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
        lock = self._lock(tokens, namespace)
        self._finish()
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
        lock = self._lock(tokens, namespace)
        heappush(self._pins, (self._tick + ttl, lock.serial))
        self._finish()
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
        if lock.serial not in self._locks:
            raise BlockStateError(
                f"unlock {lock.serial}: it is not held; it was unlocked or expired, or is from before a reset",
                ids=[lock.serial],
            )
        self._unlock(lock.serial)

    def advance(self, ticks: int) -> None:
        """Let `ticks` operations' worth of time pass, so that pins run out.

        Raises
        ------
        ValueError
            If `ticks` is negative.
        """
        self._tick += as_int("ticks", ticks, low=0)
        self._finish()

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
        gone = self._evict(num_tokens)
        columns = [np.array(column, dtype=np.int64) for column in zip(*gone, strict=True)] or [_NONE] * 4
        nodes, depths, offsets, lengths = columns
        size = self._nodes.value_size
        return Evicted(
            requested=num_tokens,
            num_tokens=int(lengths.sum()),
            nodes=nodes,
            depths=depths,
            lengths=lengths,
            tokens=self._nodes.pool[ranges(offsets, lengths)],
            values=self._nodes.values[ranges(offsets // size, lengths // size)] if size else None,
        )

    def reserve(self, capacity: int) -> None:
        """Enlarge the capacity; what is cached, rows and handles stay. O(new capacity).

        Raises
        ------
        ValueError
            If `capacity` is below the present one.
        """
        capacity = as_int("capacity", capacity, low=self.capacity)
        self._nodes.enlarge(capacity - capacity % self.page_size)
        self._candidates.rebuild()

    def reset(self) -> None:
        """Drop everything, locks included: handles given before are refused from now on. Counts begin again."""
        self._nodes.clear()
        self._candidates.rebuild()
        self._empty()
        if self._recorder:
            self._recorder.forget(0)

    def take_events(self) -> TreeEvents:
        """Return what happened to the nodes since the last call, in order.

        Raises
        ------
        ValueError
            If the tree was not made with ``record_events=True``.
        """
        if self._recorder is None:
            raise ValueError("take_events needs a tree made with record_events=True")
        return self._recorder.take()

    def check(self) -> None:
        """Raise `InvariantError`, naming invariant and rows, unless R1 to R12 hold; O(state), changes nothing."""
        check_nodes(self._nodes)
        check_candidates(self._candidates)
        check_locks(self._nodes, self._locks, self._pins, self._tick)
        check_counts(self.stats(), self._nodes)

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
            self._nodes, as_positive_int("max_nodes", max_nodes), as_int("max_tokens", max_tokens, low=2)
        )

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state as arrays by name, for `restore`; O(state). Events not taken are no part of it."""
        return self._arrays()

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Return to a state that `snapshot` gave, of this tree or of one made alike.

        Handles that were held then are held again. Serials of locks go on from the later state, so a handle given
        since then is refused.

        Raises
        ------
        ValueError
            If it is no snapshot, or of a tree with another page size or values, or of more tokens than fit.
        """
        _check_snapshot(snapshot, self._config())
        if len(snapshot["tokens"]) > len(self._nodes.pool) or snapshot["nodes"].shape[1] > self._nodes.max_nodes:
            raise ValueError(f"snapshot must be of a capacity of {self.capacity} or less: reserve more first")
        self._load(snapshot)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the whole state to a ``.npz`` file, for `load`."""
        np.savez_compressed(path, **self._arrays())

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
        _check_snapshot(snapshot, {})
        page_size, capacity = (int(snapshot[name]) for name in ("page_size", "capacity"))
        policy = policy if policy is not None else str(snapshot["policy"])
        if policy == "":
            raise ValueError("policy must be given: the tree was saved with a function that has no name in POLICIES")
        options = {name: str(snapshot[name]) for name in ("granularity", "refresh", "count_uses", "values_per")}
        tree = cls(capacity, page_size=page_size, policy=policy, **options)  # type: ignore[arg-type]
        tree._load(snapshot)
        return tree

    # Checks

    def _walk(self, tokens: Ids, namespace: str | None) -> Walk:
        """Walk a prompt and check it: tokens that match are valid, because the tree holds no others."""
        _check_namespace("namespace", namespace)
        found = walk(self._nodes, tokens, self._nodes.namespaces.id_of(namespace))
        rest = tokens[found.num_tokens :]
        if len(rest) and rest.min() < 0:
            refuse("tokens", "be 0 or more", tokens < 0, tokens)
        return found

    def _check_batch(
        self, tokens: ArrayLike, offsets: ArrayLike, namespaces: Sequence[str | None] | None
    ) -> tuple[Ids, Ids, Ids]:
        """Return tokens, offsets and ids of namespaces of a batch."""
        array = as_ints("tokens", tokens, low=0)
        bounds = as_ints("offsets", offsets)
        check_offsets("offsets", bounds, len(array))
        num_rows = len(bounds) - 1
        if namespaces is None:
            return array, bounds, np.zeros(num_rows, dtype=np.int64)
        if isinstance(namespaces, str) or len(namespaces) != num_rows:
            raise ValueError(f"namespaces must be one per prompt, {num_rows}: got {namespaces!r}")
        for row, name in enumerate(namespaces):
            _check_namespace(f"namespaces[{row}]", name)
        id_of = self._nodes.namespaces.id_of
        return array, bounds, np.fromiter((id_of(name) for name in namespaces), dtype=np.int64, count=num_rows)

    def _num_values(self, num_tokens: Any) -> Any:
        """Return how many values go with prompts of so many tokens (int or array)."""
        if self._values_per == "none":
            return num_tokens * 0
        return num_tokens if self._values_per == "token" else num_tokens // self.page_size

    def _check_values(self, values: ArrayLike | None, wanted: int) -> Ids:
        """Return values as an array; `wanted` are needed, none where the tree keeps none."""
        if self._values_per == "none":
            if values is not None:
                raise ValueError("values must not be given: the tree was made with values_per='none'")
            return _NONE
        if values is None:
            raise ValueError(f"values must be given, one per {self._values_per}: the tree keeps them")
        array = as_ints("values", values)
        if len(array) != wanted:
            raise ValueError(f"values must be one per {self._values_per}, {wanted}: got {len(array)}")
        return array

    # Kernels: they trust their callers

    def _values_of(self, found: Walk) -> Ids | None:
        """Return the stored values of a match."""
        if not self._nodes.value_size:
            return None
        pieces = [(node, self._nodes.edge_length[node]) for node in found.path]
        if found.lower != NO_NODE:
            pieces.append((found.lower, found.inside))
        return self._nodes.values_of(pieces)

    def _values_of_batch(self, found: Walks) -> tuple[Ids | None, Ids | None]:
        """Return the stored values of the matches of a batch, and their offsets."""
        size = self._nodes.value_size
        if not size:
            return None, None
        _, nodes, lengths = found.pieces()
        lengths = np.where(lengths < 0, self._nodes.columns["edge_length"][nodes], lengths)
        starts = self._nodes.columns["edge_offset"][nodes]
        return self._nodes.values[ranges(starts // size, lengths // size)], lengths_to_offsets(
            found.num_tokens // size
        )

    def _use(self, found: Walk, num_tokens: int) -> list[int]:
        """Count a lookup of `num_tokens` tokens, refresh what it matched, and return the nodes of the match."""
        self._tick += 1
        counts = self._counts
        counts["matches"] += 1
        counts["asked_tokens"] += num_tokens
        counts["matched_tokens"] += found.num_tokens
        path = self._touch(found, _STAMPS * self._tick)
        if self._count_touches:
            for node in path:
                self._nodes.uses[node] += 1
        return path

    def _touch(self, found: Walk, stamp: int) -> list[int]:
        """Refresh what a walk matched, splitting the edge that it ends in, and return the nodes of the match.

        A stamp never takes the place of a later one, which lets a batch touch out of order.
        """
        last_use, path = self._nodes.last_use, found.path
        for node in path:
            if last_use[node] < stamp:
                last_use[node] = stamp
        lower = found.lower
        if lower != NO_NODE:
            upper = self._nodes.split(lower, found.inside, stamp + 1)
            self._counts["splits"] += 1
            if self._recorder:
                self._recorder.split(stamp // _STAMPS, self._nodes, upper, lower)
            if self._refresh_edge and last_use[lower] < stamp:
                last_use[lower] = stamp
            self._candidates.note(lower)
            path.append(upper)
        elif path:
            self._candidates.note(path[-1])
        return path

    def _use_batch(self, found: Walks, tokens: Ids, offsets: Ids, namespaces: Ids) -> Ids:
        """`_use` for a batch: rows that end between edges all at once, the others after them, in order."""
        columns = self._nodes.columns
        first_tick = self._tick + 1
        stamps = _STAMPS * (first_tick + np.arange(len(found.last)))
        self._tick += len(stamps)
        self._counts["matches"] += len(stamps)
        self._counts["asked_tokens"] += len(tokens)
        self._counts["matched_tokens"] += int(found.num_tokens.sum())
        for rows, nodes in found.steps:
            columns["last_use"][nodes] = stamps[rows]  # rows ascend, and the last write to a node stays
            if self._count_touches:
                np.add.at(columns["uses"], nodes, 1)
        is_part = found.lower != NO_NODE
        self._candidates.note_many(found.last[~is_part & (found.last != ROOT)].tolist())
        last, depth = found.last.copy(), self._nodes.depth
        # What a later row did to the whole edge, it did to the part above the split as well, and `split` hands that on.
        for row in np.flatnonzero(is_part).tolist():
            size = int(found.num_tokens[row])
            prompt = tokens[offsets[row] : offsets[row] + size]
            again = walk(self._nodes, prompt, int(namespaces[row]))
            path = self._touch(again, int(stamps[row]))
            last[row] = path[-1]
            if self._count_touches:  # the rounds counted the path down to `found.last`; splits may have added to it
                counted = depth[int(found.last[row])]
                for node in path:
                    if depth[node] > counted:
                        self._nodes.uses[node] += 1
        return last

    def _insert(self, tokens: Ids, values: Ids, namespace: str | None, priority: int) -> int:
        """Insert one prompt whose arguments are valid."""
        nodes = self._nodes
        size = len(tokens) - len(tokens) % nodes.page_size
        found = walk(nodes, tokens, nodes.namespaces.id_of(namespace))
        there = found.num_tokens
        if there < size and size + self._protected > self.capacity:
            self._check_room(size, found)

        self._tick += 1
        stamp = _STAMPS * self._tick
        path = self._touch(found, stamp)
        for node in path:
            nodes.uses[node] += 1
            if nodes.priority[node] < priority:
                nodes.priority[node] = priority
            if nodes.reach[node] < size:
                nodes.reach[node] = size
        if there < size:
            parent = path[-1] if path else ROOT
            excess = self._cached + size - there - self.capacity
            if excess > 0:
                self._evict_beside(parent, excess)
            elif parent:
                self._candidates.withdraw(parent)
            number = nodes.namespaces.open(namespace) if parent == ROOT else nodes.namespace[parent]
            start = there // nodes.value_size if nodes.value_size else 0
            stop = size // nodes.value_size if nodes.value_size else 0
            leaf = nodes.add_leaf(parent, number, tokens[there:size], values[start:stop], stamp + 2, priority)
            self._cached += size - there
            self._candidates.note(leaf)
            if self._recorder:
                self._recorder.stored(self._tick, nodes, leaf)
        counts = self._counts
        counts["inserts"] += 1
        counts["found_tokens"] += there
        counts["inserted_tokens"] += size - there
        self._finish()
        return there

    def _check_room(self, size: int, found: Walk) -> None:
        """Raise unless a prompt of `size` tokens fits beside what is locked; its own locked part counts once."""
        lock_count, edge_length = self._nodes.lock_count, self._nodes.edge_length
        held = sum(edge_length[node] for node in found.path if lock_count[node])
        if found.lower != NO_NODE and lock_count[found.lower]:
            held += found.inside
        available = self.capacity - self._protected
        if size - held > available:
            raise CapacityError(
                f"insert {size - held} tokens: locks hold {self._protected} of {self.capacity}, which leaves {available}",
                requested=size - held,
                available=available,
            )

    def _lock(self, tokens: ArrayLike, namespace: str | None) -> Lock:
        """Match and lock."""
        array = as_ints("tokens", tokens)
        found = self._walk(array, namespace)

        path = self._use(found, len(array))
        nodes = self._nodes
        for node in path:
            if nodes.lock_count[node] == 0:
                self._protected += nodes.edge_length[node]
            nodes.lock_count[node] += 1
        end = path[-1] if path else ROOT
        self._candidates.withdraw(end)
        self._serial += 1
        self._locks[self._serial] = end
        return Lock(self._serial, found.num_tokens)

    def _unlock(self, serial: int) -> None:
        """Drop a lock that is held."""
        nodes = self._nodes
        end = node = self._locks.pop(serial)
        while node != ROOT:
            nodes.lock_count[node] -= 1
            if nodes.lock_count[node] == 0:
                self._protected -= nodes.edge_length[node]
            node = nodes.parent[node]
        if end != ROOT:
            self._candidates.note(end)

    def _finish(self) -> None:
        """End an operation: pins whose last tick this was run out."""
        while self._pins and self._pins[0][0] <= self._tick:
            serial = heappop(self._pins)[1]
            if serial in self._locks:
                self._unlock(serial)

    def _evict_beside(self, node: int, num_tokens: int) -> None:
        """Evict for an insertion below `node`, which stays."""
        self._candidates.withdraw(node)
        lock_count = self._nodes.lock_count
        lock_count[node] += 1
        self._evict(num_tokens)
        lock_count[node] -= 1

    def _evict(self, num_tokens: int) -> list[tuple[int, int, int, int]]:
        """Evict and return what went: node, depth, offset in the pool, length. The pool still holds it."""
        nodes, candidates = self._nodes, self._candidates
        parent, num_children, lock_count = nodes.parent, nodes.num_children, nodes.lock_count
        is_whole = candidates.whole_leaves
        gone: list[tuple[int, int, int, int]] = []
        removed: list[int] = []
        freed = 0
        while freed < num_tokens:
            node = candidates.best()
            if node < 0:
                break
            length = size = nodes.edge_length[node]
            if not is_whole:
                size = nodes.page_size if candidates.trim_changes_key else num_tokens - freed
                size = min(-(-size // nodes.page_size) * nodes.page_size, length)
            gone.append((node, nodes.depth[node], nodes.edge_offset[node] + length - size, size))
            freed += size
            if size < length:
                nodes.trim(node, size)
                if candidates.trim_changes_key:
                    candidates.file(node)
                continue
            removed.append(node)
            candidates.withdraw(node)
            above = parent[node]
            num_children[above] -= 1
            if num_children[above] == 0 and lock_count[above] == 0 and above != ROOT:
                candidates.file(above)
        if self._recorder:
            for node, depth, _, size in gone:
                self._recorder.removed(self._tick, node, parent[node], depth - size, size)
        nodes.remove(removed)
        self._cached -= freed
        self._counts["evicted_nodes"] += len(removed)
        self._counts["evicted_tokens"] += freed
        return gone

    def _config(self) -> dict[str, Any]:
        """Return what a snapshot must agree with."""
        return {"page_size": self.page_size, "values_per": self._values_per}

    def _arrays(self) -> dict[str, Any]:
        """Return the whole state as arrays."""
        names = {id(function): name for name, function in POLICIES.items()}
        pins = [(until, serial) for until, serial in sorted(self._pins) if serial in self._locks]
        return {
            "kind": np.array("RadixTree"),
            **{name: np.array(value) for name, value in self._config().items()},
            "capacity": np.array(self.capacity),
            "policy": np.array(names.get(id(self._candidates.policy), "")),
            "granularity": np.array(self._granularity),
            "refresh": np.array("edge" if self._refresh_edge else "matched"),
            "count_uses": np.array("touches" if self._count_touches else "inserts"),
            "clock": np.array([self._tick, self._serial]),
            "counts": np.array([*self._counts.values(), self._nodes.num_compactions]),
            "locks": np.array(list(self._locks.items()), dtype=np.int64).reshape(-1, 2),
            "pins": np.array(pins, dtype=np.int64).reshape(-1, 2),
            **self._nodes.arrays(),
        }

    def _load(self, arrays: Mapping[str, Any]) -> None:
        """Return to the state that `arrays` holds."""
        nodes = self._nodes
        nodes.load(dict(arrays))
        tick, serial = arrays["clock"].tolist()
        *counts, nodes.num_compactions = arrays["counts"].tolist()
        self._tick = tick
        self._serial = max(serial, self._serial)
        self._counts = dict(zip(_COUNTS, counts, strict=True))
        self._locks = dict(arrays["locks"].tolist())
        self._pins = [(until, serial) for until, serial in arrays["pins"].tolist()]
        live = nodes.live()
        lengths = nodes.columns["edge_length"][live]
        self._cached = int(lengths.sum())
        self._protected = int(lengths[nodes.columns["lock_count"][live] > 0].sum())
        self._candidates.rebuild()


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


def _check_snapshot(snapshot: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless a snapshot is one of a tree with the given configuration."""
    if "kind" not in snapshot or str(snapshot["kind"]) != "RadixTree":
        raise ValueError("snapshot must be what RadixTree.snapshot or save gave")
    for name, wanted in config.items():
        if snapshot[name] != np.array(wanted):
            raise ValueError(f"snapshot must be of a tree with {name}={wanted!r}: got {snapshot[name].item()!r}")
