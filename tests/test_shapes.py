"""Shapes that do not fit are refused by name, in timelines, schedules, fits and times.

An error of NumPy's names neither argument nor rule. Its traceback ends anywhere but in a ``raise`` of this package.
"""

import traceback
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import kvarray as kv

SHAPES = [(), (0,), (1,), (2,), (3,), (2, 1), (1, 2), (2, 2), (3, 2), (3, 1), (2, 0), (0, 2), (2, 3), (2, 1, 3)]
PACKAGE = Path(kv.__file__).parent
PREFILL, LINK = kv.PrefillTime(1.0, 1.0, 1.0), kv.Link(1.0)


def ids(shape):
    return np.zeros(shape, dtype=int)


def scheduler(engine, share):
    return kv.PDScheduler(kv.TransferEngine(np.ones(engine)), overlap_efficiency=np.ones(share) / 2)


def batch(engine, share, arrival, size, prefill, decode):
    return kv.schedule_batch(
        scheduler(engine, share), "layered", arrival_s=np.ones(arrival), piece_bytes=np.ones(size),
        piece_offsets=[0, 1, 2], prefill_s=np.ones(prefill), decode_s=np.ones(decode),
    )  # fmt: skip


one = np.ones
CALLS = {  # each takes as many shapes as it has parameters
    "serial_timeline": lambda a, b, c: kv.serial_timeline(one(a), ready_s=one(b), free_s=one(c)),
    "round_robin_timeline": lambda a, b, c: kv.round_robin_timeline(one(a), 2, ready_s=one(b), free_s=one(c)),
    "assigned_timeline": lambda a, b, c: kv.assigned_timeline(one(a), ids(b), 2, ready_s=one(c)),
    "least_loaded_timeline": lambda a, b, c: kv.timeline.least_loaded_timeline(one(a), ready_s=one(b), free_s=one(c)),
    "fcfs_queue": lambda a, b: kv.fcfs_queue(one(a), one(b), num_servers=2),
    "pipeline_timeline": lambda a, b: kv.pipeline_timeline(one(a), ready_s=one(b)),
    "processor_sharing_queue": lambda a, b: kv.processor_sharing_queue(one(a), one(b)),
    "max_min_rates": lambda a, b, c: kv.max_min_rates(ids(a), one(b), active=one(c) > 0.0),
    "max_min_queue": lambda a, b, c, d: kv.max_min_queue(
        one(a), one(b), endpoints=ids(c), bytes_per_second=one(d)
    ),
    "transfer": lambda a, b, c, d: kv.TransferEngine(one(a)).transfer(one(b), ready_s=one(c), streams=ids(d)),
    "figures": lambda a, b, c, d: kv.TransferEngine(one(a), latency_s=one(b), alpha_s=one(c), fail_s=one(d)),
    "sequential": lambda a, b, c, d, e: scheduler(a, b).sequential(one(c), prefill_s=one(d), decode_s=one(e)),
    "pipelined": lambda a, b, c, d, e: scheduler(a, b).pipelined(one(c), prefill_s=one(d), decode_s=one(e)),
    "layered": lambda a, b, c, d, e: scheduler(a, b).layered(one(c), prefill_s=one(d), decode_s=one(e)),
    "chunked": lambda a, b, c, d, e: scheduler(a, b).chunked(one(c), prefill_s=one(d), decode_s=one(e)),
    "schedule_batch": batch,
    "best_group": lambda a, b, c, d, e: kv.best_group(
        scheduler(a, b), one(c), decode_s=one(d), group_layers=ids(e) + 1
    ),
    "best_chunk": lambda a, b, c, d: kv.best_chunk(
        scheduler(a, b), PREFILL, num_tokens=4, kv_bytes_per_token=1.0, chunk_tokens=ids(c) + 1, decode_s=one(d)
    ),
    "overlap_bandwidth": lambda a, b, c, d, e: kv.overlap_bandwidth(
        one(a), one(b), overhead_s=one(c), latency_s=one(d), stream_shares=one(e)
    ),
    "fit_costs": lambda a, b, c: kv.fit_costs(one(a), start=one(b), item=one(c)),
    "fit_link": lambda a, b, c: kv.fit_link(one(a), one(b), num_fragments=one(c)),
    "fit_prefill": lambda a, b, c: kv.fit_prefill(one(a), one(b), cached_tokens=one(c)),
    "fit_decode": lambda a, b, c: kv.fit_decode(one(a), one(b), seconds=one(c)),
    "load_or_recompute": lambda a, b, c, d, e: kv.load_or_recompute(
        PREFILL, LINK, num_tokens=one(a), kept_tokens=one(b), kv_bytes_per_token=1.0,
        overlap_efficiency=one(c) / 2, link_load=one(d) / 2, compute_load=one(e) / 2,
    ),
}  # fmt: skip


def raised_by(call, shapes):
    """Where a call of so many shapes raised an error that it may raise; None if it did not."""
    try:
        call(*shapes[: call.__code__.co_argcount])
    except (TypeError, ValueError, kv.KVArrayError) as error:
        return traceback.extract_tb(error.__traceback__)[-1]
    return None


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=60)
@given(st.lists(st.sampled_from(SHAPES), min_size=6, max_size=6))
@example([(3, 1), (2,), (2,), (2,), (2,), (2,)])
@example([(2, 1), (2,), (2,), (2,), (3, 2), (3, 1)])
def test_shapes_that_do_not_fit_are_refused_by_name(name, shapes):
    last = raised_by(CALLS[name], shapes)
    if last is not None:
        assert PACKAGE in Path(last.filename).parents
        assert last.line.startswith("raise ")


def test_a_fit_needs_a_column():
    with pytest.raises(ValueError, match="a fit needs one column of costs or more: got none"):
        kv.fit_costs([1.0, 2.0])


@pytest.mark.parametrize(("num_tokens", "chunk"), [(2**62, 1), (2**62, 2**30), (10**7 + 1, 1)])
def test_chunks_are_of_a_number_that_memory_holds(num_tokens, chunk):
    with pytest.raises(ValueError, match="chunk_tokens must make 10000000 chunks or fewer of "):
        PREFILL.chunk_seconds(num_tokens, chunk)
    assert len(PREFILL.chunk_seconds(2**62, 2**60)) == 4


RAGGED = [[0, 1], [1]]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: kv.TransferEngine([1.0, 1.0]).transfer([1.0], streams=RAGGED), "streams"),
        (lambda: kv.assigned_timeline([1.0], RAGGED, 2), "streams"),
        (lambda: kv.max_min_rates(RAGGED, [1.0]), "endpoints"),
        (lambda: kv.max_min_rates([[0]], [1.0], active=RAGGED), "active"),
        (lambda: kv.best_group(scheduler((1,), ()), RAGGED, decode_s=1.0), "layer_bytes"),
        (lambda: kv.Link(1.0, latency_s=RAGGED), "latency_s"),
        (
            lambda: kv.schedule_batch(
                scheduler((1,), ()), "layered", arrival_s=[0.0], piece_bytes=RAGGED, piece_offsets=[0, 1], decode_s=1.0
            ),
            "piece_bytes",
        ),
    ],
)
def test_rows_of_different_lengths_are_refused_by_name(call, name):
    with pytest.raises(ValueError, match=f"{name} must be an array: its rows have different lengths"):
        call()
