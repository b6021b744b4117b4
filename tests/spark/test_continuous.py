"""A committed table kept in step by a streaming query, or by what it calls, without Dagster."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from s3notify_platform.channels.publisher import QueuedPublisher
from s3notify_platform.errors import CorruptError
from s3notify_platform.ingest.engine import Ingest
from s3notify_platform.ingest.plan import Plan
from s3notify_platform.ingest.source import Source
from s3notify_platform.ports import StoredObject
from s3notify_platform.protocols.keyspace import Delete, Publisher, Put, Watcher
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.slots import Slot, slot_of
from s3notify_platform.spark.continuous import ContinuousIngest, ingest_stream
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server
from tests.support.spark import Lake
from tests.support.spark_options import options_of

pytestmark = [pytest.mark.spark, pytest.mark.server]


def publisher(lake: Lake) -> Publisher:
    return Publisher(
        lake.store, prefix=lake.source.location.keyspace_prefix, slots=lake.source.location.slots
    )


def generations(lake: Lake) -> dict[Slot, int]:
    return {slot: len(lake.history(slot)) for slot in lake.source.location.all_slots()}


def once(lake: Lake, checkpoint: Path, **arguments: Any) -> ContinuousIngest:
    query, continuous = ingest_stream(
        lake.spark, options_of(lake.source), checkpoint=str(checkpoint), every_seconds=None, **arguments
    )
    query.awaitTermination()
    return continuous


@pytest.mark.thorough
def test_a_query_keeps_the_table_in_step(lake: Lake, tmp_path: Path) -> None:
    """All of it at first, then only slots that changed, and nothing twice where the checkpoint was lost."""
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n' % n for n in range(12)})
    counts = once(lake, tmp_path / "one").counts()
    assert (counts["objects"], counts["rows"], counts["failing_slots"]) == (12, 12, 0)
    lake.check()
    before = generations(lake)
    publisher(lake).publish([Put(key="raw/1.jsonl", body=b'{"id": 100}\n'), Delete(key="raw/2.jsonl")])
    once(lake, tmp_path / "one")
    lake.check()
    after = generations(lake)
    touched = {lake.slot("1.jsonl"), lake.slot("2.jsonl")}
    assert {slot for slot in after if after[slot] != before[slot]} == touched
    head = lake.source.table().head(lake.slot("1.jsonl"))
    assert head is not None
    assert head.signal, "the commit says which signal it has seen"
    once(lake, tmp_path / "other")
    assert generations(lake) == after


@pytest.mark.thorough
def test_a_slot_that_fails_is_asked_for_again(lake: Lake) -> None:
    """By its signal, after a while; the others are committed; and a restart knows of it."""
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n' % n for n in range(12)})
    lake.ingest()
    bad = lake.slot("1.jsonl")
    key = lake.source.table().layout.commit(bad, 1)
    commit = lake.store.get(key)
    assert isinstance(commit, StoredObject)
    lake.store.put(key, b"no commit")
    lake.put_many({f"{n}.jsonl": b'{"id": %d}\n' % (n + 100) for n in range(12)})
    waiting: list[Any] = []
    continuous = ContinuousIngest(
        spark=lake.spark, source=lake.source, later=lambda seconds, action: waiting.append(action)
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
    reborn = ContinuousIngest(spark=lake.spark, source=lake.source)
    reborn.ask_again_for_rescans()
    assert [*watcher.poll().changed] == [bad]
    lake.store.put(key, commit.body)
    reborn.take({bad: None}, batch="b2")
    lake.check()
    assert not RescanBacklog(lake.source.location.records()).read().slots


@pytest.mark.thorough
def test_entries_take_the_place_of_listings(lake: Lake) -> None:
    """Once the bucket was listed, also after a restart, and for as long as all writers queue."""
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
        """One change, announced by an entry; the keys that are committed then."""
        writer.publish([Put(key=f"raw/{name}.jsonl", body=b'{"id": 1}\n')])
        continuous.take({lake.slot(f"{name}.jsonl"): None}, batch=name)
        assert not queue.entries(source.name, [lake.slot(f"{name}.jsonl")]), "what is committed is removed"
        return {row["_key"].removeprefix("raw/").removesuffix(".jsonl") for row in lake.load()}

    assert take("first") == {"there", "first"}, "all that was there, compared once"
    second = lake.slot("second.jsonl")
    neighbour = next(f"{n}.jsonl" for n in range(99) if lake.slot(f"{n}.jsonl") == second)
    lake.put(neighbour, [{"id": 0}])
    assert take("second") == {"there", "first", "second"}, "nothing was listed"
    continuous = ContinuousIngest(spark=lake.spark, source=source)
    assert take("third") == {"there", "first", "second", "third"}, "nor after a restart"
    publisher(lake).put("raw/plain.jsonl", b'{"id": 4}\n')
    continuous.take({lake.slot("plain.jsonl"): None}, batch="plain")
    assert "plain" in take("fourth"), "listed, since somebody does not queue"


def test_a_slot_that_ends_every_run_keeps_no_other(
    ministack: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of twenty, nineteen are committed by the same micro-batch; the next one takes it in apart from them."""
    config = ministack.config(ministack.make_bucket())
    source = Source.of(
        bucket=config,
        platform=config,
        name="orders",
        prefix="raw/",
        format="jsonl",
        slots=20,
        commit="native",
    )
    store = S3ObjectStore(config)
    keys = [f"raw/{number}" for number in range(80)]
    for key in keys:
        store.put(key, b'{"a":1}\n')
    poison, slots = Slot(7), source.location.all_slots()
    planned: list[set[int]] = []

    class Jobs(LocalJobs):
        def plan(self, slots: Iterable[Slot], **arguments: Any) -> Plan:
            planned.append({*slots})
            if poison in planned[-1]:
                raise CorruptError("a run that has to do with it ends")
            return super().plan(planned[-1], **arguments)

    def ingest(_spark: Any, source: Source, **_: Any) -> Ingest:
        return Ingest(jobs=Jobs(source=source), source=source)

    monkeypatch.setattr("s3notify_platform.spark.continuous.spark_ingest", ingest)
    taking = ContinuousIngest(spark=None, source=source, later=lambda *_: None)  # type: ignore[arg-type]
    result = taking.take(dict.fromkeys(slots), batch="b1")
    assert [slot for slot, each in result.slots.items() if not each.ok] == [poison]
    committed = {slot for slot, head in source.table().heads(slots).items() if head is not None}
    assert committed == {slot_of(key, 20) for key in keys} - {poison}
    assert set(taking.failing) == {poison}
    assert len(planned) <= 2 * 5 + 1
    planned.clear()
    taking.take(dict.fromkeys(slots), batch="b2")
    assert planned == [{*slots} - {poison}, {poison}]
    store.close()
