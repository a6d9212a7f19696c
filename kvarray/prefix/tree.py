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
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Ids, as_int, as_ints, as_positive_int
from kvarray.errors import BlockStateError, InvariantError
from kvarray.policies import POLICIES, Policy
from kvarray.prefix.batch import Prompts, all_or_none, use_rows, values_of_rows
from kvarray.prefix.engine import Engine
from kvarray.prefix.nodes import MAX_PAGES, ROOT
from kvarray.prefix.results import Evicted, Lock, Match, MatchBatch, ServedBatch, TreeEvents
from kvarray.prefix.saving import check_snapshot, load_state
from kvarray.prefix.view import TreeView, check_namespace
from kvarray.ragged import lengths_to_offsets, ranges

__all__ = ["RadixTree"]


class RadixTree(TreeView):
    """A radix tree of cached prompts over columns of nodes.

    Parameters
    ----------
    capacity : int
        Tokens that may be cached at once, ``>= page_size`` and below 2^29 - 1 pages; what is left over of a page is
        not used.
    page_size : int, optional
        Tokens of a page. Lookups and insertions round down to whole pages, and prompts that differ inside a page
        share nothing of it.
    policy : str or callable, optional
        Which leaf goes first: a name in `POLICIES` or a key function (see `kvarray.policies.keys`) of the columns
        ``last_use``, ``created``, ``uses``, ``priority``, ``length``, ``depth``, ``keep``, ``reach`` and
        ``namespace``. Ties go to the oldest use, then to the lowest row. It must not depend on anything else, nor
        raise.
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
        capacity = as_int("capacity", capacity, low=page_size, high=page_size * MAX_PAGES)
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
        check_namespace("namespace", namespace)
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
        prompts = self._check_prompts(tokens, offsets, values, namespaces)
        num_rows = len(prompts.namespaces)
        ranks = as_ints("priorities", priorities if priorities is not None else np.zeros(num_rows, dtype=np.int64))
        if len(ranks) != num_rows:
            raise ValueError(f"priorities must be one per prompt, {num_rows}: got {len(ranks)}")

        insert, priority = self._engine.insert, ranks.tolist()
        found = all_or_none(
            self._engine, prompts, lambda row, tokens, values, name: insert(tokens, values, name, priority[row])
        )
        return np.array(found, dtype=np.int64)

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
        prompts = self._check_prompts(tokens, offsets, values, namespaces)
        limit = as_int("limit", limit, low=0)

        serve = self._engine.serve
        pairs = all_or_none(self._engine, prompts, lambda row, tokens, values, name: serve(tokens, values, name, limit))
        num_tokens, evicted_tokens = np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()
        return ServedBatch(num_tokens, evicted_tokens)

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
            If the handle is not held: unlocked or expired already, from before a reset, or of another tree. Locks
            that came with `restore` or `load` answer to the handles of the tree that was saved as well.
        """
        if not isinstance(lock, Lock):
            raise TypeError(f"lock must be what lock() or pin() returned: got {lock!r}")
        if not self._engine.holds(lock):
            raise BlockStateError(
                f"unlock {lock.serial}: it is not held; it was unlocked or expired, or is from before a reset"
                " or of another tree",
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
        capacity = as_int("capacity", capacity, low=self.capacity, high=self.page_size * MAX_PAGES)
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

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Return to a state that `snapshot` gave, of this tree or of one made alike.

        Handles that were held then are held again. Serials of locks go on from the later state, so a handle given
        since then is refused.

        Raises
        ------
        ValueError
            If it is no snapshot, or of a tree with another page size or values, or of more tokens than fit, or
            damaged. The tree stays as it was.

        Notes
        -----
        O(capacity): a tree is made aside of it and checked first.
        """
        check_snapshot(snapshot, self._engine)
        self._empty_one_alike()._fill(snapshot)

        self._fill(snapshot)
        if self._engine.recorder:
            self._engine.recorder.replaced(self.tick, self._engine.nodes)

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
            If the file is not of a tree or is damaged, or its policy has no name and none is given.
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
        tree._fill(snapshot)
        return tree

    def _empty_one_alike(self) -> "RadixTree":
        """Return an empty tree that is made like this one."""
        engine = self._engine
        return RadixTree(
            engine.nodes.capacity,
            page_size=engine.nodes.page_size,
            policy=engine.candidates.policy,
            granularity=engine.granularity,  # type: ignore[arg-type]
            refresh=engine.refresh,  # type: ignore[arg-type]
            count_uses=engine.count_uses,  # type: ignore[arg-type]
            values_per=engine.values_per,  # type: ignore[arg-type]
        )

    def _fill(self, snapshot: Mapping[str, Any]) -> None:
        """Go to the state of a snapshot, or raise where that is damaged, which leaves the tree half filled."""
        try:
            load_state(self._engine, snapshot)
            self.check()
        except (ArithmeticError, AttributeError, InvariantError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"snapshot must be undamaged: {error}") from error
        self._engine.adopted = frozenset(self._engine.locks)

    def _check_prompts(
        self,
        tokens: ArrayLike,
        offsets: ArrayLike,
        values: ArrayLike | None,
        namespaces: Sequence[str | None] | None,
    ) -> Prompts:
        """Return a batch to insert, all of it valid."""
        array, bounds, _ = self._check_batch(as_ints("tokens", tokens, low=0), offsets, namespaces)
        value_bounds = lengths_to_offsets(self._num_values(np.diff(bounds)))
        numbers = self._check_values(values, int(value_bounds[-1]))
        names: Sequence[str | None] = namespaces if namespaces is not None else [None] * (len(bounds) - 1)
        return Prompts(array, bounds, numbers, value_bounds, names)

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
