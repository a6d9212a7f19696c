"""KV-cache infrastructure of LLM serving as NumPy arrays."""

from kvarray.block import (Admission, BlockAllocator, BlockEvents, BlockStats, BlockTable, Copies, TableStats, TokenTable,)
from kvarray.economics.latency import (DecodeFit, DecodeTime, GPUS, Gpu, PREFILL_TIMES, PrefillFit, PrefillFlops, PrefillTime, fit_decode, fit_prefill,)
from kvarray.economics.loading import LoadOrRecompute, break_even_tokens, load_or_recompute, overlapped_seconds
from kvarray.errors import (BlockStateError, CapacityError, InvariantError, KVArrayError, OversizeError, TraceError, TransferError,)
from kvarray.fitting import Fit, fit_costs
from kvarray.hashing import chain_hashes, content_hashes, hash_blocks, image_block_keys, namespace_hash
from kvarray.link import LINKS, Link, LinkFit, fit_link
from kvarray.migrate import (BatchSchedule, LostAttempts, PDScheduler, Schedule, SizeSearch, Transfer, TransferEngine, best_chunk, best_group, overlap_bandwidth, schedule_batch,)
from kvarray.policies import POLICIES
from kvarray.prefix import (Evicted, Lock, Match, MatchBatch, RadixTree, ServedBatch, TreeEvents, TreeStats,)
from kvarray.reuse import HitCurve, hit_curve, optimal_hits, stream_curve, ttl_curve, working_set
from kvarray.stepping import PrefixSteps, step_prefix
from kvarray.timeline import (Timeline, assigned_timeline, fcfs_queue, least_loaded_timeline, max_min_queue, max_min_rates, pipeline_timeline, processor_sharing_queue, round_robin_timeline, serial_timeline,)
from kvarray.trace import (Trace, agent_trace, builtin_trace, bursty_arrivals, chat_trace, document_trace, poisson_arrivals, read_trace, write_trace, zipf_trace,)

__all__ = [
    "Admission",
    "BatchSchedule",
    "BlockAllocator",
    "BlockEvents",
    "BlockStateError",
    "BlockStats",
    "BlockTable",
    "CapacityError",
    "Copies",
    "DecodeFit",
    "DecodeTime",
    "Evicted",
    "Fit",
    "GPUS",
    "Gpu",
    "HitCurve",
    "InvariantError",
    "KVArrayError",
    "LINKS",
    "Link",
    "LinkFit",
    "LoadOrRecompute",
    "Lock",
    "LostAttempts",
    "Match",
    "MatchBatch",
    "OversizeError",
    "PDScheduler",
    "POLICIES",
    "PREFILL_TIMES",
    "PrefillFit",
    "PrefillFlops",
    "PrefillTime",
    "PrefixSteps",
    "RadixTree",
    "Schedule",
    "ServedBatch",
    "SizeSearch",
    "TableStats",
    "Timeline",
    "TokenTable",
    "Trace",
    "TraceError",
    "Transfer",
    "TransferEngine",
    "TransferError",
    "TreeEvents",
    "TreeStats",
    "agent_trace",
    "assigned_timeline",
    "best_chunk",
    "best_group",
    "break_even_tokens",
    "builtin_trace",
    "bursty_arrivals",
    "chain_hashes",
    "chat_trace",
    "content_hashes",
    "document_trace",
    "fcfs_queue",
    "fit_costs",
    "fit_decode",
    "fit_link",
    "fit_prefill",
    "hash_blocks",
    "hit_curve",
    "image_block_keys",
    "least_loaded_timeline",
    "load_or_recompute",
    "max_min_queue",
    "max_min_rates",
    "namespace_hash",
    "optimal_hits",
    "overlap_bandwidth",
    "overlapped_seconds",
    "pipeline_timeline",
    "poisson_arrivals",
    "processor_sharing_queue",
    "read_trace",
    "round_robin_timeline",
    "schedule_batch",
    "serial_timeline",
    "step_prefix",
    "stream_curve",
    "ttl_curve",
    "working_set",
    "write_trace",
    "zipf_trace",
]

__version__ = "0.1.0"
