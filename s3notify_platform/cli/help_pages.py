"""Help pages: options and commands under headings. `--help` shows the usual options; `--help-all` shows all options."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import click

from s3notify_platform.cli.printing import say

OPTIONS: Final = "Options"
EVENTS: Final = "Options of --events"
OBJECTS: Final = "Objects to read"
ROWS: Final = "From objects to rows"
DERIVED: Final = "Derived tables"
COMMITS: Final = "Rounds and commits"
PUSH: Final = "Endpoint"
PLACE: Final = "Buckets and prefixes"
CONNECTION: Final = "Connection"
DYNAMODB: Final = "DynamoDB"

HEADINGS: Final = (OPTIONS, EVENTS, OBJECTS, ROWS, DERIVED, COMMITS, PUSH, PLACE, CONNECTION, DYNAMODB)
"""Headings of options, in the order of a help page."""

HELP_ALL: Final = "--help-all"
_ALL: Final = "s3notify_platform.cli.help_pages"


class SettingOption(click.Option):
    """An option for a declared setting. `rare`: only `--help-all` shows it."""

    def __init__(
        self, *args: Any, heading: str = OPTIONS, rare: bool = False, summary: str = "", **more: Any
    ) -> None:
        """`summary`: the shorter text of `--help`; `help` is the text of `--help-all`."""
        super().__init__(*args, **more)
        self.heading, self.rare = heading, rare
        self._texts = {False: summary or self.help, True: self.help}

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """See `click.Option`."""
        self.help = self._texts[_shows_all(ctx)]
        return super().get_help_record(ctx)

    def get_help_extra(self, ctx: click.Context) -> Any:
        """The remarks in brackets in the option's help, except `[required]`, because the YAML of a source may give the
        value. See `click.Option`.
        """
        extra = super().get_help_extra(ctx)
        extra.pop("required", None)
        return extra


class PagedCommand(click.Command):
    """A command whose help page has headings."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._help_all = click.Option(
            [HELP_ALL],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show all options and exit.",
        )

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """See `click.Command`."""
        found = super().get_params(ctx)
        if not any(getattr(parameter, "rare", False) for parameter in found):
            return found
        return [*found[:-1], self._help_all, *found[-1:]]  # `--help-all` is listed before `--help`

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command`."""
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
        left_out = []
        for parameter in self.get_params(ctx):
            if not isinstance(parameter, click.Option):
                continue
            if getattr(parameter, "rare", False) and not _shows_all(ctx):
                left_out.append(parameter)
            elif record := parameter.get_help_record(ctx):
                sections[getattr(parameter, "heading", OPTIONS)].append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(
                f"{HELP_ALL} shows {len(left_out)} more options, like {left_out[0].opts[0]}. The YAML of the "
                "source gives their values; otherwise their defaults are used."
            )


def _show_all(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        say(ctx.get_help())
        ctx.exit()


def _shows_all(ctx: click.Context) -> bool:
    return bool(ctx.meta.get(_ALL))


def write_commands(
    formatter: click.HelpFormatter,
    sections: Mapping[str, Sequence[str]],
    commands: Mapping[str, click.Command],
) -> None:
    """Write the commands under the headings of `sections`, and all others under the heading `Other`."""
    width = max(map(len, commands), default=0)
    left: Collection[str] = commands.keys() - {name for names in sections.values() for name in names}
    for heading, names in {**sections, "Other": sorted(left)}.items():
        if shown := [name for name in names if name in commands and not commands[name].hidden]:
            with formatter.section(heading):
                formatter.write_dl(
                    [(f"{name:{width}}", commands[name].get_short_help_str(200)) for name in shown]
                )
