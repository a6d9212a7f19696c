"""The demo: every number of the five scenarios, that none of them is typed in, and what the command refuses."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvarray.demo
from kvarray import RadixTree
from kvarray.cli import main
from kvarray.demo import SCENARIOS, mechanisms
from kvarray.demo.scenario import Scenario
from tests.reference.demo import replay_exclusive_tiers

PRINTED = {
    1: {
        "refcounts_forked": "[2, 2]", "num_used": "3", "copies": "1", "refcounts": "[1, 2, 1, 2]",
        "evictions": "1", "num_free_after": "0",
    },
    2: {"hit_a": "0", "hit_b": "64", "hit_new": "64", "tokens_cached": "69", "nodes": "4"},
    3: {
        "hit_rate": "0.7059", "hits": "{cpu: 20, gpu: 4}", "misses": "10", "demotions": "{gpu->cpu: 24}",
        "occupancy": "{gpu: 4, cpu: 4, ssd: 0}", "migrations": "44", "accesses": "34",
        "total_cost_s": "0.046", "saved_prefill_s": "1.2", "savings_s": "1.154",
    },
    4: {
        "per_block_transfer_ms": "0.0419", "sequential_ttft_ms": "6.68", "pipelined_ttft_ms": "4.04",
        "pipelined_makespan_ms": "256.04", "overlap_gain_ms": "2.64", "sequential_ttft_2_streams_ms": "5.342",
        "sequential_wait_ms": "2.684", "pipelined_wait_ms": "0.042",
    },
    5: {
        "bytes_per_token_fp16": "327680", "bytes_per_token_fp8": "163840", "bytes_per_token_int4": "81920",
        "gib_per_seq_128k_fp16": "40.0", "gib_per_seq_128k_fp8": "20.0", "gib_per_seq_128k_int4": "10.0",
    },
}  # fmt: skip
"""Every number of the specification, as it is printed there."""


def show(capsys, *arguments):
    """What `kvarray demo` prints."""
    assert main(["demo", *map(str, arguments)]) == 0
    return capsys.readouterr().out


# --- what it refuses


@pytest.mark.parametrize("scenario", ["0", "10", "-1", "two", "1.5", "1,99"])
def test_refuses_an_unknown_scenario(capsys, scenario):
    assert main(["demo", f"--scenario={scenario}"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "a scenario must be one of 1 to 9: got" in captured.err


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_refuses_a_plot_folder_that_cannot_be_written(capsys, tmp_path, place):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("in the way")
    assert main(["demo", "--scenario", "5", "--plot", str(tmp_path / place)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert str(tmp_path / place) in captured.err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write everywhere")
def test_refuses_a_plot_folder_without_the_right_to_write(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    tmp_path.chmod(0o500)
    assert main(["demo", "--scenario", "5", "--plot", str(tmp_path / "below")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_says_what_plots_need(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["demo", "--scenario", "5", "--plot", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "kvarray demo: plots need matplotlib: pip install 'kvarray[plot]'\n"


# --- the numbers


@pytest.mark.parametrize("number", PRINTED)
def test_every_number_of_the_specification_is_printed(capsys, number):
    scenario, text = SCENARIOS[number](), show(capsys, "--scenario", number)
    printed = [item for line in text.splitlines() if line.startswith("     ") for item in line.strip().split("    ")]
    for name, value in PRINTED[number].items():
        assert scenario.written(name) == value
        assert f"{name}: {value}" in printed


def test_blocks():
    figures = mechanisms.blocks().figures
    assert (figures["num_used"], figures["copies"], figures["refcounts"]) == (3, 1, [1, 2, 1, 2])
    assert (figures["num_free"], figures["num_cached"]) == (0, 1)
    assert (figures["evictions"], figures["num_free_after"]) == (1, 0)


def test_prefix():
    figures = mechanisms.prefix().figures
    assert (figures["hit_a"], figures["hit_b"], figures["hit_new"]) == (0, 64, 64)
    assert (figures["tokens_cached"], figures["nodes"]) == (64 + 3 + 2, 4)


def test_tiers():
    figures = mechanisms.tiers().figures
    assert figures["hit_rate"] == 24 / 34
    assert (figures["hits"], figures["misses"]) == ({"cpu": 20, "gpu": 4}, 10)
    assert (figures["demotions"], figures["promotions"]) == ({"gpu->cpu": 24}, {"cpu->gpu": 20})
    assert figures["total_cost_s"] == pytest.approx(44 * 16777216 / 16e9, rel=1e-12)
    assert figures["saved_prefill_s"] == pytest.approx(24 * 0.05, rel=1e-12)
    assert figures["savings_s"] == pytest.approx(24 * 0.05 - 44 * 16777216 / 16e9, rel=1e-12)


def test_transfer():
    figures = mechanisms.transfer().figures
    block_ms = 1048576 / 25e9 * 1e3
    assert figures["per_block_transfer_ms"] == pytest.approx(block_ms, rel=1e-12)
    assert figures["sequential_ttft_ms"] == pytest.approx(64 * block_ms + 4, rel=1e-12)
    assert figures["sequential_ttft_2_streams_ms"] == pytest.approx(32 * block_ms + 4, rel=1e-12)
    assert figures["pipelined_ttft_ms"] == pytest.approx(block_ms + 4, rel=1e-12)
    assert figures["pipelined_makespan_ms"] == pytest.approx(block_ms + 64 * 4, rel=1e-12)
    assert figures["overlap_gain_ms"] == pytest.approx(63 * block_ms, rel=1e-12)


def test_economics():
    figures = mechanisms.economics().figures
    assert figures["bytes_per_token_fp16"] == 2 * 80 * 8 * 128 * 2
    assert [figures[f"gib_per_seq_128k_{dtype}"] for dtype in ("fp16", "fp8", "int4")] == [40.0, 20.0, 10.0]


def test_lfu_against_lru():
    figures = SCENARIOS[6]().figures
    assert figures["hits_repeated"] == {"lru": 24, "lfu": 24}
    assert figures["hits_one_off"]["lfu"] > figures["hits_one_off"]["lru"]
    assert figures["hits_shifted"]["lfu"] < figures["hits_shifted"]["lru"]
    assert figures["accesses_one_off"] == 34 + 8 * (4 + 6)


def test_transfer_by_layers():
    figures = SCENARIOS[7]().figures
    layer_ms = 64 * 1048576 / 80 / 25e9 * 1e3
    # The first group has to arrive; the others hide behind decoding, one layer of which takes longer than its KV.
    for group, ttft in figures["layered_ttft_ms"].items():
        assert ttft == pytest.approx(group * layer_ms + 4, rel=1e-12)
    assert figures["sequential_ttft_ms"] == pytest.approx(figures["layered_ttft_ms"][80], rel=1e-12)


def test_prefixes_by_blocks():
    figures = SCENARIOS[8]().figures
    for size, hit in figures["hit_b"].items():
        assert hit == 100 // size * size
        assert figures["tokens_cached"][size] == hit + (130 // size * size - hit) + (120 // size * size - hit)
    assert figures["refused_while_a_is_locked"] == {"requested": 1, "available": 0}
    assert figures["blocks_b"][:6] == figures["blocks_a"][:6]
    assert figures["blocks_b"][6:] == [figures["blocks_a"][7]]  # the deepest block went


def test_sink_first():
    figures = SCENARIOS[9]().figures
    assert figures["computed"] == {"alone": figures["accesses"], "over tiers": 12}
    assert sum(figures["loaded"].values()) == figures["accesses"] - 12
    assert figures["evictions"] == figures["accesses"] - 4
    assert figures["evictions_when_sink_fails"] == 0


# --- computed, not typed in


def _constants(node):
    """All constants of a syntax tree, docstrings aside; what is computed of constants, such as 2**20, is one."""
    if isinstance(node, ast.BinOp) and all(
        isinstance(part, ast.BinOp | ast.Constant | ast.operator) for part in ast.walk(node)
    ):
        yield eval(compile(ast.Expression(node), "", "eval"))
    elif isinstance(node, ast.Constant):
        yield node.value
    else:
        has_docstring = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
        for child in ast.iter_child_nodes(node):
            if not (has_docstring and child is node.body[0]):
                yield from _constants(child)


def test_no_result_is_a_literal_in_the_source():
    """The numbers in the source are the inputs and small counts; no text contains a result."""
    constants = []
    for path in Path(kvarray.demo.__file__).parent.glob("*.py"):
        constants += _constants(ast.parse(path.read_text()))
    numbers = {value for value in constants if isinstance(value, int | float) and not isinstance(value, bool)}
    counts = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
    sizes = {16, 20, 30, 64, 80, 100, 128}  # 20 is a tail of exercise 8, not the hits of a tier
    units = {1024, 128 * 1024, 2**20, 16 * 2**20, 2**30, 1e3, 1e9}
    assert numbers - counts - sizes - units == {0.050, 16e9, 25e9, 4e-3}
    results = {value for figures in PRINTED.values() for value in figures.values() if len(value) > 2}
    texts = [value for value in constants if isinstance(value, str)]
    assert not [(text, result) for text in texts for result in results if result in text]


@pytest.mark.parametrize(("system", "tails"), [(64, (3, 2)), (5, (1, 7)), (30, (4, 4))], ids=lambda value: str(value))
def test_prefix_follows_its_inputs(system, tails):
    figures = mechanisms.prefix(system_tokens=system, tail_tokens=tails).figures
    assert (figures["hit_b"], figures["hit_new"]) == (system, system)
    assert figures["tokens_cached"] == system + sum(tails)


@pytest.mark.parametrize("sizes", [(4, 4, 16), (2, 3, 4), (1, 1, 1), (3, 5, 1), (9, 1, 1)])
def test_tiers_follow_their_inputs(sizes):
    keys, is_full = mechanisms.document_reads()
    hits, moves, occupancy = replay_exclusive_tiers(keys, is_full, sizes)
    gpu, cpu, ssd = sizes
    figures = mechanisms.tiers(gpu_blocks=gpu, cpu_blocks=cpu, ssd_blocks=ssd, block_s=0.5).figures
    names = ("gpu", "cpu", "ssd")
    assert figures["hits"] == {name: count for name, count in zip(names, hits, strict=True) if count}
    assert figures["migrations"] == moves
    assert list(figures["occupancy"].values()) == occupancy
    assert figures["total_cost_s"] == pytest.approx(moves * 2**24 / 16e9)
    assert figures["saved_prefill_s"] == pytest.approx(sum(hits) * 0.5)


@pytest.mark.parametrize(("num_blocks", "streams", "decode_ms"), [(64, 2, 4.0), (7, 3, 0.01), (1, 1, 2.0)])
def test_transfer_follows_its_inputs(num_blocks, streams, decode_ms):
    figures = mechanisms.transfer(num_blocks=num_blocks, num_streams=streams, decode_s=decode_ms / 1e3).figures
    block_ms = 2**20 / 25e9 * 1e3
    longest = -(-num_blocks // streams)
    assert figures["sequential_ttft_ms"] == pytest.approx(num_blocks * block_ms + decode_ms)
    assert figures[f"sequential_ttft_{streams}_streams_ms"] == pytest.approx(longest * block_ms + decode_ms)
    assert figures["pipelined_ttft_ms"] == pytest.approx(block_ms + decode_ms)


def test_economics_follow_their_inputs():
    figures = mechanisms.economics(num_layers=3, num_kv_heads=2, head_dim=10, context_tokens=2**11).figures
    assert figures["bytes_per_token_fp8"] == 2 * 3 * 2 * 10
    assert figures["gib_per_seq_2k_int4"] == 2**11 * 60 / 2**30


# --- how it is shown


def test_all_scenarios_by_default_and_some_on_request(capsys):
    whole = show(capsys)
    assert [line[0] for line in whole.splitlines() if line[:1].isdigit()] == list("123456789")
    some = show(capsys, "--scenario", "4", "--scenario", "2,4")
    assert some == f"{SCENARIOS[2]().to_text()}\n\n{SCENARIOS[4]().to_text()}\n"
    assert all(part in whole for part in some.split("\n\n"))


def test_each_scenario_says_how_to_read_it():
    for number, make in SCENARIOS.items():
        scenario = make()
        assert isinstance(scenario, Scenario)
        assert scenario.number == number
        assert scenario.reading.endswith(".")
        assert "\n" not in scenario.reading
        assert max(map(len, scenario.to_text().splitlines())) <= 120
        assert set(scenario.digits) <= set(scenario.figures)


def test_json_has_all_figures_unrounded(capsys):
    answer = json.loads(show(capsys, "--json"))
    assert [one["number"] for one in answer["scenarios"]] == list(SCENARIOS)
    tiers = answer["scenarios"][2]["figures"]
    assert tiers["hit_rate"] == 24 / 34
    assert tiers["hits"] == {"cpu": 20, "gpu": 4}


def test_two_runs_print_the_same_bytes():
    command = [sys.executable, "-m", "kvarray", "demo"]
    runs = [
        subprocess.run(command, capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != b""


def test_pictures(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    for folder in ("one", "two/below"):
        show(capsys, "--plot", tmp_path / folder)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == [
        "2-tree.png", "3-tiers.png", "4-gantt.png", "5-bars.png", "6-bars.png", "7-gantt.png", "8-tree.png",
        "9-bars.png",
    ]  # fmt: skip
    for name in names:
        content = (tmp_path / "one" / name).read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        assert content == (tmp_path / "two" / "below" / name).read_bytes()


def test_pictures_of_nothing():
    pytest.importorskip("matplotlib")
    from kvarray.plot import plot_bars, plot_tree

    assert plot_tree(RadixTree(4)).axes
    with pytest.raises(ValueError, match="bars must have one series or more"):
        plot_bars({}, label="blocks")


# --- light


def _least_cpu_seconds(statement: str, cache: Path, *, rounds: int = 5) -> float:
    """The least CPU time of some runs of a statement, after one that writes the bytecode."""
    probe = f"import time, numpy; start = time.process_time(); {statement}; print(time.process_time() - start)"
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache), "PYTHONDONTWRITEBYTECODE": ""}
    runs = [
        subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, env=env)
        for _ in range(rounds + 1)
    ]
    return min(float(run.stdout.splitlines()[-1]) for run in runs[1:])


def test_the_import_is_light(tmp_path):
    # 40 ms are the aim on a quiet machine; four times as much allows for a busy or a slow one.
    assert _least_cpu_seconds("import kvarray", tmp_path) < 0.160


def test_the_demo_is_fast(tmp_path):
    # Half a second is the aim for all of it, interpreter and imports included.
    run = "import sys; sys.argv = ['kvarray', 'demo']; from kvarray.cli import main; main()"
    assert _least_cpu_seconds(run, tmp_path) < 1.5
