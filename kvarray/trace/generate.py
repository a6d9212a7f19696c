"""Workloads to try things on: traces of four kinds, made from the arrivals of sessions.

All four are conversations of a kind. A session begins with a shared text (a system prompt, tools, an instruction, a
popular prefix) and goes on in turns, each prompt holding all that was said in the session before, answers included.

==================  =====================================  ==============  =========================================
generator           shared text                            turns           what it is like
==================  =====================================  ==============  =========================================
`chat_trace`        system prompts, some more popular      a few           chat assistants
`agent_trace`       long tool descriptions                 dozens          coding agents: each request extends the
                                                                           last, and prompts are long
`document_trace`    one instruction                        one             summaries, extraction: no reuse beyond it
`zipf_trace`        prefixes of Zipf popularity            one             retrieval, few-shot prompts
==================  =====================================  ==============  =========================================

Lengths and pauses are log-normal, numbers of turns geometric. Block ids are chained: the full blocks of a text that
sessions share have ids of their own, likewise the full blocks of a session, and each partial last block, whose
content no longer prompt repeats at that place. Left out: branching sessions, edited histories, dropped contexts.
Arrivals are rounded to the millisecond that trace files keep.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Ids, Seconds, as_floats, as_int, as_positive_int, as_real
from kvarray.ragged import lengths_to_offsets, ranges, ranks, row_ids
from kvarray.trace.arrivals import Seed, bursty_arrivals
from kvarray.trace.trace import Trace

__all__ = [
    "agent_trace",
    "builtin_trace",
    "chat_trace",
    "document_trace",
    "zipf_trace",
]

_LENGTH_SIGMA = 0.8  # of the logarithm of lengths
_PAUSE_SIGMA = 1.5  # pauses spread wider: a second, a minute, an hour


def chat_trace(
    start_s: ArrayLike,
    *,
    rng: Seed,
    block_size: int = 16,
    num_system_prompts: int = 20,
    mean_system_tokens: float = 800.0,
    mean_turns: float = 4.0,
    mean_question_tokens: float = 120.0,
    mean_answer_tokens: float = 300.0,
    mean_pause_s: float = 60.0,
    max_input_tokens: int = 32_768,
) -> Trace:
    """Return a trace of chats that share system prompts.

    Parameters
    ----------
    start_s : array_like of float, shape (S,)
        When each session begins, >= 0; see `poisson_arrivals`.
    rng : int or numpy.random.Generator
        Seed or source of randomness.
    block_size : int, optional
        Tokens of a block.
    num_system_prompts : int, optional
        Number k of system prompts; the i-th is chosen with a probability proportional to 1 / i.
    mean_system_tokens, mean_question_tokens, mean_answer_tokens : float, optional
        Mean lengths, >= 1.
    mean_turns : float, optional
        Mean requests of a session, >= 1.
    mean_pause_s : float, optional
        Mean time from one request of a session to the next.
    max_input_tokens : int, optional
        A session ends before its prompt exceeds this.

    Returns
    -------
    Trace
        Requests in order of arrival, with the session of each.

    Notes
    -----
    O(N), about 20 ns a block.

    Examples
    --------
    >>> from kvarray import poisson_arrivals
    >>> trace = chat_trace(poisson_arrivals(100, rate_per_s=1.0, rng=0), rng=1)
    >>> trace.num_distinct < trace.num_blocks
    True
    """
    generator = np.random.default_rng(rng)
    num_system_prompts = as_positive_int("num_system_prompts", num_system_prompts)
    sessions = _draw_sessions(start_s, num_system_prompts, 1.0, _mean("mean_turns", mean_turns), generator)
    return _converse(
        sessions,
        _draw_lengths(num_system_prompts, _mean("mean_system_tokens", mean_system_tokens), generator),
        generator,
        block_size=block_size,
        mean_new_tokens=_mean("mean_question_tokens", mean_question_tokens),
        mean_answer_tokens=_mean("mean_answer_tokens", mean_answer_tokens),
        mean_pause_s=mean_pause_s,
        max_input_tokens=max_input_tokens,
    )


def agent_trace(
    start_s: ArrayLike,
    *,
    rng: Seed,
    block_size: int = 64,
    num_tool_sets: int = 4,
    mean_tool_tokens: float = 12_000.0,
    mean_steps: float = 40.0,
    mean_result_tokens: float = 1_500.0,
    mean_answer_tokens: float = 200.0,
    mean_pause_s: float = 12.0,
    max_input_tokens: int = 200_000,
) -> Trace:
    """Return a trace of coding agents: each request is the last one, its answer, and the result of a tool.

    Parameters
    ----------
    start_s : array_like of float, shape (S,)
        When each session begins, >= 0; see `poisson_arrivals`.
    rng : int or numpy.random.Generator
        Seed or source of randomness.
    block_size : int, optional
        Tokens of a block.
    num_tool_sets : int, optional
        Number of tool descriptions that sessions begin with; the i-th is chosen with a probability proportional
        to 1 / i.
    mean_tool_tokens, mean_result_tokens, mean_answer_tokens : float, optional
        Mean lengths, >= 1.
    mean_steps : float, optional
        Mean requests of a session, >= 1.
    mean_pause_s : float, optional
        Mean time from one request of a session to the next.
    max_input_tokens : int, optional
        A session ends before its prompt exceeds this.

    Returns
    -------
    Trace
        Requests in order of arrival, with the session of each.

    Examples
    --------
    >>> from kvarray import poisson_arrivals
    >>> trace = agent_trace(poisson_arrivals(20, rate_per_s=0.1, rng=0), rng=1)
    >>> bool(trace.block_counts.mean() > 200)
    True
    """
    generator = np.random.default_rng(rng)
    num_tool_sets = as_positive_int("num_tool_sets", num_tool_sets)
    sessions = _draw_sessions(start_s, num_tool_sets, 1.0, _mean("mean_steps", mean_steps), generator)
    return _converse(
        sessions,
        _draw_lengths(num_tool_sets, _mean("mean_tool_tokens", mean_tool_tokens), generator),
        generator,
        block_size=block_size,
        mean_new_tokens=_mean("mean_result_tokens", mean_result_tokens),
        mean_answer_tokens=_mean("mean_answer_tokens", mean_answer_tokens),
        mean_pause_s=mean_pause_s,
        max_input_tokens=max_input_tokens,
    )


def document_trace(
    arrival_s: ArrayLike,
    *,
    rng: Seed,
    block_size: int = 16,
    instruction_tokens: int = 400,
    mean_document_tokens: float = 6_000.0,
    mean_answer_tokens: float = 250.0,
    max_input_tokens: int = 131_072,
) -> Trace:
    """Return a trace of one-shot documents: one instruction, then a document that never comes again.

    Parameters
    ----------
    arrival_s : array_like of float, shape (B,)
        When each request arrives, >= 0; see `poisson_arrivals`.
    rng : int or numpy.random.Generator
        Seed or source of randomness.
    block_size : int, optional
        Tokens of a block.
    instruction_tokens : int, optional
        Length of the instruction that all requests begin with, >= 0.
    mean_document_tokens, mean_answer_tokens : float, optional
        Mean lengths, >= 1.
    max_input_tokens : int, optional
        Longer prompts are left out.

    Returns
    -------
    Trace
        Requests in order of arrival, each a session of its own.

    Examples
    --------
    >>> trace = document_trace([0.0, 1.0], rng=0, instruction_tokens=160)
    >>> trace.num_blocks - trace.num_distinct
    10
    """
    generator = np.random.default_rng(rng)
    return _converse(
        _draw_sessions(arrival_s, 1, 0.0, 1.0, generator),
        np.array([as_int("instruction_tokens", instruction_tokens, low=0)]),
        generator,
        block_size=block_size,
        mean_new_tokens=_mean("mean_document_tokens", mean_document_tokens),
        mean_answer_tokens=_mean("mean_answer_tokens", mean_answer_tokens),
        mean_pause_s=0.0,
        max_input_tokens=max_input_tokens,
    )


def zipf_trace(
    arrival_s: ArrayLike,
    *,
    rng: Seed,
    block_size: int = 16,
    num_prefixes: int = 1_000,
    exponent: float = 1.0,
    mean_prefix_tokens: float = 2_000.0,
    mean_question_tokens: float = 100.0,
    mean_answer_tokens: float = 200.0,
    max_input_tokens: int = 131_072,
) -> Trace:
    """Return a trace of prefixes of Zipf popularity, each request one of them and a question of its own.

    Parameters
    ----------
    arrival_s : array_like of float, shape (B,)
        When each request arrives, >= 0; see `poisson_arrivals`.
    rng : int or numpy.random.Generator
        Seed or source of randomness.
    block_size : int, optional
        Tokens of a block.
    num_prefixes : int, optional
        Number of prefixes; the i-th is chosen with a probability proportional to ``i ** -exponent``.
    exponent : float, optional
        0 for equal popularity.
    mean_prefix_tokens, mean_question_tokens, mean_answer_tokens : float, optional
        Mean lengths, >= 1.
    max_input_tokens : int, optional
        Longer prompts are left out.

    Returns
    -------
    Trace
        Requests in order of arrival, each a session of its own.

    Examples
    --------
    >>> from kvarray import poisson_arrivals
    >>> trace = zipf_trace(poisson_arrivals(500, rate_per_s=5.0, rng=0), rng=1, num_prefixes=50)
    >>> trace.num_requests, bool(trace.num_distinct < trace.num_blocks / 3)
    (500, True)
    """
    generator = np.random.default_rng(rng)
    num_prefixes = as_positive_int("num_prefixes", num_prefixes)
    exponent = as_real("exponent", exponent, low=0.0)
    return _converse(
        _draw_sessions(arrival_s, num_prefixes, exponent, 1.0, generator),
        _draw_lengths(num_prefixes, _mean("mean_prefix_tokens", mean_prefix_tokens), generator),
        generator,
        block_size=block_size,
        mean_new_tokens=_mean("mean_question_tokens", mean_question_tokens),
        mean_answer_tokens=_mean("mean_answer_tokens", mean_answer_tokens),
        mean_pause_s=0.0,
        max_input_tokens=max_input_tokens,
    )


def builtin_trace() -> Trace:
    """Return the workload that stands in where no trace is given: some 4,000 requests of chats, always the same.

    Examples
    --------
    >>> trace = builtin_trace()
    >>> trace.num_requests, trace.num_blocks
    (3985, 565298)
    """
    rng = np.random.default_rng(2025)
    return chat_trace(bursty_arrivals(1_000, rate_per_s=0.25, variation=2.0, rng=rng), rng=rng)


class _Sessions(NamedTuple):
    start_s: Seconds  # [S]
    shared: Ids  # [S], which shared text each begins with
    turns: Ids  # [S]


def _mean(name: str, value: float) -> float:
    return as_real(name, value, low=1.0)


def _draw_lengths(count: int, mean: float, generator: "np.random.Generator") -> Ids:
    """Return log-normal lengths of 1 or more."""
    lengths = generator.lognormal(np.log(mean) - _LENGTH_SIGMA**2 / 2, _LENGTH_SIGMA, size=count)
    return np.maximum(np.rint(lengths), 1).astype(np.int64)


def _draw_sessions(
    start_s: ArrayLike, num_shared: int, exponent: float, mean_turns: float, generator: "np.random.Generator"
) -> _Sessions:
    starts = as_floats("start_s", start_s, low=0.0)
    if starts.ndim != 1:
        raise ValueError(f"start_s must be one-dimensional: got shape {starts.shape}")
    weights = np.arange(1, num_shared + 1) ** -exponent
    shared = generator.choice(num_shared, size=len(starts), p=weights / weights.sum())
    return _Sessions(starts, shared, generator.geometric(1.0 / mean_turns, size=len(starts)))


def _converse(
    sessions: _Sessions,
    shared_tokens: Ids,
    generator: "np.random.Generator",
    *,
    block_size: int,
    mean_new_tokens: float,
    mean_answer_tokens: float,
    mean_pause_s: float,
    max_input_tokens: int,
) -> Trace:
    """Return the trace of sessions whose shared texts have the lengths given."""
    block_size = as_positive_int("block_size", block_size)
    max_input_tokens = as_positive_int("max_input_tokens", max_input_tokens)
    mean_pause_s = as_real("mean_pause_s", mean_pause_s, low=0.0)
    offsets = lengths_to_offsets(sessions.turns)
    session = row_ids(offsets)
    num_requests = len(session)

    new_tokens = _draw_lengths(num_requests, mean_new_tokens, generator)
    output_tokens = _draw_lengths(num_requests, mean_answer_tokens, generator)
    said = _running_sums(new_tokens + output_tokens, offsets) - output_tokens
    input_tokens = shared_tokens[sessions.shared[session]] + said

    pauses = np.rint(1000.0 * mean_pause_s * generator.lognormal(-(_PAUSE_SIGMA**2) / 2, _PAUSE_SIGMA, num_requests))
    pauses[ranks(offsets) == 0] = 0
    since_start = _running_sums(pauses.astype(np.int64), offsets)
    arrival_ms = np.rint(1000.0 * sessions.start_s).astype(np.int64)[session] + since_start

    kept = np.flatnonzero(input_tokens <= max_input_tokens)
    order = kept[np.argsort(arrival_ms[kept], kind="stable")]
    input_tokens, session = input_tokens[order], session[order]
    block_ids, block_offsets = _name_blocks(
        input_tokens, session, shared_tokens // block_size, sessions.shared, block_size
    )
    return Trace(
        block_ids,
        block_offsets,
        block_size=block_size,
        input_tokens=input_tokens,
        output_tokens=output_tokens[order],
        arrival_s=arrival_ms[order] / 1000.0,
        session=session,
    )


def _running_sums(values: Ids, offsets: Ids) -> Ids:
    """Return the sums of each row's values up to each of them, itself included."""
    sums: Ids = np.cumsum(values)
    before = np.concatenate([np.zeros(1, dtype=np.int64), sums])[offsets[:-1]]
    sums -= np.repeat(before, np.diff(offsets))
    return sums


def _name_blocks(input_tokens: Ids, session: Ids, shared_blocks: Ids, shared: Ids, block_size: int) -> tuple[Ids, Ids]:
    """Return block ids and offsets of requests, each of them three ranges of ids.

    They are full blocks of the shared text, full blocks of the session after those, and a partial block or none.
    """
    num_full = input_tokens // block_size
    num_shared = np.minimum(shared_blocks[shared[session]], num_full)
    num_own = num_full - num_shared
    num_partial = (input_tokens % block_size > 0).astype(np.int64)

    most_own = np.zeros(len(shared), dtype=np.int64)
    np.maximum.at(most_own, session, num_own)
    shared_starts = lengths_to_offsets(shared_blocks)
    own_starts = shared_starts[-1] + lengths_to_offsets(most_own)
    partial_starts = own_starts[-1] + lengths_to_offsets(num_partial)

    starts = np.stack([shared_starts[shared[session]], own_starts[session], partial_starts[:-1]], axis=1)  # [B, 3]
    lengths = np.stack([num_shared, num_own, num_partial], axis=1)
    return ranges(starts.ravel(), lengths.ravel()), lengths_to_offsets(lengths.sum(axis=1))
