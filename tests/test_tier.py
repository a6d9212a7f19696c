"""TieredCache: errors, worked examples, and properties against the plain-Python tiers."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvarray import BlockStateError, CapacityError, InvariantError, Link, TieredCache, TierSpec
from kvarray.policies import ORDERS
from kvarray.tier.cascade import WRITE_MODES
from tests.reference.tier import Tiers

MIB = 2**20
PCIE = Link(16e9)


def tiers(*blocks, **fields):
    """GPU, CPU and SSD of some blocks each, joined by links of 16 GB/s; fields are given by name of the tier."""
    return [
        TierSpec(name, blocks=count, up=None if name == "gpu" else PCIE, **fields.get(name, {}))
        for name, count in zip(("gpu", "cpu", "ssd"), blocks, strict=False)
    ]


def state(cache):
    """All state as nested lists, to compare."""
    return {name: column.tolist() for name, column in cache.snapshot().items()}


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"blocks": 0}, "blocks of tier 'gpu' must be 1 or more: got 0"),
        ({"blocks": -3}, "blocks of tier 'gpu' must be 1 or more: got -3"),
        ({"capacity_bytes": 0}, "capacity_bytes of tier 'gpu' must be 1 or more: got 0"),
        ({}, "tier 'gpu' must have either blocks or capacity_bytes"),
        ({"blocks": 1, "capacity_bytes": 1}, "tier 'gpu' must have either blocks or capacity_bytes"),
        ({"blocks": 1, "admission": "never"}, "admission must be one of always, frequency: got 'never'"),
        ({"blocks": 1, "min_tokens": -1}, "min_tokens of tier 'gpu' must be 0 or more: got -1"),
        ({"blocks": 1, "down": PCIE}, "tier 'gpu' has a link down and none up"),
    ],
)
def test_malformed_tiers_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        TierSpec("gpu", **fields)


@pytest.mark.parametrize("blocks", [1.5, "4", True])
def test_a_capacity_that_is_no_integer_is_refused(blocks):
    with pytest.raises(TypeError, match="blocks of tier 'gpu' must be an integer"):
        TierSpec("gpu", blocks=blocks)


def test_other_malformed_fields_are_refused():
    with pytest.raises(ValueError, match="name must be a word: got ''"):
        TierSpec("", blocks=1)
    with pytest.raises(TypeError, match=r"up of tier 'cpu' must be a Link: got 16000000000.0"):
        TierSpec("cpu", blocks=1, up=16e9)


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, np.nan])
def test_links_without_bandwidth_are_refused(bandwidth):
    with pytest.raises(ValueError, match="bytes_per_second must"):
        TierSpec("cpu", blocks=1, up=Link(bandwidth))


def test_links_of_infinite_bandwidth_are_refused():
    with pytest.raises(ValueError, match="up of tier 'cpu' must have a finite bandwidth"):
        TierSpec("cpu", blocks=1, up=Link(np.inf))


def test_negative_latency_is_refused():
    with pytest.raises(ValueError, match="latency_s must be 0 or more: got -1e-06"):
        TierSpec("cpu", blocks=1, up=Link(1e9, latency_s=-1e-6))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu", "a tier must be written as name=capacity or name=capacity@link: got 'gpu'"),
        ("=64GiB", "a tier must be written as"),
        ("gpu=", "a tier must be written as"),
        ("cpu=64GiB@", "a tier must be written as"),
        ("gpu=64G", "a size must have a unit out of"),
        ("gpu=0GiB", "capacity_bytes of tier 'gpu' must be 1 or more"),
        ("cpu=1GiB@fast", "a rate must be a number"),
        ("cpu=1GiB@0GB/s", "bytes_per_second must be more than 0"),
    ],
)
def test_malformed_tier_texts_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        TierSpec.parse(text)


def test_tiers_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match="tiers must have at least one tier: got none"):
        TieredCache([])
    with pytest.raises(TypeError, match="tiers must be TierSpecs: got 'gpu'"):
        TieredCache(["gpu"])
    with pytest.raises(ValueError, match="tiers must have names of their own: got gpu more than once"):
        TieredCache([TierSpec("gpu", blocks=1), TierSpec("gpu", blocks=2)])
    with pytest.raises(ValueError, match="tier 'gpu' is given in bytes: block_bytes must be given"):
        TieredCache([TierSpec("gpu", capacity_bytes=100)])
    with pytest.raises(ValueError, match="tier 'gpu' must hold a block of 101 bytes: got 100"):
        TieredCache([TierSpec("gpu", capacity_bytes=100)], block_bytes=101)


def test_a_smaller_lower_tier_needs_a_word_under_write_through():
    message = (
        r"tier 'cpu' must be as large as 'gpu' under write-through \(smaller_below=True allows less\): got 2 and 4"
    )
    with pytest.raises(ValueError, match=message):
        TieredCache(tiers(4, 2), write_mode="write_through")
    assert TieredCache(tiers(4, 2), write_mode="write_through", smaller_below=True).occupancy.tolist() == [0, 0]
    assert TieredCache(tiers(4, 2), write_mode="write_back").occupancy.tolist() == [0, 0]


def test_unknown_words_list_the_known_ones():
    known = "write_mode must be one of exclusive, write_through, selective, write_back: got 'through'"
    with pytest.raises(ValueError, match=known):
        TieredCache(tiers(1), write_mode="through")
    with pytest.raises(ValueError, match=r"policy must be one of arc, fifo, .*, or a key function: got 'best'"):
        TieredCache(tiers(1), policy="best")
    with pytest.raises(ValueError, match="promote_at must be 1 or more: got 0"):
        TieredCache(tiers(1), promote_at=0)
    with pytest.raises(ValueError, match="write_at must be 1 or more: got 0"):
        TieredCache(tiers(1), write_at=0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: c.access([1.5]), TypeError, "keys must be integers: got float64 values such as"),
        (lambda c: c.access(["a"]), TypeError, "keys must be integers"),
        (lambda c: c.access([[1]]), ValueError, "keys must be one-dimensional"),
        (lambda c: c.access([1, 9], admit=[1, 0]), TypeError, "admit must be booleans: got int64"),
        (lambda c: c.access([1, 9], admit=[True]), ValueError, "keys and admit must have the same length: got 2 and 1"),
        (lambda c: c.access([1, 9], tokens=[1, -1]), ValueError, r"tokens must be 0 or more: tokens\[1\] = -1"),
        (lambda c: c.access([9], weights=[0.0]), ValueError, r"weights must be more than 0: weights\[0\] = 0.0"),
        (lambda c: c.access_prefix([9, 8, 9]), ValueError, r"keys must not repeat within a request: keys\[2\] = 9"),
        (lambda c: c.access_prefix([9], [0, 2]), ValueError, "offsets must begin at 0 and end at the number of values"),
        (lambda c: c.pin([9]), BlockStateError, r"pin keys \[9\]: they are not in the cache"),
        (lambda c: c.pin([1], now_s=0.0), ValueError, "now_s and ttl_s must be given together"),
        (lambda c: c.pin([1], now_s=0.0, ttl_s=-1.0), ValueError, "ttl_s must be 0 or more: got -1.0"),
        (lambda c: c.pin([3, 4]), CapacityError, "pin 2 keys: tier 'gpu' would have 2 of its 2 blocks pinned"),
        (lambda c: c.unpin([1]), BlockStateError, r"unpin keys \[1\]: they have fewer pins"),
        (lambda c: c.demote([1]), BlockStateError, r"demote keys \[1\]: there is no tier for them to go to"),
        (lambda c: c.promote([4]), BlockStateError, r"promote keys \[4\]: there is no tier for them to go to"),
        (lambda c: c.evict([3, 9]), BlockStateError, r"evict keys \[9\]: they are not in the cache"),
        (lambda c: c.evict([3, 3]), ValueError, "keys must not repeat"),
        (lambda c: c.evict([2]), BlockStateError, r"evict keys \[2\]: they are pinned"),
        (lambda c: c.keys(2), ValueError, "tier must be less than 2: got 2"),
    ],
)
def test_a_refused_call_changes_nothing(call, error, message):
    cache = TieredCache(tiers(2, 2))
    cache.access([1, 2, 3, 4])  # 1 and 2 have sunk to the CPU
    cache.pin([2])
    before = state(cache)
    with pytest.raises(error, match=message):
        call(cache)
    assert state(cache) == before
    cache.check()


def test_tokens_are_asked_for_where_a_tier_needs_them():
    cache = TieredCache(tiers(2, 2, cpu={"min_tokens": 16}))
    with pytest.raises(ValueError, match="tokens must be given: a tier has min_tokens"):
        cache.access([1])


def test_costs_need_bytes_and_links():
    with pytest.raises(ValueError, match="block_bytes must be given to the cache for bytes and seconds"):
        TieredCache(tiers(1, 1)).cost(block_s=0.05)
    bare = TieredCache([TierSpec("gpu", blocks=1), TierSpec("cpu", blocks=1)], block_bytes=1)
    with pytest.raises(ValueError, match="tier 'cpu' must have a link up to say what its moves cost"):
        bare.cost(block_s=0.05)
    with pytest.raises(ValueError, match="block_s must be 0 or more"):
        TieredCache(tiers(1), block_bytes=1).cost(block_s=-1.0)


def test_check_finds_what_should_not_be():
    cache = TieredCache(tiers(2, 2))
    cache.access([1, 2, 3])
    cache._cascade.flows.down[0] += 1
    with pytest.raises(InvariantError, match="P3"):
        cache.check()
    cache._cascade.flows.down[0] -= 1
    cache._pins[7] = 1
    with pytest.raises(InvariantError, match="P4: key 7 has 1 pins"):
        cache.check()


# ---- worked examples ------------------------------------------------------------------------------------------------


def test_scenario_three_tiers_and_their_cost():
    s, a = [0, 1, 2, 3], [10, 11, 12, 13]
    x, y = 20, 21
    stream = np.array([*s, *a, x, *s, *a, *s, *a, y, *s, *s])
    cache = TieredCache(tiers(4, 4, 16), block_bytes=16 * MIB)
    access = cache.access(stream, admit=~np.isin(stream, [x, y]))
    cost = cache.cost(block_s=0.05)

    assert len(stream) == 34
    assert cache.flows.hits.tolist() == [4, 20, 0]
    assert cache.flows.misses == 10
    assert round(float(cache.flows.hit_rate), 4) == 0.7059
    assert cache.flows.down.tolist() == [24, 0, 0]
    assert cache.flows.up.tolist() == [20, 0, 0]
    assert cache.occupancy.tolist() == [4, 4, 0]
    assert (access.demoted.sum(), access.promoted.sum()) == (24, 20)
    assert cost.down_s[0] + cost.up_s[0] == pytest.approx(44 * 16 * MIB / 16e9, rel=1e-12)
    assert round(float(cost.cost_s), 3) == 0.046
    assert float(cost.saved_s) == pytest.approx(1.2)
    assert round(float(cost.net_s), 3) == 1.154
    running = access.flows.cumulative().cost([PCIE] * 2, [PCIE] * 2, block_bytes=16 * MIB, block_s=0.05)
    assert running.net_s[-1] == pytest.approx(float(cost.net_s))
    cache.check()


def moves(access):
    return list(zip(access.moved_key.tolist(), access.source.tolist(), access.target.tolist(), strict=True))


def test_what_is_new_comes_to_the_top():
    cache = TieredCache(tiers(2, 2))
    access = cache.access([1, 2, 1])
    assert access.tier.tolist() == [2, 2, 0]
    assert access.hit.tolist() == [False, False, True]
    assert moves(access) == [(1, 2, 0), (2, 2, 0)]


def test_a_cascade_sinks_through_all_tiers_and_falls_off_the_end():
    cache = TieredCache(tiers(1, 1, 1))
    cache.access([1, 2, 3])
    assert [cache.keys(tier).tolist() for tier in range(3)] == [[3], [2], [1]]
    access = cache.access([4])
    assert moves(access) == [(4, 3, 0), (3, 0, 1), (2, 1, 2), (1, 2, 3)]
    assert access.flows.down.tolist() == [[1, 1, 0]]
    assert access.flows.dropped.tolist() == [[0, 0, 1]]


def test_a_hit_below_swaps_places_with_the_victim_of_the_top():
    cache = TieredCache(tiers(1, 1))
    cache.access([1, 2])
    access = cache.access([1])
    assert access.tier.tolist() == [1]
    assert moves(access) == [(1, 1, 0), (2, 0, 1)]
    assert cache.occupancy.tolist() == [1, 1]


def test_a_hit_at_the_bottom_crosses_every_link():
    cache = TieredCache(tiers(1, 1, 1), block_bytes=10)
    cache.access([1, 2, 3])
    access = cache.access([1])
    assert access.flows.up.tolist() == [[1, 1, 0]]
    assert moves(access) == [(1, 2, 0), (3, 0, 1), (2, 1, 2)]
    assert cache.cost(block_s=0.0).up_bytes.tolist() == [10, 10]


def test_a_direct_link_takes_promotions_past_the_tiers_between():
    slow, direct = Link(10.0), Link(1000.0)
    specs = [
        TierSpec("gpu", blocks=1),
        TierSpec("cpu", blocks=1, up=slow),
        TierSpec("ssd", blocks=1, up=slow, direct=direct),
    ]
    cache = TieredCache(specs, block_bytes=10)
    cache.access([1, 2, 3, 1])
    assert cache.cost(block_s=0.0).up_s.tolist() == pytest.approx([0.0, 0.01])
    assert cache.cost(block_s=0.0).down_s.tolist() == [3.0, 2.0]


def test_links_up_and_down_are_priced_apart():
    up, down = Link(10.0, latency_s=0.5), Link(5.0, alpha_s=0.25, fragment_bytes=5)
    cache = TieredCache([TierSpec("gpu", blocks=1), TierSpec("cpu", blocks=9, up=up, down=down)], block_bytes=10)
    cache.access([1, 2, 1])  # 1 down, 1 up and 2 down
    cost = cache.cost(block_s=10.0)
    assert cost.up_s.tolist() == [1.5]  # 0.5 + 10 / 10
    assert cost.down_s.tolist() == [5.0]  # twice 2 fragments x 0.25 + 10 / 5
    assert float(cost.net_s) == 3.5
    assert float(cost.break_even_hit_rate) == pytest.approx(1 / 3 * 6.5 / 10)


def test_a_cache_without_hits_never_breaks_even():
    cache = TieredCache(tiers(1, 1), block_bytes=1)
    cache.access([1, 2])
    assert float(cache.cost(block_s=1.0).break_even_hit_rate) == np.inf
    assert float(TieredCache(tiers(1, 1), block_bytes=1).cost(block_s=1.0).break_even_hit_rate) == 0.0


def test_write_through_copies_at_once_and_evicts_for_nothing():
    cache = TieredCache(tiers(1, 2), write_mode="write_through")
    access = cache.access([1, 2])
    assert access.flows.down.tolist() == [[1, 0], [1, 0]]
    assert cache.occupancy.tolist() == [1, 2]
    assert access.flows.dropped.tolist() == [[0, 0], [1, 0]]  # the copy of 1 in the GPU
    assert cache.access([1]).tier.tolist() == [1]
    assert cache.flows.up.tolist() == [1, 0]


def test_write_through_refreshes_the_copies_below():
    cache = TieredCache(tiers(1, 2), write_mode="write_through")
    cache.access([1, 2, 2, 1, 1])  # in the CPU, 2 is now older than 1
    cache.access([3])
    assert sorted(cache.keys(1).tolist()) == [1, 3]


def test_selective_copies_down_at_the_second_use():
    cache = TieredCache(tiers(2, 2), write_mode="selective", write_at=2)
    assert cache.access([1, 2, 1]).flows.down.tolist() == [[0, 0], [0, 0], [1, 0]]
    cache.access([3, 4])  # 1 and 2 leave the GPU; of 2 there is no copy
    assert cache.tier_of([1, 2, 3, 4]).tolist() == [1, 2, 0, 0]


def test_write_back_copies_down_what_leaves_and_keeps_it_there():
    cache = TieredCache(tiers(1, 2), write_mode="write_back")
    cache.access([1, 2])
    assert cache.flows.down.tolist() == [1, 0]
    cache.access([1, 2])  # 1 comes up, 2 is written once; then both are below already
    cache.access([1, 2, 1, 2])
    assert cache.flows.down.tolist() == [2, 0]
    assert cache.flows.up.tolist() == [6, 0]


def test_reading_in_place_moves_nothing():
    cache = TieredCache(tiers(1, 2), promote_at=None)
    cache.access([1, 2])
    access = cache.access([1, 1])
    assert access.tier.tolist() == [1, 1]
    assert moves(access) == []


def test_promotion_at_the_second_hit():
    cache = TieredCache(tiers(1, 2), promote_at=2)
    cache.access([1, 2])
    assert cache.access([1, 1, 1]).tier.tolist() == [1, 1, 0]


def test_what_is_not_admitted_leaves_no_trace():
    cache = TieredCache(tiers(1))
    access = cache.access([1, 2, 2, 1], admit=[True, False, False, True])
    assert access.hit.tolist() == [False, False, False, True]
    assert moves(access) == [(1, 1, 0)]


def test_a_tier_of_whole_blocks_drops_the_partial_ones():
    cache = TieredCache(tiers(1, 2, cpu={"min_tokens": 16}))
    access = cache.access([1, 2, 3], tokens=[16, 7, 16])
    assert moves(access) == [(1, 2, 0), (2, 2, 0), (1, 0, 1), (3, 2, 0), (2, 0, 2)]
    assert cache.tier_of([1, 2, 3]).tolist() == [1, 2, 0]


def test_a_tier_that_admits_by_frequency_keeps_what_is_used_more():
    cache = TieredCache(tiers(1, 1, cpu={"admission": "frequency"}))
    cache.access([1, 1, 1, 2])  # 1, used three times, sinks
    assert cache.keys(1).tolist() == [1]
    access = cache.access([3])  # 2, used once, does not get its place
    assert moves(access) == [(3, 2, 0), (2, 0, 2)]
    assert cache.keys(1).tolist() == [1]


def test_pins_count_and_hold():
    cache = TieredCache(tiers(2))
    cache.access([1])
    cache.pin([1, 1])
    cache.access([2, 3, 4])
    cache.unpin([1])
    cache.access([5])
    assert cache.tier_of([1]).tolist() == [0]
    assert cache.pins([1, 5]).tolist() == [1, 0]
    cache.unpin([1])
    cache.access([5, 6])
    assert cache.tier_of([1]).tolist() == [1]
    cache.check()


def test_a_pinned_block_below_is_read_where_it_is():
    cache = TieredCache(tiers(1, 2))
    cache.access([1, 2])
    cache.pin([1])
    assert cache.access([1, 1]).tier.tolist() == [1, 1]


def test_leases_end_on_the_callers_clock():
    cache = TieredCache(tiers(3))
    cache.access([1, 2])
    cache.pin([1], now_s=10.0, ttl_s=5.0)
    cache.pin([1, 2], now_s=11.0, ttl_s=1.0)
    with pytest.raises(BlockStateError, match=r"unpin keys \[1\]: they have fewer pins"):
        cache.unpin([1])
    assert cache.expire(11.5).tolist() == []
    assert cache.expire(12.0).tolist() == [2]
    assert cache.pins([1, 2]).tolist() == [1, 0]
    assert cache.expire(15.0).tolist() == [1]
    cache.check()


def test_moves_by_hand():
    cache = TieredCache(tiers(2, 2, 2))
    cache.access([1, 2])
    assert moves(cache.demote([1])) == [(1, 0, 1)]
    assert moves(cache.demote([1])) == [(1, 1, 2)]
    assert moves(cache.promote([1])) == [(1, 2, 0)]
    assert cache.flows.up.tolist() == [1, 1, 0]
    assert moves(cache.evict([2, 1])) == [(2, 0, 3), (1, 0, 3)]
    assert cache.occupancy.tolist() == [0, 0, 0]
    cache.check()


def test_moves_by_hand_with_copies():
    cache = TieredCache(tiers(1, 2), write_mode="write_back")
    cache.access([1])
    assert moves(cache.demote([1])) == [(1, 0, 1), (1, 0, 2)]  # written below, then the upper copy goes
    assert moves(cache.promote([1])) == [(1, 1, 0)]
    assert cache.occupancy.tolist() == [1, 1]
    assert moves(cache.evict([1])) == [(1, 0, 2), (1, 1, 2)]
    cache.check()


def test_a_request_is_one_atomic_step():
    cache = TieredCache(tiers(3, 3))
    first = cache.access_prefix([1, 2, 3, 4, 5])  # the tail goes first: 5 and 4 lie in the CPU
    assert first.flows.created.tolist() == [[3, 2]]
    assert [cache.keys(tier).tolist() for tier in range(2)] == [[3, 2, 1], [5, 4]]
    second = cache.access_prefix([1, 2, 9, 4, 5], [0, 5])
    assert second.tier.tolist() == [0, 0, 2, 2, 2]  # 4 and 5 lie behind the first miss
    assert cache.flows.hits.tolist() == [2, 0]
    assert [cache.keys(tier).tolist() for tier in range(2)] == [[9, 2, 1], [3, 5, 4]]


def test_capacities_in_gb_and_gib_differ():
    gb, gib = TierSpec.parse("gpu=64GB"), TierSpec.parse("gpu=64GiB")
    assert (gb.capacity_bytes, gib.capacity_bytes) == (64 * 10**9, 64 * 2**30)
    assert (gb.num_blocks(16 * MIB), gib.num_blocks(16 * MIB)) == (3814, 4096)


def test_a_tier_can_name_a_preset():
    ssd = TierSpec.parse("ssd = 4TiB @ nvme-gen4, 3GB/s")
    assert (ssd.name, ssd.up.bytes_per_second, ssd.down.bytes_per_second) == ("ssd", 6.8e9, 3e9)


def test_bytes_written_to_each_tier():
    cache = TieredCache(tiers(1, 1, 9), block_bytes=1000)
    cache.access([1, 2, 3, 4])
    assert cache.written_bytes.tolist() == [4000, 3000, 2000]
    with pytest.raises(ValueError, match="block_bytes must be given"):
        _ = TieredCache(tiers(1)).written_bytes


def test_exercise_lfu_against_lru():
    """Exercise 1: documents read once push the system prompt out of an LRU, and not out of an LFU."""
    prompt = [0, 1, 2, 3]
    stream = 2 * prompt + [key for doc in range(1, 6) for key in (*prompt, *range(100 * doc, 100 * doc + 8))]
    hits = {}
    for policy in ("lru", "lfu"):
        cache = TieredCache(tiers(8), policy=policy)
        cache.access(stream)
        hits[policy] = int(cache.flows.hits.sum())
    assert len(stream) == 68
    assert hits == {"lru": 8, "lfu": 24}


def test_empty_batches():
    cache = TieredCache(tiers(1, 1))
    assert len(cache.access([]).tier) == 0
    assert cache.access_prefix([]).flows.hits.tolist() == [[0, 0]]
    assert cache.access_prefix([], [0]).flows.hits.shape == (0, 2)
    cache.pin([])
    assert len(cache.evict([]).moved_key) == 0
    assert cache.flows.accesses == 0


# ---- saving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ORDERS)
def test_a_loaded_cache_goes_on_as_the_saved_one(policy, tmp_path):
    keys = np.random.default_rng(5).zipf(1.3, 400) % 40
    specs = tiers(4, 6, cpu={"admission": "frequency", "direct": Link(1e9, 1e-6)})
    cache = TieredCache(specs, block_bytes=7, policy=policy, rng=3 if policy == "random" else None)
    weights = 1.0 + keys % 3
    cache.access(keys[:200], weights=weights[:200])
    cache.pin(cache.keys(0)[:1].repeat(2))
    cache.pin(cache.keys(0)[:1], now_s=1.0, ttl_s=2.0)
    cache.save(tmp_path / "cache.npz")
    loaded = TieredCache.load(tmp_path / "cache.npz")
    assert loaded.tiers == cache.tiers
    assert state(loaded) == state(cache)
    for one in (cache, loaded):
        one.access_prefix(np.unique(keys[200:230]))
        one.access(keys[200:], weights=weights[200:])
        one.expire(3.0)
        one.check()
    assert state(loaded) == state(cache)


def test_files_that_are_no_cache_are_refused(tmp_path):
    (tmp_path / "junk").write_bytes(b"not an archive")
    with pytest.raises(ValueError, match=r"junk must be a file that TieredCache.save wrote"):
        TieredCache.load(tmp_path / "junk")
    np.savez(tmp_path / "other.npz", x=np.arange(3))
    with pytest.raises(ValueError, match=r"the file must be one that TieredCache.save wrote"):
        TieredCache.load(tmp_path / "other.npz")
    with pytest.raises(ValueError, match="policy must be a name to be saved"):
        TieredCache(tiers(1), policy=lambda columns: columns["created"]).save(tmp_path / "x.npz")
    with pytest.raises(FileNotFoundError):
        TieredCache.load(tmp_path / "absent.npz")


@pytest.mark.parametrize("policy", ["lru", "random", "w_tinylfu"])
def test_a_file_that_lacks_a_column_is_refused(policy, tmp_path):
    cache = TieredCache(tiers(2, 2), policy=policy, rng=5 if policy == "random" else None)
    cache.access([1, 2, 3])
    cache.save(tmp_path / "whole.npz")
    with np.load(tmp_path / "whole.npz") as file:
        columns = dict(file)
    for name in columns.keys() - {"settings"}:
        np.savez(tmp_path / "part.npz", **{other: column for other, column in columns.items() if other != name})
        with pytest.raises(ValueError, match=rf"part.npz must be whole: it lacks {name}$"):
            TieredCache.load(tmp_path / "part.npz")


# ---- properties -----------------------------------------------------------------------------------------------------

PATHS = st.lists(st.lists(st.integers(0, 9), max_size=8, unique=True), max_size=20)
SETTINGS = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["lru", "fifo", "lfu"]),
        "write_mode": st.sampled_from(WRITE_MODES),
        "write_at": st.integers(1, 3),
        "promote_at": st.sampled_from([1, 1, 2, None]),
    }
)


@given(
    capacities=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    paths=PATHS,
    settings=SETTINGS,
    small=st.integers(0, 1023),
    refused=st.integers(0, 1023),
    by_request=st.booleans(),
)
@example(capacities=[1, 1], paths=[[0, 1, 2], [2, 1, 0]], settings={}, small=0, refused=0, by_request=True)
def test_the_cache_is_the_plain_one(capacities, paths, settings, small, refused, by_request):
    least = [0, 0, 2][: len(capacities)]
    plain = Tiers(capacities, min_tokens=least, **settings)
    specs = [TierSpec(f"t{i}", blocks=c, min_tokens=m) for i, (c, m) in enumerate(zip(capacities, least, strict=True))]
    cache = TieredCache(specs, smaller_below=True, **settings)
    steps = paths if by_request else [[key] for path in paths for key in path]
    keys = np.array([key for step in steps for key in step], dtype=np.int64)
    tokens, admit = 2 - (small >> keys & 1), (refused >> keys & 1) == 0
    if by_request:
        offsets = np.cumsum([0, *map(len, steps)])
        access = cache.access_prefix(keys, offsets, admit=admit, tokens=tokens)
    else:
        access = cache.access(keys, admit=admit, tokens=tokens)
    served = [
        plain.step(step, {k for k in step if refused >> k & 1}, {k: 2 - (small >> k & 1) for k in step})
        for step in steps
    ]
    assert access.tier.tolist() == [tier for step in served for tier in step]
    flows = cache.flows
    for count in ("hits", "created", "up", "down", "dropped"):
        assert getattr(flows, count).tolist() == getattr(plain, count), count
        assert getattr(access.flows, count).sum(axis=0).tolist() == getattr(plain, count), count
    assert [sorted(cache.keys(tier).tolist()) for tier in range(len(capacities))] == [sorted(t) for t in plain.tiers]
    assert flows.misses + flows.hits.sum() == flows.accesses == plain.accesses
    cache.check()


@given(capacities=st.lists(st.integers(1, 4), min_size=2, max_size=3), paths=PATHS, settings=SETTINGS)
def test_a_batch_is_its_parts(capacities, paths, settings):
    whole, parts = (
        TieredCache([TierSpec(f"t{i}", blocks=c) for i, c in enumerate(capacities)], smaller_below=True, **settings)
        for _ in range(2)
    )
    keys = [key for path in paths for key in path]
    together = whole.access_prefix(keys, np.cumsum([0, *map(len, paths)]))
    apart = [parts.access_prefix(path) for path in paths]
    assert together.tier.tolist() == [tier for access in apart for tier in access.tier.tolist()]
    assert moves(together) == [move for access in apart for move in moves(access)]
    assert state(whole) == state(parts)


@given(capacities=st.lists(st.integers(1, 4), min_size=2, max_size=3), paths=PATHS)
def test_exclusive_tiers_are_one_lru_and_write_through_is_its_largest(capacities, paths):
    capacities = sorted(capacities)
    specs = [TierSpec(f"t{i}", blocks=c) for i, c in enumerate(capacities)]
    keys, offsets = [key for path in paths for key in path], np.cumsum([0, *map(len, paths)])
    for mode, blocks in (("exclusive", sum(capacities)), ("write_through", capacities[-1])):
        stacked, single = TieredCache(specs, write_mode=mode), TieredCache([TierSpec("all", blocks=blocks)])
        hit = stacked.access_prefix(keys, offsets).hit
        assert hit.tolist() == single.access_prefix(keys, offsets).hit.tolist()


@given(capacities=st.lists(st.integers(1, 4), min_size=1, max_size=3), paths=PATHS, relabel=st.permutations(range(10)))
def test_names_of_keys_do_not_matter(capacities, paths, relabel):
    specs = [TierSpec(f"t{i}", blocks=c) for i, c in enumerate(capacities)]
    one, other = TieredCache(specs, policy="arc"), TieredCache(specs, policy="arc")
    keys, offsets = np.array([k for path in paths for k in path], dtype=int), np.cumsum([0, *map(len, paths)])
    renamed = np.array(relabel)[keys] * 7 - 2**62
    assert one.access_prefix(keys, offsets).tier.tolist() == other.access_prefix(renamed, offsets).tier.tolist()


@given(paths=PATHS, settings=SETTINGS)
def test_selective_at_the_first_use_is_write_through(paths, settings):
    specs = [TierSpec("a", blocks=2), TierSpec("b", blocks=4)]
    keys, offsets = [key for path in paths for key in path], np.cumsum([0, *map(len, paths)])
    settings = {**settings, "write_at": 1}
    one = TieredCache(specs, **{**settings, "write_mode": "selective"})
    other = TieredCache(specs, **{**settings, "write_mode": "write_through"})
    assert moves(one.access_prefix(keys, offsets)) == moves(other.access_prefix(keys, offsets))


def test_bytes_beyond_64_bits_are_refused():
    tiers = [TierSpec("gpu", blocks=1), TierSpec("cpu", blocks=4, up=Link(1e9))]
    cache = TieredCache(tiers, block_bytes=2**61)
    cache.access([1, 2, 3])
    assert cache.flows.written_bytes(2**61).tolist() == cache.written_bytes.tolist()
    cache.access([4, 5, 6])
    with pytest.raises(
        ValueError, match=r"block_bytes must be small enough .* to fit 64 bits: got 2305843009213693952"
    ):
        _ = cache.written_bytes
    with pytest.raises(ValueError, match="block_bytes must be small enough"):
        cache.cost(block_s=1.0)
