"""Spark lists large buckets in several chains of LISTs. The plan must be the same as with one chain. A table that has
lost its states must be refused.
"""

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from s3notify_platform.engine.commit.staged import Base
from s3notify_platform.engine.plan import listing_chains as listing
from s3notify_platform.engine.plan.compare import CHAINS_AT_ONCE
from s3notify_platform.engine.values.slot_plan import Plan
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.spark.spark_jobs import SparkJobs
from s3notify_platform.table.open_table import forget as accept_loss
from tests.support.spark import Lake

ODD = (
    "new\nline", "🙂", "a+b", "a b", "per%20cent", "a/x", "a-x", "a\uffee", "a\U00010000", "ключ/日本語",
    "double//slash",
)  # fmt: skip


def planned(lake: Lake) -> Plan:
    opened = lake.source.settle_commit_mode(lake.store).open_table()
    assert opened.snapshot is not None
    base = Base(table=lake.source.table(), snapshot=opened.snapshot)
    return SparkJobs(lake.spark, lake.source, width=2).plan(lake.source.location.all_slots(), base)


def work(found: Plan) -> dict[Slot, tuple[set[str], set[str]]]:
    """The work in a plan: the keys to read, and the keys that are no longer in the bucket, for each slot."""
    return {
        slot: ({split.version.key for split in p.changes.read}, set(p.changes.gone))
        for slot, p in found.slots.items()
        if p.changes
    }


@pytest.fixture(params=["ministack", pytest.param("seaweed", marks=pytest.mark.thorough)])
def large(request: pytest.FixtureRequest, spark: SparkSession) -> Lake:
    """Commits 2,000 objects with all kinds of keys, and then changes some of them."""
    server = request.getfixturevalue(request.param)
    lake = Lake.of(spark, server.config(server.make_bucket()), format="text", max_objects=10_000)
    odd = [key for key in ODD if request.param == "ministack" or "//" not in key]
    names = [*odd, *(f"{key}/{n}" for key in odd for n in range(20)), *(f"{n}" for n in range(1800))]
    lake.put_many(dict.fromkeys(names, b"x"))
    result = lake.ingest()
    assert all(slot.ok for slot in result.slots.values())
    lake.put_many({f"{key}/{n}": b"y" for key in odd for n in (3, 20)})
    for key in odd:
        lake.delete(f"{key}/7")
    return lake


@pytest.mark.thorough
def test_plan_is_the_same_with_one_chain_and_with_many(large: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a change at the cut between two chains would be missed, or an object would be read twice. The
    two servers of the test list keys in different orders. For a small bucket, the driver plans without Spark
    jobs. This plan must be the same, too.
    """
    alone = planned(large)
    monkeypatch.setattr(listing, "DRIVER_OBJECTS", 0)
    one = planned(large)
    assert one.slots == alone.slots
    assert one.requests["LIST"] == alone.requests["LIST"]
    assert (one.chains, one.overran) == (1, 0)
    monkeypatch.setattr(listing, "CHAIN_OBJECTS", 100)
    many = planned(large)
    assert 3 <= many.chains <= 2 * CHAINS_AT_ONCE
    assert many.overran == 0
    assert work(many) == work(one)
    assert many.slots == one.slots
    assert many.total("objects") == sum(1 for _ in list_all(large.store, "raw/"))
    extra = many.requests["LIST"] - one.requests["LIST"]
    assert 0 < extra <= 3 * (many.chains - 1) + many.chains, (
        "2, 1 for each cut, and a page begun for each chain"
    )
    result = large.ingest()
    assert all(slot.ok for slot in result.slots.values())
    assert work(planned(large)) == {}
    assert len(large.load()) == sum(1 for _ in list_all(large.store, "raw/"))


@pytest.mark.thorough
def test_cuts_at_deleted_keys_give_a_complete_plan(
    lake_of: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts are chosen from committed keys, and all objects with these keys may have been deleted since. If a deleted
    key were a cut, no chain would end there, and several chains would list the same objects.
    """
    monkeypatch.setattr(listing, "CHAIN_OBJECTS", 100)
    monkeypatch.setattr(listing, "DRIVER_OBJECTS", 0)
    lake = lake_of(format="text")
    lake.put_many({f"old/{n}": b"x" for n in range(400)})
    lake.ingest()
    for n in range(400):
        lake.delete(f"old/{n}")
    lake.put_many({f"new/{n}": b"x" for n in range(1100)} | {f"z{n}": b"x" for n in range(1100)})
    found = planned(lake)
    assert found.chains <= 2, "all cuts are at the first key after the deleted ones"
    assert found.total("objects") == 2200
    assert sum(len(gone) for _, gone in work(found).values()) == 400


def empty_table(lake: Lake, *folders: str) -> None:
    for folder in folders:
        for meta in list(list_all(lake.store, lake.source.location.layout.prefix + folder)):
            lake.store.delete(meta.key)


def forget(lake: Lake) -> str:
    backlog = RescanBacklog(lake.source.location.records())
    return accept_loss(
        lake.source.table().committer, lambda: backlog.add(lake.source.location.all_slots())
    ).table


@pytest.mark.parametrize("folder", ["", "_delta_log/"])
def test_lost_table_is_refused(lake: Lake, folder: str) -> None:
    """Otherwise a run would silently begin a new table. The user would not notice that the history and the rows of
    deleted objects are lost, and would not restore the table while this is still possible.
    """
    lake.put("a.jsonl", [{"id": 1}])
    lake.ingest()
    empty_table(lake, folder)
    lake.put("a.jsonl", [{"id": 2}])
    lake.put("b.jsonl", [{"id": 3}])
    before = {meta.key for meta in list_all(lake.store, "")}
    for _ in range(2):
        with pytest.raises(CorruptError, match="s3notify table forget") as caught:
            lake.ingest()
        assert f"--bucket {lake.source.input.bucket.bucket}" in str(caught.value)
    assert {meta.key for meta in list_all(lake.store, "")} == before
    assert forget(lake)
    assert all(of.ok for of in lake.ingest().slots.values())
    assert sorted(row["id"] for row in lake.load()) == [2, 3]
