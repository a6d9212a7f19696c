"""The `kvarray` command: one subcommand for each question.

Each subcommand is a module with `add_parser`, which declares its flags, and `run`, which answers; `COMMANDS` lists
them. Whatever is wrong with a file, a field or a flag is one line on stderr and exit code 2.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from kvarray.errors import KVArrayError

__all__ = ["main"]

COMMANDS: tuple[str, ...] = ("curve", "size", "tiers", "transfer", "replay", "sweep", "trace", "demo")
"""Names of the modules of this package that are subcommands, in the order of the help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the program's name; those of the process by default.

    Returns
    -------
    int
        0, or 2 where a file, a field or a flag is wrong.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = _parser(argv)
    try:
        args = parser.parse_args(argv)
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, as in `kvarray curve | head -1`; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SystemExit as stop:  # argparse: 0 after --help, 2 after a wrong flag
        return stop.code if isinstance(stop.code, int) else 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _refuse(args.command, f"{where}{error.strerror or error}")
    except (KVArrayError, ValueError, TypeError, ImportError) as error:
        return _refuse(args.command, str(error))
    except OverflowError as error:
        return _refuse(args.command, f"a number is too large: {error}")
    except MemoryError as error:
        return _refuse(args.command, f"the answer needs more memory than there is: {error}")
    except RecursionError:
        return _refuse(args.command, "a file is nested too deeply")
    return 0


def _refuse(command: str, message: str) -> int:
    print(f"kvarray {command}: {' '.join(message.split())}", file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line: the usage is a `--help` away."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command at hand; of all of them where none is named, as for the help."""
    import importlib

    parser = _Parser(prog="kvarray", description="What would my KV cache do if ...?")
    parser.add_argument("--version", action="version", version=f"kvarray {_version()}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in argv[:1] if argv[:1] and argv[0] in COMMANDS else COMMANDS:
        importlib.import_module(f"kvarray.cli.{name}").add_parser(subparsers)
    return parser


def _version() -> str:
    import kvarray

    return kvarray.__version__
