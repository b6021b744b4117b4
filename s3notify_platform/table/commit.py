"""Commit objects: the one thing that makes rows of a slot visible.

A commit is created, if absent, under the next generation number of its slot. It holds together the live data
files, the live rejects, what is known of every object version of the slot, and the signal that had been seen;
so progress and output cannot disagree, and of two runs on one slot one wins each generation. Files that no
commit names are garbage, never data.

Object states are a base file plus the deltas carried by the commits since. When more than `DELTA_LIMIT`
deltas have gathered, the next commit folds all into a new base: a commit's size follows the batch, not the
slot.

Requests: `head` 1 LIST of one key + 1 GET; `states` 1 GET if there is a base; `commit` 1 PUT.
"""

import io
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.errors import ConflictError, CorruptError, FencedError, UsageError
from s3notify_platform.ports import ObjectStore, StoredObject
from s3notify_platform.protocols.conditional_commit import Committed, ConditionalCommit, Lost
from s3notify_platform.slots import Slot
from s3notify_platform.table.layout import Generation, TableLayout, generation_of

DELTA_LIMIT = 256
"""Object states that a commit carries itself, before they are folded into a base file."""

DENSE_PAGE = 32
"""Slots that a page of commit keys has to tell of, for the next page to be worth a LIST."""

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A Parquet file that a commit names: data or rejects."""

    name: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectState:
    """What a commit knows of one object version.

    `offset` is where reading goes on and `reach_end` whether it is done (protocol 3); `files` and
    `rejected_in` name the data files and files of rejects that hold its rows. `gone` marks, among deltas, a
    key whose object has left. `code_version` is that of the transform which made the rows, if it has one.
    """

    key: str
    etag: str
    size: int
    offset: int = 0
    reach_end: bool = True
    rows: int = 0
    rejects: int = 0
    files: tuple[str, ...] = ()
    rejected_in: tuple[str, ...] = ()
    code_version: str = ""
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCommit:
    """One generation of one slot, whole."""

    slot: Slot
    generation: Generation
    commit_id: str
    parent_id: str | None
    batch: str
    created_ms: int
    signal: str | None = None
    schema: int = 0
    source_generation: int = 0
    files: tuple[TableFile, ...] = ()
    rejects: tuple[TableFile, ...] = ()
    base: str | None = None
    base_objects: int = 0
    deltas: tuple[ObjectState, ...] = field(default=())

    @property
    def rows(self) -> int:
        """Live rows."""
        return sum(file.rows for file in self.files)

    def dumps(self) -> bytes:
        """JSON, one object."""
        body = asdict(self) | {"format": FORMAT}
        body["deltas"] = [_state_row(state) for state in self.deltas]
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")

    @classmethod
    def loads(cls, body: bytes, *, where: str) -> "SlotCommit":
        """The commit in `body`; `CorruptError` naming `where` if it is none, or of a newer format."""
        try:
            fields = json.loads(body)
            if (found := fields.pop("format")) != FORMAT:
                raise CorruptError(
                    f"{where}: commit format {found}, this version reads {FORMAT}; upgrade s3notify_platform"
                )
            fields["files"] = tuple(TableFile(**file) for file in fields["files"])
            fields["rejects"] = tuple(TableFile(**file) for file in fields["rejects"])
            fields["deltas"] = tuple(_state_of_row(row) for row in fields["deltas"])
            return cls(**fields)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"{where}: not a commit object ({error})") from error


def _state_row(state: ObjectState) -> list[object]:
    if state.gone:
        return [state.key]
    return [
        state.key, state.etag, state.size, state.offset, int(state.reach_end),
        state.rows, state.rejects, list(state.files), list(state.rejected_in), state.code_version,
    ]  # fmt: skip


def _state_of_row(row: list[object]) -> ObjectState:
    if len(row) == 1:
        return ObjectState(key=str(row[0]), etag="", size=0, gone=True)
    key, etag, size, offset, reach_end, rows, rejects, files, rejected_in, *newer = row
    return ObjectState(
        key=key, etag=etag, size=size, offset=offset, reach_end=bool(reach_end),  # type: ignore[arg-type]
        rows=rows, rejects=rejects, files=tuple(files), rejected_in=tuple(rejected_in),  # type: ignore[arg-type]
        code_version=str(newer[0]) if newer else "",
    )  # fmt: skip


_STATE_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("etag", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("reach_end", pa.bool_(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("rejects", pa.int64(), nullable=False),
        pa.field("files", pa.list_(pa.string()), nullable=False),
        pa.field("rejected_in", pa.list_(pa.string()), nullable=False),
        pa.field("code_version", pa.string(), nullable=False),
    ]
)


def encode_states(states: Mapping[str, ObjectState]) -> bytes:
    """A base file: Parquet, sorted by key."""
    rows = [{k: v for k, v in asdict(states[key]).items() if k != "gone"} for key in sorted(states)]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_STATE_SCHEMA), sink, compression="zstd")
    return sink.getvalue()


def decode_states(body: bytes) -> dict[str, ObjectState]:
    """Inverse of `encode_states`."""
    rows = pq.read_table(pa.BufferReader(body)).to_pylist()
    return {
        row["key"]: ObjectState(
            **(row | {"files": tuple(row["files"]), "rejected_in": tuple(row["rejected_in"])})
        )
        for row in rows
    }


def apply_deltas(base: Mapping[str, ObjectState], deltas: Sequence[ObjectState]) -> dict[str, ObjectState]:
    """The live states: `base` with `deltas` laid over it in order."""
    states = dict(base)
    for delta in deltas:
        if delta.gone:
            states.pop(delta.key, None)
        else:
            states[delta.key] = delta
    return states


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStates:
    """How the next commit carries its object states: `base_body` is a new base to be written under `base`."""

    base: str | None
    base_objects: int
    base_body: bytes | None
    deltas: tuple[ObjectState, ...]


def next_states(
    head: SlotCommit | None, live: Mapping[str, ObjectState], changed: Sequence[ObjectState], name: str
) -> NextStates:
    """Carry `changed` as deltas, or fold `live`, which includes them, into a base called `name`. Pure."""
    earlier = {state.key: state for state in (head.deltas if head else ())}
    deltas = tuple((earlier | {state.key: state for state in changed}).values())
    if len(deltas) <= DELTA_LIMIT:
        return NextStates(
            base=head.base if head else None,
            base_objects=head.base_objects if head else 0,
            base_body=None,
            deltas=deltas,
        )
    return NextStates(base=name, base_objects=len(live), base_body=encode_states(live), deltas=())


class SlotTable:
    """Reads the commits of one table and, if it is given `commits` to do so through, creates them."""

    def __init__(
        self,
        store: ObjectStore,
        layout: TableLayout,
        commits: ConditionalCommit | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        max_run_seconds: float = 6 * 3600,
    ) -> None:
        self.store = store
        self.layout = layout
        self.max_run_seconds = max_run_seconds
        self._commits = commits
        self._clock = clock

    def head(self, slot: Slot) -> SlotCommit | None:
        """The newest generation of a slot, or None. 1 LIST of one key and 1 GET."""
        for _ in range(3):
            page = self.store.list(self.layout.commits(slot), limit=1)
            if not page.objects:
                return None
            try:
                return self.read(slot, generation_of(page.objects[0].key))
            except CorruptError:
                if self.store.list(self.layout.commits(slot), limit=1).objects == page.objects:
                    raise
                # Vacuum took it between LIST and GET, because a newer one exists.
        raise ConflictError(f"slot {slot}: its head moved three times while being read; read again")

    def newest(self, slots: Iterable[Slot]) -> dict[Slot, Generation | None]:
        """The newest generation of each slot: 0 if it has none, None where `head` is the cheaper way to know.

        Reads commit keys in pages, as long as a page tells of `DENSE_PAGE` slots: a young table takes 1 LIST
        in all, one with a long history 1 LIST more than asking slot by slot.
        """
        prefix = self.layout.all_commits
        # Keys are listed in the order of their text, and "1/" comes before "10/" and "2/".
        waiting = sorted(f"{slot}/" for slot in set(slots))
        found: dict[str, Generation] = {}
        told: dict[str, Generation | None] = {}
        after: str | None = None
        while waiting:
            page = self.store.list(prefix, start_after=after)
            for meta in page.objects:
                found.setdefault(meta.key.removeprefix(prefix).split("/")[0] + "/", generation_of(meta.key))
            last = max(found, default="") if page.next_token else "~"
            passed = bisect_right(waiting, last)
            told |= {name: found.get(name, Generation(0)) for name in waiting[:passed]}
            waiting = waiting[passed:]
            if passed < DENSE_PAGE:
                break
            after = f"{prefix}{last}~"
        told |= dict.fromkeys(waiting)
        return {Slot(int(name[:-1])): generation for name, generation in told.items()}

    def read(self, slot: Slot, generation: Generation) -> SlotCommit:
        """One generation. 1 GET. `CorruptError` if it is missing: a predecessor never goes by itself."""
        key = self.layout.commit(slot, generation)
        found = self.store.get(key)
        if not isinstance(found, StoredObject):
            raise CorruptError(
                f"{key}: generation {generation} of slot {slot} is missing; restore it, or vacuum removed it "
                "(then read a newer generation)"
            )
        return SlotCommit.loads(found.body, where=key)

    def states(self, commit: SlotCommit | None) -> dict[str, ObjectState]:
        """What a commit knows of each object of its slot, by key. 1 GET if it has a base file."""
        if commit is None:
            return {}
        base: Mapping[str, ObjectState] = {}
        if commit.base is not None:
            key = self.layout.state(commit.slot, commit.base)
            found = self.store.get(key)
            if not isinstance(found, StoredObject):
                raise CorruptError(
                    f"{key}: state of slot {commit.slot} is missing; refusing to start it anew"
                )
            base = decode_states(found.body)
        return apply_deltas(base, commit.deltas)

    def commit(self, commit: SlotCommit, *, planned_at: float) -> Committed | Lost:
        """Make `commit` visible if its generation is still free; exactly one of all contenders does. 1 PUT.

        `planned_at` is the clock's monotonic time when the head was read. A run that lived longer than
        `max_run_seconds` is refused with `FencedError`: vacuum may have removed generations it would then
        create anew. One that crossed that age during the write checks that the head descends from it.
        """
        if self._commits is None:
            raise UsageError(f"{self.layout.prefix}: opened to be read; nothing says how to commit here")
        if self._clock.monotonic() - planned_at > self.max_run_seconds:
            raise FencedError(
                f"slot {commit.slot}: planned more than {self.max_run_seconds:.0f} s ago; plan again"
            )
        outcome = self._commits.put_if_absent(
            self.layout.commit(commit.slot, commit.generation), commit.dumps()
        )
        if isinstance(outcome, Committed) and self._clock.monotonic() - planned_at > self.max_run_seconds:
            self._check_descent(commit)
        return outcome

    def _check_descent(self, commit: SlotCommit) -> None:
        newer = self.head(commit.slot)
        while newer is not None and newer.generation > commit.generation + 1:
            newer = self.read(commit.slot, Generation(newer.generation - 1))
        if newer is None or (newer.generation > commit.generation and newer.parent_id != commit.commit_id):
            raise FencedError(
                f"slot {commit.slot}: generation {commit.generation} was created beside a newer history"
            )
