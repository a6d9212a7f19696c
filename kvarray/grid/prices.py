"""What a deployment costs by the hour: its memory, its links and its replicas, in whatever currency."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from kvarray.arrays import Ids, Seconds, as_real
from kvarray.deploy.deployment import Deployment
from kvarray.economics.cost import MemoryPrice

__all__ = ["Prices"]


@dataclass(frozen=True)
class Prices:
    """Prices of the parts of a deployment.

    Parameters
    ----------
    memory : mapping of str to MemoryPrice, optional
        Of each tier; tiers without one cost nothing.
    bandwidth : mapping of str to float, optional
        Of a GB/s of the link up from each tier, per hour.
    replica : float, optional
        Of a replica without the above, per hour.

    Raises
    ------
    TypeError, ValueError
        If a price is no number or negative.

    Examples
    --------
    >>> prices = Prices.from_dict({"cpu": "2/GiB-month", "cpu.bandwidth": 0.001, "replica": 20.0})
    >>> prices.memory["cpu"].per_byte_hour * 2**30 * 730
    2.0
    """

    memory: Mapping[str, MemoryPrice] = field(default_factory=dict)
    bandwidth: Mapping[str, float] = field(default_factory=dict)
    replica: float = 0.0

    def __post_init__(self) -> None:
        """Check the prices."""
        for tier, price in self.memory.items():
            if not isinstance(price, MemoryPrice):
                raise TypeError(f"price of tier {tier!r} must be a MemoryPrice: got {price!r}")
        for tier, amount in self.bandwidth.items():
            as_real(f"price of {tier}.bandwidth", amount, low=0.0)
        as_real("price of a replica", self.replica, low=0.0)

    @classmethod
    def from_dict(cls, prices: Mapping[str, Any]) -> Self:
        """Return prices by name: ``TIER`` (``"2/GiB-month"``), ``TIER.bandwidth`` and ``replica`` (numbers).

        Raises
        ------
        TypeError, ValueError
            If a price is malformed.
        """
        if not isinstance(prices, Mapping):
            raise TypeError(f"prices must be a table of tiers and what they cost: got {prices!r}")
        memory = {}
        bandwidth = {}
        for name, price in prices.items():
            owner, _, last = name.rpartition(".")
            if owner and last == "bandwidth":
                bandwidth[owner] = as_real(f"price of {name}", price, low=0.0)
            elif name != "replica":
                if not isinstance(price, str | MemoryPrice):
                    raise TypeError(f"price of tier {name!r} must be like '2/GiB-month': got {price!r}")
                memory[name] = MemoryPrice.parse(price) if isinstance(price, str) else price
        return cls(memory, bandwidth, as_real("price of a replica", prices.get("replica", 0.0), low=0.0))

    def check_tiers(self, names: Iterable[str]) -> None:
        """Refuse prices of tiers that are not there."""
        unknown = sorted(({*self.memory} | {*self.bandwidth}) - set(names))
        if unknown:
            raise ValueError(f"prices must be of tiers that are there, {', '.join(sorted(names))}: got {unknown[0]!r}")

    def per_hour(self, deployment: Deployment, size_bytes: Ids, bytes_per_second: Seconds) -> Seconds:
        """Return what deployments cost for an hour.

        Parameters
        ----------
        deployment : Deployment
            Its replicas, and the names of its tiers.
        size_bytes : ndarray of int64, shape (..., K)
            Sizes of the tiers of one replica.
        bytes_per_second : ndarray of float64, shape (..., K - 1)
            Bandwidths of the links up.

        Returns
        -------
        ndarray of float64
            In the currency of the prices.

        Examples
        --------
        >>> from kvarray.economics.latency import PrefillTime
        >>> from kvarray.tier import TierSpec
        >>> tiers = tuple(map(TierSpec.parse, ("gpu=40GiB", "cpu=730GiB@50GB/s")))
        >>> deployment = Deployment(tiers, bytes_per_token=1, prefill=PrefillTime(0.0, 1.0, 0.0), replicas=2)
        >>> sizes, rates = np.array([40 * 2**30, 730 * 2**30]), np.array([50e9])
        >>> float(Prices.from_dict({"cpu": "2/GiB-month", "replica": 20.0}).per_hour(deployment, sizes, rates))
        44.0
        """
        names = deployment.tier_names
        memory = [self.memory[name].per_byte_hour if name in self.memory else 0.0 for name in names]
        links = [self.bandwidth.get(name, 0.0) / 1e9 for name in names[1:]]
        each: Seconds = self.replica + (size_bytes * np.array(memory)).sum(axis=-1)
        for link, price in enumerate(links):
            if price:
                each = each + bytes_per_second[..., link] * price
        return each * deployment.replicas
