"""A new format is one file and one entry.

The format in this file is read as a whole, in parts, compressed, and by inference.
"""

import gzip
import re

import pyarrow as pa
import pytest

from s3notify_platform.formats.base import Format
from s3notify_platform.formats.inference import infer
from s3notify_platform.formats.object_bytes import BytesInMemory
from s3notify_platform.formats.records import Converted, Parser, Records, Recovered, Target
from s3notify_platform.formats.registry import AUTO, FORMATS, check_schema, fixed_schema, format_of
from s3notify_platform.formats.rescue import Rescued
from s3notify_platform.formats.text.text_format import TextFormat
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.source.source import Input
from s3notify_platform.stores.config import S3Config
from tests.support.parsing import infer as infer_of
from tests.support.parsing import take
from tests.support.split_reading import cut, read, version

BODY = b"id=1 name=ada\n\nid=2\nid=x name=eve\r\nid=4 name=dan\n"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


class Pairs(TextFormat):
    """Lines of `name=value`, separated by spaces."""

    name = "pairs"
    suffixes = frozenset({"kv"})

    def parser(self, header: bytes, target: Target) -> Parser:
        return PairLines(target)

    def has_type(self, kind: pa.DataType) -> bool:
        return not pa.types.is_nested(kind)


class PairLines(Parser):
    """The parser of lines with pairs."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def _pairs(self, records: Records) -> list[dict[str, str]]:
        raws = map(records.raw, range(len(records.start)))
        return [dict(re.findall(r"(\w+)=(\S*)", raw.decode())) for raw in raws]

    def convert(self, records: Records) -> Converted:
        rows = self._pairs(records)
        columns = [
            pa.array([row.get(c.name) for row in rows], pa.string()).cast(c.type) for c in self.target.schema
        ]
        return Converted(table=pa.Table.from_arrays(columns, schema=self.target.schema))

    def unnamed(self, raw: bytes) -> dict[str, str]:
        return {}

    def recover(self, records: Records) -> Recovered:
        """Recovers one record: an id that is not a number is rescued."""
        if len(records.start) > 1:
            return Recovered(table=self.target.schema.empty_table(), rescued=[None] * len(records.start))
        (row,) = self._pairs(records)
        table = pa.Table.from_pylist([{"id": None, "name": row.get("name")}], schema=self.target.schema)
        return Recovered(table=table, rescued=[Rescued(mismatches={"id": row["id"]})])

    def infer(self, records: Records) -> pa.Schema:
        names = [name for row in self._pairs(records) for name in row]
        return pa.schema([(name, pa.string()) for name in dict.fromkeys(names)])


@pytest.fixture(autouse=True)
def pairs(monkeypatch: pytest.MonkeyPatch) -> Format:
    form = Pairs()
    monkeypatch.setitem(FORMATS, form.name, form)
    return form


def test_a_format_is_found_by_suffix_and_name(pairs: Format) -> None:
    assert format_of("a/b.kv", AUTO) is format_of("a/b.KV.gz", AUTO) is format_of("a", "pairs") is pairs
    assert fixed_schema("pairs") is None
    bucket = S3Config(bucket="b")
    assert Input(bucket=bucket, format="pairs").format == "pairs"
    with pytest.raises(
        UsageError, match="use one of auto, jsonl, json, csv, tsv, parquet, avro, orc, text, binary, pairs"
    ):
        Input(bucket=bucket, format="xml")


def test_a_type_that_a_format_cannot_have_is_refused() -> None:
    with pytest.raises(UsageError, match="format pairs cannot have list"):
        check_schema(pa.schema([("id", pa.list_(pa.int64()))]), "pairs")
    check_schema(SCHEMA, "pairs")


def test_whole_objects_are_parsed_together() -> None:
    rows, rejects = take([BODY, gzip.compress(b"id=5 name=x"), b""], SCHEMA, "pairs")
    assert rows == [
        (0, 0, {"id": 1, "name": "ada"}),
        (0, 15, {"id": 2, "name": None}),
        (0, 35, {"id": 4, "name": "dan"}),
        (1, 0, {"id": 5, "name": "x"}),
    ]
    assert [(r.index, r.offset, r.reason, r.raw) for r in rejects] == [
        (0, 20, "id: 'x' does not fit int64", b"id=x name=eve")
    ]


def test_values_that_do_not_fit_are_rescued() -> None:
    rows, rejects = take([BODY], SCHEMA, "pairs", mismatches="rescue")
    assert rejects == []
    assert rows[2] == (0, 20, {"id": None, "name": "eve", "_rescued": '{"id":"x"}'})


@pytest.mark.parametrize("places", [[], [1], [13, 14, 15], [20, 21, 35], range(len(BODY))])
def test_parts_give_the_same_as_the_whole(pairs: Format, places: list[int]) -> None:
    assert pairs.may_be_cut("a.kv", "utf-8")
    expected, _ = read(BytesInMemory(BODY), cut(BODY, [], "pairs")[0], "pairs", SCHEMA)
    found = [read(BytesInMemory(BODY), split, "pairs", SCHEMA) for split in cut(BODY, places, "pairs")]
    assert [row for rows, _ in found for row in rows] == expected
    assert len(expected) == 4
    assert found[-1][1].reach_end


def test_compressed_objects_are_read_by_record(pairs: Format) -> None:
    body = gzip.compress(BODY)
    assert not pairs.may_be_cut("a.kv.gz", "utf-8")
    split = Split(version=version(body), start=3, end=len(body), by_record=True)
    rows, end = read(BytesInMemory(body), split, "pairs", SCHEMA)
    assert [row[1] for row in rows] == [{"id": 4, "name": "dan"}]
    assert (end.status, end.offset, end.reach_end) == ("by_record", 4, True)


def test_a_schema_is_inferred() -> None:
    assert infer_of([("pairs", BODY), ("pairs", b"\xff\nage=3")]) == pa.schema(
        [("id", pa.string()), ("name", pa.string()), ("age", pa.string())]
    )
    assert infer([]) is None
