"""`Grid`: a deployment, and the fields that vary.

Sizes of tiers and bandwidths of links are only numbers to the closed forms and queues, so they stay arrays; every
combination of the other axes is a deployment of its own.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import cached_property
from math import prod
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import Ids, Seconds, as_positive_int
from kvarray.deploy.config import KEYS, read_link, read_tier, read_toml
from kvarray.deploy.deployment import Deployment, Separation
from kvarray.errors import KVArrayError
from kvarray.grid.axes import Axis, check_key, read_axis
from kvarray.grid.prices import Prices
from kvarray.link import Link
from kvarray.tier.spec import TierSpec

__all__ = ["Grid", "Outer"]

_FIELDS = tuple(field.name for field in fields_of(Deployment))
_SEPARATION = tuple(field.name for field in fields_of(Separation))


class Outer:
    """One combination of the axes that are neither sizes nor bandwidths.

    Attributes
    ----------
    deployment : Deployment
        With the first size and bandwidth of every axis.
    rate_scale : float
    """

    def __init__(self, deployment: Deployment, rate_scale: float) -> None:
        self.deployment = deployment
        self.rate_scale = rate_scale


class Grid:
    """All combinations of the values that fields of a deployment take.

    Parameters
    ----------
    base : Deployment or mapping
        What does not vary; a mapping holds plain values, as `Deployment.from_dict` reads them.
    axes : mapping of str to sequence
        Values by field, see `kvarray.grid.axes`.
    prices : Prices or mapping, optional
        What memory, links and replicas cost.

    Attributes
    ----------
    axes : tuple of Axis
    shape : tuple of int
        Number of values of each axis; combinations are numbered with the last axis running fastest.
    size : int
        Number of combinations.

    Raises
    ------
    TypeError, ValueError
        If an axis is unknown (the nearest are suggested), has no values, or a value makes no deployment.

    Examples
    --------
    >>> base = {"bytes_per_token": "128KiB", "prefill": "llama-3.1-8b-h100", "tiers": ["gpu=40GiB", "cpu=1TiB@50GB/s"]}
    >>> grid = Grid(base, {"cpu.capacity": ["512GiB", "1TiB"], "replicas": [1, 2, 4]})
    >>> grid.shape, grid.size, grid.deployment(5).replicas
    ((2, 3), 6, 4)
    >>> Grid(base, {"cpu.capacty": ["512GiB"]})
    Traceback (most recent call last):
        ...
    ValueError: unknown axis 'cpu.capacty'; did you mean cpu.capacity, gpu.capacity?
    """

    def __init__(
        self,
        base: Deployment | Mapping[str, Any],
        axes: Mapping[str, Any],
        *,
        prices: "Prices | Mapping[str, Any] | None" = None,
    ) -> None:
        self.base = base
        self._last: tuple[dict[str, Any], Deployment] | None = None
        if not isinstance(axes, Mapping):
            raise TypeError(f"axes must map fields to their values: got {type(axes).__name__}")
        names = list(axes)
        kinds = _kinds(base, axes)
        for name in names:
            check_key(name, _FIELDS if isinstance(base, Deployment) else KEYS, *kinds)
        self.axes = tuple(read_axis(name, axes[name]) for name in names)
        for axis in self.axes:
            other = {"capacity": "blocks", "link": "bandwidth"}.get(axis.field)
            if axis.owner and other and f"{axis.owner}.{other}" in names:
                raise ValueError(f"axes {axis.name!r} and {axis.owner + '.' + other!r} say the same: give one of them")
        self.shape = tuple(len(axis) for axis in self.axes)
        self.size = prod(self.shape)
        self._check_values()
        self.prices = prices if isinstance(prices, Prices) or prices is None else Prices.from_dict(prices)
        if self.prices is not None:
            self.prices.check_tiers(kinds[0])

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the grid of plain values, as a TOML file holds them.

        The keys are those of a deployment, beside a table ``grid`` of the axes (``"cpu.capacity" = [...]``, or a table
        ``[grid.cpu]`` with ``capacity``), and a table ``prices``, which may be left out.

        Raises
        ------
        TypeError, ValueError
            As `Grid`; also if there is no table ``grid``.
        """
        plain = dict(fields)
        axes = plain.pop("grid", None)
        if not isinstance(axes, Mapping):
            raise ValueError(f"grid must be a table of fields and their values: got {axes!r}")
        flat: dict[str, Any] = {}
        for name, values in axes.items():
            if isinstance(values, Mapping):
                flat |= {f"{name}.{field}": inner for field, inner in values.items()}
            else:
                flat[name] = values
        prices = plain.pop("prices", None)
        return cls(plain, flat, prices=prices)

    @classmethod
    def from_toml(cls, path: str | PathLike[str]) -> Self:
        """Return the grid that a TOML file describes; see `from_dict`.

        Raises
        ------
        OSError
            If the file cannot be read.
        TypeError, ValueError
            As `from_dict`; the message begins with the path.
        """
        fields = read_toml(path)
        try:
            return cls.from_dict(fields)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path}: {error}") from None

    def __len__(self) -> int:
        """Return the number of combinations."""
        return self.size

    def check_size(self, limit: int) -> None:
        """Refuse a grid of more combinations than a limit.

        Raises
        ------
        TypeError, ValueError
            If the limit is no whole number of 1 or more, or the grid is larger.
        """
        most = as_positive_int("limit", limit)
        if self.size > most:
            by = f" ({' x '.join(map(str, self.shape))})" if len(self.shape) > 1 else ""
            raise ValueError(
                f"the grid has {self.size:,} combinations{by}, more than the limit of {most:,}: "
                "take out values, or raise the limit"
            )

    def deployment(self, row: int) -> Deployment:
        """Return the deployment of one combination.

        Raises
        ------
        IndexError
            If there is no such combination.
        """
        if not 0 <= row < self.size:
            raise IndexError(f"row must be in [0, {self.size}): got {row}")
        return self._build(self._places(row)).deployment

    def rate_scale(self, row: int) -> float:
        """Return by how much faster than in the trace requests arrive in one combination."""
        return self._build(self._places(row)).rate_scale

    # ---- what varies how -------------------------------------------------------------------------------------

    @cached_property
    def order(self) -> Ids:
        """Combinations by outer axes, sizes and bandwidths, int64, shape (outer, sizes, bandwidths)."""
        parts = self._outer_axes, self._size_axes, self._rate_axes
        places = [place for part in parts for place in part]
        numbers = np.arange(self.size).reshape(self.shape).transpose(places)
        return numbers.reshape([prod(self.shape[place] for place in part) for part in parts])

    def outer(self, number: int) -> Outer:
        """Return one combination of the outer axes; the others at their first values."""
        return self._build(self._places(int(self.order[number, 0, 0])))

    def sizes(self, deployment: Deployment, block_size: int) -> Ids:
        """Return all sizes of the tiers of an outer combination in blocks, shape (sizes, K)."""
        block_bytes = block_size * deployment.bytes_per_token

        def blocks(axis: Axis) -> list[int]:
            if axis.field == "blocks":
                return list(axis.values)
            return [TierSpec(axis.owner, capacity_bytes=value).num_blocks(block_bytes) for value in axis.values]

        base = deployment.tier_blocks(block_size)
        return self._inner(self._size_axes, base, deployment, blocks)

    def size_bytes(self, deployment: Deployment, block_size: int) -> Ids:
        """Return the same in bytes, what is left of a block at the end included."""
        block_bytes = block_size * deployment.bytes_per_token

        def sizes(axis: Axis) -> list[int]:
            return [value * (block_bytes if axis.field == "blocks" else 1) for value in axis.values]

        base = [(tier.blocks or 0) * block_bytes or tier.capacity_bytes or 0 for tier in deployment.tiers]
        return self._inner(self._size_axes, np.array(base, dtype=np.int64), deployment, sizes)

    def rates(self, deployment: Deployment) -> Seconds:
        """Return all bandwidths up from the lower tiers in bytes per second, shape (bandwidths, K - 1)."""
        ups = [tier.up.bytes_per_second if tier.up else np.inf for tier in deployment.tiers]
        return self._inner(self._rate_axes, np.array(ups), deployment, lambda axis: list(axis.values))[:, 1:]

    def _inner(
        self, places: list[int], base: NDArray[Any], deployment: Deployment, values: Callable[[Axis], list[Any]]
    ) -> NDArray[Any]:
        """Return every combination of some axes, each a column of `base`."""
        shape = [self.shape[place] for place in places]
        table = np.empty((*shape, len(base)), dtype=base.dtype)
        table[...] = base
        for at, place in enumerate(places):
            axis = self.axes[place]
            tier = deployment.tier_names.index(axis.owner)
            table[..., tier] = np.array(values(axis)).reshape([-1 if k == at else 1 for k in range(len(shape))])
        return table.reshape(prod(shape), len(base))

    @cached_property
    def _size_axes(self) -> list[int]:
        return self._of("capacity", "blocks")

    @cached_property
    def _rate_axes(self) -> list[int]:
        return self._of("bandwidth")

    @cached_property
    def _outer_axes(self) -> list[int]:
        inner = {*self._size_axes, *self._rate_axes}
        return [place for place in range(len(self.axes)) if place not in inner]

    def _of(self, *fields: str) -> list[int]:
        return [place for place, axis in enumerate(self.axes) if axis.owner and axis.field in fields]

    def _places(self, row: int) -> list[int]:
        return [int(place) for place in np.unravel_index(row, self.shape)] if self.shape else []

    def _check_values(self) -> None:
        """Build a deployment of each value, beside the first values of the other axes."""
        first = [0] * len(self.axes)
        if 0 not in self.shape:
            self._build(first)
        for at, axis in enumerate(self.axes):
            for place in range(1, len(axis)):
                try:
                    self._build([place if k == at else 0 for k in range(len(first))])
                except (TypeError, ValueError, KVArrayError) as error:
                    raise ValueError(f"axis {axis.name!r}, value {axis.label(place)}: {error}") from None

    def _build(self, places: Iterable[int]) -> Outer:
        """Return the deployment with given values of all axes."""
        chosen = {axis.name: axis.values[place] for axis, place in zip(self.axes, places, strict=True)}
        scale = chosen.pop("rate_scale", 1.0)
        deployment = self._read({name: value for name, value in chosen.items() if "." not in name})
        owned: dict[str, dict[str, Any]] = {}
        for name, value in chosen.items():
            owner, _, field = name.rpartition(".")
            if owner:
                owned.setdefault(owner, {})[field] = value
        return Outer(_with_owned(deployment, owned), scale)

    def _read(self, own: dict[str, Any]) -> Deployment:
        """Return the base with other values of its own fields; the last one made is kept, since neighbours share it."""
        if self._last is None or self._last[0] != own:
            if isinstance(self.base, Deployment):
                fields = dict(own)
                if "tiers" in own:
                    fields["tiers"] = tuple(_as_tier(item) for item in own["tiers"])
                self._last = own, replace(self.base, **fields)
            else:
                self._last = own, Deployment.from_dict({**self.base, **own})
        return self._last[1]


def _with_owned(deployment: Deployment, owned: dict[str, dict[str, Any]]) -> Deployment:
    """Return the deployment with new fields of its tiers and its separation."""
    if not owned:
        return deployment
    changed: dict[str, Any] = {}
    if "separation" in owned:
        if deployment.separation is None:
            raise ValueError("an axis of the separation needs a deployment that has one")
        new = owned.pop("separation")
        if "link" in new:
            new["link"] = _as_link(new["link"], "separation.link")
        changed["separation"] = replace(deployment.separation, **new)
    missing = sorted(set(owned) - set(deployment.tier_names))
    if missing:
        raise ValueError(f"there must be a tier {missing[0]!r} to vary: got {', '.join(deployment.tier_names)}")
    changed["tiers"] = tuple(_with_fields(tier, owned.get(tier.name, {})) for tier in deployment.tiers)
    return replace(deployment, **changed)


def _with_fields(tier: TierSpec, fields: dict[str, Any]) -> TierSpec:
    """Return the tier with some of `TIER_FIELDS` changed."""
    if not fields:
        return tier
    new = {name: value for name, value in fields.items() if name in ("admission", "min_tokens")}
    if "capacity" in fields:
        new |= {"capacity_bytes": fields["capacity"], "blocks": None}
    if "blocks" in fields:
        new |= {"blocks": fields["blocks"], "capacity_bytes": None}
    if "link" in fields:
        new["up"] = _as_link(fields["link"], f"{tier.name}.link")
    if "bandwidth" in fields:
        if tier.up is None:
            raise ValueError(f"tier {tier.name!r} must have a link up for its bandwidth to vary")
        new["up"] = replace(tier.up, bytes_per_second=fields["bandwidth"])
    return replace(tier, **new)


def _as_link(item: Any, where: str) -> Link:
    return item if isinstance(item, Link) else read_link(item, where)


def _as_tier(item: Any) -> TierSpec:
    return item if isinstance(item, TierSpec) else read_tier(item)


def _kinds(base: Deployment | Mapping[str, Any], axes: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names of all tiers that there may be, and the fields of the separation, if there is one."""
    if isinstance(base, Deployment):
        names = list(base.tier_names)
        separated = base.separation is not None
    elif isinstance(base, Mapping):
        names = [_as_tier(item).name for item in base.get("tiers", ())]
        separated = base.get("separation") is not None
    else:
        raise TypeError(f"base must be a Deployment or a mapping: got {type(base).__name__}")
    for tiers in axes.get("tiers", ()):
        names += [_as_tier(item).name for item in tiers]
    return list(dict.fromkeys(names)), list(_SEPARATION) if separated or "separation" in axes else []
