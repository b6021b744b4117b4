"""The rows of objects that leave the bucket: withdrawn, kept, or kept only if events say that the objects expired."""

from collections import Counter
from typing import Any

import pytest

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.quarantine_retry import RetryQuarantined
from s3notify_platform.protocols.notification_queue import Event, TopicSettings
from s3notify_platform.table.reread import backfill
from tests.support.ingested import Place
from tests.support.servers import S3Server
from tests.support.sources import with_settings

pytestmark = pytest.mark.server

AWS = "LifecycleExpiration:Delete"


class Landing(Place):
    """A source, and a topic that has the source's changes, as an inlet would add them."""

    def __init__(self, server: S3Server, **settings: Any) -> None:
        super().__init__(server, **settings)
        self.queue = self.source.location.queue()
        self.queue.topics.create("orders", TopicSettings(prefix="raw/", slots=self.source.location.slots))
        self._ticks = 0

    def write(self, key: str, *values: int) -> None:
        self.put(key, *values)
        self.announce(key, "put", "")

    def leave(self, key: str, name: str) -> None:
        self.store.delete(f"raw/{key}")
        self.announce(key, "delete", name)

    def announce(self, key: str, op: str, name: str, version_id: str = "") -> None:
        self._ticks += 1
        event = Event(op=op, key=f"raw/{key}", name=name, version_id=version_id, time_ms=self._ticks)  # type: ignore[arg-type]
        self.queue.push("orders", event)

    def follow(self, *, listing: bool = False) -> Counter[int]:
        """Runs a batch that follows the entries, or lists the bucket if `listing`; returns the values in the table."""
        self._ticks += 1
        slots = self.source.location.all_slots()
        result = self.ingest().run(slots, batch=f"b{self._ticks}", listing=listing)
        assert all(each.ok for each in result.slots.values())
        done = [entry for of_slot in result.entries.values() for entry in of_slot]
        self.queue.remove(done)
        return self.values()


@pytest.mark.parametrize(
    "name", [AWS, "LifecycleExpiration:DeleteMarkerCreated", "ObjectLifecycle:Expiration:Current"]
)
def test_rows_of_expired_objects_stay(ministack: S3Server, name: str) -> None:
    """Otherwise the bucket's lifecycle would remove rows that `keep_expired` must keep, at once or at the next listing.
    If a person deletes a new object with the same key, the object's rows must leave. Otherwise deleted data would stay
    readable.
    """
    place = Landing(ministack, on_delete="keep_expired")
    place.write("a", 1, 2)
    place.write("b", 3)
    place.write("c", 4)
    assert place.follow() == Counter([1, 2, 3, 4])
    place.leave("a", name)
    place.leave("b", "ObjectRemoved:Delete")
    assert place.follow() == Counter([1, 2, 4])
    assert place.follow(listing=True) == Counter([1, 2, 4])
    before = place.generations()
    assert place.follow(listing=True) == Counter([1, 2, 4])
    assert place.generations() == before
    place.write("a", 5)
    assert place.follow() == Counter([4, 5])
    place.leave("a", "ObjectRemoved:Delete")
    assert place.follow() == Counter([4])


def test_the_newest_event_counts(ministack: S3Server) -> None:
    """If an older expiry counted, the rows of a deleted object would stay in the table. If an expiry hid a later write,
    the new object would not be read.
    """
    place = Landing(ministack, on_delete="keep_expired")
    place.write("a", 1)
    place.write("b", 2)
    place.follow()
    for key in "ab":
        place.leave(key, AWS)
        place.write(key, 3)
    place.leave("a", "ObjectRemoved:Delete")
    assert place.follow() == Counter([3])


def test_rows_of_a_missing_object_without_an_event_are_withdrawn(ministack: S3Server) -> None:
    """A listing does not show why an object is missing. If rows stayed in case of doubt, rows of deleted objects would
    never leave the table.
    """
    place = Landing(ministack, on_delete="keep_expired")
    place.write("a", 1)
    place.write("b", 2)
    place.follow()
    place.store.delete("raw/a")
    assert place.follow(listing=True) == Counter([2])


@pytest.mark.parametrize(("on_delete", "left"), [("withdraw", [2]), ("keep", [1, 2])])
def test_the_other_settings_treat_expiry_and_deletion_alike(
    ministack: S3Server, on_delete: str, left: list[int]
) -> None:
    """A batch with entries and a batch with a listing must give the same rows."""
    place = Landing(ministack, on_delete=on_delete)
    place.write("a", 1)
    place.write("b", 2)
    place.follow()
    place.leave("a", AWS)
    assert place.follow() == Counter(left)
    assert place.follow(listing=True) == Counter(left)


def test_a_listing_uses_the_entries(ministack: S3Server) -> None:
    """Otherwise a batch that lists the bucket would withdraw the rows of expired objects, because a listing does not
    show why an object is missing.
    """
    place = Landing(ministack, on_delete="keep_expired")
    place.write("a", 1)
    place.write("b", 2)
    place.follow()
    place.leave("a", AWS)
    place.store.delete("raw/b")
    assert place.follow(listing=True) == Counter([1])


@pytest.mark.parametrize("listing", [False, True])
def test_an_expired_object_that_comes_back_is_a_new_object(ministack: S3Server, listing: bool) -> None:
    """The object comes back with the same bytes, so its ETag is the same. If the object still counted as expired, its
    rows would stay after its deletion. If its rows were added to the old rows, readers would see each row twice.
    """
    place = Landing(ministack, on_delete="keep_expired")
    place.write("a", 1)
    place.follow()
    place.leave("a", AWS)
    place.follow()
    place.write("a", 1)
    assert place.follow(listing=listing) == Counter([1])
    place.leave("a", "ObjectRemoved:Delete")
    assert place.follow(listing=listing) == Counter()


def test_the_expiry_of_an_old_version_does_not_count_for_the_object(ministack: S3Server) -> None:
    """A person deletes a key of a versioned bucket, and the lifecycle later deletes older versions by their ids. If the
    expiry of an old version counted, the rows of the deleted object would stay in the table.
    """
    place = Landing(ministack, on_delete="keep_expired")
    place.write("a", 1)
    place.write("b", 2)
    place.follow()
    place.leave("a", "ObjectRemoved:DeleteMarkerCreated")
    place.announce("a", "delete", AWS, version_id="v1")
    assert place.follow() == Counter([2])


@pytest.mark.parametrize("listing", [False, True])
def test_the_deletion_of_an_old_version_does_not_count_for_the_object(
    ministack: S3Server, listing: bool
) -> None:
    """An object expires, and the version behind its delete marker is deleted in the same batch. If the deletion of the
    version counted, the batch would remove rows that `keep_expired` must keep.
    """
    place = Landing(ministack, on_delete="keep_expired")
    place.write("a", 1)
    place.write("b", 2)
    place.follow()
    place.leave("a", "LifecycleExpiration:DeleteMarkerCreated")
    place.announce("a", "delete", AWS, version_id="v1")
    place.announce("a", "delete", "ObjectRemoved:Delete", version_id="v2")
    assert place.follow(listing=listing) == Counter([1, 2])


@pytest.mark.parametrize("on_delete", ["keep", "keep_expired"])
@pytest.mark.parametrize("listing", [False, True])
def test_rows_of_excluded_objects_leave(ministack: S3Server, on_delete: str, listing: bool) -> None:
    """The rows of an excluded object must leave the table even if the object no longer exists. Otherwise, nothing could
    remove these rows from the table.
    """
    place = Landing(ministack, on_delete=on_delete)
    for number, key in enumerate(["a", "b", "bad/a", "bad/b"]):
        place.write(key, number)
    place.follow()
    for key in ("a", "bad/a"):
        place.leave(key, AWS)
    assert place.follow() == Counter(range(4))
    place.source = with_settings(place.source, exclude="bad/*")
    place.announce("bad/a", "delete", "")
    place.announce("bad/b", "put", "")
    assert place.follow(listing=listing) == Counter([0, 1])


@pytest.mark.parametrize("on_delete", ["keep", "keep_expired"])
def test_a_listing_removes_rows_of_existing_objects_that_are_excluded_by_modified_after(
    ministack: S3Server, on_delete: str
) -> None:
    """Otherwise, `on_delete` would keep rows of objects that were not deleted. The time at which a deleted object was
    written is unknown, so its rows stay.
    """
    place = Landing(ministack, on_delete=on_delete)
    place.write("old", 1)
    place.write("deleted", 2)
    place.follow()
    place.leave("deleted", AWS)
    assert place.follow() == Counter([1, 2])
    place.source = with_settings(place.source, modified_after="2100-01-01T00:00:00Z")
    assert place.follow(listing=True) == Counter([2])
    place.source = with_settings(place.source, modified_after="2020-01-01T00:00:00Z")
    assert place.follow(listing=True) == Counter([1, 2])


def test_rejects_of_expired_objects_are_not_retried(ministack: S3Server) -> None:
    """Otherwise, the retry would wait forever, since there is no object left to read."""
    place = Landing(ministack, on_delete="keep_expired")
    place.store.put("raw/a", b'{"a":1}\nbroken\n')
    place.announce("a", "put", "")
    place.follow()
    place.leave("a", AWS)
    place.follow()
    location = place.source.location
    asked = RetryQuarantined(location=location, commit=place.source.commit, everything=True).run()
    assert (asked.document["records"], asked.document["left"]) == (0, 0)
    assert not any(facts.pending for facts in place.snapshot().manifest.slots.values())


@pytest.mark.parametrize("on_delete", ["keep", "keep_expired"])
def test_a_backfill_ends(ministack: S3Server, on_delete: str) -> None:
    """The first objects of the slot cannot be read again, and a round reads only a few objects.

    The later objects must still be read.
    """
    place = Landing(ministack, on_delete=on_delete, slots=1, max_objects=2)
    for number in range(6):
        place.write(f"{number}", number)
    place.follow()
    for number in range(4):
        place.leave(f"{number}", AWS)
    place.follow()
    backfill(place.source.table(), place.source.location.all_slots(), place.source.location.slot_signals())
    assert place.follow() == Counter(range(6))
    assert place.snapshot().manifest.slot(Slot(0)).backfill == 0
