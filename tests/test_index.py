"""The multimap against a dict of lists: batches, single items, equal keys, keys of one bucket."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvarray import index
from kvarray.errors import InvariantError
from kvarray.index import _SPREAD, HashIndex
from tests.reference.index import HashIndexReference


@pytest.fixture(params=[0, 48], ids=["rounds", "loops"])
def few(request, monkeypatch):
    """Small batches both ways: in rounds of NumPy calls, and in loops over integers."""
    monkeypatch.setattr(index, "_FEW", request.param)


def _uint64(keys):
    return np.array(keys, dtype=np.uint64)


def _int64(rows):
    return np.array(rows, dtype=np.int64)


def _one_bucket(count):
    """Keys whose products with the multiplier are 1, 2, 3, ...: all of them fall into bucket 0."""
    inverse = pow(_SPREAD, -1, 2**64)
    return [i * inverse % 2**64 for i in range(1, count + 1)]


def test_equal_keys_of_one_batch_are_found_in_the_order_given(few):
    multimap = HashIndex(64)
    rows = np.random.default_rng(0).permutation(64)
    multimap.insert(_uint64([7] * 64), rows)
    walk = [multimap.find_one(7)]
    while walk[-1] >= 0:
        walk.append(multimap.find_after_one(walk[-1]))
    assert walk == [*rows.tolist(), -1]
    multimap.check()


def test_the_oldest_goes_and_the_next_is_found(few):
    multimap = HashIndex(3)
    multimap.insert(_uint64([5, 5, 5]), _int64([2, 0, 1]))
    multimap.remove(_int64([2]))
    assert multimap.find(_uint64([5])).tolist() == [0]
    multimap.insert_one(5, 2)  # young again
    assert multimap.find(_uint64([5])).tolist() == [0]
    assert multimap.find_after(_int64([0, 1, 2])).tolist() == [1, 2, -1]


def test_a_batch_takes_neighbours_out_of_one_chain(few):
    keys = _one_bucket(40)
    multimap = HashIndex(40)
    multimap.insert(_uint64(keys), np.arange(40))
    multimap.remove(np.r_[5:35])  # far more than the few that are taken out one by one
    multimap.check()
    assert multimap.find(_uint64(keys)).tolist() == [*range(5), *[-1] * 30, *range(35, 40)]


def test_lookups_of_colliding_keys_walk_the_chain(few):
    keys = _one_bucket(40)
    multimap = HashIndex(40)
    multimap.insert(_uint64(keys[::2]), np.arange(20))
    expected = [i // 2 if i % 2 == 0 else -1 for i in range(40)]
    assert multimap.find(_uint64(keys)).tolist() == expected
    assert [multimap.find_one(key) for key in keys] == expected


@pytest.mark.parametrize("key", [1, 2**63, 2**64 - 1])
def test_single_items_hash_like_batches(key, few):
    multimap = HashIndex(2)
    multimap.insert_one(key, 1)
    assert multimap.find(_uint64([key])).tolist() == [1]
    multimap.remove(_int64([1]))
    multimap.insert(_uint64([key]), _int64([0]))
    assert multimap.find_one(key) == 0
    assert len(multimap) == 1


def test_memory_is_fixed_by_the_number_of_rows(few):
    for num_rows in (1, 100, 2**16, 2**16 + 1, 10**6):
        assert HashIndex(num_rows).nbytes <= 28 * num_rows + 100


def test_arrays_restore(few):
    multimap = HashIndex(8)
    multimap.insert(_uint64([1, 2, 1]), _int64([0, 1, 2]))
    kept = multimap.arrays()
    multimap.clear()
    assert len(multimap) == 0
    assert multimap.find_one(1) == -1
    multimap.restore(kept)
    multimap.check()
    assert multimap.keys.tolist() == [1, 2, 1, 0, 0, 0, 0, 0]
    assert multimap.find_after_one(0) == 2


def test_keys_are_read_only(few):
    with pytest.raises(ValueError, match="read-only"):
        HashIndex(2).keys[0] = 1


@pytest.mark.parametrize(
    ("array", "place", "value", "name"),
    [("keys", 0, 9, "I2"), ("keys", 3, 9, "I1"), ("links", 16, 1, "I1"), ("link_of", 0, 0, "I3")],
)
def test_check_names_what_is_broken(array, place, value, name, few):
    multimap = HashIndex(8)  # 16 buckets; three keys of one bucket stand in the chain 1, 0, 2
    multimap.insert(_uint64(_one_bucket(3)), _int64([1, 0, 2]))
    arrays = multimap.arrays()
    arrays[array][place] = value
    multimap.restore(arrays)
    with pytest.raises(InvariantError, match=name):
        multimap.check()


FEW = index._FEW
KEYS = st.sampled_from([*_one_bucket(6), 1, 2, 2**64 - 1])


class HashIndexMachine(RuleBasedStateMachine):
    @initialize(num_rows=st.sampled_from([1, 3, 8, 60]), few=st.sampled_from([0, 2, 48]))
    def start(self, num_rows, few):
        index._FEW = few
        self.num_rows = num_rows
        self.index = HashIndex(num_rows)
        self.reference = HashIndexReference(num_rows)

    def _rows(self, *, with_key):
        return [row for row, key in enumerate(self.reference.keys()) if (key != 0) == with_key]

    @rule(data=st.data())
    def insert(self, data):
        rows = data.draw(st.permutations(self._rows(with_key=False)))
        keys = data.draw(st.lists(KEYS, max_size=len(rows)))
        rows = rows[: len(keys)]
        if data.draw(st.booleans()):
            self.index.insert(_uint64(keys), _int64(rows))
        else:
            for key, row in zip(keys, rows, strict=True):
                self.index.insert_one(key, row)
        self.reference.insert(keys, rows)

    @rule(data=st.data())
    def remove(self, data):
        rows = data.draw(st.permutations(self._rows(with_key=True)))
        rows = rows[: data.draw(st.integers(0, len(rows)))]
        if data.draw(st.booleans()):
            self.index.remove(_int64(rows))
        else:
            for row in rows:
                self.index.remove_one(row)
        self.reference.remove(rows)

    @rule()
    def clear(self):
        self.index.clear()
        self.reference.clear()

    @rule(keys=st.lists(KEYS, max_size=40))
    def find(self, keys):
        assert self.index.find(_uint64(keys)).tolist() == self.reference.find(keys)
        assert [self.index.find_one(key) for key in keys] == self.reference.find(keys)

    def teardown(self):
        index._FEW = FEW

    @invariant()
    def agree(self):
        self.index.check()
        assert self.index.keys.tolist() == self.reference.keys()
        rows = self._rows(with_key=True)
        assert len(self.index) == len(rows)
        expected = self.reference.find_after(rows)
        assert self.index.find_after(_int64(rows)).tolist() == expected
        assert [self.index.find_after_one(row) for row in rows] == expected


TestHashIndexMachine = HashIndexMachine.TestCase
TestHashIndexMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
