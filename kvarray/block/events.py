"""What a block pool tells others about its prefix cache: hashes stored, removed, and all of them cleared.

A router keeps such events of many machines to know which of them has which prefix. They are columns, one row a hash.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvarray.arrays import NO_HASH, Hashes, Ids

__all__ = ["CLEARED", "REMOVED", "STORED", "BlockEvents", "EventLog"]

STORED, REMOVED, CLEARED = 0, 1, 2


@dataclass(frozen=True, eq=False)
class BlockEvents:
    """Events in the order in which they happened.

    Parameters
    ----------
    kind : ndarray of int8, shape (N,)
        `STORED`, `REMOVED` or `CLEARED`.
    block_hash : ndarray of uint64, shape (N,)
        The hash; `NO_HASH` where everything was cleared.
    parent_hash : ndarray of uint64, shape (N,)
        Hash of the block before it, of one stored; `NO_HASH` where there is none or it is not known.
    run : ndarray of int64, shape (N,)
        Number of the run. The hashes of one run were stored together as consecutive blocks of one sequence.
    """

    kind: NDArray[np.int8]
    block_hash: Hashes
    parent_hash: Hashes
    run: Ids

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.kind)


class EventLog:
    """Events not drained yet, kept as the batches in which they came."""

    def __init__(self) -> None:
        self._batches: list[tuple[int, Hashes, Hashes, Ids]] = []
        self._num_runs = 0

    def stored(self, hashes: Hashes, parents: Hashes, starts: Ids) -> None:
        """Note hashes stored; each of `starts` is the place in `hashes` at which a run of one sequence begins."""
        run = np.zeros(len(hashes), dtype=np.int64)
        run[starts] = 1
        self._note(STORED, hashes, parents, self._num_runs - 1 + np.cumsum(run))
        self._num_runs += len(starts)

    def removed(self, hashes: Hashes) -> None:
        """Note hashes removed, each a run of its own."""
        runs = np.arange(self._num_runs, self._num_runs + len(hashes))
        self._note(REMOVED, hashes, np.full(len(hashes), NO_HASH, dtype=np.uint64), runs)
        self._num_runs += len(hashes)

    def cleared(self) -> None:
        """Note that every hash is gone."""
        none = np.full(1, NO_HASH, dtype=np.uint64)
        self._note(CLEARED, none, none, np.array([self._num_runs]))
        self._num_runs += 1

    def peek(self) -> BlockEvents:
        """Return the events noted since the last `drain`."""
        batches = self._batches
        return BlockEvents(
            kind=np.repeat(
                np.array([kind for kind, *_ in batches], dtype=np.int8), [len(hashes) for _, hashes, *_ in batches]
            ),
            block_hash=np.concatenate([np.empty(0, dtype=np.uint64), *(hashes for _, hashes, _, _ in batches)]),
            parent_hash=np.concatenate([np.empty(0, dtype=np.uint64), *(parents for _, _, parents, _ in batches)]),
            run=np.concatenate([np.empty(0, dtype=np.int64), *(runs for *_, runs in batches)]),
        )

    def drain(self) -> BlockEvents:
        """Return the events noted since the last call, and forget them."""
        events = self.peek()
        self._batches = []
        return events

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the whole state as arrays, for `restore`."""
        events = self.peek()
        return {**vars(events), "num_runs": np.array(self._num_runs)}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Return to the state of which `arrays` made copies."""
        kinds = arrays["kind"]
        cuts = np.flatnonzero(np.diff(kinds)) + 1  # a batch is of one kind
        columns = (np.split(arrays[name], cuts) for name in ("kind", "block_hash", "parent_hash", "run"))
        self._batches = []
        for kind, hashes, parents, runs in zip(*columns, strict=True):
            if len(kind):
                self._batches.append((int(kind[0]), hashes, parents, runs))
        self._num_runs = int(arrays["num_runs"])

    def _note(self, kind: int, hashes: Hashes, parents: Hashes, runs: Ids) -> None:
        if len(hashes):
            self._batches.append((kind, hashes, parents, runs))
