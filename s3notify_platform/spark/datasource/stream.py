"""`readStream.format("s3notify")`: returns the changes of the committed table, or only the added rows, as a stream.

With `read="changes"`, the stream also returns removed rows, and all rows have the columns of the change feed
(`table.row_changes`). With `read="table"`, the stream returns the added rows, with the table's columns.

Steps
    1. `latestOffset` reads the newest table version. A new stream begins with all rows of one table version, some slots
       at a time. With the option `since`, a new stream begins after that table version, and does not return the rows of
       that version. Then the changes of the later table versions follow. Each micro-batch has the changes of as many
       versions as the limits allow.
    2. `partitions` finds the packs that these table versions added or removed, and distributes the packs to tasks.
       Tasks read packs, but not the log.

The offset is `{table, version, slots}`: the stream has returned all changes up to this table version. While the stream
has returned only some slots of its first table version, `slots` is the next slot; otherwise `slots` is null. `table` is
the table's id, because another table can have the same version numbers. The checkpoint is the stream's only state.

Guarantees
    - Each row of the table is returned once, after the commit of its table version, in the order of table versions. The
      guarantee includes rows of new and overwritten objects, of objects that were read again (backfill, retry), and of
      parts of big objects.
    - With `read="changes"`, if a row that the stream has returned is removed, the stream returns one deletion of this
      row. To bring a copy of the table to the next table version, apply the deletions first, and then the insertions.
    - A micro-batch that Spark repeats, after a failed sink or a restart, has the same rows.
    - A missing table version, or another table in place of the stream's table, causes an error, never a gap. Without
      `read="changes"`, so does a version that replaces rows (`table.replaced_rows`).

Limits: rows that were added and removed within one micro-batch are not returned. `max_objects` and `max_bytes` bound a
micro-batch. But two things are never divided between micro-batches: a slot of the first table version, and the changes
of a later table version. Columns that are added to the table appear only after the query is restarted. If a column gets
another type without a change of its values, the stream keeps the old type, and fails at rows that this type may not
represent exactly. After a restart with the same checkpoint, the stream also returns the rows at which it failed. If
the values of a column change with its type, a restarted stream cannot repeat a micro-batch of earlier versions: the
error asks for a new checkpoint.

Cost: a poll makes the requests of `LogTable.newest`, at most once in `poll_seconds`. Each table version costs 4 GETs,
or 5 GETs if it has many changes. While a new stream returns its first table version, each micro-batch makes the
requests of `snapshot_of` twice. A micro-batch that ends before the newest version makes these requests once more. Tasks
make the requests of `reading.read`.
"""

import json
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
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.row_changes import Share, all_rows, row_changes, sizes_of
from s3notify_platform.table.snapshot import Absent, Snapshot
from s3notify_platform.table.type_changes import ddl, how
from s3notify_platform.table.versions import created_ms, snapshot_of

UNLIMITED: Final = 1 << 62

REMEDY: Final = (
    "use a new checkpoint; the stream then begins with all rows of the table, or, with the option since, "
    "after a version"
)

WITH_NEWEST: Final = -2
"""As the version of an `Offset`, this value means that the stream begins after the table's newest version. The newest
version is looked up when the stream starts. If the table does not exist at this time, the stream returns all changes of
the table.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The position of a stream: the stream has returned all changes up to table version `version`.

    While the stream has returned only some slots of its first table version, `slots` is the next slot; otherwise
    `slots` is None. `table`: the table's id; "" if the stream has not seen the table yet. If `version` is -1, the
    stream has not chosen its first table version yet. If `version` is -1 and `slots` is None, the stream begins with
    the changes of the table's first version.
    """

    table: str = ""
    version: int = -1
    slots: int | None = 0

    def dumps(self) -> dict[str, Any]:
        """Returns the offset in the form that the checkpoint stores."""
        return {"table": self.table, "version": self.version, "slots": self.slots}

    @classmethod
    def loads(cls, body: dict[str, Any]) -> "Offset":
        """Inverse of `dumps`. Raises `CorruptError` for any other value."""
        try:
            found = cls(table=body["table"], version=body["version"], slots=body["slots"])
        except (KeyError, TypeError) as error:
            raise CorruptError(f"{body!r}: not an offset of this stream: {REMEDY}") from error
        if type(found.table) is not str or type(found.version) is not int:
            raise CorruptError(f"{body!r}: not an offset of this stream: {REMEDY}")
        return found

    @classmethod
    def initial(cls, reading: Reading) -> "Offset":
        """Returns the offset at which a new stream begins. Pure."""
        match reading.since:
            case None:
                return cls()
            case "newest":
                return cls(version=WITH_NEWEST, slots=None)
            case version:
                return cls(version=version, slots=None)


@dataclass
class Work(InputPartition):
    """The share of the changes that one task reads."""

    share: Share


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads added and removed rows. One process of the driver keeps the reader while the query runs."""

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
        """Returns the state that is sent to tasks."""
        return {"_reading": self._reading, "_output": self._output}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader.initialOffset`. No request."""
        return Offset.initial(self._reading).dumps()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """See `SupportsTriggerAvailableNow`: the query ends with the table version that is the newest now."""
        found = self._newest()
        self._until = -1 if isinstance(found, Absent) else found.version

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader.getDefaultReadLimit`. Returns the limit `max_objects`; `_limits` adds the limit
        `max_bytes`.
        """
        return ReadMaxFiles(self._reading.source.input.max_objects)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader.latestOffset`: step 1."""
        offset, found = Offset.loads(start), self._newest()
        if self._until == -1 or (isinstance(found, Absent) and not offset.table):
            # If `WITH_NEWEST` stayed, a later poll would skip the versions that are committed before that poll.
            return Offset(slots=None).dumps() if offset.version == WITH_NEWEST else start
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
        newest = self._checked(until, self._newest())
        if until.version < newest.version:
            self._check_types(until.version, newest)
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
        assert isinstance(partition, Work), "partitions() returns only objects of this class"
        place = self._reading.source.location
        yield from partition.share.read(open_store(place.platform), place.layout, self._output)

    # Internals

    @property
    def _table(self) -> LogTable:
        return self._reading.source.location.table()

    def _newest(self) -> Snapshot | Absent:
        """Returns the newest snapshot, or a snapshot that was read at most `poll_seconds` ago."""
        now = self._clock.monotonic()
        if self._seen is None or now - self._polled_at >= self._reading.poll_seconds:
            self._seen, self._polled_at = self._table.newest(), now
        return self._seen

    def _checked(self, offset: Offset, found: Snapshot | Absent) -> Snapshot:
        """Returns the newest snapshot, after a check that the offset belongs to the same table."""
        if isinstance(found, Absent):
            raise NotFoundError(f"the table that the stream has read ({offset.table}) was removed: {REMEDY}")
        if offset.table not in ("", found.table):
            raise UsageError(
                f"the checkpoint belongs to table {offset.table}, but the table's id is now {found.table}: the table "
                f"was begun again (`s3notify table forget`, `migrate`), or the options name another source. {REMEDY}"
            )
        if offset.version > found.version:
            # Another process may have committed the version after this process read the log.
            self._seen = found = self._table.newest()
            if isinstance(found, Absent) or offset.version > found.version:
                raise NotFoundError(f"the table has no version {offset.version}: {REMEDY}")
        return found

    def _check_types(self, version: int, newest: Snapshot) -> None:
        """Raises `UsageError` if rows as of `version` had a type that the stream's present type cannot represent.

        If the stream still has the earlier type, it can read these rows.
        """
        before, now = _types(self._as_of(version)), _types(newest)
        columns = arrow_schema(newest.metadata.schema)
        for name, kind in now.items():
            of_stream = self._output.field(name).type if name in self._output.names else None
            if name in before and of_stream == columns.field(name).type and _differs(before[name], kind):
                raise UsageError(
                    f"version {version}, at which this micro-batch ends, has column {name} as {ddl(before[name])}. A "
                    f"later version gave it another type and other values. Begin again: {REMEDY}"
                )

    def _as_of(self, version: int) -> Snapshot:
        if isinstance(self._seen, Snapshot) and self._seen.version == version:
            return self._seen
        try:
            return snapshot_of(self._table.reader, version)
        except NotFoundError as error:
            raise _not_kept(error) from error

    def _limits(self, limit: ReadLimit) -> tuple[float, float]:
        """Returns the maximum numbers of objects and of bytes of a micro-batch."""
        chosen = self._reading.source.input
        if isinstance(limit, ReadAllAvailable):
            return UNLIMITED, UNLIMITED
        return limit.max_files if isinstance(limit, ReadMaxFiles) else chosen.max_objects, chosen.max_bytes

    def _versions(self, since: int, until: int, limit: ReadLimit) -> int:
        """Returns the last table version of the next micro-batch."""
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
        """Returns the first slot that the next micro-batch leaves out; None if no slot is left out."""
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


def _types(snapshot: Snapshot) -> dict[str, Any]:
    """Returns the columns' types in Spark's JSON."""
    return {each["name"]: each["type"] for each in json.loads(snapshot.metadata.schema)["fields"]}


def _differs(old: Any, new: Any) -> bool:
    return how(old, new) not in (None, "exact")


def _not_kept(error: NotFoundError) -> NotFoundError:
    return NotFoundError(
        f"{error}. The stream was stopped for longer than versions are kept, or an object was erased: {REMEDY}"
    )
