"""Finds the state of one object. The number of requests is bounded, whatever bucket, queue and table hold; all read.

Requests of one round
    object and signal   2 HEADs and 1 HEAD
    queue               1 scan of the topics; for each that takes the key, at most `TOPICS_MAX`, 1 scan of each shard,
                        of at most `SEGMENTS_MAX` records, and 1 of at most `LETTERS_MAX`; 1 GET of the rescan backlog
    batches             1 LIST and 1 GET for each open batch; without a sensor's cursor, 1 LIST for each 1000 records of
                        chains, and at most `CHAINS_MAX` open chains
    table               2 GETs to open it (`table.known`); 1 LIST and 2 GETs for the head; to find the generation that
                        committed the version n generations ago, about 4 log2(n) GETs; 1 GET for each of `REJECT_FILES`
                        files of rejects

Up to `ROUNDS` rounds, if the object changes meanwhile. A scan is 1 LIST and 1 GET for each record, or 1 query in
DynamoDB.
"""

from contextlib import suppress
from itertools import chain, islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import CorruptError, RefusedError, TagNotFound, UsageError
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
from s3notify_platform.ingest.batches import EVERYTHING, BatchPayload
from s3notify_platform.ingest.follow import decide
from s3notify_platform.ingest.plan import missing_commits
from s3notify_platform.ingest.source import Source
from s3notify_platform.ports import ETag, ObjectMeta, ObjectStore, StoredObject, unaddressable
from s3notify_platform.protocols.ack_chain import AckChains, ChainState
from s3notify_platform.protocols.keyspace import QUEUED, digest_of, signal_key
from s3notify_platform.protocols.notification_queue import NotificationQueue, Topic
from s3notify_platform.protocols.notification_queue.entries import dead_partition
from s3notify_platform.protocols.notification_queue.segments import decode_letter, may_hold
from s3notify_platform.protocols.notification_queue.topic_settings import takes
from s3notify_platform.protocols.source_enumerator import ObjectState, RescanBacklog
from s3notify_platform.slots import Slot, slot_of
from s3notify_platform.stores.s3.fast import shared_store
from s3notify_platform.table.commit import SlotCommit, SlotTable, spanning
from s3notify_platform.table.layout import Generation

SEGMENTS_MAX: Final = 500
"""Segments of a topic that are read: those that name the slot, and those of too many slots to name them."""

LETTERS_MAX: Final = 500
"""Dead letters of one slot and topic that are read."""

TOPICS_MAX: Final = 20
CHAINS_MAX: Final = 100
ROUNDS: Final = 3

REJECT_FILES: Final = 4
REJECT_BYTES: Final = 32 << 20
"""A file of rejects that is larger is not read."""

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
    """The state of the object of this key. Read permission is enough; requests as in the module docstring.

    `sensor`: the sensor's view of this key's slot; without it nothing is known of failing slots and runs. `objects`,
    `platform`: stores to use instead of the source's own. The facts are read one after the other, in an order that
    misses no change on its way to the table. A key that the store refuses has an answer, too. `UsageError` for a key
    that is not the source's, or that is no UTF-8.
    """
    if not key.startswith(source.input.prefix):
        raise UsageError(
            f"{key!r} does not belong to source {source.name!r}, which reads {source.input.prefix!r} of "
            f"{source.input.bucket.bucket!r}"
        )
    objects = objects if objects is not None else shared_store(source.input.bucket)
    platform = platform if platform is not None else shared_store(source.location.platform)
    for last in range(ROUNDS):
        # The object first: its entry is created before it, and leaves the queue only after the commit.
        now, no_object = _head(objects, key)
        answer = _round(source, key, sensor, platform, now=now, no_object=no_object, clock=clock)
        after, _ = _head(objects, key)
        if last == ROUNDS - 1 or (after and after.etag) == (now and now.etag):
            break
    return answer


def _head(objects: ObjectStore, key: str) -> tuple[ObjectMeta | None, str]:
    """The object, and why the store does not say whether there is one."""
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
    signal = platform.head(signal_key(source.location.keyspace_prefix, slot))
    queue = source.location.queue(platform)
    bucket = source.input.bucket.bucket
    taking = [t for t in queue.topics.all() if t.name == source.name or takes(t.settings, bucket, key)]
    every = sorted(taking, key=lambda topic: (topic.name != source.name, topic.name))
    topics = tuple(_topic_view(queue, source, topic, key) for topic in every[:TOPICS_MAX])
    records = source.location.records(platform)
    rescans = RescanBacklog(records, clock=clock).read()
    epoch = next((topic.epoch for topic in every if topic.name == source.name), "")
    taken = digest_of(ETag(signal.etag)) == sensor.seen if signal and sensor else None
    decision = decide(
        (slot,),
        rescans,
        topic=epoch,
        enumerated=sensor.enumerated if sensor else epoch,
        now_ms=clock.wall_ms(),
        unqueued=signal is not None and QUEUED not in signal.metadata and not taken,
    )
    batches, cut = _batches(AckChains(records, clock=clock), slot, sensor)
    table = source.table(store=platform)
    refused, known = "", Generation(0)
    try:
        known = source.open_table(create=False, store=platform).heads.get(slot, known)
    except (CorruptError, UsageError) as error:
        refused = str(error)
    head = table.head(slot)
    if (head.generation if head else 0) < known:
        refused = missing_commits(source, [slot])
    state = table.states(head, [key]).get(key)
    held = (head, state) if head is not None and state is not None else None
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
        topics_cut=len(every) > TOPICS_MAX,
        batches=batches,
        batches_cut=cut,
        rescans=slot in rescans.slots,
        next_batch=decision.how if epoch else "everything",
        committed=_committed(source, table, *held) if held else None,
        left=head is not None and any(delta.gone and delta.key == key for delta in head.deltas),
        head=head.generation if head is not None else 0,
        head_signal=head.signal if head is not None else None,
        rejections=_rejections(table, *held) if held else (),
        not_chosen=source.choice.why_not(key, now.modified_ms if now else None),
        stays=state is not None and source.input.stays(state),
        refused=refused,
        signal_taken=taken,
        sensor=sensor,
        failed=rescans.failed.get(slot),
    )


# The queue


def _topic_view(queue: NotificationQueue, source: Source, topic: Topic, key: str) -> TopicView:
    slot = slot_of(key, topic.settings.slots)
    scans = (queue.shards.scan(topic, n, wanted=may_hold({slot})) for n in range(topic.settings.shards))
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
    """The open batches that have not committed the slot yet; whether there may be more of them."""
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
    except (ValueError, TypeError):  # a chain that is not the platform's
        return True


# The table


def _committed(source: Source, table: SlotTable, head: SlotCommit, state: ObjectState) -> CommittedVersion:
    first, exact = _taken_in_by(table, head, state)
    form = format_for(state.key, source.input) if state.without_records else None
    emptiness = form.emptiness if form else ""
    if form and without_suffix(state.key) != state.key:
        emptiness += ", or a stream of nothing"
    return CommittedVersion(
        etag=state.etag,
        size=state.size,
        rows=state.rows,
        rejects=state.rejects,
        files=tuple(table.layout.data(head.slot, file.name) for file in spanning(head.files, [state])),
        generation=first.generation,
        exact=exact,
        seen_ms=first.seen_ms,
        planned_ms=first.planned_ms,
        committed_ms=first.created_ms,
        batch=first.batch,
        head=head.generation,
        reason=state.reason,
        trace=state.trace,
        reach_end=state.reach_end,
        offset=state.offset,
        by_record=state.by_record,
        emptiness=emptiness,
        pending=state.key in head.pending,
    )


def _taken_in_by(table: SlotTable, head: SlotCommit, wanted: ObjectState) -> tuple[SlotCommit, bool]:
    """The first generation that holds the version; whether its predecessor still exists.

    Goes back in steps that double, then bisects: few GETs, however long the slot's history is.
    """
    removed: set[int] = set()
    holding = head

    def holds(number: int) -> SlotCommit | None:
        if number < 1:
            return None
        try:
            commit = table.read(head.slot, Generation(number))
            state = table.states(commit, [wanted.key]).get(wanted.key)
        except CorruptError:  # removed by vacuum
            removed.add(number)
            return None
        return commit if state is not None and state.etag == wanted.etag else None

    step, without = 1, 0
    while holding.generation > 1:
        number = max(1, head.generation - step)
        if (earlier := holds(number)) is None:
            without = number
            break
        holding, step = earlier, step * 2 + 1
    while holding.generation - without > 1:
        middle = (holding.generation + without) // 2
        if (earlier := holds(middle)) is None:
            without = middle
        else:
            holding = earlier
    return holding, without not in removed


def _rejections(table: SlotTable, head: SlotCommit, state: ObjectState) -> tuple[Rejection, ...]:
    """The first rejects of the version, from the first small files: few requests."""
    holding = spanning(head.rejects, [state]) if state.rejects else ()
    small = [file for file in holding if file.bytes <= REJECT_BYTES]
    found: list[Rejection] = []
    for file in small[:REJECT_FILES]:
        got = table.store.get(table.layout.quarantine(head.slot, file.name))
        if not isinstance(got, StoredObject):
            continue  # removed by vacuum, after a newer commit
        rows = pq.ParquetFile(pa.BufferReader(got.body)).read(columns=["_key", "_etag", "_offset", "reason"])
        mine = rows.filter(pc.and_(pc.equal(rows["_key"], state.key), pc.equal(rows["_etag"], state.etag)))
        first = mine.sort_by("_offset").slice(0, REJECTS_SHOWN).to_pylist()
        found += [Rejection(offset=row["_offset"] or 0, reason=row["reason"] or "") for row in first]
    return tuple(sorted(found, key=lambda one: one.offset)[:REJECTS_SHOWN])
