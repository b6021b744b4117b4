"""Removes a source: everything that the platform has made for it, and never an object of the source.

Steps, each safe to repeat
    1. Remove the table's newest versions. From then on runs refuse the table, because the table's record
       (`table.known`) names a version that is missing.
    2. Remove the source's topic, with its entries and dead letters. A topic that serves other tables stays, and no
       longer names this table.
    3. Remove the tables, logs first, so that a reader finds either a whole table or no table. Then remove signals and
       records.
    4. Remove the records of the slot assets' tables, then the record of the source's table. As long as this record
       exists, an unfinished removal is recognised.

Only two kinds of objects are removed: objects whose keys the platform chose, and packs that other engines wrote into a
table. All other objects below the platform's prefix are counted, and stay. Leases in DynamoDB stay. Topics of other
sources in the shared queue stay, too.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final

from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.deletion import delete_for_certain
from s3notify_platform.kernel.errors import NotFoundError, UnavailableError, UsageError
from s3notify_platform.kernel.limits import REQUESTS_IN_FLIGHT
from s3notify_platform.kernel.parallel import in_parallel
from s3notify_platform.kernel.ports import (
    ObjectMeta,
    ObjectStore,
    Record,
    RecordStore,
    StoredObject,
    list_all,
)
from s3notify_platform.kernel.slots import SLOT_COUNT, Slot
from s3notify_platform.maintenance.task import Report
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.ack_chain.chains import ACK
from s3notify_platform.protocols.keyspace import root_key, signal_key
from s3notify_platform.protocols.notification_queue import TopicUser
from s3notify_platform.protocols.notification_queue.topic_store import Topics
from s3notify_platform.protocols.source_enumerator.rescan import PARTITION
from s3notify_platform.protocols.updates import Stored, Updates
from s3notify_platform.source.location import Location
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.delta.actions import LogVersion
from s3notify_platform.table.known import KNOWN, Known, KnownRecord
from s3notify_platform.table.open_table import new_id

FOREIGN: Final = "not the platform's, stays"

_LOG: Final = "log"

_PACK: Final = re.compile(r"(?![_.]).*\.parquet")
"""Names of packs that other engines wrote. Other engines write packs beside the platform's folders."""

_TABLE: Final = {
    "_delta_log/": _LOG,
    "data/": "data files",
    "_s3notify/state/": "object states",
    "_s3notify/rejects/": "quarantine",
    "_symlink_format_manifest/": "data files",
    **dict.fromkeys(
        (f"_s3notify/{name}/" for name in ("manifest", "changes", "vector", "staged", "cut", "now")),
        "manifests",
    ),
}
_OTHERS: Final = {"records/": "ack chains and records", "store.json": "probe's result"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One kind of a source's data, with the number of its objects, entries or records. `bytes` is None for entries and
    records.
    """

    what: str
    count: int
    bytes: int | None = None


def held(location: Location) -> list[Held]:
    """The data that `remove` would remove, and other objects below the platform's prefix. Reads only.

    Cost: 1 LIST for each 1000 objects, and 1 scan of the source's topic.
    """
    counts, sizes = Counter[str](), Counter[str]()
    for what, meta in _objects(location, open_store(location.platform)):
        counts[what] += 1
        sizes[what] += meta.size
    found = [Held(what=what, count=counts[what], bytes=sizes[what]) for what in counts]
    queue, known_record = location.queue(), location.known()
    known, _ = known_record.read()
    with suppress(NotFoundError):
        stats, topic = queue.stats(location.name), queue.topics.get(location.name)
        name = f"topic {location.name!r}"
        if others := _user(location, known).others(topic):
            found.append(
                Held(what=f"{name}: serves table {', '.join(others)}, stays: entries", count=stats.depth)
            )
        else:
            found.append(Held(what=f"{name}: entries", count=stats.depth))
            found.append(Held(what=f"{name}: dead letters", count=stats.dead))
    if location.records_table is not None and (count := sum(1 for _ in _records(location.records()))):
        found.append(Held(what="records in DynamoDB", count=count))
    if count := len([*_known_records(known_record)]):
        found.append(Held(what="records of tables", count=count))
    return found


def open_batches(location: Location) -> list[str]:
    """The batches that are not committed yet: their runs may still be working. Cost: 1 LIST, and 1 GET for each
    batch.
    """
    return [chain.tag for chain in AckChains(location.records()).open_states()]


def remove(location: Location, *, platform: ObjectStore | None = None) -> int:
    """Removes the source; returns the number of removed objects. A call that was killed may be repeated. Stop the
    source's sensor, runs and writers first. `platform`: a store to use instead of the source's own store. `UsageError`:
    the source's objects are below the platform's prefix. Cost: the requests of `held`, 1 DELETE for each object, and 2
    requests for each entry and record.
    """
    store = platform if platform is not None else open_store(location.platform)
    known_record = location.known(store=store)
    known, _ = known_record.read()
    if known is not None and known.identity is not None:
        own = (location.platform_prefix, location.keyspace_prefix)
        source = known.identity
        if source.bucket == location.platform.bucket and source.prefix.startswith(own):
            raise UsageError(
                f"source {location.name!r} reads {source.prefix!r}, where the platform's own objects are"
            )
    _remove_newest(location, store, known)
    _remove_topic(location.queue(store).topics, location.name, _user(location, known))
    doomed = [(what, meta.key) for what, meta in _objects(location, store) if what != FOREIGN]
    for logs in (True, False):
        some = [key for what, key in doomed if what.endswith(_LOG) is logs]
        in_parallel(partial(delete_for_certain, store), some, REQUESTS_IN_FLIGHT)
    records = location.records(store)
    for partition, record in _records(records):
        _remove(records, partition, record)
    for record in _known_records(known_record):
        _remove(known_record.records, KNOWN, record)
    return len(doomed)


def remove_table(location: Location, asset: str, store: ObjectStore, clock: Clock = SYSTEM_CLOCK) -> int:
    """Removes the table of a slot asset; returns the number of removed objects. The call may be repeated.

    The asset's next table has another id, so a writer that still has the removed table open is refused. A version that
    such a writer creates during the call is removed, too. If the writer creates a version later, the writer itself
    removes this version (`Committer`). Cost: 1 LIST for each 1000 objects, 1 DELETE for each object, and 1 LIST of the
    log.
    """
    record, layout = location.known(asset, store=store), location.table_layout(asset)
    fresh = new_id(clock)
    record.change(lambda known: known and replace(known.follower(fresh), identity=known.identity))
    listed = [meta.key for meta in list_all(store, layout.prefix)]
    log = sorted((key for key in listed if key.startswith(layout.log)), reverse=True)
    for some in (log, [key for key in listed if key not in {*log}]):
        in_parallel(partial(delete_for_certain, store), some, REQUESTS_IN_FLIGHT)
    for key in [meta.key for meta in list_all(store, layout.log) if layout.version_of(meta.key) is not None]:
        version = store.get(key)
        if isinstance(version, StoredObject) and LogVersion.loads(version.body, where=key).table != fresh:
            delete_for_certain(store, key)
    return len(listed)


def _remove_newest(location: Location, store: ObjectStore, known: Known | None) -> None:
    """Removes the version that the table's record names, and later versions, newest first."""
    layout = location.layout
    listed = {
        version: meta.key
        for meta in list_all(store, layout.log)
        if (version := layout.version_of(meta.key)) is not None
    }
    for version in sorted(listed, reverse=True):
        if known is not None and version >= known.version:
            delete_for_certain(store, listed[version])


def _remove_topic(topics: Topics, name: str, user: TopicUser) -> None:
    found = topics.find(name)
    if found is not None and found.tables and user.others(found) == found.tables:
        return
    with suppress(NotFoundError):
        topics.delete(name, user=user)  # this also finishes a deletion that was interrupted


def _user(location: Location, known: Known | None) -> TopicUser:
    return known.topic_user(location.slots) if known is not None else TopicUser(slots=location.slots)


def _objects(location: Location, store: ObjectStore) -> Iterator[tuple[str, ObjectMeta]]:
    """The objects below the platform's prefix, and the signals, each with its kind."""
    signals = {root_key(location.keyspace_prefix)}
    signals |= {signal_key(location.keyspace_prefix, Slot(slot)) for slot in range(SLOT_COUNT)}
    below, other = location.platform_prefix, location.keyspace_prefix
    for prefix in [below] if other.startswith(below) else [below, other]:
        for meta in list_all(store, prefix):
            name = _kind(meta.key.removeprefix(below)) if meta.key.startswith(below) else FOREIGN
            yield "signals" if meta.key in signals else name, meta


def _kind(name: str) -> str:
    table = re.match(r"(?:table|derived/([^/]+))/", name)
    rest, kinds = (name[table.end() :], _TABLE) if table else (name, _OTHERS)
    what = next((what for prefix, what in kinds.items() if rest.startswith(prefix)), FOREIGN)
    if table is not None and what == FOREIGN and _PACK.fullmatch(rest):
        what = "data files"
    asset = table[1] if table is not None else None
    return f"{asset}: {what}" if asset is not None and what != FOREIGN else what


def _records(records: RecordStore) -> Iterator[tuple[str, Record]]:
    for partition in (ACK, PARTITION):
        for record in records.scan(partition, keys_only=lambda _: True):
            yield partition, record


def _known_records(known: KnownRecord) -> Iterator[Record]:
    """The records of the derived tables, and last the record of the source's own table."""
    found = known.records.scan(
        KNOWN,
        prefix=known.key,
        keys_only=lambda _: True,
        wanted=lambda key: key == known.key or key.startswith(f"{known.key}."),
    )
    yield from sorted(found, key=lambda record: record.key, reverse=True)


def _remove(records: RecordStore, partition: str, record: Record) -> None:
    outcome = Updates(records, SYSTEM_CLOCK).remove(partition, record.key, expected=record.version)
    if not isinstance(outcome, Stored) and outcome.record is not None:
        raise UnavailableError(
            f"{partition}/{record.key} has changed meanwhile: stop the source, and repeat the command"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The task: removes a source. `force`: removes the source even if a batch is open."""

    location: Location
    force: bool = False

    @property
    def asks(self) -> str:
        """See `Task`."""
        return f'Remove all of this, except objects marked "{FOREIGN}"?'

    def plan(self) -> Report:
        """See `Task`. `UsageError` while a batch is open."""
        found = held(self.location)
        place, name = self.location.platform.place, self.location.name
        if not found:
            line = f"source {name!r} has nothing in {place}"
            return Report(lines=(line,), document={"held": []}, nothing=True)
        if (batches := open_batches(self.location)) and not self.force:
            raise UsageError(
                f"batch {batches[0]} is open: wait until its runs have ended, or, if they died, use --force"
            )
        lines = [f"{place}: {name}"]
        for one in found:
            size = "" if one.bytes is None else f", {one.bytes:,} bytes"
            lines.append(f"  {one.what}: {one.count}{size}")
        return Report(lines=tuple(lines), document={"held": [asdict(one) for one in found]})

    def run(self) -> Report:
        """See `Task`."""
        if (planned := self.plan()).nothing:
            return planned
        removed = remove(self.location)
        name = self.location.name
        line = (
            f"removed {removed} objects of the platform for source {name!r}; its bucket's data is untouched"
        )
        return Report(lines=(*planned.lines, line), document={**planned.document, "removed": removed})
