"""The port of what takes a cluster: a Spark session has it done, and tests do it in their own process."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from s3notify_platform.engine.commit.staged import Base
from s3notify_platform.engine.stage.collect import StagedPart
from s3notify_platform.engine.values.plan import Plan, SlotPlan
from s3notify_platform.engine.values.results import Run
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry, TopicUser
from s3notify_platform.table.pinned_schema import TableSchema


class Jobs(Protocol):
    """What the engine has a cluster do."""

    def plan(
        self,
        slots: Iterable[Slot],
        base: Base,
        *,
        entries: Sequence[Entry] | None = None,
        skip: frozenset[str] = frozenset(),
        user: TopicUser | None = None,
    ) -> Plan:
        """Compare bucket and committed state for `slots`, leaving out the keys of `skip`.

        `entries`: those of these slots, which name what may have changed: at most 1 HEAD for each key. None: by one
        LIST for each 1000 objects of the source prefix (`listing_chains` says what more). For the states
        `StateReader.lookup`, or `columns`. `user`: the table, if a listing's entries will be taken out once they are
        committed.
        """

    def choose_schema(self, busy: Sequence[SlotPlan], run: Run, known: TableSchema | None) -> TableSchema:
        """The schema of the batch: declared, pinned (`known`), or inferred from a sample."""

    def widen_schema(
        self, schema: TableSchema, new_fields: Iterable[str], run: Run, known: TableSchema | None
    ) -> TableSchema:
        """The schema with new fields (`Outcome.new_fields`); the same one if it cannot be widened."""

    def stage(
        self, busy: Sequence[SlotPlan], schema: TableSchema, run: Run, *, label: int
    ) -> list[StagedPart]:
        """Read what is planned, write it to packs. Adds what that took to `run.result`."""
