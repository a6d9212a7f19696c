"""A radix tree as lines of text."""

import numpy as np

from kvarray.prefix.nodes import ROOT, Nodes

__all__ = ["draw_tree"]


def draw_tree(nodes: Nodes, max_nodes: int, max_tokens: int) -> str:
    """Return a drawing: a line per node, children in order of namespace and first tokens."""
    live = nodes.live()
    total = int(nodes.columns["edge_length"][live].sum())
    lines = [f"root: {total} tokens in {len(live)} nodes"]
    # Rows to draw, next one last, each with what is written before its branch and whether a sibling follows.
    rest = _children(nodes, live[1:], ROOT, "")
    while rest and len(lines) < max_nodes:
        node, indent, is_last = rest.pop()
        lines.append(f"{indent}{'`' if is_last else '|'}- {_label(nodes, node, max_tokens)}")
        rest += _children(nodes, live[1:], node, indent + ("   " if is_last else "|  "))
    if len(live) > len(lines):
        lines.append(f"... and {len(live) - len(lines)} more nodes")
    return "\n".join(lines)


def _children(nodes: Nodes, rows: np.ndarray, parent: int, indent: str) -> list[tuple[int, str, bool]]:
    """Return the children of a node, last one first, with the indent and whether each is the last."""

    def order(node: int) -> tuple[str, list[int]]:
        offset = nodes.edge_offset[node]
        page = nodes.pool[offset : offset + nodes.page_size].tolist()
        return nodes.name_of(node) or "", page

    if not nodes.num_children[parent]:
        return []
    children = sorted(rows[nodes.columns["parent"][rows] == parent].tolist(), key=order)
    return [(node, indent, node == children[-1]) for node in children[::-1]]


def _label(nodes: Nodes, node: int, max_tokens: int) -> str:
    """Return namespace, tokens, length and locks of a node."""
    offset, length, locks = nodes.edge_offset[node], nodes.edge_length[node], nodes.lock_count[node]
    tokens = [str(token) for token in nodes.pool[offset : offset + min(length, max_tokens)].tolist()]
    if length > max_tokens:
        tokens[-2:] = ["..", str(nodes.pool[offset + length - 1])]
    name = nodes.name_of(node) if nodes.parent[node] == ROOT else None
    prefix = f"[{name}] " if name is not None else ""
    suffix = f", {locks} lock{'s' if locks > 1 else ''}" if locks else ""
    return f"{prefix}{' '.join(tokens)} ({length}{suffix})"
