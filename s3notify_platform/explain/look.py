"""Finds the state of one object. The search only reads. The number of requests is bounded for any bucket, queue and
table.

Requests of one round of the search, which finds all facts once:

- Object and signal: 2 HEADs of the object, and 1 HEAD of the signal.
- Queue: 1 scan of the topics, and 1 GET of the rescan backlog. The search reads at most
  `EXPLAINED_TOPICS_MAX` of the topics that receive the key. Each topic that is read costs 1 scan of each shard, and 1
  scan of dead letters. The scans read at most `SEGMENTS_MAX` segments and `LETTERS_MAX` letters of a topic.
- Batches: 1 LIST, and 1 GET for each open batch. Without a sensor's cursor: 1 LIST for each 1000 records of chains, and
  at most `CHAINS_MAX` open chains.
- Table: the requests of `LogReader.open` or `refresh`, and 1 or 2 GETs for the key's state (`StateReader.lookup`).
- Version: 1 GET for each table version from the plan to the object's commit, at most `VERSIONS_MAX` versions.
- A key without rows: for each of the slot's last `CHANGES_MAX` changes, 2 GETs and the requests of `feed`.
- Rejects: the requests of `reading` for the slot's rejects in at most `REJECT_FILES` packs.

If the object changes meanwhile, the search is repeated, up to `LOOK_ROUNDS` rounds. A scan costs 1 LIST and 1 GET for
each record, or 1 query in DynamoDB.
"""

from contextlib import suppress
from itertools import chain, islice
from typing import Final

from s3notify_platform.engine.batch.batches import EVERYTHING, BatchPayload
from s3notify_platform.engine.batch.list_or_follow import decide
from s3notify_platform.explain.answer import Answer
from s3notify_platform.explain.views import (
    BatchView,
    CommittedVersion,
    Notice,
    ObjectNow,
    Rejection,
    SensorView,
    Signal,
    TopicView,
)
from s3notify_platform.formats.codecs import without_suffix
from s3notify_platform.formats.registry import format_for
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import CorruptError, NotFoundError, RefusedError, TagNotFound, UsageError
from s3notify_platform.kernel.ports import ETag, ObjectMeta, ObjectStore, unaddressable
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.protocols.ack_chain import AckChains, ChainState
from s3notify_platform.protocols.keyspace import QUEUED, digest_of, root_key, signal_key
from s3notify_platform.protocols.notification_queue import NotificationQueue, Topic
from s3notify_platform.protocols.notification_queue.entries import dead_partition
from s3notify_platform.protocols.notification_queue.segments import decode_letter, may_hold
from s3notify_platform.protocols.notification_queue.topic_settings import takes
from s3notify_platform.protocols.source_enumerator import ObjectState, RescanBacklog
from s3notify_platform.source.source import Source
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.delta.actions import LogVersion
from s3notify_platform.table.feed import changes_of
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import EMPTY_SLOT
from s3notify_platform.table.quarantined import first_rejects, rejects_packs
from s3notify_platform.table.reread import backfilled_keys
from s3notify_platform.table.snapshot import LogReader, Snapshot
from s3notify_platform.table.state_changes import StateChange, key_hash
from s3notify_platform.table.versions import note_of

SEGMENTS_MAX: Final = 500
"""Maximum number of segments of a topic that are read. A segment is read if it names the slot. A segment that cannot
name all its slots is always read.
"""

LETTERS_MAX: Final = 500
"""Maximum number of dead letters of one slot and topic that are read."""

EXPLAINED_TOPICS_MAX: Final = 20
CHAINS_MAX: Final = 100
LOOK_ROUNDS: Final = 3

VERSIONS_MAX: Final = 20
"""Maximum number of table versions that are searched for an object's commit. The search begins at the version for which
the object was planned.
"""

CHANGES_MAX: Final = 12
"""Maximum number of a slot's changes that are searched for the removal or quarantine of an object."""

REJECT_FILES: Final = 4
REJECT_BYTES: Final = 32 << 20
"""Maximum number of bytes of a pack of rejects. Larger packs are not read."""

REJECTS_SHOWN: Final = 5


def explain(
    source: Source,
    key: str,
    *,
    sensor: SensorView | None = None,
    objects: ObjectStore | None = None,
    platform: ObjectStore | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Answer:
    """Returns the state of the object with this key. Read permission is enough. The module's docstring has the
    requests.

    `sensor`: the sensor's view of this key's slot. Without this view, failing slots and runs are unknown. `objects`,
    `platform`: stores that replace the source's own stores. The object is read first, and the table last, so that no
    change is missed. The call returns an answer even if the store refuses the key. Raises `UsageError` for a key that
    does not belong to the source, or is not UTF-8.
    """
    if not key.startswith(source.input.prefix):
        raise UsageError(
            f"{key!r} does not belong to source {source.name!r}, which reads {source.input.prefix!r} of "
            f"{source.input.bucket.bucket!r}"
        )
    objects = objects if objects is not None else open_store(source.input.bucket)
    platform = platform if platform is not None else open_store(source.location.platform)
    for last in range(LOOK_ROUNDS):
        # The object is read before the queue. The entry of an object is created before the object, and leaves the queue
        # only after the commit.
        now, no_object = _head(objects, key)
        answer = _round(source, key, sensor, platform, now=now, no_object=no_object, clock=clock)
        after, _ = _head(objects, key)
        if last == LOOK_ROUNDS - 1 or (after and after.etag) == (now and now.etag):
            break
    return answer


def _head(objects: ObjectStore, key: str) -> tuple[ObjectMeta | None, str]:
    """Returns the object, and the reason if the existence of the object is unknown."""
    if why := unaddressable(key):
        return None, f"S3 clients cannot address this key: {why}"
    try:
        return objects.head(key), ""
    except RefusedError as error:
        return None, str(error)


def _round(
    source: Source,
    key: str,
    sensor: SensorView | None,
    platform: ObjectStore,
    *,
    now: ObjectMeta | None,
    no_object: str,
    clock: Clock,
) -> Answer:
    slot = slot_of(key, source.location.slots)
    keyspace, alone = source.location.keyspace_prefix, source.location.signals == "root"
    signal = platform.head(root_key(keyspace) if alone else signal_key(keyspace, slot))
    queue = source.location.queue(platform)
    bucket = source.input.bucket.bucket
    taking = [t for t in queue.topics.all() if t.name == source.name or takes(t.settings, bucket, key)]
    every = sorted(taking, key=lambda topic: (topic.name != source.name, topic.name))
    topics = tuple(_topic_view(queue, source, topic, key) for topic in every[:EXPLAINED_TOPICS_MAX])
    records = source.location.records(platform)
    rescans = RescanBacklog(records, clock=clock).read()
    epoch = next((topic.epoch for topic in every if topic.name == source.name), "")
    taken = digest_of(ETag(signal.etag)) == sensor.seen if signal and sensor and not alone else None
    decision = decide(
        (slot,),
        rescans,
        topic=epoch,
        enumerated=sensor.enumerated if sensor else epoch,
        now_ms=clock.wall_ms(),
        unqueued=signal is not None and QUEUED not in signal.metadata and not taken,
    )
    batches, cut = _batches(AckChains(records, clock=clock), slot, sensor)
    table = source.table(store=platform, clock=clock)
    refused, snapshot = _newest(source, table, platform)
    facts = snapshot.manifest.slot(slot) if snapshot is not None else EMPTY_SLOT
    held: tuple[Snapshot, ObjectState] | None = None
    left = 0
    if snapshot is not None:
        state = table.states.lookup(snapshot.manifest.states, {slot: [key]}).get(key)
        held = (snapshot, state) if state is not None else None
        if held is None and now is None:
            version, change = _last_change(table.reader, snapshot, slot, key)
            left = version if change is not None and change.new is None else 0
    return Answer(
        source=source.name,
        bucket=bucket,
        key=key,
        slot=slot,
        asked_ms=clock.wall_ms(),
        object=ObjectNow(etag=now.etag, size=now.size, modified_ms=now.modified_ms) if now else None,
        no_object=no_object,
        signal=Signal(etag=signal.etag, modified_ms=signal.modified_ms, queued=QUEUED in signal.metadata)
        if signal is not None
        else None,
        topics=topics,
        topic_exists=bool(epoch),
        topics_cut=len(every) > EXPLAINED_TOPICS_MAX,
        batches=batches,
        batches_cut=cut,
        rescans=slot in rescans.slots,
        next_batch=decision.how if epoch else "everything",
        committed=_committed(source, table, slot, *held) if held else None,
        left=left,
        newest=facts.generation,
        newest_signal=facts.signal,
        rejections=_rejections(table, slot, *held) if held else (),
        not_chosen=source.choice.why_not(key, now),
        stays=held is not None and source.input.stays(held[1]),
        refused=refused,
        signal_taken=taken,
        sensor=sensor,
        failed=rescans.failed.get(slot),
    )


# The queue


def _topic_view(queue: NotificationQueue, source: Source, topic: Topic, key: str) -> TopicView:
    slot = slot_of(key, topic.settings.slots)
    scans = [queue.shards.scan_all(topic, wanted=may_hold({slot}))]
    segments = list(islice(chain.from_iterable(scans), SEGMENTS_MAX + 1))
    oldest_first = sorted(segments[:SEGMENTS_MAX], key=lambda segment: segment.place.key)
    waiting = [entry for segment in oldest_first for entry in segment.entries if entry.slot == slot]
    dead = islice(queue.records.scan(dead_partition(topic.name), prefix=f"{slot:03d}."), LETTERS_MAX + 1)
    letters = [decode_letter(topic.name, record) for record in dead]
    found = [
        *(entry for entry in waiting if entry.event.key == key),
        *(each for each in letters[:LETTERS_MAX] if each.event.key == key and each.epoch == topic.epoch),
    ]
    return TopicView(
        name=topic.name,
        own=topic.name == source.name,
        pushed=bool(topic.settings.endpoint),
        notices=tuple(
            Notice(
                op=entry.event.op,
                state=entry.state,
                etag=entry.event.etag,
                since_ms=entry.event.time_ms,
                attempts=entry.attempts,
                last_error=entry.last_error,
                reason=entry.reason,
                worker=entry.claim.worker if entry.claim is not None else "",
            )
            for entry in found
        ),
        cut=len(segments) > SEGMENTS_MAX or len(letters) > LETTERS_MAX,
    )


# Batches


def _batches(chains: AckChains, slot: Slot, sensor: SensorView | None) -> tuple[tuple[BatchView, ...], bool]:
    """Returns the open batches that have not committed the slot yet. The second result is True if there may be more of
    these batches.
    """
    if sensor is not None:
        open_ones = []
        for batch in sensor.batches:
            with suppress(TagNotFound):
                if _is_to_commit(chains.state(batch.id), slot):
                    open_ones.append(batch)
        return tuple(open_ones), False
    looked_at = list(islice(chains.open_states(), CHAINS_MAX + 1))
    found = tuple(
        BatchView(id=chain.tag, opened_ms=chain.created_ms, listing=_lists(chain))
        for chain in looked_at[:CHAINS_MAX]
        if _is_to_commit(chain, slot)
    )
    return found, len(looked_at) > CHAINS_MAX


def _is_to_commit(chain: ChainState, slot: Slot) -> bool:
    return chain.status == "open" and not {str(slot), str(EVERYTHING)}.isdisjoint(chain.missing)


def _lists(chain: ChainState) -> bool:
    try:
        return BatchPayload.loads(chain.payload).listing
    except (ValueError, TypeError):  # a chain that another program created
        return True


# The table


def _newest(source: Source, table: LogTable, platform: ObjectStore) -> tuple[str, Snapshot | None]:
    """Returns the reason why runs refuse the table, or "". Also returns the newest readable snapshot, or None."""
    try:
        return "", source.open_table(create=False, store=platform).snapshot
    except (CorruptError, UsageError) as error:
        refused = str(error)
    with suppress(CorruptError, UsageError):
        found = table.newest()
        return refused, found if isinstance(found, Snapshot) else None
    return refused, table.reader.longest(before_refused=True)


def _committed(
    source: Source, table: LogTable, slot: Slot, snapshot: Snapshot, state: ObjectState
) -> CommittedVersion:
    version, doubt, body = _taken_in_by(table.reader, snapshot, slot, state)
    note = note_of(body, slot) if body is not None else {}
    form = format_for(state.key, source.input) if state.without_records else None
    emptiness = form.emptiness if form else ""
    if form and without_suffix(state.key) != state.key:
        emptiness += ", or an empty file that is compressed"
    labels = state.since, state.until
    packs = snapshot.packs.values() if state.rows else ()
    return CommittedVersion(
        etag=state.etag,
        size=state.size,
        rows=state.rows,
        rejects=state.rejects,
        files=tuple(
            sorted(table.layout.file(pack.path) for pack in packs if pack.may_hold(slot, state.key, *labels))
        ),
        version=version,
        doubt=doubt,
        seen_ms=note.get("seen_ms", 0),
        planned_ms=note.get("planned_ms", 0),
        committed_ms=body.created_ms if body is not None else 0,
        batch=note.get("batch", ""),
        newest=snapshot.manifest.slot(slot).generation,
        reason=state.reason,
        trace=state.trace,
        reach_end=state.reach_end,
        offset=state.offset,
        by_record=state.by_record,
        emptiness=emptiness,
        pending=state.pending
        or state.key in backfilled_keys(snapshot.manifest.slot(slot), {state.key: state}),
    )


def _taken_in_by(
    reader: LogReader, snapshot: Snapshot, slot: Slot, state: ObjectState
) -> tuple[int, str, LogVersion | None]:
    """Returns the table version that committed the object's first rows, any doubt about this version as a text (see
    `CommittedVersion.doubt`), and the version's body.
    """
    newest = snapshot.manifest.slot(slot).generation
    if not state.since:  # no part of the object was ever read
        version, _ = _last_change(reader, snapshot, slot, state.key)
        return (version, "", reader.version(version)) if version else (newest, "or before", None)
    # A round leaves out a slot that has changed after the plan. So the first change of the slot after the plan is the
    # commit of the object.
    for version in range(state.since, min(newest + 1, state.since + VERSIONS_MAX)):
        body = reader.version(version)
        if body is None:  # vacuum has removed the version
            break
        if note_of(body, slot):
            return version, "", body
    return state.since, "or later", None


def _last_change(
    reader: LogReader, snapshot: Snapshot, slot: Slot, key: str
) -> tuple[int, StateChange | None]:
    """Returns the table version that last changed the object's state, and the change. Only the slot's last
    `CHANGES_MAX` changes are searched. If none of these changes concerns the object, the version is 0.
    """
    names, version = {key, key_hash(key)}, snapshot.manifest.slot(slot).generation
    with suppress(CorruptError, NotFoundError):  # vacuum may have removed old versions
        for _ in range(CHANGES_MAX):
            if not version:
                break
            for of_version in changes_of(reader, version - 1, version):
                for change in of_version.changes:
                    if change.key in names:
                        return version, change
            body = reader.version(version)
            version = reader.manifest(body.parent).slot(slot).generation if body and body.parent else 0
    return 0, None


def _rejections(table: LogTable, slot: Slot, snapshot: Snapshot, state: ObjectState) -> tuple[Rejection, ...]:
    """Returns the first rejects of the object version. Only the first small packs are read, so the call makes few
    requests.
    """
    small = [pack for pack in rejects_packs(snapshot, slot, state) if pack.size <= REJECT_BYTES]
    found = first_rejects(table, small[:REJECT_FILES], slot, state, limit=REJECTS_SHOWN)
    return tuple(
        Rejection(offset=row["_offset"] or 0, reason=row["reason"] or "") for row in found.to_pylist()
    )
