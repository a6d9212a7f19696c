"""Bytes of KV: formats, tensor parallelism, lengths and blocks, and the way back from memory."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvarray.economics import (
    FixedState,
    Footprint,
    KVStream,
    MemoryPrice,
    ModelSpec,
    cost_per_million_tokens,
    kv_dtype,
)  # fmt: skip
from tests.reference import economics as twin

LLAMA = ModelSpec.from_fields("llama", num_layers=80, num_kv_heads=8, head_dim=128)
MIXED = ModelSpec(
    "mixed",
    (
        KVStream("full", 2, (4, 4), layers=2),
        KVStream("sliding", 4, (4, 2), window=5, layers=3),
        KVStream("chunked", 4, (3,), window=6, aligned=True),
        KVStream("latent", 1, (8, 2)),
    ),
    (FixedState("mamba", 4, 10, "fp32", layers=2), FixedState("conv", 2, 3, "bf16")),
)
STATES = ModelSpec("states", (), (FixedState("mamba", 4, 4, "fp32"),))
COMPRESSED = ModelSpec("compressed", (KVStream("compressed", 1, (5,), ratio=4), KVStream("sliding", 1, (5,), window=2)))


# Errors.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Footprint.of([]), "models must name at least one model"),
        (lambda: Footprint.of([LLAMA], dtype="tf32"), "dtype must be a number format that is known: got 'tf32'"),
        (lambda: Footprint.of([LLAMA], dtype=["fp8", "int4"]), "one format or one per model: got 2 for 1"),
        (lambda: Footprint.of([LLAMA], index_dtype="fp7"), "dtype must be a number format that is known: got 'fp7'"),
        (lambda: Footprint.of([LLAMA], index_dtype=["fp8"] * 2), "index_dtype must be one format or one per model"),
        (lambda: Footprint.of([LLAMA], tp=[1, 2]), "tp must be one number or one per model: got 2 for 1"),
        (lambda: Footprint.of([LLAMA], tp=0), "tp must be 1 or more"),
        (lambda: Footprint.of([LLAMA], tp=3), "tp must divide the 8 full KV heads, or be a multiple of them: got 3"),
        (lambda: Footprint.of([LLAMA], tp=12), "tp must divide the 8 full KV heads"),
        (lambda: ModelSpec.from_name("deepseek-v3").bytes_per_token(tp=3), "tp must divide the 128 attention heads of"),
        (lambda: Footprint.of([LLAMA]).bytes_per_sequence([4, 0, -1]), r"1 or more: tokens\[1\] = 0, tokens\[2\] = -1"),
        (lambda: Footprint.of([LLAMA]).bytes_per_sequence([[4]]), "tokens must be one-dimensional"),
        (lambda: Footprint.of([LLAMA]).bytes_per_sequence([2**50]), "bytes to fit 64 bits: got"),
        (lambda: Footprint.of([LLAMA]).bytes_per_sequence([2**63 - 1]), "tokens and block_size must be small enough"),
        (lambda: Footprint.of([LLAMA]).split_by_kind([2**63 - 1]), "tokens and block_size must be small enough"),
        (lambda: Footprint.of([LLAMA]).marginal_bytes([2**63 - 1]), "tokens must be small enough"),
        (lambda: Footprint.of([LLAMA]).sequences_that_fit(2**62, [2**63 - 1]), "tokens and block_size must be"),
        (lambda: Footprint.of([LLAMA]).bytes_per_block(2**62), "block_size must be small enough"),
        (lambda: Footprint.of([LLAMA]).blocks_that_fit(1, block_size=2**62), "block_size must be small enough"),
        (lambda: Footprint.of([STATES]).bytes_per_sequence([2**63 - 1], block_size=2), "tokens and block_size must be"),
        (lambda: Footprint.of([LLAMA]).tokens_that_fit(2**70), r"memory must fit 64 bits: memory\[0\] = "),
        (
            lambda: Footprint.of([_wide(2**31)] * 2),
            r"models\[0\] must keep less than 2\^62 bytes for a token: wide keeps",
        ),
        (lambda: Footprint.of([LLAMA]).marginal_bytes([-1]), "tokens must be 0 or more"),
        (lambda: Footprint.of([LLAMA]).bytes_per_block(0), "block_size must be 1 or more: got 0"),
        (
            lambda: Footprint.of([COMPRESSED]).bytes_per_block(6),
            "a multiple of the 4 tokens to an entry of compressed's compressed",
        ),
        (lambda: Footprint.of([LLAMA]).blocks_that_fit(-1, block_size=16), "memory must be 0 or more"),
        (
            lambda: Footprint.of([LLAMA]).tokens_that_fit([1, 2]),
            "memory must be one number or one per row: got 2 for 1",
        ),
        (lambda: Footprint.of([LLAMA]).tokens_that_fit(1, num_sequences=0), "num_sequences must be 1 or more"),
        (lambda: Footprint.of([LLAMA]).tokens_that_fit(1, max_tokens=2**62), "bytes to fit 64 bits"),
        (lambda: Footprint.of([ModelSpec("c", COMPRESSED.streams[:1])]).sequences_that_fit(9, [8, 3]), r"tokens\[1\]"),
        (lambda: kv_dtype("bf16", group_size=32), "8 bits or fewer: got 32 for bf16"),
        (lambda: kv_dtype("nvfp4", group_size=32), "must not be given for nvfp4, whose groups are of 16"),
        (lambda: kv_dtype("int4", group_size=0), "group_size must be 1 or more"),
        (lambda: kv_dtype("int4", group_size=32, scale_dtype="fp61"), "scale_dtype must be .* did you mean "),
        (lambda: ModelSpec("none", ()), "none: a model must keep something"),
        (lambda: KVStream("full", 0, (4,)), "heads of the full stream must be 1 or more"),
        (lambda: KVStream("full", 1, ()), "at least one vector"),
        (lambda: KVStream("full", 1, (0,)), "widths of the full stream must be 1 or more"),
        (lambda: KVStream("full", 1, (4,), window=0), "window of the full stream must be 1 or more"),
        (lambda: FixedState("mamba", 1, 0, "fp32"), "width of the mamba state must be 1 or more"),
        (lambda: FixedState("mamba", 1, 1, "fp31"), "dtype must be a number format"),
        (lambda: ModelSpec.from_fields("m", num_layers=0, num_kv_heads=1, head_dim=1), "num_layers must be 1 or more"),
        (lambda: _fields(num_window_layers=3), "window must be given for the 3 layers that slide"),
        (lambda: _fields(window=4, num_window_layers=9), "num_window_layers must be 4 at most.*got 9"),
        (lambda: MemoryPrice(-1.0, "GB-month"), "price must be 0 or more"),
        (lambda: MemoryPrice(1e308, "GB-month"), "price must be 1e.60 or less"),
        (lambda: MemoryPrice(1.0, "GB"), "the unit of a price must be one of"),
        (lambda: MemoryPrice(1.0, "GB-fortnight"), "such as GiB-month: got 'GB-fortnight'"),
        (lambda: MemoryPrice.parse("cheap/GB-month"), "a price must be like 0.09/GB-month: got 'cheap/GB-month'"),
        (lambda: MemoryPrice.parse("1.5"), "a price must be like"),
        (lambda: MemoryPrice.parse("nan/GB-month"), "price must be finite"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def _wide(width):
    """A model of three streams, each of which fits where their sum does not."""
    return ModelSpec("wide", tuple(KVStream(kind, 2**29, (width,)) for kind in ("full", "latent", "index")))


def _fields(**more):
    return ModelSpec.from_fields("m", num_layers=4, num_kv_heads=2, head_dim=8, **more)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Footprint.of([LLAMA]).bytes_per_sequence([1.5]), "tokens must be integers"),
        (lambda: Footprint.of([LLAMA], dtype=8), "dtype must be a number format or a sequence of them: got 8"),
        (lambda: kv_dtype(8), "dtype must be the name of a number format: got 8"),
        (lambda: Footprint.of([LLAMA], tp=2.0), "tp must be integers"),
        (lambda: Footprint.of([LLAMA]).bytes_per_block(16.0), "block_size must be an integer"),
        (lambda: Footprint.of(5), "models must be a sequence of ModelSpec: got 5"),
        (lambda: Footprint.of(LLAMA), "models must be a sequence of ModelSpec: got ModelSpec"),
        (lambda: Footprint.of([LLAMA, 5]), r"models\[1\] must be a ModelSpec: got 5"),
        (lambda: ModelSpec.from_name(5), "name must be a str: got 5"),
        (lambda: ModelSpec(5, LLAMA.streams), "name must be a str: got 5"),
        (lambda: ModelSpec("x", 5), "streams of x must be a tuple: got 5"),
        (lambda: ModelSpec("x", (5,)), r"streams\[0\] of x must be a KVStream: got 5"),
        (lambda: ModelSpec("x", (), LLAMA.streams), r"states\[0\] of x must be a FixedState: got KVStream"),
        (lambda: KVStream(5, 1, (4,)), "kind of a stream must be a str: got 5"),
        (lambda: KVStream("full", 1, 4), "widths of the full stream must be a tuple: got 4"),
        (lambda: FixedState(5, 1, 4, "fp32"), "kind of a state must be a str: got 5"),
        (lambda: MemoryPrice("1", "GB-month"), "price must be real numbers"),
        (lambda: MemoryPrice(1.0, 5), "the unit of a price must be a str: got 5"),
        (lambda: MemoryPrice.parse(5), "a price must be a str: got 5"),
        (lambda: cost_per_million_tokens(Footprint.of([LLAMA]), [1], price=5), "price must be a MemoryPrice: got 5"),
        (lambda: cost_per_million_tokens(LLAMA, [1], price=MemoryPrice(1, "GB-day")), "footprint must be a Footprint"),
    ],
)
def test_refused_types(call, message):
    with pytest.raises(TypeError, match=message):
        call()


# Worked examples.


def test_scenario_5():
    table = Footprint.of([LLAMA] * 3, dtype=["fp16", "fp8", "int4"])
    assert table.bytes_per_token().tolist() == [327680, 163840, 81920]
    assert (table.bytes_per_sequence([131072])[:, 0] / 2**30).tolist() == [40.0, 20.0, 10.0]


def test_formats_and_their_scales():
    width = 128
    sizes = {name: kv_dtype(name).vector_bytes(width) for name in ("fp32", "bf16", "fp8", "int4", "mxfp8", "nvfp4")}
    assert sizes == {"fp32": 512, "bf16": 256, "fp8": 128, "int4": 64, "mxfp8": 132, "nvfp4": 72}
    assert kv_dtype("int4", group_size=64).vector_bytes(width) == 64 + 2 * 2
    assert kv_dtype("int4", group_size=64, scale_dtype="fp32").vector_bytes(width) == 64 + 2 * 4
    assert kv_dtype("int4", group_size=100).vector_bytes(101) == 51 + 2 * 2  # a last group of one


def test_heads_are_split_then_copied():
    table = Footprint.of([LLAMA] * 5, tp=[1, 2, 8, 16, 64])
    assert (table.bytes_per_token() * 8 // 327680).tolist() == [8, 4, 1, 1, 1]


def test_a_latent_is_copied_to_every_rank():
    spec = ModelSpec.from_name("deepseek-v3")
    assert spec.bytes_per_token() == spec.bytes_per_token(tp=8) == 61 * (512 + 64) * 2


def test_windows_stop_growing_and_chunks_too():
    #                full 2 x 2 x 8 = 32 numbers a token, sliding 3 x 4 x 6 = 72 up to 5 tokens, chunked 12 up to 6,
    #                latent 10; state (2 x 4 x 10) x 4 bytes + 2 x 3 x 2 bytes
    table = Footprint.of([MIXED])
    assert table.state_bytes.tolist() == [332]
    assert table.bytes_per_token().tolist() == [2 * (32 + 72 + 12 + 10)]
    assert table.marginal_bytes([0, 4, 5, 6, 100])[0].tolist() == [252, 252, 108, 84, 84]
    assert table.bytes_per_sequence([1, 5, 100])[0].tolist() == [332 + 252, 332 + 5 * 252, 332 + 8400 + 720 + 144]


def test_blocks_of_windows_that_lie_across_one_more():
    sliding = ModelSpec("s", (KVStream("sliding", 1, (1,), window=8),))
    chunked = ModelSpec("c", (KVStream("chunked", 1, (1,), window=8, aligned=True),))
    table = Footprint.of([sliding, chunked], dtype="fp8")
    # blocks of 4: |....|....|....|  8 tokens can lie across three of them, a chunk of 8 is always two
    assert table.bytes_per_sequence([1, 8, 9, 99], block_size=4).tolist() == [[4, 8, 12, 12], [4, 8, 8, 8]]


def test_compressed_layers_keep_an_entry_for_each_full_window():
    table = Footprint.of([COMPRESSED], dtype="fp8")
    assert table.bytes_per_sequence([1, 2, 3, 4, 7, 8]).tolist() == [[5, 10, 10, 15, 15, 20]]
    assert table.bytes_per_token().tolist() == [7]  # 5 / 4 + 5, a fraction counted as one
    assert table.bytes_per_block(4).tolist() == [25]


def test_inverses():
    table = Footprint.of([LLAMA], tp=8)
    memory = 80 * 2**30
    assert table.tokens_that_fit(memory).tolist() == [memory // 40960]
    assert table.tokens_that_fit(memory, num_sequences=3).tolist() == [memory // 3 // 40960]
    assert table.tokens_that_fit(memory, max_tokens=1000).tolist() == [1000]
    assert table.blocks_that_fit(memory, block_size=16).tolist() == [memory // 40960 // 16]
    assert table.sequences_that_fit(memory, [131072, 2**21, 2**21 + 1]).tolist() == [[16, 1, 0]]
    assert Footprint.of([MIXED]).tokens_that_fit([331]).tolist() == [0]


def test_index_keys_may_have_a_format_of_their_own():
    spec = ModelSpec.from_name("deepseek-v3.2")
    fp8 = kv_dtype("fp8", group_size=128, scale_dtype="fp32")  # 128 bytes and a scale of 4
    table = Footprint.of([spec, spec], index_dtype=[fp8, "bf16"])
    assert table.bytes_per_token().tolist() == [61 * (576 * 2 + 132), 61 * (576 * 2 + 256)]
    assert table.split_by_kind([10])["index"].tolist() == [[61 * 1320], [61 * 2560]]


def test_drafts_count_by_choice():
    spec = ModelSpec.from_name("deepseek-v3")
    with_drafts = Footprint.of([spec], with_drafts=True).bytes_per_token()
    assert with_drafts.tolist() == [62 * 576 * 2]
    assert Footprint.of([spec]).bytes_per_token().tolist() == [61 * 576 * 2]


def test_layers_of_one_shape():
    assert _fields().streams == (KVStream("full", 2, (8, 8), layers=4),)
    assert _fields(v_head_dim=4, window=7).streams == (KVStream("sliding", 2, (8, 4), window=7, layers=4),)
    assert [stream.layers for stream in _fields(window=7, num_window_layers=3).streams] == [1, 3]


def test_a_model_of_states_alone_never_ends():
    table = Footprint.of([ModelSpec("mamba", (), (FixedState("mamba", 4, 4, "fp32"),)), LLAMA])
    assert table.bytes_per_token().tolist() == [0, 327680]
    assert table.bytes_per_sequence([1, 9]).tolist() == [[64, 64], [327680, 9 * 327680]]
    assert table.tokens_that_fit(640, max_tokens=77).tolist() == [77, 0]
    assert table.blocks_that_fit(640, block_size=16).tolist() == [0, 0]
    assert table.sequences_that_fit(640, [5]).tolist() == [[10], [0]]


def test_money():
    # 327,680 bytes a token, a million tokens: 327.68 GB, at 1 cent for a GB and hour
    costs = cost_per_million_tokens(Footprint.of([LLAMA] * 2, tp=[1, 16]), [8192], price=MemoryPrice(7.3, "GB-month"))
    np.testing.assert_allclose(costs, [[3.2768], [2 * 3.2768]])  # 16 ranks hold two copies
    for unit, factor in {
        "GB-hour": 730,
        "GiB-month": 1e9 / 2**30,
        "TB-year": 1 / 12e3,
        "MB-day": 1e3 * 730 / 24,
    }.items():
        other = cost_per_million_tokens(Footprint.of([LLAMA]), [8192], price=MemoryPrice(7.3, unit))
        np.testing.assert_allclose(other, [[3.2768 * factor]])
    assert MemoryPrice.parse("2.5/GiB-month") == MemoryPrice(2.5, "GiB-month")


def test_money_of_more_bytes_than_64_bits_hold():
    spec, price = ModelSpec("latent", (KVStream("latent", 1, (2**20,)),)), MemoryPrice(1.0, "GB-hour")
    cost = cost_per_million_tokens(Footprint.of([spec], tp=2**40), [2**20], price=price)
    np.testing.assert_allclose(cost, [[1e6 * 2.0**21 * 2.0**40 / 1e9]])


def test_layers_are_counted_not_listed():
    spec = _fields_of(10**9, window=5, num_window_layers=3)
    assert [(stream.kind, stream.layers) for stream in spec.streams] == [("full", 10**9 - 3), ("sliding", 3)]
    assert [stream.kind for stream in _fields_of(2 * 10**6, window=5).streams] == ["sliding"]
    assert [stream.kind for stream in _fields_of(7, window=5, num_window_layers=0).streams] == ["full"]


def _fields_of(num_layers, **more):
    return ModelSpec.from_fields("m", num_layers=num_layers, num_kv_heads=2, head_dim=8, **more)


# Properties.

NAMES = ("fp32", "bf16", "fp8", "int4")


@st.composite
def specs(draw, ratios=(1, 2, 4), heads=(1, 2, 4, 8)):
    def stream():
        windowed = draw(st.sampled_from(("full", "sliding", "chunked")))
        return KVStream(
            windowed,
            draw(st.sampled_from(heads)),
            tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=2))),
            window=None if windowed == "full" else draw(st.integers(1, 9)),
            ratio=draw(st.sampled_from(ratios)) if windowed == "full" else 1,
            aligned=windowed == "chunked",
            layers=draw(st.integers(1, 3)),
        )

    streams = tuple(stream() for _ in range(draw(st.integers(0, 3))))
    states = tuple(
        FixedState("mamba", draw(st.sampled_from(heads)), draw(st.integers(1, 9)), draw(st.sampled_from(NAMES)))
        for _ in range(draw(st.integers(0 if streams else 1, 2)))
    )
    return ModelSpec("drawn", streams, states)


@given(
    st.lists(st.tuples(specs(), st.sampled_from(NAMES), st.sampled_from((1, 2, 4, 8, 16))), min_size=1, max_size=4),
    st.lists(st.integers(1, 40), max_size=5),
    st.sampled_from((1, 4, 8)),
)
def test_agrees_with_the_twin(rows, tokens, block_size):
    models, names, degrees = zip(*rows, strict=True)
    table = Footprint.of(models, dtype=names, tp=degrees)
    got = table.bytes_per_sequence(tokens, block_size=block_size)
    want = [
        [twin.bytes_per_sequence(spec, n, dtype=name, tp=tp, block_size=block_size) for n in tokens]
        for spec, name, tp in rows
    ]
    assert got.shape == (len(rows), len(tokens))
    assert got.tolist() == want
    assert table.bytes_per_token().tolist() == [twin.bytes_per_token(s, dtype=name, tp=tp) for s, name, tp in rows]
    parts = table.split_by_kind(tokens, block_size=block_size)
    np.testing.assert_array_equal(sum(parts.values()), got)


LARGE = st.one_of(st.integers(1, 2**63 - 1), st.integers(0, 62).map(lambda bits: 2**bits), st.just(2**63 - 1))


@example(2**63 - 1, 1)
@example(1, 2**63 - 1)
@example(2**62, 2**62)
@given(LARGE, LARGE)
def test_large_lengths_and_blocks_are_exact_or_refused(tokens, block_size):
    table = Footprint.of([ModelSpec("small", (KVStream("full", 1, (1,)), KVStream("sliding", 1, (1,), window=3)))])
    rounded = -(-tokens // block_size) * block_size
    try:
        got = table.bytes_per_sequence([tokens], block_size=block_size).tolist()
    except ValueError:
        assert 4 * (tokens + block_size) + 4 >= 2**62
    else:
        assert got == [[2 * rounded + 2 * min(rounded, -(-(2 + block_size) // block_size) * block_size)]]
        assert table.bytes_per_block(block_size).tolist() == [4 * block_size]


@given(st.integers(1, 300), st.sampled_from((None, 1, 3, 32, 64)), st.sampled_from(("fp16", "fp32", "fp8")))
def test_scales_agree_with_the_twin(width, group_size, scale_dtype):
    got = kv_dtype("int4", group_size=group_size, scale_dtype=scale_dtype).vector_bytes(width)
    assert got == twin.vector_bytes(width, 4, group_size, twin.BITS[scale_dtype])


@given(specs(), st.sampled_from(NAMES), st.sampled_from((1, 4)))
def test_bytes_never_fall_with_tokens_nor_below_the_state(spec, name, block_size):
    table = Footprint.of([spec], dtype=name)
    costs = table.bytes_per_sequence(np.arange(1, 60), block_size=block_size)[0]
    assert (np.diff(costs) >= 0).all()
    assert (costs >= table.state_bytes).all()
    steps = table.marginal_bytes(np.arange(59))[0]
    assert steps.sum() + table.state_bytes[0] == table.bytes_per_sequence([59])[0, 0]


@given(specs(ratios=(1,)), st.integers(1, 99))
def test_what_grows_scales_with_the_format(spec, tokens):
    table = Footprint.of([spec] * 3, dtype=["fp8", "bf16", "fp32"])
    growing = table.bytes_per_sequence([tokens])[:, 0] - table.state_bytes
    assert growing.tolist() == [growing[0], 2 * growing[0], 4 * growing[0]]
    assert len(set(table.state_bytes.tolist())) == 1


@given(
    st.lists(specs(), min_size=1, max_size=3), st.integers(0, 60_000), st.integers(1, 3), st.sampled_from((1, 4)),
    st.sampled_from((1, 4, 16)),
)  # fmt: skip
def test_inverses_never_overfill_and_one_more_would(models, memory, num_sequences, block_size, tp):
    table = Footprint.of(models, tp=tp)
    longest = table.tokens_that_fit(memory, num_sequences=num_sequences, block_size=block_size, max_tokens=200)
    costs = table.bytes_per_sequence(np.arange(1, 202), block_size=block_size) * num_sequences
    for row, n in enumerate(longest.tolist()):
        assert n == 0 or costs[row, n - 1] <= memory
        assert n == 200 or costs[row, n] > memory
    lengths = [4, 20]
    count = table.sequences_that_fit(memory, lengths, block_size=block_size)
    each = table.bytes_per_sequence(lengths, block_size=block_size)
    assert (count * each <= memory).all()
    assert ((count + 1) * each > memory).all()
    blocks, block = table.blocks_that_fit(memory, block_size=8), table.bytes_per_block(8)
    assert (blocks * block <= memory).all()
    assert ((blocks + 1) * block > memory)[block > 0].all()


@settings(max_examples=30)
@given(specs(), st.integers(0, 4000), st.sampled_from((1, 4)))
def test_the_longest_length_agrees_with_the_twin(spec, memory, block_size):
    got = Footprint.of([spec]).tokens_that_fit(memory, block_size=block_size, max_tokens=30)
    assert got.tolist() == [twin.tokens_that_fit(spec, memory, block_size=block_size, max_tokens=30)]


@given(st.lists(specs(), min_size=2, max_size=4), st.lists(st.integers(1, 50), min_size=1, max_size=4))
def test_rows_and_lengths_do_not_mind_each_other(models, tokens):
    whole = Footprint.of(models).bytes_per_sequence(tokens)
    for row, spec in enumerate(models):
        for column, n in enumerate(tokens):
            assert whole[row, column] == spec.bytes_per_sequence(n)
