"""The columns of a trace: what is stored, and the rules that it obeys."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvarray.arrays import Hashes, Ids, Seconds, as_floats, as_ints, as_positive_int, check_offsets, refuse
from kvarray.trace.labels import Label, Names, label_list

__all__ = ["Columns", "Skipped"]

_COLUMNS = ("block_ids", "offsets", "input_tokens", "output_tokens", "arrival_s")


class Skipped(NamedTuple):
    """What a reader left out of a trace: how many records, and what was wrong with the first few."""

    num_records: int = 0
    messages: tuple[str, ...] = ()


class Columns:
    """The stored part of a `Trace`, which documents columns and parameters: checks them once, and keeps them."""

    def __init__(
        self,
        block_ids: ArrayLike | None,
        offsets: ArrayLike | None,
        *,
        block_size: int | None,
        input_tokens: ArrayLike | None = None,
        output_tokens: ArrayLike | None = None,
        arrival_s: ArrayLike | None = None,
        session: ArrayLike | None = None,
        namespace: ArrayLike | None = None,
        session_labels: Sequence[Label] | None = None,
        namespace_labels: Sequence[Label] | None = None,
        skipped: Skipped | None = None,
    ) -> None:
        self._block_size = None if block_size is None else as_positive_int("block_size", block_size)
        self._has_blocks = block_ids is not None
        if self._has_blocks and self._block_size is None:
            raise ValueError("block_size must be given for a trace with block ids")
        if self._has_blocks != (offsets is not None):
            raise ValueError("block_ids and offsets must be given together")

        ids = _as_block_ids([] if block_ids is None else block_ids)
        if offsets is None:
            given = next((c for c in (input_tokens, arrival_s, output_tokens) if c is not None), ())
            cuts = np.zeros(len(np.atleast_1d(np.asarray(given))) + 1, dtype=np.int64)
        else:
            cuts = as_ints("offsets", offsets)
        check_offsets("offsets", cuts, len(ids))
        rows = len(cuts) - 1
        self._block_ids = _read_only(ids)
        self._offsets = _read_only(cuts)
        self._input_tokens = _read_only(self._check_input_tokens(input_tokens, rows))
        self._output_tokens = _read_only(_as_tokens("output_tokens", output_tokens, rows))
        self._arrival_s = _read_only(_as_arrivals(arrival_s, rows))
        self._session, self._session_labels = _as_codes("session", session, session_labels, rows)
        self._namespace, self._namespace_labels = _as_codes("namespace", namespace, namespace_labels, rows)
        self._skipped = Skipped() if skipped is None else skipped

    def _check_input_tokens(self, input_tokens: ArrayLike | None, rows: int) -> Ids:
        counts = np.diff(self._offsets)
        if input_tokens is None:
            input_tokens = counts * (self._block_size or 0)
        tokens = _as_tokens("input_tokens", input_tokens, rows)
        if self._block_size is not None:
            most = tokens // self._block_size + (tokens % self._block_size > 0)
            refuse("input_tokens", f"explain all blocks, {self._block_size} tokens each", counts > most, tokens)
        return tokens

    @property
    def block_ids(self) -> Ids | Hashes:
        """Block ids of all requests, int64 or uint64, shape (N,)."""
        return self._block_ids

    @property
    def offsets(self) -> Ids:
        """Where each request's blocks begin and end in `block_ids`, shape (B + 1,)."""
        return self._offsets

    @property
    def block_size(self) -> int | None:
        """Tokens of a full block; None where there are no block ids and nobody named a size."""
        return self._block_size

    @property
    def arrival_s(self) -> Seconds:
        """Arrival of each request in seconds, shape (B,); never falls."""
        return self._arrival_s

    @property
    def input_tokens(self) -> Ids:
        """Prompt length of each request, shape (B,)."""
        return self._input_tokens

    @property
    def output_tokens(self) -> Ids:
        """Answer length of each request, shape (B,)."""
        return self._output_tokens

    @property
    def session(self) -> Ids | None:
        """Session of each request, shape (B,); places in `session_labels` where those are given."""
        return self._session

    @property
    def session_labels(self) -> tuple[Label, ...] | None:
        """Names of the sessions; None where the integers of `session` are the names."""
        return self._session_labels

    @property
    def namespace(self) -> Ids | None:
        """Namespace of each request, shape (B,); places in `namespace_labels` where those are given."""
        return self._namespace

    @property
    def namespace_labels(self) -> tuple[Label, ...] | None:
        """Names of the namespaces; None where the integers of `namespace` are the names."""
        return self._namespace_labels

    @property
    def _session_names(self) -> Names:
        return self._session, self._session_labels

    @property
    def _namespace_names(self) -> Names:
        return self._namespace, self._namespace_labels

    @property
    def skipped(self) -> Skipped:
        """What the reader left out of the trace (`read_trace` with ``on_error="skip"``)."""
        return self._skipped

    @property
    def num_requests(self) -> int:
        """Number of requests, B."""
        return len(self._offsets) - 1

    @property
    def num_blocks(self) -> int:
        """Number of block references, N."""
        return len(self._block_ids)

    @property
    def has_blocks(self) -> bool:
        """Whether the trace names blocks at all; without them no hit rate can be asked of it."""
        return self._has_blocks

    @property
    def block_counts(self) -> Ids:
        """Blocks of each request, shape (B,)."""
        return np.diff(self._offsets)

    @property
    def last_block_tokens(self) -> Ids:
        """Tokens of each request's last block, shape (B,); 0 for a request without blocks."""
        counts = self.block_counts
        size = self._block_size or 0
        remaining = self._input_tokens - np.maximum(counts - 1, 0) * size
        tokens: Ids = np.where(counts > 0, np.minimum(remaining, size), 0)
        return tokens

    @property
    def block_tokens(self) -> Ids:
        """Tokens of each block, shape (N,): all full but a request's last, which holds what remains."""
        tokens = np.full(self.num_blocks, self._block_size or 0, dtype=np.int64)
        has_any = self.block_counts > 0
        tokens[self._offsets[1:][has_any] - 1] = self.last_block_tokens[has_any]
        return tokens

    @property
    def unhashed_tokens(self) -> Ids:
        """Prompt tokens of each request that no block covers, shape (B,)."""
        full = np.maximum(self.block_counts - 1, 0) * (self._block_size or 0)
        rest: Ids = self._input_tokens - full - self.last_block_tokens
        return rest

    def __eq__(self, other: object) -> bool:
        """Return whether block size, columns and names are equal."""
        if not isinstance(other, Columns):
            return NotImplemented
        return (
            self._block_size == other._block_size
            and self._has_blocks == other._has_blocks
            and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in _COLUMNS)
            and _same_names(self._session_names, other._session_names, self.num_requests)
            and _same_names(self._namespace_names, other._namespace_names, self.num_requests)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return one line with the size of the trace."""
        blocks = f"{self.num_blocks} blocks of {self._block_size} tokens" if self._has_blocks else "no block ids"
        return f"<Trace: {self.num_requests} requests, {blocks}, {self._input_tokens.sum()} input tokens>"


def _same_names(one: Names, other: Names, num_requests: int) -> bool:
    """Return whether two columns name the same sessions, whatever the codes that stand for them."""
    if one[1] == other[1] and one[0] is not None and other[0] is not None:
        return np.array_equal(one[0], other[0])
    return one is other or label_list(one, num_requests) == label_list(other, num_requests)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def _as_block_ids(block_ids: ArrayLike) -> NDArray[Any]:
    """Return ids as int64, or as uint64 where that is what they are."""
    array = np.asarray(block_ids)
    if isinstance(block_ids, list) and array.dtype.kind == "f":  # NumPy's dtype for a list of 1 and 2^63
        is_unsigned = all(type(item) is int and 0 <= item < 2**64 for item in block_ids)
        array = np.array(block_ids, dtype=np.uint64 if is_unsigned and block_ids else object)
    if array.dtype == np.uint64 and array.ndim == 1:
        return array
    return as_ints("block_ids", block_ids)


def _as_tokens(name: str, tokens: ArrayLike | None, rows: int) -> Ids:
    """Return a column of token counts whose sum int64 can hold."""
    if tokens is None:
        return np.zeros(rows, dtype=np.int64)
    array = as_ints(name, tokens, low=0)
    _check_rows(name, array, rows)
    if rows and int(array.max()) * rows >= 2**63 and sum(array.tolist()) >= 2**63:
        raise ValueError(f"{name} must sum to less than 2^63")
    return array


def _as_arrivals(arrival_s: ArrayLike | None, rows: int) -> Seconds:
    if arrival_s is None:
        return np.zeros(rows)
    array = as_floats("arrival_s", arrival_s)
    _check_rows("arrival_s", array, rows)
    falls = np.zeros(rows, dtype=np.bool_)
    np.less(array[1:], array[:-1], out=falls[1:])
    refuse("arrival_s", "not decrease", falls, array)
    return array


def _as_codes(
    name: str, codes: ArrayLike | None, labels: Sequence[Label] | None, rows: int
) -> tuple[Ids | None, tuple[Label, ...] | None]:
    if codes is None:
        if labels is not None:
            raise ValueError(f"{name}_labels must not be given without {name}")
        return None, None
    if labels is None:
        array = as_ints(name, codes)
    else:
        for place, label in enumerate(labels):
            if not _is_label(label):
                raise TypeError(
                    f"{name}_labels must be strings, integers of 64 bits or None: {name}_labels[{place}] = {label!r}"
                )
        array = as_ints(name, codes, low=0, high=len(labels))
        if len(set(labels)) != len(labels):
            raise ValueError(f"{name}_labels must be distinct: got {labels!r}")
    _check_rows(name, array, rows)
    return _read_only(array), None if labels is None else tuple(labels)


def _is_label(label: object) -> bool:
    """Whether a name can be written to every format and read back."""
    is_integer = isinstance(label, int) and not isinstance(label, bool) and -(2**63) <= label < 2**63
    return label is None or isinstance(label, str) or is_integer


def _check_rows(name: str, array: NDArray[Any], rows: int) -> None:
    if array.shape != (rows,):
        raise ValueError(f"{name} must have one item per request, {rows}: got shape {array.shape}")
