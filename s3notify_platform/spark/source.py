"""What a source is: a bucket prefix, its format, and where its table stands."""

import re
from dataclasses import dataclass
from typing import Final

from s3notify_platform.errors import UsageError
from s3notify_platform.ports import ObjectStore
from s3notify_platform.protocols.conditional_commit import NativeCommit
from s3notify_platform.slots import SLOT_COUNT, Slot, check_slot_count
from s3notify_platform.spark.formats import FORMATS
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.fast_store import shared_store
from s3notify_platform.stores.records import ObjectRecordStore
from s3notify_platform.table.commit import SlotTable
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.schema import SchemaRegistry

MAX_OBJECTS: Final = 100_000
"""Object versions that one plan holds; what is beyond is planned after the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source and its table. Pickles, and travels to Spark tasks.

    `platform` may be the source's own bucket or another one; with another one the source needs read
    permission only. The platform's own objects never count as source objects: a prefix that contains them is
    refused.
    """

    name: str
    bucket: S3Config
    prefix: str
    format: str
    platform: S3Config
    schema: str | None = None
    platform_prefix: str = ""
    keyspace_prefix: str = ""
    slots: int = SLOT_COUNT
    max_objects: int = MAX_OBJECTS

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", self.name):
            raise UsageError(f"source name {self.name!r}: use a-z, 0-9 and _, beginning with a letter")
        if self.format not in FORMATS:
            raise UsageError(
                f"format {self.format!r} of source {self.name!r}: use one of {', '.join(FORMATS)}"
            )
        if self.max_objects < 1:
            raise UsageError(f"max_objects={self.max_objects} of source {self.name!r}: must be at least 1")
        check_slot_count(self.slots)
        if self.platform_prefix and not self.platform_prefix.endswith("/"):
            raise UsageError(
                f"platform_prefix {self.platform_prefix!r} of source {self.name!r}: end it with '/'"
            )
        if not self.platform_prefix:
            object.__setattr__(self, "platform_prefix", f"_s3notify/{self.name}/")
        if not self.keyspace_prefix:
            object.__setattr__(self, "keyspace_prefix", f"{self.platform_prefix}keyspace/")
        same = (self.bucket.bucket, self.bucket.endpoint_url) == (
            self.platform.bucket,
            self.platform.endpoint_url,
        )
        for own in (self.platform_prefix, self.keyspace_prefix):
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

    def table(self, layout: TableLayout | None = None, *, store: ObjectStore | None = None) -> SlotTable:
        """A client of the table (or of a derived one), through `store` if given. No request."""
        store = store or shared_store(self.platform)
        return SlotTable(store, layout or self.layout, NativeCommit(store))

    def schemas(self, layout: TableLayout | None = None) -> SchemaRegistry:
        """A client of the table's pinned schema. No request."""
        store = shared_store(self.platform)
        return SchemaRegistry(store, layout or self.layout, NativeCommit(store))

    def records(self, store: ObjectStore | None = None) -> ObjectRecordStore:
        """Ack chains and other records of this source, through `store` if given. No request."""
        return ObjectRecordStore(store or shared_store(self.platform), f"{self.platform_prefix}records/")

    def all_slots(self) -> tuple[Slot, ...]:
        """Every slot of the keyspace."""
        return tuple(Slot(n) for n in range(self.slots))
