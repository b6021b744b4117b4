"""Source enumerator: finds the object versions that a batch must read, and assigns them to tasks.

The design follows the S3 source of RisingWave (its RFC).

Steps
    1. As soon as the topic of a source exists, the source's first batch lists the bucket (`Enumerator.versions`). A
       large bucket is listed by several concurrent `Chain`s. From then on, nothing is listed: the topic's entries name
       the changed keys. A HEAD finds the current version of each key (`Enumerator.current`). A writer reads the list of
       topics after its write, so every change is found by the listing, or has an entry in the topic.
    2. `changes_of_slot` compares the versions found with the slot's committed state. A key becomes a split to read if
       it is not in the state, or has another ETag. If an object was not read to its end, its reading continues at the
       stored offset. A key has left if it is in the state, but not in the bucket.
    3. `cut_to_bytes` limits the work to what one round may read. `parts_of` cuts a large object into parts for tasks.
       `assign` divides the splits among tasks by their bytes. `assign_slots` gives slots to parallel runs.
    4. The commit keeps `(key, etag, offset, reach_end)` for every object version, together with its rows.
    5. Entries are removed after a commit that includes their changes.

Storage (partition / key; JSON)
    enumerator / to_list    slots that need a rescan, the time when an unqueued writer was last seen, the topic epoch
                            that a stream has enumerated, and failed slots with their attempts (`RescanBacklog`)

Invariants
    - An object version is identified by key and ETag, never by the key alone, and never by LastModified. If an object
      version is planned twice, it is committed only once, because the state in the commit decides. So entries may come
      twice, late, and in any order.
    - An entry is removed only after the commit of a plan that was made while the entry existed.
    - If an object changes after it was enumerated, its read under If-Match fails. The entry of the later change causes
      another read.
    - A slot that was signalled by an unqueued writer stays in the rescan backlog until a rescan has been committed.
    - A listing is complete in any order in which the server lists, and with any number of chains.
    - If commits of a table are lost, an error is raised (`table.known`). So a slot that had a state is never treated as
      new.

Limits
    - A plan contains at most `max_objects` changes, deletions first, and reads about `max_bytes`. If a slot has more
      changes, its `SlotChanges` have `complete=False`. The slot is planned again after its commit.
    - The signal of a queueing writer may hide the signal of an unqueued writer, until the unqueued writer signals
      again. After an unqueued writer was seen, every signalled slot is listed for `UNQUEUED_SECONDS`. The sweep finds
      the changes whose signals were hidden.

Requests: 1 LIST for each 1000 objects of a listing; 1 HEAD for each key that an entry names, unless `Choice` excludes
the key.

The protocol differs from the original in several points. Overwrites, deletions and emptied objects are changes like any
other. Notifications are removed when they are committed, not when they are read. Ranges of slots do not overlap.

Reading order: chosen_objects, enumerator, assignment, parallel_listing, rescan.
"""

from s3notify_platform.protocols.source_enumerator.assignment import BALANCE_SLACK, Assignment, assign_slots
from s3notify_platform.protocols.source_enumerator.chosen_objects import Choice, time_of
from s3notify_platform.protocols.source_enumerator.enumerator import (
    OBJECT_COST_BYTES,
    Enumerator,
    ObjectState,
    ObjectVersion,
    SlotChanges,
    Split,
    UnchosenObject,
    assign,
    changes_of_slot,
    cut_to_bytes,
    head_or_listed,
    parts_of,
)
from s3notify_platform.protocols.source_enumerator.parallel_listing import (
    Chain,
    choose_cuts,
    listed_pages,
    quantiles,
)
from s3notify_platform.protocols.source_enumerator.rescan import (
    PARTITION,
    UNQUEUED_SECONDS,
    Failed,
    RescanBacklog,
    Rescans,
)

__all__ = [
    "BALANCE_SLACK",
    "OBJECT_COST_BYTES",
    "PARTITION",
    "UNQUEUED_SECONDS",
    "Assignment",
    "Chain",
    "Choice",
    "Enumerator",
    "Failed",
    "ObjectState",
    "ObjectVersion",
    "RescanBacklog",
    "Rescans",
    "SlotChanges",
    "Split",
    "UnchosenObject",
    "assign",
    "assign_slots",
    "changes_of_slot",
    "choose_cuts",
    "cut_to_bytes",
    "head_or_listed",
    "listed_pages",
    "parts_of",
    "quantiles",
    "time_of",
]
