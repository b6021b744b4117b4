"""Shared by the commands: options, the values that they give, and what is printed."""

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from s3notify_platform.cli.printing import say
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import Setting, named
from s3notify_platform.kernel.slots import Slot, slots_in
from s3notify_platform.source.bucket_settings import with_leases
from s3notify_platform.source.commit_settings import LeaseTimeSettings, TableSettings
from s3notify_platform.source.settings import SETTINGS, S3Settings

if TYPE_CHECKING:
    from s3notify_platform.kernel.ports import ObjectStore
    from s3notify_platform.protocols.notification_queue import NotificationQueue
    from s3notify_platform.source.location import CommitMode, Location
    from s3notify_platform.source.source import Source
    from s3notify_platform.stores.config import S3Config
    from s3notify_platform.table.log_table import LogTable

Command = Callable[..., None]
Option = Callable[[Command], Command]


class _Value(click.ParamType):  # type: ignore[type-arg] # of newer versions of click alone
    """A setting's value as a text: converted, or refused in the words that it is refused in elsewhere."""

    def __init__(self, setting: Setting) -> None:
        self.name = {int: "integer", float: "float", bool: "boolean"}.get(setting.base, "text")
        self._setting = setting

    def convert(self, value: Any, _param: Any, _ctx: Any) -> Any:
        """See `click.ParamType`."""
        several = isinstance(value, str) and self._setting.base == tuple[str, ...]
        return value if several else self._setting.value(value)


_FLAGS = {"slots": "--slot-count"}
"""Flags that are not called like their setting: `--slots` are some of the slots."""


def option_of(setting: Setting, *, prefix: str = "", **more: Any) -> Option:
    """An option for a declared setting, with its description, type and default. `prefix`: of its parameter's name."""
    flag = setting.about.option or _FLAGS.get(setting.name) or f"--{setting.name.replace('_', '-')}"
    given: dict[str, Any] = {"required": True} if setting.default is MISSING else {"default": setting.default}
    if setting.base is bool:
        given |= {"is_flag": True}
        flag += f"/--no-{flag.removeprefix('--')}" if "default" in more and more["default"] is None else ""
    else:
        given |= {"type": _Value(setting), "multiple": setting.base == tuple[str, ...]}
        if setting.about.choices is None and setting.choices:
            given |= {"metavar": f"[{'|'.join(setting.choices)}]"}
    return click.option(flag, f"{prefix}{setting.name}", **{"help": f"{setting.help}."} | given | more)


def setting_option(name: str, **more: Any) -> Option:
    """An option for a setting of a source."""
    return option_of(SETTINGS[name], **more)


def options(*given: Option) -> Option:
    """These options as one decorator, in this order."""
    return lambda command: functools.reduce(lambda done, option: option(done), reversed(given), command)


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


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """The watched bucket, and how to reach it: settings by name, of the command line and of the source's YAML."""

    settings: Mapping[str, Any]

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return str(self.settings["bucket"])

    def s3(self) -> "S3Config":
        """The bucket."""
        from s3notify_platform.source.bucket_settings import bucket_of

        return bucket_of(self.settings)

    def platform(self) -> "S3Config":
        """The bucket of the platform's own objects."""
        from s3notify_platform.source.bucket_settings import platform_of

        return platform_of(self.settings, self.s3())


class QueuePlace(BucketPlace):
    """Where the queue of a bucket is. Writers, inlets, outlets and sources of a bucket must name the same one."""

    @property
    def queue_prefix(self) -> str:
        """Its prefix in the platform's bucket."""
        return str(self.settings["queue_prefix"])

    def queue(self) -> "NotificationQueue":
        """The queue. No request."""
        from s3notify_platform.protocols.notification_queue import NotificationQueue
        from s3notify_platform.source.bucket_settings import table_of
        from s3notify_platform.stores.open_store import queue_records

        table = table_of(self.settings, "records_table")
        return NotificationQueue(queue_records(self.platform(), self.queue_prefix, table))


class SourcePlace(QueuePlace):
    """A source, as far as the command needs it: where it keeps its own objects, as its YAML says."""

    @property
    def name(self) -> str:
        """The name of the source."""
        return str(self.settings["name"])

    @property
    def slots(self) -> int:
        """Its slots."""
        return int(self.settings["slots"])

    def source(self) -> "Source":
        """The source, its commit mode not settled. No request."""
        from s3notify_platform.source.build import build

        return build(self.settings)

    def location(self) -> "Location":
        """The location of the source. No request."""
        return self.source().location

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
        from s3notify_platform.stores.open_store import open_store

        source = self.source()
        if not damaged:
            source.location.check_exists()
        return source.location, open_store(source.location.platform), source.commit

    def committing_table(self, asset: str | None, *, damaged: bool = False) -> "LogTable":
        """The table, to be committed to. Requests as `committing`, and those of `settle_commit_mode`."""
        location, store, mode = self.committing(damaged=damaged)
        if asset is not None and not damaged:
            location.check_exists(asset)
        return location.table(
            asset, store=store, commit=location.settle_commit_mode(mode, store, lost=damaged)
        )


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
    "platform_prefix",
    "keyspace_prefix",
    "slots",
    "known_bucket",
    "mirror",
    "lease_table",
    *named(LeaseTimeSettings),
)
"""The settings of each kind of place."""

_UNUSUAL: Final = {*named(S3Settings), *TABLES} - {
    "endpoint_url",
    "region",
    "dynamodb_endpoint_url",
    *named(TableSettings),
}
"""Options that few need on the command line, and most have in YAML: only the help of `ingest` shows them."""


def settings_options(*names: str) -> Option:
    """Options of these settings of a source, in this order."""
    return options(*(setting_option(name, hidden=name in _UNUSUAL) for name in names))


def options_as(place: type[BucketPlace], *names: str, first: Option | None = None) -> Option:
    """Options of these settings, in this order; the command takes them as one `place`. `first`: that of the name."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def placed(**given: Any) -> None:
            own = {name: given.pop(name) for name in (*names, *(["name"] if first else []))}
            settings = with_leases({name: value for name, value in own.items() if value is not None})
            command(place=place(settings), **given)

        return options(*([first] if first else []), settings_options(*names))(placed)

    return decorate


queue_options = options_as(QueuePlace, *QUEUE)
"""Options that locate the queue; the command takes them as one `place: QueuePlace`."""

slot_count_option = setting_option("slots")


def source_with(*more: str) -> Option:
    """The argument NAME, and options that locate the source and its queue; taken as one `place: SourcePlace`.

    `more`: further settings of the source that the command needs.
    """
    return options_as(SourcePlace, *SOURCE, *more, first=click.argument("name"))


def key_with(*more: str) -> Option:
    """The same for a command about a key, which tells the source: its name is an option."""
    return options_as(SourcePlace, *SOURCE, *more, first=setting_option("name"))


source_options, key_options = source_with(), key_with()

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
    from s3notify_platform.kernel.errors import S3NotifyError
    from s3notify_platform.protocols.keyspace import root_key
    from s3notify_platform.stores.open_store import open_store

    if not keyspaces:
        say(f"no --keyspace: {without}, and no source is signalled", err=True)
    if click.get_current_context().get_parameter_source("keyspaces") is not ParameterSource.COMMANDLINE:
        return
    with suppress(S3NotifyError):  # which the service gets too, and waits
        for signals, _ in keyspaces:
            if open_store(place.platform()).head(root_key(signals)) is None:
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
