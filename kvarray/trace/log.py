"""What a reader does with the records that it cannot read, or not in bulk."""

from kvarray.errors import TraceError
from kvarray.trace.columns import Skipped

__all__ = ["MalformedError", "SkipLog", "UnusualChunkError", "shown", "usual"]

_SHOWN_MESSAGES = 5
_SHOWN_CHARACTERS = 60


class MalformedError(ValueError):
    """What is wrong with one record, without the place where it stands."""


class UnusualChunkError(Exception):
    """A chunk of lines that has to be read record by record: something in it is wrong, or only rare."""


def usual(is_usual: bool) -> None:
    """Give a chunk up unless it is as usual."""
    if not is_usual:
        raise UnusualChunkError


def shown(value: object) -> str:
    """Return a value as a message shows it, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


class SkipLog:
    """Raises at the first malformed record, or counts them all.

    Parameters
    ----------
    name : str
        The file, for messages.
    skip : bool
        Count malformed records instead of raising.
    """

    def __init__(self, name: str, *, skip: bool) -> None:
        self.name = name
        self._skip = skip
        self._count = 0
        self._messages: list[str] = []
        self._blank_line: int | None = None  # the first of those that may yet turn out to be at the end

    @property
    def has_blank(self) -> bool:
        """Whether the last line was blank."""
        return self._blank_line is not None

    def is_blank(self, line: int, content: bytes) -> bool:
        """Return whether a line is blank. Only at the end of a file may lines be so."""
        if not content.strip():
            self._blank_line = self._blank_line or line
            return True
        if self._blank_line is not None:
            blank_line, self._blank_line = self._blank_line, None
            self.leave_out(blank_line, "blank, and not at the end")
        return False

    def leave_out(self, line: int, problem: str) -> None:
        """Note that the record of a line is left out, or raise `TraceError`."""
        message = f"{self.name}, line {line}: {problem}"
        if not self._skip:
            raise TraceError(message)
        self._count += 1
        if len(self._messages) < _SHOWN_MESSAGES:
            self._messages.append(message)

    def skipped(self) -> Skipped:
        """Return what was left out."""
        return Skipped(self._count, tuple(self._messages))

    def refuse_nothing(self, num_requests: int) -> None:
        """Raise `TraceError` where no request is left."""
        if not num_requests:
            reason = f" ({self._count} left out; {self._messages[0]})" if self._count else ""
            raise TraceError(f"{self.name}: no request in it{reason}")
