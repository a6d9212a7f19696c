"""Prompts in the pieces in which their KV is computed and moved: blocks, chunks, or layers.

All KV of a prompt moves to the decode node, what was cached included; cached pieces take no time to compute. Blocks
and chunks lie at multiples of their size. A prefill pays its start once, or with every chunk that it computes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kvarray.arrays import Ids, Seconds
from kvarray.deploy.deployment import Deployment
from kvarray.deploy.routing import Routed
from kvarray.deploy.service import ServiceTimes
from kvarray.link import Link
from kvarray.ragged import lengths_to_offsets, ranges, ranks, row_ids

__all__ = ["Pieces", "pieces_of"]


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of some requests, one request after the other.

    ===========  ==========  =====  ==============================================================
    column       shape       unit   meaning
    ===========  ==========  =====  ==============================================================
    `num_bytes`  (N,)        bytes  what moves, float64
    `seconds`    (..., N)    s      what computing it takes
    `offsets`    (B + 1,)    -      request i has the pieces ``offsets[i]:offsets[i + 1]``, one or more
    `step_s`     (B,)        s      a decode step of the request
    ===========  ==========  =====  ==============================================================
    """

    num_bytes: Seconds
    seconds: Seconds
    offsets: Ids
    step_s: Seconds

    @property
    def prefill_s(self) -> Seconds:
        """Seconds of all pieces of each request, shape (..., B)."""
        if len(self.offsets) == 1:
            return np.zeros((*self.seconds.shape[:-1], 0))
        total: Seconds = np.add.reduceat(self.seconds, self.offsets[:-1], axis=-1)
        return total

    def moving_s(self, link: Link) -> Seconds:
        """Seconds for which the pieces of each request keep a stream of a link busy, shape (B,)."""
        busy = replace(link, latency_s=0.0).seconds(self.num_bytes)
        return replace(self, seconds=busy).prefill_s

    def part(self, rows: slice) -> "Pieces":
        """Return the pieces of a slice of the requests."""
        offsets = self.offsets[rows.start : rows.stop + 1]
        mine = slice(int(offsets[0]), int(offsets[-1]))
        return Pieces(self.num_bytes[mine], self.seconds[..., mine], offsets - offsets[0], self.step_s[rows])

    def by_count(self) -> Iterator[tuple[Ids, "Pieces"]]:
        """Return the requests with equally many pieces, P, each request a world of its own: columns (..., G, P)."""
        counts = np.diff(self.offsets)
        for count in np.unique(counts).tolist():
            rows = np.flatnonzero(counts == count)
            places = ranges(self.offsets[rows], counts[rows]).reshape(len(rows), count)
            yield (
                rows,
                Pieces(
                    self.num_bytes[places], self.seconds[..., places], np.array([0, count]), self.step_s[rows, None]
                ),
            )


def pieces_of(routed: Routed, deployment: Deployment, service: ServiceTimes) -> Pieces:
    """Return the pieces of all requests, in the order of `Routed.order`, as the deployment's schedule cuts them."""
    separation = deployment.separation
    assert separation is not None  # the caller looked
    tokens = routed.input_tokens
    step_s = deployment.decode.seconds(1, context_tokens=tokens)
    if separation.schedule == "layered":
        layers = separation.layers
        assert layers is not None  # checked by the separation
        piece_bytes: Seconds = np.repeat(tokens * (deployment.bytes_per_token / layers), layers)
        seconds: Seconds = np.repeat(service.prefill_s / layers, layers, axis=-1)
        return Pieces(
            piece_bytes,
            seconds,
            np.arange(len(tokens) + 1) * layers,
            step_s,
        )
    size = separation.chunk_tokens if separation.schedule == "chunked" else routed.block_size
    assert size is not None  # checked by the separation
    offsets = lengths_to_offsets(np.maximum(-(-tokens // size), 1))
    row = row_ids(offsets)
    begin = ranks(offsets) * size
    end = np.minimum(begin + size, tokens[row])
    cached = service.used_tokens[..., row]
    first, last = np.maximum(begin, cached), np.maximum(end, cached)
    if separation.schedule == "chunked":
        seconds = deployment.prefill.seconds(last, cached_tokens=first)
    else:
        starts = (begin <= cached) & (first < last)  # the first piece that is computed
        seconds = replace(deployment.prefill, start_s=0.0).seconds(last, cached_tokens=first)
        seconds = seconds + np.where(starts, deployment.prefill.start_s, 0.0)
    num_bytes = (end - begin).astype(np.float64) * deployment.bytes_per_token
    return Pieces(num_bytes, seconds, offsets, step_s)
