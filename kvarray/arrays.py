"""dtypes, sentinels, shape letters and argument checks that every module shares.

Shape letters, used in every docstring:

======  ==========================================
letter  counts
======  ==========================================
``B``   rows of a batch, requests of a trace
``N``   blocks, or block references of a trace
``M``   nodes of a tree, or runs of a trace
``T``   tokens of a block (the block size)
``K``   tiers, or configurations asked for at once
======  ==========================================

Checks stand once at the public edge; kernels trust their callers. A check's message names the argument, the first
few offending places with their values, and the rule.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "NO_BLOCK",
    "NO_HASH",
    "NO_NODE",
    "Flags",
    "Hashes",
    "Ids",
    "Seconds",
    "as_amount",
    "as_amounts",
    "as_array",
    "as_floats",
    "as_hashes",
    "as_ids",
    "as_int",
    "as_ints",
    "as_positive_int",
    "as_real",
    "as_uint64",
    "check_broadcast",
    "check_items",
    "check_offsets",
    "check_same_length",
    "check_type",
    "refuse",
]

Ids: TypeAlias = NDArray[np.int64]
"""Ids, counts, bytes and ticks."""
Hashes: TypeAlias = NDArray[np.uint64]
"""64-bit hashes."""
Seconds: TypeAlias = NDArray[np.float64]
"""Times, rates and other real numbers."""
Flags: TypeAlias = NDArray[np.bool_]
"""Masks."""

NO_BLOCK = -1
"""No block id; never used as an index."""
NO_NODE = -1
"""No node of a tree; never used as an index."""
NO_HASH = np.uint64(0)
"""Hash of a block that has none."""

_Checked = TypeVar("_Checked")

_SHOWN = 5  # offending places that a message lists
_LARGEST_AMOUNT = 1e60


def refuse(name: str, rule: str, bad: Flags, values: NDArray[Any]) -> None:
    """Raise `ValueError` for the first places where `bad` is true; do nothing where there is none.

    Parameters
    ----------
    name : str
        The argument.
    rule : str
        What its values must be, worded to follow "must".
    bad : ndarray of bool
        True where `values` breaks the rule; same shape as `values`.
    values : ndarray
        The argument as given.

    Raises
    ------
    ValueError
        Naming argument, rule, and the first few places with their values.

    Examples
    --------
    >>> counts = np.array([3, -1, 4])
    >>> refuse("counts", "be 0 or more", counts < 0, counts)
    Traceback (most recent call last):
        ...
    ValueError: counts must be 0 or more: counts[1] = -1
    """
    if not bad.any():
        return
    if bad.ndim == 0:
        raise ValueError(f"{name} must {rule}: got {values!s}")
    places = np.argwhere(bad)
    shown = ", ".join(
        f"{name}[{', '.join(map(str, place.tolist()))}] = {values[tuple(place)]!s}" for place in places[:_SHOWN]
    )
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    raise ValueError(f"{name} must {rule}: {shown}{more}")


def as_array(name: str, values: object) -> NDArray[Any]:
    """Return `values` as an array of whatever dtype, or raise where its rows have different lengths.

    Examples
    --------
    >>> as_array("streams", [[0, 1], [1]])
    Traceback (most recent call last):
        ...
    ValueError: streams must be an array: its rows have different lengths
    """
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must be an array: its rows have different lengths") from None


def as_ints(name: str, values: ArrayLike, *, low: int | None = None, high: int | None = None) -> Ids:
    """Return `values` as a one-dimensional int64 array whose items lie in ``[low, high)``.

    Parameters
    ----------
    name : str
        The argument, for messages.
    values : array_like of int, shape (B,)
        Integers; booleans, floats and strings are refused. An array that is int64 already is not copied.
    low, high : int, optional
        Smallest value allowed, and the one after the largest.

    Returns
    -------
    ndarray of int64, shape (B,)

    Raises
    ------
    TypeError
        If the items are not integers.
    ValueError
        If the shape is not one-dimensional, or an item is out of range.

    Examples
    --------
    >>> as_ints("lengths", [3, 0, 2], low=0)
    array([3, 0, 2])
    """
    array = as_array(name, values)
    if array.dtype.kind == "f" and not isinstance(values, np.ndarray):
        array = np.asarray(values, dtype=object)  # beside smaller ones, an integer of 2^63 or more makes floats of all
        if not all(type(item) is int for item in array.flat):
            array = np.asarray(values)
    if array.dtype != np.int64:
        array = _cast_ints(name, array)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional: got shape {array.shape}")
    if array.size:
        if low is not None and array.min() < low:
            refuse(name, f"be {low} or more", array < low, array)
        if high is not None and array.max() >= high:
            refuse(name, f"be less than {high}", array >= high, array)
    return array


def _cast_ints(name: str, array: NDArray[Any]) -> Ids:
    """Return `array` as int64, or raise: only integers that fit pass. An empty list has no dtype to object to."""
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind == "u":
        refuse(name, "be less than 2^63", array > np.uint64(2**63 - 1), array)
    elif array.dtype.kind != "i":
        if array.dtype == object and all(type(item) is int for item in array.flat):
            refuse(name, "fit 64 bits", (array < -(2**63)) | (array >= 2**63), array)
        raise TypeError(f"{name} must be integers: got {array.dtype} values such as {array.flat[0]!r}")
    return array.astype(np.int64)


def as_ids(name: str, values: ArrayLike, limit: int) -> Ids:
    """Return `values` as int64 ids in ``[0, limit)``; see `as_ints`.

    Examples
    --------
    >>> as_ids("block_ids", [0, 7], 4)
    Traceback (most recent call last):
        ...
    ValueError: block_ids must be less than 4: block_ids[1] = 7
    """
    return as_ints(name, values, low=0, high=limit)


def as_uint64(name: str, values: ArrayLike) -> Hashes:
    """Return `values` as a one-dimensional uint64 array.

    Raises
    ------
    TypeError
        If the items are not integers.
    ValueError
        If the shape is not one-dimensional, or an item is negative.

    Examples
    --------
    >>> as_uint64("keys", [0, 9])
    array([0, 9], dtype=uint64)
    """
    array = as_array(name, values)
    if array.dtype != np.uint64:
        if isinstance(values, list | tuple) and values and all(type(item) is int for item in values):
            array = _uint64_list(name, values)  # for integers on both sides of 2^63 NumPy falls back to floats
        else:
            array = as_ints(name, array, low=0).astype(np.uint64)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional: got shape {array.shape}")
    return array


def _uint64_list(name: str, values: Sequence[int]) -> Hashes:
    """Return Python integers as uint64, or raise for the first that does not fit."""
    for i, value in enumerate(values):
        if not 0 <= value < 2**64:
            raise ValueError(f"{name} must be {'less than 2^64' if value > 0 else '0 or more'}: {name}[{i}] = {value}")
    return np.array(values, dtype=np.uint64)


def as_hashes(name: str, values: ArrayLike) -> Hashes:
    """Return `values` as a one-dimensional uint64 array without `NO_HASH`.

    Raises
    ------
    TypeError
        If the items are not integers.
    ValueError
        If the shape is not one-dimensional, an item is negative, or one is `NO_HASH`.

    Examples
    --------
    >>> as_hashes("hashes", [5, 9])
    array([5, 9], dtype=uint64)
    """
    array = as_uint64(name, values)
    if np.count_nonzero(array) < array.size:
        refuse(name, "not be 0, which stands for no hash", array == NO_HASH, array)
    return array


def as_floats(
    name: str, values: ArrayLike, *, low: float = -np.inf, open_low: bool = False, finite: bool = True
) -> Seconds:
    """Return `values` as a float64 array of any shape, without NaN, none below `low`.

    Parameters
    ----------
    name : str
        The argument, for messages.
    values : array_like of float, any shape
        Real numbers.
    low : float, optional
        Smallest value allowed.
    open_low : bool, optional
        Refuse `low` itself as well.
    finite : bool, optional
        Refuse infinities as well.

    Raises
    ------
    TypeError
        If the items are not real numbers.
    ValueError
        If an item is NaN, infinite where it may not be, or below `low`.

    Examples
    --------
    >>> as_floats("bandwidth", [25e9, 0.0], low=0.0, open_low=True)
    Traceback (most recent call last):
        ...
    ValueError: bandwidth must be more than 0: bandwidth[1] = 0.0
    """
    array = as_array(name, values)
    if array.dtype.kind not in "iuf" and array.size:
        raise TypeError(f"{name} must be real numbers: got {array.dtype} values such as {array.flat[0]!r}")
    array = array.astype(np.float64, copy=False)
    if finite:
        refuse(name, "be finite", ~np.isfinite(array), array)
    else:
        refuse(name, "not be NaN", np.isnan(array), array)
    if open_low:
        refuse(name, f"be more than {low:g}", array <= low, array)
    else:
        refuse(name, f"be {low:g} or more", array < low, array)
    return array


def as_amounts(name: str, values: ArrayLike, *, low: float = -np.inf, open_low: bool = False) -> Seconds:
    """Return `values` as float64 amounts that can be multiplied, divided, squared and summed without overflow.

    The rules are those of `as_floats`, and besides no amount is larger than 1e60 or, where `low` is refused, smaller
    than 1e-60: whatever is measured in seconds, bytes, tokens or rates of them is far within.

    Examples
    --------
    >>> as_amounts("work_s", [1.0, 1e300])
    Traceback (most recent call last):
        ...
    ValueError: work_s must be 1e+60 or less: work_s[1] = 1e+300
    """
    array = as_floats(name, values, low=low, open_low=open_low)
    if array.size and max(array.max(), -array.min()) > _LARGEST_AMOUNT:
        refuse(name, f"be {_LARGEST_AMOUNT:g} or less", np.abs(array) > _LARGEST_AMOUNT, array)
    if open_low and array.size and array.min() < low + 1.0 / _LARGEST_AMOUNT:
        refuse(name, f"be {low + 1.0 / _LARGEST_AMOUNT:g} or more", array < low + 1.0 / _LARGEST_AMOUNT, array)
    return array


def as_int(name: str, value: object, *, low: int = -(2**63), high: int = 2**63) -> int:
    """Return `value` as an int in ``[low, high)``, by default any that fits 64 bits.

    Raises
    ------
    TypeError
        If it is not an integer (booleans are not).
    ValueError
        If it is out of range.

    Examples
    --------
    >>> as_int("block_size", np.int64(16), low=1)
    16
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer: got {value!r}")
    number = int(value)
    if number < low:
        raise ValueError(f"{name} must be {_power(low)} or more: got {number}")
    if number >= high:
        raise ValueError(f"{name} must be less than {_power(high)}: got {number}")
    return number


def _power(number: int) -> str:
    """Return a bound as people read it: 64-bit ones as powers of two."""
    return {-(2**63): "-2^63", 2**63: "2^63", 2**64: "2^64"}.get(number, str(number))


def as_positive_int(name: str, value: object) -> int:
    """Return `value` as an int of 1 or more; see `as_int`.

    Examples
    --------
    >>> as_positive_int("num_blocks", 0)
    Traceback (most recent call last):
        ...
    ValueError: num_blocks must be 1 or more: got 0
    """
    return as_int(name, value, low=1)


def as_real(name: str, value: object, *, low: float = -np.inf, open_low: bool = False, finite: bool = True) -> float:
    """Return `value` as a float; the rules are those of `as_floats`.

    Examples
    --------
    >>> as_real("window", 0.5, low=0.0)
    0.5
    """
    array = as_floats(name, as_array(name, value), low=low, open_low=open_low, finite=finite)
    if array.ndim:
        raise TypeError(f"{name} must be one number: got shape {array.shape}")
    return float(array)


def as_amount(name: str, value: object, *, low: float = -np.inf, open_low: bool = False) -> float:
    """Return `value` as a float; the rules are those of `as_amounts`.

    Examples
    --------
    >>> as_amount("latency_s", 2e-6, low=0.0)
    2e-06
    """
    number = as_real(name, value, low=low, open_low=open_low)
    as_amounts(name, number, low=low, open_low=open_low)
    return number


def check_same_length(**arrays: NDArray[Any]) -> None:
    """Raise `ValueError` unless all arrays have the same length.

    Examples
    --------
    >>> check_same_length(keys=np.zeros(2), values=np.zeros(3))
    Traceback (most recent call last):
        ...
    ValueError: keys and values must have the same length: got 2 and 3
    """
    lengths = [len(array) for array in arrays.values()]
    if lengths.count(lengths[0]) < len(lengths):
        raise ValueError(f"{' and '.join(arrays)} must have the same length: got {' and '.join(map(str, lengths))}")


def check_broadcast(names: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that shapes broadcast to, or raise `ValueError`.

    Parameters
    ----------
    names : str
        The arguments, for the message.
    *shapes : tuple of int
        Their shapes.

    Examples
    --------
    >>> check_broadcast("work_s and ready_s", (3, 1), (4,))
    (3, 4)
    >>> check_broadcast("work_s and ready_s", (3,), (4,))
    Traceback (most recent call last):
        ...
    ValueError: work_s and ready_s must broadcast: got (3,) and (4,)
    """
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(f"{names} must broadcast: got {' and '.join(map(str, shapes))}") from None


def check_items(name: str, array: NDArray[Any], count: int, *, of: str) -> None:
    """Raise `ValueError` unless the last axis has one item for each of `count` things, or one for all of them.

    Examples
    --------
    >>> check_items("work_s", np.ones(2), 3, of="jobs")
    Traceback (most recent call last):
        ...
    ValueError: work_s must have one item for each of 3 jobs: got shape (2,)
    """
    if array.ndim and array.shape[-1] not in (1, count):
        raise ValueError(f"{name} must have one item for each of {count} {of}: got shape {array.shape}")


def check_offsets(name: str, offsets: Ids, num_values: int) -> None:
    """Raise `ValueError` unless `offsets` cut `num_values` values into rows.

    Parameters
    ----------
    name : str
        The argument, for messages.
    offsets : ndarray of int64, shape (B + 1,)
        Row i is ``values[offsets[i]:offsets[i + 1]]``.
    num_values : int
        Number of values, where the offsets must end.

    Examples
    --------
    >>> check_offsets("offsets", np.array([0, 2, 1]), 1)
    Traceback (most recent call last):
        ...
    ValueError: offsets must not decrease: offsets[2] = 1
    """
    if len(offsets) == 0:
        raise ValueError(f"{name} must have one item more than there are rows: got none")
    if offsets[0] != 0 or offsets[-1] != num_values:
        raise ValueError(
            f"{name} must begin at 0 and end at the number of values, {num_values}: got {offsets[0]} and {offsets[-1]}"
        )
    falls = np.zeros(len(offsets), dtype=np.bool_)
    np.less(offsets[1:], offsets[:-1], out=falls[1:])
    refuse(name, "not decrease", falls, offsets)


def check_type(name: str, value: object, kind: type[_Checked]) -> _Checked:
    """Return `value`, or raise `TypeError` where it is not of a class.

    Examples
    --------
    >>> check_type("link", 25e9, str)
    Traceback (most recent call last):
        ...
    TypeError: link must be a str: got 25000000000.0
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}: got {value!r}")
    return value
