"""A random life of a `RadixTree` beside its twin: the same operation on both, everything compared after each."""

from copy import deepcopy
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvarray import BlockStateError, CapacityError, RadixTree, prefix
from kvarray.policies import tlru
from tests.reference import prefix as reference

# Few different tokens and a bias to common beginnings, so that prompts share, part inside edges and end inside them.
_STEM = [0, 1, 1, 0, 2, 1, 0, 0, 1, 2, 2, 0]
PROMPTS = st.builds(
    lambda shared, rest: _STEM[:shared] + rest,
    st.integers(0, len(_STEM)),
    st.lists(st.integers(0, 2), max_size=6),
)
NAMESPACES = st.sampled_from([None, None, None, "a", "b"])
POLICIES = {
    **{name: (name, name) for name in reference.POLICIES},
    "tlru 3, 1": (partial(tlru, threshold=3, next_prompt=1), reference.tlru(3, 1)),
    # A function of one's own, with ties: among equals the oldest use goes first.
    "depth": (lambda columns: -columns["depth"] // 4, lambda node, keep: (-node.depth // 4,)),
}


def rows_of(tree):
    """What `ReferenceTree.rows` gives, read from the columns."""
    columns, names = tree.columns, tree._engine.nodes.namespaces
    rows = []
    for node in np.flatnonzero(columns["parent"] >= 0).tolist():
        item = {name: int(column[node]) for name, column in columns.items()}
        values = tree._engine.nodes.values_of([(node, item["edge_length"])]) if tree.values_per != "none" else []
        rows.append(
            (
                names.name_of(item["namespace"]) or "", tuple(tree.tokens_of(node).tolist()), item["edge_length"],
                item["lock_count"], item["last_use"], item["created"], item["uses"], item["priority"], item["reach"],
                item["num_children"], tuple(int(value) for value in values),
            )
        )  # fmt: skip
    return sorted(rows)


def same_state(before, after):
    return before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)


def to_ragged(prompts):
    offsets = np.cumsum([0, *map(len, prompts)])
    return np.array([token for prompt in prompts for token in prompt], dtype=np.int64), offsets


class PrefixMachine(RuleBasedStateMachine):
    @initialize(
        capacity=st.integers(4, 24),
        page_size=st.sampled_from([1, 2, 4]),
        policy=st.sampled_from([*sorted(POLICIES), "depth", "tlru 3, 1", "lru"]),  # those that trims change, and lru
        granularity=st.sampled_from(["leaf", "page"]),
        refresh=st.sampled_from(["matched", "edge"]),
        count_uses=st.sampled_from(["inserts", "touches"]),
        values_per=st.sampled_from(["none", "token", "page"]),
    )
    def begin(self, capacity, page_size, policy, granularity, refresh, count_uses, values_per):
        options = {
            "page_size": page_size, "granularity": granularity, "refresh": refresh, "count_uses": count_uses,
        }  # fmt: skip
        ours, theirs = POLICIES[policy]
        self.tree = RadixTree(capacity, policy=ours, values_per=values_per, record_events=True, **options)
        self.twin = reference.ReferenceTree(capacity // page_size * page_size, policy=theirs, **options)
        # Values per page are those of each page's last token to the twin, which always keeps one per token.
        self.keeps_values = values_per != "none"
        self.stride = page_size if values_per == "page" else 1
        self.held = []  # (lock of the tree, serial of the twin)
        self.next_value = 0
        self.spent = []
        self.mirror = {}  # node -> (parent, namespace, tokens), from events
        self.saved = None

    def ours(self, values):
        """The values as the tree wants them: all of them, one of each whole page, or none."""
        return None if values is None else values[self.stride - 1 :: self.stride]

    def values_for(self, prompt):
        if not self.keeps_values:
            return None
        self.next_value += len(prompt)
        return list(range(self.next_value - len(prompt), self.next_value))

    @rule(prompt=PROMPTS, namespace=NAMESPACES, priority=st.integers(0, 2))
    def insert(self, prompt, namespace, priority):
        values = self.values_for(prompt)
        before = self.tree.snapshot()
        try:
            there = self.twin.insert(prompt, namespace, values, priority)
        except ValueError:
            with pytest.raises(CapacityError):
                self.tree.insert(prompt, self.ours(values), namespace=namespace, priority=priority)
            assert same_state(before, self.tree.snapshot())
        else:
            assert self.tree.insert(prompt, self.ours(values), namespace=namespace, priority=priority) == there

    @rule(prompts=st.lists(PROMPTS, max_size=4), data=st.data())
    def insert_batch(self, prompts, data):
        namespaces = [data.draw(NAMESPACES) for _ in prompts]
        priorities = [data.draw(st.integers(0, 2)) for _ in prompts]
        values = [self.values_for(prompt) for prompt in prompts]
        flat = [value for row in values for value in self.ours(row)] if self.keeps_values else None
        before = self.tree.snapshot()

        def batch():
            return self.tree.insert_batch(
                *to_ragged(prompts), values=flat, namespaces=namespaces, priorities=priorities
            )

        trial = RadixTree(**self.config())
        trial.restore(before)
        try:
            for row, prompt in enumerate(prompts):
                trial.insert(prompt, self.ours(values[row]), namespace=namespaces[row], priority=priorities[row])
        except CapacityError:
            with pytest.raises(CapacityError, match=f"prompt {row} of the batch"):
                batch()
            assert same_state(before, self.tree.snapshot())
        else:
            there = [self.twin.insert(*row) for row in zip(prompts, namespaces, values, priorities, strict=True)]
            assert batch().tolist() == there

    @rule(prompts=st.lists(PROMPTS, max_size=3), namespace=NAMESPACES, limit=st.integers(0, 24))
    def serve_batch(self, prompts, namespace, limit):
        values = [self.values_for(prompt) for prompt in prompts]
        flat = [value for row in values for value in self.ours(row)] if self.keeps_values else None
        before = self.tree.snapshot()
        twin = deepcopy(self.twin)
        expected = []
        try:
            for prompt, row in zip(prompts, values, strict=True):
                there = twin.match(prompt, namespace)
                twin.insert(prompt, namespace, row)
                gone = twin.evict(max(0, twin.cached - limit))
                expected.append((there, sum(size for _, size in gone)))
        except ValueError:
            with pytest.raises(CapacityError, match=f"prompt {len(expected)} of the batch"):
                self.tree.serve_batch(
                    *to_ragged(prompts), limit=limit, values=flat, namespaces=[namespace] * len(prompts)
                )
            assert same_state(before, self.tree.snapshot())
        else:
            served = self.tree.serve_batch(
                *to_ragged(prompts), limit=limit, values=flat, namespaces=[namespace] * len(prompts)
            )
            self.twin = twin
            pairs = zip(served.num_tokens.tolist(), served.evicted_tokens.tolist(), strict=True)
            assert list(pairs) == expected

    def config(self):
        engine = self.tree._engine
        return {
            "capacity": self.tree.capacity, "page_size": self.tree.page_size, "policy": engine.candidates.policy,
            "granularity": engine.granularity, "refresh": engine.refresh, "count_uses": engine.count_uses,
            "values_per": self.tree.values_per,
        }  # fmt: skip

    @rule(prompt=PROMPTS, namespace=NAMESPACES)
    def peek(self, prompt, namespace):
        before = self.tree.snapshot()
        assert self.tree.peek(prompt, namespace=namespace).num_tokens == self.twin.peek(prompt, namespace)
        assert same_state(before, self.tree.snapshot())

    @rule(prompt=PROMPTS, namespace=NAMESPACES)
    def match(self, prompt, namespace):
        peeked = self.tree.peek(prompt, namespace=namespace)
        found = self.tree.match(prompt, namespace=namespace)
        assert found.num_tokens == peeked.num_tokens == self.twin.match(prompt, namespace)
        assert self.tree.tokens_of(found.node).tolist() == prompt[: found.num_tokens]
        if self.keeps_values:
            assert found.values.tolist() == peeked.values.tolist()
            assert len(found.values) == found.num_tokens // self.stride

    @rule(prompts=st.lists(PROMPTS, max_size=6), data=st.data())
    def match_batch(self, prompts, data):
        namespaces = [data.draw(NAMESPACES) for _ in prompts]
        ragged = to_ragged(prompts)
        peeked = self.tree.peek_batch(*ragged, namespaces=namespaces)
        ones = [self.tree.peek(prompt, namespace=name) for prompt, name in zip(prompts, namespaces, strict=True)]
        found = self.tree.match_batch(*ragged, namespaces=namespaces)
        expected = [self.twin.match(prompt, name) for prompt, name in zip(prompts, namespaces, strict=True)]
        assert found.num_tokens.tolist() == peeked.num_tokens.tolist() == expected
        assert peeked.nodes.tolist() == [one.node for one in ones]
        for prompt, size, node in zip(prompts, expected, found.nodes.tolist(), strict=True):
            assert self.tree.tokens_of(node).tolist() == prompt[:size]
        if self.keeps_values:
            assert found.values.tolist() == [value for one in ones for value in one.values.tolist()]
            assert found.value_offsets.tolist() == (np.cumsum([0, *expected]) // self.stride).tolist()

    @rule(prompt=PROMPTS, namespace=NAMESPACES)
    def lock(self, prompt, namespace):
        self.held.append((self.tree.lock(prompt, namespace=namespace), self.twin.lock(prompt, namespace)))

    @rule(prompt=PROMPTS, ttl=st.integers(1, 4))
    def pin(self, prompt, ttl):
        self.held.append((self.tree.pin(prompt, ttl=ttl), self.twin.lock(prompt, ttl=ttl)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unlock(self, data):
        lock, serial = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if serial in self.twin.locks:
            self.twin.unlock(serial)
            self.tree.unlock(lock)
        self.spent.append(lock)

    @precondition(lambda self: self.spent)
    @rule(data=st.data())
    def unlock_again(self, data):
        before = self.tree.snapshot()
        with pytest.raises(BlockStateError, match="not held"):
            self.tree.unlock(data.draw(st.sampled_from(self.spent)))
        assert same_state(before, self.tree.snapshot())

    @rule(ticks=st.integers(0, 3))
    def advance(self, ticks):
        self.tree.advance(ticks)
        self.twin.advance(ticks)

    @rule(num_tokens=st.integers(0, 10))
    def evict(self, num_tokens):
        """Twice what is asked, because a second eviction meets leaves that the first has trimmed."""
        self.evict_once(num_tokens)
        self.evict_once(num_tokens // 2)

    def evict_once(self, num_tokens):
        gone, expected = self.tree.evict(num_tokens), self.twin.evict(num_tokens)
        assert gone.num_tokens == sum(size for _, size in expected)
        assert gone.is_short == (gone.num_tokens < num_tokens)
        # Page by page the twin lists each page; one item of ours may hold several of a leaf.
        tails = [token for (_, path), size in expected for token in path[len(path) - size :][::-1]]
        cuts = np.cumsum([0, *gone.lengths.tolist()])
        assert tails == [token for start, stop in pairwise(cuts) for token in gone.tokens[start:stop][::-1]]

    @rule(more=st.integers(0, 4))
    def reserve(self, more):
        if self.tree.capacity < 40:
            self.tree.reserve(self.tree.capacity + more)
            self.twin.capacity = self.tree.capacity

    @rule()
    def reset(self):
        self.tree.reset()
        self.twin.reset()
        self.spent += [lock for lock, _ in self.held]
        self.held = []

    @rule(data=st.data(), prompt=PROMPTS)
    def feed_it_nonsense(self, data, prompt):
        """An illegal batch is refused, whatever is wrong with it, and leaves the state as it was."""
        wrong, message = data.draw(
            st.sampled_from(
                [
                    ({"tokens": [*prompt, -1], "offsets": [0, len(prompt) + 1]}, "tokens must be 0 or more"),
                    ({"tokens": prompt, "offsets": [0, len(prompt) + 1]}, "offsets must begin at 0 and end"),
                    ({"tokens": prompt, "offsets": [0, len(prompt)], "namespaces": []}, "namespaces must be one"),
                ]
            )
        )
        before = self.tree.snapshot()
        for method, more in [("match_batch", {}), ("insert_batch", {}), ("serve_batch", {"limit": 3})]:
            with pytest.raises(ValueError, match=message):
                getattr(self.tree, method)(**wrong, **more)
        assert same_state(before, self.tree.snapshot())

    @rule(prompt=PROMPTS)
    def go_and_come_back(self, prompt):
        saved = self.tree.snapshot()
        self.tree.match(prompt)
        self.tree.evict(3)
        self.tree.restore(saved)
        assert same_state(saved, self.tree.snapshot())

    @invariant()
    def agrees_with_its_twin(self):
        self.tree.check()
        theirs = [(*row[:-1], row[-1][self.stride - 1 :: self.stride]) for row in self.twin.rows()]
        assert rows_of(self.tree) == theirs
        assert self.tree.tick == self.twin.tick
        assert (self.tree.cached_tokens, self.tree.evictable_tokens, self.tree.protected_tokens) == (
            self.twin.cached, self.twin.evictable, self.twin.protected,
        )  # fmt: skip

    @invariant()
    def its_events_rebuild_it(self):
        events = self.tree.take_events()
        for i, namespace in enumerate(events.namespaces):
            node, other, length = (int(column[i]) for column in (events.node, events.other, events.length))
            if events.kind[i] == prefix.STORED:
                tokens = events.tokens[events.token_offsets[i] : events.token_offsets[i + 1]].tolist()
                self.mirror[node] = (other, namespace, tokens)
            elif events.kind[i] == prefix.SPLIT:
                parent, _, tokens = self.mirror[other]
                self.mirror[node] = (parent, namespace, tokens[:length])
                self.mirror[other] = (node, namespace, tokens[length:])
            elif events.kind[i] == prefix.REMOVED:
                parent, _, tokens = self.mirror.pop(node)
                if len(tokens) > length:
                    self.mirror[node] = (parent, namespace, tokens[:-length])
            else:
                self.mirror = {}
        rebuilt = []
        for node, (_, namespace, own) in self.mirror.items():
            tokens, above = [], node
            while above:
                tokens, above = self.mirror[above][2] + tokens, self.mirror[above][0]
            rebuilt.append((namespace or "", tuple(tokens), len(own)))
        assert sorted(rebuilt) == [row[:3] for row in rows_of(self.tree)]


PrefixMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30)
TestPrefixMachine = PrefixMachine.TestCase
