"""A declared setting: a field of a dataclass with an `About`, so that its name, type, default and description are once.

Component, command line and data source make their fields and options of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from s3notify_platform.errors import UsageError


@dataclass(frozen=True, slots=True)
class About:
    """What people read about a setting, and what is refused. `choices` are looked up when they are needed."""

    description: str
    _: KW_ONLY
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: Callable[[], Sequence[str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A declared setting. `default` is `dataclasses.MISSING` where one has to be given."""

    name: str
    kind: Any
    default: Any
    about: About

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it may have; empty if any will do."""
        if get_origin(self.kind) is Literal:
            return get_args(self.kind)
        return tuple(self.about.choices()) if self.about.choices else ()

    @property
    def number(self) -> type[int] | type[float] | None:
        """`int` or `float` if it is a number."""
        return self.kind if self.kind in (int, float) else None

    @property
    def scalar(self) -> type[int] | type[float] | type[bool] | type[str]:
        """What a text is turned into: a number, a truth value, or nothing else."""
        return self.kind if self.kind in (int, float, bool) else str

    @property
    def help(self) -> str:
        """Description, unit and default in one line."""
        unit = f" ({self.about.unit})" if self.about.unit else ""
        default = f"; default: {self.default}" if self.default not in (MISSING, None, "") else ""
        return f"{self.about.description}{unit}{default}"

    def check(self, value: Any) -> None:
        """`UsageError` for a value that it cannot have."""
        if (choices := self.choices) and value not in choices:
            raise UsageError(f"{self.name} {value!r}: use one of {', '.join(choices)}")
        if self.about.minimum is not None and not value >= self.about.minimum:  # nor if it is no number
            raise UsageError(f"{self.name}={value}: must be at least {self.about.minimum:g}")
        if self.about.maximum is not None and not value <= self.about.maximum:
            raise UsageError(f"{self.name}={value}: must be at most {self.about.maximum:.15g}")


def parsed(name: str, text: str, kind: type[int] | type[float] | type[bool] | type[str]) -> Any:
    """The value of this kind that a text stands for. `UsageError` if it stands for none: "false" is false."""
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise UsageError(f"option {name}={text!r}: use true or false")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError as error:
        raise UsageError(f"option {name}={text!r}: give a number") from error


@lru_cache(maxsize=64)
def settings_of(*declared: type) -> tuple[Setting, ...]:
    """The settings that dataclasses declare: their fields with an `About`."""
    found = []
    for owner in declared:
        hints = get_type_hints(owner, include_extras=True)
        for field in fields(owner):
            of_field = getattr(hints[field.name], "__metadata__", ())
            if about := next((one for one in of_field if isinstance(one, About)), None):
                kind = hints[field.name].__origin__
                found.append(Setting(name=field.name, kind=kind, default=field.default, about=about))
    return tuple(found)


def check_settings(values: object, *declared: type) -> None:
    """`UsageError` for the first of these settings that has a value in `values` that it cannot have."""
    for setting in settings_of(*declared):
        setting.check(getattr(values, setting.name))
