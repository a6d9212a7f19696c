"""Operations recorded from a radix cache, replayed on a tree; see the data folder's README."""


def replay(tree, operations):
    """Run operations on a tree, asserting each recorded answer."""
    handles = {}
    for place, operation in enumerate(operations):
        kind, *rest = operation["op"] if isinstance(operation, dict) else operation
        where = f"operation {place}: {kind} {rest}"
        if kind == "insert":
            assert tree.insert(rest[0], **rest[1]) == rest[2], where
        elif kind == "match":
            assert tree.match(rest[0], **rest[1]) == rest[2], where
        elif kind == "evict":
            assert tree.evict(rest[0]) == rest[1], where
        elif kind == "lock":
            handles[rest[1]] = tree.lock(rest[0])
        elif kind == "unlock":
            tree.unlock(handles.pop(rest[0]))
        else:
            assert getattr(tree, kind) == rest[0], where
        if isinstance(operation, dict):
            assert (tree.evictable, tree.protected) == (operation["evictable"], operation["protected"]), where
