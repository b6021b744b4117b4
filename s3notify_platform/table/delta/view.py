"""The table for other engines: a Delta Lake log over the same Parquet files, kept current slot by slot.

Steps of a sync
    1. Find the log's last version, and what it shows: the generation of each slot.
    2. Read the heads of the slots that are to be synced. For each whose head is newer than the generation shown, also
       read the generation shown, and remove and add the files that differ.
    3. Create the next version, if absent. Conflict: another sync was first; go to 1.
    4. Every `CHECKPOINT_VERSIONS` versions, write a checkpoint, so that readers need not replay the whole log.

Storage (readers name `{table}/data`; the other objects of the table are outside of it)
    {table}/data/slot=N/NAME.parquet                     the rows, as committed; nothing is copied
    {table}/data/_delta_log/{version}.json               `add` and `remove` of whole slots; a `txn` for each of them,
                                                         whose version is the generation; `metaData` where the schema
                                                         grew; in `commitInfo` the generations of all slots
    {table}/data/_delta_log/{version}.checkpoint.parquet the state at that version
    {table}/data/_delta_log/_last_checkpoint             names a recent checkpoint; a hint

Invariants
    - A reader of one version sees exactly one generation of each slot: its changes are in one version.
    - Heads are read after the log, and version numbers have no gap: no sync moves a slot to an older generation.
    - The view is derived: after removing all of `_delta_log/`, a sync of all slots rebuilds it.
    - Vacuum keeps the files that the last version shows. Time travel by Delta versions goes back as far as the
      generations do, which is the retention, and no further.

Limits. A slot is shown some time after its commit; slots of one batch are shown together if they are synced together.
The sync is the log's only writer: when another program has written to it (OPTIMIZE, say), the next sync compares the
whole log with the heads and corrects it. Such programs take no part in commits by leases.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never
from uuid import UUID

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, backoff_seconds, unique_name
from s3notify_platform.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from s3notify_platform.ports import Conflict, Written
from s3notify_platform.protocols.conditional_commit import ConditionalCommit
from s3notify_platform.slots import Slot
from s3notify_platform.table.commit import SlotCommit, SlotTable
from s3notify_platform.table.delta.format import (
    DeltaSchema,
    Summary,
    delta_schema,
    dump_version,
    opening_actions,
    paths_of,
    raised,
    slot_actions,
)
from s3notify_platform.table.delta.log import NO_VERSION, REQUESTS_IN_FLIGHT, DeltaLog, LogView
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.schema import SchemaRegistry

CHECKPOINT_VERSIONS: Final = 20
"""Versions between two checkpoints: a reader reads at most so many one by one."""

MAX_ACTIONS: Final = 20_000
"""How many files one version adds and removes; a single slot may exceed it. A large sync makes several versions."""

ATTEMPTS: Final = 20
"""Conflicts after which a sync stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """What one sync did. `version` is the log's last one, None if the table has no commit yet."""

    version: int | None = None
    slots: int = 0
    files_added: int = 0
    files_removed: int = 0
    rows: int = 0
    """All that are shown."""
    versions: int = 0
    lost_races: int = 0
    checkpoint: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Behind:
    """A slot that is not shown as it is: its head, and the files that are shown (path and bytes)."""

    slot: Slot
    head: SlotCommit | None
    shown: Mapping[str, int]

    @property
    def generation(self) -> Generation:
        return _generation(self.head)

    @property
    def changes(self) -> int:
        return 1 + len(paths_of(self.head).keys() ^ self.shown.keys())


class DeltaView:
    """The Delta view of one table. With `commits` it can be synced.

    `name` is the table's, for people and in the log's `txn` actions. `parallelism`: requests at once.
    """

    def __init__(
        self,
        table: SlotTable,
        schemas: SchemaRegistry,
        commits: ConditionalCommit | None = None,
        *,
        name: str,
        clock: Clock = SYSTEM_CLOCK,
        parallelism: int = REQUESTS_IN_FLIGHT,
    ) -> None:
        self._table = table
        self._schemas = schemas
        self._commits = commits
        self._name = name
        self._clock = clock
        self._place = table.layout.view
        self._log = DeltaLog(table.store, table.layout, parallelism=parallelism)

    def generations(self) -> Mapping[Slot, Generation]:
        """Which generation of each slot the last version shows; empty if there is no log. 2 GETs and 1 LIST."""
        return self._log.read().generations

    def sync(self, slots: Iterable[Slot], *, repair: bool = False) -> Synced:
        """Show the heads of these slots. Idempotent; safe beside other syncs, and after one that was killed anywhere.

        `repair` compares the files in the log with those of the heads, also for all other slots that it ever showed. It
        also moves a slot back, if the table was restored to an older state.

        Requests: 2 GETs and 1 LIST for the log; 1 LIST and 2 GETs for each slot (1 GET less if it is shown already);
        1 LIST and 1 GET if the schema grew; 1 PUT. A repair, a checkpoint, and a version of another program: also the
        log since its last checkpoint.

        `UsageError` names a column that Delta cannot have. `CorruptError`: the log is damaged, or a slot's head is
        older than what is shown; the message says what to do. `FencedError`: took longer than a run may; sync again.
        `ConflictError`: `ATTEMPTS` conflicts; sync again.
        """
        began = self._clock.monotonic()
        asked = set(slots)
        heads: dict[Slot, SlotCommit | None] = {}
        done, compare, replay = Synced(), repair, False
        log: LogView | None = None
        while True:
            if log is None:
                log = self._log.read(replay=replay or compare)
            compare = compare or log.foreign
            if compare and log.state is not None:
                asked |= log.generations.keys() | self._log.files_by_slot(log.state).keys()
            self._read_heads(heads, sorted(asked), log)
            try:
                behind = self._behind(log, heads, repair=repair)
            except _HistoryGoneError:
                log, replay = None, True
                continue
            if not behind and not log.foreign:
                return self._checkpointed(log, done)
            part = _of_one_version(behind)
            log = self._commit(log, part, heads, compare=compare, began=began)
            if log is not None:
                done = _counted(done, part)
                if len(part) == len(behind):
                    repair = compare = replay = False
                elif compare:
                    log = None
                continue
            done = replace(done, lost_races=done.lost_races + 1)
            if done.lost_races >= ATTEMPTS:
                raise ConflictError(f"{self._place}: other syncs were first {ATTEMPTS} times; sync again")
            self._clock.sleep(backoff_seconds(done.lost_races, self._clock))

    def _read_heads(self, heads: dict[Slot, SlotCommit | None], asked: Sequence[Slot], log: LogView) -> None:
        """Read the heads that were not read yet, or are older than what is shown now."""

        def stale(slot: Slot) -> bool:
            return slot not in heads or _generation(heads[slot]) < log.generations.get(slot, 0)

        wanted = [slot for slot in asked if stale(slot)]
        heads.update(zip(wanted, self._log.each(self._table.head, wanted), strict=True))

    def _behind(
        self, log: LogView, heads: Mapping[Slot, SlotCommit | None], *, repair: bool
    ) -> list[_Behind]:
        """The slots that are not shown as they are. Without a replayed log, compares only the generations."""
        if not repair:
            for slot, head in heads.items():
                if _generation(head) < (shown := log.generations.get(slot, 0)):
                    raise CorruptError(
                        f"{self._place}: shows generation {shown} of slot {slot}, whose head is {_generation(head)}; "
                        "if the table was restored to an older state, sync all slots with repair"
                    )
        if log.state is not None:
            files = self._log.files_by_slot(log.state)
            every = [_Behind(slot=s, head=h, shown=files.get(s, {})) for s, h in heads.items()]
            return [
                each
                for each in every
                if each.changes > 1 or each.generation != log.generations.get(each.slot, 0)
            ]
        newer = [slot for slot, head in heads.items() if _generation(head) > log.generations.get(slot, 0)]
        shown_files = self._log.each(lambda slot: self._shown(slot, log.generations.get(slot)), newer)
        return [
            _Behind(slot=slot, head=heads[slot], shown=files)
            for slot, files in zip(newer, shown_files, strict=True)
        ]

    def _shown(self, slot: Slot, generation: Generation | None) -> Mapping[str, int]:
        if not generation:
            return {}
        try:
            return paths_of(self._table.read(slot, generation))
        except CorruptError as error:
            raise _HistoryGoneError from error

    def _commit(
        self,
        log: LogView,
        part: Sequence[_Behind],
        heads: Mapping[Slot, SlotCommit | None],
        *,
        compare: bool,
        began: float,
    ) -> LogView | None:
        """Create the next version; None if another sync created it. In doubt, the next look at the log decides."""
        if self._commits is None:
            raise UsageError(f"{self._place}: opened without `commits`, so it can only be read")
        now_ms = self._clock.wall_ms()
        summary, schema = self._summary(log, part, heads, now_ms, compare=compare)
        actions = opening_actions(self._name, summary, schema, now_ms)
        for each in part:
            actions += slot_actions(self._name, each.slot, each.head, each.shown, now_ms)
        if self._clock.monotonic() - began > self._table.max_run_seconds:
            # Vacuum may have removed files of the heads that were read then.
            raise FencedError(
                f"{self._place}: this sync began more than {self._table.max_run_seconds:.0f} s ago; sync again"
            )
        try:
            outcome = self._commits.put_if_absent(
                self._table.layout.log_version(log.version + 1), dump_version(actions)
            )
        except UnknownOutcomeError:
            return None
        match outcome:
            case Written():
                return LogView(
                    version=log.version + 1,
                    checkpoint=log.checkpoint,
                    summary=summary,
                    generations=summary.generations,
                )
            case Conflict():
                return None
            case _ as unreachable:
                assert_never(unreachable)

    def _summary(
        self,
        log: LogView,
        part: Sequence[_Behind],
        heads: Mapping[Slot, SlotCommit | None],
        now_ms: int,
        *,
        compare: bool,
    ) -> tuple[Summary, DeltaSchema | None]:
        """The next version's summary, and the schema if it changed."""
        earlier = log.summary
        generations = {**log.generations, **{each.slot: each.generation for each in part}}
        shown = {s: h.rows for s, h in heads.items() if h and h.generation == generations.get(s)}
        rows = {**(earlier.rows if earlier else {}), **shown}
        grew = earlier is not None and any(each.head and each.head.schema > earlier.schema for each in part)
        if earlier is not None and not grew and not compare:
            return replace(earlier, generations=generations, rows=rows), None
        # Read after the heads, so it has every column of their files.
        pinned = self._schemas.head()
        schema = delta_schema(pinned.rows if pinned else None)
        known = (log.state.metadata if log.state else None) or {}
        protocol = log.state.protocol if log.state else earlier.protocol if earlier else None
        return (
            Summary(
                table_id=earlier.table_id
                if earlier
                else known.get("id") or str(UUID(unique_name(self._clock))),
                created_ms=earlier.created_ms if earlier else known.get("createdTime") or now_ms,
                schema=pinned.generation if pinned else 0,
                protocol=raised(protocol, schema.protocol),
                generations=generations,
                rows=rows,
            ),
            schema,
        )

    def _checkpointed(self, log: LogView, done: Synced) -> Synced:
        """Write a checkpoint if one is due, also one that an earlier sync did not write."""
        if log.version == NO_VERSION:
            return done
        rows = log.summary.rows if log.summary else {}
        done = replace(done, version=log.version, rows=sum(rows.values()))
        if log.version - (log.checkpoint or 0) < CHECKPOINT_VERSIONS:
            return done
        try:
            self._log.checkpoint(log)
        except UnavailableError:
            return done  # The slots are shown; the next sync writes the checkpoint.
        return replace(done, checkpoint=log.version)


class _HistoryGoneError(Exception):
    """The generation that is shown was vacuumed, so only the log has its files."""


def _generation(head: SlotCommit | None) -> Generation:
    return Generation(head.generation if head else 0)


def _of_one_version(behind: Sequence[_Behind]) -> list[_Behind]:
    """As many slots as one version may hold; at least one."""
    part: list[_Behind] = []
    actions = 0
    for each in behind:
        actions += each.changes
        if part and actions > MAX_ACTIONS:
            break
        part.append(each)
    return part


def _counted(done: Synced, part: Sequence[_Behind]) -> Synced:
    paths = [(paths_of(each.head).keys(), each.shown.keys()) for each in part]
    return replace(
        done,
        slots=done.slots + len(part),
        files_added=done.files_added + sum(len(now - shown) for now, shown in paths),
        files_removed=done.files_removed + sum(len(shown - now) for now, shown in paths),
        versions=done.versions + 1,
    )
