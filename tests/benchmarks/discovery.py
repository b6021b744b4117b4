"""(1) The time to find the 10 changed objects among 1k, 10k or 100k objects. A poll is compared with a listing.

obstore, the fastest client, makes the full LIST; `get_s3_keys` is a function of dagster-aws, which uses boto3. Neither
obstore nor `get_s3_keys` compares the keys with earlier keys. A first poll, and a first LIST of few objects, are
warm-ups.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from dagster_aws.s3.sensor import get_s3_keys

from s3notify_platform.explain.prices import dollars
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.keyspace import Publisher, Put, Watcher
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.benchmarks.figures import Figure, counted, short, timed, times
from tests.benchmarks.lake import SMALL, body_of, boto3_client, key_of, prefix_of, small_objects
from tests.benchmarks.slow_proxy import FAR, slow_proxy
from tests.benchmarks.ways import etags

KEYSPACE = "_keyspace/"


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    totals = (10, 100) if small else (1_000, 10_000, 100_000)
    config = small_objects(server, max(totals))
    # Every slot gets a signal, as in a keyspace that has been in use for a while.
    Publisher(S3ObjectStore(config), prefix=KEYSPACE).signal([f"warm {n}" for n in range(10_000)])
    etags(config, prefix_of(10))
    figures = [each for total in totals for each in _tick(config, total)]
    with slow_proxy(server.endpoint_url) as url:
        return [*figures, *_tick(replace(config, endpoint_url=url), max(totals), f", {FAR}")]


def _tick(config: S3Config, total: int, where: str = "") -> list[Figure]:
    store = CountingStore(S3ObjectStore(config))
    prefix = prefix_of(total)
    watcher = Watcher(store, prefix=KEYSPACE)
    watcher.poll()
    changed = [Put(key=key_of(n * total // 10), body=body_of(n, note=f"d{where}")) for n in range(10)]
    Publisher(store, prefix=KEYSPACE).publish(changed)
    before = Counter(store.counts)
    ours, poll = timed(watcher.poll)
    requests = store.counts - before
    assert 1 <= len(poll.changed) <= 10
    listing, seen = timed(partial(etags, config, prefix))
    assert total <= 100 or len(seen) == total
    keys, found = timed(partial(get_s3_keys, SMALL, prefix=prefix, s3_session=boto3_client(config)))
    assert len(found) == total
    polls = _priced(requests)
    lists = _priced({"LIST": -(-total // 1000)})
    return [
        Figure(
            what=f"10 changed among {total:,} objects: one poll{where}",
            ours=f"{short(ours)}, {polls}",
            instead=f"full LIST by obstore {short(listing)}, {lists}",
            ratio=times(listing, ours),
        ),
        Figure(
            what="the same",
            ours=f"{short(ours)}, {polls}",
            instead=f"`get_s3_keys` {short(keys)}, {lists}",
            ratio=times(keys, ours),
        ),
    ]


def _priced(requests: Mapping[str, int]) -> str:
    """Sequential requests, and their price."""
    return f"{counted(requests)} in sequence; ${1e6 * dollars(requests):,.2f} a million times"
