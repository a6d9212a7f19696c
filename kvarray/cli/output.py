"""Results as text tables, JSON and CSV, and progress while they are made."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["print_csv", "print_json", "print_table", "progress_bar"]


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows as aligned columns, headed by the keys of the first.

    Examples
    --------
    >>> print_table([{"blocks": 1000, "hit": "4.5 %"}, {"blocks": 20000, "hit": "36.6 %"}])
    blocks     hit
      1000   4.5 %
     20000  36.6 %
    """
    if not rows:
        return
    names = list(rows[0])
    cells = [names] + [[str(row[name]) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_json(result: object) -> None:
    """Print a result as JSON; arrays and NumPy numbers become lists and numbers.

    Examples
    --------
    >>> print_json({"blocks": np.array([1, 2])})
    {
      "blocks": [
        1,
        2
      ]
    }
    """
    import json

    print(json.dumps(result, indent=2, allow_nan=False, default=_plain))  # all of it, or an error and nothing


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"no JSON for {type(value).__name__}")


def print_csv(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows as CSV, headed by the keys of the first.

    Examples
    --------
    >>> print_csv([{"blocks": 1000, "hit_blocks": 12847}])
    blocks,hit_blocks
    1000,12847
    """
    import csv

    if not rows:
        return
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def progress_bar(unit: str, *, total: int | None = None) -> Callable[[int], None] | None:
    """Return a function that is told of each ``n`` units done, or None where nobody would see it.

    The bar appears on a terminal's stderr once the work has taken a second, if tqdm is installed.

    Examples
    --------
    >>> progress_bar("B") is None  # no terminal here
    True
    """
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    bar = tqdm(total=total, unit=unit, unit_scale=True, delay=1.0, leave=False, file=sys.stderr)

    def advance(n: int) -> None:
        bar.update(n)

    return advance
