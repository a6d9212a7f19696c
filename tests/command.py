"""The command line as a test calls it."""

import json

from kvarray.cli import main


def ask(capsys, command, *arguments):
    """The JSON answer of a command."""
    assert main([command, *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refuse(capsys, command, *arguments):
    """The one line of a refusal: exit code 2, and nothing where the result would be."""
    assert main([command, *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err
