"""Quarantine over a store in memory: objects taken into it, looked at, retried; what leaves, what stays."""

from dataclasses import replace

import pytest

from s3notify_platform.errors import ConflictError, UnavailableError
from s3notify_platform.ingest import slot_writer as stage
from s3notify_platform.ports import Written
from s3notify_platform.protocols.conditional_commit import NativeCommit
from s3notify_platform.protocols.keyspace import QUEUED, Publisher, signal_key
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table import quarantine
from s3notify_platform.table.quarantine import (
    Choice,
    Retried,
    key_quarantine,
    quarantine_of,
    reasons_of,
    retry,
)
from s3notify_platform.table.reader import read_slots
from tests.support.clocks import HandClock
from tests.support.slot_writer import SLOT, Body, SlotWriter, content_in, content_of, history_of, slot_table

EVERYTHING = Choice()


class Place:
    """A slot whose objects are in `bucket`, and can be read up to what `unreadable` says."""

    def __init__(self, **bodies):
        self.store = CountingStore(MemoryObjectStore())
        self.writer = SlotWriter(store=self.store)
        self.table = slot_table(self.store)
        self.bucket = bodies
        self.unreadable = {}

    def run(self, **reading):
        return self.writer.run(self.bucket, unreadable=self.unreadable, **reading)

    def quarantine(self, **unreadable):
        self.unreadable = unreadable
        assert isinstance(self.run(last_attempt=True), Written)

    def retry(self, choice=EVERYTHING, **options):
        signals = Publisher(self.store, prefix="signals/", queued=True)
        return retry(self.table, [SLOT], signals, choice, **options)

    def send_again(self):
        """After a fix: all that is in quarantine, and a batch."""
        self.unreadable = {}
        self.retry()
        return self.run()

    @property
    def head(self):
        return history_of(self.table)[-1]

    def state(self, key):
        return self.table.states(self.head)[key]

    def is_exact(self):
        return content_in(self.table) == content_of(self.bucket)


def test_an_object_that_cannot_be_read_is_quarantined_with_its_reason():
    """The others are committed with it, and it is not read again: not by what lists, nor by what follows entries."""
    place = Place(a=Body(etag="1", rows=2), b=Body(etag="1", rows=2))
    place.quarantine(a=0)
    assert place.head.failing == ("a",)
    assert place.head.pending == ()
    assert place.head.objects == 2
    state = place.state("a")
    assert (state.etag, state.reason) == ("1", "row 0 of 1 cannot be read")
    assert content_in(place.table) == content_of({"b": place.bucket["b"]})
    assert not place.writer.plan(place.bucket).changes
    place.unreadable = {}
    assert place.run() is None


def test_without_the_last_try_it_stays_as_it_was():
    """Nothing is committed of it, and its earlier version's rows stay until it is quarantined or read."""
    place = Place(a=Body(etag="1", rows=2))
    place.run()
    place.bucket["a"] = Body(etag="2", rows=1)
    place.unreadable = {"a": 0}
    assert place.run() is None
    assert content_in(place.table) == content_of({"a": Body(etag="1", rows=2)})


def test_the_rows_of_an_earlier_version_leave():
    """That version is no more; what cannot be read has taken its place."""
    place = Place(a=Body(etag="1", rows=2, rejects=1))
    place.run()
    place.bucket["a"] = Body(etag="2", rows=1)
    place.quarantine(a=0)
    assert content_in(place.table) == content_of({})
    assert (place.head.objects, place.head.files, place.head.rejects) == (1, (), ())
    assert isinstance(place.send_again(), Written)
    assert place.is_exact()


def test_what_is_held_of_the_very_version_stays():
    """It was sent again for its rejects, and cannot be read any more."""
    place = Place(a=Body(etag="1", rows=2, rejects=1))
    place.run()
    place.retry()
    place.quarantine(a=0)
    assert place.is_exact()
    assert place.head.failing == ("a",)
    assert place.head.pending == ()


def test_sent_again_it_leaves_with_the_commit_that_has_its_rows():
    """Until then it is in quarantine and in no other place."""
    place = Place(a=Body(etag="1", rows=2), b=Body(etag="1", rows=1, rejects=2))
    place.quarantine(a=0)
    place.unreadable = {}
    done = place.retry()
    assert (done.failing, done.rejected, done.records, done.waiting) == (1, 1, 2, 0)
    assert place.head.failing == ("a",)
    assert place.head.pending == ("a", "b")
    before = place.head.generation
    place.bucket["b"] = Body(etag="1", rows=3)  # the same object, by a schema that now takes all of it
    assert isinstance(place.run(), Written)
    assert place.head.generation == before + 1
    assert (place.head.failing, place.head.pending, place.head.rejects) == ((), (), ())
    assert place.is_exact()
    assert quarantine_of(place.table, SLOT) is None


def test_what_fails_again_is_back_with_its_new_reason():
    place = Place(a=Body(etag="1", rows=3))
    place.quarantine(a=0)
    place.retry()
    place.quarantine(a=2)
    assert place.state("a").reason == "row 2 of 1 cannot be read"
    assert place.head.failing == ("a",)
    assert place.head.pending == ()


def test_what_was_read_in_part_goes_on_from_there():
    """Its first rows are committed, by the batch that gave it up; sent again, only the rest is read."""
    place = Place(a=Body(etag="1", rows=5, rejects=1))
    place.quarantine(a=3)
    state = place.state("a")
    assert (state.rows, state.offset, state.reach_end) == (3, 3, False)
    assert bool(state.reason)
    assert place.writer.plan(place.bucket).changes.read == ()
    place.retry()
    (split,) = place.writer.plan(place.bucket).changes.read
    assert split.start == 3
    place.quarantine(a=3)
    assert place.state("a").rows == 3
    assert isinstance(place.send_again(), Written)
    assert place.is_exact()
    assert place.head.failing == ()


@pytest.mark.parametrize("unreadable", [0, 1])
def test_deleted_or_overwritten_in_quarantine(unreadable):
    """Gone, or read like any other change; nothing of it stays in quarantine."""
    place = Place(a=Body(etag="1", rows=2), b=Body(etag="1", rows=2))
    place.quarantine(a=unreadable, b=unreadable)
    place.unreadable = {}
    place.retry()
    del place.bucket["a"]
    place.bucket["b"] = Body(etag="2", rows=1)
    assert isinstance(place.run(), Written)
    assert (place.head.failing, place.head.pending, place.head.objects) == ((), (), 1)
    assert place.is_exact()


def test_reasons_are_counted():
    """By kind, with what was sent again and not yet read."""
    place = Place(
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


def test_one_key_is_shown():
    """Its failure, and the first of its rejects with their bytes; nothing of others."""
    place = Place(
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


@pytest.mark.parametrize(
    ("choice", "pending"),
    [
        (Choice(), ("a", "b", "c")),
        (Choice(keys=frozenset({"a", "c", "nobody"})), ("a", "c")),
        (Choice(reason="cannot be read"), ("a",)),
        (Choice(reason="bad"), ("b", "c")),
        (Choice(keys=frozenset({"b"}), reason="cannot"), ()),
    ],
)
def test_what_is_chosen(choice, pending):
    """By key, by a part of the reason, by both, or all."""
    place = Place(
        a=Body(etag="1", rows=2), b=Body(etag="1", rows=1, rejects=2), c=Body(etag="1", rows=1, rejects=1)
    )
    place.quarantine(a=0)
    before = place.head
    assert place.retry(choice, dry_run=True).keys == set(pending)
    assert place.head == before
    assert place.retry(choice).keys == set(pending)
    assert place.head.pending == pending


def test_signals_move_after_the_commit_and_say_that_nothing_need_be_listed():
    """1 LIST and 1 GET for the head, 1 GET for the rejects, a commit, a signal and the root."""
    place = Place(a=Body(etag="1", rows=1, rejects=1))
    place.run()
    place.store.counts.clear()
    place.retry()
    assert place.store.counts == {"LIST": 1, "GET": 2, "PUT": 3}
    signal = place.store.head(signal_key("signals/", SLOT))
    assert QUEUED in signal.metadata


def test_a_signal_that_was_lost_is_made_up_for_by_a_repetition():
    """The commit stands, so there is no other one; and nothing is read twice."""
    place = Place(a=Body(etag="1", rows=1, rejects=1))
    place.run()

    class Silent(Publisher):
        def signal_slots(self, slots):
            raise UnavailableError("killed here")

    with pytest.raises(UnavailableError):
        retry(place.table, [SLOT], Silent(place.store, prefix="signals/"), EVERYTHING)
    generation = place.head.generation
    done = place.retry()
    assert (done.rejected, done.waiting, place.head.generation) == (1, 1, generation)
    assert place.store.head(signal_key("signals/", SLOT)) is not None


def test_what_is_pending_stays_so():
    """Other keys that were sent again, and have not been read yet."""
    place = Place(a=Body(etag="1", rows=1, rejects=1), b=Body(etag="1", rows=1, rejects=1))
    place.run()
    place.retry(Choice(keys=frozenset({"a"})))
    place.retry(Choice(keys=frozenset({"b"})))
    assert place.head.pending == ("a", "b")


def test_nothing_in_quarantine_is_no_request_more():
    place = Place(a=Body(etag="1", rows=1))
    place.run()
    place.store.counts.clear()
    assert place.retry() == Retried()
    assert place.store.counts == {"LIST": 1, "GET": 1}


class Overtaken(NativeCommit):
    """Somebody commits just before each of our commits."""

    def __init__(self, store, other):
        super().__init__(store)
        self.other = other

    def put_if_absent(self, key, body, *, metadata=None):
        self.other()
        return super().put_if_absent(key, body, metadata=metadata)


def test_overtaken_by_a_run():
    """What the run has taken in meanwhile is not sent again, and the rest is, on top."""
    place = Place(a=Body(etag="1", rows=1, rejects=1), b=Body(etag="1", rows=1, rejects=1))
    place.run()

    def other():
        if place.bucket["a"].etag == "1":
            place.bucket["a"] = Body(etag="2", rows=4)
            assert isinstance(place.run(), Written)

    clock = HandClock()
    table = slot_table(place.store, clock, commits=Overtaken(place.store, other))
    signals = Publisher(place.store, prefix="signals/", queued=True)
    done = retry(table, [SLOT], signals, EVERYTHING)
    assert (done.keys, place.head.generation, place.head.pending) == ({"b"}, 3, ("b",))


def test_overtaken_for_ever():
    """It ends, and says so; other slots' commits stand."""
    place = Place(a=Body(etag="1", rows=1, rejects=1))
    place.run()

    def other():
        place.bucket["b"] = Body(etag=str(place.head.generation), rows=1)
        place.run()

    clock = HandClock()
    table = slot_table(place.store, clock, commits=Overtaken(place.store, other))
    with pytest.raises(ConflictError, match="try again"):
        retry(table, [SLOT], Publisher(place.store, prefix="s/"), EVERYTHING)


def test_what_waits_is_bounded(monkeypatch):
    """What exceeds it is left to another call, and said."""
    monkeypatch.setattr(quarantine, "WAITING_MAX", 2)
    place = Place(**{f"{n}": Body(etag="1", rows=1, rejects=1) for n in range(5)})
    place.run()
    done = place.retry()
    assert (done.rejected, done.left, place.head.pending) == (5, 3, ("0", "1"))
    assert place.retry().left == 3
    place.bucket |= {key: replace(body, rejects=0) for key, body in place.bucket.items() if key in "01"}
    place.run()
    assert place.retry().left == 1


def test_what_is_quarantined_is_bounded(monkeypatch):
    """Above that, objects keep their slot failing, as if it were not its last try."""
    monkeypatch.setattr(stage, "FAILING_MAX", 2)
    place = Place(**{f"{n}": Body(etag="1", rows=1) for n in range(3)})
    place.quarantine(**dict.fromkeys(place.bucket, 0))
    assert place.head.failing == ("0", "1")
    assert [split.version.key for split in place.writer.plan(place.bucket).changes.read] == ["2"]
    assert place.run(last_attempt=True) is None
    place.retry()
    place.bucket["0"] = Body(etag="2", rows=0)
    place.unreadable.pop("0")
    assert isinstance(place.run(last_attempt=True), Written)
    assert place.head.failing == ("1", "2")


def test_a_fold_keeps_reasons():
    """They are in pages as they are in deltas."""
    place = Place(**{f"{n}": Body(etag="1", rows=0) for n in range(300)})
    place.unreadable = {"7": 0}
    place.run(last_attempt=True, max_objects=1000)
    assert place.head.deltas == ()
    assert place.state("7").reason
    assert quarantine_of(place.table, SLOT).failing.keys() == {"7"}
    assert next(iter(read_slots(place.table, [SLOT]))).table.num_rows == 0
