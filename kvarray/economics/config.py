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

from kvarray.economics.attention import attention_stream, index_stream
from kvarray.economics.compressed import compressed_layers, is_compressed
from kvarray.economics.families import Family, family_of
from kvarray.economics.fields import NAMES, Fields, shown
from kvarray.economics.layers import FixedState, KVStream, merge_alike
from kvarray.economics.layouts import draft_layers, layer_kinds
from kvarray.economics.model import ModelSpec
from kvarray.economics.states import conv_states, linear_states

__all__ = ["read_config"]

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_SUPPORTED_NOT = ("rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm", "reformer", "zamba", "retnet", "mllama", "qwen4_exp")


def read_config(config: Mapping[str, Any], *, name: str, where: str) -> ModelSpec:
    """Return the `ModelSpec` of a config.

    Parameters
    ----------
    config : mapping
        The content of a `config.json`.
    name : str
        What to call the model.
    where : str
        What to call the config in messages.

    Raises
    ------
    ValueError
        If a field is missing, contradictory or not understood.
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"{where}: a config must be a mapping of fields: got {type(config).__name__}")
    text = _text_part(config, where=where)
    model_type = text.get("model_type") or config.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        raise ValueError(f"{where}: model_type must be a string: got {shown(model_type)}")
    family, row = family_of(str(model_type))
    defaults = {**row.defaults, "family": family}
    fields = Fields({**_shared(config), **_lifted(text, where=where)}, where=where, defaults=defaults)
    if fields.has("attention_sink_size"):
        fields.assume("attention_sink_size is a setting of an engine, not of the model: sinks are not counted")
    if model_type is None:
        fields.assume("model_type is absent: the config is read by its fields alone")
    elif row == Family():
        fields.assume(f"model_type {model_type} is not one that is known: the config is read by its fields alone")
    if family in _SUPPORTED_NOT or fields.flag("is_encoder_decoder"):
        raise fields.fail(f"{model_type} keeps a cache of a shape that is not modelled")
    streams, states, drafts = (
        compressed_layers(fields) if is_compressed(fields, family) else _layered(fields, family, row)
    )
    _refuse_leftovers(fields, family)
    if not streams and not states:
        raise fields.fail("a model must keep something: none of the layers does")
    return ModelSpec(
        name=name,
        streams=merge_alike(streams),
        states=merge_alike(states),
        draft_streams=merge_alike(drafts),
        num_heads=fields.count("heads"),
        max_tokens=_longest(fields),
        assumptions=tuple(fields.assumptions),
    )


def _text_part(config: Mapping[str, Any], *, where: str) -> Mapping[str, Any]:
    """Return the part that describes the text model, however deep it is."""
    outer = None
    while outer is not config:
        outer = config
        for field in _NESTED:
            inner = outer.get(field)
            if inner and not isinstance(inner, Mapping):
                raise ValueError(f"{where}: {field} must be a mapping: got {shown(inner)}")
            if inner:
                config = inner
                break
    return config


def _shared(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a composite config states once for all its parts."""
    return {field: config[field] for field in ("dtype", "torch_dtype") if config.get(field) is not None}


def _lifted(text: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return the text part with the head count inside MPT's and DBRX's ``attn_config`` lifted to the top."""
    inner = text.get("attn_config")
    heads = None
    if inner is not None and not isinstance(inner, Mapping):
        raise ValueError(f"{where}: attn_config must be a mapping: got {shown(inner)}")
    if inner is not None:
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
        listed = ", ".join(f"{field} = {shown(fields.config[field])}" for field in left[:5])
        raise fields.fail(
            f"fields that may shape the cache are not understood for {family}: {listed}; leave them out if they do"
            " not, or give the layers with ModelSpec.from_fields"
        )


# The layers of everything but compressed attention.


def _layered(fields: Fields, family: str, row: Family) -> tuple[list[KVStream], list[FixedState], list[KVStream]]:
    kinds = layer_kinds(fields, family, row)
    index_layers = _index_layers(fields, kinds)
    storing = _storing_layers(fields, kinds)
    streams: list[KVStream] = []
    states: list[FixedState] = []
    for layer, kind in enumerate(kinds):
        if kind in ("linear", "hybrid"):
            states += linear_states(fields, family)
        if kind == "conv":
            states += conv_states(fields)
        if kind not in ("linear", "conv", "none") and storing[layer]:
            streams.append(attention_stream(fields, family, kind, layer))
            if index_layers[layer]:
                streams.append(index_stream(fields))
    return streams, states, _draft_streams(fields, family, kinds, index_layers)


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
    factor = fields.count("cla_share_factor") or 1  # cross-layer attention: this many layers share the first one's
    every = factor if fields.flag("use_cla") else 1
    return [layer < layers - shared and layer % every == 0 for layer in range(layers)]


def _index_layers(fields: Fields, kinds: list[str]) -> list[bool]:
    """Return which layers keep the keys of a sparse-attention indexer."""
    layers = len(kinds)
    sparse = fields.part("sparse_attention_config")
    if sparse is not None:
        if sparse.has("use_sparse_attention") and not sparse.flag("use_sparse_attention"):
            return [False] * layers
        which = sparse.bits("sparse_attention_freq")
        if which is None or len(which) != layers:
            raise sparse.fail(f"sparse_attention_freq must say for each of the {layers} layers whether it is sparse")
        return which
    if fields.count("index_head_dim") is None:
        if "indexed" in kinds:
            raise fields.fail("index_head_dim is missing, which the sparse-attention layers need")
        return [False] * layers
    own = _own_indexers(fields, layers)
    sparse_kind = "indexed" if "indexed" in kinds else "full"
    return [own[i] and kinds[i] == sparse_kind for i in range(layers)]


def _own_indexers(fields: Fields, layers: int) -> list[bool]:
    """Return which layers have an indexer of their own; the others take the choice of an earlier one (GLM 5.2)."""
    stated = {
        "indexer_types": (fields.names("indexer_types"), "full", "shared"),
        "index_topk_pattern": (_letters_or_names(fields, "index_topk_pattern"), "F", "S"),
    }
    own: list[bool] | None = None
    for field, (words, full, shared) in stated.items():
        if words is None:
            continue
        if len(words) != layers or set(words) - {full, shared}:
            raise fields.fail(f"{field} must be {full} or {shared} for each of the {layers} layers: got {shown(words)}")
        if own not in (None, [word == full for word in words]):
            raise fields.fail("indexer_types and index_topk_pattern must agree")
        own = [word == full for word in words]
    if own is not None:
        return own
    every, offset = fields.count("index_topk_freq") or 1, fields.count("index_skip_topk_offset", low=0)
    skip = 2 if offset is None else offset
    return [max(i - skip + 1, 0) % every == 0 for i in range(layers)]


def _letters_or_names(fields: Fields, field: str) -> list[str] | None:
    """Return a field that is a string of letters or a list of them; absent, null or empty is None."""
    value = fields.raw(field)
    return (list(value) or None) if isinstance(value, str) else fields.names(field)


# Draft layers (multi-token prediction).


def _draft_streams(fields: Fields, family: str, kinds: list[str], index_layers: list[bool]) -> list[KVStream]:
    """Return the streams of the draft layers, each a layer of the kind that keeps the most."""
    drafts = draft_layers(fields)
    named, letters = fields.names("mtp_layers_block_type"), fields.raw("mtp_hybrid_override_pattern")
    if named is not None:
        drafts *= sum(name in ("attention", "full_attention") for name in named)
    elif isinstance(letters, str):
        drafts *= letters.count("*")
    elif letters is not None:
        raise fields.fail(f"mtp_hybrid_override_pattern must be letters: got {shown(letters)}")
    growing = [layer for layer, kind in enumerate(kinds) if kind in ("full", "indexed")]
    if not drafts or not growing:
        return []
    last = growing[-1]
    streams = [attention_stream(fields, family, kinds[last], last)]
    if any(index_layers):
        streams.append(index_stream(fields))
    return streams * drafts
