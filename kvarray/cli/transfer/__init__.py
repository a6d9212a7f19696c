"""`kvarray transfer`: what moving KV from prefill to decode does to the time to first token."""

import argparse
from typing import Any

from kvarray.cli.transfer.flags import add_flags, complete
from kvarray.cli.transfer.schedules import hiding_bandwidth, make_scheduler, make_schedules
from kvarray.cli.transfer.show import show_schedules, show_sweep

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the flags of `kvarray transfer`."""
    add_flags(subparsers).set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Answer `kvarray transfer`."""
    complete(args)
    scheduler = make_scheduler(args)
    schedules = make_schedules(args, scheduler)
    if args.sweep:
        show_sweep(args, schedules)
    else:
        show_schedules(args, schedules, hiding_bandwidth(args, scheduler))
