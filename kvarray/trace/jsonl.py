"""JSON lines, a request a line, as Mooncake publishes its traces; the fields are those of `records`."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import Ids
from kvarray.errors import TraceError
from kvarray.ragged import lengths_to_offsets, take_rows
from kvarray.trace.chunks import read_chunk
from kvarray.trace.growing import GrowingColumn, GrowingIds
from kvarray.trace.labels import GrowingLabels, label_list
from kvarray.trace.log import MalformedError, SkipLog, UnusualChunkError
from kvarray.trace.records import Rows, as_rows, most_blocks, read_record, too_many_blocks
from kvarray.trace.trace import Trace

__all__ = ["JsonLinesReader", "json_lines"]


class JsonLinesReader:
    """Builds a trace from chunks of JSON lines.

    Parameters
    ----------
    log : SkipLog
        What to do with malformed records.
    block_size : int or None
        Tokens of a block; None to take it from the records.
    """

    def __init__(self, log: SkipLog, *, block_size: int | None) -> None:
        self._log = log
        self._size_is_given = block_size is not None
        self._block_size = block_size
        self._has_blocks = False
        self._next_line = 1
        self._last_arrival_s = -np.inf
        self._num_early = 0  # records read before the block size was known
        self._lines = GrowingColumn(np.int64)
        self._arrival_s = GrowingColumn(np.float64)
        self._input_tokens = GrowingColumn(np.int64)
        self._output_tokens = GrowingColumn(np.int64)
        self._counts = GrowingColumn(np.int64)
        self._ids = GrowingIds()
        self._session = GrowingLabels()
        self._namespace = GrowingLabels()

    def feed(self, text: bytes) -> None:
        """Read whole lines.

        Raises
        ------
        TraceError
            At the first malformed record, unless those are left out.
        """
        try:
            if self._log.has_blank:
                raise UnusualChunkError
            rows = read_chunk(text, self._next_line, block_size=self._block_size, last_arrival_s=self._last_arrival_s)
        except UnusualChunkError:
            rows = self._read_records(text)
        self._next_line += text.count(b"\n")
        if len(rows.lines):
            self._append(rows)

    def _read_records(self, text: bytes) -> Rows:
        """Read record by record."""
        lines, records = [], []
        block_size, last_arrival_s = self._block_size, self._last_arrival_s
        for line, content in enumerate(text.removesuffix(b"\n").split(b"\n"), self._next_line):
            if self._log.is_blank(line, content):
                continue
            try:
                record = read_record(
                    content,
                    block_size=block_size,
                    size_is_given=self._size_is_given,
                    last_arrival_s=last_arrival_s,
                )
            except MalformedError as problem:
                self._log.leave_out(line, str(problem))
                continue
            lines.append(line)
            records.append(record)
            block_size, last_arrival_s = record.block_size, record.arrival_s
        return as_rows(lines, records, block_size=block_size)

    def _append(self, rows: Rows) -> None:
        if self._block_size is None:
            self._num_early += len(rows.lines)
        self._block_size = rows.block_size
        self._has_blocks |= rows.has_blocks
        self._last_arrival_s = float(rows.arrival_s[-1])
        self._lines.extend(rows.lines)
        self._arrival_s.extend(rows.arrival_s)
        self._input_tokens.extend(rows.input_tokens)
        self._output_tokens.extend(rows.output_tokens)
        self._counts.extend(rows.counts)
        self._ids.extend(rows.bits, is_large=rows.is_large, has_negative=rows.has_negative)
        self._session.extend(rows.session, count=len(rows.lines))
        self._namespace.extend(rows.namespace, count=len(rows.lines))

    def finish(self) -> Trace:
        """Return the trace.

        Raises
        ------
        TraceError
            If there is no good record or no block size, or, where the block size came late, a record has more blocks
            than its length explains.
        """
        self._log.refuse_nothing(len(self._lines))
        if self._has_blocks and self._block_size is None:
            raise TraceError(f"{self._log.name}: block_size must be given: no record has it")
        lines, counts = self._lines.take(), self._counts.take()
        ids: NDArray[Any] = self._ids.take()
        offsets = lengths_to_offsets(counts)
        session, session_labels = self._session.take()
        namespace, namespace_labels = self._namespace.take()
        input_tokens, output_tokens = self._input_tokens.take(), self._output_tokens.take()
        arrival_s = self._arrival_s.take()
        kept = self._check_early(lines, counts, input_tokens)
        if kept is not None:
            ids, offsets = take_rows(ids, offsets, kept)
            input_tokens, output_tokens, arrival_s = input_tokens[kept], output_tokens[kept], arrival_s[kept]
            session = None if session is None else session[kept]
            namespace = None if namespace is None else namespace[kept]
        self._log.refuse_nothing(len(offsets) - 1)
        try:
            return Trace(
                ids if self._has_blocks else None,
                offsets if self._has_blocks else None,
                block_size=self._block_size,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                arrival_s=arrival_s,
                session=session,
                namespace=namespace,
                session_labels=session_labels,
                namespace_labels=namespace_labels,
                skipped=self._log.skipped(),
            )
        except ValueError as error:  # a sum beyond 64 bits
            raise TraceError(f"{self._log.name}: {error}") from None

    def _check_early(self, lines: Ids, counts: Ids, input_tokens: Ids) -> Ids | None:
        """Check the records read before the block size was known; return the rows to keep, None for all."""
        if self._block_size is None:
            return None
        early = slice(0, self._num_early)
        bad = np.flatnonzero(counts[early] > most_blocks(input_tokens[early], self._block_size))
        for row in bad.tolist():
            problem = too_many_blocks(int(counts[row]), int(input_tokens[row]), self._block_size)
            self._log.leave_out(int(lines[row]), problem)
        return np.delete(np.arange(len(lines)), bad) if len(bad) else None


def json_lines(trace: Trace) -> Iterator[bytes]:
    """Yield the lines of a trace, each with its line end.

    A time that milliseconds, whole or fractional, cannot give back exactly stands in `arrival_s` as well.
    """
    sessions = label_list((trace.session, trace.session_labels), trace.num_requests)
    namespaces = label_list((trace.namespace, trace.namespace_labels), trace.num_requests)
    offsets = trace.offsets.tolist()
    columns = zip(trace.arrival_s.tolist(), trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    for row, (arrival_s, input_tokens, output_tokens) in enumerate(columns):
        fields = _time_fields(arrival_s) | {"input_length": input_tokens, "output_length": output_tokens}
        if trace.block_size is not None:
            fields["block_size"] = trace.block_size
        if sessions[row] is not None:
            fields["session"] = sessions[row]
        if namespaces[row] is not None:
            fields["namespace"] = namespaces[row]
        if trace.has_blocks:
            fields["hash_ids"] = trace.block_ids[offsets[row] : offsets[row + 1]].tolist()
        yield _encode(fields)


def _time_fields(arrival_s: float) -> dict[str, Any]:
    milliseconds = arrival_s * 1000.0
    if not math.isfinite(milliseconds):
        return {"arrival_s": arrival_s}
    stamp = {"timestamp": int(milliseconds) if milliseconds.is_integer() else milliseconds}
    return stamp if milliseconds / 1000.0 == arrival_s else stamp | {"arrival_s": arrival_s}


def _encode(fields: dict[str, Any]) -> bytes:
    try:
        return json.dumps(fields, ensure_ascii=False).encode("utf-8") + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair in a name, which JSON can escape and UTF-8 cannot hold
        return json.dumps(fields).encode("ascii") + b"\n"
