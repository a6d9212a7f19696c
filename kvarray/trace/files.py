"""`read_trace` and `write_trace`: files, pipes and file objects in, files out."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from os import PathLike, fsdecode
from typing import IO, Any, Literal, Protocol, cast

from kvarray.arrays import as_positive_int
from kvarray.errors import TraceError
from kvarray.trace.trace import Trace

__all__ = ["read_trace", "write_trace"]

_CHUNK = 1 << 20  # bytes of text read at once
_FORMATS = ("jsonl", "csv", "npz")


class _Reader(Protocol):
    """What turns whole lines into a trace."""

    def feed(self, text: bytes) -> None: ...

    def finish(self) -> Trace: ...


def read_trace(
    path_or_file: str | PathLike[str] | IO[Any],
    *,
    block_size: int | None = None,
    format: Literal["jsonl", "csv", "npz"] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    progress: Callable[[int], object] | None = None,
) -> Trace:
    """Return the trace that a file holds.

    Parameters
    ----------
    path_or_file : str, path or file object
        ``-`` is standard input. A file object may be open for text or bytes; it is read to its end and left open.
        Files packed by gzip are unpacked, whatever their name.
    block_size : int, optional
        Tokens of a block. Needed where the records name blocks and none says it; must agree with those that do.
    format : {"jsonl", "csv", "npz"}, optional
        JSON lines as Mooncake publishes them; CSV of lengths and arrivals, without block ids; an archive that
        `write_trace` made. Told by content and name where it is not given.
    on_error : {"raise", "skip"}, optional
        What to do with a malformed record: raise at the first, or leave them out and count them in
        `Trace.skipped`. Damage of the file as a whole is raised either way.
    progress : callable, optional
        Called every now and then with the number of bytes of the file (packed, if it is) read since the last call;
        ``tqdm.update`` will do.

    Returns
    -------
    Trace

    Raises
    ------
    TraceError
        If the file does not hold what it should: names file, line, field and value.
    OSError
        If the file is not there or cannot be read.
    ValueError, TypeError
        If an argument is malformed.

    Notes
    -----
    O(bytes), and memory in proportion to the columns. Which fields and columns are read, and what they may hold, is
    written in `kvarray.trace.records` and `kvarray.trace.tables`. Arrivals are in seconds: the milliseconds of JSON
    lines over 1000, those of CSV from the first one. Block ids come as int64 where that holds them all, else as
    uint64, and renumbered in order of first appearance where some are negative and others 2^63 or more.

    Examples
    --------
    >>> import io
    >>> line = '{"timestamp": 500, "input_length": 20, "output_length": 3, "hash_ids": [7, 8]}'
    >>> trace = read_trace(io.StringIO(line), block_size=16)
    >>> trace.arrival_s, trace.block_tokens
    (array([0.5]), array([16,  4]))
    """
    if block_size is not None:
        block_size = as_positive_int("block_size", block_size)
    if format is not None and format not in _FORMATS:
        raise ValueError(f"format must be one of {', '.join(_FORMATS)}: got {format!r}")
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise' or 'skip': got {on_error!r}")
    with ExitStack() as stack:
        name, file = _open(path_or_file, stack)
        source = _Source(name, file, progress).unpacked()
        if not source.peek():
            raise TraceError(f"{name}: an empty file")
        kind = format or _sniff(source)
        if kind == "npz":
            return _read_archive(source, block_size)
        return _read_lines(source, kind, block_size, skip=on_error == "skip")


def _open(path_or_file: str | PathLike[str] | IO[Any], stack: ExitStack) -> tuple[str, Any]:
    """Return a name for messages, and the open file."""
    if hasattr(path_or_file, "read"):
        return str(getattr(path_or_file, "name", "<file object>")), path_or_file
    path = fsdecode(path_or_file)
    if path == "-":
        return "<stdin>", getattr(sys.stdin, "buffer", sys.stdin)
    try:
        return path, stack.enter_context(open(path, "rb"))
    except IsADirectoryError:
        raise TraceError(f"{path}: a directory, not a trace file") from None


class _Source:
    """Bytes of a file, with a look at the first ones."""

    def __init__(self, name: str, file: Any, progress: Callable[[int], object] | None = None) -> None:
        self.name = name
        self._file = file
        self._progress = progress
        self._ahead = b""

    def read(self, size: int) -> bytes:
        """Return some bytes, none at the end."""
        if self._ahead:
            data, self._ahead = self._ahead, b""
            return data
        data = self._file.read(size)
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogateescape")
        if self._progress is not None and data:
            self._progress(len(data))
        return bytes(data)

    def peek(self) -> bytes:
        """Return the bytes that the next `read` will return."""
        self._ahead = self.read(_CHUNK)
        return self._ahead

    def whole(self) -> IO[bytes]:
        """Return a file that can seek and holds all that is there: the file itself if it is one, untouched so far."""
        if isinstance(self._file, io.BufferedReader) and self._file.seekable():
            size = self._file.seek(0, io.SEEK_END)
            if self._progress is not None:
                self._progress(size - len(self._ahead))
            self._file.seek(0)
            return self._file
        pieces = []
        while data := self.read(_CHUNK):
            pieces.append(data)
        return io.BytesIO(b"".join(pieces))

    def unpacked(self) -> "_Source":
        """Return the source of what this one packs, or itself."""
        if not self.peek().startswith(b"\x1f\x8b"):
            return self
        import gzip

        return _Gunzip(self.name, gzip.GzipFile(fileobj=cast(IO[bytes], _Readable(self))))


class _Readable:
    """What `gzip` needs of a file, over a source: reads of at most the size asked for."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        if not self._rest:
            self._rest = self._source.read(_CHUNK)
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


class _Gunzip(_Source):
    """Bytes of a packed file, unpacked."""

    def read(self, size: int) -> bytes:
        import zlib

        try:
            return super().read(size)
        except (EOFError, OSError, zlib.error) as error:
            raise TraceError(f"{self.name}: truncated or damaged gzip ({error})") from None


def _sniff(source: _Source) -> str:
    """Return the format of a source by its first bytes, or by its name where they tell nothing."""
    from kvarray.trace.tables import is_table_header

    start = source.peek().removeprefix(b"\xef\xbb\xbf")
    if start.startswith(b"PK\x03\x04"):
        return "npz"
    if start.lstrip().startswith(b"{"):
        return "jsonl"
    if is_table_header(start.partition(b"\n")[0]):
        return "csv"
    suffixes = source.name.lower().removesuffix(".gz").rpartition(".")[2]
    by_name = {"npz": "npz", "csv": "csv", "jsonl": "jsonl", "json": "jsonl", "ndjson": "jsonl"}.get(suffixes)
    if by_name is None and start:
        from kvarray.trace.log import shown

        first = shown(start.partition(b"\n")[0])
        raise TraceError(
            f"{source.name}: neither JSON lines, nor a CSV header, nor an .npz archive: begins with {first}"
        )
    return by_name or "jsonl"


def _read_lines(source: _Source, kind: str, block_size: int | None, *, skip: bool) -> Trace:
    from kvarray.trace.jsonl import JsonLinesReader
    from kvarray.trace.log import SkipLog
    from kvarray.trace.tables import TableReader

    log = SkipLog(source.name, skip=skip)
    reader: _Reader = (JsonLinesReader if kind == "jsonl" else TableReader)(log, block_size=block_size)
    for text in _whole_lines(source):
        reader.feed(text)
    return reader.finish()


def _whole_lines(source: _Source) -> Iterator[bytes]:
    """Yield the text in pieces that end where lines do."""
    pieces: list[bytes] = []
    data = source.read(_CHUNK).removeprefix(b"\xef\xbb\xbf")
    while data:
        cut = data.rfind(b"\n") + 1
        if cut:
            yield b"".join([*pieces, data[:cut]])
            pieces = [data[cut:]]
        else:
            pieces.append(data)
        data = source.read(_CHUNK)
    if any(pieces):
        yield b"".join(pieces)


def _read_archive(source: _Source, block_size: int | None) -> Trace:
    from kvarray.trace.archive import read_archive

    return read_archive(source.name, source.whole(), block_size=block_size)


def write_trace(trace: Trace, path: str | PathLike[str], *, compressed: bool = False) -> None:
    """Write a trace to a file from which `read_trace` gets an equal one.

    Parameters
    ----------
    trace : Trace
    path : str or path
        ``.npz`` makes an archive of the columns, anything else JSON lines, packed where the name ends in ``.gz``.
        ``-`` is standard output, as JSON lines.
    compressed : bool, optional
        Compress the columns of an archive: smaller, and slower to write and read.

    Raises
    ------
    ValueError
        If JSON lines are asked of a trace without requests, which would leave an empty file.
    OSError
        If the file cannot be written.

    Notes
    -----
    O(N). The same trace always gives the same bytes.
    """
    target = fsdecode(path)
    if target.lower().endswith(".npz"):
        from kvarray.trace.archive import write_archive

        with open(target, "wb") as file:
            write_archive(trace, file, compressed=compressed)
        return
    if compressed:
        raise ValueError(f"compressed must be left out for JSON lines, whose name says it (.gz): got path {target!r}")
    if not trace.num_requests:
        raise ValueError("trace must have a request to be written as JSON lines: got none")
    from kvarray.trace.jsonl import json_lines

    if target == "-":
        sys.stdout.buffer.writelines(json_lines(trace))
        sys.stdout.buffer.flush()
        return
    with open(target, "wb") as file:
        if not target.lower().endswith(".gz"):
            file.writelines(json_lines(trace))
            return
        import gzip

        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            packed.writelines(json_lines(trace))
