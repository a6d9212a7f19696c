"""`Deployment`: a model on some hardware, its tiers of memory, its replicas, and how requests reach them.

What the fields mean together is described where they act: routing in `kvarray.deploy.routing`, hits in
`kvarray.deploy.hits`, times in `kvarray.deploy.service` and `kvarray.deploy.queues`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, get_args

import numpy as np

from kvarray.arrays import Ids, as_int, as_positive_int, as_real
from kvarray.economics.latency import DecodeTime, PrefillTime
from kvarray.link import Link
from kvarray.migrate.batch import ScheduleName
from kvarray.policies import ORDERS, Policy
from kvarray.reuse import UNITS
from kvarray.tier.cascade import WRITE_MODES
from kvarray.tier.spec import TierSpec, check_tiers, links_between

__all__ = ["ROUTINGS", "Deployment", "Separation"]

ROUTINGS = ("round_robin", "session", "prefix_hash", "least_loaded", "prefix_aware")
"""How a request finds its replica; the last two look at the state of all replicas."""

_MOST_REPLICAS = 65_536
_NO_DECODE = DecodeTime(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Separation:
    """Prefill on nodes of its own: the KV of each prompt moves to a decode node.

    Parameters
    ----------
    link : Link
        From each prefill worker to its decode node: one stream.
    schedule : {"sequential", "pipelined", "layered", "chunked"}, optional
        What moves while what is computed, see `kvarray.migrate.scheduler`.
    streams : int, optional
        Streams of the link, each with its figures.
    layers : int, optional
        Pieces of a prompt under *layered*: its layers, or groups of them. Needed there.
    chunk_tokens : int, optional
        Tokens of a chunk under *chunked*. Needed there.
    overlap_efficiency : float, optional
        Share of the ideal overlap that is had, 0 to 1.

    Raises
    ------
    TypeError, ValueError
        If a figure is no number or out of range, a word unknown, or a schedule lacks what it needs.
    """

    link: Link
    schedule: ScheduleName = "layered"
    streams: int = 1
    layers: int | None = None
    chunk_tokens: int | None = None
    overlap_efficiency: float = 1.0

    def __post_init__(self) -> None:
        """Check the figures."""
        if not isinstance(self.link, Link):
            raise TypeError(f"link of the separation must be a Link: got {self.link!r}")
        _check_word("schedule", self.schedule, get_args(ScheduleName))
        as_positive_int("streams", self.streams)
        for schedule, field in (("layered", "layers"), ("chunked", "chunk_tokens")):
            if getattr(self, field) is not None:
                as_positive_int(field, getattr(self, field))
            elif self.schedule == schedule:
                raise ValueError(f"{field} must be given for the {schedule} schedule")
        _check_share("overlap_efficiency of the separation", self.overlap_efficiency)


@dataclass(frozen=True)
class Deployment:
    """Everything that decides what a trace would have cost.

    Parameters
    ----------
    tiers : tuple of TierSpec
        Memory of one replica, the fastest first; each below the first has a link up.
    bytes_per_token : int
        KV of a token in all the GPUs of a replica together.
    prefill : PrefillTime
        What computing a prompt takes.
    decode : DecodeTime, optional
        What a step takes; a request decodes for as many steps as it has output tokens, alone in its batch.
    model : str, optional
        What reports call the model.
    block_size : int, optional
        Tokens of a block, a multiple of the trace's; the trace's own where it is not given.
    policy, write_mode, write_at, promote_at, smaller_below : optional
        As in `kvarray.TieredCache`.
    seed : int, optional
        Of the policy ``"random"``, required there.
    replicas : int, optional
        Equal servers, each with its own tiers, links and prefill worker.
    routing : {"round_robin", "session", "prefix_hash", "least_loaded", "prefix_aware"}, optional
        How requests reach them, see `kvarray.deploy.routing`.
    overlap_weight : float, optional
        What a block to prefill weighs against a block in decoding, under *prefix_aware*.
    prefix_blocks : int, optional
        Leading blocks that decide under *prefix_hash*.
    separation : Separation, optional
        Prefill and decode on nodes of their own.
    overlap_efficiency : float, optional
        Share of the ideal overlap of loading and computing that is had, 0 to 1.
    min_load_tokens : int, optional
        Load from lower tiers only if it is at least so many tokens.
    recompute_slow : bool, optional
        Load from no deeper a tier than pays: compute what an idle link would bring later.
    min_prefill_tokens : int, optional
        Tokens of a prompt that are computed even where all are cached: engines need the last one's output.
    queueing : bool, optional
        Requests wait for workers and links; otherwise each has the deployment for itself.
    allow_oversize : bool, optional
        Accept requests that do not fit the first tier; they are cached as far as they fit.
    window : float, optional
        Share of the requests that only warm the caches and are not counted.
    unit : str, optional
        What the hit rate counts where one is shown, see `kvarray.reuse.curve`.
    target_ttft_s : float, optional
        Time to first token that counts as met.

    Raises
    ------
    TypeError, ValueError
        If a figure is no number or out of range, a word unknown, or fields do not go together.

    Examples
    --------
    >>> gpu, cpu = TierSpec.parse("gpu=16GiB"), TierSpec.parse("cpu=256GiB@dram-pcie5")
    >>> deployment = Deployment((gpu, cpu), bytes_per_token=131072, prefill=PrefillTime(0.0, 2.2e-5, 4.7e-10))
    >>> deployment.tier_blocks(512).tolist()
    [256, 4096]
    """

    tiers: tuple[TierSpec, ...]
    bytes_per_token: int
    prefill: PrefillTime
    decode: DecodeTime = _NO_DECODE
    model: str = ""
    block_size: int | None = None
    policy: str | Policy = "lru"
    write_mode: str = "exclusive"
    write_at: int = 2
    promote_at: int | None = 1
    smaller_below: bool = False
    seed: int | None = None
    replicas: int = 1
    routing: str = "round_robin"
    overlap_weight: float = 1.0
    prefix_blocks: int = 1
    separation: Separation | None = None
    overlap_efficiency: float = 0.0
    min_load_tokens: int = 0
    recompute_slow: bool = False
    min_prefill_tokens: int = 1
    queueing: bool = True
    allow_oversize: bool = False
    window: float = 0.0
    unit: str = "token"
    target_ttft_s: float | None = None

    def __post_init__(self) -> None:
        """Check the fields, one by one and together."""
        object.__setattr__(self, "tiers", tuple(self.tiers))
        check_tiers(self.tiers, as_positive_int("bytes_per_token", self.bytes_per_token))
        links_between(self.tiers)
        for field, kind in (("prefill", PrefillTime), ("decode", DecodeTime)):
            if not isinstance(getattr(self, field), kind):
                raise TypeError(f"{field} must be a {kind.__name__}: got {getattr(self, field)!r}")
        if self.separation is not None and not isinstance(self.separation, Separation):
            raise TypeError(f"separation must be a Separation: got {self.separation!r}")
        if isinstance(self.policy, str):
            _check_word("policy", self.policy, tuple(ORDERS))
        elif not callable(self.policy):
            raise TypeError(f"policy must be a name or a key function: got {self.policy!r}")
        _check_word("write_mode", self.write_mode, WRITE_MODES)
        _check_word("routing", self.routing, ROUTINGS)
        _check_word("unit", self.unit, UNITS)
        for field in ("block_size", "write_at", "promote_at", "prefix_blocks"):
            if getattr(self, field) is not None:
                as_positive_int(field, getattr(self, field))
        as_int("replicas", self.replicas, low=1, high=_MOST_REPLICAS + 1)
        for field in ("min_load_tokens", "min_prefill_tokens", "seed"):
            if getattr(self, field) is not None:
                as_int(field, getattr(self, field), low=0)
        for field in ("smaller_below", "recompute_slow", "queueing", "allow_oversize"):
            if not isinstance(getattr(self, field), bool):
                raise TypeError(f"{field} must be true or false: got {getattr(self, field)!r}")
        as_real("overlap_weight", self.overlap_weight, low=0.0)
        _check_share("overlap_efficiency", self.overlap_efficiency)
        if as_real("window", self.window, low=0.0) >= 1.0:
            raise ValueError(f"window must be less than 1: got {self.window}")
        if self.target_ttft_s is not None:
            as_real("target_ttft_s", self.target_ttft_s, low=0.0, open_low=True)
        if (self.policy == "random") != (self.seed is not None):
            raise ValueError(f"seed must be given for the policy random, and for no other: got {self.seed!r}")

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Deployment":
        """Return the deployment that a mapping of plain values describes, as a TOML file holds them.

        Parameters
        ----------
        fields : mapping
            Fields of this class, with units where they have some; see `kvarray.deploy.config` for the keys.

        Raises
        ------
        TypeError, ValueError
            If a key is unknown (the nearest ones are suggested), missing or malformed.

        Examples
        --------
        >>> deployment = Deployment.from_dict({
        ...     "model": "llama-3.1-8b", "prefill": "llama-3.1-8b-h100", "replicas": 2, "routing": "session",
        ...     "tiers": ["gpu=40GiB", {"name": "cpu", "capacity": "1TiB", "link": "dram-pcie5"}],
        ... })
        >>> deployment.bytes_per_token, deployment.tiers[1].up.bytes_per_second > 60e9
        (131072, True)
        >>> Deployment.from_dict({"replica": 2})
        Traceback (most recent call last):
            ...
        ValueError: unknown key 'replica'; did you mean replicas?
        """
        from kvarray.deploy.config import read_deployment  # which builds this class

        return read_deployment(fields)

    @classmethod
    def from_toml(cls, path: str | PathLike[str]) -> "Deployment":
        """Return the deployment that a TOML file describes.

        Raises
        ------
        OSError
            If the file cannot be read.
        TypeError, ValueError
            As `from_dict`; the message begins with the path.
        """
        from kvarray.deploy.config import read_toml

        fields = read_toml(path)
        try:
            return cls.from_dict(fields)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{path}: {error}") from None

    def tier_blocks(self, block_size: int) -> Ids:
        """Return the capacity of each tier of one replica in blocks of so many tokens, int64, shape (K,).

        Raises
        ------
        ValueError
            If a tier cannot hold one block.
        """
        return np.array(check_tiers(self.tiers, block_size * self.bytes_per_token), dtype=np.int64)

    @property
    def is_stack(self) -> bool:
        """Whether the tiers are one recency list cut at some places, so that hits of every size have a closed form."""
        admits_all = all(tier.admission == "always" and not tier.min_tokens for tier in self.tiers)
        return (
            self.policy == "lru"
            and self.write_mode in ("exclusive", "write_through")
            and self.promote_at == 1
            and admits_all
        )

    @property
    def tier_names(self) -> tuple[str, ...]:
        """Names of the tiers, the fastest first."""
        return tuple(tier.name for tier in self.tiers)


def _check_word(name: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}: got {word!r}")


def _check_share(name: str, share: float) -> None:
    if as_real(name, share, low=0.0) > 1.0:
        raise ValueError(f"{name} must be 1 or less: got {share}")
