"""Keyspace: which slots of a bucket changed, for one HEAD, or one HEAD and one LIST (vnotify).

Steps
    1. A publisher writes (or deletes) its object.
    2. It writes the signal of the object's slot: a small object whose ETag moves.
    3. It writes the root signal. Each step begins when the one before it has ended.
    4. A watcher HEADs the root. Same ETag as last time: nothing changed, one request.
    5. Else it LISTs the signals and compares each slot's ETag with the one it remembers.
    6. Only when the LIST has succeeded does it remember the new root.

Storage
    {prefix}{slot}   signal of a slot, decimal and unpadded; the caller puts the `/` into `prefix`
    {prefix}_        root signal, which sorts after every slot: a full keyspace is one page of 1000
    body             `{unix milliseconds},{32 random hex digits}`; readers compare ETags only

Invariants
    - A slot's signal moves after every object write of that slot that happened, or may have happened.
    - A remembered root means: every signal that was there when that root was written has been listed.
    - A causal reader uses a version it had not seen only after a poll that began after the GET's response.

Limits
    - A slot says that one of its keys changed, not which. 100 changed keys touch about 95 of 1000 slots.
    - A publisher that dies between steps 1 and 2 leaves its object unsignalled: the notification queue's
      reservation and the sweep find it, not this protocol. Between 2 and 3: found by the next LIST, at the
      latest after `relist_seconds`.
    - A watcher remembers 8 bytes of each ETag's hash: a change is overlooked with probability 2**-64.

Differs from the vnotify crate, same bytes in the bucket: the root is remembered after the LIST, not before;
the causal poll begins after the GET, not with it, and its errors are retried while the reader waits; missing
keys are fenced; foreign objects cannot push slots off the page; deletes and batches are signalled.

Reading order: signals, publisher, watcher; causal is the cache that stands on the watcher.
"""

from s3notify_platform.protocols.keyspace.causal import CausalCache
from s3notify_platform.protocols.keyspace.publisher import Change, Delete, NotSignalledError, Publisher, Put
from s3notify_platform.protocols.keyspace.signals import (
    DIGEST_BYTES,
    NEVER_SEEN,
    QUEUED,
    WatcherState,
    changed_slots,
    digest_of,
    root_key,
    signal_body,
    signal_key,
)
from s3notify_platform.protocols.keyspace.watcher import Poll, Watcher

__all__ = [
    "DIGEST_BYTES",
    "NEVER_SEEN",
    "QUEUED",
    "CausalCache",
    "Change",
    "Delete",
    "NotSignalledError",
    "Poll",
    "Publisher",
    "Put",
    "Watcher",
    "WatcherState",
    "changed_slots",
    "digest_of",
    "root_key",
    "signal_body",
    "signal_key",
]
