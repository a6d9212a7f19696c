"""Whether loading KV beats computing it again, and from which prefix length on.

Left out: that a load may fail, and what keeping the KV costs; `kvarray.economics` prices the second.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Flags, Seconds, as_amount, as_amounts, check_broadcast, check_type, refuse
from kvarray.economics.latency import PrefillTime
from kvarray.link import Link

__all__ = ["LoadOrRecompute", "break_even_tokens", "load_or_recompute", "overlapped_seconds"]


def overlapped_seconds(compute_s: ArrayLike, load_s: ArrayLike, *, overlap_efficiency: ArrayLike) -> Seconds:
    """Return the time of computing and loading that overlap to some degree.

    Parameters
    ----------
    compute_s, load_s : array_like of float
        Seconds of each alone; they broadcast.
    overlap_efficiency : array_like of float
        0 for one after the other, 1 for all of the lesser hidden behind the greater.

    Returns
    -------
    ndarray of float64
        ``compute + load - efficiency * min(compute, load)``.

    Examples
    --------
    >>> overlapped_seconds(4.0, 1.0, overlap_efficiency=[0.0, 0.5, 1.0])
    array([5. , 4.5, 4. ])
    """
    compute, load = as_amounts("compute_s", compute_s, low=0.0), as_amounts("load_s", load_s, low=0.0)
    efficiency = as_amounts("overlap_efficiency", overlap_efficiency, low=0.0)
    refuse("overlap_efficiency", "be 1 or less", efficiency > 1.0, efficiency)
    check_broadcast("compute_s, load_s and overlap_efficiency", compute.shape, load.shape, efficiency.shape)
    return compute + load - efficiency * np.minimum(compute, load)


@dataclass(frozen=True, eq=False)
class LoadOrRecompute:
    """Two ways to serve prompts whose first tokens are kept somewhere; all columns have the prompts' shape.

    Attributes
    ----------
    load_s : ndarray of float64
        Time to first token when the kept tokens are loaded and the others computed.
    recompute_s : ndarray of float64
        Time to first token when all are computed.
    """

    load_s: Seconds
    recompute_s: Seconds

    @property
    def loading_wins(self) -> Flags:
        """Where loading is not slower."""
        return self.load_s <= self.recompute_s

    @property
    def saved_s(self) -> Seconds:
        """What loading saves; negative where it loses."""
        return self.recompute_s - self.load_s


def load_or_recompute(
    prefill: PrefillTime,
    link: Link,
    *,
    num_tokens: ArrayLike,
    kept_tokens: ArrayLike,
    kv_bytes_per_token: float,
    overlap_efficiency: ArrayLike = 0.0,
    link_load: ArrayLike = 0.0,
    compute_load: ArrayLike = 0.0,
) -> LoadOrRecompute:
    """Return how long prompts take with the kept tokens loaded over a link, and with all of them computed.

    Parameters
    ----------
    prefill : PrefillTime
        What computing takes.
    link : Link
        What loading takes; a tier's link, or the network.
    num_tokens, kept_tokens : array_like of float
        Tokens of each prompt, and how many of them, from the first, can be loaded.
    kv_bytes_per_token : float
        Bytes of KV, ``> 0``.
    overlap_efficiency : array_like of float, optional
        How much of loading hides behind computing the rest, and the reverse.
    link_load, compute_load : array_like of float, optional
        Share of its time, ``< 1``, that the link or the GPU is busy with others.

    Returns
    -------
    LoadOrRecompute
        Shapes broadcast.

    Notes
    -----
    Under load, work that takes s seconds alone takes s / (1 - load) on average on a resource that its users share
    evenly, whatever the sizes of the others' jobs.

    References
    ----------
    .. [1] L. Kleinrock, "Queueing Systems", volume 2, 1976, section 4.4.

    Examples
    --------
    >>> from kvarray.economics.latency import PREFILL_TIMES
    >>> prefill, link = PREFILL_TIMES["qwq-32b-2xh20"], Link(12.1e9, latency_s=0.021)
    >>> both = load_or_recompute(prefill, link, num_tokens=8000, kept_tokens=6400, kv_bytes_per_token=262144)
    >>> both.load_s.round(2).tolist(), both.recompute_s.round(2).tolist()
    (0.65, 2.09)
    """
    check_type("prefill", prefill, PrefillTime)
    check_type("link", link, Link)
    kept = as_amounts("kept_tokens", kept_tokens, low=0.0)
    per_token = as_amount("kv_bytes_per_token", kv_bytes_per_token, low=0.0, open_low=True)
    busy_link, busy_gpu = _as_load("link_load", link_load), _as_load("compute_load", compute_load)
    rest = prefill.seconds(num_tokens, cached_tokens=kept)
    check_broadcast(
        "tokens, link_load, compute_load and overlap_efficiency",
        *(rest.shape, busy_link.shape, busy_gpu.shape, np.shape(overlap_efficiency)),
    )
    rest = rest / (1.0 - busy_gpu)
    load = link.seconds(kept * per_token) / (1.0 - busy_link)
    return LoadOrRecompute(
        overlapped_seconds(rest, load, overlap_efficiency=overlap_efficiency),
        prefill.seconds(num_tokens) / (1.0 - busy_gpu),
    )


def break_even_tokens(
    prefill: PrefillTime,
    link: Link,
    *,
    kv_bytes_per_token: float,
    link_load: ArrayLike = 0.0,
    compute_load: ArrayLike = 0.0,
) -> Seconds:
    """Return from which prefix length on loading beats computing, where neither hides behind the other.

    Parameters
    ----------
    prefill, link, kv_bytes_per_token, link_load, compute_load
        As for `load_or_recompute`; the loads broadcast.

    Returns
    -------
    ndarray of float64
        The smallest whole number of tokens p from which on ``load(p) <= prefill(n, 0) - prefill(n, p)``; infinity
        where loading never wins. It does not depend on the prompt as long as something is left to compute.

    Notes
    -----
    What loading p tokens saves is ``b p + c p^2``, what it costs is ``latency + q p``, so the answer is the larger
    root of a quadratic. A fragment counts by the bytes it holds: q is the bytes of a token times ``alpha /
    fragment_bytes + 1 / bytes_per_second``.

    Examples
    --------
    >>> from kvarray.economics.latency import PREFILL_TIMES
    >>> prefill, link = PREFILL_TIMES["qwq-32b-2xh20"], Link(12.1e9, latency_s=0.021)
    >>> break_even_tokens(prefill, link, kv_bytes_per_token=262144, link_load=[0.0, 0.9])
    array([  99., 6236.])
    """
    check_type("prefill", prefill, PrefillTime)
    check_type("link", link, Link)
    per_token = as_amount("kv_bytes_per_token", kv_bytes_per_token, low=0.0, open_low=True)
    busy_link, busy_gpu = _as_load("link_load", link_load), _as_load("compute_load", compute_load)
    check_broadcast("link_load and compute_load", busy_link.shape, busy_gpu.shape)
    per_fragment = link.alpha_s / link.fragment_bytes if link.fragment_bytes else 0.0
    start = (link.latency_s + (0.0 if link.fragment_bytes else link.alpha_s)) / (1.0 - busy_link)
    slope = per_token * (per_fragment + 1.0 / link.bytes_per_second) / (1.0 - busy_link)
    gain, curve = prefill.per_token_s / (1.0 - busy_gpu), prefill.per_pair_s / (1.0 - busy_gpu)
    start, slope, gain, curve = np.broadcast_arrays(start, slope, gain, curve)

    # curve p^2 + (gain - slope) p - start = 0, by the form of its larger root that does not cancel
    lead = gain - slope
    root = np.sqrt(lead * lead + 4.0 * curve * start)
    never = np.full(lead.shape, np.inf)
    with np.errstate(over="ignore"):  # a curve so flat that no prompt is long enough
        rising = np.divide(2.0 * start, lead + root, out=never.copy(), where=lead > 0.0)
        falling = np.divide(root - lead, 2.0 * curve, out=never, where=(lead <= 0.0) & (curve > 0.0))
    never_loses = (start == 0.0) & (lead >= 0.0)
    return np.where(never_loses, 0.0, np.ceil(np.where(lead > 0.0, rising, falling)))


def _as_load(name: str, load: ArrayLike) -> Seconds:
    array = as_amounts(name, load, low=0.0)
    refuse(name, "be less than 1", array >= 1.0, array)
    return array
