"""Requests and permissions of `explain`, for any bucket and queue."""

import pytest

from s3notify_platform.explain import explain
from s3notify_platform.explain.look import CHAINS_MAX, CHANGES_MAX, SEGMENTS_MAX
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.notification_queue import EntryCommitted
from s3notify_platform.protocols.notification_queue.segments import SLOTS_NAMED
from s3notify_platform.protocols.source_enumerator import ObjectState
from tests.support.explained import KEY, SLOT, ReadOnly


def test_a_key_outside_the_source_is_refused_without_a_request(place):
    for key in ("elsewhere/a", "", "raw/\udcff"):
        with pytest.raises(UsageError):
            place.ask(key)
    assert not place.reads.counts


def test_an_object_that_changes_meanwhile_is_read_again(place):
    """Otherwise old facts would be compared with a new object."""
    place.put()
    place.commit(place.state())
    moved = []

    class Moving(ReadOnly):
        def head(self, key):
            if key == KEY and not moved:
                found = super().head(key)
                moved.append(1)
                place.put(b"two")
                place.commit(place.state())
                return found
            return super().head(key)

    store = Moving(place.store)
    answer = explain(place.source, KEY, objects=store, platform=store, clock=place.clock)
    assert answer.verdict.kind == "committed"
    assert answer.committed.version == 2


def test_explain_needs_only_read_permission(place):
    """A removal that cannot delete an object leaves a tombstone. `explain` must treat the tombstone as absent, and must
    not delete it.
    """
    place.put()
    path = next(meta.key for meta in place.store.list("_s3notify/queue/queue").objects)
    place.store.put(path, b"1 - token\n")
    assert place.ask().verdict.kind == "unseen"
    assert place.store.get(path) is not None


def test_segments_of_other_slots_are_not_read(place):
    """Segments that name only other slots must cost no requests, and must not hide entries of the slot."""
    place.put()
    place.ask()
    before = dict(place.reads.counts)
    others = [key for n in range(400) if slot_of(key := f"raw/{n}", 16) != SLOT]
    for n in range(0, len(others), SLOTS_NAMED):
        events = map(place.event, others[n:][:SLOTS_NAMED])
        assert all(isinstance(made, EntryCommitted) for made in place.queue.push_many("orders", events))
    assert place.ask().verdict.kind == "waiting"
    assert dict(place.reads.counts) == before


def test_requests_are_bounded(place):
    """If the number of requests grew with the bucket, the command would be unusable for a large bucket."""
    place.put()
    place.commit(place.state(), follow=False)
    for number in range(100):
        place.commit(ObjectState(key=f"raw/o{number % 9}", etag=f"{number}", size=1), follow=False)
    in_slot = [key for n in range(16 * (SEGMENTS_MAX + 150)) if slot_of(key := f"raw/{n}", 16) == SLOT]
    assert len(in_slot) > SEGMENTS_MAX
    for key in in_slot:
        assert isinstance(place.queue.push("orders", place.event(key)), EntryCommitted)
    for number in range(CHAINS_MAX + 50):
        place.open_batch(number, slots=[(SLOT + 1) % 16])
    for number in range(3000):
        place.store.put(f"raw/many/{number}", b"")
    answer = place.ask()
    assert answer.verdict.kind == "committed"
    assert answer.committed.version == 1
    assert answer.batches_cut
    assert answer.topics[0].cut
    counts = place.reads.counts
    assert counts["HEAD"] == 3
    assert counts["LIST"] <= CHAINS_MAX + 7
    read_ahead = 16
    assert counts["GET"] <= SEGMENTS_MAX + CHAINS_MAX + read_ahead + 40
    unknown = next(key for n in range(999) if slot_of(key := f"raw/nobody{n}", 16) == SLOT)
    place.ask(KEY)
    known = place.reads.counts["GET"]
    place.ask(unknown)
    assert place.reads.counts["GET"] <= known + read_ahead + 4 * CHANGES_MAX


def test_a_warm_look_reads_only_new_parts_of_the_table(place):
    """Changes of other slots must cost no requests."""
    place.put()
    place.commit(place.state(rejects=2))
    place.ask("raw/nobody")
    place.reads.counts.clear()
    table = place.source.table(store=place.reads)
    assert place.ask().verdict.kind == "rejected"
    of_table = place.reads.counts["GET"]
    for number in range(10):
        place.commit_to(15 - SLOT, ObjectState(key="raw/elsewhere", etag=f"{number}", size=1))
    table.newest()
    assert place.ask().verdict.kind == "rejected"
    assert place.reads.counts["GET"] == of_table
