"""The transfer engine: streams that differ, sit on sockets and fail, against the block-by-block twin."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvarray.errors import TransferError
from kvarray.link import Link
from kvarray.migrate import TransferEngine
from tests.reference import migrate as twin

CLOSE = {"rtol": 1e-9, "atol": 1e-12}
FIGURES = ("bytes_per_second", "latency_s", "alpha_s", "fail_s", "stream_node")


@st.composite
def engines(draw, *, may_fail=True):
    """An engine as the twin takes it: a dict of lists, one item a stream."""
    count = draw(st.integers(1, 4))

    def each(values):
        return draw(st.lists(values, min_size=count, max_size=count))

    return {
        "bytes_per_second": each(st.integers(1, 8).map(float)),
        "latency_s": each(st.sampled_from([0.0, 0.5])),
        "alpha_s": each(st.sampled_from([0.0, 0.25, 1.0])),
        "fail_s": each(st.sampled_from([math.inf, math.inf, 1.0, 2.0, 5.5]) if may_fail else st.just(math.inf)),
        "stream_node": each(st.integers(0, 1)),
        "numa_penalty": draw(st.sampled_from([1.0, 2.5])),
        "fragment_bytes": draw(st.none() | st.integers(1, 5)),
        "assignment": draw(st.sampled_from(["round_robin", "least_loaded"])),
    }


@st.composite
def batches(draw):
    """Sizes, ready times and nodes of blocks."""
    count = draw(st.integers(0, 10))
    sizes = draw(st.lists(st.integers(0, 12), min_size=count, max_size=count))
    ready = draw(st.lists(st.sampled_from([0.0, 0.0, 1.5, 4.0]), min_size=count, max_size=count))
    return sizes, ready, draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))


def as_floats(values):
    return np.array(values, dtype=float)


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"bytes_per_second": 0.0}, r"bytes_per_second must be more than 0: got 0.0"),
        ({"bytes_per_second": [1.0, -2.0]}, r"bytes_per_second must be more than 0: bytes_per_second\[1\] = -2.0"),
        ({"bytes_per_second": math.nan}, "bytes_per_second must be finite"),
        ({"bytes_per_second": []}, "num_streams must be 1 or more: got 0"),
        ({"num_streams": 0}, "num_streams must be 1 or more: got 0"),
        ({"bytes_per_second": [1.0, 2.0], "num_streams": 3}, r"one item for each of 3 streams: got shape \(2,\)"),
        ({"num_streams": 2, "latency_s": [0.0, 0.0, 0.0]}, "latency_s must have one item for each of 2 streams"),
        ({"latency_s": -1.0}, "latency_s must be 0 or more"),
        ({"alpha_s": math.nan}, "alpha_s must be finite"),
        ({"fragment_bytes": 0}, "fragment_bytes must be 1 or more: got 0"),
        ({"assignment": "random"}, "assignment must be one of round_robin, least_loaded: got 'random'"),
        ({"numa_penalty": 0.5}, "numa_penalty must be 1 or more"),
        ({"numa_penalty": 2.0}, "numa_penalty needs stream_node"),
        ({"stream_node": [0, 1]}, "stream_node must have one item for each of 1 streams"),
        ({"stream_node": [-1]}, r"stream_node must be 0 or more: stream_node\[0\] = -1"),
        ({"fail_s": math.nan}, "fail_s must not be NaN"),
        ({"fail_s": -1.0}, "fail_s must be 0 or more"),
        ({"fail_s": [1.0, 2.0]}, "fail_s must have one item for each of 1 streams"),
        (
            {"bytes_per_second": np.ones((2, 1)), "alpha_s": np.ones((3, 1))},
            "bytes_per_second, latency_s and alpha_s must broadcast",
        ),
    ],
)
def test_an_engine_refuses(figures, message):
    with pytest.raises(ValueError, match=message):
        TransferEngine(**{"bytes_per_second": 1e9, **figures})


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"block_bytes": [1.0, -1.0]}, r"block_bytes must be 0 or more: block_bytes\[1\] = -1.0"),
        ({"block_bytes": [math.nan]}, "block_bytes must be finite"),
        ({"block_bytes": 1.0}, "block_bytes must have an axis of blocks: got one number"),
        ({"ready_s": [0.0, 1.0, 2.0]}, r"block_bytes and ready_s must broadcast: got \(2,\) and \(3,\)"),
        ({"ready_s": [0.0, math.inf]}, "ready_s must be finite"),
        ({"block_node": [0]}, "block_node must have one item for each of 2 blocks: got 1"),
        ({"streams": [0, 2]}, r"streams must be less than 2: streams\[1\] = 2"),
        ({"streams": [0, 1, 1]}, r"streams must have one item for each of 2 blocks: got shape \(3,\)"),
        ({"streams": 1}, "streams must have an axis of blocks: got one number"),
        ({"streams": np.zeros((3, 2), dtype=int)}, "block_bytes and ready_s with streams must broadcast"),
        ({"block_bytes": np.ones((3, 2))}, "bytes_per_second, block_bytes and ready_s must broadcast"),
    ],
)
def test_a_transfer_refuses(blocks, message):
    engine = TransferEngine(np.ones((4, 2)), stream_node=[0, 1])
    with pytest.raises(ValueError, match=message):
        engine.transfer(**{"block_bytes": [1.0, 1.0], **blocks})


def test_nodes_of_blocks_and_of_streams_come_together():
    with pytest.raises(ValueError, match="block_node needs an engine with stream_node"):
        TransferEngine([1.0]).transfer([1.0], block_node=[0])
    with pytest.raises(ValueError, match="block_node must be given"):
        TransferEngine([1.0], stream_node=[0], numa_penalty=2.0).transfer([1.0])


def test_streams_that_all_fail_leave_blocks_behind():
    engine = TransferEngine([1.0, 1.0], fail_s=[1.5, 1.25])
    with pytest.raises(
        TransferError, match=r"all streams have failed at 1.5 s, with 2 blocks to go, the first \[2, 3\]"
    ) as e:
        engine.transfer([1.0, 1.0, 1.0, 1.0])
    assert e.value.ids == (2, 3)


def test_first_streams_refuses_more_than_there_are():
    with pytest.raises(ValueError, match="num_streams must be 2 or fewer: got 3"):
        TransferEngine([1.0, 1.0]).first_streams(3)


# ----------------------------------------------------------------------------------------------------------- examples


def test_one_block():
    assert TransferEngine(2.0, latency_s=0.5).transfer([4.0]).arrive_s.tolist() == [2.5]


def test_blocks_follow_one_another_and_latency_does_not_add_up():
    assert TransferEngine(1.0, latency_s=0.5).transfer([1.0, 1.0, 1.0]).arrive_s.tolist() == [1.5, 2.5, 3.5]


def test_no_blocks():
    for engine in (TransferEngine(1.0), TransferEngine([1.0, 2.0], fail_s=[1.0, 1.0], assignment="least_loaded")):
        moved = engine.transfer([])
        moved.check()
        assert moved.arrive_s.shape == moved.retried.shape == (0,)


def test_a_block_of_no_bytes_is_there_at_once():
    assert TransferEngine(1.0, latency_s=5.0, alpha_s=1.0).transfer([0.0], ready_s=2.0).arrive_s.tolist() == [2.0]


def test_unequal_streams_are_better_used_by_load():
    blocks = np.full(8, 3.0)
    in_turn = TransferEngine([1.0, 3.0]).transfer(blocks)
    by_load = TransferEngine([1.0, 3.0], assignment="least_loaded").transfer(blocks)
    assert in_turn.timeline.makespan_s == 12.0
    assert by_load.timeline.resource.tolist() == [1, 1, 0, 1, 1, 1, 0, 1]
    assert by_load.timeline.makespan_s == 6.0


def test_many_small_fragments_cost_more_than_one_large():
    layered = TransferEngine(1e9, alpha_s=1e-5, fragment_bytes=2**14).transfer([2**20])
    whole = TransferEngine(1e9, alpha_s=1e-5).transfer([2**20])
    assert (layered.arrive_s - whole.arrive_s).round(9).tolist() == [63e-5]


def test_blocks_of_another_socket_are_slower():
    engine = TransferEngine([1.0, 1.0], stream_node=[0, 1], numa_penalty=2.0)
    assert engine.transfer([1.0, 1.0, 1.0, 1.0], block_node=[0, 0, 0, 1]).arrive_s.tolist() == [1.0, 2.0, 2.0, 3.0]


def test_a_failed_stream_loses_nothing():
    # stream 1 fails half way through block 3; block 5 waits behind it; both go behind blocks 0, 2 and 4 on stream 0
    moved = TransferEngine([1.0, 1.0], fail_s=[math.inf, 1.5]).transfer(np.ones(6))
    moved.check()
    assert moved.retried.tolist() == [False, False, False, True, False, True]
    assert moved.arrive_s.tolist() == [1.0, 1.0, 2.0, 4.0, 3.0, 5.0]
    assert moved.lost.block.tolist() == [3]
    assert moved.lost.start_s.tolist() == [1.0]


def test_a_block_may_be_lost_twice():
    moved = TransferEngine([1.0, 1.0, 1.0], fail_s=[0.5, 1.25, math.inf]).transfer([1.0, 1.0, 3.0])
    moved.check()
    assert moved.attempts.tolist() == [3, 1, 1]
    assert moved.arrive_s.tolist() == [4.0, 1.0, 3.0]


def test_streams_that_fail_together_get_nothing_of_each_other():
    moved = TransferEngine([1.0, 1.0, 1.0], fail_s=[0.5, 0.5, math.inf]).transfer([1.0, 1.0, 1.0])
    assert moved.attempts.tolist() == [2, 2, 1]


def engine_figures(bytes_per_second, fail_s, assignment):
    """An engine as the twin takes it, without overheads."""
    none = [0.0] * len(fail_s)
    return {
        "bytes_per_second": bytes_per_second, "fail_s": fail_s, "assignment": assignment,
        "latency_s": none, "alpha_s": none, "stream_node": [0] * len(fail_s), "numa_penalty": 1.0,
        "fragment_bytes": None,
    }  # fmt: skip


TWO_AT_ONCE = (
    (engine_figures([1.0, 2.0, 1.0, 1.0], [1.0, 1.0, 6.0, 4.0], "least_loaded"), ([3, 2], [2.5, 0.0], [0, 0])),
    (
        engine_figures([1.0, 2.0, 1.0, 1.0], [math.inf, math.inf, 0.0, 0.0], "round_robin"),
        ([5.5, 3, 3, 5.5], [4.0, 2.5, 0.0, 4.0], [0, 0, 0, 0]),
    ),
)


def test_blocks_lost_at_one_moment_are_assigned_together():
    (figures, (sizes, ready, _)), (in_turn, (more, later, _)) = TWO_AT_ONCE
    assert TransferEngine(**figures).transfer(sizes, ready_s=ready).arrive_s.tolist() == [5.5, 3.0]
    assert TransferEngine(**in_turn).transfer(more, ready_s=later).timeline.resource.tolist() == [0, 1, 0, 1]


def test_an_engine_over_a_link_agrees_with_the_link():
    link = Link(3e9, latency_s=1e-3, alpha_s=1e-5, fragment_bytes=4096)
    size = np.array([1, 4096, 10**6])
    for one in size:
        assert TransferEngine.over(link).transfer([one]).arrive_s[0] == pytest.approx(float(link.seconds(one)))


# --------------------------------------------------------------------------------------------------------- properties


@given(engines(), batches())
@example(*TWO_AT_ONCE[0])
@example(*TWO_AT_ONCE[1])
def test_transfers_agree_with_the_twin(figures, blocks):
    sizes, ready, nodes = blocks
    engine = TransferEngine(**figures)
    expected = twin.transfer(sizes, ready, figures, nodes)
    if expected is None:
        with pytest.raises(TransferError):
            engine.transfer(as_floats(sizes), ready_s=as_floats(ready), block_node=np.array(nodes, dtype=int))
        return
    moved = engine.transfer(as_floats(sizes), ready_s=as_floats(ready), block_node=np.array(nodes, dtype=int))
    moved.check()
    columns = [np.array(column) for column in zip(*expected, strict=True)] or [np.zeros(0)] * 5
    assert moved.timeline.resource.tolist() == columns[0].tolist()
    np.testing.assert_allclose(moved.timeline.start_s, columns[1], **CLOSE)
    np.testing.assert_allclose(moved.timeline.finish_s, columns[2], **CLOSE)
    np.testing.assert_allclose(moved.arrive_s, columns[3], **CLOSE)
    assert moved.attempts.tolist() == columns[4].tolist()


@settings(max_examples=50)
@given(engines(), batches(), st.lists(st.integers(1, 4), min_size=2, max_size=3))
def test_worlds_never_meet(figures, blocks, scales):
    """The same blocks at several bandwidths, in one call and one by one; failures hit different blocks in each."""
    sizes, ready, nodes = as_floats(blocks[0]), as_floats(blocks[1]), np.array(blocks[2], dtype=int)
    worlds = [np.array(figures["bytes_per_second"]) * scale for scale in scales]
    try:
        alone = [
            TransferEngine(**figures | {"bytes_per_second": world}).transfer(sizes, ready_s=ready, block_node=nodes)
            for world in worlds
        ]
    except TransferError:
        return
    together = TransferEngine(**figures | {"bytes_per_second": worlds}).transfer(sizes, ready_s=ready, block_node=nodes)
    together.check()
    assert together.arrive_s.shape == (len(scales), len(sizes))
    for world, one in enumerate(alone):
        np.testing.assert_allclose(together.arrive_s[world], one.arrive_s, **CLOSE)
        assert together.attempts[world].tolist() == one.attempts.tolist()
        assert together.timeline.resource[world].tolist() == one.timeline.resource.tolist()
        assert together.lost.block[together.lost.world == world].tolist() == one.lost.block.tolist()


@settings(max_examples=50)
@given(engines(), batches())
def test_every_block_gets_through_once(figures, blocks):
    sizes, ready, nodes = blocks
    try:
        moved = TransferEngine(**figures).transfer(
            as_floats(sizes), ready_s=as_floats(ready), block_node=np.array(nodes, dtype=int)
        )
    except TransferError:
        return
    moved.check()
    assert np.isfinite(moved.arrive_s).all()
    assert (moved.retried == (moved.attempts > 1)).all()
    if not np.isfinite(figures["fail_s"]).any():
        assert not moved.retried.any()
        assert len(moved.lost.block) == 0


@settings(max_examples=50)
@given(batches(), st.lists(st.integers(0, 3), min_size=10, max_size=10), st.permutations(range(3)))
def test_the_numbers_of_streams_that_fail_together_do_not_matter(blocks, streams, numbers):
    sizes, ready, _ = blocks
    streams = np.array(streams[: len(sizes)], dtype=int)
    speed, renamed = np.array([1.0, 2.0, 5.0, 3.0]), np.array([*numbers, 3])
    fail = np.array([1.5, 1.5, 1.5, math.inf])
    one = TransferEngine(speed, fail_s=fail).transfer(as_floats(sizes), ready_s=as_floats(ready), streams=streams)
    speed[renamed] = speed.copy()
    other = TransferEngine(speed, fail_s=fail).transfer(
        as_floats(sizes), ready_s=as_floats(ready), streams=renamed[streams]
    )
    assert one.arrive_s.tolist() == other.arrive_s.tolist()
    assert one.lost.block.tolist() == other.lost.block.tolist()


@settings(max_examples=50)
@given(engines(may_fail=False), batches(), st.sampled_from([2.0, 8.0]))
def test_scaling_bytes_and_bandwidth_together_changes_nothing(figures, blocks, scale):
    sizes, ready, nodes = as_floats(blocks[0]), as_floats(blocks[1]), np.array(blocks[2], dtype=int)
    figures["fragment_bytes"] = None
    scaled = figures | {"bytes_per_second": scale * np.array(figures["bytes_per_second"])}
    one = TransferEngine(**figures).transfer(sizes, ready_s=ready, block_node=nodes)
    other = TransferEngine(**scaled).transfer(sizes * scale, ready_s=ready, block_node=nodes)
    np.testing.assert_array_equal(one.arrive_s, other.arrive_s)


@settings(max_examples=50)
@given(engines(may_fail=False), batches())
def test_given_streams_are_used(figures, blocks):
    sizes, ready, nodes = as_floats(blocks[0]), as_floats(blocks[1]), np.array(blocks[2], dtype=int)
    engine = TransferEngine(**figures)
    chosen = engine.transfer(sizes, ready_s=ready, block_node=nodes)
    given_ = engine.transfer(sizes, ready_s=ready, block_node=nodes, streams=chosen.timeline.resource)
    np.testing.assert_allclose(given_.arrive_s, chosen.arrive_s, **CLOSE)
