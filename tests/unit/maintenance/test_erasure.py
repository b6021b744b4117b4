"""The erasure of an object, on a real server: afterwards no object of the platform contains the erased
object's mark.
"""

from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.erasure import ErasedObject, erase, time_travel
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.keyspace import Watcher
from s3notify_platform.protocols.notification_queue import Event, TopicSettings
from s3notify_platform.protocols.notification_queue.entries import dead_partition
from s3notify_platform.protocols.notification_queue.segments import encode_letter, letter_key
from s3notify_platform.protocols.source_enumerator import Failed, RescanBacklog
from s3notify_platform.table.check import check_table
from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.snapshot import Snapshot
from tests.support.faults import Call, CrashedError, Fault, FaultyStore, crash_at_signals
from tests.support.ingested import Place, derive
from tests.support.raw_search import holding
from tests.support.servers import S3Server

pytestmark = pytest.mark.server

MARK, NUMBER = "person4711", 471147114711
KEY = f"{MARK}.jsonl"
SLOT, OTHER = Slot(0), Slot(1)


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes rounds write object states to files, and makes the erasure treat new files as files of an ended run."""
    monkeypatch.setattr("s3notify_platform.table.states.state_levels.STATES_INLINE", 1)
    monkeypatch.setattr("s3notify_platform.maintenance.table_erasure.CLOCKS_DIFFER_MS", -60_000)


def marked(place: Place) -> set[str]:
    """Returns the platform's objects that contain the mark, in the key or in the body."""
    return {key for key in holding(place.store, MARK, NUMBER) if key.startswith("_s3notify")}


def newest(place: Place, asset: str | None = None) -> Snapshot:
    table = place.source.table(asset)
    found = table.reader.open()
    assert isinstance(found, Snapshot)
    assert not check_table(table, found).problems
    return found


def prepared(server: S3Server) -> Place:
    """Commits versions of the object in one slot, among other objects. The erased object's traces are in all possible
    places.
    """
    place = Place(server, slots=1)
    queue = place.source.location.queue()
    bucket = place.source.input.bucket.bucket
    for topic in ("orders", "hooks"):
        queue.topics.create(topic, TopicSettings(bucket=bucket, prefix="raw/", slots=1))
    place.put("other", 1)
    place.run("1")
    # The object has one row and one reject.
    body = b'{"a":%d}\n{"a": %s}\n' % (NUMBER, MARK.encode())
    place.store.put(f"raw/{KEY}", body)
    place.run("2")
    place.put("third", 3)
    place.store.put(f"raw/{KEY}", body * 2)
    # This round is staged, but never committed.
    next(iter(place.rounds()))
    place.run("3")
    made_from = {SLOT: newest(place).manifest.slot(SLOT).generation}
    rows = {"_slot": pa.array([0, 0], pa.int32()), "_key": ["raw/other", f"raw/{KEY}"], "text": ["x", MARK]}
    derive(place.source, "keyed", pa.table(rows), made_from)
    summed = {"_slot": pa.array([0], pa.int32()), "text": [MARK]}
    derive(place.source, "summed", pa.table(summed), made_from)
    for topic in ("orders", "hooks"):
        queue.push(topic, Event(key=f"raw/{KEY}", bucket=bucket))
        queue.push(topic, Event(key="raw/other", bucket=bucket))
    for entry in queue.entries("hooks", [0]):
        letter = replace(entry, state="dead", reason=f"about {entry.event.key}")
        queue.updates.create(dead_partition("hooks"), letter_key(letter), encode_letter(letter))
    # `s3notify ingest` could not read the slot. The error of a user's function may quote a value of the object.
    failed = Failed(attempts=2, not_before_ms=0, reason=f"raw/{KEY}: {NUMBER}", trace=f"Error: {NUMBER}")
    other = Failed(attempts=3, not_before_ms=0, reason="of another slot")
    backlog = RescanBacklog(place.source.location.records())
    backlog.note_failed({SLOT: failed, OTHER: other})
    place.store.delete(f"raw/{KEY}")
    return place


def erased(place: Place, platform: ObjectStore | None = None) -> ErasedObject:
    return erase(place.source, f"raw/{KEY}", platform=platform)


def check(place: Place) -> None:
    """Asserts that nothing of the object is left, and nothing of other objects is missing."""
    assert marked(place) == set()
    assert +place.values() == {1: 1, 3: 1}
    facts = newest(place).manifest.slot(SLOT)
    assert (facts.objects, facts.rows, facts.rejects) == (2, 2, 0)
    assert newest(place, "keyed").rows == 1
    rescans = RescanBacklog(place.source.location.records()).read()
    assert (rescans.failed.keys(), rescans.slots.keys()) == ({OTHER}, {SLOT, OTHER})
    queue = place.source.location.queue()
    assert [entry.event.key for topic in ("orders", "hooks") for entry in queue.entries(topic, [0])] == [
        "raw/other"
    ] * 2
    assert [letter.event.key for letter in queue.dead("hooks")] == ["raw/other"]


def test_erase_removes_every_trace_of_an_object(ministack: S3Server) -> None:
    """Otherwise personal data that must be deleted would stay on the store: in rows, rejects, states, history,
    unreferenced files, slot assets or the queue.
    """
    place = prepared(ministack)
    assert len(marked(place)) > 10
    location = place.source.location
    (first, last) = time_travel(location, place.store)[""]
    assert (first, last) == (0, newest(place).version)
    watcher = Watcher(place.store, prefix=location.keyspace_prefix)
    watcher.poll()
    done = erased(place)
    check(place)
    assert (done.of_source.rows, done.of_source.rejects, done.of_source.begins) == (2, 2, last + 1)
    assert done.entries == 3
    assert (done.left, done.waiting, done.batches) == (0, 0, ())
    assert done.again_ms, "an earlier run may still write a file with the object"
    assert done.cleared == ("summed",)
    assert [*watcher.poll().changed] == [SLOT], "the next batch is triggered"
    facts = newest(place, "summed").manifest.slot(SLOT)
    assert (facts.rows, facts.source) == (0, 0), "the next batch builds the slot again"
    assert set(time_travel(location, place.store)) == {"", "keyed", "summed"}
    again = erased(place)
    assert (again.of_source.found, again.files, again.entries, again.again_ms) == (False, 0, 0, 0)
    check(place)
    place.store.put(f"raw/{KEY}", b'{"a":5}\n')
    place.run("4")
    assert +place.values() == {1: 1, 3: 1, 5: 1}, "a new object with this key is ingested as usual"


def test_rebuilt_slot_asset_does_not_require_a_repetition(ministack: S3Server) -> None:
    """The asset's rows do not name their object, so each erasure removes the rebuilt slot again. If the erasure also
    asked for a repetition, the repetitions would never end.
    """
    place = prepared(ministack)
    erased(place)
    made_from = {SLOT: newest(place).manifest.slot(SLOT).generation}
    rows = {"_slot": pa.array([0], pa.int32()), "text": ["clean"]}
    derive(place.source, "summed", pa.table(rows), made_from)
    again = erased(place)
    assert (again.cleared, again.again_ms) == (("summed",), 0)


def test_count_of_objects_without_records_excludes_the_erased_object(ministack: S3Server) -> None:
    """Otherwise `status` would report an object that no longer exists. The counts of other objects stay."""
    place = Place(ministack, slots=1)
    for key in (KEY, "blank"):
        place.store.put(f"raw/{key}", b"\n\n")
    place.put("other", 1)
    place.run("1")
    counted = lambda: place.snapshot().manifest.slot(SLOT).without_records
    assert counted() == 2
    place.store.delete(f"raw/{KEY}")
    erased(place)
    assert counted() == 1
    place.store.delete("raw/other")
    erase(place.source, "raw/other")
    assert counted() == 1
    place.store.delete("raw/blank")
    place.run("3")
    assert counted() == 0


def test_erase_refuses_existing_objects_foreign_keys_and_lost_tables(ministack: S3Server) -> None:
    """If the object still existed, it would be ingested again after the erasure. A key with another prefix belongs to
    another source.
    """
    place = Place(ministack, slots=1)
    place.put("a", 1)
    place.run("1")
    before = place.objects()
    with pytest.raises(UsageError, match="delete the object first"):
        erase(place.source, "raw/a")
    with pytest.raises(UsageError, match="reads keys below 'raw/'"):
        erase(place.source, "elsewhere/a")
    assert place.objects() == before
    place.store.delete("raw/a")
    AckChains(place.source.location.records()).open_batch("b", ["0"])
    assert erase(place.source, "raw/a").batches == ("b",), "its run may still write a file with the object"
    place.store.delete(place.source.location.layout.version(newest(place).version))
    with pytest.raises(CorruptError, match="table forget"):
        erase(place.source, "raw/a")


def test_erase_clears_the_queue_if_there_is_no_table(ministack: S3Server) -> None:
    place = Place(ministack, slots=1)
    queue = place.source.location.queue()
    queue.topics.create("orders", TopicSettings(prefix="raw/", slots=1))
    queue.push("orders", Event(key=f"raw/{KEY}", bucket=place.source.input.bucket.bucket))
    done = erased(place)
    assert (done.of_source.found, done.entries) == (False, 1)
    assert not time_travel(place.source.location, place.store)


@pytest.mark.parametrize("follows", [False, True], ids=["aggregate", "clustered"])
def test_erasure_that_is_killed_before_its_signal_is_completed_by_a_repetition(
    ministack: S3Server, follows: bool
) -> None:
    """Otherwise a derived table would lack the rows of all other objects of the slot until the slot changes again."""
    place = Place(ministack, slots=1)
    place.put(KEY, NUMBER)
    place.put("other", 1)
    place.run("1")
    if follows:
        place.source = replace(place.source, clustered=Clustered(columns=("a",)))
        place.source.following("orders_clustered").follow()
    else:
        rows = {"_slot": pa.array([0], pa.int32()), "text": [MARK]}
        derive(place.source, "summed", pa.table(rows), {SLOT: newest(place).manifest.slot(SLOT).generation})
    place.store.delete(f"raw/{KEY}")
    prefix = place.source.location.keyspace_prefix
    watcher = Watcher(place.store, prefix=prefix)
    watcher.poll()
    with pytest.raises(CrashedError):
        erased(place, FaultyStore(place.store, crash_at_signals(prefix)))
    assert not watcher.poll().changed
    again = erased(place)
    assert [*watcher.poll().changed] == [SLOT]
    assert again.cleared == (() if follows else ("summed",)), "a person learns that the slot is empty"
    assert again.again_ms == 0


class Writes:
    """Crashes at the write with this number, before or after the write is applied."""

    def __init__(self, number: int, fault: Fault) -> None:
        self.left, self.fault = number, fault

    def __call__(self, call: Call) -> Fault:
        if call.method not in ("put", "delete"):
            return Fault.NONE
        self.left -= 1
        return self.fault if self.left < 0 else Fault.NONE


ALL = [(first, fault) for first in range(3) for fault in (Fault.CRASH_AFTER, Fault.CRASH_BEFORE)]


@pytest.mark.parametrize(
    ("first", "fault"), [ALL[0], *(pytest.param(*each, marks=pytest.mark.thorough) for each in ALL[1:])]
)
def test_erasure_that_is_killed_at_any_write_is_completed_by_a_repetition(
    ministack: S3Server, first: int, fault: Fault
) -> None:
    """A killed erasure must neither lose rows of other objects, nor leave traces of the erased object after its
    repetition.
    """
    place = prepared(ministack)
    done = False
    for number in range(first, 200, 3):
        with suppress(CrashedError):
            erased(place, FaultyStore(place.store, Writes(number, fault)))
            done = True
        values = place.values()
        assert (values[1], values[3]) == (1, 1), number
        if done:
            break
    assert done
    check(place)
