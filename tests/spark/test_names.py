"""Columns of every name that Spark can hold, through all that looks at columns."""

import pytest
from pyspark.sql import DataFrame

from s3notify_platform.ingest.rounds import Round, commit_round
from s3notify_platform.spark.derive import derived_tables
from s3notify_platform.table.delta.log import DeltaLog
from s3notify_platform.table.reader import read_slots
from tests.support.spark import Lake

pytestmark = [pytest.mark.spark, pytest.mark.server]

ROW = {"id": 1, "17.72": 2, "a`b": 3, "a b": 4, "🙂": 5, "a.b": {"c.d": 6}, "a": {"b": 7}, 'say "x"': 8}


def test_every_name(lake: Lake) -> None:
    """Inferred, read, transformed, derived, loaded, shown to Delta. Of twins in case, the later one is rejected."""
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
    heads = source.table().heads(source.location.all_slots())
    generations = {slot: head.generation for slot, head in heads.items() if head}
    staged = derived_tables(lake.spark, source, "same", same, generations, batch="b")
    done = Round(tables=staged)
    commit_round(done)
    assert done.bad() == []
    derived = read_slots(source.table(source.location.table_layout("same")), generations)
    assert [row for slot in derived for row in slot.table.to_pylist()] == [ROW] * 3
    assert source.view().sync(generations).rows == 3
    assert set(DeltaLog(lake.store, source.location.layout).read().generations) == set(generations)
