"""`readStream.format("s3notify")`: the changes of the committed table, as a stream; or the rows that come to it alone.

With `read="changes"` rows that leave are given, too, and all have the columns of the feed (`table.row_changes`); with
`read="table"` rows that come, as they are.

Steps
    1. `latestOffset` asks for the newest version. A new stream begins with all rows of a version, some slots at a time,
       unless the option `since` names the version after which it begins. Then come the changes of one version after the
       other, as many versions as the limits have room for.
    2. `partitions` finds the packs that these versions brought, or took away, and deals them to tasks. Tasks read
       packs, and no log.

The offset is `{table, version, slots}`: all that came up to the version has been given; with `slots` the first so many
slots of this version alone. `table` is the table's id: version numbers come again in another table. So the checkpoint
has all that the stream knows.

Guarantees
    - Each row of the table comes once, after its version was committed: rows of new and overwritten objects, of objects
      that were read again (backfill, retry), and of parts of big objects, in the order of versions.
    - With `read="changes"` each row that left since it came is deleted once. So deletions first, then insertions, make
      of a copy of the table the next one.
    - A micro-batch that Spark repeats, after a failed sink or a restart, has the same rows.
    - Versions that are not kept, a rollback, and another table in its place are an error, never a gap.

Limits: rows that came and left within one micro-batch are not given. `max_objects` and `max_bytes` bound a micro-batch,
but a version is never divided, nor a slot. Columns that the table gets later are seen when the query is started again.

Requests: a poll is that of `LogTable.newest`, at most one in `poll_seconds`; 4 GETs for each version, 1 more for one of
many changes; for the beginning those of `snapshot_of`, twice for each micro-batch; and those of `reading.read`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from s3notify_platform.engine.values.row_schema import Batches
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import CorruptError, NotFoundError, UsageError
from s3notify_platform.spark.datasource.options import Reading
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.row_changes import Share, all_rows, row_changes, sizes_of
from s3notify_platform.table.snapshot import Absent, Snapshot
from s3notify_platform.table.versions import created_ms, snapshot_of

UNLIMITED: Final = 1 << 62

AFRESH: Final = (
    "begin with another checkpoint: with all rows that are there, or with the option since after a version"
)

WITH_NEWEST: Final = -2
"""In place of a version: the stream begins after the version that is the newest when it starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """What was given: all that came up to `version`, or if `slots` is not None, so many slots of this version alone.

    `table`: its id; "" if the stream has not seen it yet. Version -1: the first one has not been chosen.
    """

    table: str = ""
    version: int = -1
    slots: int | None = 0

    def dumps(self) -> dict[str, Any]:
        """As the checkpoint has it."""
        return {"table": self.table, "version": self.version, "slots": self.slots}

    @classmethod
    def loads(cls, body: dict[str, Any]) -> "Offset":
        """Inverse of `dumps`. `CorruptError` for anything else."""
        try:
            found = cls(table=body["table"], version=body["version"], slots=body["slots"])
        except (KeyError, TypeError) as error:
            raise CorruptError(f"{body!r}: not an offset of this stream: {AFRESH}") from error
        if type(found.table) is not str or type(found.version) is not int:
            raise CorruptError(f"{body!r}: not an offset of this stream: {AFRESH}")
        return found

    @classmethod
    def initial(cls, reading: Reading) -> "Offset":
        """Where a new stream begins. Pure."""
        match reading.since:
            case None:
                return cls()
            case "newest":
                return cls(version=WITH_NEWEST, slots=None)
            case version:
                return cls(version=version, slots=None)


@dataclass
class Work(InputPartition):
    """The part of the changes that one task reads."""

    share: Share


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Rows that come, and leave. Lives in one process of the driver for as long as the query runs."""

    def __init__(
        self, reading: Reading, output: pa.Schema, width: int, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._reading = reading
        self._output = output
        self._width = width
        self._clock = clock
        self._until: int | None = None
        self._seen: Snapshot | Absent | None = None
        self._polled_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """What travels to tasks."""
        return {"_reading": self._reading, "_output": self._output}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader.initialOffset`. No request."""
        return Offset.initial(self._reading).dumps()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """See `SupportsTriggerAvailableNow`: the query ends with the version that is the newest now."""
        found = self._newest()
        self._until = -1 if isinstance(found, Absent) else found.version

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader.getDefaultReadLimit`: `max_objects`, and within it `max_bytes`."""
        return ReadMaxFiles(self._reading.source.input.max_objects)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader.latestOffset`: step 1."""
        offset, found = Offset.loads(start), self._newest()
        if self._until == -1 or (isinstance(found, Absent) and not offset.table):
            return start
        newest = self._checked(offset, found)
        until = newest.version if self._until is None else min(newest.version, self._until)
        if offset.version == WITH_NEWEST:
            return Offset(table=newest.table, version=until, slots=None).dumps()
        if offset.slots is not None:
            version = until if offset.version == -1 else offset.version
            slots = self._slots(self._as_of(version), offset.slots, limit)
            return Offset(table=newest.table, version=version, slots=slots).dumps()
        if offset.version >= until and offset.table:
            return start
        version = self._versions(offset.version, until, limit)
        return Offset(table=newest.table, version=version, slots=None).dumps()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """See `DataSourceStreamReader.partitions`: step 2."""
        since, until = Offset.loads(start), Offset.loads(end)
        if start == end or since.version == WITH_NEWEST:
            return []
        self._checked(until, self._newest())
        wanted, tasks = None if self._reading.only is None else self._reading.wanted, 2 * self._width
        deletes = self._reading.read == "changes"
        if since.slots is not None:
            last = self._reading.source.location.slots if until.slots is None else until.slots
            slots = [slot for slot in self._reading.wanted if since.slots <= slot < last]
            snapshot = self._as_of(until.version)
            at_ms = created_ms(self._table.reader, until.version) if deletes else 0
            return [*map(Work, all_rows(snapshot, slots, at_ms=at_ms, tasks=tasks))]
        try:
            found = row_changes(self._table.reader, since.version, until.version, deletes=deletes)
        except NotFoundError as error:
            raise _not_kept(error) from error
        shares = found.shares(wanted, tasks=tasks) if deletes else found.inserts(wanted, tasks=tasks)
        return [*map(Work, shares)]

    def read(self, partition: InputPartition) -> Batches:
        """See `DataSourceStreamReader.read`."""
        assert isinstance(partition, Work), "partitions() makes no others"
        place = self._reading.source.location
        yield from partition.share.read(open_store(place.platform), place.layout, self._output)

    # How

    @property
    def _table(self) -> LogTable:
        return self._reading.source.location.table()

    def _newest(self) -> Snapshot | Absent:
        """The newest snapshot, at most `poll_seconds` old."""
        now = self._clock.monotonic()
        if self._seen is None or now - self._polled_at >= self._reading.poll_seconds:
            self._seen, self._polled_at = self._table.newest(), now
        return self._seen

    def _checked(self, offset: Offset, found: Snapshot | Absent) -> Snapshot:
        """The table, which has to be that of the offset."""
        if isinstance(found, Absent):
            raise NotFoundError(f"the table that the stream has read ({offset.table}) was removed: {AFRESH}")
        if offset.table not in ("", found.table):
            raise UsageError(
                f"the checkpoint is of table {offset.table}, in whose place there is table {found.table}: it was begun "
                f"again (`s3notify table forget`, `migrate`), or the options name another source. {AFRESH}"
            )
        if offset.version > found.version:
            # This process may have looked before another one committed it.
            self._seen = found = self._table.newest()
            if isinstance(found, Absent) or offset.version > found.version:
                raise NotFoundError(f"there is no version {offset.version} of the table: {AFRESH}")
        return found

    def _as_of(self, version: int) -> Snapshot:
        if isinstance(self._seen, Snapshot) and self._seen.version == version:
            return self._seen
        try:
            return snapshot_of(self._table.reader, version)
        except NotFoundError as error:
            raise _not_kept(error) from error

    def _limits(self, limit: ReadLimit) -> tuple[float, float]:
        """Objects and bytes of a micro-batch."""
        chosen = self._reading.source.input
        if isinstance(limit, ReadAllAvailable):
            return UNLIMITED, UNLIMITED
        return limit.max_files if isinstance(limit, ReadMaxFiles) else chosen.max_objects, chosen.max_bytes

    def _versions(self, since: int, until: int, limit: ReadLimit) -> int:
        """The last version of the next micro-batch."""
        objects, size = self._limits(limit)
        last = since
        try:
            for version, changed, brought in sizes_of(self._table.reader, since, until):
                objects, size = objects - changed, size - brought
                if last > since and (objects < 0 or size < 0):
                    return last
                last = version
        except NotFoundError as error:
            raise _not_kept(error) from error
        return until

    def _slots(self, snapshot: Snapshot, given: int, limit: ReadLimit) -> int | None:
        """How many slots of a snapshot are given after the next micro-batch; None: all."""
        objects, size = self._limits(limit)
        manifest = snapshot.manifest
        each = sum(pack.size for pack in snapshot.packs.values()) / max(snapshot.rows, 1)
        wanted = [slot for slot in self._reading.wanted if slot >= given]
        for slot in wanted:
            facts = manifest.slot(slot)
            objects, size = objects - facts.objects, size - each * facts.rows
            if slot != wanted[0] and (objects < 0 or size < 0):
                return slot
        return None


def _not_kept(error: NotFoundError) -> NotFoundError:
    return NotFoundError(
        f"{error}. The stream stood still for longer than versions are kept, or an object was erased: {AFRESH}"
    )
