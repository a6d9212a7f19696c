"""The fixed state of layers that do not keep their tokens: linear attention, Mamba, short convolutions, compressors.

Shapes follow vLLM's state calculators: a convolution of kernel k keeps the last k - 1 inputs; recurrences keep one
matrix per head. Where a config does not name the format of the recurrent state, it is the model's own, as in vLLM;
what the reference code holds in fp32 whatever the model's format is fp32 here.
"""

from kvarray.economics.dtypes import kv_dtype
from kvarray.economics.fields import Fields, shown
from kvarray.economics.layers import FixedState

__all__ = ["compressor_states", "conv_states", "linear_states"]


def conv_states(fields: Fields) -> list[FixedState]:
    """Return the state of a gated short convolution (LFM2)."""
    kernel = fields.need("conv_L_cache", low=2, why="a convolution layer")
    channels = fields.count("conv_dim") or fields.need("hidden")
    return [FixedState("conv", channels, _tails(fields, kernel), _model_dtype(fields))]


def linear_states(fields: Fields, family: str) -> list[FixedState]:
    """Return the states of one linear-attention or Mamba layer.

    Raises
    ------
    ValueError
        If no known set of fields gives the sizes.
    """
    if family == "recurrent_gemma":
        return _rg_lru(fields)
    if family in ("minimax", "minimax_text_01", "minimax_m1"):
        return _lightning(fields)
    if fields.has("linear_attn_config") or fields.has("linear_num_heads"):
        return _kimi_delta(fields, family)
    if fields.count("linear_num_value_heads") is not None:
        return _gated_delta(fields)
    if family in ("jamba", "mamba", "falcon_mamba"):
        return _mamba(fields, family)
    if any(fields.has(field) for field in ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")) or family in (
        "mamba2",
        "nemotron_h",
        "zamba2",
    ):
        return _mamba2(fields, family)
    raise fields.fail(
        "the size of the linear layers' state is missing: linear_num_value_heads and its like (gated delta net),"
        " linear_attn_config (Kimi delta attention), or mamba_n_heads, mamba_d_state and their like (Mamba)"
    )


def compressor_states(width: int, *, ratio: int, overlap: bool) -> list[FixedState]:
    """Return what a compressor keeps of the window it is still filling: numbers and gates, in fp32.

    With overlap, two windows of both halves are kept, as in the reference code of DeepSeek V4.
    """
    spans = 2 if overlap else 1
    return [FixedState("compressor", 1, 2 * (spans * ratio) * (spans * width), "fp32")]


def _stated_dtype(fields: Fields, *names: str) -> str | None:
    """Return the first number format that the fields name, None where they name none."""
    for field in names:
        value = fields.raw(field)
        if value in (None, "auto"):
            continue
        name = str(value).removeprefix("torch.")
        try:
            kv_dtype(name)
        except ValueError:
            raise fields.fail(f"{field} must be a number format that is known: got {shown(value)}") from None
        return name
    return None


def _model_dtype(fields: Fields) -> str:
    stated = _stated_dtype(fields, "dtype", "torch_dtype")
    if stated is None:
        fields.assume("dtype is absent: fixed states are in bf16")
    return stated or "bf16"


def _state_dtype(fields: Fields) -> str:
    stated = _stated_dtype(fields, "mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    if stated is not None:
        return stated
    dtype = _model_dtype(fields)
    fields.assume(f"recurrent states are in {dtype}, the model's own format: the config names none for them")
    return dtype


def _tails(fields: Fields, kernel: int) -> int:
    """Return the inputs that a convolution keeps."""
    fields.assume(f"convolutions of kernel {kernel} keep {kernel - 1} inputs, as in vLLM")
    return kernel - 1


def _gated_delta(fields: Fields) -> list[FixedState]:
    why = "a gated delta net"
    key_heads, key_dim = fields.need("linear_num_key_heads", why=why), fields.need("linear_key_head_dim", why=why)
    heads, dim = fields.need("linear_num_value_heads", why=why), fields.need("linear_value_head_dim", why=why)
    kept = _tails(fields, fields.need("linear_conv_kernel_dim", low=2, why=why))
    dtype = _model_dtype(fields)
    return [
        FixedState("linear", heads, key_dim * dim, _state_dtype(fields)),
        FixedState("conv", key_heads, 2 * key_dim * kept, dtype),
        FixedState("conv", heads, dim * kept, dtype),
    ]


def _kimi_delta(fields: Fields, family: str) -> list[FixedState]:
    inner = fields.part("linear_attn_config") or fields
    if inner is not fields:
        heads, dim = inner.need("num_heads"), inner.need("head_dim")
        kernel = inner.need("short_conv_kernel_size", low=2)
    elif family == "kimi_linear":
        heads, dim = fields.need("linear_num_heads"), fields.need("linear_head_dim")
        kernel = fields.need("linear_conv_kernel_dim", low=2)
    else:
        raise fields.fail(f"linear_num_heads is known of kimi_linear only: what {family} keeps is not known")
    fields.assume("recurrent states of Kimi delta attention are in fp32, as in the reference code")
    return [
        FixedState("linear", heads, dim * dim, "fp32"),
        FixedState("conv", heads, 3 * dim * _tails(fields, kernel), _model_dtype(fields)),
    ]


def _lightning(fields: Fields) -> list[FixedState]:
    heads = fields.need("heads")
    dim = fields.need("head_dim", why="lightning attention")
    return [FixedState("linear", heads, dim * dim, _state_dtype(fields))]


def _rg_lru(fields: Fields) -> list[FixedState]:
    width = fields.count("lru_width") or fields.need("hidden")
    kept = _tails(fields, fields.need("conv1d_width", low=2))
    fields.assume("recurrent states of the RG-LRU are in fp32, as in the reference code")
    return [FixedState("linear", width, 1, "fp32"), FixedState("conv", width, kept, _model_dtype(fields))]


def _first(fields: Fields, *names: str, why: str, low: int = 1) -> int:
    """Return the first of several fields that is there, or has a default."""
    for name in names:
        if fields.has(name):
            return fields.need(name, low=low)
    for name in names:
        value = fields.count(name, low=low)
        if value is not None:
            return value
    raise fields.fail(f"{' or '.join(names)} is missing, which {why} needs")


def _mamba(fields: Fields, family: str) -> list[FixedState]:
    why = "a Mamba layer"
    state = _first(fields, "mamba_d_state", "state_size", why=why)
    kept = _tails(fields, _first(fields, "mamba_d_conv", "conv_kernel", why=why, low=2))
    expand = _first(fields, "mamba_expand", "expand", why=why)
    stated = None if family == "jamba" else fields.count("intermediate_size")  # Jamba's is of its MLPs
    channels = stated or expand * fields.need("hidden", why=why)
    return [
        FixedState("mamba", channels, state, _state_dtype(fields)),
        FixedState("conv", channels, kept, _model_dtype(fields)),
    ]


def _mamba2(fields: Fields, family: str) -> list[FixedState]:
    why = "a Mamba-2 layer"
    if family == "mamba2":  # a model of nothing else names its heads plainly
        heads, dim = fields.need("heads", why=why), fields.need("head_dim", why=why)
    else:
        heads = _first(fields, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads", why=why)
        dim = _mamba2_head_dim(fields, heads, why)
    groups = _first(fields, "mamba_n_groups", "n_groups", "mamba_ngroups", why=why)
    state = _first(fields, "mamba_d_state", "ssm_state_size", "state_size", why=why)
    kept = _tails(fields, _first(fields, "mamba_d_conv", "conv_kernel", why=why, low=2))
    dtype = _model_dtype(fields)
    return [
        FixedState("mamba", heads, dim * state, _state_dtype(fields)),
        FixedState("conv", heads, dim * kept, dtype),
        FixedState("conv", groups, 2 * state * kept, dtype),
    ]


def _mamba2_head_dim(fields: Fields, heads: int, why: str) -> int:
    """Return a head's width: stated, or the inner width over the heads; both must agree."""
    fields.raw("mamba_expand"), fields.raw("expand")
    inner = fields.count("mamba_d_ssm")
    for field in ("mamba_d_head", "mamba_head_dim", "mamba_headdim"):
        value = fields.raw(field)
        if value is not None and value != "auto":
            dim = fields.whole(field, value)
            if inner is not None and inner != dim * heads:
                raise fields.fail(f"mamba_d_ssm = {inner} must be {heads} heads of {field} = {dim}")
            return dim
    if inner is None:
        inner = _first(fields, "mamba_expand", "expand", why=why) * fields.need("hidden", why=why)
    if inner % heads:
        raise fields.fail(f"the inner width {inner} must be a multiple of the {heads} Mamba heads")
    return inner // heads
