"""Trace files: real ones, every kind of bad input with its message, and what is written is what is read."""

import bz2
import gzip
import io
import json
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvarray import Trace, TraceError, read_trace, write_trace
from kvarray.trace import chunks, files, jsonl, tables
from kvarray.trace.digits import parse_integers
from kvarray.trace.fields import KINDS, Layout
from kvarray.trace.log import UnusualChunkError
from kvarray.trace.table_chunks import read_table_chunk
from tests import strategies
from tests.data import data_file
from tests.reference import trace as reference

GOOD = {"timestamp": 0, "input_length": 20, "output_length": 3, "hash_ids": [0, 1]}


def _line(**change):
    """A record as JSON, with some fields changed, or left out where they are `...`."""
    return json.dumps({key: value for key, value in (GOOD | change).items() if value is not ...})


def _read(*lines, **options):
    return read_trace(io.StringIO("\n".join(lines)), **{"block_size": 16, **options})


# Real files.


def test_conversation_trace():
    trace = read_trace(data_file("traces/mooncake_conversation.jsonl"), block_size=512)
    figures = trace.describe()
    assert figures["num_requests"] == 12_031
    assert figures["num_blocks"] == 288_500
    assert figures["num_distinct"] == trace.num_distinct_blocks == 182_790
    assert figures["input_tokens"] == trace.block_tokens.sum() == 144_793_823
    assert len(np.unique(trace.arrival_s)) == 1_180


def test_coding_agent_trace():
    trace = read_trace(data_file("traces/claude_code_small.jsonl.gz"))
    figures = trace.describe()
    assert (figures["block_size"], figures["num_requests"], figures["num_blocks"]) == (64, 1_840, 2_979_849)
    assert figures["num_distinct"] == 226_157
    assert figures["unhashed_tokens"] > 0
    assert trace.session_labels[:2] == ("trace_0001", "trace_0002")
    assert np.shares_memory(trace.prefix_ids, trace.block_ids)


def test_azure_trace():
    trace = read_trace(data_file("traces/azure2023_conv.csv"))
    assert (trace.num_requests, trace.has_blocks, trace.block_size) == (19_366, False, None)
    assert trace.input_tokens[:3].tolist() == [374, 396, 879]
    assert trace.output_tokens[:3].tolist() == [44, 109, 55]
    assert trace.arrival_s[:3].tolist() == [0.0, 4.314579, 4.541877]


# Bad JSON lines: the message names file, line, field and value.

HEAD = "'" + _line()[:56] + "..."  # as messages show a long line
BAD_RECORDS = [
    (_line(input_length=-1), "input_length must be 0 or more: got -1"),
    (_line(input_length=20.0), "input_length must be an integer: got 20.0"),
    (_line(input_length=1.5), "input_length must be an integer: got 1.5"),
    (_line(input_length=2**63), "input_length must be less than 2^63: got 9223372036854775808"),
    (_line(input_length=True), "input_length must be an integer: got True"),
    (_line(input_length="20"), "input_length must be an integer: got '20'"),
    (_line(input_length=None), "input_length is missing"),
    (_line(input_length=...), "input_length is missing"),
    (_line(output_length=-3), "output_length must be 0 or more: got -3"),
    (_line(output_length=False), "output_length must be an integer: got False"),
    (_line(output_length=10**30), f"output_length must be less than 2^63: got {10**30}"),
    (_line(output_length=...), "output_length is missing"),
    (_line(timestamp=float("nan")), "timestamp must be finite: got nan"),
    (_line(timestamp=float("inf")), "timestamp must be finite: got inf"),
    (_line(timestamp=float("-inf")), "timestamp must be finite: got -inf"),
    (_line(timestamp=10**400), f"timestamp must be finite: got {str(10**400)[:57]}..."),
    (_line(timestamp="now"), "timestamp must be a number: got 'now'"),
    (_line(timestamp=True), "timestamp must be a number: got True"),
    (_line(timestamp=...), "timestamp is missing"),
    (_line(timestamp=-1), "timestamp must not fall: got -1 after 0"),
    (_line(arrival_s="x"), "arrival_s must be a number: got 'x'"),
    (_line(hash_ids=[0, 1, 2]), "hash_ids must be at most 2 (input_length 20, block_size 16): got 3 ids"),
    (_line(hash_ids=[0], input_length=0), "hash_ids must be at most 0 (input_length 0, block_size 16): got 1 ids"),
    (_line(hash_ids=[0, "b"]), "hash_ids[1] must be an integer: got 'b'"),
    (_line(hash_ids=[0, 1.0]), "hash_ids[1] must be an integer: got 1.0"),
    (_line(hash_ids=[True, 1]), "hash_ids[0] must be an integer: got True"),
    (_line(hash_ids=[None]), "hash_ids[0] must be an integer: got None"),
    (_line(hash_ids=[[1]]), "hash_ids[0] must be an integer: got [1]"),
    (_line(hash_ids=[0, 2**64]), "hash_ids[1] must fit 64 bits, from -2^63 to 2^64 - 1: got 18446744073709551616"),
    (_line(hash_ids=[-(2**63) - 1]), "hash_ids[0] must fit 64 bits, from -2^63 to 2^64 - 1: got -9223372036854775809"),
    (_line(hash_ids="0, 1"), "hash_ids must be a list: got '0, 1'"),
    (_line(hash_ids={"a": 1}), "hash_ids must be a list: got {'a': 1}"),
    (_line(block_size=32), "block_size must be 16, as given: got 32"),
    (_line(block_size=0), "block_size must be a positive integer: got 0"),
    (_line(block_size=16.0), "block_size must be a positive integer: got 16.0"),
    (_line(block_size=True), "block_size must be a positive integer: got True"),
    (_line(session=1.5), "session must be a string or a 64-bit integer: got 1.5"),
    (_line(session=[1]), "session must be a string or a 64-bit integer: got [1]"),
    (_line(session=2**63), "session must be a string or a 64-bit integer: got 9223372036854775808"),
    (_line(session=True), "session must be a string or a 64-bit integer: got True"),
    (_line(namespace={}), "namespace must be a string or a 64-bit integer: got {}"),
    ("[1, 2]", "a record must be a JSON object: got [1, 2]"),
    ("7", "a record must be a JSON object: got 7"),
    ("null", "a record must be a JSON object: got None"),
    (_line()[:-1], f"not JSON (Expecting ',' delimiter at column 76): got {HEAD}"),
    (_line() + "}", f"not JSON (Extra data at column 77): got {HEAD}"),
    (_line() + "," + _line(), f"not JSON (Extra data at column 77): got {HEAD}"),
    ("timestamp: 1", "not JSON (Expecting value at column 1): got 'timestamp: 1'"),
    (_line().replace("[0, 1]", "[0, 01]"), f"not JSON (Expecting ',' delimiter at column 75): got {HEAD}"),
    (_line().replace("[0, 1]", "[0 1]"), f"not JSON (Expecting ',' delimiter at column 73): got {HEAD}"),
    ('{"a": ' + "[" * 10**5 + "]" * 10**5 + "}", "not a record (nested too deep): got b'{\"a\": " + "[" * 49 + "..."),
    ("", "blank, and not at the end"),
    ("  \t", "blank, and not at the end"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "problem"), BAD_RECORDS)
def test_a_bad_record_stops_the_reader_or_is_left_out(tmp_path, line, problem):
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join([_line(), line, _line(timestamp=5)]))
    with pytest.raises(TraceError) as caught:
        read_trace(path, block_size=16)
    assert str(caught.value) == f"{path}, line 2: {problem}"
    trace = read_trace(path, block_size=16, on_error="skip")
    assert trace == _read(_line(), _line(timestamp=5))
    assert trace.skipped == (1, (f"{path}, line 2: {problem}",))


def test_an_integer_of_thousands_of_digits_is_refused():
    with pytest.raises(TraceError, match=r"^<file object>, line 1: not readable \(Exceeds the limit"):
        _read(_line().replace("20", "9" * 5000))


def test_skipped_records_are_counted_and_the_first_ones_told():
    lines = [_line(), *[_line(input_length=-i) for i in range(1, 9)], _line()]
    trace = _read(*lines, on_error="skip")
    assert trace.num_requests == 2
    assert trace.skipped.num_records == 8
    assert trace.skipped.messages[4] == "<file object>, line 6: input_length must be 0 or more: got -5"
    assert len(trace.skipped.messages) == 5
    assert _read(_line()).skipped == (0, ())


def test_block_size_comes_from_records_or_caller():
    assert _read(_line(block_size=10), _line(), block_size=None).block_size == 10
    assert _read(_line(), _line(block_size=10), block_size=None).block_size == 10
    assert _read(_line(hash_ids=...), block_size=None).block_size is None
    assert _read(_line(hash_ids=None), block_size=None).has_blocks is False
    assert _read(_line(block_size=None)).block_size == 16
    for ids in ([0, 1], []):
        with pytest.raises(TraceError, match=r"^<file object>: block_size must be given: no record has it$"):
            _read(_line(hash_ids=ids), block_size=None)
    with pytest.raises(TraceError, match="line 2: block_size must be 16, as in the records before: got 32"):
        _read(_line(block_size=16), _line(block_size=32), block_size=None)


def test_a_block_size_that_comes_late_is_held_against_earlier_records():
    lines = [_line(hash_ids=[7]), _line(hash_ids=[0, 1, 2]), _line(hash_ids=[8], block_size=16)]
    problem = "line 2: hash_ids must be at most 2 (input_length 20, block_size 16): got 3 ids"
    with pytest.raises(TraceError) as caught:
        _read(*lines, block_size=None)
    assert str(caught.value) == f"<file object>, {problem}"
    trace = _read(*lines, block_size=None, on_error="skip")
    assert trace.block_ids.tolist() == [7, 8]
    assert trace.skipped == (1, (f"<file object>, {problem}",))


def test_sums_beyond_64_bits_are_refused():
    with pytest.raises(TraceError, match=r"<file object>: input_tokens must sum to less than 2\^63"):
        _read(_line(input_length=2**62), _line(input_length=2**62))


def test_what_is_unusual_and_still_good():
    trace = _read(
        "\ufeff" + _line(extra={"hash_ids": [9, 9, 9, 9]}, timestamp=1500.5),
        _line(note='"hash_ids": [5] \\ {', timestamp=2000),
        _line(hash_ids=[], timestamp=2000, think=None),
        _line(hash_ids=..., timestamp=2000.0, more=[1, {"a": float("nan")}]) + "\r",
        '{"hash_ids":[3 , 4],"hash_ids" : [ 5,\t6 ],"output_length":1,"input_length":32,"timestamp":2e3}',
        "",
        " \r",
        "",
    )
    assert trace.arrival_s.tolist() == [1.5005, 2.0, 2.0, 2.0, 2.0]
    assert strategies.rows_of(trace) == [[0, 1], [0, 1], [], [], [5, 6]]
    assert trace.unhashed_tokens.tolist() == [0, 0, 20, 20, 0]


def test_ids_of_64_bits_stay_distinct():
    signed = _read(_line(hash_ids=[-(2**63), 2**63 - 1]))
    assert (signed.block_ids.dtype, signed.block_ids.tolist()) == (np.int64, [-(2**63), 2**63 - 1])
    unsigned = _read(_line(hash_ids=[0, 2**64 - 1]), _line(hash_ids=[2**63, 1]))
    assert (unsigned.block_ids.dtype, unsigned.block_ids.tolist()) == (np.uint64, [0, 2**64 - 1, 2**63, 1])
    mixed = _read(_line(hash_ids=[-1, 2**64 - 1]), _line(hash_ids=[5, -1]))
    assert (mixed.block_ids.dtype, mixed.block_ids.tolist()) == (np.int64, [0, 1, 2, 0])
    for trace in (signed, unsigned, mixed):
        assert trace.num_distinct == trace.num_blocks or trace is mixed


@given(st.lists(st.lists(st.integers(-(2**63), 2**64 - 1) | st.integers(-99, 999), max_size=2), max_size=5))
def test_ids_are_read_as_they_are_or_renumbered(rows):
    trace = _read(*[_line(hash_ids=row) for row in [*rows, [0]]])
    flat = [block for row in rows for block in row] + [0]
    if min(flat) < 0 and max(flat) >= 2**63:
        assert trace.block_ids.tolist() == reference.first_appearance(flat)
    else:
        assert trace.block_ids.tolist() == flat


# The fast way and the slow way are one way.

FIELDS = st.fixed_dictionaries(
    {
        "timestamp": st.integers(0, 3) | st.floats(0, 3) | st.sampled_from([True, float("nan"), -1]),
        "input_length": st.integers(8, 20) | st.sampled_from([2**63, -1, False, 9.0]),
        "output_length": st.integers(0, 5) | st.sampled_from([2**64, None]),
    },
    optional={
        "hash_ids": st.lists(st.integers(0, 99) | st.sampled_from([-1, 2**63, 2**64, 1.5, True]), max_size=3),
        "block_size": st.sampled_from([8, 8, 8, 4, None, True]),
        "session": strategies.LABELS | st.sampled_from([True, 2**63]),
        "namespace": strategies.LABELS,
        "arrival_s": st.floats(0, 3) | st.sampled_from([None, 1]),
        "extra": st.sampled_from([{}, [], "hash_ids", '"hash_ids": [1]', "}\n{", {"hash_ids": [1, 2]}, "\\", "ä"]),
        'x"hash_ids': st.just([1, 2]),
    },
)


def _outcome(text, **options):
    try:
        trace = read_trace(io.BytesIO(text), **options)
    except TraceError as error:
        return str(error)
    return trace, trace.skipped


def _give_up(*args, **options):
    raise UnusualChunkError


def _both_ways(text, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_CHUNK", 64)
        fast_in_pieces = _outcome(text, **options)
        patch.setattr(jsonl, "read_chunk", _give_up)
        slow_in_pieces = _outcome(text, **options)
        patch.setattr(files, "_CHUNK", 1 << 20)
        slow = _outcome(text, **options)
    fast = _outcome(text, **options)
    assert fast == slow == fast_in_pieces == slow_in_pieces
    return fast


@settings(max_examples=200)
@given(st.lists(FIELDS, min_size=1, max_size=4), st.sampled_from([None, 8]), st.booleans())
def test_chunks_are_read_like_records(records, block_size, skip):
    text = "\n".join(map(json.dumps, records)).encode()
    _both_ways(text, block_size=block_size, on_error="skip" if skip else "raise")


JUNK = st.sampled_from(
    [b'"', b"{", b"}", b"\n", b",", b"[", b"]", b"0", b"-", b" ", b"\\", b"\xff", b":", b'"hash_ids"']
)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2), JUNK), min_size=1, max_size=3), st.booleans())
@example([(76, 0, b',{"x":[{}')], False)
def test_damaged_text_is_read_like_records(damages, skip):
    text = "\n".join([_line(), _line(hash_ids=[-5, 12, 0][:2]), _line(session="a"), _line(), ""]).encode()
    for place, num_lost, added in damages:
        text = text[:place] + added + text[place + num_lost :]
    _both_ways(text, block_size=16, on_error="skip" if skip else "raise")


@pytest.mark.parametrize(
    "lines",
    [
        [b'{"a":1},{"x":[{}', b'{}]}'],  # two objects in one line, one over two: as many as lines
        [b'{"a":"x}', b'{","b":1}'],  # a string over the line end
        [b'{"hash_ids":[1],"hash_ids":[2,3]', b'"timestamp":0}'],
        [b'{"x', b'"}'],
    ],
)  # fmt: skip
def test_lines_do_not_borrow_from_each_other(lines):
    text = b"\n".join(lines)
    with pytest.raises(UnusualChunkError):
        chunks.read_chunk(text, 1, block_size=16, last_arrival_s=-np.inf)
    assert "line 1: not JSON" in _both_ways(text, block_size=16)


def test_a_field_spelled_in_escapes_and_one_that_looks_like_it():
    same = _line(note=1).replace("hash_ids", "hash\\u005fids")
    other = _line(hash_ids=...)[:-1] + ', "x\\"hash_ids": [5, 6]}'
    trace, _ = _both_ways(f"{same}\n{other}\n{_line()}".encode(), block_size=16)
    assert strategies.rows_of(trace) == [[0, 1], [], [0, 1]]


@pytest.mark.parametrize("extra", [{}, {"a": [{"b": 1}]}, 'a \\ "quoted" \n name', "漢字", "ä"])
def test_further_fields_do_not_slow_the_reader_down(extra):
    text = "\n".join([_line(extra=extra), _line(extra=extra), ""]).encode()
    rows = chunks.read_chunk(text, 1, block_size=16, last_arrival_s=0.0)
    assert rows.bits.tolist() == [0, 1, 0, 1]


def test_ordinary_chunks_are_read_the_fast_way():
    text = "\n".join([_line(), _line(session="a", timestamp=1.5), _line(hash_ids=[2**63, 12], timestamp=2), ""])
    rows = chunks.read_chunk(text.encode(), 1, block_size=16, last_arrival_s=0.0)
    assert rows.counts.tolist() == [2, 2, 2]
    assert rows.session == [None, "a", None]


@given(
    st.lists(
        st.integers(-(2**63), 2**64 - 1)
        | st.sampled_from([10**n - d for n in range(20) for d in (0, 1)] + [-(10**n) for n in range(19)]),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([",", ", "]),
)  # fmt: skip
def test_digits_are_the_integers_they_spell(values, comma):
    found = parse_integers([comma.join(map(str, values)).encode()])
    assert [int(bits) % 2**64 for bits in found.bits] == [value % 2**64 for value in values]
    is_large = [False] * len(values) if found.is_large is None else found.is_large.tolist()
    assert is_large == [value >= 2**63 for value in values]
    assert found.has_negative == any(value < 0 for value in values)


@given(st.text("0123456789-, .e", max_size=30).map(str.encode))
@example(b"18446744073709551616")
@example(b"-9223372036854775809")
@example(b"123456789012345678901")
def test_digits_are_given_up_unless_json_reads_them(text):
    found = parse_integers([text])
    if found is not None:
        values = json.loads(b"[" + text + b"]")
        assert [int(bits) % 2**64 for bits in found.bits] == [value % 2**64 for value in values]
        assert all(type(value) is int and -(2**63) <= value < 2**64 for value in values)


@given(st.lists(st.lists(st.integers(-5, 1000), max_size=4)))
def test_digits_in_rows(rows):
    found = parse_integers([", ".join(map(str, row)).encode() for row in rows])
    assert found.bits.tolist() == [value for row in rows for value in row]
    assert found.counts.tolist() == list(map(len, rows))


@given(strategies.traces(named=True))
def test_reader_against_a_loop(trace):
    lines = [line.decode() for line in jsonl.json_lines(trace)]
    if lines:
        read = read_trace(io.StringIO("".join(lines)))
        arrival_s, input_tokens, output_tokens, rows, *_ = zip(*reference.read_json_lines(lines), strict=True)
        assert read.arrival_s.tolist() == list(arrival_s)
        assert read.input_tokens.tolist() == list(input_tokens)
        assert read.output_tokens.tolist() == list(output_tokens)
        assert read.block_counts.tolist() == list(map(len, rows))


# Files as a whole.


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.csv", "empty"])
def test_an_empty_file_is_refused(tmp_path, name):
    path = tmp_path / name
    path.touch()
    with pytest.raises(TraceError, match=f"{name}: an empty file$"):
        read_trace(path)


def test_files_without_a_request_are_refused(tmp_path):
    with pytest.raises(TraceError, match=r"^<file object>: no request in it$"):
        _read("\n\n", format="jsonl")
    with pytest.raises(TraceError, match=r"no request in it \(1 left out; .*, line 1: input_length must be 0 or more"):
        _read(_line(input_length=-1), on_error="skip")
    with pytest.raises(TraceError, match=r"no request in it$"):
        _read("arrived_at,num_prefill_tokens,num_decode_tokens\n")
    path = tmp_path / "empty.npz"
    path.touch()
    with pytest.raises(TraceError, match=r"empty\.npz: an empty file$"):
        read_trace(path)


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(TraceError, match="a directory, not a trace file"):
        read_trace(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "absent.jsonl")


def test_truncated_and_damaged_gzip_is_refused(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    whole = gzip.compress("\n".join([_line()] * 1000).encode())
    for on_error in ("raise", "skip"):
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(TraceError, match=r"t\.jsonl\.gz: truncated or damaged gzip"):
            read_trace(path, block_size=16, on_error=on_error)
        path.write_bytes(whole[:20] + b"\xff\x00\xff" + whole[23:])
        with pytest.raises(TraceError, match=r"t\.jsonl\.gz: truncated or damaged gzip"):
            read_trace(path, block_size=16, on_error=on_error)


@pytest.mark.parametrize("junk", [b"\x00\xff\xfe" * 50, bz2.compress(b"x" * 100), b"\x7fELF\n\x00", bytes(range(256))])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("junk.bin", r": neither JSON lines, nor a CSV header, nor an \.npz archive: begins with b'"),
        ("junk.jsonl", r", line 1: not (UTF-8|JSON)"),
        ("junk.csv", r", line 1: (not UTF-8|not CSV|columns must be TIMESTAMP,)"),
        ("junk.npz", r": not a readable \.npz archive"),
    ],
)
def test_binary_junk_is_refused(tmp_path, junk, name, problem):
    path = tmp_path / name
    path.write_bytes(junk)
    with pytest.raises(TraceError, match=f"{name}{problem}"):
        read_trace(path)


def test_text_that_is_not_utf8_names_the_line(tmp_path):
    path = tmp_path / "latin.jsonl"
    path.write_bytes((_line() + "\n" + _line(session="§")).encode().replace(b"\\u00a7", b"\xa7"))
    with pytest.raises(TraceError, match=r"latin\.jsonl, line 2: not UTF-8 at byte 90: got b'\{"):
        read_trace(path, block_size=16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size must be 1 or more: got 0"),
        ({"block_size": 1.5}, "block_size must be an integer: got 1.5"),
        ({"format": "xml"}, "format must be one of jsonl, csv, npz: got 'xml'"),
        ({"on_error": "ignore"}, "on_error must be 'raise' or 'skip': got 'ignore'"),
    ],
)
def test_malformed_options_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        read_trace(io.StringIO(_line()), **options)


def test_files_pipes_and_file_objects(tmp_path, monkeypatch):
    text = "\n".join([_line(), _line(timestamp=7)]) + "\n"
    expected = _read(_line(), _line(timestamp=7))
    packed = gzip.compress(text.encode())
    (tmp_path / "plain").write_text(text)
    (tmp_path / "packed").write_bytes(packed)  # told by content
    for source in (
        tmp_path / "plain",
        str(tmp_path / "packed"),
        io.StringIO(text),
        io.BytesIO(text.encode()),
        io.BytesIO(packed),
    ):
        assert read_trace(source, block_size=16) == expected
    with (tmp_path / "plain").open() as file:
        assert read_trace(file, block_size=16) == expected
        assert not file.closed
    for data in (text.encode(), packed):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert read_trace("-", block_size=16) == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    with pytest.raises(TraceError, match="<stdin>, line 1: timestamp is missing"):
        read_trace("-", block_size=16)


def test_an_archive_is_read_from_files_pipes_and_packed(tmp_path, monkeypatch):
    expected = _read(_line())
    path = tmp_path / "t.npz"
    write_trace(expected, path)
    data = path.read_bytes()
    steps = []
    assert read_trace(path, progress=steps.append) == expected
    assert sum(steps) == len(data)
    for source in (io.BytesIO(data), io.BytesIO(gzip.compress(data))):
        assert read_trace(source) == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert read_trace("-") == expected
    with path.open("rb") as file:
        assert read_trace(file) == expected
        assert not file.closed


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_progress_adds_up_to_the_size_of_the_file(tmp_path, pack):
    path = tmp_path / "t"
    path.write_bytes(pack("\n".join([_line(session=i) for i in range(20_000)]).encode()))
    steps = []
    read_trace(path, block_size=16, progress=steps.append)
    assert sum(steps) == path.stat().st_size


# CSV.

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
NO_TIME = "TIMESTAMP must be a time such as 2023-11-16 18:15:46.68"
DAY = "2000-01-01 00:00:00"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens"


def test_calendar_times_are_seconds_from_the_first():
    trace = _read(
        AZURE,
        "2023-11-16 23:59:59.9999999,1,2",
        "2023-11-17T00:00:00,3,4",
        "2023-11-17 01:00:00.5+01:00,5,6",
        "2024-02-29 00:00:00Z,7,8\r",
        "",
    )
    assert trace.arrival_s.tolist() == [0.0, 1e-7, 0.5000001, 104 * 86_400 + 1e-7]
    assert trace.input_tokens.tolist() == [1, 3, 5, 7]
    assert trace.output_tokens.tolist() == [2, 4, 6, 8]
    assert (trace.has_blocks, trace.block_size) == (False, 16)


def test_seconds_columns_in_any_order_among_others():
    trace = _read("id, num_decode_tokens ,arrived_at,num_prefill_tokens", 'a,2,1.5,"1"', "b,4,2e0,3")
    assert trace.arrival_s.tolist() == [0.0, 0.5]
    assert trace.input_tokens.tolist() == [1, 3]
    assert trace.output_tokens.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("header", "row", "problem"),
    [
        (VIDUR, "1,-1,2", "num_prefill_tokens must be 0 or more: got '-1'"),
        (VIDUR, "1,1.0,2", "num_prefill_tokens must be an integer: got '1.0'"),
        (VIDUR, "1,1,", "num_decode_tokens must be an integer: got ''"),
        (VIDUR, "1,1,9223372036854775808", "num_decode_tokens must be less than 2^63: got '9223372036854775808'"),
        (VIDUR, f"1,1,{'9' * 5000}", f"num_decode_tokens must be less than 2^63: got '{'9' * 56}..."),
        (VIDUR, "nan,1,2", "arrived_at must be finite: got 'nan'"),
        (VIDUR, "1e999,1,2", "arrived_at must be finite: got '1e999'"),
        (VIDUR, "soon,1,2", "arrived_at must be a number: got 'soon'"),
        (VIDUR, "1_0,1,2", "arrived_at must be a number: got '1_0'"),
        (VIDUR, "-5,1,2", "arrived_at must not fall: got '-5' after '0'"),
        (VIDUR, "1,1", "a row must have 3 fields: got 2 in b'1,1'"),
        (VIDUR, "1,1,1,1", "a row must have 3 fields: got 4 in b'1,1,1,1'"),
        (VIDUR, '1,1,"1', "not CSV (unexpected end of data): got b'1,1,\"1'"),
        (VIDUR, "", "blank, and not at the end"),
        (AZURE, "2023-11-16,1,2", f"{NO_TIME}: got '2023-11-16'"),
        (AZURE, "2023-02-30 00:00:00,1,2", f"{NO_TIME}: got '2023-02-30 00:00:00'"),
        (AZURE, "2023-11-16 25:00:00,1,2", f"{NO_TIME}: got '2023-11-16 25:00:00'"),
        (AZURE, "1999-01-01 00:00:00,1,2", f"TIMESTAMP must not fall: got '1999-01-01 00:00:00' after '{DAY}'"),
    ],
)  # fmt: skip
def test_a_bad_row_stops_the_reader_or_is_left_out(header, row, problem):
    good = ["0,1,2", "9,1,2"] if header == VIDUR else [f"{DAY},1,2", "2030-01-01 00:00:00,1,2"]
    with pytest.raises(TraceError) as caught:
        _read(header, good[0], row, good[1])
    assert str(caught.value) == f"<file object>, line 3: {problem}"
    trace = _read(header, good[0], row, good[1], on_error="skip")
    assert trace == _read(header, *good)
    assert trace.skipped == (1, (f"<file object>, line 3: {problem}",))


STAMPS = st.builds(
    "2023-1{}-{:02} {:02}:00:{:02}.{}{}".format,
    st.integers(0, 3),
    st.integers(1, 31),
    st.integers(0, 24),
    st.integers(0, 60),
    st.sampled_from(["5", "0000001", "123456789", "1234567890", "x"]),
    st.sampled_from(["", "", "Z", "+01:00", "-11:30"]),
)
LENGTHS = st.sampled_from(["0", "7", " 12", "3 ", "-0", "-1", "1.5", "", "007", "9223372036854775808", '"4"', "1,2"])


@settings(max_examples=200)
@given(st.data(), st.booleans(), st.booleans())
def test_chunks_of_rows_are_read_like_rows(data, is_calendar, skip):
    """Mostly good rows of one form, in order, and now and then anything else."""
    odd = STAMPS if is_calendar else st.sampled_from(["nan", "1e3", "-1", "+.5", "1_0", "", "5.", "1e999", " 2"])
    times = data.draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=6).map(sorted))
    rows = []
    for time in times:
        plain = (
            f"2023-11-{1 + time // 50_000:02} 10:00:{time % 60:02}.{time % 997:07}" if is_calendar else str(time / 7)
        )
        stamp = data.draw(st.just(plain) | st.just(plain) | st.just(plain) | odd)
        lengths = data.draw(st.just("7,8") | st.just("7,8") | st.tuples(LENGTHS, LENGTHS).map(",".join))
        rows.append(f"{stamp},{lengths}")
    text = "\n".join([AZURE if is_calendar else VIDUR, *rows, ""]).encode()
    outcomes = []
    for chunk, fast in ((1 << 20, True), (1 << 20, False), (64, True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "_CHUNK", chunk)
            if not fast:
                patch.setattr(tables, "read_table_chunk", _give_up)
            outcomes.append(_outcome(text, on_error="skip" if skip else "raise"))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.parametrize(
    "rows",
    [
        ["2023-11-16 23:59:59.9999999,1,2", "2023-11-17 00:00:00.0000000,3,4"],
        ["2024-05-10 00:00:00.009930+00:00,1,2", "2024-05-10 00:00:00.017335+00:00,3,4"],
        ["2024-05-10T00:00:00,1,2"],
    ],
)
def test_ordinary_rows_are_read_the_fast_way(rows):
    layout = Layout(KINDS[0], (0, 1, 2), 3)
    found = read_table_chunk("\r\n".join([*rows, ""]).encode(), layout)
    assert found.input_tokens.tolist() == [1, 3][: len(rows)]


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("arrived_at,num_prefill_tokens", "columns must be TIMESTAMP,ContextTokens,GeneratedTokens or arrived_at,"),
        (f"{AZURE},TIMESTAMP", "columns must be distinct: got 'TIMESTAMP' 2 times"),
        (f"{AZURE},x,x", "columns must be distinct: got 'x' 2 times"),
        ("", "columns must be TIMESTAMP,"),
    ],
)
def test_a_header_that_names_too_little_or_too_much_is_refused(header, problem):
    with pytest.raises(TraceError, match=f"<file object>, line 1: {problem}"):
        _read(header, "1,2,3", format="csv")


# Written and read again.


@pytest.mark.parametrize(
    ("name", "options"),
    [("t.jsonl", {}), ("t.jsonl.gz", {}), ("t.npz", {}), ("t.npz", {"compressed": True})],
)
@settings(max_examples=50)
@given(trace=strategies.traces(named=True), has_blocks=st.booleans())
@example(trace=Trace([2**64 - 1], [0, 1], block_size=3, session=[0], session_labels=["\ud800"]), has_blocks=True)
@example(trace=Trace([], [0, 0, 0], block_size=3, arrival_s=[0.1, 1.1e306]), has_blocks=True)
def test_what_is_written_is_read(tmp_path_factory, name, options, trace, has_blocks):
    if not has_blocks:
        trace = Trace(None, None, block_size=None, input_tokens=trace.input_tokens, arrival_s=trace.arrival_s)
    path = tmp_path_factory.getbasetemp() / name
    if not trace.num_requests and not name.endswith("npz"):
        with pytest.raises(ValueError, match="trace must have a request to be written as JSON lines"):
            write_trace(trace, path)
        return
    write_trace(trace, path, **options)
    assert read_trace(path) == trace
    once = path.read_bytes()
    write_trace(trace, path, **options)
    assert path.read_bytes() == once


def test_json_lines_are_those_of_published_traces(tmp_path, capfdbinary):
    path = tmp_path / "t.jsonl"
    trace = Trace([1, 2], [0, 2], block_size=16, input_tokens=[20], output_tokens=[3], arrival_s=[0.5])
    write_trace(trace, path)
    line = b'{"timestamp": 500, "input_length": 20, "output_length": 3, "block_size": 16, "hash_ids": [1, 2]}\n'
    assert path.read_bytes() == line
    with pytest.raises(ValueError, match=r"compressed must be left out for JSON lines, .*: got path '.*t\.jsonl'"):
        write_trace(trace, path, compressed=True)
    assert path.read_bytes() == line


def test_standard_output_gets_json_lines(monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", stdout)
    trace = Trace([1], [0, 1], block_size=16)
    write_trace(trace, "-")
    assert read_trace(io.BytesIO(stdout.buffer.getvalue())) == trace


COLUMNS = {"kvarray_trace": 1, "input_tokens": [5], "output_tokens": [1], "arrival_s": [0.0]}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kvarray_trace": None}, "kvarray_trace is missing from the archive"),
        ({"kvarray_trace": 2}, "kvarray_trace must be 1, the version of the format: got 2"),
        ({"kvarray_trace": [1]}, r"kvarray_trace must be one integer: got int64 of shape \(1,\)"),
        ({"arrival_s": None}, "arrival_s is missing from the archive"),
        ({"arrival_s": [float("nan")]}, r"arrival_s must be finite: arrival_s\[0\] = nan"),
        ({"input_tokens": [-1]}, r"input_tokens must be 0 or more: input_tokens\[0\] = -1"),
        ({"input_tokens": [1.5]}, "input_tokens must be integers: got float64"),
        ({"input_tokens": np.array([{}])}, r"not a readable \.npz archive \(Object arrays cannot be loaded"),
        ({"block_ids": [1], "offsets": [0, 2]}, "offsets must begin at 0 and end at the number of values"),
        ({"block_ids": [1]}, "block_ids and offsets must be given together"),
        ({"block_size": 16}, "block_size must be 8, as given: got 16"),
        ({"block_size": 8.0}, r"block_size must be one integer: got float64 of shape \(\)"),
        ({"session": [0], "session_labels": [1, 2]}, "session_labels must be a JSON list"),
        ({"session": [0], "session_labels": np.frombuffer(b"[[]]", np.uint8)}, "must be a JSON list of strings"),
    ],
)
def test_an_archive_is_held_to_the_rules_of_a_trace(tmp_path, change, problem):
    path = tmp_path / "t.npz"
    np.savez(path, **{key: value for key, value in (COLUMNS | change).items() if value is not None})
    with pytest.raises(TraceError, match=problem) as caught:
        read_trace(path, block_size=8)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_truncated_archive_is_refused(tmp_path):
    path = tmp_path / "t.npz"
    write_trace(Trace(np.arange(1000), [0, 1000], block_size=1), path)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(TraceError, match=r"t\.npz: not a readable \.npz archive"):
        read_trace(path)
