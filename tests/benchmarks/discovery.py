"""(1) Which of 1k, 10k, 100k objects changed, when 10 did: a poll against listing."""

import asyncio
from collections import Counter
from functools import partial

import boto3
import obstore
from dagster_aws.s3.sensor import get_s3_keys

from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.keyspace import Publisher, Put, Watcher
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.fast import obstore_store
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.benchmarks.figures import Figure, counted, short, timed, times

BUCKET = "bench-discovery"
KEYSPACE = "_keyspace/"


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    server.create_bucket(BUCKET)
    config = server.config(BUCKET)
    store = CountingStore(S3ObjectStore(config))
    publisher = Publisher(store, prefix=KEYSPACE)
    # Every slot has a signal, as in a keyspace that has been in use for a while.
    publisher.signal([f"warm {n}" for n in range(10_000)])
    client = boto3.client(
        "s3",
        endpoint_url=config.endpoint_url,
        region_name=config.region,
        aws_access_key_id=config.access_key_id,
        aws_secret_access_key=config.secret_access_key,
    )
    figures = []
    filled = 0
    for total in (200, 400) if small else (1_000, 10_000, 100_000):
        asyncio.run(_fill(config, filled, total))
        filled = total
        watcher = Watcher(store, prefix=KEYSPACE)
        watcher.poll()
        publisher.publish([Put(key=f"in/{n * (total // 10):07d}", body=b"changed") for n in range(10)])
        before = Counter(store.counts)
        ours, poll = timed(watcher.poll)
        requests = store.counts - before
        assert 1 <= len(poll.changed) <= 10
        listed: Counter[str] = Counter()
        listing, seen = timed(partial(_list, client, listed))
        assert seen == total
        keys, found = timed(lambda: get_s3_keys(BUCKET, prefix="in/", s3_session=client))
        assert len(found) == total
        what = f"10 changed among {total:,} objects: one tick"
        figures.append(
            Figure(
                what=what,
                ours=f"{short(ours)}, {counted(requests)}",
                instead=f"full LIST {short(listing)}, {counted(listed)}",
                ratio=times(listing, ours),
            )
        )
        figures.append(
            Figure(
                what="the same",
                ours=f"{short(ours)}, {counted(requests)}",
                instead=f"`get_s3_keys` {short(keys)}, {-(-total // 1000)} LIST",
                ratio=times(keys, ours),
            )
        )
    return figures


def _list(client: "boto3.client", counts: "Counter[str]") -> int:
    seen = 0
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="in/"):
        counts["LIST"] += 1
        seen += len(page.get("Contents", ()))
    return seen


async def _fill(config: object, first: int, last: int) -> None:
    store = obstore_store(config)
    gate = asyncio.Semaphore(64)

    async def one(number: int) -> None:
        async with gate:
            await obstore.put_async(store, f"in/{number:07d}", b"%d" % number)

    for low in range(first, last, 5_000):
        await asyncio.gather(*(one(n) for n in range(low, min(last, low + 5_000))))
