"""Many models, formats and lengths in one call, against the twin that goes layer by layer."""

import numpy as np
import pytest

from kvarray.economics import Footprint, ModelSpec
from kvarray.economics.catalogue import catalogue_names
from tests.reference import economics as twin

FORMATS = ("bf16", "fp8", "int4")
MODELS = [ModelSpec.from_name(name) for name in catalogue_names() for _ in FORMATS]
NAMES = [name for _ in catalogue_names() for name in FORMATS]
MEMORY = 40 * 2**30


@pytest.fixture(scope="module")
def table():
    return Footprint.of(MODELS, dtype=NAMES)


def _count(benchmark, items):
    benchmark.extra_info["rows"] = len(MODELS)
    benchmark.extra_info["items"] = items
    if benchmark.stats:
        benchmark.extra_info["items_per_s"] = items / benchmark.stats.stats.min


@pytest.mark.benchmark(group="economics.bytes")
@pytest.mark.parametrize("lengths", [100, 10_000], ids=lambda n: f"lengths={n}")
def bench_bytes_per_sequence(benchmark, table, lengths):
    tokens = np.arange(1, lengths + 1) * 64
    costs = benchmark(table.bytes_per_sequence, tokens)
    _count(benchmark, costs.size)
    for row in range(0, len(MODELS), 7):
        assert costs[row, 99] == twin.bytes_per_sequence(MODELS[row], 6400, dtype=NAMES[row])


@pytest.mark.benchmark(group="economics.bytes")
def bench_bytes_per_sequence_twin(benchmark):
    tokens = [64, 6400]

    def layer_by_layer():
        rows = zip(MODELS, NAMES, strict=True)
        return [[twin.bytes_per_sequence(spec, n, dtype=name) for n in tokens] for spec, name in rows]

    costs = benchmark.pedantic(layer_by_layer, rounds=3, iterations=1)
    _count(benchmark, len(costs) * len(tokens))
    assert costs == Footprint.of(MODELS, dtype=NAMES).bytes_per_sequence(tokens).tolist()


@pytest.mark.benchmark(group="economics.inverse")
def bench_tokens_that_fit(benchmark, table):
    longest = benchmark(table.tokens_that_fit, MEMORY, block_size=1)
    _count(benchmark, longest.size)
    ends = longest < 2**32
    assert (np.diag(table.bytes_per_sequence(longest))[ends] <= MEMORY).all()
    assert (np.diag(table.bytes_per_sequence(longest + 1))[ends] > MEMORY).all()


@pytest.mark.benchmark(group="economics.inverse")
def bench_tokens_that_fit_bisected_by_the_twin(benchmark, table):
    rows = range(0, len(MODELS), 30)

    def bisect(spec, name):
        low, high = 0, 2**32 + 1
        while high - low > 1:
            middle = (low + high) // 2
            fits = twin.bytes_per_sequence(spec, middle, dtype=name) <= MEMORY
            low, high = (middle, high) if fits else (low, middle)
        return low

    longest = benchmark.pedantic(lambda: [bisect(MODELS[row], NAMES[row]) for row in rows], rounds=3, iterations=1)
    _count(benchmark, len(longest))
    assert longest == table.tokens_that_fit(MEMORY)[list(rows)].tolist()


@pytest.mark.benchmark(group="economics.read")
def bench_table_of_the_catalogue(benchmark):
    table = benchmark(Footprint.of, MODELS, dtype=NAMES)
    _count(benchmark, len(MODELS))
    assert len(table.state_bytes) == len(MODELS)


@pytest.mark.benchmark(group="economics.read")
def bench_read_a_model(benchmark):
    spec = benchmark(ModelSpec.from_name, "gemma-3-27b")
    _count(benchmark, 1)
    assert spec.bytes_per_token() == 62 * 2 * 16 * 128 * 2
