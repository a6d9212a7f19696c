"""What moving bytes costs: per transfer, per fragment and per byte.

A link is a straight line, ``latency + fragments x alpha + bytes / bandwidth``: all that DMA engines, RDMA and disks
show from a few KiB upwards. Below ``alpha x bandwidth`` bytes a fragment costs more to start than to move, which is
why the block size is a timing knob. Moving nothing costs nothing.

Left out: protocol steps (eager or rendezvous), a ceiling on operations per second besides alpha, and interference,
which the queues of `kvarray.timeline` model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Seconds, as_amount, as_amounts, as_int, as_real, check_broadcast
from kvarray.fitting import Fit, fit_costs

__all__ = ["LINKS", "Link", "LinkFit", "fit_link"]


@dataclass(frozen=True)
class Link:
    """A directed channel and what it costs to use.

    Parameters
    ----------
    bytes_per_second : float
        Bandwidth, ``> 0``; infinity for a link whose bytes cost nothing.
    latency_s : float, optional
        Cost of a transfer whatever its size.
    alpha_s : float, optional
        Cost of each fragment: one copy, one RDMA work request, one read of a disk.
    fragment_bytes : int, optional
        Largest fragment; a transfer is one fragment, contiguous, where it is not given.
    source : str, optional
        Where the figures come from; no part of equality.

    Raises
    ------
    TypeError, ValueError
        If a figure is no number, NaN or out of range.

    Examples
    --------
    >>> link = Link(25e9, alpha_s=5e-6, fragment_bytes=2**16)
    >>> round(float(link.seconds(2**20)) * 1e6, 2)  # 16 fragments and 1 MiB
    121.94
    """

    bytes_per_second: float
    latency_s: float = 0.0
    alpha_s: float = 0.0
    fragment_bytes: int | None = None
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Check the figures."""
        if as_real("bytes_per_second", self.bytes_per_second, low=0.0, open_low=True, finite=False) != np.inf:
            as_amounts("bytes_per_second", self.bytes_per_second, low=0.0, open_low=True)
        as_amount("latency_s", self.latency_s, low=0.0)
        as_amount("alpha_s", self.alpha_s, low=0.0)
        if self.fragment_bytes is not None:
            as_int("fragment_bytes", self.fragment_bytes, low=1, high=2**63)

    def fragments(self, num_bytes: ArrayLike) -> Seconds:
        """Return into how many fragments transfers fall; 0 for one of no bytes.

        Examples
        --------
        >>> Link(1e9, fragment_bytes=4096).fragments([0, 1, 4096, 4097])
        array([0., 1., 1., 2.])
        """
        size = as_amounts("num_bytes", num_bytes, low=0.0)
        if self.fragment_bytes is None:
            return (size > 0.0).astype(np.float64)
        return np.ceil(size / self.fragment_bytes)

    def seconds(self, num_bytes: ArrayLike, *, num_fragments: ArrayLike | None = None) -> Seconds:
        """Return how long transfers take on the idle link.

        Parameters
        ----------
        num_bytes : array_like of float, any shape
            Sizes, ``>= 0``.
        num_fragments : array_like of float, optional
            Fragments of each transfer, where they do not follow from `fragment_bytes`; broadcasts with `num_bytes`.

        Returns
        -------
        ndarray of float64
            ``latency_s + num_fragments * alpha_s + num_bytes / bytes_per_second``; 0 where there is nothing to move.

        Raises
        ------
        TypeError, ValueError
            If a size or count is no number, NaN or negative, or the shapes do not broadcast.

        Notes
        -----
        Snapshot law: each transfer has the link for itself.

        Examples
        --------
        >>> Link(1e9, latency_s=0.5).seconds([0, 1_000_000_000])
        array([0. , 1.5])
        """
        size = as_amounts("num_bytes", num_bytes, low=0.0)
        if num_fragments is None:
            pieces = self.fragments(size)
        else:
            pieces = as_amounts("num_fragments", num_fragments, low=0.0)
            check_broadcast("num_bytes and num_fragments", size.shape, pieces.shape)
        busy = self.latency_s + pieces * self.alpha_s + size / self.bytes_per_second
        return np.where(size > 0.0, busy, 0.0)

    def bandwidth(self, num_bytes: ArrayLike) -> Seconds:
        """Return the bytes per second that transfers of these sizes, ``> 0``, see.

        Examples
        --------
        >>> Link(52.7e9, alpha_s=3.48e-6).bandwidth(183_396).round(-8).tolist()  # half of it
        26400000000.0
        """
        size = as_amounts("num_bytes", num_bytes, low=0.0, open_low=True)
        busy = self.seconds(size)
        with np.errstate(over="ignore"):  # a link that takes next to no time
            seen: Seconds = np.divide(size, busy, out=np.full(size.shape, np.inf), where=busy > 0.0)
        return seen


@dataclass(frozen=True, eq=False)
class LinkFit:
    """A link fitted to measurements: `link`, and `fit` with the residuals."""

    link: Link
    fit: Fit


def fit_link(num_bytes: ArrayLike, seconds: ArrayLike, *, num_fragments: ArrayLike | None = None) -> LinkFit:
    """Return the link that explains measured transfers best.

    Parameters
    ----------
    num_bytes, seconds : array_like of float, shape (B,)
        Size, ``>= 0``, and time, ``> 0``, of each transfer.
    num_fragments : array_like of float, shape (B,), optional
        Fragments of each transfer. Without it the cost per transfer becomes the latency; with it the cost per
        fragment is fitted as well, which needs transfers that differ in it.

    Returns
    -------
    LinkFit
        Least squares of the relative errors; no cost (latency, fragment, byte) is below 0.

    Raises
    ------
    TypeError, ValueError
        If the shapes differ, a value is out of range, or there are too few points or points too alike to fit.

    Notes
    -----
    Measured on single copies, the latency found is the cost of a fragment: move it to ``alpha_s``.

    Examples
    --------
    >>> found = fit_link([1e6, 2e6, 4e6], [2e-3, 3e-3, 5e-3])
    >>> round(found.link.latency_s, 9), round(found.link.bytes_per_second)
    (0.001, 1000000000)
    """
    size = as_amounts("num_bytes", num_bytes, low=0.0)
    columns = {"latency": np.ones(size.shape), "num_bytes": size}
    if num_fragments is not None:
        columns["num_fragments"] = as_amounts("num_fragments", num_fragments, low=0.0)
    fit = fit_costs(seconds, **columns)
    latency_s, per_byte, *alpha_s = fit.costs.tolist()
    return LinkFit(Link(1.0 / per_byte if per_byte else np.inf, latency_s, *alpha_s), fit)


def _pcie(gigatransfers: float, lanes: int) -> float:
    """Bytes per second of PCIe 3 to 5 in one direction, after the 128b/130b line code."""
    return gigatransfers * 1e9 * lanes * 128 / 130 / 8


def _network(gigabits: int) -> Link:
    return Link(
        gigabits * 1e9 / 8,
        latency_s=2e-6,
        source=f"line rate of {gigabits} Gb/s Ethernet or InfiniBand; latency of the order of one RDMA write",
    )


LINKS: Mapping[str, Link] = MappingProxyType(
    {
        "hbm2e-a100": Link(2.039e12, source="NVIDIA A100 80GB SXM data sheet"),
        "hbm3-h100": Link(3.35e12, source="NVIDIA H100 SXM data sheet"),
        "hbm3e-h200": Link(4.8e12, source="NVIDIA H200 data sheet"),
        "dram-pcie4": Link(_pcie(16, 16), source="PCIe 4.0 x16, line rate in one direction"),
        "dram-pcie5": Link(_pcie(32, 16), source="PCIe 5.0 x16, line rate in one direction"),
        "dram-pcie5-dma": Link(
            52.6e9,
            alpha_s=3.48e-6,
            source="copies of 4 KiB to 16 MiB to one H100 by DMA, vLLM KV offloading blog; fit within 6.1 %",
        ),
        "nvlink-c2c": Link(450e9, source="NVIDIA GH200: 900 GB/s, half of it in each direction"),
        "nvlink4-h100": Link(450e9, source="NVIDIA H100 SXM: 900 GB/s over 18 links, half of it in each direction"),
        "nvme-gen3": Link(3.0e9, 100e-6, source="Samsung PM981 sequential read; latency of the order of a flash read"),
        "nvme-gen4": Link(6.8e9, 100e-6, source="Samsung PM9A3 sequential read; latency of the order of a flash read"),
        "nvme-gen5": Link(13e9, 100e-6, source="Samsung PM1743 sequential read; latency of the order of a flash read"),
        "net-25g": _network(25),
        "net-50g": _network(50),
        "net-100g": _network(100),
        "net-200g": _network(200),
        "net-400g": _network(400),
        "object-storage": Link(
            100e9 / 8,
            latency_s=0.15,
            source="Amazon S3 user guide: up to 100 Gb/s into one instance, first byte after 100-200 ms",
        ),
    }
)
"""Links by name; rates are those of an idle link in one direction."""
