"""The five scenarios: blocks, prefixes, tiers, transfers and bytes, each through the engine at a size one can follow.

Every function takes the inputs of its scenario, which are small enough to change and predict by hand.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from kvarray.block import BlockAllocator, BlockTable
from kvarray.demo.scenario import Scenario
from kvarray.economics import ModelSpec
from kvarray.hashing import hash_blocks
from kvarray.link import Link
from kvarray.migrate import PDScheduler, TransferEngine
from kvarray.prefix import RadixTree
from kvarray.tier import TieredCache, TierSpec
from kvarray.units import format_bytes

__all__ = [
    "MS",
    "SYSTEM",
    "blocks",
    "document_reads",
    "economics",
    "prefix",
    "tiered_cache",
    "tiers",
    "transfer",
]

MS = 1e3
"""Milliseconds in a second."""
SYSTEM, DOCUMENT, TAILS = range(4), range(4, 8), (8, 9)
"""Keys of the tier scenario: blocks of a system prompt and of a document, and two partial blocks."""


def blocks(*, num_blocks: int = 3, block_size: int = 4, num_tokens: int = 8) -> Scenario:
    """Fork a sequence, write to a shared block, free the child, and allocate when nothing is free.

    Examples
    --------
    >>> blocks().figures["refcounts"]
    [1, 2, 1, 2]
    """
    pool = BlockAllocator(num_blocks)
    table = BlockTable(pool, block_size=block_size, max_sequences=2, max_blocks=num_blocks)
    hashes, hash_offsets = hash_blocks(range(num_tokens), [0, num_tokens], block_size=block_size)

    parent = table.admit([num_tokens], hashes=hashes, hash_offsets=hash_offsets).handles
    child = table.fork(parent)
    forked, _ = table.tables(parent)
    shared = pool.ref_count[forked].tolist()
    table.write(parent, [0])
    both, _ = table.tables([*parent, *child])
    written = {"num_used": pool.num_held, "copies": table.stats().copies, "refcounts": pool.ref_count[both].tolist()}

    table.free(child)
    freed = {"num_free": pool.num_free, "num_cached": pool.num_cached}
    pool.allocate(1)
    full = {"evictions": pool.stats().evictions, "num_free_after": pool.num_free}
    return Scenario(
        1,
        "Blocks: fork, copy-on-write, eviction",
        f"{num_blocks} blocks of {block_size} tokens; a parent of {num_tokens} tokens is forked and writes its first.",
        [{"refcounts_forked": shared}, written, freed, full],
        "A fork costs no memory until someone writes; what is freed stays cached until its memory is needed.",
    )


def prefix(*, system_tokens: int = 64, tail_tokens: Sequence[int] = (3, 2)) -> Scenario:
    """Send prompts that share a system prompt through a radix tree.

    Examples
    --------
    >>> prefix().written("hit_b")
    '64'
    """
    tree = RadixTree(system_tokens + sum(tail_tokens))
    system = list(range(system_tokens))
    tails = [[system_tokens * (i + 1) + j for j in range(n)] for i, n in enumerate(tail_tokens)]

    hits = {f"hit_{name}": tree.insert(system + tail) for name, tail in zip("abcdefgh", tails, strict=False)}
    hit_new = tree.match([*system, system_tokens * (len(tails) + 1)]).num_tokens
    return Scenario(
        2,
        "Prefix: a shared system prompt",
        f"{system_tokens} shared tokens, then {' or '.join(map(str, tail_tokens))} of a prompt's own; and a new one.",
        [{**hits, "hit_new": hit_new}, {"tokens_cached": tree.cached_tokens, "nodes": tree.num_nodes}],
        f"The edge splits where prompts part; from the second on, {hit_new} tokens of each need no prefill.",
        drawing=tree.to_text(),
        pictured={"tree": tree},
    )


def document_reads() -> tuple[list[int], list[bool]]:
    """Return the accesses of the tier scenario: keys, and which of them are full blocks.

    A system prompt and a document are asked about three times, twice with a partial block at the end, then the system
    prompt comes twice alone.
    """
    asked = [*SYSTEM, *DOCUMENT]
    keys = [*asked, TAILS[0], *asked, *asked, TAILS[1], *SYSTEM, *SYSTEM]
    return keys, [key not in TAILS for key in keys]


def tiers(
    *,
    gpu_blocks: int = 4,
    cpu_blocks: int = 4,
    ssd_blocks: int = 16,
    block_bytes: int = 16 * 2**20,
    bytes_per_second: float = 16e9,
    block_s: float = 0.050,
) -> Scenario:
    """Replay a system prompt and a document over GPU, CPU and SSD.

    Examples
    --------
    >>> tiers().figures["hits"]
    {'cpu': 20, 'gpu': 4}
    """
    capacities = {"gpu": gpu_blocks, "cpu": cpu_blocks, "ssd": ssd_blocks}
    cache = tiered_cache(capacities, block_bytes=block_bytes, bytes_per_second=bytes_per_second)
    keys, is_full = document_reads()
    access = cache.access(keys, admit=is_full)

    flows, cost, names = cache.flows, cache.cost(block_s=block_s), cache.names
    boundaries = list(pairwise(names))
    down = {f"{upper}->{lower}": int(n) for (upper, lower), n in zip(boundaries, flows.down[:-1], strict=True) if n}
    up = {f"{lower}->{upper}": int(n) for (upper, lower), n in zip(boundaries, flows.up[:-1], strict=True) if n}
    hits = {name: int(n) for name, n in zip(names, flows.hits, strict=True) if n}
    found: dict[str, object] = {
        "hit_rate": float(flows.hit_rate),
        "hits": dict(sorted(hits.items(), key=lambda item: -item[1])),
        "misses": int(flows.misses),
        "accesses": int(flows.accesses),
    }
    moved = {
        "demotions": down,
        "promotions": up,
        "migrations": sum(down.values()) + sum(up.values()),
        "occupancy": dict(zip(names, cache.occupancy.tolist(), strict=True)),
    }
    seconds = {
        "total_cost_s": float(cost.cost_s),
        "saved_prefill_s": float(cost.saved_s),
        "savings_s": float(cost.net_s),
    }
    return Scenario(
        3,
        "Three tiers and their cost",
        f"tiers of {', '.join(map(str, capacities.values()))} blocks of {format_bytes(block_bytes)}; "
        f"a move takes {block_bytes / bytes_per_second * MS:.6f} ms, a hit saves {block_s * MS:g} ms of prefill.",
        [found, moved, seconds],
        f"Of the accesses {float(flows.hit_rate):.1%} hit; {float(cost.cost_s):.3f} s of moves save "
        f"{float(cost.saved_s):g} s of prefill.",
        digits={"hit_rate": 4} | dict.fromkeys(seconds, 3),
        pictured={"tiers": (access, names)},
    )


def tiered_cache(
    capacities: Mapping[str, int],
    *,
    block_bytes: int = 16 * 2**20,
    bytes_per_second: float = 16e9,
    policy: str = "lru",
) -> TieredCache:
    """Return exclusive tiers of so many blocks, with links of one speed between them."""
    link = Link(bytes_per_second)
    specs = [
        TierSpec(name, blocks=count, up=link if place else None)
        for place, (name, count) in enumerate(capacities.items())
    ]
    return TieredCache(specs, block_bytes=block_bytes, policy=policy)


def transfer(
    *,
    num_blocks: int = 64,
    block_bytes: int = 2**20,
    num_streams: int = 2,
    bytes_per_second: float = 25e9,
    decode_s: float = 4e-3,
) -> Scenario:
    """Move KV from a prefill node to a decode node, all of it before decoding or block by block.

    Examples
    --------
    >>> transfer().written("pipelined_ttft_ms")
    '4.04'
    """
    scheduler = PDScheduler(TransferEngine(bytes_per_second, num_streams=num_streams))
    sizes = np.full(num_blocks, block_bytes)
    sequential = scheduler.sequential(sizes, decode_s=decode_s)
    spread = scheduler.sequential(sizes, decode_s=decode_s, num_streams=num_streams)
    pipelined = scheduler.pipelined(sizes, decode_s=decode_s)

    seconds = [
        {"per_block_transfer_ms": pipelined.transfer.timeline.work_s[0]},
        {"sequential_ttft_ms": sequential.ttft_s, "sequential_wait_ms": sequential.exposed_transfer_s},
        {f"sequential_ttft_{num_streams}_streams_ms": spread.ttft_s},
        {"pipelined_ttft_ms": pipelined.ttft_s, "pipelined_wait_ms": pipelined.exposed_transfer_s},
        {
            "pipelined_makespan_ms": pipelined.makespan_s,
            "overlap_gain_ms": pipelined.overlap_gain_s(sequential),
        },
    ]
    figures = [{name: float(value) * MS for name, value in line.items()} for line in seconds]
    coarse = ("sequential_ttft_ms", "pipelined_ttft_ms", "pipelined_makespan_ms", "overlap_gain_ms")
    return Scenario(
        4,
        "Prefill-decode transfer",
        f"{num_blocks} blocks of {format_bytes(block_bytes)} over {num_streams} streams of {bytes_per_second / 1e9:g} "
        f"GB/s, {decode_s * MS:g} ms of decoding for each.",
        figures,
        f"Of the time to first token, waiting for KV falls from {float(sequential.exposed_transfer_s) * MS:.2f} ms to "
        f"{float(pipelined.exposed_transfer_s) * MS:.3f} ms; what is left is decoding.",
        digits={name: 2 if name in coarse else 4 if "block" in name else 3 for line in figures for name in line},
        pictured={"gantt": pipelined},
    )


def economics(
    *,
    name: str = "Llama-3.1-70B",
    num_layers: int = 80,
    num_kv_heads: int = 8,
    head_dim: int = 128,
    context_tokens: int = 128 * 1024,
    dtypes: Sequence[str] = ("fp16", "fp8", "int4"),
) -> Scenario:
    """Count the bytes of a token and of a long sequence in several number formats.

    Examples
    --------
    >>> economics().figures["bytes_per_token_int4"]
    81920
    """
    model = ModelSpec.from_fields(name, num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim)
    length = f"{context_tokens // 1024}k"
    per_token = {dtype: model.bytes_per_token(dtype=dtype) for dtype in dtypes}
    gib = {dtype: model.bytes_per_sequence(context_tokens, dtype=dtype) / 2**30 for dtype in dtypes}
    return Scenario(
        5,
        "KV economics",
        f"{name}: {num_layers} layers, {num_kv_heads} KV heads of {head_dim}; sequences of {context_tokens:,} tokens.",
        [
            {f"bytes_per_token_{dtype}": count for dtype, count in per_token.items()},
            {f"gib_per_seq_{length}_{dtype}": size for dtype, size in gib.items()},
        ],
        f"From {dtypes[0]} to {dtypes[1]}, memory, transfers and moves between tiers all shrink by "
        f"{1 - per_token[dtypes[1]] / per_token[dtypes[0]]:.0%}.",
        pictured={"bars": ({"KV": gib}, f"GiB for {context_tokens:,} tokens")},
    )
