"""How a run acknowledges its slots: on the ack chain of its batch, and in the rescan backlog."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from s3notify_platform.ingest.batches import BatchPayload
from s3notify_platform.ingest.follow import note_writers
from s3notify_platform.ingest.rounds import Round
from s3notify_platform.orchestration.partitions import SlotBatch
from s3notify_platform.orchestration.source_clients import SourceClients
from s3notify_platform.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRun:
    """A run over slots: what it is asked for, what the sensor saw when it opened the batch, and what to report.

    `metadata`: of the run as far as it has got, with its `seconds`.
    """

    batch: SlotBatch
    opened: BatchPayload
    metadata: Callable[[], dict[str, Any]]


@dataclass(slots=True, kw_only=True)
class Acknowledgement:
    """Stamps the rounds of one run on the chain of its batch, if it has one.

    A batch of everything has one child, which ends with the last round: in the same stamp the slots that failed
    begin, so that they are asked for again.
    """

    clients: SourceClients
    run: SlotRun
    run_id: str
    _rounds: int = 0
    _bad: set[Slot] = field(default_factory=set)

    def stamp(self, done: Round) -> None:
        """Stamp what is committed and reported of a round; what a listing has settled leaves the backlog.

        In this order: what a crash leaves open is asked for again, and in the backlog or not, it is found unchanged.
        Slots of writers that do not queue are in the backlog before the batch is done with them.
        """
        self._rounds += 1
        bad = done.bad()
        self._bad.update(bad)
        batch, opened = self.run.batch, self.run.opened
        if not batch.batch:
            return
        backlog = self.clients.backlog
        note_writers(backlog, opened.decision, unqueued=done.unqueued, unannounced=done.unannounced)
        if not batch.everything:
            good = {*done.good(), *done.unqueued}.difference(bad)
            self._settle(good)
            self._stamp(good.intersection(map(Slot, batch.slots)))

    def finish(self) -> None:
        """Stamp what no single round is done with: a batch of everything."""
        batch = self.run.batch
        if batch.batch and batch.everything:
            self._settle(set(self.clients.source.location.all_slots()) - self._bad)
            self._stamp(batch.children, starts=self._bad)

    def _settle(self, listed: set[Slot]) -> None:
        rescans = {Slot(int(slot)): serial for slot, serial in self.run.opened.rescans.items()}
        self.clients.backlog.settle({slot: serial for slot, serial in rescans.items() if slot in listed})

    def _stamp(self, children: Iterable[int], starts: Iterable[Slot] = ()) -> None:
        if names := [str(child) for child in sorted(children)]:
            self.clients.chains.stamp_children(
                self.run.batch.batch,
                names,
                operation_id=f"{self.run_id}/{self._rounds}",
                starts=[str(slot) for slot in sorted(starts)],
            )
