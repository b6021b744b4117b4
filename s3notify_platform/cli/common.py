"""Options that several commands have, and the places that these options name: a bucket, a queue or a source."""

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from s3notify_platform.cli.configured import configured
from s3notify_platform.cli.help_pages import OPTIONS, PLACE, SettingOption
from s3notify_platform.cli.printing import say_wrapped
from s3notify_platform.cli.setting_options import Command, Option, options, setting_option, settings_options
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import named
from s3notify_platform.kernel.slots import Slot, slots_in
from s3notify_platform.source.bucket_settings import with_leases
from s3notify_platform.source.commit_settings import LeaseTimeSettings, TableSettings
from s3notify_platform.source.settings import SETTINGS, LocationSettings, S3Settings

if TYPE_CHECKING:
    from s3notify_platform.channels.service import SourceKeyspace
    from s3notify_platform.kernel.ports import ObjectStore
    from s3notify_platform.protocols.notification_queue import NotificationQueue
    from s3notify_platform.source.location import CommitMode, Location
    from s3notify_platform.source.source import Source
    from s3notify_platform.stores.config import S3Config
    from s3notify_platform.table.log_table import LogTable


def limit_option(default: int | None, text: str) -> Option:
    """`--limit`: the largest number of items to print."""
    return click.option(
        "--limit", type=click.IntRange(1), metavar="N", default=default, show_default=True, help=text
    )


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
json_lines_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    help="No effect: the output always has one JSON object a line.",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
metrics_option = click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve metrics for Prometheus at http://HOST:PORT/metrics. Needs the extra metrics.",
)


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """The watched bucket. `settings` has the values of the command line and of the source's YAML, by name."""

    settings: Mapping[str, Any]

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return str(self.settings["bucket"])

    def s3(self) -> "S3Config":
        """The watched bucket. No request."""
        from s3notify_platform.source.bucket_settings import bucket_of

        return bucket_of(self.settings)

    def platform(self) -> "S3Config":
        """The bucket of the platform's own objects. No request."""
        from s3notify_platform.source.bucket_settings import platform_of

        return platform_of(self.settings, self.s3())


class QueuePlace(BucketPlace):
    """The queue of a bucket. Writers, inlets, outlets and sources of one bucket must name the same queue."""

    @property
    def queue_prefix(self) -> str:
        """The prefix of the queue in the platform's bucket."""
        return str(self.settings["queue_prefix"])

    def queue(self) -> "NotificationQueue":
        """The queue. No request."""
        from s3notify_platform.protocols.notification_queue import NotificationQueue
        from s3notify_platform.source.bucket_settings import table_of
        from s3notify_platform.stores.open_store import queue_records

        table = table_of(self.settings, "records_table")
        return NotificationQueue(queue_records(self.platform(), self.queue_prefix, table))


class SourcePlace(QueuePlace):
    """A source: its name, its bucket, and the prefixes of its own objects."""

    @property
    def name(self) -> str:
        """The name of the source."""
        return str(self.settings["name"])

    @property
    def slots(self) -> int:
        """The number of slots."""
        return int(self.settings["slots"])

    def source(self) -> "Source":
        """The source, with a commit mode that is not settled yet. No request."""
        from s3notify_platform.source.build import build

        return build(self.settings)

    def location(self) -> "Location":
        """The location of the source. No request."""
        return self.source().location

    def existing(self, asset: str | None = None) -> "Location":
        """The location of the source. `UsageError` if the source has no table, or has no slot asset `asset`.

        Cost: the requests of `Location.check_exists`.
        """
        location = self.location()
        location.check_exists(asset)
        return location

    def table(self, asset: str | None = None) -> "LogTable":
        """The table of the source, or of slot asset `asset`, for reading. Errors and requests: as for `existing`."""
        return self.existing(asset).table(asset)

    def committing(self, *, damaged: bool = False) -> "tuple[Location, ObjectStore, CommitMode]":
        """The source's location, the store of the platform's objects, and the source's commit mode, which is not
        settled yet. Cost: the requests of `existing`.

        `damaged`: the table is not checked, so no request is sent, and a damaged or missing table is not an error.
        """
        from s3notify_platform.stores.open_store import open_store

        source = self.source()
        if not damaged:
            source.location.check_exists()
        return source.location, open_store(source.location.platform), source.commit

    def committing_table(self, asset: str | None, *, damaged: bool = False) -> "LogTable":
        """The table, for commits. Cost: the requests of `committing` and of `settle_commit_mode`."""
        location, store, mode = self.committing(damaged=damaged)
        if asset is not None and not damaged:
            location.check_exists(asset)
        return location.table(
            asset, store=store, commit=location.settle_commit_mode(mode, store, lost=damaged)
        )

    def tables(self, asset: str | None, *, commits: bool) -> "dict[str, LogTable]":
        """The tables of the source and of all its assets, by name, or only the table of `asset`. `UsageError` as in
        `existing`; an asset's folder without a readable table is not an error. `commits`: the tables are for commits.

        Cost: the requests of `committing`, of `slot_assets` and of `settle_commit_mode`.
        """
        from s3notify_platform.maintenance.erasure import slot_assets

        location, store, mode = self.committing()
        if asset:
            location.check_exists(asset)
        commit = location.settle_commit_mode(mode, store) if commits else None
        assets = [asset] if asset else [None, *slot_assets(location, store)]
        return {each or self.name: location.table(each, store=store, commit=commit) for each in assets}


BUCKET: Final = ("bucket", *named(S3Settings))
TABLES: Final = (*named(TableSettings), *(name for name in SETTINGS if name.startswith("dynamodb_")))
QUEUE: Final = (
    *BUCKET,
    "platform_bucket",
    "queue_prefix",
    *(name for name in TABLES if name != "lease_table"),
)
SOURCE: Final = (
    *QUEUE,
    *(name for name in named(LocationSettings) if name not in {*QUEUE, "name"}),
    "lease_table",
    *named(LeaseTimeSettings),
)
"""The settings of each kind of place. `SOURCE` lacks `name`, which is an argument."""


def options_as(
    place: type[BucketPlace], *names: str, first: Option | None = None, shown: Collection[str] = ()
) -> Option:
    """Options for the settings `names`, in this order; the command takes the values of these settings as one `place`.

    `first`: the argument or option NAME. `shown`: the settings that `--help` shows; `--help-all` shows all of them.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def placed(**given: Any) -> None:
            own = {name: given.pop(name) for name in (*names, *(["name"] if first else []))}
            settings = with_leases({name: value for name, value in own.items() if value is not None})
            command(place=place(settings), **given)

        return options(*([first] if first else []), settings_options(*names, shown=shown))(placed)

    return decorate


USUAL: Final = ("bucket", "endpoint_url", "region", "profile")
"""Settings that many people give on the command line if no YAML names the source."""

queue_options = options_as(QueuePlace, *QUEUE, shown=USUAL)
"""Options that locate the queue; the command takes their values as one `place: QueuePlace`."""


def source_with(*more: str) -> Option:
    """The argument NAME, and options that locate the source; the command takes them as one `place: SourcePlace`.

    `more`: further settings of the source that the command needs.
    """
    return options_as(SourcePlace, *SOURCE, *more, first=click.argument("name"))


_name_option = setting_option(
    "name", heading=OPTIONS, help="Source of the object; needed if several sources in the YAML read the key."
)


def key_with(*more: str) -> Option:
    """As `source_with`, but with the option `--name` in place of NAME, because KEY usually identifies the source."""
    return options_as(SourcePlace, *SOURCE, *more, first=_name_option)


source_options, key_options = source_with(), key_with()

_keyspace_options = options(
    setting_option("slots", rare=True),
    click.option(
        "--keyspace",
        "keyspaces",
        nargs=2,
        multiple=True,
        metavar="SIGNALS KEYS",
        cls=SettingOption,
        heading=PLACE,
        help="Prefix of a source's signals and prefix of its keys, once for each source, like "
        "_s3notify/orders/keyspace/ raw/orders/. Default: the sources in the YAML.",
    ),
)


def keyspace_options(command: Command) -> Command:
    """Options for the sources that are signalled; the command takes them as `keyspaces`, a tuple of
    `SourceKeyspace`.
    """

    @functools.wraps(command)
    def placed(*, keyspaces: Sequence[tuple[str, str]], slots: int, **given: Any) -> None:
        command(keyspaces=tuple(_source_keyspaces(keyspaces, slots)), **given)

    return _keyspace_options(placed)


def _source_keyspaces(pairs: Iterable[tuple[str, str]], slots: int) -> Iterator["SourceKeyspace"]:
    """The keyspaces with these prefixes of signals and keys. `slots`: the number of slots of a keyspace, if the command
    line gives this number, or if no source in the YAML has the keyspace.
    """
    from s3notify_platform.channels.service import SourceKeyspace

    given = click.get_current_context().get_parameter_source("slots") is ParameterSource.COMMANDLINE
    for signals, prefix in dict.fromkeys(pairs):
        sources = [source for source in configured() if source.keyspace == (signals, prefix)]
        alone = sources[0] if len(sources) == 1 else None
        for number in {slots} if given or not sources else {source.place.slots for source in sources}:
            yield SourceKeyspace(
                signals=signals,
                prefix=prefix,
                slots=number,
                topic=alone.name if alone else "",
                skips_hidden=alone is not None and alone.values.get("hidden_files", "skip") == "skip",
            )


def check_keyspaces(place: QueuePlace, keyspaces: Sequence["SourceKeyspace"], *, without: str) -> None:
    """Warns if no source will be signalled, or if a given keyspace has no signal yet. Cost: 1 HEAD for each keyspace.

    `without`: the effect of having no keyspace, for the message.
    """
    from s3notify_platform.kernel.errors import S3NotifyError
    from s3notify_platform.protocols.keyspace import root_key
    from s3notify_platform.stores.open_store import open_store

    if not keyspaces:
        say_wrapped(f"no --keyspace: {without}, but no source is signalled", err=True)
    if click.get_current_context().get_parameter_source("keyspaces") is not ParameterSource.COMMANDLINE:
        return
    with suppress(S3NotifyError):  # the service gets the same error, and waits
        for space in keyspaces:
            if open_store(place.platform()).head(root_key(space.signals)) is None:
                say_wrapped(
                    f"--keyspace {space.signals}: no signal is there yet; correct the prefix unless the source is new",
                    err=True,
                )


def warn_without_topic(place: QueuePlace, keyspaces: Sequence["SourceKeyspace"]) -> None:
    """Warns if a source has no topic: inlets ignore its changes, and writers do not queue them. Cost: 1 scan of the
    topics.
    """
    from s3notify_platform.channels.keyspaces import source_of
    from s3notify_platform.kernel.errors import S3NotifyError

    with suppress(S3NotifyError):  # the service gets the same error, and waits
        there = {topic.name for topic in place.queue().topics.all()}
        named = {space.topic or source_of(space.signals) for space in keyspaces} - {""}
        for name in sorted(named - there):
            say_wrapped(
                f"{name} has no topic yet, so its changes are ignored: start Dagster or `s3notify ingest {name}`, "
                "which make the topic and find the earlier changes",
                err=True,
            )


def slots_of(_context: click.Context, _option: click.Parameter, text: str | None) -> frozenset[Slot] | None:
    """The slots that the text of an option names, like 3,17,20-29; None if the option is not given."""
    try:
        return None if text is None else slots_in(text)
    except UsageError as error:
        raise click.BadParameter(f"{error}; give slots like 3,17,20-29, or all") from error
