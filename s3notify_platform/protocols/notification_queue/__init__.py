"""Notification queue: a bounded queue for each topic, in which no change is lost (Ceph RGW's persistent topics).

A segment is what one reservation puts into one shard: one record with up to 256 entries and 128 KB of them. A shard is
a share of the load: reservations take shards in turn, the next one if one is full. A segment changes by a replacement
under the version that was read; on a conflict it is read again, and the change is applied again to one's own entries. A
segment without entries is removed.

Steps
    1. Before a writer writes objects, it reserves: it takes room, by adding their number to the counter of a shard,
       and creates a segment that names keys, operations, expected ETags or preconditions, and its writer id. All
       shards are full: the writes are refused before anything happened. A process takes room for many puts at a time,
       and holds the rest. The reservation is granted if the creation was answered while the topic is known: for 2 s
       from the start of a read. Else the topic is read again, and has to be unchanged.
    2. It writes the objects.
    3. It commits: entries of written objects become committed, those of objects that were not written are taken out;
       those in doubt, or still being written, stay reserved. So writers that share a segment need not wait for each
       other.
       An object of many parts is written by a multipart upload, which the reservation names. It is renewed as long as
       the upload goes on, and again right before the upload is completed.
    4. A reservation that stays is resolved by HEAD (`Reconciler`): the write happened: committed; else taken out.
       Its upload is aborted before the HEAD.
    5. Pull: a consumer lists each shard, and reads the segments whose keys name its slots (those of more than 12 slots
       name none). After its own commit it takes entries out that are not claimed. If writers move no signals of slots
       (`signals: root`), the same LIST tells it which slots have new entries (`marks_of`).
    6. Push: workers share the shards by leases with generations (`Worker`). The owner of a shard claims what is due of
       a segment and counts its attempts, by one replacement; it reads the owners; still its own: it delivers
       (`ShardConsumer`). One replacement takes out what was delivered, stores errors, and drops the claims. What failed
       is tried again after a backoff. Attempts or time used up: the dead letter is written, then the entry taken out.
    7. A new owner first drops the claims of former owners; only then does it serve anything.
    8. Whose replacement or removal certainly took out k entries adds −k to the counter.
    9. Whoever changes a topic waits until nobody relies on what it was before: 6 s, by any clock up to three times as
       fast or slow. A deletion does so before it removes anything, a recount before it shrinks the base, a creation
       before anybody lists what was there before (`topic_store`, which says it of each setting).

Storage (partition / key; JSON)
    topics / {topic}                                   settings, epoch, the quota of each shard, whether it is paused,
                                                       the tables that it serves
    queue.{topic} / {shard}-{ms}-{random}.{slots}      one segment: its entries, reserved or committed, and their claim
    dead.{topic} / {slot:03d}.{entry id}               dead letters
    depth.{topic} / {epoch}.{shard}.{generation}       counter of one generation of a shard's quota
    counts.{topic} / {epoch}.{shard}.{kind}            delivered by owners and failed, for people
    workers / {worker}                                 heartbeat: changes at every renewal
    owners / {topic}                                   owner and generation of each shard, and since when

Invariants
    - The bound is strict, on any record store whose `add` is: entries that were granted and not taken out never exceed
      the capacity. Every granted entry is in the counter of the shard's current quota generation, or existed when
      that generation began and is in its base. Counters are never too low.
    - Room that a crash or a lost answer left in use is recovered by counting again: the counter is sealed, a new
      generation begins with all that it had counted as its base, and the base shrinks to the entries that are found
      once the former generation is waited out. Whoever counted under it later is fenced. A process may pause for any
      time: it measures until the answer is there. A segment is created once; one in doubt is left with its room, and
      another one is made.
    - Held room is room of one generation, and worth nothing under another. It fills no more than a fourth of a shard,
      where it keeps nobody out; so it is only counted again if the counter does not move for long, or more of the
      shard is in use. A process that has ended, or is idle, gives nothing back itself.
    - A change that has happened is announced to each topic that is older, or its consumer's first listing finds it. A
      writer with a reservation relies on the topics that it knows, as long as the answer to its write came in time; one
      without any reads them again after its write.
    - An entry keeps its number in the segment, and leaves it once. Every write of a segment is of bytes of its own, so
      whoever finds its bytes knows that it was the one.
    - An owner takes out only what it claimed before a read showed that it was still the owner. Its successor takes over
      later, so it finds all these claims and drops them; the owner's replacement then fails, and its claim is gone.
    - A committed entry leaves the queue only by its consumer, into the dead letters, or with its topic. Once a topic
      is deleted, no earlier reservation can be committed to a new topic of its name.
    - A topic that is pulled serves the tables that it names: nobody else takes its entries, or removes it. One that
      names none is claimed by the first, by a replacement of its record.
    - Durations (leases, stale reservations, backoff) are measured on one's own monotonic clock. A new owner begins
      the backoff again from the stored attempts. The time to live counts only while an owner watches.

Limits
    - At least once: after a crash, a lost answer or a long pause an entry may be delivered twice.
    - A writer that pauses for more than `stale_seconds` before its write is treated as one that did not write. Its
      commit returns `Expired`. If it is killed before that, only the sweep finds its object.
    - Clocks have to run. A machine that is paused together with its clock, as some virtual ones are, may rely on topics
      for too long: what was under way then may pass the bound, or be missed by a topic that was made meanwhile.
    - A put resolved by HEAD counts as happened if another writer's object is there; a delete does not.
    - The time to live is a lower bound: when an owner ends, the time since it last wrote the entry is not counted.
    - Entries are unordered, as in Ceph, also those of one key: the later one has the greater `sequencer`, by the clock
      of its writer. On a bucket alone the writers of a shard take turns at its counter. Give `ObjectRecordStore` our
      `keys_recur`.
    - A writer that is killed after its commit and before its signal leaves entries that no puller looks for. Owners
      find them anyway; for pullers, a process that sees queue and keyspace signals them (`channels.reconcile`).

Requests of a segment, on a bucket alone: reserve 1 (and 1 for each 32, and each 2 s), commit 1, pull 2, claim 2, take
out 1 to 2, room 1.

Which changes. A topic takes those of its bucket and prefix, or of these what one of its rules takes: by bucket, prefix,
suffix and regular expression of the key, by event name, and by metadata and tags where they are at hand
(`topic_rules`). A paused topic is not delivered: its owners keep their shards, entries stay, and writers go on.

Differs from Ceph RGW: stale reservations are resolved, not dropped. Removal is by entry. Attempts, errors and dead
letters are stored. Takeover takes 14 s instead of 90 s, and happens at once after a clean stop. An event that is too
large is refused when it is reserved.

Reading order: topic_rules, topic_settings, event_details, entries, segments, topics, shards, rooms, reserving, facts,
queue, marks, stale, owners, consumer; s3_event is the message that is pushed.
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
