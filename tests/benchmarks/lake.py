"""The data of the benchmarks: small and big JSONL objects, and tables of a million objects. Objects are written once
for each server.

The keys of the small objects have common prefixes: exactly 1,000 of them begin with `prefix_of(1000)`.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import obstore
import pyarrow as pa
from pyspark.sql import SparkSession

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.protocols.source_enumerator import ObjectState, ObjectVersion
from s3notify_platform.source.source import Source
from s3notify_platform.spark.session import prepare_environment, session_conf
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.credentials import session_of
from s3notify_platform.stores.s3.fast import FastObjectStore
from s3notify_platform.stores.s3.obstore_client import obstore_store
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.round import RoundChange, SlotRound
from tests.support import sources
from tests.support.spark_options import named

DDL = "id bigint, name string, note string"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("note", pa.string())])
LINES = 10
"""The number of lines of a small object, which make 2 KB."""

SMALL, BIG = "bench-small", "bench-big"
BIG_PART = "in/part/"
IN_FLIGHT = 64
SLOTS_A_VERSION = 100
FILL = 10_000
PART_BYTES = 32 << 20


def key_of(number: int) -> str:
    return f"in/{number // 10_000:02d}/{number // 1_000 % 10}/{number % 1_000:03d}.jsonl"


def prefix_of(count: int) -> str:
    """The common prefix of the keys of the first `count` objects; `count` is a power of ten."""
    return {10: "in/00/0/00", 100: "in/00/0/0", 1_000: "in/00/0/", 10_000: "in/00/"}.get(count, "in/")


def body_of(number: int, *, note: str = "n") -> bytes:
    return "".join(_line(number * LINES + n, note) for n in range(LINES)).encode()


def _line(number: int, note: str) -> str:
    return json.dumps({"id": number, "name": f"name {number * 7919 % 100_003}", "note": note * 150}) + "\n"


def small_objects(server: LocalS3Server, count: int) -> S3Config:
    """A bucket with at least the first `count` objects. Cost: 1 PUT for each missing object."""
    server.create_bucket(SMALL)
    config = server.config(SMALL)
    store = FastObjectStore(config)
    for first in range(0, count, FILL):
        numbers = range(first, min(first + FILL, count))
        if store.head(key_of(numbers[-1])) is None:
            asyncio.run(_put_all(config, numbers))
    return config


async def _put_all(config: S3Config, numbers: Sequence[int]) -> None:
    store = obstore_store(config)
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def one(number: int) -> None:
        async with gate:
            await obstore.put_async(store, key_of(number), body_of(number), use_multipart=False)

    await asyncio.gather(*map(one, numbers))


def big_objects(server: LocalS3Server, count: int, size: int) -> S3Config:
    """A bucket of `count` objects of about `size` bytes. The keys of a fourth of the objects begin with `BIG_PART`.

    Only the objects' first lines differ.
    """
    server.create_bucket(BIG)
    config = server.config(BIG)
    store = obstore_store(config)
    block = "".join(_line(n, "n") for n in range(max(1, min(size, 64 << 20) // 205))).encode()
    block *= max(1, size // len(block))

    def put(number: int) -> None:
        body = _line(number, "first").encode() + block
        folder = BIG_PART if number < count // 4 else "in/rest/"
        obstore.put(store, f"{folder}{number:03d}.jsonl", body, chunk_size=PART_BYTES, max_concurrency=4)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(put, range(count)))
    return config


def many_of(config: S3Config, total: int) -> Source:
    """The source of the first `total` small objects.

    Several benchmarks commit to the source's table. The first of these benchmarks commits all objects.
    """
    return source_of(config, f"first_{total}", prefix_of(total))


def source_of(config: S3Config, name: str, prefix: str, **more: Any) -> Source:
    fields: dict[str, Any] = {"bucket": named(config), "platform": named(config), "commit": "native"} | more
    return sources.source_of(name=name, prefix=prefix, format="jsonl", schema=DDL, **fields)


def followed(source: Source) -> Source:
    """The source with a topic, as after its first batch."""
    settings = TopicSettings(
        bucket=source.input.bucket.bucket,
        prefix=source.input.prefix,
        slots=source.location.slots,
        shards=min(8, source.location.slots),
    )
    source.location.queue().topics.create(source.name, settings)
    return source


def boto3_client(config: S3Config) -> Any:
    """The client that the alternatives use."""
    return session_of(config).client("s3", endpoint_url=config.endpoint_url)


@contextmanager
def embedded_spark(master: str = "local[*]") -> Iterator[SparkSession]:
    """A session like the platform's own sessions."""
    prepare_environment()
    with spark_of(session_conf(master=master)) as spark:
        yield spark


@contextmanager
def spark_of(conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session with these properties, until the end of the block."""
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def commit_states(source: Source, versions: Sequence[Sequence[ObjectVersion]]) -> None:
    """Commits the objects of these slots as if they had been read: only states, no rows. Each version of the table
    commits 100 slots.
    """
    table, base = source.table(), source.open_table().snapshot
    assert base is not None
    for first in range(0, len(versions), SLOTS_A_VERSION):
        label = base.version + 1
        slots = {
            of_slot[0].slot: SlotRound(changes={v.key: _read(v, label) for v in of_slot})
            for of_slot in versions[first : first + SLOTS_A_VERSION]
        }
        done = table.commit(RoundChange(base=base, slots=slots, table=table, clock=SYSTEM_CLOCK), base)
        assert isinstance(done, Committed)
        base = done.snapshot


def _read(version: ObjectVersion, label: int) -> ObjectState:
    size = version.size
    return ObjectState(key=version.key, etag=version.etag, size=size, offset=size, since=label, until=label)


def by_slot(versions: Sequence[ObjectVersion]) -> list[list[ObjectVersion]]:
    found: dict[int, list[ObjectVersion]] = {}
    for version in versions:
        found.setdefault(version.slot, []).append(version)
    return list(found.values())
