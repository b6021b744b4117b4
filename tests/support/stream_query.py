"""A streaming query as Spark runs it, but in one process, with offset log, sink, commit log and source. A test can kill
the query at any point.

The order of steps is that of Spark's MicroBatchExecution. An offset is logged before its batch runs. After the sink has
written the batch, the batch is committed in the commit log. At the end, the source's `commit` is called. A batch that
was logged and not committed runs again.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.source.source import Source
from s3notify_platform.spark.datasource.options import reading_of
from s3notify_platform.spark.datasource.stream import ChangesReader
from s3notify_platform.table.change_columns import CHANGE_COLUMNS
from tests.support.sources import with_settings
from tests.support.spark_options import named, options_of

COLUMNS = pa.schema(
    [
        ("_slot", pa.int32()),
        ("_key", pa.string()),
        ("_etag", pa.string()),
        ("_offset", pa.int64()),
        ("a", pa.int64()),
    ]
)
"""The columns of the table of `tests.support.ingested.Place`."""

Row = dict[str, Any]


class Killed(Exception):  # noqa: N818 - it is no error
    """The driver has died."""


def changes_reader(
    source: Source, *, columns: pa.Schema | None = None, clock: Clock = SYSTEM_CLOCK, **options: Any
) -> ChangesReader:
    """The reader as `readStream` makes it."""
    bucket = named(source.input.bucket)
    settings = {"read": "table", "poll_seconds": 0} | options
    if columns is None:
        columns = COLUMNS if settings["read"] == "table" else pa.schema([*COLUMNS, *CHANGE_COLUMNS])
    reading = reading_of(options_of(with_settings(source, bucket=bucket, platform=bucket), **settings))
    return ChangesReader(reading, columns, 2, clock=clock)


def rows_of_work(reader: ChangesReader, work: Any) -> Iterator[Row]:
    for part in work:
        for batch in reader.read(part):
            assert batch.schema.names == reader._output.names
            yield from batch.to_pylist()


@dataclass
class Query:
    """A query. The query's checkpoint and sink survive a kill. `reader` lives as long as the driver.

    The sink replaces rows by their key. If the query reads changes, the sink makes a copy of the table.
    """

    source: Source
    options: dict[str, Any] = field(default_factory=dict)
    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    held: dict[str, dict[tuple[str, int], Row]] = field(default_factory=dict)
    applied: list[list[Row]] = field(default_factory=list)
    dies: Callable[[str], bool] = lambda _: False
    reader: ChangesReader | None = None

    def batch(self, limit: ReadLimit | None = None) -> list[Row] | None:
        """Does the work of one trigger of the query. Returns the rows of the trigger's micro-batch, or None if there
        was no batch.

        Raises `Killed` at the point that `dies` names.
        """
        if self.reader is None:
            self.reader = changes_reader(self.source, **self.options)
        reader = self.reader
        try:
            start = self.offsets[self.committed - 1] if self.committed else json.dumps(reader.initialOffset())
            if len(self.offsets) == self.committed:
                limit = limit or reader.getDefaultReadLimit()
                end = json.dumps(reader.latestOffset(json.loads(start), limit))
                self._at("offset known")
                if end == start:
                    return None
                self.offsets.append(end)
            end = self.offsets[self.committed]
            self._at("offset logged")
            work = reader.partitions(json.loads(start), json.loads(end))
            self._at("planned")
            rows = list(rows_of_work(reader, work))
            self._at("read")
            if len(self.applied) == self.committed:
                self._apply(rows)
            assert sorted(self.applied[-1], key=str) == sorted(rows, key=str), (
                "a repeated batch has the same rows"
            )
            self._at("applied")
            self.committed += 1
            self._at("committed")
            reader.commit(json.loads(end))
            self._at("source informed")
            return rows
        except Killed:
            self.reader = None
            raise

    def drain(self) -> list[list[Row]]:
        """Runs batches until nothing is left."""
        found = []
        while (rows := self.batch()) is not None:
            found.append(rows)
        return found

    def values(self) -> list[int]:
        """Runs batches until nothing is left. Returns column `a` of all rows, in order."""
        return [row["a"] for rows in self.drain() for row in rows]

    def check(self, rows: list[Row]) -> None:
        """Checks that the sink has these rows of the table. If the query returns only added rows, the sink may also
        have rows of keys that left the table.
        """
        expected: dict[str, dict[tuple[str, int], Row]] = {}
        for row in rows:
            expected.setdefault(row["_key"], {})[row["_etag"], row["_offset"]] = row
        held = self.held if self._of_changes else {key: self.held.get(key) for key in expected}
        assert held == expected

    @property
    def _of_changes(self) -> bool:
        return self.options.get("read") == "changes"

    def _apply(self, rows: list[Row]) -> None:
        if self._of_changes:
            self._apply_changes(rows)
            return
        for row in rows:
            held = self.held.setdefault(row["_key"], {})
            if any(etag != row["_etag"] for etag, _ in held):
                held.clear()
            place = row["_etag"], row["_offset"]
            assert place not in held, f"{place} came twice"
            held[place] = row
        self.applied.append(rows)

    def _apply_changes(self, rows: list[Row]) -> None:
        for row in sorted(rows, key=lambda row: str(row["_change_type"])):  # deletions first
            row = {**row}  # noqa: PLW2901 - a copy, without the columns of changes
            kind, *_ = (row.pop(name) for name in CHANGE_COLUMNS.names)
            held, place = self.held.setdefault(row["_key"], {}), (row["_etag"], row["_offset"])
            if kind == "delete":
                assert held.pop(place) == row
                if not held:
                    del self.held[row["_key"]]
            else:
                assert place not in held, f"{place} came twice"
                held[place] = row
        self.applied.append(rows)

    def _at(self, point: str) -> None:
        if self.dies(point):
            raise Killed(point)
