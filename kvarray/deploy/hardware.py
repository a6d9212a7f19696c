"""Prefill and decode times of a model on GPUs, where nobody has measured them.

A prefill does two floating-point operations for each active parameter and token; and for each pair of tokens that see
each other, two for each query head and number of a key and a value. The causal mask hides half of the pairs, a window
all but its own. GPUs reach a share of their peak: fits to published measurements give 0.73 for Llama-3.1-8B on an H100
and 0.95 for QwQ-32B on two H20. A prefill begins with one reading of the weights, which is what the shortest take;
decoding reads them once a step, and the KV of every token of context.

Left out: traffic between the GPUs of a group, and latents unpacked to keys and values.
"""

import re

from kvarray.arrays import as_positive_int, as_real
from kvarray.economics.dtypes import kv_dtype
from kvarray.economics.latency import DecodeTime, Gpu, PrefillFlops, PrefillTime
from kvarray.economics.model import ModelSpec

__all__ = ["KERNEL_SHARE", "model_times", "named_parameters"]

KERNEL_SHARE = 0.7
"""Share of a GPU's peak that prefill reaches where it is not given."""

_SIZE = re.compile(r"(?<![a-z0-9.])(a?)([0-9]+(?:\.[0-9]+)?)b(?![a-z0-9])")


def named_parameters(name: str) -> float:
    """Return the active parameters that the name of a model says it has.

    Raises
    ------
    ValueError
        If it says nothing.

    Examples
    --------
    >>> named_parameters("Llama-3.1-70B"), named_parameters("Qwen3-235B-A22B")
    (70000000000.0, 22000000000.0)
    """
    sizes = dict(_SIZE.findall(name.lower()))  # the number with an "a", of active ones, beside that without
    size = sizes.get("a") or sizes.get("")
    if size is None:
        raise ValueError(f"parameters must be given for a model whose name does not say them: got {name!r}")
    return float(size) * 1e9


def model_times(
    model: ModelSpec,
    gpu: Gpu,
    *,
    parameters: float,
    num_gpus: int = 1,
    kernel_share: float = KERNEL_SHARE,
    bytes_per_token: int,
    weight_dtype: str = "bf16",
) -> tuple[PrefillTime, DecodeTime]:
    """Return prefill and decode time of a model on a group of GPUs.

    Parameters
    ----------
    model : ModelSpec
        Its heads and layers.
    gpu : Gpu
        One of the group.
    parameters : float
        Active ones, ``> 0``.
    num_gpus : int, optional
        GPUs of the group, which share all work evenly.
    kernel_share : float, optional
        Share of the peak that prefill reaches, ``> 0``.
    bytes_per_token : int
        KV of a token in all of the group together.
    weight_dtype : str, optional
        Format of the weights, a name of `kvarray.kv_dtype`.

    Returns
    -------
    prefill : PrefillTime
    decode : DecodeTime

    Raises
    ------
    TypeError, ValueError
        If a figure is no number or out of range, or a format unknown.

    Examples
    --------
    >>> from kvarray.economics.latency import GPUS
    >>> llama = ModelSpec.from_name("llama-3.1-70b")
    >>> prefill, decode = model_times(llama, GPUS["h100"], parameters=70e9, num_gpus=8, bytes_per_token=327680)
    >>> round(float(prefill.seconds(8192)), 3), round(decode.base_s * 1e3, 2)
    (0.228, 5.22)
    """
    parameters = as_real("parameters", parameters, low=0.0, open_low=True)
    share = as_real("kernel_share", kernel_share, low=0.0, open_low=True)
    if share > 1.0:
        raise ValueError(f"kernel_share must be at most 1, all of the GPUs' peak: got {share:g}")
    group = Gpu(
        gpu.flops_per_second * as_positive_int("num_gpus", num_gpus), gpu.bytes_per_second * num_gpus, gpu.source
    )
    per_token, per_pair = 2.0 * parameters, 0.0
    for stream in model.streams:
        heads = stream.heads if stream.kind == "index" else model.num_heads or stream.heads
        operations = 2.0 * stream.layers * heads * sum(stream.widths) / stream.ratio  # of a token with another
        if stream.window is None:
            per_pair += operations / 2.0
        else:
            per_token += operations * stream.window
    decode = DecodeTime.of_gpu(
        group,
        weight_bytes=parameters * kv_dtype(weight_dtype).bits / 8,
        kv_bytes_per_token=float(bytes_per_token),
        flops_per_token=2.0 * parameters,
    )
    rate = group.flops_per_second * share
    prefill = PrefillFlops(per_token, per_pair).time(rate, start_s=decode.base_s, source=gpu.source)
    return prefill, decode
