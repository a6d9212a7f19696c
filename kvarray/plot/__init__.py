"""Pictures of results. matplotlib is imported when one is drawn, and no earlier."""

from kvarray.plot.curve import plot_curve
from kvarray.plot.figure import new_figure, save_figure

__all__ = ["new_figure", "plot_curve", "save_figure"]
