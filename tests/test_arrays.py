"""Argument checks: each rule, the message it gives, and what passes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarray import arrays


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([1.5], TypeError, "x must be integers: got float64"),
        ([True, False], TypeError, "x must be integers: got bool"),
        (["a"], TypeError, "x must be integers: got <U1"),
        ([None], TypeError, "x must be integers: got object"),
        ([[1, 2]], ValueError, r"one-dimensional: got shape \(1, 2\)"),
        ([2**63], ValueError, "less than 2\\^63: x\\[0\\] = 9223372036854775808"),
        ([5, 2**63], ValueError, r"x must fit 64 bits: x\[1\] = 9223372036854775808"),
        ([5, 2**64], ValueError, r"x must fit 64 bits: x\[1\] = 18446744073709551616"),
        ([0, -1], ValueError, "x must be 0 or more: x\\[1\\] = -1"),
        ([10, 3, 11], ValueError, r"x must be less than 10: x\[0\] = 10, x\[2\] = 11"),
    ],
)
def test_as_ints_refuses(values, error, message):
    with pytest.raises(error, match=message):
        arrays.as_ints("x", values, low=0, high=10)


def test_a_message_lists_five_places_and_counts_the_rest():
    with pytest.raises(ValueError, match=r"x\[4\] = -1 and 3 more$"):
        arrays.as_ints("x", [-1] * 8, low=0)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_as_ints_keeps_every_int64(values):
    assert arrays.as_ints("x", values).tolist() == values


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, [0.5, float("nan")]])
def test_as_floats_refuses(value):
    with pytest.raises(ValueError, match=r"^x must "):
        arrays.as_floats("x", value, low=0.0)


def test_as_floats_open_low_refuses_the_bound():
    with pytest.raises(ValueError, match="x must be more than 0: got 0"):
        arrays.as_floats("x", 0.0, low=0.0, open_low=True)


@pytest.mark.parametrize("value", ["1", True, None, 1j])
def test_numbers_of_other_types_are_refused(value):
    with pytest.raises(TypeError, match="x must be"):
        arrays.as_int("x", value)
    with pytest.raises(TypeError, match="x must be"):
        arrays.as_real("x", value)


def test_as_hashes_refuses_the_sentinel():
    with pytest.raises(ValueError, match=r"x\[1\] = 0"):
        arrays.as_hashes("x", np.array([3, 0], dtype=np.uint64))


@pytest.mark.parametrize(
    ("offsets", "message"),
    [([], "one item more"), ([1, 2], "begin at 0"), ([0, 3], "end at"), ([0, 3, 1, 2], r"offsets\[2\] = 1")],
)
def test_check_offsets(offsets, message):
    with pytest.raises(ValueError, match=message):
        arrays.check_offsets("offsets", np.array(offsets, dtype=np.int64), 2)


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([1.0, -1e61], {}, r"x must be 1e\+60 or less: x\[1\] = -1e\+61"),
        ([1e61], {"low": 0.0}, r"x must be 1e\+60 or less"),
        ([1.0, 1e-61], {"low": 0.0, "open_low": True}, r"x must be 1e-60 or more: x\[1\] = 1e-61"),
        ([0.0], {"low": 0.0, "open_low": True}, "x must be more than 0"),
        ([np.nan], {}, "x must be finite"),
    ],
)
def test_amounts_beyond_reason_are_refused(values, options, message):
    with pytest.raises(ValueError, match=message):
        arrays.as_amounts("x", values, **options)
    with pytest.raises(ValueError, match=message.partition(":")[0]):
        arrays.as_amount("x", values[-1], **options)


def test_amounts_of_any_shape_pass():
    assert arrays.as_amounts("x", np.full((2, 0), 1.0), low=0.0, open_low=True).shape == (2, 0)
    assert arrays.as_amounts("x", [[1e-61, 1e60]], low=0.0).tolist() == [[1e-61, 1e60]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2**64], r"x must be less than 2\^64: x\[1\] = 18446744073709551616"),
        ([3, -1], r"x must be 0 or more: x\[1\] = -1"),
    ],
)
def test_as_uint64_refuses(values, message):
    with pytest.raises(ValueError, match=message):
        arrays.as_uint64("x", values)


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_as_uint64_keeps_every_uint64(values):
    assert arrays.as_uint64("x", values).tolist() == values


def test_check_type_names_argument_and_class():
    assert arrays.check_type("name", "gpu", str) == "gpu"
    with pytest.raises(TypeError, match=r"items must be a list: got \(1,\)"):
        arrays.check_type("items", (1,), list)


@pytest.mark.parametrize("check", [arrays.as_ints, arrays.as_floats, arrays.as_hashes])
def test_ragged_lists_are_refused(check):
    with pytest.raises(ValueError, match="x must be an array: its rows have different lengths"):
        check("x", [[1, 2], [3]])


@pytest.mark.parametrize("value", [2**63, 2**70, -(2**63) - 1])
def test_one_integer_fits_64_bits(value):
    with pytest.raises(ValueError, match=r"x must be (less than 2\^63|-2\^63 or more): got "):
        arrays.as_int("x", value)
