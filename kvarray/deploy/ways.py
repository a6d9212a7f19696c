"""The ways that cached blocks take up to the first tier of a replica.

A tier below the first is read over the link to the tier above it, over the one from there to the next, and so on; or
over its direct link, where it has one. All blocks that a request needs over a link are one transfer: the latency once,
a fragment or more for each block, and all the bytes.
"""

from dataclasses import dataclass
from typing import Any

from kvarray.deploy.deployment import Deployment
from kvarray.link import Link

__all__ = ["Way", "ways_up"]


@dataclass(frozen=True)
class Way:
    """A link up, and whose blocks take it.

    Attributes
    ----------
    name : str
        The tiers it joins, such as ``"ssd->cpu"``.
    link : Link
    below : int
        The tier it leads up from.
    tiers : tuple of int
        The tiers whose blocks take it.
    is_direct : bool
        Whether it leads straight to the first tier, past those between.
    block_bytes : int
        Bytes of a block.
    fragments : float
        Fragments of a block.
    """

    name: str
    link: Link
    below: int
    tiers: tuple[int, ...]
    is_direct: bool
    block_bytes: int
    fragments: float

    def start_seconds(self, blocks: Any) -> Any:
        """Return what moving some blocks, a number or an array, takes beside their bytes, where there are any."""
        return self.link.latency_s + blocks * self.fragments * self.link.alpha_s


def ways_up(deployment: Deployment, block_size: int) -> list[Way]:
    """Return the links over which blocks come up: those between neighbours, the deepest first, then direct ones.

    Examples
    --------
    >>> from kvarray.economics.latency import PrefillTime
    >>> from kvarray.tier import TierSpec
    >>> tiers = [TierSpec.parse(text) for text in ("gpu=1GiB", "cpu=4GiB@50GB/s", "ssd=1TiB@7GB/s")]
    >>> ways = ways_up(Deployment(tuple(tiers), bytes_per_token=1024, prefill=PrefillTime(0.0, 1e-5, 0.0)), 16)
    >>> [(way.name, way.tiers) for way in ways]
    [('ssd->cpu', (2,)), ('cpu->gpu', (1, 2))]
    """
    tiers = deployment.tiers
    block_bytes = deployment.bytes_per_token * block_size

    def way(name: str, link: Link, below: int, served: list[int], is_direct: bool) -> Way:
        return Way(name, link, below, tuple(served), is_direct, block_bytes, float(link.fragments(block_bytes)))

    ways = []
    for below in range(len(tiers) - 1, 0, -1):
        served = [tier for tier in range(below, len(tiers)) if tiers[tier].direct is None]
        up = tiers[below].up
        assert up is not None  # a deployment has links
        if served:
            ways.append(way(f"{tiers[below].name}->{tiers[below - 1].name}", up, below, served, False))
    for below in range(len(tiers) - 1, 0, -1):
        direct = tiers[below].direct
        if direct is not None:
            ways.append(way(f"{tiers[below].name}->{tiers[0].name} direct", direct, below, [below], True))
    return ways
