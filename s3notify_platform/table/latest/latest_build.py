"""Rebuilds a table of newest rows from all rows of its source's table, as one version.

Rows are sorted by (`_slot`, `_key`) and by rank, with the newest row first. So a task can write the first row and the
state of each key while it reads the rows in order. Each task has its own range of slots. So the tasks' files of states
do not overlap, and can form one level (`states.state_levels`): the lowest level whose intended size is large enough.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.clock import Clock, unique_name
from s3notify_platform.kernel.limits import STATE_FILE_BYTES, STATE_LEVEL_BYTES
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.latest.latest_definition import DELETED, is_first
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import SlotFacts
from s3notify_platform.table.packs.pack_set import StagedPack, put
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.states.state_columns import FIELDS, STATE_SCHEMA
from s3notify_platform.table.states.state_file import StateFile, state_files
from s3notify_platform.table.states.state_levels import StateSet
from s3notify_platform.table.states.state_merge import FAN_OUT


@dataclass(slots=True, kw_only=True)
class BuiltPart:
    """The result of one task, for a range of slots: the stored packs and state files, and the counts of rows and keys
    by slot.
    """

    packs: list[StagedPack] = field(default_factory=list)
    states: list[StateFile] = field(default_factory=list)
    rows: Counter[int] = field(default_factory=Counter)
    keys: Counter[int] = field(default_factory=Counter)


def build_part(
    table: LogTable, label: int, rows: Iterable[pa.RecordBatch], slots: tuple[int, int], clock: Clock
) -> BuiltPart:
    """Writes the newest row of each key in a range of slots. Cost: 1 PUT for each pack and state file.

    `slots`: the first slot, and the slot after the last one. `rows`: keyed rows (`Latest.keyed`) of these slots, sorted
    by `_slot`, `_key`, and `_etag` descending.
    """
    part = BuiltPart()
    states: list[pa.RecordBatch] = []

    def shown() -> Iterator[pa.Table]:
        for newest in first_rows(rows):
            states.append(_states(newest, label))
            part.keys.update(newest["_slot"].to_pylist())
            visible = newest.filter(pc.invert(newest[DELETED])).drop_columns([DELETED])
            part.rows.update(visible["_slot"].to_pylist())
            if visible.num_rows:
                yield visible

    for pack in write(shown(), table.data.sizes):
        found, files = table.data.staged([pack], label=label)
        part.packs += found
        for key, body in files.items():
            put(table.reader.store, key, body)
    first, end = slots
    for file, body in state_files(
        states,
        level=1,
        name=lambda: unique_name(clock),
        file_bytes=STATE_FILE_BYTES[1],
        hull=((first, ""), (end, "")),
    ):
        put(table.reader.store, table.layout.state(file.name), body)
        part.states.append(file)
    return part


def first_rows(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yields the first row of each key, in batches. `rows`: keyed rows, sorted as in `build_part`."""
    last: tuple[int, str] | None = None
    for batch in rows:
        if not batch.num_rows:
            continue
        found = pa.Table.from_batches([batch])
        first = np.array(is_first(found["_slot"], found["_key"]).to_pylist(), dtype=bool)
        place = (found["_slot"][0].as_py(), found["_key"][0].as_py())
        if place == last:
            first[0] = False
        last = (found["_slot"][-1].as_py(), found["_key"][-1].as_py())
        newest = found.filter(pa.array(first))
        if newest.num_rows:
            yield newest


def _states(newest: pa.Table, label: int) -> pa.RecordBatch:
    """Returns the states of the keys in `newest`, as columns."""
    count = newest.num_rows
    given: dict[str, Any] = {
        "slot": newest["_slot"],
        "key": newest["_key"],
        "etag": newest["_etag"],
        "rows": pc.invert(newest[DELETED]).cast(pa.int64()),
        "since": pa.repeat(label, count),
        "until": pa.repeat(label, count),
        "reach_end": pa.repeat(True, count),
    }
    empty: Mapping[pa.DataType, Any] = {pa.string(): "", pa.int64(): 0, pa.bool_(): False}
    columns = {
        each.name: given.get(each.name, pa.repeat(empty.get(each.type, 0), count)) for each in STATE_SCHEMA
    }
    assert columns.keys() >= FIELDS.keys(), "some fields of a state are missing"
    return pa.table(columns).cast(STATE_SCHEMA).combine_chunks().to_batches()[0]


def facts_of(parts: Sequence[BuiltPart]) -> dict[Slot, SlotFacts]:
    """Returns the counts of the slots that have keys. Pure."""
    return {
        Slot(slot): SlotFacts(rows=part.rows[slot], objects=keys)
        for part in parts
        for slot, keys in part.keys.items()
    }


def states_of(parts: Sequence[BuiltPart]) -> StateSet:
    """Returns the states of all keys. All files are in one level, which is chosen by their total size. Pure."""
    files = sorted((file for part in parts for file in part.states), key=lambda file: file.first)
    level = _level_of(sum(file.bytes for file in files))
    return StateSet(files=tuple(replace(file, level=level) for file in files))


def _level_of(size: int) -> int:
    """Returns the lowest level whose intended size is at least `size` bytes."""
    return 1 + max(0, math.ceil(math.log(max(size, 1) / STATE_LEVEL_BYTES, FAN_OUT)))
