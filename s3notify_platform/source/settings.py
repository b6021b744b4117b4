"""The settings of a source, each declared once: name, type, default, description, unit.

The component's YAML fields, the IO manager's configuration, the data source's options, the command line and the values
of `source.source` and `source.location` all come from here. A new setting is one field of one of these classes, and the
line that uses it. How a bucket or a table is reached is declared by `stores.config`. Imports nothing heavy, since
`--help` reads it.

Names are the same everywhere. Only YAML has groups: `s3`; `latest`, whose settings begin with `latest_` elsewhere; and
`dynamodb`, whose own way to be reached begins with `dynamodb_` there (`ungrouped`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Annotated, Any, Final, Literal

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import CLUSTER_FILE_BYTES, WITHDRAWN_SHARE
from s3notify_platform.kernel.setting import About, Setting, named
from s3notify_platform.kernel.slots import SLOT_COUNT, check_slot_count
from s3notify_platform.protocols.conditional_commit import LEASE_FORM
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.source.commit_settings import LeaseTimeSettings, TableSettings, check_commit
from s3notify_platform.source.format_settings import FormatSettings
from s3notify_platform.stores.config import QUEUE_PREFIX, Access, S3Config
from s3notify_platform.table.own_objects import own_prefixes

DEFS_VARIABLE: Final = "S3NOTIFY_DEFS"
"""Environment variable that names the folder with the YAML of the sources."""


def _formats() -> Sequence[str]:
    from s3notify_platform.formats.registry import AUTO, FORMATS

    return (AUTO, *FORMATS)


def _mirrors() -> Sequence[str]:
    from s3notify_platform.table.mirrors import MIRRORS

    return tuple(MIRRORS)


@dataclass(frozen=True, kw_only=True)
class LocationSettings:
    """Where a source keeps what it has made; prefixes that are not given are made of its name."""

    name: Annotated[str, About("Name of the source and of its asset, like orders: a-z, 0-9, _")]
    slots: Annotated[
        int, About("Slots of the keyspace, the same for all who write and read it", unit="slots")
    ] = SLOT_COUNT
    platform_prefix: Annotated[
        str,
        About(
            "Prefix of the platform's own objects, like own/orders/; default: _s3notify/{name}/. Elsewhere than below "
            "_s3notify/, sources of other projects need it in other_platform_prefixes"
        ),
    ] = ""
    keyspace_prefix: Annotated[
        str, About("Prefix of the signals, like signals/; default: {platform_prefix}keyspace/")
    ] = ""
    known_bucket: Annotated[
        str,
        About(
            "Bucket that keeps what is known of the table, like acme-known, so that a loss is noticed; default: the "
            "platform's, below _s3notify-known/"
        ),
    ] = ""
    queue_prefix: Annotated[
        str,
        About("Prefix of the notification queue in the platform's bucket; the same for all that share it"),
    ] = QUEUE_PREFIX
    signals: Annotated[
        Literal["slots", "root"],
        About(
            "What writers move after a change that is in the queue: the signals of its slot and the root; or the root "
            "alone, which is 1 request fewer, where nearly all of them queue. As its topic is made, and cannot be "
            "changed"
        ),
    ] = "slots"

    mirror: Annotated[
        str | None,
        About(
            "What else shows the table and its slot assets: symlink writes a list of their files, for Athena, Presto "
            "and Redshift Spectrum; default: nothing, since Delta's readers need nothing else",
            choices=_mirrors,
        ),
    ] = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", self.name):
            raise UsageError(f"source name {self.name!r}: use a-z, 0-9 and _, beginning with a letter")
        check_slot_count(self.slots)
        if self.platform_prefix and not self.platform_prefix.endswith("/"):
            raise UsageError(f"platform_prefix {self.platform_prefix!r}: end it with '/'")
        if not self.platform_prefix:
            object.__setattr__(self, "platform_prefix", f"_s3notify/{self.name}/")
        if not self.keyspace_prefix:
            object.__setattr__(self, "keyspace_prefix", f"{self.platform_prefix}keyspace/")

    def own_prefixes_in(self, bucket: str, *, platform_bucket: str) -> tuple[str, ...]:
        """Prefixes of the platform's own objects in `bucket`. See `table.own_objects.own_prefixes`."""
        return own_prefixes(
            bucket,
            platform_bucket=platform_bucket,
            platform_prefix=self.platform_prefix,
            keyspace_prefix=self.keyspace_prefix,
            queue_prefix=self.queue_prefix,
        )


@dataclass(frozen=True, kw_only=True)
class InputSettings(FormatSettings):
    """What a source reads, how it is parsed, and how much at once."""

    prefix: Annotated[
        str, About("Only keys that begin with it, like raw/orders/; empty: the whole bucket")
    ] = ""
    include: Annotated[
        str,
        About(
            "Only keys that match one of these patterns, separated by |, below the prefix, like *.jsonl|2026/*.csv"
        ),
    ] = ""
    exclude: Annotated[
        str, About("No keys that match one of these patterns, like */tmp/*; * stands also for /")
    ] = ""
    hidden_files: Annotated[
        Literal["skip", "read"],
        About(
            "Skip or read keys that have a part like _SUCCESS, .name or _temporary/, or end with /; inlets go by it "
            "from their next start"
        ),
    ] = "skip"
    other_platform_prefixes: Annotated[
        str,
        About(
            "Where sources of other projects keep their own objects in the bucket, like own/clicks/|own/queue/: these "
            "are neither read nor reported. Not needed below _s3notify/"
        ),
    ] = ""
    modified_after: Annotated[
        str,
        About(
            "Only objects written at this time or later, like 2026-01-31T12:00:00Z: today's leaves out what is there"
        ),
    ] = ""
    on_delete: Annotated[
        Literal["withdraw", "keep", "keep_expired"],
        About(
            "Of an object that has left: withdraw its rows from the table, or keep them; or keep those of objects that "
            "expired by the bucket's lifecycle, if an inlet hears of it before a listing finds out"
        ),
    ] = "withdraw"
    overwrites: Annotated[
        Literal["rewrite", "vectors"],
        About(
            "Of rows that are overwritten or withdrawn: rewrite their files, or hide them by deletion vectors, which "
            "saves bytes where overwrites are scattered, and which fewer engines can read"
        ),
    ] = "rewrite"
    committed_tags: Annotated[
        str,
        About(
            "Tags that committed objects get, like archive=yes, for lifecycle rules of the bucket, which needs versions"
        ),
    ] = ""
    format: Annotated[
        str,
        About(
            "Format of the objects; auto goes by suffix; objects .json may be lists of records or JSON lines then",
            choices=_formats,
        ),
    ] = "auto"
    schema: Annotated[
        str | None,
        About(
            'Columns as Spark DDL, like "id bigint, at timestamp"; inferred and pinned if missing. Other types later: '
            "`s3notify schema set`"
        ),
    ] = None
    schema_hints: Annotated[
        str, About('Types of some columns as DDL, like "amount decimal(12,2)"; the others are inferred')
    ] = ""
    partition_columns: Annotated[
        str, About('Columns from parts of the key like dt=2026-01-01/, as DDL: "dt date, region string"')
    ] = ""
    metadata_columns: Annotated[
        str,
        About(
            "Columns with what the store says of a row's object version, like _modified, _size; there is _version, too"
        ),
    ] = ""
    encoding: Annotated[
        str, About("Encoding of texts without a byte order mark: utf-8, cp1252, latin-1, …")
    ] = "utf-8"
    mismatches: Annotated[
        Literal["quarantine", "rescue"],
        About(
            "Of a record with values that do not fit: quarantine it, or rescue them to the column _rescued"
        ),
    ] = "quarantine"
    max_objects: Annotated[
        int, About("Objects that a round reads at most before it commits", unit="objects", minimum=1)
    ] = 150_000
    max_bytes: Annotated[
        int,
        About(
            "What a round reads at most before it commits; bigger objects in parts", unit="bytes", minimum=1
        ),
    ] = 4 << 30
    max_seconds: Annotated[
        float,
        About("After so long a run begins no other round, and leaves the rest to the next", unit="seconds"),
    ] = 3600.0
    split_bytes: Annotated[
        int, About("Larger objects are read in parts of this size", unit="bytes", minimum=1)
    ] = 64 << 20
    withdraw_share: Annotated[
        float,
        About(
            "Of at least 100 objects that a listing compares, the share that may have left; more is refused until "
            "`s3notify table confirm`. 1: never refused",
            unit="share",
            minimum=0,
        ),
    ] = WITHDRAWN_SHARE
    code_version: Annotated[
        str | None,
        About(
            "Version of the transform, like v2. Change it, and a slot's objects are read again when it is next asked "
            "for: all of them by a backfill. Default: a fingerprint of its source, and of what this names of the "
            "project; slots that another one has made are shown as stale, and nothing is read again unasked"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BucketSettings:
    """The buckets of a source, and how its tables are committed to."""

    bucket: Annotated[str, About("Bucket of the objects, like acme-landing")]
    platform_bucket: Annotated[
        str | None,
        About("Bucket of the platform's own objects, like acme-own; default: the bucket of the objects"),
    ] = None
    commit: Annotated[
        str,
        About(
            "auto: native where the store can, else dynamodb (leases) if there is a lease_table, see its limits; "
            f"native; dynamodb; or {LEASE_FORM}, as object_store has it, which gives lease_table and "
            "lease_timeout_seconds, too",
            check=check_commit,
        ),
    ] = "auto"


_OF_TOPICS: Final = named(TopicSettings)

QUEUE: Final = ("capacity", "shards", "max_event_bytes", "stale_seconds")
"""The settings of topics that a source gives to its own, which nothing is pushed from."""

TopicSizeSettings: Final = make_dataclass(
    "TopicSizeSettings",
    [
        (
            f"queue_{name}",
            Annotated[
                _OF_TOPICS[name].kind,
                replace(
                    _OF_TOPICS[name].about,
                    description=f"Of the source's topic when it is made: {_OF_TOPICS[name].about.description}",
                ),
            ],
            field(default=_OF_TOPICS[name].default),
        )
        for name in QUEUE
    ],
    frozen=True,
    kw_only=True,
)
"""How the source's topic is made; later `s3notify topics update` changes it."""


_Region = Annotated[str | None, About("Region, like eu-west-1; default: AWS_REGION, or the profile's")]
_RegionOfTables = Annotated[str | None, About("Region, like eu-west-1; default: the buckets'")]


@dataclass(frozen=True, kw_only=True)
class S3Settings(S3Config):
    """How to reach the buckets. Default: boto3's own chain (environment, profile, instance role).

    Other credentials are given by the names of environment variables or of a profile, so that no secret is ever part
    of the definitions, which Dagster shows, or of Spark's tasks. Dagster's processes and Spark's workers each read
    them for themselves; a profile that changes is read again within a minute, variables only at a start.
    """

    region: _Region = None  # type: ignore[assignment] # null in YAML


@dataclass(frozen=True, kw_only=True)
class DynamoSettings(TableSettings, LeaseTimeSettings, Access):
    """DynamoDB tables, created by `s3notify init`. Default: none; everything is on the bucket.

    They are reached by boto3's own chain (environment, profile, instance role), whatever `s3` says of keys, unless
    other credentials are named here; in the region of the bucket, unless another one is.
    """

    region: _RegionOfTables = None  # type: ignore[assignment] # null in YAML


@dataclass(frozen=True, kw_only=True)
class LatestSettings:
    """The newest row of each key, as the asset {name}_latest: a table that is kept in step. Default: none."""

    key: Annotated[
        str,
        About("Columns that are the key, like order_id or tenant, order_id; without them a row is left out"),
    ]
    order_by: Annotated[
        str,
        About(
            "Columns by which a row is newer, like updated_at; null is oldest. Ties: when the object was written, its "
            "key, the row's place in it"
        ),
    ]
    deleted_when: Annotated[
        str,
        About(
            "Rows that say that their key is deleted, like op = 'D': the key has no row while it is the newest"
        ),
    ] = ""


LATEST: Final = {name: f"latest_{name}" for name in named(LatestSettings)}
"""The settings of YAML's group `latest`, and their names elsewhere."""

LatestColumns: Final = make_dataclass(
    "LatestColumns",
    [
        (
            flat,
            Annotated[str, replace(one.about, description=f"Of the newest rows: {one.about.description}")],
            "",
        )
        for name, flat in LATEST.items()
        for one in (named(LatestSettings)[name],)
    ],
    frozen=True,
    kw_only=True,
)
"""The same, by those names."""


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """The same rows in the order of some columns, as the asset {name}_clustered: a table that is kept in step."""

    cluster_by: Annotated[
        str,
        About(
            "Columns by which the asset {name}_clustered has the same rows in order, like dt, customer_id, so that "
            "queries by them read few files; empty: there is no such asset"
        ),
    ] = ""
    cluster_file_bytes: Annotated[
        int, About("Size from which on its files are not merged any more", unit="bytes", minimum=1)
    ] = CLUSTER_FILE_BYTES


UNGROUPED: Final = (BucketSettings, LocationSettings, InputSettings, ClusterSettings)
"""Settings that have the same names in component, IO manager, data source and command line."""

SOURCE: Final = (*UNGROUPED, LatestColumns)
"""All that is the same in them."""

DYNAMODB: Final = {
    name: f"dynamodb_{name}"
    for name in named(DynamoSettings)
    if name not in named(TableSettings, LeaseTimeSettings)
}
"""How DynamoDB is reached: the settings of YAML's group `dynamodb` that have other names elsewhere, and these."""


def _of_dynamodb(setting: Setting) -> Setting:
    about = replace(setting.about, description=f"Of DynamoDB: {setting.about.description}")
    return replace(setting, name=DYNAMODB[setting.name], about=about)


SETTINGS: Final[Mapping[str, Setting]] = {
    **named(*SOURCE, TableSettings, LeaseTimeSettings, S3Settings),
    **{DYNAMODB[name]: _of_dynamodb(named(DynamoSettings)[name]) for name in DYNAMODB},
}
"""All settings that make a source (`build`), by name."""


def ungrouped(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as YAML groups them, by their own names. `None` for a group is none of it."""
    own = {name: value for name, value in given.items() if name not in ("s3", "dynamodb", "latest")}
    tables = {DYNAMODB.get(name, name): value for name, value in (given.get("dynamodb") or {}).items()}
    latest = {LATEST[name]: value for name, value in (given.get("latest") or {}).items()}
    return {**own, **(given.get("s3") or {}), **tables, **latest}
