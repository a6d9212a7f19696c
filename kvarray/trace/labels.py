"""Names of sessions and namespaces as columns: places in a list of distinct names, or the names themselves."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from kvarray.arrays import Ids
from kvarray.trace.growing import GrowingColumn

__all__ = ["GrowingLabels", "Label", "Names", "join_names", "label_list"]

Label: TypeAlias = str | int | None
"""Name of a session or a namespace; None for a request without one."""

Names: TypeAlias = tuple[Ids | None, tuple[Label, ...] | None]
"""Codes and labels: no codes where no request has a name, no labels where the codes are the names."""


class GrowingLabels:
    """Names to append to."""

    def __init__(self) -> None:
        self._codes = GrowingColumn(np.int64)
        self._places: dict[Label, int] = {}

    def extend(self, labels: Iterable[Label] | None, *, count: int) -> None:
        """Append `count` labels, or as often that there is no name where `labels` is None."""
        places = self._places
        if labels is None:
            codes = np.full(count, places.setdefault(None, len(places)) if count else 0)
        else:
            codes = np.array([places.setdefault(label, len(places)) for label in labels], dtype=np.int64)
        self._codes.extend(codes)

    def take(self) -> Names:
        """Return what was appended."""
        codes, labels = self._codes.take(), tuple(self._places)
        if set(labels) <= {None}:
            return None, None
        if all(isinstance(label, int) for label in labels):
            return np.array(labels, dtype=np.int64)[codes], None
        return codes, labels


def label_list(names: Names, num_requests: int) -> list[Label]:
    """Return the name of each request."""
    codes, labels = names
    if codes is None:
        return [None] * num_requests
    return codes.tolist() if labels is None else [labels[code] for code in codes.tolist()]


def join_names(parts: Sequence[Names], counts: Sequence[int]) -> Names:
    """Return the names of several traces in one column; equal names become one.

    Examples
    --------
    >>> join_names([(np.array([0]), ("a",)), (np.array([0, 1]), ("b", "a"))], [1, 2])
    (array([0, 1, 0]), ('a', 'b'))
    """
    codes = [part[0] for part in parts if part[0] is not None]
    if len(codes) == len(parts) and all(labels is None for _, labels in parts):
        return np.concatenate(codes), None
    joined = GrowingLabels()
    for part, count in zip(parts, counts, strict=True):
        joined.extend(None if part[0] is None else label_list(part, count), count=count)
    return joined.take()
