"""Erasing an object for good, on a real server: afterwards nothing of the platform's holds a mark that was in it."""

import io
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s3notify_platform.clock import SYSTEM_CLOCK, unique_name
from s3notify_platform.errors import UsageError
from s3notify_platform.ingest.erase import Erased, erase
from s3notify_platform.ports import ObjectStore, StoredObject, Written, list_all
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.notification_queue import Event, TopicSettings
from s3notify_platform.protocols.notification_queue.entries import dead_partition
from s3notify_platform.protocols.notification_queue.segments import encode_letter, letter_key
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotCommit, TableFile
from s3notify_platform.table.history import history
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.vacuum import vacuum
from tests.support.faults import Call, CrashedError, Fault, FaultyStore
from tests.support.ingested import Place
from tests.support.servers import S3Server

pytestmark = pytest.mark.server

MARK, NUMBER = "person4711", 471147114711
KEY = f"{MARK}.jsonl"
SLOT = Slot(0)


@pytest.fixture(autouse=True)
def pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """States are in pages and in commits."""
    monkeypatch.setattr("s3notify_platform.table.states.DELTA_LIMIT", 1)


def decoded(body: bytes) -> str:
    if body[:4] != b"PAR1":
        return body.decode("utf-8", "backslashreplace")
    file = pq.ParquetFile(io.BytesIO(body))
    return f"{file.read().to_pydict()} {file.metadata.metadata}"


def marked(place: Place) -> set[str]:
    """The platform's objects that hold the mark, by key or in their rows."""
    found = set()
    for meta in list(list_all(place.store, "_s3notify")):
        stored = place.store.get(meta.key)
        assert isinstance(stored, StoredObject)
        text = f"{meta.key} {decoded(stored.body)}"
        if MARK in text or str(NUMBER) in text:
            found.add(meta.key)
    return found


def delta_versions(place: Place) -> int:
    """How many Delta versions can be read; none shows the mark."""
    readable = 0
    with tempfile.TemporaryDirectory() as folder:
        root = place.source.location.layout.view
        for meta in list(list_all(place.store, f"{root}/")):
            stored = place.store.get(meta.key)
            assert isinstance(stored, StoredObject)
            path = Path(folder) / meta.key.removeprefix(f"{root}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(stored.body)
        last = deltalake.DeltaTable(folder).version()
        for version in range(last + 1):
            with suppress(OSError, FileNotFoundError):  # its files are gone
                rows = deltalake.DeltaTable(folder, version=version).to_pyarrow_table().to_pydict()
                assert MARK not in str(rows)
                assert NUMBER not in rows.get("a", [])
                readable += 1
        assert readable == 0 or NUMBER not in deltalake.DeltaTable(folder).to_pyarrow_table()["a"].to_pylist()
    return readable


def derive(place: Place, asset: str, rows: pa.Table, made_from: Generation) -> None:
    """What a slot asset makes of the slot."""
    table = place.source.table(place.source.location.table_layout(asset))
    name, sink = unique_name(SYSTEM_CLOCK), io.BytesIO()
    pq.write_table(rows, sink)
    place.store.put(table.layout.data(SLOT, name), sink.getvalue())
    file = TableFile(name=name, rows=rows.num_rows, bytes=len(sink.getvalue()))
    commit = SlotCommit.after(
        table.head(SLOT), SLOT, batch="b", clock=SYSTEM_CLOCK, files=(file,), source_generation=made_from
    )
    assert isinstance(table.commit(commit.staged(), planned_at=SYSTEM_CLOCK.monotonic()), Written)


def prepared(server: S3Server) -> Place:
    """Several versions of the object in one slot, with others; everywhere that something of it can be."""
    place = Place(server, slots=1)
    queue = place.source.location.queue()
    bucket = place.source.input.bucket.bucket
    for topic in ("orders", "hooks"):
        queue.topics.create(topic, TopicSettings(bucket=bucket, prefix="raw/", slots=1))
    place.put("other", 1)
    place.run("1")
    place.source.view().sync([SLOT])
    body = b'{"a":%d}\n{"a": %s}\n' % (NUMBER, MARK.encode())  # one row, one reject
    place.store.put(f"raw/{KEY}", body)
    place.run("2")
    place.source.view().sync([SLOT])
    place.put("third", 3)
    place.store.put(f"raw/{KEY}", body * 2)
    next(iter(place.rounds()))  # staged, and never committed
    place.run("3")
    head = place.source.table().head(SLOT)
    assert head is not None
    derive(
        place, "keyed", pa.table({"_key": ["raw/other", f"raw/{KEY}"], "text": ["x", MARK]}), head.generation
    )
    derive(place, "summed", pa.table({"text": [MARK]}), head.generation)
    for topic in ("orders", "hooks"):
        queue.push(topic, Event(key=f"raw/{KEY}", bucket=bucket))
        queue.push(topic, Event(key="raw/other", bucket=bucket))
    for entry in queue.entries("hooks", [0]):
        letter = replace(entry, state="dead", reason=f"about {entry.event.key}")
        queue.updates.create(dead_partition("hooks"), letter_key(letter), encode_letter(letter))
    place.store.delete(f"raw/{KEY}")
    return place


def erased(place: Place, platform: ObjectStore | None = None) -> Erased:
    return erase(place.source, f"raw/{KEY}", platform=platform)


def check(place: Place) -> None:
    """Nothing of the object is left, and nothing of others is missing."""
    assert marked(place) == set()
    assert +place.values() == {1: 1, 3: 1}
    table = place.source.table()
    generations = list(history(table, SLOT))
    assert [seen.commit.generation for seen in generations] == list(range(len(generations), 0, -1))
    assert [seen.commit.objects for seen in generations][-3:] == [2, 1, 1]
    assert [seen.commit.rows for seen in generations][-3:] == [2, 1, 1]
    keyed = place.source.table(place.source.location.table_layout("keyed")).head(SLOT)
    assert keyed is not None
    assert keyed.rows == 1
    queue = place.source.location.queue()
    assert [entry.event.key for topic in ("orders", "hooks") for entry in queue.entries(topic, [0])] == [
        "raw/other"
    ] * 2
    assert [letter.event.key for letter in queue.dead("hooks")] == ["raw/other"]
    assert place.known() == place.heads()


def test_erase(ministack: S3Server) -> None:
    """From rows, rejects, states, history, files that no commit names, slot assets, queue and Delta versions."""
    place = prepared(ministack)
    assert len(marked(place)) > 10
    done = erased(place)
    check(place)
    assert done.cleared == ("summed",)
    summed = place.source.table(place.source.location.table_layout("summed")).head(SLOT)
    assert summed is not None
    assert (summed.rows, summed.source_generation) == (0, 0), "the next batch makes it again"
    assert delta_versions(place) >= 1
    synced = place.source.view().sync([SLOT])
    assert (synced.rows, synced.slots) == (2, 0)
    before = place.snapshot()
    again = erased(place)
    assert (again.commits, again.files, again.entries) == (0, 0, 0)
    assert place.snapshot() == before, "safe to repeat"
    vacuum(place.source.table(), retention_seconds=7 * 86_400)
    place.store.put(f"raw/{KEY}", b'{"a":5}\n')
    place.run("4")
    assert +place.values() == {1: 1, 3: 1, 5: 1}, "a new object of this name is one as any"


def test_objects_without_records_are_counted_without_it(ministack: S3Server) -> None:
    """In every commit, so that `status` names no object that is gone; another one, and one with rows, stay counted."""
    place = Place(ministack, slots=1)
    for key in (KEY, "blank"):
        place.store.put(f"raw/{key}", b"\n\n")
    place.put("other", 1)
    place.run("1")
    place.put("third", 3)
    place.run("2")
    table = place.source.table()
    counted = lambda: [seen.commit.without_records for seen in history(table, SLOT)]
    assert counted() == [2, 2]
    place.store.delete(f"raw/{KEY}")
    erased(place)
    assert counted() == [1, 1, 1]
    place.store.delete("raw/other")
    erase(place.source, "raw/other")
    assert counted() == [1, 1, 1, 1]
    place.store.delete("raw/blank")
    place.run("3")
    assert counted() == [0, 1, 1, 1, 1]


def test_refusals(ministack: S3Server) -> None:
    """An object that is there would be taken in again; one elsewhere is another source's."""
    place = Place(ministack, slots=1)
    place.put("a", 1)
    place.run("1")
    before = place.snapshot()
    with pytest.raises(UsageError, match="delete the object first"):
        erase(place.source, "raw/a")
    with pytest.raises(UsageError, match="reads keys below 'raw/'"):
        erase(place.source, "elsewhere/a")
    assert place.snapshot() == before
    place.store.delete("raw/a")
    AckChains(place.source.location.records()).open_batch("b", ["0"])
    assert erase(place.source, "raw/a").batches == ("b",), "which may write a file of it yet"


class Writes:
    """A crash at the write of this number, before or after it is applied."""

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
def test_killed_anywhere(ministack: S3Server, first: int, fault: Fault) -> None:
    """Rows of others are there all along; repeated, nothing is left."""
    place = prepared(ministack)
    for number in range(first, 100, 3):
        try:
            erased(place, FaultyStore(place.store, Writes(number, fault)))
        except CrashedError:
            values: Any = place.values()
            assert (values[1], values[3]) == (1, 1), number
            place.source.view().sync([SLOT])
            assert delta_rows(place) == sorted(values.elements()), number
        else:
            break
    check(place)


def delta_rows(place: Place) -> list[int]:
    """What the Delta view's last version shows, by its log."""
    location = place.source.location
    with tempfile.TemporaryDirectory() as folder:
        for meta in list(list_all(place.store, f"{location.layout.view}/")):
            stored = place.store.get(meta.key)
            assert isinstance(stored, StoredObject)
            path = Path(folder) / meta.key.removeprefix(f"{location.layout.view}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(stored.body)
        return sorted(deltalake.DeltaTable(folder).to_pyarrow_table()["a"].to_pylist())
