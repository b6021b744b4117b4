"""Second job where many tasks read one slot: each writes what it reads to files, and the sealer is told of them.

So the rows of a big object pass neither through the JVM nor through one task. A part of an object has files of its
own, which are not named if another part of it turns out to be of another version; whole objects share files.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict

import pyarrow as pa

from s3notify_platform.ingest.slot_files import SlotFiles
from s3notify_platform.slots import Slot
from s3notify_platform.spark.read import (
    CONTROL_SCHEMA,
    KIND_FILES,
    KIND_OUTCOME,
    KIND_SLOT,
    SplitReader,
    control,
)
from s3notify_platform.spark.splits import splits_of
from s3notify_platform.spark.stage import StageContext, add_rows, slot_pieces
from s3notify_platform.stores.s3.fast import shared_store
from s3notify_platform.table.commit import SlotTable

Batches = Iterator[pa.RecordBatch]


def part_writer(context: StageContext, reader: SplitReader) -> Callable[[Batches], Batches]:
    """The function of such a task: splits in; slots, outcomes and files out, in the control columns.

    At its end it says in the job's chain that all of them are read.
    """

    def run(batches: Batches) -> Batches:
        slots, splits, children = splits_of(batches)
        table = context.source.table()
        if slots:
            yield control(CONTROL_SCHEMA, [(KIND_SLOT, slot, *[None] * 5) for slot in slots])
        files: dict[Slot, _PartFiles] = {}
        whole, big = reader.sorted_out(splits)
        for window in reader.windows(whole):
            for slot, piece in slot_pieces(window):
                shared = files.setdefault(slot, _PartFiles(context, table, slot))
                yield from shared.add(piece)
        for slot, shared in files.items():
            yield control(
                CONTROL_SCHEMA, [(KIND_FILES, slot, *[None] * 3, json.dumps(shared.written()), None)]
            )
        for split in big:
            own = _PartFiles(context, table, split.version.slot)
            for piece in reader.pieces(split):
                for outcome in own.add(piece):
                    yield _with_files(outcome, own)
        if children:
            context.chain.stamp(children, shared_store(context.source.location.platform))

    return run


class _PartFiles:
    def __init__(self, context: StageContext, table: SlotTable, slot: Slot) -> None:
        generation = context.heads[slot] + 1
        self.data = SlotFiles.of_data(table, slot, generation)
        self.rejects = SlotFiles.of_rejects(table, slot, generation)

    def add(self, piece: pa.RecordBatch) -> Batches:
        """Take in the rows and rejects of a piece; its outcomes are passed on."""
        for outcomes in add_rows(piece, self.data, self.rejects):
            yield outcomes.select(CONTROL_SCHEMA.names)

    def written(self) -> dict[str, list[dict[str, object]]]:
        """All files."""
        self.data.flush()
        self.rejects.flush()
        return {
            "data": [asdict(file) for file in self.data.written],
            "rejected": [asdict(file) for file in self.rejects.written],
        }


def _with_files(outcome: pa.RecordBatch, files: _PartFiles) -> pa.RecordBatch:
    place = outcome.schema.get_field_index("_note")
    notes = [json.loads(note) | files.written() for note in outcome.column(place).to_pylist()]
    assert [*outcome.column("_kind").to_pylist()] == [KIND_OUTCOME], "a split has one outcome"
    return outcome.set_column(place, "_note", pa.array(list(map(json.dumps, notes)), pa.string()))
