"""Eviction policies as their papers have them: one key at a time, lists from oldest to youngest."""


class Lru:
    """Least recently used first."""

    def __init__(self, capacity):
        self.capacity, self.keys = capacity, []

    def access(self, key):
        hit = key in self.keys
        if hit:
            self.keys.remove(key)
        elif len(self.keys) == self.capacity:
            self.keys.pop(0)
        self.keys.append(key)
        return hit


class Fifo:
    """First in, first out."""

    def __init__(self, capacity):
        self.capacity, self.keys = capacity, []

    def access(self, key):
        if key in self.keys:
            return True
        if len(self.keys) == self.capacity:
            self.keys.pop(0)
        self.keys.append(key)
        return False


class Ranked:
    """Smallest rank first, then least recently used; ranks are set at each use."""

    def __init__(self, capacity, weight=lambda key: 1.0):
        self.capacity, self.weight = capacity, weight
        self.keys = {}  # key -> [rank, tick of the last use, uses]
        self.tick, self.age = 0, 0.0

    def access(self, key):
        self.tick += 1
        hit = key in self.keys
        if not hit:
            if len(self.keys) == self.capacity:
                victim = min(self.keys, key=lambda k: self.keys[k][:2])
                self.age = self.keys.pop(victim)[0]
            self.keys[key] = [0.0, 0, 0]
        entry = self.keys[key]
        entry[2] += 1
        entry[:2] = [self.rank(key, entry[2]), self.tick]
        return hit


class Lfu(Ranked):
    """Least often used first."""

    def rank(self, key, uses):
        return uses


class LfuAged(Ranked):
    """LFU with dynamic ageing, K = F + L: Arlitt et al., "Evaluating content management techniques", 2000."""

    def rank(self, key, uses):
        return self.age + uses


class Gdsf(Ranked):
    """Greedy-Dual-Size-Frequency, Pr = Clock + Fr x Cost / Size: Cherkasova, HPL-98-69, 1998."""

    def rank(self, key, uses):
        return self.age + uses * self.weight(key)


class Slru:
    """Segmented LRU, four fifths protected: Karedla, Love, Wherry, 1994."""

    def __init__(self, capacity):
        self.capacity, self.most_protected = capacity, capacity * 4 // 5
        self.probation, self.protected = [], []

    def access(self, key):
        hit = key in self.probation or key in self.protected
        if hit:
            (self.probation if key in self.probation else self.protected).remove(key)
            self.protected.append(key)
            if len(self.protected) > self.most_protected:
                self.probation.append(self.protected.pop(0))
        else:
            if len(self.probation) + len(self.protected) == self.capacity:
                (self.probation or self.protected).pop(0)
            self.probation.append(key)
        return hit


class TwoQ:
    """2Q, full version, Kin = c / 4, Kout = c / 2: Johnson, Shasha, VLDB 1994."""

    def __init__(self, capacity):
        self.capacity, self.k_in, self.k_out = capacity, max(1, capacity // 4), max(1, capacity // 2)
        self.a1in, self.a1out, self.am = [], [], []

    def reclaim(self):
        if len(self.a1in) + len(self.am) < self.capacity:
            return
        if len(self.a1in) > self.k_in or not self.am:
            self.a1out.append(self.a1in.pop(0))
        else:
            self.am.pop(0)

    def access(self, key):
        hit = key in self.am or key in self.a1in
        if key in self.am:
            self.am.remove(key)
            self.am.append(key)
        elif not hit:
            self.reclaim()
            if key in self.a1out:
                self.a1out.remove(key)
                self.am.append(key)
            else:
                self.a1in.append(key)
            del self.a1out[: max(0, len(self.a1out) - self.k_out)]
        return hit


class Arc:
    """ARC: Megiddo, Modha, FAST 2003, figure 4, case by case."""

    def __init__(self, capacity):
        self.c, self.p = capacity, 0.0
        self.t1, self.t2, self.b1, self.b2 = [], [], [], []

    def replace(self, key):
        if self.t1 and ((key in self.b2 and len(self.t1) == self.p) or len(self.t1) > self.p):
            self.b1.append(self.t1.pop(0))
        elif self.t2:
            self.b2.append(self.t2.pop(0))
        else:
            self.b1.append(self.t1.pop(0))

    def access(self, key):
        if key in self.t1 or key in self.t2:  # case I
            (self.t1 if key in self.t1 else self.t2).remove(key)
            self.t2.append(key)
            return True
        full = len(self.t1) + len(self.t2) == self.c
        if key in self.b1:  # case II
            self.p = min(self.p + max(1.0, len(self.b2) / len(self.b1)), float(self.c))
            if full:
                self.replace(key)
            self.b1.remove(key)
            self.t2.append(key)
        elif key in self.b2:  # case III
            self.p = max(self.p - max(1.0, len(self.b1) / len(self.b2)), 0.0)
            if full:
                self.replace(key)
            self.b2.remove(key)
            self.t2.append(key)
        else:  # case IV
            held = len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2)
            if len(self.t1) + len(self.b1) == self.c:
                if len(self.t1) < self.c:
                    self.b1.pop(0)
                    if full:
                        self.replace(key)
                else:
                    self.t1.pop(0)
            elif held >= self.c:
                if held == 2 * self.c:
                    self.b2.pop(0)
                if full:
                    self.replace(key)
            self.t1.append(key)
        return False


class S3Fifo:
    """S3-FIFO: Yang et al., SOSP 2023, algorithm 1; the main queue is cut at the next eviction, as in their code."""

    def __init__(self, capacity):
        self.capacity, self.most_main = capacity, capacity - max(1, capacity // 10)
        self.small, self.main, self.ghosts, self.freq = [], [], [], {}

    def evict(self):
        if len(self.main) > self.most_main or not self.small:
            return self.evict_main()
        while self.small:
            key = self.small.pop(0)
            if self.freq[key] > 1:
                self.freq[key] = 0
                self.main.append(key)
            else:
                self.ghosts.append(key)
                return None
        return self.evict_main()

    def evict_main(self):
        while self.freq[self.main[0]]:
            key = self.main.pop(0)
            self.freq[key] -= 1
            self.main.append(key)
        self.main.pop(0)

    def access(self, key):
        if key in self.small or key in self.main:
            self.freq[key] = min(self.freq[key] + 1, 3)
            return True
        if len(self.small) + len(self.main) == self.capacity:
            self.evict()
        if key in self.ghosts:
            self.ghosts.remove(key)
            self.main.append(key)
        else:
            self.small.append(key)
        self.freq[key] = 0
        del self.ghosts[: max(0, len(self.ghosts) - self.most_main)]
        return False


class Sieve:
    """SIEVE: Zhang et al., NSDI 2024, algorithm 1; `hand` is a place in the list, None before the first eviction."""

    def __init__(self, capacity):
        self.capacity, self.keys, self.visited, self.hand = capacity, [], {}, None

    def access(self, key):
        if key in self.keys:
            self.visited[key] = True
            return True
        if len(self.keys) == self.capacity:
            place = 0 if self.hand is None else self.hand
            while self.visited[self.keys[place]]:
                self.visited[self.keys[place]] = False
                place = (place + 1) % len(self.keys)
            self.keys.pop(place)
            self.hand = place if place < len(self.keys) else None
        self.keys.append(key)
        self.visited[key] = False
        return False


class WTinyLfu:
    """W-TinyLFU: Einziger, Friedman, Manes, 2017: window of 1 %, SLRU of 80 % protected, counters up to 15, exact,
    halved after a sample of ten times the capacity.
    """

    def __init__(self, capacity):
        self.capacity, self.most_window = capacity, max(1, capacity // 100)
        self.most_protected = (capacity - self.most_window) * 4 // 5
        self.window, self.probation, self.protected = [], [], []
        self.count, self.uses = {}, 0

    def record(self, key):
        self.count[key] = min(self.count.get(key, 0) + 1, 15)
        self.uses += 1

    def age(self):
        if self.uses >= 10 * self.capacity:
            self.uses //= 2
            self.count = {key: count // 2 for key, count in self.count.items()}

    def access(self, key):
        self.record(key)
        hit = True
        if key in self.window:
            self.window.remove(key)
            self.window.append(key)
        elif key in self.probation or key in self.protected:
            (self.probation if key in self.probation else self.protected).remove(key)
            self.protected.append(key)
            if len(self.protected) > self.most_protected:
                self.probation.append(self.protected.pop(0))
        else:
            hit = False
            self.window.append(key)
            if len(self.window) > self.most_window:
                self.admit(self.window.pop(0))
        self.age()
        return hit

    def admit(self, candidate):
        if len(self.window) + len(self.probation) + len(self.protected) < self.capacity:
            self.probation.append(candidate)
            return
        rest = self.probation or self.protected
        if rest and self.count.get(candidate, 0) > self.count.get(rest[0], 0):
            rest.pop(0)
            self.probation.append(candidate)


class Random:
    """Any key with the same chance; the last of the list takes the place of the one that goes."""

    def __init__(self, capacity, rng):
        self.capacity, self.rng, self.keys = capacity, rng, []

    def access(self, key):
        if key in self.keys:
            return True
        if len(self.keys) == self.capacity:
            [place] = self.rng.choice(self.capacity, 1, replace=False)
            last = self.keys.pop()
            if place < len(self.keys):
                self.keys[place] = last
        self.keys.append(key)
        return False


PAPERS = {
    "arc": Arc,
    "fifo": Fifo,
    "gdsf": Gdsf,
    "lfu": Lfu,
    "lfu_aged": LfuAged,
    "lru": Lru,
    "random": Random,
    "s3_fifo": S3Fifo,
    "sieve": Sieve,
    "slru": Slru,
    "two_q": TwoQ,
    "w_tinylfu": WTinyLfu,
}
