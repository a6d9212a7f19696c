"""`kvarray curve`: what it prints, what it refuses, and the published integers through its JSON."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvarray import builtin_trace, hit_curve, write_trace
from kvarray.cli import main
from tests import command
from tests.data import data_file, published_cases
from tests.test_reuse import STORY, make_trace


@pytest.fixture
def story(tmp_path):
    path = tmp_path / "story.jsonl"
    write_trace(make_trace([(0, ids, tokens) for _, ids, tokens in STORY], [0.0, 10.0, 30.0]), path)
    return str(path)


def ask(capsys, *arguments):
    return command.ask(capsys, "curve", *arguments)


def refuse(capsys, *arguments):
    return command.refuse(capsys, "curve", *arguments)


# --- what it refuses


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--capacity", "10q"], "--capacity: a count must have a unit out of"),
        (["--capacity", "3,,4"], "a list must have no empty items"),
        (["--capacity", "-3"], "--capacity"),
        (["--capacity", "1,000"], "a count must be a number"),
        (["--capacity", "9223372036854775808"], "less than 2^63"),
        (["--block-size", "1e30"], "less than 2^63"),
        (["--target", "abc"], "a rate must be a number such as"),
        (["--unit", "request"], "--unit is the unit of --target, --share and --plot"),
        (["--ttl", "10", "--model", "llama-3.1-8b"], "--ttl asks for times, --model for capacities"),
        (["--memory", "64G"], "a size must have a unit out of"),
        (["--memory", "64GiB"], "give --model, --bytes-per-token or --bytes-per-block"),
        (["--model", "llama-3.1-70"], "did you mean Llama-3.1-70B"),
        (["--model", "llama-3.1-70b", "--dtype", "fp12"], "fp12"),
        (["--dtype", "fp8"], "they need --model"),
        (["--ttl", "1week"], "a duration must have a unit"),
        (["--ttl", "10", "--optimal"], "--ttl asks for times, --optimal for capacities"),
        (["--ttl", "10", "--capacity", "3"], "--ttl asks for times, --capacity for capacities"),
        (["--optimal", "--stream", "head_first"], "does not go with --stream"),
        (["--window", "1"], "window must be less than 1"),
        (["--window", "x"], "--window"),
        (["--target", "0.99"], "rate must be at most the ceiling"),
        (["--share", "120%"], "share must be at most 1"),
        (["--unit", "tokens", "--target", "0.1"], "--unit: invalid choice"),
        (["--json", "--csv"], "not allowed with argument"),
        (["--bytes-per-token", "0"], "a weight must be 1 byte or more"),
        (["--what"], "unrecognized arguments: --what"),
    ],
)
def test_flags(capsys, story, arguments, message):
    assert message in refuse(capsys, story, *arguments)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", b"", "empty"),
        ("junk.jsonl", b"\x80\x81\x00\x02" * 9, "junk.jsonl"),
        ("bad.jsonl", b'{"timestamp": 0, "input_length": -5, "output_length": 1, "hash_ids": []}\n', "bad.jsonl"),
        ("lengths.csv", b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,5,5\n", "no block ids"),
    ],
)
def test_files(capsys, tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    assert message in refuse(capsys, path, "--block-size", "16")


def test_missing_files_and_folders(capsys, tmp_path):
    assert "No such file" in refuse(capsys, tmp_path / "none.jsonl")
    assert "directory" in refuse(capsys, tmp_path)


def test_the_built_in_workload_takes_no_reading_flags(capsys):
    assert "--block-size needs a TRACE" in refuse(capsys, "--block-size", "16")


def test_no_command_is_one_line(capsys):
    assert main([]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_matplotlib_a_plot_is_one_line(capsys, story, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'kvarray[plot]'" in refuse(capsys, story, "--plot", "x.png")


@pytest.mark.parametrize("name", ["picture.bmpx", "picture", ""])
def test_a_plot_of_unknown_kind(capsys, story, name):
    pytest.importorskip("matplotlib")
    assert "a plot's file must end in one of" in refuse(capsys, story, "--plot", name)


def test_a_broken_pipe_is_quiet():
    command = f"{sys.executable} -m kvarray curve --csv | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=os.environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("blocks,")


# --- what it prints


def test_table(capsys, story):
    assert main(["curve", story, "--capacity", "2,4", "--optimal", "--bytes-per-block", "1MiB"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "3 requests, 9 blocks of 4 tokens, 4 distinct; counted: 3 requests, 34 tokens",
        "infinite cache: 18 tokens hit, 52.94%",
        "blocks  memory  hit tokens   token   block  full block  of ceiling  optimal",
        "     2   2 MiB          16  47.06%  44.44%      50.00%       88.9%   47.06%",
        "     4   4 MiB          18  52.94%  55.56%      50.00%      100.0%   52.94%",
    ]


def test_times_to_live(capsys, story):
    assert main(["curve", story, "--ttl", "9s,30"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "entries that never expire: 18 tokens hit, 52.94%"
    assert [line.split()[:2] for line in lines[3:]] == [["9", "0"], ["30", "18"]]


def test_inverse_questions(capsys, story):
    answer = ask(capsys, story, "--target", "0.4", "--share", "100%")
    assert [point["blocks"] for point in answer["points"]] == [2, 4]


def test_memory_becomes_blocks(capsys, story):
    answer = ask(capsys, story, "--memory", "2.5MiB,1GB", "--bytes-per-token", "256KiB")
    assert [(point["blocks"], point["bytes"]) for point in answer["points"]] == [(2, 2 << 20), (953, 953 << 20)]


def test_a_model_says_what_a_block_weighs(capsys, story):
    # 80 layers x 2 x 8 heads x 128 x 2 bytes = 320 KiB a token, half of it in fp8 and a quarter in each of two ranks
    for extra, block_bytes in ([], 4 * 327_680), (["--dtype", "fp8"], 2 * 327_680), (["--tp", "2"], 2 * 327_680):
        answer = ask(capsys, story, "--model", "llama-3.1-70b", "--memory", "5MiB", *extra)
        assert [(p["blocks"], p["bytes"]) for p in answer["points"]] == [((5 << 20) // block_bytes, 5 << 20)]


def test_csv_and_json_say_the_same(capsys, story):
    answer = ask(capsys, story)
    assert main(["curve", story, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [{k: float(v) for k, v in row.items()} for row in rows] == answer["points"]


def test_skipped_records_are_counted(capsys, story, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"{}\n" + Path(story).read_bytes())
    assert main(["curve", str(path), "--skip-bad"]) == 0
    assert "left out 1 malformed records, first: " in capsys.readouterr().out
    assert ask(capsys, path, "--skip-bad")["trace"]["skipped"] == 1


def test_stdin(story):
    command = [sys.executable, "-m", "kvarray", "curve", "-", "--json"]
    with Path(story).open() as file:
        out = subprocess.run(command, stdin=file, capture_output=True, text=True, check=True)
    assert json.loads(out.stdout)["totals"]["block"] == 9


@pytest.mark.parametrize(
    "extra", [[], ["--optimal"], ["--ttl", "10,20"], ["--bytes-per-block", "1MiB", "--unit", "block"]]
)
def test_plots(story, tmp_path, extra):
    pytest.importorskip("matplotlib")
    pictures = [tmp_path / "one.png", tmp_path / "two.png"]
    for path in pictures:
        assert main(["curve", story, "--plot", str(path), *extra]) == 0
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


def test_the_built_in_workload_is_the_default(capsys):
    answer, trace = ask(capsys, "--window", "0.5"), builtin_trace()
    assert answer["trace"]["requests"] == trace.num_requests
    curve = hit_curve(trace, window=0.5)
    assert [p["hit_tokens"] for p in answer["points"]] == [curve.hit_tokens(p["blocks"]) for p in answer["points"]]


# --- published results, through the command


@pytest.mark.parametrize("case", published_cases("trace_hits", "stream_lru", "hit_definitions"))
def test_published(capsys, case):
    arguments = [data_file(case["trace"]), "--block-size", case["block_size"]]
    if case["kind"] == "hit_definitions":
        answer = ask(capsys, *arguments)
        for name in ("block", "token", "full_block"):
            assert answer["ceiling"][f"hit_{name}s"] == case["points"][name]["hit"]
            assert answer["totals"][name] == case["points"][name]["total"]
        assert answer["ceiling"]["whole_requests"] == case["points"]["whole_request"]["hit"]
        return
    arguments += ["--window", case.get("window", 0.0), "--capacity", ",".join(str(p["blocks"]) for p in case["points"])]
    if case["kind"] == "stream_lru":
        answer = ask(capsys, *arguments, "--stream", case["touch"])
        assert [p["hit_blocks"] for p in answer["points"]] == [p["hit_blocks"] for p in case["points"]]
        return
    answer = ask(capsys, *arguments, "--optimal")
    for name, column in (("lru", f"hit_{case['unit']}"), ("optimal", f"optimal_hit_{case['unit']}")):
        if name in case["points"][0]:
            assert [p[column] for p in answer["points"]] == [p[name] for p in case["points"]]
