"""Notification queue: a bounded queue for each topic, in which no change is lost (Ceph RGW's persistent topics).

Steps
    1. Before an object is written its writer reserves: room is counted in the slot's shard, and the entry
       created, which names key, operation, expected ETag or precondition, and the writer's id. No room: the
       write is refused before anything happened. At last the topic is read: still the same, it is granted.
    2. The object is written.
    3. The entry is committed, by the version that the reservation knows; or aborted, and its room given back.
    4. A reservation that stays is resolved by HEAD (`Reconciler`): the write happened, commit; else abort.
    5. Pull: a consumer lists the committed entries of its slots, and removes them after its own commit.
    6. Push: workers share the shards by leases with generations (`Worker`). The owner of a shard claims
       entries, one write each, and delivers them (`ShardConsumer`). Done: removed. Failed: the error is stored, and
       it is tried again after a backoff. Attempts or time used up: the entry is marked dead, copied to the
       dead letters, removed.
    7. A new owner stamps again what a former one has in hand, before it serves anything.

Storage (partition / key; JSON)
    topics / {topic}                                   settings, epoch, the meter of each shard
    queue.{topic}.{shard} / {slot:03d}.{entry id}      one entry: reserved, committed or dead, and its claim
    dead.{topic} / {slot:03d}.{entry id}               dead letters
    depth.{topic} / {epoch}.{shard}.{generation}       counter of one meter
    counts.{topic} / {epoch}.{shard}.{kind}            delivered and failed, for people
    workers / {worker}                                 a beat that moves
    owners / {topic}                                   owner and generation of each shard

Invariants
    - The bound is strict, on any record store whose `add` is: entries that were granted and not removed never
      number more than the capacity. Every granted entry is counted by the meter that its topic has, or was
      there when that meter began and is in its base. Counters only ever err on the high side.
    - Room lost to a crash is found by counting again under a new meter, which fences whoever counted with the
      old one: no clock decides, however long a process sleeps. An entry is created once; in doubt it is given
      up with its room, and another one made.
    - Removal is by entry and version. An owner removes only what it claimed before it was seen, by a read
      after the claim, to be the owner still; so its successor, which comes later, stamps all of that again.
    - A committed entry leaves the queue by its consumer or into the dead letters; never in any other way, but
      with its topic. Once a topic is deleted, nothing from before can be committed to a new one of its name.
    - Durations are measured on one's own monotonic clock: leases, stale reservations, backoff. A new owner
      begins the backoff again from the stored attempts; the time to live counts only while owners watch.

Limits
    - At least once: a crash, a lost answer or a process that slept too long may deliver an entry twice.
    - Where an adapter sends a creation again by itself, and the first copy lands after the entry has come and
      gone, that copy is not counted, and may be delivered again.
    - A writer that sleeps past `STALE_SECONDS` between `fresh` and its write is taken for one that did not
      write. It is told (`Expired`) when it commits; if it dies right then, only the sweep finds its object.
    - A put resolved by HEAD counts as happened if another writer's object is there; a delete does not.
    - The time to live is a lower bound: what an owner watched since it last wrote the entry goes with it.
    - Entries are unordered, as Ceph's are. One shard is one counter: on a bucket alone its writers take turns
      (batches count once), and each entry listed is one GET, several of them at once (a reconciler reads an entry
      again only when it changed). Give `ObjectRecordStore` our `keys_recur`.
    - A writer that dies after its commit, and before it signals, leaves an entry that no puller knows of: owners
      find it, and for pullers whoever watches both (`channels.reconciler`).

Differs from Ceph RGW: stale reservations are resolved, not dropped; removal is by entry; attempts, errors and
dead letters are stored; takeover within 14 s instead of 90 s, at once after a clean stop; an event that is too
large is refused when it is reserved.

Reading order: entries, settled, topics, shards, reserving, queue, reconciler, owners, drain; s3_event is the
message pushed.
"""

from s3notify_platform.protocols.notification_queue.consumer import (
    DeadLettered,
    FailedOutcome,
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
    EntryOutcome,
    Expired,
    NotificationQueue,
    TopicStats,
    Undecided,
)
from s3notify_platform.protocols.notification_queue.reconciler import (
    Reconciled,
    Reconciler,
    resolve,
)
from s3notify_platform.protocols.notification_queue.reserving import QuotaExceeded, Reservation
from s3notify_platform.protocols.notification_queue.s3_event import S3Events, decode_events, encode_events

__all__ = [
    "DeadLettered",
    "Entry",
    "EntryCommitted",
    "EntryOutcome",
    "Event",
    "Expired",
    "FailedOutcome",
    "Fenced",
    "NotificationQueue",
    "QuotaExceeded",
    "Reconciled",
    "Reconciler",
    "Reservation",
    "S3Events",
    "ShardConsumer",
    "ShardLease",
    "Topic",
    "TopicSettings",
    "TopicStats",
    "Undecided",
    "WillRetry",
    "Worker",
    "decode_events",
    "encode_events",
    "keys_recur",
    "resolve",
]
