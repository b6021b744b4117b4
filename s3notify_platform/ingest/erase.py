"""Removes all that the platform holds of an object that is no longer in the bucket, history included.

Steps for each table of the source: its own, and those of its slot assets
    1. List the files of the object's slot.
    2. Commit the slot's head without the object, under the next generation. No file that was listed before, and that no
       commit names now, can be named by a later one: a run that was planned before conflicts with this commit.
    3. Bring the Delta view up to date, if there is one: its last version shows the files of step 2.
    4. Write the older commits of the slot again, without the object: their files that hold it are replaced.
    5. Remove the listed files that hold it. No commit names them any more.
Again, until nothing is found. Then its entries and dead letters leave the queue.

A table without `_key`, which an aggregate makes, does not say which rows come from the object: what the slot asset made
of older generations of the slot leaves as a whole, and the next batch makes it again.

Invariants
    - A commit object is never removed here, so no paused run can create its generation again.
    - Killed anywhere, the table is whole, and the call can be repeated: what is left is found again.

What stays: names of columns in the pinned schema, the key in the state of a Spark stream of objects, and what was
delivered to endpoints, logged, or made by others. Delta versions from before can no longer be read as a whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from s3notify_platform.clock import SYSTEM_CLOCK, Clock, backoff_seconds, unique_name
from s3notify_platform.errors import ConflictError, UnavailableError, UsageError
from s3notify_platform.ingest.batches import EVERYTHING
from s3notify_platform.ingest.slot_files import SlotFiles, new_files
from s3notify_platform.ingest.source import Source
from s3notify_platform.parallel import in_parallel
from s3notify_platform.ports import ETag, IfMatch, ObjectMeta, ObjectStore, StoredObject, Written, list_all
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.slots import Slot, slot_of
from s3notify_platform.stores.s3.fast import shared_store
from s3notify_platform.table.commit import SlotCommit, SlotTable, TableFile
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.reader import read_file
from s3notify_platform.table.states import StatePage, encode_states, state_columns, states_of

ERASE: Final = "erase"
"""The batch name of commits that erase."""

ATTEMPTS: Final = 20
PASSES: Final = 5
REQUESTS_IN_FLIGHT: Final = 8


@dataclass(slots=True, kw_only=True)
class Erased:
    """What was removed of an object. `batches`: open ones that may have read it before, and leave a file of it yet."""

    slot: Slot
    commits: int = 0
    """Written again, or added."""
    files: int = 0
    cleared: tuple[str, ...] = ()
    """Slot assets without `_key`, of which the slot was removed as a whole."""
    entries: int = 0
    """In the queue, dead letters among them."""
    waiting: int = 0
    """Entries that stay: being delivered, or of its deletion, which others still have to learn."""
    batches: tuple[str, ...] = ()


def erase(
    source: Source, key: str, *, platform: ObjectStore | None = None, clock: Clock = SYSTEM_CLOCK
) -> Erased:
    """Erase the object of this key, which has to have left the bucket. Safe to repeat; the module says how.

    `source` has a settled commit mode; `platform` is a store to use instead of its own. `UsageError` for an object that
    is still there: it would be taken in again. In the mode `dynamodb`, one call at a time. Requests: 1 GET for each
    file and commit of the slot, twice; 1 or 2 PUTs for each commit that names it.
    """
    location, slot = source.location, slot_of(key, source.location.slots)
    check_erasable(source, key)
    store = platform if platform is not None else shared_store(location.platform)
    opened = source.open_table(create=False, store=store)
    done = Erased(slot=slot)
    of_slot = partial(_SlotEraser, source=source, store=store, slot=slot, key=key, clock=clock, done=done)
    own = of_slot()
    for _ in range(PASSES):
        found = own.erase()
        head = own.table.head(slot)
        # Before the source's own history is found clean: a crash in between is made good by repeating this.
        for asset in _assets(source, store):
            found |= of_slot(asset=asset, clean_since=head.generation if head else 0).erase()
        if not found:
            break
    else:
        raise UnavailableError(f"{key!r}: others write to slot {slot} all the time; repeat this")
    check_erasable(source, key)
    if head is not None:
        opened.merge({slot: head.generation})
    if done.cleared:
        location.signals(store, clock=clock).signal_slots([slot])
    done.entries, done.waiting = location.queue(store).erase(
        source.input.bucket.bucket, key, own=source.name, user=opened.topic_user(location.slots)
    )
    done.batches = tuple(
        chain.tag
        for chain in AckChains(location.records(store), clock=clock).open_states()
        if not {str(slot), str(EVERYTHING)}.isdisjoint(chain.missing)
    )
    return done


def check_erasable(source: Source, key: str) -> None:
    """`UsageError` for an object that is still there, or that is none of this source. 1 HEAD."""
    if not key.startswith(source.input.prefix):
        raise UsageError(f"{key!r}: source {source.name!r} reads keys below {source.input.prefix!r}")
    if shared_store(source.input.bucket).head(key) is not None:
        raise UsageError(
            f"{key!r} is in bucket {source.input.bucket.bucket!r}: delete the object first, else it is taken in again"
        )


def _assets(source: Source, store: ObjectStore) -> Iterator[str]:
    """The slot assets that have a table. 1 LIST for each."""
    below = f"{source.location.platform_prefix}derived/"
    after = below
    while page := store.list(below, start_after=after, limit=1).objects:
        name = page[0].key.removeprefix(below).partition("/")[0]
        yield name
        after = f"{below}{name}0"  # behind all that begins with the name and a slash


@dataclass(slots=True, kw_only=True)
class _SlotEraser:
    """Erases from one slot of one table: of a slot asset, or of the source."""

    source: Source
    store: ObjectStore
    slot: Slot
    key: str
    clock: Clock
    done: Erased
    asset: str | None = None
    clean_since: int = 0
    """The source's generation since which a slot asset is made without the object."""
    table: SlotTable = field(init=False)
    _replaced: dict[str, TableFile | StatePage | None] = field(default_factory=dict)
    """What takes the place of a file or page, by its name."""

    def __post_init__(self) -> None:
        layout = self.source.location.table_layout(self.asset)
        self.table = self.source.table(layout, store=self.store, clock=self.clock)

    def erase(self) -> bool:
        """One pass; whether anything was found."""
        layout, slot = self.table.layout, self.slot
        listed = [
            meta
            for folder in (layout.data(slot, ""), layout.quarantine(slot, ""), layout.state(slot, ""))
            for meta in list_all(self.store, folder.removesuffix(".parquet"))
        ]
        keys = [meta.key for meta in list_all(self.store, layout.commits(slot))]
        commits = [self._read(key) for key in keys]
        named = {name for found in commits if found for name in self._names(found[0])}
        stale = any(found and self._without(found[0]) != found[0] for found in commits)
        if not stale and not any(meta.key not in named and self._holds(meta) for meta in listed):
            return False
        self._commit_next()
        view = self.source.view(self.asset, store=self.store)
        if view.generations():
            view.sync([slot])
        kept = self._rewritten_names()
        doomed = [meta.key for meta in listed if meta.key not in kept and self._holds(meta)]
        in_parallel(self.store.delete, doomed, REQUESTS_IN_FLIGHT)
        self.done.files += len(doomed)
        return True

    def _commit_next(self) -> None:
        for attempt in range(ATTEMPTS):
            if attempt:
                self.clock.sleep(backoff_seconds(attempt, self.clock))
            planned_at = self.clock.monotonic()
            head = self.table.head(self.slot)
            clean = self._without(head) if head is not None else None
            cleared = bool(self.asset and head and clean and head.files and not clean.files)
            made_from = Generation(0) if cleared else None
            commit = SlotCommit.after(
                clean, self.slot, batch=ERASE, clock=self.clock, source_generation=made_from
            )
            if isinstance(self.table.commit(commit.staged(), planned_at=planned_at), Written):
                self.done.commits += 1
                if cleared and self.asset and self.asset not in self.done.cleared:
                    self.done.cleared += (self.asset,)
                return
        raise ConflictError(f"slot {self.slot}: other commits were first {ATTEMPTS} times; try again")

    def _rewritten_names(self) -> set[str]:
        """All commits are without the object now; the keys of the files that they name."""
        names: set[str] = set()
        for meta in list_all(self.store, self.table.layout.commits(self.slot)):
            for _ in range(ATTEMPTS):
                found = self._read(meta.key)
                if found is None:
                    break  # vacuum has removed it
                commit, etag = found
                clean = self._without(commit)
                if clean != commit:
                    # By leases there may be no store with such a condition.
                    condition = IfMatch(etag=etag) if self.source.commit.choice == "native" else None
                    outcome = self.store.put(meta.key, clean.dumps(), precondition=condition)
                    if not isinstance(outcome, Written):
                        continue  # another erasure was first, or nobody knows: look again
                    self.done.commits += 1
                names |= self._names(clean)
                break
            else:
                raise UnavailableError(f"{meta.key}: could not be written again; repeat this")
        return names

    def _read(self, key: str) -> tuple[SlotCommit, ETag] | None:
        found = self.store.get(key)
        if not isinstance(found, StoredObject):
            return None
        return SlotCommit.loads(found.body, where=key), found.meta.etag

    def _names(self, commit: SlotCommit) -> set[str]:
        layout = self.table.layout
        return {
            *(layout.data(self.slot, file.name) for file in commit.files),
            *(layout.quarantine(self.slot, file.name) for file in commit.rejects),
            *(layout.state(self.slot, page.name) for page in commit.pages),
        }

    def _without(self, commit: SlotCommit) -> SlotCommit:
        """The commit without the object; equal if it has nothing of it. Writes the files that take others' place."""
        data, rejects = new_files(self.table, self.slot, commit.generation, self.clock)
        stale = self.asset is not None and commit.source_generation < self.clean_since
        clean = replace(
            commit,
            files=tuple(f for file in commit.files if (f := self._file(file, data, stale=stale))),
            rejects=tuple(f for file in commit.rejects if (f := self._file(file, rejects, stale=stale))),
            pages=tuple(p for page in commit.pages if (p := self._page(page))),
            deltas=tuple(delta for delta in commit.deltas if delta.key != self.key),
            pending=tuple(key for key in commit.pending if key != self.key),
            failing=tuple(key for key in commit.failing if key != self.key),
        )
        if (clean.pages, clean.deltas) == (commit.pages, commit.deltas):
            return clean
        held = self.table.states(commit, [self.key]).get(self.key)
        without = commit.without_records - bool(held and held.without_records)
        return replace(clean, objects=commit.objects - bool(held), without_records=without)

    def _file(self, file: TableFile, into: SlotFiles, *, stale: bool) -> TableFile | None:
        if file.name in self._replaced:
            found = self._replaced[file.name]
            assert found is None or isinstance(found, TableFile)
            return found
        rows = read_file(self.table, self.slot, file, rejects=into.key_of("") == self._rejects_key)
        if "_key" not in rows.column_names:
            return None if stale else file
        kept = rows.filter(pc.not_equal(rows["_key"], self.key))
        found = file
        if kept.num_rows != rows.num_rows:
            into.add(kept, since=file.since, until=file.until)
            into.flush()
            found = into.written[-1] if kept.num_rows else None
        self._replaced[file.name] = found
        return found

    @property
    def _rejects_key(self) -> str:
        return self.table.layout.quarantine(self.slot, "")

    def _page(self, page: StatePage) -> StatePage | None:
        if page.name not in self._replaced:
            key = self.table.layout.state(self.slot, page.name)
            stored = self.store.get(key)
            states = states_of(state_columns(stored.body)) if isinstance(stored, StoredObject) else {}
            after: StatePage | None = page
            if states.pop(self.key, None) is not None:
                after = None
                if states:
                    name = unique_name(self.clock)
                    outcome = self.store.put(self.table.layout.state(self.slot, name), encode_states(states))
                    if not isinstance(outcome, Written):
                        raise UnavailableError(f"states of slot {self.slot}: {outcome}; repeat this")
                    after = StatePage(name=name, objects=len(states), first=min(states))
            self._replaced[page.name] = after
        found = self._replaced[page.name]
        assert found is None or isinstance(found, StatePage)
        return found

    def _holds(self, meta: ObjectMeta) -> bool:
        """Whether a file that no commit names may hold the object."""
        found = self.store.get(meta.key)
        if not isinstance(found, StoredObject):
            return False
        file = pq.ParquetFile(pa.BufferReader(found.body))
        column = next((name for name in ("_key", "key") if name in file.schema_arrow.names), None)
        if column is None or (column == "key" and "/state/" not in meta.key):
            return True
        keys = file.read(columns=[column])[column]
        return bool(pc.any(pc.equal(keys, self.key)).as_py())
