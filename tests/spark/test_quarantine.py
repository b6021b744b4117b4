"""Objects that cannot be read, and records that cannot be parsed, from the bucket to quarantine and back."""

import gzip
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from pyspark.sql import DataFrame, SparkSession

from s3notify_platform.engine.values.results import BatchResult
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.spark import following
from s3notify_platform.spark.continuous import ContinuousIngest
from s3notify_platform.spark.load import load_slots
from s3notify_platform.table.quarantined import Choice, Retried, retry
from tests.contracts.fault_proxy import FaultProxy
from tests.support.servers import S3Server
from tests.support.spark import Lake

pytestmark = [pytest.mark.spark, pytest.mark.server]

SLOT = Slot(0)


@pytest.fixture
def proxy(ministack: S3Server) -> Iterator[FaultProxy]:
    """A proxy in front of the source's bucket."""
    with FaultProxy(ministack.endpoint_url) as proxy:
        yield proxy


@pytest.fixture(params=[{"schema": "id int"}], ids=[""])
def lake(
    spark: SparkSession, ministack: S3Server, proxy: FaultProxy, request: pytest.FixtureRequest
) -> Iterator[Lake]:
    """A lake with one slot. The parameter has more settings."""
    config = ministack.config(ministack.make_bucket())
    reached = replace(config, endpoint_url=proxy.url)
    lake = Lake.of(spark, reached, platform=config, slots=1, **request.param)
    yield lake
    lake.store.close()


def send_again(lake: Lake) -> Retried:
    source = lake.source
    signals = Publisher(
        source.table().reader.store,
        prefix=source.location.keyspace_prefix,
        slots=source.location.slots,
        queued=True,
    )
    return retry(source.table(), source.location.all_slots(), signals, Choice())


def clean(rows: DataFrame) -> DataFrame:
    return rows.where("amount > 0")


def keys(lake: Lake) -> set[str]:
    return {row["_key"] for row in lake.load()}


def read(proxy: FaultProxy, result: BatchResult) -> int:
    """The number of source objects that a run requested."""
    found = sum(request.method == "GET" and "/raw/" in request.path for request in proxy.answered)
    proxy.answered.clear()
    assert result.slots[SLOT].ok
    return found


def test_forbidden_object_is_quarantined_until_it_is_written_again(lake: Lake, proxy: FaultProxy) -> None:
    """The object must be quarantined at the last attempt, and not read again. Other objects must be committed.

    A new version of the object must be committed.
    """
    for name in "abc":
        lake.put(f"{name}.jsonl", [{"id": 1}, {"id": 2}])
    lake.ingest()
    lake.put("a.jsonl", [{"id": 10}])
    lake.put("b.jsonl", [{"id": 20}])
    proxy.forbidden.add("/raw/a.jsonl")

    failed = lake.ingest().slots[SLOT]
    assert not failed.ok
    assert set(failed.failed_objects) == {"raw/a.jsonl"}
    assert keys(lake) == {"raw/a.jsonl", "raw/b.jsonl", "raw/c.jsonl"}, "its old rows"
    result = lake.ingest(last_attempt=[SLOT]).slots[SLOT]
    assert result.ok
    assert set(result.quarantined) == {"raw/a.jsonl"}
    assert "AccessDenied" in result.quarantined["raw/a.jsonl"]
    assert (result.live_failing, result.objects) == (1, 0)
    assert keys(lake) == {"raw/b.jsonl", "raw/c.jsonl"}

    proxy.answered.clear()
    result = lake.ingest()
    assert (result.slots[SLOT].status, read(proxy, result), result.unannounced) == ("unchanged", 0, 0)
    lake.put("b.jsonl", [{"id": 21}])
    assert read(proxy, lake.ingest()) == 1
    assert [state.key for state in lake.states(SLOT).values() if state.failing] == ["raw/a.jsonl"]

    proxy.forbidden.clear()
    assert send_again(lake).failing == 1
    result = lake.ingest()
    assert (read(proxy, result), result.unannounced) == (1, 0)
    lake.check()
    assert lake.snapshot().manifest.slot(SLOT).failing == 0
    assert lake.ingest().slots[SLOT].status == "unchanged"


@pytest.mark.thorough
def test_quarantined_object_is_retried_without_an_entry(lake: Lake, proxy: FaultProxy) -> None:
    """After a retry request, the next batch of the slot must read the object, even without an entry and without a
    listing.
    """
    lake.source.location.queue().topics.create("orders", TopicSettings(slots=1, shards=1))
    lake.put("a.jsonl", [{"id": 1}])
    proxy.forbidden.add("/raw/a.jsonl")
    lake.ingest(last_attempt=[SLOT])
    proxy.forbidden.clear()
    send_again(lake)
    result = lake.ingest(listing=False)
    assert read(proxy, result) == 1
    assert result.unannounced == 0
    lake.check()


@pytest.mark.thorough
def test_retry_removes_a_deleted_object_from_quarantine(lake: Lake, proxy: FaultProxy) -> None:
    """The retry does not find the object. So the object must leave quarantine, because otherwise its failure would be
    reported forever.
    """
    lake.source.location.queue().topics.create("orders", TopicSettings(slots=1, shards=1))
    lake.put("a.jsonl", [{"id": 1}])
    proxy.forbidden.add("/raw/a.jsonl")
    lake.ingest(last_attempt=[SLOT])
    proxy.forbidden.clear()
    lake.delete("a.jsonl")
    send_again(lake)
    result = lake.ingest(listing=False).slots[SLOT]
    assert (result.ok, result.gone) == (True, 1)
    facts = lake.snapshot().manifest.slot(SLOT)
    assert (facts.failing, facts.pending, facts.objects) == (0, 0, 0)


@pytest.mark.thorough
def test_forbidden_object_is_quarantined_if_the_source_has_a_transform(lake: Lake, proxy: FaultProxy) -> None:
    """With a transform, rows pass through Spark's shuffle. In this case, too, the forbidden object must be
    quarantined.
    """
    lake = lake.with_source(schema="id bigint, amount double")
    for name in "ab":
        lake.put(f"{name}.jsonl", [{"id": 1, "amount": 2.5}])
    proxy.forbidden.add("/raw/a.jsonl")
    result = lake.ingest(transform=clean, last_attempt=[SLOT])
    assert set(result.slots[SLOT].quarantined) == {"raw/a.jsonl"}
    assert keys(lake) == {"raw/b.jsonl"}
    proxy.forbidden.clear()
    send_again(lake)
    assert lake.ingest(transform=clean).slots[SLOT].ok
    assert keys(lake) == {"raw/a.jsonl", "raw/b.jsonl"}
    assert lake.snapshot().manifest.slot(SLOT).failing == 0


def test_rejects_become_rows_after_a_fix_of_the_source(lake_of: Callable[..., Lake]) -> None:
    """The objects are unchanged. The commit that adds the rows of the former rejects must remove these rejects."""
    lake = lake_of(slots=1, format="auto")
    lake.put("a.log1", [{"id": 1}])
    lake.put("b.jsonl", [{"id": 2}])
    lake.ingest()
    assert [row["_key"] for row in lake.rejects()] == ["raw/a.log1"]
    fixed = lake.with_source(format="jsonl")
    assert fixed.ingest().slots[SLOT].status == "unchanged"
    done = send_again(fixed)
    assert (done.rejected, done.records) == (1, 1)
    result = fixed.ingest().slots[SLOT]
    assert (result.objects, result.generation) == (1, 3)
    assert fixed.rejects() == []
    fixed.check()


@pytest.mark.thorough
def test_continuous_ingest_quarantines_an_object(lake: Lake, proxy: FaultProxy) -> None:
    """The continuous ingest counts the attempts itself. After the last attempt, it must not request the slot again."""
    for name in "ab":
        lake.put(f"{name}.jsonl", [{"id": 1}])
    proxy.forbidden.add("/raw/a.jsonl")
    later: list[float] = []
    continuous = ContinuousIngest(
        spark=lake.spark,
        source=lake.source,
        settings=BatchSettings(max_attempts=2),
        later=lambda seconds, _: later.append(seconds),
    )
    assert not continuous.take({SLOT: None}, batch="b1").slots[SLOT].ok
    assert len(later) == 1
    result = continuous.take({SLOT: None}, batch="b2").slots[SLOT]
    assert (result.ok, set(result.quarantined)) == (True, {"raw/a.jsonl"})
    assert (len(later), continuous.failing) == (1, {})
    assert keys(lake) == {"raw/b.jsonl"}


@pytest.mark.parametrize(
    "lake",
    [{"schema": "id int, at int", "latest_key": "id", "latest_order_by": "at"}],
    indirect=True,
    ids=[""],
)
def test_next_newest_row_comes_back_while_an_object_is_in_quarantine(lake: Lake, proxy: FaultProxy) -> None:
    """The object with the newest row is overwritten by an object that nobody can decompress, and later by an object
    that the platform may not read.
    """
    newest = lake.source.location.latest_name

    def after_batch() -> dict[str, int]:
        lake.ingest(last_attempt=[SLOT])
        following.follow(lake.spark, lake.source, newest)
        rows = load_slots(lake.spark, lake.source, None, asset=newest).toArrow().to_pylist()
        return {row["_source_key"]: row["at"] for row in rows}

    lake.put("old.jsonl", [{"id": 1, "at": 1}])
    lake.put("older.jsonl", [{"id": 1, "at": 0}])
    lake.put("new.jsonl.gz", gzip.compress(b'{"id": 1, "at": 2}'))
    assert after_batch() == {"raw/new.jsonl.gz": 2}
    lake.put("new.jsonl.gz", b"\x1f\x8b and nothing that gzip can read")
    assert after_batch() == {"raw/old.jsonl": 1}
    assert [reject["_key"] for reject in lake.rejects()] == ["raw/new.jsonl.gz"]
    lake.put("new.jsonl.gz", gzip.compress(b'{"id": 1, "at": 3}'))
    assert after_batch() == {"raw/new.jsonl.gz": 3}
    lake.put("new.jsonl.gz", gzip.compress(b'{"id": 1, "at": 4}'))
    proxy.forbidden.add("/raw/new.jsonl.gz")
    assert after_batch() == {"raw/old.jsonl": 1}
    assert lake.snapshot().manifest.slot(SLOT).failing == 1
    proxy.forbidden.clear()
    send_again(lake)
    assert after_batch() == {"raw/new.jsonl.gz": 4}
