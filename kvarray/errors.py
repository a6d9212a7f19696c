"""The exceptions that kvarray raises on purpose.

Malformed arguments raise plain `ValueError` or `TypeError`, worded by the checks of `kvarray.arrays`. What is
here is for calls that are well formed and cannot be carried out, and for files that do not hold what they should.
Every error leaves the object it came from as it was before the call.
"""

from collections.abc import Iterable, Mapping

__all__ = [
    "BlockStateError",
    "CapacityError",
    "InvariantError",
    "KVArrayError",
    "OversizeError",
    "SweepError",
    "TraceError",
    "TransferError",
]


class KVArrayError(Exception):
    """Root of the errors that kvarray raises on purpose."""


class CapacityError(KVArrayError):
    """A batch needs more room than there is.

    Parameters
    ----------
    message : str
        What was asked, and of what.
    requested, available : int
        What the batch as a whole needs and what there is, in the unit that the message names.

    Examples
    --------
    >>> error = CapacityError("allocate 5 blocks: 3 are free", requested=5, available=3)
    >>> error.requested - error.available
    2
    """

    def __init__(self, message: str, *, requested: int, available: int) -> None:
        super().__init__(message)
        self.requested = requested
        self.available = available


class OversizeError(CapacityError):
    """A request needs more room than there will ever be, so it is refused for good and not left waiting."""


class BlockStateError(KVArrayError):
    """Some ids of a batch are not in the state that the call needs.

    Parameters
    ----------
    message : str
        The rule, and the first offending ids.
    ids : iterable of int
        All the offending ids, in the order of the batch.

    Examples
    --------
    >>> BlockStateError("release blocks [7]: they have no holder", ids=[7]).ids
    (7,)
    """

    def __init__(self, message: str, *, ids: Iterable[int]) -> None:
        super().__init__(message)
        self.ids = tuple(int(i) for i in ids)


class InvariantError(KVArrayError):
    """A `check()` found a state that no sequence of calls should lead to. It is a bug in kvarray."""


class TraceError(KVArrayError, ValueError):
    """A trace file or record does not hold what it should; the message names file, line, field and value."""


class TransferError(KVArrayError):
    """Blocks have no way to their destination: every stream has failed before they were through.

    Parameters
    ----------
    message : str
        What happened, and the first blocks left behind.
    ids : iterable of int
        Indices of all blocks left behind in some world, ascending.

    Examples
    --------
    >>> TransferError("all streams failed with block 3 to go", ids=[3]).ids
    (3,)
    """

    def __init__(self, message: str, *, ids: Iterable[int]) -> None:
        super().__init__(message)
        self.ids = tuple(int(i) for i in ids)


class SweepError(KVArrayError):
    """Workers died, or were lost, before their parts of a sweep were done.

    Parameters
    ----------
    message : str
        Which parts, and what became of the first.
    lost : sequence of (int, int)
        The parts that can be run again.
    finished : mapping of (int, int) to mapping
        The columns of the other parts: ``kvarray.sweep(..., finished=error.finished)`` runs only what is missing.

    Examples
    --------
    >>> SweepError("part 0:5 was lost", lost=[(0, 5)], finished={}).lost
    ((0, 5),)
    """

    def __init__(
        self,
        message: str,
        *,
        lost: Iterable[tuple[int, int]],
        finished: Mapping[tuple[int, int], Mapping[str, object]],
    ) -> None:
        super().__init__(message)
        self.lost = tuple(lost)
        self.finished = dict(finished)
