"""How a run acknowledges its slots: on the ack chain of its batch, and in the rescan backlog."""

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
    """Stamps the rounds of one run on the chain of its batch, if it has one.

    `batch`: what the run is asked for. `chain`: the batch's, if a sensor opened it. `opened`: what the sensor saw
    then. A batch of everything has one child, which ends with the last round: in the same stamp the slots that failed
    begin, so that they are asked for again.
    """

    clients: SourceClients
    batch: SlotBatch
    chain: Chain | None
    opened: BatchPayload
    run_id: str
    _rounds: int = 0
    _bad: set[Slot] = field(default_factory=set)

    def stamp(self, done: Round) -> None:
        """Stamp what is committed and reported of a round; what a listing has settled leaves the backlog.

        In this order: what a crash leaves open is asked for again, and in the backlog or not, it is found unchanged.
        That a writer does not queue is noted before the batch is done with the slots that show it.
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
        """Stamp what no single round is done with: a batch of everything."""
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
            # Slots begin no others.
            if not self.batch.everything and self.chain.children == {*names}:
                outcome = self.clients.chains.finish(self.chain, operation)
            else:
                outcome = self.clients.chains.stamp_children(self.chain, names, operation, starts=begun)
            if isinstance(outcome, AlreadyFailed):
                # The sensor had taken the run for dead, or a person retries it: the next batch finds that it is done.
                done = map(Slot, map(int, names))
                self.clients.ask_again((slot for slot in done if slot != EVERYTHING), listing=False)
