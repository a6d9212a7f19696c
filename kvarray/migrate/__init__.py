"""Moving KV from prefill to decode: streams that move blocks, and schedules around them."""

from kvarray.migrate.batch import BatchSchedule, schedule_batch
from kvarray.migrate.engine import LostAttempts, Transfer, TransferEngine
from kvarray.migrate.schedule import Schedule
from kvarray.migrate.scheduler import PDScheduler
from kvarray.migrate.search import SizeSearch, best_chunk, best_group, overlap_bandwidth

__all__ = [
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
]
