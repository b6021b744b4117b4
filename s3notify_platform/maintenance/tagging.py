"""Tags committed objects, so that lifecycle rules of their bucket may archive or delete them.

Guarantees. Exactly the committed object version is tagged. An object version is tagged only if it was read whole and
without rejects, because quarantined data may have to be read again. S3 has no conditional tagging, so only objects with
a version id are tagged; a bucket without versioning is refused at the beginning. A pass moves and deletes nothing. Tags
are not changes: their events are ignored, and ETags stay the same. If a pass is killed at any point, a repetition does
the rest. Several passes may run at the same time.

A record has a table version for each slot: objects that were read up to this version are tagged. The next pass tags
objects that were read for later versions. If the store was unavailable, or refused all tags, the next pass tries the
same slots again. If the store refused only some of the tags, the refused tags are counted, and are tried again only
after `tag_again`. If a lifecycle rule then removes an object, `on_delete` decides whether the object's rows leave the
table.

Requests of a pass: as for `LogTable.newest`, 1 read, and 1 GET of the bucket's versioning if a slot has changed. The
changed slots cost the requests of `StateReader.columns`; each object costs 1 HEAD, 1 GET and 1 PUT. Each group of
`SLOTS_AT_ONCE` slots costs 1 read and 1 write.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.engine.values.results import Progress, without_key
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import RefusedError, UnavailableError, UsageError
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.kernel.ports import ObjectStore, Record
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.task import Report
from s3notify_platform.protocols.updates import Updates
from s3notify_platform.source.location import Location
from s3notify_platform.source.source import Source
from s3notify_platform.stores.open_store import Tags, open_store, open_tags
from s3notify_platform.table.check import SLOTS_AT_ONCE
from s3notify_platform.table.manifest import Manifest
from s3notify_platform.table.open_table import OpenTable

PARTITION: Final = "tagged"
FAILURES_MAX: Final = 100
"""After this number of failures without a success, a pass sends no more requests. A permission may be missing, or the
store may be down.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagging:
    """The result of a pass. `counts`: the number of objects by outcome.

    The outcomes are `added`, `there` (already tagged), `gone` (replaced or deleted), `full` (has too many other tags),
    `unversioned` (older than the bucket's versioning), `refused`.
    """

    slots: int
    """The number of slots that have changed since the last pass."""
    left: int = 0
    """The number of these slots that are left for the next pass, because the time was up."""
    counts: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""
    """The store's reason for the first refused tag."""


def tag_committed(
    source: Source,
    *,
    seconds: float | None = None,
    objects: ObjectStore | None = None,
    tags: Tags | None = None,
    platform: ObjectStore | None = None,
    progress: Progress = lambda _: None,
    clock: Clock = SYSTEM_CLOCK,
) -> Tagging:
    """Sets the source's `committed_tags` on the objects that were committed since the last pass.

    `seconds`: after this time, the pass finishes its present slot, and ends. `objects`, `tags`, `platform`: stores to
    use instead of the source's own stores. `UsageError`: no `committed_tags`, or a bucket without versioning.
    `UnavailableError` is raised after all other work is done: repeat the call. Requests: see the module docstring.
    """
    _check_tags(source)
    tags = tags if tags is not None else open_tags(source.input.bucket)
    opened = source.open_table(create=False, store=platform)
    if not opened.id:
        return Tagging(slots=0)
    done = _Done(Updates(source.location.records(platform), clock), opened.id)
    manifest, reached, behind = _behind(opened, done)
    if behind:
        tags.check_versioned()
    # The order of the slots is random. In a fixed order, objects that always fail could end every pass early, and later
    # slots would never be tagged.
    behind.sort(key=lambda _: clock.random_bytes(8))
    table = source.table(store=platform, clock=clock)
    over = clock.monotonic() + seconds if seconds is not None else float("inf")
    one_pass = _Pass(source, objects if objects is not None else open_store(source.input.bucket), tags)
    looked = 0

    for start in range(0, len(behind), SLOTS_AT_ONCE):
        if looked and clock.monotonic() >= over:
            break
        some = behind[start:][:SLOTS_AT_ONCE]
        outcomes: dict[Slot, Counter[str]] = {}
        for slot, columns in table.states.columns(manifest.states, some):
            if outcomes and clock.monotonic() >= over:
                break
            outcomes[slot] = one_pass.tag(_committed(columns, done.generations.get(slot, 0)))
        taken = any(_TAKEN & found.keys() for found in outcomes.values())
        retry = {"unavailable"} if taken else {"unavailable", "refused"}
        done.note({slot: reached[slot] for slot, outcome in outcomes.items() if not retry & outcome.keys()})
        looked += len(outcomes)
        progress(f"{one_pass.counts['added']} objects tagged, in {looked} of {len(behind)} slots")
    if one_pass.unavailable:
        raise one_pass.unavailable[0]
    counts, refused = dict(one_pass.counts), next(iter(one_pass.refused), "")
    return Tagging(slots=len(behind), left=len(behind) - looked, counts=counts, refused=refused)


def _check_tags(source: Source) -> None:
    if not source.input.tags:
        raise UsageError(f"source {source.name!r} has no committed_tags: set them first")


def _behind(opened: OpenTable, done: "_Done") -> tuple[Manifest, dict[Slot, int], list[Slot]]:
    """The newest manifest, the generation of each slot in this manifest, and the slots that have changed since the last
    pass.
    """
    manifest = (
        opened.snapshot.manifest if opened.snapshot else Manifest(table=opened.id, version=-1, number=0)
    )
    reached = {slot: facts.generation for slot, facts in manifest.slots.items() if facts.generation}
    return manifest, reached, [slot for slot, n in reached.items() if n > done.generations.get(slot, 0)]


def to_be_tagged(source: Source, *, again: bool = False, clock: Clock = SYSTEM_CLOCK) -> tuple[int, int]:
    """The number of slots that have changed since the last pass, and the number of objects in these slots that
    `tag_committed` checks.

    `again`: counts the objects that a pass would check after a call of `tag_again`. `UsageError`: no `committed_tags`.
    Cost: the requests of `tag_committed` without the requests for objects.
    """
    _check_tags(source)
    opened = source.open_table(create=False)
    if not opened.id:
        return 0, 0
    done = _Done(Updates(source.location.records(), clock), opened.id)
    if again:
        done.generations = {}
    manifest, _, behind = _behind(opened, done)
    columns = source.table(clock=clock).states.columns(manifest.states, behind)
    return len(behind), sum(
        sum(1 for _ in _committed(states, done.generations.get(slot, 0))) for slot, states in columns
    )


def tag_again(
    location: Location,
    slots: Iterable[Slot],
    *,
    platform: ObjectStore | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Makes the next pass check all committed objects of these slots again. Cost: 3 reads, and 1 write."""
    if (known := location.known(store=platform).read()[0]) is not None:
        _Done(Updates(location.records(platform), clock), known.table).drop(slots)


def _committed(states: pa.RecordBatch, since: int) -> Iterator[tuple[str, str]]:
    """Key and ETag of each object that was read whole after version `since`, according to the label of its rows."""
    whole = pc.and_(
        states["reach_end"], pc.and_(pc.equal(states["reason"], ""), pc.equal(states["rejects"], 0))
    )
    new = pc.and_(pc.greater(states["until"], since), pc.invert(states["expired"]))
    found = states.filter(pc.and_(whole, new))
    return zip(found["key"].to_pylist(), found["etag"].to_pylist(), strict=True)


_TAKEN: Final = frozenset({"added", "there", "full"})
"""Outcomes that show that tags can be written."""


@dataclass(slots=True)
class _Pass:
    """The outcomes of the objects that this pass has checked."""

    source: Source
    objects: ObjectStore
    tags: Tags
    counts: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    unavailable: list[UnavailableError] = field(default_factory=list)

    def tag(self, committed: Iterable[tuple[str, str]]) -> Counter[str]:
        """Tags these objects; returns the number of objects by outcome."""
        outcomes = Counter(in_parallel(self._one, committed, REQUESTS_IN_FLIGHT))
        self.counts.update(outcomes)
        return outcomes

    def _one(self, key_and_etag: tuple[str, str]) -> str:
        failures = len(self.refused) + len(self.unavailable)
        if failures >= FAILURES_MAX and not _TAKEN & self.counts.keys():
            return "refused" if self.refused else "unavailable"
        try:
            return self._tag(*key_and_etag)
        except RefusedError as error:
            # AWS names the object in its refusal, and the text goes to logs, from which `erase` cannot remove keys.
            self.refused.append(without_key(str(error), key_and_etag[0]))
            return "refused"
        except UnavailableError as error:
            self.unavailable.append(error)
            return "unavailable"

    def _tag(self, key: str, etag: str) -> str:
        meta = self.objects.head(key)
        if meta is None or meta.etag != etag:
            return "gone"
        if meta.version_id in (None, "null"):  # Ceph returns None
            return "unversioned"
        return self.tags.add(key, meta.version_id, self.source.input.tags)


class _Done:
    """The generation up to which each slot of a table is tagged."""

    def __init__(self, updates: Updates, table_id: str) -> None:
        self._updates = updates
        self._table_id = table_id
        self.generations: Mapping[Slot, int] = {}
        self.note({})

    def note(self, reached: Mapping[Slot, int]) -> None:
        """Records that these slots are tagged up to these generations. If a later generation is already recorded, it
        stays.
        """
        self._change(lambda known: known | {slot: max(n, known.get(slot, 0)) for slot, n in reached.items()})

    def drop(self, slots: Iterable[Slot]) -> None:
        """Forgets these slots."""
        dropped = {*slots}
        self._change(lambda known: {slot: n for slot, n in known.items() if slot not in dropped})

    def _change(self, change: Callable[[dict[Slot, int]], dict[Slot, int]]) -> None:
        def decide(record: Record | None) -> tuple[bytes | None, dict[Slot, int]]:
            known = self._of(record)
            after = change(known)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TagCommitted:
    """The task: one pass. `again`: the pass checks all objects, not only objects of new commits."""

    source: Source
    again: bool = False
    progress: Progress = lambda _: None
    asks: ClassVar[str] = ""

    def plan(self) -> Report:
        """See `Task`. The count includes objects that are already tagged."""
        slots, objects = to_be_tagged(self.source, again=self.again)
        line = f"{slots} slots with new commits, {objects} objects"
        return Report(lines=(line,), document={"slots": slots, "objects": objects})

    def run(self) -> Report:
        """See `Task`."""
        location = self.source.location
        if self.again:
            tag_again(location, location.all_slots())
        done = tag_committed(self.source, progress=self.progress)
        counts = [f"{n} {what}" for what, n in done.counts.items()]
        line = "; ".join([f"{done.slots} slots with new commits", *counts])
        refused = (f"refused, like: {done.refused}",) if done.refused else ()
        return Report(lines=(line, *refused), document=asdict(done), left=bool(done.refused))
