"""Walking prompts down the tree: one prompt edge by edge, or a batch with all its prompts abreast.

Walking reads and changes nothing. A walk goes through whole edges and ends in one of three ways: the prompt is used
up, no child begins with its next page, or it parts from an edge on the way; the part before that, rounded down to
pages, belongs to the match. A batch costs one round of array operations per level of the tree, whatever the number of
prompts.
"""

from typing import NamedTuple

import numpy as np

from kvarray.arrays import NO_NODE, Flags, Ids
from kvarray.prefix.nodes import NO_NAMESPACE, ROOT, WIDE, Nodes

__all__ = ["Walk", "Walks", "walk", "walk_batch"]


class Walk(NamedTuple):
    """How far one prompt comes.

    Parameters
    ----------
    path : list of int
        Nodes whose edges match whole, from the top.
    lower : int
        Node in whose edge the match ends, or `NO_NODE`.
    inside : int
        Tokens of that edge that match.
    num_tokens : int
        Tokens that match, those inside included.
    """

    path: list[int]
    lower: int
    inside: int
    num_tokens: int


def walk(nodes: Nodes, tokens: Ids, namespace: int) -> Walk:
    """Walk one prompt as far as it is cached; O(tokens) comparisons in a few calls per edge."""
    key_one, find_one, pool = nodes.key_one, nodes.index.find_one, nodes.pool
    parent, edge_offset, edge_length = nodes.parent, nodes.edge_offset, nodes.edge_length
    page = nodes.page_size
    size = len(tokens) - len(tokens) % page if namespace != NO_NAMESPACE else 0
    path: list[int] = []
    node, position = ROOT, 0
    while position < size:
        child = find_one(key_one(node, namespace, tokens, position))
        same = length = 0
        while child >= 0:
            if parent[child] == node and (node or nodes.namespace[child] == namespace):
                length, offset = edge_length[child], edge_offset[child]
                same = min(length, size - position)
                differs = pool[offset : offset + same] != tokens[position : position + same]
                first = int(differs.argmax())
                if differs[first]:
                    same = first - first % page
                if same:
                    break
            child = nodes.index.find_after_one(child)
        if child < 0:
            break
        position += same
        if same < length:
            return Walk(path, child, same, position)
        path.append(child)
        node = child
    return Walk(path, NO_NODE, 0, position)


class Walks(NamedTuple):
    """How far each prompt of a batch comes; the fields of `Walk` as columns.

    Parameters
    ----------
    steps : list of (rows, nodes)
        For each level, the rows of the batch, ascending, and the node whose whole edge each of them matches there.
    last : ndarray of int64, shape (B,)
        Last node of the path, `ROOT` where the path is empty.
    lower, inside, num_tokens : ndarray of int64, shape (B,)
        As in `Walk`.
    """

    steps: list[tuple[Ids, Ids]]
    last: Ids
    lower: Ids
    inside: Ids
    num_tokens: Ids

    def pieces(self) -> tuple[Ids, Ids, Ids]:
        """Return rows, nodes and matched lengths (-1 for a whole edge), in the order of the prompts' tokens."""
        ends = np.flatnonzero(self.lower != NO_NODE)
        rows = np.concatenate([*(rows for rows, _ in self.steps), ends])
        found = np.concatenate([*(found for _, found in self.steps), self.lower[ends]])
        lengths = np.full(len(rows), -1)
        lengths[len(rows) - len(ends) :] = self.inside[ends]
        order = np.argsort(rows, kind="stable")
        return rows[order], found[order], lengths[order]


def walk_batch(nodes: Nodes, tokens: Ids, offsets: Ids, namespaces: Ids) -> Walks:
    """Walk prompts ``tokens[offsets[i] : offsets[i + 1]]`` as far as they are cached; a round per level."""
    sizes = offsets[1:] - offsets[:-1]
    if nodes.page_size > 1:
        sizes -= sizes % nodes.page_size
    last = np.zeros(len(sizes), dtype=np.int64)
    lower = np.full(len(sizes), NO_NODE, dtype=np.int64)
    inside = np.zeros(len(sizes), dtype=np.int64)
    reached = np.zeros(len(sizes), dtype=np.int64)
    steps: list[tuple[Ids, Ids]] = []
    rows = ((sizes > 0) & (namespaces != NO_NAMESPACE)).nonzero()[0]
    while len(rows):
        done = reached.take(rows)
        rests, starts = sizes.take(rows) - done, offsets.take(rows) + done
        child, same = _find_children(nodes, tokens, starts, rests, last.take(rows), namespaces.take(rows))
        is_found = child >= 0
        if np.count_nonzero(is_found) < len(rows):
            rows, child, same, rests = rows[is_found], child[is_found], same[is_found], rests[is_found]
        reached[rows] += same
        is_whole = same == nodes.columns["edge_length"].take(child)
        if np.count_nonzero(is_whole) < len(rows):
            is_part = ~is_whole
            lower[rows[is_part]] = child[is_part]
            inside[rows[is_part]] = same[is_part]
            rows, child, same, rests = rows[is_whole], child[is_whole], same[is_whole], rests[is_whole]
        steps.append((rows, child))
        last[rows] = child
        rows = rows[same < rests]
    return Walks(steps, last, lower, inside, reached)


def _find_children(
    nodes: Nodes, tokens: Ids, starts: Ids, rests: Ids, parents: Ids, namespaces: Ids
) -> tuple[Ids, Ids]:
    """Return the child that goes on with each prompt (-1: none), and how many tokens of its edge match.

    Either all parents are the root or none is, because a batch goes down level by level.
    """
    found = nodes.index.find(nodes.keys(parents, namespaces, tokens, starts))
    if found.max() < 0:
        return found, found
    same = _common(nodes, found, tokens, starts, rests)
    same *= _are_children(nodes, found, parents, namespaces)
    # What is found under the right key and shares no page is the child of another node: the next one may be right.
    pending = ((same == 0) & (found >= 0)).nonzero()[0]
    while len(pending):
        found[pending] = nodes.index.find_after(found[pending])
        pending = pending[found[pending] >= 0]
        if len(pending):
            child = found[pending]
            same[pending] = _common(nodes, child, tokens, starts[pending], rests[pending])
            same[pending] *= _are_children(nodes, child, parents[pending], namespaces[pending])
            pending = pending[same[pending] == 0]
    return found, same


def _are_children(nodes: Nodes, child: Ids, parents: Ids, namespaces: Ids) -> Flags:
    """Return which of the rows that an index gave are children of the parents; -1 is none."""
    are_children: Flags = nodes.columns["parent"].take(child, mode="clip") == parents
    if parents[0] == ROOT:
        are_children &= nodes.columns["namespace"].take(child, mode="clip") == namespaces
    are_children &= child >= 0
    return are_children


def _common(nodes: Nodes, child: Ids, tokens: Ids, starts: Ids, rests: Ids) -> Ids:
    """Return how many tokens, in whole pages, each edge shares with its prompt; anything where the child is -1.

    The first tokens of all edges are compared as one table, which runs over the end of short ones; what lies behind
    a mismatch, or the end, does not matter. The few that go on, or begin too near the end of the batch for a row of
    the table, are compared as slices.
    """
    offsets = nodes.columns["edge_offset"].take(child, mode="clip")
    lengths = nodes.columns["edge_length"].take(child, mode="clip")
    np.minimum(lengths, rests, out=lengths)
    width = min(int(lengths.max()), WIDE)
    begins = np.minimum(starts, len(tokens) - width)
    differs = _windows(nodes.pool, width)[offsets] != _windows(tokens, width)[begins]
    same: Ids = differs.argmax(axis=1)
    goes_on = ~differs[np.arange(len(same)), same]
    same[goes_on] = width
    goes_on &= lengths > width
    goes_on |= begins < starts
    for row in goes_on.nonzero()[0].tolist():
        offset, start, length = int(offsets[row]), int(starts[row]), int(lengths[row])
        differs_on = nodes.pool[offset : offset + length] != tokens[start : start + length]
        first = int(differs_on.argmax()) if length else 0
        same[row] = first if length and differs_on[first] else length
    np.minimum(same, lengths, out=same)
    if nodes.page_size > 1:
        same -= same % nodes.page_size
    return same


def _windows(values: Ids, width: int) -> Ids:
    """Return all runs of `width` values as rows of a table that shares their memory."""
    return np.ndarray((len(values) - width + 1, width), np.int64, values, strides=(8, 8))
