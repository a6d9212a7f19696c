"""CSV traces of lengths and arrivals, without block ids.

Two kinds are told apart by their header, in any order and among any other columns:

- ``TIMESTAMP,ContextTokens,GeneratedTokens``, the Azure LLM inference traces: calendar time, as of ISO 8601 with a
  space or a T, any number of decimals, and an offset from UTC if need be;
- ``arrived_at,num_prefill_tokens,num_decode_tokens``: seconds.

Arrivals are in seconds from the first one.
"""

import csv
import math
import re
from collections.abc import Callable
from datetime import date
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kvarray.errors import TraceError
from kvarray.trace.growing import GrowingColumn
from kvarray.trace.log import MalformedError, SkipLog, shown
from kvarray.trace.trace import Trace

__all__ = ["TableReader", "is_table_header"]

_INTEGER = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_NANOSECOND = 10**9


def _read_calendar_time(text: str) -> int:
    """Return nanoseconds since the beginning of year 1, UTC."""
    match = _TIME.fullmatch(text)
    day = _day(match[1]) if match else None
    if match is None or day is None or int(match[2]) > 23 or int(match[3]) > 59 or int(match[4]) > 60:
        raise MalformedError(f"must be a time such as 2023-11-16 18:15:46.68: got {shown(text)}")
    seconds = day * 86_400 + int(match[2]) * 3_600 + int(match[3]) * 60 + int(match[4])
    offset = match[6] or "Z"
    if offset != "Z":
        ahead = int(offset[1:3]) * 3_600 + int(offset[4:6]) * 60
        seconds -= ahead if offset[0] == "+" else -ahead
    return seconds * _NANOSECOND + int((match[5] or "").ljust(9, "0")[:9])


@lru_cache(maxsize=64)
def _day(text: str) -> int | None:
    try:
        return date.fromisoformat(text).toordinal()
    except ValueError:
        return None


def _read_seconds(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise MalformedError(f"must be a number: got {shown(text)}")
    seconds = float(text)
    if not math.isfinite(seconds):
        raise MalformedError(f"must be finite: got {shown(text)}")
    return seconds


def _read_length(text: str) -> int:
    if text.isdecimal() and text.isascii() and len(text) < 19:
        return int(text)
    if not _INTEGER.fullmatch(text):
        raise MalformedError(f"must be an integer: got {shown(text)}")
    if text.startswith("-") or (len(text) > 19 and len(text.lstrip("0")) > 19) or int(text) >= 2**63:
        raise MalformedError(f"must be {'0 or more' if text.startswith('-') else 'less than 2^63'}: got {shown(text)}")
    return int(text)


class _Kind(NamedTuple):
    """Columns of arrival, prompt and answer, how to read an arrival, and how many of its units are a second."""

    columns: tuple[str, str, str]
    read_arrival: Callable[[str], float]
    unit: int


_KINDS = (
    _Kind(("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _read_calendar_time, _NANOSECOND),
    _Kind(("arrived_at", "num_prefill_tokens", "num_decode_tokens"), _read_seconds, 1),
)


def is_table_header(line: bytes) -> bool:
    """Return whether a line names the columns of one of the kinds."""
    names = {name.strip() for name in line.decode("utf-8", "replace").split(",")}
    return any(names >= set(kind.columns) for kind in _KINDS)


class TableReader:
    """Builds a trace from chunks of lines; see `jsonl.JsonLinesReader`."""

    def __init__(self, log: SkipLog, *, block_size: int | None) -> None:
        self._log = log
        self._block_size = block_size
        self._next_line = 1
        self._kind: _Kind | None = None
        self._places: tuple[int, ...] = ()  # of the columns wanted
        self._num_fields = 0
        self._first: float | None = None
        self._last: tuple[float, str] = (-math.inf, "")
        self._arrival_s = GrowingColumn(np.float64)
        self._input_tokens = GrowingColumn(np.int64)
        self._output_tokens = GrowingColumn(np.int64)

    def feed(self, text: bytes) -> None:
        """Read whole lines.

        Raises
        ------
        TraceError
            If the header is of no known kind, and at the first malformed row unless those are left out.
        """
        rows = []
        for content in text.removesuffix(b"\n").split(b"\n"):
            line, self._next_line = self._next_line, self._next_line + 1
            if self._kind is None:
                self._read_header(content)
            elif not self._log.is_blank(line, content):
                try:
                    rows.append(self._read_row(content, self._kind))
                except MalformedError as problem:
                    self._log.leave_out(line, str(problem))
        if rows:
            arrival_s, input_tokens, output_tokens = zip(*rows, strict=True)
            self._arrival_s.extend(arrival_s)
            self._input_tokens.extend(input_tokens)
            self._output_tokens.extend(output_tokens)

    def _read_header(self, content: bytes) -> None:
        place = f"{self._log.name}, line 1"
        try:
            names = [name.strip() for name in _split(content)]
        except MalformedError as problem:
            raise TraceError(f"{place}: {problem}") from None
        self._kind = next((kind for kind in _KINDS if set(kind.columns) <= set(names)), None)
        if self._kind is None:
            known = " or ".join(",".join(kind.columns) for kind in _KINDS)
            raise TraceError(f"{place}: columns must be {known}: got {shown(','.join(names))}")
        for name in names:
            if names.count(name) > 1:
                raise TraceError(f"{place}: columns must be distinct: got {name!r} {names.count(name)} times")
        self._places = tuple(names.index(column) for column in self._kind.columns)
        self._num_fields = len(names)

    def _read_row(self, content: bytes, kind: _Kind) -> tuple[float, int, int]:
        fields = _split(content)
        if len(fields) != self._num_fields:
            raise MalformedError(f"a row must have {self._num_fields} fields: got {len(fields)} in {shown(content)}")
        text, input_text, output_text = (fields[place].strip() for place in self._places)
        column = 0  # that is being read
        try:
            arrival = kind.read_arrival(text)
            column = 1
            input_tokens = _read_length(input_text)
            column = 2
            output_tokens = _read_length(output_text)
        except MalformedError as problem:
            raise MalformedError(f"{kind.columns[column]} {problem}") from None
        if arrival < self._last[0]:
            raise MalformedError(f"{kind.columns[0]} must not fall: got {shown(text)} after {shown(self._last[1])}")
        self._last = arrival, text
        if self._first is None:
            self._first = arrival
        return (arrival - self._first) / kind.unit, input_tokens, output_tokens

    def finish(self) -> Trace:
        """Return the trace.

        Raises
        ------
        TraceError
            If there is no good row.
        """
        self._log.refuse_nothing(len(self._arrival_s))
        try:
            return Trace(
                None,
                None,
                block_size=self._block_size,
                input_tokens=self._input_tokens.take(),
                output_tokens=self._output_tokens.take(),
                arrival_s=self._arrival_s.take(),
                skipped=self._log.skipped(),
            )
        except ValueError as error:  # a sum beyond 64 bits
            raise TraceError(f"{self._log.name}: {error}") from None


def _split(content: bytes) -> list[str]:
    """Return the fields of a line."""
    try:
        line = content.decode("utf-8").rstrip("\r")
        return line.split(",") if '"' not in line else next(csv.reader([line], strict=True))
    except UnicodeDecodeError as error:
        raise MalformedError(f"not UTF-8 at byte {error.start + 1}: got {shown(content)}") from None
    except csv.Error as error:
        raise MalformedError(f"not CSV ({error}): got {shown(content)}") from None
