"""Shared by the commands: options that locate queue and source, error messages, services in the foreground."""

import functools
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click

from s3notify_platform.errors import S3NotifyError
from s3notify_platform.ingest.settings import SETTINGS
from s3notify_platform.slots import SLOT_COUNT, Slot

if TYPE_CHECKING:
    from s3notify_platform.channels.service import Service
    from s3notify_platform.ingest.location import CommitMode, Location
    from s3notify_platform.ports import ObjectStore
    from s3notify_platform.protocols.notification_queue import NotificationQueue
    from s3notify_platform.stores.config import DynamoConfig, S3Config

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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace:
    """Where the queue of a bucket is. Writers, inlets, outlets and sources of a bucket must name the same one."""

    bucket: str
    endpoint_url: str | None
    region: str
    queue_prefix: str
    records_table: str | None
    dynamodb_endpoint_url: str | None

    def s3(self) -> "S3Config":
        """The bucket that holds the queue. Credentials come from the environment, a profile or an instance role."""
        from s3notify_platform.stores.config import S3Config

        return S3Config(bucket=self.bucket, endpoint_url=self.endpoint_url, region=self.region)

    def queue(self) -> "NotificationQueue":
        """The queue. No request."""
        from s3notify_platform.protocols.notification_queue import NotificationQueue
        from s3notify_platform.stores.queue_records import queue_records

        return NotificationQueue(queue_records(self.s3(), self.queue_prefix, self.records_config()))

    def records_config(self) -> "DynamoConfig | None":
        """The table that holds the queue; None if it is on the bucket."""
        return self.table_config(self.records_table)

    def table_config(self, table: str | None) -> "DynamoConfig | None":
        """How to reach a DynamoDB table; None if no name is given."""
        from s3notify_platform.stores.config import DynamoConfig

        if not table:
            return None
        return DynamoConfig(table=table, region=self.region, endpoint_url=self.dynamodb_endpoint_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlace:
    """Where a source keeps its own objects, as its YAML says."""

    place: QueuePlace
    platform_bucket: str | None
    platform_prefix: str
    keyspace: str
    slots: int

    def location(self, name: str) -> "Location":
        """The location of the source of this name. No request."""
        from s3notify_platform.ingest.location import Location

        bucket = self.place.s3()
        return Location(
            name=name,
            platform=replace(bucket, bucket=self.platform_bucket or bucket.bucket),
            platform_prefix=self.platform_prefix,
            keyspace_prefix=self.keyspace,
            queue_prefix=self.place.queue_prefix,
            slots=self.slots,
            records_table=self.place.records_config(),
        )

    def table_of(self, name: str, lease_table: str | None) -> "tuple[Location, ObjectStore, CommitMode]":
        """The location of the source of this name, its store, and its commit mode, not checked yet. No request."""
        from s3notify_platform.ingest.location import CommitMode
        from s3notify_platform.stores.s3.fast import shared_store

        location = self.location(name)
        mode = CommitMode(lease_table=self.place.table_config(lease_table))
        return location, shared_store(location.platform), mode


def options_as(place: type[Any], *options: Option) -> Option:
    """These options, in this order; the command takes them as one `place`, a dataclass with a field for each.

    A field `place` comes from the options that are applied outside of these. Errors are printed as messages.
    """
    names = [each.name for each in fields(place)]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def placed(**kwargs: Any) -> None:
            given = {name: kwargs.pop(name) for name in names}
            with errors_for_people():
                command(place=place(**given), **kwargs)

        decorated: Command = placed
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


queue_options = options_as(
    QueuePlace,
    click.option(
        "--bucket", required=True, help="Bucket of the platform's own objects, including the queue."
    ),
    click.option("--endpoint-url", help="S3 endpoint; AWS if not given."),
    region_option("Region of bucket and table"),
    setting_option("queue_prefix"),
    setting_option("records_table"),
    click.option("--dynamodb-endpoint-url", help="DynamoDB endpoint; AWS if not given."),
)
"""Options that locate the queue; the command takes them as one `place: QueuePlace`."""

_source_options = options_as(
    SourcePlace,
    setting_option("platform_bucket"),
    setting_option("platform_prefix"),
    setting_option("keyspace_prefix", "--keyspace", "keyspace"),
    setting_option("slots", "--slot-count", "slots", type=click.IntRange(1, SLOT_COUNT)),
)


def source_options(command: Command) -> Command:
    """Options that locate a source, including its queue; the command takes one `place: SourcePlace`."""
    return queue_options(_source_options(command))


def keyspace_options(command: Command) -> Command:
    """Options that say which sources are signalled: `source_bucket`, `slots` and `keyspaces`."""
    for option in (
        click.option(
            "--keyspace",
            "keyspaces",
            nargs=2,
            multiple=True,
            metavar="SIGNALS KEYS",
            help="A source's prefix of signals, and its prefix of keys; once for each source. "
            "Like: --keyspace _s3notify/orders/keyspace/ raw/orders/",
        ),
        click.option(
            "--slot-count",
            "slots",
            type=click.IntRange(1, SLOT_COUNT),
            default=SLOT_COUNT,
            show_default=True,
            help="Number of slots of the keyspaces, as in the sources.",
        ),
        click.option("--source-bucket", help="Bucket that holds the objects; default: --bucket."),
    ):
        command = option(command)
    return command


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


@contextmanager
def errors_for_people() -> Iterator[None]:
    """Errors of this package end the command with their message, and exit code 1."""
    try:
        yield
    except S3NotifyError as error:
        raise click.ClickException(str(error)) from error


def run_in_foreground(service: "Service") -> None:
    """Run a service until SIGINT or SIGTERM, which end it cleanly; then print its counts by name, in one line.

    A second signal ends the process at once.
    """
    stop = threading.Event()

    def end(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    click.echo(f"{service.name}: running; Ctrl-C ends it", err=True)
    try:
        service.run(stop, lambda text: click.echo(f"{service.name}: {text}", err=True))
    finally:
        counts = " ".join(f"{name}={number}" for name, number in service.counts().items())
        click.echo(f"{service.name}: {counts}", err=True)


def print_table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(*(Column(head, overflow="fold") for head in heads))
    for row in rows:
        # Keys and errors come from outside: they are text, not markup.
        table.add_row(*(Text(str(cell)) for cell in row))
    Console().print(table)
