"""What a stream has read, and what it is about to: its offset, the plans of its micro-batches, its state on the bucket.

`spark.datasource.stream` says how they work together.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from s3notify_platform.clock import Clock
from s3notify_platform.errors import ConflictError, CorruptError, UnavailableError, UsageError
from s3notify_platform.ingest.compare import IN_FLIGHT
from s3notify_platform.ingest.fetch import windows
from s3notify_platform.ingest.row_schema import json_of, of_json
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.wire import QueuedEntry
from s3notify_platform.ports import ObjectStore, StoredObject, Written
from s3notify_platform.protocols.keyspace import DIGEST_BYTES, NEVER_SEEN, Watcher
from s3notify_platform.protocols.source_enumerator import ObjectState, ObjectVersion
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotCommit, SlotTable
from s3notify_platform.table.layout import Generation, TableLayout
from s3notify_platform.table.states import States

UNSIGNALLED: Final = b"\xff" * DIGEST_BYTES
"""In place of a digest: the slot was read when it had no signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """How far a stream is. `plan` is its last one's name, "" before the first; `number` counts plans."""

    digests: bytes
    stream: str = ""
    number: int = 0
    plan: str = ""
    epoch: str = ""
    """The life of the topic whose entries are followed; "": the bucket is listed."""
    place: str = ""
    """Where the objects are, as a URL."""
    heads: tuple[int, ...] = ()
    """By slot, the generation that its state has once the plan is done; 0: none."""

    def dumps(self) -> dict[str, Any]:
        """As Spark writes it to the checkpoint."""
        return {**asdict(self), "digests": b64encode(self.digests).decode("ascii")}

    @classmethod
    def loads(cls, body: Mapping[str, Any], slots: int) -> Self:
        """Inverse of `dumps`; `CorruptError` for anything else, `UsageError` if it is of another number of slots."""
        try:
            digests = b64decode(body["digests"], validate=True)
            offset = cls(**{**body, "digests": digests, "heads": tuple(body["heads"])})
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"not an offset of this format: {str(body)[:80]}") from error
        if len(digests) != DIGEST_BYTES * slots:
            raise UsageError(
                f"the checkpoint is of {len(digests) // DIGEST_BYTES} slots, the source has {slots}: they "
                "cannot change; begin with another checkpoint"
            )
        return offset

    def planned(self, slots: "Iterable[SlotWork]") -> tuple[int, ...]:
        """`heads` with those that a plan of these slots makes."""
        heads = [*self.heads]
        for work in slots:
            heads += [0] * (work.slot + 1 - len(heads))
            heads[work.slot] = work.generation + 1
        return tuple(heads)

    def advanced(self, slots: Iterable[Slot], target: bytes) -> bytes:
        """The digests, with those of `slots` as in `target`."""
        vector = bytearray(self.digests)
        for slot in slots:
            vector[DIGEST_BYTES * slot : DIGEST_BYTES * (slot + 1)] = digest_at(target, slot)
        return bytes(vector)


def changed_between(start: bytes, end: bytes) -> list[Slot]:
    """The slots whose digests differ. Pure."""
    slots = range(len(end) // DIGEST_BYTES)
    return [Slot(slot) for slot in slots if digest_at(start, slot) != digest_at(end, slot)]


def digest_at(digests: bytes, slot: int) -> bytes:
    """A slot's digest. Pure."""
    return digests[DIGEST_BYTES * slot : DIGEST_BYTES * (slot + 1)]


def seen_of(watcher: Watcher) -> bytes:
    """The digests of all slots that a watcher has seen; those without a signal have one as well. Pure."""
    digests = watcher.state.digests
    seen = (digest_at(digests, slot) for slot in range(len(digests) // DIGEST_BYTES))
    return b"".join(UNSIGNALLED if digest == NEVER_SEEN else digest for digest in seen)


# Plans


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWork:
    """What one micro-batch does to a slot, on top of which generation of its states.

    `gone`: versions that no longer hold, as (key, etag). `objects`: how many the stream then knows of.
    """

    slot: Slot
    generation: Generation
    read: tuple[ObjectVersion, ...] = ()
    gone: tuple[tuple[str, str], ...] = ()
    objects: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """One micro-batch."""

    name: str
    slots: tuple[SlotWork, ...]
    topic: str = ""
    entries: tuple[QueuedEntry, ...] = ()
    """Of the topic, that were there before the bucket was looked at: removed when the batch is done."""

    @classmethod
    def loads(cls, body: bytes) -> Self:
        """From the JSON that `StreamState.pin` stores; `CorruptError` for anything else."""
        try:
            found: Self = of_json(cls, json.loads(body))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"not a plan of a stream: {body[:80]!r}") from error
        return found


@dataclass(slots=True, kw_only=True)
class StreamState:
    """What a stream has read, and what it is about to, on the bucket."""

    source: Source
    stream: str
    store: ObjectStore
    clock: Clock
    table: SlotTable = field(init=False)
    _plans: dict[str, StreamPlan] = field(default_factory=dict)
    _done: str = ""

    def __post_init__(self) -> None:
        layout = TableLayout(prefix=f"{self.source.location.platform_prefix}streams/{self.stream}/")
        self.table = self.source.table(layout, store=self.store, clock=self.clock, table_id=self.stream)

    def _key(self, name: str) -> str:
        return f"{self.table.layout.prefix}plans/{name}.json"

    def pin(self, plan: StreamPlan) -> None:
        """Make a plan durable, under a name of its own: that only the offset which names it counts. 1 PUT."""
        if not isinstance(outcome := self.store.put(self._key(plan.name), json_of(plan).encode()), Written):
            raise UnavailableError(f"plan {plan.name}: {outcome}")
        self._plans = {plan.name: plan}

    def plan(self, name: str) -> StreamPlan | None:
        """The plan, None if it was settled and removed. 1 GET, unless this process made it."""
        if name not in self._plans:
            found = self.store.get(self._key(name))
            if not isinstance(found, StoredObject):
                return None
            self._plans = {name: StreamPlan.loads(found.body)}
        return self._plans[name]

    def states(
        self, heads: Mapping[Slot, SlotCommit | None], keys: Mapping[Slot, Collection[str]]
    ) -> Iterator[tuple[Slot, States]]:
        """What is known of the objects of these slots, or of the `keys` of some, slot by slot."""
        for part in windows(heads, most=IN_FLIGHT):
            found = self._each(lambda slot: self.table.states(heads[slot], keys.get(slot)), part)
            yield from zip(part, found, strict=True)

    def check(self, offset: Offset, heads: Mapping[Slot, SlotCommit | None]) -> None:
        """`CorruptError` if the states are not those that the checkpoint was written with."""
        known = dict(enumerate(offset.heads))
        at = {slot: head.generation if head else 0 for slot, head in heads.items()}
        if missing := sorted(slot for slot in at if at[slot] < known.get(slot, 0)):
            raise CorruptError(
                f"commits of slots {missing} are gone from {self.table.layout.all_commits!r}, the state of stream "
                f"{self.stream}: rows would be given again; restore it, or begin with a new checkpoint, which reads "
                "everything"
            )
        newest = max((_number(head.batch) for head in heads.values() if head), default=0)
        if newest > offset.number:
            raise CorruptError(
                f"stream {self.stream} has gone on to batch {newest}, and its checkpoint is of {offset.number}: "
                "an older copy? Rows would be missing; begin with a new checkpoint, which reads everything"
            )
        if (
            offset.number
            and not newest
            and not self.store.list(self.table.layout.all_commits, limit=1).objects
        ):
            raise CorruptError(
                f"the state of stream {self.stream} below {self.table.layout.prefix!r} is gone: restore it, or "
                "begin with a new checkpoint, which reads everything"
            )

    def settle(self, name: str) -> None:
        """The micro-batch of this plan is done: commit its states, then remove the plan. May be repeated.

        Requests: none if this process did it; else as `heads`, 1 PUT for each slot (and folded state pages) and 1
        DELETE; 1 GET if that was done before. `ConflictError` if another query moved the states.
        """
        if name in ("", self._done):
            return
        if (plan := self.plan(name)) is not None:
            heads = self.table.heads([work.slot for work in plan.slots])
            planned_at = self.clock.monotonic()
            list(self._each(lambda w: self._settle(plan, w, heads[w.slot], planned_at), plan.slots))
            if plan.entries:
                entries = [each.entry(plan.topic) for each in plan.entries]
                self.source.location.queue(self.store).remove(entries)
            self.store.delete(self._key(name))
        self._done, self._plans = name, {}

    def _settle(self, plan: StreamPlan, work: SlotWork, head: SlotCommit | None, planned_at: float) -> None:
        if head is not None and head.batch == plan.name:
            return
        moved = ConflictError(
            f"slot {work.slot} of stream {self.stream} was moved on by another query: stop one"
        )
        if (head.generation if head else 0) != work.generation:
            raise moved
        generation = Generation(work.generation + 1)
        read = {
            v.key: ObjectState(
                key=v.key, etag=v.etag, size=v.size, offset=v.size, since=generation, until=generation
            )
            for v in work.read
        }
        gone = [ObjectState(key=key, etag="", size=0, gone=True) for key, _ in work.gone if key not in read]
        commit = SlotCommit.after(
            head,
            work.slot,
            batch=plan.name,
            clock=self.clock,
            states=self.table.carry(work.slot, head, [*read.values(), *gone]),
            objects=work.objects,
        )
        if not isinstance(self.table.commit(commit.staged(), planned_at=planned_at), Written):
            newest = self.table.head(work.slot)
            if newest is None or newest.batch != plan.name:
                raise moved

    def _each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            return list(pool.map(function, items))


def _number(plan: str) -> int:
    return int(plan.partition("-")[0])
