"""A plan's rows, the assignment of splits to tasks, checks of sources, and errors of Spark. No test needs a Spark
session.
"""

import pickle
from dataclasses import replace

import pytest

from s3notify_platform.engine.read.splits import SMALL_TASK_BYTES, TASK_BYTES, assign_splits
from s3notify_platform.engine.values.results import SlotResult, added_result
from s3notify_platform.engine.values.slot_plan import Plan, SlotPlan, planned_in, planned_rows
from s3notify_platform.engine.values.task_rows import FailedSlot, Requests
from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry, Event
from s3notify_platform.protocols.notification_queue.entries import Place
from s3notify_platform.protocols.source_enumerator import (
    ObjectState,
    ObjectVersion,
    SlotChanges,
    Split,
    cut_to_bytes,
    parts_of,
)
from s3notify_platform.source.source import Source
from s3notify_platform.spark.failures import own_error, reason_of
from s3notify_platform.spark.session import session_conf
from s3notify_platform.stores.config import S3Config
from tests.support.sources import source_of

BUCKET = S3Config(bucket="b")


def source(**fields: object) -> Source:
    given = {"name": "n", "bucket": BUCKET, "platform": BUCKET, "prefix": "raw/", "format": "jsonl"} | fields
    return source_of(**given)


ENTRY = Entry(
    place=Place(topic="topic", epoch="epoch", shard=2, key="0-a.4", quota=7),
    n=9,
    slot=4,
    state="committed",
    event=Event(key="k", time_ms=1000),
)


def test_a_plan_survives_the_way_from_tasks_to_the_driver() -> None:
    """Otherwise a batch would silently omit slots, failures or entries that a task has found."""
    version = ObjectVersion(slot=Slot(4), key="k", etag=ETag("e"), size=9)
    four = SlotPlan(
        changes=SlotChanges(
            slot=Slot(4), read=(Split(version=version, start=0, end=9),), gone=("g",), complete=False
        ),
        before={"g": ObjectState(key="g", etag="old", size=1, reason="why", again=True)},
        entries=(ENTRY,),
        unannounced=frozenset("g"),
        objects=1,
        held=1,
    )
    five = SlotPlan(
        changes=SlotChanges(slot=Slot(5), read=(), gone=(), complete=True),
        unaddressable=9,
        unaddressable_keys=("a/./b",),
    )
    failed = [FailedSlot(slot=Slot(7), error="why"), FailedSlot.of(Slot(8), UnavailableError("503"))]
    rows = [
        [Requests(requests={"LIST": 2}), five, *failed],
        [four, Requests(requests={"GET": 1, "LIST": 1}, overran=2)],
    ]
    found = Plan.of(planned_in(map(planned_rows, rows)), chains=3)
    assert found.slots == {4: four, 5: five}
    assert [*found.slots] == [4, 5]
    assert found.failed == {each.slot: each for each in failed}
    assert found.failed[Slot(8)].outage
    assert (found.requests, found.chains, found.overran) == ({"LIST": 3, "GET": 1}, 3, 2)
    assert found.unannounced == {4: {"g"}}
    assert (found.total("objects"), found.total("unaddressable")) == (1, 9)
    assert found.overdue(now_ms=62_000, seconds=60) == {"k": 61.0}
    assert found.overdue(now_ms=61_000, seconds=60) == {}
    found.refuse(Slot(4), "too much has left")
    assert found.slots == {5: five}
    assert found.failed[Slot(4)].error == "too much has left"


def splits(sizes: dict[int, list[int]]) -> list[Split]:
    versions = [
        ObjectVersion(slot=Slot(slot), key=f"{slot}/{n}", etag=ETag("e"), size=size)
        for slot, listed in sizes.items()
        for n, size in enumerate(listed)
    ]
    return [Split(version=version, start=0, end=version.size) for version in versions]


def test_tasks_have_ranges_of_slots() -> None:
    """Otherwise the packs of each task would cover all slots, and later rounds would rewrite more packs. If the ranges
    had unequal numbers of bytes, a round would wait for its largest task.
    """
    ordered, tasks = assign_splits(splits({n: [SMALL_TASK_BYTES // 4] * 2 for n in range(20)}), 4)
    assert tasks == sorted(tasks)
    assert sorted({*tasks}) == [0, 1, 2, 3]
    assert [split.version.slot for split in ordered] == sorted(split.version.slot for split in ordered)
    assert {tasks.count(task) for task in range(4)} == {10}


def test_the_number_of_tasks_follows_the_bytes() -> None:
    """If few bytes had many tasks, the tasks would cost more time than they save, and would write needless packs. If
    many bytes had few tasks, the failure of one task would lose much work.
    """
    _, tasks = assign_splits(splits({n: [100] for n in range(20)}), 50)
    assert {*tasks} == {0}
    _, tasks = assign_splits(splits({0: [TASK_BYTES] * 8, 1: [1]}), 2)
    assert len({*tasks}) >= 8
    (whole,) = splits({0: [TASK_BYTES * 4]})
    _, tasks = assign_splits(parts_of(whole, TASK_BYTES), 2)
    assert len({*tasks}) == 4
    assert assign_splits([], 8) == ([], [])


def test_a_compressed_object_that_is_continued_costs_its_whole_size() -> None:
    """The object's split begins at a number of records, which may be greater than the number of compressed bytes. With
    a negative cost, the object would get a task with a negative number, and its other records could never be read.
    """
    (whole,) = splits({3: [61_000]})
    continued = replace(whole, start=600_000, by_record=True)
    _, tasks = assign_splits([continued, *splits({4: [10], 5: [10]})], 8)
    assert tasks == [0, 0, 0]
    changes = [SlotChanges(slot=Slot(3), read=(continued, whole), gone=(), complete=True, beyond=0)]
    (cut,) = cut_to_bytes(changes, 70_000, least=10, cuttable=lambda _: False)
    assert [split.by_record for split in cut.read] == [True], (
        "the second object exceeds the limit of the round"
    )


def test_results_of_several_rounds_add_up() -> None:
    first = SlotResult(
        slot=Slot(1),
        status="committed",
        generation=1,
        objects=2,
        rows=3,
        failed_objects={"a": "x"},
    )
    second = SlotResult(slot=Slot(1), status="committed", generation=2, objects=1, rows=1, live_rows=4)
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
        ({"format": "xml"}, "format='xml'"),
        ({"max_objects": 0}, "max_objects=0"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"encoding": "zip"}, "encoding 'zip'"),
        ({"slots": 0}, "slots=0"),
        ({"slots": 1001}, "slots=1001"),
        ({"platform_prefix": "no-slash"}, "end it with '/'"),
        ({"prefix": "_s3notify/n/table/"}, "among the platform's own objects"),
        ({"prefix": "raw/own/in/", "platform_prefix": "raw/own/"}, "among the platform's own objects"),
        ({"prefix": "raw/", "keyspace_prefix": "raw/"}, "among the platform's own objects"),
        ({"modified_after": "2026-01-01T00:00:00"}, "add the time zone"),
    ],
)
def test_invalid_sources_are_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        source(**fields)


def test_sources_can_be_pickled_and_may_have_another_bucket_for_the_platform() -> None:
    apart = source(prefix="", platform=S3Config(bucket="other"))
    assert pickle.loads(pickle.dumps(apart)) == apart
    assert apart.location.layout.prefix == "_s3notify/n/table/"
    assert len(source(slots=3).location.all_slots()) == 3


def test_a_session_is_configured_by_its_master_or_its_remote() -> None:
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
s3notify_platform.kernel.errors.UnavailableError: bucket 'b' is unavailable: ConnectTimeoutError

During handling of the above exception, another exception occurred:
ValueError: last
 SQLSTATE: 38000
"""


def test_errors_of_tasks_are_found_in_errors_of_spark() -> None:
    """Otherwise a person would have to search a long traceback for the one useful line. If an error of this package
    lost its class, an outage of the store would count as a failure of the data.
    """
    assert reason_of(Exception(TRACEBACK)) == "ValueError: last"
    assert (
        reason_of(Exception("[DIVIDE_BY_ZERO] Division by zero.\nmore"))
        == "[DIVIDE_BY_ZERO] Division by zero."
    )
    assert reason_of(Exception()) == "Exception"
    own = own_error(Exception(TRACEBACK))
    assert (type(own), str(own)) == (UnavailableError, "bucket 'b' is unavailable: ConnectTimeoutError")
    assert own_error(Exception("something else")) is None
