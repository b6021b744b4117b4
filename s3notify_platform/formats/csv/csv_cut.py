"""Finds the records of a CSV, in the dialect of its source.

A quote opens a value only at the value's start. Elsewhere in an unquoted value, a quote is an ordinary character.
"""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv

from s3notify_platform.formats.records import (
    BOM,
    NEWLINE,
    RETURN,
    Offsets,
    Records,
    ranges_between,
)
from s3notify_platform.kernel.errors import UsageError

NULLS: Final = "NULL|null|NA|N/A|n/a"

Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The dialect of a CSV: how values are separated, quoted and escaped, which lines are not records, and which texts
    are null.

    `delimiter`, `quote`, `escape` and `comment` are one ASCII character each, or empty if unused. `names`: the column
    names, if the first line of an object is not a header. `nulls` are separated by `|`. For each field,
    `source.format_settings` declares the setting `csv_FIELD`. `simple` is false if any field except `quote` changes
    where records begin. A new field of this kind must be added to `simple`.
    """

    delimiter: str = ","
    quote: str = '"'
    escape: str = ""
    comment: str = ""
    skip_lines: int = 0
    names: str = ""
    nulls: str = NULLS

    def __post_init__(self) -> None:
        for name in ("delimiter", "quote", "escape", "comment"):
            value = getattr(self, name)
            if len(value) > 1 or not value.isascii() or value in ("\n", "\r") or value.isalnum():
                raise UsageError(
                    f"csv_{name} {value!r}: give one ASCII character that is not a letter or digit"
                )
        given = [one for one in (self.delimiter, self.quote, self.escape, self.comment) if one]
        if not self.delimiter or len(set(given)) < len(given):
            raise UsageError(
                "csv_delimiter, csv_quote, csv_escape and csv_comment: give different characters"
            )

    @property
    def simple(self) -> bool:
        """True if quotes and line ends alone decide where records begin.

        Only then can a text be read from the middle.
        """
        return not (self.escape or self.comment or self.skip_lines)

    def values(self, text: str) -> list[str]:
        """Returns the values of one record. Raises `csv.Error` or `StopIteration` if the text is not a record."""
        return next(csv.reader(io.StringIO(text, newline=""), **self._how))

    @cached_property
    def _how(self) -> dict[str, Any]:
        return {
            "delimiter": self.delimiter, "strict": True, "escapechar": self.escape or None,
            "quotechar": self.quote or None, "doublequote": True,
            "quoting": csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
        }  # fmt: skip

    @property
    def parse_options(self) -> pa_csv.ParseOptions:
        """Options for pyarrow's reader."""
        return pa_csv.ParseOptions(
            delimiter=self.delimiter,
            quote_char=self.quote or False,
            escape_char=self.escape or False,
            newlines_in_values=True,
        )

    @cached_property
    def null_texts(self) -> tuple[str, ...]:
        """Texts that are null, except in a string column."""
        return ("", *(text for text in self.nulls.split("|") if text))

    @cached_property
    def quote_byte(self) -> int:
        """The byte of the quote character; 256 if the dialect has no quote, because no byte is 256."""
        return ord(self.quote) if self.quote else 256

    @cached_property
    def before(self) -> Marks:
        """True for each byte that may precede an opening quote: a separator, or the first of two doubled quotes."""
        return np.isin(np.arange(256), [ord(self.delimiter), NEWLINE, self.quote_byte])

    @cached_property
    def behind(self) -> Marks:
        """True for each byte that may follow a closing quote: a separator, or the second of two doubled quotes."""
        return np.isin(np.arange(256), [ord(self.delimiter), NEWLINE, RETURN, self.quote_byte])

    def record_end(self, body: bytes, start: int, end: int) -> int:
        """Returns the end of the well-formed values that begin at `start`; `start` if not even the first value is
        well-formed.
        """
        first, more = self._values
        found = first.match(body, start, end)
        place = found.end() if found else start
        while found:
            place = found.end()
            found = more.match(body, place, end)
        return place

    def fault(self, record: bytes) -> str:
        """Returns why a record is malformed, or ""."""
        end = self.record_end(record, 0, len(record))
        if end == len(record):
            return ""
        if record[end] == RETURN:
            return "a carriage return without a line feed: end lines with a line feed, or with both"
        return "a quote is not closed, or has text behind it"

    @cached_property
    def _values(self) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
        """Patterns for a record's first value, and for up to 500 further values.

        The number of values is limited because an unbounded repetition takes memory. A possessive repetition takes no
        memory, but Python 3.11.2 matches it wrongly if the repeated part can fail in the middle.
        """
        d, q, e = (re.escape(one.encode()) for one in (self.delimiter, self.quote, self.escape))
        plain = rb"[^" + d + e + rb"\r\n]*+"
        value = plain + (rb"(?:" + e + rb"[^\n]" + plain + rb")*+" if e else b"")
        if q:
            value = q + self._inside + q + rb"(?![^" + d + rb"\r\n])|(?!" + q + rb")" + value
        return re.compile(value, re.DOTALL), re.compile(rb"(?:%b(?:%b)){1,500}" % (d, value), re.DOTALL)

    @cached_property
    def opened(self) -> re.Pattern[bytes]:
        """Matches a quoted value that reaches the end of a text and may continue in the text that follows."""
        q = re.escape(self.quote.encode())
        return re.compile(q + self._inside + q + rb"?+\Z" if q else rb"(?!)", re.DOTALL)

    @property
    def _inside(self) -> bytes:
        """The pattern of the text between the quotes of a quoted value."""
        q, e = re.escape(self.quote.encode()), re.escape(self.escape.encode())
        plain = rb"[^" + q + e + rb"]*+"
        doubled = rb"(?:" + q + q + plain + rb")*+"
        return plain + (rb"(?:(?:" + e + rb"." + plain + rb")*+" + doubled + rb")*+" if e else doubled)


STANDARD: Final = Dialect()


def csv_cut(
    body: bytes, *, mark: bool, final: bool, limit: int, dialect: Dialect = STANDARD
) -> tuple[Offsets, Offsets, int]:
    """Returns the starts and ends of the records in `body`, and where the first incomplete record begins. `body` begins
    with a record.

    The header is a record here, but a blank line is not. If not `final`, more text may follow. A record longer than
    `limit` counts as malformed. `mark`: true if the body is the beginning of an object.
    """
    if mark and (skipped := _skipped(body, dialect.skip_lines)):
        if skipped == len(body) and not final:
            return *_NO_RANGES, 0
        starts, ends, whole = csv_cut(body[skipped:], mark=False, final=final, limit=limit, dialect=dialect)
        return starts + skipped, ends + skipped, whole + skipped
    first = len(BOM) if mark and body.startswith(BOM) else 0
    octets = np.frombuffer(body, np.uint8)
    breaks = octets == NEWLINE
    whole = len(body) if final else body.rfind(b"\n") + 1
    if not dialect.simple and _has(body, dialect.quote + dialect.escape + dialect.comment):
        breaks, whole = _scanned_breaks(body, first, final=final, limit=limit, dialect=dialect)
    elif _has(body, dialect.quote):
        inside = np.logical_xor.accumulate(octets == dialect.quote_byte)
        outer = breaks & ~inside
        if not final:
            last = np.flatnonzero(outer)[-1:]
            whole = int(last[0]) + 1 if len(last) else 0
        if (
            whole
            and quotes_are_plain(octets[first:whole], inside[first:whole], dialect)
            and _short(outer, whole, limit)
            and len(body) - whole <= limit
        ):
            breaks = outer
        else:
            breaks, whole = _scanned_breaks(body, first, final=final, limit=limit, dialect=dialect)
    starts, ends = ranges_between(body[:whole], breaks[:whole], mark=mark)
    filled = ends > starts
    if dialect.comment:
        filled &= octets[np.minimum(starts, max(0, len(body) - 1))] != ord(dialect.comment)
    return starts[filled], ends[filled], whole


_NO_RANGES: Final = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def _has(body: bytes, characters: str) -> bool:
    return any(one.encode() in body for one in characters)


def _skipped(body: bytes, lines: int) -> int:
    """Returns where the first `lines` lines of a text end, or the text's length if the text has fewer lines."""
    place = 0
    for _ in range(lines):
        place = _behind_line(body, place)
    return place


_LINE_END: Final = re.compile(rb"\r\n?|\n")


def _behind_line(body: bytes, place: int) -> int:
    """Returns where a line that is not a record ends, or the end of `body` if no line end is found.

    A lone carriage return also ends the line, because the text behind it may be a record.
    """
    found = _LINE_END.search(body, place)
    return found.end() if found else len(body)


def _short(breaks: Marks, whole: int, limit: int) -> bool:
    """True if no text between two breaks is longer than `limit`."""
    if whole <= limit:
        return True
    places = np.concatenate([[-1], np.flatnonzero(breaks[:whole]), [whole]])
    return bool((np.diff(places) - 1 <= limit).all())


def quotes_are_plain(octets: npt.NDArray[np.uint8], inside: Marks, dialect: Dialect = STANDARD) -> bool:
    """True if quotes alternately open and close a value. Each quote must be at the border of its value, or be doubled.

    `inside`: for each byte, true if a quoted value is open after this byte. The result is also false if a lone carriage
    return is outside of quotes, because such a record is malformed.
    """
    if len(octets) and inside[-1]:
        return False
    edge = np.full(1, NEWLINE, np.uint8)
    padded = np.concatenate([edge, octets, edge])
    places = np.flatnonzero(octets == dialect.quote_byte)
    returns = np.flatnonzero(octets == RETURN)
    alone = returns[padded[returns + 2] != NEWLINE]
    return (
        could_open(padded, places[::2], dialect)
        and could_close(padded, places[1::2], dialect)
        and bool(inside[alone].all())
    )


def could_open(padded: npt.NDArray[np.uint8], places: Offsets, dialect: Dialect = STANDARD) -> bool:
    """True if an opening quote is allowed at each of these places. `padded`: the text, with one more byte on either
    side.
    """
    return bool(dialect.before[padded[places]].all())


def could_close(padded: npt.NDArray[np.uint8], places: Offsets, dialect: Dialect = STANDARD) -> bool:
    """True if a closing quote is allowed at each of these places. `padded`: the text, with one more byte on either
    side.
    """
    return bool(dialect.behind[padded[places + 2]].all())


def _scanned_breaks(
    body: bytes, place: int, *, final: bool, limit: int, dialect: Dialect
) -> tuple[Marks, int]:
    """Finds the ends of records one by one. A malformed record ends where its line ends."""
    breaks = np.zeros(len(body), np.bool_)
    begin = place
    while begin < len(body):
        if dialect.comment and body[begin] == ord(dialect.comment):
            end = _behind_line(body, begin)
            if end == len(body) and not final:
                break
            breaks[end - 1] = True
            begin = end
            continue
        end = dialect.record_end(body, begin, len(body))
        while end < len(body) and body[end] == RETURN and body[end + 1 : end + 2] != b"\n":
            # A lone carriage return joins the text before it and the text behind it to one malformed record. Quoted
            # line ends in the text behind it do not end the record.
            end = dialect.record_end(body, end + 1, len(body))
        if not final and len(body) - begin <= limit and _may_go_on(body, end, dialect):
            break
        if body[end : end + 2] == b"\r\n":
            end += 1
        if end - begin > limit or (end < len(body) and body[end] != NEWLINE):
            end = body.find(b"\n", begin)
        if not 0 <= end < len(body):
            break
        breaks[end] = True
        begin = end + 1
    return breaks, len(body) if final else begin if begin > place else 0


def _may_go_on(body: bytes, end: int, dialect: Dialect) -> bool:
    """True if text that follows `body` can move the end of the record. The record is well-formed up to `end`."""
    if end >= len(body) - 1:
        return body[end:] != b"\n"
    quote = end + (body[end] == ord(dialect.delimiter))
    return body[quote] == dialect.quote_byte and dialect.opened.match(body, quote) is not None


def check_csv_records(records: Records, dialect: Dialect = STANDARD) -> None:
    """Raises for malformed records, which pyarrow splits or joins in another way than `csv_cut`."""
    for number in malformed(records, dialect):
        raise pa.ArrowInvalid(dialect.fault(records.raw(number)))


def malformed(records: Records, dialect: Dialect) -> Iterator[int]:
    """Yields the numbers of the malformed records, which pyarrow splits or joins in another way than `csv_cut`."""
    octets = np.frombuffer(records.body, np.uint8)[records.start[0] : records.end[-1]]
    quotes = octets == dialect.quote_byte
    inside = np.logical_xor.accumulate(quotes) if quotes.any() else quotes
    if dialect.simple and quotes_are_plain(octets, inside, dialect) and octets[-1] != RETURN:
        return
    for number, (start, end) in enumerate(zip(records.start.tolist(), records.end.tolist(), strict=True)):
        if dialect.record_end(records.body, start, end) < end:
            yield number
