"""What is remembered of which slots were ever committed, and what is lost against it."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.errors import CorruptError, UnavailableError
from s3notify_platform.ports import list_all
from s3notify_platform.protocols.source_enumerator import COMMITTED, PARTITION, CommittedSlots, RescanBacklog
from s3notify_platform.slots import Slot
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from s3notify_platform.table.missing import forget_slots, slots_without_commits
from tests.support.clocks import HandClock
from tests.support.faults import Fault, FaultyStore, at, scripted
from tests.support.slot_writer import LAYOUT, SLOT, Body, SlotWriter, slot_table

slots = st.frozensets(st.integers(0, 999).map(Slot))


@given(st.lists(st.tuples(st.booleans(), slots), max_size=6))
def test_a_set_of_slots(changes: list[tuple[bool, frozenset[Slot]]]) -> None:
    """Added, and forgotten by people; never more than a few hundred bytes."""
    records = MemoryRecordStore()
    known: frozenset[Slot] = frozenset()
    for adds, some in changes:
        (CommittedSlots(records).add if adds else CommittedSlots(records).forget)(some)
        known = known | some if adds else known - some
        assert CommittedSlots(records).read() == known
    record = records.read(PARTITION, COMMITTED)
    assert record is None or len(record.value) < 280
    assert record is None or json.loads(record.value)["v"] == 1


def test_it_is_written_when_a_slot_is_new_only() -> None:
    """1 request to read it, 1 more to look and 1 to write when there is something to add; none for nothing."""
    store = CountingStore(MemoryObjectStore())
    committed = CommittedSlots(ObjectRecordStore(store, "r/"))
    assert committed.read() == frozenset()
    assert store.counts == {"GET": 1}
    committed.add([])
    assert store.counts == {"GET": 1}
    committed.add([Slot(0), Slot(999)])
    assert store.counts == {"GET": 2, "PUT": 1}
    committed.add([Slot(999)])
    assert store.counts == {"GET": 3, "PUT": 1}
    assert committed.read() == {0, 999}


def test_many_at_once() -> None:
    """Nobody's slot is overwritten by another's."""
    records = MemoryRecordStore()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: CommittedSlots(records).add([Slot(n)]), range(60)))
    assert CommittedSlots(records).read() == frozenset(range(60))


def test_answers_that_are_lost() -> None:
    """Whether the write was applied or not, another round ends it; and a store that is gone is said to be."""
    records = MemoryRecordStore()
    for method, fault in (("create", Fault.LOST), ("replace", Fault.REFUSED), ("replace", Fault.LOST)):
        before = CommittedSlots(records).read()
        faulty = FaultyStore(records, at(method, fault))
        CommittedSlots(faulty, clock=HandClock()).add([Slot(len(before))])
        assert CommittedSlots(records).read() == before | {len(before)}
    refusing = FaultyStore(records, scripted(dict.fromkeys(range(1, 400, 2), Fault.REFUSED)))
    with pytest.raises(UnavailableError, match="try again"):
        CommittedSlots(refusing, clock=HandClock()).add([Slot(77)])


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"v":1,"slots":"xyz"}', b'{"v":1,"slots":7}'])
def test_what_is_not_ours_is_never_taken_for_nothing(body: bytes) -> None:
    """An empty guard would let everything be taken in again."""
    records = MemoryRecordStore()
    records.create(PARTITION, COMMITTED, body)
    with pytest.raises(CorruptError, match="restore it"):
        CommittedSlots(records).read()
    with pytest.raises(CorruptError):
        CommittedSlots(records).add([Slot(1)])


def test_lost_slots_and_forgetting_them() -> None:
    """A slot with its commits is not forgotten, whoever asks; one that misses them goes to the rescan backlog."""
    store = MemoryObjectStore()
    records = ObjectRecordStore(store, "r/")
    SlotWriter(store=store).run({"a": Body(etag="1", rows=1)})
    table = slot_table(store)
    assert slots_without_commits(table, records) == frozenset()
    CommittedSlots(records).add([SLOT, Slot(8), Slot(9)])
    assert slots_without_commits(table, records) == {8, 9}
    assert forget_slots(table, records, frozenset({SLOT, Slot(8), Slot(100)})) == {8}
    assert CommittedSlots(records).read() == {SLOT, 9}
    assert set(RescanBacklog(records).read().slots) == {8}
    for meta in list(list_all(store, LAYOUT.prefix)):
        store.delete(meta.key)
    assert slots_without_commits(table, records) == {SLOT, 9}


@pytest.mark.parametrize("method", ["create", "replace"])
def test_forgetting_that_dies_half_way_is_done_again(method: str) -> None:
    """The slots stay refused until all of it is done."""
    store = MemoryObjectStore()
    unqueued = ObjectRecordStore(store, "r/")
    CommittedSlots(unqueued).add([Slot(8)])
    faulty = FaultyStore(unqueued, at(method, Fault.THROTTLED))
    with pytest.raises(UnavailableError):
        forget_slots(slot_table(store), faulty, frozenset({Slot(8)}))
    assert slots_without_commits(slot_table(store), unqueued) == {8}
    assert forget_slots(slot_table(store), unqueued, frozenset({Slot(8)})) == {8}
    assert slots_without_commits(slot_table(store), unqueued) == frozenset()
    assert set(RescanBacklog(unqueued).read().slots) == {8}


def test_a_table_with_a_long_history() -> None:
    """Where one page of commits does not tell of all slots, the rest is asked for slot by slot."""
    store = MemoryObjectStore()
    records = ObjectRecordStore(store, "r/")
    for generation in range(1, 1200):
        store.put(LAYOUT.commit(Slot(1), generation), b"{}")
    store.put(LAYOUT.commit(Slot(3), 1), b"{}")
    CommittedSlots(records).add([Slot(1), Slot(2), Slot(3)])
    assert slots_without_commits(slot_table(store), records) == {2}
