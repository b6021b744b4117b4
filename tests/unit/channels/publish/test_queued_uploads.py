"""Large objects through the queue: reserved, renewed while they are uploaded, and aborted by the reconciler."""

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
    """A stream whose every read takes some seconds of the world's clock."""

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
    """What a reconciler does about writers that are gone."""
    service = reconciler(world)
    service.reconcile()
    world.clock.now += STALE_SECONDS + 1
    return service.reconcile()


def put(world, *schedules, size=SIZE, **options):
    return world.publisher(*schedules).put_stream("k", io.BytesIO(BODY), size=size, **options)


def test_it_is_announced_like_a_put(world):
    outcome = put(world)
    assert isinstance(outcome, Written)
    assert world.objects.get("k").body == BODY
    assert world.announced() == [("put", "k", outcome.etag)]
    assert world.mark("k") == "1"
    assert (world.reserved(), world.objects._uploads) == (0, {})
    (entry,) = world.queue.entries("t", range(1000))
    assert (entry.event.size, entry.event.upload) == (len(BODY), None)
    assert entry.event.event_name == "ObjectCreated:CompleteMultipartUpload"


def test_the_size_is_counted(world):
    """Of a stream that does not say it."""
    world.publisher().put_stream("k", io.BytesIO(bytes(1001)))
    (entry,) = world.queue.entries("t", range(1000))
    assert entry.event.size == 1001


def test_a_full_topic_refuses_before_anything_is_sent(world):
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


def test_a_stream_that_dies_announces_nothing(world):
    def dies():
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        world.publisher().put_stream("k", Slow(world, 0, dies), size=len(BODY))
    assert (world.announced(), world.reserved(), world.objects._uploads) == ([], 0, {})


def test_a_long_upload_stays_fresh(world):
    """It takes ten times as long as a reservation lasts, under a reconciler that looks at it each time."""
    service = reconciler(world)
    stream = Slow(world, STALE_SECONDS / 4, service.reconcile)
    stream_reads = len(BODY) // 1000
    assert stream_reads * stream.seconds > STALE_SECONDS
    outcome = world.publisher().put_stream("k", stream, size=len(BODY))
    assert isinstance(outcome, Written)
    assert world.announced() == [("put", "k", outcome.etag)]
    assert world.reserved() == 0


def test_a_writer_that_slept_does_not_complete(world):
    """The reconciler took it for dead and aborted the upload: refused, and nothing is there."""
    slept = []

    def sleeps():
        if not slept:
            slept.append(True)
            resolve(world)

    with pytest.raises(UnavailableError, match="aborted by another"):
        world.publisher().put_stream("k", Slow(world, 0, sleeps), size=len(BODY))
    assert (world.objects.head("k"), world.announced(), world.reserved()) == (None, [], 0)


def test_a_reservation_that_lapsed_refuses(world):
    """As above, but before the end: the reservation is gone, and that is noticed in time."""

    def schedule(call):
        if call.method == "send_part":
            schedule.parts += 1
            if schedule.parts == 3:
                world.clock.now += 1000
                world.resolve()  # which knows of no uploads
        return Fault.NONE

    schedule.parts = 0
    assert put(world, schedule) == Refused(retry_after_seconds=0.0)
    assert (world.objects.head("k"), world.announced(), world.reserved()) == (None, [], 0)
    assert world.objects._uploads == {}


def test_a_topic_that_is_deleted_meanwhile(world):
    """The upload goes on for those that are left."""
    world.topic("other")

    def schedule(call):
        if call.method == "send_part" and "other" in [topic.name for topic in world.queue.topics.all()]:
            world.queue.topics.delete("other")
            world.clock.now += 30
        return Fault.NONE

    outcome = put(world, schedule)
    assert isinstance(outcome, Written)
    assert world.announced() == [("put", "k", outcome.etag)]


def test_a_topic_that_is_new_meanwhile_is_told(world):
    def schedule(call):
        if call.method == "send_part" and len(world.queue.topics.all()) == 1:
            world.topic("late")
        return Fault.NONE

    outcome = put(world, schedule)
    assert world.announced("late") == [("put", "k", outcome.etag)]


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE])
def test_an_end_in_doubt_is_looked_up(world, fault):
    outcome = put(world, at("complete_upload", fault))
    assert isinstance(outcome, Written)
    assert world.announced() == [("put", "k", outcome.etag)]


def test_an_end_that_stays_in_doubt_is_left_to_the_reconciler(world):
    """It was not applied: the reconciler aborts the upload, so it never will be, and nothing is announced."""

    def schedule(call):
        if call.method == "complete_upload":
            return Fault.REFUSED
        return Fault.THROTTLED if call.method == "abort_upload" else Fault.NONE

    assert isinstance(put(world, schedule), Unknown)
    assert len(world.objects._uploads) == 1
    resolve(world)
    assert (world.announced(), world.reserved(), world.objects._uploads) == ([], 0, {})


def test_a_reservation_that_cannot_be_named_ends_the_upload(world):
    """Else nobody would find what is left of it."""

    def schedule(call):
        begun = any(one.method == "begin_upload" for one, _ in world.faulty_objects.calls)
        return Fault.THROTTLED if begun and call.method == "replace" else Fault.NONE

    with pytest.raises(UnavailableError, match="renewed"):
        put(world, never, schedule)
    assert (world.objects.head("k"), world.objects._uploads) == (None, {})
    resolve(world)
    assert (world.announced(), world.reserved()) == ([], 0)


@pytest.mark.parametrize("size", [len(BODY), None])
def test_a_writer_killed_at_any_call(world, size):
    """Objects or records, before or after the call: it is all announced or none, and no upload is left."""
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


def test_a_begin_in_doubt_is_found(world):
    """The answer with the upload's id is lost: the reconciler finds it by the key, as it has no part."""

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


def test_what_others_upload_is_left_alone(world):
    """A writer was killed before it named its upload; another one uploads the same key, and a stranger has a part."""
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
    # Its own clock stands still for it, so that it is renewed all the time.
    with pytest.raises(UnavailableError, match="aborted by another"):
        put(world, schedule)
    assert list(world.objects._uploads) == [("k", stranger)]


def test_an_empty_upload_that_is_named_is_left_alone(world):
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


def test_copies(world):
    """By one request, and by parts; a source that is gone, or changes, announces nothing."""
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
def test_a_copy_in_doubt_is_looked_up(world, fault):
    world.objects.put("source", BODY)
    outcome = world.publisher(at("copy", fault)).copy("k", "", "source")
    assert isinstance(outcome, Written)
    assert world.announced() == [("put", "k", outcome.etag)]


def test_announce_reaches_those_who_want_uploads(world):
    """By what an object was made nobody knows any more."""
    rule = Rule(events=("ObjectCreated:CompleteMultipartUpload",))
    world.queue.topics.create("uploads", TopicSettings(capacity=100, shards=1, rules=(rule,)))
    etag = world.objects.put("k", BODY).etag
    world.publisher().announce(["k"])
    assert world.announced("uploads") == [("put", "k", etag)]


def test_a_copy_is_not_begun_late(world):
    """Its writer slept after it had reserved: a reconciler may have found nothing."""
    world.objects.put("source", BODY)

    def sleeps(call):
        if call.method == "copy":
            raise AssertionError("it is sent")
        return Fault.NONE

    publisher = world.publisher(sleeps)
    reserve = publisher._reserve

    def late(calls):
        reserve(calls)
        world.clock.now += STALE_SECONDS

    publisher._reserve = late
    assert isinstance(publisher.copy("k", "", "source"), Refused)
    assert world.objects.get("k") is None


def test_renewed_while_it_is_being_resolved(world):
    """Its writer is alive: it stays, whatever was looked at before; and after a while it is looked at again."""
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
