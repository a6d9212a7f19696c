"""The radix prefix cache with objects, lists and dictionaries: one prompt at a time, every leaf looked at."""

from dataclasses import dataclass, field

STAMPS = 4  # stamps per tick: an operation stamps its path, then what it split, then what it added


@dataclass
class Node:
    parent: "Node | None"
    namespace: str | None
    tokens: list = field(default_factory=list)
    values: list = field(default_factory=list)
    children: dict = field(default_factory=dict)  # (namespace, first page) -> Node
    lock_count: int = 0
    last_use: int = 0
    created: int = 0
    uses: int = 0
    priority: int = 0
    reach: int = 0

    @property
    def depth(self):
        return len(self.tokens) + (self.parent.depth if self.parent else 0)

    @property
    def path(self):
        return (*(self.parent.path if self.parent else ()), *self.tokens)


def lru(node, keep):
    return (node.last_use,)


def mru(node, keep):
    return (-node.last_use,)


def lfu(node, keep):
    return (node.uses, node.last_use)


def fifo(node, keep):
    return (node.created,)


def filo(node, keep):
    return (-node.created,)


def slru(node, keep):
    return (node.uses >= 2, node.last_use)


def priority(node, keep):
    return (node.priority, node.last_use)


def tlru(threshold=0, next_prompt=0):
    def key(node, keep):
        return (keep < max(node.reach + next_prompt - threshold, 0), node.last_use)

    return key


POLICIES = {
    "fifo": fifo, "filo": filo, "lfu": lfu, "lru": lru, "mru": mru, "priority": priority, "slru": slru,
    "tlru": tlru(),
}  # fmt: skip


class ReferenceTree:
    """What `kvarray.RadixTree` does, said plainly. Refusals are `ValueError`, and change nothing."""

    def __init__(
        self, capacity, *, page_size=1, policy="lru", granularity="leaf", refresh="matched", count_uses="inserts"
    ):
        self.capacity = capacity
        self.page_size = page_size
        self.policy = POLICIES[policy] if isinstance(policy, str) else policy
        self.granularity = granularity
        self.refresh = refresh
        self.count_uses = count_uses
        self.root = Node(None, None)
        self.tick = 0
        self.locks = {}  # serial -> node
        self.pins = {}  # serial -> last tick at which it holds
        self.serial = 0

    # Reading

    def nodes(self):
        """All nodes but the root."""
        found, rest = [], [self.root]
        while rest:
            node = rest.pop()
            found += node.children.values()
            rest += node.children.values()
        return found

    @property
    def cached(self):
        return sum(len(node.tokens) for node in self.nodes())

    @property
    def protected(self):
        return sum(len(node.tokens) for node in self.nodes() if node.lock_count)

    @property
    def evictable(self):
        return self.cached - self.protected

    def rows(self):
        """Every node as a tuple that does not depend on node numbers, in order of its path."""
        return sorted(
            (
                node.namespace or "", node.path, len(node.tokens), node.lock_count, node.last_use, node.created,
                node.uses, node.priority, node.reach, len(node.children), tuple(node.values),
            )
            for node in self.nodes()
        )  # fmt: skip

    def walk(self, tokens, namespace):
        """The whole nodes matched, then the node that the match ends inside of (or None) and how far into it."""
        page, rest, node, path = self.page_size, list(tokens), self.root, []
        while len(rest) >= page:
            child = node.children.get((namespace, tuple(rest[:page])))
            if child is None:
                break
            same = 0
            while child.tokens[same : same + page] == rest[same : same + page] and same < len(child.tokens):
                same += page
            if same < len(child.tokens):
                return path, child, same
            path.append(child)
            rest, node = rest[same:], child
        return path, None, 0

    def peek(self, tokens, namespace=None):
        path, _, inside = self.walk(tokens, namespace)
        return sum(len(node.tokens) for node in path) + inside

    # Changing

    def split(self, lower, size, stamp):
        """Put a new node above the last tokens of `lower`; it takes over what held for all of them."""
        upper = Node(
            lower.parent, lower.namespace, lower.tokens[:size], lower.values[:size], lock_count=lower.lock_count,
            last_use=stamp, created=lower.created, uses=lower.uses, priority=lower.priority, reach=lower.reach,
        )  # fmt: skip
        page = self.page_size
        lower.parent.children[lower.namespace, tuple(upper.tokens[:page])] = upper
        lower.tokens, lower.values, lower.parent = lower.tokens[size:], lower.values[size:], upper
        upper.children[lower.namespace, tuple(lower.tokens[:page])] = lower
        return upper

    def touch(self, tokens, namespace):
        """Refresh what matches, splitting where the match ends; returns the nodes of the match."""
        path, lower, size = self.walk(tokens, namespace)
        stamp = STAMPS * self.tick
        for node in path:
            node.last_use = stamp
        if lower:
            path.append(self.split(lower, size, stamp + 1))
            if self.refresh == "edge":
                lower.last_use = stamp
        return path

    def finish(self):
        for serial in [serial for serial, until in self.pins.items() if until <= self.tick]:
            self.unlock(serial)

    def match(self, tokens, namespace=None):
        self.tick += 1
        path = self.touch(tokens, namespace)
        if self.count_uses == "touches":
            for node in path:
                node.uses += 1
        self.finish()
        return sum(len(node.tokens) for node in path)

    def insert(self, tokens, namespace=None, values=None, priority=0):
        page = self.page_size
        tokens = list(tokens)[: len(tokens) // page * page]
        values = list(values)[: len(tokens)] if values is not None else []
        there = self.peek(tokens, namespace)
        path, lower, size = self.walk(tokens, namespace)
        held = sum(len(node.tokens) for node in path if node.lock_count)
        held += size if lower and lower.lock_count else 0
        if len(tokens) - held + self.protected > self.capacity:
            raise ValueError("locks leave too little room")
        self.tick += 1
        path = self.touch(tokens, namespace)
        for node in path:
            node.uses += 1
            node.priority = max(node.priority, priority)
            node.reach = max(node.reach, len(tokens))
        if there < len(tokens):
            for node in path:
                node.lock_count += 1
            self.evict(max(0, self.cached + len(tokens) - there - self.capacity))
            for node in path:
                node.lock_count -= 1
            stamp = STAMPS * self.tick + 2
            parent = path[-1] if path else self.root
            parent.children[namespace, tuple(tokens[there : there + page])] = Node(
                parent, namespace, tokens[there:], values[there:], last_use=stamp, created=stamp, uses=1,
                priority=priority, reach=len(tokens),
            )  # fmt: skip
        self.finish()
        return there

    def lock(self, tokens, namespace=None, ttl=None):
        self.tick += 1
        path = self.touch(tokens, namespace)
        if self.count_uses == "touches":
            for node in path:
                node.uses += 1
        for node in path:
            node.lock_count += 1
        self.serial += 1
        self.locks[self.serial] = path[-1] if path else self.root
        if ttl is not None:
            self.pins[self.serial] = self.tick + ttl
        self.finish()
        return self.serial

    def unlock(self, serial):
        if serial not in self.locks:
            raise ValueError("not held")
        node = self.locks.pop(serial)
        self.pins.pop(serial, None)
        while node is not self.root:
            node.lock_count -= 1
            node = node.parent

    def advance(self, ticks):
        self.tick += ticks
        self.finish()

    def reset(self):
        self.root = Node(None, None)
        self.locks, self.pins = {}, {}

    def evict(self, num_tokens):
        """Free leaves, smallest key first; returns what went, as (path up to its end, tokens that went)."""
        freed = []
        while sum(size for _, size in freed) < num_tokens:
            leaves = [node for node in self.nodes() if not node.children and not node.lock_count]
            if not leaves:
                break
            leaf = min(leaves, key=lambda node: (self.policy(node, self._keep(node)), node.last_use))
            path = (leaf.namespace or "", leaf.path)
            size = leaf.depth - self._keep(leaf)
            first_page = tuple(leaf.tokens[: self.page_size])
            leaf.values = leaf.values[: len(leaf.tokens) - size]
            leaf.tokens = leaf.tokens[: len(leaf.tokens) - size]
            if not leaf.tokens:
                del leaf.parent.children[leaf.namespace, first_page]
            freed.append((path, size))
        return freed

    def _keep(self, leaf):
        """Tokens of a leaf's path that stay when the next unit of it goes."""
        return leaf.depth - (self.page_size if self.granularity == "page" else len(leaf.tokens))


def tail_first_lru_hits(requests, capacity):
    """Prefix hits of each request in an LRU of single blocks: look up, touch all tail first, cut to size."""
    recency, hits = {}, []  # oldest first; a key is the whole prefix
    for blocks in requests:
        prefixes = [tuple(blocks[: i + 1]) for i in range(len(blocks))]
        hits.append(next((i for i, prefix in enumerate(prefixes) if prefix not in recency), len(prefixes)))
        for prefix in reversed(prefixes):
            recency.pop(prefix, None)
            recency[prefix] = None
        while len(recency) > capacity:
            del recency[next(iter(recency))]
    return hits
