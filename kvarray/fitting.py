"""Least squares of relative errors with parameters of 0 or more: how every time model here meets measurements.

Seconds span decades in one table of measurements, so plain least squares would fit the longest rows alone. Here each
row counts by its relative error. Costs cannot be negative: a table best explained without one of them has it at 0.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Seconds, as_amounts

__all__ = ["Fit", "fit_costs"]


@dataclass(frozen=True, eq=False)
class Fit:
    """Costs fitted to measured seconds.

    Attributes
    ----------
    costs : ndarray of float64, shape (K,)
        The parameters, ``>= 0``, in the order of the columns.
    seconds : ndarray of float64, shape (B,)
        What was measured.
    predicted_s : ndarray of float64, shape (B,)
        What the costs say.
    """

    costs: Seconds
    seconds: Seconds
    predicted_s: Seconds

    @property
    def residuals(self) -> Seconds:
        """Relative error of each row, ``predicted / measured - 1``."""
        return self.predicted_s / self.seconds - 1.0

    @property
    def max_relative_error(self) -> float:
        """The largest relative error of a row, without its sign."""
        return float(np.abs(self.residuals).max())


def fit_costs(seconds: ArrayLike, **columns: ArrayLike) -> Fit:
    """Return the costs that explain measured seconds best.

    Parameters
    ----------
    seconds : array_like of float, shape (B,)
        Measured times, ``> 0``.
    **columns : array_like of float, shape (B,)
        How much of each cost a row has, ``>= 0``; K of them, at most a handful. The names are for messages.

    Returns
    -------
    Fit
        The costs x of ``seconds = sum of x[k] * columns[k]`` that minimise the sum of squared relative errors, none
        below 0.

    Raises
    ------
    ValueError
        If there is no column, shapes differ, a value is out of range, there are fewer rows than costs, or the rows
        cannot tell the costs apart (a column is a combination of the others).

    Notes
    -----
    Exact, not iterative: the best costs are the plain least squares solution on the columns they use, so all the
    ``2^K - 1`` choices of columns are solved and the best one without a negative cost is taken. Columns are scaled to
    length 1 first; O(2^K B K^2).

    References
    ----------
    .. [1] C. L. Lawson and R. J. Hanson, "Solving Least Squares Problems", 1974, chapter 23.

    Examples
    --------
    >>> fit_costs([3.0, 5.0, 7.0], start=[1.0, 1.0, 1.0], item=[1.0, 2.0, 3.0]).costs.round(9).tolist()
    [1.0, 2.0]
    """
    if not columns:
        raise ValueError("a fit needs one column of costs or more: got none")
    measured = as_amounts("seconds", seconds, low=0.0, open_low=True)
    amounts = [as_amounts(name, column, low=0.0) for name, column in columns.items()]
    if measured.ndim != 1 or any(column.shape != measured.shape for column in amounts):
        shapes = ", ".join(str(column.shape) for column in amounts)
        raise ValueError(f"seconds and {', '.join(columns)} must be of one length: got {measured.shape}, {shapes}")
    if len(measured) < len(amounts):
        raise ValueError(f"a fit of {', '.join(columns)} needs {len(amounts)} points or more: got {len(measured)}")

    design = np.stack([column / measured for column in amounts], axis=1)  # [B, K]
    scale = np.sqrt((design * design).sum(axis=0))  # [K]
    design = design / np.where(scale > 0.0, scale, 1.0)
    if np.linalg.matrix_rank(design) < len(amounts):
        raise ValueError(f"the points must tell {', '.join(columns)} apart: a column is 0 or depends on the others")

    scaled = _non_negative_least_squares(design, np.ones(len(measured)))
    costs = scaled / scale
    return Fit(costs, measured, np.stack(amounts, axis=1) @ costs)


def _non_negative_least_squares(design: Seconds, target: Seconds) -> Seconds:
    """Return the x >= 0 that minimises ``|design @ x - target|``, by solving every choice of columns."""
    num_columns = design.shape[1]
    best, best_error = np.zeros(num_columns), float(target @ target)
    for size in range(1, num_columns + 1):
        for chosen in map(list, combinations(range(num_columns), size)):
            solved = np.linalg.lstsq(design[:, chosen], target, rcond=None)[0]
            error = design[:, chosen] @ solved - target
            if solved.min() >= 0.0 and float(error @ error) < best_error:
                best = np.zeros(num_columns)
                best[chosen], best_error = solved, float(error @ error)
    return best
