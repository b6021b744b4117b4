"""Converts CSV to Arrow rows. The first line of an object has the column names, unless the source's settings have them.
Blank lines are skipped.

A line ends with a line feed, or with a carriage return and a line feed. A lone carriage return outside of quotes makes
its record a reject. In the header, a lone carriage return makes the whole object a reject.

A quote opens a value only at the value's start. A quote that is never closed, or a closing quote with text behind it,
makes the record a reject. An object that is not empty becomes one reject if its header is missing, cannot be read, or
has no column of a given schema. Without a given schema, the object is also rejected if its header looks like values, or
like names between other delimiters. An empty field is null. String columns are an exception: there, an empty field is
the empty string. Timestamps without a zone are UTC, unless `notation` has another zone.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from s3notify_platform.formats.arrow_values import check_held, in_utc, unnamed_columns
from s3notify_platform.formats.csv.csv_cut import (
    NULLS,
    STANDARD,
    Dialect,
    check_csv_records,
    csv_cut,
    malformed,
)
from s3notify_platform.formats.notation import USUAL, Notation, Written, has_wide_integers, notation_of
from s3notify_platform.formats.records import (
    UNKNOWN_FIELD,
    Converted,
    Offsets,
    Parser,
    Records,
    Recovered,
    Target,
    not_utf8,
    reason_of,
)
from s3notify_platform.formats.rescue import EXTRA, MISSING, Rescued, as_json, below
from s3notify_platform.formats.text_format import TextFormat
from s3notify_platform.formats.text_values import infinite, most_values, values_of
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.limits import MAX_COLUMNS, MAX_CSV_HEADER_BYTES


class Csv(TextFormat):
    """See the module."""

    name = "csv"
    suffixes = frozenset({"csv"})
    delimiter: ClassVar[str] = ","

    has_notation = True

    def __init__(self, dialect: Dialect | None = None, notation: Notation = USUAL) -> None:
        self.dialect = dialect or Dialect(delimiter=self.delimiter)
        self.notation = notation
        self.quoted = bool(self.dialect.quote)
        self.header_bytes = 0 if self.dialect.names else MAX_CSV_HEADER_BYTES
        self.emptiness = "a header alone" if self.header_bytes else "only lines that are not records"

    @property
    def quote(self) -> str:
        """See `TextFormat`."""
        return self.dialect.quote or '"'

    def configured(self, settings: Any) -> "Csv":
        """See `Format`."""
        given = {name: getattr(settings, f"csv_{name}") for name in Dialect.__dataclass_fields__}
        given["delimiter"] = given["delimiter"].replace("\\t", "\t") or self.delimiter
        given["quote"] = "" if given["quote"] == "none" else given["quote"]
        given["nulls"] = given["nulls"] or NULLS
        dialect, notation = Dialect(**given), notation_of(settings)
        same = (dialect, notation) == (self.dialect, self.notation)
        return self if same else type(self)(dialect, notation)

    def may_be_cut(self, key: str, encoding: str) -> bool:
        """See `Format`.

        The result is also false if the dialect is not `simple`, because a reader then cannot find a record's start from
        the middle of an object.
        """
        return self.dialect.simple and super().may_be_cut(key, encoding)

    def header(self, head: bytes) -> slice | None:
        """See `TextFormat`. The header is the first record."""
        if not self.header_bytes:
            return slice(0, 0)
        starts, ends, _ = csv_cut(head, mark=True, final=True, limit=len(head), dialect=self.dialect)
        if head and not len(starts):
            raise CorruptError(
                f"CSV header: not found in the first {len(head)} bytes: they are blank lines, comments, or lines that "
                "csv_skip_lines skips"
            )
        if len(starts) and ends[0] == MAX_CSV_HEADER_BYTES:
            raise CorruptError(f"CSV header: longer than {MAX_CSV_HEADER_BYTES} bytes, the limit of a header")
        return slice(int(starts[0]), int(ends[0])) if len(starts) else None

    def cut(self, body: bytes, *, mark: bool, final: bool, limit: int) -> tuple[Offsets, Offsets, int]:
        """See `csv_cut`."""
        return csv_cut(body, mark=mark, final=final, limit=limit, dialect=self.dialect)

    def parser(self, header: bytes, target: Target) -> Parser:
        """See `TextFormat`."""
        schema = None if target.inferred else target.schema
        return CsvRecords(csv_names(header, schema, self.dialect), target, self.dialect, self.notation)

    def has_type(self, kind: pa.DataType) -> bool:
        """See `Format`."""
        return not pa.types.is_nested(kind)


class Tsv(Csv):
    """CSV with tabs, unless another delimiter is set."""

    name = "tsv"
    suffixes = frozenset({"tsv", "tab"})
    delimiter = "\t"


class CsvRecords(Parser):
    """The parser of blocks of CSV records. `names`: the column names of the records."""

    def __init__(
        self, names: list[str], target: Target, dialect: Dialect = STANDARD, notation: Notation = USUAL
    ) -> None:
        self.target, self.notation = target, notation
        self._dialect = dialect
        self._names = names
        named = {*target.schema.names}
        self._unnamed_columns = [name for name in names if name not in named]
        self._written = {c.name: notation.written(below("", c.name), c.type) for c in target.schema}
        # Timestamps are read as strings, because the CSV reader refuses a column in which only some timestamps have a
        # zone. Nested types are read as strings, too: pyarrow's CSV reader has no nested types.
        kinds = {
            c.name: pa.string()
            if self._written[c.name] or pa.types.is_timestamp(c.type) or pa.types.is_nested(c.type)
            else c.type
            for c in target.schema
        }
        kinds |= dict.fromkeys(self._unnamed_columns, pa.string())
        self._binary = any(pa.types.is_binary(kind) for kind in target.schema.types)
        as_texts = {c.name: c.type if pa.types.is_binary(c.type) else pa.string() for c in target.schema}
        as_texts |= dict.fromkeys(self._unnamed_columns, pa.string())
        self._as_texts = csv_options([*as_texts], pa.schema(as_texts), dialect)
        self._options = csv_options([*target.schema.names, *self._unnamed_columns], pa.schema(kinds), dialect)

    def convert(self, records: Records) -> Converted:
        """See `records.Parser`."""
        check_csv_records(records, self._dialect)
        joined, dialect = records.joined(), self._dialect
        table = read_csv(joined, self._names, self._options, dialect)
        schema = self.target.schema
        columns = [
            _typed(table[column.name].combine_chunks(), column.type, dialect, self._written[column.name])
            for column in schema
        ]
        for column, values in zip(schema, columns, strict=True):
            check_held([values], partial(self._infinities_in, joined, column.name))
        return self._converted(columns, table, joined)

    def convert_most(self, records: Records) -> Converted:
        """See `records.Parser`. All values are read as texts, and converted column by column."""
        bad = np.fromiter({*malformed(records, self._dialect), *self._not_text(records)}, np.int64)
        numbers = np.delete(np.arange(len(records.start)), bad)
        if not len(numbers):
            return Converted(table=self.target.schema.empty_table(), left=bad)
        ragged: list[int] = []
        joined = records.take(numbers).joined() if len(bad) else records.joined()
        texts = read_csv(joined, self._names, self._as_texts, self._dialect, ragged=ragged)
        if texts.num_rows + len(ragged) != len(numbers):
            raise pa.ArrowInvalid(f"{texts.num_rows} records where {len(numbers)} were expected")
        columns, mismatches = [], []
        for column in self.target.schema:
            given, written = texts[column.name].combine_chunks(), self._written[column.name]
            values, found = most_values(given, column, self._dialect.null_texts, written)
            columns.append(values)
            mismatches += [found] if found else []
        left = np.concatenate([bad, numbers[ragged]])
        return replace(self._converted(columns, texts, joined), mismatches=mismatches, left=left)

    def _not_text(self, records: Records) -> Iterator[int]:
        """Returns the numbers of records that are not UTF-8; no numbers if the schema has a binary column, which allows
        other bytes.
        """
        return iter(()) if self._binary else not_utf8(records)

    def _converted(self, columns: Sequence[pa.Array], table: pa.Table, joined: bytes) -> Converted:
        """Returns a result with these `columns`. The result also notes the values of `table` for which the schema has
        no column.
        """
        named = pa.Table.from_arrays(columns, schema=self.target.schema)
        if not self._unnamed_columns:
            return Converted(table=named)
        # An empty field counts as a missing value.
        texts = {name: _without_empty(table[name].combine_chunks()) for name in self._unnamed_columns}
        unnamed, found = unnamed_columns(pa.table(texts), pa.schema([]))
        new_fields = None
        if found is not None and self.target.inferred:
            new_fields = inferred_types(
                joined, self._names, found.names, self._dialect, self.notation, ragged=[]
            )
        return Converted(table=named, unnamed=unnamed, new_fields=new_fields)

    def _infinities_in(self, joined: bytes, name: str) -> int:
        """Returns the number of infinities in the texts of a column."""
        options = csv_options([name], pa.schema([(name, pa.string())]), self._dialect)
        texts = read_csv(joined, self._names, options, self._dialect)[name]
        return infinite(texts)

    def unnamed(self, raw: bytes) -> dict[str, str]:
        """See `records.Parser`."""
        return self._unnamed(dict(zip(self._names, _split(raw, self._dialect) or (), strict=False)))

    def recover(self, records: Records) -> Recovered:
        """See `records.Parser`."""
        rescued: list[Rescued | None] = []
        split: list[dict[str, str]] = []
        for number in range(len(records.start)):
            values = _split(records.raw(number), self._dialect)
            if values is None:
                rescued.append(None)
                continue
            found = dict(zip(self._names, values, strict=False))
            one = Rescued(unnamed=self._unnamed(found))
            if extra := values[len(self._names) :]:
                one.mismatches[EXTRA] = as_json(extra)
            if missing := self._names[len(values) :]:
                one.mismatches[MISSING] = as_json(missing)
            rescued.append(one)
            split.append(found)
        kept = [one for one in rescued if one is not None]
        columns = [
            self._fitted([values.get(c.name) for values in split], c, kept) for c in self.target.schema
        ]
        table = pa.Table.from_arrays(columns, schema=self.target.schema)
        new_fields = (
            self._new_fields(split) if self.target.inferred and any(one.unnamed for one in kept) else []
        )
        return Recovered(table=table, rescued=rescued, new_fields=new_fields)

    def infer(self, records: Records) -> pa.Schema:
        """See `records.Parser`."""
        if not len(records.start):
            # A header alone shows no types, so columns without values would become texts.
            return pa.schema([])
        check_csv_records(records, self._dialect)
        found = inferred_types(records.joined(), self._names, None, self._dialect, self.notation)
        # pyarrow infers binary for a column that is not UTF-8. Such a column becomes string.
        kinds = (pa.string() if pa.types.is_binary(column.type) else column.type for column in found)
        return pa.schema([column.with_type(kind) for column, kind in zip(found, kinds, strict=True)])

    def _new_fields(self, split: Sequence[dict[str, str]]) -> list[pa.Schema]:
        """Returns the fields that were found in recovered records and are missing from an inferred schema."""
        names = [name for name in self._unnamed_columns if any(values.get(name) for values in split)]
        return [types_of_texts(split, names, self._dialect.nulls, self.notation)]

    def _unnamed(self, values: dict[str, str]) -> dict[str, str]:
        return {below("", name): values[name] for name in self._unnamed_columns if values.get(name)}

    def _fitted(self, values: Sequence[str | None], column: pa.Field, records: Sequence[Rescued]) -> pa.Array:
        texts, written = pa.array(values, pa.string()), self._written[column.name]
        found, mismatches = most_values(texts, column, self._dialect.null_texts, written)
        if mismatches:
            for place, text in mismatches.pairs():
                records[place].mismatches[mismatches.path] = text
        return found


def _split(raw: bytes, dialect: Dialect) -> list[str] | None:
    """Returns the values of a record; None if the record has malformed quotes or is not UTF-8."""
    if dialect.record_end(raw, 0, len(raw)) < len(raw):
        return None
    try:
        return dialect.values(raw.decode())
    except (UnicodeError, csv.Error, StopIteration):
        return None


def _without_empty(values: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)


def _typed(values: pa.Array, kind: pa.DataType, dialect: Dialect, written: Written | None) -> pa.Array:
    if written or pa.types.is_nested(kind) or pa.types.is_timestamp(kind):
        return values_of(values, kind, dialect.null_texts, written)
    if pa.types.is_decimal(kind):
        # Without this check, pyarrow 26 accepts 10000 for decimal(6, 2).
        values.validate(full=True)
    return values.cast(kind)


def _quoted(value: str | None) -> str:
    return '"' + (value or "").replace('"', '""') + '"'


_VALUE: Final = re.compile(
    r"\s*([-+]?[.,]?\d[\d.,]*(e[-+]?\d+)?|\d{1,4}[-/.]\d\d?[-/.]\d{1,4}([T ].*)?)\s*", re.IGNORECASE
)
"""Matches a text that looks like a number or a date."""


def csv_names(header: bytes, schema: pa.Schema | None, dialect: Dialect = STANDARD) -> list[str]:
    """Returns the column names that the header or the dialect has.

    Raises `CorruptError` if the header cannot be read, or has no column of a given `schema`. Without a schema, raises
    `CorruptError` if the names do not look like a header.
    """
    try:
        names = dialect.values(dialect.names or header.decode("utf-8"))
    except (UnicodeError, csv.Error, StopIteration) as error:
        raise CorruptError(f"CSV header: {reason_of(error) or 'unreadable'}") from error
    if not dialect.names and (fault := dialect.fault(header)):
        raise CorruptError(f"CSV header: {fault}")
    if len(names) == 1 and (schema is None or names[0] not in schema.names):
        for other in ",;\t|":
            if other in names[0] and other != dialect.delimiter:
                raise CorruptError(
                    f"CSV header: one column {names[0]!r}: set csv_delimiter={other!r} if that is the delimiter"
                )
    if (
        schema is None
        and not dialect.names
        and (value := next(filter(_VALUE.fullmatch, names), None)) is not None
    ):
        raise CorruptError(
            f"CSV header: column {value!r} looks like a value: set csv_names to the columns' names. If objects do have "
            "a header, also set csv_skip_lines=1"
        )
    if len(names) > MAX_COLUMNS:
        raise CorruptError(f"CSV header: {len(names)} columns: a schema has at most {MAX_COLUMNS}")
    if len(set(names)) != len(names):
        raise CorruptError("CSV header: a column name occurs twice")
    if schema is not None and not set(names) & set(schema.names):
        raise CorruptError(f"CSV header: column {names[0]!r} {UNKNOWN_FIELD}")
    return names


def _noted(ragged: list[int], row: pa_csv.InvalidRow) -> str:
    ragged.append(row.number - 1)
    return "skip"


def csv_options(
    names: list[str] | None, types: pa.Schema | None, dialect: Dialect = STANDARD
) -> pa_csv.ConvertOptions:
    """Returns pyarrow's options to convert values to `types`. Without `names` and `types`, pyarrow infers the types."""
    return pa_csv.ConvertOptions(
        column_types=types,
        include_columns=names,
        include_missing_columns=names is not None,
        null_values=list(dialect.null_texts),
        strings_can_be_null=False,
    )


def types_of_texts(
    rows: Sequence[Mapping[str, str]], names: list[str], nulls: str, notation: Notation
) -> pa.Schema:
    """Infers the types of these columns from the texts in `rows`. An empty or missing text is null."""
    lines = "".join(",".join(_quoted(row.get(name)) for name in names) + "\n" for row in rows)
    return inferred_types(lines.encode(), names, names, Dialect(nulls=nulls), notation)


def inferred_types(
    joined: bytes,
    names: list[str],
    chosen: list[str] | None,
    dialect: Dialect,
    notation: Notation,
    *,
    ragged: list[int] | None = None,
) -> pa.Schema:
    """Infers the types of the `chosen` columns, or of all columns. All times get the zone UTC.

    `names`: the column names of the records. See `read_csv`.
    """
    found = in_utc(read_csv(joined, names, csv_options(chosen, None, dialect), dialect, ragged=ragged).schema)
    if not (notation.infers or has_wide_integers(joined)):
        return found
    plain = pa.schema((c.name, pa.string()) for c in found if not pa.types.is_binary(c.type))
    texts = read_csv(joined, names, csv_options(plain.names, plain, dialect), dialect, ragged=ragged)
    for name in plain.names:
        number, given = found.get_field_index(name), texts[name].combine_chunks()
        filled = given.filter(pc.invert(pc.is_in(given, pa.array(dialect.null_texts))))
        kind = notation.kind_of(below("", name), filled, found.field(number).type)
        found = found.set(number, found.field(number).with_type(kind))
    return found


def read_csv(
    joined: bytes,
    names: list[str],
    options: pa_csv.ConvertOptions,
    dialect: Dialect = STANDARD,
    *,
    ragged: list[int] | None = None,
) -> pa.Table:
    """Reads records without a header line, in one block and one thread.

    Leaves out each record that has more or fewer values than `names`, and adds the record's number to `ragged`, if
    given.
    """
    parsing = dialect.parse_options
    if ragged is not None:
        parsing.invalid_row_handler = partial(_noted, ragged)
    return pa_csv.read_csv(
        pa.BufferReader(joined),
        read_options=pa_csv.ReadOptions(
            use_threads=False, column_names=names, block_size=max(len(joined) + 1, 1 << 20)
        ),
        parse_options=parsing,
        convert_options=options,
    )
