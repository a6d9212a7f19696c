"""Tiers of plain keys, one key at a time: a dict a tier, victims by `min`, moves counted one by one."""

_RANKS = {
    "lru": lambda entry: (entry["used"],),
    "fifo": lambda entry: (entry["came"],),
    "lfu": lambda entry: (entry["uses"], entry["used"]),
}


class Tiers:
    """What `kvarray.TieredCache` does, step by step; tiers are dicts from key to its entry."""

    def __init__(self, capacities, *, policy="lru", write_mode="exclusive", write_at=2, promote_at=1, min_tokens=None):
        self.capacities, self.rank = capacities, _RANKS[policy]
        self.mode, self.write_at, self.promote_at = write_mode, write_at, promote_at
        self.min_tokens = min_tokens or [0] * len(capacities)
        self.tiers = [{} for _ in capacities]
        self.clock = 0
        self.accesses = 0
        self.hits, self.created, self.up, self.down, self.dropped = ([0] * len(capacities) for _ in range(5))

    def tier_of(self, key):
        return next((place for place, tier in enumerate(self.tiers) if key in tier), len(self.tiers))

    def step(self, path, refused=(), tokens=None):
        """Take one step and return the tier that served each key of the path."""
        outside = len(self.tiers)
        self.tokens = tokens or {}
        found = [self.tier_of(key) for key in path]
        self.accesses += len(path)
        served = []
        for tier in found:
            served.append(outside if outside in served else tier)
        for tier in served:
            if tier < outside:
                self.hits[tier] += 1
        for tier in self.tiers:
            for key in path:
                if key in tier:
                    tier[key]["uses"] += 1
        self.path, self.start = set(path), dict(zip(path, found, strict=True))
        if self.mode == "exclusive":
            self._exclusive(path, refused)
        else:
            self._copies(path, refused)
        return served

    def _new(self, key, uses):
        return {"key": key, "uses": uses, "came": 0, "used": 0, "tokens": self.tokens.get(key, 0)}

    def _promotes(self, entry):
        return self.promote_at is not None and entry["uses"] - 1 >= self.promote_at

    def _put(self, place, sinking, path):
        """Make room, then let in what sinks, then use the path, tail first; return what leaves, in order."""
        tier, capacity = self.tiers[place], self.capacities[place]
        coming = len(sinking) + sum(entry["key"] not in tier for entry in path)
        leaving = []

        def evict(spared):
            some = [entry for entry in tier.values() if entry["key"] not in spared]
            if some:
                leaving.append(tier.pop(min(some, key=self.rank)["key"]))
            return bool(some)

        while len(tier) + coming > capacity and evict(self.path):
            pass
        for entry in sinking + path:
            self.clock += 1
            if entry["key"] not in tier:
                tier[entry["key"]] = entry
                entry["came"] = self.clock
            tier[entry["key"]]["used"] = self.clock
        while len(tier) > capacity:
            evict(())
        return leaving

    def _exclusive(self, path, refused):
        outside = len(self.tiers)
        before = {key: place for place, tier in enumerate(self.tiers) for key in tier}
        used = [[] for _ in self.tiers]
        for key in reversed(path):
            place = self.start[key]
            if place == outside:
                entry = self._new(key, 1)
                if key not in refused and entry["tokens"] >= self.min_tokens[0]:
                    used[0].append(entry)
            elif place > 0 and self._promotes(self.tiers[place][key]):
                used[0].append(self.tiers[place].pop(key))
            else:
                used[place].append(self.tiers[place][key])
        sinking, tokens = [], {entry["key"]: entry["tokens"] for tier in self.tiers for entry in tier.values()}
        tokens |= {entry["key"]: entry["tokens"] for entry in used[0]}
        for place in range(outside):
            leaving = self._put(place, sinking, used[place])
            sinking = [e for e in leaving if place + 1 < outside and e["tokens"] >= self.min_tokens[place + 1]]
        for key in {**before, **dict.fromkeys(path)}:  # a move is from where a key was to where it is
            was, now = before.get(key, outside), self.tier_of(key)
            if was == outside and now < outside:
                self.created[now] += 1
            elif now < was < outside:
                for boundary in range(now, was):
                    self.up[boundary] += 1
            elif was < now:
                for boundary in range(was, now):
                    if boundary + 1 == outside or tokens[key] < self.min_tokens[boundary + 1]:
                        self.dropped[boundary] += 1
                        break
                    self.down[boundary] += 1

    def _copies(self, path, refused):
        outside = len(self.tiers)
        wanted = [{} for _ in self.tiers]  # key -> where its copy comes from
        uses = {}
        for key in path:
            served = self.start[key]
            uses[key] = 1 if served == outside else self.tiers[served][key]["uses"]
            for place, tier in enumerate(self.tiers):
                if key in tier:
                    continue
                if place < served < outside:
                    if self._promotes(self.tiers[served][key]):
                        wanted[place][key] = "up"
                elif served == outside and key in refused:
                    continue
                elif place == 0:
                    wanted[0][key] = "created"
                elif self.mode == "write_through" or (self.mode == "selective" and uses[key] >= self.write_at):
                    wanted[place][key] = "down"
        known = {key: entry["tokens"] for tier in self.tiers for key, entry in tier.items()}
        sinking = []
        for place, tier in enumerate(self.tiers):
            for key, kind in list(wanted[place].items()):
                if kind != "up" and known.get(key, self.tokens.get(key, 0)) < self.min_tokens[place]:
                    del wanted[place][key]
            used = []
            for key in reversed(path):
                if key in tier:
                    used.append(tier[key])
                elif key in wanted[place]:
                    used.append({**self._new(key, uses[key]), "tokens": known.get(key, self.tokens.get(key, 0))})
            for kind in wanted[place].values():
                self._count(kind, place, 1)
            self.down[place - 1] += len(sinking)
            leaving = self._put(place, sinking, used)
            sinking = []
            for entry in leaving:
                key = entry["key"]
                if key in wanted[place]:
                    self._count(wanted[place][key], place, -1)  # it does not stay
                else:
                    self.dropped[place] += 1
                below = place + 1
                if self.mode != "write_back" or below == outside or key in self.tiers[below]:
                    continue
                if key not in wanted[below] and entry["tokens"] >= self.min_tokens[below]:
                    sinking.append({**entry})

    def _count(self, kind, place, count):
        if kind == "down":
            self.down[place - 1] += count
        else:
            getattr(self, kind)[place] += count
