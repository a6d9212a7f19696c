"""From a Hugging Face `config.json` to what the model keeps for its tokens.

The reader goes by fields, not by model names: heads and their sizes, latent ranks, windows, ratios, states. The
family (`model_type`) adds only what its code supplies silently (`families`), and where a layer's kind is not listed
(`layouts`). What was assumed is listed in the result; what is missing, contradictory, or sounds as if it shaped the
cache and is not understood, is an error.

Left out: encoder-decoder models, cross attention to images, and models without a key-value cache or a state of a
known shape (RWKV, xLSTM). Where engines pad or mix formats (vLLM's 656-byte rows of sparse MLA, fp8 indexer keys with
their scales, hybrid pages blown up to one size) the counts here are of the numbers themselves.
"""

from collections.abc import Mapping
from typing import Any

from kvarray.economics.families import Family, family_of
from kvarray.economics.fields import NAMES, Fields
from kvarray.economics.layers import FixedState, KVStream, merge_alike
from kvarray.economics.layouts import layer_kinds
from kvarray.economics.model import ModelSpec
from kvarray.economics.states import compressor_states, conv_states, linear_states

__all__ = ["read_config"]

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_SUPPORTED_NOT = ("rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm", "reformer", "zamba", "retnet", "mllama", "qwen4_exp")


def read_config(config: Mapping[str, Any], *, name: str) -> ModelSpec:
    """Return the `ModelSpec` of a config.

    Parameters
    ----------
    config : mapping
        The content of a `config.json`.
    name : str
        What to call the model, in messages too.

    Raises
    ------
    ValueError
        If a field is missing, contradictory or not understood.
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"{name}: a config must be a mapping of fields: got {type(config).__name__}")
    text = _text_part(config, name)
    model_type = text.get("model_type") or config.get("model_type")
    family, row = family_of(str(model_type))
    defaults = {**row.defaults, "family": family}
    fields = Fields({**_shared(config), **_lifted(text)}, where=name, defaults=defaults)
    if fields.has("attention_sink_size"):
        fields.assume("attention_sink_size is a setting of an engine, not of the model: sinks are not counted")
    if model_type is None:
        fields.assume("model_type is absent: the config is read by its fields alone")
    elif row == Family():
        fields.assume(f"model_type {model_type} is not one that is known: the config is read by its fields alone")
    if family in _SUPPORTED_NOT or fields.flag("is_encoder_decoder"):
        raise fields.fail(f"{model_type} keeps a cache of a shape that is not modelled")
    streams, states, drafts = _compressed(fields) if _is_compressed(fields, family) else _layered(fields, family, row)
    _refuse_leftovers(fields, family)
    return ModelSpec(
        name=name,
        streams=merge_alike(streams),
        states=merge_alike(states),
        draft_streams=merge_alike(drafts),
        num_heads=fields.count("heads"),
        max_tokens=_longest(fields),
        assumptions=tuple(fields.assumptions),
    )


def _text_part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the part that describes the text model, however deep it is."""
    for field in _NESTED:
        inner = config.get(field)
        if isinstance(inner, Mapping) and inner:
            return _text_part(inner, name)
    return config


def _shared(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a composite config states once for all its parts."""
    return {field: config[field] for field in ("dtype", "torch_dtype") if config.get(field) is not None}


def _lifted(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text part with the head count inside MPT's and DBRX's ``attn_config`` lifted to the top."""
    inner = text.get("attn_config")
    heads = None
    if isinstance(inner, Mapping):
        heads = 1 if inner.get("attn_type") == "multiquery_attention" else inner.get("kv_n_heads")
    return dict(text) if heads is None else {"num_kv_heads": heads, **text}


def _longest(fields: Fields) -> int | None:
    """Return the longest context that a config names; of several names the most common one counts."""
    for field in NAMES["max_tokens"]:
        value = fields.raw(field)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _refuse_leftovers(fields: Fields, family: str) -> None:
    left = fields.not_understood()
    if left:
        listed = ", ".join(f"{field} = {str(fields.config[field])[:60]}" for field in left[:5])
        raise fields.fail(
            f"fields that may shape the cache are not understood for {family}: {listed}; leave them out if they do"
            " not, or give the layers with ModelSpec.from_fields"
        )


# The layers of everything but compressed attention.


def _layered(fields: Fields, family: str, row: Family) -> tuple[list[KVStream], list[FixedState], list[KVStream]]:
    kinds = layer_kinds(fields, family, row)
    index_layers = _index_layers(fields, kinds, family)
    storing = _storing_layers(fields, kinds)
    streams: list[KVStream] = []
    states: list[FixedState] = []
    for layer, kind in enumerate(kinds):
        if kind in ("linear", "hybrid"):
            states += linear_states(fields, family)
        if kind == "conv":
            states += conv_states(fields)
        if kind not in ("linear", "conv", "none") and storing[layer]:
            streams += _attention(fields, family, kind, layer)
            if index_layers[layer]:
                streams.append(KVStream("index", 1, (_index_width(fields),)))
    return streams, states, _draft_streams(fields, family, kinds, index_layers)


def _attention(fields: Fields, family: str, kind: str, layer: int) -> list[KVStream]:
    """Return the stream of one layer's keys and values."""
    window, aligned = _window(fields, kind, layer), kind == "chunked"
    if fields.count("kv_lora_rank") is not None and fields.raw("use_mla") is not False:
        latent = (
            _own_of_layer(fields, layer, "kv_lora_rank") or fields.need("kv_lora_rank"),
            _own_of_layer(fields, layer, "qk_rope_head_dim") or fields.need("qk_rope_head_dim", why="latent attention"),
        )
        name = "latent" if window is None else f"latent_{kind}"
        fields.assume("latent attention keeps the latent and the rotary part, not the keys and values made from them")
        return [KVStream(name, 1, latent, window=window, aligned=aligned)]
    name = kind if window is not None else "full"
    heads, widths = _heads(fields, family, kind, layer), _widths(fields, family, kind, layer)
    return [KVStream(name, heads, widths, window=window, aligned=aligned)]


def _window(fields: Fields, kind: str, layer: int) -> int | None:
    if kind == "chunked":
        return fields.need("attention_chunk_size", why="a chunked layer")
    if kind != "sliding":
        return None
    blocks = fields.items("block_configs")
    if blocks is not None:
        attention = blocks[layer]["attention"]
        return fields.whole("window_length", attention["window_length"]) + (attention.get("num_sink_tokens") or 0)
    window = fields.count("window") or fields.count("window_size")
    if window is None:
        raise fields.fail("sliding_window is missing, which the sliding layers need")
    return window


def _heads(fields: Fields, family: str, kind: str, layer: int) -> int:
    """Return the heads that hold keys and values in one layer."""
    blocks = fields.items("block_configs")
    if blocks is not None:
        group = fields.whole("n_heads_in_group", blocks[layer]["attention"].get("n_heads_in_group"))
        return _divide(fields, fields.need("heads"), group, "the attention heads", "n_heads_in_group")
    listed = fields.items("num_key_value_heads_per_layer")
    if listed is not None:
        if layer >= len(listed):
            raise fields.fail(f"num_key_value_heads_per_layer must name each layer: got {len(listed)}")
        return fields.whole(f"num_key_value_heads_per_layer[{layer}]", listed[layer])
    own = _own_of_layer(fields, layer, "kv_heads") or _own_of_kind(fields, kind, "heads")
    if own is not None:
        return own
    heads = fields.count("kv_heads")
    if family.lower() in ("falcon", "refinedweb", "refinedwebmodel"):
        return _falcon_heads(fields, heads)
    if fields.flag("multi_query"):
        if heads not in (None, 1):
            raise fields.fail(f"multi_query = true means 1 key-value head: got {heads}")
        return 1
    groups = fields.count("multi_query_group_num")
    if fields.flag("multi_query_attention") or (groups is not None and not fields.has("multi_query_attention")):
        return fields.need("multi_query_group_num", why="multi_query_attention")
    if heads is None:
        heads = fields.need("heads")
        if not fields.has("multi_query") and not fields.has("multi_query_attention"):
            fields.assume(f"num_key_value_heads is absent: {heads}, one for each attention head")
    return heads


def _falcon_heads(fields: Fields, heads: int | None) -> int:
    is_grouped, is_multi_query = fields.flag("new_decoder_architecture"), fields.flag("multi_query")
    if is_grouped or (heads is not None and not fields.has("multi_query")):
        return heads or fields.need("heads")
    if is_multi_query:
        return 1  # Falcon-7B states num_kv_heads = num_attention_heads beside it, and its code goes by the flag
    return fields.need("heads")


def _own_of_layer(fields: Fields, layer: int, what: str) -> int | None:
    """Return what transformers 5 states for single layers: ``{"05": {"head_dim": 512}}``."""
    overrides = fields.raw("per_layer_config")
    if overrides is None:
        return None
    if not isinstance(overrides, Mapping) or not all(str(key).isdigit() for key in overrides):
        raise fields.fail(f"per_layer_config must be a mapping of layer numbers: got {str(overrides)[:60]}")
    own = {int(key): value for key, value in overrides.items()}.get(layer)
    return None if own is None else Fields(own, where=f"{fields.where}: per_layer_config of layer {layer}").count(what)


def _own_of_kind(fields: Fields, kind: str, what: str) -> int | None:
    """Return the heads or widths that the sliding or the full layers of a model have of their own."""
    sliding = {"heads": "swa_num_key_value_heads", "key": "swa_head_dim", "value": "swa_v_head_dim"}
    fields.used |= {*sliding.values(), "attention_other_setting", "global_head_dim", "num_global_key_value_heads"}
    if kind == "sliding":
        other = fields.part("attention_other_setting")  # Step: the settings of the layers that are not full
        if other is not None and what != "value":
            return other.count("kv_heads" if what == "heads" else "head_dim")
        return fields.count(sliding[what])
    if kind != "full":
        return None
    if what == "heads":  # Gemma 4 goes by the number only where keys and values are one
        is_separate = fields.has("attention_k_eq_v") and not fields.flag("attention_k_eq_v")
        return None if is_separate else fields.count("num_global_key_value_heads")
    return fields.count("global_head_dim")


def _widths(fields: Fields, family: str, kind: str, layer: int) -> tuple[int, int]:
    """Return the numbers in a key and in a value of one head."""
    own = _own_of_layer(fields, layer, "head_dim") or _own_of_kind(fields, kind, "key")
    key = own or _head_dim(fields, family)
    value = _own_of_layer(fields, layer, "v_head_dim") or _own_of_kind(fields, kind, "value")
    if value is None and own is None:
        value = fields.count("v_head_dim")
    if fields.flag("attention_k_eq_v"):
        fields.assume("attention_k_eq_v: keys and values come from one projection, and both are kept")
    return key, value or key


def _head_dim(fields: Fields, family: str) -> int:
    if family == "zamba2":  # attends over the hidden state and the embedding side by side
        fields.raw("kv_channels"), fields.raw("attention_hidden_size")
        if not fields.has("attention_head_dim"):
            heads = fields.need("heads")
            return _divide(fields, 2 * fields.need("hidden"), heads, "twice hidden_size", "the attention heads")
        return fields.need("attention_head_dim")
    stated = fields.count("head_dim")
    if stated is not None:
        return stated
    hidden, heads = fields.need("hidden", why="a config without head_dim"), fields.need("heads")
    dim = _divide(fields, hidden, heads, "hidden_size", "the attention heads")
    fields.assume(f"head_dim is absent: hidden_size / heads = {hidden} / {heads} = {dim}")
    return dim


def _divide(fields: Fields, whole: int, parts: int, what: str, by: str) -> int:
    if whole % parts:
        raise fields.fail(f"{what} must be a multiple of {by}: got {whole} and {parts}")
    return whole // parts


# Which layers keep anything, and which keep index keys.


def _storing_layers(fields: Fields, kinds: list[str]) -> list[bool]:
    """Return which layers keep what they attend to, instead of using an earlier layer's."""
    layers = len(kinds)
    shared = fields.count("num_kv_shared_layers", low=0) or 0
    if shared >= layers > 0 and shared:
        raise fields.fail(f"num_kv_shared_layers must be less than the {layers} layers: got {shared}")
    homeless = set(kinds[layers - shared :]) - set(kinds[: layers - shared]) if shared else set()
    if homeless:
        raise fields.fail(f"the last {shared} layers share the cache of earlier ones, of which none is {min(homeless)}")
    every = fields.count("cla_share_factor") if fields.flag("use_cla") else 1
    fields.raw("cla_share_factor")
    return [layer < layers - shared and layer % (every or 1) == 0 for layer in range(layers)]


def _index_layers(fields: Fields, kinds: list[str], family: str) -> list[bool]:
    """Return which layers keep the keys of a sparse-attention indexer."""
    layers = len(kinds)
    sparse = fields.part("sparse_attention_config")
    if sparse is not None:
        if sparse.has("use_sparse_attention") and not sparse.flag("use_sparse_attention"):
            return [False] * layers
        which = sparse.items("sparse_attention_freq")
        if which is None or len(which) != layers:
            raise sparse.fail(f"sparse_attention_freq must say for each of the {layers} layers whether it is sparse")
        return [bool(bit) for bit in which]
    if fields.count("index_head_dim") is None:
        if "indexed" in kinds:
            raise fields.fail("index_head_dim is missing, which the sparse-attention layers need")
        return [False] * layers
    own = _own_indexers(fields, layers)
    sparse_kind = "indexed" if "indexed" in kinds else "full"
    return [own[i] and kinds[i] == sparse_kind for i in range(layers)]


def _own_indexers(fields: Fields, layers: int) -> list[bool]:
    """Return which layers have an indexer of their own; the others take the choice of an earlier one (GLM 5.2)."""
    types = fields.items("indexer_types")
    pattern = fields.raw("index_topk_pattern")
    if types is None and isinstance(pattern, str):
        types = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    if types is None:
        every, offset = fields.count("index_topk_freq") or 1, fields.count("index_skip_topk_offset", low=0)
        skip = 2 if offset is None else offset
        return [max(i - skip + 1, 0) % every == 0 for i in range(layers)]
    if len(types) != layers or set(types) - {"full", "shared"}:
        raise fields.fail(f"indexer_types must be full or shared for each of the {layers} layers: got {types[:4]}...")
    return [kind == "full" for kind in types]


def _index_width(fields: Fields) -> int:
    sparse = fields.part("sparse_attention_config")
    width = sparse.need("sparse_index_dim") if sparse is not None else fields.need("index_head_dim")
    fields.assume(
        f"indexer keys ({width} numbers a token) are kept at the cache's dtype; engines keep DeepSeek's in fp8"
    )
    return width


# Draft layers (multi-token prediction).


def _draft_streams(fields: Fields, family: str, kinds: list[str], index_layers: list[bool]) -> list[KVStream]:
    """Return the streams of the draft layers, each a layer of the kind that keeps the most."""
    drafts = fields.count("draft_layers", low=0) or 0
    if fields.has("num_mtp_modules"):
        modules = fields.count("num_mtp_modules", low=0) or 0
        depth = fields.count("mtp_transformer_layers", low=0) if fields.has("mtp_transformer_layers") else 1
        used = fields.flag("use_mtp") if fields.has("use_mtp") else True
        drafts = max(drafts, modules * (depth or 0)) if used else drafts
    named, letters = fields.items("mtp_layers_block_type"), fields.raw("mtp_hybrid_override_pattern")
    if named is not None:
        drafts *= sum(name in ("attention", "full_attention") for name in named)
    elif letters is not None:
        drafts *= str(letters).count("*")
    growing = [layer for layer, kind in enumerate(kinds) if kind in ("full", "indexed")]
    if not drafts or not growing:
        return []
    last = growing[-1]
    stream = _attention(fields, family, kinds[last], last)
    if any(index_layers):
        stream.append(KVStream("index", 1, (_index_width(fields),)))
    return stream * drafts


# Compressed attention (DeepSeek V4): a short window in every layer, and beside it one entry for each `ratio` tokens.


def _is_compressed(fields: Fields, family: str) -> bool:
    return family == "deepseek_v4" or any(fields.has(field) for field in ("compress_ratios", "compress_rates"))


def _compressed(fields: Fields) -> tuple[list[KVStream], list[FixedState], list[KVStream]]:
    layers, drafts = fields.need("layers"), fields.count("draft_layers", low=0) or 0
    ratios = _ratios(fields)
    if len(ratios) not in (layers, layers + drafts):
        raise fields.fail(
            f"compress_ratios must name each of the {layers} layers, or those and the {drafts} draft layers:"
            f" got {len(ratios)}"
        )
    fields.used.add("index_head_dim")  # which configs name even where no layer is sparse
    fields.assume("keys and values are one vector of head_dim numbers, kept once")
    fields.assume("what a compressor keeps of its open window is fp32, sized as in the reference code")
    parts = [_compressed_layer(fields, ratio, sparse=sparse) for ratio, sparse in ratios]
    streams = [stream for layer in parts[:layers] for stream in layer[0]]
    states = [state for layer in parts[:layers] for state in layer[1]]
    if drafts and len(ratios) == layers:
        fields.assume("compress_ratios leaves out the draft layers: they keep their window alone")
        parts += [_compressed_layer(fields, 0, sparse=False)] * drafts
    return streams, states, [stream for layer in parts[layers:] for stream in layer[0]]


def _ratios(fields: Fields) -> list[tuple[int, bool]]:
    """Return for each layer the tokens to an entry (0: a window alone), and whether it has an indexer."""
    rates = fields.part("compress_rates")
    names = fields.items("layer_types")
    listed = fields.items("compress_ratios")
    if listed is not None:
        ratios = [fields.whole(f"compress_ratios[{at}]", ratio, low=0) for at, ratio in enumerate(listed)]
        return [(ratio, ratio == 4) for ratio in ratios]  # the reference code knows the sparse layers by their 4
    if names is None:
        raise fields.fail("compress_ratios (one for each layer), or layer_types with compress_rates, is missing")
    by_name = {"sliding_attention": (0, False)}
    for name, short in (("compressed_sparse_attention", "csa"), ("heavily_compressed_attention", "hca")):
        rate = (rates.count(name) if rates is not None else None) or fields.count(f"compress_rate_{short}")
        if rate is None and name in names:
            raise fields.fail(f"compress_rates must name the ratio of {name}")
        by_name[name] = (rate or 0, short == "csa")
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise fields.fail(f"layer_types must be of {', '.join(by_name)} here: got {unknown[0]!r}")
    return [by_name[name] for name in names]


def _compressed_layer(fields: Fields, ratio: int, *, sparse: bool) -> tuple[list[KVStream], list[FixedState]]:
    heads, width = fields.count("kv_heads") or 1, fields.need("head_dim")
    window = fields.count("window")
    if window is None:
        raise fields.fail("sliding_window is missing, which compressed attention needs")
    streams = [KVStream("sliding", heads, (width,), window=window)]
    if not ratio:
        return streams, []
    streams.append(KVStream("compressed", heads, (width,), ratio=ratio))
    states = compressor_states(width, ratio=ratio, overlap=sparse)
    if sparse:
        index = fields.need("index_head_dim", why="compressed sparse attention")
        streams.append(KVStream("index", 1, (index,), ratio=ratio))
        states += compressor_states(index, ratio=ratio, overlap=True)
        fields.assume("indexer keys are kept at the cache's dtype; the reference code keeps them in fp4")
    return streams, states
