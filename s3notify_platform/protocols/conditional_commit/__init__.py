"""Conditional commit: of any number of writers with one precondition on a path, one wins.

`NativeCommit` goes by the store's own conditions. `DynamoCommit` is for stores that lack them: a lease says who
may write; item for item the protocol of object_store's DynamoCommit, so that both can race on one table.

Steps, native
    1. Send the write under its condition, with a fresh writer id in the metadata.
    2. Written: done. Conflict, and no earlier attempt of ours is in doubt: conflict.
    3. Unknown (timeout, 5xx, 409): HEAD the path, and judge what is there.
       - our writer id: written, by the attempt in doubt;
       - another's, written under the same precondition: conflict, since only one of us can have met it;
       - still what it was (nothing, or the expected ETag): not applied so far; send again under the same id;
       - anything else: ours may have been applied and then replaced. Nobody can tell: `UnknownOutcomeError`.

Steps, leases
    1. HEAD the path. The precondition fails: conflict.
    2. Put the lease of (path, expected ETag or `*`) if there is none, generation 0.
    3. There is one: HEAD every test interval; the precondition fails: conflict. When the timeout of the lease found,
       times the clock skew rate, has passed on our own clock since we found it: HEAD once more, and replace it if
       it is still the one found, generation + 1. Refused: 3 again, with the one that is there now.
    4. Ours: write, without a condition. Begun only in the first half of the timeout, which counts from before
       step 1; later, go back to 1 and replace our own lease. Unknown: HEAD. Our writer id (or the object gone, if
       we delete): confirmed. Still what it was: write again under the same id. Anything else: unknown.
    5. Confirmed after the timeout: HEAD must still find our writer id, else the outcome is unknown.
    6. Mark the lease done: generation + 1, timeout 0, if it is still ours. Done: committed. Another took it
       over: unknown, since its write may be on the way. No answer: committed if confirmed within the timeout,
       for then nobody can have taken over before our write was to be seen; unknown otherwise.

Storage
    {path}                        the object itself
    metadata `s3notify-writer`    32 hex digits, drawn for each call; copies carry it over the source's
    metadata `s3notify-expected`  the precondition: `*`, or the ETag that was replaced
    lease                         `CommitLease`, one for each (path, expected ETag), in a table of its own

Invariants
    - `Written` means that exactly this call's write took effect under its precondition.
    - `Conflict` means that it did not, and never will. By leases: none was ever sent.
    - What is not proven is never reported as either.
    - Leases: every change raises the generation and needs the one before it. So a holder that slept, and was
      taken over, cannot mark its lease done, and is never told that it committed.

Limits
    - Native: the store must honour the condition. Some ignore it on COPY and DELETE: the capability probe says so
      (`copy_if_absent`, `delete_if_match`), this package assumes it.
    - Native: a delete leaves no writer id. In doubt, and the object gone: `UnknownOutcomeError`.
    - Leases: a plain write cannot be called back. One that is under way for longer than timeout × skew rate (its
      process asleep after the check in step 4, or a request that a network held) may land on the winner's object
      and replace it. Its own call finds that out and says so by `UnknownOutcomeError`; if the process dies first,
      nobody does. While no request takes that long, the object is the winner's.
    - Leases: so the store must not hide delay. Give one that sends a write once and gives up within half the
      timeout: `S3ObjectStore(config, attempts=1, read_seconds=…)`. And its HEAD must see what was written before.
    - Leases: clocks tick at rates that differ at most by the skew rate; wall clocks are right to within the TTL,
      which tidies the table and decides nothing else.
    - Leases: all writers of a path go through one table, and a table serves one bucket. A crashed holder costs
      the next writer timeout × skew rate (60 s by default) on that path and precondition.
    - While an attempt of ours to create is in doubt, another may find the object and delete it. Then we create it
      a second time; or, if yet another has created it by then, it looks like a conflict (native), or is
      unknown (leases).
      Paths of the table are written once, and vacuum spares young ones.
    - Where the ETag is a hash of the body, an equal body brings it back: bodies under `put_if_match` differ.
    - After `UnknownOutcomeError` the write may still land: look again before deciding.

Differs from object_store: finished leases are marked done, so that create, delete, create on one path waits for
nobody; a lost answer to a lease put is found to be one's own; what became of a write in doubt is looked up, not
reported as failed; a write that overran its lease is noticed.

Reading order: values, operations, native, leases.
"""

from s3notify_platform.protocols.conditional_commit.leases import (
    BEGIN_WITHIN,
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
from s3notify_platform.protocols.conditional_commit.values import (
    EXPECTED,
    CommitOutcome,
    ConditionalCommit,
)

__all__ = [
    "BEGIN_WITHIN",
    "EXPECTED",
    "ROUNDS",
    "CommitLease",
    "CommitOutcome",
    "ConditionalCommit",
    "DynamoCommit",
    "Granted",
    "LeaseOutcome",
    "LeaseSettings",
    "Leases",
    "NativeCommit",
    "Occupied",
    "judge",
]
