"""Shared by the commands: options, the values that they give, and what is printed."""

import functools
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click

from s3notify_platform.ingest.settings import SETTINGS
from s3notify_platform.slots import SLOT_COUNT, Slot

if TYPE_CHECKING:
    from s3notify_platform.ingest.location import CommitMode, Location
    from s3notify_platform.ports import ObjectStore
    from s3notify_platform.protocols.notification_queue import NotificationQueue
    from s3notify_platform.stores.config import DynamoConfig, S3Config
    from s3notify_platform.table.commit import SlotTable

Command = Callable[..., None]
Option = Callable[[Command], Command]


def region_option(whose: str) -> Option:
    """`--region`; without it the environment's."""

    def region() -> str:
        from s3notify_platform.stores.config import default_region

        return default_region()

    shown = "AWS_REGION, or the profile's; else us-east-1"
    return click.option("--region", default=region, show_default=shown, help=f"{whose}.")


def setting_option(setting: str, *names: str, **more: Any) -> Option:
    """An option for a declared setting, with its description, type and default. `names`: instead of its own name."""
    declared = SETTINGS[setting]
    given = {"required": True} if declared.default is MISSING else {"default": declared.default}
    more = {"type": declared.number or str, "help": f"{declared.help}."} | given | more
    return click.option(*(names or [f"--{setting.replace('_', '-')}"]), **more)


def options(*given: Option) -> Option:
    """These options as one decorator, in this order."""
    return lambda command: functools.reduce(lambda done, option: option(done), reversed(given), command)


def bucket_options(bucket: str, region: str) -> Option:
    """Options that say how to reach a bucket: the fields of `BucketPlace`. `bucket`, `region`: their descriptions."""
    return options(
        click.option("--bucket", required=True, help=bucket),
        click.option("--endpoint-url", help="S3 endpoint; AWS if not given."),
        region_option(region),
    )


def limit_option(default: int | None, text: str) -> Option:
    """`--limit`: how many are printed at most."""
    return click.option("--limit", type=click.IntRange(1), default=default, show_default=True, help=text)


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document, for machines.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only print what would be read again.")
slot_count_option = setting_option("slots", "--slot-count", "slots", type=click.IntRange(1, SLOT_COUNT))
dynamodb_endpoint_option = click.option(
    "--dynamodb-endpoint-url", help="DynamoDB endpoint; AWS if not given."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlace:
    """A bucket, and how to reach it. Credentials come from the environment, a profile or an instance role."""

    bucket: str
    endpoint_url: str | None
    region: str

    def s3(self) -> "S3Config":
        """The bucket."""
        from s3notify_platform.stores.config import S3Config

        return S3Config(bucket=self.bucket, endpoint_url=self.endpoint_url, region=self.region)

    def store(self) -> "ObjectStore":
        """A client of the bucket. No request."""
        from s3notify_platform.stores.s3.fast import shared_store

        return shared_store(self.s3())


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace(BucketPlace):
    """Where the queue of a bucket is. Writers, inlets, outlets and sources of a bucket must name the same one."""

    queue_prefix: str
    records_table: str | None
    dynamodb_endpoint_url: str | None

    def queue(self) -> "NotificationQueue":
        """The queue. No request."""
        from s3notify_platform.protocols.notification_queue import NotificationQueue
        from s3notify_platform.stores.queue_records import queue_records

        return NotificationQueue(
            queue_records(self.s3(), self.queue_prefix, self.table_config(self.records_table))
        )

    def table_config(self, table: str | None) -> "DynamoConfig | None":
        """How to reach a DynamoDB table; None if no name is given."""
        from s3notify_platform.stores.config import DynamoConfig

        if not table:
            return None
        return DynamoConfig(table=table, region=self.region, endpoint_url=self.dynamodb_endpoint_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlace(QueuePlace):
    """Where a source keeps its own objects, as its YAML says."""

    name: str
    platform_bucket: str | None
    platform_prefix: str
    keyspace: str
    slots: int
    lease_table: str | None

    def location(self) -> "Location":
        """The location of the source. No request."""
        from s3notify_platform.ingest.location import Location

        bucket = self.s3()
        return Location(
            name=self.name,
            platform=replace(bucket, bucket=self.platform_bucket or bucket.bucket),
            platform_prefix=self.platform_prefix,
            keyspace_prefix=self.keyspace,
            queue_prefix=self.queue_prefix,
            slots=self.slots,
            records_table=self.table_config(self.records_table),
        )

    def table(self, asset: str | None = None) -> "SlotTable":
        """The source's table, or that of a slot asset, to be read. No request."""
        location = self.location()
        return location.table(location.table_layout(asset))

    def committing(self) -> "tuple[Location, ObjectStore, CommitMode]":
        """The location of the source, its store, and its commit mode, not settled yet. No request."""
        from s3notify_platform.ingest.location import CommitMode
        from s3notify_platform.stores.s3.fast import shared_store

        location = self.location()
        mode = CommitMode(lease_table=self.table_config(self.lease_table))
        return location, shared_store(location.platform), mode


def options_as(place: type[Any], *given: Option) -> Option:
    """These options, in this order; the command takes them as one `place`, a dataclass with a field for each."""
    names = [each.name for each in fields(place)]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def placed(**kwargs: Any) -> None:
            of_place = {name: kwargs.pop(name) for name in names}
            command(place=place(**of_place), **kwargs)

        return options(*given)(placed)

    return decorate


_QUEUE_OPTIONS = (
    bucket_options(
        "Bucket of the platform's own objects, including the queue.", "Region of bucket and table"
    ),
    setting_option("queue_prefix"),
    setting_option("records_table"),
    dynamodb_endpoint_option,
)
queue_options = options_as(QueuePlace, *_QUEUE_OPTIONS)
"""Options that locate the queue; the command takes them as one `place: QueuePlace`."""

_SOURCE_OPTIONS = (
    *_QUEUE_OPTIONS,
    setting_option("platform_bucket"),
    setting_option("platform_prefix"),
    setting_option("keyspace_prefix", "--keyspace", "keyspace"),
    slot_count_option,
    setting_option("lease_table"),
)
source_options = options_as(SourcePlace, click.argument("name"), *_SOURCE_OPTIONS)
"""The argument NAME, and options that locate the source and its queue; taken as one `place: SourcePlace`."""

named_source_options = options_as(SourcePlace, *_SOURCE_OPTIONS, setting_option("name"))
"""The same with an option `--name`."""

keyspace_options = options(
    click.option("--source-bucket", help="Bucket that holds the objects; default: --bucket."),
    slot_count_option,
    click.option(
        "--keyspace",
        "keyspaces",
        nargs=2,
        multiple=True,
        metavar="SIGNALS KEYS",
        help="A source's prefix of signals, and its prefix of keys; once for each source. "
        "Like: --keyspace _s3notify/orders/keyspace/ raw/orders/",
    ),
)
"""Options that say which sources are signalled: `source_bucket`, `slots` and `keyspaces`."""


def slots_of(_context: click.Context, _option: click.Parameter, text: str | None) -> frozenset[Slot] | None:
    """Slots as an option gives them, like 3,17,20-29; or: all."""
    if text is None:
        return None
    if text == "all":
        return frozenset(Slot(slot) for slot in range(SLOT_COUNT))
    found: set[Slot] = set()
    for part in text.split(","):
        if not (match := re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", part.strip())):
            raise click.BadParameter(f"{part!r}: give slots like 3,17,20-29, or all")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise click.BadParameter(f"{part!r}: {first} is above {last}; give slots like 3,17,20-29, or all")
        found.update(Slot(slot) for slot in range(first, last + 1))
    return frozenset(found)
