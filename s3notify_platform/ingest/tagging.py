"""Tags objects that are committed, so that lifecycle rules of their bucket may archive or delete them.

Guarantees. Tagged is exactly the version that was committed, whole and without rejects: what is in quarantine may have
to be read again. S3 knows no condition for tags, so only versions that have an id are tagged, and a bucket without
versions is refused before anything is. Nothing is moved or deleted here. Tags are no change: their events are ignored,
and no ETag moves. Killed anywhere, a repetition does the rest; several at once do no harm.

A slot is done up to a generation, which a record remembers; the states of later ones are tagged. Objects that a
lifecycle rule then removes leave the table, unless `on_delete` keeps their rows.

Requests of a pass: 2 GETs to open the table, 1 read, the LISTs of `SlotTable.newest`. For each slot with new commits 1
GET, and 1 for each page of its states; for each object 1 HEAD, 1 GET, 1 PUT. For each `SLOTS_AT_ONCE` slots 1 write.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import RefusedError, UsageError
from s3notify_platform.ingest.results import Progress
from s3notify_platform.ingest.source import Source
from s3notify_platform.parallel import in_parallel
from s3notify_platform.ports import ObjectStore, Record
from s3notify_platform.protocols.updates import Updates
from s3notify_platform.slots import Slot
from s3notify_platform.stores.s3.fast import shared_store
from s3notify_platform.stores.s3.tags import ObjectTags

PARTITION: Final = "tagged"
SLOTS_AT_ONCE: Final = 50
REQUESTS_IN_FLIGHT: Final = 16
REFUSALS_MAX: Final = 100
"""After so many, and nothing that was not refused, a pass asks no more: the permission is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagging:
    """What a pass did. `counts` of objects: `added`, `there` (were tagged before), `gone` (another version now, or
    none), `full` (have too many tags of others), `unversioned` (older than the bucket's versions), `refused`.
    """

    slots: int
    """With commits since the last pass."""
    counts: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""
    """Why the store refused the first of them."""


def tag_committed(
    source: Source,
    *,
    objects: ObjectStore | None = None,
    tags: ObjectTags | None = None,
    platform: ObjectStore | None = None,
    progress: Progress = lambda _: None,
    clock: Clock = SYSTEM_CLOCK,
) -> Tagging:
    """Tag what was committed since the last pass with the source's `committed_tags`.

    `objects`, `tags`, `platform`: stores to use instead of the source's own. `UsageError` without `committed_tags`, and
    for a bucket without versions; `UnavailableError`: repeat. Requests as in the module docstring.
    """
    if not source.input.tags:
        raise UsageError(f"source {source.name!r} has no committed_tags: set them first")
    objects = objects if objects is not None else shared_store(source.input.bucket)
    tags = tags if tags is not None else ObjectTags(source.input.bucket)
    if not (table_id := source.open_table(create=False, store=platform).id):
        return Tagging(slots=0)
    table = source.table(store=platform, clock=clock)
    done = _Done(Updates(source.location.records(platform), clock), table_id)
    newest = table.newest(source.location.all_slots())
    behind = [slot for slot, n in sorted(newest.items()) if n is None or n > done.generations.get(slot, 0)]
    counts, refusals, taken = Counter[str](), list[str](), set[str]()

    def tag(key_and_etag: tuple[str, str]) -> str:
        if len(refusals) >= REFUSALS_MAX and not taken:
            return "refused"
        try:
            outcome = _tag(source, objects, tags, *key_and_etag)
        except RefusedError as error:
            refusals.append(str(error))
            return "refused"
        taken.add(outcome)
        return outcome

    for start in range(0, len(behind), SLOTS_AT_ONCE):
        heads = table.heads(behind[start:][:SLOTS_AT_ONCE])
        reached: dict[Slot, int] = {}
        for slot, head in heads.items():
            committed = _committed(table.state_columns(head), done.generations.get(slot, 0))
            outcomes = in_parallel(tag, list(committed), REQUESTS_IN_FLIGHT)
            counts.update(outcomes)
            if head is not None and "refused" not in outcomes:  # what was refused is tried again
                reached[slot] = head.generation
        done.note(reached)
        progress(f"{counts['added']} objects tagged, of {start + len(heads)} of {len(behind)} slots")
    return Tagging(slots=len(behind), counts=dict(counts), refused=refusals[0] if refusals else "")


def _committed(states: pa.Table, since: int) -> Iterator[tuple[str, str]]:
    """Key and ETag of each object that a generation after `since` has read whole."""
    whole = pc.and_(
        states["reach_end"], pc.and_(pc.equal(states["reason"], ""), pc.equal(states["rejects"], 0))
    )
    new = pc.and_(pc.greater(states["until"], since), pc.invert(states["expired"]))
    found = states.filter(pc.and_(whole, new))
    return zip(found["key"].to_pylist(), found["etag"].to_pylist(), strict=True)


def _tag(source: Source, objects: ObjectStore, tags: ObjectTags, key: str, etag: str) -> str:
    meta = objects.head(key)
    if meta is None or meta.etag != etag:
        return "gone"
    if not meta.version_id:
        raise UsageError(
            f"bucket {source.input.bucket.bucket!r} has no versions, and a tag could come to a version that is not "
            "committed: enable its versioning, or leave out committed_tags"
        )
    if meta.version_id == "null":
        return "unversioned"
    return tags.add(key, meta.version_id, source.input.tags)


class _Done:
    """Up to which generation the slots of a table are tagged."""

    def __init__(self, updates: Updates, table_id: str) -> None:
        self._updates = updates
        self._table_id = table_id
        self.generations: Mapping[Slot, int] = {}
        self.note({})

    def note(self, reached: Mapping[Slot, int]) -> None:
        """Remember that these slots are done up to here; another process may have come further."""

        def decide(record: Record | None) -> tuple[bytes | None, dict[Slot, int]]:
            known = self._of(record)
            after = known | {slot: max(n, known.get(slot, 0)) for slot, n in reached.items()}
            body = {
                "v": 1,
                "table": self._table_id,
                "slots": {str(slot): n for slot, n in sorted(after.items())},
            }
            return (json.dumps(body, separators=(",", ":")).encode() if after != known else None), after

        self.generations, _ = self._updates.change(PARTITION, PARTITION, decide)

    def _of(self, record: Record | None) -> dict[Slot, int]:
        body = json.loads(record.value) if record is not None else {}
        slots: Iterable[tuple[str, int]] = body.get("slots", {}).items()
        return {Slot(int(slot)): int(n) for slot, n in slots} if body.get("table") == self._table_id else {}
