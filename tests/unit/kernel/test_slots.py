"""Slots: the same numbers as in the vnotify crate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import partition_keys, slot_from_partition_key, slot_of

VECTORS = [
    ("path/to/object", 938, 5),
    ("", 863, 1),
    ("a", 143, 4),
    ("deno/region1/file.json", 363, 1),
    ("日本語/ключ/🙂.parquet", 223, 1),
    (" leading space", 155, 4),
    ("a//b", 809, 1),
    ("a+b%20c", 793, 5),
    ("x" * 1024, 113, 2),
]


@pytest.mark.parametrize(("key", "of_1000", "of_7"), VECTORS)
def test_slots_match_the_test_vectors_of_the_protocol(key, of_1000, of_7):
    """Otherwise a watcher of the vnotify crate would look at other slots than the slots that our publisher signals."""
    assert slot_of(key) == of_1000
    assert slot_of(key, 7) == of_7


@pytest.mark.parametrize("slots", [0, -1, 1001, True, 2.0, "1000", None])
def test_a_keyspace_has_1_to_1000_slots(slots):
    """Otherwise a keyspace with no slots, or with more than 1000, would be accepted."""
    with pytest.raises(UsageError, match="slots="):
        slot_of("a", slots)


@pytest.mark.parametrize("slots", [1, 1000])
def test_the_smallest_and_largest_slot_counts_are_allowed(slots):
    assert 0 <= slot_of("a", slots) < slots


@given(key=st.text(st.characters(exclude_categories=["Cs"])), slots=st.integers(1, 1000))
def test_the_slot_of_every_key_can_be_read_from_its_partition_key(key, slots):
    """Otherwise Dagster would run the partition of another slot than the changed slot."""
    slot = slot_of(key, slots)
    assert slot_from_partition_key(str(slot), slots) == slot


@pytest.mark.parametrize("name", ["", "_", "-1", "007", "1000", "1.0", " 1", "1 ", "٣", "a", "1/2"])
def test_a_text_that_is_no_slot_is_refused(name):
    """Otherwise a foreign object in the keyspace would be mistaken for the signal of a slot."""
    with pytest.raises(UsageError, match="unknown slot"):
        slot_from_partition_key(name)


def test_partition_keys_are_in_numeric_order():
    """Otherwise slot 10 would come before slot 9 in lists and in the UI."""
    assert partition_keys({10, 9, 1}) == ["1", "9", "10"]
