"""`Trace`: the requests of a workload.

A request is a row: when it arrived, how many tokens it read and wrote, and the blocks of its prompt, by id. Blocks of
all requests lie in one flat array, cut by offsets. What a request generates has no block ids here, as in published
traces: when its answer is used again, it stands in the prompt of a later request.

Only the last block of a request may be partial: it holds what remains of the prompt. A request may also name fewer
blocks than its length explains; the rest was never hashed, cannot be cached, and is counted as unhashed. Serving
engines differ here: vLLM hashes full blocks alone, and never serves the last token from its cache; published traces
count the partial block like any other, and so does this module.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvarray.arrays import Ids, as_floats, as_int, as_positive_int, as_real
from kvarray.errors import TraceError
from kvarray.ragged import lengths_to_offsets, ranks, take_rows
from kvarray.trace.columns import Columns
from kvarray.trace.identity import Identity, join_ids, prefix_identity, stream_identity
from kvarray.trace.labels import join_names

__all__ = ["Trace"]


class Trace(Columns):
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
        """Number that all `prefix_ids` lie below: a table of this length is indexed by them, at most 2 N + 2^16."""
        return self._prefixes.limit

    @property
    def num_distinct(self) -> int:
        """Number of distinct prefixes."""
        return self._prefixes.num_distinct

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
        """Number that all `stream_ids` lie below, at most 2 N + 2^16."""
        return self._stream.limit

    @property
    def num_distinct_blocks(self) -> int:
        """Number of distinct block ids, counted within namespaces."""
        return self._stream.num_distinct

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
        return self._with_rows(slice(start, stop), self._block_ids[first:last], self._offsets[start : stop + 1] - first)

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

    def in_namespace(self, label: str | int) -> Self:
        """Return the same requests in a namespace: equal block ids of other namespaces are other blocks then.

        Traces that were made or recorded apart often use the same ids for different blocks; put each in a namespace
        before they are joined.

        Raises
        ------
        ValueError
            If the trace has namespaces already.

        Examples
        --------
        >>> trace = Trace([7, 8], [0, 2], block_size=16)
        >>> Trace.concatenate([trace.in_namespace("a"), trace.in_namespace("b")]).num_distinct
        4
        """
        if self._namespace is not None:
            raise ValueError("the trace must have no namespaces yet")
        return type(self)(
            self._block_ids if self._has_blocks else None,
            self._offsets if self._has_blocks else None,
            block_size=self._block_size,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            arrival_s=self._arrival_s,
            session=self._session,
            session_labels=self._session_labels,
            namespace=np.zeros(self.num_requests, dtype=np.int64),
            namespace_labels=[label],
        )

    @classmethod
    def concatenate(cls, traces: Iterable[Self]) -> Self:
        """Return the requests of several traces, one trace after the other.

        Equal block ids are the same block, and equal names the same session or namespace, whichever trace they come
        from; see `in_namespace` where that is not so. Traces whose clocks each begin anew are for `interleave`.

        Raises
        ------
        ValueError
            If there is no trace, block sizes differ, only some have block ids, or arrivals fall.

        Examples
        --------
        >>> trace = Trace([7, 8, 9], [0, 1, 3], block_size=16, arrival_s=[0.0, 1.0])
        >>> Trace.concatenate([trace.requests(0, 1), trace.requests(1, 2)]) == trace
        True
        """
        columns = cls._join(traces)
        return cls(columns.pop("block_ids"), columns.pop("offsets"), **columns)

    @classmethod
    def interleave(cls, traces: Iterable[Self], *, starts_s: ArrayLike | None = None) -> Self:
        """Return the requests of several traces merged by time.

        Parameters
        ----------
        traces : iterable of Trace
            Say, a session each; what equal ids and names mean is as in `concatenate`.
        starts_s : array_like of float, optional
            When the clock of each trace begins on the common one; default 0.

        Returns
        -------
        Trace
            In order of ``starts_s[k] + arrival_s``; at equal times in the order of the traces.

        Raises
        ------
        ValueError
            As for `concatenate`, or if there is not one start for each trace.

        Examples
        --------
        >>> one = Trace([1, 2], [0, 1, 2], block_size=16, arrival_s=[0.0, 5.0])
        >>> other = Trace([8, 9], [0, 1, 2], block_size=16, arrival_s=[0.0, 1.0])
        >>> Trace.interleave([one, other], starts_s=[0.0, 3.0]).block_ids
        array([1, 8, 9, 2])
        """
        traces = list(traces)
        starts = np.zeros(len(traces)) if starts_s is None else as_floats("starts_s", starts_s)
        if starts.shape != (len(traces),):
            raise ValueError(f"starts_s must have one item per trace, {len(traces)}: got shape {starts.shape}")
        columns = cls._join(traces)
        arrival_s = columns["arrival_s"] + np.repeat(starts, [trace.num_requests for trace in traces])
        order = np.argsort(arrival_s, kind="stable")
        block_ids, offsets = columns.pop("block_ids"), columns.pop("offsets")
        if block_ids is not None:
            block_ids, offsets = take_rows(block_ids, offsets, order)
        for name in ("input_tokens", "output_tokens", "session", "namespace"):
            columns[name] = None if columns[name] is None else columns[name][order]
        columns["arrival_s"] = arrival_s[order]
        return cls(block_ids, offsets, **columns)

    @staticmethod
    def _join(traces: Iterable["Trace"]) -> dict[str, Any]:
        """Return the columns of all traces, one after the other; arrivals may fall in between."""
        traces = list(traces)
        if not traces:
            raise ValueError("traces must hold at least one trace: got none")
        for name in ("block_size", "has_blocks"):
            values = [getattr(trace, name) for trace in traces]
            if len(set(values)) > 1:
                raise ValueError(f"traces must agree in {name}: got {', '.join(map(str, values[:5]))}")
        counts = [trace.num_requests for trace in traces]
        session, session_labels = join_names([trace._session_names for trace in traces], counts)
        namespace, namespace_labels = join_names([trace._namespace_names for trace in traces], counts)
        has_blocks = traces[0].has_blocks
        return {
            "block_ids": join_ids([trace.block_ids for trace in traces]) if has_blocks else None,
            "offsets": lengths_to_offsets(np.concatenate([trace.block_counts for trace in traces]))
            if has_blocks
            else None,
            "block_size": traces[0].block_size,
            "input_tokens": np.concatenate([trace.input_tokens for trace in traces]),
            "output_tokens": np.concatenate([trace.output_tokens for trace in traces]),
            "arrival_s": np.concatenate([trace.arrival_s for trace in traces]),
            "session": session,
            "namespace": namespace,
            "session_labels": session_labels,
            "namespace_labels": namespace_labels,
        }

    def reblock(self, block_size: int) -> Self:
        """Return the same requests in larger blocks.

        Parameters
        ----------
        block_size : int
            A multiple of the block size so far.

        Returns
        -------
        Trace
            A block is named by the prefix id of the last of the old blocks that it is made of. The last block of a
            request may be made of fewer, if they reach to the end of its prompt; else what does not fill a block is
            unhashed from now on.

        Raises
        ------
        ValueError
            If `block_size` is no multiple of the block size so far.
        TraceError
            If the trace has no block ids.

        Examples
        --------
        >>> trace = Trace([7, 8, 9, 7, 8, 6], [0, 3, 6], block_size=16)
        >>> trace.reblock(32).offsets, trace.reblock(32).num_distinct
        (array([0, 2, 4]), 3)
        """
        self._need_blocks()
        block_size = as_positive_int("block_size", block_size)
        factor, rest = divmod(block_size, self._block_size or 1)
        if rest:
            raise ValueError(f"block_size must be a multiple of {self._block_size}, the one so far: got {block_size}")
        counts = self.block_counts
        reaches_end = self.unhashed_tokens == 0
        new_counts = np.where(reaches_end, -(-counts // factor), counts // factor)
        new_offsets = lengths_to_offsets(new_counts)
        last = np.minimum((ranks(new_offsets) + 1) * factor, np.repeat(counts, new_counts)) - 1  # old block, in its row
        ids = self.prefix_ids[np.repeat(self._offsets[:-1], new_counts) + last]
        return self._with_rows(slice(None), ids, new_offsets, block_size=block_size)

    def describe(self) -> dict[str, int | float | None]:
        """Return the figures to know a trace by, in the order in which to print them.

        Returns
        -------
        dict of str to int, float or None
            Counts of requests, sessions, namespaces, block references and distinct prefixes; tokens; the time from
            the first to the last arrival in seconds; the mean and the largest length. None where it cannot be told:
            anything about blocks in a trace without block ids, and means of nothing.

        Examples
        --------
        >>> trace = Trace([7, 8, 7, 9], [0, 2, 4], block_size=16, input_tokens=[32, 20], arrival_s=[0, 3])
        >>> figures = trace.describe()
        >>> figures["num_distinct"], figures["input_tokens"], figures["duration_s"]
        (3, 52, 3.0)
        """
        rows = self.num_requests
        blocks = self._has_blocks
        return {
            "num_requests": rows,
            "num_sessions": None if self._session is None else len(np.unique(self._session)),
            "num_namespaces": None if self._namespace is None else len(np.unique(self._namespace)),
            "block_size": self._block_size,
            "num_blocks": self.num_blocks if blocks else None,
            "num_distinct": self.num_distinct if blocks else None,
            "input_tokens": int(self._input_tokens.sum()),
            "unhashed_tokens": int(self.unhashed_tokens.sum()) if blocks else None,
            "output_tokens": int(self._output_tokens.sum()),
            "duration_s": float(self._arrival_s[-1] - self._arrival_s[0]) if rows else None,
            "mean_input_tokens": float(self._input_tokens.mean()) if rows else None,
            "max_input_tokens": int(self._input_tokens.max()) if rows else None,
            "mean_output_tokens": float(self._output_tokens.mean()) if rows else None,
            "max_output_tokens": int(self._output_tokens.max()) if rows else None,
        }

    def _with_rows(self, rows: slice, block_ids: NDArray[Any], offsets: Ids, *, block_size: int | None = None) -> Self:
        """Return the trace of some of the rows, whose blocks are given, in a block size of their own or the same."""
        return type(self)(
            block_ids if self._has_blocks else None,
            offsets if self._has_blocks else None,
            block_size=self._block_size if block_size is None else block_size,
            input_tokens=self._input_tokens[rows],
            output_tokens=self._output_tokens[rows],
            arrival_s=self._arrival_s[rows],
            session=None if self._session is None else self._session[rows],
            namespace=None if self._namespace is None else self._namespace[rows],
            session_labels=self._session_labels,
            namespace_labels=self._namespace_labels,
        )
