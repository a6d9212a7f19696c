"""Snapshots: named arrays that are the whole state of an object, in memory or in a ``.npz`` file."""

from collections.abc import Callable, Collection, Mapping
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvarray.errors import InvariantError

__all__ = ["Snapshot", "load_snapshot", "replace_state", "save_snapshot"]

Snapshot: TypeAlias = Mapping[str, NDArray[Any]]
"""Arrays by name."""


def replace_state(
    now: Snapshot,
    snapshot: Snapshot,
    *,
    assign: Callable[[Snapshot], None],
    check: Callable[[], None],
    ragged: Collection[str] = (),
) -> None:
    """Assign a snapshot that fits the state `now` and passes `check`; otherwise raise, with the state as it was.

    Arrays must have the names, dtypes and shapes that those of `now` have; the `ragged` ones may have another length.
    """
    for name, array in now.items():
        if name not in snapshot:
            raise ValueError(f"snapshot must hold an array {name!r}: it has {', '.join(snapshot)}")
        got = snapshot[name]
        is_fitting = got.ndim == array.ndim and (name in ragged or got.shape == array.shape)
        if got.dtype != array.dtype or not is_fitting:
            raise ValueError(
                f"snapshot must hold {name!r} as {array.dtype} of shape {array.shape}: got {got.dtype} of {got.shape}"
            )
    try:
        assign(snapshot)
        check()
    except IndexError as error:
        assign(now)
        raise InvariantError(f"snapshot holds ids out of range: {error}") from error
    except Exception:
        assign(now)
        raise


def save_snapshot(path: str | PathLike[str], snapshot: Snapshot) -> None:
    """Write a snapshot to a ``.npz`` file."""
    arrays: dict[str, Any] = dict(snapshot)
    np.savez(path, **arrays)


def load_snapshot(path: str | PathLike[str]) -> Snapshot:
    """Return the snapshot in a ``.npz`` file."""
    with np.load(path, allow_pickle=False) as file:
        return dict(file)
