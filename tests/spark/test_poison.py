"""Real tasks read a corpus of bad objects beside good objects. A bad object must not harm another object."""

import pytest
from pyspark.sql import SparkSession

from s3notify_platform.kernel.limits import MAX_COLUMNS, MAX_REJECTS
from s3notify_platform.spark.load import load_slots
from s3notify_platform.stores.config import S3Config
from tests.support.poison import GOOD, corpus
from tests.support.spark import Lake

pytestmark = [pytest.mark.thorough, pytest.mark.spark, pytest.mark.server, pytest.mark.timeout(900)]

SCHEMA = "id bigint, name string"


@pytest.mark.parametrize(
    ("schema", "mismatches", "heavy"),
    [
        (None, "quarantine", False),
        (None, "quarantine", True),
        (None, "rescue", True),
        (SCHEMA, "quarantine", True),
        (SCHEMA, "rescue", True),
    ],
)
def test_good_objects_are_committed_beside_bad_ones(
    spark: SparkSession, config: S3Config, schema: str | None, mismatches: str, heavy: bool
) -> None:
    """Every slot must commit, every object must have a state with its outcome, and all rows of good objects must be
    present.
    """
    lake = Lake.of(spark, config, slots=4, format="auto", schema=schema, mismatches=mismatches)
    bodies = {f"{n}/{name}": body for n in range(3) for name, body in GOOD.items()}
    lake.put_many(bodies | {f"bad/{name}": body for name, body in corpus(heavy=heavy).items()})
    slots = lake.source.location.all_slots()

    first = lake.ingest()
    assert {slot: result.error for slot, result in first.slots.items() if result.error} == {}
    lake.ingest(last_attempt=slots)
    assert {result.status for result in lake.ingest().slots.values()} == {"unchanged"}

    keys = {f"raw/{key}" for key in bodies} | {f"raw/bad/{name}" for name in corpus(heavy=heavy)}
    states = {}
    for slot in slots:
        states |= lake.states(slot)
    assert states.keys() == keys
    loaded = load_slots(spark, lake.source, slots)
    assert len(loaded.columns) <= MAX_COLUMNS + 5
    rows = (
        loaded.where("_key not like '%/bad/%'").select("_key", "_offset", "id", "name").toArrow().to_pylist()
    )
    # Without a declared schema, bad objects make the column `id` a column of texts.
    kind = str if schema is None else int
    good = sorted((row["_key"], row["id"], row["name"]) for row in rows)
    assert good == [
        (f"raw/{key}", kind(n), name) for key in sorted(bodies) for n, name in ((1, "ann"), (2, "bob"))
    ]
    # Each reader of the table must be able to load the committed rows.
    loaded.where("_key rlike 'years|times|twins'").toArrow().to_pylist()
    kept = dict.fromkeys(keys, 0)
    for reject in lake.rejects():
        kept[reject["_key"]] += 1
    for key, state in states.items():
        assert kept[key] == min(state.rejects, MAX_REJECTS + 1), key
        assert not bodies.get(key.removeprefix("raw/")) or not state.rejects
