"""Acknowledges a run's slots: on the ack chain of its batch, and in the rescan backlog."""

from collections.abc import Iterable
from dataclasses import dataclass

from s3notify_platform.engine.batch.batches import EVERYTHING, BatchPayload
from s3notify_platform.engine.batch.list_or_follow import note_writers
from s3notify_platform.engine.loop import Round
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.orchestration.partitions import SlotBatch
from s3notify_platform.orchestration.source_clients import SourceClients
from s3notify_platform.protocols.ack_chain import AlreadyFailed, Chain


@dataclass(slots=True, kw_only=True)
class Acknowledgement:
    """The steps of a Dagster run after a commit (`Steps`). If the run's batch has an ack chain, each round is stamped
    on this chain.

    A crash between `settle` and the stamp is harmless: the slots stay open, are requested again, and are then found
    unchanged.

    `batch`: the request of the run. `chain`: the batch's chain, if a sensor opened it. `opened`: the payload that the
    sensor gave the chain. If a batch compares everything, its chain has a single child instead of a child for each
    slot. This child is stamped after the last round. The same stamp adds the failed slots as new children, so that the
    failed slots are requested again.
    """

    clients: SourceClients
    batch: SlotBatch
    chain: Chain | None
    opened: BatchPayload
    run_id: str
    _stamps: int = 0

    def ask_again(self, slots: Iterable[Slot]) -> None:
        """See `Steps`."""
        self.clients.ask_again(slots, listing=self.opened.listing)

    def note_writers(self, done: Round) -> None:
        """See `Steps`."""
        if self.chain is not None:
            note_writers(self.clients.backlog, self.opened.decision, unannounced=done.unannounced)

    def note_open(self, done: Round) -> None:
        """See `Steps`. There is nothing to do: these slots stay open on the chain, and the sensor remembers
        failed slots.
        """

    def settle(self, done: Round) -> None:
        """See `Steps`. A batch that compares everything has compared all slots, including slots without a result."""
        if self.chain is not None:
            everything = self.batch.everything
            good = set(self.clients.source.location.all_slots()) if everything else set(done.good())
            rescans = self.opened.rescans
            listed = good.difference(done.bad())
            self.clients.backlog.settle({slot: rescans[str(slot)] for slot in listed if str(slot) in rescans})

    def acknowledge(self, done: Round) -> None:
        """See `Steps`. Stamps the committed and reported slots on the chain."""
        if self.batch.everything:
            self._stamp((EVERYTHING,), starts=done.bad())
        else:
            self._stamp({*done.good()}.intersection(map(Slot, self.batch.slots)))

    def _stamp(self, children: Iterable[int], starts: Iterable[Slot] = ()) -> None:
        if self.chain is not None and (names := [str(child) for child in sorted(children)]):
            self._stamps += 1
            operation = f"{self.run_id}/{self._stamps}"
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
