"""What is known of a table on the other side: losses that its own place cannot show, and other settings."""

from contextlib import suppress
from dataclasses import replace

import pytest

from s3notify_platform.errors import CorruptError, UnavailableError, UsageError
from s3notify_platform.ports import list_all
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.slots import Slot
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from s3notify_platform.table.known import KNOWN, Known, OpenTable, TableSides, open_table
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.missing import Forgotten, forget_slots, slots_without_commits
from tests.support.faults import CrashedError, Fault, FaultyStore, scripted
from tests.support.slot_writer import LAYOUT, SLOT, slot_table
from tests.support.tables import IDENTITY, table_sides

EVERY_SLOT = set(range(IDENTITY.slots))


class Place:
    """A table in memory, and what is known of it in `records`; 10 slots."""

    def __init__(self) -> None:
        self.store = MemoryObjectStore()
        self.records = MemoryRecordStore()
        self.sides = table_sides(self.store, self.records)
        self.backlog = RescanBacklog(ObjectRecordStore(self.store, "r/"))

    def open(self, **given: object) -> OpenTable:
        return open_table(self.sides, IDENTITY, **given)  # type: ignore[arg-type]

    def commit(self, slot: int, generation: int = 1) -> None:
        self.store.put(LAYOUT.commit(Slot(slot), generation), b"{}")

    def made(self, **heads: int) -> OpenTable:
        """A table with these generations, `s3=2`, as runs leave it."""
        opened = self.open()
        of = {Slot(int(name[1:])): Generation(n) for name, n in heads.items()}
        for slot, newest in of.items():
            for generation in range(1, newest + 1):
                self.commit(slot, generation)
        opened.merge(of)
        return self.open()

    def empty(self, prefix: str = LAYOUT.prefix) -> None:
        for meta in list(list_all(self.store, prefix)):
            self.store.delete(meta.key)

    def lose_known(self) -> None:
        record = self.records.read(KNOWN, self.sides.key)
        assert record is not None
        self.records.remove(KNOWN, self.sides.key, expected=record.version)

    def forget(self, *slots: int, sides: TableSides | None = None) -> Forgotten:
        table = slot_table(self.store)
        chosen = frozenset(map(Slot, slots or range(10)))
        return forget_slots(sides or self.sides, table, self.backlog, chosen, every=10)


def test_a_table_is_made_once_and_found_again() -> None:
    """Both sides have its id; later openings are 2 GETs, and one that creates nothing writes nothing."""
    place = Place()
    store = CountingStore(place.store)
    sides = table_sides(store)
    assert open_table(sides, IDENTITY, create=False).id == ""
    assert store.counts == {"GET": 2}
    opened = open_table(sides, IDENTITY, endpoint="e")
    assert opened.id == sides.beside() != ""
    store.counts.clear()
    assert open_table(sides, IDENTITY, endpoint="e").known == opened.known
    assert store.counts == {"GET": 2}


def test_generations_are_merged_and_never_go_back() -> None:
    """The highest of each slot; nothing is sent for what is known already."""
    place = Place()
    store = CountingStore(place.store)
    opened = open_table(table_sides(store), IDENTITY)
    opened.merge({Slot(3): Generation(2), Slot(999): Generation(7)})
    open_table(table_sides(store), IDENTITY).merge({Slot(3): Generation(1)})
    opened.merge({Slot(3): Generation(1), Slot(4): Generation(1)})
    store.counts.clear()
    again = open_table(table_sides(store), IDENTITY)
    assert again.heads == {3: 2, 4: 1, 999: 7}
    again.merge({Slot(3): Generation(2)})
    assert store.counts == {"GET": 2}


@pytest.mark.parametrize("field", ["bucket", "prefix", "slots", "hash"])
def test_other_settings_are_refused_and_nothing_is_written(field: str) -> None:
    """Named, with what they were, and what to do."""
    place = Place()
    place.made(s3=1)
    before = place.sides.known()
    other = replace(IDENTITY, **{field: 16 if field == "slots" else "other"})
    for create in (True, False):
        with pytest.raises(UsageError, match=rf"{field} is .* and was .*Set them back") as raised:
            open_table(place.sides, other, create=create)
        assert ("s3notify table migrate --to-slots 16" in str(raised.value)) == (field == "slots")
    assert place.sides.known() == before
    assert place.open().heads == {3: 1}


def test_a_table_without_commits_can_have_other_settings() -> None:
    """It was opened by a source with a typing error; the message says how."""
    place = Place()
    place.open()
    other = replace(IDENTITY, prefix="right/")
    with pytest.raises(UsageError, match="nothing is committed yet, begin with them: `s3notify table forget"):
        open_table(place.sides, other)
    assert place.forget().table
    assert open_table(place.sides, other).known.identity == other


def test_another_endpoint_warns_once() -> None:
    """It may be the same bucket."""
    place = Place()
    place.open(endpoint="http://a")
    (warning,) = place.open(endpoint="http://b").warnings
    assert "http://a" in warning
    assert "http://b" in warning
    assert place.open(endpoint="http://b").warnings == ()


def test_an_emptied_table_is_refused() -> None:
    """All below its prefix is gone: what is known of it says so. Neither side is changed."""
    place = Place()
    place.made(s3=1, s4=2)
    place.empty()
    for create in (True, False):
        with pytest.raises(
            CorruptError, match=r"2 of its slots had commits: restore .*table forget --slots all"
        ):
            place.open(create=create)
    assert not list(list_all(place.store, LAYOUT.prefix))


def test_what_is_known_being_gone_is_refused() -> None:
    """The table alone cannot say whether it is whole."""
    place = Place()
    place.made(s3=1)
    place.lose_known()
    with pytest.raises(CorruptError, match=r"what is known of .* is gone from bucket 'b': restore it, or"):
        place.open()
    place.store.delete(LAYOUT.id)
    with pytest.raises(CorruptError, match="has commits, and no id"):
        place.open()


def test_an_emptied_bucket_is_noticed_by_who_has_the_id() -> None:
    """The sensor's cursor; without it, nothing is left to say that there was a table."""
    place = Place()
    was = place.made(s3=1).id
    assert place.open(expected=was).id == was
    place.empty("")
    place.lose_known()
    with pytest.raises(CorruptError, match=f"the id {was}, and nothing is left of it"):
        place.open(expected=was)
    now = place.open().id
    with pytest.raises(CorruptError, match=f"the id {was}, and it is {now} now"):
        place.open(expected=was)


@pytest.mark.parametrize("dies_at", range(12))
def test_an_interrupted_creation_is_finished(dies_at: int) -> None:
    """Wherever it dies, the next run goes on with the same id; and no crash looks like a loss."""
    store = MemoryObjectStore()
    faulty = FaultyStore(
        store, scripted({dies_at // 2: (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)[dies_at % 2]})
    )
    with suppress(CrashedError):
        open_table(table_sides(faulty), IDENTITY)
    known = table_sides(store).known()
    opened = open_table(table_sides(store), IDENTITY)
    assert known is None or opened.id == known.table
    assert table_sides(store).beside() == opened.id


def test_a_head_below_its_known_generation_has_missing_commits() -> None:
    """None at all, or only the newest."""
    place = Place()
    place.made(s1=1, s3=3, s4=2)
    heads = place.open().heads
    assert slots_without_commits(slot_table(place.store), heads) == {}
    place.empty(LAYOUT.commits(Slot(1)))
    place.store.delete(LAYOUT.commit(Slot(3), 3))
    assert slots_without_commits(slot_table(place.store), heads) == {1: 0, 3: 2}


def test_a_table_with_a_long_history() -> None:
    """Where one page of commits does not tell of all slots, the rest is asked for slot by slot."""
    place = Place()
    for generation in range(1, 1200):
        place.commit(1, generation)
    place.commit(3)
    heads = {Slot(1): Generation(1199), Slot(2): Generation(1), Slot(3): Generation(1)}
    assert slots_without_commits(slot_table(place.store), heads) == {2: 0}


def test_forgetting_slots() -> None:
    """Only those with missing commits: they go on from what is left, and wait for a rescan."""
    place = Place()
    table = place.made(s1=1, s3=3, s4=2).id
    place.empty(LAYOUT.commits(Slot(1)))
    place.store.delete(LAYOUT.commit(Slot(3), 3))
    assert place.forget(3, 4).slots == {3}
    assert place.open().heads == {1: 1, 3: 2, 4: 2}
    assert place.forget().slots == {1}
    assert place.open(expected=table).heads == {3: 2, 4: 2}
    assert place.backlog.read().slots.keys() == {1, 3}
    assert place.forget() == Forgotten()


@pytest.mark.parametrize("side", ["known", "beside"])
def test_forgetting_a_missing_side_keeps_the_table(side: str) -> None:
    """It is made again from the commits that are there, with the id that is left."""
    place = Place()
    table = place.made(s1=1, s3=3).id
    if side == "known":
        place.lose_known()
    else:
        place.store.delete(LAYOUT.id)
        place.empty(LAYOUT.commits(Slot(1)))
    with pytest.raises(UsageError, match="concerns all its slots"):
        place.forget(1, 3)
    assert place.forget().restored
    assert place.open(expected=table).heads == ({1: 1, 3: 3} if side == "known" else {3: 3})
    assert place.backlog.read().slots.keys() == (set() if side == "known" else {1})


def test_forgetting_a_table_of_which_nothing_is_left() -> None:
    """Another takes its place, for settings that may be others; who knew the old one begins again."""
    place = Place()
    was = place.made(s1=1).id
    place.empty()
    done = place.forget()
    assert done.table != was
    assert place.backlog.read().slots.keys() == EVERY_SLOT
    opened = open_table(place.sides, replace(IDENTITY, prefix="new/"), expected=was)
    assert (opened.id, opened.heads) == (done.table, {})
    assert opened.known.former == (was,)


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("dies_at", range(4))
@pytest.mark.parametrize("in_records", [True, False])
def test_forgetting_that_dies_half_way_is_done_again(fault: Fault, dies_at: int, in_records: bool) -> None:
    """Until all of it is done, the table is refused, or it is as forgotten as it will be."""
    place = Place()
    place.made(s1=1)
    place.empty()
    faulty = scripted({dies_at: fault})
    sides = table_sides(
        place.store if in_records else FaultyStore(place.store, faulty),
        FaultyStore(place.records, faulty) if in_records else place.records,
    )
    with suppress(CrashedError):
        place.forget(sides=sides)
    known = place.sides.known()
    assert known is not None
    if known.heads:
        with pytest.raises(CorruptError):
            place.open()
        assert place.forget().table
    assert place.open().heads == {}
    assert place.backlog.read().slots.keys() == EVERY_SLOT


def test_a_run_of_a_forgotten_table_says_nothing_of_the_next() -> None:
    """It was opened before; what it commits is no generation of the other table."""
    place = Place()
    before = place.made(s1=1)
    place.empty()
    place.forget()
    before.merge({SLOT: Generation(4)})
    assert place.open().heads == {}


def test_two_sensors_are_warned_of_each_other() -> None:
    """Whoever takes over from another, each time; one alone never."""
    place = Place()
    assert place.open().claim("a") == ""
    assert place.open().claim("a") == ""
    assert "another sensor (a)" in place.open().claim("b")
    assert "another sensor (b)" in place.open().claim("a")
    assert place.open().claim("a") == ""


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"table":"x"}'])
def test_what_is_not_ours_is_never_taken_for_nothing(body: bytes) -> None:
    """An empty guard would let everything be taken in again."""
    place = Place()
    place.records.create(KNOWN, place.sides.key, body)
    with pytest.raises(CorruptError, match="restore it"):
        place.open()


def test_a_store_that_is_away() -> None:
    """Merging can be tried again: it is refused as unavailable, never as unknown."""
    place = Place()
    opened = place.open()
    refusing = FaultyStore(place.records, scripted(dict.fromkeys(range(400), Fault.THROTTLED)))
    with pytest.raises(UnavailableError):
        replace(opened, sides=table_sides(place.store, refusing)).merge({SLOT: Generation(1)})


def test_the_record_is_small() -> None:
    """1000 slots at generation 99: 3 KB."""
    heads = {Slot(n): Generation(99) for n in range(1000)}
    known = Known(table="x", identity=IDENTITY, heads=heads)
    assert len(known.dumps()) < 4000
    assert Known.loads(known.dumps(), "here") == known
