"""Backfill over a store in memory: what is read again, in how many commits, and what stays."""

import pytest

from s3notify_platform.errors import ConflictError, UnavailableError
from s3notify_platform.ports import Written
from s3notify_platform.protocols.conditional_commit import NativeCommit
from s3notify_platform.protocols.keyspace import QUEUED, Publisher, signal_key
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.reread import Backfilled, backfill
from tests.support.clocks import HandClock
from tests.support.slot_writer import SLOT, Body, SlotWriter, content_in, content_of, history_of, slot_table


class Place:
    """A slot whose objects are in `bucket`, committed."""

    def __init__(self, **bodies):
        self.store = CountingStore(MemoryObjectStore())
        self.writer = SlotWriter(store=self.store)
        self.table = slot_table(self.store)
        self.bucket = bodies
        assert isinstance(self.writer.run(bodies), Written)

    def backfill(self, table=None, **options):
        signals = Publisher(self.store, prefix="signals/", queued=True)
        return backfill(table or self.table, [SLOT], signals, **options)

    def backfill_by(self, run):
        """As a run that reads the slot itself."""
        return backfill(self.table, [SLOT], None, batch=run)

    def planned(self):
        return [split.version.key for split in self.writer.plan(self.bucket).changes.read]

    @property
    def head(self):
        return history_of(self.table)[-1]

    def is_exact(self):
        return content_in(self.table) == content_of(self.bucket)


def place_of(count):
    return Place(**{f"{n}": Body(etag="1", rows=2, rejects=n % 2) for n in range(count)})


def test_all_objects_are_read_again_once_and_their_rows_replaced():
    """By the next run, in one commit; after that nothing is asked for."""
    place = place_of(4)
    before = place.head.files
    done = place.backfill()
    assert done == Backfilled(slots=(SLOT,), objects=4, rows=8)
    assert place.head.files == before
    assert place.is_exact()
    signal = place.store.head(signal_key("signals/", SLOT))
    assert QUEUED in signal.metadata
    assert place.planned() == list(place.bucket)
    assert isinstance(place.writer.run(place.bucket), Written)
    assert place.is_exact()
    assert not {file.name for file in before} & {file.name for file in place.head.files}
    assert (place.head.generation, place.head.backfill, place.head.objects) == (3, 0, 4)
    assert place.writer.run(place.bucket) is None


def test_more_than_a_run_reads_at_once():
    """It goes on where it was, and reads nothing twice; an object that is read in parts too."""
    place = place_of(5)
    place.backfill()
    read = []
    while planned := place.planned():
        read += planned[:2]
        assert isinstance(place.writer.run(place.bucket, max_objects=2), Written)
        assert place.is_exact()
    assert read == list(place.bucket)
    assert place.head.backfill == 0
    place.backfill()
    assert isinstance(place.writer.run(place.bucket, at_most=1), Written)
    assert place.head.pending == tuple(place.bucket)
    assert isinstance(place.writer.run(place.bucket, at_most=1), Written)
    assert place.is_exact()
    assert (place.head.pending, place.head.backfill) == ((), 0)


def test_changes_meanwhile():
    """What is updated, deleted or new is taken in as ever, by the same run."""
    place = place_of(3)
    place.backfill()
    place.bucket = {"0": Body(etag="2", rows=1), "2": place.bucket["2"], "9": Body(etag="1", rows=1)}
    assert isinstance(place.writer.run(place.bucket), Written)
    assert place.is_exact()
    assert place.writer.run(place.bucket) is None


def test_what_fails_keeps_its_rows_and_is_asked_for_still():
    """The others are replaced; after its last try it is left to the quarantine."""
    place = place_of(3)
    place.backfill()
    assert isinstance(place.writer.run(place.bucket, unreadable={"1": 0}), Written)
    assert place.head.backfill == 2
    assert place.planned() == ["1"]
    assert place.is_exact()
    assert isinstance(place.writer.run(place.bucket, unreadable={"1": 0}, last_attempt=True), Written)
    assert place.planned() == []
    assert (place.head.failing, place.head.backfill) == (("1",), 0)
    assert place.backfill() == Backfilled(slots=(SLOT,), objects=2, rows=6)
    assert place.planned() == ["0", "2"]


def test_a_run_that_requests_for_itself_and_is_killed():
    """Nothing is signalled; what it has not read is read by the slot's next batch, which has another cause."""
    place = place_of(3)
    assert place.backfill_by("run").objects == 3
    assert isinstance(place.writer.run(place.bucket, max_objects=1), Written)  # and it is killed
    assert place.store.head(signal_key("signals/", SLOT)) is None
    assert place.is_exact()
    place.bucket["9"] = Body(etag="1", rows=1)
    assert place.planned() == ["1", "2", "9"]
    assert isinstance(place.writer.run(place.bucket), Written)
    assert place.is_exact()
    assert place.head.backfill == 0
    assert place.writer.run(place.bucket) is None


def test_asked_for_twice_it_is_signalled_twice():
    """Killed between commit and signal, and repeated; and while it is on its way."""
    place = place_of(3)

    class Silent(Publisher):
        def signal_slots(self, slots):
            raise UnavailableError("no signal moves")

    with pytest.raises(UnavailableError):
        backfill(place.table, [SLOT], Silent(place.store, prefix="signals/"))
    assert place.head.backfill == 2
    assert place.backfill().objects == 3
    assert place.head.generation == 2
    assert place.store.head(signal_key("signals/", SLOT)) is not None
    assert isinstance(place.writer.run(place.bucket, max_objects=1), Written)
    assert place.backfill().objects == 3
    assert place.planned() == list(place.bucket)


def test_a_dry_run_writes_nothing():
    """It counts."""
    place = place_of(3)
    puts = place.store.counts["PUT"]
    assert place.backfill(dry_run=True) == Backfilled(slots=(SLOT,), objects=3, rows=6)
    assert place.store.counts["PUT"] == puts


def test_a_slot_without_objects_is_left_out():
    """Whether it was ever committed or not."""
    place = place_of(1)
    place.bucket = {}
    place.writer.run(place.bucket)
    assert place.backfill() == Backfilled()
    assert backfill(place.table, [8], Publisher(place.store, prefix="s/")) == Backfilled()
    assert place.store.head("s/_") is None


class Overtaken(NativeCommit):
    """Before each commit another one is made."""

    def __init__(self, store, other):
        super().__init__(store)
        self.other = other

    def put_if_absent(self, *args, **kwargs):
        self.other()
        return super().put_if_absent(*args, **kwargs)


def test_overtaken():
    """It is asked for after what the other has committed; for ever: it ends, and says so."""
    place = place_of(2)
    times = iter(range(1))

    def other():
        if next(times, None) is not None:
            place.bucket["z"] = Body(etag="1", rows=1)
            place.writer.run(place.bucket)

    clock = HandClock()
    place.backfill(slot_table(place.store, clock, commits=Overtaken(place.store, other)))
    assert (place.head.generation, place.head.backfill) == (3, 3)
    assert place.planned() == ["0", "1", "z"]

    def always():
        place.bucket["z"] = Body(etag=str(place.head.generation), rows=1)
        place.writer.run(place.bucket)

    always()
    with pytest.raises(ConflictError, match="try again"):
        place.backfill(slot_table(place.store, clock, commits=Overtaken(place.store, always)))


def test_a_run_that_reads_the_slots_itself():
    """Nothing is signalled; its retry requests nothing of what it has read, and goes on with what is left."""
    place = place_of(3)
    for _ in range(2):
        found = backfill(place.table, [SLOT], None, batch="run 1")
        assert (found.objects, place.head.generation) == (3, 2)
    assert place.store.head(signal_key("signals/", SLOT)) is None
    assert place.planned() == list(place.bucket)
    assert isinstance(place.writer.run(place.bucket), Written)
    read_by = place.head.batch
    assert backfill(place.table, [SLOT], None, batch=read_by) == Backfilled()
    assert backfill(place.table, [SLOT], None, batch="run 2").objects == 3


def test_a_slot_that_misses_commits_is_left_out():
    """One more commit would hide that."""
    place = place_of(1)
    assert place.backfill(known={SLOT: 2}) == Backfilled()
    assert place.head.generation == 1


def test_errors_of_slots_may_be_taken():
    """The other slots are requested all the same."""
    place = place_of(1)
    place.store.put(place.table.layout.commit(8, 1), b"nonsense")
    failed = {}
    found = backfill(place.table, [8, SLOT], None, batch="run", failed=failed.__setitem__)
    assert (found.slots, [*failed]) == ((SLOT,), [8])
