"""Segments as values and as bytes."""

import pytest

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.ports import ABSENT, IfMatch, Record
from s3notify_platform.protocols.notification_queue import Entry, Event
from s3notify_platform.protocols.notification_queue.entries import Claim, Place
from s3notify_platform.protocols.notification_queue.segments import (
    BYTES_MAX,
    ENTRIES_MAX,
    ERROR_MAX,
    Segment,
    decode_letter,
    decode_segment,
    encode_letter,
    encode_segment,
    may_hold,
    parts_of,
    segment_key,
    with_error,
)

PLACE = Place(topic="t", epoch="e", shard=1, key=segment_key(1, "0-a", [7, 12]), quota=3)
FULL = Event(
    key="日本 語/🙂\n",
    op="delete",
    bucket="b",
    etag="e",
    size=0,
    precondition=IfMatch(etag="x"),
    writer="w",
    sequencer="0A",
    time_ms=5,
    announced_to=("e", "f"),
    name="ObjectRemoved:DeleteMarkerCreated",
    version_id="v1",
    configuration_id="日本",
)


def entry(n, event, **fields):
    return Entry(**{"place": PLACE, "n": n, "slot": 7, "state": "committed", "event": event} | fields)


def segment(*entries):
    return Segment(place=PLACE, entries=entries)


def stored(found, write="1"):
    return Record(key=found.place.key, value=encode_segment(found, write), version="v")


def test_segments_survive_their_encoding():
    """Otherwise a field of an entry would be lost, or taken from another entry of the segment."""
    claim = Claim(worker="w", generation=4)
    found = segment(
        entry(0, FULL, state="reserved"),
        entry(1, Event(key="k", precondition=ABSENT), attempts=2, waited_seconds=1.5, last_error="no"),
        entry(5, Event(key="k2", bucket="b", writer="v"), claim=claim),
        entry(255, Event(key="k3", announced_to=("g",)), state="reserved"),
    )
    again = decode_segment("t", stored(found))
    assert again == found
    assert again.version == "v"
    assert [each.event.announced_to for each in again.entries] == [("e", "f"), (), (), ("g",)]


def test_only_reserved_entries_store_the_topics_that_got_the_change():
    """Otherwise committed entries would store the list of announced topics. Only a reconciler needs this list, for
    reservations.
    """
    value = encode_segment(segment(entry(0, FULL)), "1")
    assert b"announced" not in value
    assert len(value) < len(encode_segment(segment(entry(0, FULL, state="reserved")), "1"))


def test_no_two_writes_of_a_segment_are_equal():
    """Otherwise a writer could not distinguish its own write from a write of another writer."""
    found = segment(entry(0, FULL))
    assert encode_segment(found, "1") != encode_segment(found, "2")


def test_dead_letters_survive_their_encoding():
    """Otherwise a dead letter would lose its reason, attempts or event."""
    letter = entry(3, FULL, attempts=20, last_error="HTTP 400", reason="20 attempts: HTTP 400")
    again = decode_letter("t", Record(key="x", value=encode_letter(letter), version="v"))
    assert (again.id, again.state, again.reason) == ("0-a.3", "dead", "20 attempts: HTTP 400")
    assert (again.event, again.attempts, again.place) == (letter.event, 20, PLACE)


@pytest.mark.parametrize(
    "value",
    [
        b"text",
        b"{}",
        b"[]",
        b'{"v":2}',
        b'{"v":1,"epoch":"e","quota":0,"entries":[[1]]}',
        b'{"v":1,"epoch":"e"}',
    ],
)
def test_foreign_bytes_raise_an_error(value):
    """Otherwise foreign bytes would be read as a segment or a dead letter."""
    with pytest.raises(CorruptError):
        decode_segment("t", Record(key="000-0-a.7", value=value, version="v"))
    with pytest.raises(CorruptError):
        decode_letter("t", Record(key="0-a.7", value=value, version="v"))


def test_keys_of_segments_name_up_to_twelve_slots():
    """Otherwise a puller would skip a segment that has entries of the wanted slots, or read all segments."""
    few, many = segment_key(0, "n", [7, 7, 70]), segment_key(0, "n", range(13))
    assert few == "000-n.7_70"
    assert [may_hold(slots)(few) for slots in ({7}, {70, 1}, {0, 77}, set())] == [True, True, False, False]
    assert may_hold({999})(many)
    assert may_hold({12})(segment_key(0, "n", range(1, 13)))
    assert not may_hold({0})(segment_key(0, "n", range(1, 13)))
    assert may_hold({0})("foreign")


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ([], []),
        ([10] * 256, [256]),
        ([10] * 257, [256, 1]),
        ([BYTES_MAX], [1]),
        ([BYTES_MAX, 1], [1, 1]),
        ([BYTES_MAX // 2] * 5, [2, 2, 1]),
        ([BYTES_MAX + 1, BYTES_MAX + 1], [1, 1]),
    ],
)
def test_a_reservation_is_divided_within_both_limits(sizes, lengths):
    """Otherwise a segment would exceed its limits, or an entry would be in two segments or none."""
    parts = list(parts_of(sizes))
    assert [part.stop - part.start for part in parts] == lengths
    assert [size for part in parts for size in sizes[part]] == sizes


def test_a_segment_fits_into_a_dynamodb_item():
    """Otherwise a segment with long keys and errors could not be stored."""
    event = Event(key='"' * 230, etag="e" * 64, sequencer="s" * 20)
    failed = [with_error(entry(n, event), '\x00"' * ERROR_MAX) for n in range(ENTRIES_MAX)]
    assert len(failed[0].last_error) == ERROR_MAX
    assert len(encode_segment(segment(*failed), "1")) < 350_000
