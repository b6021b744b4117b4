"""Where quoted values are open in a CSV object, so that several tasks can read parts of it.

A line end in a quoted value does not end a record. So a task that begins in the middle of an object has to know whether
a quoted value is open there: whether the number of quotes before it is odd. First each task counts the quotes in its
part (`scout`), then `starts_in_quotes` combines the counts. That is correct only if every quote is at the border of its
value, or is doubled. If one is not, records can be found only from the beginning, and one task reads the whole object.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

from s3notify_platform.formats.codecs import peek
from s3notify_platform.formats.csv.csv_cut import STANDARD, Dialect, could_close, could_open
from s3notify_platform.formats.object_bytes import CHUNK_BYTES, ObjectBytes, chunks
from s3notify_platform.formats.records import BOM, NEWLINE, RETURN, Offsets
from s3notify_platform.protocols.source_enumerator import Split

_END: Final = b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scout:
    """The quotes of a part of an object. `well_formed`: if the part begins outside of a quoted value, and if inside."""

    quotes: int
    well_formed: tuple[bool, bool]


def starts_in_quotes(scouts: Sequence[Scout]) -> list[bool] | None:
    """For each of the splits that follow each other, whether it begins in a quoted value; the first does not.

    None: some quotes are out of place, so the object can only be read by one task, from the first split's start on.
    Pure.
    """
    if not any(scout.quotes for scout in scouts):
        return [False] * len(scouts)
    starts: list[bool] = []
    inside = False
    for scout in scouts:
        starts.append(inside)
        if not scout.well_formed[inside]:
            return None
        inside ^= bool(scout.quotes % 2)
    return None if inside else starts


def scout(
    source: ObjectBytes, split: Split, *, chunk_bytes: int = CHUNK_BYTES, dialect: Dialect = STANDARD
) -> Scout:
    """Count the quotes between a split's `start` and `end`.

    Reads these bytes and one on either side, in one GET for each `CHUNK_BYTES`, and holds a few of them. Raises as
    `ObjectBytes.read` does.
    """
    start, end = max(split.start - 1, 0), min(split.end + 1, source.size)
    text = chunks(source, start, end, chunk_bytes=chunk_bytes)
    if split.start == 0:
        head, text = peek(text, len(BOM))
        if head == BOM:
            text = _behind(text, len(BOM))
        text = chain([_END], text)
    if split.end >= source.size:
        text = chain(text, [_END])
    quotes, outside, inside = 0, True, True
    left = b""
    # The first and the last byte are only neighbours of those that are examined.
    for chunk in text:
        left += chunk
        if len(left) < 3:
            continue
        padded = np.frombuffer(left, np.uint8)
        octets = padded[1:-1]
        quoted = octets == dialect.quote_byte
        places = np.flatnonzero(quoted)
        opening, closing = places[quotes % 2 :: 2], places[1 - quotes % 2 :: 2]
        within = np.logical_xor.accumulate(quoted) ^ bool(quotes % 2)
        alone = within[(octets == RETURN) & (padded[2:] != NEWLINE)]
        outside &= bool(
            could_open(padded, opening, dialect) and could_close(padded, closing, dialect) and alone.all()
        )
        inside &= bool(
            could_open(padded, closing, dialect) and could_close(padded, opening, dialect) and not alone.any()
        )
        quotes += len(places)
        left = left[-2:]
    return Scout(quotes=quotes, well_formed=(outside, inside))


def _plain(padded: npt.NDArray[np.uint8], opening: Offsets, closing: Offsets, dialect: Dialect) -> bool:
    return could_open(padded, opening, dialect) and could_close(padded, closing, dialect)


def _behind(text: Iterator[bytes], count: int) -> Iterator[bytes]:
    for chunk in text:
        if len(chunk) > count:
            yield chunk[count:]
        count = max(0, count - len(chunk))
