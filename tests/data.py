"""Where the real traces, configs and published results are, and the cases they hold.

The folder is `KVARRAY_DATA`, or `../shared/data` beside the checkout. Where it is absent, tests that need it skip
and say which file is missing. Nothing in it is copied into the project.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

DATA = Path(os.environ.get("KVARRAY_DATA") or Path(__file__).parents[2] / "shared" / "data")


def data_file(relative: str) -> Path:
    """Path of a data file; skips the running test where it is absent."""
    path = DATA / relative
    if not path.exists():
        pytest.skip(f"no {relative} under KVARRAY_DATA or ../shared/data")
    return path


def data_files(folder: str, pattern: str) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`: every file of the pattern, or one that skips with the reason."""
    paths = sorted((DATA / folder).glob(pattern))
    return [pytest.param(path, id=path.name) for path in paths] or [_missing(f"{folder}/{pattern}")]


def published_cases(*kinds: str) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`: every published case of the kinds, or one that skips."""
    path = DATA / "published" / "cases.json"
    cases = json.loads(path.read_text()) if path.exists() else []
    found = [pytest.param(case, id=case["id"]) for case in cases if case["kind"] in kinds]
    return found or [_missing(f"published/cases.json case of kind {', '.join(kinds)}")]


def _missing(what: str) -> Any:
    skip = pytest.mark.skip(reason=f"no {what} under KVARRAY_DATA or ../shared/data")
    return pytest.param(None, marks=skip, id="absent")
