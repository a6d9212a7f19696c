"""The rules of the radix prefix cache, one operation at a time, on arguments that are valid.

`RadixTree` checks what callers give and says what each operation means; here is how it is done.
"""

from heapq import heappop

from kvarray.arrays import NO_NODE, Ids
from kvarray.errors import CapacityError
from kvarray.policies import Policy
from kvarray.prefix.candidates import Candidates
from kvarray.prefix.nodes import ROOT, Nodes
from kvarray.prefix.recorder import Recorder
from kvarray.prefix.results import Lock
from kvarray.prefix.walk import Walk, walk

__all__ = ["COUNTS", "STAMPS", "Engine"]

STAMPS = 4
"""Stamps of one tick: an operation stamps its path, then what it split off on top, then what it added."""
COUNTS = (
    "matches",
    "matched_tokens",
    "asked_tokens",
    "inserts",
    "found_tokens",
    "inserted_tokens",
    "splits",
    "evicted_nodes",
    "evicted_tokens",
)
"""What is counted; `TreeStats` says what it means."""


class Engine:
    """The state of a tree and its kernels. The parameters are those of `RadixTree`."""

    def __init__(
        self,
        capacity: int,
        page_size: int,
        policy: Policy,
        *,
        granularity: str,
        refresh: str,
        count_uses: str,
        values_per: str,
        record_events: bool,
    ) -> None:
        self.granularity = granularity
        self.refresh = refresh
        self.count_uses = count_uses
        self.values_per = values_per
        value_size = {"none": 0, "token": 1, "page": page_size}[values_per]
        self.nodes = Nodes(capacity - capacity % page_size, page_size, value_size)
        self.candidates = Candidates(self.nodes, policy, whole_leaves=granularity == "leaf")
        self.recorder = Recorder() if record_events else None
        self.tick = 0
        self.serial = 0  # of the latest lock
        self.identity = object()  # goes with each lock, so that those of other trees are known
        self._empty()

    def _empty(self) -> None:
        """Set what an empty tree begins with; tick and serial go on."""
        self.cached = 0
        self.protected = 0
        self.locks: dict[int, int] = {}  # serial -> node at the end of the path
        self.adopted: frozenset[int] = frozenset()  # locks that came with a snapshot, of whichever tree
        self.pins: list[tuple[int, int]] = []  # heap of (last tick, serial); some may have been unlocked
        self.counts = dict.fromkeys(COUNTS, 0)

    def reset(self) -> None:
        """Drop everything."""
        self.nodes.clear()
        self.candidates.rebuild()
        self._empty()
        if self.recorder:
            self.recorder.cleared(self.tick)

    def enlarge(self, capacity: int) -> None:
        """Make room for more tokens."""
        self.nodes.enlarge(capacity - capacity % self.nodes.page_size)
        self.candidates.rebuild()

    def values_of(self, found: Walk) -> Ids | None:
        """Return the stored values of a match, None where none are kept."""
        if not self.nodes.value_size:
            return None
        pieces = [(node, self.nodes.edge_length[node]) for node in found.path]
        if found.lower != NO_NODE:
            pieces.append((found.lower, found.inside))
        return self.nodes.values_of(pieces)

    def use(self, found: Walk, num_tokens: int) -> list[int]:
        """Count a lookup of `num_tokens` tokens, refresh what it matched, and return the nodes of the match."""
        self.tick += 1
        counts = self.counts
        counts["matches"] += 1
        counts["asked_tokens"] += num_tokens
        counts["matched_tokens"] += found.num_tokens
        path = self.touch(found, STAMPS * self.tick)
        if self.count_uses == "touches":
            for node in path:
                self.nodes.uses[node] += 1
        return path

    def touch(self, found: Walk, stamp: int) -> list[int]:
        """Refresh what a walk matched, splitting the edge that it ends in, and return the nodes of the match.

        A stamp never takes the place of a later one, which lets a batch touch out of order.
        """
        last_use, path = self.nodes.last_use, found.path
        for node in path:
            if last_use[node] < stamp:
                last_use[node] = stamp
        lower = found.lower
        if lower != NO_NODE:
            upper = self.nodes.split(lower, found.inside, stamp + 1)
            self.counts["splits"] += 1
            if self.recorder:
                self.recorder.split(stamp // STAMPS, self.nodes, upper, lower)
            if self.refresh == "edge" and last_use[lower] < stamp:
                last_use[lower] = stamp
            self.candidates.note(lower)
            path.append(upper)
        elif path:
            self.candidates.note(path[-1])
        return path

    def insert(self, tokens: Ids, values: Ids, namespace: str | None, priority: int) -> int:
        """Insert one prompt and return how much of it was there."""
        found = walk(self.nodes, tokens, self.nodes.namespaces.id_of(namespace))
        self.insert_below(found, tokens, values, namespace, priority)
        return found.num_tokens

    def insert_below(self, found: Walk, tokens: Ids, values: Ids, namespace: str | None, priority: int) -> None:
        """Insert one prompt that has been walked."""
        nodes = self.nodes
        size = len(tokens) - len(tokens) % nodes.page_size
        there = found.num_tokens
        if there < size and size + self.protected > nodes.capacity:
            self._check_room(size, found)

        self.tick += 1
        stamp = STAMPS * self.tick
        path = self.touch(found, stamp)
        for node in path:
            nodes.uses[node] += 1
            if nodes.priority[node] < priority:
                nodes.priority[node] = priority
            if nodes.reach[node] < size:
                nodes.reach[node] = size
        if there < size:
            parent = path[-1] if path else ROOT
            excess = self.cached + size - there - nodes.capacity
            if excess > 0:
                self._evict_beside(parent, excess)
            elif parent:
                self.candidates.withdraw(parent)
            number = nodes.namespaces.open(namespace) if parent == ROOT else nodes.namespace[parent]
            start = there // nodes.value_size if nodes.value_size else 0
            stop = size // nodes.value_size if nodes.value_size else 0
            leaf = nodes.add_leaf(parent, number, tokens[there:size], values[start:stop], stamp + 2, priority)
            self.cached += size - there
            self.candidates.note(leaf)
            if self.recorder:
                self.recorder.stored(self.tick, nodes, leaf)
        counts = self.counts
        counts["inserts"] += 1
        counts["found_tokens"] += there
        counts["inserted_tokens"] += size - there
        self.finish()

    def serve(self, tokens: Ids, values: Ids, namespace: str | None, limit: int) -> tuple[int, int]:
        """Match one prompt, insert it and cut to `limit`; return how much was there and how much was evicted."""
        found = walk(self.nodes, tokens, self.nodes.namespaces.id_of(namespace))
        path = self.use(found, len(tokens))
        self.finish()
        # What matched now ends at a node, so there is no need to walk again.
        self.insert_below(Walk(path, NO_NODE, 0, found.num_tokens), tokens, values, namespace, 0)
        before = self.cached
        if before > limit:
            self.evict(before - limit)
        return found.num_tokens, before - self.cached

    def _check_room(self, size: int, found: Walk) -> None:
        """Raise unless a prompt of `size` tokens fits beside what is locked; its own locked part counts once."""
        capacity, lock_count, edge_length = self.nodes.capacity, self.nodes.lock_count, self.nodes.edge_length
        held = sum(edge_length[node] for node in found.path if lock_count[node])
        if found.lower != NO_NODE and lock_count[found.lower]:
            held += found.inside
        available = capacity - self.protected
        if size - held > available:
            raise CapacityError(
                f"insert {size - held} tokens: locks hold {self.protected} of {capacity}, which leaves {available}",
                requested=size - held,
                available=available,
            )

    def lock(self, found: Walk, num_tokens: int) -> Lock:
        """Use a match and lock its path."""
        nodes = self.nodes
        path = self.use(found, num_tokens)
        for node in path:
            if nodes.lock_count[node] == 0:
                self.protected += nodes.edge_length[node]
            nodes.lock_count[node] += 1
        end = path[-1] if path else ROOT
        self.candidates.withdraw(end)
        self.serial += 1
        self.locks[self.serial] = end
        return Lock(self.serial, found.num_tokens, self.identity)

    def holds(self, lock: Lock) -> bool:
        """Return whether a lock is held, and was given by this tree or came with a snapshot."""
        return lock.serial in self.locks and (lock.tree is self.identity or lock.serial in self.adopted)

    def unlock(self, serial: int) -> None:
        """Drop a lock that is held."""
        nodes = self.nodes
        end = node = self.locks.pop(serial)
        while node != ROOT:
            nodes.lock_count[node] -= 1
            if nodes.lock_count[node] == 0:
                self.protected -= nodes.edge_length[node]
            node = nodes.parent[node]
        if end != ROOT:
            self.candidates.note(end)

    def finish(self) -> None:
        """End an operation that uses the tree: pins whose last tick this was run out."""
        pins = self.pins
        while pins and pins[0][0] <= self.tick:
            serial = heappop(pins)[1]
            if serial in self.locks:
                self.unlock(serial)
        self.candidates.settle()

    def evict(self, num_tokens: int) -> list[tuple[int, int, int, int]]:
        """Evict and return what went: node, depth, offset in the pool, length. The pool still holds it."""
        nodes, candidates = self.nodes, self.candidates
        parent, num_children, lock_count = nodes.parent, nodes.num_children, nodes.lock_count
        depth, edge_offset, edge_length = nodes.depth, nodes.edge_offset, nodes.edge_length
        page, best, withdraw = nodes.page_size, candidates.best, candidates.withdraw
        is_whole, page_by_page = candidates.whole_leaves, candidates.trim_changes_key
        gone: list[tuple[int, int, int, int]] = []
        removed: list[int] = []
        freed = 0
        while freed < num_tokens:
            node = best()
            if node < 0:
                break
            length = size = edge_length[node]
            if not is_whole:
                wanted = 1 if page_by_page else num_tokens - freed
                size = min(wanted + -wanted % page, length)
            gone.append((node, depth[node], edge_offset[node] + length - size, size))
            freed += size
            if size < length:
                nodes.trim(node, size)
                if page_by_page:
                    candidates.file(node)
                continue
            removed.append(node)
            withdraw(node)
            above = parent[node]
            num_children[above] -= 1
            if above and num_children[above] == 0 and lock_count[above] == 0:
                candidates.file(above)
        if self.recorder:
            for node, end, _, size in gone:
                self.recorder.removed(self.tick, nodes, node, end - size, size)
        nodes.remove(removed)
        self.cached -= freed
        self.counts["evicted_nodes"] += len(removed)
        self.counts["evicted_tokens"] += freed
        return gone

    def _evict_beside(self, node: int, num_tokens: int) -> None:
        """Evict for an insertion below `node`, which stays."""
        self.candidates.withdraw(node)
        lock_count = self.nodes.lock_count
        lock_count[node] += 1
        self.evict(num_tokens)
        lock_count[node] -= 1
