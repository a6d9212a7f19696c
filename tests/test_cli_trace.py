"""`kvarray trace`: what it prints, writes and refuses."""

import json

import pytest

from kvarray import Trace, read_trace, write_trace
from kvarray.cli import main
from tests.data import data_file


@pytest.fixture
def story(tmp_path):
    """Three requests in blocks of 4 tokens, ten seconds apart."""
    path = tmp_path / "story.npz"
    trace = Trace(
        [1, 2, 1, 3, 1, 2, 4], [0, 2, 4, 7], block_size=4, input_tokens=[7, 8, 12], arrival_s=[5.0, 15.0, 25.0]
    )
    write_trace(trace, path)
    return path


def refuse(capsys, *arguments):
    """The one line of a refusal."""
    assert main(["trace", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: ACTION"),
        (["describe", "none.jsonl"], "none.jsonl: No such file or directory"),
        (["convert", "STORY"], "the following arguments are required: --output"),
        (["convert", "STORY", "--output", "STORY"], "is there already: give another --output, or --force"),
        (["convert", "STORY", "--output", "OUT.npz", "--reblock", "6"], "block_size must be a multiple of 4"),
        (["convert", "STORY", "--output", "OUT.jsonl", "--compressed"], "compressed must be left out for JSON lines"),
        (["slice", "STORY", "--output", "OUT.npz"], "give either --from and --to, or --first and --last"),
        (["slice", "STORY", "--output", "OUT.npz", "--from", "1", "--first", "1"], "give either --from and --to"),
        (["slice", "STORY", "--output", "OUT.npz", "--from", "9", "--to", "3"], "--to must not be before --from"),
        (
            ["slice", "STORY", "--output", "OUT.npz", "--first", "2", "--last", "9"],
            "within the 3 requests of the trace",
        ),
        (["slice", "STORY", "--output", "OUT.npz", "--from", "1h"], "no request of the 3 lies in what was asked for"),
        (["generate", "chit", "--output", "OUT.npz"], "invalid choice: 'chit'"),
        (["generate", "chat", "--count", "3", "--rate", "1", "--output", "OUT.npz"], "required: --rng"),
        (
            ["generate", "chat", "--count", "3", "--rate", "0", "--rng", "1", "--output", "OUT.npz"],
            "rate_per_s must be",
        ),
        (
            [
                "generate",
                "chat",
                "--count",
                "3",
                "--rate",
                "1",
                "--rng",
                "1",
                "--output",
                "OUT.npz",
                "--set",
                "turns=3",
            ],
            "--set must name a parameter of chat: got 'turns'; did you mean mean_turns?",
        ),
        (
            [
                "generate",
                "zipf",
                "--count",
                "3",
                "--rate",
                "1",
                "--rng",
                "1",
                "--output",
                "OUT.npz",
                "--set",
                "exponent=x",
            ],
            "--set exponent must be a number: got 'x'",
        ),
    ],
)
def test_what_it_refuses(capsys, story, tmp_path, arguments, message):
    given = [str(story) if each == "STORY" else each.replace("OUT", str(tmp_path / "out")) for each in arguments]
    assert message in refuse(capsys, *given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["story.npz"]


def test_describe(capsys, story):
    assert main(["trace", "describe", str(story), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["num_requests"] == 3
    assert figures["num_distinct"] == 4
    assert figures["skipped"] == 0
    assert main(["trace", "describe", str(story)]) == 0
    printed = [line.split("  ")[-1].strip() for line in capsys.readouterr().out.splitlines()]
    assert printed[:3] == ["value", "3", "-"]
    assert "20 s" in printed


def test_describe_says_what_was_left_out(capsys, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n{"timestamp": -1}\n')
    assert main(["trace", "describe", str(path), "--block-size", "8", "--skip-bad"]) == 0
    assert "left out 1 malformed records" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["out.npz", "out.jsonl", "out.jsonl.gz"])
def test_convert(capsys, story, tmp_path, name):
    target = tmp_path / name
    assert main(["trace", "convert", str(story), "--output", str(target)]) == 0
    assert "3 requests, 7 blocks of 4 tokens" in capsys.readouterr().err
    assert read_trace(target, block_size=4) == read_trace(story)
    assert main(["trace", "convert", str(story), "--output", str(target), "--reblock", "8", "--force"]) == 0
    assert read_trace(target, block_size=8) == read_trace(story).reblock(8)


def test_generate_is_the_same_for_the_same_seed(story, tmp_path):
    paths = [tmp_path / name for name in ("one.npz", "two.npz", "three.npz")]
    for path, seed in zip(paths, "778", strict=True):
        flags = ["--count", "20", "--rate", "2", "--rng", seed, "--block-size", "32", "--set", "mean-turns=2"]
        assert main(["trace", "generate", "chat", *flags, "--output", str(path)]) == 0
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert read_trace(paths[0]) != read_trace(paths[2])
    assert read_trace(paths[0]).block_size == 32


@pytest.mark.parametrize("kind", ["agent", "document", "zipf"])
def test_generate_every_kind(tmp_path, kind):
    target = tmp_path / "out.jsonl"
    flags = ["--count", "5", "--rate", "1", "--rng", "1", "--variation", "3", "--output", str(target)]
    assert main(["trace", "generate", kind, *flags]) == 0
    assert read_trace(target, block_size=64 if kind == "agent" else 16).num_requests >= 5


@pytest.mark.parametrize(
    ("flags", "rows"),
    [
        (["--from", "10"], (1, 3)),
        (["--to", "10.5s"], (0, 2)),
        (["--from", "5s", "--to", "15s"], (1, 2)),
        (["--first", "1"], (1, 3)),
        (["--last", "2"], (0, 2)),
    ],
)
def test_slice(story, tmp_path, flags, rows):
    target = tmp_path / "out.npz"
    assert main(["trace", "slice", str(story), *flags, "--output", str(target)]) == 0
    assert read_trace(target) == read_trace(story).requests(*rows)


def test_the_conversation_trace(capsys):
    path = data_file("traces/mooncake_conversation.jsonl")
    assert main(["trace", "describe", str(path), "--block-size", "512", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    known = {"num_requests": 12031, "num_blocks": 288500, "num_distinct": 182790, "input_tokens": 144793823}
    assert known.items() <= figures.items()
