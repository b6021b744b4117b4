"""Stores the signals that `s3notify ingest` has seen, and the time of the last sweep, so that any machine can continue.
Each source has one JSON record with these values.

The record is a hint. The record is written only after every signalled change is committed, or is in the rescan backlog.
If the record is lost, all slots are compared again. If another process replaces the record by an older record, some
slots are compared again without need, or a sweep comes too early.
"""

import json
from dataclasses import dataclass
from typing import Final

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.ports import Record
from s3notify_platform.protocols.keyspace import WatcherState
from s3notify_platform.protocols.source_enumerator.rescan import PARTITION
from s3notify_platform.protocols.updates import CONTENDED_ATTEMPTS, Updates
from s3notify_platform.source.location import Location

SEEN: Final = "seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The signals seen.

    `table`: the id of the table that has the changes that these signals announce; "" before the table exists.
    `swept_ms`: the beginning of the last comparison of all objects, in milliseconds since 1970.
    """

    state: WatcherState
    table: str = ""
    swept_ms: int = 0


def read_seen(location: Location) -> tuple[Seen | None, Record | None]:
    """Returns the signals seen so far, and their record.

    The signals are None if there is no record, or if the record has another slot count. Cost: 1 request.
    """
    if (record := location.records().read(PARTITION, SEEN)) is None:
        return None, None
    try:
        body = json.loads(record.value)
        state = WatcherState.loads(body["state"])
        seen = Seen(state=state, table=body["table"], swept_ms=int(body["swept_ms"]))
    except (ValueError, KeyError, TypeError, CorruptError):
        return None, record
    return seen if seen.state.slots == location.slots else None, record


def write_seen(
    location: Location, seen: Seen, *, known: Record | None = None, clock: Clock = SYSTEM_CLOCK
) -> Record | None:
    """Replaces the record of the signals seen, even if another process wrote that record. Returns the new record.

    `known`: the record that this process read or wrote last. Cost: 1 write, 1 read if `known` is missing, and more
    requests on conflicts.
    """
    facts = {"v": 1, "table": seen.table, "swept_ms": seen.swept_ms, "state": seen.state.dumps()}
    value = json.dumps(facts).encode()
    updates = Updates(location.records(), clock, rounds=CONTENDED_ATTEMPTS)
    _, written = updates.change(PARTITION, SEEN, lambda _: (value, None), known=known)
    return written
