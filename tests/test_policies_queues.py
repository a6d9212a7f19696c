"""Orders with queues of their own against each paper's algorithm, and runs of blocks against single blocks."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvarray.policies import ORDERS, fifo, lfu, lru, order_maker
from kvarray.tier.cascade import WRITE_MODES, Cascade, Flows
from tests.reference.policies import PAPERS

KEYS = st.lists(st.integers(0, 12), max_size=120)


def test_unknown_policies_are_refused():
    with pytest.raises(ValueError, match=r"policy must be one of arc, fifo, gdsf, .*: got 'belady'"):
        order_maker("belady")
    with pytest.raises(TypeError, match="policy must be a name or a key function: got 3"):
        order_maker(3)
    with pytest.raises(ValueError, match="rng must be given for the policy 'random'"):
        order_maker("random")
    with pytest.raises(ValueError, match="rng must be given for the policy 'random' and for no other"):
        order_maker("lru", rng=1)


def test_every_order_has_its_paper():
    assert list(PAPERS) == list(ORDERS)


def _order(name, capacity, seed=0):
    return order_maker(name, rng=seed if name == "random" else None)(capacity)


def _paper(name, capacity, seed=0):
    if name == "random":
        return PAPERS[name](capacity, np.random.default_rng(seed))
    if name == "gdsf":
        return PAPERS[name](capacity, lambda key: 1.0 + key % 3)
    return PAPERS[name](capacity)


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=50)
@given(capacity=st.integers(1, 9), keys=KEYS)
@example(capacity=1, keys=[0, 1, 0, 1, 1])
def test_steps_of_one_key_are_the_paper_to_the_letter(name, capacity, keys):
    cascade = Cascade([_order(name, capacity)], weights=[1.0 + key % 3 for key in range(13)])
    paper = _paper(name, capacity)
    for key in keys:
        [cell] = cascade.use([(key, 1)])
        assert (cell[3] == 0) == paper.access(key)
    assert cascade.orders[0].size <= capacity


@pytest.mark.parametrize("name", ["w_tinylfu", "s3_fifo", "arc", "two_q"])
def test_larger_caches_are_the_paper_too(name):
    """Where the sections are more than a block: Zipf-popular keys through hundreds of blocks."""
    keys = np.random.default_rng(3).zipf(1.2, size=6_000) % 2_000
    cascade, paper = Cascade([_order(name, 300)]), _paper(name, 300)
    hits = [cascade.use([(key, 1)])[0][3] == 0 for key in keys.tolist()]
    assert hits == [paper.access(key) for key in keys.tolist()]
    assert 1_000 < sum(hits) < 6_000


@pytest.mark.parametrize(("name", "function"), [("lru", lru), ("lfu", lfu), ("fifo", fifo)])
@given(capacity=st.integers(1, 9), keys=KEYS)
def test_a_key_function_is_an_order(name, function, capacity, keys):
    named, keyed = Cascade([_order(name, capacity)]), Cascade([order_maker(function)(capacity)])
    for key in keys:
        assert named.use([(key, 1)])[0][3] == keyed.use([(key, 1)])[0][3]


@st.composite
def trees(draw):
    """Rows of a prefix tree as (parent, blocks), and requests by their deepest row."""
    rows = draw(st.lists(st.tuples(st.integers(-1, 6), st.integers(1, 4)), min_size=1, max_size=8))
    parents = [min(parent, row - 1) for row, (parent, _) in enumerate(rows)]
    requests = draw(st.lists(st.integers(0, len(rows) - 1), max_size=25))
    paths = []
    for row in requests:
        path = []
        while row >= 0:
            path.append(row)
            row = parents[row]
        paths.append(path[::-1])
    return [blocks for _, blocks in rows], paths


@pytest.mark.parametrize("name", [name for name in ORDERS if name != "random"])
@settings(max_examples=50)
@given(
    tree=trees(),
    capacities=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    write_mode=st.sampled_from(WRITE_MODES),
    write_at=st.integers(1, 3),
    promote_at=st.sampled_from([1, 1, 2, 3, None]),
    extras=st.tuples(st.booleans(), st.booleans(), st.integers(0, 7), st.sampled_from([0, 0, 0, 2])),
)
def test_runs_are_their_blocks(name, tree, capacities, write_mode, write_at, promote_at, extras):
    """Stepping segments gives what stepping each of their blocks gives, after every request."""
    lengths, paths = tree
    first = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    tokens = [1 + (extras[2] >> row & 1) for row in range(8)]
    by_block = [token for token, length in zip(tokens, lengths, strict=False) for _ in range(length)]

    def cascade(tokens):
        return Cascade(
            [_order(name, capacity) for capacity in capacities],
            write_mode=write_mode,
            write_at=write_at,
            promote_at=promote_at,
            min_tokens=[0, *[extras[3]] * 2][: len(capacities)],
            by_frequency=[extras[0], extras[1], False][: len(capacities)],
            tokens=tokens,
            weights=[float(token) for token in tokens],
        )

    runs, blocks = cascade(tokens), cascade(by_block)
    for path in paths:
        runs.use([(row, lengths[row]) for row in path])
        blocks.use([(first[row] + block, 1) for row in path for block in range(lengths[row])])
        for count in Flows.__slots__:
            assert getattr(runs.flows, count) == getattr(blocks.flows, count), count
        for order, single in zip(runs.orders, blocks.orders, strict=True):
            held = [
                first[run.row] + block
                for rows in order.rows.values()
                for run in rows
                for block in range(run.start, run.stop)
            ]
            assert sorted(held) == sorted(single.rows)
            assert order.size == single.size == len(held) <= order.capacity
