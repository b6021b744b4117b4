"""How far `s3notify ingest` is: which signals it has seen. One JSON record of the source, so that any machine goes on.

It is a hint. It is written once what these signals announced is committed, or in the rescan backlog. So a record that
is lost costs a comparison of everything, and one that another process has set back costs a look at what is committed.
"""

import json
from dataclasses import dataclass
from typing import Final

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.ports import Record
from s3notify_platform.protocols.keyspace import WatcherState
from s3notify_platform.protocols.source_enumerator.rescan import ATTEMPTS, PARTITION
from s3notify_platform.protocols.updates import Updates
from s3notify_platform.source.location import Location

SEEN: Final = "seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The signals that were seen, and the id of the table in which their changes are; "": it had none yet."""

    state: WatcherState
    table: str = ""


def read_seen(location: Location) -> Seen | None:
    """What was seen of this source; None if nothing was, or of another number of slots. 1 request."""
    if (record := location.records().read(PARTITION, SEEN)) is None:
        return None
    try:
        body = json.loads(record.value)
        seen = Seen(state=WatcherState.loads(body["state"]), table=body["table"])
    except (ValueError, KeyError, TypeError, CorruptError):
        return None
    return seen if seen.state.slots == location.slots else None


def write_seen(
    location: Location, seen: Seen, *, known: Record | None = None, clock: Clock = SYSTEM_CLOCK
) -> Record | None:
    """Note what was seen, in place of what any process has noted; the record as it is now.

    `known`: the record as this process wrote it last. 1 write; 1 read if it is not known, and more on conflicts.
    """
    value = json.dumps({"v": 1, "table": seen.table, "state": seen.state.dumps()}).encode()
    updates = Updates(location.records(), clock, rounds=ATTEMPTS)
    _, written = updates.change(PARTITION, SEEN, lambda _: (value, None), known=known)
    return written
