"""What caches cost, layer by layer and token by token: the plain-Python oracle of `kvarray.economics`."""

import math
from fractions import Fraction

BITS = {
    "fp32": 32,
    "float32": 32,
    "bf16": 16,
    "bfloat16": 16,
    "fp16": 16,
    "float16": 16,
    "fp8": 8,
    "int8": 8,
    "int4": 4,
}


def vector_bytes(width, bits, group_size=None, scale_bits=0):
    """Bytes of one vector: whole bytes of numbers, then whole bytes of scales."""
    groups = 0 if group_size is None else len(range(0, width, group_size))
    return math.ceil(width * bits / 8) + math.ceil(groups * scale_bits / 8)


def heads_of_rank(heads, tp):
    """Heads that a rank holds, dealt one by one; ranks that get none copy one."""
    dealt = [0] * tp
    for head in range(heads):
        dealt[head % tp] += 1
    assert heads % tp == 0 or tp % heads == 0
    return max(dealt[0], 1)


def blocks_at(length, window, aligned, block_size):
    """Blocks that the window of one layer lies across when a sequence has just reached a length."""
    first = (length - 1) // window * window if aligned else max(0, length - window)
    return len({position // block_size for position in range(first, length)})


def held_tokens(tokens, window, aligned, block_size):
    """Room that one layer needs: for all its tokens, or for the most that its window ever lies across."""
    blocks = len({position // block_size for position in range(tokens)})
    if window is not None:
        every_phase = range(1, 2 * window * block_size + 1)
        blocks = min(blocks, max(blocks_at(length, window, aligned, block_size) for length in every_phase))
    return blocks * block_size


def layers_of(streams):
    """One stream per layer."""
    return [stream for stream in streams for _ in range(stream.layers)]


def entry_bytes(stream, bits, tp, group_size=None, scale_bits=0):
    """One entry of one layer in one rank."""
    one_head = sum(vector_bytes(width, bits, group_size, scale_bits) for width in stream.widths)
    return heads_of_rank(stream.heads, tp) * one_head


def state_bytes(spec, tp):
    """What a sequence of no tokens keeps in one rank."""
    total = 0
    for state in spec.states:
        for _ in range(state.layers):
            total += heads_of_rank(state.heads, tp) * ((state.width * BITS[state.dtype] + 7) // 8)
    return total


def bytes_per_sequence(spec, tokens, *, dtype="bf16", tp=1, block_size=1, group_size=None, scale_bits=0):
    """What one sequence of a length keeps in one rank."""
    total = state_bytes(spec, tp)
    for layer in layers_of(spec.streams):
        if block_size == 1:
            held = tokens if layer.window is None else min(tokens, layer.window)
        else:
            held = held_tokens(tokens, layer.window, layer.aligned, block_size)
        total += held // layer.ratio * entry_bytes(layer, BITS[dtype], tp, group_size, scale_bits)
    return total


def bytes_per_token(spec, *, dtype="bf16", tp=1):
    """What a token costs while every layer keeps it, a fraction of a byte counted as one."""
    total = Fraction(0)
    for layer in layers_of(spec.streams):
        total += Fraction(entry_bytes(layer, BITS[dtype], tp), layer.ratio)
    return -(-total.numerator // total.denominator)


def tokens_that_fit(spec, memory, *, dtype="bf16", tp=1, block_size=1, max_tokens):
    """The longest length that fits, tried one by one."""
    fits = 0
    for tokens in range(1, max_tokens + 1):
        if bytes_per_sequence(spec, tokens, dtype=dtype, tp=tp, block_size=block_size) > memory:
            return fits
        fits = tokens
    return fits


def config_bytes(config, tokens):
    """bf16 bytes of a sequence from a config that lists its layers, read the simplest way; states left out."""
    layers = config["layer_types"]
    storing = layers[: len(layers) - config.get("num_kv_shared_layers", 0)]
    total = 0
    for kind in storing:
        if kind == "linear_attention":
            continue
        window = {
            "full_attention": tokens,
            "sliding_attention": config.get("sliding_window"),
            "chunked_attention": config.get("attention_chunk_size"),
        }[kind]
        if config.get("kv_lora_rank"):
            numbers = config["kv_lora_rank"] + config["qk_rope_head_dim"]
        else:
            numbers = config["num_key_value_heads"] * (
                config["head_dim"] + config.get("v_head_dim", config["head_dim"])
            )
        total += min(tokens, window) * numbers * 2
    return total
