"""Plain-Python twin of `kvarray.economics.latency` and `kvarray.economics.loading`."""

import math


def prefill(model, tokens, cached=0):
    """Token by token: token i costs its own work, and what it adds to the square of the length."""
    if cached == tokens:
        return 0.0
    return model.start_s + sum(
        model.per_token_s + model.per_pair_s * ((i + 1) ** 2 - i**2) for i in range(cached, tokens)
    )


def load(link, num_bytes):
    """One transfer over an idle link whose fragments count by their bytes."""
    if num_bytes == 0:
        return 0.0
    fragments = num_bytes / link.fragment_bytes if link.fragment_bytes else 1
    return link.latency_s + fragments * link.alpha_s + num_bytes / link.bytes_per_second


def break_even(model, link, bytes_per_token, link_load, compute_load, limit):
    """The smallest p from which on loading p tokens is no slower than computing them; None beyond the limit."""
    best = None
    for p in range(limit, 0, -1):
        saved = (model.per_token_s * p + model.per_pair_s * p * p) / (1 - compute_load)
        if load(link, p * bytes_per_token) / (1 - link_load) > saved * (1 + 1e-12):
            break
        best = p
    return best if best is not None else math.inf
