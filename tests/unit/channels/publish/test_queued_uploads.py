"""Large objects through the queue: reservations, their renewal during an upload, and aborts by the reconciler."""

import io

import pytest

from s3notify_platform.channels.keyspaces import Keyspace
from s3notify_platform.channels.publish.pending_change import Refused
from s3notify_platform.channels.reconcile.reconciler_service import ReconcilerService
from s3notify_platform.kernel.errors import (
    ConflictError,
    NotFoundError,
    UnavailableError,
    UnknownOutcomeError,
)
from s3notify_platform.kernel.ports import ABSENT, Conflict, Unknown, Written
from s3notify_platform.protocols.keyspace import Publisher, uploads
from s3notify_platform.protocols.notification_queue import (
    Event,
    Expired,
    Reconciler,
    Rule,
    TopicSettings,
    Upload,
)
from s3notify_platform.protocols.notification_queue.topic_settings import STALE_SECONDS
from tests.support.faults import CrashedError, Fault, at, never
from tests.support.queued_publisher import KS, World

BODY = bytes(range(250)) * 20
SIZE = len(BODY)


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(uploads, "PART_BYTES", 1000)
    monkeypatch.setattr(uploads, "_MIB", 1)
    world = World()
    world.topic()
    return world


class Slow(io.BytesIO):
    """A stream whose reads take some seconds of the world's clock."""

    def __init__(self, world, seconds, each=lambda: None):
        super().__init__(BODY)
        self.world, self.seconds, self.each = world, seconds, each

    def read(self, size):
        self.world.clock.now += self.seconds
        self.each()
        return super().read(size)


def reconciler(world):
    publisher = Publisher(world.objects, prefix=KS, clock=world.clock, parallelism=1)
    return ReconcilerService(world.queue, world.objects, [Keyspace(publisher=publisher)], bucket="b")


def resolve(world):
    """Runs the reconciler until the work of killed writers is resolved."""
    service = reconciler(world)
    service.reconcile()
    world.clock.now += STALE_SECONDS + 1
    return service.reconcile()


def put(world, *schedules, size=SIZE, **options):
    return world.publisher(*schedules).put_stream("k", io.BytesIO(BODY), size=size, **options)


def test_a_large_object_is_announced_like_a_put(world):
    outcome = put(world)
    assert isinstance(outcome, Written)
    assert world.objects.get("k").body == BODY
    assert world.announced() == [("put", "k", outcome.etag)]
    assert world.mark("k") == "1"
    assert (world.reserved(), world.objects._uploads) == (0, {})
    (entry,) = world.queue.entries("t", range(1000))
    assert (entry.event.size, entry.event.upload) == (len(BODY), None)
    assert entry.event.event_name == "ObjectCreated:CompleteMultipartUpload"


def test_the_size_of_a_stream_is_counted(world):
    """Otherwise the entry of a stream without a declared size would have no size."""
    world.publisher().put_stream("k", io.BytesIO(bytes(1001)))
    (entry,) = world.queue.entries("t", range(1000))
    assert entry.event.size == 1001


def test_a_full_topic_refuses_an_upload_before_anything_is_sent(world):
    for number in range(100):
        world.queue.push("t", Event(key=f"{number}"))
    outcome = put(world)
    assert isinstance(outcome, Refused)
    assert outcome.topic == "t"
    assert [call.method for call, _ in world.faulty_objects.calls] == []


def test_a_conflict_announces_nothing(world):
    world.objects.put("k", b"old")
    assert put(world, precondition=ABSENT) == Conflict()
    assert (world.announced(), world.reserved(), world.objects._uploads) == ([], 0, {})
    assert world.mark("k") is None


def test_a_failed_stream_announces_nothing(world):
    def dies():
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        world.publisher().put_stream("k", Slow(world, 0, dies), size=len(BODY))
    assert (world.announced(), world.reserved(), world.objects._uploads) == ([], 0, {})


def test_a_long_upload_renews_its_reservation(world):
    """Otherwise an upload that takes ten times a reservation's lifetime would be aborted by the reconciler."""
    service = reconciler(world)
    stream = Slow(world, STALE_SECONDS / 4, service.reconcile)
    stream_reads = len(BODY) // 1000
    assert stream_reads * stream.seconds > STALE_SECONDS
    outcome = world.publisher().put_stream("k", stream, size=len(BODY))
    assert isinstance(outcome, Written)
    assert world.announced() == [("put", "k", outcome.etag)]
    assert world.reserved() == 0


def test_a_writer_does_not_complete_an_upload_that_was_aborted(world):
    """Otherwise a writer that was paused would complete an upload whose reservation was resolved, and the object would
    not be announced.
    """
    slept = []

    def sleeps():
        if not slept:
            slept.append(True)
            resolve(world)

    with pytest.raises(UnavailableError, match="aborted by another"):
        world.publisher().put_stream("k", Slow(world, 0, sleeps), size=len(BODY))
    assert (world.objects.head("k"), world.announced(), world.reserved()) == (None, [], 0)


def test_an_upload_is_refused_if_its_reservation_was_resolved(world):
    """Otherwise the object would be written although its reservation was aborted during the upload."""

    def schedule(call):
        if call.method == "send_part":
            schedule.parts += 1
            if schedule.parts == 3:
                world.clock.now += 1000
                world.resolve()  # this reconciler does not abort uploads
        return Fault.NONE

    schedule.parts = 0
    assert put(world, schedule) == Refused(retry_after_seconds=0.0)
    assert (world.objects.head("k"), world.announced(), world.reserved()) == (None, [], 0)
    assert world.objects._uploads == {}


def test_an_upload_continues_if_a_topic_is_deleted(world):
    """Otherwise the deletion of one topic would end an upload that other topics need."""
    world.topic("other")

    def schedule(call):
        if call.method == "send_part" and "other" in [topic.name for topic in world.queue.topics.all()]:
            world.queue.topics.delete("other")
            world.clock.now += 30
        return Fault.NONE

    outcome = put(world, schedule)
    assert isinstance(outcome, Written)
    assert world.announced() == [("put", "k", outcome.etag)]


def test_a_topic_created_during_an_upload_gets_the_entry(world):
    def schedule(call):
        if call.method == "send_part" and len(world.queue.topics.all()) == 1:
            world.topic("late")
        return Fault.NONE

    outcome = put(world, schedule)
    assert world.announced("late") == [("put", "k", outcome.etag)]


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE])
def test_a_completion_in_doubt_is_found_by_head(world, fault):
    outcome = put(world, at("complete_upload", fault))
    assert isinstance(outcome, Written)
    assert world.announced() == [("put", "k", outcome.etag)]


def test_a_completion_that_stays_in_doubt_is_left_to_the_reconciler(world):
    """Otherwise a completion that was not applied would leave the parts of its upload in the bucket."""

    def schedule(call):
        if call.method == "complete_upload":
            return Fault.REFUSED
        return Fault.THROTTLED if call.method == "abort_upload" else Fault.NONE

    assert isinstance(put(world, schedule), Unknown)
    assert len(world.objects._uploads) == 1
    resolve(world)
    assert (world.announced(), world.reserved(), world.objects._uploads) == ([], 0, {})


def test_an_upload_ends_if_its_reservation_cannot_store_its_id(world):
    """Otherwise the reconciler could not find the upload if the writer is killed."""

    def schedule(call):
        begun = any(one.method == "begin_upload" for one, _ in world.faulty_objects.calls)
        return Fault.THROTTLED if begun and call.method == "replace" else Fault.NONE

    with pytest.raises(UnavailableError, match="renewed"):
        put(world, never, schedule)
    assert (world.objects.head("k"), world.objects._uploads) == (None, {})
    resolve(world)
    assert (world.announced(), world.reserved()) == ([], 0)


@pytest.mark.parametrize("size", [len(BODY), None])
def test_a_writer_killed_at_any_call_leaves_no_upload(world, size):
    """Otherwise a killed writer would leave an object without an entry, an entry without an object, or an open
    upload.
    """
    assert isinstance(put(world, size=size), Written)
    calls = [len(world.faulty_objects.calls), len(world.faulty_records.calls)]
    assert calls[0] == 1 + 5 + 1 + 2
    outcomes = set()
    for store, number in enumerate(calls):
        for nth in range(number):
            for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
                world = World()
                world.topic()
                schedule = lambda call, n=nth, f=fault: f if call.number == n else Fault.NONE
                with pytest.raises(CrashedError):
                    put(world, *([schedule] if store == 0 else [never, schedule]), size=size)
                resolve(world)
                found = world.objects.head("k")
                announced = [("put", "k", found.etag)] if found else []
                assert world.announced() == announced, (store, nth, fault)
                assert (world.reserved(), world.objects._uploads) == (0, {}), (store, nth, fault)
                outcomes.add(found is not None)
    assert outcomes == {False, True}


def test_an_upload_without_a_known_id_is_aborted(world):
    """If the answer with the upload's id is lost, the upload is found by its key. Without this search, the upload would
    stay for ever.
    """

    def schedule(call):
        if call.method == "begin_upload":
            world.objects.begin_upload("k")
            raise UnknownOutcomeError("lost")
        return Fault.NONE

    with pytest.raises(UnknownOutcomeError):
        put(world, schedule)
    assert world.reserved() == 1
    assert len(world.objects._uploads) == 1
    resolve(world)
    assert (world.announced(), world.reserved(), world.objects._uploads) == ([], 0, {})


def test_uploads_of_others_are_not_aborted(world):
    """Otherwise the reconciler of a killed writer would abort another program's upload of the same key."""
    with pytest.raises(CrashedError):
        put(world, at("begin_upload", Fault.CRASH_AFTER))
    stranger = world.objects.begin_upload("k")
    world.objects.send_part("k", stranger, 1, b"1")

    def schedule(call):
        if call.method == "send_part" and not schedule.done:
            schedule.done = True
            resolve(world)
        return Fault.NONE

    schedule.done = False
    # The writer's clock does not advance, so the reconciler considers this writer dead, too.
    with pytest.raises(UnavailableError, match="aborted by another"):
        put(world, schedule)
    assert list(world.objects._uploads) == [("k", stranger)]


def test_an_empty_upload_with_a_reservation_is_not_aborted(world):
    service = reconciler(world)
    with pytest.raises(CrashedError):
        put(world, at("begin_upload", Fault.CRASH_AFTER))
    service.reconcile()
    world.clock.now += STALE_SECONDS + 1

    def schedule(call):
        if call.method == "send_part" and not schedule.done:
            schedule.done = True
            service.reconcile()
        return Fault.NONE

    schedule.done = False
    assert isinstance(put(world, schedule), Written)
    assert schedule.done
    assert (world.reserved(), world.objects._uploads) == (0, {})


def test_copies_are_announced(world):
    """Otherwise a copy would not be announced, or a failed copy would be announced."""
    world.objects.put("source", BODY)
    publisher = world.publisher()
    ways = ["Copy"]
    for precondition in (None, ABSENT):
        world.objects.delete("k")
        outcome = publisher.copy("k", "", "source", precondition=precondition)
        assert isinstance(outcome, Written)
        assert ("put", "k", outcome.etag) in world.announced()
        entries = world.queue.entries("t", range(1000))
        assert {entry.event.size for entry in entries} == {len(BODY)}
        assert {entry.event.event_name for entry in entries} == {f"ObjectCreated:{way}" for way in ways}
        ways.append("CompleteMultipartUpload")
    with pytest.raises(NotFoundError):
        publisher.copy("other", "", "gone")

    def changes(call):
        if call.method == "copy":
            world.objects.put("source", b"2")
        return Fault.NONE

    with pytest.raises(ConflictError):
        world.publisher(changes).copy("other", "", "source")
    assert world.reserved() == 0
    assert all(key == "k" for _, key, _ in world.announced())


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.THROTTLED])
def test_a_copy_in_doubt_is_found_by_head(world, fault):
    world.objects.put("source", BODY)
    outcome = world.publisher(at("copy", fault)).copy("k", "", "source")
    assert isinstance(outcome, Written)
    assert world.announced() == [("put", "k", outcome.etag)]


def test_announced_objects_reach_topics_whose_rule_selects_uploads(world):
    """Otherwise a topic whose rule selects uploads would miss objects that `announce` reports. The original event of
    such objects is unknown.
    """
    rule = Rule(events=("ObjectCreated:CompleteMultipartUpload",))
    world.queue.topics.create("uploads", TopicSettings(capacity=100, shards=1, rules=(rule,)))
    etag = world.objects.put("k", BODY).etag
    world.publisher().announce(["k"])
    assert world.announced("uploads") == [("put", "k", etag)]


def test_a_copy_does_not_begin_after_its_reservation_is_stale(world):
    """A reconciler may have aborted the stale reservation. A copy that begins after such an abort would never be
    announced.
    """
    world.objects.put("source", BODY)

    def sleeps(call):
        if call.method == "copy":
            raise AssertionError("the copy was sent")
        return Fault.NONE

    publisher = world.publisher(sleeps)
    reserve = publisher._reserve

    def late(calls):
        reserve(calls)
        world.clock.now += STALE_SECONDS

    publisher._reserve = late
    assert isinstance(publisher.copy("k", "", "source"), Refused)
    assert world.objects.get("k") is None


def test_a_reservation_that_is_renewed_during_its_resolution_stays(world):
    """Otherwise the reservation of a living writer would be aborted. Once the writer stops, the reservation must be
    resolved.
    """
    held = world.queue.reserve("t", Event(key="k", bucket="b", upload=Upload(id="u")))
    reconciler, beats = Reconciler(world.queue), iter(range(1, 10))
    reconciler.resolve_stale("t", world.objects.head)
    world.clock.now += STALE_SECONDS + 1

    def head(key):
        assert not isinstance(world.queue.renew(held, Upload(id="u", beats=next(beats))), Expired)
        return world.objects.head(key)

    assert reconciler.resolve_stale("t", head).aborted == 0
    assert world.reserved() == 1
    reconciler.resolve_stale("t", world.objects.head)
    world.clock.now += STALE_SECONDS + 1
    assert reconciler.resolve_stale("t", world.objects.head).aborted == 1
    assert world.queue.renew(held, Upload(id="u", beats=10)) == Expired()
