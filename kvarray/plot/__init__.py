"""Pictures of results. matplotlib is imported when one is drawn, and no earlier."""

from kvarray.plot.curve import plot_curve
from kvarray.plot.demo import plot_bars, plot_scenario, plot_tier_access, plot_tree
from kvarray.plot.figure import new_figure, save_figure
from kvarray.plot.page import PAGE_ROWS, sweep_page
from kvarray.plot.replay import plot_replay
from kvarray.plot.sweep import plot_grid
from kvarray.plot.tiers import plot_gain, plot_policies
from kvarray.plot.transfer import plot_schedule, plot_sweep, plot_timeline

__all__ = [
    "PAGE_ROWS",
    "new_figure",
    "plot_bars",
    "plot_curve",
    "plot_gain",
    "plot_grid",
    "plot_policies",
    "plot_replay",
    "plot_scenario",
    "plot_schedule",
    "plot_sweep",
    "plot_tier_access",
    "plot_timeline",
    "plot_tree",
    "save_figure",
    "sweep_page",
]
