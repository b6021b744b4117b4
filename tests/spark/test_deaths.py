"""Tasks die, or raise an error, because of one object. The slot is committed without this object, which goes to
quarantine. The table is checked after each death.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.sql import DataFrame, SparkSession

from s3notify_platform.engine.read import splits
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.kernel.limits import MAX_TRACE_BYTES
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.spark import spark_jobs as planning
from s3notify_platform.spark.batch_schema import Transform
from s3notify_platform.spark.spark_jobs import spark_ingest
from s3notify_platform.stores.config import S3Config
from tests.support.deadly import ABORTS, KILLS, UNWRITABLE, Deadly, deadly
from tests.support.spark import Lake

pytestmark = [pytest.mark.spark, pytest.mark.server]


def deadly_lake(spark: SparkSession, config: S3Config, *, slots: int, schema: str | None) -> Lake:
    lake = Lake.of(spark, config, slots=slots, schema=schema)
    return replace(lake, source=deadly(lake.source))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("body", "schema"), [(KILLS, None), pytest.param(ABORTS, "id int", marks=pytest.mark.thorough)]
)
def test_object_that_kills_its_task_is_quarantined(
    spark: SparkSession,
    config: S3Config,
    body: bytes,
    schema: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other objects must be committed immediately. The object that kills its task must be quarantined at the last
    attempt.

    The sample from which the schema is inferred may contain the object, too.
    """
    monkeypatch.setitem(FORMATS, Deadly.name, Deadly())
    lake = deadly_lake(spark, config, slots=2, schema=schema)
    bodies = {f"{n}.jsonl": b'{"id":%d}\n' % n for n in range(5)}
    lake.put_many(bodies)
    at_fault = lake.put("deadly.jsonl", body)
    slot = lake.slot("deadly.jsonl")
    other = Slot(1 - slot)

    first = lake.ingest()
    assert first.slots[other].ok
    assert set(first.slots[slot].failed_objects) == {at_fault}
    assert sorted(row["id"] for row in lake.values()) == list(range(5))

    last = lake.ingest(last_attempt=[slot]).slots[slot]
    assert last.ok
    assert set(last.quarantined) == {at_fault}
    assert "process ended" in last.quarantined[at_fault]
    assert lake.ingest().slots[slot].status == "unchanged"
    lake.snapshot()


@pytest.mark.thorough
def test_slot_of_a_dead_task_is_found_at_once_if_the_task_reads_one_slot(
    spark: SparkSession, config: S3Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of the dead task shows its slot. So the search for the object must divide only this slot, and not the
    whole batch.
    """
    monkeypatch.setattr(planning.SparkJobs, "width", 16)
    monkeypatch.setattr(splits, "SMALL_TASK_BYTES", 1)
    monkeypatch.setitem(FORMATS, Deadly.name, Deadly())
    lake = deadly_lake(spark, config, slots=16, schema="id int")
    # Each slot has one object, except the middle slot, which has two. So each task reads one slot.
    good = {lake.slot(key): key for key in (f"{n}.jsonl" for n in range(999))}
    key = next(key for key in (f"deadly{n}.jsonl" for n in range(999)) if lake.slot(key) == 8)
    lake.put_many(dict.fromkeys(good.values(), b'{"id":9}\n'))
    deadly = lake.put(key, KILLS)
    said: list[str] = []
    found = spark_ingest(spark, lake.source, progress=said.append).run(
        lake.source.location.all_slots(), batch="batch"
    )
    assert [slot for slot, result in found.slots.items() if result.failed_objects] == [8]
    assert found.slots[Slot(8)].failed_objects.keys() == {deadly}
    jobs = [message for message in said if "slots failed, trying" in message]
    assert ["one of them alone" in message for message in jobs] == [True], said
    objects = [message for message in said if message.startswith("slot ") and "failed, trying" in message]
    assert "trying the slot without this object" in objects[-1], said
    lake.snapshot()


def fails_over_negatives(rows: DataFrame) -> DataFrame:
    """A user's transform with a defect that only some rows trigger."""

    def run(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            if any(value < 0 for value in batch["id"].to_pylist()):
                raise KeyError("no such customer")
            yield batch

    return rows.mapInArrow(run, rows.schema)


def raises_on_sight(rows: DataFrame) -> DataFrame:
    """A user's transform that reads its rows as soon as it is called, and raises an error for some rows."""
    if rows.where("id < 0").count():
        raise LookupError("no such customer")
    return rows


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (None, "pyarrow.lib.ArrowNotImplementedError: nobody foresaw it"),
        (fails_over_negatives, "KeyError: 'no such customer'"),
        pytest.param(raises_on_sight, "LookupError: no such customer", marks=pytest.mark.thorough),
    ],
)
def test_object_at_fault_is_found_behind_a_transform(
    lake_of: Callable[..., Lake], transform: Transform | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error in the transform, or in writing files, halves of the objects must be tried until the object at
    fault is found. The object's state must have the traceback.
    """
    monkeypatch.setitem(FORMATS, Deadly.name, Deadly())
    plain = lake_of(slots=2, schema="id int")
    lake = replace(plain, source=deadly(plain.source))
    lake.put_many({f"{n}.jsonl": b'{"id":%d}\n' % n for n in range(6)})
    at_fault = lake.put("at-fault.jsonl", UNWRITABLE)
    slot = lake.slot("at-fault.jsonl")
    first = lake.ingest(transform=transform)
    assert first.slots[Slot(1 - slot)].ok
    assert set(first.slots[slot].failed_objects) == {at_fault}
    assert sorted(row["id"] for row in lake.values()) == list(range(6)), "all other objects, at once"
    last = lake.ingest(transform=transform, last_attempt=[slot]).slots[slot]
    assert (last.ok, set(last.quarantined)) == (True, {at_fault})
    state = lake.states(slot)[at_fault]
    assert state.reason == why
    assert state.trace.startswith("Traceback")
    assert state.trace.endswith(why)
    assert len(state.trace) <= MAX_TRACE_BYTES
    lake.snapshot()


def fails_on_no_rows(rows: DataFrame) -> DataFrame:
    """A transform that raises an error even for an empty input, but not when Spark asks for its columns."""

    def run(batches):  # type: ignore[no-untyped-def]
        yield from batches
        raise LookupError("no table of customers")

    return rows.mapInArrow(run, rows.schema)


def test_defective_transform_fails_the_slot(lake_of: Callable[..., Lake]) -> None:
    """The slot must fail with the traceback, and no object may be quarantined."""
    lake = lake_of(slots=1, schema="id int")
    lake.put_many({f"{n}.jsonl": b'{"id":%d}\n' % n for n in range(2)})
    found = lake.ingest(transform=fails_on_no_rows, last_attempt=[Slot(0)]).slots[Slot(0)]
    assert (found.status, found.error) == ("failed", "LookupError: no table of customers")
    assert found.trace.startswith("Traceback")
    assert not lake.is_committed(Slot(0))
