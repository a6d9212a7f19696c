"""Compressed attention (DeepSeek V4): a short window in every layer, and beside it one entry for each `ratio` tokens.

The sparse layers (ratio 4 in the models that exist) overlap their windows and have an indexer of the same ratio; the
heavily compressed ones (128) have neither.
"""

from kvarray.economics.fields import Fields, shown
from kvarray.economics.layers import FixedState, KVStream
from kvarray.economics.layouts import KINDS, draft_layers
from kvarray.economics.states import compressor_states

__all__ = ["compressed_layers", "is_compressed"]


def is_compressed(fields: Fields, family: str) -> bool:
    """Return whether a config is of compressed attention."""
    if family == "deepseek_v4" or fields.has("compress_ratios") or fields.has("compress_rates"):
        return True
    names = fields.names("layer_types") or []
    return any(KINDS.get(name) in ("compressed_sparse", "heavily_compressed") for name in names)


def compressed_layers(fields: Fields) -> tuple[list[KVStream], list[FixedState], list[KVStream]]:
    """Return the streams, the states and the streams of the draft layers of all layers together."""
    layers, drafts = fields.need("layers"), draft_layers(fields)
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
    names = fields.names("layer_types")
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
        raise fields.fail(f"layer_types must be of {', '.join(by_name)} here: got {shown(unknown[0])}")
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
