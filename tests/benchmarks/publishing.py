"""(2) The cost of announcements for a writer. Published writes are compared with plain PUTs that nobody announces.

The warm-up is one write.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.keyspace import Publisher, Put
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.benchmarks.figures import Figure, counted, short, timed, times

BUCKET = "bench-publishing"
PARALLELISM = 16


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    server.create_bucket(BUCKET)
    count = 20 if small else 400
    store = CountingStore(S3ObjectStore(server.config(BUCKET)))
    publisher = Publisher(store, prefix="_keyspace/", parallelism=PARALLELISM)
    body = b"x" * 2048
    publisher.put("in/warm", body)

    plain, _ = timed(lambda: [store.put(f"in/plain {n}", body) for n in range(count)])
    before = Counter(store.counts)
    single, _ = timed(lambda: [publisher.put(f"in/single {n}", body) for n in range(count)])
    single_requests = store.counts - before

    with ThreadPoolExecutor(PARALLELISM) as pool:
        plain_parallel, _ = timed(
            lambda: list(pool.map(lambda n: store.put(f"in/pp {n}", body), range(count)))
        )
    before = Counter(store.counts)
    batch = [Put(key=f"in/batch {n}", body=body) for n in range(count)]
    batched, _ = timed(lambda: publisher.publish(batch))
    batch_requests = store.counts - before

    return [
        Figure(
            what=f"publish {count} objects of 2 KB, one by one",
            ours=f"{short(single.each(count))} each, {counted(single_requests)}",
            instead=f"plain PUT {short(plain.each(count))} each, {count} PUT",
            ratio=times(plain, single),
        ),
        Figure(
            what=f"publish {count} objects of 2 KB as one batch, {PARALLELISM} at once",
            ours=f"{short(batched)}, {counted(batch_requests)}",
            instead=f"plain PUT {short(plain_parallel)}, {count} PUT",
            ratio=times(plain_parallel, batched),
        ),
    ]
