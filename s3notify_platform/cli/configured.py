"""Commands that take options from a project's YAML (`local.project`), so that the name of a source is enough.

The command line overrides the YAML.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from s3notify_platform.cli.help_pages import HELP_ALL, PagedCommand
from s3notify_platform.cli.printing import printable
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.project import PLACES, ConfiguredSource, sources_of
from s3notify_platform.source.settings import DEFS_VARIABLE, DYNAMODB, SETTINGS
from s3notify_platform.stores.config import S3Config

if TYPE_CHECKING:
    import dagster as dg


OF_SERVICE: Final = "set_"
"""Prefix of parameter names for the settings of a service. Without the prefix, some of these names would clash with the
names of the queue's options.
"""

_META: Final = "s3notify_platform.cli.configured"
_GIVEN: Final = f"{_META}.given"

_PLACE: Final = (
    "bucket", "platform_bucket", "queue_prefix", "scheme", "endpoint_url", "region", "records_table",
    *DYNAMODB.values(),
)  # fmt: skip
"""Settings that decide where a command works. The credentials of DynamoDB tables are among these settings, because a
table's name is unique only in one account. The credentials of buckets are not among them.
"""

_REQUESTS: Final = ("requester_pays", "kms_key_id")
"""Settings of requests to a bucket. Without `kms_key_id`, a command would encrypt the objects that it writes with
another key.
"""


def _chosen(
    sources: Sequence[ConfiguredSource], given: Mapping[str, Any], *, one: bool
) -> list[ConfiguredSource]:
    """The sources that the command line selects. `one`: selects exactly one source, or no source if the command line
    gives `--bucket`.
    """
    name, bucket = given.get("name"), given.get("bucket")
    keys = given.get("keys") or [given.get("key")]
    found = list(sources)
    if isinstance(name, str):
        found = [source for source in found if source.name == name]
    elif isinstance(bucket, str):
        found = [source for source in found if bucket in source.buckets]
    if one and len(found) > 1:
        found = [
            source for source in found if all(str(key).startswith(source.keyspace[1]) for key in keys if key)
        ]
    names = ", ".join(sorted({source.name for source in sources}))
    if sources and not found and not isinstance(bucket, str):
        what = f"source {name!r}" if isinstance(name, str) else "source that reads all of these keys"
        raise UsageError(f"no {what}; {sources[0].folder} has: {names}")
    if one and len(found) > 1:
        raise UsageError(f"several sources match; name one of: {', '.join(s.name for s in found)}")
    return found


class ConfiguredCommand(PagedCommand):
    """A command that takes the options of a source from its YAML."""

    def __init__(self, *args: Any, service: str = "", **kwargs: Any) -> None:
        """`service`: a registered service. The command has the service's settings as parameters, whose names begin with
        `OF_SERVICE`.
        """
        super().__init__(*args, **kwargs)
        self._service = service
        names = {parameter.name for parameter in self.params}
        self._one = any(parameter.name == "name" and parameter.required for parameter in self.params)
        self._configurable = "bucket" in names
        needs_bucket = any(parameter.name == "bucket" and parameter.required for parameter in self.params)
        # A command with an optional NAME uses no queue if NAME is missing.
        unused = {"queue_prefix"} if "name" in names else set()
        self._shared = [name for name in (*_PLACE, *_REQUESTS) if needs_bucket and name in names - unused]
        if self._configurable:
            self.params.append(
                click.Option(
                    ["--defs"],
                    envvar=DEFS_VARIABLE,
                    expose_value=False,
                    metavar="FOLDER",
                    help="Folder with SOURCE/defs.yaml; default: defs, in a Python project also src/*/defs or */defs.",
                )
            )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`."""
        if not self._configurable or ctx.resilient_parsing or {"-h", "--help", HELP_ALL} & {*args}:
            return super().parse_args(ctx, args)
        given, more, _ = self.make_parser(ctx).parse_args(list(args))
        if more:  # click itself would report missing options first
            ctx.fail(
                f"Got unexpected extra argument{'s' * (len(more) > 1)} ({' '.join(map(printable, more))})"
            )
        folder = given.get("defs")
        sources = sources_of(folder if isinstance(folder, str) else None)
        found = _chosen(sources, given, one=self._one)
        ctx.meta[_META] = found
        ctx.meta[_GIVEN] = {name: value for name, value in given.items() if isinstance(value, str | bool)}
        check_shared(*self._shared)
        ctx.default_map = {
            **_common(found),
            **_of_service(found, self._service, self._options(given)),
            **(ctx.default_map or {}),
        }
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            if sources:
                raise
            where = " or ".join(f"{place}/SOURCE/defs.yaml" for place in PLACES)
            hint = f"Give it, or define the source in {where}."
            raise click.MissingParameter(hint, error.ctx, error.param) from error

    def _options(self, given: Mapping[str, Any]) -> dict[str, str]:
        """The options of the parameters that the command line does not give."""
        return {str(each.name): each.opts[0] for each in self.params if each.name not in given}


def _common(sources: Sequence[ConfiguredSource]) -> dict[str, Any]:
    """The values that are the same in all of the sources."""
    if not sources:
        return {}
    first, *others = (source.values for source in sources)
    common = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
    return common | {"keyspaces": [source.keyspace for source in sources]}


def _of_service(
    sources: Sequence[ConfiguredSource], service: str, options: Mapping[str, str]
) -> dict[str, Any]:
    """The settings of a service in the sources that configure it. `options`: the option of each parameter that the
    command line does not give. `UsageError` if the sources differ in such a parameter.
    """
    groups = {
        source.name: group
        for source in sources
        if service and (group := source.checked.get(service)) is not None
    }
    found = {name: value for group in groups.values() for name, value in group.items()}
    for name in found:
        values = [group.get(name) for group in groups.values()]
        option = options.get(f"{OF_SERVICE}{name}")
        if option and any(value != values[0] for value in values):
            listed = ", ".join(f"{source} has {group.get(name)!r}" for source, group in groups.items())
            raise UsageError(
                f"the sources differ in {service}.{name}: {listed}: give {option}, or the folder of one source as "
                f"--defs, and run the command once for each source"
            )
    return {f"{OF_SERVICE}{name}": value for name, value in found.items()}


def configured() -> list[ConfiguredSource]:
    """The sources whose YAML gave options to the running command."""
    context = click.get_current_context(silent=True)
    return context.meta.get(_META, []) if context else []


def check_shared(*names: str) -> None:
    """`UsageError` if the sources of the running command have different values of one of these settings, and the
    command line gives no value. Otherwise the command would work at the default place, which may belong to none of the
    sources.
    """
    context, sources = click.get_current_context(), configured()
    given, options = context.meta[_GIVEN], {each.name: each for each in context.command.params}
    used = _common(sources) | given
    tables = any(used.get(name) for name in ("records_table", "lease_table") if name in options)
    places = [_place(source, given, tables=tables) for source in sources if names and len(sources) > 1]
    for name in names:
        if name not in given and len({place[name] for place in places}) > 1:
            found = ", ".join(
                f"{source.name} has {'none' if place[name] in (None, '') else repr(place[name])}"
                for source, place in zip(sources, places, strict=True)
            )
            one = "the NAME of one source" if "name" in options else "the folder of one source as --defs"
            raise UsageError(f"the sources differ in {name}: {found}: give {options[name].opts[0]}, or {one}")


def share_inlets(one: ConfiguredSource, other: ConfiguredSource) -> bool:
    """True if the sources have the same bucket and queue. Then an inlet of one source also receives the changes of the
    other source.

    `UsageError` if a setting is not known here.
    """
    tables = any(source.values.get("records_table") for source in (one, other))
    places = [_place(source, {}, tables=tables) for source in (one, other)]
    return all(places[0][name] == places[1][name] for name in _PLACE)


def receiver_of(source: ConfiguredSource) -> ConfiguredSource | None:
    """The source whose inlets receive the events of `source`: `source` itself if it has inlets, else another source of
    the project. None if no source has such inlets.
    """
    if source.inlets:
        return source
    for other in source.project:
        with suppress(UsageError):  # an expression that only Dagster evaluates
            if other.inlets and share_inlets(source, other):
                return other
    return None


def _place(source: ConfiguredSource, given: Mapping[str, str], *, tables: bool) -> dict[str, Any]:
    """The settings in `_PLACE` and `_REQUESTS` that the command would use for this source alone, with their defaults
    filled in.

    `tables`: true if the command uses a DynamoDB table.
    """
    values: dict[str, Any] = (
        {name: SETTINGS[name].default for name in (*_PLACE, *_REQUESTS)} | source.values | dict(given)
    )
    bucket = S3Config(
        bucket=values["bucket"], region=values["region"] or "", endpoint_url=values["endpoint_url"]
    )
    # With an endpoint, the region does not decide where the bucket is.
    values |= {"region": None if bucket.endpoint else bucket.region, "endpoint_url": bucket.endpoint}
    values["platform_bucket"] = values["platform_bucket"] or bucket.bucket
    values["dynamodb_region"] = values["dynamodb_region"] or bucket.region
    if not tables:
        values |= dict.fromkeys(DYNAMODB.values())
    return values


def find_code() -> None:
    """Makes modules beside the YAML folders importable, like modules of transforms."""
    sys.path[:0] = [str(source.folder.resolve().parent) for source in configured()]


@contextmanager
def dagster_instance() -> Iterator["dg.DagsterInstance | None"]:
    """The Dagster instance of DAGSTER_HOME; None if no instance is there yet. Without an instance, Dagster is not
    imported.

    `UsageError` if DAGSTER_HOME is not a folder.
    """
    if not (home := os.environ.get("DAGSTER_HOME")):
        yield None
        return
    if not (folder := Path(home).expanduser().resolve()).is_dir():
        raise UsageError(
            f"DAGSTER_HOME={home!r} is not a folder here: set it to the folder of your Dagster instance, or unset it"
        )
    if not (folder / "dagster.yaml").exists() and not (folder / "schedules" / "schedules.db").exists():
        yield None  # two processes that create Dagster's storage at once would damage it
        return
    import dagster as dg

    os.environ["DAGSTER_HOME"] = str(folder)  # Dagster requires an absolute path
    with dg.DagsterInstance.get() as instance:
        yield instance


class ConfiguredGroup(click.Group):
    """A group of configured commands."""

    command_class = ConfiguredCommand


def command(name: str | None = None, **more: Any) -> Callable[[Callable[..., Any]], ConfiguredCommand]:
    """As `click.command`, for a `ConfiguredCommand`."""
    return click.command(name, cls=ConfiguredCommand, **more)


def group(**more: Any) -> Callable[[Callable[..., Any]], ConfiguredGroup]:
    """As `click.group`, for a `ConfiguredGroup`."""
    return click.group(cls=ConfiguredGroup, **more)
