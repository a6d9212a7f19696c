"""Whole chunks of CSV rows at once, as long as all in them is as usual: see `chunks`, which does so for JSON lines."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import Ids
from kvarray.trace.digits import parse_integers
from kvarray.trace.fields import NANOSECOND, TIME, Layout, day_number, read_calendar_time
from kvarray.trace.log import UnusualChunkError, usual

__all__ = ["TableRows", "read_table_chunk"]

_COMMA, _LINE_END, _ZERO = b",\n0"
_NUMBER_BYTES = b"0123456789.eE+-"
_MOST_DAYS = 36_500  # of a chunk, so that nanoseconds fit 64 bits


class TableRows(NamedTuple):
    """Rows as columns; arrivals are in the unit of their kind, and count from `base`."""

    base: int
    arrivals: NDArray[Any]
    last_text: str  # of the last arrival
    input_tokens: Ids
    output_tokens: Ids


def read_table_chunk(text: bytes, layout: Layout) -> TableRows:
    """Return the rows of whole lines of text.

    Raises
    ------
    UnusualChunkError
        If a line may be wrong, or is written in a way that only the reader of single rows knows.
    """
    arrivals, inputs, outputs = _split_columns(text, layout)
    input_tokens, output_tokens = _as_lengths(inputs), _as_lengths(outputs)
    base, since_base = _as_times(arrivals) if layout.kind.unit == NANOSECOND else (0, _as_seconds(arrivals))
    usual(not (since_base[1:] < since_base[:-1]).any())
    return TableRows(base, since_base, arrivals[-1].decode("ascii"), input_tokens, output_tokens)


def _split_columns(text: bytes, layout: Layout) -> list[list[bytes]]:
    """Return the three columns that are wanted; all lines must have the right number of fields."""
    usual(b'"' not in text)
    text = text.replace(b"\r\n", b"\n").removesuffix(b"\n")
    buffer = np.frombuffer(text, dtype=np.uint8)
    separators = buffer[(buffer == _COMMA) | (buffer == _LINE_END)]
    ends = separators[layout.num_fields - 1 :: layout.num_fields]
    num_lines = text.count(b"\n") + 1
    usual(len(separators) == num_lines * layout.num_fields - 1)
    usual(len(ends) == num_lines - 1 and bool((ends == _LINE_END).all()))
    fields = text.replace(b"\n", b",").split(b",")
    return [fields[place :: layout.num_fields] for place in layout.places]


def _as_lengths(column: Sequence[bytes]) -> Ids:
    usual(b"-" not in b"".join(column))
    integers = parse_integers(column)
    if integers is None or integers.is_large is not None:
        raise UnusualChunkError
    usual(bool((integers.counts == 1).all()))
    return integers.bits


def _as_seconds(column: Sequence[bytes]) -> NDArray[Any]:
    usual(not b"".join(column).translate(None, _NUMBER_BYTES) and all(column))
    try:
        seconds = np.array(column).astype(np.float64)
    except ValueError:
        raise UnusualChunkError from None
    usual(bool(np.isfinite(seconds).all()))
    return seconds


def _as_times(column: Sequence[bytes]) -> tuple[int, NDArray[Any]]:
    """Return the nanoseconds of the first time, and those of all since it; all must be written in the same way."""
    first = TIME.fullmatch(column[0].decode("utf-8", "replace"))
    width = len(column[0])
    joined = b"".join(column)
    if first is None or not joined.isascii() or set(map(len, column)) != {width}:
        raise UnusualChunkError
    characters = np.frombuffer(joined, dtype=np.uint8).reshape(-1, width)
    digits = characters - np.uint8(_ZERO)
    is_digit = digits <= 9
    offset_at = width - len(first[6] or "")  # where the offset from UTC begins
    usual(bool((is_digit == is_digit[0]).all()))
    usual(bool(((characters == characters[0]) | is_digit[0])[:, :offset_at].all()))
    usual(bool((characters == characters[0])[:, offset_at:].all()))

    def number(start: int, stop: int) -> Ids:
        """Return what the digits from start to stop spell."""
        powers = 10 ** np.arange(stop - start - 1, -1, -1, dtype=np.int64)
        spelled: Ids = digits[:, start:stop].astype(np.int64) @ powers
        return spelled

    date_codes, place = np.unique(number(0, 4) * 10_000 + number(5, 7) * 100 + number(8, 10), return_inverse=True)
    days = [day_number(f"{code:08}") for code in date_codes.tolist()]
    known = [day for day in days if day is not None]
    usual(len(known) == len(days) and known[-1] - known[0] < _MOST_DAYS)
    hour, minute, second = number(11, 13), number(14, 16), number(17, 19)
    usual(bool((hour <= 23).all() and (minute <= 59).all() and (second <= 60).all()))
    num_decimals = min(len(first[5] or ""), 9)
    fraction = number(20, 20 + num_decimals) * 10 ** (9 - num_decimals)
    seconds = (np.array(known) - known[0])[place] * 86_400 + hour * 3_600 + minute * 60 + second
    nanoseconds = seconds * NANOSECOND + fraction
    return read_calendar_time(first[0]), nanoseconds - nanoseconds[0]
