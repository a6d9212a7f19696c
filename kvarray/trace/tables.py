"""CSV traces of lengths and arrivals, without block ids.

Two kinds are told apart by their header, in any order and among any other columns:

- ``TIMESTAMP,ContextTokens,GeneratedTokens``, the Azure LLM inference traces: calendar time, as of ISO 8601 with a
  space or a T, any number of decimals, and an offset from UTC if need be;
- ``arrived_at,num_prefill_tokens,num_decode_tokens``: seconds.

Arrivals are in seconds from the first one.
"""

import csv
import math

import numpy as np

from kvarray.errors import TraceError
from kvarray.trace.fields import KINDS, Layout, read_length
from kvarray.trace.growing import GrowingColumn
from kvarray.trace.log import MalformedError, SkipLog, UnusualChunkError, shown, usual
from kvarray.trace.table_chunks import TableRows, read_table_chunk
from kvarray.trace.trace import Trace

__all__ = ["TableReader", "is_table_header"]


def is_table_header(line: bytes) -> bool:
    """Return whether a line names the columns of one of the kinds."""
    names = {name.strip() for name in line.decode("utf-8", "replace").split(",")}
    return any(names >= set(kind.columns) for kind in KINDS)


class TableReader:
    """Builds a trace from chunks of lines; see `jsonl.JsonLinesReader`."""

    def __init__(self, log: SkipLog, *, block_size: int | None) -> None:
        self._log = log
        self._block_size = block_size
        self._next_line = 1
        self._layout: Layout | None = None
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
        if self._layout is None:
            header, _, text = text.partition(b"\n")
            self._layout = self._read_header(header)
            self._next_line += 1
        if not text:
            return
        try:
            usual(not self._log.has_blank)
            rows = read_table_chunk(text, self._layout)
            usual(rows.base + rows.arrivals[0].item() >= self._last[0])
        except UnusualChunkError:
            self._read_rows(text, self._layout)
        else:
            self._append(rows, self._layout.kind.unit)
            self._next_line += text.count(b"\n")

    def _append(self, rows: TableRows, unit: int) -> None:
        self._last = rows.base + rows.arrivals[-1].item(), rows.last_text
        if self._first is None:
            self._first = rows.base + rows.arrivals[0].item()
        self._arrival_s.extend((rows.arrivals + (rows.base - self._first)) / unit)
        self._input_tokens.extend(rows.input_tokens)
        self._output_tokens.extend(rows.output_tokens)

    def _read_rows(self, text: bytes, layout: Layout) -> None:
        """Read row by row."""
        rows = []
        for content in text.removesuffix(b"\n").split(b"\n"):
            line, self._next_line = self._next_line, self._next_line + 1
            if not self._log.is_blank(line, content):
                try:
                    rows.append(self._read_row(content, layout))
                except MalformedError as problem:
                    self._log.leave_out(line, str(problem))
        if rows:
            arrival_s, input_tokens, output_tokens = zip(*rows, strict=True)
            self._arrival_s.extend(arrival_s)
            self._input_tokens.extend(input_tokens)
            self._output_tokens.extend(output_tokens)

    def _read_header(self, content: bytes) -> Layout:
        place = f"{self._log.name}, line 1"
        try:
            names = [name.strip() for name in _split(content)]
        except MalformedError as problem:
            raise TraceError(f"{place}: {problem}") from None
        kind = next((kind for kind in KINDS if set(kind.columns) <= set(names)), None)
        if kind is None:
            known = " or ".join(",".join(kind.columns) for kind in KINDS)
            raise TraceError(f"{place}: columns must be {known}: got {shown(','.join(names))}")
        for name in names:
            if names.count(name) > 1:
                raise TraceError(f"{place}: columns must be distinct: got {name!r} {names.count(name)} times")
        return Layout(kind, tuple(names.index(column) for column in kind.columns), len(names))

    def _read_row(self, content: bytes, layout: Layout) -> tuple[float, int, int]:
        fields, kind = _split(content), layout.kind
        if len(fields) != layout.num_fields:
            raise MalformedError(f"a row must have {layout.num_fields} fields: got {len(fields)} in {shown(content)}")
        text, input_text, output_text = (fields[place].strip() for place in layout.places)
        column = 0  # that is being read
        try:
            arrival = kind.read_arrival(text)
            column = 1
            input_tokens = read_length(input_text)
            column = 2
            output_tokens = read_length(output_text)
        except MalformedError as problem:
            raise MalformedError(f"{kind.columns[column]} {problem}") from None
        if arrival < self._last[0]:
            raise MalformedError(f"{kind.columns[0]} must not fall: got {shown(text)} after {shown(self._last[1])}")
        self._last = arrival, text
        if self._first is None:
            self._first = arrival
        return float(arrival - self._first) / kind.unit, input_tokens, output_tokens

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
