"""Searches all objects of a store for marks from an object's contents, in any encoding."""

import io
import json

import pyarrow.parquet as pq

from s3notify_platform.kernel.ports import StoredObject, list_all


def text_of(body: bytes) -> str:
    """All text of an object. For Parquet: each value, and the statistics and metadata in the footer."""
    raw = body.decode("utf-8", "backslashreplace")
    if body[:4] != b"PAR1":
        return raw
    file = pq.ParquetFile(io.BytesIO(body))
    stats = [
        str(column.statistics)
        for group in range(file.metadata.num_row_groups)
        for at in range(file.metadata.num_columns)
        if (column := file.metadata.row_group(group).column(at)).statistics
    ]
    return f"{raw} {file.read().to_pydict()} {stats} {file.metadata.metadata}"


def holding(store, *marks) -> set[str]:
    """The keys of objects that contain one of these marks in their key or body."""
    found = set()
    texts = {str(mark) for mark in marks} | {json.dumps(str(mark))[1:-1] for mark in marks}
    for meta in list(list_all(store, "")):
        stored = store.get(meta.key)
        assert isinstance(stored, StoredObject)
        text = f"{meta.key} {text_of(stored.body)}"
        if any(mark in text for mark in texts):
            found.add(meta.key)
    return found
