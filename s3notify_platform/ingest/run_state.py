"""What one run of an ingest is asked for, knows so far, and has spent."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from s3notify_platform.ingest.results import SlotResult
from s3notify_platform.protocols.notification_queue import Entry
from s3notify_platform.slots import Slot

Progress = Callable[[str], None]


@dataclass(slots=True)
class Spent:
    """Seconds of each phase, requests by kind, and tasks that staged slots."""

    seconds: dict[str, float] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    tasks: int = 0

    def took(self, phase: str, seconds: float) -> None:
        """Add to the seconds of a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def asked(self, requests: Iterable[tuple[str, int]]) -> None:
        """Add to the requests of each kind."""
        for kind, count in requests:
            self.requests[kind] = self.requests.get(kind, 0) + count


@dataclass(slots=True, kw_only=True)
class Run:
    """What one run of the engine knows so far."""

    batch: str
    run: str
    signals: Mapping[Slot, str]
    listing: bool
    only_found: bool
    last_attempt: frozenset[Slot]
    """Slots whose objects go to quarantine if their read fails."""
    entries: dict[Slot, Sequence[Entry]] = field(default_factory=dict)
    unqueued: set[Slot] = field(default_factory=set)
    unannounced: int = 0
    results: dict[Slot, SlotResult] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)
    conflicts: Counter[Slot] = field(default_factory=Counter)
    schema_added: dict[str, str] = field(default_factory=dict)
    known: set[Slot] = field(default_factory=set)
    """Slots that are known to have a commit (`CommittedSlots`)."""

    @property
    def skip(self) -> frozenset[str]:
        """Keys whose read failed: not tried again in this run, so that they stand in no other's way."""
        return frozenset(key for result in self.results.values() for key in result.failed_objects)
