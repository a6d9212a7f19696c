"""Finished parts of a sweep on disk, so that a sweep that was cut short can go on where it stopped."""

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

import numpy as np

from kvarray.grid.columns import Columns
from kvarray.grid.grid import Grid
from kvarray.trace import Trace

__all__ = ["read_parts", "sweep_key", "write_parts"]


def sweep_key(trace: Trace, grid: Grid, **options: Any) -> str:
    """Return a text that two sweeps share only if their parts can stand for one another."""
    from hashlib import sha256

    known = sha256()
    columns = (trace.block_ids, trace.offsets, trace.arrival_s, trace.input_tokens, trace.output_tokens, trace.session)
    for column in columns:
        known.update(b"-" if column is None else column.tobytes())
    said = (trace.block_size, grid.base, [(axis.name, axis.values) for axis in grid.axes], grid.prices, options)
    known.update(repr(said).encode())
    return known.hexdigest()


def write_parts(path: str | PathLike[str], key: str, finished: Mapping[tuple[int, int], Mapping[str, Any]]) -> None:
    """Write finished parts to an archive, in place of what was there.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    columns = {
        f"{start}:{stop}/{name}": column for (start, stop), part in finished.items() for name, column in part.items()
    }
    with open(path, "wb") as file:
        np.savez(file, key=np.array(key), **columns)


def read_parts(path: str | PathLike[str], key: str) -> dict[tuple[int, int], Columns]:
    """Return the finished parts that an archive holds.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it holds no parts, or those of another sweep.
    """
    from zipfile import BadZipFile

    finished: dict[tuple[int, int], Columns] = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            written = str(archive["key"])
            for name in archive.files:
                if name != "key":
                    part, _, column = name.partition("/")
                    start, stop = map(int, part.split(":"))
                    finished.setdefault((start, stop), {})[column] = archive[name]
    except (BadZipFile, KeyError, ValueError, EOFError) as error:
        raise ValueError(f"{fspath(path)}: no parts of a sweep ({error})") from None
    if written != key:
        raise ValueError(f"{fspath(path)}: parts of another sweep, of another trace, grid or options")
    return finished
