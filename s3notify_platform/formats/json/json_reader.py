"""Reads JSON lines with pyarrow, and converts the values that pyarrow cannot read itself: dates, times that are too
fine for pyarrow, and values in another notation.

These values are read as strings, and then cast. A column of numbers with a decimal comma may also have JSON numbers. If
the columns of this kind have only JSON numbers in a block, pyarrow reads the numbers itself.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.json as pa_json

from s3notify_platform.formats.arrow_values import check_held, in_utc, timestamps
from s3notify_platform.formats.json.json_bounds import infinities_in
from s3notify_platform.formats.notation import Notation, has_wide_integers, number_type
from s3notify_platform.formats.rescue import below

_ESCAPED_KEY: Final = re.compile(rb'\\u[0-9a-fA-F]{4}[^"]*"[ \t\r\n]*:')
"""Matches a key with an escape, which may mean any name."""


class JsonReader:
    """Reads the columns of `schema`, and other columns."""

    def __init__(self, schema: pa.Schema, notation: Notation) -> None:
        self._notation = notation
        names = {*_names_with_comma(schema, notation)}
        keys = "|".join(sorted(re.escape(json.dumps(name, ensure_ascii=False)) for name in names))
        self._commas = (
            re.compile(rf"(?:{keys})[ \t\r\n]*:[ \t\r\n]*[^-0-9nNI \t\r\n]".encode()) if names else None
        )

    def has_commas(self, joined: bytes) -> bool:
        """True if a column of numbers with a decimal comma has, or may have, values that are not JSON numbers."""
        return bool(self._commas and (self._commas.search(joined) or _ESCAPED_KEY.search(joined)))

    def read(self, joined: bytes, schema: pa.Schema, unexpected: str, *, times: bool = False) -> pa.Table:
        """Reads lines as these columns; `typed` then converts them.

        `times`: read times as strings. `unexpected`: pyarrow's `unexpected_field_behavior`, for fields that `schema`
        lacks.
        """
        return read_json(
            joined, self._options(schema, unexpected, times=times, commas=self.has_commas(joined))
        )

    def _options(
        self, schema: pa.Schema, unexpected: str, *, times: bool, commas: bool
    ) -> pa_json.ParseOptions:
        reading = (
            column.with_type(self._as_read(column.type, below("", column.name), times=times, commas=commas))
            for column in schema
        )
        return pa_json.ParseOptions(explicit_schema=pa.schema(reading), unexpected_field_behavior=unexpected)

    def _as_read(self, kind: pa.DataType, path: str, *, times: bool, commas: bool) -> pa.DataType:
        if pa.types.is_date(kind) or (times and pa.types.is_timestamp(kind)):
            return pa.string()
        if pa.types.is_struct(kind):
            return pa.struct(
                [
                    part.with_type(
                        self._as_read(part.type, below(path, part.name), times=times, commas=commas)
                    )
                    for part in kind
                ]
            )
        if pa.types.is_list(kind):
            return pa.list_(self._as_read(kind.value_type, path, times=times, commas=commas))
        written = self._notation.written(path, kind)
        return pa.string() if written and (commas or not written.comma) else kind

    def typed(self, values: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
        """Converts to `kind` the values that `read` has returned, and drops fields that `kind` lacks."""
        written = self._notation.written(path, kind) if pa.types.is_string(values.type) else None
        if written:
            values = written.values(values, kind)
        if pa.types.is_decimal(kind):
            # Without this check, pyarrow 26 accepts 10000 for decimal(6, 2).
            values.validate(full=True)
        if values.type.equals(kind) and (not pa.types.is_nested(kind) or self._is_plain(kind)):
            return values
        if pa.types.is_string(values.type) and pa.types.is_timestamp(kind):
            return timestamps(values, kind)
        if pa.types.is_struct(kind):
            children = dict(zip((part.name for part in values.type), values.flatten(), strict=True))
            typed = [self.typed(children[part.name], part.type, below(path, part.name)) for part in kind]
            return pa.StructArray.from_arrays(typed, fields=list(kind), mask=values.is_null())
        if pa.types.is_list(kind):
            inner = self.typed(values.values, kind.value_type, path)
            return pa.ListArray.from_arrays(values.offsets, inner, type=kind, mask=values.is_null())
        return values.cast(kind)

    @staticmethod
    def _is_plain(kind: pa.DataType) -> bool:
        return "decimal" not in str(kind)

    def values(self, raws: Sequence[str | None], kind: pa.DataType, path: str) -> pa.Array:
        """Converts JSON texts to one column. The notation of the texts is the one for `path`."""
        joined = "".join(f'{{"v":{raw or "null"}}}\n' for raw in raws).encode()
        commas = any('"' in raw for raw in raws if raw)
        for times in (False, True):
            try:
                reading = pa.schema([("v", self._as_read(kind, path, times=times, commas=commas))])
                options = pa_json.ParseOptions(explicit_schema=reading, unexpected_field_behavior="error")
                values = self.typed(read_json(joined, options)["v"].combine_chunks(), kind, path)
                check_held([values], lambda: infinities_in(joined))
                return values
            except pa.ArrowInvalid as error:
                if times or "to timestamp" not in str(error):
                    raise
        raise AssertionError("unreachable")

    def noted(self, joined: bytes, found: pa.Schema) -> pa.Schema:
        """Returns the columns `found`, which pyarrow has inferred from these lines. All times get the zone UTC. Columns
        whose texts fit the notation get the notation's type, and numbers get a type that keeps their digits.
        """
        found, wide = in_utc(found), has_wide_integers(joined)
        if not (self._notation.infers or wide):
            return found
        texts = pa.schema([column.with_type(_with_texts(column.type, numbers=wide)) for column in found])
        options = pa_json.ParseOptions(explicit_schema=texts, unexpected_field_behavior="ignore")
        # pyarrow cannot read numbers as strings, so numbers are put in quotes.
        table = read_json(_TOKEN.sub(_in_quotes, joined) if wide else joined, options)
        return pa.schema(
            column.with_type(
                self._noted(table[column.name].combine_chunks(), column.type, below("", column.name))
            )
            for column in found
        )

    def _noted(self, values: pa.Array, found: pa.DataType, path: str) -> pa.DataType:
        if pa.types.is_struct(found):
            parts = zip(found, values.flatten(), strict=True)
            return pa.struct(
                [part.with_type(self._noted(v, part.type, below(path, part.name))) for part, v in parts]
            )
        if pa.types.is_list(found):
            return pa.list_(self._noted(values.flatten(), found.value_type, path))
        if not pa.types.is_string(values.type):
            return found
        if _is_number(found):
            return number_type(values, found) if pa.types.is_floating(found) else found
        return self._notation.kind_of(path, values, found)


_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[-0-9NI][^,}\] \t\r\n]*')
"""Matches a string or a number. `NaN` and infinities are numbers."""


def _in_quotes(token: re.Match[bytes]) -> bytes:
    return token[0] if token[0].startswith(b'"') else b'"%b"' % token[0]


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _with_texts(kind: pa.DataType, *, numbers: bool) -> pa.DataType:
    """Returns an inferred type, with strings in place of times and, if wanted, of numbers."""
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_with_texts(part.type, numbers=numbers)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_with_texts(kind.value_type, numbers=numbers))
    return pa.string() if pa.types.is_timestamp(kind) or (numbers and _is_number(kind)) else kind


def _names_with_comma(fields: pa.Schema | pa.StructType, notation: Notation, path: str = "") -> Iterator[str]:
    """Yields the names of the fields, at any depth, whose notation is a number with a decimal comma."""
    for part in fields if notation else ():
        at, kind = below(path, part.name), part.type
        while pa.types.is_list(kind):
            kind = kind.value_type
        if pa.types.is_struct(kind):
            yield from _names_with_comma(kind, notation, at)
        elif (written := notation.written(at, kind)) and written.comma:
            yield part.name


def read_json(joined: bytes, options: pa_json.ParseOptions | None) -> pa.Table:
    """Reads lines in one block and one thread. Without `options`, pyarrow infers the types."""
    if not joined.isascii():
        joined.decode("utf-8")  # the JSON reader does not check for UTF-8
    read = pa_json.ReadOptions(use_threads=False, block_size=max(len(joined) + 1, 1 << 20))
    return pa_json.read_json(pa.BufferReader(joined), read_options=read, parse_options=options)
