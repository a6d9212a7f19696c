"""Arguments that several commands share: lists of sizes and counts, and how a result is shown."""

import argparse
from collections.abc import Callable
from typing import TypeVar

__all__ = ["add_output_flags", "flag_type", "list_of"]

_Item = TypeVar("_Item")


def flag_type(parse: Callable[[str], _Item]) -> Callable[[str], _Item]:
    """Return `parse` as an argparse type: its `ValueError` becomes the one line the user sees.

    Examples
    --------
    >>> flag_type(int)("x")
    Traceback (most recent call last):
        ...
    argparse.ArgumentTypeError: invalid literal for int() with base 10: 'x'
    """

    def parse_flag(text: str) -> _Item:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_flag


def list_of(parse: Callable[[str], _Item]) -> Callable[[str], list[_Item]]:
    """Return an argparse type for a comma-separated list of what `parse` understands.

    Examples
    --------
    >>> list_of(int)("3,4")
    [3, 4]
    """

    def parse_list(text: str) -> list[_Item]:
        items = text.split(",")
        if not all(item.strip() for item in items):
            raise ValueError(f"a list must have no empty items: got {text!r}")
        return [parse(item) for item in items]

    return flag_type(parse_list)


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` and ``--csv``, of which one may be given; without either the result is a table."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="print the result as JSON")
    group.add_argument("--csv", action="store_true", help="print the rows as CSV")
