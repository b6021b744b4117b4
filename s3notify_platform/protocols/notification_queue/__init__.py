"""Notification queue: a bounded queue for each topic, in which no change is lost (Ceph RGW's persistent topics).

The entries of a topic are spread over its shards. A segment is the part of one reservation that one shard stores: one
record of up to 256 entries and 128 KB. Reservations use the shards in turn; if a shard is full, they use the next
shard. To change a segment, a client replaces the segment's record, on condition that the record still has the version
that was read. On a conflict, the segment is read again, and the change is applied again to the writer's own entries. A
segment without entries is removed.

Steps
    1. Before a writer writes objects, it makes a reservation. The writer takes room: it adds the number of entries to
       the counter of a shard. Then the writer creates a segment with the keys, operations, expected ETags or
       preconditions, and the writer id. If all shards are full, the writes are refused before anything has happened. A
       process takes room for many puts at a time, and keeps the unused room as spare room. A process relies on a read
       of the topics for 2 s from the start of the read. If the creation of the segment was answered in this time, the
       reservation is granted. Otherwise the topic is read again, and must be unchanged.
    2. The writer writes the objects.
    3. The writer commits. Entries of written objects become committed; entries of unwritten objects are removed. An
       entry stays reserved if the outcome of its write is unknown, or if its object is still being written. So writers
       that share a segment need not wait for each other.
       An object of many parts is written by a multipart upload, which the reservation names. The reservation is renewed
       as long as the upload continues, and again right before the upload is completed.
    4. A reservation whose writer is gone is resolved by HEAD (`Reconciler`). If the write happened, the entry is
       committed; otherwise the entry is removed. An upload is aborted before the HEAD.
    5. Pull: a consumer lists each shard and reads the segments whose keys name the consumer's slots. (The key of a
       segment with more than 12 slots names no slots; such a segment is always read.) After its own commit, the
       consumer removes the entries that the commit includes, except entries that an owner has claimed. If a topic's
       endpoint was removed, no owner is left to drop the claims, so the claims do not count. If writers move no signals
       of slots (`signals: root`), the LIST of a shard also shows which slots have new entries (`marks_of`).
    6. Push: workers share the shards by leases with generations (`Worker`). The owner of a shard claims the due entries
       of a segment and counts their attempts, by one replacement of the segment's record. Then the owner reads the
       owners' record. If the record still shows this owner, the owner delivers the entries (`ShardConsumer`). After the
       delivery, one more replacement removes delivered entries, stores errors, and drops the claims. A failed entry is
       retried after a backoff. When the attempts or the time of an entry are used up, its dead letter is written. Then
       the entry is removed.
    7. A new owner first drops the claims of former owners. The new owner delivers entries only after that.
    8. After a confirmed removal of k entries, the remover subtracts k from the counter.
    9. A client that changes a topic waits until no process relies on the topic's previous state. The client waits 6 s
       (three times 2 s), because one clock may run up to three times as fast as another clock. A client that deletes a
       topic waits before it removes anything. A client that recounts a shard waits before it shrinks the base (see
       Invariants). A client that creates a topic waits before the topic's consumer may list the objects that were
       written earlier. `topic_store` describes the wait for each setting.

Storage (partition / key; JSON)
    topics / {topic}                                   settings, epoch, the quota of each shard, whether the topic is
                                                       paused, the tables that the topic serves
    queue.{topic} / {shard}-{ms}-{random}.{slots}      one segment: its entries, reserved or committed, and their claim
    dead.{topic} / {slot:03d}.{entry id}               dead letters
    depth.{topic} / {epoch}.{shard}.{generation}       counter of one generation of a shard's quota
    counts.{topic} / {epoch}.{shard}.{kind}            numbers of delivered and failed entries, for people
    workers / {worker}                                 heartbeat, new at every renewal; topics that the worker cannot
                                                       deliver
    owners / {topic}                                   owner and generation of each shard, and since when

Invariants
    - The bound is strict if the record store has a strict `add`: the entries in a topic never exceed its capacity.
      Every granted entry is counted in the shard's current quota generation: by the generation's counter, or in the
      generation's base if the entry is older than the generation. Counters are never too low.
    - A recount frees room that a crash or a lost answer left in use. First the counter is sealed, and gives no more
      room. Then a new generation begins; its base is the full count of the former generation. After the wait for
      writers of the former generation, the base shrinks to the number of entries found. A client may pause, and later
      change a counter of the former generation. Such a client notices its pause, because it measures the time until the
      answer arrives. The creation of a segment is not repeated. If the outcome of the creation is unknown, the segment
      keeps its room, and the writer creates another segment.
    - Spare room belongs to one quota generation, and cannot be used under another generation. Spare room fills at most
      a fourth of a shard, so other writers still find room. Spare room is recounted only if the counter does not change
      for a long time, or if more than a fourth of the shard is in use. A process that has ended or is idle does not
      give its spare room back.
    - A change is announced to each topic that existed when the change happened. If a topic is created later, its
      consumer's first listing finds the change. A writer with a reservation relies on the topics that it knows,
      provided that its write was answered within the 2 s of step 1. A writer without a reservation reads the topics
      again after its write.
    - An entry keeps its number in the segment, and leaves the segment once. Every write of a segment has unique bytes,
      so a writer that finds its bytes knows that its write was applied.
    - An owner claims entries, and then reads the owners' record. The owner removes these entries only if the record
      still showed this owner. If the record still showed this owner, the next owner takes over only after this read. So
      the next owner finds all claims, and drops them. The former owner's replacement of the segment then fails.
    - A committed entry is removed only by its consumer, by the move into the dead letters, by `erase`, or with its
      topic. After a topic is deleted, no earlier reservation can be committed to a new topic of the same name.
    - A pulled topic serves the tables that it names: no other table takes or removes its entries. If a topic names no
      tables, the first table that uses the topic claims it. The claim is a replacement of the topic's record.
    - Durations (leases, stale reservations, backoff) are measured on the process's own monotonic clock. A new owner
      restarts the backoff from the stored attempts. The time to live of an entry runs only while an owner watches the
      entry.

Limits
    - At least once: after a crash, a lost answer or a long pause, an entry may be delivered twice.
    - A writer that pauses for more than `stale_seconds` before its write is treated as if it had not written. The
      writer's commit returns `Expired`. If such a writer is killed before the commit, only the sweep finds its object.
    - Clocks must not stop. If a machine is paused together with its clock, as some virtual machines are, it may rely on
      topics for too long. The operations of this machine may then exceed the bound, or miss a topic that was created
      meanwhile.
    - A HEAD resolves the put or the delete of a writer that is gone. If the HEAD finds another writer's object, the put
      counts as done, and the delete counts as not done.
    - The time to live is a lower bound. When an owner ends, the time after the owner's last write of the entry is not
      counted.
    - Entries are unordered, as in Ceph, even for one key. If one clock made the sequencers of a key's entries, the
      later entry has the greater `sequencer`.
    - If the queue is on a bucket, the writers of a shard change the shard's counter one after the other. In this case,
      also pass the `keys_recur` of this package to `ObjectRecordStore`.
    - A writer that is killed after its commit and before its signal leaves entries that no puller looks for. Owners
      find such entries without a signal. For pullers, a process with access to queue and keyspace signals the slots of
      such entries (`channels.reconcile`).

Requests of a segment, if the queue is on a bucket: reserve 1 (plus 1 for each 32 entries, and 1 every 2 s), commit 1,
pull 2, claim 2, remove 1 to 2, room 1.

Selection of changes. A topic receives the changes in its bucket and below its prefix. If the topic has rules, it
receives only the changes that match a rule. Rules match the bucket, the key (by prefix, suffix and regular expression),
the event name, and the metadata and tags, if these are known (`topic_rules`). The entries of a paused topic are not
delivered. The owners keep their shards, the entries stay, and writers continue. A topic that is not persistent gets no
entries: the process that announces a change also sends it to the topic's endpoint (`channels.delivery`).

The queue differs from Ceph RGW in several points. Stale reservations are resolved, not dropped. Entries are removed one
by one. Attempts, errors and dead letters are stored. A new owner takes over a shard within 14 s instead of 90 s, and
immediately after a clean stop. An event that is too large is refused when it is reserved.

Reading order: topic_rules, topic_settings, event_details, entries, segments, topic_store, shards, rooms, reserving,
facts, queue, marks, reconciler, owners, consumer; s3_event is the message that is pushed.
"""

from s3notify_platform.protocols.notification_queue.consumer import (
    DeadLettered,
    Failure,
    Fenced,
    ShardConsumer,
    WillRetry,
)
from s3notify_platform.protocols.notification_queue.entries import (
    Entry,
    Event,
    Topic,
    TopicUser,
    Upload,
    keys_recur,
)
from s3notify_platform.protocols.notification_queue.facts import TopicStats
from s3notify_platform.protocols.notification_queue.marks import marks_of
from s3notify_platform.protocols.notification_queue.owners import ShardLease, ShardOwner, Worker, owners_of
from s3notify_platform.protocols.notification_queue.queue import NotificationQueue
from s3notify_platform.protocols.notification_queue.reconciler import Reconciled, Reconciler, resolve
from s3notify_platform.protocols.notification_queue.reserving import (
    EntryCommitted,
    Expired,
    QuotaExceeded,
    Reservation,
    Undecided,
)
from s3notify_platform.protocols.notification_queue.s3_event import decode_events, encode_events
from s3notify_platform.protocols.notification_queue.topic_rules import Rule
from s3notify_platform.protocols.notification_queue.topic_settings import TopicSettings

__all__ = [
    "DeadLettered",
    "Entry",
    "EntryCommitted",
    "Event",
    "Expired",
    "Failure",
    "Fenced",
    "NotificationQueue",
    "QuotaExceeded",
    "Reconciled",
    "Reconciler",
    "Reservation",
    "Rule",
    "ShardConsumer",
    "ShardLease",
    "ShardOwner",
    "Topic",
    "TopicSettings",
    "TopicStats",
    "TopicUser",
    "Undecided",
    "Upload",
    "WillRetry",
    "Worker",
    "decode_events",
    "encode_events",
    "keys_recur",
    "marks_of",
    "owners_of",
    "resolve",
]
