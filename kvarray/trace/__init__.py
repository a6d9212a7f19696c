"""Traces of requests: columns, identity of prefixes, readers, writers, generators."""

from kvarray.trace.columns import Label, Skipped, Trace
from kvarray.trace.reading import read_trace

__all__ = ["Label", "Skipped", "Trace", "read_trace"]
