"""Notations: how the texts of a source write dates, times and numbers in other forms than ISO 8601 and JSON.

A notation applies to all columns of a type, to one column by its path (`customer.born`, without list indexes), or to
everything below a path. If several paths apply to a column, the longest path decides. A column with a pattern accepts
only texts of this pattern, and texts that mean null. A pattern cannot contain | or =, which are separators in the
settings.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.formats.arrow_values import timestamps
from s3notify_platform.formats.rescue import below
from s3notify_platform.formats.time_patterns import TimePattern, time_pattern
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_DECIMAL_DIGITS

NOTATION: Final = ("date_format", "timestamp_format", "time_zone", "decimal_comma")
"""The settings that make a notation."""

ALL: Final = "all"

_COMMA: Final = (
    r"^[ \t]*([+-]?(?:(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d*)?|,\d+)(?:[eE][+-]?\d+)?"
    r"|[+-]?(?:[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?))[ \t]*$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The notation of a column's texts. `form`: a regular expression; "" for the usual form.

    `note`: a text for people. `pattern`: the pattern of dates or times; None for usual times, and for numbers with a
    comma. `zone`: the zone of times whose text has no zone.
    """

    note: str
    form: str = ""
    pattern: TimePattern | None = None
    comma: bool = False
    zone: str = ""

    def plain(self, texts: pa.Array, kind: pa.DataType) -> pa.Array:
        """Converts the texts to their usual form. Raises `pa.ArrowInvalid` if a text does not have this notation."""
        if self.pattern is not None:
            return self.pattern.iso(texts, days=bool(pa.types.is_date(kind)))
        if not self.comma:
            return texts
        if not pc.all(pc.match_substring_regex(texts, self.form), min_count=0).as_py():
            raise pa.ArrowInvalid("a text is not a number with a decimal comma")
        return pc.replace_substring(pc.replace_substring(pc.ascii_trim(texts, " \t"), ".", ""), ",", ".")

    def values(self, texts: pa.Array, kind: pa.DataType) -> pa.Array:
        """Converts the texts to values, which may exceed the range of `kind`. Raises the errors of a cast."""
        plain = self.plain(texts, kind)
        return timestamps(plain, kind, self.zone) if pa.types.is_timestamp(kind) else plain.cast(kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notation:
    """The notation of a source's values. `dates`, `times`: patterns by path ("": all columns).

    `zones`: by path, the zones for times whose texts have no zone; the zone "" is UTC. `commas`: paths of numbers with
    a decimal comma.
    """

    dates: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, str] = field(default_factory=dict)
    zones: Mapping[str, str] = field(default_factory=dict)
    commas: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """True if any value has an unusual notation."""
        return bool(self.dates or self.times or self.zones or self.commas)

    def paths(self, setting: str) -> set[str]:
        """Returns the paths that occur in a setting."""
        given: dict[str, Iterable[str]] = {
            "date_format": self.dates, "timestamp_format": self.times,
            "time_zone": self.zones, "decimal_comma": self.commas,
        }  # fmt: skip
        return {*given.get(setting, ())} - {""}

    def written(self, path: str, kind: pa.DataType) -> Written | None:
        """Returns the notation of values of this type at a path; None for the usual notation.

        `path`: without list indexes.
        """
        if not self:
            return None
        if pa.types.is_date(kind) and (text := _at(path, self.dates)):
            return _in_pattern("date_format", text, "")
        if pa.types.is_timestamp(kind):
            zone = _at(path, self.zones) if kind.tz else ""
            if text := _at(path, self.times):
                return _in_pattern("timestamp_format", text, zone)
            if zone:
                return Written(note="", zone=zone)
        if (pa.types.is_floating(kind) or pa.types.is_decimal(kind)) and _at(path, self._commas):
            return _WITH_COMMA
        return None

    def note(self, path: str, schema: pa.Schema) -> str:
        """Describes the notation of values at a path, as part of a reject's reason; "" for the usual notation."""
        at = place_of(path)
        kind = kinds_at(schema).get(at) if self else None
        found = self.written(at, kind) if kind is not None else None
        return found.note if found else ""

    def kind_of(self, path: str, texts: pa.Array, found: pa.DataType) -> pa.DataType:
        """Returns the type of an inferred column: the notation's type if all texts of the column have this notation.
        Otherwise, the result is `found`, or string if the notation prescribes another form for values of type `found`.
        If a setting names the column, the notation is tried for any `found`. If no setting names the column, a notation
        of dates or times is tried only if `found` is a date, a time or string. The decimal comma is then tried only if
        `found` is a float, or if a text has a comma. A floating point type is replaced by `number_type`.
        """
        texts = texts.drop_null()
        if not len(texts):
            return found
        kind = self._kind_of(path, texts, found)
        return number_type(texts, kind) if pa.types.is_floating(kind) else kind

    def _kind_of(self, path: str, texts: pa.Array, found: pa.DataType) -> pa.DataType:
        is_time = pa.types.is_timestamp(found)
        wordy = pa.types.is_string(found) or pa.types.is_date(found) or is_time
        for given, kind, possible in (
            (self.dates, pa.date32(), wordy),
            (self.times, pa.timestamp("us", tz="UTC"), wordy and not pa.types.is_date(found)),
        ):
            text = _at(path, given)
            if text and (possible or _nearest(path, given)) and _all_are(texts, time_pattern(text).form):
                return kind
        if _at(path, self._commas) and _all_are(texts, _COMMA):
            commas = bool(pc.any(pc.match_substring(texts, ",")).as_py())
            if commas or pa.types.is_floating(found) or _nearest(path, self._commas):
                return pa.float64()
        of_other_form = (
            (pa.types.is_date(found) and _at(path, self.dates))
            or (is_time and _at(path, self.times))
            or (pa.types.is_floating(found) and _at(path, self._commas))
        )
        return pa.string() if of_other_form else found

    @property
    def infers(self) -> bool:
        """True if `kind_of` may return another type than `found` even if no integer has more than 64 bits."""
        return bool(self.dates or self.times or self.commas)

    @property
    def _commas(self) -> Mapping[str, str]:
        return dict.fromkeys(self.commas, ",")


USUAL: Final = Notation()


def has_wide_integers(joined: bytes) -> bool:
    """True if texts may have integers of more than 64 bits."""
    return re.search(rb"\d{19}", joined) is not None


def number_type(texts: pa.Array, found: pa.DataType) -> pa.DataType:
    """Returns the type of numbers for which pyarrow has inferred the floating point type `found`.

    Integers of more than 64 bits keep their digits. If all numbers are integers, the type is decimal, or string if an
    integer has more digits than a decimal can have. Otherwise the type is string, as in `inference`.
    """
    is_integer = pc.match_substring_regex(texts, r"^[ \t]*-?\d+[ \t]*$")
    long = texts.filter(pc.and_(is_integer, pc.match_substring_regex(texts, r"\d{19}")))
    widest = max(map(_wide_digits, long.to_pylist()), default=0)
    if not widest:
        return found
    exact = widest <= MAX_DECIMAL_DIGITS and pc.all(is_integer).as_py()
    return pa.decimal128(MAX_DECIMAL_DIGITS, 0) if exact else pa.string()


def _wide_digits(text: str) -> int:
    """Returns the number of an integer's digits; 0 if the integer has at most 64 bits."""
    number = text.strip()
    digits = number.lstrip("-").lstrip("0")
    fits = len(digits) < 19 or (len(digits) == 19 and int(digits) < (1 << 63) + number.startswith("-"))
    return 0 if fits else len(digits)


_WITH_COMMA: Final = Written(note=", written with a decimal comma (decimal_comma)", form=_COMMA, comma=True)


@lru_cache(maxsize=256)
def _in_pattern(setting: str, text: str, zone: str) -> Written:
    pattern = time_pattern(text)
    return Written(note=f", written as {text} ({setting})", form=pattern.form, pattern=pattern, zone=zone)


def _nearest(path: str, given: Mapping[str, str]) -> str | None:
    """Returns the longest path in `given` that equals this path or encloses it; "" stands for all columns."""
    while path and path not in given:
        path = path.rpartition(".")[0]
    return path if path in given else None


def _at(path: str, given: Mapping[str, str]) -> str:
    """Returns the setting's value for a path; "" if the setting has no value for it."""
    return given.get(_nearest(path, given) or "", "")


def _all_are(texts: pa.Array, form: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, form)).as_py())


def place_of(path: str) -> str:
    """Returns a path without list indexes."""
    return re.sub(r"\[\d*\]", "", path)


@lru_cache(maxsize=16)
def kinds_at(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Returns the types of a schema's fields by path, without list indexes."""
    found: dict[str, pa.DataType] = {}
    waiting = [(below("", column.name), column.type) for column in schema]
    while waiting:
        path, kind = waiting.pop()
        found[path] = kind
        if pa.types.is_struct(kind):
            waiting += [(below(path, part.name), part.type) for part in kind]
        elif pa.types.is_list(kind):
            waiting.append((path, kind.value_type))
    return found


def notation_of(settings: Any) -> Notation:
    """Returns the notation that a source's settings describe (`source.format_settings`).

    Raises `UsageError` for an invalid setting.
    """
    return _notation(
        settings.date_format, settings.timestamp_format, settings.time_zone, settings.decimal_comma
    )


@lru_cache(maxsize=32)
def _notation(dates: str, times: str, zones: str, commas: str) -> Notation:
    if not (dates or times or zones or commas):
        return USUAL
    names = [name.strip() for name in commas.split("|")] if commas.strip() else []
    if "" in names:
        raise UsageError(f"decimal_comma {commas!r}: give columns, like amount|price, or all")
    by_path = _by_path("time_zone", zones, "a zone", _check_zone)
    return Notation(
        dates=_by_path("date_format", dates, "a pattern", _check_days),
        times=_by_path("timestamp_format", times, "a pattern", time_pattern),
        zones={path: "" if zone == "UTC" else zone for path, zone in by_path.items()}
        if {*by_path.values()} - {"UTC"}
        else {},
        commas=frozenset("" if name == ALL else name for name in names),
    )


def _by_path(setting: str, given: str, what: str, check: Callable[[str], object]) -> dict[str, str]:
    """Parses a setting into checked values by path; "" stands for all columns."""
    found: dict[str, str] = {}
    for part in given.split("|") if given else ():
        path, equals, text = part.rpartition("=")
        path = path.strip()
        if not text.strip() or (equals and not path):
            raise UsageError(
                f"{setting} {given!r}: give {what}, or several like column={what[2:]} separated by |"
            )
        if path in found:
            whose = f"column {path!r}" if path else "all columns"
            raise UsageError(f"{setting} {given!r}: {whose} has two values")
        try:
            check(text)
        except UsageError as error:
            raise UsageError(f"{setting} {error}") from error
        found[path] = text
    return found


def _check_days(pattern: str) -> None:
    if "z" in time_pattern(pattern).letters:
        raise UsageError(f"{pattern!r}: a date has no zone: leave out X, x and Z")


def _check_zone(zone: str) -> None:
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("us")), zone)
    except pa.ArrowException as error:
        raise UsageError(
            f"{zone!r}: this system has no such zone: give an IANA name, like Europe/Berlin, or, for a valid name, "
            "install the system's tzdata"
        ) from error
