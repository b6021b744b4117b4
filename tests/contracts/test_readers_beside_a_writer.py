"""Other engines read a table while another process writes it: each version has for them the rows that it has for us."""

from collections import Counter
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from random import Random

import pytest

from s3notify_platform.engine.driver import Ingest
from s3notify_platform.ingest.source import Source
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.commit import CHECKPOINT_EVERY
from s3notify_platform.table.history import snapshot_of
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.snapshot import Snapshot
from tests.support.engines import ENGINES, Row
from tests.support.engines import Place as At
from tests.support.ingested import Place
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server
from tests.support.sources import with_settings
from tests.support.spark_options import named

pytestmark = pytest.mark.server

READS = 4
"""At least so many of each engine, and until the table has more versions than one checkpoint covers."""
VERSIONS = CHECKPOINT_EVERY + 5
MOST_READS = 200


def write_rounds(source: Source, ended: Event) -> None:
    """Commit round after round: objects are new, overwritten by more rows or fewer, and deleted."""
    store, chance = S3ObjectStore(source.input.bucket), Random(1)
    number = 0
    while not ended.is_set():
        number += 1
        for key in chance.sample(range(30), 6):
            values = range(number, number + chance.randrange(1, 40))
            store.put(f"raw/{key}", b"".join(b'{"a":%d}\n' % value for value in values))
        store.delete(f"raw/{chance.randrange(30)}")
        engine = Ingest(jobs=LocalJobs(source=source), source=source)
        engine.run(source.location.all_slots(), batch=str(number))


def ours(source: Source, version: int) -> Counter[tuple[object, ...]]:
    """The rows of this version by our own reader; its manifest says as many of each slot."""
    reader = source.table().reader
    found = snapshot_of(reader, version)
    schema = arrow_schema(found.metadata.schema)
    batches = read_slots(reader.store, source.location.layout, found.packs.values(), None, schema)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert Counter(row["_slot"] for row in rows) == Counter(
        {slot: facts.rows for slot, facts in found.manifest.slots.items() if facts.rows}
    )
    return counted(rows)


def counted(rows: list[Row]) -> Counter[tuple[object, ...]]:
    return Counter((row["_slot"], row["_key"], row["_etag"], row["a"]) for row in rows)


@pytest.mark.parametrize("overwrites", ["rewrite", "vectors"])
def test_each_version_has_the_same_rows_for_all(ministack: S3Server, overwrites: str) -> None:
    """A version that was pinned, and the newest one, which is one that was committed, whole."""
    place = Place(ministack, overwrites=overwrites)
    config = named(place.store.config)
    source, spawn = with_settings(place.source, bucket=config, platform=config), get_context("spawn")
    place.put("first", 1)
    place.run("first")
    at = At(
        uri=f"s3://{place.store.config.bucket}/{source.location.layout.prefix}", config=place.store.config
    )
    ended = spawn.Event()
    writer = spawn.Process(target=write_rounds, args=(source, ended))

    def newest() -> int:
        found = source.table().newest()
        assert isinstance(found, Snapshot)
        return found.version

    writer.start()
    try:
        seen: set[int] = set()
        known = cache(partial(ours, source))
        for turn in range(MOST_READS):
            before = newest()
            for name, read in ENGINES.items():
                assert counted(read(at, before)) == known(before), (name, before)
                rows = counted(read(at))
                assert rows in [known(each) for each in range(before, newest() + 1)], name
            seen.add(before)
            assert writer.is_alive()
            if turn >= READS and newest() > VERSIONS:
                break
        assert len(seen) > READS // 2
    finally:
        ended.set()
        writer.join()
    assert writer.exitcode == 0
    place.snapshot()
