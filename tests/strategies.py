"""Hypothesis strategies for what the modules take."""

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from kvarray import Trace

BLOCK_IDS = {
    "few": st.integers(0, 3),
    "sparse": st.sampled_from([0, 7, 10**6, 2**40, 2**63 - 1]),
    "signed": st.sampled_from([-(2**63), -5, -1, 0, 3, 2**63 - 1]),
    "unsigned": st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]),
}
"""Kinds of block ids, by name: the content of a block alone, so that the same one comes at any depth."""

LABELS = st.none() | st.integers(-3, 3) | st.sampled_from(["", "a", "b", "ä", 'x"]}\\'])


@st.composite
def requests(draw, max_requests=8, max_blocks=6):
    """Lists of block ids, one a request."""
    ids = BLOCK_IDS[draw(st.sampled_from(sorted(BLOCK_IDS)))]
    return draw(st.lists(st.lists(ids, max_size=max_blocks), max_size=max_requests))


def chained(rows):
    """Give each prefix of the rows an id of its own, in order of first appearance."""
    numbers = {}
    return [[numbers.setdefault(tuple(row[: i + 1]), len(numbers)) for i in range(len(row))] for row in rows]


def as_block_ids(rows):
    """Flat ids of rows, as the dtype that holds them."""
    flat = [block for row in rows for block in row]
    return np.array(flat, dtype=np.uint64 if flat and max(flat) >= 2**63 else np.int64)


@st.composite
def traces(draw, max_requests=8, max_blocks=6, named=False):
    """Traces with everything that they may have: empty requests, ids of all kinds, unhashed tokens, equal arrivals.

    With `named`, also sessions and namespaces.
    """
    rows = draw(requests(max_requests, max_blocks))
    if draw(st.booleans()):
        rows = chained(rows)
    block_size = draw(st.integers(1, 4))
    input_tokens = []
    for row in rows:
        least = (len(row) - 1) * block_size + 1 if row else 0
        input_tokens.append(draw(st.integers(least, (len(row) + 1) * block_size)))
    arrivals = draw(st.lists(st.integers(0, 5) | st.floats(0, 1e6), min_size=len(rows), max_size=len(rows)))
    names = {}
    for name in ("session", "namespace") if named else ():
        if draw(st.booleans()):
            labels = draw(st.lists(LABELS, min_size=1, max_size=4, unique=True))
            codes = draw(st.lists(st.integers(0, len(labels) - 1), min_size=len(rows), max_size=len(rows)))
            names |= {name: codes, f"{name}_labels": labels}
    return Trace(
        as_block_ids(rows),
        np.cumsum([0, *map(len, rows)]),
        block_size=block_size,
        input_tokens=input_tokens,
        output_tokens=draw(st.lists(st.integers(0, 9), min_size=len(rows), max_size=len(rows))),
        arrival_s=sorted(map(float, arrivals)),
        **names,
    )


def rows_of(trace):
    """Lists of block ids, one a request."""
    cuts = trace.offsets.tolist()
    ids = trace.block_ids.tolist()
    return [ids[a:b] for a, b in pairwise(cuts)]
