"""The invariants of a radix tree, R1 to R12, as they are listed in `RadixTree`."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from kvarray.arrays import NO_NODE, Flags, Ids
from kvarray.errors import InvariantError
from kvarray.prefix.candidates import Candidates
from kvarray.prefix.nodes import ROOT, Nodes
from kvarray.prefix.results import TreeStats

__all__ = ["check_candidates", "check_counts", "check_locks", "check_nodes"]


def check_nodes(nodes: Nodes) -> None:
    """Verify R1 to R5, R8 and R9."""
    table = {name: column[: nodes.num_rows] for name, column in nodes.columns.items()}
    root = {name: int(column[ROOT]) for name, column in table.items()}
    if root["parent"] != NO_NODE or root["edge_length"] or root["lock_count"] or root["depth"]:
        raise InvariantError(f"R1: the root has a parent, an edge or a lock: {root}")

    rows = nodes.live()[1:]
    parent, length = table["parent"][rows], table["edge_length"][rows]
    is_live = np.zeros(nodes.num_rows, dtype=np.bool_)
    is_live[nodes.live()] = True
    is_row = (parent >= 0) & (parent < nodes.num_rows)
    _fail("R2: nodes without a live parent", rows, ~is_row | ~is_live[parent * is_row])
    _fail("R2: edges that are not whole pages", rows, (length <= 0) | (length % nodes.page_size != 0))
    _fail("R2: depths that do not add up", rows, table["depth"][rows] != table["depth"][parent] + length)

    num_children = np.bincount(parent, minlength=nodes.num_rows)
    wrong = is_live & (num_children != table["num_children"])
    _fail("R3: nodes that miscount their children", np.arange(nodes.num_rows), wrong)

    nodes.index.check()
    starts = table["edge_offset"][rows]
    pages = nodes.pool[starts[:, None] + np.arange(nodes.page_size)].tolist()
    places = list(zip(parent.tolist(), table["namespace"][rows].tolist(), map(tuple, pages), strict=True))
    twice = {place for place, count in Counter(places).items() if count > 1}
    _fail("R4: children that begin alike", rows, np.array([place in twice for place in places], dtype=np.bool_))
    _fail("R4: nodes filed under another page", rows, nodes.index.keys[rows] != nodes.keys_of(rows))

    namespace = table["namespace"][rows]
    is_below = parent != ROOT
    _fail(
        "R5: nodes of another namespace than their parent's",
        rows,
        is_below & (namespace != table["namespace"][parent]),
    )
    tops = Counter(namespace[~is_below].tolist())
    known = sorted(nodes.namespaces.ids.values())
    if known != sorted({ROOT, *tops}) or any(nodes.namespaces.count_of(number) != tops[number] for number in known):
        raise InvariantError(
            f"R5: children of the root by namespace are {dict(tops)}, known are {nodes.namespaces.ids}"
        )

    if not nodes.namespaces.is_whole():
        raise InvariantError(f"R5: ids of namespaces are not each taken or free; taken are {nodes.namespaces.ids}")

    order = np.argsort(starts)
    ends = (starts + length)[order]
    if len(rows) and (starts.min() < 0 or ends[-1] > nodes.pool_end or (ends[:-1] > starts[order][1:]).any()):
        raise InvariantError(f"R8: edges overlap, or lie outside the pool, which ends at {nodes.pool_end}")
    if nodes.pool_end > 2 * nodes.capacity:
        raise InvariantError(f"R8: the pool ends at {nodes.pool_end}, above twice the capacity, {nodes.capacity}")
    if sorted(nodes.free_rows) != np.flatnonzero(~is_live).tolist():
        raise InvariantError(
            f"R9: free rows are {np.flatnonzero(~is_live)[:5]}.., listed {sorted(nodes.free_rows)[:5]}.."
        )


def check_candidates(candidates: Candidates) -> None:
    """Verify R10."""
    rows = candidates.nodes.live()[1:]
    rows = rows[candidates.are_candidates(rows)]
    wanted, filed = candidates.keys(rows), candidates.filed()
    if wanted != filed:
        different = [row for row in {*wanted, *filed} if wanted.get(row) != filed.get(row)]
        raise InvariantError(f"R10: candidates missing, in excess or under an old key: {sorted(different)[:5]}")


def check_locks(nodes: Nodes, locks: Mapping[int, int], pins: Sequence[tuple[int, int]], tick: int) -> None:
    """Verify R6 and R11."""
    counts = Counter(locks.values())
    rows = nodes.live()
    for node in rows[np.argsort(-nodes.columns["depth"][rows], kind="stable")].tolist():  # children before parents
        if node != ROOT:
            if nodes.lock_count[node] != counts[node]:
                raise InvariantError(f"R6: node {node} counts {nodes.lock_count[node]} locks, it has {counts[node]}")
            counts[nodes.parent[node]] += counts[node]
    if set(locks.values()) - set(rows.tolist()):
        raise InvariantError(f"R6: locks on rows that hold no node: {sorted(set(locks.values()) - set(rows.tolist()))}")
    latest = 4 * tick + 3
    _fail("R11: stamps in the future", rows, nodes.columns["last_use"][rows] > latest)
    _fail("R11: made after their last use", rows, nodes.columns["created"][rows] > nodes.columns["last_use"][rows])
    late = [serial for until, serial in pins if serial in locks and until <= tick]
    if late:
        raise InvariantError(f"R11: pins that should have run out: {late[:5]}")


def check_counts(stats: TreeStats, nodes: Nodes) -> None:
    """Verify R7 and R12."""
    rows = nodes.live()
    length = nodes.columns["edge_length"][rows]
    cached, protected = int(length.sum()), int(length[nodes.columns["lock_count"][rows] > 0].sum())
    counted = (stats.cached_tokens, stats.protected_tokens, stats.evictable_tokens)
    if counted != (cached, protected, cached - protected) or cached > nodes.capacity:
        raise InvariantError(
            f"R7: counted {counted} cached, protected and evictable tokens; there are {cached}, {protected}, "
            f"{cached - protected}, and room for {nodes.capacity}"
        )
    if stats.inserted_tokens - stats.evicted_tokens != cached:
        raise InvariantError(f"R12: inserted {stats.inserted_tokens}, evicted {stats.evicted_tokens}, cached {cached}")


def _fail(rule: str, rows: Ids, is_wrong: Flags) -> None:
    """Raise for the rows where a mask is true, if there are any."""
    if is_wrong.any():
        raise InvariantError(f"{rule}: {rows[is_wrong][:5].tolist()}")
