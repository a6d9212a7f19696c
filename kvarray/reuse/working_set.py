"""Distinct blocks touched in a window of requests: the working set."""

import numpy as np
from numpy.typing import ArrayLike

from kvarray.arrays import Ids, as_ints, check_same_length, refuse
from kvarray.reuse.distances import Runs, earlier_below, runs_of
from kvarray.trace import Trace

__all__ = ["working_set"]


def working_set(trace: Trace, starts: ArrayLike, stops: ArrayLike, *, runs: Runs | None = None) -> Ids:
    """Return the number of distinct blocks that each window of requests touches.

    Parameters
    ----------
    trace : Trace
        With block ids.
    starts, stops : array_like of int, shape (K,)
        Window k is the requests ``starts[k] <= i < stops[k]``. For windows of time, look the requests up with
        ``np.searchsorted(trace.arrival_s, times)``.
    runs : Runs, optional
        `prefix_runs` of the same trace, where they are there already.

    Returns
    -------
    ndarray of int64, shape (K,)

    Raises
    ------
    TraceError
        If the trace has no block ids.
    ValueError
        Unless ``0 <= starts <= stops <= num_requests``.

    Notes
    -----
    A block counts at its first use within the window: O((M + K) log (M + K)) for all windows together.

    References
    ----------
    .. [1] P. J. Denning, "The working set model for program behavior", CACM 11, 1968.

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 3, 6, 9], block_size=16)
    >>> working_set(trace, [0, 1, 2, 1], [3, 3, 3, 1])
    array([4, 4, 3, 0])
    """
    begin = as_ints("starts", starts, low=0, high=trace.num_requests + 1)
    end = as_ints("stops", stops, low=0, high=trace.num_requests + 1)
    check_same_length(starts=begin, stops=end)
    refuse("stops", "not be less than starts", end < begin, end)
    runs = runs_of(trace, runs)

    # Blocks used before `end` whose use before that, if any, was before `begin`; less all that was used before
    # `begin`. A window is a point without weight, placed before the runs of request `end` and ranked just below the
    # runs last used by request `begin`.
    num_windows = len(begin)
    when = np.concatenate([end, runs.request])
    last_use = np.concatenate([begin, runs.previous + 1])
    is_run = np.concatenate([np.zeros(num_windows, dtype=np.int64), np.ones(len(runs), dtype=np.int64)])
    weights = np.concatenate([np.zeros(num_windows, dtype=np.int64), runs.length])
    order = np.argsort(when * 2 + is_run, kind="stable")
    by_rank = np.argsort(last_use * 2 + (1 - is_run), kind="stable")
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[by_rank] = np.arange(len(order))
    used = np.empty(len(order), dtype=np.int64)
    used[order] = earlier_below(ranks[order], weights[order])
    return used[:num_windows] - trace.offsets[begin]
