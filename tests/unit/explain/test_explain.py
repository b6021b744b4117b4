"""`explain` over a bucket in memory: each verdict, from what writers, inlets, sensor and runs leave behind."""

import json
from dataclasses import replace

import pytest

from s3notify_platform.engine.batch.batches import EVERYTHING, Failing
from s3notify_platform.explain import BatchView
from s3notify_platform.protocols.keyspace import Delete, Put, digest_of
from s3notify_platform.protocols.notification_queue import (
    Reservation,
)
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.slots import slot_of
from s3notify_platform.table.erase import erase
from s3notify_platform.table.opening import forget
from s3notify_platform.table.quarantine import EVERYTHING as ALL
from s3notify_platform.table.quarantine import retry
from tests.support.explained import KEY, SLOT, Place, said
from tests.support.sources import with_settings


def test_committed(place):
    """The state's ETag is the object's: in which version, when, how many rows, where they lie."""
    place.put()
    place.commit(place.state())
    place.pass_time(60)
    answer = place.ask()
    assert said(answer) == ("committed", "committed in version 1, 60 s ago: 3 records")
    assert answer.verdict.settled
    (file,) = place.store.list("_s3notify/orders/table/data/").objects
    assert f"data file: {file.key}" in answer.lines


@pytest.mark.parametrize(
    ("settings", "emptiness"),
    [
        ({}, "blank lines alone"),
        ({"format": "csv"}, "a header alone"),
        ({"format": "csv", "csv_names": "a,b"}, "lines alone that are no records"),
        ({"format": "json"}, "an empty list"),
        ({"format": "parquet"}, "a file without rows"),
    ],
)
def test_an_object_that_gave_nothing(place, settings, emptiness):
    """How many bytes were read for it, and how such an object comes about."""
    place.put(b"id,name\n")
    place.commit(place.state(rows=0))
    place.source = with_settings(place.source, **settings)
    answer = place.ask()
    text = f"committed in version 1, 0 s ago: 8 bytes read, 0 rows, 0 rejects: {emptiness}"
    assert said(answer) == ("committed", text)
    assert any("8 bytes read, 0 rows, 0 rejects, committed by version 1" in line for line in answer.lines)


HIDDEN = next(key for n in range(999) if slot_of(key := f"raw/_{n}", 16) == SLOT)


@pytest.mark.parametrize(
    ("key", "settings", "reason"),
    [
        (KEY, {"exclude": "*"}, "exclude '*' matches 'a.jsonl'"),
        (KEY, {"include": "*.csv"}, "include '*.csv' does not match 'a.jsonl'"),
        (KEY, {"modified_after": "2100-01-01T00:00:00Z"}, "it was written before modified_after"),
        (HIDDEN, {}, f"hidden_files is skip, and {HIDDEN[4:]!r} is hidden"),
    ],
    ids=["exclude", "include", "modified_after", "hidden"],
)
def test_not_chosen(place, key, settings, reason):
    """Why; and that rows which it has from earlier leave."""
    place.put()
    place.publish(Put(key=key, body=b"one"))
    place.source = with_settings(place.source, **settings)
    answer = place.ask(key)
    assert said(answer) == ("not_chosen", f"not read by source 'orders': {reason}")
    assert answer.verdict.settled
    place.commit(place.state(key=key))
    text = f"not read by source 'orders': {reason}; its 3 rows leave with the next listing"
    assert said(place.ask(key)) == ("rescan", text)
    chosen = {"exclude": "", "include": "", "modified_after": "2020-01-01T00:00:00Z", "hidden_files": "read"}
    place.source = with_settings(place.source, **chosen)
    assert said(place.ask(key))[0] == "committed"


def test_rows_of_a_deleted_object_stay_if_they_are_to(place):
    place.put()
    place.commit(place.state())
    place.store.delete(KEY)
    assert said(place.ask())[0] != "kept"
    place.source = with_settings(place.source, on_delete="keep")
    text = "the object has left, and its 3 rows stay, as on_delete says"
    assert said(place.ask()) == ("kept", text)
    assert place.ask().verdict.settled


def test_quarantined(place):
    """Why; whether a retry was asked for; and what of it is committed."""
    place.put()
    place.commit(place.state(rows=0, offset=0, reach_end=False, reason="403 AccessDenied"))
    answer = place.ask()
    assert said(answer) == ("quarantined", "quarantined because it could not be read: 403 AccessDenied")
    assert not answer.verdict.settled
    (line,) = [line for line in answer.lines if line.startswith("quarantine: ")]
    assert line.endswith("s3notify quarantine retry orders")
    place.commit(place.state(reach_end=False, reason="timed out"))
    table, signals = place.source.table(store=place.store), place.source.location.slot_signals(place.store)
    assert retry(table, [SLOT], signals, ALL).failing == 1
    text = said(place.ask())[1]
    assert text == (
        "quarantined because it could not be read: timed out; 3 records of it are committed; a retry is "
        "requested: the slot's next batch reads it"
    )


def test_read_in_part(place):
    """A big object on its way is not committed, though its ETag is in the table: how far it is."""
    place.put(b"x" * 900)
    place.commit(place.state(offset=400, rejects=1, reach_end=False))
    answer = place.ask()
    text = "read in part: 400 of 900 bytes read so far, 3 rows, 1 rejects, in version 1, 0 s ago"
    assert said(answer) == ("reading", f"{text}; the slot's next batch continues")
    assert any(
        "400 of 900 bytes read so far, 3 rows, 1 rejects, committed by" in line for line in answer.lines
    )
    place.commit(place.state(offset=4, by_record=True, reach_end=False))
    assert said(place.ask())[1].startswith("read in part: 4 records of its 900 bytes read so far, 3 rows, ")


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 1), (5, 0), (5, 1), (20, 37)])
def test_the_version_that_took_it_in(place, before, after):
    """Not the slot's newest, which may be about other objects."""
    place.put()
    other = ObjectState(key="raw/other", etag="x", size=1)
    for _ in range(before):
        place.commit(other)
    place.commit(place.state(), batch="mine")
    for _ in range(after):
        place.commit(replace(other, etag="y"))
    answer = place.ask()
    assert (answer.committed.version, answer.committed.newest) == (before + 1, before + 1 + after)
    assert (answer.committed.batch, answer.committed.doubt) == ("mine", "")


def test_a_version_that_others_were_before(place):
    """It was planned for an earlier one."""
    place.put()
    table = place.source.table(store=place.store, clock=place.clock)
    late = place.round(place.state(), batch="late")
    for _ in range(3):
        place.commit_to(15 - SLOT, ObjectState(key="raw/elsewhere", etag="x", size=1))
    place.pass_time(60)
    table.commit(late, late.base)
    answer = place.ask()
    assert (answer.committed.version, answer.committed.batch) == (4, "late")
    assert answer.committed.committed_ms == place.clock.wall_ms()


def test_the_version_that_took_it_in_went_with_vacuum(place):
    """Said as what it is: the one that it was planned for, or a later one."""
    place.put()
    place.commit(place.state())
    other = ObjectState(key="raw/other", etag="x", size=1)
    for number in range(22):
        place.commit(replace(other, etag=f"{number}"))
    for number in range(21):
        place.store.delete(place.source.location.layout.version(number))
    answer = place.ask()
    assert said(answer)[1].startswith("committed in version 1 or later, an unknown time ago: 3 records")


def test_an_object_of_which_nothing_was_read(place):
    """Its state has no rows, whose label would say it; the slot's changes do."""
    place.put()
    place.commit(place.state(rows=0, offset=0, reach_end=False, reason="403 AccessDenied"), labelled=False)
    for number in range(3):
        place.commit(ObjectState(key="raw/other", etag=f"{number}", size=1))
    assert (place.ask().committed.version, place.ask().committed.doubt) == (1, "")
    for number in range(20):
        place.commit(ObjectState(key="raw/other", etag=f"{number}", size=1))
    assert (place.ask().committed.version, place.ask().committed.doubt) == (24, "or before")


def test_rejected(place):
    """How many of how many records, and the first ones with offset and reason; not those of another object."""
    place.put()
    other = ObjectState(key="raw/b", etag="e", size=3, rejects=1)
    place.commit(other, rejects=[(2, "another object's")])
    found = [(250, "bad\namount"), (120, "not JSON")]
    found += [(1000 + n, "more") for n in range(10)]
    place.commit(place.state(rows=7, rejects=12), rejects=found)
    answer = place.ask()
    kind, text = said(answer)
    assert kind == "rejected"
    assert text.startswith(
        "rejected: 12 of 19 records, first at offset 120: not JSON; the others are committed"
    )
    assert not answer.verdict.settled
    assert answer.lines[-6:] == (
        "reject at offset 120: not JSON",
        "reject at offset 250: bad amount",
        "reject at offset 1000: more",
        "reject at offset 1001: more",
        "reject at offset 1002: more",
        "rejects: 7 more in the quarantine",
    )


def test_waiting(place):
    """An entry names it; the version before it is said to be committed."""
    place.put()
    place.commit(place.state())
    place.put(b"two")
    place.pass_time(12)
    assert said(place.ask()) == (
        "waiting",
        "waiting in the queue for 12 s; an older version is committed, in version 1",
    )


def test_waiting_for_a_signal(place):
    """Its writer died after the entry, so that the sensor has no reason to look."""
    place.put()
    assert "reconciler" not in said(place.ask(seen=b"another"))[1]
    kind, text = said(place.ask(seen=digest_of(place.signal_etag())))
    assert kind == "waiting"
    assert "not signalled yet: its writer or the reconciler will do that" in text


def test_being_written(place):
    """Reserved, and neither committed nor aborted: with and without the object."""
    assert isinstance(place.queue.reserve("orders", place.event()), Reservation)
    place.pass_time(3)
    kind, text = said(place.ask())
    assert kind == "writing"
    assert "reserved in the queue for 3 s" in text
    place.store.put(KEY, b"one")
    assert place.ask().verdict.kind == "writing"


def test_in_an_open_batch_by_the_chains(place):
    """Without a Dagster instance: the chain that misses its slot; not one that is about others, or done with it."""
    place.put()
    place.open_batch(1, slots=[SLOT, 15 - SLOT])
    place.open_batch(2, slots=[15 - SLOT])
    kind, text = said(place.ask())
    assert kind == "in_batch"
    assert text.startswith("in batch orders-e-1, open for 0 s; nothing of it")
    place.chains.stamp_children("orders-e-1", [str(SLOT)], operation_id="r")
    assert place.ask().verdict.kind == "waiting"


def test_in_an_open_batch_by_the_sensor(place):
    """With the run; only as long as the batch's chain misses the slot."""
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


def test_an_open_batch_that_reads_entries_does_not_take_in_what_has_none(place):
    """One that lists does."""
    place.put(queued=False)
    place.open_batch(1)
    assert place.ask().verdict.kind == "signalled"
    batch = BatchView(id="orders-e-1", opened_ms=place.clock.wall_ms(), listing=False)
    kind, text = said(place.ask(seen=digest_of(place.signal_etag()), batches=(batch,)))
    assert kind == "signalled"
    assert "batch orders-e-1 reads entries; the next batch lists its slot" in text
    place.open_batch(2, listing=True)
    assert place.ask().verdict.kind == "in_batch"


def test_in_the_first_batch(place):
    """Whose only child stands for everything."""
    place.store.put(KEY, b"one")
    place.open_batch(0, slots=[EVERYTHING], listing=True)
    assert place.ask().verdict.kind == "in_batch"


@pytest.mark.parametrize(
    ("parked", "words"),
    [
        (False, "requested again in 30 s"),
        (True, "parked, requested again in 30 s or as soon as the slot changes"),
    ],
)
def test_failing(place, parked, words):
    """The sensor knows why, and when it comes again."""
    place.put()
    again_ms = place.clock.wall_ms() + 30_000
    failing = Failing(attempts=2, reason="no such column", parked=parked, not_before_ms=again_ms, group=0)
    kind, text = said(place.ask(failing=failing))
    assert kind == "failing"
    assert text == f"failing: 2 attempts, {words}: no such column; nothing of it is committed"


def test_waiting_for_a_rescan(place):
    """An unqueued writer's slot that waits for a listing."""
    place.put(queued=False)
    assert said(place.ask())[1].startswith(
        "signalled 0 s ago without an entry: the next batch lists its slot, once a listing is due"
    )
    place.backlog.add([SLOT], unqueued=True)
    kind, text = said(place.ask())
    assert kind == "rescan"
    assert text.startswith(f"waits for a rescan: the next batch that lists compares slot {SLOT}")


def test_the_source_is_still_to_be_listed():
    """No topic yet, or the sensor says so: nothing that is there is lost."""
    place = Place()
    place.store.put(KEY, b"one")
    assert place.ask().verdict.kind == "rescan"
    place.with_topic()
    assert place.ask().verdict.kind == "unseen"
    assert place.ask(enumerated="an earlier topic").verdict.kind == "rescan"


def test_never_seen(place):
    """No entry and no signal, an older signal, or one that was about another key."""
    place.store.put(KEY, b"one")
    assert "was never signalled" in said(place.ask())[1]
    place.put()
    place.commit(place.state())
    place.pass_time(5)
    place.store.put(KEY, b"two")
    kind, text = said(place.ask())
    assert kind == "unseen"
    assert text.startswith(
        "not announced: no entry, and the slot's signal is older than the object: its writer does not signal, or an"
    )
    place.pass_time(5)
    other = next(key for n in range(999) if slot_of(key := f"raw/{n}", 16) == SLOT)
    place.publish(Put(key=other, body=b""))
    assert "for another key, since its writer queues" in said(place.ask())[1]
    place.publish(Put(key=other, body=b""), queued=False)
    assert place.ask().verdict.kind == "signalled"
    assert place.ask(seen=digest_of(place.signal_etag())).verdict.kind == "unseen"
    place.commit(ObjectState(key=other, etag="x", size=0))
    assert "the batch of the slot's signal did not find it" in said(place.ask())[1]


def test_where_unqueued_writers_are_about_every_signal_leads_to_a_listing(place):
    """So one of a writer that queues does, too."""
    place.store.put(KEY, b"one")
    other = next(key for n in range(999) if slot_of(key := f"raw/{n}", 16) == SLOT)
    place.publish(Put(key=other, body=b""))
    assert place.ask().verdict.kind == "unseen"
    place.backlog.add((), unqueued=True)
    assert place.ask().verdict.kind == "signalled"


def test_deleted(place):
    """Announced and not taken in; taken in; and then it is as settled as a committed object."""
    place.put()
    place.commit(place.state())
    place.publish(Delete(key=KEY))
    assert said(place.ask()) == (
        "waiting",
        "waiting in the queue for 0 s; the deleted object is committed, in version 1",
    )
    place.commit(ObjectState(key=KEY, etag="", size=0, gone=True))
    answer = place.ask()
    assert said(answer) == ("deleted", "deleted: its rows were removed, by version 2")
    assert answer.verdict.settled


def test_deleted_some_changes_of_the_slot_ago(place):
    """As long as it is among the slot's last changes; whatever other slots do."""
    place.put()
    place.commit(place.state())
    place.publish(Delete(key=KEY))
    place.commit(ObjectState(key=KEY, etag="", size=0, gone=True))
    for number in range(5):
        place.commit(ObjectState(key="raw/other", etag=f"{number}", size=1))
        place.commit_to(15 - SLOT, ObjectState(key="raw/elsewhere", etag=f"{number}", size=1))
    assert said(place.ask()) == ("deleted", "deleted: its rows were removed, by version 2")
    for number in range(20):
        place.commit(ObjectState(key="raw/other", etag=f"{number}", size=1))
    assert place.ask().verdict.kind == "unknown"


def test_erased(place):
    """It is deleted, and nothing else is known of it."""
    place.put()
    place.commit(place.state())
    place.publish(Delete(key=KEY))
    place.commit(ObjectState(key="raw/other", etag="x", size=1))
    erase(place.source.table(store=place.store, clock=place.clock), SLOT, KEY, clock=place.clock)
    answer = place.ask()
    assert said(answer) == ("deleted", "deleted: its rows were removed, by version 3")
    assert answer.committed is None


def test_unknown(place):
    """Nothing under the key anywhere."""
    answer = place.ask("raw/nobody")
    assert said(answer) == (
        "unknown",
        "unknown: no object, no rows and no entry under this key of source 'orders'",
    )
    assert not answer.verdict.settled


def test_the_document_is_json(place):
    """The verdict, and the facts by name."""
    place.put()
    place.commit(place.state())
    failing = Failing(attempts=1, not_before_ms=0, reason="r", parked=True, group=0)
    document = json.loads(json.dumps(place.ask(failing=failing, seen=b"12345678").document()))
    assert (document["verdict"], document["slot"], document["committed"]["rows"]) == ("committed", SLOT, 3)
    assert document["failing"]["parked"]


def test_a_table_that_runs_refuse(place):
    """Whatever is queued or signalled: the reason, with what to do. What is committed and current stays so."""
    place.source.open_table(store=place.store)
    place.put()
    place.commit(place.state())
    place.commit(ObjectState(key="raw/other", etag="x", size=1))
    place.store.delete(place.source.location.layout.version(2))
    assert place.ask().verdict.kind == "committed"
    place.put(body=b"later")
    answer = place.ask()
    assert answer.verdict.kind == "failing"
    assert answer.verdict.text.startswith("runs refuse the table: ")
    assert "table forget" in answer.verdict.text
    assert answer.verdict.text.endswith("an older version is committed, in version 1")
    forget(place.source.table(store=place.store).committer, lambda: None)
    assert place.ask().verdict.kind == "waiting"
    place.source = with_settings(place.source, prefix="raw/a")
    assert "prefix is 'raw/a' and was 'raw/'" in place.ask().verdict.text


def test_time_line(place):
    """In time order, with the seconds between; it fits a terminal of 80 columns."""
    place.put()
    place.pass_time(1)
    seen_ms = place.clock.wall_ms()
    place.pass_time(1)
    planned_ms = place.clock.wall_ms()
    place.pass_time(1)
    place.commit(place.state(), seen_ms=seen_ms, planned_ms=planned_ms)
    place.pass_time(60)
    lines = place.ask().lines
    told = lines[2 : lines.index(f"key: {KEY}")]
    said = [line[39:].split(",")[0].strip() for line in told]
    assert said[-4:] == ["seen: batch orders-e-1 opened", "planned", "read and committed", "now"]
    assert "written" in told[0]
    assert next(line for line in told if "committed" in line).split()[2:4] == ["+1.0", "s"]
    assert told[-1].split()[2:4] == ["+60.0", "s"]
    times = [line[:25] for line in told]
    assert times == sorted(times)
    assert max(map(len, told)) <= 80


def test_what_was_reported_of_a_forgotten_table():
    """Its versions began again: Dagster has reports of the same ones, which are older than the commit."""
    place = Place().with_topic()
    place.put()
    was = place.clock.wall_ms()
    place.pass_time(3600)
    place.commit(place.state())
    place.pass_time(2)
    now = place.clock.wall_ms()
    assert place.ask(reported=((40, was + 1), (1, was))).reported_ms is None
    assert place.ask(reported=((1, now), (40, was + 1), (1, was))).reported_ms == now
