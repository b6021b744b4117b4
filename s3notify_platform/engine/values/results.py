"""The results of slots and of batches, and the state of a run until it has these."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from s3notify_platform.formats.rescue import added
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry
from s3notify_platform.protocols.notification_queue.segments import Segment

SlotStatus = Literal["committed", "unchanged", "failed", "conflict"]
"""`conflict`: at each attempt, another run had committed the slot first."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The work of a round that begins to read: its `objects` and `bytes`.

    `wanted`: the number of objects that are still to be read in all rounds; `done`: the number that was read before.
    """

    objects: int
    bytes: int
    wanted: int
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotResult:
    """The result of one slot in a run.

    `generation`: the version of the table that last changed the slot; 0 if no version has changed it. `rows` and
    `rejects` count the records of the `objects` that were read, before any transform. `without_records` counts the
    objects with bytes, but without rows and rejects. `live_rows` counts the slot's rows now. `failed_objects`: keys of
    objects whose read failed, with the reason; the other objects are committed. `quarantined` objects failed, too, and
    are in quarantine. `unavailable`: keys that an outage of the store made unreadable; `outage`: the same for the whole
    slot. `traces`: the tracebacks of unforeseen errors, by key; `trace`: the traceback of the slot's own error.
    `made_by`: the version of the code that made the slot's rows (`SlotFacts.made_by`). `source`: the generation of the
    source's slot that a derived slot was made from. `complete`: the run had the time to read everything; if false,
    request the slot again.
    """

    slot: Slot
    status: SlotStatus
    generation: int = 0
    objects: int = 0
    rows: int = 0
    rejects: int = 0
    gone: int = 0
    superseded: int = 0
    bytes: int = 0
    without_records: int = 0
    live_objects: int = 0
    live_rows: int = 0
    live_rejects: int = 0
    unnamed: Mapping[str, int] = field(default_factory=dict)
    """Values that the schema does not name, by path: dropped if it was declared, else in `_rescued` or quarantine."""
    mismatches: Mapping[str, int] = field(default_factory=dict)
    """Values that do not fit their columns, by path: they are in `_rescued`, or in quarantine with their records."""
    broken: Mapping[str, int] = field(default_factory=dict)
    """Rows that broke a rule, by the rule's name: they are in quarantine or, with `expect_warn`, still in the table."""
    live_failing: int = 0
    made_by: str = ""
    source: int = 0
    complete: bool = True
    failed_objects: Mapping[str, str] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    quarantined: Mapping[str, str] = field(default_factory=dict)
    traces: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    outage: bool = False
    trace: str = ""

    @property
    def ok(self) -> bool:
        """True if everything that was found is committed."""
        return self.status in ("committed", "unchanged") and not self.unread

    @property
    def unread(self) -> dict[str, str]:
        """The keys of all objects whose read failed, with the reason."""
        return {**self.failed_objects, **self.unavailable}

    @property
    def every_trace(self) -> dict[str, str]:
        """All tracebacks, by key; the traceback of the slot's own error has the key ""."""
        return {"": self.trace, **self.traces} if self.trace else {**self.traces}


@dataclass(slots=True, kw_only=True)
class BatchResult:
    """The results of a batch so far: its slots, the seconds of each phase, and the requests by kind.

    `entries` and the number `unannounced` are from its plans (`Plan`): remove the entries of slots that are `ok` and
    `complete`. `schema_added`: the fields that the batch added to the table, with their types.
    """

    slots: dict[Slot, SlotResult] = field(default_factory=dict)
    entries: dict[Slot, Sequence[Entry]] = field(default_factory=dict)
    unannounced: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    tasks: int = 0
    """Number of tasks that staged slots."""
    schema_added: Mapping[str, str] = field(default_factory=dict)

    def took(self, phase: str, seconds: float) -> None:
        """Adds to the seconds of a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def counts(self) -> Counter[str]:
        """Counts for metrics, by name: slots by status, objects, rows, …, requests, and milliseconds of each phase."""
        found = Counter({"batches": 1, "tasks": self.tasks, "unannounced": self.unannounced})
        for each in self.slots.values():
            found[f"slots_{each.status}"] += 1
            for name in ("objects", "rows", "rejects", "gone", "superseded", "bytes"):
                found[name] += getattr(each, name)
            found["objects_without_records"] += each.without_records
            found["objects_failed"] += len(each.unread)
            found["objects_quarantined"] += len(each.quarantined)
        found.update({f"requests_{kind.lower()}": number for kind, number in self.requests.items()})
        found.update({f"{phase}_ms": round(1000 * seconds) for phase, seconds in self.seconds.items()})
        return found

    def add(self, other: "BatchResult") -> None:
        """Adds the results of other slots of the batch."""
        self.slots |= other.slots
        self.entries |= other.entries
        self.unannounced += other.unannounced
        for phase, seconds in other.seconds.items():
            self.took(phase, seconds)
        self.requests.update(other.requests)
        self.tasks += other.tasks
        self.schema_added = {**self.schema_added, **other.schema_added}


@dataclass(slots=True, kw_only=True)
class Run:
    """The arguments of one run of the engine (`Ingest.rounds`), and its state so far."""

    batch: str
    run: str
    signals: Mapping[Slot, str]
    listing: bool
    only_found: bool
    last_attempt: frozenset[Slot]
    topic: str = ""
    """Epoch of the source's topic that the batch relies on; "" if it relies on no topic."""
    segments: Sequence[Segment] | None = None
    """Segments of the topic that were read already, for the first round."""
    seen_ms: int = 0
    code_version: str = ""
    """The version of the code that makes the run's rows; "" if it is unknown."""
    planned_ms: int = 0
    """The time at which the round's plan was ready."""
    result: BatchResult = field(default_factory=BatchResult)
    conflicts: Counter[Slot] = field(default_factory=Counter)
    confirmed: set[Slot] = field(default_factory=set)
    """Slots whose withdrawals a person has confirmed."""
    later: set[Slot] = field(default_factory=set)
    """Slots to plan again once nothing else is left to do, because the store was at fault."""
    postponed: set[str] = field(default_factory=set)
    """Keys in the slots of `later` that are not read before these slots are planned again."""
    logged: set[str] = field(default_factory=set)
    """Tracebacks that are in the log already."""

    @property
    def skip(self) -> frozenset[str]:
        """Keys that cannot be read now, or not in this run: the run continues without them."""
        failed = (key for result in self.result.slots.values() for key in result.failed_objects)
        return frozenset(self.postponed.union(failed))


def without_key(text: str, key: str) -> str:
    """A reason or a traceback with the object's key removed. Pure."""
    return text.replace(key, "…") if key else text


def added_result(earlier: SlotResult | None, later: SlotResult) -> SlotResult:
    """The sum of a slot's results in several rounds of one run."""
    if earlier is None:
        return later
    failed = {**earlier.failed_objects, **later.failed_objects}
    traces = {**earlier.traces, **later.traces}
    if earlier.status != "committed":
        # Nothing was committed, so no object of the slot went to quarantine.
        return replace(later, failed_objects=failed, traces=traces)
    if later.status == "unchanged":
        return replace(earlier, failed_objects=failed, traces=traces, unavailable=later.unavailable)
    return replace(
        later,
        objects=earlier.objects + later.objects,
        rows=earlier.rows + later.rows,
        rejects=earlier.rejects + later.rejects,
        gone=earlier.gone + later.gone,
        superseded=earlier.superseded + later.superseded,
        bytes=earlier.bytes + later.bytes,
        without_records=earlier.without_records + later.without_records,
        unnamed=added([earlier.unnamed, later.unnamed]),
        mismatches=added([earlier.mismatches, later.mismatches]),
        broken=added([earlier.broken, later.broken]),
        failed_objects=failed,
        traces=traces,
        quarantined={**earlier.quarantined, **later.quarantined},
    )
