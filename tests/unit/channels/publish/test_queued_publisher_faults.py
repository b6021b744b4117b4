"""The publisher that queues, in trouble: lost answers, late writes, stores that fail, writers that die."""

import pytest

from s3notify_platform.channels.publish.pending_change import Refused
from s3notify_platform.kernel.errors import QuotaExceededError, UnavailableError
from s3notify_platform.kernel.limits import TOPICS_KNOWN_SECONDS
from s3notify_platform.kernel.ports import ABSENT, IfMatch, Unknown, Written
from s3notify_platform.protocols.keyspace import Delete, NotSignalledError, Put
from s3notify_platform.protocols.notification_queue import Event
from s3notify_platform.protocols.notification_queue.topic_settings import STALE_SECONDS
from s3notify_platform.protocols.updates import WRITER
from tests.support.faults import CrashedError, Fault, at
from tests.support.queued_publisher import KS, meanwhile


def slow(world, key):
    """A schedule in which the writer sleeps after its reservations, before the object of this key."""
    return meanwhile(key, lambda: world.clock.sleep(STALE_SECONDS))


def test_what_is_late_is_not_written(world):
    """In a batch that takes long, what has not begun in time is refused, and may be published again."""
    publisher = world.publisher(objects=slow(world, "k0"))
    outcomes = publisher.publish([Put(key=f"k{n}", body=b"1") for n in range(3)])
    assert isinstance(outcomes[0], Written)
    assert outcomes[1:] == (Refused(retry_after_seconds=0.0),) * 2
    assert [key for _, key, _ in world.announced()] == ["k0"]
    assert world.queue.stats("t").counted == 1
    assert world.objects.head("k1") is None


def test_late_without_a_topic_is_not_written_either(world):
    """One that was created meanwhile would never hear of it."""
    world.queue.topics.delete("t")
    outcomes = world.publisher(objects=slow(world, "k0")).publish(
        [Put(key=f"k{n}", body=b"1") for n in range(2)]
    )
    assert outcomes[1] == Refused(retry_after_seconds=0.0)


@pytest.mark.parametrize(
    "change", [Put(key="a", body=b"new"), Put(key="a", body=b"new", precondition=ABSENT)]
)
def test_a_lost_answer_is_found_by_head(world, change):
    """The object carries our id: written, announced, and signalled as such."""
    publisher = world.publisher(objects=at("put", Fault.LOST, key="a"))
    (outcome,) = publisher.publish([change])
    assert outcome == Written(etag=world.objects.head("a").etag)
    assert world.announced() == [("put", "a", outcome.etag)]
    assert world.mark("a") == "1"


def test_a_lost_deletion(world):
    """Nothing is there: it is announced. Under a condition nobody can say who did it."""
    for precondition in (None, IfMatch(etag=world.objects.put("a", b"1").etag)):
        world.objects.put("a", b"1")
        publisher = world.publisher(objects=at("delete", Fault.LOST, key="a"))
        outcome = publisher.delete("a", precondition=precondition)
        assert isinstance(outcome, Unknown if precondition else Written)
        assert world.announced()[-1] == ("delete", "a", None)
        assert world.reserved() == 0


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LATE])
def test_in_doubt_it_is_left_to_be_resolved(world, fault):
    """Never guessed: the reservation stays until HEAD decides, and the signal is not marked meanwhile."""
    publisher = world.publisher(objects=at("put", fault, key="a"))
    outcome = publisher.put_if_absent("a", b"new")
    assert isinstance(outcome, Unknown)
    assert (world.announced(), world.reserved(), world.mark("a")) == ([], 1, None)
    world.faulty_objects.settle()
    reconciled = world.resolve()
    found = world.objects.head("a")
    assert (reconciled.committed, reconciled.aborted) == ((1, 0) if found else (0, 1))
    assert world.announced() == ([("put", "a", found.etag)] if found else [])


@pytest.mark.parametrize("change", [Put(key="a", body=b"new"), Delete(key="a")])
def test_another_objects_presence_proves_nothing(world, change):
    """Ours may still be under way: it stays in doubt, for the resolver to look once more."""
    world.objects.put("a", b"old", metadata={WRITER: "another"})
    method = "put" if isinstance(change, Put) else "delete"
    (outcome,) = world.publisher(objects=at(method, Fault.REFUSED, key="a")).publish([change])
    assert isinstance(outcome, Unknown)
    assert (world.announced(), world.reserved()) == ([], 1)


def test_in_doubt_for_long_it_is_reserved_again(world):
    """The first reservation may be resolved before the write lands."""

    def resolve():
        assert world.resolve().aborted == 1

    publisher = world.publisher(objects=meanwhile("a", resolve, Fault.LATE))
    assert isinstance(publisher.put_if_absent("a", b"1"), Unknown)
    assert world.reserved() == 1
    world.faulty_objects.settle()
    assert world.resolve().committed == 1


def test_resolved_while_it_slept_it_is_pushed_again(world):
    """A resolver took it for not written; the writer finds out, and announces it again."""
    written = world.publisher(objects=meanwhile("a", world.resolve)).put("a", b"1")
    assert world.announced() == [("put", "a", written.etag)]
    assert world.mark("a") == "1"


def test_no_room_for_what_is_pushed_again(world):
    """The change is there: its signal is not marked, the caller gets its key, and can announce it later."""
    world.topic("small", capacity=1, shards=1)

    def resolve_and_fill():
        world.resolve("small")
        assert world.queue.push("small", Event(key="other"))

    publisher = world.publisher(objects=meanwhile("a", resolve_and_fill))
    with pytest.raises(NotSignalledError, match="announce") as caught:
        publisher.put("a", b"1")
    assert caught.value.keys == ("a",)
    assert caught.value.outcomes == (Written(etag=world.objects.head("a").etag),)
    assert world.mark("a") is None
    with pytest.raises(QuotaExceededError):
        publisher.announce(["a"])
    world.queue.remove(world.queue.entries("small", range(1000)))
    publisher.announce(["a"])
    assert [key for _, key, _ in world.announced("small")] == ["a"]


@pytest.mark.parametrize("method", ["add", "create", "scan"])
def test_a_queue_that_is_gone_writes_nothing(world, method):
    """Unavailable: neither the object, nor a signal; room comes back."""
    publisher = world.publisher(records=lambda call: Fault.THROTTLED if call.method == method else Fault.NONE)
    with pytest.raises(UnavailableError):
        publisher.put("a", b"1")
    assert world.objects.list("").objects == ()


def test_one_topic_that_fails_aborts_the_others(world):
    """All or none, also where one of them is unavailable."""
    world.topic("other")
    publisher = world.publisher(
        records=lambda call: Fault.THROTTLED if call.key.startswith("depth.other") else Fault.NONE
    )
    with pytest.raises(UnavailableError):
        publisher.put("a", b"1")
    assert world.queue.stats("t").counted == 0


def test_a_commit_without_an_answer(world):
    """The object is there, its entry reserved: not marked, named to the caller, resolved by HEAD in the end."""
    publisher = world.publisher(
        records=lambda call: Fault.REFUSED if call.method == "replace" else Fault.NONE
    )
    with pytest.raises(NotSignalledError) as caught:
        publisher.put("a", b"1")
    assert caught.value.keys == ("a",)
    assert world.mark("a") is None
    assert world.resolve().committed == 1


def test_signals_that_fail_name_their_keys(world):
    """The entry is in the queue by then."""
    publisher = world.publisher(objects=lambda call: Fault.THROTTLED if call.key == f"{KS}_" else Fault.NONE)
    with pytest.raises(NotSignalledError) as caught:
        publisher.publish([Put(key="a", body=b"1"), Put(key="b", body=b"1")])
    assert caught.value.keys == ("a", "b")
    assert [key for _, key, _ in world.announced()] == ["a", "b"]


STEPS = [
    ("records", "add"),
    ("records", "create"),
    ("records", "scan"),
    ("objects", "put"),
    ("records", "replace"),
]


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize(("store", "method"), STEPS)
def test_a_writer_that_dies_at_any_step(world, store, method, fault):
    """What it wrote is announced by the reconciler, what it did not write is aborted."""
    publisher = world.publisher()
    publisher.put("warm", b"1")
    world.clock.now += TOPICS_KNOWN_SECONDS
    schedule = at(method, fault)
    (world.faulty_objects if store == "objects" else world.faulty_records).schedule = schedule
    with pytest.raises(CrashedError):
        publisher.publish([Put(key="a", body=b"1"), Delete(key="warm")])
    world.resolve()
    announced = {(op, key) for op, key, _ in world.announced()} - {("put", "warm")}
    there = {("put", "a")} if world.objects.head("a") else set()
    gone = set() if world.objects.head("warm") else {("delete", "warm")}
    assert announced == there | gone
    assert world.reserved() == 0
