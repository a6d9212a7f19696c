"""Sizes, rates, counts and durations as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarray import units


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_bytes, "1GB", 10**9),
        (units.parse_bytes, "1GiB", 2**30),
        (units.parse_bytes, "0.5 KiB", 512),
        (units.parse_bytes, "1_000_000", 10**6),
        (units.parse_bytes, "0", 0),
        (units.parse_seconds, "0.5h", 1800.0),
        (units.parse_bytes, "9007199254740993", 2**53 + 1),
        (units.parse_count, "10k", 10_000),
        (units.parse_count, "128K", 131_072),
        (units.parse_count, "1e6", 10**6),
        (units.parse_rate, "400Gb/s", 50e9),
        (units.parse_rate, "1GiB/s", 2.0**30),
        (units.parse_seconds, "250us", 250e-6),
        (units.parse_seconds, "2", 2.0),
    ],
)
def test_parse(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (units.parse_bytes, "64G", "unit out of"),
        (units.parse_bytes, "-1GB", "0 or more"),
        (units.parse_bytes, "", "0 or more"),
        (units.parse_bytes, "GiB", "0 or more"),
        (units.parse_bytes, "nan", "0 or more"),
        (units.parse_bytes, "1.5", "whole number"),
        (units.parse_bytes, "1e999", "finite"),
        (units.parse_bytes, "64 Gb", "unit out of"),
        (units.parse_bytes, "1,000", "0 or more"),
        (units.parse_bytes, "1__0", "0 or more"),
        (units.parse_bytes, "9223372036854775808", r"less than 2\^63"),
        (units.parse_bytes, "8192PiB", r"less than 2\^63"),
        (units.parse_count, "1e30", r"less than 2\^63"),
        (units.parse_count, "000", "0 or more"),
        (units.parse_count, "²", "0 or more"),
        (units.parse_count, "10kB", "unit out of"),
        (units.parse_count, "0.5", "whole number"),
        (units.parse_rate, "25", "unit out of"),
        (units.parse_rate, "25GB", "unit out of"),
        (units.parse_seconds, "3 weeks", "unit out of"),
    ],
)
def test_refused(parse, text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


@given(st.integers(0, 2**62))
def test_integers_stay_exact(number):
    assert units.parse_bytes(str(number)) == number
    assert units.parse_count(str(number)) == number
