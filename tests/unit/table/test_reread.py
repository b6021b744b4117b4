"""Backfill, with a store in memory: the objects that are read again, the number of versions, and the rows that stay."""

import random
from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import ConflictError, UnavailableError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.keyspace import QUEUED, Publisher, signal_key
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.quarantined import Choice, retry
from s3notify_platform.table.reread import Backfilled, backfill
from tests.support.log_tables import beaten
from tests.support.slot_rounds import SLOT, Body, Place, SlotRounds

OTHER = Slot(8)


class Backfills(Place):
    """A slot whose objects are committed."""

    def __init__(self, **bodies):
        super().__init__(CountingStore(MemoryObjectStore()), **bodies)
        self.committed()

    def backfill(self, table=None, **options):
        signals = Publisher(self.store, prefix="signals/", queued=True)
        return backfill(table or self.table, [SLOT], signals, **options)

    def backfill_by(self, run):
        """Requests a backfill for this run, which will read the slot."""
        return backfill(self.table, [SLOT], None, batch=run)

    def signal(self):
        return self.store.head(signal_key("signals/", SLOT))


def place_of(count):
    return Backfills(**{f"{n}": Body(etag="1", rows=2, rejects=n % 2) for n in range(count)})


def test_all_objects_are_read_again_once_and_their_rows_replaced():
    """Otherwise a backfill would leave old rows, or be requested again after its run."""
    place = place_of(4)
    before = place.writer.snapshot.packs.keys()
    assert place.backfill() == Backfilled(slots=(SLOT,), objects=4, rows=8)
    assert place.writer.snapshot.packs.keys() == before
    assert place.is_exact()
    assert QUEUED in place.signal().metadata
    assert place.planned() == list(place.bucket)
    place.committed()
    assert place.is_exact()
    assert not before & place.writer.snapshot.packs.keys()
    facts = place.facts
    assert (place.writer.snapshot.version, facts.generation, facts.backfill, facts.objects) == (3, 3, 0, 4)
    assert place.run() is None


def test_backfill_larger_than_a_batch_reads_each_object_once():
    """Otherwise objects would be read twice if the slot takes several batches, or if an object is read in parts."""
    place = place_of(5)
    place.backfill()
    read = []
    while planned := place.planned():
        read += planned[:2]
        place.committed(max_objects=2)
        assert place.is_exact()
    assert read == list(place.bucket)
    assert place.facts.backfill == 0
    place.backfill()
    place.committed(at_most=1)
    assert place.writer.pending == list(place.bucket)
    place.committed(at_most=1)
    assert place.is_exact()
    assert (place.facts.pending, place.facts.backfill) == (0, 0)


def test_changes_during_a_backfill_are_ingested():
    """Otherwise updated, deleted or new objects would have to wait for the end of the backfill."""
    place = place_of(3)
    place.backfill()
    place.bucket = {"0": Body(etag="2", rows=1), "2": place.bucket["2"], "9": Body(etag="1", rows=1)}
    place.committed()
    assert place.is_exact()
    assert place.run() is None


def test_failing_object_keeps_its_rows_and_its_request():
    """Otherwise one unreadable object would lose its rows, or stop the other objects."""
    place = place_of(3)
    place.backfill()
    place.committed(unreadable={"1": 0})
    assert place.facts.backfill == 2
    assert place.planned() == ["1"]
    assert place.is_exact()
    place.committed(unreadable={"1": 0}, last_attempt=True)
    assert place.planned() == []
    assert (place.writer.failing, place.facts.backfill) == (["1"], 0)
    assert place.backfill() == Backfilled(slots=(SLOT,), objects=2, rows=6)
    assert place.planned() == ["0", "2"]


def test_requests_of_a_killed_run_wait_for_the_next_batch():
    """Otherwise objects that the killed run has not read would never be read again."""
    place = place_of(3)
    assert place.backfill_by("run").objects == 3
    place.committed(max_objects=1)  # then the run is killed
    assert place.signal() is None
    assert place.is_exact()
    place.bucket["9"] = Body(etag="1", rows=1)
    assert place.planned() == ["1", "2", "9"]
    place.committed()
    assert place.is_exact()
    assert place.facts.backfill == 0
    assert place.run() is None


def test_repeated_request_is_signalled_again():
    """Otherwise the objects would never be read if a command was killed after the request's version and before the
    signal.
    """
    place = place_of(3)

    class Silent(Publisher):
        def signal_slots(self, slots):
            raise UnavailableError("no signal moves")

    with pytest.raises(UnavailableError):
        backfill(place.table, [SLOT], Silent(place.store, prefix="signals/"))
    assert place.facts.backfill == 2
    assert place.backfill().objects == 3
    assert place.facts.generation == 2
    assert place.signal() is not None
    place.committed(max_objects=1)
    assert place.backfill().objects == 3
    assert place.planned() == list(place.bucket)


def test_dry_run_counts_and_writes_nothing():
    place = place_of(3)
    puts = place.store.counts["PUT"]
    assert place.backfill(dry_run=True) == Backfilled(slots=(SLOT,), objects=3, rows=6)
    assert place.store.counts["PUT"] == puts


def test_slot_without_objects_is_left_out():
    """Otherwise a backfill would signal slots without objects, or fail on a table without objects."""
    place = place_of(1)
    place.bucket = {}
    place.run()
    assert place.backfill() == Backfilled()
    assert backfill(place.table, [OTHER], Publisher(place.store, prefix="s/")) == Backfilled()
    assert place.store.head("s/_") is None
    empty = MemoryObjectStore()
    nowhere = place.writer.source.table(store=empty)
    assert backfill(nowhere, [SLOT], Publisher(empty, prefix="s/")) == Backfilled()


def test_all_slots_are_requested_in_one_version():
    """Otherwise a backfill of many slots would create a version for each slot."""
    place = place_of(2)
    others = [SlotRounds(store=place.store, slot=Slot(number)) for number in range(10, 30)]
    for other in others:
        other.run({f"{other.slot}": Body(etag="1", rows=1)})
    place.table.newest()
    place.store.counts.clear()
    before = place.writer.snapshot.version
    place.store.counts.clear()
    slots = [SLOT, *(other.slot for other in others)]
    found = backfill(place.table, slots, Publisher(place.store, prefix="signals/"))
    assert (len(found.slots), found.objects, found.rows) == (21, 22, 24)
    # Manifest, version and `known` take 3 PUTs. The signals of 21 slots and of the root take the other PUTs.
    assert place.store.counts["PUT"] == 3 + 21 + 1
    assert place.writer.snapshot.version == before + 1


def test_backfill_follows_a_commit_of_another_writer():
    """Otherwise objects that another writer has just committed would not be read again."""
    place = place_of(2)

    def other():
        place.bucket["z"] = Body(etag="1", rows=1)
        place.run()

    place.backfill(beaten(place.table, [other]))
    assert (place.facts.generation, place.facts.backfill) == (3, 3)
    assert place.planned() == ["0", "1", "z"]
    place.committed()
    assert place.is_exact()
    assert place.planned() == []


def test_same_request_by_two_writers_is_made_once():
    """Otherwise objects would be read twice."""
    place = place_of(2)
    assert place.backfill(beaten(place.table, [place.backfill])).objects == 2
    assert (place.facts.generation, place.facts.backfill) == (2, 2)


def test_backfill_ends_if_others_are_always_first():
    """Otherwise a backfill would never end, or would signal a request that is not committed."""
    place = place_of(1)

    def always():
        place.bucket["z"] = Body(etag=str(place.facts.generation), rows=1)
        place.run()

    slow = beaten(place.table, [always] * 9)
    hasty = replace(slow, committer=replace(slow.committer, commit_seconds=0.0))
    with pytest.raises(ConflictError, match="plan again"):
        place.backfill(hasty)
    assert (place.facts.backfill, place.signal()) == (0, None)


def test_earlier_round_is_planned_again():
    """Otherwise an earlier round would commit rows of the old code after the request, and the same objects would be
    read again.
    """
    place = place_of(2)
    place.bucket["0"] = Body(etag="2", rows=1)
    planned = place.writer.plan(place.bucket)
    staged = place.writer.stage(planned, place.bucket)
    place.backfill()
    place.table.commit(staged, staged.base)
    assert staged.dropped.keys() == {SLOT}
    assert place.planned() == ["0", "1"]
    place.committed()
    assert place.is_exact()
    assert place.planned() == []


def test_run_that_reads_the_slots_itself_goes_on_if_it_is_repeated():
    """Otherwise the repeated run would read the same objects again, or signal slots that it reads itself."""
    place = place_of(3)
    for _ in range(2):
        found = place.backfill_by("run 1")
        assert (found.objects, place.facts.generation) == (3, 2)
    assert place.signal() is None
    assert place.planned() == list(place.bucket)
    place.writer.name = "run 1"
    place.committed(max_objects=1)
    found = place.backfill_by("run 1")
    assert (found.objects, place.facts.generation, place.planned()) == (3, 3, ["1", "2"])
    place.committed()
    assert place.backfill_by("run 1") == Backfilled()
    assert place.planned() == []
    assert place.backfill_by("run 2").objects == 3


def test_cut_version_does_not_hide_a_slot():
    """Otherwise a backfill would leave out a slot because vacuum has removed the version that last changed it."""
    place = place_of(1)
    place.writer.name = "run 1"
    other = SlotRounds(store=place.store, slot=OTHER)
    other.run({"8": Body(etag="1", rows=1)})
    place.store.delete(place.table.layout.version(1))
    assert place.backfill_by("run 1").objects == 1
    assert place.facts.backfill == 3


@pytest.mark.parametrize("seed", range(12))
def test_rounds_and_requests_in_any_order_give_a_complete_table(seed):
    """Otherwise some order of rounds and requests would lose rows, or keep rows twice."""
    dice = random.Random(seed)
    place = place_of(5)
    staged = []
    for number in range(40):
        match dice.choice(["write", "stage", "stage", "commit", "commit", "backfill", "retry"]):
            case "write":
                body = Body(etag=f"{number}", rows=dice.randrange(3), rejects=dice.randrange(2))
                place.bucket[dice.choice("01234")] = body
            case "stage":
                unreadable = {dice.choice("01234"): 0} if dice.random() < 0.5 else {}
                plan = place.writer.plan(place.bucket, max_objects=dice.choice([1, 2, 9]))
                reading = {"at_most": dice.choice([1, 9]), "last_attempt": dice.random() < 0.5}
                staged.append(place.writer.stage(plan, place.bucket, unreadable=unreadable, **reading))
            case "commit" if made := [one for one in staged if one is not None]:
                staged = [one for one in made if one is not (chosen := dice.choice(made))]
                place.table.commit(chosen, chosen.base)
            case "backfill":
                place.backfill()
            case "retry":
                signals = Publisher(place.store, prefix="signals/")
                retry(place.table, [SLOT], signals, Choice())
        place.writer.content()  # raises an error if the table is inconsistent
    retry(place.table, [SLOT], Publisher(place.store, prefix="signals/"), Choice())
    while place.planned():
        place.committed()
    assert place.is_exact()
    assert (place.facts.failing, place.facts.pending, place.facts.backfill) == (0, 0, 0)
