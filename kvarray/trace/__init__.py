"""Traces of requests: columns, identity of prefixes, readers and writers, generators."""

from kvarray.trace.columns import Skipped
from kvarray.trace.files import read_trace, write_trace
from kvarray.trace.trace import Trace

__all__ = ["Skipped", "Trace", "read_trace", "write_trace"]
