"""First job: which object versions the batch reads. Lists once, in one task; compares slot by slot, in tasks.

What reaches the driver is the batch: at most `max_objects` splits and keys that left (and one more for each
slot). The bucket's other objects pass through Spark's own shuffle, which spills, and never through the
driver.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from s3notify_platform.errors import CorruptError, S3NotifyError, UsageError
from s3notify_platform.ports import ETag
from s3notify_platform.protocols.source_enumerator import (
    Enumerator,
    ObjectVersion,
    SlotChanges,
    changes_of_slot,
)
from s3notify_platform.slots import Slot
from s3notify_platform.spark.source import Source
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.fast_store import shared_store
from s3notify_platform.table.commit import SlotCommit, SlotTable
from s3notify_platform.table.layout import Generation

HEADS_IN_FLIGHT: Final = 16
_PAGE: Final = 10_000
_LISTED: Final = pa.schema(
    [("slot", pa.int32()), ("key", pa.string()), ("etag", pa.string()), ("size", pa.int64())]
)
_LISTED_DDL: Final = "slot int, key string, etag string, size bigint"
_PLANNED: Final = pa.schema(
    [
        ("slot", pa.int32()), ("kind", pa.string()), ("key", pa.string()), ("etag", pa.string()),
        ("size", pa.int64()), ("generation", pa.int64()), ("complete", pa.bool_()),
    ]
)  # fmt: skip
_PLANNED_DDL: Final = (
    "slot int, kind string, key string, etag string, size bigint, generation bigint, complete boolean"
)
_COUNTS: Final = -1
"""In place of a slot, on rows that count requests: kind is the request's, size the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """What one slot needs, on top of which generation of its table."""

    changes: SlotChanges
    generation: Generation

    @property
    def slot(self) -> Slot:
        """The slot."""
        return self.changes.slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A batch's work, by slot, and what finding it cost.

    `listed` counts the objects now in each slot; `errors` are of slots whose state could not be read, and
    which therefore have no plan.
    """

    slots: dict[Slot, SlotPlan]
    requests: dict[str, int]
    listed: dict[Slot, int]
    errors: dict[Slot, str]


def plan(
    spark: SparkSession,
    source: Source,
    slots: Iterable[Slot],
    tasks: int,
    *,
    skip: frozenset[str] = frozenset(),
) -> Plan:
    """Compare bucket and committed state for `slots`, leaving out the keys of `skip`.

    Requests: one LIST for each 1000 objects of the source prefix, one LIST and more for the heads
    (`SlotTable.newest`), and for each committed slot 1 GET (and 1 GET of a state file, if it has one).
    """
    wanted = frozenset(slots)
    quota = max(1, -(-source.max_objects // max(1, len(wanted))))
    tasks = max(1, min(tasks, len(wanted)))
    planned = (
        spark.range(0, 1, 1, 1)
        .mapInArrow(_lister(source, wanted), _LISTED_DDL)
        .repartition(tasks, "slot")
        .sortWithinPartitions("slot")
        .mapInArrow(_comparer(source, quota, skip), _PLANNED_DDL)
        .toArrow()
        .to_pylist()
    )
    return _collected(planned)


def _collected(rows: list[dict[str, Any]]) -> Plan:
    result = Plan(slots={}, requests={}, listed={}, errors={})
    rows.sort(key=lambda row: row["slot"])
    for number, group in groupby(rows, key=lambda row: row["slot"]):
        slot = Slot(number)
        read: list[ObjectVersion] = []
        gone: list[str] = []
        head = None
        for row in group:
            if number == _COUNTS:
                result.requests[row["kind"]] = result.requests.get(row["kind"], 0) + row["size"]
            elif row["kind"] == "error":
                result.errors[slot] = row["key"]
            elif row["kind"] == "read":
                read.append(
                    ObjectVersion(slot=slot, key=row["key"], etag=ETag(row["etag"]), size=row["size"])
                )
            elif row["kind"] == "gone":
                gone.append(row["key"])
            else:
                head = row
        if head is None:
            continue
        changes = SlotChanges(slot=slot, read=tuple(read), gone=tuple(gone), complete=head["complete"])
        result.slots[slot] = SlotPlan(changes=changes, generation=Generation(head["generation"]))
        result.listed[slot] = head["size"]
    return result


Batches = Iterator[pa.RecordBatch]
_Listed = tuple[int, str | None, str | None, int]


def _lister(source: Source, wanted: frozenset[Slot]) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        for _ in batches:
            pass
        # One row without a key for each wanted slot, so that a slot whose objects are all gone is compared
        # too. Its size is the newest generation, or -1 if that is still to be asked for.
        platform = CountingStore(shared_store(source.platform))
        newest = source.table(store=platform).newest(wanted)
        page: list[_Listed] = []
        for slot in wanted:
            generation = newest[slot]
            page.append((slot, None, None, -1 if generation is None else generation))
        bucket = CountingStore(shared_store(source.bucket))
        for version in Enumerator(bucket, prefix=source.prefix, slots=source.slots).versions(wanted):
            page.append((version.slot, version.key, version.etag, version.size))
            if len(page) >= _PAGE:
                yield _listed_batch(page)
                page = []
        yield _listed_batch([*page, (_COUNTS, None, None, bucket.counts["LIST"] + platform.counts["LIST"])])

    return run


def _listed_batch(rows: list[_Listed]) -> pa.RecordBatch:
    columns: list[Any] = list(zip(*rows, strict=True))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _LISTED, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_LISTED)


@dataclass(slots=True)
class _Listing:
    """The objects of one slot as listed; `known` is its newest generation, -1 if that is not known."""

    slot: Slot
    versions: list[ObjectVersion]
    known: int = -1


def _comparer(source: Source, quota: int, skip: frozenset[str]) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        store = CountingStore(shared_store(source.platform))
        table = source.table(store=store)

        def compare(listing: _Listing) -> list[dict[str, Any]]:
            if listing.slot == _COUNTS:
                return [_row(_COUNTS, "LIST", size=listing.known)]
            try:
                head = _head(table, listing)
                states = table.states(head)
            except UsageError:
                raise
            except S3NotifyError as error:
                return [_row(listing.slot, "error", key=f"{type(error).__name__}: {error}")]
            committed = {
                # No object has the empty ETag: one whose rows another code version made is read again.
                key: state.etag if source.code_version in (None, state.code_version) else ETag("")
                for key, state in states.items()
            }
            versions = [version for version in listing.versions if version.key not in skip]
            gone = committed.keys() - {version.key for version in listing.versions}
            committed = {key: etag for key, etag in committed.items() if key not in skip or key in gone}
            changes = changes_of_slot(listing.slot, versions, committed, max_objects=quota)
            rows = [_row(listing.slot, "read", key=v.key, etag=v.etag, size=v.size) for v in changes.read]
            rows += [_row(listing.slot, "gone", key=key) for key in changes.gone]
            generation = head.generation if head else 0
            counted = len(listing.versions)
            return [
                *rows,
                _row(listing.slot, "head", generation=generation, complete=changes.complete, size=counted),
            ]

        with ThreadPoolExecutor(HEADS_IN_FLIGHT) as pool:
            window: list[_Listing] = []
            for listing in _by_slot(batches):
                window.append(listing)
                if len(window) >= HEADS_IN_FLIGHT * 4:
                    yield _planned_batch(pool.map(compare, window))
                    window = []
            yield _planned_batch(pool.map(compare, window))
        yield _planned_batch([[_row(_COUNTS, kind, size=count) for kind, count in store.counts.items()]])

    return run


def _head(table: SlotTable, listing: _Listing) -> SlotCommit | None:
    if listing.known == 0:
        return None
    if listing.known > 0:
        try:
            return table.read(listing.slot, Generation(listing.known))
        except CorruptError:
            pass  # vacuum took it, because a newer one exists; if none does, `head` says so
    return table.head(listing.slot)


def _planned_batch(results: Iterable[list[dict[str, Any]]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row for rows in results for row in rows], schema=_PLANNED)


def _row(slot: int, kind: str, **fields: Any) -> dict[str, Any]:
    blank = {"key": None, "etag": None, "size": 0, "generation": 0, "complete": True}
    return blank | {"slot": slot, "kind": kind} | fields


def _by_slot(batches: Batches) -> Iterator[_Listing]:
    current: _Listing | None = None
    for batch in batches:
        columns = (batch.column(n).to_pylist() for n in range(4))
        for slot, key, etag, size in zip(*columns, strict=True):
            if current is None or slot != current.slot:
                if current is not None:
                    yield current
                current = _Listing(slot, [])
            if key is None:
                current.known = size
            else:
                current.versions.append(ObjectVersion(slot=current.slot, key=key, etag=etag, size=size))
    if current is not None:
        yield current
