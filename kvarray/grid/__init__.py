"""Many deployments at once: a grid of fields, what each of its combinations would have cost, and what to make of it."""

from kvarray.grid.axes import Axis
from kvarray.grid.columns import QUANTILES
from kvarray.grid.grid import Grid
from kvarray.grid.prices import Prices
from kvarray.grid.result import Sweep
from kvarray.grid.sweep import sweep

__all__ = ["QUANTILES", "Axis", "Grid", "Prices", "Sweep", "sweep"]
