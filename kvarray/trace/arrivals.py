"""Arrival times: of requests, or of the sessions that workloads are made of."""

from typing import TypeAlias

import numpy as np

from kvarray.arrays import Seconds, as_int, as_real

__all__ = ["Seed", "bursty_arrivals", "poisson_arrivals"]

Seed: TypeAlias = "int | np.random.Generator"  # quoted: numpy.random is slow to import
"""Seed or source of randomness."""


def poisson_arrivals(count: int, *, rate_per_s: float, rng: Seed) -> Seconds:
    """Return arrival times that know nothing of each other: gaps are exponential.

    Parameters
    ----------
    count : int
        Number of arrivals.
    rate_per_s : float
        Mean arrivals per second, > 0.
    rng : int or numpy.random.Generator
        Seed or source of randomness.

    Returns
    -------
    ndarray of float64, shape (count,)
        Seconds, non-decreasing; the first gap begins at 0.

    Examples
    --------
    >>> arrivals = poisson_arrivals(1000, rate_per_s=2.0, rng=0)
    >>> bool(480 < arrivals[-1] < 520)
    True
    """
    return bursty_arrivals(count, rate_per_s=rate_per_s, variation=1.0, rng=rng)


def bursty_arrivals(count: int, *, rate_per_s: float, variation: float, rng: Seed) -> Seconds:
    """Return arrival times that come in bursts: gaps are gamma distributed.

    Parameters
    ----------
    count : int
        Number of arrivals.
    rate_per_s : float
        Mean arrivals per second, > 0.
    variation : float
        Standard deviation of the gaps over their mean, > 0: 1 is a Poisson process, above it bursts and lulls, below
        it a beat.
    rng : int or numpy.random.Generator
        Seed or source of randomness.

    Returns
    -------
    ndarray of float64, shape (count,)
        Seconds, non-decreasing; the first gap begins at 0.

    Examples
    --------
    >>> gaps = np.diff(bursty_arrivals(10_000, rate_per_s=2.0, variation=3.0, rng=0))
    >>> bool(2.8 < gaps.std() / gaps.mean() < 3.2)
    True
    """
    count = as_int("count", count, low=0)
    rate_per_s = as_real("rate_per_s", rate_per_s, low=0.0, open_low=True)
    variation = as_real("variation", variation, low=0.0, open_low=True)
    shape = variation**-2
    gaps = np.random.default_rng(rng).gamma(shape, 1.0 / (shape * rate_per_s), size=count)
    return np.cumsum(gaps)
