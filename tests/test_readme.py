"""The README stays true: its examples print what it shows, and the files it names are there."""

import re

import pytest

from tests.readme import README, true_text


def test_every_output_was_printed_by_the_code():
    text = README.read_text()
    assert true_text(text) == text


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:kvarray|tests|benchmarks)/[\w./*]*)`", README.read_text())))
)
def test_every_file_that_it_names_is_there(path):
    assert list(README.parent.glob(path))


def test_no_example_failed():
    assert "Traceback" not in README.read_text()
