"""Time as arrays: who does what when, on resources that serve one job at a time or divide themselves.

Every function gives a `Timeline`; leading axes are worlds of their own and broadcast.
"""

from kvarray.timeline.sharing import max_min_queue, max_min_rates, processor_sharing_queue
from kvarray.timeline.streams import (
    assigned_timeline,
    fcfs_queue,
    least_loaded_timeline,
    pipeline_timeline,
    round_robin_timeline,
    serial_timeline,
)
from kvarray.timeline.timeline import Timeline

__all__ = [
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
]
