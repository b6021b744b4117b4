"""A new format is one file and one entry.

Objects of the format in this file are read as a whole, in parts and compressed, and their schema is inferred.
"""

import gzip
import json
import re
from datetime import date

import pyarrow as pa
import pytest

from s3notify_platform.formats.base import Format
from s3notify_platform.formats.field_lines import FieldLines
from s3notify_platform.formats.inference import infer
from s3notify_platform.formats.object_bytes import BytesInMemory
from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import AUTO, FORMATS, check_schema, fixed_schema, format_of
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.source.format_settings import FormatSettings
from s3notify_platform.source.source import Input
from s3notify_platform.stores.config import S3Config
from tests.support.parsing import infer as infer_of
from tests.support.parsing import take
from tests.support.split_reading import cut, read, version

BODY = b"id=1 name=ada\n\nid=2\nid=x name=eve\r\nid=4 name=dan\n"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


class Pairs(FieldLines):
    """Lines of `name=value`, separated by spaces."""

    name = "pairs"
    suffixes = frozenset({"toypairs"})

    def fields(self, record: str) -> dict[str, str]:
        if "=" not in record:
            raise ValueError("no pair")
        return dict(re.findall(r"(\w+)=(\S*)", record))


class Escaped(Pairs):
    """Lines like those of `Pairs`, with JSON's escapes in the values."""

    name = "escaped"

    def fields(self, record: str) -> dict[str, str]:
        return {name: json.loads(f'"{text}"') for name, text in super().fields(record).items()}


@pytest.fixture(autouse=True)
def pairs(monkeypatch: pytest.MonkeyPatch) -> Format:
    form = Pairs()
    monkeypatch.setitem(FORMATS, form.name, form)
    return form


def test_a_format_is_found_by_suffix_and_name(pairs: Format) -> None:
    assert (
        format_of("a/b.toypairs", AUTO)
        is format_of("a/b.TOYPAIRS.gz", AUTO)
        is format_of("a", "pairs")
        is pairs
    )
    assert fixed_schema("pairs") is None
    bucket = S3Config(bucket="b")
    assert Input(bucket=bucket, format="pairs").format == "pairs"
    with pytest.raises(UsageError, match=r"use one of auto, .*, pairs"):
        Input(bucket=bucket, format="xml")


def test_a_type_that_a_format_cannot_have_is_refused() -> None:
    with pytest.raises(UsageError, match="format pairs cannot have array<"):
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
        (0, 20, "id: 'x' does not fit bigint", b"id=x name=eve")
    ]


def test_values_that_do_not_fit_are_rescued() -> None:
    rows, rejects = take([BODY], SCHEMA, "pairs", mismatches="rescue")
    assert rejects == []
    assert rows[2] == (0, 20, {"id": None, "name": "eve", "_rescued": '{"id":"x"}'})


@pytest.mark.parametrize("places", [[], [1], [13, 14, 15], [20, 21, 35], range(len(BODY))])
def test_parts_give_the_same_as_the_whole(pairs: Format, places: list[int]) -> None:
    assert pairs.may_be_cut("a.toypairs", "utf-8")
    expected, _ = read(BytesInMemory(BODY), cut(BODY, [], "pairs")[0], "pairs", SCHEMA)
    found = [read(BytesInMemory(BODY), split, "pairs", SCHEMA) for split in cut(BODY, places, "pairs")]
    assert [row for rows, _ in found for row in rows] == expected
    assert len(expected) == 4
    assert found[-1][1].reach_end


def test_compressed_objects_are_read_record_by_record(pairs: Format) -> None:
    body = gzip.compress(BODY)
    assert not pairs.may_be_cut("a.toypairs.gz", "utf-8")
    split = Split(version=version(body), start=3, end=len(body), by_record=True)
    rows, end = read(BytesInMemory(body), split, "pairs", SCHEMA)
    assert [row[1] for row in rows] == [{"id": 4, "name": "dan"}]
    assert (end.status, end.offset, end.reach_end) == ("by_record", 4, True)


def test_malformed_records_are_rejected() -> None:
    """Otherwise a bad line would spoil its neighbours. Few records and many records are converted in different ways, so
    the test tries both.
    """
    for count in (1, 100):
        body = b"id=1 name=ada\n" * count + b"junk\n\xff=1\nid=y name=eve\n"
        rows, rejects = take([body], SCHEMA, "pairs")
        assert [row[2] for row in rows] == [{"id": 1, "name": "ada"}] * count
        reasons = [reject.reason for reject in sorted(rejects, key=lambda one: one.offset)]
        assert reasons[0] == "no pair"
        assert "utf-8" in reasons[1].lower()
        assert reasons[2] == "id: 'y' does not fit bigint"


def test_a_text_that_cannot_be_encoded_rejects_only_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a format that decodes escapes would lose an object's good records because of one escape."""
    monkeypatch.setitem(FORMATS, "escaped", Escaped())
    rows, rejects = take([b"id=1 name=ada\nid=2 name=\\ud800\nid=3 name=\\u00e4\n"], SCHEMA, "escaped")
    assert [row[2] for row in rows] == [{"id": 1, "name": "ada"}, {"id": 3, "name": "ä"}]
    (reject,) = rejects
    assert (reject.offset, reject.raw) == (14, b"id=2 name=\\ud800")
    assert "surrogate" in reject.reason


def test_new_fields_of_an_inferred_schema_are_found(pairs: Format) -> None:
    (found,) = pairs.parse([("a.toypairs", b"id=1 name=ada age=7")], Target(schema=SCHEMA, inferred=True))
    assert [*found.new_fields] == [pa.schema([("age", pa.int64())])]
    (dropped,) = pairs.parse([("a.toypairs", b"id=1 name=ada age=7")], Target(schema=SCHEMA))
    assert dropped.unnamed == {0: {"age": 1}}


def test_a_notation_applies_to_fields(pairs: Format) -> None:
    form = pairs.configured(FormatSettings(date_format="dd.MM.yyyy"))
    (found,) = form.parse(
        [("a.toypairs", b"day=31.01.2026")], Target(schema=pa.schema([("day", pa.date32())]))
    )
    assert found.table.to_pylist() == [{"day": date(2026, 1, 31)}]


def test_a_schema_is_inferred() -> None:
    assert infer_of([("pairs", BODY), ("pairs", b"\xff\nage=3")]) == pa.schema(
        [("id", pa.string()), ("name", pa.string()), ("age", pa.int64())]
    )
    assert infer([]) is None
