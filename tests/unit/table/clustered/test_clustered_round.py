"""Rows that were withdrawn from the source are found in the packs of a clustered table."""

import pyarrow as pa

from s3notify_platform.table.clustered.clustered_round import _gone

LEFT = pa.table({"_key": ["a", "b", "a"], "_offset": pa.array([0, 7, 9], pa.int64())})


def test_files_of_other_engines_may_have_other_types_of_texts_and_no_nulls():
    """Otherwise each update after a merge by such an engine would fail."""
    keys = pa.array(["a", "a", "b", "c", "a"], pa.large_string())
    schema = pa.schema(
        [pa.field("_key", pa.large_string(), nullable=False), pa.field("_offset", pa.int64(), nullable=False)]
    )
    rows = pa.table({"_key": keys, "_offset": pa.array([0, 7, 7, 0, 9], pa.int64())}).cast(schema)
    assert _gone(rows, LEFT).to_pylist() == [True, False, True, False, True]
