"""Which layer of a model is of which kind.

Configs say it in a dozen ways: a list of names (``layer_types``), a string of letters (``hybrid_override_pattern``),
a period with an offset, the indices of the attention layers, a list of zeros and ones, or nothing at all where the
family's code knows. Each way is one function here that returns a kind per layer, or None where the config does not
use it. Ways that are given together must agree.
"""

from collections.abc import Callable, Sequence

from kvarray.economics.families import Family
from kvarray.economics.fields import Fields, shown

__all__ = ["KINDS", "draft_layers", "layer_kinds"]

KINDS = {
    "full_attention": "full", "attention": "full", "global": "full", "full": "full", "global_attention": "full",
    "sliding_attention": "sliding", "local": "sliding", "sliding": "sliding", "local_attention": "sliding",
    "sliding_window": "sliding", "swa": "sliding",
    "chunked_attention": "chunked",
    "indexed_attention": "indexed", "deepseek_sparse_attention": "indexed", "minimax_m3_sparse": "indexed",
    "compressed_sparse_attention": "compressed_sparse", "heavily_compressed_attention": "heavily_compressed",
    "linear_attention": "linear", "linear": "linear", "mamba": "linear", "mamba2": "linear", "recurrent": "linear",
    "conv": "conv", "short_conv": "conv", "hybrid": "hybrid",
    "mlp": "none", "moe": "none", "dense": "none", "sparse": "none",
}  # fmt: skip
"""Names that configs give their layers, and the kinds they stand for; ``none`` keeps nothing."""
_MOST_LAYERS = 10_000
"""More layers, or draft layers, are a slip of the pen, not a model."""
_LETTERS = {"*": "full", "M": "linear", "-": "none", "E": "none"}


def layer_kinds(fields: Fields, family: str, row: Family) -> list[str]:
    """Return the kind of each layer of a model.

    Raises
    ------
    ValueError
        If a name of a layer is unknown, two ways of saying it disagree, lengths do not match, or nothing says which
        layers a window is for.
    """
    stated: dict[str, list[str]] = {}
    for field, read in _STATED:
        kinds = read(fields)
        if kinds is not None:
            stated[field] = kinds
    layers = fields.count("layers")
    if layers is None:
        if "hybrid_override_pattern" not in stated and "layers_block_type" not in stated:
            fields.need("layers")
        layers = len(next(iter(stated.values())))
    if layers > _MOST_LAYERS:
        raise fields.fail(f"num_hidden_layers must be {_MOST_LAYERS} at most: got {layers}")
    layers *= 2 if family == "longcat_flash" else 1  # two attentions in a layer
    for field, kinds in stated.items():
        if len(kinds) != layers:
            raise fields.fail(f"{field} must name each of the {layers} layers: got {len(kinds)}")
    if stated:
        fields.used.update(_ONLY_WITHOUT_A_LIST)
    implied = _implied(fields, layers)
    if implied is not None:
        stated[implied[0]] = implied[1]
    kinds = _agreed(fields, stated) if stated else _by_family(fields, layers, row, family)
    if family.startswith("gemma4") and kinds[-1] != "full":
        fields.assume("the last layer is full attention, which the code of gemma4 enforces")
        return [*kinds[:-1], "full"]
    return kinds


def draft_layers(fields: Fields) -> int:
    """Return the draft (multi-token prediction) layers that a config counts."""
    drafts = fields.count("draft_layers", low=0) or 0
    if fields.has("num_mtp_modules"):
        modules = fields.count("num_mtp_modules", low=0) or 0
        depth = fields.count("mtp_transformer_layers", low=0) if fields.has("mtp_transformer_layers") else 1
        used = fields.flag("use_mtp") if fields.has("use_mtp") else True
        drafts = max(drafts, modules * (depth or 0)) if used else drafts
    if drafts > _MOST_LAYERS:
        raise fields.fail(f"the draft layers must be {_MOST_LAYERS} at most: got {drafts}")
    return drafts


def _agreed(fields: Fields, stated: dict[str, list[str]]) -> list[str]:
    """Return the kinds that all fields state; an error where two differ."""
    first, *others = stated
    for field in others:
        pairs = zip(stated[first], stated[field], strict=True)
        for layer, (one, other) in enumerate(pairs):
            if one != other:
                raise fields.fail(
                    f"{first} and {field} must agree: layer {layer} is {one} by one, {other} by the other"
                )
    return stated[first]


def _named(fields: Fields, field: str) -> list[str] | None:
    names = fields.names(field)
    if names is None:
        return None
    for at, name in enumerate(names):
        if name not in KINDS:
            raise fields.fail(f"{field}[{at}] must be one of {', '.join(KINDS)}: got {shown(name)}")
    return [KINDS[name] for name in names]


def _letters(fields: Fields) -> list[str] | None:
    pattern = fields.raw("hybrid_override_pattern")
    if pattern is None:
        return None
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(_LETTERS):
        raise fields.fail(f"hybrid_override_pattern must be of the letters {' '.join(_LETTERS)}: got {shown(pattern)}")
    return [_LETTERS[letter] for letter in pattern]


def _zeros_and_ones(field: str, zero: str, one: str) -> Callable[[Fields], list[str] | None]:
    def read(fields: Fields) -> list[str] | None:
        bits = fields.bits(field)
        return None if bits is None else [one if bit else zero for bit in bits]

    return read


def _linear_attn_config(fields: Fields) -> list[str] | None:
    """Read Kimi's lists, which count layers from 1."""
    inner = fields.part("linear_attn_config")
    if inner is None:
        return None
    full = [inner.whole("full_attn_layers", layer) for layer in inner.items("full_attn_layers") or []]
    linear = [inner.whole("kda_layers", layer) for layer in inner.items("kda_layers") or []]
    places = {**dict.fromkeys(full, "full"), **dict.fromkeys(linear, "linear")}
    if len(places) != len(full) + len(linear) or set(places) != set(range(1, len(places) + 1)):
        raise inner.fail("full_attn_layers and kda_layers must name each layer once, counted from 1")
    return [places[layer] for layer in sorted(places)]


def _attention_types(fields: Fields) -> list[str] | None:
    """Read GPT-Neo's ``[[["global", "local"], 12]]``: patterns, and how often each is repeated."""
    groups = fields.items("attention_types")
    if groups is None:
        return None
    kinds: list[str] = []
    for group in groups:
        match group:
            case [[*names], times] if all(isinstance(name, str) and name in KINDS for name in names):
                times = fields.whole("attention_types", times)
                if len(names) * times > _MOST_LAYERS:
                    raise fields.fail(f"attention_types must name {_MOST_LAYERS} layers at most: got {shown(groups)}")
                kinds += [KINDS[name] for name in names] * times
            case _:
                raise fields.fail(f'attention_types must be like [[["global", "local"], 12]]: got {shown(groups)}')
    return kinds


def _block_configs(fields: Fields) -> list[str] | None:
    """Read the blocks of a searched architecture; heads and windows of each are read with the attention."""
    blocks = fields.items("block_configs")
    if blocks is None:
        return None
    kinds = []
    for at, block in enumerate(blocks):
        attention = block.get("attention") if isinstance(block, dict) else None
        if not isinstance(attention, dict):
            raise fields.fail(f"block_configs[{at}] must have an attention part: got {shown(block)}")
        inner = Fields(attention, where=f"{fields.where}: block_configs[{at}]")
        if inner.flag("no_op") or inner.flag("replace_with_linear"):
            kinds.append("none")
        else:
            kinds.append("sliding" if inner.count("window_length", low=0) else "full")
    return kinds


_STATED: Sequence[tuple[str, Callable[[Fields], list[str] | None]]] = (
    ("layer_types", lambda fields: _named(fields, "layer_types")),
    ("layers_block_type", lambda fields: _named(fields, "layers_block_type")),
    ("hybrid_override_pattern", _letters),
    ("hybrid_layer_pattern", _zeros_and_ones("hybrid_layer_pattern", "full", "sliding")),
    ("attn_type_list", _zeros_and_ones("attn_type_list", "linear", "full")),
    ("linear_attn_config", _linear_attn_config),
    ("attention_types", _attention_types),
    ("block_configs", _block_configs),
)
"""Fields that state a kind for every layer, most explicit first."""
_ONLY_WITHOUT_A_LIST = (
    "_sliding_window_pattern", "attention_chunk_size", "hybrid_layer_ids", "prefix_dense_sliding_window_pattern",
)  # fmt: skip
"""Fields that add nothing where the layers are listed."""
_NEEDS_A_LIST = (
    "bamba", "gpt_neo", "granitemoehybrid", "kimi_linear", "mimo_v2_flash", "minimax_m1", "minimax_text_01",
    "nemotron_h", "olmo_hybrid", "recurrent_gemma", "zamba2",
)  # fmt: skip
"""Families whose layers differ, and whose configs always say which is which."""


def _implied(fields: Fields, layers: int) -> tuple[str, list[str]] | None:
    """Return the kinds that a period, an offset or indices imply, with the field they come from."""
    is_listed = fields.has("layer_types") or fields.has("layers_block_type")

    def number(field: str) -> int | None:
        """Return a number of the config, or the family's own, which must not speak against a list in the config."""
        return None if is_listed and not fields.has(field) else fields.count(field, low=0)

    interval = number("full_attention_interval")
    if interval:
        return "full_attention_interval", ["linear" if (i + 1) % interval else "full" for i in range(layers)]
    period, offset = number("attn_layer_period"), number("attn_layer_offset")
    if period:
        if offset is None or offset >= period:
            raise fields.fail(f"attn_layer_offset must be less than attn_layer_period = {period}: got {offset}")
        return "attn_layer_period", ["full" if i % period == offset else "linear" for i in range(layers)]
    for field, other in (("attn_layer_indices", "linear"), ("full_attn_idxs", "conv")):
        indices = fields.items(field)
        if indices is not None:
            outside = [index for index in indices if index not in range(layers)]
            if outside:
                raise fields.fail(f"{field} must be indices of the {layers} layers: got {shown(outside[0])}")
            return field, ["full" if i in indices else other for i in range(layers)]
    every = number("global_attn_every_n_layers")
    if every:
        return "global_attn_every_n_layers", ["sliding" if (i + 1) % every else "full" for i in range(layers)]
    cycle = _named(fields, "block_types") or _named(fields, "_block_types")
    if cycle is not None:  # the attention of these cycles is local
        cycle = ["sliding" if kind == "full" else kind for kind in cycle]
        return "block_types", [cycle[i % len(cycle)] for i in range(layers)]
    return _windows_in_a_pattern(fields, layers)


def _windows_in_a_pattern(fields: Fields, layers: int) -> tuple[str, list[str]] | None:
    """Read ``sliding_window_pattern``: a period whose last layer is full, or letters L and G that repeat."""
    field = "sliding_window_pattern"
    pattern = fields.raw(field)
    if pattern is None and not fields.has("layer_types"):
        pattern = fields.raw(f"_{field}")  # what transformers 5 writes of it
    if pattern is None or fields.count("window") is None:
        return None
    if isinstance(pattern, str):
        if not pattern or set(pattern) - set("LG"):
            raise fields.fail(f"{field} must be a number or of the letters L and G: got {shown(pattern)}")
        kinds = ["sliding" if pattern[i % len(pattern)] == "L" else "full" for i in range(layers)]
        fields.assume("the last layer is full attention, whatever the letters say")
        return field, [*kinds[:-1], "full"]
    period = fields.whole(field, pattern)
    return field, ["sliding" if (i + 1) % period else "full" for i in range(layers)]


def _by_family(fields: Fields, layers: int, row: Family, family: str) -> list[str]:
    """Return the kinds that the family's code gives its layers where the config lists none."""
    if family in ("mamba", "mamba2", "falcon_mamba"):
        return ["linear"] * layers
    if family == "falcon_h1":
        return ["hybrid"] * layers
    if family in _NEEDS_A_LIST:
        raise fields.fail("layer_types (or an older field that lists the attention layers) is missing")
    if family == "minimax":
        fields.assume("layers alternate between linear and full attention, the default of minimax configs")
        return ["full" if (i + 1) % 2 else "linear" for i in range(layers)]
    if family in ("llama4", "smollm3") or fields.has("no_rope_layers"):
        return _by_rotary_layers(fields, layers, family)
    return _by_windows(fields, layers, row, family)


def _by_rotary_layers(fields: Fields, layers: int, family: str) -> list[str]:
    """Return chunks where Llama 4 has rotary positions, windows where SmolLM3 has none."""
    rotary = fields.bits("no_rope_layers")  # despite its name, 1 where there are rotary positions
    if rotary is None:
        interval = fields.count("no_rope_layer_interval") or 4
        fields.assume(f"no_rope_layers is absent: every {interval}th layer is without rotary positions")
        rotary = [(i + 1) % interval != 0 for i in range(layers)]
    if len(rotary) < layers:
        raise fields.fail(f"no_rope_layers must name each of the {layers} layers: got {len(rotary)}")
    if family == "llama4":
        chunked = fields.count("attention_chunk_size") is not None
        return ["chunked" if has_rotary and chunked else "full" for has_rotary in rotary[:layers]]
    slides = fields.flag("use_sliding_window") and fields.count("window") is not None
    return ["sliding" if slides and not has_rotary else "full" for has_rotary in rotary[:layers]]


def _by_windows(fields: Fields, layers: int, row: Family, family: str) -> list[str]:
    window = fields.count("window")
    upper = fields.raw("max_window_layers")
    used = fields.flag("use_sliding_window") if fields.has("use_sliding_window") else None
    if window is None or used is False:
        return ["full"] * layers
    if row.windows == "no":
        fields.assume(f"sliding_window = {window} is not used, as in the code of {family}")
        return ["full"] * layers
    if row.windows == "all":
        return ["sliding"] * layers
    if row.windows in ("used", "upper") and used is None and family != "dots1":
        fields.assume(f"use_sliding_window is absent: false, the default of {family} configs")
        return ["full"] * layers
    if row.windows == "used":
        return ["sliding"] * layers
    if row.windows == "upper":
        if upper is None:
            raise fields.fail("max_window_layers is missing, which use_sliding_window needs")
        return ["sliding" if i >= fields.whole("max_window_layers", upper, low=0) else "full" for i in range(layers)]
    if row.windows in ("last_full", "first_full"):
        fields.assume(f"no field lists the layers: 1 in {row.period} is full attention, as in the code of {family}")
        full = row.period - 1 if row.windows == "last_full" else 0
        return ["full" if i % row.period == full else "sliding" for i in range(layers)]
    raise fields.fail(
        f"sliding_window = {window}, and nothing says which layers it is for: layer_types is needed (a list of"
        " full_attention and sliding_attention), or sliding_window = null"
    )
