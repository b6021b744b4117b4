"""Finds the records of a text that arrives in chunks, and returns each record as soon as it is complete.

Memory: one chunk, and at most `MAX_RECORD_BYTES` of an incomplete record before the chunk. A record longer than
`MAX_RECORD_BYTES` becomes a reject with the record's first bytes, and reading continues with the next record. The
result does not depend on the chunk borders.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from s3notify_platform.formats.records import (
    BOM,
    NEWLINE,
    NO_RECORDS,
    Offsets,
    Records,
    Reject,
    ranges_between,
)
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.limits import MAX_RAW_BYTES, MAX_RECORD_BYTES

Cut = Callable[..., tuple[Offsets, Offsets, int]]
"""`cut(body, mark=…, final=…, limit=…)` returns the starts and the ends of the records in `body`, which begins with a
record.

The third result is the place of the first record that may continue behind the body. `mark`: the body may begin with a
byte order mark; `final`: nothing follows the body.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Adjacent records, or one `reject`. `begins`: where each record begins in the text. A byte order mark belongs to
    the first record.

    `next_place`: where the next piece begins.
    """

    records: Records
    begins: Offsets
    next_place: int
    reject: Reject | None = None

    def part(self, low: int, high: int) -> "Piece":
        """Returns the records from `low` to before `high`."""
        return Piece(
            records=self.records.part(low, high),
            begins=self.begins[low:high],
            next_place=int(self.begins[high]) if high < len(self.begins) else self.next_place,
            reject=self.reject if low <= 0 < high else None,
        )


def cut_lines(body: bytes, *, mark: bool, final: bool) -> tuple[Offsets, Offsets, int]:
    """Returns the result of a `Cut` whose records are lines, including blank lines."""
    whole = len(body) if final else body.rfind(b"\n") + 1
    lines = body[:whole]
    return *ranges_between(lines, np.frombuffer(lines, np.uint8) == NEWLINE, mark=mark), whole


def first_record(
    text: Iterator[bytes], place: int, *, quoted: bool = False, quote: str = '"'
) -> tuple[Iterator[bytes], int]:
    """Returns the text behind the first line end, and the place where that text begins. `text` begins at `place`.

    `quoted`: a line end in a quoted value does not end a record. The first byte must not be inside a quoted value.
    """
    first, open_before = True, False
    for chunk in text:
        if not quoted:
            found = chunk.find(b"\n")
        else:
            quotes = np.frombuffer(chunk, np.uint8) == ord(quote)
            quotes[0] &= not first
            inside = np.logical_xor.accumulate(quotes) ^ open_before
            breaks = np.flatnonzero((np.frombuffer(chunk, np.uint8) == ord("\n")) & ~inside)
            found = int(breaks[0]) if len(breaks) else -1
            open_before = bool(inside[-1])
        if found >= 0:
            return chain([chunk[found + 1 :]], text), place + found + 1
        place += len(chunk)
        first = False
    return iter(()), place


def regrouped(text: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yields the same text in chunks of at least `size` bytes."""
    waiting: list[bytes] = []
    count = 0
    damage: CorruptError | None = None
    chunks = iter(text)
    while True:
        try:
            chunk = next(chunks, None)
        except CorruptError as error:
            chunk, damage = None, error
        if chunk is not None:
            waiting.append(chunk)
            count += len(chunk)
        if waiting and (count >= size or chunk is None):
            yield b"".join(waiting)
            waiting, count = [], 0
        if damage:
            raise damage
        if chunk is None:
            return


def pieces(
    text: Iterable[bytes], cut: Cut, *, place: int = 0, limit: int = MAX_RECORD_BYTES
) -> Iterator[Piece]:
    """Yields the records of a text that begins with a record. `place`: where the text begins.

    If the text ends in `CorruptError`, the bytes behind the last complete record are one reject.
    """
    left = b""
    too_long: Reject | None = None  # an incomplete record that is too long already
    begin = place
    for chunk, damage in _with_end(text):
        body = left + chunk
        if too_long:
            end = body.find(b"\n") + 1
            left, place = body[end or len(body) :], place + (end or len(body))
            if not end and damage is None:
                continue
            yield _rejected(too_long, begin, place)
            too_long, body = None, left
        if damage:
            reject = Reject(index=0, offset=place, reason=damage, raw=left[:MAX_RAW_BYTES])
            yield _rejected(reject, place, place + len(left))
            return
        starts, ends, whole = cut(body, mark=place == 0, final=damage is not None, limit=limit)
        yield from _within(body, starts, ends, place=place, next_place=place + whole, limit=limit)
        left = body[whole:]
        place += whole
        if len(left) > limit + len(BOM) + 1:
            # Even without a byte order mark and a last carriage return, which do not belong to the record, the record
            # is too long.
            mark = len(BOM) if place == 0 and left.startswith(BOM) else 0
            too_long, begin = _too_long(left[mark:], place + mark, limit), place
            place += len(left)
            left = b""


def _with_end(text: Iterable[bytes]) -> Iterator[tuple[bytes, str | None]]:
    """Yields each chunk with None.

    At the end, yields an empty chunk with the damage that ended the text, or with "" if the text is undamaged.
    """
    try:
        for chunk in text:
            yield chunk, None
    except CorruptError as error:
        yield b"", f"{error}; the rest of the object cannot be read"
    else:
        yield b"", ""


def _within(
    body: bytes, starts: Offsets, ends: Offsets, *, place: int, next_place: int, limit: int
) -> Iterator[Piece]:
    """Yields the records of a body that begins at `place`. Records longer than `limit` become rejects."""
    begins = starts + place
    if place == 0 and len(starts) and starts[0] == len(BOM) and body.startswith(BOM):
        begins[0] = 0
    index = np.zeros(len(starts), np.int64)
    records = Records(body=body, start=starts, end=ends, index=index, offset=starts + place)
    whole = Piece(records=records, begins=begins, next_place=next_place)
    low = 0
    for number in np.flatnonzero(ends - starts > limit).tolist():
        yield whole.part(low, number)
        one = whole.part(number, number + 1)
        reject = _too_long(body[starts[number] : ends[number]], int(starts[number]) + place, limit)
        yield _rejected(reject, int(begins[number]), one.next_place)
        low = number + 1
    yield whole.part(low, len(starts))


def _rejected(reject: Reject, begin: int, next_place: int) -> Piece:
    begins = np.array([begin], np.int64)
    return Piece(records=NO_RECORDS, begins=begins, next_place=next_place, reject=reject)


def _too_long(raw: bytes, offset: int, limit: int) -> Reject:
    reason = f"longer than {limit} bytes, the limit of a record"
    return Reject(index=0, offset=offset, reason=reason, raw=raw[: min(limit, MAX_RAW_BYTES)])
