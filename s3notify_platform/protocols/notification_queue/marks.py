"""The slots that have entries in a topic, for consumers whose writers move no signal of a slot (`signals: root`)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from s3notify_platform.kernel.ports import RecordStore
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue.entries import queue_partition
from s3notify_platform.protocols.notification_queue.segments import decode_segment, slots_in


def marks_of(records: RecordStore, topic: str) -> Mapping[Slot, Sequence[str]]:
    """The marks of a topic's entries, by slot. Each newly committed entry adds a mark that never existed before.

    A slot may have marks without a committed entry. Cost: 1 scan. If the records are in a bucket, also 1 GET for each
    segment whose key does not name the segment's slots.
    """
    found: defaultdict[Slot, list[str]] = defaultdict(list)
    for record in records.scan(queue_partition(topic), keys_only=lambda key: slots_in(key) is not None):
        named = slots_in(record.key)
        if named is not None:
            for slot in named:
                found[slot].append(f"{record.key} {record.version}")
            continue
        for entry in decode_segment(topic, record).entries:
            if entry.state == "committed":
                found[Slot(entry.slot)].append(entry.id)
    return found
