"""`sweep`: what every combination of a grid would have cost, here or on many machines."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kvarray.arrays import as_int, as_positive_int, check_type
from kvarray.errors import KVArrayError, SweepError
from kvarray.grid.columns import Columns
from kvarray.grid.draws import Draws
from kvarray.grid.grid import Grid
from kvarray.grid.result import Sweep
from kvarray.grid.rows import part_columns
from kvarray.trace import Trace

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

__all__ = ["sweep"]

_Part = tuple[int, int]


def sweep(
    trace: Trace,
    grid: Grid,
    *,
    ttft: bool = True,
    samples: int = 0,
    confidence: float = 0.9,
    rng: "int | np.random.Generator | None" = None,
    limit: int = 1_000_000,
    executor: "Executor | None" = None,
    parts: int | None = None,
    finished: Mapping[_Part, Mapping[str, Any]] | None = None,
    progress: Callable[[int], object] | None = None,
) -> Sweep:
    """Return what a trace would have cost in every deployment of a grid.

    Parameters
    ----------
    trace : Trace
        As for `kvarray.replay`.
    grid : Grid
    ttft : bool, optional
        Whether requests are timed. Hits, bytes and gain alone are had in a tenth of the time.
    samples : int, optional
        How often sessions are drawn for intervals of hit rate, gain and times; none where it is 0.
    confidence : float, optional
        Share of the samples that an interval holds.
    rng : int or numpy.random.Generator, optional
        Required with `samples`.
    limit : int, optional
        Most combinations that are accepted; their number is known, and refused, before anything runs.
    executor : concurrent.futures.Executor, optional
        Where parts of the grid run: threads, processes, or a cluster (``distributed.Client(...).get_executor()``, with
        ``pip install 'kvarray[dask]'``). In this thread, where it is not given.
    parts : int, optional
        Into how many parts the grid is cut for an executor; two for each core of this machine by default. Each does
        anew what combinations share.
    finished : mapping, optional
        Parts that were done before, out of `SweepError.finished`; the other parts are run.
    progress : callable, optional
        Told of every few combinations how many are done; ``tqdm.update`` will do.

    Returns
    -------
    Sweep

    Raises
    ------
    TraceError, OversizeError
        As `kvarray.replay`, if any deployment of the grid would.
    SweepError
        If parts were lost with the process that ran them; it has the others.
    TypeError, ValueError
        If an argument is malformed or the grid larger than the limit.

    Notes
    -----
    Each row is what `replay` says of that deployment: integers exactly, times but for the order of sums. Memory is the
    table, and a bounded number of requests times combinations beside it. The same input gives the same bits, however
    the grid is cut.

    Examples
    --------
    >>> trace = Trace([1, 2, 3, 4, 5, 6, 1, 2, 3], [0, 3, 6, 9], block_size=16, arrival_s=[0.0, 60.0, 120.0])
    >>> base = {"bytes_per_token": 1, "prefill": {"per_token": 1.0}, "tiers": ["gpu=3blocks", "cpu=4blocks@64B/s"]}
    >>> result = sweep(trace, Grid(base, {"cpu.blocks": [1, 4], "cpu.bandwidth": [16, 64]}))
    >>> result["hit_tokens"], result["mean_ttft_s"].round(3)
    (array([16, 16, 48, 48]), array([43.   , 42.75 , 33.333, 32.583]))
    """
    check_type("trace", trace, Trace)
    if not isinstance(grid, Grid):
        raise TypeError(f"grid must be a Grid: got {type(grid).__name__}")
    grid.check_size(limit)
    draws = None
    if as_int("samples", samples, low=0):
        if rng is None:
            raise TypeError("rng must be given with samples: a seed or a Generator")
        draws = Draws.of(trace, samples, confidence=confidence, rng=rng)
    done: dict[_Part, Columns] = {part: dict(columns) for part, columns in (finished or {}).items()}
    pairs = grid.order.shape[0] * grid.order.shape[1]
    missing = _missing(pairs, done)
    if executor is None:
        for part in missing:
            done[part] = part_columns(trace, grid, part, ttft=ttft, draws=draws, progress=progress)
    else:
        number = 2 * (os.cpu_count() or 1) if parts is None else as_positive_int("parts", parts)
        _run(executor, trace, grid, _cut(missing, number), done, ttft=ttft, draws=draws, progress=progress)
    return Sweep(grid, _table(grid, done), trace.num_requests, trace.block_size or 1)


def _missing(pairs: int, done: Mapping[_Part, Columns]) -> list[_Part]:
    """Return the parts that are not done yet: what lies between those that are."""
    missing = []
    at = 0
    for start, stop in [*sorted(done), (pairs, pairs)]:
        if start < at or stop > pairs:
            raise ValueError(f"finished parts must be of this grid, each once: got {start}:{stop}")
        if at < start:
            missing.append((at, start))
        at = stop
    return missing


def _cut(missing: list[_Part], number: int) -> list[_Part]:
    """Return the missing parts in pieces, about `number` of them in all."""
    total = sum(stop - start for start, stop in missing)
    step = max(1, -(-total // number))
    return [(at, min(at + step, stop)) for start, stop in missing for at in range(start, stop, step)]


def _run(
    executor: "Executor",
    trace: Trace,
    grid: Grid,
    parts: list[_Part],
    done: dict[_Part, Columns],
    *,
    ttft: bool,
    draws: Draws | None,
    progress: Callable[[int], object] | None,
) -> None:
    """Run parts on an executor, put them into `done`, and raise for what was lost."""
    from concurrent.futures import as_completed

    futures: dict[Future[Columns], _Part] = {}
    lost: dict[_Part, BaseException] = {}
    for part in parts:
        try:
            futures[executor.submit(part_columns, trace, grid, part, ttft=ttft, draws=draws)] = part
        except Exception as error:  # the executor itself has gone
            lost[part] = error
    try:
        for future in as_completed(futures):
            part = futures[future]
            failure = future.exception()
            if isinstance(failure, KVArrayError | TypeError | ValueError):
                raise failure
            if failure is not None:
                lost[part] = failure
                continue
            done[part] = future.result()
            if progress is not None:
                progress((part[1] - part[0]) * grid.order.shape[2])
    finally:
        for future in futures:
            future.cancel()
    if lost:
        first = min(lost)
        names = ", ".join(f"{start}:{stop}" for start, stop in sorted(lost)[:5]) + (", ..." if len(lost) > 5 else "")
        raise SweepError(
            f"{len(lost)} of {len(parts)} parts of the sweep were lost ({names}), the first with "
            f"{type(lost[first]).__name__}: {str(lost[first]) or 'no message'}",
            lost=sorted(lost),
            finished=done,
        ) from lost[first]


def _table(grid: Grid, done: Mapping[_Part, Columns]) -> Columns:
    """Return all columns in the order of the combinations."""
    pieces = [done[part] for part in sorted(done)]
    rows = grid.order.reshape(-1, grid.order.shape[2])
    names = dict.fromkeys(name for piece in pieces for name in piece)
    columns: Columns = {}
    for name in names:
        kind = next(piece[name].dtype for piece in pieces if name in piece)
        columns[name] = np.zeros(grid.size, dtype=kind)  # a tier that is not there serves and moves nothing
        for part, piece in zip(sorted(done), pieces, strict=True):
            if name in piece:
                columns[name][rows[slice(*part)]] = piece[name]
        columns[name].flags.writeable = False
    return columns
