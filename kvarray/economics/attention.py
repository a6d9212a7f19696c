"""The keys and values of one attention layer: heads, widths, window, or the latent that stands for them.

Layers of one model may differ: by kind (Gemma 4's full layers have fewer and wider heads than its sliding ones), by a
list (`num_key_value_heads_per_layer`, `block_configs`), or one by one (`per_layer_config`).
"""

from collections.abc import Mapping

from kvarray.economics.fields import Fields, shown
from kvarray.economics.layers import KVStream

__all__ = ["attention_stream", "index_stream"]


def attention_stream(fields: Fields, family: str, kind: str, layer: int) -> KVStream:
    """Return the stream of one layer's keys and values."""
    window, aligned = _window(fields, kind, layer), kind == "chunked"
    if fields.count("kv_lora_rank") is not None and (fields.flag("use_mla") or not fields.has("use_mla")):
        latent = (
            _own_of_layer(fields, layer, "kv_lora_rank") or fields.need("kv_lora_rank"),
            _own_of_layer(fields, layer, "qk_rope_head_dim") or fields.need("qk_rope_head_dim", why="latent attention"),
        )
        name = "latent" if window is None else f"latent_{kind}"
        fields.assume("latent attention keeps the latent and the rotary part, not the keys and values made from them")
        return KVStream(name, 1, latent, window=window, aligned=aligned)
    name = kind if window is not None else "full"
    heads, widths = _heads(fields, family, kind, layer), _widths(fields, family, kind, layer)
    return KVStream(name, heads, widths, window=window, aligned=aligned)


def _window(fields: Fields, kind: str, layer: int) -> int | None:
    if kind == "chunked":
        return fields.need("attention_chunk_size", why="a chunked layer")
    if kind != "sliding":
        return None
    blocks = fields.items("block_configs")
    if blocks is not None:
        attention = blocks[layer]["attention"]
        sinks = fields.whole("num_sink_tokens", attention.get("num_sink_tokens") or 0, low=0)
        return fields.whole("window_length", attention["window_length"]) + sinks
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
    if heads is not None:
        _divide(fields, fields.count("heads") or heads, heads, "the attention heads", "the key-value heads")
    else:
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
    is_of_layers = isinstance(overrides, Mapping) and all(
        str(key).isdecimal() and isinstance(own, Mapping) for key, own in overrides.items()
    )
    if not is_of_layers:
        raise fields.fail(f"per_layer_config must map layer numbers to fields: got {shown(overrides)}")
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
    if value is None and (own is None or kind == "sliding"):
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


def index_stream(fields: Fields) -> KVStream:
    """Return the stream of a sparse-attention indexer's keys in one layer."""
    sparse = fields.part("sparse_attention_config")
    width = sparse.need("sparse_index_dim") if sparse is not None else fields.need("index_head_dim")
    fields.assume(
        f"indexer keys ({width} numbers a token) are kept at the cache's dtype; engines keep DeepSeek's in fp8"
    )
    return KVStream("index", 1, (width,))
