"""Bytes of KV for many models, formats and lengths at once, and the way back from memory to tokens.

A `Footprint` is a table: one row per model, format and tensor-parallel degree; the streams of all rows lie flat
beside each other. All figures are those of *one rank*; a group of `tp` ranks holds `tp` times as much, replicas
included.

Blocks: a sequence holds whole blocks. A window of w tokens can lie across one block of T more than it would fill, so a
windowed layer is charged ``min(ceil(n / T), ceil((w + T - 1) / T))`` blocks: those of all its tokens, or the most that
its window can lie across. Chunks begin at their own multiples, which saves that block where T divides them. vLLM holds
the same at decode; during prefill its windows hold the tokens being computed too, which are not counted here. Hybrid
engines that pad states and pages to one size, or keep states at block boundaries for prefix caching, need more.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Flags, Ids, as_ints, as_positive_int, check_type
from kvarray.economics.dtypes import KVDtype, kv_dtype
from kvarray.economics.layers import entry_bytes, state_bytes
from kvarray.economics.model import ModelSpec
from kvarray.ragged import lengths_to_offsets, row_ids

__all__ = ["Footprint"]

_NO_WINDOW = 2**62
_LONGEST = 2**60  # tokens of a sequence or block: rounded up to blocks, they and the windows stay within 64 bits


@dataclass(frozen=True, eq=False)
class Footprint:
    """What the caches of B models cost in bytes, as columns; made by `Footprint.of`.

    Row b owns the streams ``stream_offsets[b]:stream_offsets[b + 1]`` of the flat columns.

    ================  =======  =====  ====================================================================
    column            dtype    unit   meaning
    ================  =======  =====  ====================================================================
    `stream_offsets`  int64    1      [B + 1] where the streams of each row begin
    `entry_bytes`     int64    bytes  [S] one entry of a stream: all its layers, one rank
    `window`          int64    token  [S] tokens kept at most; 2^62 where there is no window
    `ratio`           int64    token  [S] tokens to an entry
    `is_aligned`      bool     -      [S] the window begins at its own multiples
    `state_bytes`     int64    bytes  [B] fixed state of one sequence, one rank
    `tp`              int64    rank   [B] ranks that share the heads
    ================  =======  =====  ====================================================================
    """

    models: tuple[ModelSpec, ...]
    dtypes: tuple[KVDtype, ...]
    tp: Ids
    stream_offsets: Ids
    stream_kinds: tuple[str, ...]
    entry_bytes: Ids
    window: Ids
    ratio: Ids
    is_aligned: Flags
    state_bytes: Ids

    @classmethod
    def of(
        cls,
        models: Sequence[ModelSpec],
        *,
        dtype: str | KVDtype | Sequence[str | KVDtype] = "bf16",
        index_dtype: str | KVDtype | Sequence[str | KVDtype] | None = None,
        tp: ArrayLike = 1,
        with_drafts: bool = False,
    ) -> "Footprint":
        """Return the footprint of models at given number formats and tensor-parallel degrees.

        Parameters
        ----------
        models : sequence of ModelSpec, length B
            One row each; repeat a model to compare formats.
        dtype : str or KVDtype, or a sequence of B
            Format of the cache: a name of `kv_dtype`, or its result. Fixed states keep their own.
        index_dtype : str or KVDtype, or a sequence of B, optional
            Format of the keys of sparse-attention indexers, that of the cache by default. vLLM and SGLang keep
            DeepSeek's as ``kv_dtype("fp8", group_size=128, scale_dtype="fp32")``.
        tp : int, or array_like of int, shape (B,)
            Ranks that share the heads: heads are split, and copied where there are fewer than ranks.
        with_drafts : bool, optional
            Count the draft (multi-token prediction) layers too.

        Raises
        ------
        ValueError
            If a format is unknown, lengths differ, `tp` neither divides nor is a multiple of some heads, or a token
            and the state of a model do not fit 62 bits.

        Notes
        -----
        O(streams). Rows are independent of each other.

        Examples
        --------
        >>> llama = ModelSpec.from_name("llama-3.1-70b")
        >>> table = Footprint.of([llama] * 3, dtype=["fp16", "fp8", "int4"])
        >>> table.bytes_per_token()
        array([327680, 163840,  81920])
        >>> table.bytes_per_sequence([131072]) / 2**30
        array([[40.],
               [20.],
               [10.]])
        >>> Footprint.of([llama], tp=8).tokens_that_fit(80 * 2**30)
        array([2097152])
        """
        if not isinstance(models, Iterable):
            raise TypeError(f"models must be a sequence of ModelSpec: got {models!r}")
        models = tuple(models)
        if not models:
            raise ValueError("models must name at least one model: got none")
        for at, model in enumerate(models):
            check_type(f"models[{at}]", model, ModelSpec)
        formats = _formats("dtype", dtype, len(models))
        index_formats = formats if index_dtype is None else _formats("index_dtype", index_dtype, len(models))
        ranks = _one_per_row("tp", tp, len(models), of="model", low=1)
        rows = [model.streams + (model.draft_streams if with_drafts else ()) for model in models]
        entry = [
            entry_bytes(stream, of_index if stream.kind == "index" else of_cache, int(degree))
            for row, of_cache, of_index, degree in zip(rows, formats, index_formats, ranks, strict=True)
            for stream in row
        ]
        state = [_state_bytes(model, int(degree)) for model, degree in zip(models, ranks, strict=True)]
        flat = [stream for row in rows for stream in row]
        offsets = lengths_to_offsets(np.array([len(row) for row in rows]))
        for at, (model, start, stop) in enumerate(zip(models, offsets[:-1], offsets[1:], strict=True)):
            least = sum(entry[start:stop]) + state[at]
            if least >= 2**62:
                raise ValueError(f"models[{at}] must keep less than 2^62 bytes for a token: {model.name} keeps {least}")
        return cls(
            models=models,
            dtypes=formats,
            tp=ranks,
            stream_offsets=offsets,
            stream_kinds=tuple(stream.kind for stream in flat),
            entry_bytes=np.array(entry, dtype=np.int64),
            window=np.array([min(stream.window or _NO_WINDOW, _NO_WINDOW) for stream in flat], dtype=np.int64),
            ratio=np.array([stream.ratio for stream in flat], dtype=np.int64),
            is_aligned=np.array([stream.aligned for stream in flat], dtype=np.bool_),
            state_bytes=np.array(state, dtype=np.int64),
        )

    def bytes_per_token(self) -> Ids:
        """Return what one more token costs while every layer keeps it.

        Returns
        -------
        ndarray of int64, shape (B,)
            ``sum of entry_bytes / ratio`` over the streams of a row, windows not yet full; the usual "KV bytes per
            token". A fraction of a byte, which only compressed layers can leave, counts as one. Layers of fixed state
            add nothing.
        """
        common = math.lcm(*self.ratio.tolist())
        self._check_fits(ratios=common)
        return -(-self._row_sums(self.entry_bytes * (common // self.ratio)) // common)

    def marginal_bytes(self, tokens: ArrayLike) -> Ids:
        """Return what the next token adds to a sequence of each length: nothing in a layer whose window is full.

        Parameters
        ----------
        tokens : array_like of int, shape (K,)
            Lengths, 0 or more.

        Returns
        -------
        ndarray of int64, shape (B, K)
            ``bytes_per_sequence(tokens + 1) - bytes_per_sequence(tokens)``.
        """
        lengths = as_ints("tokens", tokens, low=0)
        self._check_fits(tokens=1 + int(lengths.max(initial=0)))
        return self._bytes(lengths + 1, 1) - self._bytes(lengths, 1)

    def bytes_per_block(self, block_size: int) -> Ids:
        """Return what a block costs across all layers that keep tokens.

        Parameters
        ----------
        block_size : int
            Tokens of a block; a multiple of every ratio.

        Returns
        -------
        ndarray of int64, shape (B,)
        """
        size = self._block_size(block_size)
        self._check_fits(block_size=size)
        return self._row_sums(self.entry_bytes * (size // self.ratio))

    def bytes_per_sequence(self, tokens: ArrayLike, *, block_size: int = 1) -> Ids:
        """Return what one sequence of each length costs, fixed state included.

        Parameters
        ----------
        tokens : array_like of int, shape (K,)
            Lengths, 1 or more.
        block_size : int, optional
            Tokens of a block: lengths are rounded up to whole blocks. 1 rounds nothing.

        Returns
        -------
        ndarray of int64, shape (B, K)
            ``state_bytes + sum of entry_bytes x (min(n, window) // ratio)`` over the streams of a row.

        Raises
        ------
        ValueError
            If a length is below 1, the block size is not a multiple of a ratio, or the bytes might not fit 64 bits.

        Notes
        -----
        O(B K), and O(K) for each stream with a window or a ratio. Never falls as tokens grow.
        """
        lengths, size = self._lengths(tokens), self._block_size(block_size)
        self._check_fits(tokens=int(lengths.max(initial=0)), block_size=size)
        return self._bytes(lengths, size)

    def split_by_kind(self, tokens: ArrayLike, *, block_size: int = 1) -> dict[str, Ids]:
        """Return `bytes_per_sequence` split by the kind of what is kept; the parts add up to it exactly.

        Parameters
        ----------
        tokens : array_like of int, shape (K,)
            Lengths, 1 or more.
        block_size : int, optional
            Tokens of a block.

        Returns
        -------
        dict of str to ndarray of int64, shape (B, K)
            ``full``, ``sliding``, ``latent``, ``index`` ..., in order of first mention, and ``state``.

        Examples
        --------
        >>> spec = ModelSpec.from_name("gpt-oss-20b")
        >>> {kind: int(part[0, 0]) for kind, part in Footprint.of([spec]).split_by_kind([8192]).items()}
        {'sliding': 3145728, 'full': 201326592, 'state': 0}
        """
        lengths, size = self._lengths(tokens), self._block_size(block_size)
        self._check_fits(tokens=int(lengths.max(initial=0)), block_size=size)
        parts = self._stream_bytes(lengths, size)  # [S, K]
        kinds = np.array(self.stream_kinds)
        split = {
            kind: self._row_sums(np.where((kinds == kind)[:, None], parts, 0))
            for kind in dict.fromkeys(self.stream_kinds)
        }
        state = np.broadcast_to(self.state_bytes[:, None], (len(self.models), len(lengths))).copy()
        return {**split, "state": state}

    def blocks_that_fit(self, memory: ArrayLike, *, block_size: int) -> Ids:
        """Return how many blocks fit into the memory that each rank gives to the cache.

        Parameters
        ----------
        memory : int, or array_like of int, shape (B,)
            Bytes of one rank.
        block_size : int
            Tokens of a block.

        Returns
        -------
        ndarray of int64, shape (B,)
            ``memory // bytes_per_block``; 0 for a model without blocks.
        """
        block = self.bytes_per_block(block_size)
        return np.where(block > 0, self._memory(memory) // np.maximum(block, 1), 0)

    def sequences_that_fit(self, memory: ArrayLike, tokens: ArrayLike, *, block_size: int = 1) -> Ids:
        """Return how many sequences of each length fit side by side, without shared prefixes.

        Parameters
        ----------
        memory : int, or array_like of int, shape (B,)
            Bytes of one rank.
        tokens : array_like of int, shape (K,)
            Lengths, 1 or more.
        block_size : int, optional
            Tokens of a block.

        Returns
        -------
        ndarray of int64, shape (B, K)
            ``memory // bytes_per_sequence``.
        """
        room = self._memory(memory)[:, None]
        cost = self.bytes_per_sequence(tokens, block_size=block_size)
        if not cost.all():
            at = int(np.argwhere(cost == 0)[0, 1])
            raise ValueError(f"tokens[{at}] must be enough for one entry of the compressed layers: they keep none yet")
        return room // cost

    def tokens_that_fit(
        self, memory: ArrayLike, *, num_sequences: int = 1, block_size: int = 1, max_tokens: int = 2**32
    ) -> Ids:
        """Return the longest length that a number of sequences can all have.

        Parameters
        ----------
        memory : int, or array_like of int, shape (B,)
            Bytes of one rank.
        num_sequences : int, optional
            Sequences side by side, without shared prefixes.
        block_size : int, optional
            Tokens of a block.
        max_tokens : int, optional
            The answer where it would be larger: a model of nothing but windows and states has no end.

        Returns
        -------
        ndarray of int64, shape (B,)
            Largest n with ``num_sequences * bytes_per_sequence(n) <= memory``; 0 where not even one token fits.

        Notes
        -----
        Bytes never fall as n grows, so n is found by integer bisection of all rows at once: O(S log max_tokens).
        """
        sequences = as_positive_int("num_sequences", num_sequences)
        size, high = self._block_size(block_size), as_positive_int("max_tokens", max_tokens)
        self._check_fits(max_tokens=high, block_size=size)
        room = self._memory(memory) // sequences
        room -= self.state_bytes
        rows = row_ids(self.stream_offsets)
        fits = np.zeros(len(self.models), dtype=np.int64)
        beyond = np.full(len(self.models), high + 1)
        while (beyond - fits > 1).any():
            middle = (fits + beyond) // 2
            is_within = self._row_sums(self._stream_bytes(middle[rows, None], size))[:, 0] <= room
            fits, beyond = np.where(is_within, middle, fits), np.where(is_within, beyond, middle)
        return fits

    def _bytes(self, lengths: Ids, block_size: int) -> Ids:
        """Return bytes of a sequence of each row at lengths of shape [K], as [B, K].

        Streams without window and ratio are one product for a row. The others, few and mostly one for a model, are
        added one by one: a row of lengths stays in the cache of the processor, where all streams at once would not.
        """
        rounded = -(-lengths // block_size) * block_size
        is_linear = (self.window == _NO_WINDOW) & (self.ratio == 1)
        total = self._row_sums(np.where(is_linear, self.entry_bytes, 0))[:, None] * rounded
        total += self.state_bytes[:, None]
        most, rows = self._most_held(block_size), row_ids(self.stream_offsets)
        for stream in np.flatnonzero(~is_linear).tolist():
            held = np.minimum(rounded, most[stream])
            if self.ratio[stream] > 1:
                held //= self.ratio[stream]
            held *= self.entry_bytes[stream]
            total[rows[stream]] += held
        return total

    def _stream_bytes(self, lengths: Ids, block_size: int) -> Ids:
        """Return bytes of each stream at lengths of shape [K] for all streams, or [S, 1] for each, as [S, K]."""
        rounded = -(-lengths // block_size) * block_size
        held = np.minimum(rounded, self._most_held(block_size)[:, None])
        return held // self.ratio[:, None] * self.entry_bytes[:, None]

    def _most_held(self, block_size: int) -> Ids:
        """Return the tokens of all blocks that the window of each stream can lie across."""
        least_offset = np.where(self.is_aligned, np.gcd(self.window, block_size), 1)
        blocks = -(-(self.window + block_size - least_offset) // block_size)
        return np.where(self.window == _NO_WINDOW, _NO_WINDOW, blocks * block_size)

    def _row_sums(self, values: Ids) -> Ids:
        """Return sums over the streams of each row; values are [S] or [S, K]. Exact, as whole numbers are."""
        sums = np.zeros((len(values) + 1, *values.shape[1:]), dtype=np.int64)
        np.cumsum(values, axis=0, out=sums[1:])
        return sums[self.stream_offsets[1:]] - sums[self.stream_offsets[:-1]]

    def _lengths(self, tokens: ArrayLike) -> Ids:
        return as_ints("tokens", tokens, low=1)

    def _memory(self, memory: ArrayLike) -> Ids:
        return _one_per_row("memory", memory, len(self.models), of="row", low=0)

    def _block_size(self, block_size: int) -> int:
        size = as_positive_int("block_size", block_size)
        uneven = np.flatnonzero(size % self.ratio != 0)
        if size > 1 and len(uneven):
            first = int(uneven[0])
            model = self.models[int(row_ids(self.stream_offsets)[first])].name
            raise ValueError(
                f"block_size must be a multiple of the {self.ratio[first]} tokens to an entry of"
                f" {model}'s {self.stream_kinds[first]} layers: got {size}"
            )
        return size

    def _check_fits(self, **tokens: int) -> None:
        """Raise where the bytes of a sequence of so many tokens, all in all, might not fit 64 bits."""
        most, longest = int(self._row_sums(self.entry_bytes).max()), sum(tokens.values())
        if longest >= _LONGEST or most * longest + int(self.state_bytes.max()) >= 2**63:
            raise ValueError(
                f"{' and '.join(tokens)} must be small enough for their bytes to fit 64 bits:"
                f" got {' and '.join(map(str, tokens.values()))}"
            )


def _one_per_row(name: str, values: ArrayLike, rows: int, *, of: str, low: int) -> Ids:
    """Return a number for each row: those given, or the one given for all."""
    is_one = np.isscalar(values) or (isinstance(values, np.ndarray) and values.ndim == 0)
    given: Any = [values] * rows if is_one else values
    numbers = as_ints(name, given, low=low)
    if len(numbers) != rows:
        raise ValueError(f"{name} must be one number or one per {of}: got {len(numbers)} for {rows} {of}s")
    return numbers


def _formats(name: str, dtype: str | KVDtype | Sequence[str | KVDtype], rows: int) -> tuple[KVDtype, ...]:
    if not isinstance(dtype, str | KVDtype | Sequence):
        raise TypeError(f"{name} must be a number format or a sequence of them: got {dtype!r}")
    one_or_more = [dtype] * rows if isinstance(dtype, str | KVDtype) else list(dtype)
    if len(one_or_more) != rows:
        raise ValueError(f"{name} must be one format or one per model: got {len(one_or_more)} for {rows} models")
    return tuple(item if isinstance(item, KVDtype) else kv_dtype(item) for item in one_or_more)


def _state_bytes(model: ModelSpec, tp: int) -> int:
    if model.num_heads is not None and model.num_heads % tp:
        raise ValueError(f"tp must divide the {model.num_heads} attention heads of {model.name}: got {tp}")
    return sum(state_bytes(state, tp) for state in model.states)
