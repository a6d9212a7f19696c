"""Deployments from plain values and TOML: what is understood, and what is refused by name."""

import pytest

from kvarray import (
    GPUS,
    LINKS,
    PREFILL_TIMES,
    DecodeTime,
    Deployment,
    Link,
    ModelSpec,
    PrefillTime,
    TierSpec,
    Trace,
    replay,
)
from kvarray.deploy.hardware import KERNEL_SHARE, model_times, named_parameters
from kvarray.units import parse_seconds

LEAST = {"bytes_per_token": "320KiB", "prefill": "llama-3.1-8b-h100", "tiers": ["gpu=16GiB"]}

TOML = """
model = "llama-3.1-70b"
dtype = "fp8"
gpu = "h100"
gpus = 8
parameters = "70.6G"
kernel_share = 0.6
block_size = "1k"
policy = "slru"
replicas = 4
routing = "prefix_aware"
overlap_weight = 2.0
overlap_efficiency = 0.5
min_load_tokens = "2k"
recompute_slow = true
promote_at = "never"
target_ttft = "800ms"
window = 0.25
unit = "full_block"

[[tiers]]
name = "gpu"
capacity = "100GiB"

[[tiers]]
name = "cpu"
blocks = "3k"
link = { name = "dram-pcie5-dma", count = 8 }
admission = "frequency"
min_tokens = 16

[[tiers]]
name = "ssd"
capacity = "8TB"
up = { rate = "7GB/s", latency = "100us", alpha = "5us", fragment = "1MiB" }
down = "2GB/s"
direct = "50GB/s"

[separation]
schedule = "layered"
link = "net-400g"
streams = 4
"""


def test_a_file_says_everything(tmp_path):
    path = tmp_path / "deployment.toml"
    path.write_text(TOML)
    found = Deployment.from_toml(path)
    assert found.model == "Llama-3.1-70B"
    assert found.bytes_per_token == 163840
    assert (found.block_size, found.policy, found.replicas, found.routing) == (1000, "slru", 4, "prefix_aware")
    assert (found.overlap_weight, found.overlap_efficiency, found.min_load_tokens) == (2.0, 0.5, 2000)
    assert (found.recompute_slow, found.promote_at, found.target_ttft_s) == (True, None, 0.8)
    assert (found.window, found.unit) == (0.25, "full_block")
    gpu, cpu, ssd = found.tiers
    assert (gpu.capacity_bytes, cpu.blocks, ssd.capacity_bytes) == (100 * 2**30, 3000, 8 * 10**12)
    dma = LINKS["dram-pcie5-dma"]
    assert cpu.up == Link(dma.bytes_per_second * 8, dma.latency_s, dma.alpha_s)
    assert (cpu.admission, cpu.min_tokens) == ("frequency", 16)
    assert ssd.up == Link(7e9, parse_seconds("100us"), parse_seconds("5us"), 2**20)
    assert (ssd.down, ssd.direct) == (Link(2e9), Link(50e9))
    assert found.separation.layers == 80
    assert (found.separation.link, found.separation.streams) == (LINKS["net-400g"], 4)
    times = model_times(
        ModelSpec.from_name("llama-3.1-70b"), GPUS["h100"], parameters=70.6e9, num_gpus=8, kernel_share=0.6,
        bytes_per_token=163840,
    )  # fmt: skip
    assert (found.prefill, found.decode) == times


def test_the_least_is_bytes_prefill_and_tiers():
    found = Deployment.from_dict(LEAST)
    assert (found.bytes_per_token, found.prefill) == (327680, PREFILL_TIMES["llama-3.1-8b-h100"])
    assert found.decode == DecodeTime(0.0, 0.0, 0.0)
    assert Deployment.from_dict(LEAST | {"model": "of my own"}).model == "of my own"


def test_times_may_be_given_and_go_before_those_of_gpus():
    fields = {"model": "llama-3.1-8b", "gpu": "h100", "tiers": ["gpu=16GiB"]}
    prefill = {"start": "10ms", "per_token": "20us", "per_pair": 5e-10}
    found = Deployment.from_dict(fields | {"prefill": prefill, "decode": {"base": "5ms"}})
    assert found.prefill == PrefillTime(0.01, parse_seconds("20us"), 5e-10)
    assert found.decode == DecodeTime(0.005, 0.0, 0.0)
    assert found.bytes_per_token == 131072


def test_heads_that_are_fewer_than_the_gpus_are_kept_by_each():
    fields = {"model": "llama-3.1-70b", "gpu": "h100", "gpus": 16, "tiers": ["gpu=16GiB"]}
    assert Deployment.from_dict(fields).bytes_per_token == 2 * 327680
    assert Deployment.from_dict(fields | {"tp": 8}).bytes_per_token == 327680


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replica": 2}, "unknown key 'replica'; did you mean replicas?"),
        ({"writemode": "exclusive"}, "unknown key 'writemode'; did you mean write_mode?"),
        ({"zzz": 1}, "unknown key 'zzz'; known are"),
        ({"tiers": [{"name": "gpu", "capacty": "1GiB"}]}, "unknown key 'tiers[0].capacty'; did you mean capacity?"),
        ({"tiers": [{"capacity": "1GiB"}]}, "tiers[0].name must be given"),
        ({"tiers": [{"name": "gpu", "capacity": "64G"}]}, "tiers[0].capacity: a size must have a unit"),
        ({"tiers": ["gpu"]}, "a tier must be written as name=capacity"),
        ({"tiers": [{"name": "a", "blocks": 1}, {"name": "b", "blocks": 1, "link": "pcie5"}]}, "tiers[1].link must be"),
        ({"tiers": [{"name": "a", "blocks": 1, "up": "1GB/s", "link": "1GB/s"}]}, "is another word for up"),
        ({"tiers": [{"name": "a", "blocks": 1, "link": {"latency": 1}}]}, "tiers[0].link must have a name or a rate"),
        ({"tiers": [{"name": "a", "blocks": 1, "link": {"rate": 1, "speed": 1}}]}, "unknown key 'tiers[0].link.speed'"),
        ({"separation": {"schedule": "layered"}}, "separation.link must be given"),
        ({"separation": {"link": "1GB/s", "stream": 2}}, "unknown key 'separation.stream'; did you mean streams?"),
        ({"separation": {"link": "1GB/s"}}, "layers must be given for the layered schedule"),
        ({"prefill": "llama"}, "prefill must be one of"),
        ({"prefill": {"start": "1week"}}, "prefill.start: a duration must have a unit"),
        ({"decode": {"steps": 1}}, "unknown key 'decode.steps'"),
        ({"gpu": "h100"}, "gpu needs model"),
        ({"gpu": "h1000", "model": "llama-3.1-8b"}, "gpu must be one of a100"),
        ({"gpu": "h100", "model": "lama-3.1-8b"}, "no model named 'lama-3.1-8b'"),
        ({"replicas": "two"}, "replicas: a count must be a number"),
        ({"bytes_per_token": "0B"}, "bytes_per_token must be"),
        ({"target_ttft": "soon"}, "target_ttft: a duration must be a number"),
    ],
)
def test_what_is_not_understood_is_named(changes, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below, brackets and all
        Deployment.from_dict(LEAST | changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("tiers", "tiers must be given"),
        ("bytes_per_token", "bytes_per_token must be given, or a model"),
        ("prefill", "prefill must be given"),
    ],
)
def test_what_is_missing_is_named(missing, message):
    fields = {key: value for key, value in LEAST.items() if key != missing}
    with pytest.raises(ValueError, match=message):
        Deployment.from_dict(fields)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tiers": "gpu=1GiB"}, "tiers must be a list"),
        ({"tiers": [3]}, r"tiers\[0\] must be a table"),
        ({"separation": "layered"}, "separation must be a table"),
        ({"model": 3}, "model must be a name"),
        ({"prefill": 3.0}, "prefill must be a table"),
        ({"replicas": 2.5}, "replicas must be an integer"),
    ],
)
def test_values_of_another_kind_are_named(changes, message):
    with pytest.raises(TypeError, match=message):
        Deployment.from_dict(LEAST | changes)


def test_a_file_that_is_no_deployment_is_named(tmp_path):
    path = tmp_path / "deployment.toml"
    path.write_text("replicas = = 2")
    with pytest.raises(ValueError, match=r"deployment\.toml: Invalid value"):
        Deployment.from_toml(path)
    path.write_text("replcas = 2")
    with pytest.raises(ValueError, match=r"deployment\.toml: unknown key 'replcas'; did you mean replicas"):
        Deployment.from_toml(path)
    with pytest.raises(FileNotFoundError):
        Deployment.from_toml(tmp_path / "none.toml")


def test_names_say_how_large_models_are():
    assert named_parameters("DeepSeek-R1-Distill-Qwen-1.5B") == 1.5e9
    for name in ("DeepSeek-V3", "Mixtral-8x7B"):
        with pytest.raises(ValueError, match="parameters must be given for a model whose name does not say them"):
            named_parameters(name)


def test_times_of_a_model_follow_from_its_shape():
    """Llama-3.1-8B on an H100, against the fit to measurements: at its share of the peak both costs agree."""
    llama, measured = ModelSpec.from_name("llama-3.1-8b"), PREFILL_TIMES["llama-3.1-8b-h100"]
    prefill, decode = model_times(llama, GPUS["h100"], parameters=8.03e9, bytes_per_token=131072)
    assert prefill.per_token_s * KERNEL_SHARE == pytest.approx(2 * 8.03e9 / GPUS["h100"].flops_per_second)
    assert prefill.per_token_s == pytest.approx(measured.per_token_s, rel=0.1)
    assert prefill.per_pair_s == pytest.approx(2 * 32 * 32 * 128 / GPUS["h100"].flops_per_second / KERNEL_SHARE)
    assert decode.base_s == prefill.start_s == pytest.approx(2 * 8.03e9 / GPUS["h100"].bytes_per_second)
    window = ModelSpec.from_fields("w", num_layers=2, num_kv_heads=1, head_dim=64, window=100, num_window_layers=1)
    sliding, _ = model_times(window, GPUS["h100"], parameters=1.0, bytes_per_token=1, kernel_share=1.0)
    operations = 4 * 64  # of a pair of tokens
    assert sliding.per_token_s * GPUS["h100"].flops_per_second == pytest.approx(2.0 + operations * 100)
    assert sliding.per_pair_s * GPUS["h100"].flops_per_second == pytest.approx(operations / 2)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"replicas": 10**9}, ValueError, "replicas must be less than 65537: got 1000000000"),
        ({"policy": 3}, TypeError, "policy must be a name or a key function: got 3"),
        ({"policy": True}, TypeError, "policy must be a name or a key function: got True"),
    ],
)
def test_fields_beyond_reason(fields, error, message):
    given = {"bytes_per_token": 1, "prefill": PrefillTime(0.0, 1.0, 0.0), **fields}
    with pytest.raises(error, match=message):
        Deployment((TierSpec("gpu", blocks=8),), **given)


def test_arguments_of_replay():
    deployment = Deployment((TierSpec("gpu", blocks=8),), bytes_per_token=1, prefill=PrefillTime(0.0, 1.0, 0.0))
    trace = Trace([1, 2], [0, 1, 2], block_size=4, arrival_s=[0.0, 1.0])
    with pytest.raises(TypeError, match="trace must be a Trace: got None"):
        replay(None, deployment)
    with pytest.raises(TypeError, match=r"deployment must be a Deployment: got \{\}"):
        replay(trace, {})
    with pytest.raises(ValueError, match="rate_scale must be 1e-60 or more: got 1e-320"):
        replay(trace, deployment, rate_scale=1e-320)


def test_bytes_of_a_trace_that_fit_no_total():
    deployment = Deployment((TierSpec("gpu", blocks=8),), bytes_per_token=2**58, prefill=PrefillTime(0.0, 1.0, 0.0))
    assert replay(Trace([1], [0, 1], block_size=4), deployment).tier_hit_tokens.tolist() == [0]
    with pytest.raises(ValueError, match=r"bytes_per_token must be small enough .* for 6 blocks of 4 tokens"):
        replay(Trace([1, 2, 3, 1, 2, 3], [0, 3, 6], block_size=4), deployment)
