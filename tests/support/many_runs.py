"""Many concurrent runs on one log. Each run does the work of a Dagster run for one slot of a slot asset, but without
Spark.

A run probes the store, opens both tables, stores its slot's pack, and commits. All runs are threads of one process,
which share their cache of the log. With Dagster's default launcher, each run is a process with its own cache. With
`processes`, each thread gets a cache of its own, as if each were a process.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, local
from unittest.mock import patch

import pyarrow as pa

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.source import location
from s3notify_platform.table.check import check_table
from s3notify_platform.table.log_table import SnapshotMemory
from s3notify_platform.table.snapshot import Snapshot
from tests.support.ingested import Place, derive

ROWS = 3


@contextmanager
def processes() -> Iterator[Callable[[], None]]:
    """Yields a function that gives the calling thread a cache of its own, as if the thread were a separate process."""
    process = local()
    with patch.object(location, "_memory", lambda *_: process.memory):
        yield lambda: setattr(process, "memory", SnapshotMemory())


def run_all(place: Place, begin: Callable[[], None] = lambda: None) -> tuple[Snapshot, float]:
    """Builds all slots at the same time, each in a thread that calls `begin` first.

    Checks that no row is lost or doubled. Returns the newest version, and the seconds that the builds took.
    """
    slots = place.source.location.all_slots()
    begin()
    source = place.source.settle_commit_mode(place.store)
    source.open_table()
    together = Barrier(len(slots) + 1)

    def run(slot: Slot) -> None:
        begin()
        rows = {"_slot": pa.array([slot] * ROWS, pa.int32()), "value": [f"{slot}-{n}" for n in range(ROWS)]}
        together.wait()
        source = place.source.settle_commit_mode(place.store)
        source.open_table()
        derive(source, "paid", pa.table(rows), {slot: 1})

    with ThreadPoolExecutor(len(slots)) as pool:
        running = [pool.submit(run, slot) for slot in slots]
        together.wait()
        began = time.perf_counter()
        for each in running:
            each.result()
        took = time.perf_counter() - began
    begin()
    table = source.table("paid")
    found = table.newest()
    assert isinstance(found, Snapshot)
    assert check_table(table, found).problems == ()
    groups = (group for pack in found.packs.values() for group in table.data.opened(pack).groups())
    values = sorted((row["_slot"], row["value"]) for group in groups for row in group.to_pylist())
    assert values == sorted((slot, f"{slot}-{n}") for slot in slots for n in range(ROWS))
    assert {slot: facts.rows for slot, facts in found.manifest.slots.items()} == dict.fromkeys(slots, ROWS)
    assert found.version <= len(slots), "only versions of the runs"
    return found, took
