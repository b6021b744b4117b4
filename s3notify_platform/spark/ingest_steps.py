"""The steps of `s3notify ingest` after a commit. The order of the steps is in `engine.loop`."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from s3notify_platform.engine.batch.list_or_follow import Decision, ask_again, note_writers
from s3notify_platform.engine.loop import Round
from s3notify_platform.engine.values.results import BatchResult, Progress, SlotResult
from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import Failed, RescanBacklog, Rescans
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.source.source import Source
from s3notify_platform.spark.failures import failure_of

UNREAD_SHOWN: Final = 5
"""At most this many keys of a slot's unreadable objects are logged."""


def in_background(seconds: float, action: Callable[[], None]) -> None:
    """Calls `action` in another thread after these seconds. After an error of the platform, calls `action` again
    later.
    """

    def act() -> None:
        try:
            action()
        except S3NotifyError:
            in_background(seconds, action)

    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def all_failed(slots: Sequence[Slot], error: Exception, *, progress: Progress) -> BatchResult:
    """Returns the result of slots whose ingest failed as a whole."""
    found = failure_of(error)
    if found.trace:
        progress(found.trace)
    failed = partial(SlotResult, status="failed", error=found.reason, trace=found.trace)
    return BatchResult(slots={slot: failed(slot=slot) for slot in slots})


@dataclass(slots=True, kw_only=True)
class IngestSteps:
    """The steps of one batch (`Steps`). `rescans`: the backlog, as it was read before the batch.

    `later`: calls the given function after the given number of seconds. `failed`: the slots that failed in this batch;
    empty before `note_open`.
    """

    source: Source
    backlog: RescanBacklog
    decision: Decision
    rescans: Rescans
    settings: BatchSettings
    clock: Clock
    progress: Progress
    later: Callable[[float, Callable[[], None]], None]
    failed: dict[Slot, Failed] = field(default_factory=dict)

    @property
    def slots(self) -> frozenset[Slot]:
        """The slots of the batch."""
        return (
            frozenset(self.source.location.all_slots()) if self.decision.everything else self.decision.slots
        )

    def ask_again(self, slots: Iterable[Slot]) -> None:
        """See `Steps`. Changes the slots' signals, so that each process sees that the slots need work."""
        ask_again(self.source.location, slots, listing=False, clock=self.clock)

    def note_writers(self, done: Round) -> None:
        """See `Steps`."""
        note_writers(self.backlog, self.decision, unannounced=done.unannounced)

    def note_open(self, done: Round) -> None:
        """See `Steps`. Failed slots are requested again after a backoff, also by this process."""
        self.backlog.add(done.incomplete())
        results = next(iter(done.results.values()), {})
        self.failed = {slot: self._failed(slot, results[slot]) for slot in done.bad()}
        if self.failed:
            wait_ms = min(one.not_before_ms for one in self.failed.values()) - self.clock.wall_ms()
            again = [*self.failed]
            self.later(max(0, wait_ms) / 1000, lambda: self.ask_again(again))
        ended = self.rescans.failed.keys() & self.slots - self.failed.keys()
        self.backlog.note_failed(self.failed, ended=ended)

    def settle(self, done: Round) -> None:
        """See `Steps`. Slots that were added after `rescans` was read stay in the backlog."""
        del done
        if self.decision.listing:
            self.backlog.settle(self.rescans.slots)

    def acknowledge(self, done: Round) -> None:
        """See `Steps`."""
        del done
        if self.decision.everything:
            self.backlog.enumerated(self.decision.topic)

    def _failed(self, slot: Slot, result: SlotResult) -> Failed:
        """The failure as the backlog keeps it: without keys. The process's own log has the keys."""
        before = self.rescans.failed.get(slot)
        attempts = before.attempts + 1 if before else 1
        self.progress(f"slot {slot}: {result.reason}")
        for key, reason in [*result.unread.items()][:UNREAD_SHOWN]:
            self.progress(f"slot {slot}: {key!r}: {reason}")
        wait_ms = int(self.settings.retry_seconds(attempts) * 1000)
        return Failed(
            attempts=attempts,
            not_before_ms=self.clock.wall_ms() + wait_ms,
            reason=result.reason,
            trace=result.first_trace,
        )
