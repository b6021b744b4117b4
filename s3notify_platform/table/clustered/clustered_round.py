"""The next version of a clustered table: new rows are added, rows that left are withdrawn, small files are merged.

To find a row that left the source, the round reads the files whose statistics include the row's values (`bounds`).
These files are few, because the rows are sorted. The file that has the row is rewritten without this row, or a deletion
vector hides the row. Files of one size class are merged, as in other tables (`packs.rewrite_choice`), and their rows
are sorted together.

| after the round was planned, another writer … | then the round … |
|---|---|
| advanced the table to a later version of its source, or to another source | commits nothing |
| merged or rewrote files | searches the new files for the rows that left |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.clustered.bounds import files_of
from s3notify_platform.table.clustered.cluster_files import files
from s3notify_platform.table.clustered.cluster_order import Clustered
from s3notify_platform.table.delta import vectors
from s3notify_platform.table.delta.actions import Add, MetaData, Protocol
from s3notify_platform.table.delta.statistics import hidden as with_vector
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import Followed, SlotFacts
from s3notify_platform.table.packs.pack_set import PackChanges
from s3notify_platform.table.packs.rewrite_choice import Merge, compaction
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.snapshot import Snapshot

ALL: Final = Slot(0)
"""The manifest of a clustered table has all counts in this slot."""


@dataclass(slots=True, kw_only=True)
class ClusteredRound:
    """A round that was planned on the snapshot `base`. `came`: the new rows, sorted.

    `left`: the rows that left the source, with only `_key`, `_offset` and the columns of the order.
    """

    base: Snapshot
    table: LogTable
    clustered: Clustered
    came: pa.Table
    left: pa.Table
    follows: Followed
    metadata: MetaData | None
    protocol: Protocol | None
    clock: Clock
    note: Mapping[str, Any] = field(default_factory=dict)
    _new: list[tuple[Add, bytes]] | None = None

    def onto(self, base: Snapshot) -> Proposal | None:
        """See `Change`, and the list of cases in the module's docstring."""
        if base.table != self.base.table or base.manifest.follows != self.base.manifest.follows:
            return None
        live = {pack.path: pack for pack in base.packs.values()}
        hit = files_of(live.values(), self.left, self.clustered.columns) if self.left.num_rows else {}
        found = self._rewritten(live, hit)
        if (withdrawn := found.withdrawn.total()) != self.left.num_rows:
            raise CorruptError(
                f"{self.table.layout.prefix!r}: the table has only {withdrawn} of the {self.left.num_rows} rows that "
                "left the source: run `s3notify table check`; to make the table again, remove the table"
            )
        self._join(found)
        rows = base.manifest.slot(ALL).rows + self.came.num_rows - self.left.num_rows
        return Proposal(
            adds=tuple(found.adds),
            removes=tuple(found.removes),
            slots={ALL: SlotFacts(rows=rows)},
            follows=self.follows,
            metadata=self.metadata,
            protocol=self.protocol,
            files=found.files,
            note={**self.note, "slots": [ALL]},
        )

    def _rewritten(self, live: Mapping[str, Add], hit: Mapping[str, Any]) -> PackChanges:
        """Returns the changes to existing files: some files are merged, and other files lose rows."""
        found, hides = PackChanges(), self.table.data.vectors
        merges = compaction(live.values(), self.clustered.sizes, touched=() if hides else hit.keys())
        merged = {path for merge in merges for path in merge.paths}
        alone = [path for path in hit if path not in merged]
        for merge in merges:
            self._merge([live[path] for path in merge.paths], hit, merge, found)
        if hides:
            self._hide([live[path] for path in alone], hit, found)
        else:
            for path in alone:
                pack = live[path]
                self._merge(
                    [pack], hit, Merge(paths=(path,), size=0, since=pack.since, until=pack.until), found
                )
        return found

    def _merge(self, packs: Sequence[Add], hit: Mapping[str, Any], merge: Merge, found: PackChanges) -> None:
        """Rewrites these files as one file, or as several files, without the rows that left the source."""
        parts, withdrawn = [], 0
        for pack in packs:
            rows = pa.concat_tables(self.table.data.opened(pack).groups())
            if pack.path in hit:
                gone = _gone(rows, self.left.take(pa.array(hit[pack.path])))
                withdrawn += pc.sum(gone).as_py() or 0
                rows = rows.filter(pc.invert(gone))
            parts.append(rows)
        if len(packs) == 1 and not withdrawn and not packs[0].vector:
            return  # the file's bounds include rows that left, but the file has none of these rows
        found.withdrawn[ALL] += withdrawn
        now_ms, change = self.clock.wall_ms(), withdrawn > 0
        found.removes += [pack.removed(now_ms, data_change=change) for pack in packs]
        together = self.clustered.in_order(pa.concat_tables(parts, promote_options="default"))
        _write(self.table, self.clustered, together, merge, found, data_change=change)

    def _hide(self, packs: Sequence[Add], hit: Mapping[str, Any], found: PackChanges) -> None:
        """Hides the rows that left the source, by deletion vectors of these files."""
        hidden: dict[str, Any] = {}
        data, now_ms = self.table.data, self.clock.wall_ms()
        for pack in packs:
            opened = data.opened(pack)
            rows = opened.file.read(columns=["_key", "_offset"])
            gone = _gone(rows, self.left.take(pa.array(hit[pack.path])))
            places = np.flatnonzero(gone.to_numpy())
            before = opened.hidden if opened.hidden is not None else np.empty(0, dtype=np.int64)
            new = np.setdiff1d(places, before)
            if not len(new):
                continue
            found.withdrawn[ALL] += len(new)
            found.removes.append(pack.removed(now_ms))
            if len(new) + len(before) < pack.rows:
                hidden[pack.path] = np.sort(np.concatenate([before, new]))
        file = UUID(bytes=self.clock.random_bytes(16))
        encoded = vectors.encode(hidden, file=file)
        if encoded.body is not None:
            found.files[data.layout.file(vectors.path_of(file))] = encoded.body
        by_path = {pack.path: pack for pack in packs}
        found.adds += [with_vector(by_path[path], encoded.vectors[path]) for path in hidden]

    def _join(self, found: PackChanges) -> None:
        """Adds the new rows, in separate files."""
        data, label = self.table.data, self.base.version + 1
        if self._new is None:
            new = files(self.came, self.clustered)
            self._new = data.named(new, found, since=label, until=label)
        data.append(self._new, found)


def merged(table: LogTable, clustered: Clustered, packs: Sequence[Add]) -> PackChanges:
    """Merges files into one sorted file, or several full files, without the rows that vectors hide.

    Cost: 1 GET for each file.
    """
    rows = [pa.concat_tables(table.data.opened(pack).groups()) for pack in packs]
    together = clustered.in_order(pa.concat_tables(rows, promote_options="default"))
    since, until = min(pack.since for pack in packs), max(pack.until for pack in packs)
    found = PackChanges(
        removes=[pack.removed(table.data.clock.wall_ms(), data_change=False) for pack in packs]
    )
    merge = Merge(paths=(), size=0, since=since, until=until)
    _write(table, clustered, together, merge, found, data_change=False)
    return found


def _write(
    table: LogTable,
    clustered: Clustered,
    rows: pa.Table,
    merge: Merge,
    found: PackChanges,
    *,
    data_change: bool,
) -> None:
    """Makes files of these sorted rows, and adds them to `found`."""
    new = files(rows, clustered)
    named = table.data.named(new, found, since=merge.since, until=merge.until, data_change=data_change)
    table.data.append(named, found)


_PLACE: Final = pa.schema([("_key", pa.string()), ("_offset", pa.int64())])


def _gone(rows: pa.Table, left: pa.Table) -> pa.ChunkedArray:
    """Returns a mask of `rows`: true for each row that is also in `left`. Rows are compared by object and offset."""
    # Each place becomes a number: the number of its object, times the count of offsets, plus the number of its offset.
    # Files of other engines may have other text types, and columns that are not nullable.
    both = pa.concat_tables([each.select(_PLACE.names).cast(_PLACE) for each in (left, rows)])
    objects = pc.index_in(both["_key"], both["_key"][: left.num_rows].combine_chunks().unique())
    offsets, numbers = np.unique(both["_offset"].to_numpy(), return_inverse=True)
    places = pc.fill_null(objects, -1).to_numpy().astype(np.int64) * len(offsets) + numbers
    mask = np.isin(places[left.num_rows :], places[: left.num_rows])
    return pa.chunked_array([pa.array(mask)])
