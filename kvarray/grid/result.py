"""`Sweep`: the table of a sweep, and what planners ask of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvarray.arrays import Flags, Ids, Seconds, as_int, as_real
from kvarray.deploy.deployment import Deployment
from kvarray.grid.axes import Axis
from kvarray.grid.grid import Grid

__all__ = ["Sweep"]


@dataclass(frozen=True, eq=False)
class Sweep:
    """What combinations of a grid come to.

    Attributes
    ----------
    grid : Grid
        What row is which combination: the last axis runs fastest.
    columns : dict of str to ndarray, shape (C,)
        Read-only; see `kvarray.grid.columns`. With samples, also ``NAME_low`` and ``NAME_high``.
    num_requests : int
        Requests of the trace.
    block_size : int
        Tokens of a block of the trace.

    Examples
    --------
    >>> from kvarray import Grid, Trace, sweep
    >>> trace = Trace([1, 2, 3, 4, 5, 6, 1, 2, 3], [0, 3, 6, 9], block_size=16, arrival_s=[0.0, 60.0, 120.0])
    >>> base = {"bytes_per_token": 2**26, "prefill": {"per_token": 1.0}, "tiers": ["gpu=3blocks", "cpu=1GiB@1GB/s"]}
    >>> result = sweep(trace, Grid(base, {"cpu.capacity": "1GiB:4GiB:3"}, prices={"cpu": "730/GiB-month"}))
    >>> result["hit_tokens"], result["gain_s"].round(2)
    (array([16, 32, 48]), array([14.93, 29.85, 43.78]))
    >>> result.marginal("gain_s", "cpu.capacity").round(2)  # seconds per further GiB
    array([14.93,  6.96])
    >>> result.cheapest(at_least={"token_hit_rate": 0.2}), result.pareto(least=["cost_per_hour"], most=["gain_s"])
    (1, array([0, 1, 2]))
    """

    grid: Grid
    columns: Mapping[str, Any]
    num_requests: int
    block_size: int

    def __len__(self) -> int:
        """Return the number of combinations."""
        return self.grid.size

    def __getitem__(self, name: str) -> Any:
        """Return a column, shape (C,).

        Raises
        ------
        ValueError
            If there is none of this name; the nearest are suggested.
        """
        if name in self.columns:
            return self.columns[name]
        from difflib import get_close_matches

        near = get_close_matches(name, list(self.columns), n=3, cutoff=0.5)
        why = " (it needs prices)" if name == "cost_per_hour" else ""
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(self.columns)}"
        raise ValueError(f"unknown column {name!r}{why}; {hint}")

    def table(self, name: str) -> Any:
        """Return a column with an axis for each axis of the grid."""
        return self[name].reshape(self.grid.shape)

    def axis(self, name: str) -> Axis:
        """Return an axis of the grid.

        Raises
        ------
        ValueError
            If there is none of this name.
        """
        return self.grid.axes[self._place(name)]

    def deployment(self, row: int) -> Deployment:
        """Return the deployment of a row."""
        return self.grid.deployment(row)

    def values(self, row: int) -> dict[str, Any]:
        """Return the value of each axis in a row."""
        places = np.unravel_index(as_int("row", row, low=0, high=len(self)), self.grid.shape) if self.grid.axes else ()
        return {axis.name: axis.values[int(place)] for axis, place in zip(self.grid.axes, places, strict=True)}

    def rows(self) -> list[dict[str, Any]]:
        """Return every row as plain values: those of the axes, then those of the columns."""
        lists = {name: column.tolist() for name, column in self.columns.items()}
        return [self.values(row) | {name: values[row] for name, values in lists.items()} for row in range(len(self))]

    # ---- what to make of it ----------------------------------------------------------------------------------

    def marginal(self, name: str, axis: str, *, per: str | None = None) -> Seconds:
        """Return what a column gains from each value of an axis to the next.

        Parameters
        ----------
        name : str
            A column.
        axis : str
            One whose values are numbers; they count in the order of the axis.
        per : str, optional
            The column to divide by, such as ``cost_per_hour``; by default the axis itself: GiB of a capacity, GB/s of
            a bandwidth, else plain numbers.

        Returns
        -------
        ndarray of float64
            Of the shape of the grid, one shorter along the axis; NaN where the divisor does not change.

        Raises
        ------
        ValueError
            If there is no such column or axis, or its values are no numbers.
        """
        place = self._place(axis)
        along = self.grid.axes[place]
        if per is None:
            if not along.is_numeric:
                raise ValueError(f"axis {axis!r} must have numbers for a marginal value: got {along.label(0)!r}")
            by = np.array(along.values, dtype=np.float64) / along.unit[1]
            step = np.diff(by).reshape([-1 if k == place else 1 for k in range(len(self.grid.shape))])
        else:
            step = np.diff(self.table(per), axis=place)
        gained = np.diff(self.table(name), axis=place)
        rate = np.full(gained.shape, np.nan)
        np.divide(gained, step, out=rate, where=np.broadcast_to(step != 0.0, gained.shape))
        return rate

    def enough(self, axis: str, *, most: str = "gain_s", share: float = 0.95, row: int = 0) -> int:
        """Return the place of the first value of an axis that brings a share of what its best value brings.

        Parameters
        ----------
        axis : str
        most : str, optional
            The column to have much of; what counts is its rise from its least along the axis.
        share : float, optional
            Share of the largest rise, 0 to 1.
        row : int, optional
            Says the values of the other axes.

        Returns
        -------
        int
            Where it stops paying: behind it lies less than ``1 - share`` of the rise.
        """
        if as_real("share", share, low=0.0) > 1.0:
            raise ValueError(f"share must be 1 or less: got {share}")
        line = self.line(most, axis, row=row)
        low = line.min()
        return int(np.argmax(line >= low + share * (line.max() - low)))

    def line(self, name: str, axis: str, *, row: int = 0) -> Any:
        """Return a column along one axis, the others as they are in a row."""
        return self[name][self.along(axis, row=row)]

    def along(self, axis: str, *, row: int = 0) -> Ids:
        """Return the rows along one axis, the others as they are in a row."""
        place = self._place(axis)
        at = [int(k) for k in np.unravel_index(as_int("row", row, low=0, high=len(self)), self.grid.shape)]
        numbers = np.arange(len(self)).reshape(self.grid.shape)
        return numbers[tuple(slice(None) if k == place else at[k] for k in range(len(at)))]

    def meets(
        self, *, at_most: Mapping[str, float] | None = None, at_least: Mapping[str, float] | None = None
    ) -> Flags:
        """Return which rows keep within limits by column, bool, shape (C,)."""
        keeps = np.ones(len(self), dtype=np.bool_)
        for name, bound in (at_most or {}).items():
            keeps &= self[name] <= as_real(name, bound)
        for name, bound in (at_least or {}).items():
            keeps &= self[name] >= as_real(name, bound)
        return keeps

    def cheapest(
        self,
        *,
        at_most: Mapping[str, float] | None = None,
        at_least: Mapping[str, float] | None = None,
        by: str = "cost_per_hour",
    ) -> int | None:
        """Return the row with the least of a column among those within limits; None where no row is.

        Parameters
        ----------
        at_most, at_least : mapping of str to float, optional
            Limits by column, such as ``at_most={"ttft_p90_s": 2.0}``.
        by : str, optional
            What is to be little; the first row wins a tie.
        """
        keeps = self.meets(at_most=at_most, at_least=at_least)
        return int(np.argmin(np.where(keeps, self[by], np.inf))) if keeps.any() else None

    def pareto(self, *, least: Sequence[str] = (), most: Sequence[str] = ()) -> Ids:
        """Return the rows than which no other is better in one column and no worse in all.

        Parameters
        ----------
        least, most : sequence of str
            Columns to have little of, and much of; together one or more.

        Returns
        -------
        ndarray of int64
            Rows in order of the first column; of equal rows the first.

        Notes
        -----
        O(C log C) for two columns; O(C x front) for more.
        """
        goals = [np.asarray(self[name], dtype=np.float64) for name in least]
        goals += [-np.asarray(self[name], dtype=np.float64) for name in most]
        if not goals:
            raise ValueError("a front must be of one column or more: give least or most")
        order = np.lexsort([np.arange(len(self)), *goals[::-1]])
        points = np.stack(goals, axis=1)[order]
        if points.shape[1] <= 2:
            best = np.minimum.accumulate(points[:, -1])
            is_first = np.ones(len(points), dtype=np.bool_)
            is_first[1:] = points[1:, -1] < best[:-1]
            return order[is_first]
        front: list[int] = []
        for place, point in enumerate(points):
            if not (points[front] <= point).all(axis=1).any():
                front.append(place)
        return order[front]

    def _place(self, name: str) -> int:
        names = [axis.name for axis in self.grid.axes]
        if name not in names:
            raise ValueError(f"axis must be one of {', '.join(names)}: got {name!r}")
        return names.index(name)
