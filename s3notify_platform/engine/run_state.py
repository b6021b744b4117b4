"""The state of one run of the engine while the run collects results, and the run's messages about its work."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from s3notify_platform.engine.values.results import BatchResult
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue.segments import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The work of a round that begins to read: its `objects` and `bytes`.

    `wanted`: the number of objects that must be read in this round and in later rounds; `done`: the number of objects
    that were read before.
    """

    objects: int
    bytes: int
    wanted: int
    done: int


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
    """Epoch of the topic whose entries the batch uses; "" if the batch uses no topic."""
    segments: Sequence[Segment] | None = None
    """Segments of the topic that were read before the first round, and that the first round uses."""
    seen_ms: int = 0
    code_version: str = ""
    """The version of the code that makes the run's rows; "" if it is unknown."""
    planned_ms: int = 0
    """The time at which the newest round's plan was ready."""
    result: BatchResult = field(default_factory=BatchResult)
    conflicts: Counter[Slot] = field(default_factory=Counter)
    confirmed: set[Slot] = field(default_factory=set)
    """Slots whose withdrawals a person has confirmed."""
    later: set[Slot] = field(default_factory=set)
    """Slots that an outage of the store has delayed. These slots are planned again after all other slots."""
    postponed: set[str] = field(default_factory=set)
    """Keys of the slots in `later`. These keys are read only after these slots are planned again."""
    logged: set[str] = field(default_factory=set)
    """Tracebacks that were logged before."""

    @property
    def skip(self) -> frozenset[str]:
        """Keys that must not be read now, because reads of these keys failed in this run, or are postponed. The run
        continues without these keys.
        """
        failed = (key for result in self.result.slots.values() for key in result.failed_objects)
        return frozenset(self.postponed.union(failed))
