"""`RadixTree`: bad input, worked examples, recorded operations, properties."""

import json
import random
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvarray import BlockStateError, CapacityError, InvariantError, Lock, RadixTree
from kvarray.policies import POLICIES, slru, tlru
from tests.data import data_file, data_files
from tests.radix_vectors import replay
from tests.reference.prefix import ReferenceTree

A = [1, 2, 3, 4, 5, 6, 7, 8]
B = [11, 12, 13, 14, 15, 16, 17, 18]


def same_state(before, after):
    return before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)


@pytest.fixture
def tree():
    """Room for 12 tokens, 8 of them used, 3 of those locked, with values."""
    tree = RadixTree(12, values_per="token")
    tree.insert(A, range(8), namespace="a")
    tree.lock(A[:3], namespace="a")
    return tree


# Errors

BAD_TOKENS = [
    ([1, -2, 3], ValueError, r"tokens must be 0 or more: tokens\[1\] = -2"),
    ([1, 2, -3], ValueError, r"tokens\[2\] = -3"),
    ([1.5, 2.0], TypeError, "tokens must be integers: got float64"),
    (["a"], TypeError, "tokens must be integers"),
    ([True, False], TypeError, "tokens must be integers: got bool"),
    ([1, 2**63], ValueError, r"tokens\[1\] = 9223372036854775808"),
    ([1, 2**64], ValueError, "tokens must fit 64 bits"),
    ([[1, 2]], ValueError, r"tokens must be one-dimensional: got shape \(1, 2\)"),
]


@pytest.mark.parametrize(("tokens", "error", "message"), BAD_TOKENS)
@pytest.mark.parametrize("method", ["peek", "match", "lock", "pin", "insert"])
def test_bad_tokens_are_refused(tree, method, tokens, error, message):
    before = tree.snapshot()
    options = {"pin": {"ttl": 3}, "insert": {"values": [0] * len(tokens)}}.get(method, {})
    with pytest.raises(error, match=message):
        getattr(tree, method)(tokens, namespace="a", **options)
    assert same_state(before, tree.snapshot())


@pytest.mark.parametrize(("tokens", "error", "message"), BAD_TOKENS)
@pytest.mark.parametrize("method", ["peek_batch", "match_batch", "insert_batch", "serve_batch"])
def test_bad_tokens_of_a_batch_are_refused(tree, method, tokens, error, message):
    before = tree.snapshot()
    options = {
        "insert_batch": {"values": [0] * len(tokens)},
        "serve_batch": {"values": [0] * len(tokens), "limit": 5},
    }
    with pytest.raises(error, match=message):
        getattr(tree, method)(tokens, [0, len(tokens)], **options.get(method, {}))
    assert same_state(before, tree.snapshot())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda tree: tree.match_batch(A, [0, 3]), ValueError, "offsets must begin at 0 and end .*8: got 0 and 3"),
        (lambda tree: tree.match_batch(A, [0, 5, 4, 8]), ValueError, r"offsets must not decrease: offsets\[2\] = 4"),
        (lambda tree: tree.match_batch(A, []), ValueError, "offsets must have one item more"),
        (lambda tree: tree.match_batch(A, [0.0, 8.0]), TypeError, "offsets must be integers"),
        (lambda tree: tree.match_batch(A, [0, 8], namespaces=["a", "b"]), ValueError, "one per prompt, 1"),
        (lambda tree: tree.match_batch(A, [0, 8], namespaces="a"), ValueError, "one per prompt, 1"),
        (lambda tree: tree.peek_batch(A, [0, 8], namespaces=[3]), TypeError, r"namespaces\[0\] must be a string"),
        (lambda tree: tree.match(A, namespace=3), TypeError, "namespace must be a string or None: got 3"),
        (lambda tree: tree.match(A, namespace="a\0"), ValueError, "must not end in a null"),
        (lambda tree: tree.insert(A), ValueError, "values must be given, one per token"),
        (lambda tree: tree.insert(A, [1, 2]), ValueError, "values must be one per token, 8: got 2"),
        (lambda tree: tree.insert(A, [0.5] * 8), TypeError, "values must be integers"),
        (lambda tree: tree.insert_batch(A, [0, 8], values=range(9)), ValueError, "one per token, 8: got 9"),
        (
            lambda tree: tree.insert_batch(A, [0, 8], values=range(8), priorities=[1, 2]),
            ValueError,
            "priorities must be one per prompt, 1: got 2",
        ),
        (lambda tree: tree.insert(A, range(8), priority=0.5), TypeError, "priority must be an integer"),
        (lambda tree: tree.insert(A, range(8), priority=2**70), ValueError, r"priority must be less than 2\^63"),
        (lambda tree: tree.pin(A, ttl=0), ValueError, "ttl must be 1 or more"),
        (lambda tree: tree.advance(-1), ValueError, "ticks must be 0 or more"),
        (lambda tree: tree.evict(-1), ValueError, "num_tokens must be 0 or more"),
        (lambda tree: tree.evict(2.0), TypeError, "num_tokens must be an integer"),
        (lambda tree: tree.unlock(1), TypeError, "lock must be what lock"),
        (lambda tree: tree.reserve(11), ValueError, "capacity must be 12 or more: got 11"),
        (lambda tree: tree.take_events(), ValueError, "record_events=True"),
        (lambda tree: tree.tokens_of(7), ValueError, "node must be less than"),
        (lambda tree: tree.restore({}), ValueError, "snapshot must be what"),
        (lambda tree: tree.restore({"kind": "RadixTree", "nodes": []}), ValueError, "it lacks capacity, clock"),
        (lambda tree: tree.restore(RadixTree(8, page_size=2).snapshot()), ValueError, "page_size=1: got 2"),
        (lambda tree: tree.restore(RadixTree(8).snapshot()), ValueError, "values_per='token': got 'none'"),
        (
            lambda tree: tree.restore(RadixTree(13, values_per="token").snapshot()),
            ValueError,
            "capacity of 12 or less, got 13",
        ),
    ],
)
def test_bad_arguments_are_refused(tree, call, error, message):
    before = tree.snapshot()
    with pytest.raises(error, match=message):
        call(tree)
    assert same_state(before, tree.snapshot())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"capacity": 0}, ValueError, "capacity must be 1 or more"),
        ({"capacity": 3, "page_size": 4}, ValueError, "capacity must be 4 or more: got 3"),
        ({"capacity": 2**40}, ValueError, "capacity must be less than 536870911"),
        ({"capacity": 8, "page_size": 0}, ValueError, "page_size must be 1 or more"),
        ({"capacity": 8, "policy": "belady"}, ValueError, "policy must be one of fifo, filo, lfu, .*: got 'belady'"),
        ({"capacity": 8, "policy": 3}, TypeError, "policy must be a function of columns"),
        ({"capacity": 8, "policy": lambda columns: columns["size"]}, ValueError, "it reads 'size'"),
        ({"capacity": 8, "policy": lambda columns: 5}, TypeError, "one item per candidate"),
        ({"capacity": 8, "granularity": "block"}, ValueError, "granularity must be one of leaf, page: got 'block'"),
        ({"capacity": 8, "refresh": "all"}, ValueError, "refresh must be one of"),
        ({"capacity": 8, "count_uses": "hits"}, ValueError, "count_uses must be one of"),
        ({"capacity": 8, "values_per": "block"}, ValueError, "values_per must be one of"),
    ],
)
def test_bad_configurations_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        RadixTree(**options)


def test_values_are_refused_where_none_are_kept():
    with pytest.raises(ValueError, match="values must not be given"):
        RadixTree(8).insert([1], [2])


def test_locks_that_leave_too_little_room_are_an_error_and_change_nothing(tree):
    before = tree.snapshot()
    with pytest.raises(CapacityError, match="insert 10 tokens: locks hold 3 of 12, which leaves 9") as caught:
        tree.insert(range(20, 30), range(10))
    assert (caught.value.requested, caught.value.available) == (10, 9)
    with pytest.raises(CapacityError, match="prompt 1 of the batch"):
        tree.insert_batch([*B, *range(20, 30)], [0, 8, 18], values=range(18))
    with pytest.raises(CapacityError, match="prompt 1 of the batch"):
        tree.serve_batch([*B, *range(20, 30)], [0, 8, 18], values=range(18), limit=12)
    assert same_state(before, tree.snapshot())
    # The locked part of a prompt counts once: 3 locked, 9 more fit.
    assert tree.insert(A[:3] + list(range(20, 29)), range(12), namespace="a") == 3
    assert tree.cached_tokens == 12


def test_a_handle_unlocks_once_and_not_after_a_reset():
    tree = RadixTree(100)
    tree.insert(A)
    lock = tree.lock(A)
    tree.unlock(lock)
    with pytest.raises(BlockStateError, match="unlock 1: it is not held"):
        tree.unlock(lock)
    old = tree.lock(A)
    tree.reset()
    tree.insert(A)
    new = tree.lock(A)
    with pytest.raises(BlockStateError, match="from before a reset"):
        tree.unlock(old)
    assert (tree.protected_tokens, old != new) == (8, True)


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("depth", 3, "R2"),
        ("edge_length", 0, "R2"),
        ("parent", 5, "R2"),
        ("num_children", 2, "R3"),
        ("namespace", 4, "R5"),
        ("lock_count", 1, "R6"),
        ("last_use", 10**9, "R10|R11"),
    ],
)
def test_check_finds_what_is_wrong(column, value, rule):
    tree = RadixTree(100)
    tree.insert(A)
    tree.insert(A[:4] + B)
    tree.check()
    tree._engine.nodes.columns[column][1] = value
    with pytest.raises(InvariantError, match=rule):
        tree.check()


# Worked examples


def test_an_empty_tree_matches_nothing():
    tree = RadixTree(100)
    assert tree.match(A).num_tokens == tree.peek([]).num_tokens == tree.insert([]) == 0
    assert (tree.num_nodes, tree.cached_tokens, tree.evict(5).num_tokens) == (1, 0, 0)
    assert tree.evict(5).is_short


def test_a_prompt_is_found_again_with_its_values():
    tree = RadixTree(100, values_per="token")
    assert tree.insert(A, range(100, 108)) == 0
    found = tree.match([*A, 99])
    assert (found.num_tokens, tree.tokens_of(found.node).tolist()) == (8, A)
    assert found.values.tolist() == list(range(100, 108))


def test_the_system_prompt_is_shared():
    # Scenario "Prefix": root - P (64) -+- 3 tokens
    #                                   `- 2 tokens
    tree = RadixTree(1000)
    system = list(range(64))
    hit_a = tree.insert([*system, 1001, 1002, 1003])
    hit_b = tree.insert([*system, 2001, 2002])
    hit_new = tree.match([*system, 3001, 3002, 3003, 3004]).num_tokens
    assert (hit_a, hit_b, hit_new, tree.cached_tokens, tree.num_nodes) == (0, 64, 64, 69, 4)


def test_an_edge_splits_where_prompts_part():
    tree = RadixTree(100)
    tree.insert([1, 2, 3, 4])
    assert tree.insert([1, 2, 8, 9]) == 2
    assert tree.to_text().splitlines() == [
        "root: 6 tokens in 4 nodes",
        "`- 1 2 (2)",
        "   |- 3 4 (2)",
        "   `- 8 9 (2)",
    ]


def test_a_prompt_that_ends_inside_an_edge_splits_it_and_adds_nothing():
    tree = RadixTree(100)
    tree.insert(A)
    assert tree.insert(A[:3]) == 3
    assert (tree.cached_tokens, tree.num_nodes) == (8, 3)


def test_a_match_inside_an_edge_refreshes_what_it_matched_and_no_more():
    tree = RadixTree(100)
    tree.insert(A)
    tree.insert(B)
    tree.match(A[:3])
    assert tree.evict(1).tokens.tolist() == A[3:]  # older than B, though its upper part is younger
    assert tree.evict(1).tokens.tolist() == B
    assert tree.evict(1).tokens.tolist() == A[:3]


def test_refreshing_the_edge_keeps_the_rest_of_it_as_sglang_does():
    tree = RadixTree(100, refresh="edge")
    tree.insert(A)
    tree.insert(B)
    tree.match(A[:3])
    assert [tree.evict(1).tokens.tolist() for _ in range(3)] == [B, A[3:], A[:3]]


def test_peek_changes_nothing():
    tree = RadixTree(100)
    tree.insert(A)
    tree.insert(B)
    before = tree.snapshot()
    assert tree.peek(A[:5]).num_tokens == 5
    assert same_state(before, tree.snapshot())
    assert tree.evict(1).tokens.tolist() == A


def test_leaves_go_before_their_parents():
    #      .- 3 4      (oldest)
    # 1 2 -+- 5 6
    tree = RadixTree(100)
    tree.insert([1, 2, 3, 4])
    tree.insert([1, 2, 5, 6])
    gone = tree.evict(5)
    assert [part.tolist() for part in (gone.tokens, gone.lengths, gone.depths)] == [
        [3, 4, 5, 6, 1, 2],
        [2, 2, 2],
        [4, 4, 2],
    ]
    assert (tree.num_nodes, tree.cached_tokens) == (1, 0)


def test_whole_leaves_free_more_than_was_asked_pages_do_not():
    for granularity, freed in [("leaf", 8), ("page", 2)]:
        tree = RadixTree(100, granularity=granularity, page_size=2)
        tree.insert(A)
        gone = tree.evict(1)
        assert (gone.num_tokens, gone.tokens.tolist()) == (freed, A[8 - freed :])


def test_values_of_what_went_come_back():
    tree = RadixTree(100, granularity="page", page_size=2, values_per="page")
    tree.insert(A, [10, 20, 30, 40])
    assert tree.evict(4).values.tolist() == [30, 40]
    assert tree.peek(A).values.tolist() == [10, 20]


def test_evicting_more_than_there_is_frees_what_it_can_and_says_so():
    tree = RadixTree(100)
    tree.insert(A)
    tree.lock(A[:5])
    gone = tree.evict(100)
    assert (gone.requested, gone.num_tokens, gone.is_short, gone.tokens.tolist()) == (100, 3, True, A[5:])


def test_a_lock_protects_its_path_and_locks_are_counted():
    tree = RadixTree(100)
    tree.insert(A)
    tree.insert(A[:4] + B)
    first, second = tree.lock(A), tree.lock(A[:4])
    assert (tree.protected_tokens, tree.evictable_tokens) == (8, 8)
    tree.unlock(first)
    assert (tree.protected_tokens, tree.evict(100).num_tokens) == (4, 12)
    tree.unlock(second)
    assert (tree.protected_tokens, tree.evictable_tokens) == (0, 4)


def test_a_split_under_a_lock_locks_both_parts():
    tree = RadixTree(100)
    tree.insert(A)
    lock = tree.lock(A)
    tree.insert([*A[:3], 99])
    assert (tree.protected_tokens, tree.evict(100).tokens.tolist()) == (8, [99])
    tree.unlock(lock)
    assert tree.protected_tokens == 0
    tree.check()


def test_a_pin_holds_for_its_ticks():
    tree = RadixTree(100)
    tree.insert(A)
    tree.pin(A, ttl=2)
    held = [tree.protected_tokens]
    for prompt in (B, B):
        tree.match(prompt)
        held.append(tree.protected_tokens)
    assert held == [8, 8, 0]
    early = tree.pin(A, ttl=5)
    tree.unlock(early)
    tree.advance(10)
    assert tree.protected_tokens == 0


def test_pages_are_matched_and_stored_whole():
    tree = RadixTree(100, page_size=4)
    assert (tree.insert(range(10)), tree.cached_tokens) == (0, 8)
    assert [tree.match(range(n)).num_tokens for n in (10, 8, 7, 4, 3)] == [8, 8, 4, 4, 0]
    # Prompts that part inside a page share nothing of it.
    assert tree.insert([0, 1, 2, 3, 4, 5, 70, 71]) == 4
    assert (tree.cached_tokens, tree.num_nodes) == (12, 4)


def test_namespaces_share_nothing():
    tree = RadixTree(100)
    assert [tree.insert(A, namespace=name) for name in ("a", "b", None, "a")] == [0, 0, 0, 8]
    assert [tree.match(A, namespace=name).num_tokens for name in ("a", "c", None)] == [8, 0, 8]
    assert tree.to_text().splitlines()[1:] == [
        "|- 1 2 3 4 .. 8 (8)",
        "|- [a] 1 2 3 4 .. 8 (8)",
        "`- [b] 1 2 3 4 .. 8 (8)",
    ]


def test_a_namespace_is_forgotten_with_its_last_node():
    tree = RadixTree(8)
    for i in range(100):
        tree.insert(A, namespace=f"salt {i}")
    assert len(tree._engine.nodes.namespaces.ids) == 2
    tree.check()


def test_an_insertion_makes_room_but_never_at_its_own_cost():
    tree = RadixTree(10)
    tree.insert(A)
    assert tree.insert([*A[:4], 21, 22, 23, 24]) == 4  # A's own head is older than nothing else, and stays
    assert (tree.cached_tokens, tree.peek(A).num_tokens) == (8, 4)


POLICY_CASES = {
    # See `order_of_eviction`.
    "lru": [1, 3, 0, 2],
    "mru": [2, 0, 3, 1],
    "fifo": [0, 1, 2, 3],
    "filo": [3, 2, 1, 0],
    "lfu": [1, 3, 2, 0],
    "slru": [1, 3, 2, 0],
    "priority": [1, 0, 2, 3],
    "tlru": [1, 3, 0, 2],
}


def order_of_eviction(tree):
    """Insert four prompts, the last with priority, the first again; match the third; then see which go when."""
    prompts = [[10 * i, 10 * i + 1] for i in range(4)]
    for i, prompt in enumerate(prompts):
        tree.insert(prompt, priority=int(i == 3))
    tree.insert(prompts[0])
    tree.match(prompts[2])
    return [int(tree.evict(1).tokens[0]) // 10 for _ in prompts]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_policies(policy):
    assert order_of_eviction(RadixTree(100, policy=policy)) == POLICY_CASES[policy]


@pytest.mark.parametrize("policy", ["lfu", "slru"])
def test_a_match_counts_as_a_use_where_asked(policy):
    assert order_of_eviction(RadixTree(100, policy=policy, count_uses="touches")) == [1, 3, 0, 2]


def test_a_policy_of_ones_own():
    longest_first = RadixTree(100, policy=lambda columns: -columns["length"])
    for prompt in ([1, 2], A[2:], B[:4]):
        longest_first.insert(prompt)
    assert [longest_first.evict(1).num_tokens for _ in range(3)] == [6, 4, 2]
    protected = RadixTree(100, policy=partial(slru, protected_uses=3))
    protected.insert(A)
    protected.insert(A)
    protected.insert(B)
    assert protected.evict(1).tokens.tolist() == A


def test_tail_safe_lru_takes_what_a_conversation_can_spare():
    # A conversation may lose so much that its next turn, 20 tokens longer, computes 100: its last 80 tokens, or all
    # of a short one. Those go first, oldest conversation first; then it is plain lru.
    policy = partial(tlru, threshold=100, next_prompt=20)
    tree = RadixTree(1000, policy=policy, granularity="page", page_size=10)
    conversations = [range(200), range(1000, 1050), range(2000, 2300)]
    for conversation in conversations:
        tree.insert(conversation)
    left = []
    for num_tokens in (80, 50, 80, 40):
        tree.evict(num_tokens)
        left.append([tree.peek(conversation).num_tokens for conversation in conversations])
    assert left == [[120, 50, 300], [120, 0, 300], [120, 0, 220], [80, 0, 220]]
    # The same in one go.
    again = RadixTree(1000, policy=policy, granularity="page", page_size=10)
    for conversation in conversations:
        again.insert(conversation)
    again.evict(250)
    assert [again.peek(conversation).num_tokens for conversation in conversations] == left[-1]


def test_what_is_counted():
    tree = RadixTree(100)
    tree.insert(A)
    tree.match([*A[:4], 99])
    tree.insert(A[:4] + B)
    tree.evict(1)
    stats = tree.stats()
    assert (stats.matches, stats.matched_tokens, stats.asked_tokens, stats.token_hit_rate) == (1, 4, 5, 0.8)
    assert (stats.inserts, stats.found_tokens, stats.inserted_tokens) == (2, 4, 16)
    assert (stats.splits, stats.evicted_nodes, stats.evicted_tokens) == (1, 1, 4)
    assert (stats.num_nodes, stats.num_leaves, stats.cached_tokens) == (3, 1, 12)


def test_reserve_keeps_everything():
    tree = RadixTree(8, values_per="token")
    tree.insert(A, range(8))
    lock = tree.lock(A)
    tree.reserve(100)
    tree.insert(B, range(8))
    assert (tree.capacity, tree.cached_tokens, tree.match(A).values.tolist()) == (100, 16, list(range(8)))
    tree.unlock(lock)
    tree.check()


def test_the_pool_is_compacted_and_stays_within_twice_the_capacity():
    tree = RadixTree(64, values_per="token")
    generator = random.Random(1)
    for i in range(300):
        prompt = [generator.randrange(3) for _ in range(generator.randrange(1, 20))]
        tree.insert(prompt, range(1000 * i, 1000 * i + len(prompt)))
        assert tree._engine.nodes.pool_end <= 128
    assert tree.stats().compactions > 3
    tree.check()


@pytest.mark.parametrize("policy", ["lfu", partial(tlru, threshold=3)])
def test_a_tree_is_saved_and_loaded(tmp_path, policy):
    tree = RadixTree(64, page_size=2, policy=policy, granularity="page", refresh="edge", values_per="page")
    for name, prompt in [("a", A), (None, B), ("a", A[:4] + B)]:
        tree.insert(prompt, range(len(prompt) // 2), namespace=name)
    lock = tree.lock(A, namespace="a")
    tree.pin(B, ttl=50)
    tree.save(tmp_path / "tree.npz")
    if policy == "lfu":
        loaded = RadixTree.load(tmp_path / "tree.npz")
    else:
        with pytest.raises(ValueError, match="policy must be given"):
            RadixTree.load(tmp_path / "tree.npz")
        loaded = RadixTree.load(tmp_path / "tree.npz", policy=policy)
    assert same_state(tree.snapshot(), loaded.snapshot())
    for each in (tree, loaded):
        each.check()
        each.unlock(lock)
    assert tree.to_text() == loaded.to_text()
    assert tree.evict(9).tokens.tolist() == loaded.evict(9).tokens.tolist()


def test_a_snapshot_has_every_name_that_is_checked():
    from kvarray.prefix.saving import _NAMES

    assert sorted(RadixTree(8).snapshot()) == sorted([*_NAMES, "kind"])


def test_a_handle_given_after_a_snapshot_is_refused_after_going_back():
    tree = RadixTree(100)
    tree.insert(A)
    saved = tree.snapshot()
    late = tree.lock(A)
    tree.restore(saved)
    tree.lock(A)
    with pytest.raises(BlockStateError):
        tree.unlock(late)


def test_a_handle_of_another_tree_is_refused():
    tree, other = RadixTree(100), RadixTree(100)
    for each in (tree, other):
        each.insert(A)
    own, foreign = tree.lock(A), other.lock(A[:3])
    before = tree.snapshot()
    for handle in (foreign, Lock(own.serial, own.num_tokens)):
        with pytest.raises(BlockStateError, match=r"unlock 1: it is not held; .* or of another tree"):
            tree.unlock(handle)
    assert same_state(before, tree.snapshot())
    tree.unlock(own)
    assert repr(own) == "Lock(serial=1, num_tokens=8)"


def test_locks_of_a_snapshot_answer_to_handles_of_its_tree_and_new_ones_do_not():
    tree, copy = RadixTree(100), RadixTree(100)
    tree.insert(A)
    old = tree.lock(A)
    copy.restore(tree.snapshot())
    new, foreign = copy.lock(A), tree.lock(A)
    assert new.serial == foreign.serial
    with pytest.raises(BlockStateError, match="unlock 2: it is not held"):
        copy.unlock(foreign)
    copy.unlock(old)
    copy.unlock(new)
    assert (copy.protected_tokens, tree.protected_tokens) == (0, 8)


def test_a_batch_that_fails_leaves_handles_as_they_were():
    tree, other = RadixTree(8), RadixTree(8)
    for each in (tree, other):
        each.insert(A[:4])
    own, foreign = tree.lock(A[:4]), other.lock(A[:4])
    with pytest.raises(CapacityError):
        tree.insert_batch([*B[:4], *B], [0, 4, 12])
    with pytest.raises(BlockStateError):
        tree.unlock(foreign)
    tree.unlock(own)


DAMAGES = {
    "a row of no node": ("locks", lambda a: a.__setitem__((0, 1), 77)),
    "a serial to come": ("locks", lambda a: a.__setitem__((0, 0), 9)),
    "another count": ("counts", lambda a: a.__setitem__(5, 1)),
    "a cycle": ("nodes", lambda a: a.__setitem__((0, 1), 1)),
    "a parent out of range": ("nodes", lambda a: a.__setitem__((0, 1), 10**6)),
    "an edge before the pool": ("nodes", lambda a: a.__setitem__((1, 1), -3)),
    "an edge after the pool": ("nodes", lambda a: a.__setitem__((1, 1), 10**6)),
    "an unknown namespace": ("nodes", lambda a: a.__setitem__((-1, 1), 5)),
    "columns missing": ("nodes", lambda a: a[:-1]),
    "too many rows": ("nodes", lambda a: np.hstack([a] * 20)),
    "one dimension": ("nodes", lambda a: a.ravel()),
    "numbers with a point": ("nodes", lambda a: a * np.nan),
    "tokens missing": ("tokens", lambda a: a[:2]),
    "values missing": ("values", lambda a: a[:2]),
    "a live row listed as free": ("free_rows", lambda a: np.array([1])),
    "no clock": ("clock", lambda a: a[:1]),
    "one count": ("counts", lambda a: a[:1]),
    "counts of no namespace": ("namespace_counts", lambda a: a[:1]),
    "a free namespace that is none": ("namespace_free", lambda a: np.array([7])),
    "pins of one number": ("pins", lambda a: np.arange(3)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_snapshot_changes_nothing(tree, damage, tmp_path):
    name, change = DAMAGES[damage]
    snapshot = tree.snapshot()
    changed = change(snapshot[name])
    if changed is not None:
        snapshot[name] = changed
    tree.insert(B[:4], range(4))
    before = tree.snapshot()
    with pytest.raises(ValueError, match="snapshot must be undamaged: "):
        tree.restore(snapshot)
    assert same_state(before, tree.snapshot())
    tree.check()
    np.savez(tmp_path / "tree.npz", **snapshot)
    with pytest.raises(ValueError, match="snapshot must be undamaged: "):
        RadixTree.load(tmp_path / "tree.npz")


def test_columns_follow_the_tree_through_a_restore(tree):
    columns, saved = tree.columns, tree.snapshot()
    tree.reset()
    tree.restore(saved)
    assert columns["edge_length"][:3].tolist() == tree.columns["edge_length"][:3].tolist()
    assert columns["parent"][1] == tree.columns["parent"][1] >= 0


def test_a_drawing_marks_locks_and_stops_when_told():
    tree = RadixTree(100)
    tree.insert(A)
    tree.lock(A[:2])
    tree.insert(B)
    assert tree.to_text(max_nodes=3, max_tokens=3).splitlines() == [
        "root: 16 tokens in 4 nodes",
        "|- 1 2 (2, 1 lock)",
        "|  `- 3 .. 8 (6)",
        "... and 1 more nodes",
    ]


def test_columns_are_read_only():
    tree = RadixTree(4)
    with pytest.raises(ValueError, match="read-only"):
        tree.columns["depth"][0] = 3
    assert tree.columns["parent"].tolist() == [-1, -2, -2, -2, -2]


# Recorded operations


class Plain:
    """A tree that answers with bare numbers, as the recorded operations do."""

    def __init__(self, **options):
        self.tree = RadixTree(10_000, refresh="edge", **options)

    def insert(self, tokens, **options):
        return self.tree.insert(tokens, **options)

    def match(self, tokens, **options):
        return self.tree.match(tokens, **options).num_tokens

    def evict(self, num_tokens):
        return self.tree.evict(num_tokens).num_tokens

    def lock(self, tokens):
        return self.tree.lock(tokens)

    def unlock(self, lock):
        self.tree.unlock(lock)

    @property
    def evictable(self):
        self.tree.check()
        return self.tree.evictable_tokens

    @property
    def protected(self):
        return self.tree.protected_tokens


class PlainTwin(ReferenceTree):
    def __init__(self, **options):
        super().__init__(10_000, refresh="edge", **options)

    def evict(self, num_tokens):
        return sum(size for _, size in super().evict(num_tokens))


@pytest.mark.parametrize("kind", [Plain, PlainTwin])
def test_every_probe_holds(kind):
    for probe in json.loads(data_file("golden/radix_probes.json").read_text()):
        replay(kind(page_size=probe["page"], policy=probe["policy"]), probe["ops"])


@pytest.mark.parametrize("kind", [Plain, PlainTwin])
@pytest.mark.parametrize("path", data_files("golden", "sglang_radix_*.jsonl"))
def test_every_recorded_operation_holds(path, kind):
    head, *operations = map(json.loads, path.read_text().splitlines())
    replay(kind(page_size=head["page"], policy=head["policy"]), operations)


# Properties


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_ten_thousand_splits_keep_every_child_under_its_first_page(page_size):
    tree = RadixTree(500_000 * page_size, page_size=page_size)
    generator = np.random.default_rng(7)
    prompts = []
    while tree.stats().splits < 10_000:
        lengths = generator.integers(6, 24, size=2_000) * page_size
        # Pages of equal tokens make prompts part at many depths, whatever the page size.
        pages = [np.repeat(generator.integers(0, 3, size=n // page_size), page_size) for n in lengths.tolist()]
        prompts += pages
        tree.insert_batch(np.concatenate(pages), np.cumsum([0, *lengths.tolist()]))
    tree.check()
    found = tree.peek_batch(np.concatenate(prompts), np.cumsum([0, *map(len, prompts)]))
    assert found.num_tokens.tolist() == [len(prompt) for prompt in prompts]


def test_keys_that_collide_are_told_apart_by_their_tokens(monkeypatch):
    """With one key for all, the index says nothing, and every answer must still be right."""
    from kvarray.prefix.nodes import Nodes

    monkeypatch.setattr(Nodes, "key_one", lambda *_: 1)
    monkeypatch.setattr(Nodes, "keys", lambda _, parents, *__: np.ones(len(parents), dtype=np.uint64))
    tree, twin = RadixTree(60, page_size=2), ReferenceTree(60, page_size=2)
    generator = random.Random(3)
    for _ in range(200):
        prompt = [generator.randrange(2) for _ in range(generator.randrange(16))]
        name = generator.choice([None, "a"])
        assert tree.peek_batch(prompt, [0, len(prompt)], namespaces=[name]).num_tokens[0] == twin.peek(prompt, name)
        assert tree.match(prompt, namespace=name).num_tokens == twin.match(prompt, name)
        assert tree.insert(prompt, namespace=name) == twin.insert(prompt, name)
        tree.check()


RAGGED = st.lists(st.lists(st.integers(0, 1), max_size=9), max_size=12)


def by_path(tree):
    """Columns that do not depend on which row a node has, by path."""
    names = ("depth", "last_use", "uses", "created", "reach", "num_children")
    nodes = np.flatnonzero(tree.columns["parent"] >= 0).tolist()
    return {tuple(tree.tokens_of(node).tolist()): [int(tree.columns[name][node]) for name in names] for node in nodes}


@given(
    stored=RAGGED,
    asked=RAGGED,
    page_size=st.sampled_from([1, 2, 3]),
    refresh=st.sampled_from(["matched", "edge"]),
)
@example(stored=[[0, 0, 0, 0], [0, 1]], asked=[[0, 0, 0], [0, 0, 0, 0], [0, 0]], page_size=1, refresh="matched")
def test_a_batch_is_its_rows_one_by_one(stored, asked, page_size, refresh):
    options = {"page_size": page_size, "refresh": refresh, "count_uses": "touches", "policy": "lfu"}
    batch, single = RadixTree(40, **options), RadixTree(40, **options)

    def ragged(prompts):
        return np.array([t for prompt in prompts for t in prompt], dtype=np.int64), np.cumsum([0, *map(len, prompts)])

    assert batch.insert_batch(*ragged(stored)).tolist() == [single.insert(prompt) for prompt in stored]
    assert by_path(batch) == by_path(single)
    found = batch.match_batch(*ragged(asked)).num_tokens
    assert found.tolist() == [single.match(prompt).num_tokens for prompt in asked]
    assert by_path(batch) == by_path(single)
    batch.check()


@given(stored=RAGGED, limit=st.integers(0, 12), page_size=st.sampled_from([1, 2]))
def test_serving_is_matching_inserting_and_cutting(stored, limit, page_size):
    served, single = (RadixTree(40, page_size=page_size, granularity="page") for _ in range(2))
    expected = []
    for prompt in stored:
        there = single.match(prompt).num_tokens
        single.insert(prompt)
        expected.append((there, single.evict(max(0, single.cached_tokens - limit)).num_tokens))
    offsets = np.cumsum([0, *map(len, stored)])
    result = served.serve_batch(np.array([t for p in stored for t in p], dtype=np.int64), offsets, limit=limit)
    assert list(zip(result.num_tokens.tolist(), result.evicted_tokens.tolist(), strict=True)) == expected
    assert same_state(served.snapshot(), single.snapshot())
