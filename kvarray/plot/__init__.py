"""Pictures of results. matplotlib is imported when one is drawn, and no earlier."""

from kvarray.plot.curve import plot_curve
from kvarray.plot.figure import new_figure, save_figure
from kvarray.plot.replay import plot_replay
from kvarray.plot.transfer import plot_schedule, plot_sweep, plot_timeline

__all__ = ["new_figure", "plot_curve", "plot_replay", "plot_schedule", "plot_sweep", "plot_timeline", "save_figure"]
