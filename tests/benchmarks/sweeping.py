"""(8) A sweep compares a million objects with the committed state, as the check `complete` does.

No local server can hold so many objects. So the listing is simulated (`simulated_listing`), with `PAGE_MS` for each
page. The states are committed as if the objects had been read. So only LISTs, states and comparisons are measured. The
warm-up starts Spark's workers. The alternative is one process that lists the same pages, and compares the objects with
a dict from one Parquet file.
"""

import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import obstore
import pyarrow as pa
import pyarrow.parquet as pq

from s3notify_platform.engine.commit.staged import Base
from s3notify_platform.kernel.ports import ETag, StoredObject
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.source_enumerator import ObjectVersion
from s3notify_platform.source.source import Source
from s3notify_platform.spark.session import ship_package
from s3notify_platform.spark.spark_jobs import SparkJobs
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3.fast import FastObjectStore
from s3notify_platform.stores.s3.obstore_client import obstore_store
from s3notify_platform.table.snapshot import Absent
from tests.benchmarks.apart import Memory, apart
from tests.benchmarks.figures import Figure, counted, seconds, short
from tests.benchmarks.lake import boto3_client, by_slot, commit_states, embedded_spark, source_of
from tests.benchmarks.simulated_listing import SIZE, listed_etag, listed_key, simulated_listing
from tests.support.spark_options import named

BUCKET = "simulated"
"""The name of the platform's bucket.

The bucket with the objects has the same name on another server (`simulated_listing`, `growth`).
"""
STATE = "state.parquet"
MILLION = 1_000_000
CHANGED = 100
"""The number of objects whose state has another ETag."""
PAGE_MS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    seconds: float
    objects: int
    found: int
    requests: Counter[str]

    def __str__(self) -> str:
        return (
            f"{short(self.seconds)}: {self.objects / self.seconds:,.0f} objects/s, {counted(self.requests)}"
        )


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    total = 20_000 if small else MILLION
    with simulated_listing(total, PAGE_MS) as listing:
        source = million(server, listing, total)
        ours = [apart(swept, source, tasks) for tasks in (1, 0)]
        others = {"boto3": apart(by_boto3, listing, source), "obstore": apart(by_obstore, listing, source)}
    for way, _ in (*ours, *others.values()):
        assert way.objects == total
        assert way.found == CHANGED
    return list(_figures(total, ours, others))


def _figures(
    total: int, ours: list[tuple[Swept, Memory]], others: dict[str, tuple[Swept, Memory]]
) -> Iterator[Figure]:
    for (way, memory), how in zip(ours, ("one task", "as many tasks as cores"), strict=True):
        what = f"sweep of {total:,} objects, simulated listing of {PAGE_MS} ms a page, {how}"
        text = f"{way}; peak memory {memory}"
        for name, (other, theirs) in others.items():
            yield Figure(
                what=what,
                ours=text,
                instead=f"one process, {name} LIST and a dict {other}; peak memory {theirs}",
                ratio=f"{other.seconds / way.seconds:.2f}×",
            )
            what, text = "the same", short(way.seconds)


def million(server: LocalS3Server, listing: S3Config, total: int) -> Source:
    """A source on the bucket `listing`.

    The source's table has the states of all objects. The alternatives read the same states from a file. States are
    committed only once for each server.
    """
    source = known(server, listing, total, changed=CHANGED)
    store = FastObjectStore(source.location.platform)
    if store.head(STATE) is None:
        sink = io.BytesIO()
        versions = list(_versions(total, CHANGED))
        table = pa.table({"key": [v.key for v in versions], "etag": [v.etag for v in versions]})
        pq.write_table(table, sink, compression="zstd")
        store.put(STATE, sink.getvalue())
    return source


def known(server: LocalS3Server, listing: S3Config, total: int, *, changed: int) -> Source:
    """A source on the bucket `listing`.

    The source's table has the states of all objects; `changed` of these states have another ETag.
    """
    server.create_bucket(BUCKET)
    name = f"known_{total}_{changed}"
    source = source_of(listing, name, "in/", platform=named(server.config(BUCKET)))
    if isinstance(source.table().newest(), Absent):
        commit_states(source, by_slot([*_versions(total, changed)]))
    return source


def _versions(total: int, changed: int) -> Iterator[ObjectVersion]:
    for number in range(total):
        key = listed_key(number)
        etag = ETag("0" if number % (total // changed) == 0 else listed_etag(number))
        yield ObjectVersion(slot=slot_of(key), key=key, etag=etag, size=SIZE)


def swept(source: Source, tasks: int) -> Swept:
    """Makes the plan of the check `complete`. `tasks`: the number of concurrent tasks; 0 means the number of cores."""
    with embedded_spark() as spark:
        ship_package(spark)
        spark.range(0, 8, 1, 2).mapInArrow(
            lambda batches: batches, "id bigint"
        ).toArrow()  # this starts the workers
        with seconds() as took:
            snapshot = source.open_table().snapshot
            assert snapshot is not None
            base = Base(table=source.table(), snapshot=snapshot)
            found = SparkJobs(spark, source, width=tasks).plan(source.location.all_slots(), base)
    assert not found.failed
    return Swept(
        seconds=took(),
        objects=found.total("objects"),
        found=sum(map(len, found.unannounced.values())),
        requests=Counter(found.requests),
    )


def by_boto3(listing: S3Config, source: Source) -> Swept:
    client = boto3_client(listing)
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=listing.bucket, Prefix=source.input.prefix
    )
    return _compared(
        source,
        ([(item["Key"], item["ETag"].strip('"')) for item in page.get("Contents", ())] for page in pages),
    )


def by_obstore(listing: S3Config, source: Source) -> Swept:
    pages = obstore.list(obstore_store(listing), source.input.prefix.rstrip("/"), chunk_size=1000)
    return _compared(
        source, ([(meta["path"], str(meta["e_tag"]).strip('"')) for meta in page] for page in pages)
    )


def _compared(source: Source, pages: Iterator[list[tuple[str, str]]]) -> Swept:
    requests: Counter[str] = Counter(GET=1)
    objects = changed = 0
    with seconds() as took:
        state = FastObjectStore(source.location.platform).get(STATE)
        assert isinstance(state, StoredObject)
        table = pq.read_table(pa.BufferReader(state.body))
        known = dict(zip(table["key"].to_pylist(), table["etag"].to_pylist(), strict=True))
        for page in pages:
            requests["LIST"] += 1
            for key, etag in page:
                objects += 1
                changed += known.pop(key, None) != etag
        changed += len(known)
    return Swept(seconds=took(), objects=objects, found=changed, requests=requests)
