"""Options for declared settings: flag, type, text and heading come from the declaration."""

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, replace
from typing import Any, Final

import click

from s3notify_platform.cli.help_pages import (
    COMMITS,
    CONNECTION,
    DERIVED,
    DYNAMODB,
    OBJECTS,
    OPTIONS,
    PLACE,
    ROWS,
    SettingOption,
)
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import Setting, named
from s3notify_platform.source.choice_settings import ChoiceSettings
from s3notify_platform.source.commit_settings import LeaseTimeSettings, TableSettings
from s3notify_platform.source.settings import (
    SETTINGS,
    BucketSettings,
    ClusterSettings,
    InputSettings,
    LatestColumns,
    LocationSettings,
    S3Settings,
)

Command = Callable[..., None]
Option = Callable[[Command], Command]

_FLAGS: Final = {"slots": "--slot-count"}
"""Flags that differ from the name of their setting, because `--slots` already means a choice of slots."""

_COMMITS: Final = (
    "commit", "overwrites", "committed_tags", "mirror", "signals",
    "max_objects", "max_bytes", "max_seconds", "split_bytes", "withdraw_share",
)  # fmt: skip

_HEADINGS: Final[Mapping[str, str]] = {
    **dict.fromkeys(SETTINGS, DYNAMODB),
    **dict.fromkeys(named(BucketSettings, LocationSettings), PLACE),
    **dict.fromkeys(named(InputSettings), ROWS),
    **dict.fromkeys(named(LatestColumns, ClusterSettings), DERIVED),
    **dict.fromkeys(named(S3Settings), CONNECTION),
    **dict.fromkeys(named(TableSettings, LeaseTimeSettings), DYNAMODB),
    **dict.fromkeys(named(ChoiceSettings), OBJECTS),
    **dict.fromkeys(_COMMITS, COMMITS),
}
"""The heading of each setting of a source. A new setting gets the heading of its class."""


class _Value(click.ParamType):  # type: ignore[type-arg] # generic only in newer versions of click
    """The value of a setting. A wrong value is refused with the name of the option."""

    def __init__(self, setting: Setting) -> None:
        self.name = {int: "integer", float: "number", bool: "boolean"}.get(setting.base, "text")
        self._setting = setting

    def convert(self, value: Any, _param: Any, ctx: Any) -> Any:
        """See `click.ParamType`."""
        if isinstance(value, str) and self._setting.base == tuple[str, ...]:
            return value  # click passes the values of a list one by one, as texts
        try:
            return self._setting.value(value)
        except UsageError as error:
            raise click.UsageError(str(error), ctx) from error


def option_of(
    setting: Setting, *, prefix: str = "", heading: str = OPTIONS, rare: bool = False, **more: Any
) -> Option:
    """An option for a declared setting, with its description, type and default.

    `prefix`: the prefix of the parameter's name. `rare`: only `--help-all` shows the option. `more`: arguments of
    `click.option` that replace the declared arguments.
    """
    flag = setting.about.option or _FLAGS.get(setting.name) or f"--{setting.name.replace('_', '-')}"
    given: dict[str, Any] = {"default": setting.default}
    if setting.default is MISSING and "default" not in more:
        given = {"required": True}
    if setting.base is bool:
        given |= {"is_flag": True}
    else:
        given |= {"type": _Value(replace(setting, name=flag)), "multiple": setting.base == tuple[str, ...]}
        if setting.about.choices is None and setting.choices:
            given |= {"metavar": f"[{'|'.join(setting.choices)}]"}
    given |= {"help": f"{setting.help}."} | more
    flags = f"{flag}/--no-{flag.removeprefix('--')}" if setting.base is bool else flag
    return click.option(
        flags, f"{prefix}{setting.name}", cls=SettingOption, heading=heading, rare=rare, **given
    )


def setting_option(name: str, **more: Any) -> Option:
    """An option for a setting of a source, below the setting's heading. `--help` shows the setting's summary."""
    setting = SETTINGS[name]
    summary = "" if "help" in more else f"{setting.summary}."
    return option_of(setting, **{"heading": _HEADINGS[name], "summary": summary, **more})


def options(*given: Option) -> Option:
    """These options as one decorator, in this order."""
    return lambda command: functools.reduce(lambda done, option: option(done), reversed(given), command)


def settings_options(*names: str, shown: Collection[str] = ()) -> Option:
    """Options for these settings of a source, in this order. `--help` shows only the settings in `shown`."""
    return options(*(setting_option(name, rare=name not in shown) for name in names))
