"""The examples of the README, and what the code prints for them.

`python -m tests.readme` writes the output of every example into the README; `tests/test_readme.py` holds it to that.
"""

import code
import contextlib
import io
import re
import shlex
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
FENCE = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def true_text(text: str) -> str:
    """The text with the output of each example replaced by what is printed now."""
    python = code.InteractiveConsole()  # one for all examples: a later one goes on where an earlier one ended

    def run(fence: re.Match[str]) -> str:
        printed = _run_console(fence[2]) if fence[1] == "console" else _run_python(fence[2], python)
        return f"```{fence[1]}\n{printed}```"

    return FENCE.sub(run, text)


def _run_console(example: str) -> str:
    from kvarray.cli import main

    lines = []
    for line in example.splitlines():
        if line.startswith("$ kvarray "):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                assert main(shlex.split(line)[2:]) == 0, line
            lines += [line, *out.getvalue().splitlines()]
    return "\n".join(lines) + "\n"


def _run_python(example: str, console: code.InteractiveConsole) -> str:
    lines = []
    for line in example.splitlines():
        if line.startswith((">>> ", "... ", "...")):
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                console.push(line[4:])
            lines += [line, *out.getvalue().splitlines()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    README.write_text(true_text(README.read_text()))
