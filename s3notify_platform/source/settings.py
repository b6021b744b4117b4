"""The settings of a source. Each setting is declared once, with name, type, default, description and unit.

These declarations define the component's YAML fields, the IO manager's configuration, the data source's options, the
command line, and the fields of `Input` and `Location`. A new setting needs one field in one of these classes, or in
their base classes in `choice_settings`, `format_settings` and `commit_settings`, and the code that uses the setting.
Then `poe options` writes the guide's page. `tests/unit/source/test_settings.py` shows how a setting is tested. A
`bool` is true or false in YAML and as an option of the data source, and a flag `--x/--no-x` on the command line. The
headings of the command line are chosen in `cli.setting_options`, usually by class.

`stores.config` declares the access to a bucket or a DynamoDB table. This module imports no large package, because
`--help` imports it.

Names are the same everywhere. Only YAML has groups: `s3`, `latest` and `dynamodb`. Outside YAML the settings of
`latest` begin with `latest_`, and the access settings of `dynamodb` begin with `dynamodb_` (`ungrouped`).
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
from s3notify_platform.protocols.notification_queue.topic_settings import differing
from s3notify_platform.source.choice_settings import ChoiceSettings
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
    """Places of a source's own objects. The default prefixes are derived from the source's name."""

    name: Annotated[str, About("Name of the source and of its asset, like orders: a-z, 0-9, _")]
    slots: Annotated[
        int, About("Number of slots of the keyspace; the same for all its writers and readers", unit="slots")
    ] = SLOT_COUNT
    platform_prefix: Annotated[
        str,
        About(
            "Prefix of the platform's own objects, like own/orders/; default: _s3notify/{name}/. If it is outside "
            "_s3notify/, sources of other projects need it in other_platform_prefixes"
        ),
    ] = ""
    keyspace_prefix: Annotated[
        str, About("Prefix of the signals, like signals/; default: {platform_prefix}keyspace/")
    ] = ""
    known_bucket: Annotated[
        str,
        About(
            "Bucket of the record by which the loss of a table is detected, like acme-known; default: the "
            "platform's bucket, below _s3notify-known/"
        ),
    ] = ""
    queue_prefix: Annotated[
        str,
        About(
            "Prefix of the notification queue in the platform's bucket; the same for all sources and writers that "
            "share it"
        ),
    ] = QUEUE_PREFIX
    signals: Annotated[
        Literal["slots", "root"],
        About(
            "Signals that writers move after they queue a change: slots (the slot's signal and the root), "
            "or root (the root alone, which saves 1 request if nearly all writers queue their changes). The "
            "source's topic must have the same setting. This setting cannot be changed later"
        ),
    ] = "slots"

    mirror: Annotated[
        str | None,
        About(
            "Format of an additional file list of the table and its slot assets: symlink is for Athena, "
            "Presto and Redshift Spectrum; default: no list, since Delta readers need none",
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
        for queue in (QUEUE_PREFIX, self.queue_prefix):
            if queue and self.platform_prefix.startswith(queue):
                raise UsageError(
                    f"platform_prefix {self.platform_prefix!r} is in the queue {queue!r}, where every publisher may "
                    "write: use another name or platform_prefix"
                )

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
class InputSettings(ChoiceSettings, FormatSettings):
    """The objects that a source reads, how it parses them, and how much it reads in a round."""

    overwrites: Annotated[
        Literal["rewrite", "vectors"],
        About(
            "Files with overwritten or withdrawn rows: rewrite (replace the files), or vectors (hide the "
            "rows by deletion vectors, which writes less if overwrites are scattered, but which fewer "
            "engines can read)"
        ),
    ] = "rewrite"
    committed_tags: Annotated[
        str,
        About(
            "Tags for committed objects, like archive=yes, for lifecycle rules; the bucket must have versioning"
        ),
    ] = ""
    format: Annotated[
        str,
        About(
            "Format of the objects; auto chooses it by suffix, and then reads .json objects as lists of records "
            "or as JSON lines",
            choices=_formats,
        ),
    ] = "auto"
    schema: Annotated[
        str | None,
        About(
            'Columns as Spark DDL, like "id bigint, at timestamp"; default: inferred from the first batch and '
            "then fixed. To change types later: `s3notify schema set`"
        ),
    ] = None
    schema_hints: Annotated[
        str, About('Types of some columns as DDL, like "amount decimal(12,2)"; all other types are inferred')
    ] = ""
    partition_columns: Annotated[
        str, About('Columns from parts of the key like dt=2026-01-01/, as DDL: "dt date, region string"')
    ] = ""
    metadata_columns: Annotated[
        str,
        About(
            "Columns with the store's metadata of a row's object version, like _modified, _size; also: _version"
        ),
    ] = ""
    encoding: Annotated[
        str, About("Encoding of texts without a byte order mark: utf-8, cp1252, latin-1, …")
    ] = "utf-8"
    mismatches: Annotated[
        Literal["quarantine", "rescue"],
        About(
            "Records with values that do not fit their columns: quarantine the record, or rescue the values to "
            "the column _rescued"
        ),
    ] = "quarantine"
    max_objects: Annotated[
        int,
        About("Maximum number of objects that a round reads before it commits", unit="objects", minimum=1),
    ] = 150_000
    max_bytes: Annotated[
        int,
        About(
            "Maximum number of bytes that a round reads before it commits; bigger objects are read in parts",
            unit="bytes",
            minimum=1,
        ),
    ] = 4 << 30
    max_seconds: Annotated[
        float,
        About(
            "Time after which a run starts no further round and leaves the rest to the next run",
            unit="seconds",
        ),
    ] = 3600.0
    split_bytes: Annotated[
        int, About("Objects larger than this are read in parts of this size", unit="bytes", minimum=1)
    ] = 64 << 20
    withdraw_share: Annotated[
        float,
        About(
            "Largest share of the compared objects that may be missing in a listing. If more are missing, runs "
            "withdraw no rows until `s3notify table confirm`. There is no limit if the share is 1, or if a listing "
            "compares fewer than 100 objects",
            unit="share",
            minimum=0,
        ),
    ] = WITHDRAWN_SHARE
    code_version: Annotated[
        str | None,
        About(
            "Version of the transform, like v2. Default: a fingerprint of the transform's source and of the "
            "project code that it uses. Slots made by another version are shown as stale, and are not read again "
            "on their own"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BucketSettings:
    """The buckets of a source, and the way of committing to its tables."""

    bucket: Annotated[str, About("Bucket of the objects, like acme-landing")]
    platform_bucket: Annotated[
        str | None,
        About("Bucket of the platform's own objects, like acme-own; default: the bucket of the objects"),
    ] = None
    commit: Annotated[
        str,
        About(
            "Way of committing: auto (native if the store has conditional writes, else dynamodb if "
            "lease_table is set), native (the store's conditional writes), dynamodb (leases, with the "
            f"limits described at lease_table), or {LEASE_FORM} (object_store's form, which also sets "
            "lease_table and lease_timeout_seconds)",
            check=check_commit,
        ),
    ] = "auto"


_OF_TOPICS: Final = named(TopicSettings)

QUEUE: Final = ("capacity", "shards", "max_event_bytes", "stale_seconds")
"""The settings that a source gives to its own topic. This topic delivers no notifications to an endpoint."""

TopicSizeSettings: Final = make_dataclass(
    "TopicSizeSettings",
    [
        (
            f"queue_{name}",
            Annotated[
                _OF_TOPICS[name].kind,
                replace(
                    _OF_TOPICS[name].about,
                    description=f"When the source's topic is created: {_OF_TOPICS[name].about.description}",
                ),
            ],
            field(default=_OF_TOPICS[name].default),
        )
        for name in QUEUE
    ],
    frozen=True,
    kw_only=True,
)
"""Settings for creating the source's topic. `s3notify topics update` changes these settings later."""


def topic_of(values: Mapping[str, Any]) -> TopicSettings:
    """The settings of a source's topic, from the settings of the source. Pure."""
    given = {name: values.get(f"queue_{name}") for name in QUEUE}
    given |= {name: values.get(name) for name in ("slots", "signals", "bucket", "prefix")}
    return TopicSettings(**{name: value for name, value in given.items() if value is not None})


def topic_difference(name: str, found: TopicSettings, wanted: TopicSettings) -> str:
    """Returns a text with the differences between a source's existing topic and the source's settings, and with the
    remedy; empty if there is no difference. Pure.
    """
    own = {setting: getattr(wanted, setting) for setting in (*QUEUE, "bucket", "prefix", "rules")}
    return differing(name, found, replace(found, **own))


_Region = Annotated[
    str | None, About("Region, like eu-west-1; default: AWS_REGION, or the region of the profile")
]
_RegionOfTables = Annotated[str | None, About("Region, like eu-west-1; default: the region of the buckets")]


@dataclass(frozen=True, kw_only=True)
class S3Settings(S3Config):
    """How to reach the buckets. Default: boto3's own chain (environment, profile, instance role).

    Other credentials are given by the names of environment variables or of a profile. So no secret ever becomes part of
    Spark's tasks or of the definitions, which Dagster shows. Each process of Dagster and Spark reads the credentials
    itself. A changed profile is read again within a minute; variables are read only when a process starts.
    """

    region: _Region = None  # type: ignore[assignment] # null in YAML


@dataclass(frozen=True, kw_only=True)
class DynamoSettings(TableSettings, LeaseTimeSettings, Access):
    """DynamoDB tables, created by `s3notify init`. Default: no tables; everything is in the bucket.

    Credentials are found by boto3's own chain (environment, profile, instance role), or are named here; the credentials
    in `s3` do not apply. By default, the tables are in the bucket's region.
    """

    region: _RegionOfTables = None  # type: ignore[assignment] # null in YAML


@dataclass(frozen=True, kw_only=True)
class LatestSettings:
    """A derived table with the newest row of each key, as the asset {name}_latest. Default: no such table."""

    key: Annotated[
        str,
        About("Key columns, like order_id or tenant, order_id; rows without a key are left out"),
    ]
    order_by: Annotated[
        str,
        About(
            "Columns that tell which row is newer, like updated_at; null is oldest. Ties are broken by the "
            "object's write time, its key, and the row's place in the object"
        ),
    ]
    deleted_when: Annotated[
        str,
        About(
            "Condition for rows that delete their key, like op = 'D': if the newest row of a key fulfils this "
            "condition, the table has no row of the key"
        ),
    ] = ""


LATEST: Final = {name: f"latest_{name}" for name in named(LatestSettings)}
"""Maps each setting of YAML's group `latest` to the setting's name outside YAML."""

LatestColumns: Final = make_dataclass(
    "LatestColumns",
    [
        (
            flat,
            Annotated[str, replace(one.about, description=f"Newest rows: {one.about.description}")],
            "",
        )
        for name, flat in LATEST.items()
        for one in (named(LatestSettings)[name],)
    ],
    frozen=True,
    kw_only=True,
)
"""The settings of `LatestSettings`. Each field has the name that its setting has outside YAML."""


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """The asset {name}_clustered: a derived table with the source's rows, sorted by some columns."""

    cluster_by: Annotated[
        str,
        About(
            "Columns that sort the rows of the asset {name}_clustered, like dt, customer_id, so that queries by "
            "these columns read few files; empty: no such asset"
        ),
    ] = ""
    cluster_file_bytes: Annotated[
        int,
        About(
            "Size above which files of the asset {name}_clustered are no longer merged",
            unit="bytes",
            minimum=1,
        ),
    ] = CLUSTER_FILE_BYTES


UNGROUPED: Final = (BucketSettings, LocationSettings, InputSettings, ClusterSettings)
"""Settings that have the same names in the component, the IO manager, the data source and the command line."""

SOURCE: Final = (*UNGROUPED, LatestColumns)
"""All settings that are the same in the component, the IO manager, the data source and the command line."""

DYNAMODB: Final = {
    name: f"dynamodb_{name}"
    for name in named(DynamoSettings)
    if name not in named(TableSettings, LeaseTimeSettings)
}
"""Maps each access setting of YAML's group `dynamodb` to the setting's name outside YAML."""


def _of_dynamodb(setting: Setting) -> Setting:
    about = replace(setting.about, description=f"DynamoDB: {setting.about.description}")
    return replace(setting, name=DYNAMODB[setting.name], about=about)


SETTINGS: Final[Mapping[str, Setting]] = {
    **named(*SOURCE, TableSettings, LeaseTimeSettings, S3Settings),
    **{DYNAMODB[name]: _of_dynamodb(named(DynamoSettings)[name]) for name in DYNAMODB},
}
"""All settings from which `build` makes a source, by name."""


def ungrouped(given: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces each group of YAML by the group's settings. Each setting gets the name that it has outside YAML. A group
    that is `None` is empty.
    """
    own = {name: value for name, value in given.items() if name not in ("s3", "dynamodb", "latest")}
    tables = {DYNAMODB.get(name, name): value for name, value in (given.get("dynamodb") or {}).items()}
    latest = {LATEST[name]: value for name, value in (given.get("latest") or {}).items()}
    return {**own, **(given.get("s3") or {}), **tables, **latest}
