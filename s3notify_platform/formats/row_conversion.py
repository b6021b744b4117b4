"""Converts records to rows and rejects, and searches for bad records.

The records of a block are converted together, except suspect records. A quick check finds the suspect records, which
are converted value by value. If the conversion fails, or if the numbers of rows and records differ, the block is
halved. A record with a value that does not fit becomes a reject with offset, reason and raw bytes. With `rescue`, the
record becomes a row with the values that fit. A bad record affects no other record: each record becomes either a row or
a reject.
"""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from s3notify_platform.formats.arrow_values import count_fields
from s3notify_platform.formats.records import (
    Converted,
    Offsets,
    Parsed,
    Parser,
    Records,
    Recovered,
    Reject,
    no_rows,
    reason_of,
)
from s3notify_platform.formats.rescue import Rescued, Tally, count, mismatch_reason
from s3notify_platform.kernel.limits import MAX_CELLS, MAX_RAW_BYTES

RECOVER_RECORDS: Final = 32
"""If a block of at most this many records fails, its records are converted value by value."""

RECOVERED_AT_ONCE: Final = 4096
"""Maximum number of suspects that are converted at a time. The number is limited because the texts of suspects are
Python objects in memory.
"""


def converted(records: Records, parser: Parser) -> Iterator[Parsed]:
    """Converts the records of a block. The more columns there are, the fewer records are converted together."""
    step = max(1, MAX_CELLS // max(1, count_fields(parser.target.output)))
    for low in range(0, len(records.start), step):
        yield convert_or_halve(records.part(low, low + step), parser)


def convert_or_halve(records: Records, parser: Parser) -> Parsed:
    """Converts one block. Records that may be faulty are converted value by value, or rejected.

    Other bad records are found by halving the block.
    """
    rows = _Rows(records, parser)
    pending = [np.arange(len(records.start))]
    while pending:
        numbers = pending.pop()
        part = records.take(numbers)
        few = len(numbers) <= RECOVER_RECORDS
        try:
            found = parser.convert(part) if few else parser.convert_most(part)
            if found.table.num_rows != len(numbers) - len(found.left):
                raise pa.ArrowInvalid(f"{found.table.num_rows} records where one was expected")
        except (pa.ArrowException, UnicodeError, MemoryError) as error:
            if few:
                left = (
                    numbers
                    if isinstance(error, MemoryError)
                    else rows.take_recovered(numbers, parser.recover(part))
                )
                if len(numbers) == 1 and len(left):
                    rows.reject(left, [reason_of(error) or "not enough memory"])
                else:
                    pending += [*left.reshape(-1, 1)]
            else:
                pending += reversed(np.array_split(numbers, 2))
            continue
        suspects = numbers[found.left]
        for some in np.array_split(suspects, len(suspects) // RECOVERED_AT_ONCE + 1) if len(suspects) else ():
            left = rows.take_recovered(some, parser.recover(records.take(some)))
            pending += [*left.reshape(-1, 1)]
        rows.take(np.delete(numbers, found.left), found)
    return rows.result()


class _Rows:
    """Collects the rows and rejects of a block."""

    def __init__(self, records: Records, parser: Parser) -> None:
        self.records = records
        self.parser = parser
        self.found = no_rows(parser.target, [])
        self.tables: list[pa.Table] = []
        self.numbers: list[Offsets] = []

    def take(self, numbers: Offsets, found: Converted) -> None:
        """Adds converted records, by their numbers."""
        target = self.parser.target
        mismatched = np.zeros(len(numbers), bool)
        for one in found.mismatches:
            mismatched[one.places] = True
            self._count(self.found.mismatches, one.path, numbers[one.places])
        for path, places in found.unnamed.items():
            counted = places if target.rescue else places[~mismatched[places]]
            self._count(self.found.unnamed, path, numbers[counted])
        if target.inferred and found.new_fields is not None:
            self.found.new_fields.append(found.new_fields)
        if target.rescue and (found.unnamed or found.mismatches):
            self._rescue(numbers, found)
            return
        if not target.rescue:
            self._reject_mismatches(numbers, found)
        kept = ~mismatched
        if target.inferred and found.unnamed:
            names: dict[int, str] = {}
            for path, places in found.unnamed.items():
                for place in places[~mismatched[places]].tolist():
                    names.setdefault(place, path)
            kept[[*names]] = False
            self.reject(numbers[[*names]], map(target.unknown, names.values()))
        self._add_kept(numbers, target.rows(found.table), kept)

    def _count(self, tally: Tally, path: str, numbers: Offsets) -> None:
        objects, times = np.unique(self.records.index[numbers], return_counts=True)
        for index, values in zip(objects.tolist(), times.tolist(), strict=True):
            count(tally, index, [path], values)

    def _reject_mismatches(self, numbers: Offsets, found: Converted) -> None:
        """Rejects records with mismatches. The reason shows the first mismatch of the record."""
        seen = np.zeros(len(numbers), bool)
        for one in found.mismatches:
            first = ~seen[one.places]
            seen[one.places] = True
            reason = self._reason(one.path)
            texts = (text for text, new in zip(one.texts, first.tolist(), strict=True) if new)
            self.reject(numbers[one.places[first]], map(reason, texts))

    def _reason(self, path: str) -> Callable[[str], str]:
        schema = self.parser.target.schema
        return mismatch_reason(path, schema, self.parser.notation.note(path, schema), self.parser.target.name)

    def _rescue(self, numbers: Offsets, found: Converted) -> None:
        rescued: list[Rescued | None] = [None] * len(numbers)
        kept = np.ones(len(numbers), bool)
        for one in found.mismatches:
            for place, text in one.pairs():
                record = rescued[place] = rescued[place] or Rescued()
                record.mismatches[one.path] = text
        having = {place for places in found.unnamed.values() for place in places.tolist()}
        for place in sorted(having):
            try:
                record = rescued[place] = rescued[place] or Rescued()
                record.unnamed = self.parser.unnamed(self.records.raw(numbers[place]))
            except ValueError as error:  # a field occurs twice
                self.reject(numbers[[place]], [reason_of(error)])
                kept[place] = False
        self._add_kept(numbers, self.parser.target.rows(found.table, rescued), kept)

    def take_recovered(self, numbers: Offsets, recovered: Recovered) -> Offsets:
        """Adds records that were converted value by value. Returns the numbers of records that could not be split."""
        target = self.parser.target
        kept: list[tuple[int, int, Rescued]] = []
        rejected: list[int] = []
        reasons: list[str] = []
        left: list[int] = []
        place = 0
        objects = self.records.index[numbers].tolist()
        for number, index, rescued in zip(numbers.tolist(), objects, recovered.rescued, strict=True):
            if rescued is None:
                left.append(number)
                continue
            if rescued.mismatches:
                count(self.found.mismatches, index, rescued.mismatches)
            if rescued.unnamed and (target.rescue or not rescued.mismatches):
                count(self.found.unnamed, index, rescued.unnamed)
            if rescued.mismatches and not target.rescue:
                rejected.append(number)
                path, text = next(iter(rescued.mismatches.items()))
                reasons.append(self._reason(path)(text))
            elif rescued.unnamed and target.inferred and not target.rescue:
                rejected.append(number)
                reasons.append(target.unknown(next(iter(rescued.unnamed))))
            else:
                kept.append((number, place, rescued))
            place += 1
        self.reject(np.array(rejected, np.int64), reasons)
        if kept:
            found, places, texts = zip(*kept, strict=True)
            table = recovered.table if len(kept) == place else recovered.table.take(pa.array(places))
            self._add(np.array(found, np.int64), target.rows(table, texts))
        self.found.new_fields += recovered.new_fields
        return np.array(left, np.int64)

    def reject(self, numbers: Offsets, reasons: Iterable[str]) -> None:
        """Rejects records, unless they are blank."""
        records, body, rejects = self.records, self.records.body, self.found.rejects
        places = (
            column[numbers].tolist() for column in (records.index, records.offset, records.start, records.end)
        )
        for index, offset, start, end, reason in zip(*places, reasons, strict=True):
            raw = body[start:end]
            if raw.strip(b" \t\r\n"):
                rejects.append(
                    Reject(index=index, offset=offset, reason=reason[:500], raw=raw[:MAX_RAW_BYTES])
                )

    def _add_kept(self, numbers: Offsets, rows: pa.Table, kept: npt.NDArray[np.bool_]) -> None:
        if kept.all():
            self._add(numbers, rows)
        else:
            self._add(numbers[kept], rows.filter(pa.array(kept)))

    def _add(self, numbers: Offsets, rows: pa.Table) -> None:
        self.tables.append(rows)
        self.numbers.append(numbers)

    def result(self) -> Parsed:
        """Returns all rows and rejects, in the order of the records."""
        if self.tables:
            numbers = np.concatenate(self.numbers)
            table = pa.concat_tables(self.tables)
            if np.any(numbers[1:] < numbers[:-1]):
                order = np.argsort(numbers)
                numbers, table = numbers[order], table.take(pa.array(order))
            self.found.table = table
            self.found.index, self.found.offset = self.records.index[numbers], self.records.offset[numbers]
            self.found.records, self.found.numbers = self.records, numbers
        self.found.rejects.sort(key=attrgetter("index", "offset"))
        return self.found
