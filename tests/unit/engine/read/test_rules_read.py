"""Rules of rows, and the raw record of each row, in one process, against a real server, without Spark."""

import gzip
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s3notify_platform.engine.read.counted import Rejected
from s3notify_platform.engine.read.reader import SplitReader
from s3notify_platform.engine.read.splits import cut
from s3notify_platform.engine.values.object_read import Outcome
from s3notify_platform.engine.values.task_rows import ReadObject
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_REJECTS
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.table.reread import backfill
from tests.support.ingested import Place
from tests.support.servers import S3Server

pytestmark = pytest.mark.server

ONE_SLOT = frozenset([Slot(0)])
AB = pa.schema([("a", pa.int64()), ("b", pa.string())])

Found = tuple[list[dict[str, Any]], list[dict[str, Any]], list[Outcome]]


def read(place: Place, schema: pa.Schema = AB, *, inferred: bool = False) -> Found:
    """Returns rows, rejects and outcomes of all objects, which are cut into parts as for tasks."""
    reader = SplitReader(source=place.source, schema=schema, inferred=inferred)
    splits = [Split(version=v, start=0, end=v.size) for v in place.source.enumerator().versions(ONE_SLOT)]
    found = [each for split in splits for part in cut(split, place.source) for each in reader.read([part])]
    rows = [row for each in found if isinstance(each, pa.RecordBatch) for row in each.to_pylist()]
    rejects = [row for each in found if isinstance(each, Rejected) for row in each.batch.to_pylist()]
    return rows, rejects, [each.outcome for each in found if isinstance(each, ReadObject)]


LINES = b'{"a":1,"b":"x"}\n{"a":-1,"b":"y"}\n{"b":null}\n{"a":-2,"b":null}\n'


@pytest.mark.parametrize("split_bytes", [1 << 20, 20])
def test_a_row_that_breaks_a_rule_is_a_reject(ministack: S3Server, split_bytes: int) -> None:
    """Otherwise rows that the owner has excluded would reach the readers of the table. Without the reason,
    the offset and the raw bytes, nobody could find and correct a rejected record. Null breaks no rule.
    """
    place = Place(
        ministack, slots=1, split_bytes=split_bytes, expect_warn="a > 1",
        expect="positive: a >= 0; known: b is not null",
    )  # fmt: skip
    place.store.put("raw/a.jsonl", LINES)
    rows, rejects, outcomes = read(place)
    assert [(row["a"], row["_offset"]) for row in rows] == [(1, 0)]
    assert [(r["_offset"], r["reason"], r["raw"]) for r in rejects] == [
        (16, "breaks the rule positive: a >= 0", b'{"a":-1,"b":"y"}'),
        (33, "breaks the rule known: b is not null", b'{"b":null}'),
        (44, "breaks the rule positive: a >= 0", b'{"a":-2,"b":null}'),
    ]
    assert (sum(o.rows for o in outcomes), sum(o.rejects for o in outcomes)) == (1, 3)
    total = {name: sum(o.broken.get(name, 0) for o in outcomes) for name in ("positive", "known", "a > 1")}
    assert total == {"positive": 2, "known": 2, "a > 1": 3}
    assert (len(outcomes) > 1) == (split_bytes == 20)


def test_a_row_that_breaks_a_warning_rule_stays(ministack: S3Server) -> None:
    place = Place(ministack, slots=1, expect_warn="positive: a >= 0")
    place.put("a", 1, -1)
    place.put("b", 2)
    result = place.run("1")
    assert place.values() == {1: 1, -1: 1, 2: 1}
    assert place.rows(rejects=True) == []
    assert [slot.broken for slot in result.slots.values()] == [{"positive": 1}]


def test_new_rules_bring_rows_back_from_quarantine(ministack: S3Server) -> None:
    """Otherwise a rule that was too strict would keep good rows out of the table, even after a correction of the rule
    and a backfill.
    """
    place = Place(ministack, slots=1, expect="positive: a >= 0")
    place.put("a", 1, -1)
    result = place.run("1")
    assert place.values() == {1: 1}
    (reject,) = place.rows(rejects=True)
    assert (reject["reason"], reject["raw"]) == ("breaks the rule positive: a >= 0", b'{"a":-1}')
    assert (result.slots[Slot(0)].rejects, result.slots[Slot(0)].broken) == (1, {"positive": 1})
    assert result.slots[Slot(0)].ok
    backfill(place.source.table(), [Slot(0)], None)
    place.run("2", expect="positive: a >= -1")
    assert place.values() == {1: 1, -1: 1}
    assert place.rows(rejects=True) == []


def test_rules_may_use_other_columns(ministack: S3Server) -> None:
    """Otherwise an owner could not exclude rows by a date in the key, by the object's size, by the raw record, or by
    values that do not fit their columns.
    """
    place = Place(
        ministack, slots=1, partition_columns="dt date", metadata_columns="_size", payload_column="raw",
        mismatches="rescue",
        expect="dt: dt >= '2026-01-02'; size: _size < 20; raw: raw like '{%'; _rescued is null",
    )  # fmt: skip
    place.store.put("raw/dt=2026-01-01/a.jsonl", b'{"a":1}\n')
    place.store.put("raw/dt=2026-01-02/a.jsonl", b'{"a":2}\n {"a":3}\n')
    place.store.put("raw/dt=2026-01-03/a.jsonl", b'{"a":4,"b":"' + b"x" * 20 + b'"}\n')
    place.store.put("raw/dt=2026-01-04/a.jsonl", b'{"a":"five"}\n')
    rows, rejects, _ = read(place)
    assert [(row["a"], row["raw"]) for row in rows] == [(2, '{"a":2}')]
    assert sorted(reject["reason"].split(":")[0] for reject in rejects) == [
        "breaks the rule _rescued is null",
        "breaks the rule dt",
        "breaks the rule raw",
        "breaks the rule size",
    ]


def test_a_rejected_parquet_row_has_json_as_raw_bytes(ministack: S3Server) -> None:
    """A Parquet row has no raw record, so its payload column is null. Without JSON in the quarantine, a person could
    not see which values have broken the rule.
    """
    place = Place(ministack, slots=1, format="auto", expect="a >= 0", payload_column="raw")
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1, -1], "b": ["x", "é"]}), sink)
    place.store.put("raw/a.parquet", sink.getvalue())
    rows, rejects, _ = read(place)
    assert [(row["a"], row["raw"]) for row in rows] == [(1, None)]
    assert [(r["_offset"], r["raw"].decode()) for r in rejects] == [(1, '{"a":-1,"b":"é"}')]


@pytest.mark.parametrize(
    ("key", "body", "raws"),
    [
        ("a.jsonl", b'{"a": 1}\r\n\n {"a":2, "b":"\xc3\xa9"}', ['{"a": 1}', ' {"a":2, "b":"é"}']),
        ("a.jsonl.gz", gzip.compress(b'{"a":1}\n{"a":2}\n', mtime=0), ['{"a":1}', '{"a":2}']),
        ("a.csv", b'\xef\xbb\xbfa,b\n1,"x\n""y"\n\n2,\r\n', ['1,"x\n""y"', "2,"]),
        ("a.tsv", b"a\tb\n1\tx\n2\ty\n", ["1\tx", "2\ty"]),
        ("a.csv", b'a,b\n1,x\nnone,y\n2,"z"\n', ["1,x", '2,"z"']),
        ("a.csv", b"a,b\n" + b"1,x\nnone,y\n" * 50 + b"2,z\n", [*["1,x"] * 50, "2,z"]),
    ],
)
@pytest.mark.parametrize("split_bytes", [1 << 20, 9])
def test_the_payload_column_has_the_raw_record(
    ministack: S3Server, key: str, body: bytes, raws: list[str], split_bytes: int
) -> None:
    """A consumer may parse the raw record again, for example for fields that have no column. If empty lines or rejects
    shifted the raw records, a row would have the raw record of another row.
    """
    place = Place(ministack, slots=1, format="auto", payload_column="raw", split_bytes=split_bytes)
    place.store.put(f"raw/{key}", body)
    rows, _, _ = read(place)
    assert [row["raw"] for row in rows] == raws


def test_the_raw_record_of_a_document_keeps_its_line_ends(ministack: S3Server) -> None:
    place = Place(ministack, slots=1, format="json", json_path="items", payload_column="raw")
    place.store.put("raw/a.json", b'{"n": 1, "items": [\n {"a": 1,\n  "b": "x"}, {"a": 2},{"a":"no"}]}')
    rows, rejects, _ = read(place)
    assert [row["raw"] for row in rows] == ['{"a": 1,\n  "b": "x"}', '{"a": 2}']
    assert [reject["raw"] for reject in rejects] == [b'{"a":"no"}']


def test_bytes_of_a_raw_record_that_are_not_utf8_are_replaced(ministack: S3Server) -> None:
    """A binary column of CSV may have bytes that are not UTF-8. Without U+FFFD in place of these bytes, the payload
    column would make the whole object fail.
    """
    place = Place(ministack, slots=1, format="csv", payload_column="raw")
    place.store.put("raw/a.csv", b"a,b\n1,\xff\n")
    rows, _, _ = read(place, pa.schema([("a", pa.int64()), ("b", pa.binary())]))
    assert [(row["b"], row["raw"]) for row in rows] == [(b"\xff", "1,�")]


def test_the_number_of_rejects_by_rules_is_limited(ministack: S3Server) -> None:
    place = Place(ministack, slots=1, expect="a >= 0")
    place.put("a.jsonl", *([-1] * (MAX_REJECTS + 10)))
    rows, rejects, (outcome,) = read(place)
    assert rows == []
    assert (outcome.rejects, outcome.broken) == (MAX_REJECTS + 10, {"a >= 0": MAX_REJECTS + 10})
    assert len(rejects) == MAX_REJECTS + 1
    assert rejects[-1]["reason"] == "10 more, the first: breaks the rule a >= 0"
    assert {reject["raw"] for reject in rejects} == {b'{"a":-1}'}


def test_a_rule_with_an_unknown_column_is_refused(ministack: S3Server) -> None:
    """If a rule with a misspelt column were skipped, rows that break the rule would reach the table. The columns are
    inferred, so only a read can find the mistake.
    """
    place = Place(ministack, slots=1, expect="known: region is not null")
    place.put("a.jsonl", 1)
    said = "expect: rule 'known': there is no column 'region', only a, b; correct the rule, or declare"
    with pytest.raises(UsageError, match=said):
        read(place, inferred=True)
