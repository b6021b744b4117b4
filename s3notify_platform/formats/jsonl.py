"""JSON lines to Arrow rows: each line that is not blank is one record, and has to be one object in UTF-8.

A key that is in an object twice makes its line a reject, since it is unknown which value was meant. NaN and infinities
are accepted in floating point columns, since many writers write them. Fractions of a second are cut to microseconds.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from s3notify_platform.formats.columns import (
    check_finite,
    count_fields,
    infinities,
    timestamps,
    unnamed_columns,
)
from s3notify_platform.formats.json_bounds import (
    check_cells,
    check_json_lines,
    depth_of,
    infinities_in,
    value_end,
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
from s3notify_platform.formats.text_format import TextFormat
from s3notify_platform.limits import MAX_DEPTH

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_WHITE: Final = " \t\r\n"
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
"""A number, kept as the text in the object."""

_CONSTANTS: Final = {True: "true", False: "false"}

_MANY: Final = 64
"""Columns of a schema, from which on most do not occur in most objects: the reader takes 0.1 µs for each null."""


_INTEGER: Final = re.compile(r"[ \t\r\n]*(?:-?\d+|null)[ \t\r\n]*\Z")
_NUMBER: Final = re.compile(r"[ \t\r\n]*[-\dNIn]")
_STRING: Final = re.compile(r'[ \t\r\n]*["n]')
_FITTING: Final = {
    **dict.fromkeys((pa.int8().id, pa.int16().id, pa.int32().id, pa.int64().id), _INTEGER),
    **dict.fromkeys((pa.float32().id, pa.float64().id), _NUMBER),
    **dict.fromkeys((pa.string().id, pa.binary().id, pa.date32().id, pa.timestamp("us").id), _STRING),
}
"""Patterns of the texts of a type's values; not every match is a valid value."""


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


class JsonLines:
    """The parser of blocks of lines."""

    def __init__(self, target: Target) -> None:
        self.target = target
        # The JSON reader has no dates: they are read as strings and cast.
        self._times_as_text = False
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

    def unnamed(self, raw: bytes) -> dict[str, str]:
        """See `records.Parser`."""
        text = raw.decode()
        found = dict(unnamed_in(_DECODER.decode(text), kinds_of(self.target.schema), ""))
        if any(isinstance(value, dict | list) for value in found.values()):
            return dict(_unnamed(split_object(text), kinds_of(self.target.schema), ""))
        return {path: value if isinstance(value, str) else _CONSTANTS[value] for path, value in found.items()}

    def recover(self, records: Records) -> Recovered:
        """See `records.Parser`."""
        rescued: list[Rescued | None] = []
        split: list[dict[str, str]] = []
        for number in range(len(records.start)):
            raw = records.raw(number)
            one = None
            with suppress(ValueError):
                if (deep := depth_of(raw) > MAX_DEPTH) <= self.target.rescue:
                    check_cells(raw, self._columns)
                    parts = split_object(raw.decode())
                    one = self._without_deep(parts) if deep else Rescued()
                    split.append(parts)
            rescued.append(one)
        found = [one for one in rescued if one is not None]
        if not found:
            return Recovered(table=self._no_rows, rescued=rescued)
        having = {name for parts in split for name in parts}
        columns = [
            self._fitted([parts.pop(column.name, None) for parts in split], column.type, column.name, found)
            if column.name in having
            else pa.nulls(len(split), column.type)
            for column in self.target.schema
        ]
        for one, parts in zip(found, split, strict=True):
            one.unnamed |= dict(_unnamed(parts, {}, ""))
        table = pa.Table.from_arrays(columns, schema=self.target.schema)
        return Recovered(table=table, rescued=rescued, new_fields=self._new_fields(records, rescued))

    def _without_deep(self, parts: dict[str, str]) -> Rescued:
        """Take out of a record's fields those that make it too deep."""
        one = Rescued()
        for name in [name for name, raw in parts.items() if depth_of(raw.encode()) >= MAX_DEPTH]:
            named = name in self.target.schema.names
            (one.mismatches if named else one.unnamed)[below("", name)] = _text(parts.pop(name))
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
                if depth_of(raw) > MAX_DEPTH:
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
        check_finite(sum(map(infinities, columns)), lambda: infinities_in(joined))
        return pa.Table.from_arrays(columns, schema=self.target.schema)

    def _looked_up(self, records: Records) -> dict[str, Offsets]:
        places: dict[str, list[int]] = {}
        kinds = kinds_of(self.target.schema)
        for number in range(len(records.start)):
            try:
                split = _DECODER.decode(records.raw(number).decode())
            except (ValueError, RecursionError) as error:
                raise pa.ArrowInvalid(str(error)) from error
            for path, _ in unnamed_in(split, kinds, ""):
                places.setdefault(path, []).append(number)
        return {path: np.array(numbers, np.int64) for path, numbers in places.items()}

    def _fitted(
        self, raws: Sequence[str | None], kind: pa.DataType, path: str, records: Sequence[Rescued]
    ) -> pa.Array:
        """JSON texts as `kind`; what does not fit is null, and a mismatch of its record. Nested values part by part."""

        def single(number: int) -> pa.Array:
            raw, record = (raws[number] or "null").strip(_WHITE), records[number]
            try:
                if pa.types.is_struct(kind) and raw.startswith("{"):
                    parts = split_object(raw)
                    children = [
                        self._fitted([parts.pop(p.name, None)], p.type, below(path, p.name), [record])
                        for p in kind
                    ]
                    record.unnamed |= dict(_unnamed(parts, {}, path))
                    return pa.StructArray.from_arrays(children, fields=list(kind))
                if pa.types.is_list(kind) and raw.startswith("["):
                    items = split_array(raw)
                    children = [
                        self._fitted([item], kind.value_type, f"{path}[{place}]", [record])
                        for place, item in enumerate(items)
                    ]
                    inner = pa.concat_arrays(children) if children else pa.nulls(0, kind.value_type)
                    return pa.ListArray.from_arrays([0, len(items)], inner, type=kind)
            except ValueError:
                pass
            record.mismatches[path] = _text(raw)
            return pa.nulls(1, kind)

        # A value of another kind is recognised without parsing it.
        fitting = _FITTING.get(kind.id)
        other = [n for n, raw in enumerate(raws) if raw and fitting and not fitting.match(raw)]
        if not other or pa.types.is_nested(kind):
            return fitted(raws, kind, _read_values, single)
        raws = list(raws)
        for number in other:
            records[number].mismatches[path] = _text(raws[number] or "")
            raws[number] = None
        return fitted(raws, kind, _read_values, single)


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
            check_finite(infinities(values), lambda: infinities_in(joined))
            return values
        except pa.ArrowInvalid as error:
            if times or "to timestamp" not in str(error):
                raise
    raise AssertionError("unreachable")


def _unnamed(split: dict[str, str], kinds: dict[str, pa.DataType], path: str) -> Iterator[tuple[str, str]]:
    """What an object has that `kinds` do not name, at any depth, nulls excepted."""
    for name, raw in split.items():
        place = below(path, name)
        if name not in kinds:
            if raw.strip(_WHITE) != "null":
                yield place, _text(raw)
        elif pa.types.is_nested(kinds[name]):
            yield from _unnamed_within(raw.strip(_WHITE), kinds[name], place)


def _unnamed_within(raw: str, kind: pa.DataType, path: str) -> Iterator[tuple[str, str]]:
    if pa.types.is_struct(kind) and raw.startswith("{"):
        yield from _unnamed(split_object(raw), kinds_of(kind), path)
    elif pa.types.is_list(kind) and pa.types.is_nested(kind.value_type) and raw.startswith("["):
        for place, item in enumerate(split_array(raw)):
            yield from _unnamed_within(item.strip(_WHITE), kind.value_type, f"{path}[{place}]")


def _text(raw: str) -> str:
    raw = raw.strip(_WHITE)
    return str(json.loads(raw)) if raw.startswith('"') else raw


def split_object(text: str) -> dict[str, str]:
    """The fields of a JSON object with the texts of their values. `ValueError` if it is none, or has a key twice."""
    found: dict[str, str] = {}
    for key, value in _pieces(text, "{}"):
        name = json.loads(key)
        if name in found:
            raise ValueError(f"key {name!r} occurs twice")
        found[name] = value
    return found


def split_array(text: str) -> list[str]:
    """The texts of the items of a JSON array. `ValueError` if it is none."""
    return [value for _, value in _pieces(text, "[]")]


def _pieces(text: str, borders: str) -> Iterator[tuple[str, str]]:
    """Keys (of objects) and values, as they stand."""
    end = _past_space(text, 0)
    if text[end : end + 1] != borders[0]:
        raise ValueError("not a JSON object")
    end = _past_space(text, end + 1)
    closed = text[end : end + 1] == borders[1]
    while not closed:
        key = ""
        if borders == "{}":
            start, end = end, _value_end(text, end)
            key = text[start:end]
            end = _past_space(text, end)
            if key[:1] != '"' or text[end : end + 1] != ":":
                raise ValueError("not a JSON object")
            end = _past_space(text, end + 1)
        start, end = end, _value_end(text, end)
        yield key, text[start:end]
        end = _past_space(text, end)
        closed = text[end : end + 1] == borders[1]
        if not closed and text[end : end + 1] != ",":
            raise ValueError("not a JSON object")
        if not closed:
            end = _past_space(text, end + 1)
    if _past_space(text, end + 1) != len(text):
        raise ValueError("something follows the JSON object")


def _value_end(text: str, start: int) -> int:
    try:
        return _DECODER.raw_decode(text, start)[1]
    except RecursionError:
        return value_end(text, start)


def _past_space(text: str, start: int) -> int:
    if text[start : start + 1] not in _WHITE:
        return start
    found = _SPACE.match(text, start)
    return found.end() if found else start


def read_json(joined: bytes, options: pa_json.ParseOptions | None) -> pa.Table:
    """Lines read in one block and one thread; without `options` the reader infers the types."""
    if not joined.isascii():
        joined.decode("utf-8")  # the JSON reader would pass on what is not UTF-8
    read = pa_json.ReadOptions(use_threads=False, block_size=max(len(joined) + 1, 1 << 20))
    return pa_json.read_json(pa.BufferReader(joined), read_options=read, parse_options=options)
