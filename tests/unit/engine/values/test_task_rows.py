"""Rows between driver and tasks: each kind of row has its own columns, and is read as it was written."""

import pickle
from typing import Any

import pytest

from s3notify_platform.engine.stage.staging import STAGED_COLUMN
from s3notify_platform.engine.values.object_read import Outcome
from s3notify_platform.engine.values.row_schema import Rows, Task
from s3notify_platform.engine.values.task_rows import (
    LINEAGE_COLUMNS,
    LISTED,
    STAGED,
    WORK,
    FailedSlot,
    ReadObject,
    Requests,
    SplitOfTask,
    StoredRows,
    WantedSlot,
    WrittenPack,
)
from s3notify_platform.formats.registry import RESERVED
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split, UnchosenObject

VERSION = ObjectVersion(slot=Slot(3), key="a/\u00e9", etag=ETag("e"), size=1 << 40)
SPLIT = Split(version=VERSION, start=5, end=9, by_record=True, limit_bytes=7)
OUTCOME = Outcome.whole(
    "failed", "e", 9, reason="why", unnamed={"a": 1}, new_fields=("x",), parts=(0, 5), stored=2
)


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (
            LISTED,
            [
                WantedSlot(slot=Slot(3)),
                VERSION,
                UnchosenObject(slot=Slot(3), key="k"),
                Requests(requests={"GET": 1}),
            ],
        ),
        (WORK, [SplitOfTask(task=Task(1), split=SPLIT)]),
        (
            STAGED,
            [
                ReadObject(slot=Slot(3), key="k", outcome=Outcome.whole("ok", "e", 9)),
                ReadObject(slot=Slot(3), key="k", outcome=OUTCOME),
                WrittenPack(of_rejects=True, key="k", start=5, pack="{}"),
                StoredRows(slot=Slot(3), key="k", etag="e", rows=7),
            ],
        ),
        (WORK, []),
    ],
)
def test_rows_round_trip(table: Rows[Any], rows: list[Any]) -> None:
    """If a row lost a value between driver and task, the task would read a wrong part of an object, or the driver would
    commit a wrong state. The `Rows` object itself may have been pickled together with a task.
    """
    batch = table.batch(rows)
    assert batch.schema == table.schema
    for each in (table, pickle.loads(pickle.dumps(table))):
        assert list(each.read([batch])) == rows


def test_a_message_with_invalid_text_is_escaped() -> None:
    """An error message may quote invalid bytes of an object. Without escapes, the message could not become a row, and
    one damaged object would fail its whole task.
    """
    assert FailedSlot.of(Slot(3), CorruptError("why \ud800")).error == "CorruptError: why \\ud800"
    read = ReadObject(slot=Slot(3), key="k", outcome=Outcome.whole("failed", "e", 9, reason="why \ud800"))
    (found,) = STAGED.read([STAGED.batch([read])])
    assert isinstance(found, ReadObject)
    assert found.outcome.reason == "why \\ud800"


def test_columns_of_a_source_cannot_have_internal_names() -> None:
    assert {*LINEAGE_COLUMNS, STAGED_COLUMN} <= RESERVED


def test_spark_declares_the_same_columns() -> None:
    assert [column.split("`")[1] for column in STAGED.ddl.split(", ")] == STAGED.schema.names
