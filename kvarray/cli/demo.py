"""`kvarray demo`: the mechanisms at a size one can follow by hand."""

import argparse
from collections.abc import Sequence
from typing import Any

from kvarray.cli.arguments import list_of
from kvarray.cli.output import print_json
from kvarray.demo import SCENARIOS, Scenario

__all__ = ["add_parser", "run"]

_EPILOG = """examples:
  kvarray demo                                  all scenarios and exercises
  kvarray demo --scenario 3                     three tiers and their cost
  kvarray demo --scenario 2,4 --plot pictures   with a tree and a Gantt chart as pictures/*.png
"""


def add_parser(subparsers: Any) -> None:
    """Declare the flags of `kvarray demo`."""
    parser = subparsers.add_parser(
        "demo",
        help="five scenarios and four exercises",
        description="Blocks, prefixes, tiers, transfers and bytes in scenarios that one can follow by hand.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--scenario",
        type=list_of(_number),
        action="extend",
        metavar="N,...",
        help=f"which of {_known()}; all by default",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, not rounded")
    parser.add_argument("--plot", metavar="DIR", help="draw trees, tiers, Gantt charts and bars into a folder")
    parser.set_defaults(run=run)


def _known() -> str:
    return f"{min(SCENARIOS)} to {max(SCENARIOS)}"


def _number(text: str) -> int:
    if not text.strip().isdecimal() or int(text) not in SCENARIOS:
        raise ValueError(f"a scenario must be one of {_known()}: got {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> None:
    """Answer `kvarray demo`."""
    numbers = sorted(set(args.scenario)) if args.scenario else list(SCENARIOS)
    scenarios = [SCENARIOS[number]() for number in numbers]
    if args.plot is not None:
        _plot(scenarios, args.plot)
    if args.json:
        print_json({"scenarios": [_as_json(scenario) for scenario in scenarios]})
    else:
        print("\n\n".join(scenario.to_text() for scenario in scenarios))


def _as_json(scenario: Scenario) -> dict[str, object]:
    names = ("number", "title", "setting", "figures", "reading")
    return {name: getattr(scenario, name) for name in names}


def _plot(scenarios: Sequence[Scenario], folder: str) -> None:
    from pathlib import Path

    from kvarray.plot import plot_scenario, save_figure

    drawn = {f"{one.number}-{kind}.png": figure for one in scenarios for kind, figure in plot_scenario(one).items()}
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        save_figure(figure, Path(folder) / name)
