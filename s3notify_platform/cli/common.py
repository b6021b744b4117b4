"""Shared by the commands: options, the values that they give, and what is printed."""

import functools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from s3notify_platform.cli.configured import access
from s3notify_platform.cli.printing import say
from s3notify_platform.errors import UsageError
from s3notify_platform.slots import SLOT_COUNT, Slot, slots_in
from s3notify_platform.source.settings import LEASE_TIMES, SETTINGS, lease_settings

if TYPE_CHECKING:
    from s3notify_platform.ports import ObjectStore
    from s3notify_platform.protocols.notification_queue import NotificationQueue
    from s3notify_platform.source.location import CommitMode, Location
    from s3notify_platform.stores.config import DynamoConfig, S3Config
    from s3notify_platform.table.table import LogTable

Command = Callable[..., None]
Option = Callable[[Command], Command]


def region_option(whose: str) -> Option:
    """`--region`; without it the environment's."""

    def region() -> str:
        from s3notify_platform.stores.config import default_region

        return default_region()

    shown = "AWS_REGION, or the profile's; else us-east-1"
    return click.option("--region", default=region, show_default=shown, help=f"{whose}.")


_FLAGS = {"slots": "--slot-count"}
"""Flags that are not called like their setting: `--slots` are some of the slots."""


def setting_option(setting: str, **more: Any) -> Option:
    """An option for a declared setting, with its description, type and default."""
    declared = SETTINGS[setting]
    given = {"required": True} if declared.default is MISSING else {"default": declared.default}
    more = {"type": declared.scalar, "help": f"{declared.help}."} | given | more
    return click.option(_FLAGS.get(setting, f"--{setting.replace('_', '-')}"), setting, **more)


def options(*given: Option) -> Option:
    """These options as one decorator, in this order."""
    return lambda command: functools.reduce(lambda done, option: option(done), reversed(given), command)


_reach_options = options(
    click.option("--endpoint-url", help="S3 endpoint; default: AWS_ENDPOINT_URL, or AWS."),
    region_option("Region of buckets and tables"),
)
bucket_options = options(setting_option("bucket"), _reach_options)
"""Options that say how to reach a bucket: the fields of `BucketPlace`."""


def limit_option(default: int | None, text: str) -> Option:
    """`--limit`: how many are printed at most."""
    return click.option("--limit", type=click.IntRange(1), default=default, show_default=True, help=text)


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document, for machines.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only print what would be read again.")
metrics_option = click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve counts and the queue's depth at http://HOST:PORT/metrics, for Prometheus. Needs the extra metrics.",
)
slot_count_option = setting_option("slots", type=click.IntRange(1, SLOT_COUNT))
dynamodb_endpoint_option = click.option(
    "--dynamodb-endpoint-url", help="DynamoDB endpoint; default: AWS_ENDPOINT_URL, or AWS."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlace:
    """The watched bucket, and how to reach it. Credentials: those that the source's YAML names, else boto3's chain."""

    bucket: str
    endpoint_url: str | None
    region: str

    def s3(self) -> "S3Config":
        """The bucket."""
        from s3notify_platform.stores.config import S3Config

        return S3Config(
            bucket=self.bucket, endpoint_url=self.endpoint_url, region=self.region, **access("s3")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace(BucketPlace):
    """Where the queue of a bucket is. Writers, inlets, outlets and sources of a bucket must name the same one."""

    platform_bucket: str | None
    queue_prefix: str
    records_table: str | None
    dynamodb_endpoint_url: str | None

    def platform(self) -> "S3Config":
        """The bucket of the platform's own objects."""
        return replace(self.s3(), bucket=self.platform_bucket or self.bucket)

    def queue(self) -> "NotificationQueue":
        """The queue. No request."""
        from s3notify_platform.protocols.notification_queue import NotificationQueue
        from s3notify_platform.stores.queue_records import queue_records

        return NotificationQueue(
            queue_records(self.platform(), self.queue_prefix, self.table_config(self.records_table))
        )

    def table_config(self, table: str | None) -> "DynamoConfig | None":
        """How to reach a DynamoDB table; None if no name is given."""
        from s3notify_platform.stores.config import DynamoConfig

        if not table:
            return None
        found = {"region": self.region} | access("dynamodb")
        return DynamoConfig(table=table, endpoint_url=self.dynamodb_endpoint_url, **found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlace(QueuePlace):
    """Where a source keeps its own objects, as its YAML says."""

    name: str
    platform_prefix: str
    keyspace_prefix: str
    slots: int
    lease_table: str | None
    lease_timeout_seconds: float
    lease_max_clock_skew_rate: float
    lease_ttl_seconds: float
    lease_test_interval_seconds: float
    known_bucket: str

    def location(self) -> "Location":
        """The location of the source. No request."""
        from s3notify_platform.source.location import Location

        return Location(
            name=self.name,
            platform=self.platform(),
            platform_prefix=self.platform_prefix,
            keyspace_prefix=self.keyspace_prefix,
            queue_prefix=self.queue_prefix,
            slots=self.slots,
            known_bucket=self.known_bucket,
            records_table=self.table_config(self.records_table),
        )

    def existing(self, asset: str | None = None) -> "Location":
        """The location of a source that has a table, and a slot asset `asset`. `UsageError` if there is none.

        Requests as `Location.check_exists`.
        """
        location = self.location()
        location.check_exists(asset)
        return location

    def table(self, asset: str | None = None) -> "LogTable":
        """The source's table, or that of a slot asset, to be read, if it exists. Requests as `existing`."""
        return self.existing(asset).table(asset)

    def committing(self, *, damaged: bool = False) -> "tuple[Location, ObjectStore, CommitMode]":
        """The location of the source, its store, and its commit mode, not settled yet. Requests as `existing`.

        `damaged`: also of a table that is refused, or of none. No request then.
        """
        from s3notify_platform.source.location import CommitMode
        from s3notify_platform.stores.s3.fast import shared_store

        location = self.location() if damaged else self.existing()
        times = {name: getattr(self, name) for name in LEASE_TIMES}
        mode = CommitMode(lease_table=self.table_config(self.lease_table), leases=lease_settings(times))
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


_OF_QUEUE = (
    setting_option("platform_bucket"),
    setting_option("queue_prefix"),
    setting_option("records_table"),
    dynamodb_endpoint_option,
)
_QUEUE_OPTIONS = (bucket_options, *_OF_QUEUE)
queue_options = options_as(QueuePlace, *_QUEUE_OPTIONS)
"""Options that locate the queue; the command takes them as one `place: QueuePlace`."""

_OF_SOURCE = (setting_option("platform_prefix"), setting_option("keyspace_prefix"), slot_count_option)
sources_options = options(
    setting_option("bucket", required=False, default=None), _reach_options, *_OF_QUEUE, *_OF_SOURCE
)
"""Options of a command about several sources, which may all be in YAML."""

tables_options = options(
    setting_option("records_table"), setting_option("lease_table"), dynamodb_endpoint_option
)
"""Options that name the DynamoDB tables."""

_SOURCE_OPTIONS = (
    *_QUEUE_OPTIONS,
    *_OF_SOURCE,
    setting_option("lease_table"),
    options(*(setting_option(name) for name in LEASE_TIMES)),
    setting_option("known_bucket"),
)
source_options = options_as(SourcePlace, click.argument("name"), *_SOURCE_OPTIONS)
"""The argument NAME, and options that locate the source and its queue; taken as one `place: SourcePlace`."""

key_options = options_as(SourcePlace, setting_option("name"), *_SOURCE_OPTIONS)
"""The same for a command about a key, which tells the source: its name is an option."""

keyspace_options = options(
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
"""Options that say which sources are signalled: `slots` and `keyspaces`."""


def check_keyspaces(place: QueuePlace, keyspaces: tuple[tuple[str, str], ...], *, without: str) -> None:
    """Warn if no source will be signalled, or a keyspace was never signalled: it is new, or mistyped. 1 HEAD each."""
    from s3notify_platform.errors import S3NotifyError
    from s3notify_platform.protocols.keyspace import root_key
    from s3notify_platform.stores.s3.fast import shared_store

    if not keyspaces:
        say(f"no --keyspace: {without}, and no source is signalled", err=True)
    if click.get_current_context().get_parameter_source("keyspaces") is not ParameterSource.COMMANDLINE:
        return
    with suppress(S3NotifyError):  # which the service gets too, and waits
        for signals, _ in keyspaces:
            if shared_store(place.platform()).head(root_key(signals)) is None:
                say(
                    f"--keyspace {signals}: nothing was signalled there yet; if its source is not new, correct it",
                    err=True,
                )


def slots_of(_context: click.Context, _option: click.Parameter, text: str | None) -> frozenset[Slot] | None:
    """Slots as an option gives them, like 3,17,20-29; or: all."""
    try:
        return None if text is None else slots_in(text)
    except UsageError as error:
        raise click.BadParameter(f"{error}; give slots like 3,17,20-29, or all") from error
