"""Makes bad objects, as attackers and faulty programs write them, each with a file name."""

import pyarrow as pa

from tests.support.avro import file_of
from tests.support.poison.files import FILES, orc, parquet
from tests.support.poison.texts import TEXTS

_ROWS = pa.table({"id": [1, 2], "name": ["ann", "bob"]})

GOOD = {
    "good.parquet": parquet(_ROWS),
    "good.orc": orc(_ROWS),
    "good.jsonl": b'{"id":1,"name":"ann"}\n{"id":2,"name":"bob"}\n',
    "good.json": b'[{"id":1,"name":"ann"},\n{"id":2,"name":"bob"}]',
    "good.csv": b"id,name\n1,ann\n2,bob\n",
    "good.tsv": b"id\tname\n1\tann\n2\tbob\n",
    "good.avro": file_of(
        [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}],
        [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
    ),
}
"""Good objects with two records each, which must be ingested although bad objects are in the same bucket."""

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])

HEAVY = (
    "nulls.parquet",
    "long-value.parquet",
    "long-text.parquet",
    "line-70-mb.jsonl.gz",
    "line-900-mb.jsonl.zst",
    "field-70-mb.csv.gz",
    "new-keys-10000.jsonl",
    "bomb.jsonl.gz",
    "wide.jsonl",
    "many-empty-objects.jsonl",
    "many-empty-fields.csv",
)
"""Bad objects whose reading takes some seconds."""


def corpus(*, heavy: bool = True) -> dict[str, bytes]:
    """The bad objects by name; the suffix is the format. About 10 MB."""
    made = {**TEXTS, **FILES}
    return {name: made[name]() for name in sorted(made) if heavy or name not in HEAVY}
