"""Quarantine, with a store in memory. Objects enter the quarantine, are examined, and leave it."""

import pytest

from s3notify_platform.engine.commit import new_states as settle
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.quarantined import Choice, Retried, key_quarantine, reasons_of, retry
from tests.support.quarantined_slot import Quarantine
from tests.support.slot_rounds import SLOT, Body, SlotRounds, content_of

EVERYTHING = Choice()


def test_unreadable_object_is_quarantined_with_its_reason():
    """Otherwise an unreadable object would stop its slot, or each batch would read it again."""
    place = Quarantine(a=Body(etag="1", rows=2), b=Body(etag="1", rows=2))
    place.quarantine(a=0)
    assert place.failing == ["a"]
    assert place.pending == []
    assert place.facts.objects == 2
    state = place.state("a")
    assert (state.etag, state.reason) == ("1", "row 0 of 1 cannot be read")
    assert place.writer.content() == content_of({"b": place.bucket["b"]})
    assert not place.planned()
    place.unreadable = {}
    assert place.run() is None


def test_object_is_not_quarantined_before_the_last_attempt():
    """Otherwise the rows of the earlier version would be withdrawn although a later attempt may read the object."""
    place = Quarantine(a=Body(etag="1", rows=2))
    place.run()
    place.bucket["a"] = Body(etag="2", rows=1)
    place.unreadable = {"a": 0}
    assert place.run() is None
    assert place.writer.content() == content_of({"a": Body(etag="1", rows=2)})


def test_rows_of_an_earlier_version_leave():
    """Otherwise readers would see rows of an object version that was overwritten by an unreadable version."""
    place = Quarantine(a=Body(etag="1", rows=2, rejects=1))
    place.run()
    place.bucket["a"] = Body(etag="2", rows=1)
    place.quarantine(a=0)
    assert place.writer.content() == content_of({})
    snapshot = place.writer.snapshot
    assert (place.facts.objects, [*snapshot.packs], snapshot.manifest.rejects) == (1, [], ())
    assert isinstance(place.send_again(), Committed)
    assert place.is_exact()


def test_rows_of_the_same_version_stay():
    """Otherwise a retry of some rejects would remove the committed rows of an object that cannot be read any more."""
    place = Quarantine(a=Body(etag="1", rows=2, rejects=1))
    place.run()
    place.retry()
    place.quarantine(a=0)
    assert place.is_exact()
    assert place.failing == ["a"]
    assert place.pending == []


def test_retried_object_leaves_quarantine_with_the_commit_of_its_rows():
    """Otherwise an object would leave quarantine before its rows are committed."""
    place = Quarantine(a=Body(etag="1", rows=2), b=Body(etag="1", rows=1, rejects=2))
    place.quarantine(a=0)
    place.unreadable = {}
    done = place.retry()
    assert (done.failing, done.rejected, done.records, done.waiting) == (1, 1, 2, 0)
    assert place.failing == ["a"]
    assert place.pending == ["a", "b"]
    before = place.facts.generation
    place.bucket["b"] = Body(
        etag="1", rows=3
    )  # the object is the same, but its schema now accepts all its records
    place.committed()
    assert place.facts.generation == before + 1
    assert (place.failing, place.pending, place.facts.rejects) == ([], [], 0)
    assert place.is_exact()
    assert reasons_of(place.table, [SLOT]) == []


def test_object_that_fails_again_returns_to_quarantine_with_its_new_reason():
    place = Quarantine(a=Body(etag="1", rows=3))
    place.quarantine(a=0)
    place.retry()
    place.quarantine(a=2)
    assert place.state("a").reason == "row 2 of 1 cannot be read"
    assert place.failing == ["a"]
    assert place.pending == []


def test_retry_of_a_partly_read_object_begins_at_its_offset():
    """Otherwise a retry would read the committed first rows of the object again."""
    place = Quarantine(a=Body(etag="1", rows=5, rejects=1))
    place.quarantine(a=3)
    state = place.state("a")
    assert (state.rows, state.offset, state.reach_end) == (3, 3, False)
    assert bool(state.reason)
    assert not place.planned()
    place.retry()
    (split,) = place.writer.plan(place.bucket)[1].changes.read
    assert split.start == 3
    place.quarantine(a=3)
    assert place.state("a").rows == 3
    assert isinstance(place.send_again(), Committed)
    assert place.is_exact()
    assert place.failing == []


@pytest.mark.parametrize("unreadable", [0, 1])
def test_deleted_or_overwritten_object_leaves_quarantine(unreadable):
    """Otherwise the quarantine would keep an object version that does not exist any more."""
    place = Quarantine(a=Body(etag="1", rows=2), b=Body(etag="1", rows=2))
    place.quarantine(a=unreadable, b=unreadable)
    place.unreadable = {}
    place.retry()
    del place.bucket["a"]
    place.bucket["b"] = Body(etag="2", rows=1)
    place.committed()
    assert (place.failing, place.pending, place.facts.objects) == ([], [], 1)
    assert place.is_exact()


def test_reasons_are_counted_by_kind():
    """Otherwise the counts would mix failing and rejected objects, or omit objects that wait for a retry."""
    place = Quarantine(
        a=Body(etag="1", rows=2), b=Body(etag="1", rows=1, rejects=2), c=Body(etag="1", rows=1, rejects=1)
    )
    place.quarantine(a=0)
    place.retry(Choice(keys=frozenset({"c"})))
    failing, rejected = reasons_of(place.table, [SLOT])
    assert (failing.slot, failing.kind, failing.reason) == (SLOT, "failing", "row 0 of 1 cannot be read")
    assert (failing.objects, failing.records, failing.waiting) == (1, 0, 0)
    assert (rejected.kind, rejected.reason) == ("rejected", "bad")
    assert (rejected.objects, rejected.records, rejected.waiting) == (2, 3, 1)
    assert reasons_of(place.table, [SLOT + 1]) == []


def test_quarantine_is_counted_by_key_with_the_requests_of_the_reasons():
    """Otherwise a count of rejects would not lead to a key, or an object with two reasons would be listed twice."""
    two = ("bad", "worse", "worse")
    place = Quarantine(
        a=Body(etag="1", rows=2),
        b=Body(etag="1", rows=1, rejects=3, reasons=two),
        c=Body(etag="1", rows=1, rejects=1),
    )
    place.quarantine(a=0)
    place.retry(Choice(keys=frozenset({"b", "c"})))
    place.store.counts.clear()
    reasons_of(place.table, [SLOT])
    requests = dict(place.store.counts)
    place.store.counts.clear()
    found = reasons_of(place.table, [SLOT], by_key=True)
    assert place.store.counts == requests
    assert [(one.key, one.kind, one.reason, one.reasons) for one in found] == [
        ("a", "failing", "row 0 of 1 cannot be read", 1),
        ("b", "rejected", "worse", 2),
        ("c", "rejected", "bad", 1),
    ]
    assert [(one.objects, one.records, one.waiting) for one in found] == [(1, 0, 0), (1, 3, 1), (1, 1, 1)]


def test_quarantine_of_one_key_shows_its_reason_and_first_rejects():
    """Otherwise a user would not see why an object failed, or would see rejects of other objects."""
    place = Quarantine(
        a=Body(etag="1", rows=2, rejects=3), b=Body(etag="1", rows=1, rejects=1), c=Body(etag="1", rows=1)
    )
    place.quarantine(a=1)
    found = key_quarantine(place.table, SLOT, "a", limit=2)
    assert found.state.reason == "row 1 of 1 cannot be read"
    assert found.state.rejects == 3
    assert [(r["_key"], r["_offset"], r["reason"], r["raw"]) for r in found.rejects.to_pylist()] == [
        ("a", 0, "bad", b"raw"),
        ("a", 1, "bad", b"raw"),
    ]
    assert not found.waiting
    place.retry(Choice(keys=frozenset({"a"})))
    assert key_quarantine(place.table, SLOT, "a", limit=2).waiting
    assert key_quarantine(place.table, SLOT, "c", limit=2) is None
    assert key_quarantine(place.table, SLOT, "nobody", limit=2) is None


def test_empty_quarantine_costs_no_further_request():
    place = Quarantine(a=Body(etag="1", rows=1))
    place.run()
    place.store.counts.clear()
    assert place.retry() == Retried()
    assert reasons_of(place.table, [SLOT]) == []
    assert place.store.counts == {"LIST": 2, "GET": 2}, "the newest version, twice"


def test_missing_table_has_no_quarantine():
    store = MemoryObjectStore()
    table = SlotRounds(store=MemoryObjectStore()).source.table(store=store)
    assert retry(table, [SLOT], Publisher(store, prefix="signals/"), EVERYTHING) == Retried()
    assert reasons_of(table, [SLOT]) == []
    assert key_quarantine(table, SLOT, "a", limit=1) is None
    assert not store.list("").objects


def test_failing_objects_are_limited(monkeypatch):
    """Otherwise a slot would get more failing objects than the limit. Beyond the limit, the slot itself must fail."""
    monkeypatch.setattr(settle, "MAX_FAILING_OBJECTS", 2)
    place = Quarantine(**{f"{n}": Body(etag="1", rows=1) for n in range(3)})
    place.quarantine(**dict.fromkeys(place.bucket, 0))
    assert place.failing == ["0", "1"]
    assert place.planned() == ["2"]
    assert place.run(last_attempt=True) is None
    place.retry()
    place.bucket["0"] = Body(etag="2", rows=0)
    place.unreadable.pop("0")
    place.committed(last_attempt=True)
    assert place.failing == ["1"]
    place.committed(last_attempt=True)
    assert place.failing == ["1", "2"]


def test_states_in_files_keep_reasons_and_requests():
    """Otherwise a table with many objects would lose reasons and requests, because its states are in files."""
    place = Quarantine(**{f"{n}": Body(etag="1", rows=0) for n in range(300)})
    place.unreadable = {"7": 0}
    place.run(last_attempt=True, max_objects=1000)
    assert place.writer.snapshot.manifest.states.inline == {}
    assert place.state("7").reason
    (found,) = reasons_of(place.table, [SLOT])
    assert (found.kind, found.objects, found.waiting) == ("failing", 1, 0)
    place.retry()
    (found,) = reasons_of(place.table, [SLOT])
    assert (found.objects, found.waiting, place.pending) == (1, 1, ["7"])
    place.unreadable = {}
    place.committed()
    assert place.is_exact()
