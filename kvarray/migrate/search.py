"""How fast a link must be, and how large groups and chunks should be: small pieces hide more, and cost more each."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Ids, Seconds, as_amount, as_amounts, as_ints, check_broadcast, check_type
from kvarray.economics.latency import PrefillTime, chunk_ends
from kvarray.migrate.scheduler import PDScheduler

__all__ = ["SizeSearch", "best_chunk", "best_group", "overlap_bandwidth"]


@dataclass(frozen=True, eq=False)
class SizeSearch:
    """Every size that was tried, and the best one.

    Attributes
    ----------
    size : ndarray of int64, shape (K,)
        Layers of a group, or tokens of a chunk.
    ttft_s : ndarray of float64, shape (..., K)
        Time to first token with each size.
    """

    size: Ids
    ttft_s: Seconds

    @property
    def best_size(self) -> Ids:
        """The size with the earliest first token, the first such one, shape ``[...]``."""
        return np.asarray(self.size[self.ttft_s.argmin(axis=-1)])

    @property
    def best_ttft_s(self) -> Seconds:
        """The earliest first token, shape ``[...]``."""
        return np.asarray(self.ttft_s.min(axis=-1))


def overlap_bandwidth(
    piece_bytes: ArrayLike,
    compute_s: ArrayLike,
    *,
    overhead_s: ArrayLike = 0.0,
    latency_s: ArrayLike = 0.0,
    stream_shares: ArrayLike = (1.0,),
) -> Seconds:
    """Return the smallest bandwidth at which moving pieces hides behind computing them.

    Parameters
    ----------
    piece_bytes : array_like of float, shape (..., P)
        Bytes of each piece (layer, group or chunk), two or more, ``>= 0``.
    compute_s : array_like of float, shape (..., P)
        Time to compute each piece, ``>= 0``.
    overhead_s : array_like of float, shape (..., P), optional
        How long a piece of one byte or more keeps its stream busy beside its bytes.
    latency_s : array_like of float, shape (...), optional
        From the end of such a piece on its stream to its arrival.
    stream_shares : array_like of float, shape (S,), optional
        How the bandwidth is divided among streams, ``> 0``, in any unit: one stream has all of it by default. Piece i
        goes to stream ``i % S``.

    Returns
    -------
    ndarray of float64, shape (...)
        Bytes per second of all streams together from which on all pieces but the last have arrived when the last is
        computed; infinity where overheads and latency alone take too long.

    Raises
    ------
    TypeError, ValueError
        If there are fewer than two pieces, an argument is no number or out of range, or the shapes do not broadcast.

    Notes
    -----
    The pieces of a stream from piece k on are moved one after the other once k is there, and have the time in which
    pieces k + 1 to P - 1 are computed: a maximum of ratios over k. For equal pieces over one stream that is the bytes
    of one by the time of one. Over S equal streams it is S times as much: the last piece to hide has the time of one
    piece on one stream, as it would with one. O(P) for each world; the loop is over streams.

    References
    ----------
    .. [1] R. Qin et al., "Mooncake: trading more storage for less computation", FAST 2025, equation 2.

    Examples
    --------
    >>> overlap_bandwidth([4e6, 4e6, 4e6], [2e-3, 2e-3, 2e-3]).tolist()
    2000000000.0
    >>> overlap_bandwidth([4e6, 4e6, 4e6], [2e-3, 2e-3, 2e-3], latency_s=1e-3, stream_shares=[1, 1]).tolist()
    8000000000.0
    """
    size, compute = as_amounts("piece_bytes", piece_bytes, low=0.0), as_amounts("compute_s", compute_s, low=0.0)
    overhead = as_amounts("overhead_s", overhead_s, low=0.0)
    latency = as_amounts("latency_s", latency_s, low=0.0)[..., None]
    shares = as_amounts("stream_shares", stream_shares, low=0.0, open_low=True)
    shape = check_broadcast("piece_bytes, compute_s and overhead_s", size.shape, compute.shape, overhead.shape)
    if not shape or shape[-1] < 2:
        raise ValueError(f"piece_bytes must have two pieces or more, one to hide behind another: got shape {shape}")
    if shares.ndim != 1 or not len(shares):
        raise ValueError(f"stream_shares must have one item for each stream: got shape {shares.shape}")
    lead = check_broadcast("piece_bytes, compute_s, overhead_s and latency_s", shape[:-1], latency.shape[:-1])
    size, compute, overhead = (np.broadcast_to(column, (*lead, shape[-1])) for column in (size, compute, overhead))

    overhead = np.where(size > 0.0, overhead, 0.0)
    window = _sums_from(compute[..., 1:])  # from the end of pieces 0 to P - 2 on the worker to that of the last
    slowest = np.zeros(lead)
    for stream, share in enumerate((shares / shares.sum())[: shape[-1] - 1]):
        mine = (..., slice(stream, -1, len(shares)))
        waiting = _sums_from(size[mine])
        time = window[..., stream :: len(shares)] - _sums_from(overhead[mine]) - latency
        with np.errstate(over="ignore"):  # next to no time
            needed = np.divide(waiting, time * share, out=np.full(waiting.shape, np.inf), where=time * share > 0.0)
        np.maximum(slowest, np.where(waiting > 0.0, needed, 0.0).max(axis=-1), out=slowest)
    return slowest


def _sums_from(column: Seconds) -> Seconds:
    """[1, 2, 3] -> [6, 5, 3]."""
    return np.cumsum(column[..., ::-1], axis=-1)[..., ::-1]


def best_group(
    scheduler: PDScheduler,
    layer_bytes: ArrayLike,
    *,
    decode_s: ArrayLike,
    prefill_s: ArrayLike = 0.0,
    group_layers: ArrayLike | None = None,
) -> SizeSearch:
    """Return the time to first token for groups of layers of every size.

    Parameters
    ----------
    scheduler : PDScheduler
    layer_bytes, decode_s, prefill_s
        As for `PDScheduler.layered`.
    group_layers : array_like of int, shape (K,), optional
        Sizes to try, ``>= 1``; every one up to the number of layers where it is not given.

    Returns
    -------
    SizeSearch

    Notes
    -----
    Exhaustive; the loop is over sizes.

    Examples
    --------
    >>> from kvarray.migrate import TransferEngine
    >>> scheduler = PDScheduler(TransferEngine(1.0, alpha_s=1.0))
    >>> found = best_group(scheduler, np.ones(6), prefill_s=1.0, decode_s=0.0)
    >>> found.ttft_s, found.best_size.tolist()
    (array([13., 11., 11., 12., 13., 13.]), 2)
    """
    check_type("scheduler", scheduler, PDScheduler)
    layers = np.atleast_1d(as_amounts("layer_bytes", layer_bytes, low=0.0))
    tried = np.arange(1, layers.shape[-1] + 1) if group_layers is None else group_layers
    size = as_ints("group_layers", tried, low=1)
    runs = [
        scheduler.layered(layer_bytes, decode_s=decode_s, prefill_s=prefill_s, group_layers=int(one)).ttft_s
        for one in size
    ]
    return _search("group_layers", size, runs)


def best_chunk(
    scheduler: PDScheduler,
    prefill: PrefillTime,
    *,
    num_tokens: int,
    kv_bytes_per_token: float,
    chunk_tokens: ArrayLike,
    decode_s: ArrayLike,
    cached_tokens: int = 0,
) -> SizeSearch:
    """Return the time to first token for chunks of prefill of every size given.

    Parameters
    ----------
    scheduler : PDScheduler
    prefill : PrefillTime
        What computing a chunk takes; each chunk pays its start, and attends to the chunks before it.
    num_tokens, cached_tokens : int
        Tokens of the prompt, and how many of them are at the decode node already.
    kv_bytes_per_token : float
        Bytes of KV, ``>= 0``.
    chunk_tokens : array_like of int, shape (K,)
        Sizes to try, ``>= 1``.
    decode_s : array_like of float
        As for `PDScheduler.chunked`.

    Returns
    -------
    SizeSearch

    Notes
    -----
    Exhaustive; the loop is over sizes.

    Examples
    --------
    >>> from kvarray.migrate import TransferEngine
    >>> found = best_chunk(
    ...     PDScheduler(TransferEngine(1e4)), PrefillTime(0.01, 1e-4, 0.0),
    ...     num_tokens=4000, kv_bytes_per_token=1.0, chunk_tokens=[500, 1000, 2000, 4000], decode_s=0.0,
    ... )
    >>> found.ttft_s, found.best_size.tolist()
    (array([0.53, 0.54, 0.62, 0.81]), 500)
    """
    check_type("scheduler", scheduler, PDScheduler)
    check_type("prefill", prefill, PrefillTime)
    size = as_ints("chunk_tokens", chunk_tokens, low=1)
    per_token = as_amount("kv_bytes_per_token", kv_bytes_per_token, low=0.0)
    runs = []
    for one in size.tolist():
        ends = chunk_ends(num_tokens, one, cached_tokens=cached_tokens)
        seconds = prefill.chunk_seconds(num_tokens, one, cached_tokens=cached_tokens)
        chunk_bytes = np.diff(ends) * per_token
        runs.append(scheduler.chunked(chunk_bytes, prefill_s=seconds, decode_s=decode_s).ttft_s)
    return _search("chunk_tokens", size, runs)


def _search(name: str, size: Ids, runs: list[Seconds]) -> SizeSearch:
    if not runs:
        raise ValueError(f"{name} must have one size or more: got none")
    return SizeSearch(size, np.stack(np.broadcast_arrays(*runs), axis=-1))
