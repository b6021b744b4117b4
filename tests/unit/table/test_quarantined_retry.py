"""Requests to read quarantined records and objects again, with a store in memory."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import ConflictError, UnavailableError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.keyspace import QUEUED, Publisher, signal_key
from s3notify_platform.table import quarantined as quarantine
from s3notify_platform.table.quarantined import Choice, reasons_of, retry
from s3notify_platform.table.round import RoundChange, SlotRound
from tests.support.log_tables import beaten
from tests.support.quarantined_slot import Quarantine
from tests.support.slot_rounds import SLOT, Body, SlotRounds, content_of

EVERYTHING = Choice()


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
