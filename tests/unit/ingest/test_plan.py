"""A plan's rows, and what sources and Spark errors come to. No Spark session."""

import pickle
from dataclasses import replace

import pytest

from s3notify_platform.errors import UnavailableError, UsageError
from s3notify_platform.ingest.plan import collected, refuse_missing
from s3notify_platform.ingest.results import SlotResult, added_result
from s3notify_platform.ingest.source import Input, Source
from s3notify_platform.ingest.splits import TASK_BYTES, Assigned, assign_splits
from s3notify_platform.ingest.wire import (
    PLANNED,
    ComparedSlot,
    FailedSlot,
    Gone,
    Planned,
    QueuedEntry,
    Requests,
    ToRead,
    UnqueuedSlot,
)
from s3notify_platform.ports import ETag
from s3notify_platform.protocols.notification_queue.entries import Place
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split, parts_of
from s3notify_platform.slots import Slot
from s3notify_platform.spark.failures import own_error, reason_of
from s3notify_platform.spark.session import session_conf
from s3notify_platform.stores.config import S3Config
from s3notify_platform.table.layout import Generation

BUCKET = S3Config(bucket="b")
SPLIT_BYTES = Input(bucket=BUCKET).split_bytes


def source(**fields: object) -> Source:
    given = {"name": "n", "bucket": BUCKET, "platform": BUCKET, "prefix": "raw/", "format": "jsonl"} | fields
    return Source.of(**given)


def test_a_slot_whose_commits_are_missing_is_refused() -> None:
    """Only that one: it is never read a second time unasked; a slot that never had a commit is."""
    heads = [
        ComparedSlot(
            slot=Slot(slot),
            generation=Generation(generation),
            objects=1,
            held=1,
            withdrawn=0,
            complete=True,
            beyond=0,
        )
        for slot, generation in ((1, 0), (2, 0), (3, 4))
    ]
    found = collected("topic", heads)
    refuse_missing(found, {Slot(1): Generation(1), Slot(3): Generation(4)}, source())
    assert found.missing == {1}
    assert found.slots.keys() == {2, 3}
    assert found.errors.keys() == {1}
    assert "s3notify table forget" in found.errors[Slot(1)]


def test_collected() -> None:
    version = ObjectVersion(slot=Slot(4), key="k", etag=ETag("e"), size=9)
    head = ComparedSlot(
        slot=Slot(4), generation=Generation(3), objects=1, held=1, withdrawn=0, complete=False, beyond=0
    )
    rows: list[Planned] = [
        Requests(requests={"LIST": 2}),
        ToRead(split=Split(version=version, start=0, end=9), announced=True),
        Gone(slot=Slot(4), key="g", announced=False),
        QueuedEntry(
            slot=Slot(4),
            key="k",
            shard=2,
            epoch="epoch",
            segment="0-a.4",
            quota=7,
            n=9,
            time_ms=1000,
            expiry=False,
            of_version=False,
        ),
        UnqueuedSlot(slot=Slot(6)),
        head,
        ComparedSlot(
            slot=Slot(5),
            generation=Generation(0),
            objects=0,
            held=0,
            withdrawn=0,
            complete=True,
            beyond=0,
            unaddressable=9,
            unaddressable_keys=("a/./b",),
        ),
        FailedSlot(slot=Slot(7), error="why"),
        FailedSlot.of(Slot(8), UnavailableError("503")),
        Requests(requests={"GET": 1, "LIST": 1}, overran=2),
    ]
    found = collected("topic", PLANNED.read([PLANNED.batch(rows)]))
    assert found.overran == 2
    assert found.errors == {7: "why", 8: "UnavailableError: 503"}
    assert found.outages == {8}
    assert found.requests == {"LIST": 3, "GET": 1}
    assert found.slots[Slot(4)].generation == 3
    assert [s.version.key for s in found.slots[Slot(4)].changes.read] == ["k"]
    assert found.slots[Slot(4)].changes.gone == ("g",)
    assert not found.slots[Slot(4)].changes.complete
    assert not found.slots[Slot(5)].changes
    assert found.listed == {4: 1, 5: 0}
    assert found.unannounced == {4: {"g"}}
    assert found.unqueued == {6}
    assert (found.unaddressable, found.unaddressable_keys) == (9, ["a/./b"])
    assert Slot(6) not in found.slots
    (entry,) = found.entries[Slot(4)]
    assert entry.place == Place(topic="topic", epoch="epoch", shard=2, key="0-a.4", quota=7)
    assert (entry.id, entry.event.key) == ("0-a.9", "k")
    assert found.overdue(now_ms=62_000, seconds=60) == {"k": 61.0}
    assert found.overdue(now_ms=61_000, seconds=60) == {}


def splits(sizes: dict[int, list[int]]) -> list[Split]:
    versions = [
        ObjectVersion(slot=Slot(slot), key=f"{slot}/{n}", etag=ETag("e"), size=size)
        for slot, listed in sizes.items()
        for n, size in enumerate(listed)
    ]
    return [Split(version=version, start=0, end=version.size) for version in versions]


def assigned(slots: list[Slot], work: list[Split], width: int) -> Assigned:
    return assign_splits(slots, work, width, source())


def test_slots_are_assigned_whole_if_that_is_balanced() -> None:
    found = assigned([Slot(n) for n in range(20)], splits({n: [100, n] for n in range(19)}), 4)
    assert found.together
    assert found.tasks == 4
    assert sorted({*found.slot_tasks}) == [0, 1, 2, 3]
    of_slot = dict(enumerate(found.slot_tasks))
    assert [of_slot[s.version.slot] for s in found.splits] == found.split_tasks


def test_a_slot_much_larger_than_others_is_spread() -> None:
    """Unless all of it is little anyway."""
    big = assigned([Slot(0), Slot(1)], splits({0: [TASK_BYTES] * 4, 1: [1]}), 2)
    assert not big.together
    assert len({t for s, t in zip(big.splits, big.split_tasks, strict=True) if s.version.slot == 0}) == 4
    assert big.tasks == 5
    assert assigned([Slot(0), Slot(1)], splits({0: [1000] * 10, 1: []}), 2).together


def test_a_big_object_is_not_read_with_its_slot() -> None:
    """Its parts are assigned one by one; so is what goes on from an offset, however little that is."""
    (whole,) = splits({0: [SPLIT_BYTES + 1]})
    assert not assigned([Slot(0)], [whole], 2).together
    found = assigned([Slot(0)], parts_of(whole, SPLIT_BYTES // 2), 2)
    assert (found.together, sorted({*found.split_tasks})) == (False, [0, 1])
    assert not assigned([Slot(0)], [replace(whole, start=SPLIT_BYTES)], 2).together


def test_nothing_to_read_is_assigned_too() -> None:
    found = assigned([Slot(3), Slot(4)], [], 8)
    assert (found.together, found.tasks, list(found.split_tasks)) == (True, 2, [])


def test_results_of_several_rounds_add_up() -> None:
    first = SlotResult(
        slot=Slot(1),
        status="committed",
        generation=Generation(1),
        objects=2,
        rows=3,
        failed_objects={"a": "x"},
    )
    second = SlotResult(
        slot=Slot(1), status="committed", generation=Generation(2), objects=1, rows=1, live_rows=4
    )
    both = added_result(first, second)
    assert (both.generation, both.objects, both.rows, both.live_rows) == (2, 3, 4, 4)
    assert not both.ok
    unchanged = SlotResult(slot=Slot(1), status="unchanged")
    assert added_result(first, unchanged) == first
    assert added_result(None, unchanged) == unchanged
    failed = SlotResult(slot=Slot(1), status="failed", error="lost")
    assert added_result(failed, second) == second
    assert added_result(first, failed).status == "failed"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": "With Capitals"}, "source name"),
        ({"format": "xml"}, "format 'xml'"),
        ({"max_objects": 0}, "max_objects=0"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"encoding": "zip"}, "encoding 'zip'"),
        ({"slots": 0}, "slots=0"),
        ({"slots": 1001}, "slots=1001"),
        ({"platform_prefix": "no-slash"}, "end it with '/'"),
        ({"prefix": "_s3notify/n/table/"}, "among the platform's own objects"),
        ({"prefix": "raw/own/in/", "platform_prefix": "raw/own/"}, "among the platform's own objects"),
        ({"prefix": "raw/", "keyspace_prefix": "raw/"}, "among the platform's own objects"),
        ({"modified_after": "2026-01-01T00:00:00"}, "say of which zone it is"),
    ],
)
def test_sources_that_cannot_be(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        source(**fields)


def test_sources_pickle_and_may_stand_apart() -> None:
    apart = source(prefix="", platform=S3Config(bucket="other"))
    assert pickle.loads(pickle.dumps(apart)) == apart
    assert apart.location.layout.prefix == "_s3notify/n/table/"
    assert len(source(slots=3).location.all_slots()) == 3


def test_session_by_configuration() -> None:
    local = session_conf(master="local[*]")
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in session_conf(master="spark://host:7077")
    assert session_conf(remote="sc://host:15002")["spark.remote"] == "sc://host:15002"
    assert session_conf(master="local[*]", extra={"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"
    for both_or_none in ({}, {"master": "local[*]", "remote": "sc://host"}):
        with pytest.raises(UsageError, match="Spark master"):
            session_conf(**both_or_none)


TRACEBACK = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/x/s3.py", line 2, in _send
    raise UnavailableError("x: y")
s3notify_platform.errors.UnavailableError: bucket 'b' is unavailable: ConnectTimeoutError

During handling of the above exception, another exception occurred:
ValueError: last
 SQLSTATE: 38000
"""


def test_errors_of_tasks() -> None:
    """The line that a person wants; and our own errors come out of a task as what they were."""
    assert reason_of(Exception(TRACEBACK)) == "ValueError: last"
    assert (
        reason_of(Exception("[DIVIDE_BY_ZERO] Division by zero.\nmore"))
        == "[DIVIDE_BY_ZERO] Division by zero."
    )
    assert reason_of(Exception()) == "Exception"
    own = own_error(Exception(TRACEBACK))
    assert (type(own), str(own)) == (UnavailableError, "bucket 'b' is unavailable: ConnectTimeoutError")
    assert own_error(Exception("something else")) is None
