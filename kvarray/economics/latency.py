"""How long prefill and decoding take.

Prefill of n tokens of which p are cached takes ``a + b (n - p) + c (n^2 - p^2)``: a start, work per new token, and
attention of every new token to all before it. The last term is 10 % at 16 to 32 thousand tokens and rules beyond. A
decode step of a batch takes ``base + per request + per token of context``, since it reads the weights once and the KV
of every token. Both are fitted to measurements, or built from a model's shape and a GPU's figures.

Left out: the steps of tile and wave quantisation, kernels that change with the length, and that a decode step hides
the lesser of memory traffic and arithmetic behind the other; built from figures, the two add up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Seconds, as_amount, as_amounts, as_positive_int, check_broadcast, check_type, refuse
from kvarray.fitting import Fit, fit_costs

__all__ = [
    "GPUS",
    "PREFILL_TIMES",
    "DecodeFit",
    "DecodeTime",
    "Gpu",
    "PrefillFit",
    "PrefillFlops",
    "PrefillTime",
    "chunk_ends",
    "fit_decode",
    "fit_prefill",
]


@dataclass(frozen=True)
class Gpu:
    """The figures of a GPU that bound its speed.

    Parameters
    ----------
    flops_per_second : float
        Peak of dense 16-bit matrix products.
    bytes_per_second : float
        Memory bandwidth.
    source : str, optional
        Where the figures come from; no part of equality.
    """

    flops_per_second: float
    bytes_per_second: float
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Check the figures."""
        as_amount("flops_per_second", self.flops_per_second, low=0.0, open_low=True)
        as_amount("bytes_per_second", self.bytes_per_second, low=0.0, open_low=True)


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "a100": Gpu(312e12, 2.039e12, "NVIDIA A100 80GB SXM data sheet"),
        "h20": Gpu(148e12, 4.0e12, "NVIDIA H20 data sheet"),
        "h100": Gpu(989.4e12, 3.35e12, "NVIDIA H100 SXM data sheet"),
        "h200": Gpu(989.4e12, 4.8e12, "NVIDIA H200 SXM data sheet"),
        "l40s": Gpu(362.05e12, 864e9, "NVIDIA L40S data sheet"),
    }
)
"""GPUs by name: peak of dense BF16, and memory bandwidth."""


@dataclass(frozen=True)
class PrefillFlops:
    """Floating-point operations of prefill, ``per_token (n - p) + per_pair (n^2 - p^2)``.

    Parameters
    ----------
    per_token : float
        Matrix products with the weights, for each token.
    per_pair : float
        Attention, for each pair of tokens.

    Examples
    --------
    >>> layer = PrefillFlops.of_shape(num_layers=1, d_model=8192, kv_width=1024, ff_width=28672)
    >>> round(float(layer.flops(1024)) / 1e12, 3)
    1.787
    """

    per_token: float
    per_pair: float

    def __post_init__(self) -> None:
        """Check the figures."""
        as_amount("per_token", self.per_token, low=0.0, open_low=True)
        as_amount("per_pair", self.per_pair, low=0.0)

    @classmethod
    def of_shape(
        cls, *, num_layers: int, d_model: int, kv_width: int, ff_width: int, causal_share: float = 1.0
    ) -> "PrefillFlops":
        """Return the operations of a transformer with gated feed-forward layers.

        Parameters
        ----------
        num_layers, d_model : int
            Layers, and width of the residual stream; queries and the output have the same width.
        kv_width : int
            KV heads times head dimension.
        ff_width : int
            Width of the feed-forward layer, all active experts together.
        causal_share : float, optional
            Share of the n x n pairs that the attention kernel computes: 1 for all of them, 0.5 when it skips what the
            causal mask hides.

        Notes
        -----
        A product of a token with a matrix is two operations for each weight: ``4 d^2`` for queries and output,
        ``4 d kv`` for keys and values, ``6 d ff`` for gate, up and down; ``4 d`` for each pair. Embedding and the
        output head are left out: prefill needs the head for one token.

        Examples
        --------
        >>> PrefillFlops.of_shape(num_layers=2, d_model=10, kv_width=5, ff_width=20).per_token
        3600.0
        """
        layers, d, kv, ff = (
            as_positive_int(name, value)
            for name, value in (
                ("num_layers", num_layers), ("d_model", d_model), ("kv_width", kv_width), ("ff_width", ff_width),
            )
        )  # fmt: skip
        share = as_amount("causal_share", causal_share, low=0.0, open_low=True)
        return cls(float(layers * (4 * d * d + 4 * d * kv + 6 * d * ff)), layers * 4 * d * share)

    def flops(self, num_tokens: ArrayLike, *, cached_tokens: ArrayLike = 0) -> Seconds:
        """Return the operations of prefills of which some tokens are cached."""
        return _per_prompt(0.0, self.per_token, self.per_pair, num_tokens, cached_tokens)

    def time(self, flops_per_second: float, *, start_s: float = 0.0, source: str = "") -> "PrefillTime":
        """Return the prefill time at a rate: of a GPU, its peak times the share of it that kernels reach.

        Examples
        --------
        >>> layer = PrefillFlops.of_shape(num_layers=1, d_model=8192, kv_width=1024, ff_width=28672)
        >>> round(float(layer.time(GPUS["h100"].flops_per_second * 0.5).seconds(1024)) * 1e3, 3)
        3.612
        """
        rate = as_amount("flops_per_second", flops_per_second, low=0.0, open_low=True)
        return PrefillTime(start_s, self.per_token / rate, self.per_pair / rate, source)


@dataclass(frozen=True)
class PrefillTime:
    """Seconds of a prefill, ``start_s + per_token_s (n - p) + per_pair_s (n^2 - p^2)``.

    Parameters
    ----------
    start_s, per_token_s, per_pair_s : float
        The costs a, b and c, ``>= 0``.
    source : str, optional
        Where the figures come from, and how well they fit; no part of equality.

    Examples
    --------
    >>> model = PrefillTime(0.01, 2e-5, 5e-10)
    >>> model.seconds([10_000, 10_000], cached_tokens=[0, 8_000]).round(4)
    array([0.26 , 0.068])
    """

    start_s: float
    per_token_s: float
    per_pair_s: float
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Check the figures."""
        for name in ("start_s", "per_token_s", "per_pair_s"):
            as_amount(name, getattr(self, name), low=0.0)

    def seconds(self, num_tokens: ArrayLike, *, cached_tokens: ArrayLike = 0) -> Seconds:
        """Return how long prefills take.

        Parameters
        ----------
        num_tokens : array_like of float, any shape
            Tokens of each prompt, ``>= 0``.
        cached_tokens : array_like of float, optional
            How many of them, from the first, are cached; broadcasts with `num_tokens` and never exceeds it.

        Returns
        -------
        ndarray of float64
            ``start_s + per_token_s (n - p) + per_pair_s (n^2 - p^2)``; 0 where nothing is left to compute.

        Raises
        ------
        TypeError, ValueError
            If a count is no number, NaN, negative or larger than its prompt, or the shapes do not broadcast.
        """
        return _per_prompt(self.start_s, self.per_token_s, self.per_pair_s, num_tokens, cached_tokens)

    def chunk_seconds(self, num_tokens: int, chunk_tokens: int, *, cached_tokens: int = 0) -> Seconds:
        """Return how long each chunk of a chunked prefill takes, shape (P,).

        Parameters
        ----------
        num_tokens, chunk_tokens : int
            Tokens of the prompt, and of each chunk but the last, ``>= 1``; ten million chunks at most.
        cached_tokens : int, optional
            Tokens of the prompt that are cached, fewer than all of them.

        Returns
        -------
        ndarray of float64, shape (P,)
            Each chunk attends to all tokens before it, so its cost grows; each pays the start.

        Examples
        --------
        >>> PrefillTime(0.0, 0.0, 1.0).chunk_seconds(5, 2)
        array([ 4., 12.,  9.])
        """
        ends = chunk_ends(num_tokens, chunk_tokens, cached_tokens=cached_tokens)
        return self.seconds(ends[1:], cached_tokens=ends[:-1])


PREFILL_TIMES: Mapping[str, PrefillTime] = MappingProxyType(
    {
        "llama-3.1-8b-h100": PrefillTime(
            0.0, 2.213e-5, 4.697e-10, "vLLM KV offloading blog, figure 1, 10 to 100 thousand tokens; within 2.1 %"
        ),
        "qwq-32b-2xh20": PrefillTime(
            0.0519, 2.340e-4, 2.618e-9, "unified-cache-management docs, 2 to 32 thousand tokens; within 0.5 %"
        ),
    }
)
"""Prefill times by model and GPUs, fitted to published measurements."""

_MOST_CHUNKS = 10**7


def chunk_ends(num_tokens: int, chunk_tokens: int, *, cached_tokens: int = 0) -> Seconds:
    """Return where the chunks of a prefill end, beginning with the cached tokens, shape (P + 1,).

    Examples
    --------
    >>> chunk_ends(5, 2)
    array([0., 2., 4., 5.])
    """
    total, chunk = as_positive_int("num_tokens", num_tokens), as_positive_int("chunk_tokens", chunk_tokens)
    cached = as_amount("cached_tokens", cached_tokens, low=0.0)
    if cached >= total:
        raise ValueError(f"cached_tokens must be less than num_tokens, {total}: got {cached_tokens}")
    num_chunks = (total - cached) / chunk
    if num_chunks > _MOST_CHUNKS:
        raise ValueError(f"chunk_tokens must make {_MOST_CHUNKS} chunks or fewer of {total} tokens: got {chunk}")
    return np.append(np.arange(cached, total, chunk), total).astype(np.float64)


def _per_prompt(
    start: float, per_token: float, per_pair: float, num_tokens: ArrayLike, cached_tokens: ArrayLike
) -> Seconds:
    tokens = as_amounts("num_tokens", num_tokens, low=0.0)
    cached = as_amounts("cached_tokens", cached_tokens, low=0.0)
    shape = check_broadcast("num_tokens and cached_tokens", tokens.shape, cached.shape)
    too_many = cached > tokens
    if too_many.any():
        refuse("cached_tokens", "not exceed num_tokens", too_many, np.broadcast_to(cached, shape))
    fresh = tokens - cached
    return np.where(fresh > 0.0, start + fresh * (per_token + per_pair * (tokens + cached)), 0.0)


@dataclass(frozen=True, eq=False)
class PrefillFit:
    """A prefill time fitted to measurements: `model`, and `fit` with the residuals."""

    model: PrefillTime
    fit: Fit


def fit_prefill(num_tokens: ArrayLike, seconds: ArrayLike, *, cached_tokens: ArrayLike = 0) -> PrefillFit:
    """Return the prefill time that explains measurements best.

    Parameters
    ----------
    num_tokens, seconds : array_like of float, shape (B,)
        Tokens and time, ``> 0``, of each prefill; three or more that differ.
    cached_tokens : array_like of float, optional
        How many of the tokens were cached.

    Returns
    -------
    PrefillFit
        Least squares of the relative errors with costs of 0 or more.

    Raises
    ------
    TypeError, ValueError
        If the shapes differ, a value is out of range, or there are too few points or points too alike to fit.

    Examples
    --------
    >>> tokens = np.array([1000, 4000, 16000])
    >>> found = fit_prefill(tokens, PrefillTime(0.01, 2e-5, 5e-10).seconds(tokens))
    >>> round(found.model.per_pair_s, 13), found.fit.max_relative_error < 1e-9
    (5e-10, True)
    """
    tokens = as_amounts("num_tokens", num_tokens, low=0.0)
    fresh = _per_prompt(0.0, 1.0, 0.0, tokens, cached_tokens)
    pairs = _per_prompt(0.0, 0.0, 1.0, tokens, cached_tokens)
    fit = fit_costs(seconds, start=np.ones(fresh.shape), tokens=fresh, pairs=pairs)
    return PrefillFit(PrefillTime(*fit.costs.tolist()), fit)


@dataclass(frozen=True)
class DecodeTime:
    """Seconds of a decode step, ``base_s + per_request_s requests + per_token_s context``.

    Parameters
    ----------
    base_s : float
        Reading the weights, and launching.
    per_request_s : float
        Arithmetic and sampling of one more request.
    per_token_s : float
        Reading the KV of one more token of context.
    source : str, optional
        Where the figures come from; no part of equality.

    Examples
    --------
    >>> DecodeTime(0.01, 1e-4, 1e-7).seconds(8, context_tokens=[0, 80_000]).round(4)
    array([0.0108, 0.0188])
    """

    base_s: float
    per_request_s: float
    per_token_s: float
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Check the figures."""
        for name in ("base_s", "per_request_s", "per_token_s"):
            as_amount(name, getattr(self, name), low=0.0)

    @classmethod
    def of_gpu(
        cls, gpu: Gpu, *, weight_bytes: float, kv_bytes_per_token: float, flops_per_token: float, start_s: float = 0.0
    ) -> "DecodeTime":
        """Return the decode time of a model from a GPU's figures; memory traffic and arithmetic add up.

        Examples
        --------
        >>> h100 = GPUS["h100"]
        >>> model = DecodeTime.of_gpu(h100, weight_bytes=16e9, kv_bytes_per_token=131072, flops_per_token=16e9)
        >>> round(model.base_s * 1e3, 3)
        4.776
        """
        check_type("gpu", gpu, Gpu)
        weights = as_amount("weight_bytes", weight_bytes, low=0.0)
        kv = as_amount("kv_bytes_per_token", kv_bytes_per_token, low=0.0)
        flops = as_amount("flops_per_token", flops_per_token, low=0.0)
        memory = gpu.bytes_per_second
        return cls(start_s + weights / memory, flops / gpu.flops_per_second, kv / memory, gpu.source)

    def seconds(self, num_requests: ArrayLike, *, context_tokens: ArrayLike) -> Seconds:
        """Return how long steps of a batch take.

        Parameters
        ----------
        num_requests : array_like of float, any shape
            Requests of each batch, ``>= 0``.
        context_tokens : array_like of float
            Tokens of context of all requests of a batch together; broadcasts with `num_requests`.

        Returns
        -------
        ndarray of float64
            0 for a batch of no requests.
        """
        requests = as_amounts("num_requests", num_requests, low=0.0)
        context = as_amounts("context_tokens", context_tokens, low=0.0)
        check_broadcast("num_requests and context_tokens", requests.shape, context.shape)
        step = self.base_s + self.per_request_s * requests + self.per_token_s * context
        return np.where(requests > 0.0, step, 0.0)


@dataclass(frozen=True, eq=False)
class DecodeFit:
    """A decode time fitted to measurements: `model`, and `fit` with the residuals."""

    model: DecodeTime
    fit: Fit


def fit_decode(num_requests: ArrayLike, context_tokens: ArrayLike, *, seconds: ArrayLike) -> DecodeFit:
    """Return the decode time that explains measured steps best; see `fit_prefill`.

    Examples
    --------
    >>> requests, context = np.array([1, 8, 64, 64]), np.array([1e3, 4e4, 1e5, 4e5])
    >>> model = DecodeTime(0.01, 1e-4, 1e-7)
    >>> found = fit_decode(requests, context, seconds=model.seconds(requests, context_tokens=context))
    >>> round(found.model.per_request_s, 9)
    0.0001
    """
    requests = as_amounts("num_requests", num_requests, low=0.0, open_low=True)
    context = as_amounts("context_tokens", context_tokens, low=0.0)
    fit = fit_costs(seconds, base=np.ones(requests.shape), requests=requests, context=context)
    return DecodeFit(DecodeTime(*fit.costs.tolist()), fit)
