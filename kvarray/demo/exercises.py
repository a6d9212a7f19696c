"""The four exercises: LFU against LRU, transfer by layers, prefixes by blocks, and eviction into a slower tier."""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from kvarray.arrays import Hashes, Ids
from kvarray.block import BlockAllocator, BlockTable
from kvarray.demo.composition import admit_over_tiers, admit_to_tree, sink_into, tree_over
from kvarray.demo.mechanisms import MS, SYSTEM, document_reads, tiered_cache
from kvarray.demo.scenario import Scenario
from kvarray.errors import CapacityError
from kvarray.hashing import hash_blocks
from kvarray.migrate import PDScheduler, TransferEngine
from kvarray.prefix import RadixTree
from kvarray.units import format_bytes

__all__ = ["block_aligned", "layer_interleaved", "lfu_against_lru", "sink_first"]


def lfu_against_lru(
    *, gpu_blocks: int = 4, cpu_blocks: int = 4, num_more: int = 8, document_blocks: int = 6
) -> Scenario:
    """Replay three traces under both policies.

    All begin as the tier scenario. *repeated* is no more than that; *one_off* goes on with documents that are read
    once each behind the same system prompt; *shifted* with another system prompt and document, asked for again and
    again.

    Examples
    --------
    >>> lfu_against_lru().written("hit_rate_repeated")
    '{lru: 0.7059, lfu: 0.7059}'
    """
    capacities = {"gpu": gpu_blocks, "cpu": cpu_blocks}
    keys, is_full = document_reads()
    new = range(max(keys) + 1, max(keys) + 1 + num_more * document_blocks)
    documents = [new[i : i + document_blocks] for i in range(0, len(new), document_blocks)]
    traces = {
        "repeated": [],
        "one_off": [key for document in documents for key in (*SYSTEM, *document)],
        "shifted": [*new[: sum(capacities.values())]] * num_more,
    }

    lines: list[dict[str, object]] = []
    rates: dict[str, dict[str, float]] = {"lru": {}, "lfu": {}}
    for name, more in traces.items():
        hits = {}
        for policy in rates:
            cache = tiered_cache(capacities, policy=policy)
            cache.access(keys + more, admit=is_full + [True] * len(more))
            hits[policy] = int(cache.flows.hits.sum())
            rates[policy][name] = float(cache.flows.hit_rate)
        by_policy = {policy: rates[policy][name] for policy in rates}
        lines.append({f"hit_rate_{name}": by_policy, f"hits_{name}": hits, f"accesses_{name}": len(keys) + len(more)})
    return Scenario(
        6,
        "Exercise: LFU against LRU",
        f"tiers of {gpu_blocks} and {cpu_blocks} blocks; the trace of scenario 3, then nothing, {num_more} one-off "
        f"documents, or {num_more} requests for another one.",
        lines,
        "Counting uses keeps what is popular through one-off documents, and is late to see that it no longer is.",
        digits=dict.fromkeys((f"hit_rate_{name}" for name in traces), 4),
        pictured={"bars": (rates, "block hit rate")},
    )


def layer_interleaved(
    *,
    num_blocks: int = 64,
    block_bytes: int = 2**20,
    num_streams: int = 2,
    bytes_per_second: float = 25e9,
    decode_s: float = 4e-3,
    num_layers: int = 80,
    groups: Sequence[int] = (1, 8, 80),
) -> Scenario:
    """Move the KV of the transfer scenario layer by layer instead of block by block.

    Examples
    --------
    >>> layer_interleaved().written("layered_ttft_ms")
    '{1: 4.034, 8: 4.268, 80: 6.684}'
    """
    scheduler = PDScheduler(TransferEngine(bytes_per_second, num_streams=num_streams))
    blocks = np.full(num_blocks, block_bytes)
    layers = np.full(num_layers, num_blocks * block_bytes / num_layers)
    by_group = {group: scheduler.layered(layers, decode_s=decode_s, group_layers=group) for group in groups}
    finest = by_group[min(by_group)]
    sequential = scheduler.sequential(blocks, decode_s=decode_s)
    pipelined = scheduler.pipelined(blocks, decode_s=decode_s)

    return Scenario(
        7,
        "Exercise: transfer by layers",
        f"the {format_bytes(num_blocks * block_bytes)} of scenario 4 as {num_layers} layers, moved in groups of "
        f"{', '.join(map(str, groups))}.",
        [
            {"sequential_ttft_ms": float(sequential.ttft_s) * MS, "pipelined_ttft_ms": float(pipelined.ttft_s) * MS},
            {"layered_ttft_ms": {group: float(one.ttft_s) * MS for group, one in by_group.items()}},
            {"layered_wait_ms": {group: float(one.exposed_transfer_s) * MS for group, one in by_group.items()}},
            {"overlap_gain_ms": float(finest.overlap_gain_s(sequential)) * MS},
        ],
        "The first step needs all blocks but one layer at a time, so layers give real engines what blocks promise.",
        digits=dict.fromkeys(("layered_ttft_ms", "layered_wait_ms"), 3)
        | dict.fromkeys(("sequential_ttft_ms", "pipelined_ttft_ms", "overlap_gain_ms"), 2),
        pictured={"gantt": finest},
    )


def block_aligned(
    *, system_tokens: int = 100, tail_tokens: Sequence[int] = (30, 20), block_sizes: Sequence[int] = (1, 16, 64)
) -> Scenario:
    """Round prefixes down to blocks, and let a tree over a pool of blocks evict around a lock.

    Examples
    --------
    >>> block_aligned().figures["hit_b"]
    {1: 100, 16: 96, 64: 64}
    """
    system = list(range(system_tokens))
    tails = [[system_tokens * (i + 1) + j for j in range(n)] for i, n in enumerate(tail_tokens)]
    prompts = [system + tail for tail in tails]
    trees = {size: RadixTree(sum(map(len, prompts)), page_size=size) for size in block_sizes}
    hits = {size: [tree.insert(prompt) for prompt in prompts] for size, tree in trees.items()}

    # The same prompts over a pool with room for the longer one, and the shorter one asked for while that is in use.
    size = sorted(block_sizes)[len(block_sizes) // 2]
    pool = BlockAllocator(len(prompts[0]) // size)
    tree = tree_over(pool, block_size=size)
    lock, first_ids = admit_to_tree(tree, pool, prompts[0])
    refused = {}
    try:
        admit_to_tree(tree, pool, prompts[1])
    except CapacityError as error:
        refused = {"requested": error.requested, "available": error.available}
    tree.unlock(lock)
    _, second_ids = admit_to_tree(tree, pool, prompts[1])

    return Scenario(
        8,
        "Exercise: prefixes by blocks",
        f"prompts of {system_tokens} shared tokens and {' or '.join(map(str, tail_tokens))} of their own; blocks of "
        f"{', '.join(map(str, block_sizes))}; then a tree over {pool.num_blocks} blocks of {size}.",
        [
            {"hit_b": {size: found[-1] for size, found in hits.items()}},
            {"tokens_cached": {size: one.cached_tokens for size, one in trees.items()}},
            {"blocks_a": first_ids.tolist()},
            {"refused_while_a_is_locked": refused},
            {"blocks_b": second_ids.tolist(), "num_used": pool.num_held},
        ],
        "A prefix is shared up to its last full block; the tree says which blocks, and eviction gives them back.",
        drawing=tree.to_text(),
        pictured={"tree": tree},
    )


def sink_first(
    *, gpu_blocks: int = 4, cpu_blocks: int = 8, ssd_blocks: int = 8, block_size: int = 4, num_documents: int = 3
) -> Scenario:
    """Read documents in turns of which the GPU holds one, with and without tiers that evicted blocks are written to.

    Examples
    --------
    >>> sink_first().figures["computed"]
    {'alone': 24, 'over tiers': 12}
    """
    tokens = gpu_blocks * block_size
    chains = [
        hash_blocks(range(i * tokens, (i + 1) * tokens), [0, tokens], block_size=block_size)[0]
        for i in range(num_documents)
    ]
    turns = chains + chains
    below = tiered_cache({"cpu": cpu_blocks, "ssd": ssd_blocks})
    alone, over_tiers = (BlockAllocator(gpu_blocks, sink=sink) for sink in (None, sink_into(below)))

    found = {"alone": 0, "over tiers": 0}
    loaded: dict[str, int] = dict.fromkeys(below.names, 0)
    table = _table(alone, block_size)
    for hashes in turns:
        admission = table.admit([tokens], hashes=hashes, hash_offsets=[0, gpu_blocks])
        found["alone"] += int(admission.hit_blocks.sum())
        table.free(admission.handles)
    table = _table(over_tiers, block_size)
    for hashes in turns:
        admission, read_from = admit_over_tiers(table, below, tokens, hashes=hashes)
        found["over tiers"] += int(admission.hit_blocks.sum()) + len(read_from)
        for tier in read_from.tolist():
            loaded[below.names[tier]] += 1
        table.free(admission.handles)

    return Scenario(
        9,
        "Exercise: sink-first eviction",
        f"{num_documents} documents of {gpu_blocks} blocks read twice in turns; a GPU of {gpu_blocks} blocks, "
        f"alone and over tiers of {' and '.join(map(str, below.capacities))}.",
        [
            {
                "computed": {name: len(turns) * gpu_blocks - count for name, count in found.items()},
                "loaded": loaded,
                "accesses": len(turns) * gpu_blocks,
            },
            {
                "evictions": over_tiers.stats().evictions,
                "evictions_when_sink_fails": _evictions_when_sink_fails(gpu_blocks),
            },
        ],
        "A block is written below before its memory is reused, so it can come back; if that fails, nothing is evicted.",
        pictured={"bars": ({"blocks loaded": loaded}, "blocks")},
    )


def _table(pool: BlockAllocator, block_size: int) -> BlockTable:
    return BlockTable(pool, block_size=block_size, max_sequences=1, max_blocks=pool.num_blocks, recompute_last=False)


def _evictions_when_sink_fails(num_blocks: int) -> int:
    """Return how many cached blocks go when one more is asked for and the tier below cannot be written to."""

    def fail(block_ids: Ids, hashes: Hashes) -> None:
        raise CapacityError("the tier below is full", requested=len(block_ids), available=0)

    pool = BlockAllocator(num_blocks, sink=fail)
    ids = pool.allocate(num_blocks)
    pool.register(ids, ids + 1)
    pool.release(ids)
    with suppress(CapacityError):
        pool.allocate(1)
    return pool.stats().evictions
