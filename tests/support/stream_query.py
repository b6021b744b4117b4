"""A streaming query as Spark runs one, in one process: offset log, sink, commit log, source; killed anywhere.

The order is MicroBatchExecution's: an offset is logged before its batch runs, the batch is committed in the log after
the sink has it, and the source is informed after that. A batch that was logged and not committed is run again.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import LongType, StringType, StructField, StructType

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.spark.datasource.options import reading_of
from s3notify_platform.spark.datasource.rows import RowReader, whole_schema
from s3notify_platform.spark.datasource.stream import ChangesReader
from tests.support.spark import Lake
from tests.support.spark_options import options_of

DATA = StructType([StructField("id", LongType()), StructField("v", StringType())])

Row = dict[str, Any]


class Killed(Exception):  # noqa: N818 - it is no error
    """The driver died here."""


def changes_reader(lake: Lake, *, clock: Clock = SYSTEM_CLOCK, **options: Any) -> ChangesReader:
    """The reader as `readStream` makes it."""
    settings = {"poll_seconds": 0, "list_seconds": 0} | options
    reading = reading_of(options_of(lake.source, **settings))
    return ChangesReader(
        reading, RowReader.of(reading, whole_schema(DATA, reading.source), strict=False), 2, clock=clock
    )


def rows_of_work(reader: ChangesReader, work: Any) -> Iterator[Row]:
    for part in work:
        for batch in reader.read(part):
            yield from batch.to_pylist()


@dataclass
class Query:
    """Its checkpoint and its sink survive; `reader` is one life of the driver."""

    lake: Lake
    options: dict[str, Any] = field(default_factory=dict)
    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    table: dict[tuple[str, str, int, str], Row] = field(default_factory=dict)
    applied: list[list[Row]] = field(default_factory=list)
    dies: Callable[[str], bool] = lambda _: False
    reader: ChangesReader | None = None

    def batch(self, limit: ReadLimit | None = None) -> list[Row] | None:
        """One trigger: the rows of its micro-batch, None if there was none. `Killed` where `dies` says so."""
        if self.reader is None:
            self.reader = changes_reader(self.lake, **self.options)
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
        """Batches until nothing is left."""
        found = []
        while (rows := self.batch()) is not None:
            found.append(rows)
        return found

    def check(self) -> None:
        """The sink holds what the bucket holds."""
        held = Counter(
            (key, etag, offset, json.dumps(row, sort_keys=True))
            for (key, etag, offset, change), row in self.table.items()
            if change == "row"
        )
        assert held == Counter(
            (key, etag, offset, row) for _, key, etag, offset, row in self.lake.second_opinion()
        )

    def _apply(self, rows: list[Row]) -> None:
        for gone in (row for row in rows if row["_change"] == "gone"):
            for place in [p for p in self.table if p[:2] == (gone["_key"], gone["_etag"])]:
                del self.table[place]
        for row in (row for row in rows if row["_change"] != "gone"):
            place = (row["_key"], row["_etag"], row["_offset"], row["_change"])
            assert place not in self.table, f"{place} came twice"
            self.table[place] = {name: row[name] for name in DATA.names if row[name] is not None}
        self.applied.append(rows)

    def _at(self, point: str) -> None:
        if self.dies(point):
            raise Killed(point)
