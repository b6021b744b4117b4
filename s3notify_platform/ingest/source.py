"""What a source is, as three values: what it reads, where it keeps what it has made, how that is committed to."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self

from s3notify_platform.errors import UsageError
from s3notify_platform.formats.codecs import check_encoding
from s3notify_platform.formats.registry import AUTO, FORMATS
from s3notify_platform.formats.rescue import MISMATCHES, Mismatches
from s3notify_platform.ingest.location import CommitMode, Location
from s3notify_platform.ports import ObjectStore
from s3notify_platform.stores.config import S3Config
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
class Input:
    """What a source reads, how it parses it, and how much at once. Reading needs read permission only."""

    bucket: S3Config
    prefix: str = ""
    format: str = "auto"
    schema: str | None = None
    encoding: str = "utf-8"
    """Of texts that do not begin with a byte order mark, by its name in Python."""
    mismatches: Mismatches = "quarantine"
    """Where values go that do not fit their column: with their record to quarantine, or alone to `_rescued`."""
    max_objects: int = MAX_OBJECTS
    max_bytes: int = MAX_BYTES
    max_seconds: float = MAX_SECONDS
    split_bytes: int = SPLIT_BYTES
    code_version: str | None = None
    """Of the transform. Objects whose rows another version made are read again; None: whatever made them stays."""

    def __post_init__(self) -> None:
        _one_of("format", self.format, (AUTO, *FORMATS))
        _one_of("mismatches", self.mismatches, MISMATCHES)
        check_encoding(self.encoding)
        for limit in ("max_objects", "max_bytes", "split_bytes"):
            if getattr(self, limit) < 1:
                raise UsageError(f"{limit}={getattr(self, limit)}: must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source: its input, the location of its tables, and how these are committed to. Pickles.

    The platform's own objects never count as source objects: a prefix that contains them is refused.
    """

    input: Input
    location: Location
    commit: CommitMode = field(default_factory=CommitMode)

    def __post_init__(self) -> None:
        read, own = self.input.bucket, self.location.platform
        same = (read.bucket, read.endpoint_url) == (own.bucket, own.endpoint_url)
        prefix, place = self.input.prefix, self.location
        for taken in (place.platform_prefix, place.keyspace_prefix, place.queue_prefix):
            if same and (taken.startswith(prefix) or prefix.startswith(taken)):
                raise UsageError(
                    f"source {self.name!r} reads {prefix!r} of bucket {read.bucket!r}, which "
                    f"holds the platform's own objects below {taken!r}: give the source a prefix, or the "
                    "platform another bucket"
                )

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """A source from its settings by name, those of all three values, as users give them.

        `UsageError` for one that makes no sense. `commit` is the choice of a commit mode.
        """
        commit = {"choice": settings.pop("commit", "auto"), "lease_table": settings.pop("lease_table", None)}
        mine = {setting.name for setting in fields(Location)}
        location = {name: value for name, value in settings.items() if name in mine}
        read = {name: value for name, value in settings.items() if name not in mine}
        try:
            return cls(location=Location(**location), input=Input(**read), commit=CommitMode(**commit))
        except UsageError as error:
            name = settings.get("name")
            raise error if repr(name) in str(error) else UsageError(f"source {name!r}: {error}") from error

    @property
    def name(self) -> str:
        """The name of the source and of its topic."""
        return self.location.name

    def table(self, layout: TableLayout | None = None, *, store: ObjectStore | None = None) -> SlotTable:
        """A client of the table (or of a derived one), through `store` if given. No request."""
        return self.location.table(layout, store=store, commit=self.commit)

    def schemas(self, layout: TableLayout | None = None) -> SchemaRegistry:
        """A client of the table's pinned schema. No request."""
        return self.location.schemas(layout, commit=self.commit)

    def view(self, asset: str | None = None, *, store: ObjectStore | None = None) -> DeltaView:
        """The table, or that of a slot asset, as a Delta table. No request."""
        return self.location.view(asset, store=store, commit=self.commit)

    def settle_commit_mode(self, store: ObjectStore) -> Self:
        """The source with its commit mode settled. See `Location.settle_commit_mode`."""
        return replace(self, commit=self.location.settle_commit_mode(self.commit, store))


def _one_of(setting: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UsageError(f"{setting} {value!r}: use one of {', '.join(known)}")
