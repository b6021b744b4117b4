"""Source enumerator: which object versions a batch has to read, and which task reads them.

After the S3 source of RisingWave (its RFC).

Steps
    1. Once its topic is made, a source's first batch lists the bucket (`Enumerator.versions`; a large one in several
       `Chain`s at once). From then on the entries of its topic name the keys that changed, and the bucket is asked what
       is there under each now (`Enumerator.current`): nothing is listed. A writer looks which topics there are after
       its write, so that a change is in the listing or in the topic.
    2. `changes_of_slot` compares what was found with the slot's committed state: a key not in the state, or with
       another ETag, is a split to read; one that was not read to its end is read on from its offset; a key in the
       state that is not in the bucket has left.
    3. `cut_to_bytes` cuts the work to what one round may read, `parts_of` a big object to what one task may, and
       `assign` gives the splits to tasks by bytes. Slots are dealt to parallel runs, and to tasks that follow entries,
       by `assign_slots`.
    4. The commit keeps for every object version `(key, etag, offset, reach_end)`, together with its rows.
    5. Entries are removed after the commit that has seen them.
    6. A slot that was committed for the first time is noted in `CommittedSlots`. Who plans reads that before it
       looks at the table: a slot that is in it and has no commit has lost its state, and is refused.

Storage (partition / key; JSON)
    enumerator / to_list    slots that have to be compared by a listing, when a writer was last seen that signals and
                            does not queue, and what a stream has enumerated (`RescanBacklog`)
    enumerator / committed  slots that were ever committed, as a bitmap (`CommittedSlots`)

Invariants
    - Identity is (key, ETag), never the name alone, and never LastModified. What is planned twice is committed
      once: the state of the commit decides. So entries may come twice, late, and in any order.
    - An entry is removed only after a commit of a plan that was made when the entry was there.
    - An object that changes after it was enumerated fails its pinned read and is left to its own entry.
    - A slot that was signalled by a writer without an entry waits for a rescan, and leaves the backlog after it.
    - A listing is complete whatever order the server lists in, and in however many chains.
    - State that was there never starts empty: lost commits are an error, not a second ingestion of everything.

Limits. A plan holds at most `max_objects` changes, deletions first, and reads about `max_bytes`; a slot with more is
`complete=False` and is planned again after its commit. The signal of a writer that does not queue may hide behind one
of a writer that does, until the former signals again: from then on, for `UNQUEUED_SECONDS`, all that is signalled is
listed; the sweep finds what came before.

Differs from the original: overwrites, deletions and emptied objects are changes like any other; notifications
are removed when they are committed, not when they are read; ranges of slots do not overlap.

Read `enumerator.py` first, then `assignment.py`, `listing.py` and `records.py`.
"""

from s3notify_platform.protocols.source_enumerator.assignment import BALANCE_SLACK, Assignment, assign_slots
from s3notify_platform.protocols.source_enumerator.enumerator import (
    OBJECT_COST_BYTES,
    Enumerator,
    ObjectState,
    ObjectVersion,
    SlotChanges,
    Split,
    assign,
    changes_of_slot,
    cut_to_bytes,
    parts_of,
)
from s3notify_platform.protocols.source_enumerator.listing import Chain, choose_cuts, listed_pages, quantiles
from s3notify_platform.protocols.source_enumerator.rescan import (
    COMMITTED,
    PARTITION,
    TO_LIST,
    UNQUEUED_SECONDS,
    CommittedSlots,
    RescanBacklog,
    Rescans,
)

__all__ = [
    "BALANCE_SLACK",
    "COMMITTED",
    "OBJECT_COST_BYTES",
    "PARTITION",
    "TO_LIST",
    "UNQUEUED_SECONDS",
    "Assignment",
    "Chain",
    "CommittedSlots",
    "Enumerator",
    "ObjectState",
    "ObjectVersion",
    "RescanBacklog",
    "Rescans",
    "SlotChanges",
    "Split",
    "assign",
    "assign_slots",
    "changes_of_slot",
    "choose_cuts",
    "cut_to_bytes",
    "listed_pages",
    "parts_of",
    "quantiles",
]
