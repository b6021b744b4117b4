"""The state of a source that is not in its commits: the slots that wait for a rescan, and the slots that have failed.

The state is one JSON record, changed by compare-and-set. Every change is idempotent, so a write whose outcome is
unknown is repeated.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import CorruptError, UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.limits import MAX_BACKLOG_REASON
from s3notify_platform.kernel.ports import Record, RecordStore
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.updates import CONTENDED_ATTEMPTS, Updates

UNQUEUED_SECONDS: Final = 3600.0
"""Seconds for which every signalled slot is listed after an unqueued writer was seen."""

PARTITION, TO_LIST = "enumerator", "to_list"

BACKLOG_TRACES_MAX: Final = 8
"""Number of failed slots whose traceback is kept, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A slot that failed `attempts` times in a row: the reason of the last failure, and the time of the next retry.

    `trace`: the traceback, if the error was unforeseen; kept for at most `BACKLOG_TRACES_MAX` slots.
    """

    attempts: int
    not_before_ms: int
    reason: str
    trace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescans:
    """Slots that need a rescan, each with the serial number of its last addition."""

    slots: Mapping[Slot, int] = field(default_factory=dict)
    unqueued_ms: int = 0
    """Time when an unqueued writer was last seen, by the wall clock; 0: never."""
    serial: int = 0
    enumerated: str = ""
    """The topic's epoch in which a stream has compared all slots; empty if no stream has done so. (A sensor keeps this
    epoch in its cursor.)
    """
    failed: Mapping[Slot, Failed] = field(default_factory=dict)
    """Slots that the last batch of `s3notify ingest` did not commit completely. (A sensor keeps its own failed slots.)
    """

    def unqueued_writers(self, now_ms: int) -> bool:
        """True if an unqueued writer was seen within `UNQUEUED_SECONDS`, by the wall clock. Pure."""
        return bool(self.unqueued_ms) and now_ms - self.unqueued_ms < UNQUEUED_SECONDS * 1000


class RescanBacklog:
    """The slots of a source that need a rescan. Thread-safe; any process may add and settle slots."""

    def __init__(self, records: RecordStore, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._records = records
        self._clock = clock
        self._updates = Updates(records, clock, rounds=CONTENDED_ATTEMPTS)

    def read(self) -> Rescans:
        """The stored backlog. Cost: 1 request. `CorruptError`, with the remedy, if the backlog cannot be decoded."""
        return _decoded(self._records.read(PARTITION, TO_LIST))

    def add(self, slots: Iterable[Slot], *, unqueued: bool = False) -> None:
        """Adds slots. `unqueued`: true if an unqueued writer was seen.

        Cost: 1 read and 1 write, more on conflicts; 0 if there is nothing to add.
        """
        wanted = set(slots)

        def add(rescans: Rescans) -> Rescans:
            serial = rescans.serial + 1
            unqueued_ms = self._clock.wall_ms() if unqueued else rescans.unqueued_ms
            slots = {**rescans.slots, **dict.fromkeys(wanted, serial)}
            return replace(rescans, slots=slots, unqueued_ms=unqueued_ms, serial=serial)

        if wanted or unqueued:
            self._change(add)

    def note_failed(self, failed: Mapping[Slot, Failed], *, ended: Iterable[Slot] = ()) -> None:
        """Records failed slots, which then wait for a rescan; forgets failures of `ended` slots. Cost: the requests of
        `add`.
        """
        done = frozenset(ended)

        def note(rescans: Rescans) -> Rescans:
            serial = rescans.serial + 1
            left = {slot: one for slot, one in rescans.failed.items() if slot not in done}
            left.update(failed)
            traced = [slot for slot in (*failed, *left) if left[slot].trace][:BACKLOG_TRACES_MAX]
            kept = {
                slot: replace(one, reason=_short(one.reason), trace=one.trace if slot in traced else "")
                for slot, one in left.items()
            }
            return replace(
                rescans, slots={**rescans.slots, **dict.fromkeys(failed, serial)}, serial=serial, failed=kept
            )

        if failed or done:
            self._change(note)

    def settle(self, slots: Mapping[Slot, int]) -> None:
        """Removes listed and committed slots, except slots that were added again meanwhile. Cost: the requests of
        `add`.
        """

        def remove(rescans: Rescans) -> Rescans:
            left = {slot: serial for slot, serial in rescans.slots.items() if slots.get(slot) != serial}
            return replace(rescans, slots=left)

        if slots:
            self._change(remove)

    def enumerated(self, epoch: str) -> None:
        """Stores the fact that all slots were compared and committed for this epoch of the topic. Requests: as in
        `add`.
        """
        self._change(lambda rescans: replace(rescans, enumerated=epoch))

    def _change(self, change: Callable[[Rescans], Rescans]) -> None:
        """Replaces the value with `change(value)`. Cost: 1 read, 1 write if the value differs; more on conflicts."""

        def decide(record: Record | None) -> tuple[bytes | None, None]:
            before = _decoded(record)
            if (after := change(before)) == before:
                return None, None
            return _json({"v": 1, **asdict(after)}), None

        try:
            self._updates.change(PARTITION, TO_LIST, decide)
        except UnknownOutcomeError as error:  # the change is idempotent, so the caller may repeat it
            raise UnavailableError(f"{error}: try again") from error


def _decoded(record: Record | None) -> Rescans:
    if record is None:
        return Rescans()
    try:
        body = json.loads(record.value)
        return Rescans(
            slots={Slot(int(slot)): int(serial) for slot, serial in body["slots"].items()},
            unqueued_ms=body["unqueued_ms"],
            serial=body["serial"],
            enumerated=body["enumerated"],
            failed={Slot(int(slot)): Failed(**one) for slot, one in body["failed"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"{PARTITION}/{TO_LIST} is unreadable: {record.value[:80]!r}: remove it"
        ) from error


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _short(reason: str) -> str:
    """The reason on one line, in at most `MAX_BACKLOG_REASON` bytes of JSON."""
    text = " ".join(reason.split())[:MAX_BACKLOG_REASON]
    while len(_json(text)) > MAX_BACKLOG_REASON:
        text = text[: -max(1, len(text) // 8)]
    return text
