"""Checks a table: its log, its packs and the states of its objects must agree.

The check covers these points, for rows and for rejects:

    - Each version follows the version before it.
    - Each file that the snapshot names exists, and has as many rows as the log says.
    - Each object has as many rows as its state says. The rows have the ETag that the state says, and are in packs with
      the labels that the state says. Each record has at most one row, but a transform may make several rows of one
      record. All rejects of a record are in one pack.
    - The counts of each slot are the sums over the states of the slot's objects.

Clustered tables, and the tables of slot assets, have no states. Each slot of a slot asset must have as many rows as the
manifest says, in packs whose bounds include the slot. A clustered table must have as many rows as the manifest says.

Requests:

    - 1 LIST for each 1000 versions, and 1 GET for each version
    - 1 GET for each pack
    - for each group of `SLOTS_AT_ONCE` slots: 1 GET for each pack that may have rows of the group
    - 1 GET more for each of these packs whose deletion vector is in a file
    - the requests of `StateReader.columns`
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.limits import MAX_REJECTS
from s3notify_platform.kernel.parallel import Track, untracked
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.clustered.cluster_order import clustered_as
from s3notify_platform.table.delta.actions import Add
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import SlotFacts
from s3notify_platform.table.packs.pack_set import PackSet
from s3notify_platform.table.snapshot import LogReader, Snapshot
from s3notify_platform.table.versions import kept_versions

SLOTS_AT_ONCE: Final = 50
"""The number of slots whose objects are in memory at the same time."""

PROBLEMS_SHOWN: Final = 100
"""The largest number of problems that are listed. `TableCheck.found` counts all problems."""

COLUMNS: Final = ["_slot", "_key", "_etag", "_offset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCheck:
    """The result of a check. `problems`: one sentence for each problem, at most `PROBLEMS_SHOWN` sentences.

    `found`: the number of all problems.
    """

    version: int
    packs: int
    rows: int
    objects: int
    problems: tuple[str, ...] = ()
    found: int = 0

    @property
    def ok(self) -> bool:
        """True if no problem was found."""
        return not self.found


def check_table(table: LogTable, snapshot: Snapshot, *, track: Track = untracked) -> TableCheck:
    """Checks a snapshot, and the versions of the table up to this snapshot."""
    data, quarantine = table.data, table.quarantine
    problems: list[str] = []
    objects = 0
    problems += _problems_of_log(table.reader, snapshot)
    problems += _problems_of_files(data, snapshot.packs.values())
    problems += _problems_of_files(quarantine, snapshot.manifest.rejects)
    without_states = data.sizes.by_slot or clustered_as(snapshot.metadata) is not None
    slots = [] if without_states else sorted(snapshot.manifest.slots)
    if data.sizes.by_slot:
        problems += _problems_of_slots(data, snapshot)
    elif without_states:
        problems += _problems_of_clustered(data, snapshot)
    groups = [slots[start : start + SLOTS_AT_ONCE] for start in range(0, len(slots), SLOTS_AT_ONCE)]
    for group in track(groups, len(groups), "checking slots"):
        transformed = {slot for slot in group if snapshot.manifest.slot(slot).transformed}
        rows = _objects(data, snapshot.packs.values(), group, transformed, problems, once=True)
        # A pack may have several rejects of a record. For example, one of these rejects only gives the number of
        # rejects that are not kept.
        rejects = _objects(quarantine, snapshot.manifest.rejects, group, (), problems, once=False)
        for slot, found in table.states.of_slots(snapshot.manifest.states, group):
            objects += len(found)
            problems += _problems_of_slot(slot, found, rows, rejects, snapshot.manifest.slot(slot))
        problems += [f"{key!r} of slot {slot} has rows but no state" for slot, key in rows.counts]
        problems += [f"{key!r} of slot {slot} has rejects but no state" for slot, key in rejects.counts]
    return TableCheck(
        version=snapshot.version,
        packs=len(snapshot.packs),
        rows=snapshot.rows,
        objects=objects,
        problems=tuple(problems[:PROBLEMS_SHOWN]),
        found=len(problems),
    )


def _problems_of_log(reader: LogReader, snapshot: Snapshot) -> Iterator[str]:
    numbers = sorted(version for version in kept_versions(reader) if version <= snapshot.version)
    for earlier, later in pairwise(numbers):
        if later != earlier + 1:
            yield f"versions {earlier + 1} to {later - 1} are missing"
    number = None
    for version in numbers:
        body = reader.version(version)
        if body is None or body.foreign:
            continue
        if number is not None and body.parent != number:
            yield f"version {version} does not follow the one before it"
        number = body.number
    if number is not None and number != snapshot.number:
        yield f"version {snapshot.version} names a manifest other than the one that was read"


def _problems_of_files(packs: PackSet, live: Iterable[Add]) -> Iterator[str]:
    for pack in live:
        try:
            rows = packs.opened(replace(pack, vector=None)).file.metadata.num_rows
        except CorruptError as error:
            yield str(error)
            continue
        if rows != pack.rows:
            yield f"{pack.path} has {rows} rows, but the log says {pack.rows}"


def _problems_of_slots(packs: PackSet, snapshot: Snapshot) -> Iterator[str]:
    """Yields the problems of the slots in the table of a slot asset."""
    counts: Counter[int] = Counter()
    for pack in snapshot.packs.values():
        with suppress(CorruptError):  # the check of the files reports the damaged pack
            found = Counter(
                slot for rows in packs.opened(pack).groups() for slot in rows["_slot"].to_pylist()
            )
            counts += found
            if found and not pack.slots[0] <= min(found) <= max(found) <= pack.slots[1]:
                yield f"{pack.path} has rows of slots {min(found)} to {max(found)}, but the log says {pack.slots}"
    facts = snapshot.manifest.slots
    for slot in sorted(counts.keys() | facts.keys()):
        said = snapshot.manifest.slot(Slot(slot)).rows
        if counts[slot] != said:
            yield f"slot {slot} has {counts[slot]} rows, but the manifest says {said}"
    if snapshot.manifest.states.files or snapshot.manifest.states.inline or snapshot.manifest.rejects:
        yield "the table of a slot asset must have neither states of objects nor rejects"


def _problems_of_clustered(packs: PackSet, snapshot: Snapshot) -> Iterator[str]:
    """Yields the problems of a clustered table."""
    count = 0
    for pack in snapshot.packs.values():
        with suppress(CorruptError):  # the check of the files reports the damaged pack
            count += sum(rows.num_rows for rows in packs.opened(pack).groups())
    said = sum(facts.rows for facts in snapshot.manifest.slots.values())
    if count != said:
        yield f"the table has {count} rows, but the manifest says {said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Objects:
    """The number of rows of each object, the ETags of these rows, and the labels of the packs with these rows."""

    counts: Counter[tuple[int, str]]
    etags: dict[tuple[int, str], set[str]]
    labels: dict[tuple[int, str], list[tuple[int, int]]]


def _objects(
    packs: PackSet,
    live: Iterable[Add],
    slots: list[Slot],
    transformed: Collection[int],
    problems: list[str],
    *,
    once: bool,
) -> _Objects:
    """Counts the rows of these slots. Adds repeated records to `problems`, except in `transformed` slots.

    `once`: True if a record that is repeated within one pack is a problem, too.
    """
    wanted = np.array(slots, dtype=np.int64)
    found = _Objects(counts=Counter(), etags={}, labels={})
    seen: dict[tuple[str, int], str] = {}
    for pack in live:
        if not ((wanted >= pack.slots[0]) & (wanted <= pack.slots[1])).any():
            continue
        try:
            for rows in packs.opened(pack).groups():
                some = rows.select(COLUMNS).filter(pc.is_in(rows["_slot"], pa.array(wanted, pa.int32())))
                for slot, key, offset, other in _count(some, pack, found, seen):
                    if slot not in transformed and (once or other):
                        where = "in two packs" if other else f"twice in {pack.path}"
                        problems.append(f"the record at {offset} of {key!r} is {where}")
        except CorruptError:
            pass  # the check of the files reports the damaged pack
    return found


def _count(
    rows: pa.Table, pack: Add, found: _Objects, seen: dict[tuple[str, int], str]
) -> Iterator[tuple[int, str, int, bool]]:
    """Counts rows of a pack. Yields the slot, key and offset of each repeated record, and True if the first row of the
    record is in another pack.
    """
    for slot, key, etag, offset in zip(*(rows[name].to_pylist() for name in COLUMNS), strict=True):
        if (first := seen.get((key, offset))) is None:
            seen[key, offset] = pack.path
        else:
            yield slot, key, offset, first != pack.path
        found.counts[slot, key] += 1
        found.etags.setdefault((slot, key), set()).add(etag)
        spans = found.labels.setdefault((slot, key), [])
        if (pack.since, pack.until) not in spans:
            spans.append((pack.since, pack.until))


def _problems_of_slot(
    slot: Slot, states: Mapping[str, ObjectState], rows: _Objects, rejects: _Objects, facts: SlotFacts
) -> Iterator[str]:
    for state in states.values():
        yield from _problems_of_object(slot, state, rows, state.rows, what="rows")
        # If an object has more than `MAX_REJECTS` rejects, only some of them are kept. In this case, each part of the
        # object has one further reject, which gives the number of rejects that are not kept.
        kept = rejects.counts[slot, state.key] if state.rejects > MAX_REJECTS else 0
        expected = kept if MAX_REJECTS < kept <= state.rejects else state.rejects
        yield from _problems_of_object(slot, state, rejects, expected, what="rejects")
    live = [state for state in states.values() if not state.expired]
    counted = {
        "rows": sum(state.rows for state in states.values()),
        "rejects": sum(state.rejects for state in states.values()),
        "objects": len(live),
        "without_records": sum(state.without_records for state in states.values()),
        "failing": sum(state.failing for state in states.values()),
        "pending": sum(state.pending for state in states.values()),
        "other_code": sum(not state.failing and state.since < facts.code_since for state in live),
    }
    for name, count in counted.items():
        if count != getattr(facts, name):
            yield (
                f"slot {slot} has {count} {name} by the states of its objects, but the manifest says "
                f"{getattr(facts, name)}"
            )


def _problems_of_object(
    slot: Slot, state: ObjectState, found: _Objects, expected: int, *, what: str
) -> Iterator[str]:
    key = state.key
    count = found.counts.pop((slot, key), 0)
    if count != expected:
        yield f"{key!r} of slot {slot} has {count} {what}, but its state says {expected}"
    if etags := found.etags.get((slot, key), set()) - {state.etag}:
        yield f"{key!r} of slot {slot} has {what} of ETag {min(etags)}, but its state has {state.etag}"
    for since, until in found.labels.get((slot, key), ()):
        if state.until < since or until < state.since:
            yield f"{key!r} of slot {slot} has {what} in a pack with other labels than its state says"
