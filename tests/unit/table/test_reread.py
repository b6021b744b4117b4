"""Backfill over a store in memory: what is read again, in how many versions, and what stays."""

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
        """As a run that reads the slot itself."""
        return backfill(self.table, [SLOT], None, batch=run)

    def signal(self):
        return self.store.head(signal_key("signals/", SLOT))


def place_of(count):
    return Backfills(**{f"{n}": Body(etag="1", rows=2, rejects=n % 2) for n in range(count)})


def test_all_objects_are_read_again_once_and_their_rows_replaced():
    """By the next run, in one version; after that nothing is asked for."""
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


def test_more_than_a_run_reads_at_once():
    """It goes on where it was, and reads nothing twice; an object that is read in parts too."""
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


def test_changes_meanwhile():
    """What is updated, deleted or new is taken in as ever, by the same run."""
    place = place_of(3)
    place.backfill()
    place.bucket = {"0": Body(etag="2", rows=1), "2": place.bucket["2"], "9": Body(etag="1", rows=1)}
    place.committed()
    assert place.is_exact()
    assert place.run() is None


def test_what_fails_keeps_its_rows_and_is_asked_for_still():
    """The others are replaced; after its last try it is left to the quarantine."""
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


def test_a_run_that_requests_for_itself_and_is_killed():
    """Nothing is signalled; what it has not read is read by the slot's next batch, which has another cause."""
    place = place_of(3)
    assert place.backfill_by("run").objects == 3
    place.committed(max_objects=1)  # and it is killed
    assert place.signal() is None
    assert place.is_exact()
    place.bucket["9"] = Body(etag="1", rows=1)
    assert place.planned() == ["1", "2", "9"]
    place.committed()
    assert place.is_exact()
    assert place.facts.backfill == 0
    assert place.run() is None


def test_asked_for_twice_it_is_signalled_twice():
    """Killed between version and signal, and repeated; and while it is on its way."""
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


def test_a_dry_run_writes_nothing():
    """It counts."""
    place = place_of(3)
    puts = place.store.counts["PUT"]
    assert place.backfill(dry_run=True) == Backfilled(slots=(SLOT,), objects=3, rows=6)
    assert place.store.counts["PUT"] == puts


def test_a_slot_without_objects_is_left_out():
    """Whether it was ever committed or not; and a table that is not there."""
    place = place_of(1)
    place.bucket = {}
    place.run()
    assert place.backfill() == Backfilled()
    assert backfill(place.table, [OTHER], Publisher(place.store, prefix="s/")) == Backfilled()
    assert place.store.head("s/_") is None
    empty = MemoryObjectStore()
    nowhere = place.writer.source.table(store=empty)
    assert backfill(nowhere, [SLOT], Publisher(empty, prefix="s/")) == Backfilled()


def test_all_slots_are_one_version():
    """A version, a signal for each, and the root, however many there are."""
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
    assert place.store.counts["PUT"] == 3 + 21 + 1  # manifest, version, known
    assert place.writer.snapshot.version == before + 1


def test_overtaken():
    """It is asked for after what the other has committed."""
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


def test_overtaken_by_the_same_request():
    """It is there: both signal it, and nothing is read twice."""
    place = place_of(2)
    assert place.backfill(beaten(place.table, [place.backfill])).objects == 2
    assert (place.facts.generation, place.facts.backfill) == (2, 2)


def test_overtaken_for_ever():
    """It ends, and says so; nothing is requested, and nothing signalled."""
    place = place_of(1)

    def always():
        place.bucket["z"] = Body(etag=str(place.facts.generation), rows=1)
        place.run()

    slow = beaten(place.table, [always] * 9)
    hasty = replace(slow, committer=replace(slow.committer, commit_seconds=0.0))
    with pytest.raises(ConflictError, match="plan again"):
        place.backfill(hasty)
    assert (place.facts.backfill, place.signal()) == (0, None)


def test_a_round_that_was_planned_before_is_planned_again():
    """Its rows would be of before the request: none of them is committed, and none is read twice."""
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


def test_a_run_that_reads_the_slots_itself():
    """Nothing is signalled; its retry requests nothing of what it has read, and goes on with what is left."""
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


def test_who_has_read_a_slot_may_be_gone():
    """Vacuum has cut the version: it was not this run's, which is younger."""
    place = place_of(1)
    place.writer.name = "run 1"
    other = SlotRounds(store=place.store, slot=OTHER)
    other.run({"8": Body(etag="1", rows=1)})
    place.store.delete(place.table.layout.version(1))
    assert place.backfill_by("run 1").objects == 1
    assert place.facts.backfill == 3


@pytest.mark.parametrize("seed", range(12))
def test_rounds_and_requests_in_any_order(seed):
    """Rounds that were planned before requests of both kinds, and after: in the end all is there, and once."""
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
        place.writer.content()  # it is whole
    retry(place.table, [SLOT], Publisher(place.store, prefix="signals/"), Choice())
    while place.planned():
        place.committed()
    assert place.is_exact()
    assert (place.facts.failing, place.facts.pending, place.facts.backfill) == (0, 0, 0)
