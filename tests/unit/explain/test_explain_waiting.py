"""`explain` for changes that are not in the table yet: the place where each waits, and the reason."""

from dataclasses import replace

import pytest

from s3notify_platform.engine.batch.batches import EVERYTHING, Failing
from s3notify_platform.explain import BatchView
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import Put, digest_of
from s3notify_platform.protocols.notification_queue import (
    Reservation,
)
from s3notify_platform.protocols.source_enumerator import ObjectState
from tests.support.explained import KEY, SLOT, Place, said


def test_a_queued_change_is_waiting(place):
    """The answer must name the object's previous version as committed."""
    place.put()
    place.commit(place.state())
    place.put(b"two")
    place.pass_time(12)
    assert said(place.ask()) == (
        "waiting",
        "waiting in the queue for 12 s; an older version is committed, in version 1",
    )


def test_an_entry_without_a_signal_is_explained(place):
    """A writer may die between its entry and its signal. Without the hint that the signal is missing, a user
    would wait for a batch that the sensor has no reason to open.
    """
    place.put()
    assert "reconciler" not in said(place.ask(seen=b"another"))[1]
    kind, text = said(place.ask(seen=digest_of(place.signal_etag())))
    assert kind == "waiting"
    assert "not signalled yet; the writer or a reconciler has to signal the slot" in text


def test_a_reserved_change_counts_as_being_written(place):
    """The verdict must be the same with and without the object."""
    assert isinstance(place.queue.reserve("orders", place.event()), Reservation)
    place.pass_time(3)
    kind, text = said(place.ask())
    assert kind == "writing"
    assert "reserved in the queue for 3 s" in text
    place.store.put(KEY, b"one")
    assert place.ask().verdict.kind == "writing"


def test_an_open_batch_is_found_by_its_chain(place):
    """Without a Dagster instance, only the chains show open batches. If a batch still counted as open after
    the slot's stamp, a user would wait for a batch that no longer reads the slot.
    """
    place.put()
    place.open_batch(1, slots=[SLOT, 15 - SLOT])
    place.open_batch(2, slots=[15 - SLOT])
    kind, text = said(place.ask())
    assert kind == "in_batch"
    assert text.startswith("in batch orders-e-1, open for 0 s; nothing of it")
    place.chains.stamp_children("orders-e-1", [str(SLOT)], operation_id="r")
    assert place.ask().verdict.kind == "waiting"


def test_an_open_batch_is_found_by_the_sensor(place):
    """The batch's run must be shown as long as the batch's chain lacks the slot's stamp."""
    place.put()
    place.open_batch()
    batch = BatchView(
        id="orders-e-1", opened_ms=place.clock.wall_ms(), listing=False, runs=("run-7 (STARTED)",)
    )
    assert said(place.ask(batches=(batch,)))[1].startswith(
        "in batch orders-e-1, open for 0 s, run run-7 (STARTED)"
    )
    place.chains.fail("orders-e-1", "gone")
    assert place.ask(batches=(batch,)).verdict.kind == "waiting"
    assert place.ask(batches=(replace(batch, id="orders-e-9"),)).verdict.kind == "waiting"


def test_an_open_batch_that_reads_entries_does_not_count_for_unannounced_changes(place):
    """A change without an entry is found only by a batch that lists the bucket. If a batch that reads entries counted,
    a user would wait for a batch that cannot find the change.
    """
    place.put(queued=False)
    place.open_batch(1)
    assert place.ask().verdict.kind == "signalled"
    batch = BatchView(id="orders-e-1", opened_ms=place.clock.wall_ms(), listing=False)
    kind, text = said(place.ask(seen=digest_of(place.signal_etag()), batches=(batch,)))
    assert kind == "signalled"
    assert (
        "batch orders-e-1 reads only what entries name; a batch that lists the slot finds the object" in text
    )
    place.open_batch(2, listing=True)
    assert place.ask().verdict.kind == "in_batch"


def test_the_first_batch_counts_for_every_slot(place):
    """The chain of the first batch has only one child, which represents all slots. If only children of single slots
    counted, the answer would say that only a sweep finds the object.
    """
    place.store.put(KEY, b"one")
    place.open_batch(0, slots=[EVERYTHING], listing=True)
    assert place.ask().verdict.kind == "in_batch"


@pytest.mark.parametrize(
    ("parked", "words"),
    [
        (False, "due again in 30 s"),
        (True, "parked, due again in 30 s, or when the slot changes"),
    ],
)
def test_a_failing_slot_is_explained(place, parked, words):
    """The user must see why a slot fails, and when it is requested again."""
    place.put()
    again_ms = place.clock.wall_ms() + 30_000
    failing = Failing(attempts=2, reason="no such column", parked=parked, not_before_ms=again_ms, group=0)
    kind, text = said(place.ask(failing=failing))
    assert kind == "failing"
    assert text == f"failing: 2 attempts, {words}: no such column; nothing of it is committed"


def test_a_change_that_waits_for_a_rescan_is_explained(place):
    """The slot of an unqueued writer waits for a listing. If the answer ignored the rescan backlog, a user could start
    a needless sweep for a change that the next listing finds.
    """
    place.put(queued=False)
    assert said(place.ask())[1].startswith(
        "signalled 0 s ago without an entry: a batch that lists the slot finds the object"
    )
    place.backlog.add([SLOT], unqueued=True)
    kind, text = said(place.ask())
    assert kind == "rescan"
    assert text.startswith(f"waits for a rescan: the next listing compares slot {SLOT}")


def test_a_source_before_its_first_listing_loses_nothing():
    """The next batch lists the whole source if the source has no topic, or a topic that was created again. If the
    verdict were `unseen` in these cases, a user would start a needless sweep.
    """
    place = Place()
    place.store.put(KEY, b"one")
    assert place.ask().verdict.kind == "rescan"
    place.with_topic()
    assert place.ask().verdict.kind == "unseen"
    assert place.ask(enumerated="an earlier topic").verdict.kind == "rescan"


def test_an_unannounced_change_is_unseen(place):
    """The change has no entry. The slot's signal may be missing, may be older than the object, or may be about another
    key. The change's announcement may also be on its way, for example through an inlet, so the answer must mention this
    case. An answer that only a sweep helps could be wrong a minute later.
    """
    sweep = "unless an announcement is still on its way, only a sweep finds the change"
    place.store.put(KEY, b"one")
    assert f"was never signalled; {sweep}; " in said(place.ask())[1]
    place.put()
    place.commit(place.state())
    place.pass_time(5)
    place.store.put(KEY, b"two")
    kind, text = said(place.ask())
    assert kind == "unseen"
    assert text.startswith(
        f"not announced: no entry, and the slot's signal is older than the object; {sweep}; "
    )
    place.pass_time(5)
    other = next(key for n in range(999) if slot_of(key := f"raw/{n}", 16) == SLOT)
    place.publish(Put(key=other, body=b""))
    assert f"for another key, because the signal's writer also queues keys; {sweep}; " in said(place.ask())[1]
    place.publish(Put(key=other, body=b""), queued=False)
    assert place.ask().verdict.kind == "signalled"
    assert place.ask(seen=digest_of(place.signal_etag())).verdict.kind == "unseen"
    place.commit(ObjectState(key=other, etag="x", size=0))
    assert f"the batch of the signal did not find the change; {sweep}; " in said(place.ask())[1]


def test_with_unqueued_writers_every_signal_leads_to_a_listing(place):
    """The signal is from a writer that queues. If the answer ignored the active unqueued writers, a user would start a
    sweep for a change that the next listing finds.
    """
    place.store.put(KEY, b"one")
    other = next(key for n in range(999) if slot_of(key := f"raw/{n}", 16) == SLOT)
    place.publish(Put(key=other, body=b""))
    assert place.ask().verdict.kind == "unseen"
    place.backlog.add((), unqueued=True)
    assert place.ask().verdict.kind == "signalled"


def test_a_sensor_that_does_not_tick_is_named_if_a_change_waits_for_a_batch(place):
    """Otherwise a user would wait for a batch that a paused or silent sensor does not open. An unknown sensor must be
    shown as unknown, so that nobody takes it for a running sensor.
    """
    place.put()
    now_ms = place.clock.wall_ms()
    assert (
        said(place.ask(ticked_ms=now_ms - 3000))[1]
        == "waiting in the queue for 0 s; nothing of it is committed"
    )
    assert "sensor: on, last tick 3 s ago" in place.ask(ticked_ms=now_ms - 3000).lines
    _, text = said(place.ask(on=False, ticked_ms=now_ms))
    assert text.endswith("; nothing of it is committed; the source is paused, until `s3notify resume orders`")
    _, text = said(place.ask(ticked_ms=now_ms - 7_200_000))
    assert text.endswith("; the source's sensor has not ticked for 2 h: does Dagster's daemon run?")
    document = place.ask(on=False, ticked_ms=now_ms).document()
    assert (document["sensor_on"], document["ticked_ms"]) == (False, now_ms)
    assert any(line.startswith("sensor: unknown; set the DAGSTER_HOME") for line in place.ask().lines)
    assert place.ask().document()["sensor_on"] is None


def test_a_paused_source_is_not_named_if_the_object_is_committed(place):
    place.put()
    place.commit(place.state())
    kind, text = said(place.ask(on=False))
    assert kind == "committed"
    assert "paused" not in text
