"""The columns and properties of a table of newest rows, from those of the table that it follows. Pure."""

import json
from dataclasses import replace
from typing import Final

from s3notify_platform.table.delta.actions import MetaData, Protocol
from s3notify_platform.table.latest.definition import ORIGIN, Latest
from s3notify_platform.table.pinned_schema import NO_SCHEMA, TableSchema, described, schema_of

DEFINITION: Final = "s3notify.latest"
"""Property of the table: the definition by which it was made."""

_ORIGIN_TYPES: Final = {"_source_key": "string", "_source_offset": "long"}


def latest_schema(
    source: MetaData, latest: Latest, *, created_ms: int, vectors: bool = False
) -> tuple[MetaData, Protocol]:
    """The `metaData` and `protocol` of the newest rows of a table with this `metaData`. Without an id."""
    rows = json.loads((schema_of(source) or NO_SCHEMA).rows)
    own = [
        {"name": name, "type": _ORIGIN_TYPES[name], "nullable": True, "metadata": {}} for name in ORIGIN.names
    ]
    columns = {"type": "struct", "fields": [*rows.get("fields", []), *own]}
    pinned = TableSchema(rows=json.dumps(columns))
    metadata, protocol = described(pinned, created_ms=created_ms, vectors=vectors)
    properties = {**metadata.configuration, DEFINITION: latest.dumps()}
    return replace(metadata, configuration=properties), protocol
