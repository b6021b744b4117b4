"""Rows between driver and tasks: what is written is what is read, each kind from its own columns."""

import pickle
from dataclasses import replace
from typing import Any

import pytest

from s3notify_platform.formats.registry import RESERVED
from s3notify_platform.ingest.outcome import Outcome
from s3notify_platform.ingest.results import SlotResult
from s3notify_platform.ingest.row_schema import Rows, Task
from s3notify_platform.ingest.wire import (
    LISTED,
    PLANNED,
    READ,
    STAGED,
    WORK,
    FailedSlot,
    Lineage,
    ReadObject,
    ReadSlot,
    Reject,
    Requests,
    SharedFiles,
    SlotOfTask,
    SplitOfTask,
    StagedSlot,
    ToRead,
    WantedSlot,
    WiderSlot,
)
from s3notify_platform.ports import ETag
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import StagedCommit, TableFile
from s3notify_platform.table.layout import Generation

VERSION = ObjectVersion(slot=Slot(3), key="a/\u00e9", etag=ETag("e"), size=1 << 40)
SPLIT = Split(version=VERSION, start=5, end=9, by_record=True, in_quotes=True, limit_bytes=7)
FILE = TableFile(name="f", rows=1, bytes=2, since=3, until=4)
COMMIT = StagedCommit(
    slot=Slot(3), generation=Generation(4), commit_id="c", body=b"\xff", rows=1, files=2, rejects=3, failing=4
)
RESULT = SlotResult(slot=Slot(3), status="committed", rows=1)


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (
            LISTED,
            [
                WantedSlot(slot=Slot(3), generation=None, recalled=True),
                VERSION,
                Requests(requests={"GET": 1}),
            ],
        ),
        (PLANNED, [ToRead(split=SPLIT, announced=False), FailedSlot(slot=Slot(3), error="why")]),
        (WORK, [SlotOfTask(task=Task(1), slot=Slot(3)), SplitOfTask(task=Task(1), split=SPLIT, child=None)]),
        (
            READ,
            [
                ReadSlot(slot=Slot(3)),
                ReadObject(slot=Slot(3), key="k", outcome=Outcome.whole("ok", "e", 9, data=(FILE,))),
                SharedFiles(slot=Slot(3), data_files=(FILE,), reject_files=()),
                Reject(slot=Slot(3), key="k", etag="e", offset=None, reason="bad", raw=b"\xff"),
                Lineage(slot=Slot(3), key="k", etag="e", offset=0),
            ],
        ),
        (
            STAGED,
            [
                StagedSlot(
                    commit=COMMIT,
                    result=replace(RESULT, failed_objects={"k": "why \ud800"}, unnamed={"a": 1}),
                ),
                StagedSlot(commit=None, result=RESULT),
                WiderSlot(slot=Slot(3), new_fields=("a", "b")),
            ],
        ),
        (WORK, []),
    ],
)
def test_there_and_back(table: Rows[Any], rows: list[Any]) -> None:
    """Also by a table that came with a task."""
    batch = table.batch(rows)
    assert batch.schema == table.schema
    for each in (table, pickle.loads(pickle.dumps(table))):
        assert list(each.read([batch])) == rows


def test_kinds_are_in_the_order_that_tasks_need() -> None:
    """Sorted by kind, what became of a slot's objects comes before its rows."""
    assert READ.kind(ReadObject) < READ.kind(SharedFiles) < READ.kind(Reject) < READ.kind(Lineage)


def test_columns_of_a_source_cannot_have_our_names() -> None:
    assert set(READ.schema.names) <= RESERVED


def test_spark_declares_the_same_columns() -> None:
    assert [column.split("`")[1] for column in STAGED.ddl.split(", ")] == STAGED.schema.names
    assert "`commit_body` binary" in STAGED.ddl
