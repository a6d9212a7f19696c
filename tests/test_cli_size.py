"""`kvarray size`: what it prints, its exit codes and messages."""

import csv
import io
import json

import pytest

from kvarray.cli import main
from tests.data import data_file


def size(capsys, *argv):
    """Run the command; return exit code, stdout and stderr."""
    code = main(["size", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_table(capsys):
    code, out, err = size(
        capsys, "llama-3.1-70b", "--tokens", "8K,128K", "--dtype", "fp16,fp8,int4", "--tp", "8", "--memory", "80GiB"
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "Llama-3.1-70B, each of 8 ranks",
        "  80 x full: 8 heads of 128 + 128",
        "",
        "dtype  tokens  per token  per sequence  all ranks  sequences fit  longest fit",
        " fp16    8192     40 KiB       320 MiB    2.5 GiB            256      2097152",
        " fp16  131072     40 KiB         5 GiB     40 GiB             16      2097152",
        "  fp8    8192     20 KiB       160 MiB   1.25 GiB            512      4194304",
        "  fp8  131072     20 KiB       2.5 GiB     20 GiB             32      4194304",
        " int4    8192     10 KiB        80 MiB    640 MiB           1024      8388608",
        " int4  131072     10 KiB      1.25 GiB     10 GiB             64      8388608",
    ]


def test_scenario_5_as_json(capsys):
    code, out, _ = size(capsys, "llama-3.1-70b", "--tokens", "128K", "--dtype", "fp16,fp8,int4", "--json")
    result = json.loads(out)
    assert code == 0
    assert [row["token_bytes"] for row in result["rows"]] == [327680, 163840, 81920]
    assert [row["sequence_bytes"] / 2**30 for row in result["rows"]] == [40.0, 20.0, 10.0]
    assert result["keeps"] == ["80 x full: 8 heads of 128 + 128"]
    assert result["assumptions"] == []
    assert result["memory_bytes"] is None


def test_csv_has_every_figure(capsys):
    code, out, _ = size(
        capsys, "gpt-oss-20b", "--tokens", "1k,64K", "--block-size", "16", "--memory", "1GiB", "--price",
        "7.3/GB-month", "--csv",
    )  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [row["tokens"] for row in rows] == ["1000", "65536"]
    # 12 layers of 2 KiB a token each way: all tokens in whole blocks, and 9 blocks of 16 for a window of 128
    assert rows[0]["sequence_bytes"] == str(12 * 2048 * (1008 + 144))
    assert rows[0]["block_bytes"] == str(24 * 2048 * 16)
    assert rows[1]["sequences_that_fit"] == str(2**30 // (12 * 2048 * (65536 + 144)))
    assert rows[1]["tokens_that_fit"] == str((2**30 // (12 * 2048) - 144) // 16 * 16)
    assert float(rows[1]["million_tokens_hour_cost"]) == pytest.approx(12 * 2048 * (65536 + 144) / 65536 * 1e6 * 1e-11)


def test_assumptions_and_notes_are_told(capsys):
    _, out, _ = size(capsys, "deepseek-v3", "--tokens", "1M")
    assert "latent attention keeps the latent and the rotary part" in out
    assert "1000000 tokens are more than the 163840 that the config names as its longest context" in out
    assert "1 draft layer not counted (--drafts counts them)" in out
    _, with_drafts, _ = size(capsys, "deepseek-v3", "--drafts")
    assert "1 x latent: 1 head of 512 + 64" in with_drafts
    assert "not counted" not in with_drafts
    _, without_drafts, _ = size(capsys, "llama-3.1-8b", "--drafts")
    assert "no draft layers to count" in without_drafts


def test_fixed_states_windows_and_scales_are_shown(capsys):
    _, hybrid, _ = size(capsys, "Qwen3.5-27B", "--dtype", "bf16,int4", "--group-size", "64")
    assert "48 x linear state: 48 heads of 16384 in float32, whatever the length" in hybrid
    assert "fixed state" in hybrid
    assert "64 KiB" in hybrid
    assert "bf16 takes no groups: --group-size is not for it" in hybrid
    assert "17 KiB" in hybrid  # 16 KiB and 4 scales of 2 bytes a vector
    _, llama4, _ = size(capsys, "llama-4-scout", "--tokens", "16K")
    assert "36 x chunked: 8 heads of 128 + 128 for a chunk of 8192 tokens" in llama4
    _, compressed, _ = size(capsys, "deepseek-v4-flash")
    assert "21 x compressed: 1 head of 512 for each 4 tokens" in compressed
    assert "43 x sliding: 1 head of 512 for the last 128 tokens" in compressed


def test_configs_by_path(capsys, tmp_path):
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        code, out, _ = size(capsys, str(path), "--json")
        assert code == 0
        result = json.loads(out)
        assert result["model"] == tmp_path.name
        assert result["rows"][0]["token_bytes"] == 2 * 4 * (16 + 16) * 2
        assert len(result["assumptions"]) == 2
    path = data_file("configs/Qwen--Qwen3-32B.json")
    code, out, _ = size(capsys, str(path), "--json")
    assert json.loads(out)["rows"][0]["token_bytes"] == 262144


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["qwen3-99b"], "kvarray size: no model named 'qwen3-99b' in the catalogue; did you mean Qwen3-"),
        (["nowhere/config.json"], "kvarray size: nowhere/config.json: No such file or directory"),
        (["llama-3.1-8b", "--tokens", "0"], "kvarray size: tokens must be 1 or more: tokens[0] = 0"),
        (["llama-3.1-8b", "--tokens", "x"], "argument --tokens: a count must be a number"),
        (["llama-3.1-8b", "--tokens", "8K,"], "argument --tokens: a list must have no empty items"),
        (["llama-3.1-8b", "--dtype", "bf61"], "kvarray size: dtype must be a number format that is known: got 'bf61'"),
        (["llama-3.1-8b", "--tp", "3"], "kvarray size: tp must divide the 8 full KV heads"),
        (["llama-3.1-8b", "--tp", "0"], "kvarray size: tp must be 1 or more"),
        (["llama-3.1-8b", "--block-size", "0"], "kvarray size: block_size must be 1 or more: got 0"),
        (["deepseek-v4-flash", "--block-size", "16"], "block_size must be a multiple of the 128 tokens to"),
        (["llama-3.1-8b", "--memory", "80G"], "argument --memory: a size must have a unit out of"),
        (["llama-3.1-8b", "--dtype", "int4", "--group-size", "0"], "kvarray size: group_size must be 1 or more: got 0"),
        (["llama-3.1-8b", "--price", "2"], "argument --price: a price must be like 0.09/GB-month: got '2'"),
        (["llama-3.1-8b", "--price", "-2/GB-month"], "argument --price"),
        (["llama-3.1-8b", "--price", "1e308/GiB-month"], "argument --price: price must be 1e+60 or less"),
        (["llama-3.1-70b", "--tokens", str(2**63 - 1)], "tokens and block_size must be small enough for their bytes"),
        (["llama-3.1-8b", "--block-size", str(2**63 - 1)], "tokens and block_size must be small enough"),
        (["llama-3.1-8b", "--scale-dtype", "nonsense"], "--scale-dtype is the format of the scales of groups"),
        (["llama-3.1-8b", "--scale-dtype", "fp32"], "it needs --group-size"),
        (
            ["llama-3.1-8b", "--dtype", "int4", "--group-size", "9", "--scale-dtype", "x"],
            "scale_dtype must be a number",
        ),
        (
            ["llama-3.1-8b", "--group-size", "32"],
            "--group-size is for formats of 8 bits or fewer without groups of their own: got bf16",
        ),
        (["llama-3.1-8b", "--dtype", "fp16,mxfp4", "--group-size", "32"], "own: got fp16, mxfp4"),
        (["llama-3.1-8b", "--json", "--csv"], "not allowed with argument"),
    ],
)
def test_refused(capsys, argv, message):
    code, out, err = size(capsys, *argv)
    assert (code, out) == (2, "")
    assert message in err


def test_a_config_that_is_not_understood_is_named(capsys, tmp_path):
    path = tmp_path / "odd.json"
    path.write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    code, _, err = size(capsys, str(path))
    assert code == 2
    assert err.startswith(f"kvarray size: {path}: num_attention_heads or n_head or")
