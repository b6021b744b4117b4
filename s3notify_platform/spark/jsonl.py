"""JSON lines to Arrow rows: each line that is not blank is one record, and has to be one object in UTF-8.

Fields that the schema does not name are left out; with an inferred schema they refuse their record.
"""

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from s3notify_platform.spark.records import Convert, Offsets, Records, line_ranges


def filled_lines(body: bytes, *, mark: bool = True) -> tuple[Offsets, Offsets]:
    """`line_ranges` without blank lines."""
    starts, ends = line_ranges(body, mark=mark)
    filled = ends > starts
    return starts[filled], ends[filled]


def json_block(schema: pa.Schema, *, inferred: bool) -> Convert:
    """A converter of blocks of lines to tables in `schema`."""
    # The JSON reader has no dates: they are read as strings and cast.
    reading = pa.schema([column.with_type(_without_dates(column.type)) for column in schema])
    options = pa_json.ParseOptions(
        explicit_schema=reading, unexpected_field_behavior="error" if inferred else "ignore"
    )

    def convert(records: Records) -> pa.Table:
        check_json_lines(records)
        return read_json(records.joined(), options).select(schema.names).cast(schema)

    return convert


def read_json(joined: bytes, options: pa_json.ParseOptions | None) -> pa.Table:
    """Lines read in one block and one thread; without `options` the reader infers the types."""
    if not joined.isascii():
        joined.decode("utf-8")  # the JSON reader would pass on what is not UTF-8
    read = pa_json.ReadOptions(use_threads=False, block_size=max(len(joined) + 1, 1 << 20))
    return pa_json.read_json(pa.BufferReader(joined), read_options=read, parse_options=options)


def check_json_lines(records: Records) -> None:
    """Refuse lines that are not one object each.

    A record that does not span its line could be completed by the next one, and hide both; and a `null` in
    place of the first object ends the process inside pyarrow 26.
    """
    octets = np.frombuffer(records.body, np.uint8)
    first, last = octets[records.start], octets[records.end - 1]
    for number in np.flatnonzero((first != ord("{")) | (last != ord("}"))).tolist():
        line = records.body[records.start[number] : records.end[number]].strip(b" \t\r\n")
        if not (line.startswith(b"{") and line.endswith(b"}")):
            raise pa.ArrowInvalid("the line is not a JSON object")


def _without_dates(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_without_dates(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_dates(kind.value_type))
    return kind
