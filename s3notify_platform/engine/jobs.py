"""The port for work that runs on a cluster.

A Spark session implements the port; tests run the work in their own process.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from s3notify_platform.engine.commit.staged import Base
from s3notify_platform.engine.run_state import Run
from s3notify_platform.engine.stage.collect import StagedPart
from s3notify_platform.engine.values.slot_plan import Plan, SlotPlan
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry, TopicUser
from s3notify_platform.table.pinned_schema import TableSchema


class Jobs(Protocol):
    """The work that the engine gives to a cluster."""

    def plan(
        self,
        slots: Iterable[Slot],
        base: Base,
        *,
        entries: Sequence[Entry] | None = None,
        skip: frozenset[str] = frozenset(),
        user: TopicUser | None = None,
    ) -> Plan:
        """Compares bucket and committed states for `slots`, without the keys in `skip`.

        `entries`: the entries of these slots. Each key that may have changed is in one of these entries. Cost with
        `entries`: at most 1 HEAD for each key. If `entries` is None, the bucket is listed, with 1 LIST for each 1000
        objects of the source prefix (`listing_chains` has the other requests). The states are read by
        `StateReader.lookup` or `StateReader.columns`. `user`, for a listing: the table that will remove the entries
        after the commit. None if no entries are removed.
        """

    def choose_schema(self, busy: Sequence[SlotPlan], run: Run, known: TableSchema | None) -> TableSchema:
        """Returns the schema of the batch: declared, pinned (`known`), or inferred from a sample."""

    def widen_schema(
        self, schema: TableSchema, new_fields: Iterable[str], run: Run, known: TableSchema | None
    ) -> TableSchema:
        """Returns the schema with the new fields (`Outcome.new_fields`), or the unchanged schema if it cannot be
        widened.
        """

    def stage(
        self, busy: Sequence[SlotPlan], schema: TableSchema, run: Run, *, label: int
    ) -> list[StagedPart]:
        """Reads the planned splits and writes their rows to packs. Adds requests and times to `run.result`."""
