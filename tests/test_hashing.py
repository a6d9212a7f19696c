"""Chained block hashes: bad input, worked cases, the plain-Python twin, and what must and must not collide."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarray import hashing
from kvarray.hashing import chain_hashes, content_hashes, hash_blocks, image_block_keys, namespace_hash
from tests.reference import hashing as reference

ROWS = st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=5)


def _flat(rows):
    return [x for row in rows for x in row], np.cumsum([0, *map(len, rows)])


@pytest.mark.parametrize(
    ("tokens", "offsets", "options", "error", "message"),
    [
        ([1, -2], [0, 2], {}, ValueError, r"tokens must be 0 or more: tokens\[1\] = -2"),
        ([1.0], [0, 1], {}, TypeError, "tokens must be integers"),
        ([1, 2], [0, 1], {}, ValueError, "offsets must begin at 0 and end at the number of values, 2"),
        ([1, 2], [0, 2], {"block_size": 0}, ValueError, "block_size must be 1 or more"),
        ([1, 2], [0, 2], {"parent_hashes": [0]}, ValueError, "parent_hashes must not be 0"),
        ([1, 2], [0, 2], {"parent_hashes": [1, 2]}, ValueError, "parent_hashes and rows must have the same length"),
        (
            [1, 2],
            [0, 2],
            {"block_keys": [1, 2]},
            ValueError,
            "block_keys and full_blocks must have the same length: got 2 and 1",
        ),
    ],
)
def test_bad_input(tokens, offsets, options, error, message):
    with pytest.raises(error, match=message):
        hash_blocks(tokens, offsets, **{"block_size": 2, **options})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": [1]}, "rows must be less than 1"),
        ({"starts": [7]}, r"starts must leave room .*starts\[0\] = 7"),
        ({"starts": [2**63 - 1]}, r"starts must leave room .*starts\[0\] = 9223372036854775807"),
        ({"starts": [3], "lengths": [2**63 - 1]}, r"starts must leave room .*starts\[0\] = 3"),
        ({"starts": [2**63 - 1], "lengths": [2**63 - 1]}, "starts must leave room"),
        ({"lengths": [-1]}, "lengths must be 0 or more"),
        ({"image_ids": ["a", "b"]}, "must have the same length"),
    ],
)
def test_bad_images(changes, message):
    good = {"image_ids": ["a"], "rows": [0], "starts": [0], "lengths": [2], "offsets": [0, 8], "block_size": 2}
    with pytest.raises(ValueError, match=message):
        image_block_keys(**{**good, **changes})


def test_names_of_other_types_are_refused():
    with pytest.raises(TypeError, match=r"lora must be str or int: got 1\.5"):
        namespace_hash(lora=1.5)
    with pytest.raises(TypeError, match="salt must be str or bytes: got True"):
        namespace_hash(salt=True)


def test_the_numbers_stay_what_they_are():
    """Hashes are stored in files and sent to others, so a change of the function is a change of the format."""
    hashes, _ = hash_blocks([1, 2, 3, 4], [0, 4], block_size=2)
    assert [hex(h) for h in hashes.tolist()] == PINNED
    assert hex(namespace_hash(lora="sql", salt="tenant")) == PINNED_NAMESPACE


PINNED = ["0xc066c419f514eb79", "0x910e6405c41f0c72"]
PINNED_NAMESPACE = "0x61f05edb1a632d28"


@given(ROWS, st.integers(1, 4), st.booleans(), st.data())
def test_batches_are_the_twin_row_by_row(rows, block_size, with_keys, data):
    tokens, offsets = _flat(rows)
    parents = data.draw(st.lists(st.integers(1, 2**64 - 1), min_size=len(rows), max_size=len(rows)))
    full = [len(row) // block_size for row in rows]
    keys = [data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)) for n in full]
    hashes, hash_offsets = hash_blocks(
        np.array(tokens, dtype=np.int64),
        offsets,
        block_size=block_size,
        parent_hashes=np.array(parents, dtype=np.uint64),
        block_keys=np.array([k for row in keys for k in row], dtype=np.uint64) if with_keys else None,
    )
    assert hash_offsets.tolist() == np.cumsum([0, *full]).tolist()
    for i, row in enumerate(rows):
        expected = reference.hash_sequence(
            row, block_size=block_size, parent=parents[i], keys=keys[i] if with_keys else None
        )
        assert hashes[hash_offsets[i] : hash_offsets[i + 1]].tolist() == expected


@given(ROWS, st.integers(1, 3))
def test_equal_hashes_are_equal_prefixes(rows, block_size):
    """Over an alphabet so small that prefixes meet often."""
    tokens, offsets = _flat(rows)
    hashes, hash_offsets = hash_blocks(np.array(tokens, dtype=np.int64), offsets, block_size=block_size)
    prefix_of = {}
    for i, row in enumerate(rows):
        for j, value in enumerate(hashes[hash_offsets[i] : hash_offsets[i + 1]].tolist()):
            prefix = tuple(row[: (j + 1) * block_size])
            assert prefix_of.setdefault(value, prefix) == prefix
    assert len(set(prefix_of.values())) == len(prefix_of)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30), st.data())
def test_a_chain_can_be_cut_anywhere(contents, data):
    contents = np.array(contents, dtype=np.uint64)
    whole = chain_hashes(contents, [0, len(contents)])
    cut = data.draw(st.integers(1, len(contents)))
    rest = chain_hashes(contents[cut:], [0, len(contents) - cut], parent_hashes=whole[cut - 1 : cut])
    assert np.array_equal(whole[cut:], rest)


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_mix_is_a_bijection(values):
    values = np.array(values, dtype=np.uint64)
    assert np.array_equal(hashing._unmix(hashing._mix(values)), values)


def test_no_hash_is_never_given_out():
    """A content chosen so that the state, and with it the hash, would be 0."""
    parent = int(namespace_hash())
    content = -reference.unmix(parent) * reference.RATIO % 2**64
    (value,) = chain_hashes(np.array([content], dtype=np.uint64), [0, 1]).tolist()
    assert value == reference.chain([content], parent)[0] != 0


def test_a_long_sequence_and_repeated_blocks_do_not_collide():
    tokens = np.zeros(2**17, dtype=np.int64)  # 32,768 times the same block
    hashes, _ = hash_blocks(tokens, [0, len(tokens)], block_size=4)
    assert len(np.unique(hashes)) == len(hashes) == 2**15


def test_every_pair_of_small_blocks_differs():
    blocks = np.stack(np.meshgrid(np.arange(300), np.arange(300), indexing="ij"), axis=-1).reshape(-1, 2)
    assert len(np.unique(content_hashes(blocks))) == len(blocks)


NAMES = st.one_of(st.none(), st.text(max_size=3), st.integers(0, 12))


@given(st.lists(st.tuples(NAMES, st.one_of(st.none(), st.text(max_size=3), st.binary(max_size=3))), max_size=12))
def test_different_namespaces_have_different_hashes(names):
    typed = {(type(lora), lora, type(salt), salt) for lora, salt in names}
    assert len({int(namespace_hash(lora=lora, salt=salt)) for lora, salt in names}) == len(typed)


def test_an_adapter_named_by_number_is_not_the_one_named_by_its_digits():
    assert namespace_hash(lora=7) != namespace_hash(lora="7")
    assert namespace_hash(lora="") != namespace_hash()
    assert namespace_hash(salt="x") != namespace_hash(salt=b"x")


IMAGES = st.lists(st.tuples(st.sampled_from(["a", "b", 3]), st.integers(0, 8), st.integers(0, 6)), max_size=4)


@given(st.lists(st.tuples(st.integers(0, 12), IMAGES), min_size=1, max_size=4), st.integers(1, 4))
def test_image_keys_are_the_twin(rows, block_size):
    rows = [(n, [(i, start, length) for i, start, length in images if start + length <= n]) for n, images in rows]
    flat = [(image, r, start, length) for r, (_, images) in enumerate(rows) for image, start, length in images]
    ids, image_rows, starts, lengths = zip(*flat, strict=True) if flat else ([], [], [], [])
    keys = image_block_keys(
        ids, rows=image_rows, starts=starts, lengths=lengths,
        offsets=np.cumsum([0, *(n for n, _ in rows)]), block_size=block_size,
    )  # fmt: skip

    def digest(image):
        return hashing._digest(hashing._encode(b"image", image, (str, int)))

    expected = [reference.image_keys(images, num_tokens=n, block_size=block_size, digest=digest) for n, images in rows]
    assert keys.tolist() == [key for row in expected for key in row]


def test_an_image_parts_sequences_from_its_block_on():
    tokens = [5, 5, 0, 0, 0, 0, 5, 5] * 2  # placeholders 0 in blocks 1 and 2
    keys = image_block_keys(
        ["cat", "dog"], rows=[0, 1], starts=[2, 2], lengths=[4, 4], offsets=[0, 8, 16], block_size=2
    )
    hashes, _ = hash_blocks(tokens, [0, 8, 16], block_size=2, block_keys=keys)
    assert (hashes[:4] == hashes[4:]).tolist() == [True, False, False, False]
