"""The tiers of one replica, stepped request by request: for what looks at them while they change, or at their order.

`kvarray.stepping` counts what tiers serve; here a request's hits are seen in the order of its path, and before it is
served at all.
"""

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import Ids
from kvarray.deploy.deployment import Deployment
from kvarray.deploy.recency import RecencyTiers
from kvarray.policies import order_maker
from kvarray.stepping.segments import Segments, segments, single_blocks
from kvarray.tier.cascade import Cascade
from kvarray.trace import Trace

__all__ = ["Caches", "Path", "SteppedTiers", "usable_blocks"]

Path = list[tuple[int, int]]
"""Segments of a request from its head to its tail: row, and blocks."""


class Caches:
    """The paths of a trace, and tiers to step through them, as many as there are replicas.

    Attributes
    ----------
    paths : list of Path
        One for each request.
    """

    def __init__(self, trace: Trace, deployment: Deployment) -> None:
        assert trace.block_size is not None  # the trace has block ids
        self._deployment = deployment
        self._sizes = deployment.tier_blocks(trace.block_size).tolist()
        tokens = trace.block_tokens if any(tier.min_tokens for tier in deployment.tiers) else None
        weights = trace.block_tokens / trace.block_size if deployment.policy == "gdsf" else None
        self._orders = order_maker(deployment.policy, rng=deployment.seed)
        if self._orders(1).single_blocks:
            cut = single_blocks(trace)
        else:
            cut = segments(trace, alike=[column for column in (tokens, weights) if column is not None])
        self._tokens = None if tokens is None else _by_row(cut, tokens)
        self._weights = None if weights is None else _by_row(cut, weights)
        steps = list(zip(cut.row.tolist(), cut.blocks.tolist(), strict=True))
        self.paths: list[Path] = [steps[start:stop] for start, stop in pairwise(cut.offsets.tolist())]

    def new(self) -> "RecencyTiers | SteppedTiers":
        """Return empty tiers, in closed form where there is one."""
        if not self._deployment.is_stack:
            return self.stepped()
        exclusive = self._deployment.write_mode == "exclusive"
        cuts = accumulate(self._sizes) if exclusive else accumulate(self._sizes, max)
        return RecencyTiers(list(cuts), len(self.paths))

    def stepped(self) -> "SteppedTiers":
        """Return empty tiers that are stepped."""
        tiers = self._deployment.tiers
        return SteppedTiers(
            Cascade(
                [self._orders(size) for size in self._sizes],
                write_mode=self._deployment.write_mode,
                write_at=self._deployment.write_at,
                promote_at=self._deployment.promote_at,
                min_tokens=[tier.min_tokens for tier in tiers],
                by_frequency=[tier.admission == "frequency" for tier in tiers],
                tokens=self._tokens,
                weights=self._weights,
            )
        )


class SteppedTiers:
    """Tiers of one replica, of any policy and mode."""

    def __init__(self, tiers: Cascade) -> None:
        self._tiers = tiers

    def cached(self, path: Path) -> int:
        """Return how many leading blocks of a path some tier holds; nothing is used."""
        cached = 0
        for row, blocks in path:
            runs = [run for order in self._tiers.orders if row in order.rows for run in order.rows[row]]
            if len(runs) > 1:
                runs.sort(key=lambda run: run.start)
            end = 0
            for run in runs:
                if run.start <= end < run.stop:
                    end = run.stop
            cached += end
            if end < blocks:
                break
        return cached

    def serve(self, path: Path, *, usable: int) -> list[list[int]]:
        """Serve a request and return what its leading hit needs of each tier, if tiers down to some depth are used.

        Parameters
        ----------
        path : Path
        usable : int
            Leading blocks that the request can use.

        Returns
        -------
        list of list of int
            Item m: blocks of each tier in the leading part of the path that lies in tiers 0 to m.
        """
        num_tiers = self._tiers.tiers
        reach = [[0] * num_tiers for _ in range(num_tiers)]
        deepest = 0
        for _, start, stop, tier, _ in self._tiers.use(path):
            deepest = max(deepest, tier)
            blocks = min(stop - start, usable)
            for depth in range(deepest, num_tiers):
                reach[depth][tier] += blocks
            usable -= blocks
            if deepest == num_tiers or not usable:
                break
        return reach


def usable_blocks(trace: Trace, deployment: Deployment) -> Ids:
    """Return how many leading blocks each request can use: the last tokens of a prompt are computed in any case."""
    assert trace.block_size is not None  # the trace has block ids
    most: Ids = -(-np.maximum(trace.input_tokens - deployment.min_prefill_tokens, 0) // trace.block_size)
    return most


def _by_row(cut: Segments, column: NDArray[Any]) -> list[Any]:
    """Return a column's value at the first use of each row."""
    values = np.zeros(cut.num_rows, dtype=column.dtype)
    values[cut.row[::-1]] = column[cut.first[::-1]]  # the last assignment counts
    rows: list[Any] = values.tolist()
    return rows
