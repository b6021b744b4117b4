"""Columns get another type, and delta-rs, Polars and DuckDB read them.

The engines read old files under the new schema, and also a table that changes during the reads.
"""

import datetime as dt
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from s3notify_platform.engine.driver import Ingest
from s3notify_platform.source.source import Source
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.arrow_schema import arrow_schema, spark_schema
from s3notify_platform.table.check import check_table
from s3notify_platform.table.delta.metadata import delta_schema, raised
from s3notify_platform.table.retype import Wanted, retyped
from s3notify_platform.table.snapshot import Snapshot
from s3notify_platform.table.type_changes import converted, how
from tests.support import engines, folder_log
from tests.support.folder_log import FolderLog, normal
from tests.support.ingested import Place
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server

UTC = pa.timestamp("us", "UTC")
DAY = dt.date(2026, 1, 2)

WIDENINGS: Final[dict[str, tuple[pa.DataType, pa.DataType, list[Any]]]] = {
    "int to bigint": (pa.int32(), pa.int64(), [1, -(2**31), None]),
    "int to decimal": (pa.int32(), pa.decimal128(18, 2), [1, -7, None]),
    "bigint to decimal": (pa.int64(), pa.decimal128(38, 2), [1, 2**62, None]),
    "decimal to decimal": (pa.decimal128(10, 2), pa.decimal128(18, 4), [Decimal("1.25"), None]),
    "float to double": (pa.float32(), pa.float64(), [0.5, -0.25, None]),
    "int to double": (pa.int32(), pa.float64(), [3, None]),
    "date to timestamp": (pa.date32(), UTC, [DAY, None]),
    "date to timestamp_ntz": (pa.date32(), pa.timestamp("us"), [DAY, None]),
    "bigint to string": (pa.int64(), pa.string(), [7, -1, None]),
    "double to string": (pa.float64(), pa.string(), [0.5, None]),
    "timestamp to string": (UTC, pa.string(), [dt.datetime(2026, 1, 2, tzinfo=dt.UTC), None]),
}


def changed(name: str) -> tuple[list[Any], list[Any]]:
    """The values before and after the change."""
    old, new, values = WIDENINGS[name]
    kinds = [kind_of(each) for each in (old, new)]
    change = how(*kinds)
    assert change is not None
    found, doubtful = converted(pa.array(values, old), new, change)
    assert not any(doubtful.to_pylist())
    return values, found.to_pylist()


def kind_of(kind: pa.DataType) -> Any:
    import json

    return json.loads(spark_schema(pa.schema([("n", kind)])))["fields"][0]["type"]


def schema(kind: pa.DataType) -> str:
    return spark_schema(pa.schema([("n", kind)]))


def rows(values: list[Any]) -> list[dict[str, Any]]:
    return [{"_slot": 1, "_key": "a", "n": value} for value in values]


def read(engine: str, uri: str) -> list[Any]:
    """The values of the column, or the error."""
    with ExitStack() as stack:
        reader = stack.enter_context(contextmanager(folder_log.ENGINES[engine])(uri))
        return [row["n"] for row in reader(None)]


ALL: Final = {"int to bigint", "float to double"}
NONE: Final = {"timestamp to string"}
"""`ALL`: every engine reads old files correctly. `NONE`: no engine reads old files correctly, because each engine
converts values to other texts.

After any other widening, only Polars cannot read old files.
"""


@pytest.mark.parametrize("name", WIDENINGS)
def test_engines_differ_about_files_of_the_old_type(tmp_path: Path, name: str) -> None:
    """If `schema set` left the files of the old type in the table, Polars could not read most changed columns. For a
    timestamp that became a string, engines would show other texts than the platform.
    """
    old, new, _ = WIDENINGS[name]
    before, after = changed(name)
    log = FolderLog(folder=tmp_path, schema=schema(old))
    log.add(rows(before), {"n": old})
    log.grow(schema(new))
    right = set()
    for engine in folder_log.ENGINES:
        try:
            if read(engine, log.uri) == after:
                right.add(engine)
        except Exception:
            continue
    every = {*folder_log.ENGINES}
    assert right == (every if name in ALL else set() if name in NONE else every - {"polars"})


@pytest.mark.parametrize("name", WIDENINGS)
def test_engines_read_a_version_that_changes_type_and_files(tmp_path: Path, name: str) -> None:
    """The new version has the new schema and replaces all files. If an engine combined the new schema with the
    former files, its users would get errors or other values after `schema set`.
    """
    old, new, _ = WIDENINGS[name]
    before, after = changed(name)
    log = FolderLog(folder=tmp_path, schema=schema(old))
    added = log.add(rows(before), {"n": old})
    for engine in folder_log.ENGINES:
        assert read(engine, log.uri) == before, engine
    wider = delta_schema(schema(new))
    del log.packs[added.path]
    made = log.pack(rows(after), {"n": new})
    log.state = replace(
        log.state,
        metadata=replace(log.state.metadata, schema=wider.schema, configuration=wider.properties),
        protocol=raised(log.state.protocol, wider.protocol),
    )
    log.commit(adds=[made], removes=[added.removed(2)], first=True)
    for cut in (False, True):
        for engine in folder_log.ENGINES:
            assert read(engine, log.uri) == after, engine
        assert normal(log.rows)
        log.checkpoint(cut=cut)
        log.add([], {"n": new})


def run_batch(source: Source, kind: pa.DataType, number: int) -> None:
    Ingest(jobs=LocalJobs(source=source, kind=kind), source=source).run(
        source.location.all_slots(), batch=str(number)
    )


@pytest.mark.server
def test_readers_never_see_a_mixture(ministack: S3Server) -> None:
    """A column gets another type while batches run. If a read mixed two versions, a user would get values of two
    types in the column, or would miss committed rows.
    """
    place = Place(ministack)
    source, store = place.source, S3ObjectStore(place.store.config)
    place.put("first", *range(50))
    run_batch(source, pa.int64(), 0)
    where = f"s3://{place.store.config.bucket}/{source.location.layout.prefix}"
    at = engines.Place(uri=where, config=place.store.config)
    ended, failures, seen = threading.Event(), [], set()

    def read_on(name: str) -> None:
        while not ended.is_set():
            try:
                found = engines.ENGINES[name](at)
                kinds = {type(row["a"]) for row in found}
                assert len(kinds) == 1, (name, kinds)
                assert {int(row["a"]) for row in found} >= set(range(50)), name
                seen.add((name, *kinds))
            except BaseException as error:
                failures.append(error)
                return

    readers = [threading.Thread(target=read_on, args=[name]) for name in engines.ENGINES]
    for thread in readers:
        thread.start()
    kind = pa.int64()
    try:
        for number in range(1, 7):
            store.put(f"raw/{number}", b'{"a":%d}\n' % number if kind == pa.int64() else b'{"a":"1"}\n')
            if number == 3:
                table = source.table()
                base = table.newest()
                assert isinstance(base, Snapshot)
                retyped(table, base, Wanted(columns=spark_schema(pa.schema([("a", pa.string())]))))
                kind = pa.string()
                store.put(f"raw/{number}", b'{"a":"1"}\n')
            run_batch(source, kind, number)
            newest = source.table().newest()
            assert isinstance(newest, Snapshot)
            assert check_table(source.table(), newest).ok
            assert arrow_schema(newest.metadata.schema).field("a").type == kind
    finally:
        while not failures and {name for name, found in seen if found is str} != {*engines.ENGINES}:
            ended.wait(0.05)
        ended.set()
        for thread in readers:
            thread.join()
    assert not failures, failures
