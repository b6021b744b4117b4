"""Lists a source's bucket. The driver lists a small bucket. Spark tasks list a large bucket, as several parallel chains
of LISTs.

The keys at which the listing is cut into chains come from the source's table. A hash assigns keys to slots, so the
committed keys of one slot are a uniform sample of all keys. Without committed keys, there is only one chain. A single
chain is slow. But without committed keys, all objects must be read, too, which takes many times as long.

The driver reads the queue's entries before anything is listed. Tasks receive only the start of each chain.

Cost: 1 LIST for each 1000 objects, and the requests of `NotificationQueue.entries`. A listing by tasks also costs the
requests of `StateReader.columns` for `SAMPLE_SLOTS` slots, and 3 LISTs of `HANDOVER_KEYS` keys for each cut. In a
simulation, 1,000,000 keys were listed, with 150 ms for each LIST, and a sample of 4 slots gave the cuts. One chain took
1000 LISTs and 162 s, 8 chains took 1025 LISTs and 24 s, and 16 chains took 1054 LISTs and 13 s. The largest part was
1.07 times the mean.
"""

import pickle
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from s3notify_platform.engine.plan.compare import CHAINS_AT_ONCE, Start, listed_rows
from s3notify_platform.engine.values.task_rows import LISTED, Requests, WantedSlot
from s3notify_platform.kernel.errors import NotFoundError
from s3notify_platform.kernel.ports import ListedColumns
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry, TopicUser
from s3notify_platform.protocols.source_enumerator import choose_cuts, quantiles
from s3notify_platform.source.source import Source
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.snapshot import Snapshot

SAMPLE_SLOTS: Final = 4

DRIVER_OBJECTS: Final = 5_000
"""Maximum number of listed objects and of states that the driver handles alone.

A Spark job takes as long as several LISTs.
"""

CHAIN_OBJECTS: Final = 5_000
"""Minimum number of objects in a chain. A chain of this size takes 5 LISTs, and its cut takes 3 LISTs. A smaller bucket
is listed in one chain.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A listing that has begun: the rows so far, and the chains that each task must list.

    `is_small`: the listing is complete, and small enough for the driver to compare.
    """

    rows: Sequence[pa.RecordBatch]
    is_small: bool = False
    parts: Sequence[Sequence[Start]] = ()
    cuts: frozenset[str] = frozenset()

    @property
    def chains(self) -> int:
        """The number of chains in which the bucket is listed."""
        return max(1, sum(map(len, self.parts)))


def begin_listing(
    source: Source,
    wanted: frozenset[Slot],
    tasks: int,
    snapshot: Snapshot,
    table: LogTable,
    *,
    user: TopicUser | None = None,
) -> Listing:
    """Lists the first pages of the bucket, and divides the remaining keys among up to `tasks` Spark tasks.

    `user`: see `NotificationQueue.entries`.
    """
    bucket = CountingStore(open_store(source.input.bucket))
    # A slot without entries has a row, too. Without such a row, a slot whose objects were all deleted would not be
    # compared.
    by_slot: dict[Slot, list[Entry]] = {slot: [] for slot in sorted(wanted)}
    with suppress(NotFoundError):  # the source has no topic yet
        queue = source.location.queue(table.reader.store)
        for entry in queue.entries(source.name, by_slot, user=user):
            by_slot[Slot(entry.slot)].append(entry)
    rows = [
        LISTED.batch(
            WantedSlot(slot=slot, pickled=pickle.dumps(entries)) for slot, entries in by_slot.items()
        )
    ]
    objects = sum(facts.objects for facts in snapshot.manifest.slots.values())
    pages = [bucket.list(source.input.prefix)]
    while (token := pages[-1].next_token) and max(objects, 1000 * len(pages)) < DRIVER_OBJECTS:
        pages.append(bucket.list(source.input.prefix, token=token))
    enumerator = source.enumerator(bucket)
    for page in pages:
        rows += listed_rows(source, enumerator, ListedColumns.of(page.objects), wanted)
    parts: list[list[Start]] = []
    cuts: frozenset[str] = frozenset()
    if token is not None:
        listed = frozenset(meta.key for page in pages for meta in page.objects)
        sample = quantiles_of(table, snapshot, tasks * CHAINS_AT_ONCE, listed)
        cuts = frozenset(choose_cuts(bucket, source.input.prefix, sample)) - listed
        starts = [Start(token=token), *(Start(after=cut) for cut in sorted(cuts))]
        tasks = min(tasks, len(starts))
        parts = [starts[len(starts) * n // tasks : len(starts) * (n + 1) // tasks] for n in range(tasks)]
    rows.append(LISTED.batch([Requests(requests=bucket.counts)]))
    is_small = token is None and objects <= DRIVER_OBJECTS
    return Listing(rows=rows, is_small=is_small, parts=parts, cuts=cuts)


def quantiles_of(table: LogTable, snapshot: Snapshot, most: int, listed: frozenset[str]) -> list[str]:
    """Returns keys that cut the remaining listing into up to `most` equal parts, one for each chain; [] without a
    sample.
    """
    held = [slot for slot, facts in snapshot.manifest.slots.items() if facts.objects][:SAMPLE_SLOTS]
    objects = sum(facts.objects for facts in snapshot.manifest.slots.values())
    parts = min(most, objects // CHAIN_OBJECTS)
    if not held or parts < 2:
        return []
    keys: set[str] = set()
    for _, columns in table.states.columns(snapshot.manifest.states, held):
        keys.update(columns.column("key").to_pylist())
    return quantiles(keys - listed, parts)
