"""Stamps, and the stored form of children's names."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import BufferLengthsUnequal, CorruptError, LessThanTwoBuffers
from s3notify_platform.protocols.ack_chain import in_order, pack_names, unpack_names, xor
from s3notify_platform.protocols.ack_chain.shared import child_stamp

A, B = (bytes([byte]) * 16 for byte in (1, 2))


def test_xor_is_its_own_inverse():
    """Otherwise a chain of two or more stamps would not come back to zero."""
    assert xor(A, B) == bytes([3]) * 16
    assert xor(A, B, A) == B
    assert xor(b"\x00\xff", b"\x00\xff") == b"\x00\x00"


def test_xor_refuses_a_single_stamp_and_unequal_lengths():
    """Otherwise a user of xor-ack would get errors with other names here."""
    with pytest.raises(LessThanTwoBuffers):
        xor(A)
    with pytest.raises(LessThanTwoBuffers):
        xor()
    with pytest.raises(BufferLengthsUnequal):
        xor(A, B[:8])


def test_child_stamps_depend_only_on_seed_and_name():
    """Otherwise two processes would compute different stamps for the same child."""
    seed = bytes(range(32))
    assert child_stamp(seed, "7").hex() == child_stamp(seed, "7").hex()
    assert len({child_stamp(seed, str(slot)) for slot in range(1000)}) == 1000
    assert child_stamp(seed, "7") != child_stamp(bytes(32), "7")


NUMBERS = st.integers(0, 1200).map(str)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
PATHS = st.lists(st.one_of(st.integers(0, 12).map(str), st.sampled_from(["", "a", "07"])), max_size=4)


@given(st.sets(st.one_of(NUMBERS, TEXTS, PATHS.map("/".join))))
def test_names_are_packed_without_loss(names):
    """Otherwise a child's name could be changed or lost, for example a name like `07`, or a path like `a/7`."""
    packed = json.loads(json.dumps(pack_names(names)))
    assert unpack_names(packed) == names
    assert sorted(in_order(names)) == sorted(names)


def test_names_are_packed_compactly():
    """Otherwise a batch of 1000 slots would store 1000 names instead of one range."""
    assert pack_names(str(slot) for slot in range(1000)) == [[0, 999]]
    assert pack_names(["10", "9", "2", "007", "b", "-1"]) == [2, [9, 10], "-1", "007", "b"]
    assert pack_names(["7", *(f"7/{n}" for n in range(42))]) == [7, ["7", [0, 41]]]
    names = ["7/10", "7/9", "7/0", "7/0/0", "7/0/1", "7/1/5", "7/007", "a/1", "a/2", "/3", "b/"]
    packed = ["7/007", "b/", "/3", ["7", 0, [9, 10]], ["7/0", [0, 1]], "7/1/5", ["a", [1, 2]]]
    assert pack_names(names) == packed


@pytest.mark.parametrize("packed", [[1, 2, 3], ["7", "8"], ["7", [1]], ["7", ["8", 1]], None, []])
def test_corrupt_packed_names_are_refused(packed):
    """Otherwise a corrupt record would be read as other children."""
    with pytest.raises(CorruptError):
        unpack_names([packed])
