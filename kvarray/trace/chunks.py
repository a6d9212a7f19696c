"""Whole chunks of JSON lines at once, as long as all in them is as usual.

The lists of block ids, nearly all of the text, are taken out and parsed as one array (`digits`); the short rest goes
to `json` as one list; the rules of `records` are checked on columns. At the first sign of anything out of the
ordinary, be it wrong or only rare, the chunk is given up to be read record by record. So this module may be strict,
and must never accept what `records` would refuse or read differently.
"""

import json
from operator import itemgetter
from typing import Any

import numpy as np

from kvarray.arrays import Ids, Seconds
from kvarray.trace.digits import parse_integers
from kvarray.trace.labels import Label
from kvarray.trace.log import UnusualChunkError, usual
from kvarray.trace.records import Rows, most_blocks

__all__ = ["read_chunk"]

_KEY = b'"hash_ids"'
_ESCAPED_LETTERS = tuple(b"\\u00%d" % high for high in (4, 5, 6, 7))  # of ASCII, the underscore among them


def read_chunk(text: bytes, first_line: int, *, block_size: int | None, last_arrival_s: float) -> Rows:
    """Return the rows of whole lines of text, the first of which has the number given.

    Raises
    ------
    UnusualChunkError
        If a line may be wrong, or is written in a way that only the reader of single records knows.
    """
    lists, rest = _take_lists_out(text)
    records = _read_objects(rest)
    ids = parse_integers(lists)
    if ids is None:
        raise UnusualChunkError
    counts = _spread_counts(ids.counts, records)

    required = itemgetter("arrival_s" if b'"arrival_s"' in rest else "timestamp", "input_length", "output_length")
    try:
        arrivals, inputs, outputs = zip(*map(required, records), strict=True)
    except KeyError:
        raise UnusualChunkError from None
    unit = 1.0 if b'"arrival_s"' in rest else 1000.0
    arrival_s = _as_arrivals(arrivals, unit, last_arrival_s)
    input_tokens, output_tokens = _as_lengths(inputs), _as_lengths(outputs)
    block_size = _agreed_block_size(records, block_size) if b'"block_size"' in rest else block_size
    if block_size is not None:
        usual(not (counts > most_blocks(input_tokens, block_size)).any())
    return Rows(
        lines=np.arange(first_line, first_line + len(records)),
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        counts=counts,
        bits=ids.bits,
        is_large=ids.is_large,
        has_negative=ids.has_negative,
        has_blocks=bool(lists),
        block_size=block_size,
        session=_as_names("session", records) if b'"session"' in rest else None,
        namespace=_as_names("namespace", records) if b'"namespace"' in rest else None,
    )


def _take_lists_out(text: bytes) -> tuple[list[bytes], bytes]:
    """Return the texts between the brackets of all `hash_ids`, and the text with empty brackets in their place.

    The field name stands in quotation marks, neither of which is within a string: the second is not escaped, and a
    first one that is would make it the end of some longer name, which `_spread_counts` notices. It is never spelled
    in escapes.
    """
    usual(b"\\u00" not in text or not any(escape in text for escape in _ESCAPED_LETTERS))
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    text = text.removesuffix(b"\n")
    opening = _KEY + (b": [" if _KEY + b": [" in text else b":[")
    before, *pieces = text.split(opening)
    usual(text.count(_KEY) == len(pieces))
    parts = [piece.partition(b"]") for piece in pieces]
    rest = (opening + b"]").join([before, *[after for _, _, after in parts]])
    usual(rest.count(b"\n") == text.count(b"\n"))  # no record is broken within what was taken out
    usual(all(closing for _, closing, _ in parts))
    return [ids for ids, _, _ in parts], rest


def _read_objects(text: bytes) -> list[dict[str, Any]]:
    """Return the object that stands on each line.

    Lines of flat objects are parsed as one list. None of them can borrow from the next: they all begin and end with
    a brace and have no other, and when there are as many objects as lines, no brace stands within a string.
    """
    num_lines = text.count(b"\n") + 1
    has_one_each = text.count(b"{") == text.count(b"}") == num_lines and text.count(b"}\n{") == num_lines - 1
    is_flat = has_one_each and text.startswith(b"{") and text.endswith(b"}")
    try:
        lines = text.decode("utf-8")
        objects: list[dict[str, Any]]
        if is_flat:
            objects = json.loads("[" + lines.replace("\n", ",") + "]")
        else:
            objects = list(map(json.loads, lines.split("\n")))
    except (ValueError, RecursionError):
        raise UnusualChunkError from None
    usual(len(objects) == num_lines and set(map(type, objects)) == {dict})
    return objects


def _spread_counts(list_counts: Ids, records: list[dict[str, Any]]) -> Ids:
    """Return the number of ids of each record, 0 where it has no `hash_ids`."""
    has_list = ["hash_ids" in record for record in records]
    # A record that has the field has a list at least; so they are as many only if each list is such a field.
    usual(sum(has_list) == len(list_counts))
    if all(has_list):
        return list_counts
    counts = np.zeros(len(records), dtype=np.int64)
    counts[has_list] = list_counts
    return counts


def _as_arrivals(arrivals: tuple[Any, ...], unit: float, last_arrival_s: float) -> Seconds:
    usual(set(map(type, arrivals)) <= {int, float})
    try:
        arrival_s = np.array(arrivals, dtype=np.float64) / unit
    except OverflowError:
        raise UnusualChunkError from None
    usual(bool(np.isfinite(arrival_s).all() and arrival_s[0] >= last_arrival_s))
    usual(not (arrival_s[1:] < arrival_s[:-1]).any())
    return arrival_s


def _as_lengths(lengths: tuple[Any, ...]) -> Ids:
    usual(set(map(type, lengths)) == {int})
    try:
        array = np.array(lengths, dtype=np.int64)
    except OverflowError:
        raise UnusualChunkError from None
    usual(bool(array.min() >= 0))
    return array


def _agreed_block_size(records: list[dict[str, Any]], known: int | None) -> int:
    """Return the one block size that all records carry; those of which only some do are rare."""
    sizes = [record.get("block_size") for record in records]
    usual(set(map(type, sizes)) == {int} and len(set(sizes)) == 1)
    size = int(sizes[0] or 0)
    usual(0 < size < 2**63 and known in (None, size))
    return size


def _as_names(name: str, records: list[dict[str, Any]]) -> list[Label]:
    names = [record.get(name) for record in records]
    types = set(map(type, names))
    usual(types <= {str, int, type(None)})
    if int in types:
        usual(all(-(2**63) <= label < 2**63 for label in names if type(label) is int))
    return names
