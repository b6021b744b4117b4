"""JSON lines to Arrow rows: each line that is not blank is one record, and has to be one object in UTF-8.

A key that is in an object twice makes its line a reject, since it is unknown which value was meant. NaN and infinities
are accepted in floating point columns, since many writers write them. Fractions of a second are cut to microseconds.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pa_json

from s3notify_platform.formats.arrow_values import (
    check_held,
    count_fields,
    timestamps,
    unnamed_columns,
)
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
    STRICT_DECODER,
    WHITE,
    ObjectSplitter,
    split_array,
    split_object,
    text_of_json,
    unnamed_parts,
)
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
from s3notify_platform.formats.text.text_format import TextFormat
from s3notify_platform.kernel.limits import MAX_DEPTH

T = TypeVar("T")

_CONSTANTS: Final = {True: "true", False: "false"}

_MANY: Final = 64
"""Columns of a schema, from which on most do not occur in most objects: the reader takes 0.1 µs for each null."""


class Jsonl(TextFormat):
    """See the module."""

    name = "jsonl"
    suffixes = frozenset({"jsonl", "ndjson", "json"})

    def parser(self, header: bytes, target: Target) -> Parser:
        """See `TextFormat`."""
        return JsonLines(target)

    def refusal(self, text: bytes) -> str | None:
        """See `TextFormat`. For one JSON document over several lines, which is no record of its own on any line."""
        if text.count(b"\n", 0, 1 << 16) < 1:
            return None
        first = text.removeprefix(BOM).lstrip().split(b"\n", 1)[0].rstrip(b" \t\r,")
        last = text.rstrip().rsplit(b"\n", 1)[-1].strip()
        opened = first[:1] in (b"[", b"{") and first[-1:] != {b"[": b"]", b"{": b"}"}[first[:1]]
        if opened and (last in (b"]", b"}") or (last.endswith(b"]") and not last.startswith(b"["))):
            return "a JSON document, where each line is to be an object: set the source's format to json"
        return None

    def has_type(self, kind: pa.DataType) -> bool:
        """See `Format`."""
        if pa.types.is_struct(kind):
            return all(self.has_type(part.type) for part in kind)
        if pa.types.is_list(kind):
            return self.has_type(kind.value_type)
        return not (pa.types.is_map(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind))

    def common_type(self, first: pa.DataType, second: pa.DataType) -> pa.DataType:
        """See `Format`. Of a text and a time a string, else the first."""
        times = {pa.string(), pa.timestamp("us", tz="UTC")}
        return pa.string() if {first, second} == times else first


class JsonLines(Parser):
    """The parser of blocks of lines."""

    def __init__(self, target: Target) -> None:
        self.target = target
        # The JSON reader has no dates: they are read as strings and cast.
        self._times_as_text = False
        self._split_object = ObjectSplitter()
        self._columns = count_fields(target.schema)
        self._no_rows = target.schema.empty_table()
        self._occurring = target.schema
        """Columns that the reader looks for: of many, those that the last block had."""
        if self._columns > _MANY:
            self._occurring = pa.schema([])

    def convert(self, records: Records) -> Converted:
        """See `records.Parser`. What the schema does not name is read along, to be counted."""
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
            # Values of a field that the schema does not name contradict each other.
            table = self._read(joined, "ignore")
            return Converted(table=self._typed(table, joined), unnamed=self._looked_up(records))
        unnamed, new_fields = unnamed_columns(table, self.target.schema)
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
        """The numbers of records that probably do not fit."""
        return np.union1d(self._checker.unfit(records), np.fromiter(too_deep(records), np.int64))

    @cached_property
    def _checker(self) -> Checker:
        return Checker(self.target.schema)

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
        """Take out of a record's fields those that make it too deep."""
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
        return found.schema

    def _new_fields(self, records: Records, rescued: Sequence[Rescued | None]) -> list[pa.Schema]:
        """The fields of recovered records that an inferred schema lacks."""
        found = []
        for number, one in enumerate(rescued):
            if one is None or not one.unnamed or not self.target.inferred:
                continue
            raw = records.raw(number)
            try:
                if is_deeper(raw, MAX_DEPTH):
                    continue
                check_cells(raw)
                new_fields = unnamed_columns(read_json(raw, None), self.target.schema)[1]
            except pa.ArrowException:
                continue
            found += [new_fields] if new_fields is not None else []
        return found

    def _read_all(self, joined: bytes) -> pa.Table:
        """Fields that the schema does not name, too, if it can be known that they are not too many."""
        try:
            return self._noted(self._read(joined, "error", self._occurring))
        except pa.ArrowInvalid as error:
            if "unexpected field" not in str(error):
                raise
        check_cells(joined)
        return self._noted(self._read(joined, "infer"))

    def _noted(self, table: pa.Table) -> pa.Table:
        """The table; the next one is expected to have the columns that it has."""
        if self._columns > _MANY:
            having = {name for name in table.schema.names if table[name].null_count < table.num_rows}
            self._occurring = pa.schema(column for column in self.target.schema if column.name in having)
        return table

    def _read(self, joined: bytes, unexpected: str, schema: pa.Schema | None = None) -> pa.Table:
        schema = self.target.schema if schema is None else schema
        if not self._times_as_text:
            try:
                return read_json(joined, _options(schema, unexpected))
            except pa.ArrowInvalid as error:
                if "to timestamp" not in str(error):
                    raise
            table = read_json(joined, _options(schema, unexpected, times=True))
            # Those with nanoseconds.
            self._times_as_text = True
            return table
        return read_json(joined, _options(schema, unexpected, times=True))

    def _typed(self, table: pa.Table, joined: bytes) -> pa.Table:
        read = {*table.schema.names}
        nulls = {kind: pa.nulls(table.num_rows, kind) for kind in {*self.target.schema.types}}
        columns = [
            _typed(table[column.name].combine_chunks(), column.type)
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
        """JSON texts as `kind`, each of a path in a record; what does not fit is null, and a mismatch of its record."""

        def single(number: int) -> pa.Array:
            records[number].mismatches[paths[number]] = text_of_json(raws[number] or "null")
            return pa.nulls(1, kind)

        if pa.types.is_nested(kind):
            with suppress(pa.ArrowException, UnicodeError):
                return _read_values(raws, kind)
            fit = probably_fit(raws, kind)
            if fit.any() and not fit.all():
                return self._fitted_apart(fit, raws, kind, paths, records)
            in_parts = self._items_fitted if pa.types.is_list(kind) else self._fields_fitted
            return in_parts(raws, kind, paths, records)
        # A value of another kind is recognised without parsing it.
        fitting = FITTING.get(kind.id)
        others = [number for number, raw in enumerate(raws) if raw and fitting and not fitting.match(raw)]
        for number in others:
            single(number)
        if others:
            raws = list(raws)
            for number in others:
                raws[number] = None
        return fitted(raws, kind, _read_values, single)

    def _fitted_apart(
        self,
        fit: npt.NDArray[np.bool_],
        raws: Sequence[str | None],
        kind: pa.DataType,
        paths: Sequence[str],
        records: Sequence[Rescued],
    ) -> pa.Array:
        """What probably fits at once, what does not in parts."""
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
    """The parts of objects or lists; None for null, and for anything else, which is a mismatch of its record."""
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


def _options(schema: pa.Schema, unexpected: str, *, times: bool = False) -> pa_json.ParseOptions:
    reading = pa.schema([column.with_type(_as_read(column.type, times=times)) for column in schema])
    return pa_json.ParseOptions(explicit_schema=reading, unexpected_field_behavior=unexpected)


def _as_read(kind: pa.DataType, *, times: bool) -> pa.DataType:
    """The JSON reader has no dates, and timestamps only up to their unit: they are read as strings and cast."""
    if pa.types.is_date(kind) or (times and pa.types.is_timestamp(kind)):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_as_read(part.type, times=times)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_as_read(kind.value_type, times=times))
    return kind


def _typed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """What was read, as `kind`; fields that it does not have are left out."""
    if pa.types.is_decimal(kind):
        # pyarrow 26 accepts 10000 for decimal(6, 2).
        values.validate(full=True)
    if values.type.equals(kind) and (not pa.types.is_nested(kind) or "decimal" not in str(kind)):
        return values
    if pa.types.is_string(values.type) and pa.types.is_timestamp(kind):
        return timestamps(values, kind)
    if pa.types.is_struct(kind):
        children = dict(zip((part.name for part in values.type), values.flatten(), strict=True))
        typed = [_typed(children[part.name], part.type) for part in kind]
        return pa.StructArray.from_arrays(typed, fields=list(kind), mask=values.is_null())
    if pa.types.is_list(kind):
        inner = _typed(values.values, kind.value_type)
        return pa.ListArray.from_arrays(values.offsets, inner, type=kind, mask=values.is_null())
    return values.cast(kind)


def _read_values(raws: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    """JSON texts as one column."""
    joined = "".join(f'{{"v":{raw or "null"}}}\n' for raw in raws).encode()
    schema = pa.schema([("v", kind)])
    for times in (False, True):
        try:
            table = read_json(joined, _options(schema, "error", times=times))
            values = _typed(table["v"].combine_chunks(), kind)
            check_held([values], lambda: infinities_in(joined))
            return values
        except pa.ArrowInvalid as error:
            if times or "to timestamp" not in str(error):
                raise
    raise AssertionError("unreachable")


def read_json(joined: bytes, options: pa_json.ParseOptions | None) -> pa.Table:
    """Lines read in one block and one thread; without `options` the reader infers the types."""
    if not joined.isascii():
        joined.decode("utf-8")  # the JSON reader would pass on what is not UTF-8
    read = pa_json.ReadOptions(use_threads=False, block_size=max(len(joined) + 1, 1 << 20))
    return pa_json.read_json(pa.BufferReader(joined), read_options=read, parse_options=options)
