"""`.npz` archives of traces: the columns as they are, without pickles; for traces too large to parse again."""

import json
import zipfile
import zlib
from typing import IO, Any

import numpy as np

from kvarray.errors import TraceError
from kvarray.trace.trace import Trace

__all__ = ["read_archive", "write_archive"]

_VERSION = 1
_REQUIRED = ("kvarray_trace", "input_tokens", "output_tokens", "arrival_s")
_LABELS = ("session_labels", "namespace_labels")


def write_archive(trace: Trace, file: IO[bytes], *, compressed: bool) -> None:
    """Write a trace into an open file."""
    columns: dict[str, Any] = {
        "kvarray_trace": np.int64(_VERSION),
        "input_tokens": trace.input_tokens,
        "output_tokens": trace.output_tokens,
        "arrival_s": trace.arrival_s,
    }
    if trace.block_size is not None:
        columns["block_size"] = np.int64(trace.block_size)
    if trace.has_blocks:
        columns |= {"block_ids": trace.block_ids, "offsets": trace.offsets}
    for name in ("session", "namespace"):
        codes, labels = getattr(trace, name), getattr(trace, f"{name}_labels")
        if codes is not None:
            columns[name] = codes
        if labels is not None:
            columns[f"{name}_labels"] = np.frombuffer(json.dumps(labels).encode("ascii"), dtype=np.uint8)
    (np.savez_compressed if compressed else np.savez)(file, **columns)


def read_archive(name: str, file: IO[bytes], *, block_size: int | None) -> Trace:
    """Return the trace of an open file that can seek; `name` is for messages.

    Raises
    ------
    TraceError
        If the file is damaged, is no trace, or holds columns that a trace may not have.
    """
    try:
        with np.load(file, allow_pickle=False) as archive:
            columns = {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, RuntimeError, zlib.error) as error:
        raise TraceError(f"{name}: not a readable .npz archive ({error})") from None
    for key in _REQUIRED:
        if key not in columns:
            raise TraceError(f"{name}: {key} is missing from the archive")
    try:
        return _as_trace(columns, block_size)
    except (ValueError, TypeError, RecursionError) as error:
        raise TraceError(f"{name}: {error}") from None


def _as_trace(columns: dict[str, Any], given_size: int | None) -> Trace:
    version = _as_scalar("kvarray_trace", columns.pop("kvarray_trace"))
    if version != _VERSION:
        raise ValueError(f"kvarray_trace must be {_VERSION}, the version of the format: got {version}")
    stored = columns.pop("block_size", None)
    block_size = given_size if stored is None else _as_scalar("block_size", stored)
    if given_size not in (None, block_size):
        raise ValueError(f"block_size must be {given_size}, as given: got {block_size}")
    for key in _LABELS:
        if key in columns:
            columns[key] = _as_labels(key, columns[key])
    known = {"block_ids", "offsets", "input_tokens", "output_tokens", "arrival_s", "session", "namespace", *_LABELS}
    kept = {key: column for key, column in columns.items() if key in known}
    return Trace(kept.pop("block_ids", None), kept.pop("offsets", None), block_size=block_size, **kept)


def _as_scalar(name: str, array: Any) -> int:
    if array.shape != () or array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be one integer: got {array.dtype} of shape {array.shape}")
    return int(array)


def _as_labels(name: str, array: Any) -> list[Any]:
    try:
        labels = json.loads(array.tobytes())
    except ValueError as error:
        raise ValueError(f"{name} must be a JSON list: {error}") from None
    if type(labels) is not list or {type(label) for label in labels} - {str, int, type(None)}:
        raise ValueError(f"{name} must be a JSON list of strings and integers")
    return labels
