"""One JSON record of a trace, field by field: the rules, and the words for what breaks them.

===============  ==========================  =====================================================================
field            value                       meaning
===============  ==========================  =====================================================================
`timestamp`      number                      arrival in milliseconds; never falls from one line to the next
`input_length`   integer >= 0                tokens of the prompt
`output_length`  integer >= 0                tokens of the answer
`hash_ids`       list of 64-bit integers     blocks of the prompt, at most ``ceil(input_length / block_size)``;
                                             may be missing
`block_size`     integer > 0                 may be missing; the same wherever it stands
`session`        string or 64-bit integer    may be missing
`namespace`      string or 64-bit integer    may be missing
`arrival_s`      number                      arrival in seconds, in the place of `timestamp`; the writer adds it
                                             where milliseconds would lose digits
===============  ==========================  =====================================================================

Other fields are left alone. null is the same as a missing field. Booleans are no integers, nor is 3.0 one.
"""

import json
import math
import struct
from typing import Any, NamedTuple

import numpy as np

from kvarray.arrays import Flags, Ids, Seconds
from kvarray.trace.labels import Label
from kvarray.trace.log import MalformedError, shown

__all__ = ["BlockIds", "Record", "Rows", "as_rows", "most_blocks", "read_record", "too_many_blocks"]

_END = 2**63


class BlockIds(NamedTuple):
    """Block ids of a record: the bytes of their bits as int64, and which are 2^63 or more."""

    bits: bytes
    is_large: Flags | None = None
    has_negative: bool = False

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.bits) // 8


_NONE = BlockIds(b"")


class Record(NamedTuple):
    """A good record."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    block_ids: BlockIds | None
    block_size: int | None
    session: Label
    namespace: Label


class Rows(NamedTuple):
    """Good records as columns."""

    lines: Ids
    arrival_s: Seconds
    input_tokens: Ids
    output_tokens: Ids
    counts: Ids
    bits: Ids  # of the block ids
    is_large: Flags | None  # where an id is 2^63 or more
    has_negative: bool
    has_blocks: bool  # a record names block ids, if only that there are none
    block_size: int | None  # that holds after these records
    session: list[Label] | None
    namespace: list[Label] | None


def most_blocks(input_tokens: Ids, block_size: int) -> Ids:
    """Return how many blocks prompts of these lengths have at most."""
    return input_tokens // block_size + (input_tokens % block_size > 0)


def too_many_blocks(count: int, input_tokens: int, block_size: int) -> str:
    """Return the words for a record that names more blocks than its length explains."""
    most = -(-input_tokens // block_size)
    return f"hash_ids must be at most {most} (input_length {input_tokens}, block_size {block_size}): got {count} ids"


def read_record(line: bytes, *, block_size: int | None, size_is_given: bool, last_arrival_s: float) -> Record:
    """Return the record that a line holds.

    Parameters
    ----------
    line : bytes
        JSON text.
    block_size : int or None
        The block size so far, None while it is unknown.
    size_is_given : bool
        Whether the caller of the reader named it (else an earlier record did).
    last_arrival_s : float
        Arrival of the record before.

    Raises
    ------
    MalformedError
        Naming field, value and rule.
    """
    fields = _read_object(line)
    arrival_s = _read_arrival(fields, last_arrival_s)
    input_tokens = _read_length("input_length", fields)
    output_tokens = _read_length("output_length", fields)
    block_size = _read_block_size(fields, block_size, size_is_given)
    block_ids = _read_block_ids(fields, may_hold_booleans=b"true" in line or b"false" in line)
    if block_ids and block_size is not None and block_ids.size > -(-input_tokens // block_size):
        raise MalformedError(too_many_blocks(block_ids.size, input_tokens, block_size))
    session, namespace = _read_name("session", fields), _read_name("namespace", fields)
    return Record(arrival_s, input_tokens, output_tokens, block_ids, block_size, session, namespace)


def _read_object(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise MalformedError(f"not UTF-8 at byte {error.start + 1}: got {shown(line)}") from None
    except json.JSONDecodeError as error:
        raise MalformedError(
            f"not JSON ({error.msg} at column {error.colno}): got {shown(error.doc.strip())}"
        ) from None
    except RecursionError:
        raise MalformedError(f"not a record (nested too deep): got {shown(line)}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise MalformedError(f"not readable ({error})") from None
    if type(fields) is not dict:
        raise MalformedError(f"a record must be a JSON object: got {shown(fields)}")
    return fields


def _read_arrival(fields: dict[str, Any], last_arrival_s: float) -> float:
    name, unit = ("timestamp", 1000.0) if fields.get("arrival_s") is None else ("arrival_s", 1.0)
    value = _required(name, fields)
    if type(value) not in (int, float):
        raise MalformedError(f"{name} must be a number: got {shown(value)}")
    try:
        arrival_s = float(value) / unit
    except OverflowError:
        arrival_s = math.inf
    if not math.isfinite(arrival_s):
        raise MalformedError(f"{name} must be finite: got {shown(value)}")
    if arrival_s < last_arrival_s:
        raise MalformedError(f"{name} must not fall: got {shown(value)} after {last_arrival_s * unit:.17g}")
    return arrival_s


def _read_length(name: str, fields: dict[str, Any]) -> int:
    value = _required(name, fields)
    if type(value) is not int:
        raise MalformedError(f"{name} must be an integer: got {shown(value)}")
    if not 0 <= value < _END:
        raise MalformedError(f"{name} must be {'0 or more' if value < 0 else 'less than 2^63'}: got {shown(value)}")
    return value


def _read_block_size(fields: dict[str, Any], known: int | None, is_given: bool) -> int | None:
    """Return the block size that holds once this record has been read."""
    value = fields.get("block_size")
    if value is None:
        return known
    if type(value) is not int or not 0 < value < _END:
        raise MalformedError(f"block_size must be a positive integer: got {shown(value)}")
    if known not in (None, value):
        raise MalformedError(
            f"block_size must be {known}, as {'given' if is_given else 'in the records before'}: got {value}"
        )
    return value


def _read_block_ids(fields: dict[str, Any], *, may_hold_booleans: bool) -> BlockIds | None:
    value = fields.get("hash_ids")
    if value is None:
        return None
    if type(value) is not list:
        raise MalformedError(f"hash_ids must be a list: got {shown(value)}")
    try:
        bits = struct.pack(f"={len(value)}q", *value)  # takes booleans and integers, of 64 bits at most
    except struct.error:
        bits = None
    if bits is None or may_hold_booleans:
        place = next((i for i, item in enumerate(value) if type(item) is not int), None)
        if place is not None:
            raise MalformedError(f"hash_ids[{place}] must be an integer: got {shown(value[place])}")
    if bits is not None:
        return BlockIds(bits, has_negative=bool(value) and min(value) < 0)
    place = next((i for i, item in enumerate(value) if not -_END <= item < 2 * _END), None)
    if place is not None:
        raise MalformedError(f"hash_ids[{place}] must fit 64 bits, from -2^63 to 2^64 - 1: got {shown(value[place])}")
    bits = struct.pack(f"={len(value)}Q", *[item % (2 * _END) for item in value])
    return BlockIds(bits, np.array([item >= _END for item in value]), min(value) < 0)


def _read_name(name: str, fields: dict[str, Any]) -> Label:
    value = fields.get(name)
    if value is None or type(value) is str:
        return value
    if type(value) is not int or not -_END <= value < _END:
        raise MalformedError(f"{name} must be a string or a 64-bit integer: got {shown(value)}")
    return value


def _required(name: str, fields: dict[str, Any]) -> Any:
    value = fields.get(name)
    if value is None:
        raise MalformedError(f"{name} is missing")
    return value


def as_rows(lines: list[int], records: list[Record], *, block_size: int | None) -> Rows:
    """Return records and the lines they stand on as columns; `block_size` is the one known before them."""
    ids = [record.block_ids or _NONE for record in records]
    is_large = None
    if any(row.is_large is not None for row in ids):
        is_large = np.concatenate(
            [np.zeros(row.size, np.bool_) if row.is_large is None else row.is_large for row in ids]
        )
    return Rows(
        lines=np.array(lines, dtype=np.int64),
        arrival_s=np.array([record.arrival_s for record in records], dtype=np.float64),
        input_tokens=np.array([record.input_tokens for record in records], dtype=np.int64),
        output_tokens=np.array([record.output_tokens for record in records], dtype=np.int64),
        counts=np.array([row.size for row in ids], dtype=np.int64),
        bits=np.frombuffer(b"".join([row.bits for row in ids]), dtype=np.int64),
        is_large=is_large,
        has_negative=any(row.has_negative for row in ids),
        has_blocks=any(record.block_ids is not None for record in records),
        block_size=records[-1].block_size if records else block_size,
        session=[record.session for record in records],
        namespace=[record.namespace for record in records],
    )
