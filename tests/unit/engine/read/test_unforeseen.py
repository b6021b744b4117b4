"""Unforeseen errors: the object that causes them, their tracebacks, and their limit."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from s3notify_platform.engine.driver import Ingest
from s3notify_platform.engine.read import fetch, isolation
from s3notify_platform.engine.read.isolation import isolated
from s3notify_platform.engine.read.reader import SplitReader
from s3notify_platform.engine.values.object_read import joined
from s3notify_platform.engine.values.results import BatchResult
from s3notify_platform.engine.values.task_rows import ReadObject
from s3notify_platform.engine.values.unforeseen import bounded, is_unforeseen, trace_of
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.kernel.limits import MAX_TRACE_BYTES
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.quarantined import Choice, retry
from s3notify_platform.table.snapshot import Snapshot
from tests.support.clocks import HandClock
from tests.support.deadly import RAISES, Deadly, deadly
from tests.support.ingested import keys_of
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server
from tests.support.sources import source_of

SLOTS = 4
ALL = [Slot(n) for n in range(SLOTS)]
BAD = "raw/bad"


class Site:
    """A source of 4 slots with 10 good objects, and a parser that raises an error on other objects."""

    def __init__(self, server: S3Server) -> None:
        config = server.config(server.make_bucket())
        self.store = S3ObjectStore(config)
        self.source = deadly(
            source_of(
                bucket=config,
                platform=config,
                name="orders",
                prefix="raw/",
                format="jsonl",
                slots=SLOTS,
                commit="native",
            )
        )
        self.said: list[str] = []
        self.good = [f"raw/{n}" for n in range(10)]
        for key in self.good:
            self.store.put(key, b'{"a":1}\n')

    def ingest(self, **arguments: Any) -> BatchResult:
        jobs, clock = LocalJobs(source=self.source), HandClock()
        ingest = Ingest(jobs=jobs, source=self.source, clock=clock, progress=self.said.append)
        return ingest.run(ALL, batch="b", **arguments)

    def rows(self) -> Counter[str]:
        return keys_of(self.source)

    def traces(self) -> dict[str, str]:
        """The tracebacks of all objects in quarantine."""
        table = self.source.table()
        found = table.newest()
        assert isinstance(found, Snapshot)
        failing = table.states.failing(found.manifest.states, ALL)
        return {key: state.trace for of_slot in failing.values() for key, state in of_slot.items()}


@pytest.fixture
def site(ministack: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setitem(FORMATS, Deadly.name, Deadly())
    site = Site(ministack)
    yield site
    site.store.close()


@pytest.mark.server
def test_an_object_on_which_a_parser_raises_an_error_is_quarantined(site: Site) -> None:
    """Without the quarantine, each retry would have the same error, and the object's slot would fail in every batch. If
    the object's earlier rows stayed in the table, readers would still see overwritten values.
    """
    site.store.put(BAD, b'{"a":1}\n')
    site.ingest()
    assert site.rows()[BAD] == 1
    site.store.put(BAD, RAISES)
    site.store.put("raw/new", b'{"a":1}\n')
    site.good.append("raw/new")
    slot = slot_of(BAD, SLOTS)
    first = site.ingest()
    assert {s for s, each in first.slots.items() if not each.ok} == {slot}
    assert first.slots[slot].failed_objects == {BAD: "KeyError: 'nobody foresaw it'"}
    assert site.rows() == Counter([*site.good, BAD]), "its old row"
    last = site.ingest(last_attempt=ALL).slots[slot]
    assert (last.ok, set(last.quarantined)) == (True, {BAD})
    assert site.rows() == Counter(site.good)
    (trace,) = site.traces().values()
    assert trace.startswith("Traceback")
    assert "tests/support/deadly.py" in trace
    assert site.ingest().slots[slot].status == "unchanged"


@pytest.mark.server
def test_the_log_has_a_traceback_once(site: Site) -> None:
    """Otherwise a single defect would repeat its traceback for each object and slot, and other messages would be hard
    to find in the log.
    """
    bad = [f"raw/bad-{n}" for n in range(6)]
    for key in bad:
        site.store.put(key, RAISES)
    result = site.ingest()
    assert {key for each in result.slots.values() for key in each.failed_objects} == {*bad}
    assert len([text for text in site.said if "Traceback (most recent call last)" in text]) == 1


@pytest.mark.server
def test_a_defect_does_not_quarantine_all_objects(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit, a defective release could bring all objects of a source to quarantine, and remove their earlier
    rows from the table. After a correction of the defect, a retry must bring all objects back.
    """
    monkeypatch.setattr("s3notify_platform.engine.driver.MAX_UNFORESEEN", 3)
    for n in range(3):
        site.store.put(f"raw/first-{n}", RAISES)
    assert all(each.ok for each in site.ingest(last_attempt=ALL).slots.values())
    assert {*site.traces()} == {f"raw/first-{n}" for n in range(3)}
    site.store.put(BAD, RAISES)
    site.store.put("raw/new", b'{"a":1}\n')
    result = site.ingest(last_attempt=ALL)
    assert {slot for slot, each in result.slots.items() if not each.ok} == {slot_of(BAD, SLOTS)}
    assert BAD not in site.traces()
    assert any("slots stay failed" in text for text in site.said)
    assert site.rows() == Counter([*site.good, "raw/new"])

    monkeypatch.setattr("tests.support.deadly.RAISES", b"mended")
    location = site.source.location
    signals = Publisher(site.store, prefix=location.keyspace_prefix, slots=SLOTS)
    assert retry(site.source.table(), ALL, signals, Choice()).failing == 3
    assert all(each.ok for each in site.ingest().slots.values())
    assert len(site.rows()) == len(site.good) + 5
    assert site.traces() == {}


@pytest.mark.server
def test_an_unforeseen_answer_of_the_store_affects_only_one_object(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = fetch.meta_of

    def meta_of(key: str, found: Any) -> Any:
        if key == BAD:
            raise OverflowError("a date of the year 10000")
        return read(key, found)

    monkeypatch.setattr(fetch, "meta_of", meta_of)
    site.store.put(BAD, b'{"a":1}\n')
    last = site.ingest(last_attempt=ALL).slots[slot_of(BAD, SLOTS)]
    assert dict(last.quarantined) == {BAD: "OverflowError: a date of the year 10000"}
    assert site.rows() == Counter(site.good)


@pytest.mark.server
def test_a_part_fails_if_a_parser_raises_an_error_on_it(site: Site) -> None:
    """If the part counted as read, the rows before the error would be committed, and the rest of the object would be
    lost. Without the traceback, nobody could find the defect.
    """
    body = b'{"a":1}\n' * 3 + RAISES
    site.store.put(BAD, body)
    meta = site.store.head(BAD)
    assert meta is not None
    version = ObjectVersion(slot=slot_of(BAD, SLOTS), key=BAD, etag=meta.etag, size=meta.size)
    reader = SplitReader(source=site.source, schema=pa.schema([("a", pa.int64())]), inferred=False)
    *rows, ended = reader.pieces(Split(version=version, start=0, end=version.size))
    assert rows
    assert isinstance(ended, ReadObject)
    assert (ended.outcome.status, ended.outcome.outage) == ("failed", False)
    assert ended.outcome.reason == "KeyError: 'nobody foresaw it'"
    assert ended.outcome.trace.startswith("Traceback")
    joint = joined([ended.outcome], whole=False)
    assert (joint.status, joint.rows, joint.trace) == ("failed", 0, ended.outcome.trace)


def parse(part: Sequence[int]) -> Iterator[str]:
    """Returns the numbers as texts, all together; raises an error if a number is negative."""
    if min(part) < 0:
        raise ValueError(min(part))
    yield from map(str, part)


def test_bad_objects_are_isolated_by_halving() -> None:
    """Otherwise one bad object would fail all objects that are parsed in the same call. If a good object were returned
    twice, its rows would be in the table twice.
    """
    found = isolated([1, 2, -3, 4, -5], parse, lambda number, error: f"failed {number} {error}", len)
    assert [*found] == ["1", "2", "failed -3 -3", "4", "failed -5 -5"]


def test_an_error_is_raised_if_results_were_already_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some results were already returned, so the caller must try the objects one by one."""
    monkeypatch.setattr(isolation, "HELD_BYTES", 3)

    def late(part: Sequence[int]) -> Iterator[str]:
        for number in part:
            yield from parse([number])

    with pytest.raises(ValueError, match="-5"):
        list(isolated([1, 2, 3, 4, -5], late, lambda *_: "failed", len))


def test_an_outage_is_not_unforeseen() -> None:
    """Otherwise an outage, or a lack of memory that another process causes, would bring good objects to quarantine."""

    def raising(_: Sequence[int]) -> Iterator[str]:
        raise UnavailableError("no answer")
        yield

    with pytest.raises(UnavailableError):
        list(isolated([1], raising, lambda *_: "failed", len))
    for error in (TimeoutError(), ConnectionResetError(), MemoryError(), UnavailableError("no answer")):
        assert not is_unforeseen(error)
    assert is_unforeseen(KeyError("x"))


def test_tracebacks_are_bounded() -> None:
    """A traceback is limited in bytes. The beginning and the end of the traceback must stay."""
    try:
        raise KeyError("é" * 100_000)
    except KeyError as error:
        trace = trace_of(error)
    assert len(trace.encode()) <= MAX_TRACE_BYTES
    assert "KeyError" in trace
    long = bounded("first\n" + "é\n" * 10_000 + "last")
    assert len(long.encode()) <= MAX_TRACE_BYTES
    assert (long[:5], long[-4:]) == ("first", "last")
