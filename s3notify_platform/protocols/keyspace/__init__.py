"""Keyspace: which slots of a bucket changed, for one HEAD, or one HEAD and one LIST (vnotify).

Steps
    1. A publisher writes (or deletes) an object.
    2. It then writes the signal of the object's slot: a small object whose ETag changes with every write.
    3. It then writes the root signal. Each step begins after the one before it has ended.
    4. A watcher HEADs the root. The ETag is the same as last time: nothing changed. One request.
    5. Otherwise it LISTs the signals, and compares each slot's ETag with the one that it remembers.
    6. It remembers the new root only after the LIST has succeeded.

Where nearly all writers announce their changes in a queue first, they may leave out step 2 (`signals: root`). Such a
root is a byte longer, and says: whatever is new, entries of the queue name the slots. A watcher then looks at the marks
of the entries (`entries`) instead of step 5, and remembers 8 bytes of them for each slot. Everybody else signals as
above, and that root has the watcher do both. It may be overwritten before a poll by one that moved alone; so the
signals are listed again after `HIDDEN_SECONDS`, as long as a root has moved alone since the last LIST. Each LIST is
after the HEAD; entries are committed before the root, and signals written before it. So the invariants below hold for
both, the first one with entries for signals, if none is lost. Watchers that know no queue refuse such a keyspace.

Storage
    {prefix}{slot}   signal of a slot, decimal and unpadded; the caller puts the `/` into `prefix`
    {prefix}_        root signal. It sorts after every slot, so a full keyspace is one page of 1000 keys
    body             `{unix milliseconds},{32 random hex digits}`; readers compare ETags only. Then `q`, if all that it
                     signals is in the queue; `qr`, of a root that moved alone

Invariants
    - The signal of a slot changes after every object write in that slot which happened, or may have happened.
    - A watcher that remembers a root has listed every signal that was there when that root was written.
    - A causal reader uses a version that is new to it only after a poll that began after the response to its GET.

Limits
    - A signal says that some key of its slot changed, not which one. 100 changed keys touch about 95 of 1000 slots.
    - A publisher that is killed between steps 1 and 2 leaves its object unsignalled. This protocol does not find it;
      the reservation in the notification queue does, and so does the sweep. Killed between steps 2 and 3: the next
      LIST finds the signal, after `relist_seconds` at the latest.
    - A watcher remembers 8 bytes of a hash of each ETag: it misses a change with probability 2**-64.

Requests: publish n objects in s slots: n + s + 1 PUTs, n + 1 if the root moves alone; 2 more for an upload, and 1 for
each part. Poll: 1 HEAD, and 1 LIST if the root changed.

Differs from the vnotify crate, with the same bytes in the bucket: the root is remembered after the LIST, not before
it. The causal poll begins after the GET, not together with it, and is retried while the reader waits. The absence of a
key needs that poll too, and so does what the background reads again. Foreign objects below the prefix cannot hide
slots. Deletes and batches are signalled.

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
