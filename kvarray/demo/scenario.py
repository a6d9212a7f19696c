"""What a scenario of the demo shows: named figures, how to read them, and what they were taken from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Scenario"]


@dataclass(frozen=True, eq=False)
class Scenario:
    """A worked example of one mechanism, or of two of them together.

    Attributes
    ----------
    number : int
        By which it is asked for.
    title : str
    setting : str
        What happens, with the inputs.
    lines : sequence of mapping of str to object
        Names and values of the figures, one mapping for each line that is printed: numbers, lists of them, or numbers
        by name; times and rates are not rounded.
    reading : str
        What the figures say.
    digits : mapping of str to int, optional
        Decimals with which a figure is written, where it is a float.
    drawing : str, optional
        A picture in characters.
    pictured : mapping of str to object, optional
        What a plot is drawn of, by the kind of plot: ``tree``, ``tiers``, ``gantt`` or ``bars``.
    """

    number: int
    title: str
    setting: str
    lines: Sequence[Mapping[str, object]]
    reading: str
    digits: Mapping[str, int] = field(default_factory=dict)
    drawing: str = ""
    pictured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, object]:
        """All figures by name."""
        return {name: value for line in self.lines for name, value in line.items()}

    def written(self, name: str) -> str:
        """Return a figure as it is printed.

        Examples
        --------
        >>> lines = [{"hits": {"cpu": 2, "gpu": 1}, "hit_rate": 2 / 3}]
        >>> shown = Scenario(1, "title", "setting", lines, "reading", digits={"hit_rate": 4})
        >>> shown.written("hits"), shown.written("hit_rate")
        ('{cpu: 2, gpu: 1}', '0.6667')
        """
        return _text(self.figures[name], self.digits.get(name))

    def to_text(self) -> str:
        """Return the scenario as paragraphs: title and setting, figures, drawing, reading."""
        lines = [f"{self.number}. {self.title}", f"   {self.setting}"]
        lines += ["     " + "    ".join(f"{name}: {self.written(name)}" for name in line) for line in self.lines]
        lines += [f"       {line}" for line in self.drawing.splitlines()]
        return "\n".join([*lines, f"   {self.reading}"])


def _text(value: object, digits: int | None) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(item, digits)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_text(item, digits) for item in value) + "]"
    return str(round(value, digits) if isinstance(value, float) and digits is not None else value)
