"""Batches of prompts on the engine of a tree."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from kvarray.arrays import NO_NODE, Ids
from kvarray.errors import CapacityError
from kvarray.prefix.engine import STAMPS, Engine
from kvarray.prefix.nodes import ROOT
from kvarray.prefix.saving import load_state, state_arrays
from kvarray.prefix.walk import Walks, walk
from kvarray.ragged import lengths_to_offsets, ranges

__all__ = ["Prompts", "all_or_none", "use_rows", "values_of_rows"]

_Result = TypeVar("_Result")


def values_of_rows(engine: Engine, found: Walks) -> tuple[Ids | None, Ids | None]:
    """Return the stored values of the matches of a batch, and their offsets."""
    size = engine.nodes.value_size
    if not size:
        return None, None
    _, nodes, lengths = found.pieces()
    lengths = np.where(lengths < 0, engine.nodes.columns["edge_length"][nodes], lengths)
    starts = engine.nodes.columns["edge_offset"][nodes]
    return engine.nodes.values[ranges(starts // size, lengths // size)], lengths_to_offsets(found.num_tokens // size)


def use_rows(engine: Engine, found: Walks, tokens: Ids, offsets: Ids, namespaces: Ids) -> Ids:
    """`Engine.use` for a batch: rows that end between edges all at once, the others after them, in order."""
    columns = engine.nodes.columns
    first_tick = engine.tick + 1
    stamps = STAMPS * (first_tick + np.arange(len(found.last)))
    engine.tick += len(stamps)
    engine.counts["matches"] += len(stamps)
    engine.counts["asked_tokens"] += len(tokens)
    engine.counts["matched_tokens"] += int(found.num_tokens.sum())
    for rows, nodes in found.steps:
        columns["last_use"][nodes] = stamps[rows]  # rows ascend, and the last write to a node stays
        if engine.count_uses == "touches":
            np.add.at(columns["uses"], nodes, 1)
    is_part = found.lower != NO_NODE
    last, depth = found.last.copy(), engine.nodes.depth
    engine.candidates.note_many(last[last != ROOT].tolist())
    # What a later row did to the whole edge, it did to the part above the split as well, and `split` hands that on.
    for row in is_part.nonzero()[0].tolist():
        size = int(found.num_tokens[row])
        prompt = tokens[offsets[row] : offsets[row] + size]
        again = walk(engine.nodes, prompt, int(namespaces[row]))
        path = engine.touch(again, int(stamps[row]))
        last[row] = path[-1]
        if engine.count_uses == "touches":
            counted = depth[int(found.last[row])]  # so deep the rounds above counted
            for node in path:
                if depth[node] > counted:
                    engine.nodes.uses[node] += 1
    return last


class Prompts(NamedTuple):
    """Prompts to insert, checked.

    Parameters
    ----------
    tokens, values : ndarray of int64
        Of all prompts, one prompt after the other.
    offsets, value_offsets : ndarray of int64, shape (B + 1,)
        Where those of each prompt begin and end.
    namespaces : sequence of (str or None), length B
        Namespace of each prompt.
    """

    tokens: Ids
    offsets: Ids
    values: Ids
    value_offsets: Ids
    namespaces: Sequence[str | None]


def all_or_none(
    engine: Engine, prompts: Prompts, insert: Callable[[int, Ids, Ids, str | None], _Result]
) -> list[_Result]:
    """Call `insert` (row, tokens, values, namespace) for each prompt and return the results.

    Where a prompt finds no room, all is undone and the error names its row.
    """
    longest = int(np.diff(prompts.offsets).max(initial=0))
    # Where even the longest prompt finds room beside the locks, no row can fail; else be ready to go back.
    can_fail = longest + engine.protected > engine.nodes.capacity
    saved = state_arrays(engine) if can_fail else None
    mark = engine.recorder.mark() if engine.recorder else 0
    cuts, value_cuts = prompts.offsets.tolist(), prompts.value_offsets.tolist()
    results: list[_Result] = []
    try:
        for row, name in enumerate(prompts.namespaces):
            tokens = prompts.tokens[cuts[row] : cuts[row + 1]]
            values = prompts.values[value_cuts[row] : value_cuts[row + 1]]
            results.append(insert(row, tokens, values, name))
    except CapacityError as error:
        assert saved is not None  # locks only grow fewer in a batch
        load_state(engine, saved)
        if engine.recorder:
            engine.recorder.forget(mark)
        message = f"prompt {len(results)} of the batch: {error}"
        raise CapacityError(message, requested=error.requested, available=error.available) from None
    return results
