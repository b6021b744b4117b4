"""Text formats whose records name their fields, like `level=info duration=3`. A new format of this kind needs only one
method.

The types of columns are inferred as in CSV, and values are converted as in CSV: an empty text is null, except in a
string column. A field that a record lacks is null. `TextFormat` adds compression, encodings, splits and limits, and
puts malformed records into quarantine.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from s3notify_platform.formats.arrow_values import unnamed_columns
from s3notify_platform.formats.csv.csv_cut import STANDARD
from s3notify_platform.formats.csv.csv_format import types_of_texts
from s3notify_platform.formats.notation import USUAL, Notation, notation_of
from s3notify_platform.formats.records import ColumnMismatches, Converted, Parser, Records, Recovered, Target
from s3notify_platform.formats.rescue import Rescued, below
from s3notify_platform.formats.text_format import TextFormat
from s3notify_platform.formats.text_values import most_values

NULLS: Final = STANDARD.null_texts

Fields = Mapping[str, str]


class FieldLines(TextFormat):
    """A format whose records are texts with named fields. See the module.

    A subclass sets `name` and `suffixes`, and has the method `fields`. A record is a line, without its line end.
    """

    has_notation = True

    def __init__(self, notation: Notation = USUAL) -> None:
        self.notation = notation

    @abstractmethod
    def fields(self, record: str) -> Fields:
        """Returns the texts of a record's fields by name. Raises `ValueError` with the reason for a malformed record.

        A record is also malformed if a text cannot be encoded in UTF-8, like half of a surrogate pair.
        """

    def configured(self, settings: Any) -> "FieldLines":
        """See `Format`."""
        notation = notation_of(settings)
        return self if notation == self.notation else type(self)(notation)

    def parser(self, header: bytes, target: Target) -> Parser:
        """See `TextFormat`."""
        return _FieldRecords(self, target)

    def has_type(self, kind: pa.DataType) -> bool:
        """See `Format`."""
        return not pa.types.is_nested(kind)


class _FieldRecords(Parser):
    """The parser of records with fields."""

    def __init__(self, form: FieldLines, target: Target) -> None:
        self.target, self.notation, self._form = target, form.notation, form

    def convert(self, records: Records) -> Converted:
        """See `records.Parser`."""
        found = self.convert_most(records)
        for number in found.left[:1].tolist():
            self._fields(records.raw(number))  # `_fields` raises the error of this record
        if found.mismatches:
            raise pa.ArrowInvalid("a value does not fit its column")
        return found

    def convert_most(self, records: Records) -> Converted:
        """See `records.Parser`."""
        split = [self._fields_or_none(records.raw(number)) for number in range(len(records.start))]
        rows = [fields for fields in split if fields is not None]
        table, mismatches = self._columns(rows)
        names = self._unnamed(*rows)
        texts = {name: pa.array([fields.get(name) or None for fields in rows], pa.string()) for name in names}
        unnamed, found = unnamed_columns(pa.table(texts), pa.schema([])) if names else ({}, None)
        return Converted(
            table=table,
            unnamed=unnamed,
            new_fields=self._types(rows, found.names) if found is not None and self.target.inferred else None,
            mismatches=mismatches,
            left=np.array([number for number, fields in enumerate(split) if fields is None], np.int64),
        )

    def unnamed(self, raw: bytes) -> dict[str, str]:
        """See `records.Parser`."""
        return self._texts(self._fields(raw))

    def recover(self, records: Records) -> Recovered:
        """See `records.Parser`."""
        split = [self._fields_or_none(records.raw(number)) for number in range(len(records.start))]
        rows = [fields for fields in split if fields is not None]
        rescued = [None if fields is None else Rescued(unnamed=self._texts(fields)) for fields in split]
        kept = [one for one in rescued if one is not None]
        table, mismatches = self._columns(rows)
        for found in mismatches:
            for place, text in found.pairs():
                kept[place].mismatches[found.path] = text
        names = self._unnamed(*rows) if self.target.inferred else []
        return Recovered(table=table, rescued=rescued, new_fields=[self._types(rows, names)] if names else [])

    def infer(self, records: Records) -> pa.Schema:
        """See `records.Parser`."""
        rows = [self._fields(records.raw(number)) for number in range(len(records.start))]
        return self._types(rows, [*dict.fromkeys(name for fields in rows for name in fields)])

    def _fields(self, raw: bytes) -> Fields:
        try:
            found = self._form.fields(raw.decode())
            "".join(chain.from_iterable(found.items())).encode()
        except UnicodeError:
            raise
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from error
        return found

    def _fields_or_none(self, raw: bytes) -> Fields | None:
        try:
            return self._fields(raw)
        except (pa.ArrowInvalid, UnicodeError):
            return None

    def _columns(self, rows: Sequence[Fields]) -> tuple[pa.Table, list[ColumnMismatches]]:
        columns, mismatches = [], []
        for column in self.target.schema:
            texts = pa.array([fields.get(column.name) for fields in rows], pa.string())
            written = self.notation.written(below("", column.name), column.type)
            values, found = most_values(texts, column, NULLS, written)
            columns.append(values)
            mismatches += [found] if found else []
        return pa.Table.from_arrays(columns, schema=self.target.schema), mismatches

    def _types(self, rows: Sequence[Fields], names: list[str]) -> pa.Schema:
        return types_of_texts(rows, names, STANDARD.nulls, self.notation) if names else pa.schema([])

    def _unnamed(self, *rows: Fields) -> list[str]:
        """The names of the fields that have values, but no column."""
        named = {*self.target.schema.names}
        return [
            *dict.fromkeys(name for row in rows for name, text in row.items() if text and name not in named)
        ]

    def _texts(self, fields: Fields) -> dict[str, str]:
        """The texts of values that have no column, by path."""
        return {below("", name): fields[name] for name in self._unnamed(fields)}
