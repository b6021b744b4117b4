"""Acknowledges a run's slots: on the ack chain of its batch, and in the rescan backlog."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from s3notify_platform.engine.batch.batches import EVERYTHING, BatchPayload
from s3notify_platform.engine.batch.list_or_follow import note_writers
from s3notify_platform.engine.loop import Round
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.orchestration.partitions import SlotBatch
from s3notify_platform.orchestration.source_clients import SourceClients
from s3notify_platform.protocols.ack_chain import AlreadyFailed, Chain


@dataclass(slots=True, kw_only=True)
class Acknowledgement:
    """Stamps the rounds of one run on the ack chain of the run's batch, if the batch has a chain.

    `batch`: the request of the run. `chain`: the batch's chain, if a sensor opened it. `opened`: the payload that the
    sensor gave the chain. The chain of a batch of everything has a single child, not one for each slot. This child is
    stamped after the last round. The same stamp adds the failed slots as new children, so that the failed slots are
    requested again.
    """

    clients: SourceClients
    batch: SlotBatch
    chain: Chain | None
    opened: BatchPayload
    run_id: str
    _rounds: int = 0
    _bad: set[Slot] = field(default_factory=set)

    def stamp(self, done: Round) -> None:
        """Stamps the committed and reported slots of a round. First, slots that a listing has settled leave the rescan
        backlog.

        A crash between these two steps is harmless: the slots stay open, are requested again, and are then found
        unchanged. If the round reveals an unqueued writer, the writer is noted before the slots are stamped.
        """
        self._rounds += 1
        bad = done.bad()
        self._bad.update(bad)
        if self.chain is None:
            return
        note_writers(self.clients.backlog, self.opened.decision, unannounced=done.unannounced)
        if not self.batch.everything:
            good = set(done.good())
            self._settle(good)
            self._stamp(good.intersection(map(Slot, self.batch.slots)))

    def finish(self) -> None:
        """Stamps a batch of everything, which no single round completes."""
        if self.chain is not None and self.batch.everything:
            self._settle(set(self.clients.source.location.all_slots()) - self._bad)
            self._stamp((EVERYTHING,), starts=self._bad)

    def _settle(self, listed: set[Slot]) -> None:
        rescans = self.opened.rescans
        self.clients.backlog.settle({slot: rescans[str(slot)] for slot in listed if str(slot) in rescans})

    def _stamp(self, children: Iterable[int], starts: Iterable[Slot] = ()) -> None:
        if self.chain is not None and (names := [str(child) for child in sorted(children)]):
            operation = f"{self.run_id}/{self._rounds}"
            begun = [str(slot) for slot in sorted(starts)]
            # A stamp for slots adds no children to the chain. So a stamp of all the chain's children finishes the
            # chain.
            if not self.batch.everything and self.chain.children == {*names}:
                outcome = self.clients.chains.finish(self.chain, operation)
            else:
                outcome = self.clients.chains.stamp_children(self.chain, names, operation, starts=begun)
            if isinstance(outcome, AlreadyFailed):
                # The chain has already failed, because the sensor considered this run dead, or because a person retries
                # the run. The next batch then finds these slots done.
                done = map(Slot, map(int, names))
                self.clients.ask_again((slot for slot in done if slot != EVERYTHING), listing=False)
