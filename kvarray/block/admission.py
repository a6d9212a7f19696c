"""What an admission will do: which cached blocks it hits, and how many prompts can be admitted as if at once.

Prompts are admitted one after the other, and in principle each depends on all before it. In practice two of them
rarely meet in one batch: only where a later one begins with blocks that an earlier one of the batch has just brought,
or hits cached blocks that an earlier one needs the memory of. A *run* is a stretch of prompts between which neither
happens; one lookup, one hold, one allocation and one registration serve it whole.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvarray.arrays import NO_BLOCK, Flags, Hashes, Ids
from kvarray.block.pool import BlockPool
from kvarray.ragged import ranges

__all__ = ["Content", "Plan", "plan_run"]


class Content(Protocol):
    """Who knows what is in the blocks, so that equal hashes need not be taken for equal content."""

    def is_same(self, block_ids: Ids, places: Ids) -> Flags:
        """Return which blocks hold what the hashes at these places of the call stand for."""

    def put(self, block_ids: Ids, places: Ids) -> None:
        """Learn that blocks hold what the hashes at these places of the call stand for."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The first run of a batch of prompts.

    Parameters
    ----------
    hits : ndarray of int64, shape (B,)
        Leading blocks that each prompt of the run finds.
    hit_ids : ndarray of int64, shape (sum of hits,)
        Those blocks.
    ref_counts : ndarray of int64, shape (sum of hits,)
        Their holders.
    collisions : int
        Blocks passed over because their content is other than their hash says.
    """

    hits: Ids
    hit_ids: Ids
    ref_counts: Ids
    collisions: int


def plan_run(
    pool: BlockPool,
    hashes: Hashes,
    offsets: Ids,
    *,
    limits: Ids,
    num_blocks: Ids,
    content: Content | None,
) -> Plan:
    """Return the plan of the first run of prompts.

    Parameters
    ----------
    pool : BlockPool
    hashes : ndarray of uint64, shape (H,)
    offsets : ndarray of int64, shape (B + 1,)
        Prompt i has ``hashes[offsets[i]:offsets[i + 1]]``; what stands before the first of them is done already.
    limits : ndarray of int64, shape (B,)
        The most blocks that each prompt may take from the cache.
    num_blocks : ndarray of int64, shape (B,)
        Blocks that each will have.
    content : Content or None
        As of `BlockTable.admit`.

    Returns
    -------
    Plan
        Of at least one prompt.
    """
    first = int(offsets[0])
    hashes, offsets = hashes[first:], offsets - first
    found = pool.index.find(hashes)
    passed_over = None
    if content is not None:
        found, passed_over = _verified(pool, found, first, content)
    hits = _leading_hits(found, offsets, limits)
    hit_ids = found[ranges(offsets[:-1], hits)]
    ref_counts = pool.ref_count.take(hit_ids)
    end = len(hits)
    if end > 1:
        end = min(end, _first_that_extends(hashes, offsets, hits))
        end = min(end, _first_that_loses(pool, hit_ids, ref_counts, hits, num_blocks - hits))
    if end < len(hits):
        hits = hits[:end]
        hit_ids = hit_ids[: hits.sum()]
        ref_counts = ref_counts[: len(hit_ids)]
    collisions = 0 if passed_over is None else int(passed_over[: offsets[end]].sum())
    return Plan(hits=hits, hit_ids=hit_ids, ref_counts=ref_counts, collisions=collisions)


def _verified(pool: BlockPool, found: Ids, first: int, content: Content) -> tuple[Ids, Ids]:
    """Return for each hash the oldest block that holds its content, and how many older ones were passed over."""
    found = found.copy()
    passed_over = np.zeros(len(found), dtype=np.int64)
    places = np.flatnonzero(found != NO_BLOCK)
    while len(places):
        places = places[~content.is_same(found[places], places + first)]
        passed_over[places] += 1
        found[places] = pool.index.find_after(found[places])
        places = places[found[places] != NO_BLOCK]
    return found, passed_over


def _leading_hits(found: Ids, offsets: Ids, limits: Ids) -> Ids:
    """Return the length of the leading run of blocks found in each row, at most its limit."""
    starts = offsets[:-1]
    misses = np.append(np.flatnonzero(found == NO_BLOCK), len(found))  # the last stands for the end
    first_miss = misses[np.searchsorted(misses, starts)]
    return np.minimum(first_miss - starts, limits)


def _first_that_extends(hashes: Hashes, offsets: Ids, hits: Ids) -> int:
    """Return the first prompt whose first block that is not hit is one that an earlier prompt registers.

    Hashes are chained, so two prompts that share a block not hit share their first one.
    """
    rows = np.flatnonzero(hits < np.diff(offsets))
    order = np.argsort(hashes[offsets[rows] + hits[rows]], kind="stable")
    first_new = hashes[offsets[rows] + hits[rows]][order]
    repeats = rows[order[1:][first_new[1:] == first_new[:-1]]]
    return int(repeats.min()) if len(repeats) else len(hits)


def _first_that_loses(pool: BlockPool, hit_ids: Ids, ref_counts: Ids, hits: Ids, num_new: Ids) -> int:
    """Return the first prompt that may hit a block of which an earlier one takes the memory."""
    is_cached = ref_counts == 0
    places = np.flatnonzero(is_cached)
    places = places[np.searchsorted(places, hits[0]) :]  # the first prompt holds its hits before anyone allocates
    if len(places) == 0:
        return len(hits)
    rows = np.searchsorted(np.cumsum(hits), places, side="right")
    num_taken = (np.cumsum(num_new) - num_new)[rows]  # by the prompts before
    num_held = np.cumsum(is_cached)[places]  # may have stood before the block in the queue
    in_danger = rows[pool.is_taken_by(num_taken + num_held, hit_ids[places])]
    return int(in_danger[0]) if len(in_danger) else len(hits)
