"""Removes commits outside the retention and files that no remaining commit names.

Invariants. A slot's head is never removed. A superseded commit is removed only when its successor is older than the
retention. The retention is never shorter than the longest time that a run may take: otherwise a paused run could create
a removed generation again. A file is removed only when it is older than the retention and no remaining commit names it,
so files of a run that has not committed yet are kept. Ages are measured by the store's clock, from a probe object that
is written at the start.

The Delta view: the generations that its last version shows are kept at any age, so that it can always be read. Of its
log, all before the newest checkpoint that is older than the retention is removed. So Delta versions reach back as far
as generations.

Requests: one LIST for each 1000 objects of the table, 2 GETs and 1 LIST for the view's log, 1 GET for each remaining
commit, 1 DELETE for each removed object.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.errors import UsageError
from s3notify_platform.parallel import Track, untracked
from s3notify_platform.ports import ObjectMeta, list_all
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotTable
from s3notify_platform.table.delta.log import DeltaLog
from s3notify_platform.table.layout import Generation, generation_of


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumReport:
    """What one pass removed and left; of a dry run, what a pass would remove now."""

    commits_removed: int
    files_removed: int
    log_removed: int
    """Objects of the Delta view's log."""
    bytes_removed: int
    commits_kept: int
    files_kept: int
    slots_skipped: tuple[Slot, ...] = ()
    """Slots with missing commits that have something left."""
    names: tuple[str, ...] = ()
    """Keys of all that was removed, in that order."""


def vacuum(
    table: SlotTable,
    *,
    retention_seconds: float,
    known: Mapping[Slot, Generation] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    track: Track = untracked,
    dry_run: bool = False,
) -> VacuumReport:
    """One pass over the whole table; safe beside running batches and beside another vacuum.

    A dry run removes nothing but the probe object that it writes for the store's time.

    Nothing of a slot with missing commits is touched: its newest one is older than in `known` (`table.known`). Where
    nothing is known of the table, these are the slots without any commit.
    """
    if retention_seconds < table.max_run_seconds:
        raise UsageError(
            f"retention {retention_seconds:.0f} s is shorter than a run may take "
            f"({table.max_run_seconds:.0f} s): a paused run could create a removed generation again"
        )
    oldest_ms = _server_now_ms(table, clock) - retention_seconds * 1000
    layout = table.layout
    log = DeltaLog(table.store, layout)
    shown = log.read().generations
    histories: dict[Slot, list[ObjectMeta]] = defaultdict(list)
    for meta in list_all(table.store, layout.all_commits):
        histories[Slot(int(meta.key.split("/")[-2]))].append(meta)

    newest = {slot: max(generation_of(meta.key) for meta in metas) for slot, metas in histories.items()}
    skipped: set[Slot] = set()

    def misses_commits(slot: Slot) -> bool:
        missing = newest.get(slot, 0) < (known.get(slot, 0) if known is not None else 1)
        skipped.update([slot] if missing else [])
        return missing

    doomed: list[ObjectMeta] = []
    named: set[str] = set()
    kept = 0
    for slot, metas in track(histories.items(), len(histories), "reading commits of slots"):
        metas.sort(key=lambda meta: generation_of(meta.key), reverse=True)
        expired = len(metas) if misses_commits(slot) else _first_expired(metas, oldest_ms, shown.get(slot))
        # Oldest first, so that an interrupted pass leaves a history without gaps.
        doomed.extend(reversed(metas[expired:]))
        for meta in metas[:expired]:
            commit = table.read(slot, generation_of(meta.key))
            kept += 1
            named.update(layout.data(slot, file.name) for file in commit.files)
            named.update(layout.quarantine(slot, file.name) for file in commit.rejects)
            named.update(layout.state(slot, page.name) for page in commit.pages)

    commits_removed = len(doomed)
    doomed.extend(log.expired(oldest_ms))
    log_removed = len(doomed) - commits_removed
    files_kept = 0
    # Without the view's log, which is in data/ too.
    for folder in ("data/slot=", "state/", "quarantine/"):
        for meta in list_all(table.store, layout.prefix + folder):
            unnamed = meta.key not in named and meta.modified_ms < oldest_ms
            if unnamed and not misses_commits(_slot_of_file(meta.key)):
                doomed.append(meta)
            else:
                files_kept += 1
    removing = () if dry_run else doomed
    for meta in track(removing, len(removing), "removing objects"):
        table.store.delete(meta.key)
    return VacuumReport(
        commits_removed=commits_removed,
        files_removed=len(doomed) - commits_removed - log_removed,
        log_removed=log_removed,
        bytes_removed=sum(meta.size for meta in doomed),
        commits_kept=kept,
        files_kept=files_kept,
        slots_skipped=tuple(sorted(skipped)),
        names=tuple(meta.key for meta in doomed),
    )


def _slot_of_file(key: str) -> Slot:
    return Slot(int(key.split("/")[-2].removeprefix("slot=")))


def _first_expired(metas: Sequence[ObjectMeta], oldest_ms: float, shown: Generation | None) -> int:
    """How many of the commits, newest first, are still needed. The view needs all since `shown`."""
    of_age = next((n for n in range(1, len(metas)) if metas[n - 1].modified_ms < oldest_ms), len(metas))
    seen = sum(generation_of(meta.key) >= shown for meta in metas) if shown else 0
    return max(of_age, seen)


def _server_now_ms(table: SlotTable, clock: Clock) -> int:
    key = f"{table.layout.prefix}vacuum/{unique_name(clock)}"
    table.store.put(key, b"now")
    page = table.store.list(key, limit=1)
    table.store.delete(key)
    return page.objects[0].modified_ms
