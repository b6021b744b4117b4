"""Implements `follow.Kind` for tables of newest rows."""

import json
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.delta.actions import MetaData, Protocol
from s3notify_platform.table.follow import Kind, Rebuilt, Step
from s3notify_platform.table.latest.latest_build import BuiltPart, facts_of, states_of
from s3notify_platform.table.latest.latest_definition import (
    LATEST_COLUMNS,
    MODIFIED,
    ORIGIN,
    Latest,
    newest_of,
)
from s3notify_platform.table.latest.latest_round import FollowingRound, Keys, key_changes, staged
from s3notify_platform.table.latest.ranks import object_key_of
from s3notify_platform.table.pinned_schema import NO_SCHEMA, TableSchema, described, schema_of
from s3notify_platform.table.proposal import Change
from s3notify_platform.table.round import RoundChange
from s3notify_platform.table.row_changes import Deletes, RowChanges
from s3notify_platform.table.snapshot import Snapshot
from s3notify_platform.table.state_changes import key_hash

COLLECTED_BYTES: Final = 64 << 20
"""When this number of Arrow bytes of rows is collected, all rows except the newest row of each key are dropped."""

KEY_MEMORY_BYTES: Final = 1200
"""The approximate number of bytes that a step and its commit need for each key, besides Arrow values."""

_NAMED: Final = pa.schema([LATEST_COLUMNS.field(name) for name in LATEST_COLUMNS.names[:3]])

_ORIGIN_TYPES: Final = {"_source_key": "string", "_source_offset": "long"}


class NewestJobs(typing.Protocol):
    """The work that needs all rows of the source's table, as of a snapshot."""

    def newest(self, latest: Latest, snapshot: Snapshot, label: int) -> Sequence[BuiltPart]:
        """Writes the newest row of each key, under this label. See `build_part`."""
        ...

    def search(self, latest: Latest, snapshot: Snapshot, keys: Keys) -> pa.Table:
        """Returns the newest rows of these keys, in the form of `newest_of`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRows(Kind):
    """A table of the newest row of each key. `jobs`: implements the work that needs all rows of the source."""

    latest: Latest
    jobs: NewestJobs

    @property
    def definition(self) -> str:
        """See `Kind`."""
        return self.latest.dumps()

    def check(self, columns: pa.Schema) -> None:
        """See `Kind`."""
        self.latest.check(columns)

    def schema(self, source: MetaData, *, created_ms: int, vectors: bool) -> tuple[MetaData, Protocol]:
        """See `Kind`."""
        rows = json.loads((schema_of(source) or NO_SCHEMA).rows)
        own = [
            {"name": name, "type": _ORIGIN_TYPES[name], "nullable": True, "metadata": {}}
            for name in ORIGIN.names
        ]
        columns = {"type": "struct", "fields": [*rows.get("fields", []), *own]}
        return described(TableSchema(rows=json.dumps(columns)), created_ms=created_ms, vectors=vectors)

    def changed(self, step: Step, feed: RowChanges) -> tuple[Change, int]:
        """See `Kind`. The number in the result is a number of keys."""
        search = partial(self.jobs.search, self.latest, step.target)
        found = key_changes(step.table, step.held, self._came(step, feed), self._left(step, feed), search)
        keys = sum(len(each.changes) for each in found.slots.values())
        change = FollowingRound(
            round=RoundChange(
                base=step.held,
                slots=found.slots,
                table=step.table,
                clock=step.clock,
                rows=staged(step.table, found.rows, step.label),
                metadata=step.metadata,
                protocol=step.protocol,
            ),
            follows=step.follows,
            note={**step.note, "rows": found.rows.num_rows, "keys": keys},
        )
        return change, keys

    def rebuild(self, step: Step) -> tuple[Change, int]:
        """See `Kind`. The number in the result is a number of keys."""
        parts: list[BuiltPart] = []
        if step.columns:
            parts += self.jobs.newest(self.latest, step.target, step.label)
        change = Rebuilt(
            base=step.held,
            packs=[pack for part in parts for pack in part.packs],
            slots=facts_of(parts),
            states=states_of(parts),
            follows=step.follows,
            metadata=step.metadata,
            protocol=step.protocol,
            now_ms=step.clock.wall_ms(),
            note={**step.note, "rows": sum(part.rows.total() for part in parts)},
        )
        return change, sum(part.keys.total() for part in parts)

    def _came(self, step: Step, feed: RowChanges) -> pa.Table:
        """Returns, for each key, the newest of the added rows."""
        found, waiting = self.latest.keyed_table(step.columns, ()), list[pa.RecordBatch]()
        for rows in (rows for share in feed.inserts() for rows in share.read(*step.place, step.columns)):
            waiting.append(self.latest.keyed(rows))
            if sum(each.nbytes for each in waiting) >= COLLECTED_BYTES:
                found, waiting = self._newest(step, found, waiting), []
        return self._newest(step, found, waiting)

    @staticmethod
    def _newest(step: Step, found: pa.Table, more: Sequence[pa.RecordBatch]) -> pa.Table:
        """Returns the newest row of each key in `found` and `more`."""
        newest = newest_of(pa.concat_tables([found, pa.Table.from_batches(more, found.schema)]))
        step.check(newest.nbytes + KEY_MEMORY_BYTES * newest.num_rows)
        return newest

    def _left(self, step: Step, feed: RowChanges) -> pa.Table:
        """Returns slot, key and rank of each row that left the source's table."""
        ranked = replace(self.latest, deleted=None)
        names = {*LATEST_COLUMNS.names, *ranked.key, *ranked.order_by, MODIFIED}
        needed = pa.schema([each for each in step.columns if each.name in names])
        # Erased objects have no task: the feed has no rows of them.
        shares = [share for share in feed.deletes() if isinstance(share, Deletes) and share.task is not None]
        rows = (rows for share in shares for rows in share.read(*step.place, needed))
        gone = (ranked.keyed(each).select(_NAMED.names) for each in rows)
        erased = self._erased(step, feed) if feed.erased else ()
        return pa.Table.from_batches(step.within(chain(gone, erased), per_row=KEY_MEMORY_BYTES), _NAMED)

    def _erased(self, step: Step, feed: RowChanges) -> Iterator[pa.RecordBatch]:
        """Yields the keys whose newest row was from an erased object.

        All states are read, because the feed has only the hashes of the erased objects' keys.
        """
        kinds = self.latest.order_types(step.columns)
        every = [*map(Slot, range(self.latest.slots))]
        for _, states in step.table.states.columns(step.held.manifest.states, every):
            ranks = states.column("etag").to_pylist()
            gone = pa.array(
                [key_hash(object_key_of(rank, kinds)) in feed.erased for rank in ranks], pa.bool_()
            )
            found = states.select(["slot", "key", "etag"]).filter(gone)
            yield found.rename_columns(_NAMED.names).cast(_NAMED)
