"""`kvarray replay`: what it prints, what it refuses, and that flags say what a file says."""

import csv
import io

import pytest

from kvarray import Deployment, Trace, builtin_trace, replay, write_trace
from kvarray.cli import main
from tests import command
from tests.data import data_file

FLAGS = ["--bytes-per-token", "1kB", "--prefill", "llama-3.1-8b-h100", "--tier", "gpu=9MB", "--tier", "cpu=90MB@1GB/s"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("replay") / "trace.jsonl"
    write_trace(builtin_trace().requests(0, 300), file)
    return str(file)


def ask(capsys, *arguments):
    return command.ask(capsys, "replay", *arguments)


def refuse(capsys, *arguments):
    return command.refuse(capsys, "replay", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tier", "gpu=64G"], "a size must have a unit out of"),
        (["--tier", "gpu=64GiB", "--tier", "cpu=1TiB"], "tier 'cpu' must have a link up"),
        (["--tier", "gpu=1MiB"], "must hold a block"),
        (["--tier", "gpu=1GiB"], "must hold the largest request"),
        (["--routing", "random"], "--routing: invalid choice"),
        (["--replicas", "0"], "replicas must be 1 or more"),
        (["--replicas", "many"], "replicas: a count must be a number"),
        (["--model", "lama-3.1-8b"], "no model named"),
        (["--gpu", "h100", "--bytes-per-token", "0B"], "bytes_per_token must be"),
        (["--prefill", "llama"], "prefill must be one of"),
        (["--overlap", "2"], "overlap_efficiency must be 1 or less"),
        (["--rate-scale", "0"], "rate_scale must be"),
        (["--window", "1"], "window must be less than 1"),
        (["--target", "1week"], "target_ttft: a duration must have a unit"),
        (["--pd", "layered", "--pd-link", "nets"], "separation.link must be a rate or a known link"),
        (["--policy", "random"], "seed must be given"),
        (["--reblock", "24"], "block_size must be a multiple of 16"),
        (["--config", "none.toml"], "none.toml: No such file"),
        (["none.jsonl"], "none.jsonl: No such file"),
        (["--block-size", "16"], "--block-size needs a TRACE"),
        (["--json", "--csv"], "not allowed with argument"),
    ],
)
def test_what_it_refuses_is_one_line(capsys, arguments, message):
    assert message in refuse(capsys, *arguments)


def test_a_plot_of_unknown_kind(capsys):
    pytest.importorskip("matplotlib")
    assert "must end in one of" in refuse(capsys, "--plot", "replay.doc")


def test_it_answers_what_the_module_answers(capsys, path):
    answer = ask(capsys, path, *FLAGS, "--replicas", 3, "--routing", "prefix_hash", "--target", "5ms", "--window", 0.5)
    deployment = Deployment.from_dict({
        "bytes_per_token": 1000,
        "prefill": "llama-3.1-8b-h100",
        "tiers": ["gpu=9MB", "cpu=90MB@1GB/s"],
        "replicas": 3,
        "routing": "prefix_hash",
        "target_ttft": 0.005,
        "window": 0.5,
    })  # fmt: skip
    result = replay(builtin_trace().requests(0, 300), deployment)
    assert answer["hits"] == result.hits
    assert answer["ttft_s"]["p99"] == float(result.ttft_quantile(0.99))
    assert answer["share_within_target"] == result.share_within(0.005)
    assert [item["text"] for item in answer["answers"]] == [item.text for item in result.explain()]
    assert answer["deployment"]["tiers"] == {"gpu": 562, "cpu": 5625}


def test_flags_say_what_a_file_says_and_go_before_it(capsys, path, tmp_path):
    file = tmp_path / "deployment.toml"
    file.write_text(
        'bytes_per_token = "1kB"\nprefill = "llama-3.1-8b-h100"\ntiers = ["gpu=9MB", "cpu=90MB@1GB/s"]\n'
        'replicas = 2\nwrite_mode = "write_through"\n'
    )
    told = ask(capsys, path, *FLAGS, "--replicas", 2, "--write-mode", "write_through")
    assert ask(capsys, path, "--config", file) == told
    assert ask(capsys, path, "--config", file, "--replicas", 5)["replicas"] == 5


def test_rows_are_requests(capsys, path):
    assert main(["replay", path, *FLAGS, "--pd", "chunked", "--no-queueing", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 300
    parts = ("queue_s", "load_s", "prefill_s", "transfer_s", "decode_s")
    for row in rows[::37]:
        assert sum(float(row[name]) for name in parts) == pytest.approx(float(row["ttft_s"]), rel=1e-9)
    assert sum(int(row["hit_tokens_gpu"]) for row in rows) > 0


def test_text_and_picture_without_a_trace(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "replay.png"
    assert main(["replay", "--replicas", "2", "--routing", "session", "--target", "50ms", "--plot", str(picture)]) == 0
    text = capsys.readouterr().out
    for part in ("3,985 requests", "Llama-3.1-70B", "first token", "within 50 ms", "missed", "requests a second"):
        assert part in text
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_a_trace_without_time_has_no_figures_of_a_day(capsys, tmp_path):
    file = tmp_path / "still.jsonl"
    write_trace(Trace([1, 2, 1, 2], [0, 2, 4], block_size=16), file)
    assert "no arrivals" in refuse(capsys, file, *FLAGS)
    answer = ask(capsys, file, *FLAGS, "--no-queueing")
    assert answer["written_bytes_per_day"] is None
    assert answer["requests_per_s"] is None
    assert main(["replay", str(file), *FLAGS, "--no-queueing"]) == 0


def test_the_conversation_trace_in_one_command(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    trace = data_file("traces/mooncake_conversation.jsonl")
    picture = tmp_path / "replay.svg"
    answer = ask(capsys, trace, "--block-size", 512, "--replicas", 8, "--routing", "prefix_hash", "--plot", picture)
    assert answer["deployment"]["model"] == "Llama-3.1-70B"
    assert set(answer["tier_hit_tokens"]) == {"gpu", "cpu", "ssd"}
    assert answer["totals"]["token"] == 144_793_823
    assert answer["gain_s"] > 0.0
    assert picture.stat().st_size > 1000
