"""What the code of each model family supplies where its configs are silent.

Configs written by `save_pretrained` leave out what equals the default of the family's config class, so a missing
field has a definite meaning, family by family. The values are those of the config classes of Hugging Face
transformers 5.24. A family that is not here is read by its fields alone, and the result says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["FAMILIES", "Family", "family_of"]


@dataclass(frozen=True, slots=True)
class Family:
    """How a family lays out its layers, and its defaults.

    Attributes
    ----------
    windows : str
        Which layers slide where no field lists them: ``no`` layer; ``all`` of them; ``upper``: those from
        `max_window_layers` on, if `use_sliding_window`; ``used``: all, if `use_sliding_window`; ``last_full`` and
        ``first_full``: all but the last, or first, of each `period`; ``unknown``: a window is an error.
    period : int
        Layers to a repeat of the pattern.
    defaults : mapping
        Values of absent fields, by meaning.
    """

    windows: str = "unknown"
    period: int = 0
    defaults: Mapping[str, int | None] = field(default_factory=dict)


def _plain(**defaults: int | None) -> Family:
    return Family("no", 0, defaults)


def _sliding(windows: str, *, period: int = 0, **defaults: int | None) -> Family:
    return Family(windows, period, defaults)


FAMILIES: Mapping[str, Family] = {
    # One kind of attention throughout.
    **dict.fromkeys(
        (
            "llama", "granite", "granitemoe", "granitemoeshared", "olmo", "olmo2", "olmoe", "phi", "phi-msft",
            "gpt2", "gpt_neox", "gptj", "codegen", "opt", "bloom", "falcon", "RefinedWeb", "RefinedWebModel", "mpt",
            "dbrx", "chatglm", "qwen", "baichuan", "internlm", "internlm2", "internlm3", "stablelm",
            "stablelm_epoch", "cohere", "persimmon", "nemotron", "glm", "arcee", "apertus", "ernie4_5",
            "ernie4_5_moe", "exaone", "helium", "deepseek", "deepseek_v2", "kimi_k2", "kimi_k25", "longcat_flash",
            "minicpm", "minicpm3", "minimax_m1", "gpt_bigcode", "hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe",
            "nemotron-nas", "xverse", "aquila", "orion", "solar_open", "youtu", "smollm", "bitnet", "xglm",
            "biogpt", "command-r", "yi", "sarvam_mla", "sarvam_moe", "nanochat", "bailing_moe", "bailing_moe_v2",
            "step3", "deci", "flex_olmo", "hy_v3", "jais2", "diffllama", "gpt-sw3", "gpt_neox_japanese", "aria",
        ),
        _plain(),
    ),
    "gemma": _plain(heads=16, kv_heads=16, head_dim=256),
    "seed_oss": _plain(heads=80, kv_heads=8, head_dim=128),
    "glm4": _plain(heads=32, kv_heads=2, head_dim=128),
    "glm4_moe": _plain(heads=96, kv_heads=8),
    "glm4v": _plain(heads=32, kv_heads=2),
    "glm4v_moe": _plain(heads=96, kv_heads=8),
    "minimax_m2": _plain(heads=48, kv_heads=8),
    "jetmoe": _plain(heads=32, kv_heads=16, head_dim=128),
    # Latent attention, with and without an indexer.
    "deepseek_v3": _plain(heads=128, kv_lora_rank=512, qk_rope_head_dim=64),
    "deepseek_v32": _plain(heads=128, kv_lora_rank=512, qk_rope_head_dim=64, index_head_dim=128),
    "glm_moe_dsa": _plain(heads=64, kv_lora_rank=512, qk_rope_head_dim=64, index_head_dim=128),
    "glm4_moe_lite": _plain(heads=20, kv_lora_rank=512, qk_rope_head_dim=64),
    "deepseek_v4": _plain(heads=64, kv_heads=1, head_dim=512, window=128, index_head_dim=128),
    "minimax_m3": _plain(heads=64, kv_heads=4, head_dim=128),
    "minimax_m3_vl": _plain(heads=64, kv_heads=4, head_dim=128),
    # Windows in every layer.
    "mistral": _sliding("all", kv_heads=8, window=4096),
    "mixtral": _sliding("all", kv_heads=8, window=None),
    "ministral": _sliding("all", kv_heads=8, window=4096),
    "ministral3": _sliding("all", kv_heads=8, window=None),
    "phi3": _sliding("all", window=None),
    "phi4_multimodal": _sliding("all", kv_heads=8, window=None),
    "phimoe": _sliding("all", kv_heads=8, window=None),
    "starcoder2": _sliding("all", kv_heads=2, window=None),
    # Windows by choice of the config.
    "qwen2": _sliding("upper"),
    "qwen2_moe": _sliding("upper"),
    "qwen2_vl": _sliding("upper"),
    "qwen2_5_vl": _sliding("upper"),
    "qwen3": _sliding("upper", head_dim=128),
    "qwen3_moe": _sliding("used", kv_heads=4),
    "qwen3_vl": _sliding("no", head_dim=128),
    "qwen3_vl_moe": _sliding("no"),
    "mimo": _sliding("upper"),
    "dots1": _sliding("upper"),
    "smollm3": _plain(kv_heads=4, heads=16),
    # Windows in a pattern.
    "gemma2": _sliding("last_full", period=2, heads=8, kv_heads=4, head_dim=256, window=4096),
    "gemma3": _sliding("last_full", period=6, heads=8, kv_heads=4, head_dim=256, window=4096),
    "gemma3n": _sliding(
        "last_full", period=5, heads=8, kv_heads=2, head_dim=256, window=512, num_kv_shared_layers=15
    ),
    "gemma4": _sliding("last_full", period=6, heads=8, kv_heads=4, head_dim=256, window=512, global_head_dim=512),
    "gemma4_unified": _sliding(
        "last_full", period=6, heads=8, kv_heads=4, head_dim=256, window=1024, global_head_dim=512
    ),
    "vaultgemma": _sliding("last_full", period=2, heads=8, kv_heads=4, head_dim=256, window=4096),
    "cohere2": _sliding("last_full", period=4, head_dim=128, window=4096),
    "gpt_oss": _sliding("last_full", period=2, heads=64, kv_heads=8, head_dim=64, window=128),
    "olmo3": _sliding("last_full", period=4, window=4096),
    "exaone4": _sliding("last_full", period=4, window=4096),
    "exaone_moe": _sliding("last_full", period=4, window=4096),
    "cwm": _sliding("first_full", period=4, heads=48, kv_heads=8, window=8192),
    "granite_swa": _sliding("first_full", period=4, window=128),
    "granitemoe_swa": _sliding("first_full", period=4, window=128),
    "afmoe": _sliding("last_full", period=4, window=1024),
    "step3p5": _plain(kv_heads=8),
    "step3p7": _plain(kv_heads=8),
    "mimo_v2_flash": _plain(heads=64, kv_heads=4, head_dim=192, v_head_dim=128),
    "gpt_neo": _plain(),
    "laguna": _plain(),
    "mellum": _plain(),
    "llama4": _plain(heads=40, kv_heads=8, head_dim=128, attention_chunk_size=8192),
    # Hybrids.
    "qwen3_next": _plain(
        heads=16, kv_heads=2, head_dim=256, full_attention_interval=4, linear_num_key_heads=16,
        linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
    ),
    "qwen3_5": _plain(
        heads=16, kv_heads=4, head_dim=256, full_attention_interval=4, linear_num_key_heads=16,
        linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
    ),
    "qwen3_5_moe": _plain(
        heads=16, kv_heads=2, head_dim=256, full_attention_interval=4, linear_num_key_heads=16,
        linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
    ),
    "olmo_hybrid": _plain(linear_conv_kernel_dim=4),
    "kimi_linear": _plain(),
    "minimax": _plain(kv_heads=8),
    "minimax_text_01": _plain(kv_heads=8),
    "jamba": _plain(
        kv_heads=8, attn_layer_period=8, attn_layer_offset=4, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2
    ),
    "mamba": _plain(state_size=16, conv_kernel=4, expand=2),
    "falcon_mamba": _plain(state_size=16, conv_kernel=4, expand=2),
    "mamba2": _plain(heads=128, head_dim=64, state_size=128, conv_kernel=4, expand=2, n_groups=8),
    "bamba": _plain(kv_heads=8, mamba_d_state=256, mamba_d_conv=4, mamba_expand=2, mamba_n_groups=1),
    "falcon_h1": _plain(kv_heads=8, mamba_d_state=256, mamba_d_conv=4, mamba_expand=2, mamba_n_groups=1),
    "granitemoehybrid": _plain(mamba_d_state=256, mamba_d_conv=4, mamba_expand=2, mamba_n_groups=1),
    "nemotron_h": _plain(
        heads=32, kv_heads=8, head_dim=128, ssm_state_size=128, conv_kernel=4, n_groups=8, mamba_head_dim=64,
        mamba_num_heads=128,
    ),
    "zamba2": _plain(mamba_d_state=64, mamba_d_conv=4, mamba_expand=2, mamba_ngroups=1, n_mamba_heads=8),
    "recurrent_gemma": _plain(heads=10, head_dim=256, window=2048, conv1d_width=4),
    "lfm2": _plain(kv_heads=8, conv_L_cache=3),
    "lfm2_moe": _plain(kv_heads=8, conv_L_cache=3),
}  # fmt: skip
"""Families by `model_type`, without the ``_text`` of nested configs."""


def family_of(model_type: str) -> tuple[str, Family]:
    """Return the family of a `model_type`, and its row; an unknown one gets a row that supplies nothing.

    Examples
    --------
    >>> family_of("gemma3_text")[0], family_of("gemma3_text")[1].period
    ('gemma3', 6)
    """
    name = model_type.removesuffix("_text")
    return name, FAMILIES.get(name, Family())
