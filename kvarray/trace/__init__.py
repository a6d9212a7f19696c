"""Traces of requests: columns, identity of prefixes, readers and writers, generators."""

from kvarray.trace.arrivals import bursty_arrivals, poisson_arrivals
from kvarray.trace.columns import Skipped
from kvarray.trace.files import read_trace, write_trace
from kvarray.trace.generate import (
    agent_trace,
    builtin_trace,
    chat_trace,
    document_trace,
    zipf_trace,
)
from kvarray.trace.trace import Trace

__all__ = [
    "Skipped",
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
]
