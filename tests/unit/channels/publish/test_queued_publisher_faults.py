"""The queued publisher with faults: lost answers, late writes, failing stores, killed writers."""

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
    """A schedule in which the writer sleeps after its reservations, before it writes this key."""
    return meanwhile(key, lambda: world.clock.sleep(STALE_SECONDS))


def test_late_writes_of_a_batch_are_refused(world):
    """Otherwise an object would be written after its reservation was resolved, and never be announced."""
    publisher = world.publisher(objects=slow(world, "k0"))
    outcomes = publisher.publish([Put(key=f"k{n}", body=b"1") for n in range(3)])
    assert isinstance(outcomes[0], Written)
    assert outcomes[1:] == (Refused(retry_after_seconds=0.0),) * 2
    assert [key for _, key, _ in world.announced()] == ["k0"]
    assert world.queue.stats("t").counted == 1
    assert world.objects.head("k1") is None


def test_late_writes_without_a_topic_are_refused(world):
    """Otherwise a topic that was created meanwhile would never get the change."""
    world.queue.topics.delete("t")
    outcomes = world.publisher(objects=slow(world, "k0")).publish(
        [Put(key=f"k{n}", body=b"1") for n in range(2)]
    )
    assert outcomes[1] == Refused(retry_after_seconds=0.0)


@pytest.mark.parametrize(
    "change", [Put(key="a", body=b"new"), Put(key="a", body=b"new", precondition=ABSENT)]
)
def test_a_write_whose_answer_was_lost_is_found_by_head(world, change):
    """Otherwise a write whose answer was lost would not be announced, although the object has the writer's id."""
    publisher = world.publisher(objects=at("put", Fault.LOST, key="a"))
    (outcome,) = publisher.publish([change])
    assert outcome == Written(etag=world.objects.head("a").etag)
    assert world.announced() == [("put", "a", outcome.etag)]
    assert world.mark("a") == "1"


def test_a_deletion_whose_answer_was_lost_is_found_by_head(world):
    """Otherwise a deletion whose answer was lost would not be announced. The author of a deletion with a precondition
    stays unknown.
    """
    for precondition in (None, IfMatch(etag=world.objects.put("a", b"1").etag)):
        world.objects.put("a", b"1")
        publisher = world.publisher(objects=at("delete", Fault.LOST, key="a"))
        outcome = publisher.delete("a", precondition=precondition)
        assert isinstance(outcome, Unknown if precondition else Written)
        assert world.announced()[-1] == ("delete", "a", None)
        assert world.reserved() == 0


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LATE])
def test_a_write_in_doubt_is_left_to_the_reconciler(world, fault):
    """Otherwise a change that never happens would be announced, or a change that happens later would have no entry."""
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
def test_an_object_of_another_writer_proves_nothing(world, change):
    """Otherwise our write would be considered not applied while it is still in flight."""
    world.objects.put("a", b"old", metadata={WRITER: "another"})
    method = "put" if isinstance(change, Put) else "delete"
    (outcome,) = world.publisher(objects=at(method, Fault.REFUSED, key="a")).publish([change])
    assert isinstance(outcome, Unknown)
    assert (world.announced(), world.reserved()) == ([], 1)


def test_a_write_that_is_in_doubt_for_long_gets_a_second_reservation(world):
    """The first reservation may be resolved before the write arrives. Without a second reservation, the change would
    never be announced.
    """

    def resolve():
        assert world.resolve().aborted == 1

    publisher = world.publisher(objects=meanwhile("a", resolve, Fault.LATE))
    assert isinstance(publisher.put_if_absent("a", b"1"), Unknown)
    assert world.reserved() == 1
    world.faulty_objects.settle()
    assert world.resolve().committed == 1


def test_a_change_whose_reservation_was_aborted_is_pushed_again(world):
    """The reconciler has mistaken a slow write for a write that never happened. Without a second entry, which is pushed
    after the write, the change would not be announced.
    """
    written = world.publisher(objects=meanwhile("a", world.resolve)).put("a", b"1")
    assert world.announced() == [("put", "a", written.etag)]
    assert world.mark("a") == "1"


def test_a_change_that_is_pushed_to_a_full_topic_is_an_error(world):
    """Otherwise the caller would not learn that the topic has no entry for the object, and could not announce the
    object later.
    """
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
def test_nothing_is_written_while_the_queue_is_down(world, method):
    """Otherwise objects would be written without an entry, or space in the queue would be lost."""
    publisher = world.publisher(records=lambda call: Fault.THROTTLED if call.method == method else Fault.NONE)
    with pytest.raises(UnavailableError):
        publisher.put("a", b"1")
    assert world.objects.list("").objects == ()


def test_reservations_in_other_topics_are_aborted_if_one_topic_is_unavailable(world):
    """Otherwise the topics that answered would keep reservations for a change that was not written."""
    world.topic("other")
    publisher = world.publisher(
        records=lambda call: Fault.THROTTLED if call.key.startswith("depth.other") else Fault.NONE
    )
    with pytest.raises(UnavailableError):
        publisher.put("a", b"1")
    assert world.queue.stats("t").counted == 0


def test_a_commit_without_an_answer_is_resolved_later(world):
    """The object is written, but its entry is only reserved. Without the reconciler, the change would never be
    announced.
    """
    publisher = world.publisher(
        records=lambda call: Fault.REFUSED if call.method == "replace" else Fault.NONE
    )
    with pytest.raises(NotSignalledError) as caught:
        publisher.put("a", b"1")
    assert caught.value.keys == ("a",)
    assert world.mark("a") is None
    assert world.resolve().committed == 1


def test_the_error_of_failed_signals_names_their_keys(world):
    """Otherwise the caller could not repeat the signals of its keys."""
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
def test_a_writer_killed_at_any_step_leaves_a_consistent_queue(world, store, method, fault):
    """Otherwise a written object would not be announced, or a change that did not happen would be announced."""
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
