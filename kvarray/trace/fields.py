"""The fields of CSV traces: which columns there are, how a value is read, and the words for what is wrong."""

import math
import re
from collections.abc import Callable
from datetime import date
from functools import lru_cache
from typing import NamedTuple

from kvarray.trace.log import MalformedError, shown

__all__ = [
    "KINDS",
    "NANOSECOND",
    "TIME",
    "Kind",
    "Layout",
    "day_number",
    "read_calendar_time",
    "read_length",
    "read_seconds",
]

_INTEGER = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
NANOSECOND = 10**9


def read_calendar_time(text: str) -> int:
    """Return nanoseconds since the beginning of year 1, UTC."""
    match = TIME.fullmatch(text)
    day = day_number(match[1]) if match else None
    if match is None or day is None or int(match[2]) > 23 or int(match[3]) > 59 or int(match[4]) > 60:
        raise MalformedError(f"must be a time such as 2023-11-16 18:15:46.68: got {shown(text)}")
    seconds = day * 86_400 + int(match[2]) * 3_600 + int(match[3]) * 60 + int(match[4])
    offset = match[6] or "Z"
    if offset != "Z":
        ahead = int(offset[1:3]) * 3_600 + int(offset[4:6]) * 60
        seconds -= ahead if offset[0] == "+" else -ahead
    return seconds * NANOSECOND + int((match[5] or "").ljust(9, "0")[:9])


@lru_cache(maxsize=64)
def day_number(text: str) -> int | None:
    """Return the number of a day, or None where the calendar has none such."""
    try:
        return date.fromisoformat(text).toordinal()
    except ValueError:
        return None


def read_seconds(text: str) -> float:
    """Return a finite number."""
    if not _NUMBER.fullmatch(text):
        raise MalformedError(f"must be a number: got {shown(text)}")
    seconds = float(text)
    if not math.isfinite(seconds):
        raise MalformedError(f"must be finite: got {shown(text)}")
    return seconds


def read_length(text: str) -> int:
    """Return a number of tokens."""
    if text.isdecimal() and text.isascii() and len(text) < 19:
        return int(text)
    if not _INTEGER.fullmatch(text):
        raise MalformedError(f"must be an integer: got {shown(text)}")
    if text.startswith("-") or (len(text) > 19 and len(text.lstrip("0")) > 19) or int(text) >= 2**63:
        raise MalformedError(f"must be {'0 or more' if text.startswith('-') else 'less than 2^63'}: got {shown(text)}")
    return int(text)


class Kind(NamedTuple):
    """Columns of arrival, prompt and answer, how to read an arrival, and how many of its units are a second."""

    columns: tuple[str, str, str]
    read_arrival: Callable[[str], float]
    unit: int


KINDS = (
    Kind(("TIMESTAMP", "ContextTokens", "GeneratedTokens"), read_calendar_time, NANOSECOND),
    Kind(("arrived_at", "num_prefill_tokens", "num_decode_tokens"), read_seconds, 1),
)


class Layout(NamedTuple):
    """What a header says: the kind of the table, the places of its three columns, and the number of all."""

    kind: Kind
    places: tuple[int, ...]
    num_fields: int
