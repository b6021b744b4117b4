"""(1) Finding 10 changed objects among 1k, 10k, 100k: a poll compared with a listing.

The full LIST is made by obstore, the fastest client available; `get_s3_keys` is dagster-aws's, by boto3. Neither
compares its result with anything. A first poll, and a first LIST of few objects, are warm-ups.
"""

from collections import Counter
from functools import partial

from dagster_aws.s3.sensor import get_s3_keys

from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.keyspace import Publisher, Put, Watcher
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.benchmarks.figures import Figure, counted, short, timed, times
from tests.benchmarks.lake import SMALL, body_of, boto3_client, key_of, prefix_of, small_objects
from tests.benchmarks.ways import etags

KEYSPACE = "_keyspace/"


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    totals = (10, 100) if small else (1_000, 10_000, 100_000)
    config = small_objects(server, max(totals))
    store = CountingStore(S3ObjectStore(config))
    publisher = Publisher(store, prefix=KEYSPACE)
    # Every slot has a signal, as in a keyspace that has been used for a while.
    publisher.signal([f"warm {n}" for n in range(10_000)])
    client = boto3_client(config)
    etags(config, prefix_of(10))
    figures = []
    for total in totals:
        prefix = prefix_of(total)
        watcher = Watcher(store, prefix=KEYSPACE)
        watcher.poll()
        publisher.publish([Put(key=key_of(n * total // 10), body=body_of(n, note="d")) for n in range(10)])
        before = Counter(store.counts)
        ours, poll = timed(watcher.poll)
        requests = store.counts - before
        assert 1 <= len(poll.changed) <= 10
        listing, seen = timed(partial(etags, config, prefix))
        assert total <= 100 or len(seen) == total
        keys, found = timed(partial(get_s3_keys, SMALL, prefix=prefix, s3_session=client))
        assert len(found) == total
        what = f"10 changed among {total:,} objects: one tick"
        figures.append(
            Figure(
                what=what,
                ours=f"{short(ours)}, {counted(requests)}",
                instead=f"full LIST by obstore {short(listing)}, {-(-total // 1000)} LIST",
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
