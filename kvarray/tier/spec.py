"""`TierSpec`: one level of memory, how large it is, and how it is reached from the tier above."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvarray.arrays import as_int, as_positive_int
from kvarray.link import LINKS, Link
from kvarray.units import parse_bytes, parse_count, parse_rate

__all__ = ["ADMISSIONS", "TierSpec", "check_tiers", "links_between"]

ADMISSIONS = ("always", "frequency")
"""What a tier takes from above or from outside: all, or what was used more often lately than what would go for it."""


@dataclass(frozen=True)
class TierSpec:
    """A tier of a cache.

    Parameters
    ----------
    name : str
        What it is called in results.
    blocks : int, optional
        Capacity in blocks, ``>= 1``; this or `capacity_bytes`.
    capacity_bytes : int, optional
        Capacity in bytes, ``>= 1``; what is left of a block at the end is not used.
    up : Link, optional
        The way from here to the tier above; every tier but the first needs one.
    down : Link, optional
        The way from the tier above to here; the same as `up` where it is not given.
    direct : Link, optional
        A way from here to the top past the tiers between, which promotions take.
    admission : {"always", "frequency"}, optional
        What comes in from above or from outside.
    min_tokens : int, optional
        Tokens a block must have to come in from above or from outside; partial blocks stay out at the block size.

    Raises
    ------
    TypeError, ValueError
        If a figure is no number or out of range, a link's bandwidth is infinite, both or neither of the capacities
        are given, or a word is unknown.

    Examples
    --------
    >>> cpu = TierSpec("cpu", capacity_bytes=512 * 2**30, up=Link(50e9))
    >>> cpu.num_blocks(16 * 2**20)
    32768
    """

    name: str
    blocks: int | None = None
    capacity_bytes: int | None = None
    up: Link | None = None
    down: Link | None = None
    direct: Link | None = None
    admission: str = "always"
    min_tokens: int = 0

    def __post_init__(self) -> None:
        """Check the figures."""
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name must be a word: got {self.name!r}")
        if (self.blocks is None) == (self.capacity_bytes is None):
            raise ValueError(f"tier {self.name!r} must have either blocks or capacity_bytes")
        for field in ("blocks", "capacity_bytes"):
            if getattr(self, field) is not None:
                as_positive_int(f"{field} of tier {self.name!r}", getattr(self, field))
        for field in ("up", "down", "direct"):
            link = getattr(self, field)
            if link is not None and not isinstance(link, Link):
                raise TypeError(f"{field} of tier {self.name!r} must be a Link: got {link!r}")
            if link is not None and not math.isfinite(link.bytes_per_second):
                raise ValueError(f"{field} of tier {self.name!r} must have a finite bandwidth: got {link!r}")
        if self.down is not None and self.up is None:
            raise ValueError(f"tier {self.name!r} has a link down and none up")
        if self.admission not in ADMISSIONS:
            raise ValueError(f"admission must be one of {', '.join(ADMISSIONS)}: got {self.admission!r}")
        as_int(f"min_tokens of tier {self.name!r}", self.min_tokens, low=0)

    @classmethod
    def parse(cls, text: str) -> "TierSpec":
        """Return a tier written as ``name=capacity``, with ``@up`` or ``@up,down`` for its links.

        Parameters
        ----------
        text : str
            Capacity as a size (``64GiB``) or a count (``5000blocks``); links as rates (``50GB/s``) or names out of
            `kvarray.LINKS`.

        Raises
        ------
        ValueError
            If a part is malformed.

        Examples
        --------
        >>> TierSpec.parse("ssd=4TiB@nvme-gen4,3GB/s").down.bytes_per_second
        3000000000.0
        >>> TierSpec.parse("gpu=5000blocks").blocks
        5000
        """
        name, equals, rest = text.partition("=")
        capacity, at, links = rest.partition("@")
        if not (name.strip() and equals and capacity.strip()) or (at and not links.strip()):
            raise ValueError(f"a tier must be written as name=capacity or name=capacity@link: got {text!r}")
        up, _, down = links.partition(",")
        count = capacity.strip().removesuffix("blocks")
        return cls(
            name.strip(),
            blocks=parse_count(count) if count != capacity.strip() else None,
            capacity_bytes=None if count != capacity.strip() else parse_bytes(capacity),
            up=_parse_link(up) if at else None,
            down=_parse_link(down) if down else None,
        )

    def num_blocks(self, block_bytes: int | None) -> int:
        """Return the capacity in blocks.

        Raises
        ------
        ValueError
            If it was given in bytes and a block has none, or does not fit.

        Examples
        --------
        >>> TierSpec("gpu", capacity_bytes=1000).num_blocks(300)
        3
        """
        if self.blocks is not None:
            return self.blocks
        assert self.capacity_bytes is not None
        if block_bytes is None:
            raise ValueError(f"tier {self.name!r} is given in bytes: block_bytes must be given")
        blocks = self.capacity_bytes // as_positive_int("block_bytes", block_bytes)
        if blocks == 0:
            raise ValueError(f"tier {self.name!r} must hold a block of {block_bytes} bytes: got {self.capacity_bytes}")
        return blocks


def _parse_link(text: str) -> Link:
    name = text.strip()
    return LINKS[name] if name in LINKS else Link(parse_rate(name))


def check_tiers(tiers: Sequence[TierSpec], block_bytes: int | None) -> list[int]:
    """Return the capacities of tiers in blocks, or say what is wrong with the tiers together.

    Raises
    ------
    TypeError
        If an item is no TierSpec.
    ValueError
        If there is none, two have one name, or one is malformed.
    """
    if not tiers:
        raise ValueError("tiers must have at least one tier: got none")
    for tier in tiers:
        if not isinstance(tier, TierSpec):
            raise TypeError(f"tiers must be TierSpecs: got {tier!r}")
    names = [tier.name for tier in tiers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"tiers must have names of their own: got {', '.join(twice)} more than once")
    return [tier.num_blocks(block_bytes) for tier in tiers]


def links_between(tiers: Sequence[TierSpec]) -> tuple[list[Link], list[Link], list[Link | None]]:
    """Return the links between neighbours, up and down, and the direct ways to the top.

    Raises
    ------
    ValueError
        If a tier below the first has no link.
    """
    up, down, direct = [], [], []
    for tier in tiers[1:]:
        if tier.up is None:
            raise ValueError(f"tier {tier.name!r} must have a link up to say what its moves cost")
        up.append(tier.up)
        down.append(tier.down or tier.up)
        direct.append(tier.direct)
    return up, down, direct
