"""A figure and a file to put it in, without a screen and without matplotlib's global state."""

from pathlib import Path
from typing import Any

__all__ = ["new_figure", "save_figure"]


def new_figure(*, width: float = 7.0, height: float = 4.0) -> tuple[Any, Any]:
    """Return a figure and its axes, sizes in inches.

    Raises
    ------
    ImportError
        If matplotlib is not installed; the message says how to install it.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'kvarray[plot]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    return figure, axes


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a figure; the ending of the file's name says how (png, svg, pdf). The same figure gives the same bytes.

    Raises
    ------
    ValueError
        If the ending is none that matplotlib knows.
    OSError
        If the file cannot be written.
    """
    path = Path(path)
    known = figure.canvas.get_supported_filetypes()
    ending = path.suffix.lower().lstrip(".")
    if ending not in known:
        raise ValueError(f"a plot's file must end in one of {', '.join(sorted(known))}: got {str(path)!r}")
    undated = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.savefig(path, dpi=120, metadata=undated.get(ending))
