"""KV-cache infrastructure of LLM serving as NumPy arrays.

A tour in ten lines:

>>> import kvarray
>>> trace = kvarray.builtin_trace()  # or kvarray.read_trace("requests.jsonl")
>>> curve = kvarray.hit_curve(trace)  # every capacity at once
>>> f"{curve.hit_rate(5_000):.1%} of {curve.ceiling():.1%}"
'77.0% of 84.1%'
>>> splits = kvarray.tier_curve(trace).hits([[500, 4_500], [2_000, 3_000]])  # every split into tiers
>>> kvarray.optimal_hits(trace, [5_000]).hit_tokens / curve.totals["token"]
array([0.83718272])
>>> model = kvarray.ModelSpec.from_name("llama-3.1-70b")
>>> model.bytes_per_token(dtype="fp8")
163840

Names are imported when they are first used, so that `import kvarray` costs next to nothing beyond NumPy. Type checkers
read them in ``__init__.pyi``.
"""

from typing import Any

_HOMES = {
    "kvarray.block": (
        "Admission",
        "BlockAllocator",
        "BlockEvents",
        "BlockStats",
        "BlockTable",
        "Copies",
        "TableStats",
        "TokenTable",
    ),
    "kvarray.deploy": (
        "Deployment",
        "Replay",
        "Separation",
        "replay",
    ),
    "kvarray.economics": (
        "FixedState",
        "Footprint",
        "KVDtype",
        "KVStream",
        "MemoryPrice",
        "ModelSpec",
        "cost_per_million_tokens",
        "kv_dtype",
    ),
    "kvarray.economics.latency": (
        "DecodeFit",
        "DecodeTime",
        "GPUS",
        "Gpu",
        "PREFILL_TIMES",
        "PrefillFit",
        "PrefillFlops",
        "PrefillTime",
        "fit_decode",
        "fit_prefill",
    ),
    "kvarray.economics.loading": (
        "LoadOrRecompute",
        "break_even_tokens",
        "load_or_recompute",
        "overlapped_seconds",
    ),
    "kvarray.errors": (
        "BlockStateError",
        "CapacityError",
        "InvariantError",
        "KVArrayError",
        "OversizeError",
        "SweepError",
        "TraceError",
        "TransferError",
    ),
    "kvarray.fitting": (
        "Fit",
        "fit_costs",
    ),
    "kvarray.grid": (
        "Grid",
        "Prices",
        "Sweep",
        "sweep",
    ),
    "kvarray.hashing": (
        "chain_hashes",
        "content_hashes",
        "hash_blocks",
        "image_block_keys",
        "namespace_hash",
    ),
    "kvarray.link": (
        "LINKS",
        "Link",
        "LinkFit",
        "fit_link",
    ),
    "kvarray.migrate": (
        "BatchSchedule",
        "LostAttempts",
        "PDScheduler",
        "Schedule",
        "SizeSearch",
        "Transfer",
        "TransferEngine",
        "best_chunk",
        "best_group",
        "overlap_bandwidth",
        "schedule_batch",
    ),
    "kvarray.policies": ("POLICIES",),
    "kvarray.prefix": (
        "Evicted",
        "Lock",
        "Match",
        "MatchBatch",
        "RadixTree",
        "ServedBatch",
        "TreeEvents",
        "TreeStats",
    ),
    "kvarray.reuse": (
        "HitCurve",
        "TierCost",
        "TierCurve",
        "TierFlows",
        "hit_curve",
        "optimal_hits",
        "stream_curve",
        "tier_curve",
        "ttl_curve",
        "working_set",
    ),
    "kvarray.stepping": (
        "PrefixSteps",
        "step_policy",
        "step_prefix",
    ),
    "kvarray.tier": (
        "TierAccess",
        "TierSpec",
        "TieredCache",
    ),
    "kvarray.timeline": (
        "Timeline",
        "assigned_timeline",
        "fcfs_queue",
        "least_loaded_timeline",
        "max_min_queue",
        "max_min_rates",
        "pipeline_timeline",
        "processor_sharing_queue",
        "round_robin_timeline",
        "serial_timeline",
    ),
    "kvarray.trace": (
        "Trace",
        "agent_trace",
        "builtin_trace",
        "bursty_arrivals",
        "chat_trace",
        "document_trace",
        "poisson_arrivals",
        "read_trace",
        "write_trace",
        "zipf_trace",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOME_OF:
        value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
        return value
    try:
        return importlib.import_module(f"kvarray.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"kvarray.{name}":
            raise
    raise AttributeError(f"module 'kvarray' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
