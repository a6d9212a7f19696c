"""What the layers of a model keep for a sequence: streams that grow with its tokens, and states that do not.

Every cache in use is a sum of two laws. A *stream* keeps vectors for tokens:

    entries(n) = min(n, window) // ratio        bytes(n) = entries(n) x heads x bytes of the head's vectors

Full attention has neither window nor ratio; a sliding or chunked layer has a window; MLA is one "head" that holds the
latent and the rotary part; a sparse-attention indexer is a stream of one more key; compressed attention keeps one
entry for each `ratio` tokens. A *state* is fixed per sequence: the recurrence of a linear-attention or Mamba layer,
the tail of its convolution, the open window of a compressor.

Tensor parallelism is one law for all of them: heads are split over the ranks, and where there are fewer heads than
ranks each rank holds a copy of one (which copies MLA latents and indexer keys to every rank).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from kvarray.arrays import as_positive_int, check_type
from kvarray.economics.dtypes import KVDtype, kv_dtype

__all__ = ["FixedState", "KVStream", "entry_bytes", "heads_per_rank", "merge_alike", "state_bytes"]


@dataclass(frozen=True, slots=True)
class KVStream:
    """Vectors that some layers keep for the tokens of a sequence.

    Attributes
    ----------
    kind : str
        ``full``, ``sliding``, ``chunked``, ``latent``, ``index``, ``compressed`` ...: what reports are split by.
    heads : int
        Heads that hold vectors of their own; split over the ranks.
    widths : tuple of int
        Numbers in each vector of a head and entry: key and value, or latent and rotary part, or one index key.
    window : int or None
        Tokens kept at most.
    ratio : int
        Tokens to an entry.
    aligned : bool
        The window starts at its own multiples (chunks) instead of sliding along.
    layers : int
        Layers that keep such a stream.
    """

    kind: str
    heads: int
    widths: tuple[int, ...]
    window: int | None = None
    ratio: int = 1
    aligned: bool = False
    layers: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        check_type("kind of a stream", self.kind, str)
        for name in ("heads", "ratio", "layers"):
            as_positive_int(f"{name} of the {self.kind} stream", getattr(self, name))
        if not check_type(f"widths of the {self.kind} stream", self.widths, tuple):
            raise ValueError(f"widths of the {self.kind} stream must name at least one vector: got none")
        for width in self.widths:
            as_positive_int(f"widths of the {self.kind} stream", width)
        if self.window is not None:
            as_positive_int(f"window of the {self.kind} stream", self.window)


@dataclass(frozen=True, slots=True)
class FixedState:
    """What some layers keep for a sequence whatever its length.

    Attributes
    ----------
    kind : str
        ``linear``, ``mamba``, ``conv``, ``compressor``: what reports are split by.
    heads : int
        Heads, groups or channels; split over the ranks.
    width : int
        Numbers of one head.
    dtype : str
        Their format, which the cache's does not change.
    layers : int
        Layers that keep such a state.
    """

    kind: str
    heads: int
    width: int
    dtype: str
    layers: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        check_type("kind of a state", self.kind, str)
        for name in ("heads", "width", "layers"):
            as_positive_int(f"{name} of the {self.kind} state", getattr(self, name))
        kv_dtype(self.dtype)


_Part = TypeVar("_Part", KVStream, FixedState)


def merge_alike(parts: Iterable[_Part]) -> tuple[_Part, ...]:
    """Return the parts with those that differ in nothing but their layers put together, in order of first mention.

    Examples
    --------
    >>> [part.layers for part in merge_alike([KVStream("full", 8, (128, 128))] * 3)]
    [3]
    """
    layers: dict[_Part, int] = {}
    for part in parts:
        one = replace(part, layers=1)
        layers[one] = layers.get(one, 0) + part.layers
    return tuple(replace(one, layers=count) for one, count in layers.items())


def heads_per_rank(heads: int, tp: int, *, what: str) -> int:
    """Return how many of `heads` each of `tp` ranks holds.

    Parameters
    ----------
    heads, tp : int
        Heads, and ranks that they are split over.
    what : str
        Whose heads, for the message.

    Returns
    -------
    int
        ``heads / tp``, or 1 copy each where there are fewer heads than ranks.

    Raises
    ------
    ValueError
        If neither divides the other.

    Examples
    --------
    >>> heads_per_rank(8, 4, what="KV"), heads_per_rank(8, 16, what="KV")
    (2, 1)
    """
    if heads % tp == 0:
        return heads // tp
    if tp % heads == 0:
        return 1
    raise ValueError(f"tp must divide the {heads} {what} heads, or be a multiple of them: got {tp}")


def entry_bytes(stream: KVStream, number_format: KVDtype, tp: int) -> int:
    """Return what one entry of a stream costs in one rank, all its layers together.

    Examples
    --------
    >>> entry_bytes(KVStream("full", 8, (128, 128), layers=80), kv_dtype("fp16"), 1)
    327680
    """
    heads = heads_per_rank(stream.heads, tp, what=f"{stream.kind} KV")
    return stream.layers * heads * sum(number_format.vector_bytes(width) for width in stream.widths)


def state_bytes(state: FixedState, tp: int) -> int:
    """Return what a fixed state of one sequence costs in one rank, all its layers together.

    Examples
    --------
    >>> state_bytes(FixedState("mamba", 8192, 16, "bf16", layers=28), 4)
    1835008
    """
    heads = heads_per_rank(state.heads, tp, what=f"{state.kind} state")
    return state.layers * heads * kv_dtype(state.dtype).vector_bytes(state.width)
