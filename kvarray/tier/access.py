"""What a batch of accesses found and moved, as arrays."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Flags, Ids, as_floats, as_ints, check_same_length
from kvarray.reuse.tiers import TierFlows
from kvarray.tier.cascade import Cascade

__all__ = ["KeyColumns", "Recorder", "TierAccess", "check_columns", "flows_so_far"]


@dataclass(frozen=True, eq=False)
class TierAccess:
    """What a batch of accesses found and moved.

    ===========  =======  ======  =====================================================================
    column       dtype    shape   meaning
    ===========  =======  ======  =====================================================================
    `tier`       int64    (N,)    tier that served each key; the number of tiers where none did
    `hit`        bool     (N,)    whether one did
    `moved_key`  int64    (M,)    keys that came to a tier or left the cache from one, in order of steps
    `source`     int64    (M,)    tier each came from; the number of tiers for outside
    `target`     int64    (M,)    tier each came to; the number of tiers for one that was dropped
    `flows`      -        (B, K)  what each step served and moved, by tier
    ===========  =======  ======  =====================================================================
    """

    tier: Ids
    hit: Flags
    moved_key: Ids
    source: Ids
    target: Ids
    flows: TierFlows

    @property
    def promoted(self) -> Flags:
        """Which moves went up, shape (M,)."""
        return (self.target < self.source) & (self.source < self.flows.num_tiers)

    @property
    def demoted(self) -> Flags:
        """Which moves went down to another tier, shape (M,)."""
        return (self.source < self.target) & (self.target < self.flows.num_tiers)


class KeyColumns(NamedTuple):
    """What comes with each key of a batch, where it is given."""

    admit: list[bool] | None = None
    tokens: list[int] | None = None
    weights: list[float] | None = None


def check_columns(
    keys: Ids, *, admit: ArrayLike | None, tokens: ArrayLike | None, weights: ArrayLike | None
) -> KeyColumns:
    """Return what comes with each key as lists, or say what is wrong with it."""
    columns = KeyColumns()
    if admit is not None:
        flags = np.asarray(admit)
        if flags.dtype != np.bool_ and flags.size:
            raise TypeError(f"admit must be booleans: got {flags.dtype}")
        check_same_length(keys=keys, admit=flags)
        columns = columns._replace(admit=flags.tolist())
    if tokens is not None:
        counts = as_ints("tokens", tokens, low=0)
        check_same_length(keys=keys, tokens=counts)
        columns = columns._replace(tokens=counts.tolist())
    if weights is not None:
        values = as_floats("weights", weights, low=0.0, open_low=True)
        check_same_length(keys=keys, weights=values)
        columns = columns._replace(weights=values.tolist())
    return columns


class Recorder:
    """Keeps what each step of a cascade serves and moves, and makes arrays of it.

    Both are flat lists of integers: a list or tuple a step would keep Python's garbage collector busy.
    """

    def __init__(self, cascade: Cascade) -> None:
        self.cascade = cascade
        self.moves: list[int] = []  # key, source, target of each
        self.counts = _counts(cascade)

    def note_step(self) -> None:
        """Keep the moves and counters of the step that was just taken."""
        cascade = self.cascade
        for (key, target), source in cascade.entered.items():
            self.moves += (key, source, target)
        for key, source in cascade.left:
            self.moves += (key, source, cascade.tiers)
        self.counts += _counts(cascade)

    def result(self, served: list[int]) -> TierAccess:
        """Return all as arrays, with the tier that served each key."""
        tier = np.array(served, dtype=np.int64)
        moves = np.array(self.moves, dtype=np.int64).reshape(-1, 3)
        counts = np.array(self.counts, dtype=np.int64).reshape(-1, 1 + 5 * self.cascade.tiers)
        steps = counts[1:] - counts[:-1]
        hit = tier < self.cascade.tiers
        return TierAccess(tier, hit, moves[:, 0], moves[:, 1], moves[:, 2], _as_flows(steps))


def flows_so_far(cascade: Cascade) -> TierFlows:
    """Return all that a cascade served and moved since it was made."""
    return _as_flows(np.array(_counts(cascade), dtype=np.int64))


def _counts(cascade: Cascade) -> list[int]:
    """Return the counters: the accesses, then each column of the flows, tier by tier."""
    flows = cascade.flows
    return [flows.accesses, *flows.hits, *flows.created, *flows.up, *flows.down, *flows.dropped]


def _as_flows(counts: Ids) -> TierFlows:
    """Return flows whose counters lie along the last axis."""
    columns = counts[..., 1:].reshape(*counts.shape[:-1], 5, counts.shape[-1] // 5)
    return TierFlows(counts[..., 0], *(columns[..., place, :] for place in range(5)))
