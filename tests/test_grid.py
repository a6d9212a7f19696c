"""Sweeps: what they refuse, examples by hand, and every row against a replay of its own."""

import os
import re
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarray import Deployment, Grid, Link, OversizeError, Prices, SweepError, Trace, TraceError, replay, sweep
from kvarray.grid.axes import read_axis
from tests.reference import grid as reference
from tests.strategies import chained

BASE = {
    "bytes_per_token": 4,
    "prefill": {"start": 0.25, "per_token": 0.5, "per_pair": 0.01},
    "decode": {"base": 0.25},
    "tiers": ["gpu=8blocks", "cpu=8blocks@64B/s"],
}


def small_trace(**columns):
    """Three requests over a document and its neighbour."""
    return Trace([1, 2, 3, 4, 5, 6, 1, 2, 3], [0, 3, 6, 9], block_size=4, arrival_s=[0.0, 9.0, 20.0], **columns)


def assert_rows(result, expected):
    """Integers and rates of them exactly, times but for the order of sums."""
    assert len(result) == len(expected)
    for row, wanted in enumerate(expected):
        longest = max(wanted["max_ttft_s"], 1.0)
        for name, value in wanted.items():
            found = result[name][row].item()
            if isinstance(value, int):
                assert found == value, (row, name)
            else:
                assert found == pytest.approx(value, rel=1e-11, abs=1e-11 * longest), (row, name)


# --- what it refuses


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"cpu.capasity": [1]}, "unknown axis 'cpu.capasity'; did you mean cpu.capacity"),
        ({"hbm.capacity": [1]}, "unknown axis 'hbm.capacity'"),
        ({"replica": [1]}, "unknown axis 'replica'; did you mean replicas"),
        ({"replicas": []}, "axis 'replicas' must have one value or more"),
        ({"replicas": [1, 2, 1]}, "axis 'replicas' must have each value once: got 1 again"),
        ({"replicas": [1, 0]}, "axis 'replicas', value 0: replicas"),
        ({"policy": ["lru", "lur"]}, "axis 'policy', value lur: policy must be one of"),
        ({"cpu.capacity": ["1GiB", "x"]}, "axis 'cpu.capacity': a size must"),
        ({"cpu.capacity": [0]}, "cpu.capacity must be"),
        ({"cpu.bandwidth": [0.0]}, "cpu.bandwidth must be"),
        ({"cpu.bandwidth": [float("inf")]}, "cpu.bandwidth must be finite"),
        ({"cpu.bandwidth": ["3"]}, "axis 'cpu.bandwidth': a rate must"),
        ({"gpu.bandwidth": [1e9]}, "tier 'gpu' must have a link up"),
        ({"cpu.capacity": "1GiB:2GiB:1"}, "a ladder must rise"),
        ({"cpu.capacity": "1GiB:2:3x"}, "a ladder must be LOW:HIGH:COUNT"),
        ({"cpu.capacity": [64], "cpu.blocks": [3]}, "say the same"),
        ({"separation.streams": [1]}, "unknown axis 'separation.streams'"),
        ({"rate_scale": [0.0]}, "rate_scale must be"),
        ({"cpu.blocks": np.ones((2, 2), dtype=np.int64)}, "must have one dimension"),
    ],
)
def test_axes(axes, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        Grid(BASE, axes)
    assert "\n" not in str(caught.value)


def test_what_a_grid_is_made_of():
    with pytest.raises(TypeError, match="base must be a Deployment or a mapping"):
        Grid(3, {})
    with pytest.raises(TypeError, match="axes must map"):
        Grid(BASE, ["replicas"])
    with pytest.raises(ValueError, match="grid must be a table"):
        Grid.from_dict(BASE)
    with pytest.raises(ValueError, match="prices must be of tiers that are there, cpu, gpu: got 'ssd'"):
        Grid(BASE, {}, prices={"ssd": "1/GiB-month"})
    with pytest.raises(TypeError, match="must be like '2/GiB-month'"):
        Grid(BASE, {}, prices={"cpu": 2.0})


def test_a_toml_file_with_an_unknown_key(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text('tiers = ["gpu=1GiB"]\nbytes_per_token = 4\nprefil = "x"\n[grid]\nreplicas = [1]\n')
    with pytest.raises(ValueError, match="unknown key 'prefil'; did you mean prefill"):
        Grid.from_toml(path)


def test_the_size_is_said_before_anything_runs():
    grid = Grid(BASE, {"cpu.blocks": list(range(8, 1008)), "cpu.bandwidth": list(range(1, 1001)), "replicas": [1, 2]})
    with pytest.raises(
        ValueError, match=r"2,000,000 combinations \(1000 x 1000 x 2\), more than the limit of 1,000,000"
    ):
        sweep(small_trace(), grid)


def test_arguments():
    grid = Grid(BASE, {"replicas": [1, 2]})
    with pytest.raises(TypeError, match="grid must be a Grid"):
        sweep(small_trace(), {"replicas": [1]})
    with pytest.raises(TypeError, match="rng must be given with samples"):
        sweep(small_trace(session=[0, 1, 0]), grid, samples=3)
    with pytest.raises(TraceError, match="no sessions, which intervals are drawn from"):
        sweep(small_trace(), grid, samples=3, rng=1)
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        sweep(small_trace(session=[0, 1, 0]), grid, samples=3, rng=1, confidence=1.0)
    with pytest.raises(ValueError, match="finished parts must be of this grid"):
        sweep(small_trace(), grid, finished={(0, 9): {}})


def test_a_tier_that_cannot_hold_the_largest_request_in_one_combination():
    with pytest.raises(OversizeError, match="the tier 2 blocks"):
        sweep(small_trace(), Grid(BASE, {"gpu.blocks": [9, 2, 4]}))
    result = sweep(small_trace(), Grid(BASE | {"allow_oversize": True}, {"gpu.blocks": [9, 2, 4]}))
    assert result["hit_tokens"].tolist() == [12, 12, 12]


def test_write_through_tiers_that_shrink():
    with pytest.raises(ValueError, match="not fall from tier to tier"):
        sweep(small_trace(), Grid(BASE | {"write_mode": "write_through"}, {"cpu.blocks": [9, 4]}))


def test_columns_and_axes_that_are_not_there():
    result = sweep(small_trace(), Grid(BASE, {"cpu.blocks": [1, 9], "policy": ["lru", "lfu"]}))
    with pytest.raises(ValueError, match=r"unknown column 'mean_ttft'; did you mean mean_ttft_s"):
        result["mean_ttft"]
    with pytest.raises(ValueError, match=r"cost_per_hour.*needs prices"):
        result.cheapest()
    with pytest.raises(ValueError, match=r"axis must be one of cpu\.blocks, policy"):
        result.axis("cpu")
    with pytest.raises(ValueError, match="must have numbers"):
        result.marginal("gain_s", "policy")
    with pytest.raises(ValueError, match="one column or more"):
        result.pareto()
    with pytest.raises(ValueError, match="read-only"):
        result["gain_s"][0] = 1.0


# --- examples


def test_ladders_and_labels():
    axis = read_axis("cpu.capacity", "1GiB:16GiB:3")
    assert [axis.label(k) for k in range(3)] == ["1 GiB", "4 GiB", "16 GiB"]
    assert read_axis("rate_scale", "0.5:2:3").values == (0.5, 1.0, 2.0)
    assert read_axis("cpu.blocks", "1:3:9").values == (1, 2, 3)
    assert read_axis("recompute_slow", "false,true").values == (False, True)


def test_tables_of_toml(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(
        'bytes_per_token = 4\nprefill = "llama-3.1-8b-h100"\ntiers = ["gpu=1GiB", "cpu=2GiB@50GB/s"]\n'
        '[grid]\nreplicas = [1, 2]\n"cpu.bandwidth" = ["25GB/s"]\n[grid.gpu]\ncapacity = "1GiB:4GiB:3"\n'
        '[prices]\ncpu = "2/GiB-month"\nreplica = 3.5\n"cpu.bandwidth" = 0.5\n'
    )
    grid = Grid.from_toml(path)
    assert [axis.name for axis in grid.axes] == ["replicas", "cpu.bandwidth", "gpu.capacity"]
    assert grid.size == 6
    assert grid.deployment(5).tiers[0].capacity_bytes == 4 * 2**30
    assert grid.deployment(5).tiers[1].up == Link(25e9)
    assert grid.prices == Prices.from_dict({"cpu": "2/GiB-month", "replica": 3.5, "cpu.bandwidth": 0.5})
    with pytest.raises(IndexError):
        grid.deployment(6)


def test_what_to_make_of_it():
    prices = {"cpu": "730/GiB-month", "replica": 1.0}
    base = BASE | {"tiers": ["gpu=4blocks", "cpu=1GiB@64B/s"], "bytes_per_token": 2**26}
    grid = Grid(base, {"cpu.capacity": ["256MiB", "512MiB", "1GiB"], "cpu.bandwidth": [2**28, 2**40]}, prices=prices)
    result = sweep(small_trace(), grid)
    assert result["hit_tokens"].tolist() == [8, 8, 12, 12, 12, 12]
    assert result["cost_per_hour"].tolist() == [1.25, 1.25, 1.5, 1.5, 2.0, 2.0]
    gain = result.table("gain_s")
    assert result.marginal("gain_s", "cpu.capacity") == pytest.approx(np.diff(gain, axis=0) / [[0.25], [0.5]])
    per_cost = result.marginal("gain_s", "cpu.capacity", per="cost_per_hour")
    assert per_cost == pytest.approx(np.diff(gain, axis=0) / [[0.25], [0.5]])
    assert np.isnan(result.marginal("gain_s", "cpu.bandwidth", per="cost_per_hour")).all()
    assert result.enough("cpu.capacity", row=1) == 1
    assert result.cheapest(at_least={"token_hit_rate": 0.3}) == 2
    assert result.cheapest(at_most={"cost_per_hour": 1.0}) is None
    assert result.pareto(least=["cost_per_hour"], most=["gain_s"]).tolist() == [1, 3]
    assert result.pareto(least=["cost_per_hour", "mean_ttft_s"], most=["gain_s"]).tolist() == [1, 3]
    assert result.values(3) == {"cpu.capacity": 2**29, "cpu.bandwidth": 2.0**40}
    assert result.rows()[3]["hit_tokens"] == 12


def test_tiers_that_come_and_go():
    tiers = [["gpu=4blocks"], ["gpu=4blocks", "cpu=9blocks@64B/s"], ["gpu=4blocks", "ssd=9blocks@8B/s"]]
    result = sweep(small_trace(), Grid(BASE, {"tiers": tiers, "gpu.blocks": [3, 5]}))
    assert result["hit_tokens_cpu"].tolist() == [0, 0, 12, 4, 0, 0]
    assert result["hit_tokens_ssd"].tolist() == [0, 0, 0, 0, 12, 4]
    assert result["hit_tokens_gpu"].tolist() == [0, 8, 0, 8, 0, 8]


def test_a_grid_without_axes_is_one_replay():
    result = sweep(small_trace(), Grid(BASE, {}))
    assert_rows(result, reference.sweep(small_trace(), BASE, {}))


def test_no_requests():
    empty = Trace([], [0], block_size=4)
    result = sweep(empty, Grid(BASE, {"cpu.blocks": [1, 2]}))
    assert result["mean_ttft_s"].tolist() == [0.0, 0.0]
    assert result["throughput_ceiling"].tolist() == [np.inf, np.inf]


# --- every row is a replay


@st.composite
def workloads(draw):
    """Traces of chained blocks with arrivals that differ, sessions, answers, partial and unhashed tails."""
    rows = chained(draw(st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=2, max_size=9)))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.5, 3.0, 40.0]), min_size=len(rows), max_size=len(rows)))
    arrival = np.cumsum(gaps) + np.arange(len(rows)) * 0.125
    input_tokens = [max(1, 4 * len(row) - draw(st.integers(-3, 3 if row else 0))) for row in rows]
    return Trace(
        [block for row in rows for block in row],
        np.cumsum([0, *map(len, rows)]),
        block_size=4,
        input_tokens=input_tokens,
        output_tokens=draw(st.lists(st.integers(0, 5), min_size=len(rows), max_size=len(rows))),
        arrival_s=arrival,
        session=draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows))),
    )


VALUES = {
    "gpu.blocks": [9, 12, 30],
    "cpu.blocks": [1, 3, 40],
    "ssd.blocks": [1, 5, 60],
    "cpu.bandwidth": [16.0, 1e3, 1e6],
    "ssd.bandwidth": [4.0, 300.0],
    "cpu.link": [Link(64.0, latency_s=0.5), Link(1e3, alpha_s=0.125)],
    "replicas": [1, 2, 3],
    "routing": ["round_robin", "session", "prefix_hash", "least_loaded", "prefix_aware"],
    "policy": ["lru", "lfu"],
    "write_mode": ["exclusive", "write_through", "write_back"],
    "block_size": [4, 8],
    "overlap_efficiency": [0.0, 0.5, 1.0],
    "min_load_tokens": [0, 8],
    "recompute_slow": [False, True],
    "min_prefill_tokens": [0, 1, 6],
    "queueing": [True, False],
    "window": [0.0, 0.3],
    "unit": ["token", "mean_token", "mean_block"],
    "rate_scale": [0.5, 1.0, 20.0],
    "target_ttft": [2.0],
}
WIDE = {
    "bytes_per_token": 4,
    "prefill": {"start": 0.25, "per_token": 0.5, "per_pair": 0.01},
    "decode": {"base": 0.25, "per_token": 0.01},
    "allow_oversize": True,
    "smaller_below": True,
    "tiers": [
        "gpu=9blocks",
        {"name": "cpu", "blocks": 5, "link": {"rate": 64.0, "latency": 0.25, "alpha": 0.125}},
        {"name": "ssd", "blocks": 9, "link": {"rate": 8.0, "latency": 0.5}},
    ],
}


@st.composite
def grids(draw):
    """Up to four axes out of `VALUES`, over tiers with links that cost something of every kind."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4, unique=True))
    if {"cpu.link", "cpu.bandwidth"} <= {*names}:
        names.remove("cpu.link")
    return {name: draw(st.lists(st.sampled_from(VALUES[name]), min_size=1, max_size=2, unique=True)) for name in names}


@given(workloads(), grids(), st.booleans())
@settings(max_examples=60)
def test_every_row_is_a_replay(trace, axes, direct):
    base = dict(WIDE)
    if direct:
        base["tiers"] = [*WIDE["tiers"][:2], {"name": "ssd", "blocks": 9, "link": 8.0, "direct": 16.0}]
    grid = Grid(base, axes)
    expected = reference.sweep(trace, base, axes)
    result = sweep(trace, grid)
    assert_rows(result, expected)
    hits = sweep(trace, grid, ttft=False)
    for row, wanted in enumerate(expected):
        for name in hits.columns:
            assert hits[name][row].item() == pytest.approx(wanted[name], rel=1e-11, abs=1e-10), (row, name)


@given(workloads(), st.sampled_from(["sequential", "pipelined", "layered", "chunked"]))
@settings(max_examples=20)
def test_rows_with_prefill_and_decode_apart(trace, schedule):
    base = WIDE | {"separation": {"link": 64.0, "schedule": schedule, "layers": 3, "chunk_tokens": 6}}
    axes = {"cpu.blocks": [1, 20], "separation.streams": [1, 2], "cpu.bandwidth": [16.0, 1e3]}
    assert_rows(sweep(trace, Grid(base, axes)), reference.sweep(trace, base, axes))


@given(workloads(), grids())
@settings(max_examples=15)
def test_a_base_of_objects_and_one_of_plain_values_agree(trace, axes):
    plain = Grid(WIDE, axes)
    axes = {name: values for name, values in axes.items() if name != "target_ttft"}
    objects = sweep(trace, Grid(replace(Deployment.from_dict(WIDE), target_ttft_s=2.0), axes))
    result = sweep(trace, plain)
    for name in result.columns:
        assert result[name].tolist() == objects[name].tolist()


@given(workloads(), grids(), st.integers(1, 5))
@settings(max_examples=15)
def test_the_same_bits_however_the_grid_is_cut(trace, axes, parts):
    grid = Grid(WIDE, axes)
    whole = sweep(trace, grid, samples=3, rng=5)
    with ThreadPoolExecutor(2) as pool:
        cut = sweep(trace, grid, samples=3, rng=5, executor=pool, parts=parts)
    assert list(whole.columns) == list(cut.columns)
    for name in whole.columns:
        assert whole[name].tobytes() == cut[name].tobytes(), name


# --- intervals


@given(workloads(), st.integers(0, 9))
@settings(max_examples=20)
def test_intervals_are_those_of_sessions_drawn_one_by_one(trace, seed):
    result = sweep(trace, Grid(WIDE, {"cpu.bandwidth": [16.0, 1e3]}), samples=7, rng=seed, confidence=0.6)
    drawn = np.random.default_rng(seed).integers(
        len(set(trace.session.tolist())), size=(7, len(set(trace.session.tolist())))
    )
    names = sorted(set(trace.session.tolist()))
    for row in range(2):
        alone = replay(trace, result.deployment(row))
        means, rates, medians = [], [], []
        for sample in drawn.tolist():
            rows = [i for k in sample for i in range(trace.num_requests) if trace.session[i] == names[k]]
            times = sorted(alone.ttft_s[i] for i in rows)
            means.append(sum(times) / len(times))
            medians.append(times[-(-50 * len(times) // 100) - 1])
            rates.append(sum(alone.hit_tokens[i].sum() for i in rows) / sum(trace.input_tokens[i] for i in rows))
        for name, values in (("mean_ttft_s", means), ("ttft_p50_s", medians), ("token_hit_rate", rates)):
            low, high = np.quantile(values, [0.2, 0.8])
            assert result[f"{name}_low"][row] == pytest.approx(low)
            assert result[f"{name}_high"][row] == pytest.approx(high)


# --- executors


def test_processes_and_a_generator():
    trace = small_trace(session=[0, 1, 0])
    grid = Grid(BASE, {"cpu.blocks": [1, 2, 9], "cpu.bandwidth": [4.0, 64.0], "replicas": [1, 2]})
    told = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        result = sweep(trace, grid, executor=pool, samples=2, rng=np.random.default_rng(3), progress=told.append)
    alone = sweep(trace, grid, samples=2, rng=np.random.default_rng(3))
    assert sum(told) == grid.size
    for name in alone.columns:
        assert result[name].tobytes() == alone[name].tobytes()


class Dying(Executor):
    """Runs parts at once, but for one that kills the process it is in."""

    def __init__(self, pool, victim):
        self.pool, self.victim = pool, victim

    def submit(self, call, trace, grid, part, /, **rest):
        if part == self.victim:
            return self.pool.submit(os._exit, 3)
        future = Future()
        future.set_result(call(trace, grid, part, **rest))
        return future


def test_a_process_that_dies():
    trace, grid = small_trace(), Grid(BASE, {"cpu.blocks": [1, 2, 3, 9], "replicas": [1, 2]})
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool, pytest.raises(SweepError) as caught:
        sweep(trace, grid, executor=Dying(pool, (2, 4)), parts=4)
    error = caught.value
    assert "1 of 4 parts of the sweep were lost (2:4)" in str(error)
    assert "BrokenProcessPool" in str(error)
    assert error.lost == ((2, 4),)
    assert sorted(error.finished) == [(0, 2), (4, 6), (6, 8)]
    told = []
    result = sweep(trace, grid, finished=error.finished, progress=told.append)
    assert sum(told) == 2
    alone = sweep(trace, grid)
    for name in alone.columns:
        assert result[name].tobytes() == alone[name].tobytes()


def test_an_executor_that_was_shut_down():
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(SweepError, match="2 of 2 parts"):
        sweep(small_trace(), Grid(BASE, {"cpu.blocks": [1, 2]}), executor=pool, parts=2)


def test_what_is_wrong_with_a_deployment_is_said_as_it_is():
    with ThreadPoolExecutor(1) as pool, pytest.raises(OversizeError):
        sweep(small_trace(), Grid(BASE, {"gpu.blocks": [9, 2]}), executor=pool)


def test_a_dask_cluster():
    distributed = pytest.importorskip("distributed", reason="needs kvarray[dask]")
    trace, grid = small_trace(), Grid(BASE, {"cpu.blocks": [1, 2, 9], "cpu.bandwidth": [4.0, 64.0]})
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as pool,
    ):
        result = sweep(trace, grid, executor=pool, parts=3)
    alone = sweep(trace, grid)
    for name in alone.columns:
        assert result[name].tobytes() == alone[name].tobytes()


def test_long_axes_are_read_in_one_pass_and_longer_ones_refused():
    assert len(read_axis("cpu.capacity", "1GiB:1TiB:20000").values) == 20_000
    with pytest.raises(ValueError, match="a ladder must have 1,000,000 values or fewer"):
        read_axis("cpu.capacity", "1GiB:1TiB:99999999")
    with pytest.raises(ValueError, match="must have each value once: got 4 again"):
        read_axis("replicas", [4, 2, 4])
