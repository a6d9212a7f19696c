"""Random operations on a tiered cache, its invariants checked after each."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvarray import BlockStateError, CapacityError, TieredCache, TierSpec
from kvarray.policies import ORDERS
from kvarray.tier.cascade import WRITE_MODES
from tests.reference.tier import Tiers

KEYS = st.lists(st.integers(0, 11), max_size=6)


class TierMachine(RuleBasedStateMachine):
    """One cache; what is pinned is kept in a dict beside it."""

    @initialize(
        capacities=st.lists(st.integers(1, 5), min_size=1, max_size=3),
        policy=st.sampled_from(sorted(ORDERS)),
        write_mode=st.sampled_from(WRITE_MODES),
        promote_at=st.sampled_from([1, 1, 2, None]),
        admission=st.sampled_from(["always", "always", "frequency"]),
    )
    def start(self, capacities, policy, write_mode, promote_at, admission):
        self.cache = TieredCache(
            [
                TierSpec(f"t{place}", blocks=blocks, admission="always" if place == 0 else admission)
                for place, blocks in enumerate(capacities)
            ],
            policy=policy,
            write_mode=write_mode,
            promote_at=promote_at,
            smaller_below=True,
            rng=7 if policy == "random" else None,
        )
        self.pins, self.leases, self.now = {}, [], 0.0

    def state(self):
        return {name: column.tolist() for name, column in self.cache.snapshot().items()}

    def here(self, keys):
        outside = len(self.cache.tiers)
        return [key for key in keys if self.cache.tier_of([key])[0] < outside]

    @rule(keys=KEYS)
    def access(self, keys):
        found = self.cache.tier_of(keys[:1]).tolist()
        access = self.cache.access(keys)
        assert access.tier[:1].tolist() == found
        assert ((access.tier < len(self.cache.tiers)) == access.hit).all()

    @rule(keys=KEYS)
    def access_prefix(self, keys):
        path = list(dict.fromkeys(keys))
        found = self.cache.tier_of(path)
        outside = len(self.cache.tiers)
        leading = np.cumprod(found < outside).astype(bool)
        access = self.cache.access_prefix(path)
        assert access.tier.tolist() == np.where(leading, found, outside).tolist()
        came, went = access.target < outside, access.target == outside
        assert (access.source[came] != access.target[came]).all()
        assert (access.source[went] < outside).all()

    @rule(keys=KEYS, lease=st.booleans(), ttl=st.integers(0, 5))
    def pin(self, keys, lease, ttl):
        before = self.state()
        clock = {"now_s": self.now, "ttl_s": float(ttl)} if lease else {}
        try:
            self.cache.pin(keys, **clock)
        except (BlockStateError, CapacityError):
            assert self.state() == before
            return
        for key in keys:
            self.pins[key] = self.pins.get(key, 0) + 1
            if lease:
                self.leases.append((self.now + ttl, key))

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data):
        key = data.draw(st.sampled_from(sorted(self.pins)))
        leased = sum(1 for _, other in self.leases if other == key)
        if self.pins[key] == leased:
            before = self.state()
            try:
                self.cache.unpin([key])
            except BlockStateError:
                assert self.state() == before
                return
            raise AssertionError("a lease was taken for a pin")
        self.cache.unpin([key])
        self.release(key)

    def release(self, key):
        self.pins[key] -= 1
        if not self.pins[key]:
            del self.pins[key]

    @rule(passed=st.integers(0, 4))
    def expire(self, passed):
        self.now += passed
        self.cache.expire(self.now)
        for _, key in [lease for lease in self.leases if lease[0] <= self.now]:
            self.release(key)
        self.leases = [lease for lease in self.leases if lease[0] > self.now]

    @rule(keys=KEYS, verb=st.sampled_from(["demote", "promote", "evict"]))
    def by_hand(self, keys, verb):
        before = self.state()
        try:
            getattr(self.cache, verb)(keys)
        except (BlockStateError, ValueError):
            assert self.state() == before
            return
        if verb == "evict":
            assert self.here(keys) == []

    @rule(keys=KEYS, what=st.sampled_from(["float", "twice", "offsets", "admit"]))
    def refused(self, keys, what):
        before = self.state()
        try:
            if what == "float":
                self.cache.access([*keys, 0.5])
            elif what == "twice":
                self.cache.access_prefix([*keys, 3, 3])
            elif what == "offsets":
                self.cache.access_prefix(keys, [0, len(keys) + 1])
            else:
                self.cache.access(keys, admit=[True] * (len(keys) + 1))
        except (TypeError, ValueError):
            assert self.state() == before
            return
        raise AssertionError("an illegal batch was taken")

    @invariant()
    def holds(self):
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        assert self.here(self.pins) == list(self.pins)
        assert self.cache.pins(list(self.pins)).tolist() == list(self.pins.values())


class PlainTierMachine(RuleBasedStateMachine):
    """The same steps on the plain tiers, compared after each."""

    @initialize(
        capacities=st.lists(st.integers(1, 5), min_size=1, max_size=3),
        policy=st.sampled_from(["lru", "fifo", "lfu"]),
        write_mode=st.sampled_from(WRITE_MODES),
        write_at=st.integers(1, 3),
        promote_at=st.sampled_from([1, 1, 2, None]),
    )
    def start(self, capacities, **modes):
        self.plain = Tiers(capacities, **modes)
        specs = [TierSpec(f"t{place}", blocks=blocks) for place, blocks in enumerate(capacities)]
        self.cache = TieredCache(specs, smaller_below=True, **modes)

    @rule(keys=KEYS)
    def access(self, keys):
        assert self.cache.access(keys).tier.tolist() == [tier for key in keys for tier in self.plain.step([key])]

    @rule(keys=KEYS, banned=st.integers(0, 11))
    def access_prefix(self, keys, banned):
        path = list(dict.fromkeys(keys))
        admit = [key != banned for key in path]
        assert self.cache.access_prefix(path, admit=admit).tier.tolist() == self.plain.step(path, {banned})

    @invariant()
    def same(self):
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        for place, tier in enumerate(self.plain.tiers):
            assert sorted(self.cache.keys(place).tolist()) == sorted(tier)
        for count in ("hits", "created", "up", "down", "dropped"):
            assert getattr(self.cache.flows, count).tolist() == getattr(self.plain, count), count


TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = settings(max_examples=60, stateful_step_count=25)
TestPlainTierMachine = PlainTierMachine.TestCase
TestPlainTierMachine.settings = settings(max_examples=50, stateful_step_count=20)
