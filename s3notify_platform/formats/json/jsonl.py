"""Converts JSON lines to Arrow rows. Each line that is not blank is one record, and must be one JSON object in UTF-8.

A line is a reject if one of its JSON objects has the same key twice, because the intended value is unknown. NaN and
infinities are accepted in floating point columns, because many writers use them. Fractions of a second are cut to
microseconds. String columns accept all values. The string of a value other than a JSON string is the value's JSON text,
as in RisingWave and Spark. Records with such a value in a string column are parsed twice.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow.json import ParseOptions

from s3notify_platform.formats.arrow_values import check_held, count_fields, unnamed_columns
from s3notify_platform.formats.json.json_bounds import (
    check_cells,
    check_json_lines,
    infinities_in,
    is_deeper,
    too_deep,
)
from s3notify_platform.formats.json.json_check import Checker, probably_fit
from s3notify_platform.formats.json.json_parts import (
    DECODER,
    FITTING,
    NOTED,
    STRICT_DECODER,
    WHITE,
    ObjectSplitter,
    as_string,
    halves,
    split_array,
    split_object,
    text_of_json,
    unnamed_parts,
)
from s3notify_platform.formats.json.json_reader import JsonReader, read_json
from s3notify_platform.formats.notation import USUAL, Notation, notation_of, place_of
from s3notify_platform.formats.records import (
    BOM,
    Converted,
    Offsets,
    Parser,
    Records,
    Recovered,
    Target,
)
from s3notify_platform.formats.rescue import Rescued, below, fitted, kinds_of, unnamed_in
from s3notify_platform.formats.text_format import TextFormat
from s3notify_platform.kernel.limits import MAX_CELLS, MAX_DEPTH, MAX_HALVED

T = TypeVar("T")

_CONSTANTS: Final = {True: "true", False: "false"}

_MANY: Final = 64
"""If a schema has more columns, `JsonLines` first reads only the columns that the previous block had.

With so many columns, most records lack most columns, and pyarrow takes 0.1 µs for each null.
"""

_FIRST_BYTES: Final = 1 << 16
"""The number of bytes at the beginning of a block. The lines in these bytes probably have all fields of the block."""


class Jsonl(TextFormat):
    """See the module."""

    name = "jsonl"
    suffixes = frozenset({"jsonl", "ndjson"})
    has_notation = True

    def __init__(self, notation: Notation = USUAL) -> None:
        self.notation = notation

    def configured(self, settings: Any) -> "Jsonl":
        """See `Format`."""
        notation = notation_of(settings)
        return self if notation == self.notation else Jsonl(notation)

    def parser(self, header: bytes, target: Target) -> Parser:
        """See `TextFormat`."""
        return JsonLines(target, self.notation)

    def refusal(self, text: bytes) -> str | None:
        """See `TextFormat`. Refuses a JSON document of several lines, because no line of it is a record."""
        if text.count(b"\n", 0, 1 << 16) < 1:
            return None
        first = text.removeprefix(BOM).lstrip().split(b"\n", 1)[0].rstrip(b" \t\r,")
        last = text.rstrip().rsplit(b"\n", 1)[-1].strip()
        opened = first[:1] in (b"[", b"{") and first[-1:] != {b"[": b"]", b"{": b"}"}[first[:1]]
        if opened and (last in (b"]", b"}") or (last.endswith(b"]") and not last.startswith(b"["))):
            return "a JSON document, but each line must be an object: set the source's format to json"
        return None

    def has_type(self, kind: pa.DataType) -> bool:
        """See `Format`."""
        if pa.types.is_struct(kind):
            return all(self.has_type(part.type) for part in kind)
        if pa.types.is_list(kind):
            return self.has_type(kind.value_type)
        return not (pa.types.is_map(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind))


class JsonLines(Parser):
    """The parser of blocks of lines."""

    def __init__(self, target: Target, notation: Notation = USUAL) -> None:
        self.target, self.notation = target, notation
        self._reader = JsonReader(target.schema, notation)
        self._times_as_text = False
        self._split_object = ObjectSplitter()
        self._checkers: dict[bool, Checker] = {}
        self._columns = count_fields(target.schema)
        self._no_rows = target.schema.empty_table()
        self._first_have_all = True
        self._occurring = target.schema
        """The columns that are expected in the next block: all columns or, if the schema has many columns, the columns
        of the previous block.
        """
        if self._columns > _MANY:
            self._occurring = pa.schema([])

    def convert(self, records: Records) -> Converted:
        """See `records.Parser`. Values that have no column in the schema are also read, so that they can be counted."""
        check_json_lines(records)
        joined = records.joined()
        check_cells(joined, self._columns)
        infinities_in(joined)
        try:
            table = self._read_all(joined)
        except pa.ArrowInvalid as error:
            name = re.match(r"JSON parse error: Column\(/(.*?)(?:/.*)?\) changed from", str(error))
            if name is None or name[1] in self.target.schema.names or self.target.inferred:
                raise
            # A field that the schema does not name has values of contradicting types.
            table = self._read(joined, "ignore")
            return Converted(table=self._typed(table, joined), unnamed=self._looked_up(records))
        unnamed, new_fields = unnamed_columns(table, self.target.schema)
        if new_fields is not None and self.target.inferred:
            new_fields = self._reader.noted(joined, new_fields)
        return Converted(table=self._typed(table, joined), unnamed=unnamed, new_fields=new_fields)

    def convert_most(self, records: Records) -> Converted:
        """See `records.Parser`."""
        try:
            return self.convert(records)
        except (pa.ArrowException, UnicodeError):
            left = self._suspects(records)
            rest = np.delete(np.arange(len(records.start)), left)
            if not len(left):
                raise
        if not len(rest):
            return Converted(table=self._no_rows, left=left)
        return replace(self.convert(records.take(rest)), left=left)

    def _suspects(self, records: Records) -> Offsets:
        """Returns the numbers of records that probably do not fit."""
        checker = self._checker(self._reader.has_commas(records.joined()))
        return np.union1d(checker.unfit(records), np.fromiter(too_deep(records), np.int64))

    def _checker(self, commas: bool) -> Checker:
        if commas not in self._checkers:
            self._checkers[commas] = Checker(self.target.schema, self.notation, commas=commas)
        return self._checkers[commas]

    def unnamed(self, raw: bytes) -> dict[str, str]:
        """See `records.Parser`."""
        text = raw.decode()
        found = dict(unnamed_in(DECODER.decode(text), kinds_of(self.target.schema), ""))
        if any(isinstance(value, dict | list) for value in found.values()):
            return dict(unnamed_parts(split_object(text), kinds_of(self.target.schema), ""))
        return {path: value if isinstance(value, str) else _CONSTANTS[value] for path, value in found.items()}

    def recover(self, records: Records) -> Recovered:
        """See `records.Parser`."""
        rescued: list[Rescued | None] = []
        split: list[dict[str, str]] = []
        for number in range(len(records.start)):
            raw = records.raw(number)
            one = None
            with suppress(ValueError):
                if (deep := is_deeper(raw, MAX_DEPTH)) <= self.target.rescue:
                    check_cells(raw, self._columns)
                    parts = self._split_object(raw.decode())
                    one = self._without_deep(parts) if deep else Rescued()
                    split.append(parts)
            rescued.append(one)
        found = [one for one in rescued if one is not None]
        if not found:
            return Recovered(table=self._no_rows, rescued=rescued)
        having = {name for parts in split for name in parts}
        columns = [
            self._fitted(
                [parts.pop(column.name, None) for parts in split],
                column.type,
                [column.name] * len(split),
                found,
            )
            if column.name in having
            else pa.nulls(len(split), column.type)
            for column in self.target.schema
        ]
        for one, parts in zip(found, split, strict=True):
            one.unnamed |= dict(unnamed_parts(parts, {}, ""))
        table = pa.Table.from_arrays(columns, schema=self.target.schema)
        return Recovered(table=table, rescued=rescued, new_fields=self._new_fields(records, rescued))

    def _without_deep(self, parts: dict[str, str]) -> Rescued:
        """Removes the fields that make a record too deep."""
        one = Rescued()
        for name in [name for name, raw in parts.items() if is_deeper(raw.encode(), MAX_DEPTH - 1)]:
            named = name in self.target.schema.names
            (one.mismatches if named else one.unnamed)[below("", name)] = text_of_json(parts.pop(name))
        return one

    def infer(self, records: Records) -> pa.Schema:
        """See `records.Parser`."""
        check_json_lines(records)
        joined = records.joined()
        check_cells(joined)
        found = read_json(joined, None)
        if found.num_rows != len(records.start):
            raise pa.ArrowInvalid("not one object in each line")
        return self._reader.noted(joined, found.schema)

    def halves(self, records: Records) -> list[Records]:
        """See `records.Parser`."""
        return [Records.of(half) for half in halves(records.raw(0))]

    def _new_fields(self, records: Records, rescued: Sequence[Rescued | None]) -> list[pa.Schema]:
        """Returns the fields that were found in recovered records and are missing from an inferred schema."""
        found: list[pa.Schema] = []
        left = MAX_HALVED
        for number, one in enumerate(rescued):
            having = one is not None and one.unnamed and self.target.inferred
            pending = [raw] if having and not is_deeper(raw := records.raw(number), MAX_DEPTH) else []
            while pending:
                part = pending.pop()
                try:
                    check_cells(part)
                    new_fields = unnamed_columns(read_json(part, None), self.target.schema)[1]
                    found += [self._reader.noted(part, new_fields)] if new_fields is not None else []
                except (pa.ArrowException, UnicodeError):
                    left -= 1
                    pending += halves(part) if left > 0 else []
        return found

    def _read_all(self, joined: bytes) -> pa.Table:
        """Reads all fields. Checks the number of values before it reads fields that the schema lacks."""
        try:
            return self._noted(self._read(joined, "error", self._occurring))
        except pa.ArrowInvalid as error:
            if "unexpected field" not in str(error):
                raise
        if self._first_have_all and (table := self._read_like_first(joined)) is not None:
            return self._noted(table)
        # Later blocks probably have rare fields, too.
        self._first_have_all = False
        check_cells(joined)
        return self._noted(self._read(joined, "infer"))

    def _read_like_first(self, joined: bytes) -> pa.Table | None:
        """Reads all fields, if the first lines have all of them, and if the types of the first lines fit all lines.
        Otherwise returns None.

        For most texts, this read replaces a slower `check_cells` of the whole text.
        """
        first = joined[: joined.find(b"\n", _FIRST_BYTES) + 1] or joined
        with suppress(pa.ArrowInvalid):
            check_cells(first)
            fields = self._read(first, "infer").schema
            if joined.count(b"{") * count_fields(fields) <= MAX_CELLS:
                return read_json(
                    joined, ParseOptions(explicit_schema=fields, unexpected_field_behavior="error")
                )
        return None

    def _noted(self, table: pa.Table) -> pa.Table:
        """Returns the table. If the schema has many columns, expects the columns of the table in
        the next block, too.
        """
        if self._columns > _MANY:
            having = {name for name in table.schema.names if table[name].null_count < table.num_rows}
            self._occurring = pa.schema(column for column in self.target.schema if column.name in having)
        return table

    def _read(self, joined: bytes, unexpected: str, schema: pa.Schema | None = None) -> pa.Table:
        schema, reader = self.target.schema if schema is None else schema, self._reader
        if not self._times_as_text:
            try:
                return reader.read(joined, schema, unexpected)
            except pa.ArrowInvalid as error:
                if "to timestamp" not in str(error):
                    raise
            table = reader.read(joined, schema, unexpected, times=True)
            # Later blocks probably have times with nanoseconds, too.
            self._times_as_text = True
            return table
        return reader.read(joined, schema, unexpected, times=True)

    def _typed(self, table: pa.Table, joined: bytes) -> pa.Table:
        read = {*table.schema.names}
        nulls = {kind: pa.nulls(table.num_rows, kind) for kind in {*self.target.schema.types}}
        columns = [
            self._reader.typed(table[column.name].combine_chunks(), column.type, below("", column.name))
            if column.name in read
            else nulls[column.type]
            for column in self.target.schema
        ]
        check_held(columns, lambda: infinities_in(joined))
        return pa.Table.from_arrays(columns, schema=self.target.schema)

    def _looked_up(self, records: Records) -> dict[str, Offsets]:
        places: dict[str, list[int]] = {}
        kinds = kinds_of(self.target.schema)
        for number in range(len(records.start)):
            try:
                split = STRICT_DECODER.decode(records.raw(number).decode())
            except (ValueError, RecursionError) as error:
                raise pa.ArrowInvalid(str(error)) from error
            for path, _ in unnamed_in(split, kinds, ""):
                places.setdefault(path, []).append(number)
        return {path: np.array(numbers, np.int64) for path, numbers in places.items()}

    def _fitted(
        self, raws: Sequence[str | None], kind: pa.DataType, paths: Sequence[str], records: Sequence[Rescued]
    ) -> pa.Array:
        """Converts JSON texts to `kind`; each text is at a path of a record.

        A text that does not fit becomes null, and counts as a mismatch of the text's record.
        """

        def single(number: int) -> pa.Array:
            records[number].mismatches[paths[number]] = text_of_json(raws[number] or "null")
            return pa.nulls(1, kind)

        at = place_of(paths[0])
        if pa.types.is_map(kind):  # pyarrow's JSON reader has no maps
            for number in [n for n, raw in enumerate(raws) if raw and raw.strip(WHITE) != "null"]:
                single(number)
            return pa.nulls(len(raws), kind)
        if pa.types.is_nested(kind):
            with suppress(pa.ArrowException, UnicodeError):
                return self._reader.values(raws, kind, at)
            fit = probably_fit(raws, kind, at, self.notation)
            if fit.any() and not fit.all():
                return self._fitted_apart(fit, raws, kind, paths, records)
            in_parts = self._items_fitted if pa.types.is_list(kind) else self._fields_fitted
            return in_parts(raws, kind, paths, records)
        written = self.notation.written(at, kind)
        if (pa.types.is_string(kind) or pa.types.is_binary(kind)) and not written:
            raws = [*map(as_string, raws)]
        # A value of another type is recognized without a parser.
        fitting = NOTED if written else FITTING.get(kind.id)
        others = [number for number, raw in enumerate(raws) if raw and fitting and not fitting.match(raw)]
        for number in others:
            single(number)
        if others:
            raws = list(raws)
            for number in others:
                raws[number] = None
        return fitted(raws, kind, partial(self._reader.values, path=at), single)

    def _fitted_apart(
        self,
        fit: npt.NDArray[np.bool_],
        raws: Sequence[str | None],
        kind: pa.DataType,
        paths: Sequence[str],
        records: Sequence[Rescued],
    ) -> pa.Array:
        """Converts together all texts that probably fit. Other texts are converted field by field, or item by item."""
        places = [np.flatnonzero(fit), np.flatnonzero(~fit)]
        found = [
            self._fitted(
                [raws[place] for place in some],
                kind,
                [paths[place] for place in some],
                [records[place] for place in some],
            )
            for some in map(np.ndarray.tolist, places)
        ]
        return pa.concat_arrays(found).take(pa.array(np.argsort(np.concatenate(places))))

    def _fields_fitted(
        self, raws: Sequence[str | None], kind: pa.DataType, paths: Sequence[str], records: Sequence[Rescued]
    ) -> pa.Array:
        split = _split(raws, split_object, paths, records)
        children = [
            self._fitted(
                [parts.pop(part.name, None) if parts else None for parts in split],
                part.type,
                [below(path, part.name) for path in paths],
                records,
            )
            for part in kind
        ]
        for parts, path, record in zip(split, paths, records, strict=True):
            record.unnamed |= dict(unnamed_parts(parts or {}, {}, path))
        missing = pa.array([parts is None for parts in split])
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)

    def _items_fitted(
        self, raws: Sequence[str | None], kind: pa.DataType, paths: Sequence[str], records: Sequence[Rescued]
    ) -> pa.Array:
        split = _split(raws, split_array, paths, records)
        items = [
            (item, f"{path}[{place}]", record)
            for parts, path, record in zip(split, paths, records, strict=True)
            for place, item in enumerate(parts or ())
        ]
        inner = pa.nulls(0, kind.value_type)
        if items:
            texts, places, of = zip(*items, strict=True)
            inner = self._fitted(texts, kind.value_type, places, of)
        offsets = pa.array(accumulate((len(parts or ()) for parts in split), initial=0), pa.int32())
        missing = pa.array([parts is None for parts in split])
        return pa.ListArray.from_arrays(offsets, inner, type=kind, mask=missing)


def _split(
    raws: Sequence[str | None],
    into_parts: Callable[[str], T],
    paths: Sequence[str],
    records: Sequence[Rescued],
) -> list[T | None]:
    """Returns the parts of each JSON object or list; None for null.

    The result for any other value is also None, and the value counts as a mismatch of its record.
    """
    found: list[T | None] = []
    for raw, path, record in zip(raws, paths, records, strict=True):
        parts = None
        if raw is not None and (text := raw.strip(WHITE)) != "null":
            try:
                parts = into_parts(text)
            except ValueError:
                record.mismatches[path] = text_of_json(text)
        found.append(parts)
    return found
