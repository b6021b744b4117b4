"""Notification queue: a bounded queue for each topic, in which no change is lost (Ceph RGW's persistent topics).

Steps
    1. Before a writer writes an object, it reserves: it adds to the counter of the slot's shard, and creates an entry
       with key, operation, expected ETag or precondition, and its writer id. The quota is full: the write is refused
       before anything happened. At last it reads the topic again; unchanged, the reservation is granted.
    2. It writes the object.
    3. It commits the entry, by the version that the reservation holds; or aborts it, and gives its space back.
    4. A reservation that stays is resolved by HEAD (`Reconciler`): the write happened: commit; else abort.
    5. Pull: a consumer lists the committed entries of its slots, and removes them after its own commit.
    6. Push: workers share the shards by leases with generations (`Worker`). The owner of a shard claims entries, one
       write each, and delivers them (`ShardConsumer`). Delivered: removed. Failed: the error is stored, and the entry
       is tried again after a backoff. Attempts or time used up: the entry is marked dead, copied to the dead letters,
       and removed.
    7. A new owner first rewrites every entry that a former owner has claimed; only then does it serve anything.

Storage (partition / key; JSON)
    topics / {topic}                                   settings, epoch, the quota of each shard
    queue.{topic}.{shard} / {slot:03d}.{entry id}      one entry: reserved, committed or dead, and its claim
    dead.{topic} / {slot:03d}.{entry id}               dead letters
    depth.{topic} / {epoch}.{shard}.{generation}       counter of one generation of a shard's quota
    counts.{topic} / {epoch}.{shard}.{kind}            delivered and failed, for people
    workers / {worker}                                 heartbeat: changes at every renewal
    owners / {topic}                                   owner and generation of each shard

Invariants
    - The bound is strict, on any record store whose `add` is: entries that were granted and not removed never exceed
      the capacity. Every granted entry is in the counter of the shard's current quota generation, or existed when
      that generation began and is in its base. Counters are never too low.
    - Space that a crash left in use is recovered by counting again under a new generation. A writer that counted under
      the old one is fenced. No clock decides this, so a process may pause for any time. An entry is created once; one
      in doubt is left with its space, and another one is made.
    - Removal is by entry and version. An owner removes only what it claimed before a read showed that it was still
      the owner. Its successor takes over later, so it finds all of these entries and rewrites them.
    - A committed entry leaves the queue only by its consumer, into the dead letters, or with its topic. Once a topic
      is deleted, no earlier reservation can be committed to a new topic of its name.
    - Durations (leases, stale reservations, backoff) are measured on one's own monotonic clock. A new owner begins
      the backoff again from the stored attempts. The time to live counts only while an owner watches.

Limits
    - At least once: after a crash, a lost answer or a long pause an entry may be delivered twice.
    - A writer that pauses for more than `STALE_SECONDS` before its write is treated as one that did not write. Its
      commit returns `Expired`. If it is killed before that, only the sweep finds its object.
    - A put resolved by HEAD counts as happened if another writer's object is there; a delete does not.
    - The time to live is a lower bound: when an owner ends, the time since it last wrote the entry is not counted.
    - Entries are unordered, as in Ceph. A shard has one counter. On a bucket alone its writers take turns (a batch
      counts once), and each entry listed is one GET, several at once (a reconciler reads an entry again only when it
      changed). Give `ObjectRecordStore` our `keys_recur`.
    - A writer that is killed after its commit and before its signal leaves an entry that no puller looks for. Owners
      find it anyway; for pullers, a process that sees queue and keyspace signals it (`channels.reconciler`).

Requests: reserve 3, commit 1, claim and remove an entry 1 write and 1 removal; scans as the methods say.

Differs from Ceph RGW: stale reservations are resolved, not dropped. Removal is by entry. Attempts, errors and dead
letters are stored. Takeover takes 14 s instead of 90 s, and happens at once after a clean stop. An event that is too
large is refused when it is reserved.

Reading order: entries, topics, shards, reserving, queue, stale, owners, consumer; s3_event is the message that is
pushed.
"""

from s3notify_platform.protocols.notification_queue.consumer import (
    DeadLettered,
    Fenced,
    ShardConsumer,
    WillRetry,
)
from s3notify_platform.protocols.notification_queue.entries import (
    Entry,
    Event,
    Topic,
    TopicSettings,
    keys_recur,
)
from s3notify_platform.protocols.notification_queue.owners import ShardLease, Worker
from s3notify_platform.protocols.notification_queue.queue import (
    EntryCommitted,
    Expired,
    NotificationQueue,
    Undecided,
)
from s3notify_platform.protocols.notification_queue.reserving import QuotaExceeded, Reservation
from s3notify_platform.protocols.notification_queue.s3_event import decode_events, encode_events
from s3notify_platform.protocols.notification_queue.stale import Reconciled, Reconciler, resolve

__all__ = [
    "DeadLettered",
    "Entry",
    "EntryCommitted",
    "Event",
    "Expired",
    "Fenced",
    "NotificationQueue",
    "QuotaExceeded",
    "Reconciled",
    "Reconciler",
    "Reservation",
    "ShardConsumer",
    "ShardLease",
    "Topic",
    "TopicSettings",
    "Undecided",
    "WillRetry",
    "Worker",
    "decode_events",
    "encode_events",
    "keys_recur",
    "resolve",
]
