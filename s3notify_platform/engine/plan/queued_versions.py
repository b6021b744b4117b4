"""Finds the current object versions at the keys in the queue's entries."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from functools import partial

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue import Entry
from s3notify_platform.protocols.source_enumerator import Enumerator, ObjectVersion


def named_versions(
    enumerator: Enumerator, entries: Iterable[Entry], pool: Executor
) -> dict[str, ObjectVersion | None]:
    """Returns the current object version at each key in the entries; None if there is no object.

    Cost: at most 1 HEAD for each key. If a key has a single entry, and this package's publisher wrote it, no request is
    necessary: the entry describes the object. If the description is out of date, the read under If-Match fails, and a
    later entry has the newer version.
    """
    by_key: dict[str, list[Entry]] = {}
    for entry in entries:
        by_key.setdefault(entry.event.key, []).append(entry)
    return dict(zip(by_key, pool.map(partial(_named, enumerator), by_key.values()), strict=True))


def _named(enumerator: Enumerator, entries: Sequence[Entry]) -> ObjectVersion | None:
    event = entries[0].event
    own = event.writer and event.op == "put" and event.etag is not None and event.size is not None
    if own and len(entries) == 1 and enumerator.choice.covers(event.key):
        assert event.etag is not None
        assert event.size is not None
        return ObjectVersion(slot=Slot(entries[0].slot), key=event.key, etag=event.etag, size=event.size)
    return enumerator.current(event.key)
