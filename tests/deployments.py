"""Deployments for tests: strategies, each with the same as a dict for the plain-Python twin, and traces to serve."""

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from kvarray import (
    DecodeTime,
    Deployment,
    Link,
    PrefillTime,
    Separation,
    Trace,
)
from kvarray.deploy import (
    ROUTINGS,
)
from kvarray.deploy.routing import _prefix_hashes
from kvarray.tier import TierSpec
from tests.reference import replay as twin

GPU = TierSpec("gpu", blocks=64)
BASE = Deployment((GPU,), bytes_per_token=1, prefill=PrefillTime(0.0, 1.0, 0.0))


SECONDS = st.sampled_from([0.0, 0.125, 0.5, 1.0, 3.0])
RATES = st.sampled_from([0.5, 2.0, 16.0, 1024.0])


@st.composite
def links(draw, with_direct=True):
    return {
        "rate": draw(RATES),
        "latency": draw(SECONDS),
        "alpha": draw(SECONDS),
        "fragment": draw(st.sampled_from([None, 1, 3, 1000])),
        "direct": draw(st.none() | links(with_direct=False)) if with_direct else None,
    }


def as_link(link):
    return Link(link["rate"], link["latency"], link["alpha"], link["fragment"])


@st.composite
def separations(draw):
    return {
        "schedule": draw(st.sampled_from(["sequential", "pipelined", "layered", "chunked"])),
        "rate": draw(RATES),
        "latency": draw(SECONDS),
        "alpha": draw(SECONDS),
        "streams": draw(st.integers(1, 3)),
        "layers": draw(st.integers(1, 4)),
        "chunk_tokens": draw(st.integers(1, 6)),
    }


TRUNKS = [[0, 1, 2, 3, 4], [0, 1, 5, 6], [7, 8]]
"""Paths that requests share the head of: what is used again and again is spread over all tiers."""


@st.composite
def served_traces(draw):
    """Traces with arrivals and sessions, whose block ids are chained."""
    rows = []
    for number in range(draw(st.integers(2, 12))):
        trunk = TRUNKS[draw(st.integers(0, len(TRUNKS) - 1))]
        own = [100 * (number + 1) + i for i in range(draw(st.integers(0, 1)))]
        rows.append(trunk[: draw(st.integers(0, len(trunk)))] + own)
    size = draw(st.integers(1, 3))
    tokens = [draw(st.integers((len(row) - 1) * size + 1 if row else 0, (len(row) + 1) * size)) for row in rows]
    count = len(rows)
    gaps = draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 10.0]), min_size=count, max_size=count))
    gaps[-1] = gaps[-1] or 1.0  # some time has to pass
    return Trace(
        [block for row in rows for block in row],
        np.cumsum([0, *map(len, rows)]),
        block_size=size,
        input_tokens=tokens,
        output_tokens=draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)),
        arrival_s=100.0 + np.cumsum(gaps),
        session=draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count)),
    )


@st.composite
def deployments(draw, block_size=2, policies=("lru", "fifo"), routings=ROUTINGS, separated=None):
    """A deployment, and the same as a dict for the twin."""
    policy = draw(st.sampled_from(policies))
    num_tiers = 1 if policy == "fifo" else draw(st.integers(1, 3))
    exclusive = draw(st.booleans())
    sizes = draw(st.lists(st.integers(1, 4), min_size=num_tiers, max_size=num_tiers))
    below = draw(st.lists(links(), min_size=num_tiers - 1, max_size=num_tiers - 1))
    separation = draw(separations()) if (draw(st.booleans()) if separated is None else separated) else None
    plain = {
        "replicas": draw(st.integers(1, 3)),
        "routing": draw(st.sampled_from(routings)),
        "overlap_weight": draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
        "min_load_tokens": draw(st.sampled_from([0, 0, 2, 5])),
        "recompute_slow": draw(st.booleans()),
        "min_prefill_tokens": draw(st.integers(0, 2)),
        "queueing": draw(st.sampled_from([True, True, False])),
    }
    overlap = draw(st.sampled_from([0.0, 0.5, 1.0]))
    bytes_per_token = draw(st.integers(1, 3))
    prefill = tuple(draw(SECONDS) for _ in range(3))
    decode = tuple(draw(SECONDS) for _ in range(3))
    tiers = [TierSpec("t0", blocks=sizes[0])] + [
        TierSpec(f"t{k + 1}", blocks=size, up=as_link(link), direct=as_link(link["direct"]) if link["direct"] else None)
        for k, (size, link) in enumerate(zip(sizes[1:], below, strict=True))
    ]
    deployment = Deployment(
        tuple(tiers),
        bytes_per_token=bytes_per_token,
        prefill=PrefillTime(*prefill),
        decode=DecodeTime(*decode),
        policy=policy,
        write_mode="exclusive" if exclusive else "write_through",
        smaller_below=True,
        overlap_efficiency=overlap,
        allow_oversize=True,
        separation=separation
        and Separation(
            Link(separation["rate"], separation["latency"], separation["alpha"]),
            separation["schedule"],
            streams=separation["streams"],
            layers=separation["layers"],
            chunk_tokens=separation["chunk_tokens"],
        ),
        **plain,
    )
    as_dict = plain | {
        "new_tiers": lambda: twin.FifoTier(sizes) if policy == "fifo" else twin.LruTiers(sizes, exclusive),
        "links": below,
        "bytes_per_token": bytes_per_token,
        "prefill": prefill,
        "decode": decode,
        "overlap": overlap,
        "separation": separation,
    }
    return deployment, as_dict


def as_requests(trace):
    """The requests of a trace for the twin, arrivals counted from the first."""
    ids, cuts = trace.block_ids.tolist(), trace.offsets.tolist()
    rows = [ids[a:b] for a, b in pairwise(cuts)]
    arrival = (trace.arrival_s - trace.arrival_s[0]).tolist()
    return [
        {
            "blocks": [tuple(row[: i + 1]) for i in range(len(row))],
            "tokens": tokens,
            "hashed": min(len(row) * trace.block_size, tokens),
            "output": output,
            "arrival": when,
            "session": session,
            "number": number,
        }
        for number, (row, tokens, output, when, session) in enumerate(
            zip(
                rows,
                trace.input_tokens.tolist(),
                trace.output_tokens.tolist(),
                arrival,
                trace.session.tolist(),
                strict=True,
            )
        )
    ]


def run_twin(trace, as_dict):
    hashes = _prefix_hashes(trace, 1).tolist()
    block_size = trace.block_size
    return twin.simulate(
        as_requests(trace),
        as_dict
        | {
            "block_size": block_size,
            "block_bytes": block_size * as_dict["bytes_per_token"],
            "hash": lambda request: hashes[request["number"]],
        },
    )


def close(got, expected, clock):
    """Whether times agree at 1e-12 relative plus 1e-12 of the largest time on the clock."""
    got, expected = np.asarray(got), np.asarray(expected)
    return bool((np.abs(got - expected) <= 1e-12 * np.abs(expected) + 1e-12 * clock).all())
