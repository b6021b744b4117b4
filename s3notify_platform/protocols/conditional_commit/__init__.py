"""Conditional commit: of any number of writers with one precondition on a path, at most one succeeds.

`NativeCommit` uses the store's own conditions. `DynamoCommit` is for stores that lack them: a lease in a table says
who may write. Its items are those of object_store's DynamoCommit, so both can compete on one table.

Steps, native
    1. Send the write under its condition, with a fresh writer id in the metadata.
    2. Written: done. Conflict, with no earlier attempt in doubt: conflict.
    3. Unknown (timeout, 5xx, 409): HEAD the path, and judge what is there.
       - our writer id: the attempt in doubt was applied;
       - another writer's id, written under the same precondition: conflict, since only one write can have met it;
       - still the state before (nothing, or the expected ETag): not applied so far; send again under the same id;
       - anything else: our write may have been applied and then replaced: `UnknownOutcomeError`.

Steps, leases
    1. HEAD the path. The precondition fails: conflict.
    2. Create the lease of (path, expected ETag or `*`), generation 0.
    3. There is one already: HEAD the path every test interval. The precondition fails: conflict. Once the timeout of
       the lease found, times the clock skew rate, has passed on our own clock: HEAD once more, and replace the lease,
       generation + 1, if it is still the one found. Refused: repeat step 3 with the lease that is there now.
    4. The lease is ours: write, without a condition. The write must begin in the first half of the timeout, counted
       from before step 1; later, go back to 1 and replace our own lease. Unknown: HEAD. Our writer id (for a delete:
       no object): confirmed. Still the state before: write again under the same id. Anything else: unknown.
    5. Confirmed after the timeout: a HEAD must still find our writer id, else the outcome is unknown.
    6. Mark the lease done (generation + 1, timeout 0) if it is still ours. Done: written. Another took it over:
       unknown, since its write may be under way. No answer: written if it was confirmed within the timeout, since
       nobody can have taken over before our write was visible; else unknown.

Storage
    {path}                        the object itself
    metadata `s3notify-writer`    32 hex digits, drawn for each call; a copy replaces the source's
    metadata `s3notify-expected`  the precondition: `*`, or the ETag that was replaced
    lease                         `CommitLease`, one for each (path, expected ETag), in a table of its own

Invariants
    - `Written` means that exactly this call's write took effect under its precondition.
    - `Conflict` means that it did not, and never will. With leases: it was never sent.
    - An outcome that is not proven is reported as neither.
    - Leases: every change raises the generation and requires the one before it. So a paused holder whose lease was
      taken over cannot mark it done, and never returns `Written`.

Limits
    - Native: the store must honour the condition. Some ignore it on COPY and DELETE. The capability probe reports
      that (`copy_if_absent`, `delete_if_match`); this package does not check it.
    - Native: a delete leaves no writer id. In doubt, and the object is gone: `UnknownOutcomeError`.
    - Native and leases: while our attempt to create is in doubt, another writer may find the object and delete it.
      Then we create it a second time. If a third writer has created it by then, the result is a conflict (native) or
      unknown (leases). The table is safe from this: its paths are written once, and vacuum keeps young ones.
    - Leases: an unconditional write cannot be cancelled. One under way for longer than timeout × skew rate (its
      process paused after the check in step 4, or the network delayed the request) may replace the object of the
      next holder. Its own call then raises `UnknownOutcomeError`; if the process is killed first, nobody notices.
    - Leases: so the store must not hide delay. Use one that sends a write once and stops waiting within half the
      timeout: `S3ObjectStore(config, attempts=1, read_seconds=…)`. Its HEAD must see all earlier writes.
    - Leases: the rates of clocks differ at most by the skew rate. Wall clocks are right to within the TTL, which
      only frees space in the table.
    - Leases: all writers of a path use one table, and a table serves one bucket. After a holder was killed, the next
      writer waits timeout × skew rate (60 s by default) on that path and precondition.
    - Where the ETag is a hash of the body, an equal body restores it: bodies under `put_if_match` must differ.
    - After `UnknownOutcomeError` the write may still be applied: look again before deciding.

Requests, undisturbed. Native: 1 write. Leases: 1 HEAD, 1 write, 2 requests to the table.

Differs from object_store: a finished lease is marked done, so create, delete, create on one path waits for nobody. A
lease put whose answer was missing is recognised as one's own. A write in doubt is looked up, not reported as failed.
A write that outlasts its lease is noticed.

Reading order: operations, native, leases, lease_notation (leases as one setting).
"""

from s3notify_platform.protocols.conditional_commit.lease_notation import (
    LEASE_FORM,
    LeaseText,
    is_lease_text,
    lease_text,
)
from s3notify_platform.protocols.conditional_commit.leases import (
    BEGIN_WITHIN,
    DEFAULT_LEASES,
    ROUNDS,
    CommitLease,
    DynamoCommit,
    Granted,
    LeaseOutcome,
    Leases,
    LeaseSettings,
    Occupied,
)
from s3notify_platform.protocols.conditional_commit.native import NativeCommit, judge
from s3notify_platform.protocols.conditional_commit.operations import (
    EXPECTED,
    CommitOutcome,
    ConditionalCommit,
)

__all__ = [
    "BEGIN_WITHIN",
    "DEFAULT_LEASES",
    "EXPECTED",
    "LEASE_FORM",
    "ROUNDS",
    "CommitLease",
    "CommitOutcome",
    "ConditionalCommit",
    "DynamoCommit",
    "Granted",
    "LeaseOutcome",
    "LeaseSettings",
    "LeaseText",
    "Leases",
    "NativeCommit",
    "Occupied",
    "is_lease_text",
    "judge",
    "lease_text",
]
