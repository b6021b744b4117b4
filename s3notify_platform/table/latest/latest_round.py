"""The next version of a table of newest rows, from the rows that its source's table has gained and lost.

In a table of newest rows, each key has a state, like an object in other tables. The state's ETag is the rank of the
key's newest row (`ranks`). If this newest row says that the key is deleted, the key has no row in the table, but keeps
its state. So the state is enough to decide if a row that arrives late is newer. A row that left was the key's newest
row if the row's rank equals the state's ETag. The round decides for each key that gained or lost rows in the source's
table:

| the key's newest row | a newer row was added | the key |
|---|---|---|
| stays | yes | gets the added row |
| stays | no | stays unchanged |
| left | yes, or the same row again | gets the added row |
| left | no | gets the newest of the remaining rows (`search`), or leaves the table |
| does not exist | yes | gets the added row |

`search` reads all rows of the source's table, at most once in a round.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.errors import ConflictError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.latest.latest_definition import DELETED, newest_of
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.manifest import Followed
from s3notify_platform.table.packs.pack_set import StagedPack
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.round import RoundChange, SlotRound
from s3notify_platform.table.snapshot import Snapshot

KEYS_AT_ONCE: Final = 50_000
"""The number of keys whose states are looked up together."""

Keys = Mapping[Slot, Collection[str]]
Search = Callable[[Keys], pa.Table]
"""Returns the newest rows of these keys, in the form of `newest_of`. The rows are read as of the version of the source
to which the round advances the table.
"""


@dataclass(slots=True, kw_only=True)
class KeyChanges:
    """The changes of keys, and the rows to write. The rows are sorted by slot and key, as in packs."""

    slots: dict[Slot, SlotRound]
    rows: pa.Table


def key_changes(
    table: LogTable, base: Snapshot, came: pa.Table, left: pa.Table, search: Search
) -> KeyChanges:
    """Returns the changes of keys on top of `base`. The list of cases in the module's docstring has the rules.

    `came`: the newest of the added rows, in the form of `newest_of`. `left`: the `_slot`, `_key` and `_etag` of the
    rows that left. The call makes the requests of `StateReader.lookup` and of `search`.
    """
    places = _places(came, left)
    held = _states(table, base, places)
    label = base.version + 1
    newer = _Newer(came)
    ranks = pa.array([state.etag for state in held.values()], pa.string())
    gone = pc.is_in(ranks, left["_etag"].combine_chunks()).to_pylist()
    lost = {key for key, is_lost in zip(held, gone, strict=True) if is_lost}
    searched: dict[Slot, list[str]] = {}
    winners: list[int] = []
    changes: dict[Slot, dict[str, ObjectState]] = {}
    for slot, keys in places.items():
        for key in keys:
            state, at = held.get(key), newer.at.get(key)
            is_newer = at is not None and (
                state is None
                or newer.ranks[at] > state.etag
                or (key in lost and newer.ranks[at] == state.etag)
            )
            if is_newer and at is not None:
                winners.append(at)
                changes.setdefault(slot, {})[key] = newer.state(at, label)
            elif key in lost:
                searched.setdefault(slot, []).append(key)
    rows = came.take(pa.array(winners, pa.int64()))
    if searched:
        found = search(searched)
        older = _Newer(found)
        for slot, keys in searched.items():
            for key in keys:
                at = older.at.get(key)
                gone_state = ObjectState(key=key, etag="", size=0, gone=True)
                changes.setdefault(slot, {})[key] = gone_state if at is None else older.state(at, label)
        rows = newest_of(pa.concat_tables([rows, found]))
    shown = rows.filter(pc.invert(rows[DELETED])).drop_columns([DELETED])
    return KeyChanges(
        slots={
            slot: SlotRound(changes=of_slot, before={key: held[key] for key in of_slot if key in held})
            for slot, of_slot in changes.items()
        },
        rows=shown.sort_by([("_slot", "ascending"), ("_key", "ascending")]),
    )


class _Newer:
    """The newest row of each key, to look up by key."""

    def __init__(self, rows: pa.Table) -> None:
        keys = rows["_key"].to_pylist()
        self.at = {key: number for number, key in enumerate(keys)}
        self.ranks: list[str] = rows["_etag"].to_pylist()
        self._keys = keys
        self._deleted = rows[DELETED].to_pylist()

    def state(self, at: int, label: int) -> ObjectState:
        """Returns the state of the key whose newest row has the position `at` in these rows."""
        return ObjectState(
            key=self._keys[at],
            etag=self.ranks[at],
            size=0,
            rows=0 if self._deleted[at] else 1,
            since=label,
            until=label,
        )


def _places(came: pa.Table, left: pa.Table) -> dict[Slot, list[str]]:
    """Returns, by slot, the keys of the rows that were added or that left."""
    named = pa.concat_tables([came.select(["_slot", "_key"]), left.select(["_slot", "_key"])])
    distinct = named.group_by(["_slot", "_key"]).aggregate([])
    found: dict[Slot, list[str]] = {}
    for slot, key in zip(distinct["_slot"].to_pylist(), distinct["_key"].to_pylist(), strict=True):
        found.setdefault(Slot(slot), []).append(key)
    return found


def _states(table: LogTable, base: Snapshot, places: Keys) -> dict[str, ObjectState]:
    found: dict[str, ObjectState] = {}
    for some in _parts(places):
        found |= table.states.lookup(base.manifest.states, some)
    return found


def _parts(places: Keys) -> Iterator[Keys]:
    some: dict[Slot, Collection[str]] = {}
    for slot, keys in places.items():
        some[slot] = keys
        if sum(map(len, some.values())) >= KEYS_AT_ONCE:
            yield some
            some = {}
    if some:
        yield some


def staged(table: LogTable, rows: pa.Table, label: int) -> list[StagedPack]:
    """Returns packs of these rows. The commit writes the packs together with the version. No request."""
    if not rows.num_rows:
        return []
    packs, files = table.data.staged(write([rows], table.data.sizes), label=label)
    return [replace(each, body=files[table.layout.file(each.add.path)]) for each in packs]


@dataclass(slots=True, kw_only=True)
class FollowingRound:
    """A round of a table of newest rows, as a `Change`. A round is committed as a whole, or not at all.

    `follows`: the version of the source to which the round advances the table.

    | after the round was planned, another writer … | then the round … |
    |---|---|
    | advanced the table to a later version of its source, or to another source | commits nothing |
    | merged or rewrote packs or state files | is committed on top of that version |
    | rolled the table back, or erased keys of the round's slots | fails with a conflict, and must be planned again |
    """

    round: RoundChange
    follows: Followed
    note: Mapping[str, Any] = field(default_factory=dict)

    def onto(self, base: Snapshot) -> Proposal | None:
        """See `Change`, and the list of cases in the docstring of the class."""
        planned = self.round.base
        if base.table != planned.table or base.manifest.follows != planned.manifest.follows:
            return None
        if not self.round.slots:
            return Proposal(
                metadata=self.round.metadata,
                protocol=self.round.protocol,
                follows=self.follows,
                note=self.note,
            )
        found = self.round.onto(base)
        if found is None or self.round.dropped:
            why = next(iter(self.round.dropped.values()), "")
            raise ConflictError(f"the table below {self.round.table.layout.prefix!r}: {why}: plan again")
        return replace(found, follows=self.follows, note={**self.note, **found.note})
