"""Makes the files of a clustered table from sorted rows. No request."""

import io
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.delta.statistics import without_nan
from s3notify_platform.table.packs.pack_file import LEVEL, NewPack, deltas_of, leaves

GROUP_BYTES: Final = 16 << 20
"""The size of a row group, in Arrow bytes. Engines use the statistics of row groups to read a part of a file."""


def files(rows: pa.Table, clustered: Clustered) -> Iterator[NewPack]:
    """Yields files with these sorted rows. Each file except the last is full."""
    group_bytes = min(
        GROUP_BYTES, 4 * clustered.file_bytes
    )  # a row group is smaller than a file if Parquet needs less than a quarter of the Arrow bytes
    each = max(1, rows.num_rows * group_bytes // max(rows.nbytes, 1))
    groups = [rows.slice(start, each) for start in range(0, rows.num_rows, each)]
    while groups:
        sink, done = io.BytesIO(), 0
        with _writer(sink, groups[0], clustered) as writer:
            while done < len(groups) and (not done or sink.tell() < clustered.file_bytes):
                writer.write_table(groups[done], row_group_size=groups[done].num_rows)
                done += 1
        yield _pack(sink.getvalue(), pa.concat_tables(groups[:done]))
        groups = groups[done:]


def _writer(sink: io.BytesIO, first: pa.Table, clustered: Clustered) -> pq.ParquetWriter:
    deltas = deltas_of(first)
    return pq.ParquetWriter(
        sink,
        first.schema,
        compression="zstd",
        compression_level=LEVEL,
        use_dictionary=[
            path for column in first.schema if column.name not in deltas for path in leaves(column)
        ],
        column_encoding=deltas,
        sorting_columns=pq.SortingColumn.from_ordering(
            first.schema, [(name, "ascending") for name in clustered.columns], null_placement="at_end"
        ),
    )


def _pack(body: bytes, rows: pa.Table) -> NewPack:
    keys = pc.min_max(rows["_key"]).as_py()
    return NewPack(
        body=body,
        slots=dict(Counter(rows["_slot"].to_pylist())),
        keys=(keys["min"], keys["max"]),
        no_nan=without_nan(rows),
    )
