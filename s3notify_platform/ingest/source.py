"""What a source is: a bucket prefix, its format, where its table stands, and how that is committed to."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, assert_never

from s3notify_platform.errors import CorruptError, UsageError
from s3notify_platform.formats.codecs import check_encoding
from s3notify_platform.formats.registry import AUTO, FORMATS
from s3notify_platform.formats.rescue import MISMATCHES, Mismatches
from s3notify_platform.ports import ObjectStore, RecordStore, StoredObject
from s3notify_platform.protocols.conditional_commit import ConditionalCommit, NativeCommit
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.slots import SLOT_COUNT, Slot, check_slot_count
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.conditional import dynamo_commit
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.probe import Capabilities, CommitChoice, choose_commit, probe
from s3notify_platform.stores.queue_records import QUEUE_PREFIX, queue_records, records_of
from s3notify_platform.stores.s3.fast import shared_store
from s3notify_platform.table.commit import SlotTable
from s3notify_platform.table.delta.view import DeltaView
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.schema import SchemaRegistry

MAX_OBJECTS: Final = 100_000
"""Object versions that one plan holds; what is beyond is planned after the commit."""

MAX_BYTES: Final = 4 << 30
"""Bytes that one round reads before it commits; what is beyond is read after the commit, big objects in parts."""

SPLIT_BYTES: Final = 64 << 20
"""Objects up to this size are read whole by one task, larger ones in parts of it by many."""

MAX_SECONDS: Final = 3600.0
"""After so long a run begins no other round, and leaves the rest to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source and its table. Pickles, and travels to Spark tasks.

    `platform` may be the source's own bucket or another one; with another one the source needs read
    permission only. The platform's own objects never count as source objects: a prefix that contains them is
    refused.

    Commits are `native` or go through leases in `lease_table`; which of them is decided once a run, by
    `decided`, and until then tables can be read only. Records go to `records_table`, else to the bucket.
    """

    name: str
    bucket: S3Config
    prefix: str
    format: str
    platform: S3Config
    schema: str | None = None
    encoding: str = "utf-8"
    """Of texts that do not begin with a byte order mark, by its name in Python."""
    platform_prefix: str = ""
    keyspace_prefix: str = ""
    queue_prefix: str = QUEUE_PREFIX
    """Of the notification queue, which the sources of a bucket share. Beside the platform's other objects."""
    slots: int = SLOT_COUNT
    max_objects: int = MAX_OBJECTS
    mismatches: Mismatches = "quarantine"
    """Where values go that do not fit their column: with their record to quarantine, or alone to `_rescued`."""
    max_bytes: int = MAX_BYTES
    max_seconds: float = MAX_SECONDS
    split_bytes: int = SPLIT_BYTES
    code_version: str | None = None
    """Of the transform. Objects whose rows another version made are read again; None: whatever made them stays."""
    commit: CommitChoice = "auto"
    lease_table: DynamoConfig | None = None
    records_table: DynamoConfig | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", self.name):
            raise UsageError(f"source name {self.name!r}: use a-z, 0-9 and _, beginning with a letter")
        _one_of("format", self.format, (AUTO, *FORMATS), self.name)
        _one_of("mismatches", self.mismatches, MISMATCHES, self.name)
        check_encoding(self.encoding)
        for limit in ("max_objects", "max_bytes", "split_bytes"):
            if getattr(self, limit) < 1:
                raise UsageError(
                    f"{limit}={getattr(self, limit)} of source {self.name!r}: must be at least 1"
                )
        if self.commit == "dynamodb" and self.lease_table is None:
            raise UsageError(f"source {self.name!r}: commit: dynamodb needs a lease_table")
        check_slot_count(self.slots)
        if self.platform_prefix and not self.platform_prefix.endswith("/"):
            raise UsageError(
                f"platform_prefix {self.platform_prefix!r} of source {self.name!r}: end it with '/'"
            )
        if not self.platform_prefix:
            object.__setattr__(self, "platform_prefix", f"_s3notify/{self.name}/")
        if not self.keyspace_prefix:
            object.__setattr__(self, "keyspace_prefix", f"{self.platform_prefix}keyspace/")
        self._check_prefixes()

    def _check_prefixes(self) -> None:
        same = (self.bucket.bucket, self.bucket.endpoint_url) == (
            self.platform.bucket,
            self.platform.endpoint_url,
        )
        for own in (self.platform_prefix, self.keyspace_prefix, self.queue_prefix):
            if same and (own.startswith(self.prefix) or self.prefix.startswith(own)):
                raise UsageError(
                    f"source {self.name!r} reads {self.prefix!r} of bucket {self.bucket.bucket!r}, which "
                    f"holds the platform's own objects below {own!r}: give the source a prefix, or the "
                    "platform another bucket"
                )

    @property
    def layout(self) -> TableLayout:
        """Names of the table's objects."""
        return TableLayout(prefix=f"{self.platform_prefix}table/")

    def derived_layout(self, asset: str) -> TableLayout:
        """Names of the objects of a downstream slot table."""
        return TableLayout(prefix=f"{self.platform_prefix}derived/{asset}/")

    def table_layout(self, asset: str | None = None) -> TableLayout:
        """Names of the objects of the table, or of that of a slot asset."""
        return self.derived_layout(asset) if asset else self.layout

    def decided(self, store: ObjectStore) -> "Source":
        """The source with its commit settled, which it must be before anything is committed.

        What the platform's `store` can do is tried out once for each source, and stays beside the table as
        `store.json`, with the commit that followed. `UsageError` says which condition the store lacks, or that
        the table's other runs commit in another way: two ways at once do not see each other's winners. 1 GET;
        the first time about 50 requests.
        """
        place = f"{self.platform_prefix}store.json"
        stored = store.get(place)
        earlier = _left_by_probe(stored.body, place) if isinstance(stored, StoredObject) else None
        if earlier is None:
            found = probe(store, self.platform_prefix)
        else:
            # What a later version looks for besides was not known then.
            names = {field.name for field in fields(Capabilities)} & earlier.keys()
            found = Capabilities(**{name: earlier[name] for name in names})
        commit = choose_commit(
            found,
            self.commit,
            has_lease_table=self.lease_table is not None,
            has_records_table=self.records_table is not None,
        ).commit
        leases = self.lease_table.table if commit == "dynamodb" and self.lease_table else None
        if earlier is None:
            body = asdict(found) | {"mode": found.mode, "commit": commit, "lease_table": leases}
            store.put(place, json.dumps(body).encode())
        elif (known := (earlier.get("commit", "native"), earlier.get("lease_table"))) != (commit, leases):
            raise UsageError(
                f"source {self.name!r} is to commit by {_way(commit, leases)}, and so far did by "
                f"{_way(*known)}: stop all its runs, then remove {place!r}"
            )
        return replace(self, commit=commit)

    def commits(self, store: ObjectStore) -> ConditionalCommit | None:
        """What commits to this source's tables go through; None while that is not decided. No request."""
        match self.commit:
            case "auto":
                return None
            case "native":
                return NativeCommit(store)
            case "dynamodb":
                assert self.lease_table is not None, "checked when the source was made"
                # Not through `store`: what is sent under a lease must not be retried unseen.
                return dynamo_commit(self.platform, self.lease_table)
            case _ as unreachable:
                assert_never(unreachable)

    def table(self, layout: TableLayout | None = None, *, store: ObjectStore | None = None) -> SlotTable:
        """A client of the table (or of a derived one), through `store` if given. No request."""
        store = store or shared_store(self.platform)
        return SlotTable(store, layout or self.layout, self.commits(store))

    def schemas(self, layout: TableLayout | None = None) -> SchemaRegistry:
        """A client of the table's pinned schema. No request."""
        store = shared_store(self.platform)
        return SchemaRegistry(store, layout or self.layout, self.commits(store))

    def view(self, asset: str | None = None, *, store: ObjectStore | None = None) -> DeltaView:
        """The table, or that of a slot asset, as a Delta table. No request."""
        layout = self.table_layout(asset)
        store = store or shared_store(self.platform)
        commits = self.commits(store)
        table = SlotTable(store, layout, commits)
        return DeltaView(table, SchemaRegistry(store, layout, commits), commits, name=asset or self.name)

    def records(self, store: ObjectStore | None = None) -> RecordStore:
        """Ack chains and other records of this source; on the bucket, through `store` if given. No request."""
        return records_of_source(self.platform, self.platform_prefix, self.records_table, store=store)

    def queue(self, store: ObjectStore | None = None) -> NotificationQueue:
        """The notification queue of the source's bucket, in which the source's topic has its name. No request."""
        records = queue_records(self.platform, self.queue_prefix, self.records_table, store=store)
        return NotificationQueue(records)

    def all_slots(self) -> tuple[Slot, ...]:
        """Every slot of the keyspace."""
        return tuple(Slot(n) for n in range(self.slots))


def _one_of(setting: str, value: str, known: Sequence[str], source: str) -> None:
    if value not in known:
        raise UsageError(f"{setting} {value!r} of source {source!r}: use one of {', '.join(known)}")


def records_of_source(
    platform: S3Config, prefix: str, table: DynamoConfig | None, *, store: ObjectStore | None = None
) -> RecordStore:
    """Where a source with this platform prefix keeps its records: in `table`, or on the bucket. No request."""
    if table is not None:
        return records_of(table, f"{platform.bucket}/{prefix}")
    return ObjectRecordStore(store or shared_store(platform), f"{prefix}records/")


def _left_by_probe(stored: bytes, place: str) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.loads(stored)
        if "mode" in body:
            return body
    except (ValueError, TypeError):
        pass
    raise CorruptError(f"{place}: not what a probe leaves: remove it to try the store again")


def _way(commit: str, lease_table: str | None) -> str:
    return f"{commit} (lease table {lease_table!r})" if lease_table else commit
