"""`Trace`: the requests of a workload as parallel columns.

A request is a row: when it arrived, how many tokens it read and wrote, and the blocks of its prompt, by id. Blocks of
all requests lie in one flat array, cut by offsets. What a request generates has no block ids here, as in the published
traces: when its output is used again, it stands in the prompt of a later request.

Only the last block of a request may be partial: it holds what remains of the prompt. A request may also name fewer
blocks than its length explains; the rest was never hashed, cannot be cached, and is counted as unhashed. Serving
engines differ here: vLLM hashes full blocks alone, and never serves the last token from its cache; published traces
count the partial block like any other, and so does this module.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvarray.arrays import (
    Hashes,
    Ids,
    Seconds,
    as_floats,
    as_int,
    as_ints,
    as_positive_int,
    as_real,
    check_offsets,
    refuse,
)
from kvarray.errors import TraceError
from kvarray.ragged import lengths_to_offsets, ranges, take_rows
from kvarray.trace.identity import Identity, join_ids, prefix_identity, stream_identity

__all__ = ["Label", "Skipped", "Trace"]

Label = str | int | None
"""Name of a session or a namespace; None for a request without one."""

_COLUMNS = ("block_ids", "offsets", "input_tokens", "output_tokens", "arrival_s", "session", "namespace")


class Skipped(NamedTuple):
    """What a reader left out of a trace: how many records, and what was wrong with the first few."""

    count: int = 0
    messages: tuple[str, ...] = ()


class Trace:
    """Requests in the order they are served. Immutable: columns are read-only.

    ===============  ==============  ======  ======  ======================================================
    column           dtype           shape   unit    meaning
    ===============  ==============  ======  ======  ======================================================
    `block_ids`      int64 / uint64  (N,)    -       blocks of request i at ``offsets[i]:offsets[i + 1]``
    `offsets`        int64           (B+1,)  blocks  begins at 0, never falls, ends at N
    `arrival_s`      float64         (B,)    s       finite, never falls
    `input_tokens`   int64           (B,)    tokens  length of the prompt
    `output_tokens`  int64           (B,)    tokens  length of the answer
    `session`        int64 or None   (B,)    -       which conversation; see `session_labels`
    `namespace`      int64 or None   (B,)    -       requests share blocks only within one; `namespace_labels`
    ===============  ==============  ======  ======  ======================================================

    Parameters
    ----------
    block_ids : array_like of int, shape (N,), or None
        Any 64-bit integers. None for a trace of lengths and arrivals alone, which can name no prefix.
    offsets : array_like of int, shape (B + 1,), or None
        None with `block_ids` None.
    block_size : int or None
        Tokens of a full block; may be None only without block ids.
    input_tokens : array_like of int, shape (B,), optional
        All blocks are full where it is left out. A request has at most ``ceil(input_tokens / block_size)`` blocks.
    output_tokens : array_like of int, shape (B,), optional
        Default 0.
    arrival_s : array_like of float, shape (B,), optional
        Default 0: the order of the requests still counts.
    session, namespace : array_like of int, shape (B,), optional
        Any integers, or places in the labels where those are given.
    session_labels, namespace_labels : sequence of str, int or None, optional
        Distinct names that the integers stand for.
    skipped : Skipped, optional
        What a reader left out; not part of the trace's value.

    Raises
    ------
    TypeError, ValueError
        If a column is malformed; the message names it, the first offending places and the rule.

    Notes
    -----
    Arrays of the right dtype are not copied, so that large traces cost no second copy: leave them alone afterwards.
    Two traces are equal when their columns, labels and block size are.

    Examples
    --------
    >>> trace = Trace([7, 8, 7, 9], [0, 2, 4], block_size=16, input_tokens=[32, 20])
    >>> trace.num_requests, trace.num_blocks, trace.num_distinct
    (2, 4, 3)
    >>> trace.block_tokens
    array([16, 16, 16,  4])
    """

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
        skipped: Skipped = Skipped(),
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
        self._skipped = skipped

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
        return np.where(counts > 0, np.minimum(remaining, size), 0)

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
        return self._input_tokens - full - self.last_block_tokens

    @cached_property
    def _prefixes(self) -> Identity:
        self._need_blocks()
        return prefix_identity(self._block_ids, self._offsets, namespace=self._namespace)

    @cached_property
    def _stream(self) -> Identity:
        self._need_blocks()
        return stream_identity(self._block_ids, self._offsets, namespace=self._namespace)

    def _need_blocks(self) -> None:
        if not self._has_blocks:
            raise TraceError("the trace has no block ids (lengths and arrivals alone): no prefix, no hit rate")

    @property
    def prefix_ids(self) -> Ids:
        """One id for each whole prefix, int64, shape (N,), in ``[0, prefix_limit)``.

        Two references have the same id exactly when their requests agree from the head up to there and share their
        namespace. Block ids that already say so, and are small enough to index a table, are handed out as they are;
        otherwise prefixes are numbered in order of first appearance. Computed once, O(N).

        Raises
        ------
        TraceError
            If the trace has no block ids.
        """
        return self._prefixes.ids

    @property
    def prefix_limit(self) -> int:
        """Number that all `prefix_ids` lie below: a table of this length is indexed by them, at most 4 N + 2^16."""
        return self._prefixes.limit

    @property
    def num_distinct(self) -> int:
        """Number of distinct prefixes."""
        return self._prefixes.count

    @property
    def stream_ids(self) -> Ids:
        """One id for each block id within its namespace, int64, shape (N,), in ``[0, stream_limit)``.

        Unlike `prefix_ids`, what stands before a block is not asked: two references have the same id exactly when
        block id and namespace are the same. Computed once.

        Raises
        ------
        TraceError
            If the trace has no block ids.
        """
        return self._stream.ids

    @property
    def stream_limit(self) -> int:
        """Number that all `stream_ids` lie below, at most 4 N + 2^16."""
        return self._stream.limit

    @property
    def num_distinct_blocks(self) -> int:
        """Number of distinct block ids, counted within namespaces."""
        return self._stream.count

    def requests(self, start: int, stop: int) -> Self:
        """Return the requests ``start <= i < stop`` as a trace whose columns share this one's memory.

        Raises
        ------
        ValueError
            Unless ``0 <= start <= stop <= num_requests``.

        Examples
        --------
        >>> Trace([7, 8, 7, 9], [0, 2, 4], block_size=16).requests(1, 2).block_ids
        array([7, 9])
        """
        start = as_int("start", start, low=0, high=self.num_requests + 1)
        stop = as_int("stop", stop, low=start, high=self.num_requests + 1)
        first, last = self._offsets[start], self._offsets[stop]
        return self._with_rows(
            slice(start, stop), self._block_ids[first:last], self._offsets[start : stop + 1] - first
        )

    def between(self, start_s: float, stop_s: float) -> Self:
        """Return the requests that arrive at ``start_s <= t < stop_s``; arrivals keep their clock.

        Examples
        --------
        >>> trace = Trace([7, 8, 9], [0, 1, 2, 3], block_size=16, arrival_s=[0.0, 1.0, 1.5])
        >>> trace.between(1.0, 1.5).block_ids
        array([8])
        """
        start_s = as_real("start_s", start_s, finite=False)
        stop_s = as_real("stop_s", stop_s, low=start_s, finite=False)
        start, stop = np.searchsorted(self._arrival_s, [start_s, stop_s])
        return self.requests(int(start), int(stop))

    def _with_rows(self, rows: slice | Ids, block_ids: NDArray[Any], offsets: Ids) -> Self:
        """Return the trace of some of the rows, whose blocks are given."""
        return type(self)(
            block_ids if self._has_blocks else None,
            offsets if self._has_blocks else None,
            block_size=self._block_size,
            input_tokens=self._input_tokens[rows],
            output_tokens=self._output_tokens[rows],
            arrival_s=self._arrival_s[rows],
            session=None if self._session is None else self._session[rows],
            namespace=None if self._namespace is None else self._namespace[rows],
            session_labels=self._session_labels,
            namespace_labels=self._namespace_labels,
        )

    def __len__(self) -> int:
        return self.num_requests

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return (
            self._block_size == other._block_size
            and self._has_blocks == other._has_blocks
            and self._session_labels == other._session_labels
            and self._namespace_labels == other._namespace_labels
            and all(_equal(getattr(self, name), getattr(other, name)) for name in _COLUMNS)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        blocks = f"{self.num_blocks} blocks of {self._block_size} tokens" if self._has_blocks else "no block ids"
        return f"<Trace: {self.num_requests} requests, {blocks}, {self._input_tokens.sum()} input tokens>"


def _equal(one: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def _as_block_ids(block_ids: ArrayLike) -> NDArray[Any]:
    """Return ids as int64, or as uint64 where that is what they are."""
    array = np.asarray(block_ids)
    if array.dtype == np.uint64 and array.ndim == 1:
        return array
    return as_ints("block_ids", array)


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
        array = as_ints(name, codes, low=0, high=len(labels))
        if len(set(labels)) != len(labels):
            raise ValueError(f"{name}_labels must be distinct: got {labels!r}")
    _check_rows(name, array, rows)
    return _read_only(array), None if labels is None else tuple(labels)


def _check_rows(name: str, array: NDArray[Any], rows: int) -> None:
    if array.shape != (rows,):
        raise ValueError(f"{name} must have one item per request, {rows}: got shape {array.shape}")
