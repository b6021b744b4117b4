"""Commit objects: only they make rows of a slot visible.

A commit is created, if absent, under the next generation number of its slot. One object holds the live data files, the
live rejects, the state of every object version of the slot, and the signal that had been seen. So progress and output
cannot disagree, and of two runs on one slot only one can create each generation. Files that no commit names are
garbage, never data.

Object states are in pages; the commits since carry their changes as deltas (`states`). A file states which generations'
rows it holds, and an object state in which generations its rows were ingested. So the files of an object are found
without a list of them, and merging or rewriting a file changes no object state. The size and cost of a commit depend on
the batch, not on the slot.

Every next commit of a slot is made by `SlotCommit.after`, and stored byte for byte as it was staged.

Requests: `head` 1 LIST of one key + 1 GET; `states` 1 GET for each page that is needed; `commit` 1 PUT. Of a head that
the process remembers (`heads`), 1 HEAD or nothing takes the place of the LIST.
"""

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.errors import ConflictError, CorruptError, FencedError, UnavailableError, UsageError
from s3notify_platform.parallel import in_parallel
from s3notify_platform.ports import Conflict, ObjectStore, StoredObject, Written
from s3notify_platform.protocols.conditional_commit import ConditionalCommit
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.slots import Slot
from s3notify_platform.table import states as paging
from s3notify_platform.table.heads import MAX_RUN_SECONDS, HeadMemory
from s3notify_platform.table.layout import Generation, TableLayout, generation_of
from s3notify_platform.table.states import (
    StatePage,
    States,
    apply_deltas,
    columns_of,
    encode_states,
    fold,
    pages_of,
    state_columns,
    state_of_row,
    state_row,
    states_of,
)

DENSE_PAGE = 32
"""A page of commit keys must include this many slots, for the next page to be worth a LIST."""

PAGES_IN_FLIGHT = 8
HEADS_IN_FLIGHT = 48

FAILING_MAX = 10_000
"""Objects of a slot in quarantine as a whole. What fails beyond does not go there, and keeps its slot failing."""

FORMAT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A Parquet file that a commit names: data or rejects, ingested by the generations `since` to `until`."""

    name: str
    rows: int
    bytes: int
    since: int = 0
    until: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStates:
    """How the next commit carries the object states of its slot, `changed` among them. Made by `SlotTable.carry`."""

    changed: tuple[ObjectState, ...] = ()
    pages: tuple[StatePage, ...] = ()
    deltas: tuple[ObjectState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCommit:
    """A staged commit, not visible yet: the bytes to store, and, of the slot after it, counts that need no parsing."""

    slot: Slot
    generation: Generation
    commit_id: str
    body: bytes
    rows: int
    files: int
    rejects: int
    failing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCommit:
    """One generation of one slot, whole.

    `objects` counts the live ones, `without_records` those that `ObjectState` calls so. `pending` keys are to be read
    further, or again, although unchanged. `failing` keys are in quarantine as a whole, at most `FAILING_MAX`.
    `code_version`: of the transform that made all rows, if one did. `backfill`: rows that were ingested before this
    generation are to be read again (`reread`); 0: none. For people: `seen_ms`, when its batch was opened; `planned_ms`;
    `created_ms`, when its files were written.
    """

    slot: Slot
    generation: Generation
    commit_id: str
    parent_id: str | None
    batch: str
    created_ms: int
    seen_ms: int = 0
    planned_ms: int = 0
    signal: str | None = None
    schema: int = 0
    source_generation: int = 0
    files: tuple[TableFile, ...] = ()
    rejects: tuple[TableFile, ...] = ()
    objects: int = 0
    without_records: int = 0
    pending: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    code_version: str = ""
    backfill: int = 0
    pages: tuple[StatePage, ...] = ()
    deltas: tuple[ObjectState, ...] = field(default=())

    @property
    def rows(self) -> int:
        """Live rows."""
        return sum(file.rows for file in self.files)

    @classmethod
    def after(
        cls,
        head: "SlotCommit | None",
        slot: Slot,
        *,
        batch: str,
        clock: Clock,
        states: NextStates | None = None,
        read_again: Iterable[str] = (),
        files: tuple[TableFile, ...] | None = None,
        rejects: tuple[TableFile, ...] | None = None,
        objects: int | None = None,
        signal: str | None = None,
        schema: int | None = None,
        source_generation: Generation | None = None,
        code_version: str | None = None,
        backfill: int | None = None,
        seen_ms: int = 0,
        planned_ms: int = 0,
    ) -> "SlotCommit":
        """The commit that follows `head`, under the next generation. No request.

        What is not given stays as it is in `head`. An object whose state changed is pending exactly if it was not read
        to its end, and failing exactly if its state has a reason. `read_again`: keys that become pending although their
        state did not change.
        """
        before = head or cls(
            slot=slot, generation=Generation(0), commit_id="", parent_id=None, batch="", created_ms=0
        )
        states = states or NextStates(pages=before.pages, deltas=before.deltas)
        changed = states.changed
        moved = {state.key for state in changed}
        failing = {state.key for state in changed if state.reason}
        unfinished = {s.key for s in changed if not (s.reach_end or s.reason or s.gone)}
        return cls(
            slot=slot,
            generation=Generation(before.generation + 1),
            commit_id=unique_name(clock),
            parent_id=head.commit_id if head else None,
            batch=batch,
            created_ms=clock.wall_ms(),
            seen_ms=seen_ms,
            planned_ms=planned_ms,
            signal=signal or before.signal,
            schema=before.schema if schema is None else schema,
            source_generation=before.source_generation if source_generation is None else source_generation,
            files=before.files if files is None else files,
            rejects=before.rejects if rejects is None else rejects,
            objects=before.objects if objects is None else objects,
            without_records=before.without_records,
            pending=tuple(sorted(set(before.pending) - moved | unfinished | {*read_again})),
            failing=tuple(sorted(set(before.failing) - moved | failing)),
            code_version=before.code_version if code_version is None else code_version,
            backfill=before.backfill if backfill is None else backfill,
            pages=states.pages,
            deltas=states.deltas,
        )

    def staged(self) -> StagedCommit:
        """Its bytes, with the facts that need no parsing."""
        return StagedCommit(
            slot=self.slot,
            generation=self.generation,
            commit_id=self.commit_id,
            body=self.dumps(),
            rows=self.rows,
            files=len(self.files),
            rejects=sum(file.rows for file in self.rejects),
            failing=len(self.failing),
        )

    def dumps(self) -> bytes:
        """JSON, one object."""
        body = asdict(replace(self, deltas=())) | {"format": FORMAT}
        body["deltas"] = [state_row(state) for state in self.deltas]
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")

    @classmethod
    def loads(cls, body: bytes, *, where: str) -> "SlotCommit":
        """The commit in `body`; `CorruptError` naming `where` if it is not a commit, or has a newer format."""
        try:
            fields = json.loads(body)
            if (found := fields.pop("format")) != FORMAT:
                fix = (
                    "upgrade s3notify_platform" if found > FORMAT else "give the source a new platform_prefix"
                )
                raise CorruptError(f"{where}: commit format {found}, this version reads {FORMAT}; {fix}")
            fields["files"] = tuple(TableFile(**file) for file in fields["files"])
            fields["rejects"] = tuple(TableFile(**file) for file in fields["rejects"])
            fields["pending"] = tuple(fields["pending"])
            fields["failing"] = tuple(fields.get("failing", ()))
            fields["pages"] = tuple(StatePage(**page) for page in fields["pages"])
            fields["deltas"] = tuple(state_of_row(row) for row in fields["deltas"])
            return cls(**fields)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"{where}: not a commit object ({error})") from error


def spanning(files: Iterable[TableFile], states: Iterable[ObjectState]) -> tuple[TableFile, ...]:
    """The files that may hold rows of one of the objects. Pure."""
    spans = {(state.since, state.until) for state in states}
    return tuple(
        file for file in files if any(low <= file.until and file.since <= high for low, high in spans)
    )


class SlotTable:
    """Reads the commits of one table. Creates them through `commits`, if that is given.

    `memory`: of its heads; by default there is none. Only `heads` uses it by itself.
    """

    def __init__(
        self,
        store: ObjectStore,
        layout: TableLayout,
        commits: ConditionalCommit | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        max_run_seconds: float = MAX_RUN_SECONDS,
        memory: HeadMemory | None = None,
    ) -> None:
        self.store = store
        self.memory = memory or HeadMemory(clock, seconds=0)
        assert self.memory.seconds <= max_run_seconds / 2
        self.layout = layout
        self.max_run_seconds = max_run_seconds
        self._commits = commits
        self.clock = clock

    def head(self, slot: Slot, newest: Generation | None = None) -> SlotCommit | None:
        """The newest commit of a slot, or None.

        1 LIST of one key and 1 GET. With the slot's result of `newest`: 1 GET, or none for a slot without a commit.
        `CorruptError` if the commit cannot be read.
        """
        if newest == 0:
            return None
        if newest is not None:
            try:
                return self.read(slot, newest)
            except CorruptError:
                pass  # Vacuum removed it, because a newer one exists; if none does, the LIST shows that.
        for _ in range(3):
            at = self.clock.monotonic()
            page = self.store.list(self.layout.commits(slot), limit=1)
            listed = generation_of(page.objects[0].key) if page.objects else Generation(0)
            self.memory.note({slot: listed}, at)
            if not listed:
                return None
            try:
                return self.read(slot, listed)
            except CorruptError:
                if self.store.list(self.layout.commits(slot), limit=1).objects == page.objects:
                    raise
                # Vacuum removed it between LIST and GET, because a newer one exists.
        raise ConflictError(f"slot {slot}: its head moved three times while being read; read again")

    def heads(self, slots: Iterable[Slot]) -> dict[Slot, SlotCommit | None]:
        """The newest commit of each slot. Requests as `newest`, and as `head` for each slot, many at once.

        Of a slot that is remembered: 1 GET and 1 HEAD.
        """
        wanted = sorted(set(slots))
        recalled = self.memory.recall(wanted)
        newest = {**self.newest({*wanted} - recalled.heads.keys()), **recalled.heads}

        def head_of(slot: Slot) -> SlotCommit | None:
            head = self.head(slot, newest[slot])
            at = Generation(head.generation if head else 0)
            moved = slot in recalled.heads and not self.stands(slot, at, seen_at=recalled.seen_at)
            return self.head(slot) if moved else head

        return dict(zip(wanted, in_parallel(head_of, wanted, HEADS_IN_FLIGHT), strict=True))

    def stands(self, slot: Slot, generation: Generation, *, seen_at: float) -> bool:
        """Whether this is the head still, which at the monotonic time `seen_at`, or after it, was. 1 HEAD."""
        at = self.clock.monotonic()
        newer = self.store.head(self.layout.commit(slot, generation + 1))
        # What was committed since then is certainly there only for as long as a run may take.
        if newer is not None or self.clock.monotonic() - seen_at > self.max_run_seconds:
            self.memory.drop(slot)
            return False
        self.memory.note({slot: generation}, at)
        return True

    def newest(self, slots: Iterable[Slot]) -> dict[Slot, Generation | None]:
        """The newest generation of each slot: 0 if it has none, None where `head` finds it with fewer requests.

        Reads commit keys in pages, as long as a page shows `DENSE_PAGE` slots: a young table takes 1 LIST
        in all, one with a long history 1 LIST more than a LIST for each slot.
        """
        prefix = self.layout.all_commits
        # Keys are listed in text order: "1/" comes before "10/" and "2/".
        waiting = sorted(f"{slot}/" for slot in set(slots))
        at = self.clock.monotonic()
        found: dict[str, Generation] = {}
        newest: dict[str, Generation] = {}
        after: str | None = None
        while waiting:
            page = self.store.list(prefix, start_after=after)
            for meta in page.objects:
                found.setdefault(meta.key.removeprefix(prefix).split("/")[0] + "/", generation_of(meta.key))
            last = max(found, default="") if page.next_token else "~"
            passed = bisect_right(waiting, last)
            newest |= {name: found.get(name, Generation(0)) for name in waiting[:passed]}
            waiting = waiting[passed:]
            if passed < DENSE_PAGE:
                break
            after = f"{prefix}{last}~"
        by_slot = {Slot(int(name[:-1])): generation for name, generation in newest.items()}
        self.memory.note(by_slot, at)
        return {**by_slot, **{Slot(int(name[:-1])): None for name in waiting}}

    def read(self, slot: Slot, generation: Generation) -> SlotCommit:
        """One generation. 1 GET. `CorruptError` if it is missing: only vacuum removes commits."""
        key = self.layout.commit(slot, generation)
        found = self.store.get(key)
        if not isinstance(found, StoredObject):
            raise CorruptError(
                f"{key}: generation {generation} of slot {slot} is missing; restore it, or vacuum removed it "
                "(then read a newer generation)"
            )
        return SlotCommit.loads(found.body, where=key)

    def states(self, commit: SlotCommit | None, keys: Collection[str] | None = None) -> States:
        """The state of each object of a commit's slot, or of `keys`, by key. 1 GET for each page needed."""
        if commit is None:
            return {}
        pages: Sequence[StatePage] = commit.pages
        wanted = None if keys is None else set(keys)
        if wanted is not None:
            carried = {delta.key for delta in commit.deltas}
            pages = pages_of(pages, wanted - carried)
        found: States = {}
        for page in map(states_of, self._pages(commit.slot, pages)):
            found |= page if wanted is None else {key: page[key] for key in page.keys() & wanted}
        return apply_deltas(found, (d for d in commit.deltas if wanted is None or d.key in wanted))

    def state_columns(self, commit: SlotCommit | None) -> pa.Table:
        """The state of each object of a commit's slot, as columns (`states_of` makes states). 1 GET for each page."""
        if commit is None:
            return columns_of(())
        pages = pa.concat_tables([columns_of(()), *self._pages(commit.slot, commit.pages)])
        deltas = {delta.key: delta for delta in commit.deltas}
        kept = pages.filter(pc.invert(pc.is_in(pages["key"], pa.array(deltas, pa.string()))))
        return pa.concat_tables([kept, columns_of(each for each in deltas.values() if not each.gone)])

    def _pages(self, slot: Slot, pages: Sequence[StatePage]) -> list[pa.Table]:
        """The contents of state pages. 1 GET each."""

        def load(page: StatePage) -> pa.Table:
            key = self.layout.state(slot, page.name)
            found = self.store.get(key)
            if not isinstance(found, StoredObject):
                raise CorruptError(f"{key}: state of slot {slot} is missing; refusing to start it again")
            return state_columns(found.body)

        return in_parallel(load, pages, PAGES_IN_FLIGHT)

    def carry(self, slot: Slot, head: SlotCommit | None, changed: Iterable[ObjectState]) -> NextStates:
        """The pages and deltas with which the next commit carries its states.

        No request. If the deltas are folded into pages: 1 GET and 1 PUT for each page that they belong to, at most one
        page for each change since the last time.
        """
        changed = tuple(changed)
        earlier: Mapping[str, ObjectState] = {state.key: state for state in (head.deltas if head else ())}
        deltas = tuple({**earlier, **{state.key: state for state in changed}}.values())
        pages = head.pages if head else ()
        if len(deltas) <= paging.DELTA_LIMIT:
            return NextStates(changed=changed, pages=pages, deltas=deltas)

        def kept(page: StatePage | States) -> StatePage:
            if isinstance(page, StatePage):
                return page
            name = unique_name(self.clock)
            # Unconditional and under a fresh name: safe to write again.
            outcome = self.store.put(self.layout.state(slot, name), encode_states(page))
            if not isinstance(outcome, Written):
                raise UnavailableError(f"states of slot {slot}: {outcome}; the slot will be read again")
            return StatePage(name=name, objects=len(page), first=min(page))

        folded = fold(pages, deltas, lambda wanted: [*map(states_of, self._pages(slot, wanted))])
        return NextStates(changed=changed, pages=tuple(in_parallel(kept, folded, PAGES_IN_FLIGHT)))

    def commit(self, commit: StagedCommit, *, planned_at: float) -> Written | Conflict:
        """Make `commit` visible if its generation is still free. At most one of all writers succeeds. 1 PUT.

        `planned_at` is the clock's monotonic time when the head was read, or seen, if it was recalled. A run that is
        older than `max_run_seconds` is refused with `FencedError`, since vacuum may have removed the generation that it
        would create again. A run that reached that age during the write checks that the head descends from its commit.
        """
        if self._commits is None:
            raise UsageError(f"{self.layout.prefix}: opened without `commits`, so it can only be read")
        self.memory.drop(commit.slot)
        if (at := self.clock.monotonic()) - planned_at > self.max_run_seconds:
            raise FencedError(
                f"slot {commit.slot}: planned more than {self.max_run_seconds:.0f} s ago; plan again"
            )
        outcome = self._commits.put_if_absent(self.layout.commit(commit.slot, commit.generation), commit.body)
        if isinstance(outcome, Written) and self.clock.monotonic() - planned_at > self.max_run_seconds:
            self._check_descent(commit)
        if isinstance(outcome, Written):
            self.memory.note({commit.slot: commit.generation}, at)
        return outcome

    def _check_descent(self, commit: StagedCommit) -> None:
        newer = self.head(commit.slot)
        while newer is not None and newer.generation > commit.generation + 1:
            newer = self.read(commit.slot, Generation(newer.generation - 1))
        if newer is None or (newer.generation > commit.generation and newer.parent_id != commit.commit_id):
            raise FencedError(
                f"slot {commit.slot}: generation {commit.generation} was created although a newer history exists"
            )
