"""Tasks that die over an object: its slot goes on with the others, and it goes to quarantine."""

from dataclasses import asdict, replace

import pytest
from pyspark.sql import SparkSession

from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.slots import Slot
from s3notify_platform.spark import jobs as planning
from s3notify_platform.spark.jobs import spark_ingest
from s3notify_platform.stores.config import S3Config
from tests.support.deadly import ABORTS, KILLS, Deadly, DeadlyInput
from tests.support.spark import Lake

pytestmark = [pytest.mark.spark, pytest.mark.server]


def deadly_lake(spark: SparkSession, config: S3Config, *, slots: int, schema: str | None) -> Lake:
    lake = Lake.of(spark, config, slots=slots, schema=schema)
    given = asdict(lake.source.input) | {"bucket": lake.source.input.bucket, "format": "deadly"}
    return replace(lake, source=replace(lake.source, input=DeadlyInput(**given)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("body", "schema"), [(KILLS, None), pytest.param(ABORTS, "id int", marks=pytest.mark.thorough)]
)
def test_down_to_the_object(
    spark: SparkSession,
    config: S3Config,
    body: bytes,
    schema: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its neighbours are committed at once, whatever slot they are of; it goes to quarantine on the last attempt.

    Also out of a sample from which the schema is inferred.
    """
    monkeypatch.setitem(FORMATS, Deadly.name, Deadly())
    lake = deadly_lake(spark, config, slots=2, schema=schema)
    bodies = {f"{n}.jsonl": b'{"id":%d}\n' % n for n in range(5)}
    lake.put_many(bodies)
    deadly = lake.put("deadly.jsonl", body)
    slot = lake.slot("deadly.jsonl")
    other = Slot(1 - slot)

    first = lake.ingest()
    assert first.slots[other].ok
    assert set(first.slots[slot].failed_objects) == {deadly}
    assert sorted(row["id"] for row in lake.values()) == list(range(5))

    last = lake.ingest(last_attempt=[slot]).slots[slot]
    assert last.ok
    assert set(last.quarantined) == {deadly}
    assert "process ended" in last.quarantined[deadly]
    assert lake.ingest().slots[slot].status == "unchanged"


@pytest.mark.thorough
def test_straight_to_the_slot_that_a_task_read_alone(
    spark: SparkSession, config: S3Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few jobs die over an object: its task's number says which slot it was of, however many are of the batch."""
    monkeypatch.setattr(planning.SparkJobs, "width", 16)
    monkeypatch.setitem(FORMATS, Deadly.name, Deadly())
    lake = deadly_lake(spark, config, slots=16, schema="id int")
    lake.put_many({f"{n}.jsonl": b'{"id":%d}\n' % n for n in range(60)})
    deadly = lake.put("deadly.jsonl", KILLS)
    said: list[str] = []
    found = spark_ingest(spark, lake.source, progress=said.append).run(
        lake.source.location.all_slots(), batch="batch"
    )
    assert [slot for slot, result in found.slots.items() if result.failed_objects] == [
        lake.slot("deadly.jsonl")
    ]
    assert found.slots[lake.slot("deadly.jsonl")].failed_objects.keys() == {deadly}
    failed = [message for message in said if "failed, trying" in message]
    assert ["one of them alone" in message for message in failed] == [True], failed
