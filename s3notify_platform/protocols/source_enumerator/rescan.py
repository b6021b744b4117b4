"""What a source keeps in addition to its commits: which slots wait for a rescan, and which were ever committed.

Each is one JSON record, changed by compare-and-set. Every change is idempotent, so a write in doubt is simply repeated.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Final, Generic, TypeVar

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import CorruptError, UnavailableError, UnknownOutcomeError
from s3notify_platform.ports import Record, RecordStore
from s3notify_platform.protocols.updates import Updates
from s3notify_platform.slots import Slot

UNQUEUED_SECONDS: Final = 3600.0
"""After an unqueued writer was seen, every signalled slot is listed for this long."""

ATTEMPTS: Final = 30

PARTITION, TO_LIST, COMMITTED = "enumerator", "to_list", "committed"

T = TypeVar("T")


class _Kept(Generic[T]):
    """One record of partition `enumerator`. Thread-safe; any process may change it."""

    key: ClassVar[str]
    remedy: ClassVar[str]
    """What a person does if it cannot be read."""
    empty: T
    """The value while there is no record."""

    def __init__(self, records: RecordStore, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._records = records
        self._clock = clock
        self._updates = Updates(records, clock, attempts=ATTEMPTS)

    def read(self) -> T:
        """The stored value. 1 request. `CorruptError`, with the remedy, if it cannot be read."""
        return self._decoded(self._records.read(PARTITION, self.key))

    def _change(self, change: Callable[[T], T]) -> None:
        """Replace the value by `change(value)`. 1 read, and 1 write if it differs; more on conflicts."""

        def decide(record: Record | None) -> tuple[bytes | None, None]:
            before = self._decoded(record)
            if (after := change(before)) == before:
                return None, None
            return json.dumps(self._dumps(after), separators=(",", ":")).encode(), None

        try:
            self._updates.change(PARTITION, self.key, decide)
        except UnknownOutcomeError as error:  # idempotent, so the caller may repeat it
            raise UnavailableError(f"{error}: try again") from error

    def _decoded(self, record: Record | None) -> T:
        if record is None:
            return self.empty
        try:
            return self._loads(json.loads(record.value))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(
                f"{PARTITION}/{self.key} holds {record.value[:80]!r}: {self.remedy}"
            ) from error

    def _dumps(self, value: T) -> dict[str, Any]:
        raise NotImplementedError

    def _loads(self, body: Any) -> T:
        """Inverse of `_dumps`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescans:
    """Slots that need a rescan, each with the serial number under which it was last added."""

    slots: Mapping[Slot, int] = field(default_factory=dict)
    unqueued_ms: int = 0
    """When an unqueued writer was last seen, by the wall clock; 0: never."""
    serial: int = 0
    enumerated: str = ""
    """Epoch of the topic for which a stream has compared everything. (A sensor keeps this in its cursor.)"""

    def unqueued_writers(self, now_ms: int) -> bool:
        """Whether an unqueued writer was seen within `UNQUEUED_SECONDS`; by the wall clock. Pure."""
        return bool(self.unqueued_ms) and now_ms - self.unqueued_ms < UNQUEUED_SECONDS * 1000


class RescanBacklog(_Kept[Rescans]):
    """Which slots of a source need a rescan. Thread-safe; any process may add and settle."""

    key = TO_LIST
    remedy = "remove it"
    empty = Rescans()

    def add(self, slots: Iterable[Slot], *, unqueued: bool = False) -> None:
        """Add slots. `unqueued`: an unqueued writer was seen.

        1 read and 1 write, more on conflicts; none if there is nothing to add.
        """
        wanted = set(slots)

        def add(rescans: Rescans) -> Rescans:
            serial = rescans.serial + 1
            unqueued_ms = self._clock.wall_ms() if unqueued else rescans.unqueued_ms
            slots = {**rescans.slots, **dict.fromkeys(wanted, serial)}
            return replace(rescans, slots=slots, unqueued_ms=unqueued_ms, serial=serial)

        if wanted or unqueued:
            self._change(add)

    def settle(self, slots: Mapping[Slot, int]) -> None:
        """Remove slots that were listed and committed. One that was added again since then stays. Requests as `add`."""

        def remove(rescans: Rescans) -> Rescans:
            left = {slot: serial for slot, serial in rescans.slots.items() if slots.get(slot) != serial}
            return replace(rescans, slots=left)

        if slots:
            self._change(remove)

    def enumerated(self, epoch: str) -> None:
        """Record that everything was compared and committed since the topic has this epoch. Requests as `add`."""
        self._change(lambda rescans: replace(rescans, enumerated=epoch))

    def _dumps(self, value: Rescans) -> dict[str, Any]:
        return {"v": 1, **asdict(value)}

    def _loads(self, body: Any) -> Rescans:
        slots = {Slot(int(slot)): int(serial) for slot, serial in body["slots"].items()}
        return Rescans(
            slots=slots,
            unqueued_ms=body["unqueued_ms"],
            serial=body["serial"],
            enumerated=body["enumerated"],
        )


class CommittedSlots(_Kept[frozenset[Slot]]):
    """Which slots of a source have a commit. Stored apart from the commits, so that missing commits are noticed.

    A slot is added after its first commit, and removed only by a person who accepts that it starts again. So a slot in
    it without a commit has lost its commits: there is no false alarm. If a run is killed before it has added a slot,
    the next run that finds its commit adds it. Until then a loss is not noticed; nor is it if this record is lost
    together with the commits. Read it before the table. Thread-safe; any process may add.
    """

    key = COMMITTED
    remedy = "restore it, or remove it: it is rebuilt from the slots that are committed now"
    empty = frozenset[Slot]()

    def add(self, slots: Iterable[Slot]) -> None:
        """Record that these have a commit. 1 read, and 1 write if one of them is new; more on conflicts."""
        if wanted := frozenset(slots):
            self._change(lambda known: known | wanted)

    def forget(self, slots: Iterable[Slot]) -> None:
        """Remove slots whose commits are missing, so that their objects are ingested again. Requests as `add`."""
        if wanted := frozenset(slots):
            self._change(lambda known: known - wanted)

    def _dumps(self, value: frozenset[Slot]) -> dict[str, Any]:
        # Bit n of the hexadecimal number is slot n: at most 250 digits.
        return {"v": 1, "slots": f"{sum(1 << slot for slot in value):x}"}

    def _loads(self, body: Any) -> frozenset[Slot]:
        bits = int(body["slots"], 16)
        return frozenset(Slot(slot) for slot in range(bits.bit_length()) if bits >> slot & 1)
