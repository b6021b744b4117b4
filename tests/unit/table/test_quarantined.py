"""Quarantine, with a store in memory. Objects enter the quarantine, are examined, and are retried. Some objects then
leave the quarantine, and some stay.
"""

from dataclasses import replace

import pytest

from s3notify_platform.engine.commit import new_states as settle
from s3notify_platform.kernel.errors import ConflictError, UnavailableError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.keyspace import QUEUED, Publisher, signal_key
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table import quarantined as quarantine
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.quarantined import Choice, Retried, key_quarantine, reasons_of, retry
from s3notify_platform.table.round import RoundChange, SlotRound
from tests.support.log_tables import beaten
from tests.support.slot_rounds import SLOT, Body, Place, SlotRounds, content_of

EVERYTHING = Choice()


class Quarantine(Place):
    """A slot whose unreadable objects are in quarantine."""

    def __init__(self, **bodies):
        super().__init__(CountingStore(MemoryObjectStore()), **bodies)

    def quarantine(self, **unreadable):
        self.unreadable = unreadable
        self.committed(last_attempt=True)

    def retry(self, choice=EVERYTHING, table=None, **options):
        signals = Publisher(self.store, prefix="signals/", queued=True)
        return retry(table or self.table, [SLOT], signals, choice, **options)

    def send_again(self):
        """Makes all objects readable, retries the objects in quarantine, and runs a batch."""
        self.unreadable = {}
        self.retry()
        return self.run()

    @property
    def failing(self):
        return self.writer.failing

    @property
    def pending(self):
        return self.writer.pending

    def state(self, key):
        return self.writer.states[key]

    def signal(self):
        return self.store.head(signal_key("signals/", SLOT))


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
    """Otherwise the rows of the earlier version would leave although a later attempt may read the object."""
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
def test_retry_selects_objects_by_key_and_reason(choice, pending):
    """Otherwise a retry would include objects that the user has not chosen."""
    place = Quarantine(
        a=Body(etag="1", rows=2), b=Body(etag="1", rows=1, rejects=2), c=Body(etag="1", rows=1, rejects=1)
    )
    place.quarantine(a=0)
    before = place.writer.snapshot.version
    assert place.retry(choice, dry_run=True).keys == set(pending)
    assert place.writer.snapshot.version == before
    assert place.retry(choice).keys == set(pending)
    assert tuple(place.pending) == pending
    assert place.facts.pending == len(pending)


def test_signals_of_a_retry_move_after_its_version_and_cause_no_listing():
    """Otherwise the next batch would list the bucket, or would run before the request was committed."""
    place = Quarantine(a=Body(etag="1", rows=1, rejects=1))
    place.run()
    place.retry(dry_run=True)
    place.store.counts.clear()
    place.retry()
    newest = {"LIST": 1, "GET": 1}
    assert place.store.counts == {"LIST": newest["LIST"], "GET": newest["GET"] + 1, "PUT": 3 + 2}
    assert QUEUED in place.signal().metadata


def test_repetition_sends_a_lost_signal_again():
    """Otherwise the objects of a request whose signal was lost would never be read, or the request would be committed
    twice.
    """
    place = Quarantine(a=Body(etag="1", rows=1, rejects=1))
    place.run()

    class Silent(Publisher):
        def signal_slots(self, slots):
            raise UnavailableError("killed here")

    with pytest.raises(UnavailableError):
        retry(place.table, [SLOT], Silent(place.store, prefix="signals/"), EVERYTHING)
    generation = place.facts.generation
    done = place.retry()
    assert (done.rejected, done.waiting, place.facts.generation) == (1, 1, generation)
    assert place.signal() is not None


def test_pending_objects_stay_pending():
    """Otherwise a second retry would cancel an earlier retry of other keys."""
    place = Quarantine(a=Body(etag="1", rows=1, rejects=1), b=Body(etag="1", rows=1, rejects=1))
    place.run()
    place.retry(Choice(keys=frozenset({"a"})))
    place.retry(Choice(keys=frozenset({"b"})))
    assert place.pending == ["a", "b"]


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


def test_all_slots_are_requested_in_one_version():
    """Otherwise each slot of a retry would need a separate version, and separate requests for its rejects."""
    place = Quarantine()
    slots = [Slot(number) for number in range(10, 40)]
    for slot in slots:
        SlotRounds(store=place.store, slot=slot).run({f"{slot}": Body(etag="1", rows=1, rejects=1)})
    before = place.writer.snapshot.version
    packs = len(place.writer.snapshot.manifest.rejects)
    reasons_of(place.table, slots)
    place.store.counts.clear()
    found = retry(place.table, [SLOT, *slots], Publisher(place.store, prefix="signals/"), EVERYTHING)
    assert (found.slots, found.rejected, found.records) == (tuple(slots), 30, 30)
    assert place.store.counts == {"LIST": 1, "GET": 1 + packs, "PUT": 3 + 30 + 1}
    assert packs < 12
    snapshot = place.writer.snapshot
    assert snapshot.version == before + 1
    assert {facts.pending for slot, facts in snapshot.manifest.slots.items()} == {1}
    assert place.writer.content() == content_of({})


def test_slots_with_large_quarantine_take_several_versions(monkeypatch):
    """Otherwise a large retry would exceed the memory, or some of its slots would not be signalled."""
    monkeypatch.setattr(quarantine, "REQUEST_MAX", 4)
    place = Quarantine()
    slots = [Slot(number) for number in range(10, 15)]
    for slot in slots:
        bucket = {f"{slot}/{n}": Body(etag="1", rows=1, rejects=1) for n in range(slot % 5 + 1)}
        SlotRounds(store=place.store, slot=slot).run(bucket)
    before = place.writer.snapshot.version
    done = retry(place.table, slots, Publisher(place.store, prefix="signals/"), EVERYTHING)
    assert (done.slots, done.rejected, len(done.keys)) == (tuple(slots), 15, 15)
    assert place.writer.snapshot.version == before + 4, "+ 2, 3, 4, 5"
    assert all(place.store.head(signal_key("signals/", slot)) for slot in slots)
    assert len(reasons_of(place.table, slots)) == 5


def test_expired_object_is_not_read_again():
    """Otherwise a retry would request an object that no longer exists, and withdraw its rows."""
    place = Quarantine(a=Body(etag="1", rows=1, rejects=1), b=Body(etag="1", rows=1, rejects=1))
    place.run()
    base, state = place.writer.snapshot, place.state("a")
    expired = {"a": replace(state, expired=True)}
    change = SlotRound(changes=expired, before={"a": state})
    clock = place.writer.clock
    place.table.commit(RoundChange(base=base, slots={SLOT: change}, table=place.table, clock=clock), base)
    done = place.retry()
    assert (done.keys, done.records, place.pending) == ({"b"}, 1, ["b"])


def test_retry_starts_over_if_a_run_changed_the_slot():
    """Otherwise objects that the run has read meanwhile would be read again."""
    place = Quarantine(a=Body(etag="1", rows=1, rejects=1), b=Body(etag="1", rows=1, rejects=1))
    place.run()

    def other():
        place.bucket["a"] = Body(etag="2", rows=4)
        place.committed()

    done = place.retry(table=beaten(place.table, [other]))
    assert (done.keys, place.facts.generation, place.pending) == ({"b"}, 3, ["b"])
    place.bucket["b"] = Body(etag="1", rows=2)
    place.committed()
    assert place.is_exact()


def test_retry_goes_on_if_a_run_changed_another_slot():
    """Otherwise each new version of another slot would make a retry look at its slots again."""
    place = Quarantine(a=Body(etag="1", rows=1, rejects=1))
    place.run()
    other = SlotRounds(store=place.store, slot=Slot(8))
    place.retry(dry_run=True)
    place.store.counts.clear()
    table = beaten(place.table, [lambda: other.run({"8": Body(etag="1", rows=1)})])
    assert place.retry(table=table).keys == {"a"}
    assert (place.pending, place.facts.generation, other.facts.generation) == (["a"], 3, 2)


def test_same_request_by_two_writers_is_made_once():
    """Otherwise the object would be requested twice."""
    place = Quarantine(a=Body(etag="1", rows=1, rejects=1))
    place.run()
    done = place.retry(table=beaten(place.table, [place.retry]))
    assert (done.rejected, done.waiting, place.facts.generation) == (1, 1, 2)


def test_retry_ends_if_others_are_always_first():
    """Otherwise a retry would never end, or would signal a request that is not committed."""
    place = Quarantine(a=Body(etag="1", rows=1, rejects=1))
    place.run()

    def other():
        place.bucket["b"] = Body(etag=str(place.facts.generation), rows=1)
        place.run()

    slow = beaten(place.table, [other] * 9)
    hasty = replace(slow, committer=replace(slow.committer, commit_seconds=0.0))
    with pytest.raises(ConflictError, match="plan again"):
        place.retry(table=hasty)
    assert place.signal() is None


def test_earlier_round_is_planned_again():
    """Otherwise a round that was planned before the request would commit a state without the request."""
    place = Quarantine(a=Body(etag="1", rows=1, rejects=1))
    place.run()
    place.bucket["a"] = Body(etag="2", rows=1)
    staged = place.writer.stage(place.writer.plan(place.bucket), place.bucket)
    place.retry()
    place.table.commit(staged, staged.base)
    assert staged.dropped.keys() == {SLOT}
    place.committed()
    assert place.is_exact()
    assert place.pending == []


def test_pending_objects_are_limited(monkeypatch):
    """Otherwise a batch would hold too many states in memory, or the user would not learn that some objects were not
    requested.
    """
    monkeypatch.setattr(quarantine, "PENDING_MAX", 2)
    place = Quarantine(**{f"{n}": Body(etag="1", rows=1, rejects=1) for n in range(5)})
    place.run()
    done = place.retry()
    assert (done.rejected, done.left, place.pending) == (5, 3, ["0", "1"])
    assert place.retry().left == 3
    place.bucket |= {key: replace(body, rejects=0) for key, body in place.bucket.items() if key in "01"}
    place.run()
    assert place.retry().left == 1


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
