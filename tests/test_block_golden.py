"""Every recorded run of vLLM's block manager, replayed; the whole state is compared after each operation.

vLLM's block 0 is its null block, so its block b is block b - 1 here.
"""

import json

import numpy as np
import pytest

from kvarray import BlockAllocator, BlockTable, CapacityError
from kvarray.block import CLEARED, REMOVED, STORED
from kvarray.errors import BlockStateError
from tests.data import data_files


class Replay:
    """vLLM's operations on a pool and a table, and the state in vLLM's words."""

    def __init__(self, config, *, num_requests):
        num_blocks = config["num_gpu_blocks"] - 1
        self.pool = BlockAllocator(num_blocks, events=True, removed_at="every_copy")
        self.table = BlockTable(
            self.pool, block_size=config["block_size"], max_sequences=num_requests, max_blocks=num_blocks
        )
        self.handle_of = {}

    def state(self):
        hashes = self.pool.block_hash.tolist()
        cached = {}
        for h in sorted({h for h in hashes if h}):
            blocks = [self.pool.lookup([h])]
            while (after := self.pool.pool.index.find_after(blocks[-1])) >= 0:
                blocks.append(after)
            cached[str(h)] = [int(b[0]) + 1 for b in blocks]
        return {
            "free_queue": (self.pool.queue() + 1).tolist(),
            "ref": [0, *self.pool.ref_count.tolist()],
            "block_hash": [None, *(h or None for h in hashes)],
            "cached": cached,
            "usage": self.pool.usage,
            "events": self.events(),
        }

    def events(self):
        drained = self.pool.drain_events()
        said = []
        for run in np.unique(drained.run):
            of_run = drained.run == run
            kind, hashes = drained.kind[of_run][0], drained.block_hash[of_run].tolist()
            if kind == STORED:
                said.append(["stored", hashes, int(drained.parent_hash[of_run][0]) or None])
            elif kind == REMOVED:
                said.append(["removed", hashes])
            else:
                assert kind == CLEARED
                said.append(["cleared"])
        return said

    def blocks(self, request):
        return (self.table.tables(self.handle_of[request])[0] + 1).tolist()

    def admit(self, op):
        hits = self.pool.lookup(op["hashes"][: (op["num_tokens"] - 1) // self.table.block_size])
        num_hits = int(np.argmax(np.append(hits, -1) < 0))
        assert num_hits * self.table.block_size == op["hit_tokens"]
        assert (hits[:num_hits] + 1).tolist() == op["hit_blocks"]
        try:
            admission = self.table.admit([op["num_tokens"]], hashes=op["hashes"], hash_offsets=[0, len(op["hashes"])])
        except CapacityError:
            assert not op["ok"]
            return
        assert op["ok"]
        assert admission.hit_tokens.tolist() == [op["hit_tokens"]]
        self.handle_of[op["req"]] = admission.handles
        assert self.blocks(op["req"]) == op["hit_blocks"] + op["new_blocks"]

    def append(self, op):
        handle = self.handle_of[op["req"]]
        before = self.blocks(op["req"])
        fresh = op["hashes"][int(self.table.num_hashed(handle)[0]) :]
        try:
            self.table.append(handle, [op["add_tokens"]], hashes=fresh, hash_offsets=[0, len(fresh)])
        except CapacityError:
            assert not op["ok"]
            assert self.blocks(op["req"]) == before
            return
        assert op["ok"]
        assert self.blocks(op["req"]) == before + op["new_blocks"]

    def free(self, op):
        self.table.free(self.handle_of.pop(op["req"]))

    def evict_blocks(self, op):
        self.pool.evict(np.array(op["ids"]) - 1)

    def reset_prefix_cache(self, op):
        try:
            self.pool.reset()
        except BlockStateError:
            assert not op["ok"]
        else:
            assert op["ok"]


@pytest.mark.parametrize("path", data_files("golden", "vllm_block_pool_*.jsonl"))
def test_vllm_block_pool(path):
    head, *operations = map(json.loads, path.read_text().splitlines())
    replay = Replay(head["config"], num_requests=len(operations))
    assert replay.state() == head["initial"]
    for i, op in enumerate(operations):
        getattr(replay, op["op"])(op)
        state = replay.state()
        assert state.pop("usage") == pytest.approx(op["state"].pop("usage"), abs=1e-12)
        assert state == op["state"], f"operation {i}: {op['op']}"
        replay.pool.check()
        replay.table.check()
