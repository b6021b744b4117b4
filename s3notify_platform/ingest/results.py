"""How slots and batches end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from s3notify_platform.formats.rescue import added
from s3notify_platform.protocols.notification_queue import Entry
from s3notify_platform.slots import Slot
from s3notify_platform.table.layout import Generation

SlotStatus = Literal["committed", "unchanged", "failed", "conflict"]
"""`conflict`: another run committed the slot first, each time it was tried."""

NEVER: Final = Generation(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotResult:
    """How one slot ended, and what the run did to it.

    `rows` and `rejects` count the records of the `objects` that were read, before any transform; `live_rows`
    what the slot holds now. `failed_objects` are keys whose read failed, with the reason; the other objects are
    committed. `quarantined` ones failed too, and are in quarantine. `complete`: the run had the time to take in all;
    else ask for the slot again.
    """

    slot: Slot
    status: SlotStatus
    generation: Generation = NEVER
    objects: int = 0
    rows: int = 0
    rejects: int = 0
    gone: int = 0
    superseded: int = 0
    bytes: int = 0
    live_objects: int = 0
    live_rows: int = 0
    live_files: int = 0
    live_rejects: int = 0
    unnamed: Mapping[str, int] = field(default_factory=dict)
    """Values that the schema does not name, by path: left out if it was given, else in `_rescued` or quarantine."""
    mismatches: Mapping[str, int] = field(default_factory=dict)
    """Values that do not fit their columns, by path: in `_rescued`, or in quarantine with their records."""
    live_failing: int = 0
    complete: bool = True
    failed_objects: Mapping[str, str] = field(default_factory=dict)
    quarantined: Mapping[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything that was found is committed."""
        return self.status in ("committed", "unchanged") and not self.failed_objects


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """How a batch ended: its slots, the seconds of each phase, and the requests by kind.

    `entries`, by slot, were there before the bucket was looked at: remove those of slots that are `ok` and `complete`.
    `unqueued` slots were last signalled by a writer that does not queue, so that only a listing finds what changed;
    without entries they have no result.
    `unannounced` counts the changes that a listing found and no entry names. `schema_added` has the fields that this
    batch brought to the table, by path, with their types.
    """

    slots: Mapping[Slot, SlotResult]
    entries: Mapping[Slot, Sequence[Entry]]
    unqueued: frozenset[Slot]
    unannounced: int
    seconds: Mapping[str, float]
    requests: Mapping[str, int]
    tasks: int
    """Tasks that staged slots."""
    schema_added: Mapping[str, str] = field(default_factory=dict)


def added_result(earlier: SlotResult | None, later: SlotResult) -> SlotResult:
    """What one run did to a slot in several rounds, together."""
    if earlier is None:
        return later
    failed = {**earlier.failed_objects, **later.failed_objects}
    if earlier.status != "committed":
        # Nothing was committed, and so nothing is in quarantine for it.
        return replace(later, failed_objects=failed)
    if later.status == "unchanged":
        return replace(earlier, failed_objects=failed)
    return replace(
        later,
        objects=earlier.objects + later.objects,
        rows=earlier.rows + later.rows,
        rejects=earlier.rejects + later.rejects,
        gone=earlier.gone + later.gone,
        superseded=earlier.superseded + later.superseded,
        bytes=earlier.bytes + later.bytes,
        unnamed=added([earlier.unnamed, later.unnamed]),
        mismatches=added([earlier.mismatches, later.mismatches]),
        failed_objects=failed,
        quarantined={**earlier.quarantined, **later.quarantined},
    )
