"""Plain-Python twin of `kvarray.link` and `kvarray.fitting`."""

import math


def seconds(size, link, num_fragments=None):
    """latency + fragments x alpha + bytes / bandwidth, nothing for nothing."""
    if size == 0:
        return 0.0
    if num_fragments is None:
        num_fragments = math.ceil(size / link.fragment_bytes) if link.fragment_bytes else 1
    return link.latency_s + num_fragments * link.alpha_s + size / link.bytes_per_second


def relative_error(costs, rows, measured):
    """Sum of squared relative errors of ``sum(cost x amount)`` over the rows."""
    return sum(
        (sum(cost * amount for cost, amount in zip(costs, row, strict=True)) / time - 1.0) ** 2
        for row, time in zip(rows, measured, strict=True)
    )
