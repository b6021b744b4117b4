"""The keyspace protocol (vnotify) finds the changed slots of a bucket by one HEAD, or by one HEAD and one LIST.

Steps
    1. A publisher writes (or deletes) an object.
    2. The publisher then writes the signal of the object's slot: a small object whose ETag changes with every write.
    3. The publisher then writes the root signal. Each step begins after the previous step has ended.
    4. A watcher HEADs the root. If the ETag is the same as last time, nothing changed, and the poll costs one request.
    5. Otherwise, the watcher LISTs the signals, and compares each slot's ETag with the ETag that it remembers.
    6. The watcher remembers the new root only after the LIST has succeeded.

If nearly all writers announce their changes in a queue first, these writers may skip step 2 (`signals: root`). Then the
root moves alone: no signal of a slot changes. A root that moves alone has a longer body than other roots. If a watcher
finds a root of this length, entries of the queue name all slots with new changes. Instead of step 5, the watcher then
calls `entries`. This function reads the queue, and returns a list of texts for each slot: the marks. Each newly
committed entry adds a mark to its slot. For each slot, the watcher remembers 8 bytes of a hash of the marks.

Unqueued writers still signal as above. The root of an unqueued writer makes the watcher both LIST the signals and read
the marks. But a root that moves alone may overwrite the root of an unqueued writer before the next poll. So a watcher
also lists the signals after `HIDDEN_SECONDS` if a root has moved alone since the watcher's last LIST. Each LIST comes
after the HEAD. Entries are committed, and signals are written, before the root moves. So the invariants below also hold
with a queue. If the root moves alone, another invariant replaces the first invariant: the object's slot has an entry in
the queue, provided that no entry is lost. A watcher that cannot read the queue's entries refuses a keyspace whose root
moves alone.

Storage
    {prefix}{slot}   signal of a slot, decimal and unpadded; the caller puts the `/` into `prefix`
    {prefix}_        root signal. Its key sorts after every slot, so one page of a LIST has all 1000 slots
    body             `{unix milliseconds},{32 random hex digits}`; readers compare only ETags. A suffix `q` means that
                     all signalled changes are in the queue; `qr` means that the root moved alone

Invariants
    - After every object write that happened or may have happened, the signal of the object's slot changes.
    - A watcher that remembers a root has listed every signal that existed when that root was written.
    - A causal reader that has received a new version of an object uses it only after a poll that began later.

Limits
    - A signal says that some key of its slot changed, not which key. 100 changed keys touch about 95 of 1000 slots.
    - A publisher that is killed between steps 1 and 2 leaves its object unsignalled. This protocol does not find such
      an object. The reconciler finds the object by the reservation in the notification queue; the sweep finds the
      object by a full LIST. If the publisher is killed between steps 2 and 3, the next LIST finds the signal, after
      `relist_seconds` at the latest.
    - A watcher remembers 8 bytes of a hash of each ETag. So it misses a change with probability 2**-64.

Requests: n objects in s slots take n + s + 1 PUTs, or n + 1 if the root moves alone. A multipart upload takes 2
requests, and 1 for each part, instead of the object's PUT. A poll takes 1 HEAD, and 1 LIST if the root changed.

The vnotify crate writes the same bytes into the bucket. The protocol differs from the crate in several points. The root
is remembered after the LIST, not before the LIST. The causal poll begins after the GET, not together with it, and is
retried while the reader waits. The causal poll is also made for a missing key and for entries that are read again in
the background. Foreign objects below the prefix cannot hide slots. Deletes and batches are signalled.

Reading order: signals, publisher, uploads (large objects), watcher, causal (a cache above the watcher), cached_entries.
"""

from s3notify_platform.protocols.keyspace.causal import CausalCache
from s3notify_platform.protocols.keyspace.publisher import Change, Delete, NotSignalledError, Publisher
from s3notify_platform.protocols.keyspace.signals import (
    DIGEST_BYTES,
    NEVER_SEEN,
    QUEUED,
    QUEUED_BYTES,
    WatcherState,
    digest_of,
    root_key,
    signal_body,
    signal_key,
)
from s3notify_platform.protocols.keyspace.uploads import LargeObjects, LargePut, Put, Readable
from s3notify_platform.protocols.keyspace.watcher import Poll, Watcher

__all__ = [
    "DIGEST_BYTES",
    "NEVER_SEEN",
    "QUEUED",
    "QUEUED_BYTES",
    "CausalCache",
    "Change",
    "Delete",
    "LargeObjects",
    "LargePut",
    "NotSignalledError",
    "Poll",
    "Publisher",
    "Put",
    "Readable",
    "Watcher",
    "WatcherState",
    "digest_of",
    "root_key",
    "signal_body",
    "signal_key",
]
