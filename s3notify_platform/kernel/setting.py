"""A declared setting: a field of a dataclass with an `About`. The name, type, default and description of a setting are
only in this declaration.

Component, IO manager, command line, data source and services derive their fields and options from the declaration. All
five convert and check given values by `values_in`, so a wrong value gets the same message everywhere.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from difflib import get_close_matches
from functools import lru_cache
from math import isfinite
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from s3notify_platform.kernel.errors import UsageError

SHOWN_MAX: Final = 100
"""A message shows at most this many characters of a wrong value."""


@dataclass(frozen=True, slots=True)
class About:
    """The description and the limits of a setting. `choices`: returns the allowed values.

    `description`: the first sentence must be enough for a short help page. `option`: the option on the command line, if
    its name differs from the setting's name. `check`: raises `UsageError` for values that the other fields cannot
    exclude.
    """

    description: str
    _: KW_ONLY
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: Callable[[], Sequence[str]] | None = None
    option: str = ""
    check: Callable[[Any], object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """A placeholder for a value that is not known in this process. Placeholders are not checked. `why`: names the
    value, and the reason why it is unknown.
    """

    why: UsageError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """A declared setting, or a group of settings. `default` is `dataclasses.MISSING` if the setting is required."""

    name: str
    kind: Any
    default: Any
    about: About

    @property
    def base(self) -> Any:
        """The type without None."""
        given = [kind for kind in get_args(self.kind) if kind is not NoneType]
        return given[0] if self.takes_none else self.kind

    @property
    def takes_none(self) -> bool:
        """True if None is allowed."""
        return NoneType in get_args(self.kind)

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values, or an empty tuple if all values of the type are allowed."""
        if get_origin(self.base) is Literal:
            return get_args(self.base)
        return tuple(self.about.choices()) if self.about.choices else ()

    @property
    def number(self) -> type[int] | type[float] | None:
        """`int` or `float` if this is exactly the type of the setting. None for other types, such as `int | None`."""
        return self.kind if self.kind in (int, float) else None

    @property
    def group(self) -> type | None:
        """The dataclass that declares the settings of a group, or None if the setting is not a group."""
        return self.base if hasattr(self.base, "__dataclass_fields__") else None

    @property
    def help(self) -> str:
        """The description, unit, limits and default in one line."""
        return self._help(self.about.description)

    @property
    def summary(self) -> str:
        """`help` with only the first sentence of the description."""
        return self._help(re.split(r"\. (?=[^a-z])", self.about.description)[0])

    def _help(self, description: str) -> str:
        low, high = self.about.minimum, self.about.maximum
        limits = f"{low or 0:.15g} to {high:.15g}" if high is not None else f"at least {low:g}" if low else ""
        unit = ", ".join(filter(None, (self.about.unit, limits)))
        about = f"{description} ({unit})" if unit else description
        if isinstance(self.default, bool) or self.default is MISSING or self.default in (None, "", (), {}):
            return about
        shown = ", ".join(self.default) if isinstance(self.default, tuple) else self.default
        shown = f"{shown:.15g}" if isinstance(shown, float) else shown
        return f"{about}; default: {shown}"

    def value(self, given: object, at: str = "") -> Any:
        """Returns the given value, converted to the type of the setting: "7" becomes 7. Raises `UsageError` if the
        conversion is not possible.

        The value of a group is a mapping of the given settings. `at`: the text before the name in messages, like `s3.`.
        """
        if isinstance(given, Later) or (given is None and self.takes_none):
            return given
        if self.group is not None:
            if not isinstance(given, Mapping):
                raise UsageError(f"{at}{self.name}{_shown(given)}: give a mapping of settings")
            return values_in(given, named(self.group), f"{at}{self.name}.")
        if later := _later_in(given):
            return later
        kind = get_origin(self.base) or self.base
        convert, wanted = _CONVERSIONS[kind if kind in _CONVERSIONS else str]
        try:
            value = convert(given)
        except (ValueError, TypeError, OverflowError) as error:
            raise UsageError(f"{at}{self.name}{_shown(given)}: give {wanted}") from error
        try:
            self.check(value)
        except UsageError as error:
            raise UsageError(f"{at}{error}") from error
        return value

    def check(self, value: Any) -> None:
        """Raises `UsageError` for a value that has the right type, but is not allowed."""
        if value is None:
            return
        if (choices := self.choices) and value not in choices:
            raise UsageError(f"{self.name}={value!r}: use one of {', '.join(choices)}")
        if self.about.minimum is not None and not value >= self.about.minimum:  # also true for NaN
            raise UsageError(f"{self.name}={value}: must be at least {self.about.minimum:g}")
        if self.about.maximum is not None and not value <= self.about.maximum:
            raise UsageError(f"{self.name}={value}: must be at most {self.about.maximum:.15g}")
        if self.about.check is not None:
            try:
                self.about.check(value)
            except UsageError as error:
                raise UsageError(f"{self.name}: {error}") from error


def _later_in(given: object) -> Later | None:
    match given:
        case Later():
            return given
        case Mapping() | list() | tuple():
            inner = given.values() if isinstance(given, Mapping) else given
            return next(filter(None, map(_later_in, inner)), None)
    return None


def _whole(given: Any) -> int:
    if isinstance(given, bool) or (isinstance(given, float) and not given.is_integer()):
        raise ValueError(given)
    return int(given)


def _number(given: Any) -> float:
    if isinstance(given, bool) or not isfinite(found := float(given)):
        raise ValueError(given)
    return found


def _truth(given: Any) -> bool:
    if not isinstance(given, bool):
        given = {"true": True, "false": False}.get(str(given).lower())
    if given is None:
        raise ValueError(given)
    return bool(given)


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(given)
    return str(given)


def _texts(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list | tuple):
        raise TypeError(given)
    return tuple(map(_text, given))


def _mapping(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(given)
    return {_text(name): value for name, value in given.items()}


_CONVERSIONS: Final[Mapping[Any, tuple[Callable[[Any], Any], str]]] = {
    int: (_whole, "a whole number"),
    float: (_number, "a number"),
    bool: (_truth, "true or false"),
    str: (_text, "a text"),
    tuple: (_texts, "a list of texts"),
    dict: (_mapping, "a mapping of names to values"),
}


def values_in(given: Mapping[str, object], known: Mapping[str, Setting], at: str = "") -> dict[str, Any]:
    """Returns the given values, converted to the types of their settings.

    `UsageError` has a line for each value that is wrong or missing.

    `known`: all settings by name. `at`: the text before names in messages, like `s3.`. Settings with a default may be
    missing.
    """
    found: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in given.items():
        try:
            if name not in known:
                raise UsageError(unknown(f"{at}{name}", [f"{at}{other}" for other in known]))
            found[name] = known[name].value(value, at)
        except UsageError as error:
            problems.append(str(error))
    for name, setting in known.items():
        if name not in given and setting.default is MISSING:
            problems.append(f"{at}{name} is missing: {setting.about.description}")
    if problems:
        raise UsageError("\n".join(problems))
    return found


def unknown(name: str, known: Sequence[str]) -> str:
    """Returns the error message for a name that is not in `known`."""
    near = get_close_matches(name, known, n=1)
    return f"{name}: there is no such setting; " + (
        f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
    )


def _shown(given: object) -> str:
    return f"={given!r}"[:SHOWN_MAX]


@lru_cache(maxsize=64)
def settings_of(*declared: Any) -> tuple[Setting, ...]:
    """Returns the settings that dataclasses declare: their fields with an `About`."""
    return tuple(setting for owner in declared for setting in _declared(owner))


def _declared(owner: type) -> Iterator[Setting]:
    hints = get_type_hints(owner, include_extras=True)
    for field in fields(owner):
        of_field = getattr(hints[field.name], "__metadata__", ())
        if about := next((one for one in of_field if isinstance(one, About)), None):
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            kind = hints[field.name].__origin__
            yield Setting(name=field.name, kind=kind, default=default, about=about)


@lru_cache(maxsize=64)
def named(*declared: Any) -> Mapping[str, Setting]:
    """Returns the settings that dataclasses declare, by name."""
    return {setting.name: setting for setting in settings_of(*declared)}


def given_of(values: Mapping[str, Any], *declared: type) -> dict[str, Any]:
    """Returns the values in `values` whose names are settings of these dataclasses."""
    return {name: values[name] for name in named(*declared) if name in values}


def check_settings(values: object, *declared: type) -> None:
    """Raises `UsageError` for the first of these settings whose value in `values` is not allowed."""
    for setting in settings_of(*declared):
        setting.check(getattr(values, setting.name))
