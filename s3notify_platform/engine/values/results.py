"""The results of slots and of batches."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import quote

from s3notify_platform.formats.rescue import added
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry

SlotStatus = Literal["committed", "unchanged", "failed", "conflict"]
"""`conflict`: each commit of the slot failed because another run had committed the slot first."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotResult:
    """The result of one slot in a run.

    `generation`: the table version that last changed the slot; 0 if no table version has changed the slot. `objects`
    counts the objects that were read; `rows` and `rejects` count their records, before any transform. `without_records`
    counts the objects with bytes, but without rows and rejects. `live_rows` counts all rows of the slot after the
    commit. `failed_objects`: keys of objects whose read failed and that are not in quarantine, with the reason.
    `quarantined`: keys of objects whose read failed and that are in quarantine now. `unavailable`: keys that cannot be
    read because of an outage of the store; `outage`: an outage concerns the whole slot. `traces`: the tracebacks of
    unforeseen errors, by key; `trace`: the traceback of the slot's own error. `made_by`: the version of the code that
    made the slot's rows (`SlotFacts.made_by`). `source`: for a slot of a derived table, the generation of the source's
    slot from which the derived slot was made. `complete`: true if the run had enough time to read all of the slot; if
    false, request the slot again.
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
    """Number of values that have no column, by path.

    A declared schema drops these values; otherwise they are in `_rescued` or in quarantine.
    """
    mismatches: Mapping[str, int] = field(default_factory=dict)
    """Number of values that do not fit their columns, by path.

    The values are in `_rescued`, or in quarantine with their records.
    """
    broken: Mapping[str, int] = field(default_factory=dict)
    """Number of rows that broke a rule, by the rule's name.

    The rows are in quarantine; with `expect_warn`, they are in the table.
    """
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
        """True if all changes that were found are committed."""
        return self.status in ("committed", "unchanged") and not self.unread

    @property
    def unread(self) -> dict[str, str]:
        """The keys of all objects whose read failed, with the reason."""
        return {**self.failed_objects, **self.unavailable}

    @property
    def every_trace(self) -> dict[str, str]:
        """All tracebacks, by key. The traceback of the slot's own error has the key ""."""
        return {"": self.trace, **self.traces} if self.trace else {**self.traces}

    @property
    def reason(self) -> str:
        """The reason why the slot was not committed. The text names no keys of objects, because `erase` cannot remove
        keys from all places where the text is kept.
        """
        if self.error or not self.unread:
            return self.error or self.status
        first, *more = dict.fromkeys(without_key(reason, key) for key, reason in self.unread.items())
        others = f"; and for {len(more)} other reasons" if more else ""
        return f"{len(self.unread)} of its objects could not be read: {first}{others}"

    @property
    def first_trace(self) -> str:
        """The first traceback of the slot, without the key of its object; "" without an unforeseen error."""
        return next((without_key(trace, key) for key, trace in self.every_trace.items()), "")


@dataclass(slots=True, kw_only=True)
class BatchResult:
    """The results of a batch so far: its slots, the seconds of each phase, and the requests by kind.

    `entries`, `unannounced`: from the batch's plans (`Plan`). The entries of slots that are `ok` and `complete` must be
    removed. `schema_added`: the fields that the batch added to the table, with their types.
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
        """Adds `seconds` to the time of a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def counts(self) -> Counter[str]:
        """Returns numbers for metrics, by name: slots by status, objects, rows, …, requests, and milliseconds of each
        phase.
        """
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


def without_key(text: str, key: str) -> str:
    """Removes the object's key from a reason or a traceback, also where the key is quoted as in Python, JSON or a URL.
    Pure.
    """
    forms = {key, repr(key)[1:-1], json.dumps(key)[1:-1], json.dumps(key, ensure_ascii=False)[1:-1]}
    forms |= {quote(key, errors="replace"), quote(key, safe="", errors="replace")}
    for form in sorted(forms - {""}, key=len, reverse=True):
        text = text.replace(form, "…")
    return text


def without_keys(text: str, keys: Iterable[str]) -> str:
    """Removes the keys of several objects from a text. See `without_key`."""
    for key in sorted(set(keys), key=len, reverse=True):
        text = without_key(text, key)
    return text


def added_result(earlier: SlotResult | None, later: SlotResult) -> SlotResult:
    """Joins the results of a slot from two rounds of one run."""
    if earlier is None:
        return later
    failed = {**earlier.failed_objects, **later.failed_objects}
    traces = {**earlier.traces, **later.traces}
    if earlier.status != "committed":
        # The earlier round committed nothing, so no object of the slot went to quarantine.
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
