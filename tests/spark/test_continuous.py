"""`ContinuousIngest` keeps a table up to date with its bucket, without Dagster."""

from collections.abc import Callable
from threading import Event
from typing import Any

import boto3
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.ports import StoredObject, list_all
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.keyspace import Delete, Publisher, Put, Watcher
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.spark.continuous import ContinuousIngest
from tests.support.spark import Lake

pytestmark = [pytest.mark.spark, pytest.mark.server]


def publisher(lake: Lake) -> Publisher:
    return Publisher(
        lake.store, prefix=lake.source.location.keyspace_prefix, slots=lake.source.location.slots
    )


def generations(lake: Lake) -> dict[Slot, int]:
    return {slot: len(lake.history(slot)) for slot in lake.source.location.all_slots()}


def once(lake: Lake, *, sweep: bool = False) -> ContinuousIngest:
    continuous = ContinuousIngest(spark=lake.spark, source=lake.source)
    continuous.run(Event(), every_seconds=None, sweep=sweep)
    return continuous


@pytest.mark.thorough
def test_ingest_keeps_the_table_in_step(lake: Lake) -> None:
    """The first batch must ingest all slots, and later batches only changed slots. A sweep must not commit an object
    version twice.
    """
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n' % n for n in range(12)})
    counts = once(lake).counts()
    assert (counts["objects"], counts["rows"], counts["failing_slots"]) == (12, 12, 0)
    lake.check()
    before = generations(lake)
    publisher(lake).publish([Put(key="raw/1.jsonl", body=b'{"id": 100}\n'), Delete(key="raw/2.jsonl")])
    once(lake)
    lake.check()
    after = generations(lake)
    touched = {lake.slot("1.jsonl"), lake.slot("2.jsonl")}
    assert {slot for slot in after if after[slot] != before[slot]} == touched
    facts = lake.snapshot().manifest.slot(lake.slot("1.jsonl"))
    assert facts.signal, "the version names the signal that it has seen"
    once(lake, sweep=True)
    assert generations(lake) == after


@pytest.mark.thorough
def test_older_copy_of_the_table_is_refused(lake: Lake) -> None:
    """An old copy of the table was restored, but `known` names a newer version. Without the refusal, versions would be
    lost. A sweep must refuse the copy, too.
    """
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n' % n for n in range(12)})
    once(lake)
    prefix = lake.source.location.platform_prefix

    def ours() -> dict[str, tuple[bytes, dict[str, str]]]:
        found = {}
        for meta in list_all(lake.store, prefix):
            got, head = lake.store.get(meta.key), lake.store.head(meta.key)
            assert isinstance(got, StoredObject)
            assert head is not None
            found[meta.key] = (got.body, dict(head.metadata))
        return found

    backup = ours()
    publisher(lake).publish([Put(key="raw/1.jsonl", body=b'{"id": 100}\n')])
    assert not once(lake).failing
    assert not once(lake).failing
    for key in ours():
        lake.store.delete(key)
    for key, (body, metadata) in backup.items():
        lake.store.put(key, body, metadata=metadata)
    for sweep in (False, True):
        with pytest.raises(CorruptError, match="s3notify table forget"):
            once(lake, sweep=sweep)


@pytest.fixture
def tagged(lake_of: Callable[..., Lake]) -> tuple[Lake, Any]:
    """A source that tags committed objects, and a client of its bucket, which has versioning."""
    lake = lake_of(committed_tags="archive=yes")
    config = lake.source.input.bucket
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    s3 = boto3.client("s3", endpoint_url=config.endpoint_url, **keys)
    s3.put_bucket_versioning(Bucket=config.bucket, VersioningConfiguration={"Status": "Enabled"})
    return lake, s3


def test_tagging_leaves_time_for_polls(tagged: tuple[Lake, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A tagging pass must end when its time is over. The remaining objects must be tagged after the next poll, even if
    the poll finds no change.
    """
    lake, _ = tagged
    monkeypatch.setattr("s3notify_platform.spark.continuous.TAGGING_SECONDS", 0)
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n' % n for n in range(12)})
    said: list[str] = []
    continuous = ContinuousIngest(spark=lake.spark, source=lake.source, progress=said.append)

    class AllTagged(Event):
        def is_set(self) -> bool:
            return continuous.counts().get("tagged") == 12

    continuous.run(AllTagged(), every_seconds=0.01)
    assert len({line for line in said if "slots are left" in line}) > 1


def test_committed_objects_are_tagged(tagged: tuple[Lake, Any]) -> None:
    """The committed object version must be tagged after its batch. An object in quarantine must not be tagged."""
    lake, s3 = tagged
    bucket = lake.source.input.bucket.bucket
    lake.put_many({"1.jsonl": b'{"id": 1}\n', "2.jsonl": b"{nonsense\n", "3.jsonl": b'{"id": 3}\n'})
    first = once(lake)
    assert first.counts()["tagged"] == 2
    publisher(lake).publish([Put(key="raw/1.jsonl", body=b'{"id": 100}\n')])
    assert once(lake).counts()["tagged"] == 1
    found = {}
    for version in s3.list_object_versions(Bucket=bucket, Prefix="raw/")["Versions"]:
        at = {"Bucket": bucket, "Key": version["Key"], "VersionId": version["VersionId"]}
        tags = {tag["Key"]: tag["Value"] for tag in s3.get_object_tagging(**at)["TagSet"]}
        found[version["Key"], version["IsLatest"]] = tags
    tagged = {"archive": "yes"}
    assert found == {
        ("raw/1.jsonl", True): tagged,
        ("raw/1.jsonl", False): tagged,
        ("raw/2.jsonl", True): {},
        ("raw/3.jsonl", True): tagged,
    }


@pytest.mark.thorough
def test_failed_slot_is_requested_again(lake: Lake) -> None:
    """After a backoff, the signal of the failed slot must move. Other slots must be committed. A restarted process must
    remember the failure.
    """
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n' % n for n in range(12)})
    lake.ingest()
    bad = lake.slot("1.jsonl")
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n' % (n + 100) for n in range(12)})
    waiting: list[Any] = []

    def refusing(rows: DataFrame) -> DataFrame:
        refused = sf.raise_error(sf.lit("refused")).cast("bigint")
        return rows.withColumn(
            "id", sf.when(sf.col("_key") == "raw/1.jsonl", refused).otherwise(sf.col("id"))
        )

    continuous = ContinuousIngest(
        spark=lake.spark,
        source=lake.source,
        transform=refusing,
        later=lambda seconds, action: waiting.append(action),
    )
    watcher = Watcher(
        lake.store, prefix=lake.source.location.keyspace_prefix, slots=lake.source.location.slots
    )
    watcher.poll()
    result = continuous.take(dict.fromkeys(lake.source.location.all_slots()), batch="b1")
    assert {slot for slot, each in result.slots.items() if not each.ok} == {bad} == continuous.failing.keys()
    assert {slot for slot, each in result.slots.items() if each.status == "committed"}
    assert [*RescanBacklog(lake.source.location.records()).read().slots] == [bad]
    assert not watcher.poll().changed
    waiting.pop()()
    assert [*watcher.poll().changed] == [bad]
    ContinuousIngest(spark=lake.spark, source=lake.source).run(Event(), every_seconds=None)
    lake.check()
    assert not RescanBacklog(lake.source.location.records()).read().slots


@pytest.mark.thorough
def test_entries_replace_listings(lake: Lake) -> None:
    """After the first listing, batches must follow entries as long as all writers queue, even after a restart.
    Otherwise each batch would list the bucket.
    """
    source = lake.source
    lake.put("there.jsonl", [{"id": 0}])
    queue = source.location.queue()
    settings = TopicSettings(
        slots=source.location.slots, shards=2, bucket=source.input.bucket.bucket, prefix=source.input.prefix
    )
    queue.topics.create(source.name, settings)
    writer = QueuedPublisher(publisher(lake), queue, bucket=source.input.bucket.bucket)
    continuous = ContinuousIngest(spark=lake.spark, source=source)

    def take(name: str) -> set[str]:
        """Publishes and ingests one object. Returns the names of all objects in the table."""
        writer.publish([Put(key=f"raw/{name}.jsonl", body=b'{"id": 1}\n')])
        continuous.take({lake.slot(f"{name}.jsonl"): None}, batch=name)
        assert not queue.entries(source.name, [lake.slot(f"{name}.jsonl")]), (
            "entries of committed objects are removed"
        )
        return {row["_key"].removeprefix("raw/").removesuffix(".jsonl") for row in lake.load()}

    assert take("first") == {"there", "first"}, "all existing objects, compared once"
    second = lake.slot("second.jsonl")
    neighbour = next(f"{n}.jsonl" for n in range(99) if lake.slot(f"{n}.jsonl") == second)
    lake.put(neighbour, [{"id": 0}])
    assert take("second") == {"there", "first", "second"}, "nothing was listed"
    continuous = ContinuousIngest(spark=lake.spark, source=source)
    assert take("third") == {"there", "first", "second", "third"}, "nothing was listed after a restart"
    publisher(lake).put("raw/plain.jsonl", b'{"id": 4}\n')
    assert "plain" not in take("fourth"), "the slot was not requested"
    ContinuousIngest(spark=lake.spark, source=source).run(Event(), every_seconds=None)
    assert "plain" in take("fifth"), "listed, since the writer of the signal does not queue"
