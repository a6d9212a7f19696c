"""`TieredCache`: a cache of blocks over several tiers of memory, as LMCache and SGLang's HiCache have them.

Keys are integers; each stands for one block, by its hash of a whole prefix. What is in a block, and which blocks are
whose parents, the cache does not know: a request is a path of keys, from its head to its tail. `access` takes keys one
by one, each a step of its own; `access_prefix` takes whole requests as atomic steps. What a step does is described in
`kvarray.tier.cascade`.

Left out: time (a move is counted and priced, never waited for; `kvarray.migrate` queues it on a link), content, failed
moves, and prefetch. On purpose different from the systems it is modelled on: LMCache and HiCache write asynchronously
and may lose a copy that is not written when its source goes; here each move is done when its step is.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise
from os import PathLike
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvarray.arrays import Ids, as_int, as_ints, as_positive_int, as_real, check_offsets, refuse
from kvarray.errors import BlockStateError, CapacityError, InvariantError
from kvarray.policies import Policy, order_maker
from kvarray.policies.runs import Run
from kvarray.ragged import row_ids
from kvarray.reuse.tiers import TierCost, TierFlows
from kvarray.tier.access import KeyColumns, Recorder, TierAccess, check_columns, flows_so_far
from kvarray.tier.cascade import WRITE_MODES, Cascade
from kvarray.tier.spec import TierSpec, check_tiers, links_between
from kvarray.tier.state import pack_settings, restore, snapshot, unpack_settings

__all__ = ["TieredCache"]


class TieredCache:
    """Blocks in several tiers of memory, with demotion cascades, promotion and copies.

    Parameters
    ----------
    tiers : sequence of TierSpec
        The fastest first.
    block_bytes : int, optional
        Bytes of a block; needed for capacities in bytes and for costs.
    policy : str or callable, optional
        Eviction order of every tier: a name out of `kvarray.policies.ORDERS`, or a key function.
    write_mode : {"exclusive", "write_through", "selective", "write_back"}, optional
        *exclusive*: a block is in one tier, what leaves it sinks to the next. The others keep copies below, which
        every use refreshes, made at creation, at the `write_at`-th use (creation is the first), or when the block
        leaves a tier whose next one does not have it.
    write_at : int, optional
        See *selective*.
    promote_at : int or None, optional
        Hits that bring a block to the top, counted since it came into the cache; None reads it where it is.
    smaller_below : bool, optional
        Allow write-through tiers that are smaller than one above them.
    rng : optional
        Seed or generator for the policy ``"random"``, required there.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, a mode or policy unknown, or the tiers do not go together.

    Notes
    -----
    State is one eviction order a tier, of small objects in Python queues: the policies differ in how single blocks
    move between queues. Columns of it are handed out as arrays by `snapshot`. Invariants, verified by `check`:

    P1. No tier holds more than its capacity, and its size is the number of its keys.
    P2. With exclusive tiers no key is in two of them.
    P3. What came into a tier left it or is there: see `kvarray.reuse.TierFlows`.
    P4. Pins are on keys that are there; in no tier are all blocks pinned.
    P5. Hits by tier and misses together are the accesses.

    Examples
    --------
    >>> from kvarray.link import Link
    >>> gpu, cpu = TierSpec("gpu", blocks=2), TierSpec("cpu", blocks=2, up=Link(16e9))
    >>> cache = TieredCache([gpu, cpu], block_bytes=2**24)
    >>> cache.access([1, 2, 3, 1]).tier  # 1 sank to the CPU when 3 came
    array([2, 2, 2, 1])
    >>> cache.flows.hits, cache.flows.down, cache.occupancy
    (array([0, 1]), array([2, 0]), array([2, 1]))
    >>> round(float(cache.cost(block_s=0.05).net_s), 6)  # one hit, three moves
    0.046854
    """

    def __init__(
        self,
        tiers: Sequence[TierSpec],
        *,
        block_bytes: int | None = None,
        policy: str | Policy = "lru",
        write_mode: str = "exclusive",
        write_at: int = 2,
        promote_at: int | None = 1,
        smaller_below: bool = False,
        rng: Any = None,
    ) -> None:
        if write_mode not in WRITE_MODES:
            raise ValueError(f"write_mode must be one of {', '.join(WRITE_MODES)}: got {write_mode!r}")
        if block_bytes is not None:
            block_bytes = as_positive_int("block_bytes", block_bytes)
        capacities = check_tiers(tiers, block_bytes)
        if write_mode == "write_through" and not smaller_below:
            for upper, lower, above, below in zip(tiers, tiers[1:], capacities, capacities[1:], strict=False):
                if below < above:
                    raise ValueError(
                        f"tier {lower.name!r} must be as large as {upper.name!r} under write-through "
                        f"(smaller_below=True allows less): got {below} and {above} blocks"
                    )
        make = order_maker(policy, rng=rng)
        self._tiers = tuple(tiers)
        self._capacities = np.array(capacities, dtype=np.int64)
        self._block_bytes = block_bytes
        self._settings: dict[str, Any] = {
            "policy": policy,
            "write_mode": write_mode,
            "write_at": as_positive_int("write_at", write_at),
            "promote_at": None if promote_at is None else as_positive_int("promote_at", promote_at),
            "smaller_below": smaller_below,
        }
        self._pins: dict[int, int] = {}
        self._leases: list[tuple[float, int]] = []  # heap of (end, key)
        self._cascade = Cascade(
            [make(capacity) for capacity in capacities],
            write_mode=write_mode,
            write_at=self._settings["write_at"],
            promote_at=self._settings["promote_at"],
            min_tokens=[tier.min_tokens for tier in tiers],
            by_frequency=[tier.admission == "frequency" for tier in tiers],
            record=True,
        )

    # ---- what it is and holds --------------------------------------------------------------------------------

    @property
    def tiers(self) -> tuple[TierSpec, ...]:
        """The tiers, the fastest first."""
        return self._tiers

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tiers."""
        return tuple(tier.name for tier in self._tiers)

    @property
    def capacities(self) -> Ids:
        """Capacity of each tier in blocks, shape (K,)."""
        return self._capacities.copy()

    @property
    def occupancy(self) -> Ids:
        """Blocks in each tier, shape (K,)."""
        return np.array([order.size for order in self._cascade.orders], dtype=np.int64)

    @property
    def flows(self) -> TierFlows:
        """All that each tier served and moved so far, columns of shape (K,)."""
        return flows_so_far(self._cascade)

    @property
    def written_bytes(self) -> Ids:
        """Bytes written to each tier so far, shape (K,): what wears an SSD.

        Raises
        ------
        ValueError
            If the cache was made without `block_bytes`, or the bytes do not fit 64 bits.
        """
        return self.flows.written_bytes(self._need_block_bytes())

    def tier_of(self, keys: ArrayLike) -> Ids:
        """Return the uppermost tier that holds each key, the number of tiers where none does; nothing is used.

        Examples
        --------
        >>> cache = TieredCache([TierSpec("gpu", blocks=1)])
        >>> cache.access([7]).tier, cache.tier_of([7, 8])
        (array([1]), array([0, 1]))
        """
        found = (self._cascade.find(key) for key in as_ints("keys", keys).tolist())
        return np.array([len(self._tiers) if item is None else item[0] for item in found], dtype=np.int64)

    def keys(self, tier: int) -> Ids:
        """Return the keys of a tier, queue by queue and oldest first: under LRU, in the order they would go."""
        order = self._cascade.orders[as_int("tier", tier, low=0, high=len(self._tiers))]
        return np.array([run.row for _, run in order.runs()], dtype=np.int64)

    def cost(self, *, block_s: float) -> TierCost:
        """Return what the cache saved and spent so far.

        Parameters
        ----------
        block_s : float
            Seconds of prefill that a hit saves.

        Raises
        ------
        ValueError
            If the cache was made without `block_bytes`, or a lower tier has no link.
        """
        up, down, direct = links_between(self._tiers)
        block_bytes = self._need_block_bytes()
        return self.flows.cost(up, down, block_bytes=block_bytes, block_s=block_s, direct_links=direct)

    def _need_block_bytes(self) -> int:
        if self._block_bytes is None:
            raise ValueError("block_bytes must be given to the cache for bytes and seconds")
        return self._block_bytes

    # ---- use -------------------------------------------------------------------------------------------------

    def access(
        self,
        keys: ArrayLike,
        *,
        admit: ArrayLike | None = None,
        tokens: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> TierAccess:
        """Look up and use keys one by one, each a step of its own.

        Parameters
        ----------
        keys : array_like of int, shape (N,)
            Any 64-bit integers; they may repeat.
        admit : array_like of bool, shape (N,), optional
            Whether each key may come into the cache where it is missed; all may by default.
        tokens : array_like of int, shape (N,), optional
            Tokens of each block, for tiers with `min_tokens`.
        weights : array_like of float, shape (N,), optional
            Cost over size of each block, ``> 0``, for the policy ``"gdsf"``; 1 by default.

        Returns
        -------
        TierAccess

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or tokens are needed and not given; nothing has changed then.

        Notes
        -----
        Sequential law: the same as one call a key. O(1) a key for most policies.
        """
        batch = as_ints("keys", keys)
        steps = np.arange(len(batch) + 1)
        return self._use(batch, steps, check_columns(batch, admit=admit, tokens=tokens, weights=weights))

    def access_prefix(
        self,
        keys: ArrayLike,
        offsets: ArrayLike | None = None,
        *,
        admit: ArrayLike | None = None,
        tokens: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> TierAccess:
        """Look up and use requests, each an atomic step.

        Parameters
        ----------
        keys : array_like of int, shape (N,)
            Paths of the requests from head to tail; no key twice in one request.
        offsets : array_like of int, shape (B + 1,), optional
            Request i is ``keys[offsets[i]:offsets[i + 1]]``; one request where it is not given.
        admit, tokens, weights : array_like, shape (N,), optional
            As in `access`.

        Returns
        -------
        TierAccess
            A hit is part of the leading keys of a request that are there, in any tier; what is there behind the
            first miss is used all the same.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or tokens are needed and not given; nothing has changed then.

        Notes
        -----
        Sequential law: the same as one call a request.

        Examples
        --------
        >>> cache = TieredCache([TierSpec("gpu", blocks=3)])
        >>> cache.access_prefix([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9]).hit
        array([False, False, False,  True,  True, False,  True,  True, False])
        """
        batch = as_ints("keys", keys)
        cuts = np.array([0, len(batch)]) if offsets is None else as_ints("offsets", offsets)
        check_offsets("offsets", cuts, len(batch))
        _check_distinct(batch, cuts)
        return self._use(batch, cuts, check_columns(batch, admit=admit, tokens=tokens, weights=weights))

    def _use(self, keys: Ids, offsets: Ids, columns: KeyColumns) -> TierAccess:
        """Step through checked requests. The loop is over steps, and inside over keys."""
        admit, tokens, weights = columns
        if tokens is None and any(self._cascade.min_tokens):
            raise ValueError("tokens must be given: a tier has min_tokens")

        cascade, outside = self._cascade, len(self._tiers)
        recorder = Recorder(cascade)
        names = keys.tolist()
        served: list[int] = []
        for start, stop in pairwise(offsets.tolist()):
            path = names[start:stop]
            refused = (
                () if admit is None else {key for key, may in zip(path, admit[start:stop], strict=True) if not may}
            )
            cascade.tokens = None if tokens is None else dict(zip(path, tokens[start:stop], strict=True))
            cascade.weights = None if weights is None else dict(zip(path, weights[start:stop], strict=True))
            leading = True
            for *_, tier, _ in cascade.use([(key, 1) for key in path], refused=refused):
                leading = leading and tier != outside
                served.append(tier if leading else outside)
            recorder.note_step()
        return recorder.result(served)

    # ---- pins ------------------------------------------------------------------------------------------------

    def pin(self, keys: ArrayLike, *, now_s: float | None = None, ttl_s: float | None = None) -> None:
        """Keep keys where they are: each call counts one pin for each key, and the last one gone frees it.

        Parameters
        ----------
        keys : array_like of int, shape (N,)
            Keys that are there; a key may repeat, each time another pin. A pinned key is not evicted, demoted or
            promoted; with copies, its uppermost copy is what is kept.
        now_s, ttl_s : float, optional
            Make the pins leases, which `expire` ends at ``now_s + ttl_s`` on the caller's clock.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed or only one half of a lease is given.
        BlockStateError
            If a key is not there.
        CapacityError
            If all blocks of a tier would be pinned, so that nothing could come into it. Nothing has changed then.

        Examples
        --------
        >>> cache = TieredCache([TierSpec("gpu", blocks=2)])
        >>> cache.access([1]).hit, cache.pin([1]), cache.access([2, 3, 1]).hit
        (array([False]), None, array([False, False,  True]))
        """
        names = as_ints("keys", keys).tolist()
        if (now_s is None) != (ttl_s is None):
            raise ValueError("now_s and ttl_s must be given together")
        end_s = None
        if now_s is not None and ttl_s is not None:
            end_s = as_real("now_s", now_s) + as_real("ttl_s", ttl_s, low=0.0)
        self._check_present("pin", names)
        pinned = Counter(self._held(key)[0] for key in {**self._pins, **dict.fromkeys(names)})
        for tier, capacity in enumerate(self._capacities.tolist()):
            if pinned[tier] >= capacity:
                raise CapacityError(
                    f"pin {len(names)} keys: tier {self.names[tier]!r} would have {pinned[tier]} of its {capacity} "
                    "blocks pinned, and one must stay free to move",
                    requested=pinned[tier],
                    available=capacity - 1,
                )

        for key in names:
            self._held(key)[1].pins += 1
            self._pins[key] = self._pins.get(key, 0) + 1
            if end_s is not None:
                heappush(self._leases, (end_s, key))

    def unpin(self, keys: ArrayLike) -> None:
        """Take one pin that is no lease from each key; a key may repeat.

        Raises
        ------
        TypeError, ValueError
            If the keys are malformed.
        BlockStateError
            If a key has fewer such pins. Nothing has changed then.
        """
        names = as_ints("keys", keys).tolist()
        leases = Counter(key for _, key in self._leases)
        short = [key for key, asked in Counter(names).items() if self._pins.get(key, 0) - leases[key] < asked]
        if short:
            raise BlockStateError(f"unpin keys {short[:5]}: they have fewer pins", ids=short)

        for key in names:
            self._take_pin(key)

    def expire(self, now_s: float) -> Ids:
        """End the leases whose time has come, and return the keys that no pin holds any more, in order of ending.

        Parameters
        ----------
        now_s : float
            The caller's clock; a lease ends when it shows ``now_s + ttl_s`` of the pin, or later.

        Examples
        --------
        >>> cache = TieredCache([TierSpec("gpu", blocks=2)])
        >>> cache.access([1]).hit, cache.pin([1], now_s=0.0, ttl_s=5.0)
        (array([False]), None)
        >>> cache.expire(4.9), cache.expire(5.0)
        (array([], dtype=int64), array([1]))
        """
        now_s = as_real("now_s", now_s)
        freed = []
        while self._leases and self._leases[0][0] <= now_s:
            _, key = heappop(self._leases)
            self._take_pin(key)
            if key not in self._pins:
                freed.append(key)
        return np.array(freed, dtype=np.int64)

    def pins(self, keys: ArrayLike) -> Ids:
        """Return how many pins each key has, leases included, shape (N,)."""
        return np.array([self._pins.get(key, 0) for key in as_ints("keys", keys).tolist()], dtype=np.int64)

    def _take_pin(self, key: int) -> None:
        self._held(key)[1].pins -= 1
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]

    def _held(self, key: int) -> tuple[int, Run]:
        """Return tier and run of the pinned copy of a key, or else of its uppermost one."""
        copies = [(tier, run) for tier, order in enumerate(self._cascade.orders) for run in order.rows.get(key, ())]
        return next((copy for copy in copies if copy[1].pins), copies[0])

    def _check_present(self, verb: str, names: list[int]) -> None:
        absent = [key for key in names if self._cascade.find(key) is None]
        if absent:
            raise BlockStateError(f"{verb} keys {absent[:5]}: they are not in the cache", ids=absent)

    # ---- by hand ---------------------------------------------------------------------------------------------

    def demote(self, keys: ArrayLike) -> TierAccess:
        """Send keys one tier down, each a step of its own.

        With copies, the uppermost one is dropped, and made one tier down if there is none. A tier that admits by
        frequency may turn a key away like any other.

        Raises
        ------
        TypeError, ValueError
            If the keys are malformed, or one repeats.
        BlockStateError
            If a key is not there, is pinned, or is in the last tier. Nothing has changed then.

        Notes
        -----
        Snapshot law for where a key is, sequential law for the rest: a key that the demotions before it in the batch
        have moved already is left alone.
        """
        names = self._check_by_hand("demote", keys)
        return self._move("demote", names, [self._held(key)[0] + 1 for key in names])

    def promote(self, keys: ArrayLike) -> TierAccess:
        """Bring keys to the top, each a step of its own; as `demote`, with the top in place of the last tier."""
        names = self._check_by_hand("promote", keys)
        return self._move("promote", names, [0] * len(names))

    def evict(self, keys: ArrayLike) -> TierAccess:
        """Drop keys from all tiers, each a step of its own.

        Raises
        ------
        TypeError, ValueError
            If the keys are malformed, or one repeats.
        BlockStateError
            If a key is not there or is pinned. Nothing has changed then.
        """
        names = self._check_by_hand("evict", keys)
        recorder = Recorder(self._cascade)
        for key in names:
            self._cascade.evict(key)
            recorder.note_step()
        return recorder.result([])

    def _check_by_hand(self, verb: str, keys: ArrayLike) -> list[int]:
        batch = as_ints("keys", keys)
        _check_distinct(batch, np.array([0, len(batch)]))
        names: list[int] = batch.tolist()
        self._check_present(verb, names)
        pinned = [key for key in names if key in self._pins]
        if pinned:
            raise BlockStateError(f"{verb} keys {pinned[:5]}: they are pinned", ids=pinned)
        return names

    def _move(self, verb: str, names: list[int], targets: list[int]) -> TierAccess:
        sources = [self._held(key)[0] for key in names]
        stuck = [
            key
            for key, source, target in zip(names, sources, targets, strict=True)
            if source == target or target == len(self._tiers)
        ]
        if stuck:
            raise BlockStateError(f"{verb} keys {stuck[:5]}: there is no tier for them to go to", ids=stuck)

        recorder = Recorder(self._cascade)
        for key, source, target in zip(names, sources, targets, strict=True):
            here = self._cascade.find(key)
            if here is not None and here[0] == source:
                self._cascade.move(key, target)
                recorder.note_step()
        return recorder.result([])

    # ---- state -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Verify the invariants P1 to P5; O(state).

        Raises
        ------
        InvariantError
            Naming the invariant and what breaks it.
        """
        held: list[set[int]] = []
        for spec, order in zip(self._tiers, self._cascade.orders, strict=True):
            queued = [run.row for _, run in order.runs()]
            keys = set(order.rows)
            if not (len(queued) == len(keys) == order.size <= order.capacity and set(queued) == keys):
                raise InvariantError(f"P1: tier {spec.name!r} queues {len(queued)}, finds {len(keys)} of {order.size}")
            held.append(keys)
        exclusive = self._settings["write_mode"] == "exclusive"
        if exclusive and sum(map(len, held)) != len(set().union(*held)):
            raise InvariantError("P2: a key is in two exclusive tiers")
        flows = self.flows
        out = flows.dropped.copy()
        if exclusive:
            out += flows.down
            out[1:] += flows.up[:-1]
        if (flows.written != out + self.occupancy).any():
            raise InvariantError(f"P3: {flows.written} came in, {out} left, {self.occupancy} are there")
        for key, count in self._pins.items():
            if self._cascade.find(key) is None or self._held(key)[1].pins != count:
                raise InvariantError(f"P4: key {key} has {count} pins and is not held by them")
        if (flows.hits < 0).any() or flows.misses < 0:
            raise InvariantError(f"P5: {flows.hits} hits of {flows.accesses} accesses")

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return all state as arrays: what `save` writes, and what is equal when two caches are.

        Returns
        -------
        dict of str to ndarray
            For each tier k: ``k.key``, ``k.queue``, ``k.uses``, ``k.mark``, ``k.weight``, ``k.tokens``, ``k.pins`` of
            its blocks, queue by queue and oldest first, and what its order remembers; counters; pins and leases.
        """
        return snapshot(self._cascade, self._pins, self._leases)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the cache to an ``.npz`` file, without pickles.

        Raises
        ------
        ValueError
            If the policy is a key function, which a file cannot hold.
        """
        if not isinstance(self._settings["policy"], str):
            raise ValueError("policy must be a name to be saved: a key function cannot be written to a file")
        settings = {**self._settings, "block_bytes": self._block_bytes}
        arrays = {**pack_settings(self._tiers, settings), **self.snapshot()}
        with open(path, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "TieredCache":
        """Read a cache that `save` wrote; it goes on as the saved one would have.

        Raises
        ------
        OSError, ValueError
            If the file is not there, is no such file, or lacks a column.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                columns = dict(file)
        except (EOFError, TypeError, ValueError, BadZipFile):
            raise ValueError(f"{path} must be a file that TieredCache.save wrote") from None
        tiers, settings = unpack_settings(columns)
        cache = cls(tiers, rng=0 if settings["policy"] == "random" else None, **settings)
        missing = [name for name in cache.snapshot() if name not in columns]
        if missing:
            raise ValueError(f"{path} must be whole: it lacks {', '.join(missing)}")
        cache._pins, cache._leases = restore(cache._cascade, columns)
        return cache


def _check_distinct(keys: Ids, offsets: Ids) -> None:
    """Refuse a key that stands twice in one request."""
    rows = row_ids(offsets)
    order = np.lexsort((keys, rows))  # stable: of equal keys the first comes first
    same = np.zeros(len(keys), dtype=np.bool_)
    same[order[1:]] = (np.diff(keys[order]) == 0) & (np.diff(rows[order]) == 0)
    refuse("keys", "not repeat within a request", same, keys)
