"""`explain` over a bucket in memory: each verdict, from the traces of writers, inlets, sensor and runs."""

import json
from dataclasses import replace

import pytest

from s3notify_platform.engine.batch.batches import Failing
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.maintenance.table_erasure import erase
from s3notify_platform.protocols.keyspace import Delete, Put
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.open_table import forget
from s3notify_platform.table.quarantined import EVERYTHING as ALL
from s3notify_platform.table.quarantined import retry
from s3notify_platform.table.reread import backfill
from tests.support.explained import KEY, SLOT, Place, said
from tests.support.sources import with_settings


def test_a_committed_object_is_explained_with_its_version_and_file(place):
    """The answer must name version, age, row count and data file of the object's current ETag."""
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
        ({"format": "csv", "csv_names": "a,b"}, "only lines that are not records"),
        ({"format": "json"}, "an empty list"),
        ({"format": "parquet"}, "a file without rows"),
    ],
)
def test_an_object_without_records_is_explained(place, settings, emptiness):
    """The user must see how many bytes were read, and why the object has no records."""
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
def test_an_object_that_the_source_does_not_read_is_explained(place, key, settings, reason):
    """The user must see why the source does not read the object, and that its earlier rows will be withdrawn."""
    place.put()
    place.publish(Put(key=key, body=b"one"))
    place.source = with_settings(place.source, **settings)
    answer = place.ask(key)
    assert said(answer) == ("not_chosen", f"not read by source 'orders': {reason}")
    assert answer.verdict.settled
    place.commit(place.state(key=key))
    text = f"not read by source 'orders': {reason}; its 3 rows leave when a batch lists the source"
    assert said(place.ask(key)) == ("rescan", text)
    chosen = {"exclude": "", "include": "", "modified_after": "2020-01-01T00:00:00Z", "hidden_files": "read"}
    place.source = with_settings(place.source, **chosen)
    assert said(place.ask(key))[0] == "committed"


def test_kept_rows_of_a_deleted_object_are_explained(place):
    place.put()
    place.commit(place.state())
    place.store.delete(KEY)
    assert said(place.ask())[0] != "kept"
    place.source = with_settings(place.source, on_delete="keep")
    text = "the object is deleted, and its 3 rows stay because of on_delete"
    assert said(place.ask()) == ("kept", text)
    assert place.ask().verdict.settled


def test_a_quarantined_object_is_explained(place):
    """The user must see why the object is quarantined, how much of it is committed, and whether a retry is
    requested.
    """
    place.put()
    place.commit(place.state(rows=0, offset=0, reach_end=False, reason="403 AccessDenied"))
    answer = place.ask()
    assert said(answer) == ("quarantined", "quarantined because it could not be read: 403 AccessDenied")
    assert not answer.verdict.settled
    (line,) = [line for line in answer.lines if line.startswith("quarantine: ")]
    assert line.endswith("`s3notify quarantine retry KEY --name orders`")
    place.commit(place.state(reach_end=False, reason="timed out"))
    table, signals = place.source.table(store=place.store), place.source.location.slot_signals(place.store)
    assert retry(table, [SLOT], signals, ALL).failing == 1
    text = said(place.ask())[1]
    assert text == (
        "quarantined because it could not be read: timed out; 3 records of it are committed; a new read "
        "is requested: the slot's next batch reads the object"
    )


def test_an_object_read_in_part_is_explained(place):
    """The ETag of a big object is in the table before the object is read to its end. If such an object counted as
    committed, a user could not explain the missing rows.
    """
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


@pytest.mark.parametrize("asked", ["object", "slot"])
def test_an_object_that_is_to_be_read_again_is_explained(place, asked):
    """After `s3notify schema set` or `s3notify backfill`, the table still has the values of the earlier read.
    If the object counted as committed before the new read, a user would take old values for new values.
    """
    place.put()
    place.commit(place.state(again=asked == "object"))
    if asked == "slot":
        assert backfill(place.source.table(store=place.store), [SLOT], None).objects == 1
    answer = place.ask()
    text = "committed in version 1, 0 s ago: 3 records; a new read is requested: the slot's next batch reads the object"
    assert said(answer) == ("reading", text)
    assert not answer.verdict.settled
    place.commit(place.state())
    assert said(place.ask())[0] == "committed"


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 1), (5, 0), (5, 1), (20, 37)])
def test_the_version_that_committed_the_object_is_found(place, before, after):
    """The newest version of the slot may have committed other objects. If the answer named the newest version, a user
    would look at a wrong commit and a wrong batch.
    """
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


def test_a_version_delayed_by_other_writers_is_found(place):
    """A version gets a later number than planned if other writers commit first. If the answer named the planned number,
    a user would look at a commit that has no row of the object.
    """
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


def test_a_version_removed_by_vacuum_is_given_with_doubt(place):
    """Vacuum leaves only the label of the object's rows. The label is the version for which the rows were planned, and
    other writers may have delayed the commit. Without the words `or later`, a user could take a commit of other objects
    for the object's commit.
    """
    place.put()
    place.commit(place.state())
    other = ObjectState(key="raw/other", etag="x", size=1)
    for number in range(22):
        place.commit(replace(other, etag=f"{number}"))
    for number in range(21):
        place.store.delete(place.source.location.layout.version(number))
    answer = place.ask()
    assert said(answer)[1].startswith("committed in version 1 or later, an unknown time ago: 3 records")


def test_the_version_of_an_unread_object_is_found_by_the_slots_changes(place):
    """An object without rows has no label, so its version must be found among the slot's changes."""
    place.put()
    place.commit(place.state(rows=0, offset=0, reach_end=False, reason="403 AccessDenied"), labelled=False)
    for number in range(3):
        place.commit(ObjectState(key="raw/other", etag=f"{number}", size=1))
    assert (place.ask().committed.version, place.ask().committed.doubt) == (1, "")
    for number in range(20):
        place.commit(ObjectState(key="raw/other", etag=f"{number}", size=1))
    assert (place.ask().committed.version, place.ask().committed.doubt) == (24, "or before")


def test_rejected_records_are_explained(place):
    """The user must see the number of the object's rejects, and its first rejects with offset and reason. Rejects of
    other objects must not be shown.
    """
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


def test_a_deleted_object_is_explained(place):
    """First the deletion waits in the queue. After the commit of the deletion, the verdict must be final
    (`settled`).
    """
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


def test_an_older_deletion_is_found_among_the_slots_last_changes(place):
    """Changes of other slots must not hide the deletion."""
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


def test_an_erased_object_counts_as_deleted(place):
    """An erased object must leave no trace except its deletion."""
    place.put()
    place.commit(place.state())
    place.publish(Delete(key=KEY))
    place.commit(ObjectState(key="raw/other", etag="x", size=1))
    erase(place.source.table(store=place.store, clock=place.clock), SLOT, KEY, clock=place.clock)
    answer = place.ask()
    assert said(answer) == ("deleted", "deleted: its rows were removed, by version 3")
    assert answer.committed is None


def test_a_key_without_any_trace_is_unknown(place):
    answer = place.ask("raw/nobody")
    assert said(answer) == (
        "unknown",
        "unknown: no object, no rows and no entry under this key of source 'orders'",
    )
    assert not answer.verdict.settled


def test_the_document_is_json(place):
    """Scripts read the verdict and the facts by name. A value that JSON cannot represent, or a renamed fact, would stop
    such scripts.
    """
    place.put()
    place.commit(place.state())
    failing = Failing(attempts=1, not_before_ms=0, reason="r", parked=True, group=0)
    document = json.loads(json.dumps(place.ask(failing=failing, seen=b"12345678").document()))
    assert (document["verdict"], document["slot"], document["committed"]["rows"]) == ("committed", SLOT, 3)
    assert document["failing"]["parked"]


def test_a_refused_table_is_the_reason_for_waiting_changes(place):
    """The user must see why runs refuse the table, and the remedy. An object whose current version is committed stays
    committed.
    """
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
    assert "prefix is 'raw/a', but 'raw/' in the table" in place.ask().verdict.text


def test_the_time_line_is_ordered_and_fits_a_terminal(place):
    """Without the order and the seconds since the previous event, a user could not see which step took the time. Lines
    of more than 80 columns would wrap in a small terminal.
    """
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


def test_reports_of_a_forgotten_table_are_ignored():
    """A new table begins again with the first version number, so Dagster has older reports with the same numbers. If
    such a report counted, the answer would say that Dagster received the object before its commit.
    """
    place = Place().with_topic()
    place.put()
    was = place.clock.wall_ms()
    place.pass_time(3600)
    place.commit(place.state())
    place.pass_time(2)
    now = place.clock.wall_ms()
    assert place.ask(reported=((40, was + 1), (1, was))).reported_ms is None
    assert place.ask(reported=((1, now), (40, was + 1), (1, was))).reported_ms == now
