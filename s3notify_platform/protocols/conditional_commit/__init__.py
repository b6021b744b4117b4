"""Conditional commit: if several writers have the same precondition on a path, at most one of them succeeds.

`NativeCommit` uses the store's own conditions. `DynamoCommit` is for stores without conditions: a lease in a DynamoDB
table decides who may write. The lease items have the format of object_store's DynamoCommit, so both clients can share
one DynamoDB table.

Steps, native
    1. Send the write under its condition, with a fresh writer id in the metadata.
    2. If the store answers `Written`, the commit is done. If the store answers `Conflict`, and the outcome of each
       earlier attempt of ours is known, another write won.
    3. If the answer is `Unknown` (timeout, 5xx, 409), HEAD the path, and decide by the object that the HEAD found.
       - The object has our writer id: our earlier attempt was applied.
       - The object has another writer's id and the same precondition. The outcome is a conflict, because only one write
         can succeed under one precondition.
       - The path is unchanged (no object, or the expected ETag): the write is not applied so far. Send the write again
         under the same id.
       - Any other result of the HEAD: our write may have been applied and then replaced. The outcome is
         `UnknownOutcomeError`.

Steps, leases
    1. HEAD the path. If the precondition fails, the outcome is a conflict.
    2. Create the lease of (path, expected ETag or `*`) with generation 0. If the creation succeeds, go to step 4.
    3. If a lease exists already, HEAD the path at every test interval. If the precondition fails, the outcome is a
       conflict. Wait, on our own clock, for the timeout of this lease, multiplied by the clock skew rate. Then HEAD
       again. If the lease has not changed, replace it by a lease with generation + 1. If the replacement is refused,
       repeat step 3 with the current lease.
    4. The lease is ours: write, without a condition. The timeout counts from a moment before step 1. The write must
       begin in the first half of the timeout. If the first half has passed, go back to step 1 and replace our own
       lease. If the store's answer is unknown, HEAD the path. If the object has our writer id (for a delete: if the
       object is gone), the write is confirmed. If the path is unchanged, write again under the same id. In all other
       cases, the outcome is unknown.
    5. If the write was confirmed only after the timeout, another HEAD must still find our writer id. Otherwise, the
       outcome is unknown.
    6. Mark the lease done (generation + 1, timeout 0) if it is still ours. If the mark succeeds, the outcome is
       `Written`. If another writer has taken the lease over, the outcome is unknown, because the other writer's write
       may be in flight. If the request that marks the lease gets no answer, the outcome depends on the write itself:
       `Written` if the write was confirmed within the timeout, and unknown otherwise. Within the timeout, no other
       writer can take the lease over.

Storage
    {path}                        the object itself
    metadata `s3notify-writer`    32 hex digits, drawn for each call; a copy replaces the source's value
    metadata `s3notify-expected`  the precondition: `*`, or the ETag that was replaced
    lease                         `CommitLease`, one for each (path, expected ETag), in a separate table

Invariants
    - `Written` means that the write of exactly this call took effect under its precondition.
    - `Conflict` means that the write did not take effect, and never will. With leases, a write whose outcome is
      `Conflict` was never sent.
    - An outcome that is not proven is reported neither as `Written` nor as `Conflict`.
    - Leases: every change raises the generation and requires the previous generation. So a paused holder whose lease
      was taken over cannot mark the lease done, and never returns `Written`.

Limits
    - Native: the store must honour the condition. Some stores ignore the condition of a COPY or a DELETE. The
      capability probe reports such stores (`copy_if_absent`, `delete_if_match`); this package does not check the store.
    - Native: a delete leaves no writer id. So the outcome is unknown if a delete gets no clear answer and the object is
      gone.
    - Native and leases: while the outcome of our attempt to create is unknown, another writer may find the object and
      delete it. Then we create the object a second time. If a third writer has created the object before us, the
      outcome is a conflict (native), or is unknown (leases). Commits to a Delta table do not have this problem: no
      writer deletes a version of the table's log, and vacuum keeps young files.
    - Leases: an unconditional write cannot be cancelled. Such a write may be in flight for longer than timeout × skew
      rate. For example, the writer's process paused after the check in step 4, or the network delayed the request. The
      late write may then replace the object of the next holder. The late write's own call raises `UnknownOutcomeError`.
      If the late writer's process is killed before this error, the replacement stays unnoticed.
    - Leases: the store client must not hide delays, because the lease may end during a delay. Use a client that sends a
      write once and stops waiting within half the timeout: `S3ObjectStore(config, attempts=1, read_seconds=…)`. A HEAD
      must see all earlier writes.
    - Leases: the rates of clocks must not differ by more than the skew rate. Wall clocks must be correct to within the
      TTL. The TTL only frees space in the table.
    - Leases: all writers of a path must use one table, and a table must serve only one bucket. If the holder of a lease
      is killed, the next writer with the same path and precondition waits timeout × skew rate (60 s by default).
    - If the ETag is a hash of the body, a later write of an equal body restores the ETag. So all bodies that
      `put_if_match` writes to a path must differ.
    - After `UnknownOutcomeError` the write may still be applied later: read the path again before you decide.

Requests without contention. Native: 1 write. Leases: 1 HEAD, 1 write, 2 requests to the table.

The protocol differs from object_store in several points. A finished lease is marked done, so a sequence of create,
delete and create on one path does not wait. If the answer to the write of a lease is lost, the writer later recognises
the lease as its own. If the outcome of a write is unknown, it is looked up, not reported as a failure. A write that
outlasts its lease is noticed.

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
