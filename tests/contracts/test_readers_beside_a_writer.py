"""Other engines read a table while a process writes it: they see the same rows of each version as the platform."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from random import Random

import pyspark
import pytest

from s3notify_platform.engine.driver import Ingest
from s3notify_platform.kernel.ports import StoredObject, list_all
from s3notify_platform.source.source import Source
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.commit import CHECKPOINT_EVERY
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.snapshot import Snapshot
from s3notify_platform.table.versions import snapshot_of
from tests.support.engines import ENGINES, Row
from tests.support.engines import Place as At
from tests.support.ingested import Place
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server
from tests.support.sources import with_settings
from tests.support.spark_options import named

pytestmark = pytest.mark.server

READS = 4
"""The minimum number of reads by each engine; reads also continue until the table has a checkpoint."""
VERSIONS = CHECKPOINT_EVERY + 1
MOST_READS = 200

PYSPARK = ".".join(pyspark.__version__.split(".")[:2])
DELTA_SPARK = {"4.1": "io.delta:delta-spark_4.1_2.13:4.3.0", "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"}
"""The name of the package, by PySpark's version.

There is no build for PySpark 4.3, which does not work with the build for 4.2.
"""

Rows = Counter[tuple[object, ...]]


def write_rounds(source: Source, ended: Event) -> None:
    """Commits round after round: objects are added, overwritten by more or fewer rows, and deleted."""
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


@dataclass
class Written:
    """A table that another process writes."""

    source: Source
    is_written: Callable[[], bool]
    ours: Callable[[int], Rows] = field(init=False)
    """The rows of a version, read by the platform's own reader."""

    def __post_init__(self) -> None:
        self.ours = cache(partial(rows_at, self.source))

    def newest(self) -> int:
        found = self.source.table().newest()
        assert isinstance(found, Snapshot)
        return found.version


@contextmanager
def written(place: Place) -> Iterator[Written]:
    """The table of this place. When the test ends, its writer ends, too."""
    config = named(place.store.config)
    source, spawn = with_settings(place.source, bucket=config, platform=config), get_context("spawn")
    place.put("first", 1)
    place.run("first")
    ended = spawn.Event()
    writer = spawn.Process(target=write_rounds, args=(source, ended))
    writer.start()
    try:
        yield Written(source, writer.is_alive)
    finally:
        ended.set()
        writer.join()
    assert writer.exitcode == 0
    place.snapshot()


def rows_at(source: Source, version: int) -> Rows:
    """The rows of this version, read by the platform's own reader and compared with the counts in the version's
    manifest.
    """
    reader = source.table().reader
    found = snapshot_of(reader, version)
    schema = arrow_schema(found.metadata.schema)
    batches = read_slots(reader.store, source.location.layout, found.packs.values(), None, schema)
    rows = counted([row for batch in batches for row in batch.to_pylist()])
    assert of_slots(rows) == {slot: facts.rows for slot, facts in found.manifest.slots.items() if facts.rows}
    return rows


def counted(rows: list[Row]) -> Rows:
    return Counter((row["_slot"], row["_key"], row["_etag"], row["a"]) for row in rows)


def of_slots(rows: Rows) -> Counter[object]:
    return Counter(slot for slot, *_ in rows.elements())


@pytest.mark.parametrize("overwrites", ["rewrite", "vectors"])
def test_each_version_has_the_same_rows_in_every_engine(ministack: S3Server, overwrites: str) -> None:
    """The engines read a pinned version and the newest version.

    The rows that an engine reads must always be those of a complete committed version.
    """
    place = Place(ministack, overwrites=overwrites)
    where = f"s3://{place.store.config.bucket}/{place.source.location.layout.prefix}"
    at = At(uri=where, config=place.store.config)
    with written(place) as table:
        seen: set[int] = set()
        for turn in range(MOST_READS):
            before = table.newest()
            for name, read in ENGINES.items():
                assert counted(read(at, before)) == table.ours(before), (name, before)
                rows = counted(read(at))
                assert rows in [table.ours(each) for each in range(before, table.newest() + 1)], name
            seen.add(before)
            assert table.is_written()
            if turn >= READS and len(seen) > READS // 2 and table.newest() > VERSIONS:
                break
        assert len(seen) > READS // 2


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.skipif(PYSPARK not in DELTA_SPARK, reason=f"delta-spark has no build for PySpark {PYSPARK}")
@pytest.mark.parametrize("overwrites", ["rewrite", "vectors"])
def test_delta_spark_counts_the_same_rows(ministack: S3Server, tmp_path: Path, overwrites: str) -> None:
    """PySpark alone cannot read a bucket, so the engine reads a copy that is made while the table is written. If the
    engine misread the log, users of Delta Lake for Spark would miss rows, or would count withdrawn rows.
    """
    place = Place(ministack, overwrites=overwrites)
    with written(place) as table:
        while (newest := table.newest()) <= VERSIONS:
            assert table.is_written()
        prefix = table.source.location.layout.prefix
        for meta in list_all(place.store, prefix):
            found = place.store.get(meta.key)
            assert isinstance(found, StoredObject)
            file = tmp_path / meta.key.removeprefix(prefix)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(found.body)
    versions = [1, VERSIONS // 2, VERSIONS, newest]
    program = [
        sys.executable,
        "-m",
        "tests.support.programs.delta_spark",
        DELTA_SPARK[PYSPARK],
        str(tmp_path),
    ]
    ran = subprocess.run([*program, *map(str, versions)], capture_output=True, text=True, check=False)
    if ran.returncode and ":: problems summary ::" in ran.stderr:
        pytest.skip(f"Spark cannot get {DELTA_SPARK[PYSPARK]} here")
    assert ran.returncode == 0, ran.stderr[-3000:]
    for version, by_slot in json.loads(ran.stdout.splitlines()[-1]).items():
        ours = {str(slot): rows for slot, rows in of_slots(table.ours(int(version))).items()}
        assert by_slot == ours, version
