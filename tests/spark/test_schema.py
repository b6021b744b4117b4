"""Schemas: declared, inferred, pinned, and growing."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own idiom
from pyspark.sql.types import StructType

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_COLUMNS
from s3notify_platform.table.reread import backfill
from tests.support.spark import Lake
from tests.unit.source.test_declared_schema import BAD, GOOD

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("not a schema at all", "does not parse"),
        ("id bigint,", "does not parse"),
        ("bigint", "does not parse|give columns"),
        ("_key string", "'_key': the name is reserved"),
        ("m map<string,int>", "'m': format jsonl cannot have map"),
        ("v variant", "variant is not supported"),
    ],
)
def test_invalid_schemas_are_refused(
    spark: SparkSession, lake_of: Callable[..., Lake], schema: str, reason: str
) -> None:
    lake = lake_of()
    lake.put("a.jsonl", [{"id": 1}])
    with pytest.raises(UsageError, match=reason):
        Lake.of(spark, lake.source.input.bucket, schema=schema).ingest()
    assert not lake.is_committed(lake.slot("a.jsonl"))


@pytest.mark.parametrize("schema", [*GOOD, *BAD])
def test_spark_refuses_each_schema_that_is_refused_without_spark(spark: SparkSession, schema: str) -> None:
    """Otherwise a schema that Spark accepts could be refused. Spark alone decides on all other schemas."""

    def parses() -> bool:
        try:
            return isinstance(StructType.fromDDL(schema), StructType)
        except PySparkException:
            return False

    assert parses() == (schema in GOOD)


def test_declared_schema_is_the_schema_of_the_table(lake_of: Callable[..., Lake]) -> None:
    """Fields that are not declared must be left out, and missing fields must be null."""
    lake = lake_of(schema="id bigint, amount decimal(12,2), at timestamp, day date, tags array<string>")
    lake.put(
        "a.jsonl",
        [
            {
                "id": 1,
                "amount": 1.5,
                "at": "2024-05-06T07:08:09Z",
                "day": "2024-05-06",
                "tags": ["x"],
                "z": 0,
            },
            {"id": 2},
            {"id": 3, "amount": "much"},
        ],
    )
    lake.ingest()
    first, second = lake.values()
    assert str(first["amount"]) == "1.50"
    assert (str(first["at"]), str(first["day"]), first["tags"]) == (
        "2024-05-06 07:08:09+00:00",
        "2024-05-06",
        ["x"],
    )
    assert second == {"id": 2, "amount": None, "at": None, "day": None, "tags": None}
    assert [json.loads(r["raw"])["id"] for r in lake.rejects()] == [3]


@pytest.mark.thorough
def test_inferred_schema_is_pinned_by_the_first_batch(lake: Lake) -> None:
    """A later record that contradicts a type must be rejected, and must not change the type."""
    lake.put("a.jsonl", [{"id": 1, "v": 1}])
    lake.ingest()
    lake.put("b.jsonl", b'{"id": 2, "v": "text"}\n{"id": 3, "v": 2}\n')
    lake.ingest()
    assert lake.values() == [{"id": 1, "v": 1}, {"id": 3, "v": 2}]
    assert [r["_key"] for r in lake.rejects()] == ["raw/b.jsonl"]


def test_inferred_schema_grows_by_new_fields(lake: Lake) -> None:
    """A batch with new fields must widen the schema. Earlier rows must have null in the new columns."""
    lake.put("a.jsonl", [{"id": 1}])
    lake.ingest()
    lake.put("b.jsonl", [{"id": 2, "note": "x"}])
    lake.put("c.jsonl", [{"id": 3}])
    lake.put("d.jsonl", [{"id": 4, "deep": {"er": 1.5}}])
    result = lake.ingest()
    assert all(r.ok for r in result.slots.values())
    assert lake.rejects() == []
    assert lake.values() == [
        {"id": 1, "note": None, "deep": None},
        {"id": 2, "note": "x", "deep": None},
        {"id": 3, "note": None, "deep": None},
        {"id": 4, "note": None, "deep": {"er": 1.5}},
    ]
    assert lake.ingest().slots[lake.slot("b.jsonl")].status == "unchanged"


@pytest.mark.parametrize(("text", "number"), [("b", "c"), ("c", "b")])
def test_new_column_of_several_formats_has_one_type_in_any_order(
    lake_of: Callable[..., Lake], text: str, number: str
) -> None:
    lake = lake_of(format="auto")
    lake.put("a.jsonl", [{"id": 1}])
    lake.ingest()
    lake.put(f"{text}.csv", b"id,n\n2,x\n")
    lake.put(f"{number}.jsonl", b'{"id": 3, "n": 5, "big": 12345678901234567890123}\n')
    lake.ingest()
    assert lake.rejects() == []
    assert sorted((row["id"], row["n"]) for row in lake.values()) == [(1, None), (2, "x"), (3, "5")]
    assert [row["big"] for row in lake.values() if row["id"] == 3] == [Decimal(12345678901234567890123)]


@pytest.mark.thorough
def test_inferred_schema_grows_inside_of_columns(lake: Lake) -> None:
    """The schema must grow at any depth, even if rows of old files are rewritten together with new rows. The table
    version must report the added fields.
    """
    lake.put("a.jsonl", [{"o": {"x": 1}, "l": [{"p": {"q": 1}}]}])
    lake.put("a2.jsonl", [{"o": {"x": 0}, "l": None}])
    first = lake.ingest()
    assert first.schema_added == {}
    late = b'{"o": {"x": 2}}\n' * 3000 + b'{"o": {"x": 3, "y": "z"}}\n'
    lake.put("b.jsonl", late)
    lake.put("c.jsonl", [{"l": [{"p": {"q": 2, "r": 1.5}}, {}]}])
    # The next commit writes the file of this object's slot again, with old and new rows.
    lake.put("a.jsonl", [{"o": {"x": 1}, "l": [{"p": {"q": 1}}]}, {"o": {"y": "w"}}])
    result = lake.ingest()
    assert all(r.ok for r in result.slots.values())
    assert lake.rejects() == []
    added = {"o.y": "string", "l[].p.r": "double"}
    assert result.schema_added == added
    note = lake.history(lake.slot("b.jsonl"))[-1].body.note
    assert (note["schema_added"], note["batch"]) == (added, "batch-2")
    rows = lake.values()
    assert {"o": {"x": 3, "y": "z"}, "l": None} in rows
    assert {"o": {"x": 0, "y": None}, "l": None} in rows
    assert {"o": {"x": None, "y": "w"}, "l": None} in rows
    assert {"o": {"x": 1, "y": None}, "l": [{"p": {"q": 1, "r": None}}]} in rows
    assert {"o": None, "l": [{"p": {"q": 2, "r": 1.5}}, {"p": None}]} in rows
    assert len(rows) == 3000 + 5


@pytest.mark.thorough
@pytest.mark.parametrize("mismatches", ["quarantine", "rescue"])
def test_last_part_of_a_big_object_grows_the_schema(lake_of: Callable[..., Lake], mismatches: str) -> None:
    """A field that one task finds must be in the schema of all tasks before any part is committed."""
    lake = lake_of(slots=1, split_bytes=2000, mismatches=mismatches)
    lake.put("a.jsonl", [{"n": -1}])
    lake.ingest()
    body = (
        b"".join(b'{"n": %d}\n' % n for n in range(1000)) + b'{"n": "x"}\n{"n": 1000, "late": {"x": 1.5}}\n'
    )
    lake.put("big.jsonl", body)
    result = lake.ingest()
    (slot,) = result.slots.values()
    assert (slot.ok, slot.mismatches, result.schema_added) == (True, {"n": 1}, {"late": "struct<x double>"})
    rows = lake.values()
    assert sorted(row["n"] for row in rows if row["n"] is not None) == [*range(-1, 1001)]
    assert [row["late"] for row in rows if row["late"]] == [{"x": 1.5}]
    if mismatches == "rescue":
        assert [row["_rescued"] for row in rows if row["_rescued"]] == ['{"n":"x"}']
    else:
        assert [reject["raw"] for reject in lake.rejects()] == [b'{"n": "x"}']


def test_field_that_cannot_become_a_column_is_rejected(lake: Lake) -> None:
    """Some names are reserved, and Spark cannot distinguish some other names. A field with such a name must get no
    column, and must not delay a batch.
    """
    lake.put("a.jsonl", [{"id": 1}])
    lake.ingest()
    lake.put("b.jsonl", b'{"id": 2, "_etag": "x"}\n{"id": 3}\n{"ID": 4}\n')
    result = lake.ingest()
    assert all(r.ok for r in result.slots.values())
    assert lake.values() == [{"id": 1}, {"id": 3}]
    assert [r["reason"] for r in lake.rejects()] == [
        "field '_etag' is not in the schema",
        "field 'ID' is not in the schema",
    ]


def test_reject_names_the_limit_of_columns_and_a_remedy(lake: Lake) -> None:
    """Records within the limit must be rows. The remedy in the reject's reason must work."""
    lake.put("a.jsonl", [{f"c{n}": n for n in range(MAX_COLUMNS)}])
    lake.ingest()
    lake.put("b.jsonl", [{"c0": 7}, {"c0": 8, "further": {"x": 1}}])
    assert all(r.ok for r in lake.ingest().slots.values())
    reason = (
        f"field 'further' is not in the schema, which is full: {MAX_COLUMNS} of at most {MAX_COLUMNS} columns: "
        "declare `schema` (fields that it lacks are left out), or set mismatches: rescue"
    )
    assert [r["reason"] for r in lake.rejects()] == [reason]
    assert sorted(row["c0"] for row in lake.values()) == [0, 7]
    declared = lake.with_source(schema="c0 bigint, further struct<x: int>")
    backfill(declared.source.table(), declared.source.location.all_slots(), None)
    assert all(r.ok for r in declared.ingest().slots.values())
    assert lake.rejects() == []
    assert sorted((row["c0"], row["further"]) for row in declared.values()) == [
        (0, None),
        (7, None),
        (8, {"x": 1}),
    ]


@pytest.mark.thorough
def test_values_that_do_not_fit_are_rescued(lake_of: Callable[..., Lake]) -> None:
    """Rescued values must stay in their row beside the other values, even after a transform, and must be counted."""
    lake = lake_of(schema="id bigint, o struct<x: int>", mismatches="rescue")
    lake.put(
        "a.jsonl", b'{"id": 1, "o": {"x": 1}}\n{"id": "one", "o": {"x": 1.5, "y": [1]}, "z": null}\nno\n'
    )
    result = lake.ingest(transform=lambda rows: rows.withColumn("odd", F.col("_rescued").isNotNull()))
    (slot,) = [r for r in result.slots.values() if r.objects]
    assert (slot.rows, slot.rejects) == (2, 1)
    assert (slot.mismatches, slot.unnamed) == ({"id": 1, "o.x": 1}, {"o.y": 1})
    fits, odd = lake.values()
    assert fits == {"id": 1, "o": {"x": 1}, "_rescued": None, "odd": False}
    assert odd | {"_rescued": json.loads(odd["_rescued"])} == {
        "id": None,
        "o": {"x": None},
        "_rescued": {"id": "one", "o.x": "1.5", "o.y": "[1]"},
        "odd": True,
    }
    assert [r["raw"] for r in lake.rejects()] == [b"no"]
    plain = lake.with_source(mismatches="quarantine")
    plain.put("b.jsonl", b'{"id": 2, "z": 1}\n{"id": "two"}\n')
    slot = plain.ingest().slots[plain.slot("b.jsonl")]
    assert (slot.mismatches, slot.unnamed) == ({"id": 1}, {"z": 1})
    assert {"id": 2, "o": None, "_rescued": None, "odd": None} in plain.values()


@pytest.mark.thorough
def test_inferred_schema_grows_before_values_are_rescued(lake_of: Callable[..., Lake]) -> None:
    """New fields must be added to the inferred schema first. Then only values that contradict the schema must be
    rescued.
    """
    lake = lake_of(mismatches="rescue", format="auto")
    lake.put("a.jsonl", [{"id": 1, "n": 1}])
    lake.ingest()
    lake.put("b.jsonl", [{"id": 2, "n": "x", "_key": "k"}, {"id": 3, "new": True}])
    lake.put("c.csv", b"id,n,newer\n4,5,6.5\n7,8\n")
    sink = BytesIO()
    big = pa.array([1 << 63, 1], pa.uint64())
    pq.write_table(pa.table({"id": [9, 10], "n": big, "fresh": [None, "y"]}), sink)
    lake.put("d.parquet", sink.getvalue())
    result = lake.ingest()
    assert all(r.ok for r in result.slots.values())
    assert result.schema_added == {"new": "boolean", "newer": "double", "fresh": "string"}
    assert lake.rejects() == []
    found = {
        row["id"]: {k: v for k, v in row.items() if v is not None and k != "id"} for row in lake.values()
    }
    assert {n: json.loads(row.pop("_rescued")) for n, row in found.items() if "_rescued" in row} == {
        2: {"n": "x", "_key": "k"},
        7: {"_missing": '["newer"]'},
        9: {"n": str(1 << 63)},
    }
    assert found == {
        1: {"n": 1}, 2: {}, 3: {"new": True}, 4: {"n": 5, "newer": 6.5}, 7: {"n": 8}, 9: {},
        10: {"n": 1, "fresh": "y"},
    }  # fmt: skip


@pytest.mark.thorough
def test_declared_schema_replaces_an_inferred_one_for_later_objects(lake: Lake) -> None:
    """Later objects must be parsed with the declared schema. The table must keep its columns."""
    lake.put("a.jsonl", [{"id": 1, "old": True}])
    lake.ingest()
    given = lake.with_source(schema="id bigint, fresh double")
    given.put("b.jsonl", [{"id": 2, "old": False, "fresh": 1}])
    given.ingest()
    assert given.values() == [
        {"id": 1, "old": True, "fresh": None},
        {"id": 2, "old": None, "fresh": 1.0},
    ]
    contradicting = lake.with_source(schema="id string")
    contradicting.put("c.jsonl", [{"id": "3"}])
    with pytest.raises(UsageError, match="column 'id' is bigint in the table and now string"):
        contradicting.ingest()


@pytest.mark.thorough
def test_two_concurrent_runs_use_one_inferred_schema(lake: Lake) -> None:
    """The first run that commits must pin its schema. Both runs must parse with this schema."""
    lake.put("a.jsonl", [{"v": 1}])

    def other_run() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lake.ingest).result()
        lake.put("a.jsonl", [{"v": 1, "w": "x"}])
        lake.put("b.jsonl", [{"v": 2.5}])

    lake.ingest(when_reading=other_run)
    lake.ingest()
    assert lake.values() == [{"v": 1, "w": "x"}]
    assert [r["_key"] for r in lake.rejects()] == ["raw/b.jsonl"]
