"""Finds the state of sources: waiting changes, batches in flight, the last commit, and failures. The module only reads.

Requests of one look at a source:

- Tables: the requests of `LogTable.newest` for the source's table, for the table of each slot asset, and for each
  derived table.
- Newest commit: 1 GET and 1 HEAD.
- Versions: 1 GET for each of the newest `VERSIONS_WEIGHED` versions. A derived table that is behind also costs 1 GET
  for each of up to `VERSIONS_READ` versions. Versions that were read before cost nothing.
- Ages of slots: 1 HEAD for each of up to `VERSIONS_TIMED` new versions.
- Queue: 1 GET of the rescan backlog, and 1 scan of each topic of the source's queue.
- Open chains: 1 LIST for each 1000 records of chains, and 2 GETs for each open chain.
- Heartbeats, if a chain is open: 1 LIST, and 1 GET for each heartbeat.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Final

from s3notify_platform.engine.batch.batches import EVERYTHING, BatchPayload, Failing, SensorState
from s3notify_platform.engine.batch.heartbeats import fresh_beats
from s3notify_platform.explain.rewrites import Rewrites, rewrites_of, total
from s3notify_platform.explain.slot_map import SlotMap
from s3notify_platform.explain.table_facts import TableFacts
from s3notify_platform.explain.version_times import VersionTimes
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.kernel.limits import (
    MAX_COLUMNS,
    MAX_SCHEMA_BYTES,
    REQUESTS_IN_FLIGHT,
    SCHEMA_WARN_SHARE,
)
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.keyspace import signal_key
from s3notify_platform.protocols.notification_queue import TopicStats
from s3notify_platform.protocols.source_enumerator import Failed, RescanBacklog
from s3notify_platform.source.source import Source
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.delta.actions import LogVersion
from s3notify_platform.table.manifest import SlotFacts
from s3notify_platform.table.pinned_schema import TableSchema, schema_of, size_of
from s3notify_platform.table.snapshot import Absent, LogReader, Snapshot
from s3notify_platform.table.versions import note_of

VERSIONS_READ: Final = 100

VERSIONS_WEIGHED: Final = REQUESTS_IN_FLIGHT
"""Number of the newest versions whose rewritten bytes are counted. All these versions are read at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatus:
    """A batch in flight. `slots`: the number of requested slots, or None for all slots. `children`: the number
    of children of the batch's chain. `acked`: the number of children that are done.

    `doing`: the activities of the batch's runs at their last heartbeats.
    """

    id: str
    age_seconds: float
    slots: int | None
    acked: int
    children: int
    found_by: str
    doing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFailure:
    """A failing slot: the slot's last batch did not commit the slot. `reason`: the reason of the failure.
    `retry_seconds`: the seconds until the slot is requested again.
    """

    slot: int
    attempts: int
    retry_seconds: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCommit:
    """The newest commit. `slot`: the first slot that the commit changed. `latency_seconds`: the time from the signal of
    `slot` to the commit, or None if there is a newer signal.
    """

    slot: int
    batch: str
    age_seconds: float
    latency_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStatus:
    """The size of the schema for parsing objects, in fields at any depth and in bytes, with its limits.

    `warning`: a warning that an inferred schema is nearly full, with advice, or "".
    """

    columns: int
    columns_limit: int
    bytes: int
    bytes_limit: int
    warning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteStatus:
    """The bytes that the newest versions of the table wrote again, in order to withdraw rows.

    `versions`: the number of these versions. `bytes`: the bytes that these versions wrote again. `changed_bytes`: the
    bytes of the rows that these versions changed. `warning`: a warning that batches write much more than they change,
    with advice, or "".
    """

    versions: int
    bytes: int
    changed_bytes: int
    warning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingStatus:
    """A derived table. `rows`: the number of the table's rows. `version`: the version of the source's table from which
    the derived table is made, or -1 if the derived table was never made.

    `behind`: the number of later versions of the source's table that changed rows or columns.
    """

    asset: str
    rows: int
    version: int
    behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """The state of one source. Each fact was true at some moment of the call. `error`: the reason why the source could
    not be read.

    `version`: the newest version of the table, or -1 without a table. `files` and `bytes`: the number and the size of
    the files with rows and rejects. `without_records`: the number of objects with bytes, but neither rows nor rejects.
    `stale`: the number of slots whose rows another code version made, by the name of the table. Tables whose code
    version is unknown are left out of `stale`. `behind`: the number of slots that lack the newest rows of the source,
    by the name of the slot asset. `queue`: the source's topic. `topics`: the other topics of the source's queue.
    `rescan`: the number of slots that wait for a listing. `schema` and `rewrites`: None before the first batch.
    `following`: derived tables that are made as a whole. `failures`: the failing slots. Failures in the sensor's
    batches are known only with a Dagster instance. Without an instance, `failures` has only the failures in `s3notify
    ingest`, or is None (unknown) if there are no such failures. `sensor`: the epoch of the sensor that last opened a
    batch, or "" if no sensor has opened a batch. `paused`: True if the source's sensor is switched off, or None
    (unknown) without a Dagster instance that has the sensor.
    """

    name: str
    place: str
    error: str = ""
    table: str = ""
    version: int = -1
    files: int = 0
    bytes: int = 0
    slots: int = 0
    committed_slots: int = 0
    rows: int = 0
    rejects: int = 0
    without_records: int = 0
    failing_objects: int = 0
    pending_objects: int = 0
    stale: Mapping[str, int] = field(default_factory=dict)
    behind: Mapping[str, int] = field(default_factory=dict)
    queue: TopicStats | None = None
    topics: tuple[TopicStats, ...] = ()
    rescan: int = 0
    batches: tuple[BatchStatus, ...] = ()
    last: LastCommit | None = None
    failures: tuple[SlotFailure, ...] | None = None
    schema: SchemaStatus | None = None
    rewrites: RewriteStatus | None = None
    following: tuple[FollowingStatus, ...] = ()
    sensor: str = ""
    paused: bool | None = None
    map: SlotMap | None = field(default=None, repr=False)

    @property
    def sensor_unknown(self) -> bool:
        """True if a sensor opens the source's batches, but it is unknown whether the sensor is off, and which slots
        fail in these batches.
        """
        return bool(self.sensor) and self.paused is None

    def document(self) -> dict[str, Any]:
        """Returns the JSON values of all fields except the map."""
        found = asdict(self)
        del found["map"]
        return found


class SourceLook:
    """Finds the state of one source repeatedly. Each call reads only the new versions of the source's table."""

    def __init__(
        self,
        source: Source,
        sensor: Callable[[], SensorState | None] = lambda: None,
        clock: Clock = SYSTEM_CLOCK,
        *,
        codes: Mapping[str, str] = MappingProxyType({}),
        paused: Callable[[], bool | None] = lambda: None,
    ) -> None:
        """`codes`: the code versions of the source and of its slot assets, by name."""
        self.source = source
        self._codes = codes
        self._sensor = sensor
        self._paused = paused
        self._clock = clock
        self._times = VersionTimes()
        self._versions: dict[tuple[str, int], _Version] = {}
        """The facts about the versions that were read, by table and version."""

    @property
    def place(self) -> str:
        """The address of the source's objects, for people."""
        bucket = self.source.input.bucket
        return f"{bucket.bucket}/{self.source.input.prefix} at {bucket.endpoint or 'AWS S3'}"

    def look(self) -> SourceStatus:
        """Returns the source's status. If a store raises an error, the status has this error in `error`."""
        try:
            return self.read()
        except S3NotifyError as error:
            return SourceStatus(name=self.source.name, place=self.place, error=str(error))

    def read(self) -> SourceStatus:
        """Returns the source's status, or raises the error of a store."""
        location, now_ms = self.source.location, self._clock.wall_ms()
        queue, records = location.queue(), location.records()
        topics = {topic.name: queue.stats(topic.name) for topic in queue.topics.all()}
        backlog = RescanBacklog(records).read()
        batches, in_flight = self._batches(now_ms)
        opened, reader = location.open_table(), location.table().reader
        snapshot = opened.snapshot
        facts = TableFacts.of(snapshot)
        created = self._times.of(reader, facts.generations)
        sensor = self._sensor()
        failures = _failures(sensor, backlog.failed, now_ms)
        outdated = facts.outdated(self.source, self._codes)
        return SourceStatus(
            name=self.source.name,
            place=self.place,
            table=opened.id,
            version=facts.version,
            files=facts.files,
            bytes=facts.bytes,
            slots=location.slots,
            committed_slots=len(facts.slots),
            rows=facts.total(lambda slot: slot.rows),
            rejects=facts.total(lambda slot: slot.rejects),
            without_records=facts.total(lambda slot: slot.without_records),
            failing_objects=facts.total(lambda slot: slot.failing),
            pending_objects=facts.total(lambda slot: slot.pending),
            stale={name: each.stale for name, each in outdated.items()},
            behind={name: each.behind for name, each in outdated.items() if name != self.source.name},
            queue=topics.pop(self.source.name, None),
            topics=tuple(topics.values()),
            rescan=len(backlog.slots),
            batches=batches,
            last=self._last(reader, facts.slots, now_ms),
            failures=failures,
            schema=_schema(schema_of(snapshot.metadata) if snapshot is not None else None),
            rewrites=self._rewrites(reader, snapshot) if snapshot is not None and facts.slots else None,
            following=tuple(self._following(asset, snapshot, reader) for asset in self.source.kinds),
            sensor=opened.known.sensor,
            paused=self._paused(),
            map=facts.map(
                location.slots,
                created,
                now_ms,
                in_flight=in_flight,
                failing=(one.slot for one in failures or ()),
            ),
        )

    def _batches(self, now_ms: int) -> tuple[tuple[BatchStatus, ...], set[Slot]]:
        found, in_flight, records = [], set[Slot](), self.source.location.records()
        states = [*AckChains(records).open_states()]
        beats = fresh_beats(records, now_ms) if states else []
        for state in states:
            batch = BatchPayload.loads(state.payload)
            everything = EVERYTHING in batch.slots
            asked = self.source.location.all_slots() if everything else [*map(Slot, batch.slots)]
            missing = {int(child) for child in state.missing}
            in_flight.update(asked if EVERYTHING in missing else map(Slot, missing))
            found.append(
                BatchStatus(
                    id=state.tag,
                    age_seconds=max(0, now_ms - (batch.opened_ms or state.created_ms)) / 1000,
                    slots=None if everything else len(asked),
                    acked=len(state.children) - len(state.missing),
                    children=len(state.children),
                    found_by="listing" if batch.listing else "queue",
                    doing=tuple(beat.doing for beat in beats if beat.batch == state.tag and beat.doing),
                )
            )
        return tuple(found), in_flight

    def _following(self, asset: str, snapshot: Snapshot | None, reader: LogReader) -> FollowingStatus:
        found = self.source.location.table(asset).newest()
        follows = None if isinstance(found, Absent) else found.manifest.follows
        newest = -1 if snapshot is None else snapshot.version
        if (
            isinstance(found, Absent)
            or follows is None
            or snapshot is None
            or follows.table != snapshot.table
        ):
            return FollowingStatus(asset=asset, rows=0, version=-1, behind=newest + 1)
        behind = self._changing(reader, snapshot.table, range(follows.version + 1, newest + 1))
        return FollowingStatus(asset=asset, rows=found.rows, version=follows.version, behind=behind)

    def _changing(self, reader: LogReader, table: str, versions: range) -> int:
        """The number of these versions that changed rows or columns. A version that only merged files is not counted.

        Cost: 1 GET for each version that was not read before, if there are at most `VERSIONS_READ` versions. If there
        are more versions, no request is made, and all versions are counted.
        """
        if len(versions) > VERSIONS_READ:
            return len(versions)
        return sum(each.changes for each in self._read_versions(reader, table, versions))

    def _rewrites(self, reader: LogReader, snapshot: Snapshot) -> RewriteStatus:
        """The bytes that the newest versions wrote again. Cost: 1 GET for each version that was not read before."""
        newest = range(max(1, snapshot.version - VERSIONS_WEIGHED + 1), snapshot.version + 1)
        done = total([each.rewrites for each in self._read_versions(reader, snapshot.table, newest)])
        plain = self.source.input.overwrites != "vectors"
        remedy = "set overwrites: vectors, or " if plain else ""
        warning = (
            f"the newest {len(newest)} versions wrote {done.again / 1e6:,.1f} MB of files again to change "
            f"{done.changed / 1e6:,.1f} MB: {remedy}raise interval_seconds, so that one batch has more changes "
            "(s3notify guide operating)"
        )
        return RewriteStatus(
            versions=len(newest),
            bytes=done.again,
            changed_bytes=done.changed,
            warning=warning if done.too_many else "",
        )

    def _read_versions(self, reader: LogReader, table: str, versions: range) -> "list[_Version]":
        new = [version for version in versions if (table, version) not in self._versions]
        for version, body in zip(new, in_parallel(reader.version, new, REQUESTS_IN_FLIGHT), strict=True):
            self._versions[table, version] = _Version.of(body)
        return [self._versions[table, version] for version in versions]

    def _last(self, reader: LogReader, slots: Mapping[Slot, SlotFacts], now_ms: int) -> LastCommit | None:
        newest = max((facts.generation for facts in slots.values()), default=0)
        body = reader.version(newest) if newest else None
        if body is None:
            return None
        slot = min(slot for slot, facts in slots.items() if facts.generation == newest)
        store, location = open_store(self.source.location.platform), self.source.location
        signal, taken = store.head(signal_key(location.keyspace_prefix, slot)), slots[slot].signal
        seen = signal is not None and bool(taken) and signal.etag.startswith(taken)
        return LastCommit(
            slot=slot,
            batch=note_of(body, slot).get("batch", ""),
            age_seconds=max(0, now_ms - body.created_ms) / 1000,
            latency_seconds=max(0, body.created_ms - signal.modified_ms) / 1000 if seen and signal else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """Facts about one version. `changes`: True if the version changed rows or columns, or is no longer kept."""

    changes: bool
    rewrites: Rewrites

    @classmethod
    def of(cls, body: LogVersion | None) -> "_Version":
        if body is None:
            return cls(changes=True, rewrites=Rewrites())
        return cls(changes=body.changes_rows or body.metadata is not None, rewrites=rewrites_of(body))


def _schema(pinned: TableSchema | None) -> SchemaStatus | None:
    if pinned is None:
        return None
    columns, size = size_of(pinned.source)
    nearly = [
        f"{found:,} of at most {limit:,} {unit}"
        for found, limit, unit in ((columns, MAX_COLUMNS, "columns"), (size, MAX_SCHEMA_BYTES, "bytes"))
        if pinned.inferred and found >= SCHEMA_WARN_SHARE * limit
    ]
    warning = (
        f"the inferred schema has {' and '.join(nearly)}; once it is full, records with further fields are rejected: "
        "declare `schema` (fields that it lacks are left out), or set mismatches: rescue"
    )
    return SchemaStatus(
        columns=columns,
        columns_limit=MAX_COLUMNS,
        bytes=size,
        bytes_limit=MAX_SCHEMA_BYTES,
        warning=warning if nearly else "",
    )


def _failures(
    sensor: SensorState | None, failed: Mapping[Slot, Failed], now_ms: int
) -> tuple[SlotFailure, ...] | None:
    if sensor is None and not failed:
        return None
    every: dict[int, Failing | Failed] = {int(slot): one for slot, one in failed.items()}
    every |= sensor.failing if sensor is not None else {}
    return tuple(
        SlotFailure(
            slot=slot,
            attempts=one.attempts,
            retry_seconds=max(0, one.not_before_ms - now_ms) / 1000,
            reason=one.reason,
        )
        for slot, one in sorted(every.items())
        if slot != EVERYTHING
    )
