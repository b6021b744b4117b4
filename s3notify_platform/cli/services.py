"""Commands that run a registered service in the foreground. The settings of the service are the options."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from s3notify_platform.channels.registry import FRONT, SERVICES, ServiceKind
from s3notify_platform.cli.common import (
    QueuePlace,
    check_keyspaces,
    keyspace_options,
    metrics_option,
    queue_options,
    warn_without_topic,
)
from s3notify_platform.cli.configured import OF_SERVICE, ConfiguredGroup, configured
from s3notify_platform.cli.configured import command as configured_command
from s3notify_platform.cli.ending import run_in_foreground
from s3notify_platform.cli.help_pages import PLACE, SettingOption
from s3notify_platform.cli.setting_options import Command, option_of, options
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import named, values_in

if TYPE_CHECKING:
    from s3notify_platform.channels.service import SourceKeyspace


class ServiceGroup(ConfiguredGroup):
    """A group that also has a command for each registered service of one direction.

    The settings of a service are imported only when the service's own command runs, so that the group's help is fast.
    """

    def __init__(self, *args: Any, direction: Literal["inlet", "outlet"], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._direction = direction

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See `click.Group`."""
        return sorted([*super().list_commands(ctx), *self._kinds()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See `click.Group`."""
        if (kind := self._kinds().get(cmd_name)) is not None:
            return click.Command(kind.name, short_help=kind.summary)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See `click.Group`."""
        name, command, rest = super().resolve_command(ctx, args)
        if (kind := self._kinds().get(name or "")) is not None:
            command = _command(kind)
        return name, command, rest

    def _kinds(self) -> dict[str, ServiceKind]:
        kinds = (*SERVICES.values(), FRONT)
        return {kind.name: kind for kind in kinds if kind.direction == self._direction}


def _command(kind: ServiceKind) -> click.Command:
    from s3notify_platform.channels.service import ServiceContext

    settings: Any = kind.settings()
    known = named(settings)

    def run(
        *,
        place: QueuePlace,
        keyspaces: tuple["SourceKeyspace", ...] = (),
        own_prefixes: tuple[str, ...] = (),
        metrics: str | None,
        **given: Any,
    ) -> None:
        excluded = _own(place, own_prefixes)
        if kind.direction == "inlet":
            _check_apart(place, keyspaces, excluded)
            check_keyspaces(place, keyspaces, without="changes go to the topics")
            warn_without_topic(place, keyspaces)
        context = ServiceContext(
            name=kind.name,
            queue=place.queue(),
            platform=place.platform(),
            bucket=place.bucket,
            keyspaces=keyspaces,
            excluded=excluded,
        )
        chosen = settings(**values_in({name: given[f"{OF_SERVICE}{name}"] for name in known}, known))
        run_in_foreground(chosen.build(context), queue=context.queue, metrics=metrics)

    command: Command = metrics_option(run)
    command = options(*(option_of(setting, prefix=OF_SERVICE) for setting in known.values()))(command)
    if kind.direction == "inlet":
        command = keyspace_options(_excluded(command))
    made = configured_command(kind.name, service=kind.name, short_help=kind.summary, help=settings.__doc__)
    return made(queue_options(command))


def _own(place: QueuePlace, given: Sequence[str]) -> tuple[str, ...]:
    """Prefixes of the platform's own objects: the given prefixes, the prefixes in the YAML, and the usual prefixes."""
    from s3notify_platform.table.own_objects import USUAL

    sources = [source.source() for source in configured()]
    of_sources = [prefix for source in sources for prefix in source.location.own_prefixes(place.bucket)]
    of_sources += [
        prefix for source in sources if source.input.bucket.bucket == place.bucket for prefix in source.own
    ]
    of_queue = [place.queue_prefix] if place.platform().bucket == place.bucket else []
    return tuple(dict.fromkeys((*given, *of_sources, *of_queue, *USUAL)))


def _check_apart(place: QueuePlace, keyspaces: Sequence["SourceKeyspace"], own: tuple[str, ...]) -> None:
    """`UsageError` if a source would read changes of the platform's own objects."""
    for space in keyspaces if place.platform().bucket == place.bucket else ():
        if space.signals.startswith(space.prefix) and not space.signals.startswith(own):
            raise UsageError(
                f"--keyspace {space.signals} {space.prefix!r}: the source would read its own objects, so that each "
                "batch would cause the next one: give its platform_prefix as --own-prefix, or the folder of its YAML "
                "as --defs"
            )


_excluded = click.option(
    "--own-prefix",
    "own_prefixes",
    multiple=True,
    cls=SettingOption,
    heading=PLACE,
    rare=True,
    help="Prefix of the platform's own objects, whose changes are ignored. Not needed for _s3notify/, _s3notify-known/ "
    "and prefixes in the YAML. Repeatable.",
)
