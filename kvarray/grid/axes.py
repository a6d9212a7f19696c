"""The axes of a grid: which field of a deployment takes which values.

======================  ===================================================================================
axis                    values
======================  ===================================================================================
a key of a deployment   what `kvarray.Deployment` takes there, or what its TOML file says (`block_size`, `replicas`,
                        `policy`, `write_mode`, `routing`, `model`, `tiers` ...)
``TIER.capacity``       sizes of a tier: bytes, or texts such as ``64GiB``
``TIER.blocks``         sizes of a tier in blocks
``TIER.bandwidth``      rates of its link up: bytes per second, or texts such as ``50GB/s``
``TIER.link``           its links up: names out of `kvarray.LINKS`, rates, tables, `kvarray.Link`
``TIER.admission``,     what the tier takes, see `kvarray.TierSpec`
``TIER.min_tokens``
``separation.FIELD``    a field of `kvarray.deploy.Separation`
``rate_scale``          by how much faster than in the trace requests arrive
======================  ===================================================================================

Values are a list, or a ladder: ``"64GiB:1TiB:5"`` is five values from the first to the last in equal ratios.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvarray.arrays import as_int, as_positive_int, as_real
from kvarray.units import format_bytes, parse_bytes, parse_count, parse_rate

__all__ = ["TIER_FIELDS", "Axis", "check_key", "read_axis", "read_values"]

TIER_FIELDS = ("capacity", "blocks", "bandwidth", "link", "admission", "min_tokens")
"""What can vary of a tier."""

_MOST = 1_000_000
"""Values of the longest ladder: as many as a sweep has combinations, where its limit is not raised."""


@dataclass(frozen=True, eq=False)
class Axis:
    """A field and the values it takes.

    Attributes
    ----------
    name : str
        The key, such as ``cpu.capacity``.
    values : tuple
        Numbers are bytes, bytes per second, seconds or counts.
    """

    name: str
    values: tuple[Any, ...]

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.values)

    @property
    def owner(self) -> str:
        """The tier, or ``separation``, that the field is of; empty for a field of the deployment itself."""
        return self.name.rpartition(".")[0]

    @property
    def field(self) -> str:
        """The field without its owner."""
        return self.name.rpartition(".")[2]

    @property
    def unit(self) -> tuple[str, float]:
        """Name and size of the unit in which the values are shown."""
        units = {"capacity": ("GiB", 2.0**30), "bandwidth": ("GB/s", 1e9)}
        return units.get(self.field, ("", 1.0)) if self.owner else ("", 1.0)

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    def label(self, place: int) -> str:
        """Return a value as a person reads it.

        Examples
        --------
        >>> read_axis("cpu.capacity", ["64GiB"]).label(0), read_axis("cpu.bandwidth", [25e9]).label(0)
        ('64 GiB', '25 GB/s')
        """
        value = self.values[place]
        if self.owner and self.field == "capacity":
            return format_bytes(value)
        if self.owner and self.field == "bandwidth":
            return f"{value / 1e9:g} GB/s"
        if isinstance(value, float):
            return f"{value:g}"
        return value if isinstance(value, str) else str(getattr(value, "name", value))


def read_axis(name: str, values: Any) -> Axis:
    """Return an axis with its values checked, as far as that needs no deployment.

    Raises
    ------
    TypeError, ValueError
        If there is no value, one stands twice, or one is malformed; the message begins with the axis.
    """
    given = read_values(name, values)
    if not given:
        raise ValueError(f"axis {name!r} must have one value or more: got none")
    parse = _PARSERS.get(name if name == "rate_scale" else name.rpartition(".")[2] if "." in name else "")
    if parse is not None:
        given = [_parsed(name, parse, value) for value in given]
    seen: set[Any] = set()
    for value in given:
        key = _frozen(value)
        if key in seen:
            raise ValueError(f"axis {name!r} must have each value once: got {value!r} again")
        seen.add(key)
    return Axis(name, tuple(given))


def read_values(name: str, values: Any) -> list[Any]:
    """Return the values of an axis as a list, a ladder ``LOW:HIGH:COUNT`` spelled out.

    Examples
    --------
    >>> read_values("cpu.capacity", "1GiB:16GiB:3")
    [1073741824, 4294967296, 17179869184]
    >>> read_values("replicas", "1,2,4")
    [1, 2, 4]
    """
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise ValueError(f"axis {name!r} must have one dimension: got shape {values.shape}")
        return list(values.tolist())
    if isinstance(values, str):
        if values.count(":") == 2:
            return _ladder(name, values)
        return [_plain(item.strip()) for item in values.split(",")]
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        return [values]
    return list(values)


def _frozen(value: Any) -> Any:
    """Return what stands for a value in a set: values that are equal give the same."""
    if isinstance(value, Mapping):
        return frozenset((name, _frozen(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    return value if isinstance(value, Hashable) else repr(value)


def _plain(item: str) -> Any:
    """Return the text of a flag as TOML would have it: a number where it is one, true and false as they are."""
    if item in ("true", "false"):
        return item == "true"
    for kind in (int, float):
        try:
            return kind(item)
        except ValueError:
            continue
    return item


def _ladder(name: str, text: str) -> list[Any]:
    """Return the values of a ladder in equal ratios, whole numbers where the first is one; each once."""
    low, high, count = text.split(":")
    field = name.rpartition(".")[2]
    read: Callable[[str], Any] = {"capacity": parse_bytes, "bandwidth": parse_rate}.get(
        field, parse_count if field != "rate_scale" else float
    )
    try:
        first, last, steps = read(low), read(high), int(count)
    except ValueError as error:
        raise ValueError(f"axis {name!r}: a ladder must be LOW:HIGH:COUNT: {error}") from None
    if not 0 < first < last or steps < 2:
        raise ValueError(f"axis {name!r}: a ladder must rise from above 0 in 2 values or more: got {text!r}")
    if steps > _MOST:  # a number is soon typed, and values take memory
        raise ValueError(f"axis {name!r}: a ladder must have {_MOST:,} values or fewer: got {text!r}")
    values = [first * (last / first) ** (step / (steps - 1)) for step in range(steps)]
    if isinstance(first, int):
        values = list(dict.fromkeys(round(value) for value in values))
    return [first, *values[1:-1], last]


def check_key(name: str, fields: Sequence[str], tiers: Sequence[str], separation: Sequence[str]) -> None:
    """Refuse an axis that no deployment has, and say which ones are near.

    Parameters
    ----------
    name : str
    fields : sequence of str
        What the deployment itself may have.
    tiers : sequence of str
        Names of the tiers.
    separation : sequence of str
        Fields of the separation; none without one.
    """
    known = [*fields, "rate_scale"]
    known += [f"{tier}.{field}" for tier in tiers for field in TIER_FIELDS]
    known += [f"separation.{field}" for field in separation]
    if name in known:
        return
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(known)}"
    raise ValueError(f"unknown axis {name!r}; {hint}")


def _parsed(name: str, parse: Callable[[str, Any], Any], value: Any) -> Any:
    try:
        return parse(name, value)
    except ValueError as error:
        message = str(error)
        raise ValueError(message if message.startswith(name) else f"axis {name!r}: {message}") from None


def _parse_capacity(name: str, value: Any) -> int:
    return as_positive_int(name, parse_bytes(value) if isinstance(value, str) else value)


def _parse_blocks(name: str, value: Any) -> int:
    return as_positive_int(name, parse_count(value) if isinstance(value, str) else value)


def _parse_tokens(name: str, value: Any) -> int:
    return as_int(name, parse_count(value) if isinstance(value, str) else value, low=0)


def _parse_bandwidth(name: str, value: Any) -> float:
    return as_real(name, parse_rate(value) if isinstance(value, str) else value, low=0.0, open_low=True)


def _parse_scale(name: str, value: Any) -> float:
    return as_real(name, value, low=0.0, open_low=True)


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "capacity": _parse_capacity,
    "blocks": _parse_blocks,
    "min_tokens": _parse_tokens,
    "bandwidth": _parse_bandwidth,
    "rate_scale": _parse_scale,
}
