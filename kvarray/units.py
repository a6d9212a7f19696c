"""Sizes, rates, counts and durations as people write them.

``GiB`` is 2^30 bytes and ``GB`` is 1e9 bytes: both are understood and neither stands for the other, so a bare ``G``
is refused. In counts a ``k`` is 1,000 and a ``K`` is 1,024, as in "a 128K context"; ``M`` is a million, ``Mi`` 2^20.
"""

import math
import re
from collections.abc import Mapping

__all__ = ["format_bytes", "format_seconds", "parse_bytes", "parse_count", "parse_rate", "parse_seconds"]

_BYTES: Mapping[str, int] = {
    "": 1, "B": 1,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50,
}  # fmt: skip
_RATES: Mapping[str, float] = {
    **{f"{unit}/s": float(size) for unit, size in _BYTES.items() if unit},
    "kbit/s": 1e3 / 8, "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8, "Mb/s": 1e6 / 8, "Gb/s": 1e9 / 8,
    "Gbps": 1e9 / 8, "Tbps": 1e12 / 8,
}  # fmt: skip
_COUNTS: Mapping[str, int] = {
    "": 1, "k": 10**3, "m": 10**6, "M": 10**6, "g": 10**9, "G": 10**9,
    "K": 2**10, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30,
}  # fmt: skip
_SECONDS: Mapping[str, float] = {
    "": 1.0, "s": 1.0, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "min": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip
_NUMBER = re.compile(
    r"\s*((?:0|[1-9](?:_?[0-9])*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*"
)


def _parse(text: str, units: Mapping[str, float], what: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{what} must be a number of 0 or more with a unit: got {text!r}")
    number, unit = match.groups()
    if unit not in units:
        known = ", ".join(name for name in units if name)
        raise ValueError(f"{what} must have a unit out of {known}: got {text!r}")
    value = float(number.replace("_", "")) * units[unit]
    if not math.isfinite(value):
        raise ValueError(f"{what} must be finite: got {text!r}")
    return value


def _whole(text: str, units: Mapping[str, int], what: str) -> int:
    """Return a whole number; integers stay exact beyond 2^53."""
    match = _NUMBER.fullmatch(text)
    if match is not None and match[2] in units:
        digits = match[1].replace("_", "")
        if digits.isdigit():
            return _within_reason(int(digits) * units[match[2]], text, what)
    value = _parse(text, units, what)
    if value != math.floor(value):
        raise ValueError(f"{what} must be a whole number: got {text!r}, which is {value}")
    return _within_reason(int(value), text, what)


def _within_reason(number: int, text: str, what: str) -> int:
    if number >= 2**63:
        raise ValueError(f"{what} must be less than 2^63: got {text!r}")
    return number


def parse_bytes(text: str) -> int:
    """Return a size in bytes.

    Parameters
    ----------
    text : str
        A number and a unit (B, kB, MB, GB, TB, PB of 1,000; KiB, MiB, GiB, TiB, PiB of 1,024); no unit is bytes.

    Raises
    ------
    ValueError
        If the number, the unit or the whole is not as said.

    Examples
    --------
    >>> parse_bytes("64GiB"), parse_bytes("1.5 TB")
    (68719476736, 1500000000000)
    >>> parse_bytes("64G")
    Traceback (most recent call last):
        ...
    ValueError: a size must have a unit out of B, kB, KB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB: got '64G'
    """
    return _whole(text, _BYTES, "a size")


def parse_rate(text: str) -> float:
    """Return a rate in bytes per second; network units (Gbit/s, Gb/s, Gbps) count bits.

    Examples
    --------
    >>> parse_rate("25GB/s"), parse_rate("200Gb/s")
    (25000000000.0, 25000000000.0)
    """
    return _parse(text, _RATES, "a rate")


def parse_count(text: str) -> int:
    """Return a count: ``10k`` is 10,000, ``128K`` is 131,072.

    Examples
    --------
    >>> parse_count("10k"), parse_count("128K"), parse_count("1.5M")
    (10000, 131072, 1500000)
    """
    return _whole(text, _COUNTS, "a count")


def parse_seconds(text: str) -> float:
    """Return a duration in seconds; no unit is seconds.

    Examples
    --------
    >>> parse_seconds("4ms"), parse_seconds("1.5h")
    (0.004, 5400.0)
    """
    return _parse(text, _SECONDS, "a duration")


def format_bytes(size: float) -> str:
    """Return a size in the largest binary unit that keeps it at 1 or more.

    Examples
    --------
    >>> format_bytes(68719476736), format_bytes(327680), format_bytes(12)
    ('64 GiB', '320 KiB', '12 B')
    """
    for unit in ("PiB", "TiB", "GiB", "MiB", "KiB"):
        if abs(size) >= _BYTES[unit]:
            return f"{size / _BYTES[unit]:.4g} {unit}"
    return f"{size:.4g} B"


def format_seconds(seconds: float) -> str:
    """Return a duration in the unit that suits it.

    Examples
    --------
    >>> format_seconds(0.00419), format_seconds(90.0), format_seconds(0.0)
    ('4.19 ms', '90 s', '0 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds:.4g} s"
