"""Stale reservations are resolved by a HEAD."""

import pytest

from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.kernel.ports import IfMatch
from s3notify_platform.protocols.notification_queue import (
    EntryCommitted,
    Event,
    Expired,
    Reconciled,
    Reconciler,
    TopicSettings,
    resolve,
)
from s3notify_platform.protocols.notification_queue.topic_settings import STALE_SECONDS
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.faults import Fault
from tests.unit.protocols.notification_queue.helpers import all_entries, events, meta, over

PUT = Event(key="k", writer="w", etag="mine")
REPLACE = Event(key="k", writer="w", precondition=IfMatch(etag="old"))


@pytest.mark.parametrize(
    ("event", "found", "happened"),
    [
        (PUT, None, False),
        (PUT, meta("mine"), True),
        (PUT, meta("other", writer="w"), True),
        # The write was replaced, or was never applied. The change is announced in both cases, since a needless
        # announcement does no harm.
        (
            PUT,
            meta("other", writer="x"),
            True,
        ),
        (REPLACE, meta("old"), False),
        (REPLACE, meta("new"), True),
        (REPLACE, meta("old", writer="w"), True),  # an equal body restores the ETag
        (Event(key="k", op="delete"), None, True),
        (Event(key="k", op="delete"), meta("x"), False),
    ],
)
def test_resolve_describes_the_object_found(event, found, happened):
    """Otherwise a change that happened would be dropped, or reported with wrong facts."""
    resolved = resolve(event, found)
    assert (resolved is not None) == happened
    if resolved and found:
        assert (resolved.etag, resolved.size) == (found.etag, 5)


def test_a_change_of_a_killed_writer_is_committed(queue, clock):
    """Otherwise a change would be lost if its writer died after the PUT, or room would be lost if the writer died
    before the PUT.
    """
    objects = MemoryObjectStore()
    queue.reserve_many("t", [Event(key="written"), Event(key="not written")])
    etag = objects.put("written", b"12345").etag
    reconciler = Reconciler(queue)
    assert reconciler.resolve_stale("t", objects.head) == Reconciled(waiting=2)
    clock.now += STALE_SECONDS - 1
    assert reconciler.resolve_stale("t", objects.head) == Reconciled(waiting=2)
    clock.now += 1
    assert reconciler.resolve_stale("t", objects.head) == Reconciled(committed=1, aborted=1)
    (entry,) = all_entries(queue)
    assert (entry.event.key, entry.event.etag, entry.event.size) == ("written", etag, 5)
    assert queue.stats("t").counted == 1


def test_a_new_reconciler_waits_again(queue, clock):
    """Otherwise a restarted reconciler would resolve reservations of writers that are still alive."""
    queue.reserve("t", Event(key="a"))
    Reconciler(queue).resolve_stale("t", lambda _: None)
    clock.now += 10 * STALE_SECONDS
    assert Reconciler(queue).resolve_stale("t", lambda _: None) == Reconciled(waiting=1)


def test_room_of_a_reservation_is_given_back_once(queue, records, clock):
    """Otherwise two reconcilers of one stale reservation would both free its room."""
    first, _ = queue.reserve_many("t", events(2))
    aborted = []

    def schedule(call):
        if call.method == "replace" and call.key.endswith(first.entry.place.key) and not aborted:
            aborted.append(first)
            queue.abort_many([first])
        return Fault.NONE

    reconciler = Reconciler(over(records, clock, schedule), leak_seconds=1e9)
    reconciler.resolve_stale("t", MemoryObjectStore().head)
    clock.now += STALE_SECONDS + 1
    assert reconciler.resolve_stale("t", lambda key: None if key == "k0" else meta("e")).aborted == 0
    stats = queue.stats("t")
    assert (stats.depth, stats.counted) == (1, 1)


def test_a_failed_head_leaves_the_reservation(queue, clock):
    """Otherwise a change would be dropped because the store did not answer."""
    queue.reserve("t", Event(key="a"))
    reconciler = Reconciler(queue)

    def failing(_key):
        raise UnavailableError("503")

    reconciler.resolve_stale("t", failing)
    clock.now += STALE_SECONDS + 1
    assert reconciler.resolve_stale("t", failing).waiting == 1
    assert reconciler.resolve_stale("t", lambda _: None).aborted == 1


def test_a_writer_that_wakes_late_learns_the_outcome(queue, clock):
    """Otherwise a writer would treat an aborted reservation as committed, or the reverse."""
    objects = MemoryObjectStore()
    early, late = queue.reserve_many("t", [Event(key="early"), Event(key="late")])
    objects.put("early", b"1")
    reconciler = Reconciler(queue)
    reconciler.resolve_stale("t", objects.head)
    clock.now += STALE_SECONDS + 1
    reconciler.resolve_stale("t", objects.head)
    objects.put("late", b"1")
    assert not queue.fresh_since(early.since)
    assert queue.commit(early) == EntryCommitted()
    assert queue.commit(late) == Expired()


def test_each_topic_has_its_own_stale_time(queue, clock):
    """Otherwise a reservation would be resolved too early or late, or a writer would write too late."""
    queue.topics.create("quick", TopicSettings(capacity=3, shards=1, stale_seconds=30))
    began = clock.monotonic()
    queue.reserve("quick", Event(key="a"))
    queue.reserve("t", Event(key="b"))
    reconciler = Reconciler(queue)
    for topic in ("quick", "t"):
        assert reconciler.resolve_stale(topic, lambda _: None).waiting == 1
    clock.now += 9.9
    assert queue.fresh_since(began)
    clock.now += 0.2
    assert not queue.fresh_since(began)
    clock.now += 20
    assert reconciler.resolve_stale("quick", lambda _: None).aborted == 1
    assert reconciler.resolve_stale("t", lambda _: None).waiting == 1
    clock.now += STALE_SECONDS - 30
    assert reconciler.resolve_stale("t", lambda _: None).aborted == 1
