"""What a model keeps for its tokens: `ModelSpec`, from fields, a config, or a name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvarray.arrays import as_int, as_positive_int, check_type
from kvarray.economics.fields import shown
from kvarray.economics.layers import FixedState, KVStream

__all__ = ["ModelSpec"]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The cache of one model, as sums over its layers.

    Attributes
    ----------
    name : str
        What reports call it.
    streams : tuple of KVStream
        What grows with the tokens.
    states : tuple of FixedState
        What each sequence keeps whatever its length.
    draft_streams : tuple of KVStream
        What the draft (multi-token prediction) layers would add; counted only on request.
    num_heads : int or None
        Attention heads, which the ranks of a tensor-parallel group must divide; None where unknown.
    max_tokens : int or None
        Longest context that the config names.
    assumptions : tuple of str
        What the config did not say and had to be taken from elsewhere, one line each.

    Raises
    ------
    TypeError
        If a part is not of its kind.
    ValueError
        If there is nothing to keep.

    Examples
    --------
    >>> spec = ModelSpec.from_name("llama-3.1-70b")
    >>> spec.bytes_per_token(), spec.bytes_per_token(dtype="int4")
    (327680, 81920)
    >>> spec.streams
    (KVStream(kind='full', heads=8, widths=(128, 128), window=None, ratio=1, aligned=False, layers=80),)
    """

    name: str
    streams: tuple[KVStream, ...]
    states: tuple[FixedState, ...] = ()
    draft_streams: tuple[KVStream, ...] = ()
    num_heads: int | None = None
    max_tokens: int | None = None
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values."""
        check_type("name", self.name, str)
        for field, kind in (("streams", KVStream), ("states", FixedState), ("draft_streams", KVStream)):
            for at, part in enumerate(check_type(f"{field} of {self.name}", getattr(self, field), tuple)):
                check_type(f"{field}[{at}] of {self.name}", part, kind)
        if not self.streams and not self.states:
            raise ValueError(f"{self.name}: a model must keep something: got no streams and no states")

    @classmethod
    def from_fields(
        cls,
        name: str,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        v_head_dim: int | None = None,
        window: int | None = None,
        num_window_layers: int | None = None,
    ) -> "ModelSpec":
        """Return the spec of a model whose layers keep keys and values of one shape.

        Parameters
        ----------
        name : str
            What reports call it.
        num_layers, num_kv_heads, head_dim : int
            Attention layers, key-value heads of each, numbers in a key.
        v_head_dim : int, optional
            Numbers in a value; as in a key by default.
        window : int, optional
            Tokens that the sliding layers keep.
        num_window_layers : int, optional
            How many of the layers slide; all of them by default, if there is a window.

        Raises
        ------
        ValueError
            If a number is out of range, or layers slide without a window.

        Notes
        -----
        Anything else (latents, states, ratios) is a `ModelSpec` of streams and states given as they are.

        Examples
        --------
        >>> ModelSpec.from_fields("mine", num_layers=80, num_kv_heads=8, head_dim=128).bytes_per_token(dtype="fp16")
        327680
        """
        layers = as_positive_int("num_layers", num_layers)
        heads, key = as_positive_int("num_kv_heads", num_kv_heads), as_positive_int("head_dim", head_dim)
        widths = (key, key if v_head_dim is None else as_positive_int("v_head_dim", v_head_dim))
        if window is None:
            if num_window_layers:
                raise ValueError(f"window must be given for the {num_window_layers} layers that slide: got None")
            return cls(name, (KVStream("full", heads, widths, layers=layers),))
        sliding = layers if num_window_layers is None else as_int("num_window_layers", num_window_layers, low=0)
        if sliding > layers:
            raise ValueError(f"num_window_layers must be {layers} at most, the layers there are: got {sliding}")
        window = as_positive_int("window", window)
        kept = {"full": (None, layers - sliding), "sliding": (window, sliding)}
        return cls(
            name,
            tuple(
                KVStream(kind, heads, widths, window=most, layers=count)
                for kind, (most, count) in kept.items()
                if count
            ),
        )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], *, name: str = "config") -> "ModelSpec":
        """Return the spec of a Hugging Face config given as a mapping.

        Parameters
        ----------
        config : mapping
            The content of a `config.json`; the text part of a composite one is found.
        name : str, optional
            What to call the model, in messages too.

        Raises
        ------
        ValueError
            If a field is missing, contradictory or not understood; the message says which and what is needed.

        Examples
        --------
        >>> spec = ModelSpec.from_dict({"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768})
        >>> for line in spec.assumptions:
        ...     print(line)
        num_key_value_heads is absent: 12, one for each attention head
        head_dim is absent: hidden_size / heads = 768 / 12 = 64
        """
        from kvarray.economics.config import read_config  # which builds this class

        return read_config(config, name=name, where=name)

    @classmethod
    def from_file(cls, path: str) -> "ModelSpec":
        """Return the spec of a `config.json`, or of the folder that holds one.

        Raises
        ------
        OSError
            If it cannot be read.
        ValueError
            If it is not JSON, states a field twice with different values, or is not a config that is understood; the
            message names the path.
        """
        import json
        import os

        from kvarray.economics.config import read_config  # which builds this class

        path = os.fsdecode(path)
        if os.path.isdir(path):
            path = os.path.join(path, "config.json")
        with open(path, encoding="utf-8") as file:
            try:
                config = json.load(file, object_pairs_hook=_without_contradictions)
            except RecursionError:
                raise ValueError(f"{path}: a config must be JSON of a few levels: it is nested too deeply") from None
            except ValueError as error:  # JSON that is none, or bytes that are no text
                raise ValueError(f"{path}: a config must be JSON: {error}") from None
        name = os.path.basename(path).removesuffix(".json").replace("--", "/")
        if name == "config":
            name = os.path.basename(os.path.dirname(os.path.abspath(path)))
        return read_config(config, name=name, where=path)

    @classmethod
    def from_name(cls, name: str) -> "ModelSpec":
        """Return the spec of a model of the built-in catalogue.

        Parameters
        ----------
        name : str
            As people type it: ``Qwen/Qwen3-32B``, ``qwen3-32b``, ``DeepSeek V3``; case, organisation and separators
            do not matter, nor does a suffix such as ``-Instruct``.

        Raises
        ------
        ValueError
            If there is no such model; the nearest names are suggested.

        Examples
        --------
        >>> ModelSpec.from_name("deepseek-ai/DeepSeek-V3").bytes_per_token()
        70272
        """
        from kvarray.economics.catalogue import catalogue_config

        found, config = catalogue_config(check_type("name", name, str))
        return cls.from_dict(config, name=found)

    def bytes_per_token(self, *, dtype: str = "bf16", tp: int = 1) -> int:
        """Return what a token costs in a rank while every layer keeps it; see `Footprint.bytes_per_token`."""
        return int(self._footprint(dtype, tp).bytes_per_token()[0])

    def bytes_per_block(self, block_size: int, *, dtype: str = "bf16", tp: int = 1) -> int:
        """Return what a block of tokens costs in a rank; see `Footprint.bytes_per_block`."""
        return int(self._footprint(dtype, tp).bytes_per_block(block_size)[0])

    def bytes_per_sequence(self, tokens: int, *, dtype: str = "bf16", tp: int = 1) -> int:
        """Return what one sequence of a length costs in a rank; see `Footprint.bytes_per_sequence`.

        Examples
        --------
        >>> ModelSpec.from_name("llama-3.1-70b").bytes_per_sequence(131072) / 2**30
        40.0
        """
        return int(self._footprint(dtype, tp).bytes_per_sequence([tokens])[0, 0])

    def _footprint(self, dtype: str, tp: int) -> Any:
        from kvarray.economics.memory import Footprint  # whose columns are made of this class

        return Footprint.of([self], dtype=dtype, tp=tp)


def _without_contradictions(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict, or raise where it states a field twice with different values."""
    fields = dict(pairs)
    for field, value in pairs if len(fields) < len(pairs) else ():
        if (type(value), value) != (type(fields[field]), fields[field]):
            raise ValueError(f"{field} is stated twice, as {shown(value)} and {shown(fields[field])}")
    return fields
