"""Identity of prefixes and blocks: against dictionaries of tuples, whatever the ids are made of."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvarray import Trace, ragged
from kvarray.trace import identity
from tests import strategies
from tests.reference import trace as reference


def _trace(rows, namespaces=None):
    return Trace(strategies.as_block_ids(rows), np.cumsum([0, *map(len, rows)]), block_size=1, namespace=namespaces)


NAMESPACES = st.none() | st.lists(st.sampled_from([-7, 0, 2**40]), min_size=8, max_size=8)


def _check(ids, limit, num_distinct, keys):
    numbers = reference.first_appearance(keys)
    assert reference.first_appearance(ids.tolist()) == numbers
    assert num_distinct == len(set(numbers))
    assert ids.dtype == np.int64
    assert all(0 <= i < limit for i in ids.tolist())
    assert limit <= 2 * len(keys) + 2**16


@given(strategies.requests(), NAMESPACES, st.booleans())
@example([[5, 5]], None, False)  # an id that is its own parent
@example([[1, 2], [2, 1]], None, False)  # ids that are each other's parent
@example([[0], [1, 0]], None, False)  # one depth alone tells them apart
@example([[0], [0]], [0, 2**40] * 4, False)  # a namespace alone does
@example([[], [], []], None, False)
def test_ids_are_equal_where_prefixes_are(rows, namespaces, chain):
    rows = strategies.chained(rows) if chain else rows
    namespaces = namespaces and namespaces[: len(rows)]
    trace = _trace(rows, namespaces)
    named = namespaces or [0] * len(rows)
    _check(trace.prefix_ids, trace.prefix_limit, trace.num_distinct, reference.prefix_keys(rows, named))
    _check(trace.stream_ids, trace.stream_limit, trace.num_distinct_blocks, reference.stream_keys(rows, named))


def test_chained_ids_are_handed_out_as_they_are():
    trace = _trace([[0, 1, 2], [0, 3]])
    assert np.shares_memory(trace.prefix_ids, trace.block_ids)
    assert np.shares_memory(trace.stream_ids, trace.block_ids)


@given(strategies.requests())
def test_the_answer_does_not_depend_on_how_ids_are_made(rows):
    """Content alone, chained, and chained with names scattered over 64 bits."""
    chained = strategies.chained(rows)
    scattered = [[identity.mix(np.array([block], dtype=np.uint64)).item() for block in row] for row in chained]
    numbers = [reference.first_appearance(_trace(r).prefix_ids.tolist()) for r in (rows, chained, scattered)]
    assert numbers[0] == numbers[1] == numbers[2]


def test_long_requests_and_many_pieces():
    rng = np.random.default_rng(0)
    lengths = np.array([200_000, 0, 3, 70_000, 1, 65_536, 0])
    ids = rng.integers(0, 3, lengths.sum()) * 10**12  # not chained, not small
    offsets = ragged.lengths_to_offsets(lengths)
    trace = Trace(ids, offsets, block_size=1)
    expected = reference.prefix_numbers(strategies.rows_of(trace))
    assert trace.prefix_ids.tolist() == expected
    assert trace.num_distinct == max(expected) + 1
    again = Trace(trace.prefix_ids, offsets, block_size=1)
    assert np.shares_memory(again.prefix_ids, trace.prefix_ids)
    assert again.num_distinct == trace.num_distinct


@given(st.lists(st.lists(st.integers(0, 1), min_size=130, max_size=140) | st.just([0] * 135), max_size=5), st.data())
def test_long_requests_that_repeat_each_other(rows, data):
    """What is copied from an earlier request is what a trie would say."""
    copies = data.draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 140)), max_size=5))
    for place, length in copies if rows else ():
        rows.append(rows[place % len(rows)][:length] + [7] * (140 - length))
    rows = [[block * 10**15 for block in row] for row in rows]
    trace = _trace(rows)
    assert trace.prefix_ids.tolist() == reference.prefix_numbers(rows)
    assert trace.num_distinct == len(set(reference.prefix_numbers(rows)))


def test_collisions_are_noticed_and_another_seed_is_tried():
    rows = [[1, 1], [2, 1], [1, 2]]
    ids, offsets = strategies.as_block_ids(rows), np.array([0, 2, 4, 6])
    calls = []

    def mixer(words):
        calls.append(words)
        if len(calls) <= 4:  # two tries, each of two calls: all keys collide
            return np.zeros_like(words)
        return identity.mix(words)

    found = identity.prefix_identity(ids, offsets, mixer=mixer)
    _check(found.ids, found.limit, found.num_distinct, reference.prefix_keys(rows, [0] * 3))
    assert len(calls) == 6


def test_a_mixer_that_never_separates_is_an_error():
    with pytest.raises(RuntimeError, match="equal 64-bit keys for every seed"):
        identity.prefix_identity(np.array([1, 2, 2, 1]), np.array([0, 2, 4]), mixer=np.zeros_like)


@given(st.lists(st.sampled_from([0, 1, -1, 5, 2**62, -(2**63)])), st.integers(0, 64))
def test_numbers_do_not_depend_on_how_well_keys_are_scattered(keys, lost):
    found = identity.number_keys(np.array(keys, dtype=np.int64), mixer=lambda words: words & np.uint64(2**lost - 1))
    numbers = reference.first_appearance(keys)
    assert found.ids.tolist() == numbers
    assert found.limit == found.num_distinct == len(set(numbers))


@given(strategies.requests(), strategies.requests())
def test_joined_ids_stay_as_equal_and_as_different_as_they_were(one, other):
    parts = [strategies.as_block_ids(one), strategies.as_block_ids(other)]
    joined = identity.join_ids(parts)
    flat = [block for part in parts for block in part.tolist()]
    assert reference.first_appearance(joined.tolist()) == reference.first_appearance(flat)
    if not flat or not (min(flat) < 0 and max(flat) >= 2**63):
        assert joined.tolist() == flat
