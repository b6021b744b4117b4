"""Where many tasks read one slot: each writes what it reads to files, and who stages the slot gets their names.

So the rows of a big object pass neither through the JVM nor through one task. A part of an object has files of its
own, which are not named if another part of it turns out to be of another version; whole objects share files.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import pyarrow as pa

from s3notify_platform.ingest.reader import SplitReader
from s3notify_platform.ingest.row_schema import Batches
from s3notify_platform.ingest.slot_files import new_files
from s3notify_platform.ingest.slot_writer import StageContext
from s3notify_platform.ingest.splits import work_of
from s3notify_platform.ingest.wire import (
    KIND_ROW,
    READ,
    ReadObject,
    ReadSlot,
    SharedFiles,
    of_kinds,
    slot_pieces,
)
from s3notify_platform.slots import Slot
from s3notify_platform.stores.s3.fast import shared_store
from s3notify_platform.table.commit import SlotTable, TableFile
from s3notify_platform.table.layout import Generation


def part_writer(context: StageContext, reader: SplitReader) -> Callable[[Batches], Batches]:
    """The function of such a task: splits in; slots, outcomes and files out, in the control columns.

    At its end it says in the job's chain that all of them are read.
    """

    def run(batches: Batches) -> Batches:
        slots, splits, children = work_of(batches)
        table = context.source.table()
        yield READ.batch([ReadSlot(slot=slot) for slot in slots])
        whole, big = reader.sorted_out(splits)
        files = {slot: _PartFiles(context, table, slot) for slot in {split.version.slot for split in whole}}
        outcomes: list[ReadObject] = []
        for found in chain.from_iterable(reader.windows(whole)):
            if isinstance(found, ReadObject):
                outcomes.append(found)
            else:
                for slot, piece in slot_pieces([found]):
                    files[slot].add(piece)
        for slot, shared in files.items():
            data, rejected = shared.written()
            yield READ.batch([SharedFiles(slot=slot, data_files=data, reject_files=rejected)])
        for split in big:
            own = _PartFiles(context, table, split.version.slot)
            for found in reader.pieces(split):
                if isinstance(found, ReadObject):
                    data, rejected = own.written()
                    outcomes.append(
                        replace(found, outcome=replace(found.outcome, data=data, rejected=rejected))
                    )
                else:
                    own.add(found)
        yield READ.batch(outcomes)
        if children:
            context.chain.stamp(children, shared_store(context.source.location.platform))

    return run


class _PartFiles:
    def __init__(self, context: StageContext, table: SlotTable, slot: Slot) -> None:
        self.data, self.rejects = new_files(table, slot, Generation(context.heads[slot] + 1))

    def add(self, piece: pa.RecordBatch) -> None:
        """Take in rows or rejects."""
        for kind, _, stored in of_kinds(piece):
            assert stored is not None, "rows or rejects"
            (self.data if kind == KIND_ROW else self.rejects).add(stored)

    def written(self) -> tuple[tuple[TableFile, ...], tuple[TableFile, ...]]:
        """All files, of rows and of rejects."""
        self.data.flush()
        self.rejects.flush()
        return tuple(self.data.written), tuple(self.rejects.written)
