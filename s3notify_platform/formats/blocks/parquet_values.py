"""Converts the columns of binary files to rows and rejects. Columns are found by name. Casts: see `casts`."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from s3notify_platform.formats.arrow_values import is_bytes, plain, unnamed_columns
from s3notify_platform.formats.blocks.casts import cast_most
from s3notify_platform.formats.records import Parsed, Reject, Target, no_rows, reason_of
from s3notify_platform.formats.rescue import (
    Rescued,
    Tally,
    accepting,
    as_json,
    below,
    count,
    kinds_of,
    shortened,
    text_of,
    unnamed_in,
)
from s3notify_platform.formats.sql_types import sql_type
from s3notify_platform.kernel.limits import MAX_RAW_BYTES, MAX_REJECTS


def fit_rows(table: pa.Table, target: Target) -> Parsed:
    """Casts the rows of an Arrow table to the target, as rows of object 0.

    A row with a value that does not fit, or with a field that an inferred schema lacks, is a reject. `offset` of rows
    and rejects is the row's number in the table. For the first `MAX_REJECTS` rejects, the raw bytes are the row as
    JSON. Never raises for bad data: if the table cannot be cast, it is one reject.
    """
    try:
        return _fit(table, target)
    except Exception as error:  # noqa: BLE001 - values may raise any error, even for lack of memory
        reason = f"{table.num_rows} rows: {reason_of(error) or type(error).__name__}"
        return no_rows(target, [Reject(index=0, offset=0, reason=reason, raw=b"")])


def _fit(table: pa.Table, target: Target) -> Parsed:
    schema, found = target.schema, no_rows(target, [])
    unnamed, new_fields = unnamed_columns(table, schema)
    if target.inferred and new_fields is not None:
        found.new_fields.append(new_fields)
    rescued: dict[int, Rescued] = {}
    reasons: dict[int, str] = {}
    columns = _columns(table, target, found.mismatches, rescued, reasons)
    kept = np.ones(table.num_rows, bool)
    kept[[*reasons]] = False
    for path, places in unnamed.items():
        if len(counted := places[kept[places]]):
            count(found.unnamed, 0, [path], len(counted))
        if target.inferred and not target.rescue:
            reasons = dict.fromkeys(counted.tolist(), target.unknown(path)) | reasons
    kept[[*reasons]] = False
    if target.rescue:
        _rescue_unnamed(table, unnamed, schema, rescued)
    texts = [rescued.get(row) for row in range(table.num_rows)] if rescued else None
    found.table = target.rows(pa.Table.from_arrays(columns, schema=schema), texts)
    if reasons:
        found.table = found.table.filter(pa.array(kept))
    found.offset = np.flatnonzero(kept)
    found.index = np.zeros(len(found.offset), np.int64)
    for number, row in enumerate(sorted(reasons)):
        raw = _raw(table, row) if number < MAX_REJECTS else b""
        found.rejects.append(Reject(index=0, offset=row, reason=reasons[row], raw=raw))
    return found


def _columns(
    table: pa.Table, target: Target, mismatches: Tally, rescued: dict[int, Rescued], reasons: dict[int, str]
) -> list[pa.Array]:
    """Casts all columns. Counts mismatches, and adds each to `rescued` or, without `rescue`, to the `reasons` of
    rejects.
    """
    columns = []
    for column in target.schema:
        if table.schema.get_field_index(column.name) < 0:
            columns.append(pa.nulls(table.num_rows, column.type))
            continue
        values, path = table[column.name].combine_chunks(), below("", column.name)
        fit, odd = cast_most(values, column.type)
        columns.append(fit)
        if not odd.any():
            continue
        count(mismatches, 0, [path], int(odd.sum()))
        reason = _reason(column, values.type, target)
        for row in np.flatnonzero(odd).tolist():
            text = text_of(plain(values[row]))
            if target.rescue:
                rescued.setdefault(row, Rescued()).mismatches[path] = text
            else:
                reasons.setdefault(row, reason(text))
    return columns


def _reason(column: pa.Field, found: pa.DataType, target: Target) -> Callable[[str], str]:
    """Returns a function that makes a reject's reason from the text of a value that does not fit the column.

    `found`: the type of the value.
    """
    # A string column does not accept bytes. It accepts nested values, but then a nested column would become texts.
    refused = is_bytes(found) or pa.types.is_string(column.type) or pa.types.is_nested(column.type)
    path = "" if refused or is_bytes(column.type) else below("", column.name)
    remedy = accepting(path, target.schema, target.name, pa.types.is_floating(found))
    beginning = f"column {column.name!r} does not fit {sql_type(column.type)}: "
    return lambda text: f"{beginning}{sql_type(found)} {shortened(text)!r}{remedy}"


def _raw(table: pa.Table, row: int) -> bytes:
    values = {name: plain(table[name][row]) for name in table.schema.names}
    return as_json(values).encode()[:MAX_RAW_BYTES]


def _rescue_unnamed(
    table: pa.Table, unnamed: dict[str, np.ndarray], schema: pa.Schema, rescued: dict[int, Rescued]
) -> None:
    """Adds to `rescued` all values of fields that `schema` lacks."""
    rows = np.unique(np.concatenate(list(unnamed.values()))).tolist() if unnamed else []
    kinds = kinds_of(schema)
    for column in table.schema:
        if column.name in kinds and not pa.types.is_nested(column.type):
            continue
        values = table[column.name].combine_chunks()
        for row in rows:
            found = unnamed_in({column.name: plain(values[row])}, kinds, "")
            rescued.setdefault(row, Rescued()).unnamed |= {path: text_of(value) for path, value in found}
