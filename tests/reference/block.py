"""Block pool and block table with lists and dicts, one block and one sequence at a time."""

import copy

KEYS = {
    "lru": lambda block: block.last_use,
    "lfu": lambda block: (block.uses, block.last_use),
    "fifo": lambda block: block.created,
}


class RefusedError(Exception):
    """A call that cannot be done; the caller restores what was there before."""


class Block:
    def __init__(self):
        self.holders = 0
        self.hash = 0
        self.parent = 0
        self.last_use = self.created = self.uses = 0


class PoolReference:
    """`key`: name of a key function, or None where the free queue is the order."""

    def __init__(self, num_blocks, *, key=None, unhashed_first=True, removed_at_last=True):
        self.blocks = [Block() for _ in range(num_blocks)]
        self.queue = list(range(num_blocks))
        self.with_hash = {}  # hash -> blocks, oldest first
        self.key, self.unhashed_first, self.removed_at_last = key, unhashed_first, removed_at_last
        self.events = []
        self.evictions = 0
        self.clock = 0

    def tick(self):
        self.clock += 1
        return self.clock

    def cached(self):
        return [i for i, block in enumerate(self.blocks) if block.holders == 0 and block.hash]

    def num_available(self):
        return sum(block.holders == 0 for block in self.blocks)

    def allocate(self, count):
        if count > self.num_available():
            raise RefusedError
        taken = []
        for _ in range(count):
            if self.queue:
                i = self.queue.pop(0)
            else:
                i = min(self.cached(), key=lambda i: (KEYS[self.key](self.blocks[i]), i))
            if self.blocks[i].hash:
                self.forget(i)
            block = self.blocks[i]
            block.holders, block.uses = 1, 1
            block.created = block.last_use = self.tick()
            taken.append(i)
        return taken

    def forget(self, i):
        block = self.blocks[i]
        same = self.with_hash[block.hash]
        same.remove(i)
        if not same:
            del self.with_hash[block.hash]
        if not same or not self.removed_at_last:
            self.events.append(("removed", block.hash))
        block.hash = block.parent = 0
        self.evictions += 1

    def release(self, ids):
        """One call: what it sends to the front of the queue stands there in the order given."""
        front = []
        for i in ids:
            block = self.blocks[i]
            if block.holders == 0:
                raise RefusedError
            block.holders -= 1
            if block.holders:
                continue
            block.last_use = self.tick()
            if block.hash:
                if self.key is None:
                    self.queue.append(i)
            elif self.unhashed_first:
                front.append(i)
            else:
                self.queue.append(i)
        self.queue[:0] = front

    def hold(self, ids):
        for i in ids:
            block = self.blocks[i]
            if block.holders == 0:
                if not block.hash:
                    raise RefusedError
                if self.key is None:
                    self.queue.remove(i)
            block.holders += 1
            block.uses += 1
            block.last_use = self.tick()

    def touch(self, ids):
        for i in ids:
            block = self.blocks[i]
            if block.holders == 0:
                if not block.hash:
                    raise RefusedError
                if self.key is None:
                    self.queue.remove(i)
                    self.queue.append(i)
            block.uses += 1
            block.last_use = self.tick()

    def lookup(self, h):
        return self.with_hash.get(h, [-1])[0]

    def register(self, ids, hashes, parents):
        for i, h, parent in zip(ids, hashes, parents, strict=True):
            block = self.blocks[i]
            if block.holders == 0 or block.hash:
                raise RefusedError
            block.hash, block.parent = h, parent
            self.with_hash.setdefault(h, []).append(i)
            self.events.append(("stored", h, parent))

    def evict(self, ids):
        dropped = []
        for i in ids:
            if self.blocks[i].hash:
                self.forget(i)
                dropped.append(i)
        if self.key:
            free = [i for i in dropped if self.blocks[i].holders == 0]
            self.queue = free + self.queue if self.unhashed_first else self.queue + free
        return dropped

    def reset(self):
        if any(block.holders for block in self.blocks):
            raise RefusedError
        if self.key:
            self.queue += self.cached()
        for block in self.blocks:
            block.hash = block.parent = 0
        self.with_hash = {}
        self.events.append(("cleared",))

    def duplicates(self):
        return sum(len(same) - 1 for same in self.with_hash.values())

    def orphans(self):
        return sum(bool(b.hash and b.parent and b.parent not in self.with_hash) for b in self.blocks)


class Sequence:
    def __init__(self, blocks, num_tokens, num_hashed, last_hash):
        self.blocks, self.num_tokens, self.num_hashed, self.last_hash = blocks, num_tokens, num_hashed, last_hash


class TableReference:
    """Sequences by number, in the order in which they came. Every call is undone if one of its sequences is refused."""

    def __init__(self, pool, *, block_size, max_sequences, max_blocks, watermark=0, recompute_last=True):
        self.pool, self.block_size, self.watermark = pool, block_size, watermark
        self.max_sequences, self.max_blocks, self.recompute_last = max_sequences, max_blocks, recompute_last
        self.sequences = {}
        self.next = 0
        self.queries = self.hits = self.copies = 0

    def all_or_nothing(self, calls):
        before = copy.deepcopy((vars(self), vars(self.pool)))
        try:
            return [call() for call in calls]
        except RefusedError:
            pool = self.pool
            vars(self).update(before[0])
            vars(pool).update(before[1])
            self.pool = pool
            raise

    def add(self, sequence):
        if len(self.sequences) == self.max_sequences:
            raise RefusedError
        self.sequences[self.next] = sequence
        self.next += 1
        return self.next - 1

    def blocks_for(self, num_tokens, *, watermark=0):
        blocks = -(-num_tokens // self.block_size)
        if blocks > self.max_blocks or blocks > len(self.pool.blocks) - watermark:
            raise RefusedError
        return blocks

    def admit(self, num_tokens, hashes):
        total = self.blocks_for(num_tokens, watermark=self.watermark)
        most = (num_tokens - (1 if self.recompute_last else 0)) // self.block_size
        hit_ids = []
        for h in hashes[:most]:
            if self.pool.lookup(h) < 0:
                break
            hit_ids.append(self.pool.lookup(h))
        from_queue = total - len(hit_ids) + sum(self.pool.blocks[i].holders == 0 for i in hit_ids)
        if from_queue > self.pool.num_available() - self.watermark:
            raise RefusedError
        self.pool.hold(hit_ids)
        blocks = hit_ids + self.pool.allocate(total - len(hit_ids))
        sequence = Sequence(blocks, num_tokens, len(hit_ids), hashes[len(hit_ids) - 1] if hit_ids else 0)
        number = self.add(sequence)
        self.name(sequence, hashes[len(hit_ids) :])
        self.queries += len(hashes)
        self.hits += len(hit_ids)
        return number, len(hit_ids)

    def name(self, sequence, hashes):
        for h in hashes:
            i = sequence.blocks[sequence.num_hashed]
            if self.pool.blocks[i].hash not in (0, h):
                raise RefusedError
            if not self.pool.blocks[i].hash:
                self.pool.register([i], [h], [sequence.last_hash])
            sequence.num_hashed += 1
            sequence.last_hash = h

    def append(self, number, num_tokens, hashes):
        sequence = self.sequences[number]
        old, new = len(sequence.blocks), self.blocks_for(sequence.num_tokens + num_tokens)
        writes_tail = num_tokens > 0 and sequence.num_tokens % self.block_size > 0
        copies_tail = writes_tail and self.pool.blocks[sequence.blocks[-1]].holders > 1
        taken = self.pool.allocate(new - old + copies_tail)
        copies = []
        if writes_tail:
            copies = self.write_block(sequence, old - 1, taken)
        sequence.blocks += taken
        sequence.num_tokens += num_tokens
        self.name(sequence, hashes)
        return copies

    def write_block(self, sequence, place, taken):
        """Copy to the first of `taken` if the block is shared, else drop its hash."""
        i = sequence.blocks[place]
        copies = []
        if self.pool.blocks[i].holders > 1:
            target = taken.pop(0)
            sequence.blocks[place] = target
            self.pool.blocks[i].holders -= 1
            self.copies += 1
            copies = [(i, target)]
        elif self.pool.blocks[i].hash:
            self.pool.forget(i)
        self.unhash(sequence, place)
        return copies

    def unhash(self, sequence, num_blocks):
        if num_blocks < sequence.num_hashed:
            sequence.num_hashed = num_blocks
            sequence.last_hash = self.pool.blocks[sequence.blocks[num_blocks - 1]].hash if num_blocks else 0

    def fork(self, number):
        self.pool.hold(self.sequences[number].blocks)
        return self.add(copy.deepcopy(self.sequences[number]))

    def write(self, number, position):
        sequence = self.sequences[number]
        place = position // self.block_size
        is_shared = self.pool.blocks[sequence.blocks[place]].holders > 1
        return self.write_block(sequence, place, self.pool.allocate(1) if is_shared else [])

    def truncate(self, number, num_tokens):
        sequence = self.sequences[number]
        keep = -(-num_tokens // self.block_size)
        self.pool.release(sequence.blocks[keep:][::-1])
        del sequence.blocks[keep:]
        sequence.num_tokens = num_tokens
        self.unhash(sequence, num_tokens // self.block_size)

    def free(self, number):
        self.pool.release(self.sequences.pop(number).blocks[::-1])
