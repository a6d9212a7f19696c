"""`kvarray tiers`: what it prints, what it refuses, its pictures."""

import csv
import io
import json

import pytest

from kvarray import Trace, step_policy, tier_curve, write_trace
from kvarray.cli import main
from tests import command

TRACE = Trace(
    [1, 2, 3, 1, 2, 4, 5, 6, 1, 2, 3],
    [0, 3, 6, 8, 11],
    block_size=16,
    input_tokens=[48, 40, 32, 48],
)
TIERS = ["--tier", "gpu=2blocks", "--tier", "cpu=3blocks@1GB/s,500MB/s"]
WORTH = ["--bytes-per-block", "1MB", "--prefill-per-block", "50ms"]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "story.jsonl"
    write_trace(TRACE, file)
    return str(file)


def run(capsys, *arguments):
    assert main(["tiers", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refuse(capsys, *arguments):
    return command.refuse(capsys, "tiers", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give at least one --tier"),
        (["--tier", "gpu"], "a tier must be written as name=capacity"),
        (["--tier", "gpu=64G"], "a size must have a unit out of"),
        (["--tier", "gpu=0blocks"], "blocks of tier 'gpu' must be 1 or more: got 0"),
        (["--tier", "gpu=64GiB"], "tier 'gpu' is given in bytes: block_bytes must be given"),
        ([*TIERS, "--tier", "gpu=9blocks@1GB/s"], "names of their own: got gpu more than once"),
        (["--tier", "cpu=1blocks@0GB/s"], "bytes_per_second must be more than 0"),
        ([*TIERS, "--policy", "lru,best"], "a policy must be one of arc, fifo, gdsf"),
        ([*TIERS, "--write-mode", "behind"], "a write mode must be one of exclusive, write_through"),
        ([*TIERS, "--promote", "0"], "a count must be 1 or more: got 0"),
        ([*TIERS, "--window", "1.5"], "window must be less than 1"),
        ([*TIERS, "--window", "-1"], "--window must be 0 or more"),
        ([*TIERS, "--bytes-per-token", "0"], "a weight must be 1 byte or more"),
        ([*TIERS, "--prefill-per-token", "1us"], "a gain needs what a block weighs"),
        (["--tier", "gpu=2blocks", "--tier", "cpu=3blocks", *WORTH], "tier 'cpu' must have a link up"),
        ([*TIERS, *WORTH, "--prefill-per-token", "1us"], "not allowed with argument"),
        ([*TIERS, "--dtype", "fp8"], "they need --model"),
        ([*TIERS, "--optimal", "--step", "stream"], "--optimal is the optimum for prefixes"),
        ([*TIERS, "--plot-gain", "x.png"], "--plot-gain needs two tiers and --prefill-per-token"),
        ([*TIERS, *WORTH, "--plot-gain", "x.png", "--promote", "never"], "--plot-gain shows LRU tiers"),
        ([*TIERS, "--seed", "1"], "--seed does nothing without --policy random"),
        ([*TIERS, "--write-at", "2", "--write-mode", "write_back"], "--write-at does nothing without --write-mode sel"),
        ([*TIERS, "--smaller-below"], "--smaller-below does nothing without --write-mode write_through"),
        ([*TIERS, "--processes", "2"], "--processes does nothing without --plot"),
        (
            [*TIERS, "--bytes-per-block", "4000PiB", "--prefill-per-block", "1"],
            "bytes of all blocks moved to fit 64 bits",
        ),
        ([*TIERS, "--bytes-per-block", "4e18"], "block_bytes must be small enough"),
        ([*TIERS, "--bytes-per-token", "1", "--prefill-per-token", "1e306", "--json"], "token_s must be 1e+60 or less"),
        ([*TIERS, "--bytes-per-block", "1", "--prefill-per-block", "1e306", "--csv"], "block_s must be 1e+60 or less"),
        (["--tier", "a=4blocks", "--tier", "b=2blocks", "--write-mode", "write_through"], "smaller_below=True"),
    ],
)
def test_flags_that_are_refused(capsys, path, arguments, message):
    assert message in refuse(capsys, path, "--block-size", 16, *arguments)


def test_json_has_every_integer(capsys, path):
    out = json.loads(
        run(capsys, path, "--block-size", 16, *TIERS, *WORTH, "--policy", "lru,arc", "--optimal", "--json")
    )
    assert out["tiers"] == [{"name": "gpu", "blocks": 2}, {"name": "cpu", "blocks": 3}]
    assert out["totals"] == {"block": 11, "token": 168}
    lru, arc, best = out["rows"]
    flows = tier_curve(TRACE).flows([[2, 3]])
    assert lru["tier_hit_blocks"] == flows.hits[0].tolist()
    assert lru["tier_hit_tokens"] == flows.hit_tokens[0].tolist()
    assert (lru["promoted_blocks"], lru["demoted_blocks"]) == ([int(flows.up[0, 0])], [int(flows.down[0, 0])])
    assert lru["up_s"] == [pytest.approx(0.001 * flows.up[0, 0])]
    assert lru["down_s"] == [pytest.approx(0.002 * flows.down[0, 0])]
    assert lru["saved_s"] == pytest.approx(0.05 * flows.hits.sum())
    assert lru["net_s"] == pytest.approx(lru["saved_s"] - lru["cost_s"])
    assert arc["tier_hit_blocks"] == step_policy(TRACE, "arc", [[2, 3]]).hits[0].tolist()
    assert best["hit_blocks"] >= max(lru["hit_blocks"], arc["hit_blocks"])


def test_tiers_that_hold_all_there_is(capsys, path):
    most = f"{2**63 - 1}blocks"
    flags = ["--tier", f"gpu={most}", "--tier", f"cpu={most}", "--optimal", "--json"]
    lru, best = json.loads(run(capsys, path, "--block-size", 16, *flags))["rows"]
    assert lru["hit_blocks"] == best["hit_blocks"] == 5


def test_csv_names_columns_after_tiers(capsys, path):
    out = run(capsys, path, "--block-size", 16, *TIERS, "--write-mode", "exclusive,write_back", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["write_mode"] for row in rows] == ["exclusive", "write_back"]
    assert {"gpu_tier_hit_blocks", "cpu_tier_hit_blocks", "cpu_promoted_blocks"} <= set(rows[0])


def test_text_is_a_table(capsys, path):
    out = run(capsys, path, "--block-size", 16, *TIERS, *WORTH, "--optimal").splitlines()
    assert out[1] == "tiers: gpu 2 blocks, cpu 3 blocks"
    assert out[2].split()[:3] == ["policy", "write", "mode"]
    assert [line.split()[0] for line in out[3:]] == ["lru", "optimal"]


def test_every_policy_and_mode_runs(capsys, path):
    policies = "arc,fifo,gdsf,lfu,lfu_aged,lru,random,s3_fifo,sieve,slru,two_q,w_tinylfu"
    modes = "exclusive,write_through,selective,write_back"
    flags = ["--policy", policies, "--write-mode", modes, "--promote", "never", "--write-at", 3, "--json"]
    assert len(json.loads(run(capsys, path, "--block-size", 16, *TIERS, *flags))["rows"]) == 48


def test_a_model_and_sizes_in_bytes(capsys, path):
    flags = ["--model", "llama-3.1-70b", "--dtype", "fp8", "--prefill-per-token", "100us"]
    out = json.loads(
        run(capsys, path, "--block-size", 16, "--tier", "gpu=8MiB", "--tier", "cpu=1GB@dram-pcie5", *flags, "--json")
    )
    assert [tier["blocks"] for tier in out["tiers"]] == [3, 381]  # 163,840 bytes a token, 16 tokens a block
    assert out["rows"][0]["saved_s"] == pytest.approx(1e-4 * out["rows"][0]["hit_tokens"])


def test_pictures(capsys, path, tmp_path):
    pytest.importorskip("matplotlib")
    rate, gain = tmp_path / "rate.png", tmp_path / "gain.svg"
    flags = ["--policy", "lru,sieve", "--plot", rate, "--plot-gain", gain]
    run(capsys, path, "--block-size", 16, *TIERS, *WORTH, *flags)
    assert rate.stat().st_size > 5_000
    assert "net gain, s" in gain.read_text()


def test_the_built_in_workload(capsys):
    out = json.loads(run(capsys, *TIERS, "--json"))
    assert out["rows"][0]["hit_blocks"] > 0
