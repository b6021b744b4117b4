"""Finds the files that may hold given rows. Compares the rows with the statistics of each file in the log. Pure.

The statistics of a file are bounds of the file's values. Bounds of texts may be cut, and bounds of times may be
rounded, but no value is outside the bounds. A column without statistics may have any value.

Other engines may merge files, and write other bounds: NaN is omitted, or is written as the text `NaN`, and upper bounds
of times are rounded down to the millisecond. So any file may have NaN, and upper bounds of times are raised by a
millisecond. A bound that cannot be converted is ignored.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.table.delta.actions import Add

_MS: Final = pa.scalar(1, pa.duration("ms"))

Rows = npt.NDArray[np.int64]


def files_of(packs: Iterable[Add], rows: pa.Table, columns: Sequence[str]) -> dict[str, Rows]:
    """Maps the path of each file to the rows that the file may have, as positions in `rows`. Files without such rows
    are left out.

    Only the values in `columns` are compared.
    """
    found = {}
    for pack in packs:
        held = np.flatnonzero(_may_hold(pack, rows, columns))
        if len(held):
            found[pack.path] = held
    return found


def _may_hold(pack: Add, rows: pa.Table, columns: Sequence[str]) -> npt.NDArray[np.bool_]:
    stats: Mapping[str, Any] = json.loads(pack.stats or "{}")
    least, most, nulls = (stats.get(name) or {} for name in ("minValues", "maxValues", "nullCount"))
    mask = np.ones(rows.num_rows, dtype=bool)
    for name in columns:
        column = rows[name].combine_chunks()
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        within = np.ones(rows.num_rows, dtype=bool)
        low, high = (_value(each.get(name), column.type) for each in (least, most))
        if high is not None and pa.types.is_timestamp(column.type):
            high = pc.add(high, _MS)
        for bound, compare in ((low, pc.greater_equal), (high, pc.less_equal)):
            if bound is not None:
                held = compare(column, bound)
                within &= pc.fill_null(held, False).to_numpy(zero_copy_only=False)
        if pa.types.is_floating(column.type):
            within |= pc.fill_null(pc.is_nan(column), False).to_numpy(zero_copy_only=False)
        if name in nulls and nulls[name] == stats.get("numRecords"):
            within[:] = False  # all values of the column are null
        mask &= np.where(is_null, nulls.get(name) != 0, within)
    return mask


def _value(bound: Any, kind: pa.DataType) -> pa.Scalar | None:
    """Converts a bound from the format of the statistics to the type of its column. Returns None if the bound is
    missing or unusable.
    """
    if bound is None:
        return None
    try:
        if pa.types.is_boolean(kind) or pa.types.is_floating(kind) or pa.types.is_integer(kind):
            return pa.scalar(bound, kind)
        return pa.array([str(bound)]).cast(kind)[0]
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return None
