"""A column of a table gets another type while a stream reads the table."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from s3notify_platform.engine.driver import Ingest
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.spark.datasource.stream import ChangesReader
from s3notify_platform.table.arrow_schema import spark_schema
from s3notify_platform.table.change_columns import CHANGE_COLUMNS
from s3notify_platform.table.retype import Wanted, retyped
from tests.support.ingested import Place
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server
from tests.support.stream_query import COLUMNS, Killed, Query, changes_reader

pytestmark = [pytest.mark.server]


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        (pa.float32(), pa.float64(), [0.5, 0.1]),
        (pa.date32(), pa.timestamp("us", "UTC"), ["2026-01-02", "2026-01-02T03:04:05+00:00"]),
        (pa.int32(), pa.int64(), [1, 1 << 40]),
    ],
)
def test_stream_fails_at_values_of_a_new_type(
    ministack: S3Server, old: pa.DataType, new: pa.DataType, values: list[Any]
) -> None:
    """If a change of a type keeps all values exactly, no row changes, so the stream continues. Later values must not be
    rounded to the stream's type. After a restart, the stream must return these values.
    """
    place = Place(ministack)

    def add(kind: pa.DataType, value: object) -> None:
        place.store.put(f"raw/{kind}", json.dumps({"a": value}).encode())
        jobs = LocalJobs(source=place.source, kind=kind)
        Ingest(jobs=jobs, source=place.source).run(place.source.location.all_slots(), batch="b")

    def reader(kind: pa.DataType) -> ChangesReader:
        return changes_reader(place.source, columns=pa.schema([*COLUMNS.remove(4), ("a", kind)]))

    add(old, values[0])
    query = Query(place.source, reader=reader(old))
    query.drain()
    retyped(place.source.table(), place.snapshot(), Wanted(columns=spark_schema(pa.schema([("a", new)]))))
    add(new, values[1])
    with pytest.raises(UsageError, match="restart the stream with its checkpoint"):
        query.batch()
    query.reader = reader(new)
    ((row,),) = query.drain()
    assert row["a"] in (values[1], datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


@pytest.mark.parametrize("read", ["table", "changes"])
def test_repeated_micro_batch_with_values_of_an_earlier_type_asks_for_a_new_checkpoint(
    ministack: S3Server, read: str
) -> None:
    """The query died before it read the micro-batch, and the column got other values meanwhile. An error that asks for
    a restart with the same checkpoint would come again after each restart.
    """
    place = Place(ministack)
    old, new = (pa.schema([*COLUMNS.remove(4), ("a", kind)]) for kind in (pa.string(), pa.int64()))
    place.store.put("raw/a", json.dumps({"a": "7"}).encode())
    jobs = LocalJobs(source=place.source, kind=pa.string())
    Ingest(jobs=jobs, source=place.source).run(place.source.location.all_slots(), batch="b")

    def reader(columns: pa.Schema) -> ChangesReader:
        more = [] if read == "table" else [*CHANGE_COLUMNS]
        return changes_reader(place.source, columns=pa.schema([*columns, *more]), read=read)

    query = Query(place.source, options={"read": read}, reader=reader(old), dies="offset logged".__eq__)
    with pytest.raises(Killed):
        query.batch()
    retyped(
        place.source.table(), place.snapshot(), Wanted(columns=spark_schema(pa.schema([("a", pa.int64())])))
    )
    query.dies, query.reader = (lambda _: False), reader(new)
    with pytest.raises(
        UsageError, match=r"a as string\. A later version gave it another type.*use a new checkpoint"
    ):
        query.batch()
    begun = Query(place.source, options={"read": read}, reader=reader(new))
    begun.drain()
    begun.check(place.rows())
