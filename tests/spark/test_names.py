"""Columns of every name that Spark can hold, through all that looks at columns."""

import pytest
from pyspark.sql import DataFrame

from s3notify_platform.engine.loop import Round, commit_round
from s3notify_platform.spark.derive import derived_tables
from s3notify_platform.spark.load import load_slots
from tests.support.spark import Lake

pytestmark = [pytest.mark.spark, pytest.mark.server]

ROW = {"id": 1, "17.72": 2, "a`b": 3, "a b": 4, "🙂": 5, "a.b": {"c.d": 6}, "a": {"b": 7}, 'say "x"': 8}


def test_every_name(lake: Lake) -> None:
    """Inferred, read, transformed, derived, loaded. Of twins in case, the later one is rejected."""
    lake.put("a.jsonl", [ROW])
    lake.put("b.jsonl", [ROW, {"ID": 9}])
    lake.ingest(transform=lambda rows: rows.where("id > 0"))
    lake.put("c.jsonl", [ROW])
    lake.ingest()
    assert lake.values() == [ROW] * 3
    assert [row["reason"] for row in lake.rejects()] == ["field 'ID' is not in the schema"]

    def same(rows: DataFrame) -> DataFrame:
        return rows.drop("_key", "_etag", "_offset")

    source = lake.source
    slots = source.location.all_slots()
    staged = derived_tables(
        lake.spark, source, "same", same, snapshot=lake.snapshot(), slots=slots, batch="b"
    )
    done = Round(tables=staged)
    commit_round(done)
    assert done.bad() == []
    derived = load_slots(lake.spark, source, slots, asset="same").drop("_slot").toArrow()
    assert derived.to_pylist() == [ROW] * 3
    assert lake.snapshot().protocol.writer == 5, "names are mapped"
