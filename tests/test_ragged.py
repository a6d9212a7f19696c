"""Ragged kernels against lists of lists, empty rows included."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvarray import ragged

ROWS = st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=8)


def _flat(rows):
    values = np.array([x for row in rows for x in row], dtype=np.int64)
    return values, ragged.lengths_to_offsets(np.array([len(row) for row in rows], dtype=np.int64))


@given(ROWS)
def test_row_ids_ranks_and_sums(rows):
    values, offsets = _flat(rows)
    assert ragged.row_ids(offsets).tolist() == [i for i, row in enumerate(rows) for _ in row]
    assert ragged.ranks(offsets).tolist() == [j for row in rows for j in range(len(row))]
    assert ragged.row_sums(values, offsets).tolist() == [sum(row) for row in rows]


@given(ROWS, st.data())
def test_take_rows(rows, data):
    values, offsets = _flat(rows)
    wanted = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)) if rows else []
    taken, cut = ragged.take_rows(values, offsets, np.array(wanted, dtype=np.int64))
    expected_values, expected_cut = _flat([rows[i] for i in wanted])
    assert taken.tolist() == expected_values.tolist()
    assert cut.tolist() == expected_cut.tolist()


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), max_size=8))
def test_ranges(pairs):
    starts = np.array([a for a, _ in pairs], dtype=np.int64)
    lengths = np.array([n for _, n in pairs], dtype=np.int64)
    assert ragged.ranges(starts, lengths).tolist() == [a + i for a, n in pairs for i in range(n)]
