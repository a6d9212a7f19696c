"""What the operations of a tree return: columns, numbers and handles."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kvarray.arrays import Ids

__all__ = [
    "CLEARED",
    "REMOVED",
    "SPLIT",
    "STORED",
    "Evicted",
    "Lock",
    "Match",
    "MatchBatch",
    "ServedBatch",
    "TreeEvents",
    "TreeStats",
]

STORED = 0
"""Event: a leaf was added; its tokens come with it."""
SPLIT = 1
"""Event: a node was put above the first tokens of an edge; `node` is the new one, `other` the one below it."""
REMOVED = 2
"""Event: the last tokens of a leaf went; all of them where `start` is the depth of its parent."""

CLEARED = 3
"""Event: everything went at once, by a reset or a restore; what a restore brought follows as `STORED`."""


class Match(NamedTuple):
    """How much of one prompt is cached.

    Parameters
    ----------
    num_tokens : int
        Tokens that match, whole pages.
    node : int
        Node that the match ends in; of a `peek`, the match may end inside its edge.
    values : ndarray of int64 or None
        Stored values of the matched tokens or pages; None where the tree keeps none.
    """

    num_tokens: int
    node: int
    values: Ids | None


@dataclass(frozen=True, eq=False)
class MatchBatch:
    """How much of each prompt of a batch is cached.

    Parameters
    ----------
    num_tokens, nodes : ndarray of int64, shape (B,)
        As in `Match`.
    values : ndarray of int64 or None
        Stored values of all rows, one row after the other; None where the tree keeps none.
    value_offsets : ndarray of int64, shape (B + 1,), or None
        Row i has ``values[value_offsets[i] : value_offsets[i + 1]]``.
    """

    num_tokens: Ids
    nodes: Ids
    values: Ids | None
    value_offsets: Ids | None


@dataclass(frozen=True, eq=False)
class ServedBatch:
    """What serving a batch of requests did, by request.

    Parameters
    ----------
    num_tokens : ndarray of int64, shape (B,)
        Tokens that were cached when the request came.
    evicted_tokens : ndarray of int64, shape (B,)
        Tokens that went after it.
    """

    num_tokens: Ids
    evicted_tokens: Ids


@dataclass(frozen=True, eq=False)
class Lock:
    """Handle of a locked path.

    Parameters
    ----------
    serial : int
        Number of the lock; never given twice by a tree.
    num_tokens : int
        Tokens of the path.
    tree : object, optional
        Token of the tree that gave it. One without, written again from its numbers, fits only a tree that was loaded.
    """

    serial: int
    num_tokens: int
    tree: object = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Evicted:
    """What an eviction freed; items stand in the order in which they went.

    Parameters
    ----------
    requested : int
        Tokens that were asked for.
    num_tokens : int
        Tokens that were freed. Fewer than `requested` only where no unlocked token is left.
    nodes : ndarray of int64, shape (K,)
        Leaves that went or lost their tail. A row may hold another node as soon as something is inserted.
    depths, lengths : ndarray of int64, shape (K,)
        Tokens of the path up to the end of what went, and tokens that went.
    tokens : ndarray of int64, shape (num_tokens,)
        Tokens that went, ``lengths[k]`` for item k.
    values : ndarray of int64 or None
        Their stored values, in the same order; None where the tree keeps none.
    """

    requested: int
    num_tokens: int
    nodes: Ids
    depths: Ids
    lengths: Ids
    tokens: Ids
    values: Ids | None

    @property
    def is_short(self) -> bool:
        """Whether less was freed than was asked for."""
        return self.num_tokens < self.requested


@dataclass(frozen=True, eq=False)
class TreeEvents:
    """What happened to the nodes of a tree, in order; replaying it rebuilds what is cached.

    Parameters
    ----------
    kind : ndarray of int64, shape (K,)
        `STORED`, `SPLIT`, `REMOVED` or `CLEARED`.
    tick : ndarray of int64, shape (K,)
        Tick of the operation.
    node, other : ndarray of int64, shape (K,)
        The node; its parent (`STORED`, `REMOVED`) or the node below it (`SPLIT`).
    start, length : ndarray of int64, shape (K,)
        Tokens of the path before what was added, split off on top or removed, and tokens of that.
    namespaces : tuple of (str or None), length K
        Namespace of the node.
    tokens : ndarray of int64
        Tokens of what was stored, one event after the other.
    token_offsets : ndarray of int64, shape (K + 1,)
        Event k has ``tokens[token_offsets[k] : token_offsets[k + 1]]``, none unless `STORED`.
    """

    kind: Ids
    tick: Ids
    node: Ids
    other: Ids
    start: Ids
    length: Ids
    namespaces: tuple[str | None, ...]
    tokens: Ids
    token_offsets: Ids

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class TreeStats:
    """Counts since construction or the last reset, and what is there now.

    ``cached_tokens == inserted_tokens - evicted_tokens`` and ``cached_tokens == evictable_tokens +
    protected_tokens`` hold always.

    Parameters
    ----------
    matches, matched_tokens, asked_tokens : int
        Prompts looked up by matches and locks, their tokens that were cached, and all their tokens.
    inserts, found_tokens, inserted_tokens : int
        Prompts inserted, their tokens that were there already, and those added.
    splits, evicted_nodes, evicted_tokens, compactions : int
        Edges split, nodes that went, tokens that went, and times the token pool was compacted.
    num_nodes, num_leaves, num_locks : int
        Nodes (the root included), leaves, and locks held (pins included).
    cached_tokens, evictable_tokens, protected_tokens : int
        Tokens cached, those under no lock, and those under one.
    """

    matches: int
    matched_tokens: int
    asked_tokens: int
    inserts: int
    found_tokens: int
    inserted_tokens: int
    splits: int
    evicted_nodes: int
    evicted_tokens: int
    compactions: int
    num_nodes: int
    num_leaves: int
    num_locks: int
    cached_tokens: int
    evictable_tokens: int
    protected_tokens: int

    @property
    def token_hit_rate(self) -> float:
        """Tokens matched over tokens asked for; 0 where none were."""
        return self.matched_tokens / self.asked_tokens if self.asked_tokens else 0.0
