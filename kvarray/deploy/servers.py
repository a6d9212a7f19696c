"""One replica as a router sees it: its tiers, its queues, and the requests in flight.

This is `kvarray.deploy.service` and `kvarray.deploy.queues` for one request after the other, since a router that looks
at the state of replicas has to know it at each arrival.
"""

from heapq import heappop, heappush

from kvarray.deploy.caches import Path, SteppedTiers, usable_blocks
from kvarray.deploy.deployment import Deployment
from kvarray.deploy.recency import RecencyTiers
from kvarray.deploy.ways import ways_up
from kvarray.trace import Trace

__all__ = ["Server"]


class Server:
    """A replica that serves requests in order of arrival.

    Attributes
    ----------
    tiers : RecencyTiers or SteppedTiers
    in_flight : list of (float, int)
        Heap of requests that arrived and have tokens to come: when they end, and their blocks.
    blocks_in_flight : int
        The blocks of all of them.
    """

    def __init__(self, trace: Trace, deployment: Deployment, tiers: RecencyTiers | SteppedTiers) -> None:
        assert trace.block_size is not None  # the trace has block ids
        self.tiers = tiers
        self.in_flight: list[tuple[float, int]] = []
        self.blocks_in_flight = 0
        self._deployment = deployment
        self._block_size = trace.block_size
        self._tokens = trace.input_tokens.tolist()
        self._usable = usable_blocks(trace, deployment).tolist()
        self._hashed = (trace.input_tokens - trace.unhashed_tokens).tolist()
        step_s = deployment.decode.seconds(1, context_tokens=trace.input_tokens)
        self._decode_s = (step_s * trace.output_tokens).tolist()
        self._ways = ways_up(deployment, trace.block_size)
        self._way_free = [0.0] * len(self._ways)
        self._worker_free = 0.0

    def finish_until(self, now: float) -> None:
        """Forget the requests whose last token is out."""
        while self.in_flight and self.in_flight[0][0] <= now:
            self.blocks_in_flight -= heappop(self.in_flight)[1]

    def take(self, request: int, path: Path, now: float) -> None:
        """Serve a request that arrives."""
        loads, prefill, load, hidden = self._choose(request, self.tiers.serve(path, usable=self._usable[request]))
        end = self._prefilled(now, loads, prefill, load, hidden) + self._decode_s[request]
        blocks = -(-self._tokens[request] // self._block_size)
        heappush(self.in_flight, (end, blocks))
        self.blocks_in_flight += blocks

    def _choose(self, request: int, reach: list[list[int]]) -> tuple[list[float], float, float, float]:
        """Return seconds on each way, of prefill, of loading alone and what of that hides, by the tiers to be used."""
        deployment = self._deployment
        if not deployment.recompute_slow:
            return self._alone(request, reach[-1] if self._may_load(reach[-1]) else reach[0])
        best = self._alone(request, reach[0])
        for blocks in reach[1:]:
            found = self._alone(request, blocks)
            if self._may_load(blocks) and _total(found) <= _total(best):
                best = found
        return best

    def _may_load(self, blocks: list[int]) -> bool:
        """Return whether what would be loaded of these blocks of each tier is worth beginning with."""
        return sum(blocks[1:]) * self._block_size >= self._deployment.min_load_tokens

    def _alone(self, request: int, blocks: list[int]) -> tuple[list[float], float, float, float]:
        """Return the same for given blocks of each tier."""
        loads = []
        chain, direct = 0.0, 0.0
        for way in self._ways:
            moved = sum(blocks[tier] for tier in way.tiers)
            link = way.link
            seconds = (
                float(way.start_seconds(moved)) + moved * way.block_bytes / link.bytes_per_second if moved else 0.0
            )
            loads.append(seconds)
            if way.is_direct:
                direct = max(direct, seconds)
            else:
                chain += seconds
        tokens = self._tokens[request]
        cached = min(sum(blocks) * self._block_size, self._hashed[request])
        cached = min(cached, max(tokens - self._deployment.min_prefill_tokens, 0))
        fresh, time = tokens - cached, self._deployment.prefill
        prefill = time.start_s + fresh * (time.per_token_s + time.per_pair_s * (tokens + cached)) if fresh else 0.0
        load = max(chain, direct)
        return loads, prefill, load, self._deployment.overlap_efficiency * min(prefill, load)

    def _prefilled(self, now: float, loads: list[float], prefill: float, load: float, hidden: float) -> float:
        """Return when a request's prefill ends, behind those before it."""
        if not self._deployment.queueing:
            return now + (prefill + load - hidden)
        chain = loaded = now
        for place, (way, seconds) in enumerate(zip(self._ways, loads, strict=True)):
            if not seconds:
                continue
            begin = max(now if way.is_direct else chain, self._way_free[place])
            self._way_free[place] = begin + seconds
            if not way.is_direct:
                chain = begin + seconds
            loaded = max(loaded, begin + seconds)
        self._worker_free = max(loaded - hidden, self._worker_free) + prefill
        return self._worker_free


def _total(times: tuple[list[float], float, float, float]) -> float:
    _, prefill, load, hidden = times
    return prefill + load - hidden
