"""Mechanisms put together, with lists and dictionaries; a block is named by its path, the tokens up to its end."""


class WorldOverTiers:
    """A GPU over exclusive LRU tiers: one request at a time, a block of one token."""

    def __init__(self, gpu, below):
        self.size = gpu
        self.gpu = []  # cached paths, the next to be evicted first
        self.sizes = below
        self.below = [[] for _ in below]  # oldest first
        self.evictions = 0

    def tier_of(self, path):
        return next((k for k, tier in enumerate(self.below) if path in tier), len(self.below))

    def use(self, path):
        """Bring a path to the top of the tiers."""
        for tier in self.below:
            if path in tier:
                tier.remove(path)
        self.below[0].append(path)

    def cut(self):
        """Let each tier sink what is too much for it."""
        for k, size in enumerate(self.sizes):
            while len(self.below[k]) > size:
                sunk = self.below[k].pop(0)
                if k + 1 < len(self.sizes):
                    self.below[k + 1].append(sunk)

    def serve(self, paths):
        """Return how many leading blocks the GPU has, and from which tier each of the next ones is read."""
        hits = next((i for i, path in enumerate(paths) if path not in self.gpu), len(paths))
        tiers = [self.tier_of(path) for path in paths[hits:]]
        loaded = tiers[: next((i for i, tier in enumerate(tiers) if tier == len(self.below)), len(tiers))]
        # One atomic step below: all that is there is used, the tail first, then the tiers are cut.
        for path, tier in reversed(list(zip(paths[hits:], tiers, strict=True))):
            if tier < len(self.below):
                self.use(path)
        self.cut()

        self.gpu = [path for path in self.gpu if path not in paths[:hits]]
        assert not set(self.gpu) & set(paths)  # tails go before heads, so nothing is cached behind a gap
        free = self.size - len(self.gpu) - hits
        for _ in range(len(paths) - hits - free):
            victim = self.gpu.pop(0)
            self.evictions += 1
            self.use(victim)
            self.cut()
        self.gpu = [*self.gpu, *reversed(paths)]  # released deepest first
        return hits, loaded


class TreeOfBlocks:
    """Which paths a tree over a pool holds, and how often each is locked; blocks go least recently used first."""

    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.locks = {}  # path -> locks
        self.used = {}  # path -> latest use
        self.clock = 0

    def paths(self, tokens):
        """The full blocks of a prompt."""
        ends = range(self.block_size, len(tokens) + 1, self.block_size)
        return [tuple(tokens[:end]) for end in ends]

    def use(self, paths):
        self.clock += 1
        for path in paths:
            self.used[path] = self.clock

    def admit(self, tokens):
        """Return the paths that were there and how many blocks there are now; None if there is no room."""
        paths = self.paths(tokens)
        known = [path for path in paths if path in self.locks]
        self.use(known)
        missing = len(paths) - len(known)
        short = missing - (self.num_blocks - len(self.locks))
        evictable = [path for path in self.locks if not self.locks[path] and path not in known]
        if short > len(evictable):
            return None
        for _ in range(max(short, 0)):
            leaves = [
                path
                for path in self.locks
                if not self.locks[path]
                and path not in known
                and not any(other != path and other[: len(path)] == path for other in self.locks)
            ]
            victim = min(leaves, key=lambda path: self.used[path])
            del self.locks[victim], self.used[victim]
        for path in paths:
            self.locks[path] = self.locks.get(path, 0) + 1
        self.use(paths)
        return known, len(paths)

    def unlock(self, paths):
        for path in paths:
            self.locks[path] -= 1
