"""Reads dates and times whose texts are not in ISO 8601. The form of the texts is given as a pattern with the letters
of Java and Spark.

Guarantees. A text that does not match the pattern completely is not read: 1.2.2026 does not match dd.MM.yyyy, and
30.02.2026 is not a date. Spaces and tabs around a text are ignored.

    yyyy yy        a year; yy means 2000 to 2099
    M MM MMM MMMM  a month: 1 or 01, 01, Jan, January, in upper or lower case
    d dd           a day of the month: 1 or 01, 01
    H HH           an hour, 0 to 23
    h hh a         an hour, 1 to 12, and AM or PM
    m mm s ss      minutes and seconds
    S to SSSSSSSSS fractions of a second, at most one digit for each S; cut to microseconds
    X XX XXX       a zone: Z, or X: +01 or +0130, XX: +0130, XXX: +01:30
    x xx xxx Z     the same zones, but not the text Z; the letter Z means the same as xx
    'text' ''      text, and a quote; other characters that are not letters mean themselves
    [...]          may be left out

A pattern must have a year. If a text has no month or no day, 1 is used. If a text has no time, midnight is used.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_TIME_PATTERN

_MONTHS: Final = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
                  "november", "december")  # fmt: skip
_SHORT: Final = tuple(month[:3] for month in _MONTHS)
_OFFSET: Final = r"[+-](?:0\d|1[0-8])"

_REGEXES: Final = {
    "yyyy": r"\d{4}", "yy": r"\d{2}",
    "M": "1[0-2]|0?[1-9]", "MM": "0[1-9]|1[0-2]",
    "MMM": f"(?i:{'|'.join(_SHORT)})", "MMMM": f"(?i:{'|'.join(_MONTHS)})",
    "d": r"[12]\d|3[01]|0?[1-9]", "dd": r"0[1-9]|[12]\d|3[01]",
    "H": r"1\d|2[0-3]|0?\d", "HH": r"[01]\d|2[0-3]",
    "h": "1[0-2]|0?[1-9]", "hh": "0[1-9]|1[0-2]", "a": "(?i:AM|PM)",
    "m": r"[0-5]\d|\d", "mm": r"[0-5]\d", "s": r"[0-5]\d|\d", "ss": r"[0-5]\d",
    **{"S" * n: rf"\d{{1,{n}}}" for n in range(1, 10)},
    "x": rf"{_OFFSET}(?:[0-5]\d)?", "xx": rf"{_OFFSET}[0-5]\d", "xxx": rf"{_OFFSET}:[0-5]\d", "Z": rf"{_OFFSET}[0-5]\d",
    "X": rf"Z|{_OFFSET}(?:[0-5]\d)?", "XX": rf"Z|{_OFFSET}[0-5]\d", "XXX": rf"Z|{_OFFSET}:[0-5]\d",
}  # fmt: skip
SUPPORTED: Final = "yyyy yy M MM MMM MMMM d dd H HH h hh a m mm s ss S… X XX XXX x xx xxx Z 'text' [optional]"

_TOKEN: Final = re.compile(r"'(?:[^']|'')*'|([a-zA-Z])\1*|.", re.DOTALL)

_FIELDS: Final = {**{letter: letter for letter in "yMdHmsSa"}, "h": "H", "X": "z", "x": "z", "Z": "z"}
"""For each letter of a pattern, the field of a date or time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePattern:
    """A pattern, and its regular expression in RE2's syntax.

    The expression has a group for each of the pattern's `letters`. `places`: the start and end of each letter's value
    in a text; empty if these places differ between texts.
    """

    text: str
    regex: str
    letters: str
    places: tuple[tuple[int, int], ...] = ()

    @property
    def form(self) -> str:
        """The regular expression, without the names of its groups."""
        return re.sub(r"\(\?P<\w>", "(?:", self.regex)

    def iso(self, texts: pa.Array, *, days: bool = False) -> pa.Array:
        """Converts the texts to ISO 8601. The result may contain an impossible date, like February 30.

        `days`: only dates, without times. Raises `pa.ArrowInvalid` if a text does not match the pattern.
        """
        return _Parts(texts=dict(zip(self.letters, self._parts(texts), strict=True))).iso(days=days)

    def _parts(self, texts: pa.Array) -> Sequence[pa.Array]:
        wrong = pa.ArrowInvalid(f"a text is not written as {self.text}")
        if not self.places:
            found = pc.extract_regex(texts, self.regex)
            if found.null_count > texts.null_count:
                raise wrong
            return found.flatten()  # type: ignore[no-any-return]
        # Cutting texts at fixed places is several times faster than groups of a regular expression.
        if not pc.all(pc.match_substring_regex(texts, self.form), min_count=0).as_py():
            raise wrong
        plain = pc.utf8_trim(texts, " \t")
        return [pc.utf8_slice_codeunits(plain, first, last) for first, last in self.places]


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The texts of each field of a time, by letter. The text is empty if a time lacks the field."""

    texts: dict[str, pa.Array]

    def iso(self, *, days: bool) -> pa.Array:
        month = _first_if_empty(self._month())
        day = pc.binary_join_element_wise(self._year(), month, _first_if_empty(self._two("d")), "-")
        if days:
            return day
        time = pc.binary_join_element_wise(self._hour(), self._two("m"), self._two("s"), ":")
        more = [self.texts["z"]] if "z" in self.texts else []
        if "S" in self.texts:
            more = [".", pc.utf8_slice_codeunits(pc.utf8_rpad(self.texts["S"], 6, "0"), 0, 6), *more]
        return pc.binary_join_element_wise(day, " ", time, *more, "")

    @cached_property
    def _empty(self) -> pa.Array:
        return pc.utf8_slice_codeunits(self.texts["y"], 0, 0)

    def _text(self, letter: str) -> pa.Array:
        return self.texts.get(letter, self._empty)

    def _two(self, letter: str) -> pa.Array:
        return pc.utf8_lpad(self._text(letter), 2, "0")

    def _year(self) -> pa.Array:
        return pc.utf8_slice_codeunits(pc.binary_join_element_wise("20", self.texts["y"], ""), -4, None)

    def _month(self) -> pa.Array:
        found = self._text("M")
        number = pc.index_in(pc.utf8_slice_codeunits(pc.utf8_lower(found), 0, 3), pa.array(_SHORT))
        named = pc.cast(pc.add(number, 1), pa.string())
        return pc.utf8_lpad(pc.coalesce(named, found), 2, "0")

    def _hour(self) -> pa.Array:
        hour = self._two("H")
        if "a" not in self.texts:
            return hour
        of_twelve = pc.cast(pc.if_else(pc.equal(hour, "12"), "00", hour), pa.int32())
        afternoon = pc.cast(pc.equal(pc.utf8_lower(self.texts["a"]), "pm"), pa.int32())
        return pc.utf8_lpad(pc.cast(pc.add(of_twelve, pc.multiply(afternoon, 12)), pa.string()), 2, "0")


def _first_if_empty(two: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(two, "00"), "01", two)


@lru_cache(maxsize=256)
def time_pattern(text: str) -> TimePattern:
    """Parses a pattern. Raises `UsageError` for an unsupported letter; the message lists the supported letters."""
    if len(text) > MAX_TIME_PATTERN:
        raise UsageError(f"{text[:MAX_TIME_PATTERN]!r}…: longer than {MAX_TIME_PATTERN} characters")
    letters: list[str] = []
    regex = "".join(_regexes(text, letters))
    given = {*letters}
    twelve = re.sub(r"'(?:[^']|'')*'", "", text).count("h") > 0
    for wrong, why in (
        ("y" not in given, "a year is missing: yyyy or yy"),
        ("d" in given and "M" not in given, "it has a day and no month"),
        (given & {*"msSaz"} and "H" not in given, "it has parts that need an hour, and no hour"),
        ("s" in given and "m" not in given, "it has seconds and no minutes"),
        ("S" in given and "s" not in given, "it has fractions and no seconds"),
        (twelve != ("a" in given), "use h with a, or H: a 12-hour clock needs AM or PM"),
    ):
        if wrong:
            raise UsageError(f"{text!r}: {why}")
    places = _places(text)
    return TimePattern(text=text, regex=rf"^[ \t]*{regex}[ \t]*$", letters="".join(letters), places=places)


_FIXED: Final = frozenset(["yyyy", "yy", "MM", "MMM", "dd", "HH", "hh", "a", "mm", "ss", "xx", "xxx", "Z"])
"""Pattern letters whose values always have the same length."""


def _places(text: str) -> tuple[tuple[int, int], ...]:
    """Returns the start and end of each letter's value in the texts that the pattern reads; empty if these places
    differ between texts.
    """
    found: list[tuple[int, int]] = []
    end = 0
    for sign in _TOKEN.finditer(text):
        if sign[0] in "[]" or (sign[1] and sign[0] not in _FIXED):
            return ()
        length = (
            {"a": 2, "xx": 5, "Z": 5, "xxx": 6}.get(sign[0], len(sign[0])) if sign[1] else len(_said(sign[0]))
        )
        if sign[1]:
            found.append((end, end + length))
        end += length
    return tuple(found)


def _said(sign: str) -> str:
    """Returns the text that a part of a pattern stands for: a quoted text, or a character that is not a letter."""
    return sign[1:-1].replace("''", "'") or "'" if len(sign) > 1 else sign


def _regexes(text: str, letters: list[str]) -> Iterator[str]:
    """Yields the regular expression of each part of a pattern, and adds the letters of the parts to `letters`."""
    depth = 0
    for found in _TOKEN.finditer(text):
        sign = found[0]
        if sign == "[":
            depth += 1
            yield "(?:"
        elif sign == "]":
            depth -= 1
            if depth < 0:
                raise UsageError(f"{text!r}: a ] has no [")
            yield ")?"
        elif found[1]:
            if sign not in _REGEXES:
                raise UsageError(f"{text!r}: {sign!r} is not supported; use {SUPPORTED}")
            field = _FIELDS[sign[0]]
            if field in letters:
                raise UsageError(f"{text!r}: {sign!r} occurs twice, or another letter means the same field")
            letters.append(field)
            yield f"(?P<{field}>{_REGEXES[sign]})"
        elif sign in "'#{}":
            raise UsageError(f"{text!r}: {sign} is not supported, or a quote is not closed")
        else:
            yield re.escape(_said(sign))
    if depth:
        raise UsageError(f"{text!r}: a [ is not closed")
