"""Times to first token of one size of the tiers under many bandwidths, and nothing else.

This is `kvarray.deploy.queues` where loads hide nothing, all hits are loaded over links between neighbours, and decode
is not apart: the queues of each link, then that of the worker. Bandwidths that agree on the deeper links share their
queues, only requests that load pass through a link, and no column is kept but the one that is asked for.
"""

from typing import Any

import numpy as np

from kvarray.arrays import Ids, Seconds
from kvarray.deploy.routing import Routed
from kvarray.deploy.ways import Way

__all__ = ["ttft_under_rates"]


def ttft_under_rates(
    routed: Routed, prefill_s: Seconds, ways: list[Way], way_blocks: list[Ids], rates: Seconds
) -> Seconds:
    """Return the time to the first token of each request under each set of bandwidths.

    Parameters
    ----------
    routed : Routed
    prefill_s : ndarray of float64, shape (B,)
        What computing takes, in the order of `Routed.order`.
    ways : list of Way
        Links up, the deepest first; none of them direct.
    way_blocks : list of ndarray of int64, shape (B,)
        Blocks that cross each.
    rates : ndarray of float64, shape (W, K - 1)
        Bytes per second of the link up from each lower tier.

    Returns
    -------
    ndarray of float64, shape (W, B)
    """
    levels, back = _shared_rates(rates, [way.below - 1 for way in ways])
    start_s = [way.start_seconds(blocks) for way, blocks in zip(ways, way_blocks, strict=True)]
    num_bytes = [(blocks * way.block_bytes).astype(np.float64) for way, blocks in zip(ways, way_blocks, strict=True)]
    ttft = np.empty((len(rates), len(prefill_s)))
    for replica in range(routed.num_replicas):
        mine = slice(int(routed.offsets[replica]), int(routed.offsets[replica + 1]))
        arrival = routed.arrival_s[mine]
        loaded = arrival[None]  # [G, b], G growing from link to link
        for blocks, start, size, (parent, rate) in zip(way_blocks, start_s, num_bytes, levels, strict=True):
            loads = np.flatnonzero(blocks[mine])
            loaded = loaded.take(parent, axis=0)
            if len(loads):
                work = start[mine][loads] + size[mine][loads] / rate[:, None]
                loaded[:, loads] = _finish(work, loaded.take(loads, axis=1))
        # finish = computed + max(ready - computed before), and less the arrival
        computed = np.cumsum(prefill_s[mine])
        waits = np.subtract(loaded, computed - prefill_s[mine], out=loaded if ways else None)
        np.maximum.accumulate(waits, axis=-1, out=waits)
        waits += computed - arrival
        ttft[:, mine] = waits if back is None else waits.take(back, axis=0)
    return ttft


def _finish(work: Seconds, ready: Seconds) -> Seconds:
    """Return when one resource has done its jobs, in array order: `kvarray.timeline.serial_timeline`."""
    done = np.cumsum(work, axis=-1)
    np.subtract(work, done, out=work)
    work += ready
    np.maximum.accumulate(work, axis=-1, out=work)
    work += done
    return work


def _shared_rates(rates: Seconds, places: list[int]) -> tuple[list[tuple[Ids, Seconds]], Any]:
    """Return, link by link, the distinct bandwidths of it and all before it, and which of the former each goes on from.

    Then, for each row of `rates`, which of the last ones it is, or None where that is the row's own number.
    """
    levels: list[tuple[Ids, Seconds]] = []
    group = np.zeros(len(rates), dtype=np.int64)  # of each row, by the links so far
    for place in places:
        pairs, first, inverse = np.unique(
            np.stack((group.astype(np.float64), rates[:, place]), axis=1),
            axis=0,
            return_index=True,
            return_inverse=True,
        )
        levels.append((group[first], pairs[:, 1]))
        group = inverse.ravel()
    return levels, None if len(places) and np.array_equal(group, np.arange(len(rates))) else group
