"""Places of a source's own objects, and the commit mode of its tables.

Nothing here depends on the objects that the source reads.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any, assert_never

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.limits import REMEMBERED_TABLES
from s3notify_platform.kernel.ports import ObjectStore, RecordStore, StoredObject
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.ack_chain import keys_recur
from s3notify_platform.protocols.conditional_commit import (
    DEFAULT_LEASES,
    CommitOutcome,
    ConditionalCommit,
    LeaseSettings,
    NativeCommit,
)
from s3notify_platform.protocols.conditional_commit.operations import Operation
from s3notify_platform.protocols.keyspace import Publisher, Watcher, WatcherState, root_key
from s3notify_platform.protocols.notification_queue import NotificationQueue, marks_of
from s3notify_platform.source.settings import LocationSettings
from s3notify_platform.stores.conditional import dynamo_commit
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.open_store import (
    note_conditional_delete,
    open_records,
    open_store,
    queue_records,
)
from s3notify_platform.stores.probe import Capabilities, CommitChoice, choose_commit, probe
from s3notify_platform.table.derived_round import DERIVED
from s3notify_platform.table.known import KNOWN, Identity, KnownRecord, known_key
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.log_table import LogTable, SnapshotMemory, table_of
from s3notify_platform.table.open_table import OpenTable, TableName, open_table
from s3notify_platform.table.packs.round_packs import SIZES
from s3notify_platform.table.snapshot import Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMode:
    """The way of committing to a source's tables: by the store's conditional writes, or under leases.

    `Location.settle_commit_mode` replaces `auto` once per run. While the mode is `auto`, tables can only be read.
    """

    choice: CommitChoice = "auto"
    lease_table: DynamoConfig | None = None
    leases: LeaseSettings = DEFAULT_LEASES

    def commits(self, platform: S3Config, store: ObjectStore) -> ConditionalCommit | None:
        """Returns the commit protocol; None while the mode is `auto`. No request."""
        match self.choice:
            case "auto":
                return None
            case "native":
                return NativeCommit(store)
            case "dynamodb":
                assert self.lease_table is not None, "checked when the mode was made"
                # `store` is not used here, because `store` may retry a request unnoticed. A lease does not allow such a
                # retry.
                return dynamo_commit(platform, self.lease_table, self.leases)
            case _ as unreachable:
                assert_never(unreachable)

    def __post_init__(self) -> None:
        if self.choice == "dynamodb" and self.lease_table is None:
            raise UsageError("commit: dynamodb needs a lease_table")


@dataclass(frozen=True, kw_only=True)
class Location(LocationSettings):
    """Places of a source's tables, signals, queue and records. A location is pickled and sent to Spark tasks.

    `platform`: the bucket of all these places, which may be the bucket that is read. Records are in `records_table` if
    it is set, else in `platform`.
    """

    platform: S3Config
    records_table: DynamoConfig | None = None

    @property
    def layout(self) -> TableLayout:
        """Names of the objects of the source's table."""
        return self.table_layout()

    @property
    def latest_name(self) -> str:
        """The name of the newest-rows asset and of the asset's table, which has the newest row of each business key."""
        return f"{self.name}_latest"

    @property
    def clustered_name(self) -> str:
        """The name of the clustered asset and of the asset's table, which has the source's rows in another order."""
        return f"{self.name}_clustered"

    def follows_whole(self, asset: str | None) -> bool:
        """True for an asset whose table is updated as a whole from the source's table (`table.follow`)."""
        return asset in (self.latest_name, self.clustered_name)

    def is_derived(self, asset: str | None) -> bool:
        """True for an asset whose table is made slot by slot.

        None means the source's own table, for which the result is false.
        """
        return asset is not None and not self.follows_whole(asset)

    def own_prefixes(self, bucket: str) -> tuple[str, ...]:
        """Returns the prefixes of the platform's own objects in this bucket. See `table.own_objects.own_prefixes`."""
        return self.own_prefixes_in(bucket, platform_bucket=self.platform.bucket)

    def table_layout(self, asset: str | None = None) -> TableLayout:
        """Returns the names of the objects of the source's table, or of the table of `asset`."""
        return TableLayout(prefix=f"{self.platform_prefix}{f'derived/{asset}' if asset else 'table'}/")

    def table(
        self,
        asset: str | None = None,
        *,
        store: ObjectStore | None = None,
        commit: CommitMode | None = None,
        vectors: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> LogTable:
        """Returns the source's table, or the table of `asset`. No request; later requests go through `store` if it is
        given.

        While `commit` is `auto`, the table can only be read. `vectors`: removed rows are hidden by deletion vectors. In
        one process, all `LogTable` values of the same table share the newest snapshot.
        """
        layout, given = self.table_layout(asset), store or open_store(self.platform)
        mode = commit or CommitMode()
        return table_of(
            given,
            layout,
            self.known(asset, store=given),
            mode.commits(self.platform, given) or ReadOnly(given),
            leases=mode.choice == "dynamodb",
            vectors=vectors and not self.is_derived(asset),
            sizes=DERIVED if self.is_derived(asset) else SIZES,
            memory=_memory(self.platform, layout.prefix),
            clock=clock,
            restore=self.command("forget", *([f"--asset {asset}"] if asset else [])),
            url=self.platform.url(layout.prefix),
            mirror=self.mirror,
        )

    def records(self, store: ObjectStore | None = None) -> RecordStore:
        """Returns the record store with ack chains and other records of this source.

        No request; later requests to the bucket go through `store`.
        """
        prefix = f"{self.platform_prefix}records/"
        return open_records(self.platform, prefix, self.records_table, store=store, keys_recur=keys_recur)

    def known(self, asset: str | None = None, *, store: ObjectStore | None = None) -> KnownRecord:
        """Returns the known record of the source's table, or of the table of `asset`.

        The record is outside the table's prefix. No request.
        """
        key, bucket = known_key(self.platform_prefix), self.platform.bucket
        place, where = self.platform, f"'{KNOWN}/' of bucket {bucket!r}"
        if self.records_table is not None:
            where = f"partition '{bucket}/{KNOWN}' of table {self.records_table.table!r}"
        elif self.known_bucket:
            key, where = f"{bucket}/{key}", f"'{KNOWN}/' of bucket {self.known_bucket!r}"
            place, store = replace(self.platform, bucket=self.known_bucket), None
        records = open_records(place, "", self.records_table, store=store)
        return KnownRecord(records=records, key=f"{key}.{asset}" if asset else key, where=where)

    @property
    def table_name(self) -> TableName:
        """The table's name for messages, and the function that makes its commands."""
        return TableName(source=self.name, command=self.command)

    def open_table(self, store: ObjectStore | None = None, *, expected: str = "") -> OpenTable:
        """Opens the table, for callers that know only the `Location`, and not the bucket and prefix that the source
        reads.

        The docstring of the function `open_table` says which tables are refused. Raises `UsageError` if the table has
        another number of slots. Cost: the requests of `LogTable.newest`.
        """
        table = open_table(self.table(store=store), self.table_name, None, expected=expected)
        self._check_slots(table.known.identity)
        return table

    def identity(self, *, store: ObjectStore | None = None) -> Identity | None:
        """Returns the identity in the table's known record: the settings with which the table was made. Without a
        table, returns None. Cost: 1 read.

        Raises `UsageError` if the table has another number of slots.
        """
        known, _ = self.known(store=store).read()
        found = known.identity if known is not None else None
        self._check_slots(found)
        return found

    def _check_slots(self, identity: Identity | None) -> None:
        if identity is not None and identity.slots != self.slots:
            raise UsageError(
                f"source {self.name!r} has {identity.slots} slots, not {self.slots}: set slots, or --slot-count"
            )

    def command(self, name: str, *more: str) -> str:
        """Returns the command `s3notify table ...` for this table, for messages."""
        given = {
            "--endpoint-url": self.platform.endpoint_url,
            "--bucket": self.platform.bucket,
            "--platform-prefix": self.platform_prefix,
            "--records-table": self.records_table.table if self.records_table else None,
            "--known-bucket": self.known_bucket,
        }
        options = (f"{option} {value}" for option, value in given.items() if value)
        return " ".join(("`s3notify table", name, self.name, *options, *more)) + "`"

    def is_begun(self) -> bool:
        """True if a change of the source was ever signalled, or if the source's topic exists.

        Cost: 1 HEAD, and 1 scan of the topics if there was no signal.
        """
        store = open_store(self.platform)
        if store.head(root_key(self.keyspace_prefix)) is not None:
            return True
        return any(topic.name == self.name for topic in self.queue(store).topics.all())

    def check_exists(self, asset: str | None = None) -> None:
        """Raises `UsageError` if the source, or its slot asset `asset`, has no table.

        Cost: the requests of `newest`.
        """
        if isinstance(self.table(asset).newest(), Absent):
            raise self.no_table(asset)

    def no_table(self, asset: str | None = None) -> UsageError:
        """Returns the error for a missing table of this source, or of its slot asset `asset`."""
        place = f"{self.platform.place}, prefix {self.platform_prefix!r}"
        what = f"slot asset {asset!r} of source {self.name!r}" if asset else f"source {self.name!r}"
        return UsageError(
            f"{what} has no table in {place}: nothing has been committed yet, or name, bucket or prefix differ "
            "from the settings of the source"
        )

    def queue(self, store: ObjectStore | None = None) -> NotificationQueue:
        """Returns the notification queue in the platform's bucket. The source's topic has the source's name.

        No request.
        """
        records = queue_records(self.platform, self.queue_prefix, self.records_table, store=store)
        return NotificationQueue(records)

    def slot_signals(self, store: ObjectStore | None = None, *, clock: Clock = SYSTEM_CLOCK) -> Publisher:
        """Returns a publisher for changes that are already in the queue. Its signals cause no listing. No request."""
        store = store or open_store(self.platform)
        return Publisher(store, prefix=self.keyspace_prefix, slots=self.slots, queued=True, clock=clock)

    def watcher(
        self,
        store: ObjectStore | None = None,
        *,
        state: WatcherState | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Watcher:
        """Returns a watcher of the source's signals. No request.

        With `signals: root`, a poll that finds a change also lists the topic's segments (`marks_of`).
        """
        store = store or open_store(self.platform)
        entries = partial(marks_of, self.queue(store).records, self.name) if self.signals == "root" else None
        return Watcher(
            store, prefix=self.keyspace_prefix, slots=self.slots, clock=clock, state=state, entries=entries
        )

    def all_slots(self) -> tuple[Slot, ...]:
        """Returns every slot of the keyspace."""
        return tuple(Slot(n) for n in range(self.slots))

    def settle_commit_mode(self, commit: CommitMode, store: ObjectStore, *, lost: bool = False) -> CommitMode:
        """Replaces `auto` by a definite commit mode, which is required before the first commit.

        The abilities of the platform's `store` are probed once for each source. The object `store.json` beside the
        table keeps the abilities and the resulting mode. Raises `UsageError` if the store lacks a required ability, or
        if earlier commits to the table used another mode: with two modes, runs would overwrite each other's commits.
        Raises `CorruptError` for an incomplete table, unless `lost` accepts it. Cost: 1 GET, and about 50 requests the
        first time.
        """
        key = f"{self.platform_prefix}store.json"
        stored = store.get(key)
        earlier = _left_by_probe(stored.body, key) if isinstance(stored, StoredObject) else None
        if earlier is None:
            if not lost:
                self.table(store=store).newest()  # raises an error if the table was emptied, before any write
            found = probe(store, self.platform_prefix)
        else:
            found = Capabilities(**{field.name: earlier[field.name] for field in fields(Capabilities)})
        if found.delete_if_match:
            note_conditional_delete(self.platform)
        choice = choose_commit(
            found,
            commit.choice,
            has_lease_table=commit.lease_table is not None,
            has_records_table=self.records_table is not None,
        ).commit
        leases = commit.lease_table.table if choice == "dynamodb" and commit.lease_table else None
        if earlier is None:
            body = asdict(found) | {"mode": found.mode, "commit": choice, "lease_table": leases}
            store.put(key, json.dumps(body).encode())
        elif (known := (earlier["commit"], earlier["lease_table"])) != (choice, leases):
            raise UsageError(
                f"source {self.name!r} would now commit by {_mode(choice, leases)}, but has committed by "
                f"{_mode(*known)} so far: stop all its runs, then remove {key!r}"
            )
        return replace(commit, choice=choice)


class ReadOnly(ConditionalCommit):
    """Raises `UsageError` for each commit to a table that was opened while the `CommitMode` was `auto`."""

    def _commit(self, operation: Operation) -> CommitOutcome:
        raise UsageError(
            f"{operation.path}: the table was opened without a commit mode, so it can only be read"
        )


@lru_cache(maxsize=REMEMBERED_TABLES)
def _memory(_platform: S3Config, _prefix: str) -> SnapshotMemory:
    """Returns the object that keeps the newest snapshot of this table that the process knows."""
    return SnapshotMemory()


def _left_by_probe(stored: bytes, key: str) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.loads(stored)
        if body.keys() >= {"mode", "commit", "lease_table", *(field.name for field in fields(Capabilities))}:
            return body
    except (ValueError, AttributeError):
        pass
    raise CorruptError(f"{key}: not a probe's result: remove it to probe the store again")


def _mode(choice: str, lease_table: str | None) -> str:
    return f"{choice} (lease table {lease_table!r})" if lease_table else choice
