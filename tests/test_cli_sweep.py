"""`kvarray sweep`: what it prints and refuses, parts that are kept, pictures, and the page in a real browser."""

import argparse
import csv
import io
import json
import re
import shutil
import subprocess
import sys

import pytest

from kvarray import Grid, SweepError, Trace, sweep, write_trace
from kvarray.cli import main
from kvarray.cli import sweep as command
from kvarray.grid.rows import part_columns
from kvarray.plot import page as page_module
from kvarray.plot import sweep_page
from tests.command import refuse
from tests.data import data_file

TOML = """
bytes_per_token = 1048576
prefill = {per_token = 0.001}
tiers = ["gpu=9blocks", "cpu=1GiB@1GB/s"]
target_ttft = "15ms"
[grid]
policy = ["lru", "lfu"]
[grid.cpu]
capacity = ["8MiB", "16MiB", "1GiB"]
bandwidth = ["1GB/s", "4GB/s"]
[prices]
cpu = "730/GiB-month"
replica = 1.0
"""


@pytest.fixture
def story(tmp_path):
    """A trace, and a file of a grid over it."""
    blocks = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6]
    trace = Trace(blocks, [0, 3, 6, 9, 12, 15], block_size=4, arrival_s=[0, 1, 2, 3, 4], session=[0, 1, 2, 0, 1])
    write_trace(trace, tmp_path / "story.npz")
    (tmp_path / "grid.toml").write_text(TOML.replace("gpu=9blocks", "gpu=3blocks"))
    return [str(tmp_path / "story.npz"), "--config", str(tmp_path / "grid.toml")]


def ask(capsys, *arguments):
    """The JSON answer of `kvarray sweep`."""
    assert main(["sweep", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", "cpu.capasity=1GiB"], "unknown axis 'cpu.capasity'; did you mean cpu.capacity"),
        (["--vary", "replicas"], "--vary must be NAME=VALUE: got 'replicas'"),
        (["--vary", "replicas=0"], "replicas"),
        (["--vary", "cpu.capacity=2GiB:1GiB:3"], "a ladder must rise"),
        (["--price", "cpu=2"], "price of tier 'cpu' must be like '2/GiB-month'"),
        (["--price", "replica=x"], "--price must have a number: got 'replica=x'"),
        (["--price", "hbm=2/GiB-month"], "prices must be of tiers that are there, cpu, gpu: got 'hbm'"),
        (["--limit", "11"], "the grid has 12 combinations (2 x 3 x 2), more than the limit of 11"),
        (["--samples", "9"], "--samples needs --rng"),
        (["--samples", "9", "--rng", "1", "--confidence", "2"], "confidence must lie between 0 and 1"),
        (["--sort", "mean_tft_s"], "unknown column 'mean_tft_s'; did you mean mean_ttft_s"),
        (["--at-most", "mean_ttft_s=x"], "--at-most must have a number"),
        (["--at-most", "mean_ttft=1"], "unknown column 'mean_ttft'"),
        (["--tier", "gpu=2blocks", "--tier", "cpu=1GiB@1GB/s"], "must hold the largest request"),
        (["--tier", "gpu=3blocks"], "unknown axis 'cpu.capacity'"),
        (["--keep", __file__], "no parts of a sweep"),
        (["--html", "/no/such/folder/page.html"], "No such file or directory"),
    ],
)
def test_what_it_refuses(capsys, story, arguments, message):
    assert main(["sweep", *story, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert message in lines[-1]
    assert len(lines) <= 2  # the size of the grid, said before it runs, and what is wrong


def test_a_tier_alone_has_nothing_to_vary(capsys, story):
    assert (
        main(["sweep", story[0], "--tier", "gpu=9blocks", "--prefill", "llama-3.1-8b-h100", "--bytes-per-token", "4"])
        == 2
    )
    assert "what varies must be said where there is one tier" in capsys.readouterr().err


def test_json_and_csv_are_the_table(capsys, story):
    answer = ask(capsys, *story)
    result = sweep(command.load_trace(command_args(story)), Grid.from_toml(story[2]))
    assert answer["combinations"] == 12
    assert [row["hit_tokens"] for row in answer["rows"]] == result["hit_tokens"].tolist()
    assert [row["mean_ttft_s"] for row in answer["rows"]] == result["mean_ttft_s"].tolist()
    assert answer["axes"]["cpu.capacity"] == ["8 MiB", "16 MiB", "1 GiB"]
    assert main(["sweep", *story, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(row["gain_s"]) for row in rows] == result["gain_s"].tolist()
    assert [row["policy"] for row in rows] == ["lru"] * 6 + ["lfu"] * 6


def command_args(story):
    """The trace arguments of a story, parsed."""
    return argparse.Namespace(trace=story[0], block_size=None, format=None, skip_bad=False)


def test_limits_order_and_hits_alone(capsys, story):
    answer = ask(capsys, *story, "--at-least", "token_hit_rate=0.3", "--sort=-gain_s")
    gains = [row["gain_s"] for row in answer["rows"]]
    assert gains == sorted(gains, reverse=True)
    assert 0 < len(gains) < 12
    assert all(row["token_hit_rate"] >= 0.3 for row in answer["rows"])
    assert "mean_ttft_s" not in ask(capsys, *story, "--hits-only")["rows"][0]


def test_the_text_says_what_pays(capsys, story):
    assert main(["sweep", *story, "--top", "3", "--samples", "5", "--rng", "1"]) == 0
    captured = capsys.readouterr()
    assert "12 deployments (2 x 3 x 2) of 5 requests" in captured.err
    assert "... 9 more" in captured.out
    assert "the cheapest with 90 % of its first tokens within 15 ms costs" in captured.out
    assert re.search(r"cpu\.capacity: from 8 MiB to 1 GiB the gain moves by", captured.out)
    assert "are worth their cost" in captured.out
    assert "gain within" in captured.out


def test_the_builtin_workload(capsys):
    assert main(["sweep", "--hits-only", "--vary", "cpu.capacity=64GiB,1TiB", "--rate-scale", "2"]) == 0
    assert "2 deployments" in capsys.readouterr().out


def test_a_lost_part_is_named_and_taken_up_again(capsys, story, tmp_path, monkeypatch):
    kept = tmp_path / "parts.npz"
    whole = ask(capsys, *story)
    grid = Grid.from_toml(story[2])
    trace = command.load_trace(command_args(story))

    def dies(*given, **options):
        """Lose all but the first pair of the grid, as if the process that ran them had died."""
        done = {(0, 1): part_columns(trace, grid, (0, 1), ttft=True, draws=None)}
        raise SweepError("1 of 2 parts of the sweep were lost (1:6)", lost=[(1, 6)], finished=done)

    with monkeypatch.context() as patched:
        patched.setattr(command, "sweep", dies)
        assert main(["sweep", *story, "--keep", str(kept)]) == 2
    assert "were lost (1:6)" in capsys.readouterr().err
    ran = []

    def watched(*given, **options):
        ran.append(sorted(options["finished"]))
        return sweep(*given, **options)

    monkeypatch.setattr(command, "sweep", watched)
    assert ask(capsys, *story, "--keep", str(kept))["rows"] == whole["rows"]
    assert ran == [[(0, 1)]]
    assert main(["sweep", *story, "--keep", str(kept), "--hits-only"]) == 2
    assert "parts of another sweep" in capsys.readouterr().err


def test_processes(capsys, story):
    assert ask(capsys, *story, "--processes", "2")["rows"] == ask(capsys, *story)["rows"]


def test_a_cluster(capsys, story, monkeypatch):
    assert main(["sweep", *story, "--cluster", "tcp://127.0.0.1:1", "--processes", "2"]) == 2
    assert "does not go with --processes" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "distributed", None)
        assert main(["sweep", *story, "--cluster", "tcp://127.0.0.1:1"]) == 2
        assert "pip install 'kvarray[dask]'" in capsys.readouterr().err
    distributed = pytest.importorskip("distributed", reason="needs kvarray[dask]")
    with distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
        answer = ask(capsys, *story, "--cluster", cluster.scheduler_address)
    assert answer["rows"] == ask(capsys, *story)["rows"]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_plot(story, tmp_path, ending):
    pytest.importorskip("matplotlib", reason="needs kvarray[plot]")
    target = tmp_path / f"sweep.{ending}"
    assert main(["sweep", *story, "--plot", str(target)]) == 0
    assert target.stat().st_size > 1000


def test_a_plot_of_no_kind(capsys, story, tmp_path):
    pytest.importorskip("matplotlib", reason="needs kvarray[plot]")
    assert main(["sweep", *story, "--plot", str(tmp_path / "sweep.what")]) == 2
    assert "a plot's file must end in" in capsys.readouterr().err


# --- the page


def test_a_page_needs_no_network_and_holds_no_script_of_others(story, tmp_path, monkeypatch):
    target = tmp_path / "page.html"
    assert main(["sweep", *story, "--html", str(target)]) == 0
    page = target.read_text()
    assert not re.search(r"""(?:src|href)\s*=|https?:|@import|url\(""", page)
    result = sweep(command.load_trace(command_args(story)), Grid.from_toml(story[2]))
    nasty = sweep_page(result, title="</script><b>&", about="<i>")
    assert "</script><b>" not in nasty
    assert "&lt;/script&gt;&lt;b&gt;&amp;" in nasty
    monkeypatch.setattr(page_module, "PAGE_ROWS", 11)
    with pytest.raises(ValueError, match="a page holds from 1 to 11 combinations: got 12"):
        sweep_page(result)


def test_the_sliders_of_a_page_in_a_browser(story, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no chromium on this machine")
    target = tmp_path / "page.html"
    assert main(["sweep", *story, "--html", str(target)]) == 0
    result = sweep(command.load_trace(command_args(story)), Grid.from_toml(story[2]))
    row = 1 * 6 + 1 * 2 + 1  # policy lfu, 16 MiB, 4 GB/s
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=2000", "--dump-dom",
    ]  # fmt: skip
    address = f"{target.as_uri()}#policy=1&cpu.bandwidth=1&cpu.capacity=1"
    shown = subprocess.run([browser, *flags, address], capture_output=True, text=True, timeout=60, check=True).stdout

    def text_of(name):
        return re.search(rf'id="{re.escape(name)}"[^>]*>([^<]*)<', shown)[1]

    assert text_of("at-policy") == "lfu"
    assert text_of("at-cpu.capacity") == "16 MiB"
    assert text_of("at-cpu.bandwidth") == "4 GB/s"
    assert text_of("value-hit_rate") == f"{result['hit_rate'][row]:.2%}".replace("%", " %")
    assert text_of("value-mean_ttft_s") == f"{result['mean_ttft_s'][row] * 1e3:.1f} ms"
    assert text_of("value-gain_s") == f"{result['gain_s'][row] * 1e3:.1f} ms"
    curve = re.search(r'id="curve-gain_s">.*?points="([^"]*)"', shown)[1].split()
    assert len(curve) == 3  # along the slider moved last, the capacity
    assert 'class="axis along"' in shown
    assert "cpu.capacity: from 8 MiB to 1 GiB" in shown


def test_the_conversation_trace_in_one_command(capsys, tmp_path):
    path = data_file("traces/mooncake_conversation.jsonl")
    answer = ask(
        capsys, path, "--block-size", "512", "--model", "llama-3.1-70b", "--gpu", "h100", "--gpus", "8",
        "--replicas", "8",
        "--tier", "gpu=100GiB", "--tier", "cpu=1TiB@dram-pcie5", "--tier", "ssd=8TiB@nvme-gen4",
        "--vary", "cpu.capacity=256GiB:4TiB:3", "--vary", "cpu.bandwidth=50GB/s,400GB/s",
    )  # fmt: skip
    rows = answer["rows"]
    assert len(rows) == 6
    by_size = [row["hit_tokens_gpu"] + row["hit_tokens_cpu"] for row in rows]
    assert by_size == sorted(by_size)  # more of a tier never lowers LRU hits
    for slow, fast in zip(rows[::2], rows[1::2], strict=True):
        assert fast["mean_ttft_s"] <= slow["mean_ttft_s"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--vary", "replicas=1,2", "--vary", "replicas=3"], "--vary must name each axis once: got replicas again"),
        (["--vary", "replicas=1,2", "--top", "0"], "a number of rows must be 1 or more"),
    ],
)
def test_flags_that_would_be_lost(capsys, flags, message):
    assert message in refuse(capsys, "sweep", "--tier", "gpu=5GiB", *flags)
