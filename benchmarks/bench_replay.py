"""A trace through a whole deployment, against the plain-Python simulator."""

from dataclasses import replace

import numpy as np
import pytest

from kvarray.deploy import Deployment, LruHits, first_token_times, replay, route, service_times
from kvarray.trace import Trace, read_trace
from tests.data import data_file
from tests.reference import replay as twin

THREE_TIERS = {
    "model": "llama-3.1-70b",
    "gpu": "h100",
    "gpus": 8,
    "tiers": ["gpu=200GiB", "cpu=1TiB@dram-pcie5", "ssd=8TiB@nvme-gen4"],
}


@pytest.fixture(scope="module")
def conversation():
    return read_trace(data_file("traces/mooncake_conversation.jsonl"), block_size=512)


def _anew(trace):
    """The same columns as a new trace, so that nothing is known of it yet."""
    return Trace(
        trace.block_ids,
        trace.offsets,
        block_size=trace.block_size,
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        arrival_s=trace.arrival_s,
    )


def _note(benchmark, trace):
    benchmark.extra_info |= {"requests": trace.num_requests, "blocks": trace.num_blocks}
    if benchmark.stats is not None:
        benchmark.extra_info["requests_per_s"] = trace.num_requests / benchmark.stats.stats.min


@pytest.mark.benchmark(group="replay.conversation")
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="one replica"),
        pytest.param({"replicas": 8, "routing": "prefix_hash"}, id="eight by prefix hash"),
        pytest.param({"replicas": 8, "routing": "least_loaded"}, id="eight by load"),
        pytest.param({"replicas": 8, "routing": "prefix_aware"}, id="eight by cost"),
        pytest.param({"policy": "s3_fifo"}, id="s3-fifo"),
        pytest.param({"separation": {"schedule": "layered", "link": "net-400g"}}, id="layered to a decode node"),
    ],
)
def bench_replay(benchmark, conversation, changes):
    """Everything of one deployment, from a trace whose block ids nobody has looked at yet."""
    deployment = Deployment.from_dict(THREE_TIERS | changes)
    result = benchmark.pedantic(
        replay, setup=lambda: ((_anew(conversation), deployment), {}), rounds=3 if changes else 10
    )
    assert result.ttft_s.min() > 0.0
    _note(benchmark, conversation)


class _Recent:
    """LRU tiers of the simulator on an ordered dictionary of places, which is as fast as plain Python gets."""

    def __init__(self, sizes):
        self.orders = [{} for _ in sizes]
        self.sizes = sizes

    def tier_of(self, block):
        return next((tier for tier, order in enumerate(self.orders) if block in order), None)

    def use(self, path):
        for block in reversed(path):
            for order in self.orders:
                order.pop(block, None)
            self.orders[0][block] = None
        for tier, order in enumerate(self.orders):
            while len(order) > self.sizes[tier]:
                oldest = next(iter(order))
                del order[oldest]
                if tier + 1 < len(self.orders):
                    self.orders[tier + 1][oldest] = None


@pytest.mark.benchmark(group="replay.conversation")
def bench_simulator(benchmark, conversation):
    """One replica, the plain way: the twin, on caches that are dictionaries."""
    deployment = Deployment.from_dict(THREE_TIERS)
    requests, plain = _as_plain(conversation, deployment)
    rows = benchmark.pedantic(twin.simulate, args=(requests, plain), rounds=1)
    result = replay(conversation, deployment)
    assert [row["hit_blocks"] for row in rows] == result.hit_blocks.tolist()
    clock = float(conversation.arrival_s[-1])
    assert np.abs(np.array([row["ttft_s"] for row in rows]) - result.ttft_s).max() < 1e-9 * clock
    _note(benchmark, conversation)


def _as_plain(trace, deployment):
    """A trace and a deployment as the simulator takes them; block ids are chained."""
    ids, cuts = trace.prefix_ids.tolist(), trace.offsets.tolist()
    requests = [
        {
            "blocks": ids[cuts[i] : cuts[i + 1]],
            "tokens": tokens,
            "hashed": min((cuts[i + 1] - cuts[i]) * trace.block_size, tokens),
            "output": 0,
            "arrival": when,
            "session": 0,
        }
        for i, (tokens, when) in enumerate(zip(trace.input_tokens.tolist(), trace.arrival_s.tolist(), strict=True))
    ]
    sizes = deployment.tier_blocks(trace.block_size).tolist()
    prefill = deployment.prefill
    plain = {
        "new_tiers": lambda: _Recent(sizes),
        "replicas": 1,
        "links": [
            {
                "rate": tier.up.bytes_per_second,
                "latency": tier.up.latency_s,
                "alpha": tier.up.alpha_s,
                "fragment": None,
                "direct": None,
            }
            for tier in deployment.tiers[1:]
        ],
        "bytes_per_token": deployment.bytes_per_token,
        "block_bytes": deployment.bytes_per_token * trace.block_size,
        "block_size": trace.block_size,
        "prefill": (prefill.start_s, prefill.per_token_s, prefill.per_pair_s),
        "decode": (0.0, 0.0, 0.0),
        "overlap": 0.0,
        "min_load_tokens": 0,
        "recompute_slow": False,
        "min_prefill_tokens": 1,
        "queueing": True,
        "separation": None,
    }
    return requests, plain


@pytest.mark.benchmark(group="replay.worlds")
def bench_a_hundred_bandwidths(benchmark, conversation):
    """Queues of a hundred speeds of both links, of hits that are known."""
    deployment = Deployment.from_dict(THREE_TIERS)
    routed = route(conversation, deployment)
    hits = LruHits(routed, deployment).at(deployment.tier_blocks(512))
    rates = np.stack([np.geomspace(5e9, 100e9, 100), np.geomspace(1e9, 50e9, 100)], axis=1)

    def run():
        service = service_times(routed, deployment, hits, bytes_per_second=rates)
        return first_token_times(routed, deployment, service)

    ttft = benchmark.pedantic(run, rounds=3)
    slowest = (
        replace(deployment.tiers[1].up, bytes_per_second=5e9),
        replace(deployment.tiers[2].up, bytes_per_second=1e9),
    )
    tiers = (deployment.tiers[0], *(replace(t, up=link) for t, link in zip(deployment.tiers[1:], slowest, strict=True)))
    assert ttft[0].tolist() == replay(conversation, replace(deployment, tiers=tiers)).ttft_s.tolist()
    benchmark.extra_info |= {"worlds": len(rates), "requests": conversation.num_requests}
