"""A source as three values: the objects that it reads, the places of its own objects, and its commit mode."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow as pa

from s3notify_platform.formats.codecs import check_encoding
from s3notify_platform.formats.notation import NOTATION, kinds_at, notation_of
from s3notify_platform.formats.registry import FORMATS, RESERVED, check_schema, fixed_schema, format_of
from s3notify_platform.formats.rescue import RESCUED
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ObjectStore
from s3notify_platform.kernel.setting import check_settings
from s3notify_platform.protocols.source_enumerator import Choice, Enumerator, ObjectState, time_of
from s3notify_platform.source.declared_schema import arrow_columns, check_declared
from s3notify_platform.source.location import CommitMode, Location
from s3notify_platform.source.object_columns import ObjectColumns
from s3notify_platform.source.rules.row_rules import RowRules
from s3notify_platform.source.settings import InputSettings
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.stores.rules import tags_of
from s3notify_platform.table.arrow_schema import arrow_schema, spark_schema
from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.clustered.clustered_rows import ClusteredRows
from s3notify_platform.table.column_names import table_names
from s3notify_platform.table.follow import FollowingTable, Kind
from s3notify_platform.table.follow_jobs import FollowJobs, InProcess
from s3notify_platform.table.known import Identity
from s3notify_platform.table.latest.latest_definition import Latest
from s3notify_platform.table.latest.newest_rows import NewestRows
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.open_table import OpenTable, open_table
from s3notify_platform.table.own_objects import prefixes_of
from s3notify_platform.table.pinned_schema import NO_SCHEMA, described


@dataclass(frozen=True, kw_only=True)
class Input(InputSettings):
    """The objects that a source reads, how they are parsed, and the limits of a round.

    An `Input` needs only permission to read.
    """

    bucket: S3Config

    def __post_init__(self) -> None:
        check_settings(self, InputSettings)
        if self.prefix.startswith(("/", "s3:")):
            raise UsageError(
                f"prefix {self.prefix!r}: give the beginning of the keys, like raw/orders/, without a leading "
                "slash or s3://"
            )
        columns = self._data_columns()
        self.object_columns.check_apart([*self.hints.names, *columns.names])
        check_schema(self.hints, self.format)
        self._check_values(columns)
        check_encoding(self.encoding)
        time_of(self.modified_after)
        _ = self.tags
        prefixes_of(self.other_platform_prefixes)
        for form in FORMATS.values():
            form.configured(self)

    @property
    def object_columns(self) -> ObjectColumns:
        """The columns from the key and the store's metadata, and the raw record."""
        return ObjectColumns.of(self.partition_columns, self.metadata_columns, self.payload_column)

    @property
    def hints(self) -> pa.Schema:
        """The declared types that schema inference must use unchanged."""
        return arrow_columns("schema_hints", self.schema_hints) if self.schema_hints else pa.schema([])

    @property
    def tags(self) -> dict[str, str]:
        """The tags of `committed_tags`."""
        return tags_of(self.committed_tags)

    def refusal(self, key: str) -> str:
        """Returns the reason to reject an object as a whole, whatever its bytes are; "" if there is no reason. Pure.

        Only this method knows these reasons: the key names no format, or a value in the key does not fit its column.
        """
        if format_of(key, self.format) is None:
            return "the key's suffix names no format; set the source's format"
        return self.object_columns.reason(key) if self.mismatches == "quarantine" else ""

    def stays(self, state: ObjectState) -> bool:
        """True if the rows of a deleted object stay in the table."""
        kept = self.on_delete == "keep" or (self.on_delete == "keep_expired" and state.expired)
        return kept and state.rows > 0

    def _check_values(self, columns: pa.Schema) -> None:
        """Raises `UsageError` if notation, payload or a rule is impossible for the format or the `columns`."""
        notation, rules = notation_of(self), self.rules
        form = FORMATS.get(self.format)
        for name in NOTATION:
            if form is not None and getattr(self, name) and not form.has_notation:
                possible = ", ".join(each.name for each in FORMATS.values() if each.has_notation)
                raise UsageError(f"{name} is only for {possible}, and format is {self.format}: leave it out")
            for path in notation.paths(name) if columns else ():
                if path not in kinds_at(columns):
                    raise UsageError(f"{name}: there is no column {path!r} in the schema: correct its name")
        if form is not None and self.payload_column and not form.has_records:
            raise UsageError(
                f"payload_column {self.payload_column!r}: objects of format {self.format} have no raw records: leave "
                "it out"
            )
        if columns:
            rules.bound(self.delivered(arrow_schema(self.table_names(spark_schema(columns)))))

    @property
    def rules(self) -> RowRules:
        """The rules that rows must fulfil."""
        return RowRules.of(self.expect, self.expect_warn)

    def table_names(self, schema: str, held: str = "{}") -> str:
        """Replaces the column names of a schema, which are the names in the objects, by the names in the table.

        See `column_names.table_names`.
        """
        taken = (*RESERVED, *self.object_columns.schema.names)
        return table_names(schema, held, safe=self.column_names == "safe", taken=taken)

    def delivered(self, data: pa.Schema) -> pa.Schema:
        """Returns the columns of rows before a transform, without lineage columns.

        `data`: data columns with their table names.
        """
        rescued = [RESCUED] if self.mismatches == "rescue" else []
        return pa.schema([*data, *rescued, *self.object_columns.schema])

    def _data_columns(self) -> pa.Schema:
        """Returns the data columns that are known before the first read."""
        fixed = fixed_schema(self.format)
        if self.schema_hints and (self.schema or fixed is not None):
            raise UsageError(
                f"schema_hints {self.schema_hints!r}: there is nothing to infer; declare all columns by schema alone"
                if fixed is None
                else f"schema_hints {self.schema_hints!r}: format {self.format} has columns of its own"
            )
        return check_declared(self.schema) if self.schema else fixed if fixed is not None else pa.schema([])


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source: its input, the places of its own objects, and the commit mode of its tables. A source can be pickled.

    The platform's own objects never count as source objects, wherever they are in the bucket.
    """

    input: Input
    location: Location
    commit: CommitMode = field(default_factory=CommitMode)
    latest: Latest | None = None
    """The table with the newest row of each key; None if there is no such table."""
    clustered: Clustered | None = None
    """The clustered table, with the source's rows in another order; None if there is no such table."""

    def __post_init__(self) -> None:
        if self.location.mirror == "symlink" and self.input.overwrites == "vectors":
            raise UsageError(
                "mirror: symlink lists whole files, which still contain the rows that deletion vectors hide: leave out "
                "overwrites: vectors"
            )
        if inside := next((own for own in self.own if self.input.prefix.startswith(own)), None):
            raise UsageError(
                f"it reads {self.input.prefix!r} of bucket {self.input.bucket.bucket!r}, which is among the "
                f"platform's own objects below {inside!r}: give it another prefix"
            )

    @property
    def own(self) -> tuple[str, ...]:
        """Prefixes of the platform's own objects in the bucket that is read, including configured prefixes of other
        projects.
        """
        own = self.location.own_prefixes(self.input.bucket.bucket)
        return tuple(dict.fromkeys((*own, *prefixes_of(self.input.other_platform_prefixes))))

    @property
    def name(self) -> str:
        """The name of the source and of its topic."""
        return self.location.name

    def table(
        self, asset: str | None = None, *, store: ObjectStore | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> LogTable:
        """Returns the source's table, or the table of `asset`, for commits. See `Location.table`. No request."""
        return self.location.table(
            asset, store=store, commit=self.commit, vectors=self.input.overwrites == "vectors", clock=clock
        )

    @property
    def kinds(self) -> dict[str, Callable[[FollowJobs], Kind]]:
        """The kinds of the source's derived tables, by asset.

        Each value is a function that takes the jobs that update the table, and returns the table's kind: newest rows,
        or clustered rows.
        """
        found: dict[str, Callable[[FollowJobs], Kind]] = {}
        if (latest := self.latest) is not None:
            found[self.location.latest_name] = lambda jobs: NewestRows(latest=latest, jobs=jobs)
        if (clustered := self.clustered) is not None:
            found[self.location.clustered_name] = lambda jobs: ClusteredRows(clustered=clustered, jobs=jobs)
        return found

    def following(
        self,
        asset: str,
        jobs: Callable[[LogTable, LogTable], FollowJobs] = InProcess,
        *,
        store: ObjectStore | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> FollowingTable:
        """Returns the derived table of `asset`, which can then advance to the newest version of the source's table. No
        request.

        `jobs` is called with the source's table and the derived table. The function `jobs` returns the jobs that work
        on a whole table.
        """
        rows, table = (self.table(name, store=store, clock=clock) for name in (None, asset))
        return FollowingTable(
            source=rows,
            table=table,
            kind=self.kinds[asset](jobs(rows, table)),
            name=self.location.table_name,
            identity=self.identity,
            vectors=self.input.overwrites == "vectors",
            clock=clock,
        )

    @property
    def identity(self) -> Identity:
        """The settings with which the table was made, and which cannot change later."""
        return Identity(bucket=self.input.bucket.bucket, prefix=self.input.prefix, slots=self.location.slots)

    def open_table(
        self,
        *,
        expected: str = "",
        create: bool = True,
        store: ObjectStore | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> OpenTable:
        """Opens the table. An incomplete table, or a table with other settings, is refused. See `open_table`."""
        table = self.table(store=store, clock=clock)
        first = described(NO_SCHEMA, created_ms=clock.wall_ms()) if create else None
        endpoint = self.input.bucket.endpoint_url or ""
        return open_table(
            table, self.location.table_name, self.identity, endpoint=endpoint, expected=expected, create=first
        )

    def enumerator(self, bucket: ObjectStore | None = None) -> Enumerator:
        """Returns an enumerator of the source's objects. No request; later requests go through `bucket` if `bucket` is
        given.
        """
        bucket = bucket or open_store(self.input.bucket)
        return Enumerator(bucket, self.choice, slots=self.location.slots)

    @property
    def choice(self) -> Choice:
        """The choice of objects to read."""
        chosen = self.input
        return Choice(
            prefix=chosen.prefix,
            own=self.own,
            hidden=chosen.hidden_files == "read",
            include=chosen.include,
            exclude=chosen.exclude,
            modified_after=time_of(chosen.modified_after),
        )

    def settle_commit_mode(self, store: ObjectStore) -> Self:
        """Returns the source with a definite commit mode. See `Location.settle_commit_mode`."""
        return replace(self, commit=self.location.settle_commit_mode(self.commit, store))
