"""The radix prefix cache: lookups, insertions, evictions, and a whole trace.

Prompts of 64, 2,048 and 32,768 tokens share their first quarter in groups of four, so that each is two edges in a
tree of 10,000 nodes; the nodes that make up the number hold 64 tokens each.
"""

from functools import cache
from itertools import count

import numpy as np
import pytest

from kvarray import RadixTree, read_trace, step_prefix
from tests.data import data_file
from tests.reference.prefix import ReferenceTree, tail_first_lru_hits

NUM_NODES = 10_000
NUM_PROMPTS = 256
LENGTHS = [64, 2_048, 32_768]


@cache
def prompts_of(length):
    """Prompts in groups of four that share their first quarter, shape (NUM_PROMPTS, length)."""
    prompts = np.random.default_rng(0).integers(0, 128_000, size=(NUM_PROMPTS, length))
    prompts[:, 0] = np.arange(NUM_PROMPTS) // 4
    prompts[:, : length // 4] = np.repeat(prompts[::4, : length // 4], 4, axis=0)
    return prompts


@cache
def tree_of(length):
    """A tree of 10,000 nodes in which the prompts are, and room for 64 more of them."""
    prompts = prompts_of(length)
    tree = RadixTree((NUM_PROMPTS + 64) * length + 64 * NUM_NODES)
    tree.insert_batch(prompts.ravel(), np.arange(NUM_PROMPTS + 1) * length)
    others = np.random.default_rng(1).integers(0, 128_000, size=(NUM_NODES - tree.num_nodes, 64))
    others[:, 0] = 200_000 + np.arange(len(others))
    tree.insert_batch(others.ravel(), np.arange(len(others) + 1) * 64)
    assert tree.num_nodes == NUM_NODES
    return tree


@cache
def twin_of(length):
    twin = ReferenceTree(10**9)
    for prompt in prompts_of(length)[:4].tolist():
        twin.insert(prompt)
    return twin


def unseen(length):
    """Prompts of which nothing is cached: the first token gives each away."""
    body = np.random.default_rng(2).integers(0, 128_000, size=length)
    for number in count(10**6):
        body[0] = number
        yield body


def note(benchmark, tokens):
    benchmark.extra_info["tokens"] = tokens
    if benchmark.stats is not None:
        benchmark.extra_info["million_tokens_per_second"] = round(tokens / benchmark.stats.stats.min / 1e6, 2)


def lengths(function):
    return pytest.mark.parametrize("length", LENGTHS, ids=lambda n: f"tokens={n}")(function)


@lengths
@pytest.mark.parametrize("engine", ["arrays", "twin"])
def bench_match_full_hit(benchmark, length, engine):
    benchmark.group = f"prefix.match full hit tokens={length}"
    tree = tree_of(length) if engine == "arrays" else twin_of(length)
    prompt = prompts_of(length)[1] if engine == "arrays" else prompts_of(length)[1].tolist()
    found = benchmark(tree.match, prompt)
    assert (found.num_tokens if engine == "arrays" else found) == length
    note(benchmark, length)


@lengths
def bench_match_full_hit_batch(benchmark, length):
    benchmark.group = f"prefix.match full hit tokens={length}"
    tree, tokens, offsets = tree_of(length), prompts_of(length).ravel(), np.arange(NUM_PROMPTS + 1) * length
    found = benchmark(tree.match_batch, tokens, offsets)
    assert (found.num_tokens == length).all()
    note(benchmark, NUM_PROMPTS * length)


@lengths
@pytest.mark.parametrize("engine", ["arrays", "twin"])
def bench_match_miss(benchmark, length, engine):
    benchmark.group = f"prefix.match miss tokens={length}"
    tree = tree_of(length) if engine == "arrays" else twin_of(length)
    prompt = next(unseen(length))
    found = benchmark(tree.match, prompt if engine == "arrays" else prompt.tolist())
    assert (found.num_tokens if engine == "arrays" else found) == 0
    note(benchmark, length)


@lengths
def bench_match_miss_batch(benchmark, length):
    benchmark.group = f"prefix.match miss tokens={length}"
    tree, offsets = tree_of(length), np.arange(NUM_PROMPTS + 1) * length
    tokens = np.tile(next(unseen(length)), NUM_PROMPTS)
    found = benchmark(tree.match_batch, tokens, offsets)
    assert not found.num_tokens.any()
    note(benchmark, NUM_PROMPTS * length)


@lengths
@pytest.mark.parametrize("engine", ["arrays", "twin"])
def bench_insert_existing(benchmark, length, engine):
    benchmark.group = f"prefix.insert existing tokens={length}"
    tree = tree_of(length) if engine == "arrays" else twin_of(length)
    prompt = prompts_of(length)[1] if engine == "arrays" else prompts_of(length)[1].tolist()
    assert benchmark(tree.insert, prompt) == length
    note(benchmark, length)


@lengths
def bench_insert_existing_batch(benchmark, length):
    benchmark.group = f"prefix.insert existing tokens={length}"
    tree, tokens, offsets = tree_of(length), prompts_of(length).ravel(), np.arange(NUM_PROMPTS + 1) * length
    found = benchmark(tree.insert_batch, tokens, offsets)
    assert (found == length).all()
    note(benchmark, NUM_PROMPTS * length)


@lengths
@pytest.mark.parametrize("engine", ["arrays", "twin"])
def bench_insert_new(benchmark, length, engine):
    """A prompt of which nothing is there. There is always room: what a round adds, the setup of the next evicts."""
    benchmark.group = f"prefix.insert new tokens={length}"
    if engine == "arrays":
        tree = RadixTree(tree_of(length).capacity, policy="filo")
        tree.restore(tree_of(length).snapshot())
    else:
        tree = ReferenceTree(10**9, policy="filo")
    fresh = unseen(length)

    def setup():
        tree.evict(max(0, (tree.cached_tokens - cached) if engine == "arrays" else tree.cached))
        prompt = next(fresh)
        return (prompt.copy() if engine == "arrays" else prompt.tolist(),), {}

    cached = tree.cached_tokens if engine == "arrays" else 0
    rounds = 200 if engine == "arrays" else 3
    assert benchmark.pedantic(tree.insert, setup=setup, rounds=rounds) == 0
    note(benchmark, length)


@lengths
def bench_insert_new_batch(benchmark, length):
    benchmark.group = f"prefix.insert new tokens={length}"
    fresh = unseen(length)
    tree = RadixTree(NUM_PROMPTS * length)
    offsets = np.arange(NUM_PROMPTS + 1) * length

    def setup():
        tree.evict(tree.cached_tokens)
        return (np.concatenate([next(fresh).copy() for _ in range(NUM_PROMPTS)]), offsets), {}

    found = benchmark.pedantic(tree.insert_batch, setup=setup, rounds=20 if length < LENGTHS[-1] else 3)
    assert not found.any()
    note(benchmark, NUM_PROMPTS * length)


@pytest.mark.parametrize("leaf_tokens", [64, 4], ids=lambda n: f"leaf={n}")
@pytest.mark.parametrize("num_leaves", [1_000, 10_000, 40_000], ids=lambda n: f"leaves={n}")
def bench_evict_64_tokens(benchmark, num_leaves, leaf_tokens):
    """Leaves stand eight to a parent; each round begins with as many leaves as the first."""
    benchmark.group = f"prefix.evict 64 tokens leaf={leaf_tokens}"
    tree = RadixTree((num_leaves + 64) * (leaf_tokens + 2))
    numbers = count()

    def fill(how_many):
        first = np.fromiter(numbers, dtype=np.int64, count=how_many)
        tokens = np.repeat(first, leaf_tokens + 1).reshape(how_many, leaf_tokens + 1)
        tokens[:, 0] //= 8
        tree.insert_batch(tokens.ravel(), np.arange(how_many + 1) * (leaf_tokens + 1))

    def setup():
        fill(64 // leaf_tokens)
        return (64,), {}

    fill(num_leaves)
    gone = benchmark.pedantic(tree.evict, setup=setup, rounds=300)
    assert 64 <= gone.num_tokens < 64 + leaf_tokens
    benchmark.extra_info["leaves"] = num_leaves


@pytest.mark.parametrize("num_leaves", [1_000, 4_000], ids=lambda n: f"leaves={n}")
def bench_evict_64_tokens_twin(benchmark, num_leaves):
    benchmark.group = "prefix.evict 64 tokens leaf=64"
    twin = ReferenceTree(10**9)
    first = np.arange(num_leaves).reshape(-1, 1)
    for tokens in np.tile(first, (1, 64)).tolist():
        twin.root.children[None, (tokens[0],)] = type(twin.root)(twin.root, None, tokens, last_use=tokens[0])
    gone = benchmark.pedantic(twin.evict, args=(64,), rounds=3)
    assert [size for _, size in gone] == [64]


@pytest.mark.parametrize("blocks", [1_000, 30_000], ids=lambda n: f"blocks={n}")
@pytest.mark.parametrize("engine", ["arrays", "twin"])
def bench_conversation_trace(benchmark, blocks, engine):
    """The whole trace, a request a step: match, insert, cut to size. The twin is a plain ordered dictionary."""
    benchmark.group = f"prefix.conversation trace blocks={blocks}"
    trace = read_trace(data_file("traces/mooncake_conversation.jsonl"), block_size=512)
    if engine == "arrays":
        hits = benchmark.pedantic(step_prefix, args=(trace, blocks), rounds=5).hit_blocks
    else:
        # The twin spells out every prefix of a request, so a few hundred requests say enough.
        requests = [list(row) for row in np.split(trace.prefix_ids, trace.offsets[1:-1])][:300]
        hits = benchmark.pedantic(tail_first_lru_hits, args=(requests, blocks), rounds=1)
        trace = trace.requests(0, 300)
    assert np.array_equal(hits[:300], step_prefix(trace, blocks).hit_blocks[:300])
    benchmark.extra_info["requests"] = trace.num_requests
    if benchmark.stats is not None:
        benchmark.extra_info["requests_per_second"] = round(trace.num_requests / benchmark.stats.stats.min)
