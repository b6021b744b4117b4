"""Implements `follow.Kind` for clustered tables, which have the rows of their source in another order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import pyarrow as pa

from s3notify_platform.table.clustered.bounds import files_of
from s3notify_platform.table.clustered.cluster_order import FILE_BYTES, Clustered
from s3notify_platform.table.clustered.clustered_round import ALL, ClusteredRound
from s3notify_platform.table.delta import actions
from s3notify_platform.table.delta.actions import MetaData
from s3notify_platform.table.feed import NoFeedError
from s3notify_platform.table.follow import Kind, Rebuilt, Step
from s3notify_platform.table.manifest import SlotFacts
from s3notify_platform.table.packs.pack_set import StagedPack
from s3notify_platform.table.pinned_schema import NO_SCHEMA, TableSchema, described, schema_of
from s3notify_platform.table.proposal import Change
from s3notify_platform.table.row_changes import RowChanges
from s3notify_platform.table.snapshot import Snapshot

PLACE: Final = ("_key", "_offset")

COPIES: Final = 4
"""The number of copies of a step's rows in memory: the rows as read, sorted and combined, and the files in the making.
"""


class ClusterJobs(Protocol):
    """The work that needs all rows of the source's table, as of a snapshot."""

    def clustered(self, clustered: Clustered, snapshot: Snapshot, label: int) -> Sequence[StagedPack]:
        """Writes all rows, sorted as in `clustered`, under this label. The files are stored when the call returns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteredRows(Kind):
    """A table with the rows of its source, sorted by some columns. `jobs`: implements the work that needs all rows of
    the source.
    """

    clustered: Clustered
    jobs: ClusterJobs

    @property
    def definition(self) -> str:
        """See `Kind`."""
        return self.clustered.dumps()

    def check(self, columns: pa.Schema) -> None:
        """See `Kind`."""
        self.clustered.check(columns)

    def schema(
        self, source: MetaData, *, created_ms: int, vectors: bool
    ) -> tuple[MetaData, actions.Protocol]:
        """See `Kind`."""
        rows = (schema_of(source) or NO_SCHEMA).rows
        metadata, protocol = described(TableSchema(rows=rows), created_ms=created_ms, vectors=vectors)
        properties = {**metadata.configuration, FILE_BYTES: str(self.clustered.file_bytes)}
        return replace(metadata, configuration=properties), protocol

    def changed(self, step: Step, feed: RowChanges) -> tuple[Change, int]:
        """See `Kind`. The number in the result is a number of rows."""
        if feed.erased:
            raise NoFeedError("objects were erased, and the feed does not say which rows they had")
        came = (rows for share in feed.inserts() for rows in share.read(*step.place, step.columns))
        added = pa.Table.from_batches(step.within(came, copies=COPIES), step.columns)
        needed = pa.schema([each for each in step.columns if each.name in (*PLACE, *self.clustered.columns)])
        gone = (rows for share in feed.deletes() for rows in share.read(*step.place, needed))
        left = pa.Table.from_batches(step.within(gone, copies=COPIES), needed)
        if left.num_rows and not step.table.data.vectors:
            # If files lose rows, the commit holds the new bodies of all these files in memory.
            packs = step.held.packs.values()
            hit = files_of(packs, left, self.clustered.columns)
            step.check(sum(pack.size for pack in packs if pack.path in hit))
        change = ClusteredRound(
            base=step.held,
            table=step.table,
            clustered=self.clustered,
            came=self.clustered.in_order(added),
            left=left,
            follows=step.follows,
            metadata=step.metadata,
            protocol=step.protocol,
            clock=step.clock,
            note={**step.note, "rows": added.num_rows, "rows_left": left.num_rows},
        )
        return change, added.num_rows + left.num_rows

    def rebuild(self, step: Step) -> tuple[Change, int]:
        """See `Kind`. The number in the result is a number of rows."""
        packs = self.jobs.clustered(self.clustered, step.target, step.label) if step.columns else ()
        rows = sum(pack.add.rows for pack in packs)
        change = Rebuilt(
            base=step.held,
            packs=packs,
            slots={ALL: SlotFacts(rows=rows)} if rows else {},
            follows=step.follows,
            metadata=step.metadata,
            protocol=step.protocol,
            now_ms=step.clock.wall_ms(),
            note={**step.note, "rows": rows},
        )
        return change, rows
