"""The commit protocol of tables (`table.commit`) as programs that make requests. `tests/model/test_log_commit_model.py`
explores these programs.

The model was written before the code, and is simpler. A pack is its rows, and a manifest holds the states themselves.
An ETag is a rising number, and a slot is the first letter of a key. `Rules` has the rules that keep the invariants.
Each rule can be switched off.

    ("log", v)          a version: parent, adds with their rows, removes
    ("checkpoint", v)   the packs of the table as of v
    ("last",)           the version of the newest checkpoint
    ("last at",)        the time at which `("last",)` was written
    ("manifest", n)     the states as of a version, under the number `n` that the version names
    ("pack", name)      rows, and when they were written
    ("staged", n)       with leases: the version with the number `n`, written before the version itself
    ("known",)          a record outside the prefix: the table, its newest version, and this version's `n`
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

LONGEST = 2
"""The longest duration of a run, in ticks."""
HALF = 1
"""The maximum age, in ticks, of the data that a commit is based on, and of the commit's staged files."""

Row = tuple[str, int, int]
"""Key, ETag, label."""
States = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The first rules of the protocol, followed by rules whose need this model has shown."""

    conditional: bool = True
    """The request that creates a version requires that the version does not exist."""
    fresh_numbers: bool = True
    """Each attempt to create a version has a new `n`."""
    own_number_is_mine: bool = True
    """If a version exists and has the writer's `n`, this writer has created the version. (Answers can be lost, and
    requests can be repeated.)
    """
    keeps_staged: bool = True
    """Staged files are never deleted after an outcome in doubt."""
    slots_conflict: bool = True
    """A slot that another writer changed is dropped from the round."""
    drops_states_too: bool = True
    """If a slot is dropped, its states are dropped, too, and not only its rows."""
    withdraws_again: bool = True
    """If another writer has replaced a pack, rows are withdrawn again from the new pack."""
    commit_before_take: bool = True
    """Entries leave the queue after the commit."""
    keeps_label: bool = True
    """A round keeps its label when it begins again on a newer version, because its staged packs contain the label."""
    known_after_commit: bool = True
    known_rises: bool = True
    refuses_missing: bool = True
    """A log that ends before the known version is refused."""
    cut_waits: bool = True
    """The log is cut only below a checkpoint. Before the log is cut, `last` must have named this checkpoint for the
    duration of the longest run. The age of a version alone does not suffice.
    """
    cuts_oldest_first: bool = True
    """Otherwise a process that knows an older version could find no later version, and create one below the newest."""
    cut_acknowledged: bool = True
    """No version is removed before the removal of the version below it was acknowledged."""
    young: bool = True
    """No commit builds on a snapshot that is older than half of the longest run: vacuum may have removed the packs that
    the run has staged.
    """
    late_check: bool = True
    """A version whose PUT was late counts only if neither a checkpoint nor `known` is newer."""
    checkpoint_before_cut: bool = True
    checkpoint_acknowledged: bool = True
    """`last` names a checkpoint only after the store has answered that the checkpoint exists."""
    last_rises: bool = True
    merges_apart: bool = True
    """The packs that a merge writes never contain rows of the round itself."""
    merge_drops: bool = True
    """A merge is dropped if another writer removed one of its packs."""
    vacuum_waits: bool = True
    """Vacuum removes no file that is younger than the duration of the longest run."""
    vacuum_keeps_history: bool = True
    """Vacuum removes no file that a kept version names."""
    adopts_only_unchanged: bool = True
    """A foreign version is adopted if it changes no data, and refused otherwise."""
    new_id_after_loss: bool = True
    # Rules found by this model
    probes_own_version: bool = True
    """A warm process checks that the version it has read still exists. If warm processes check this, only cold
    processes need `known`.
    """
    asks_by_one_list: bool = True
    """This check is one LIST from the process's version on. Between a GET of this version and a GET of the next
    version, another process could remove both.
    """
    vacuum_fences: bool = True
    """Vacuum creates a version before it removes packs that no version names. After this version, no writer can commit
    these packs any more.
    """
    age_from_first_look: bool = True
    """A snapshot's age counts from before its first read, so staged files are never older than the snapshot. This rule
    is needed because a version that was removed from the log may be created again by a late PUT.
    """
    known_compares: bool = True
    """If `known` has another `n` for a version, the version was replaced. In this case, the version's writer removes no
    entries.
    """
    stages_version: bool = True
    """With leases, each version is staged under its `n` before it is created. So a replaced version can be restored."""


class Version(NamedTuple):
    """A version of the log."""

    table: str
    n: str
    parent: str
    adds: frozenset[tuple[str, frozenset[Row], bool]]
    """For each pack: its name, its rows, `dataChange`."""
    removes: frozenset[str]
    at: int = 0


class Checkpoint(NamedTuple):
    """The contents of a checkpoint."""

    table: str
    n: str
    live: frozenset[tuple[str, frozenset[Row]]]


class Snapshot(NamedTuple):
    """The data that a process has read."""

    table: str
    v: int
    n: str
    live: frozenset[tuple[str, frozenset[Row]]]
    states: States
    read_at: int


class Request(NamedTuple):
    """A request of a program. Kinds: `get`, `list`, `put` (several objects under new names), `create`, `write`,
    `raise`, `delete`, `take`, `tick`.
    """

    what: str
    path: Any = None
    value: Any = None

    def __str__(self) -> str:
        return f"{self.what} {self.path}" + (f" {self.value}" if self.value is not None else "")


Steps = Generator[Request, tuple[Any, int], Any]


def after(
    version: Version, live: frozenset[tuple[str, frozenset[Row]]]
) -> frozenset[tuple[str, frozenset[Row]]]:
    """The packs of the table after this version."""
    kept = frozenset(pack for pack in live if pack[0] not in version.removes)
    return kept | frozenset((name, rows) for name, rows, _ in version.adds)


def foreign(version: Version) -> bool:
    """True if another engine wrote the version. Such a version names no manifest."""
    return not version.n


def changes_data(version: Version, live: frozenset[tuple[str, frozenset[Row]]]) -> bool:
    """True if a foreign version adds or removes rows."""
    gone = [row for name, rows in live if name in version.removes for row in rows]
    came = [row for _, rows, _ in version.adds for row in rows]
    return sorted(gone) != sorted(came) or any(data for _, _, data in version.adds)


class Refused(NamedTuple):
    """The result if a table is refused, with the reason."""

    why: str


def forward(rules: Rules, snap: Snapshot) -> Steps:
    """The snapshot with all later versions applied, or `Refused`.

    None if the log was replaced and must be opened again.
    """
    for _ in range(9):
        found, now = yield Request("get", ("log", snap.v + 1))
        if found is None:
            return snap
        live = after(found, snap.live)
        if foreign(found):
            if rules.adopts_only_unchanged and changes_data(found, snap.live):
                return Refused("foreign")
            snap = snap._replace(v=snap.v + 1, live=live)
            continue
        if found.parent != snap.n:
            return None
        states, _ = yield Request("get", ("manifest", found.n))
        read_at = snap.read_at if rules.age_from_first_look else now
        snap = Snapshot(found.table, snap.v + 1, found.n, live, states, read_at)
    return snap


def opened(rules: Rules) -> Steps:
    """The newest snapshot, read without a cache."""
    for _ in range(4):
        last, read_at = yield Request("get", ("last",))
        checkpoint, _ = yield Request("get", ("checkpoint", last))
        if checkpoint is None:
            continue
        states, _ = yield Request("get", ("manifest", checkpoint.n))
        snap = yield from forward(
            rules, Snapshot(checkpoint.table, last, checkpoint.n, checkpoint.live, states, read_at)
        )
        if snap is None:
            continue
        known, _ = yield Request("get", ("known",))
        if not isinstance(snap, Refused) and rules.refuses_missing and not _agrees(known, snap):
            # `known` may be newer than the log that was read.
            snap = yield from forward(rules, snap)
            if snap is None:
                continue
            if not isinstance(snap, Refused) and not _agrees(known, snap):
                return Refused("missing commits")
        return snap
    return Refused("unstable")


def _agrees(known: tuple[str, int, str], snap: Snapshot) -> bool:
    table, v, n = known
    return table == snap.table and (v < snap.v or (v == snap.v and n == snap.n))


def _listed(v: int) -> Steps:
    """Version `v`, whether there is a next version, and the time."""
    log, now = yield Request("list", "log")
    found = dict(log)
    return found.get(v), v + 1 in found, now


def warm(rules: Rules, snap: Snapshot) -> Steps:
    """An older snapshot with all later versions applied. If the log was replaced, it is opened again."""
    more = False
    if rules.probes_own_version:
        if rules.asks_by_one_list:
            own, more, now = yield from _listed(snap.v)
        else:
            own, now = yield Request("get", ("log", snap.v))
        if own is None or own.n != snap.n:
            return (yield from opened(rules))
        snap = snap._replace(read_at=now)
    found = yield from forward(rules, snap)
    if found is None or (more and found == snap):
        found = yield from opened(rules)
    return found


class Body(NamedTuple):
    """A round's version, and the objects that must exist before it."""

    version: Version
    puts: tuple[tuple[Any, Any], ...]


def _body(  # noqa: PLR0917
    rules: Rules,
    name: str,
    own_pack: str,
    snap: Snapshot,
    todo: States,
    states_of: States,
    merges: frozenset[str],
    label: int,
) -> Body:
    """The version that ingests `todo` on top of `snap`, and merges the packs with names in `merges`."""
    keys = {key for key, _, _ in todo}
    own = frozenset((key, etag, label) for key, etag, _ in todo)
    adds: set[tuple[str, frozenset[Row], bool]] = set()
    removes: set[str] = set()
    merged: frozenset[Row] = frozenset()
    for pack, rows in sorted(snap.live, key=lambda one: one[0]):
        stale = frozenset(row for row in rows if row[0] in keys)
        if stale:
            removes.add(pack)
            if rows - stale:
                adds.add((f"{pack}-{name}", rows - stale, True))
        elif pack in merges:
            removes.add(pack)
            merged |= rows
    if merges and not rules.merges_apart:
        adds.add((f"m{name}", merged | own, False))
    else:
        if merged:
            adds.add((f"m{name}", merged, False))
        if own:
            adds.add((own_pack, own, True))
    changed = {key: (key, etag, label) for key, etag, _ in states_of}
    states = tuple(sorted({**{one[0]: one for one in snap.states}, **changed}.values()))
    version = Version(snap.table, name, snap.n, frozenset(adds), frozenset(removes))
    packs = tuple(sorted((("pack", pack), rows) for pack, rows, _ in adds))
    return Body(version, (*packs, (("manifest", name), states)))


def a_round(  # noqa: PLR0911
    name: str,
    work: tuple[tuple[str, int], ...],
    rules: Rules,
    *,
    kept: Snapshot | None = None,
    merging: bool = False,
    overrun: bool = False,
    staged: bool = False,
    compaction: bool = False,
    asked: bool = False,
) -> Steps:
    """A run's round: `("committed", v)`, or the reason of its failure.

    `overrun`: the run's lease ends before its write begins. `staged`: the version is staged under its `n` first.
    `asked`: the run has just read that `kept` is the newest snapshot.
    """
    snap: Any = kept
    if not asked:
        snap = yield from (opened(rules) if kept is None else warm(rules, kept))
    if isinstance(snap, Refused):
        return ("refused", snap.why)
    before = {key: etag for key, etag, _ in snap.states}
    todo: States = tuple((key, etag, 0) for key, etag in work if before.get(key, 0) < etag)
    if not todo and not compaction:
        yield Request("take", None, work)
        return ("nothing", snap.v)
    dropped: States = ()
    label = snap.v + 1
    merges = frozenset(pack for pack, _ in snap.live) if merging or compaction else frozenset()
    if not rules.commit_before_take:
        yield Request("take", None, tuple((key, etag) for key, etag, _ in todo))
    pack, of = "", todo
    for attempt in range(3):
        number = f"{name}{attempt}" if rules.fresh_numbers else f"n{snap.v + 1}"
        label = label if rules.keeps_label else snap.v + 1
        fresh = not pack or of != todo
        pack, of = (f"p{number}" if fresh else pack), todo
        body = _body(
            rules, number, pack, snap, todo, todo if rules.drops_states_too else todo + dropped, merges, label
        )
        puts = tuple(one for one in body.puts if fresh or one[0] != ("pack", pack))
        if staged:
            puts += ((("staged", number), body.version),)
        _, now = yield Request("put", None, puts)
        for again in range(2):
            if rules.young and now - snap.read_at >= HALF:
                return ("stale", snap.v)
            if not rules.known_after_commit:
                yield Request("raise", ("known",), (snap.table, snap.v + 1, number))
            how = "create" if rules.conditional and not overrun else "write"
            won, now = yield Request(how, ("log", snap.v + 1), body.version)
            if won is not None:
                break
            found, now = yield Request("get", ("log", snap.v + 1))
            if found is not None:
                won = found.n == number and rules.own_number_is_mine
                break
            if again == 1:
                if not rules.keeps_staged:
                    yield Request("delete", ("pack", pack))
                return ("in doubt", snap.v)
        if not won:
            found, now = yield Request("get", ("log", snap.v + 1))
            won = found is not None and found.n == number and rules.own_number_is_mine
        if won:
            break
        theirs = yield from forward(rules, snap)
        if theirs is None or isinstance(theirs, Refused):
            return ("refused", "the log is another one")
        was = {key: (etag, label) for key, etag, label in snap.states}
        touched = {key[0] for key, etag, label in theirs.states if was.get(key) != (etag, label)}
        if rules.slots_conflict:
            dropped += tuple(one for one in todo if one[0][0] in touched)
            todo = tuple(one for one in todo if one[0][0] not in touched)
        live = theirs.live if rules.withdraws_again else theirs.live | snap.live
        if rules.merge_drops and not merges <= frozenset(pack for pack, _ in theirs.live):
            merges = frozenset()
        elif not rules.merge_drops:
            live |= frozenset(one for one in snap.live if one[0] in merges)
        snap = theirs._replace(live=live)
        if not todo and not (compaction and merges):
            return ("conflict", snap.v)
    else:
        return ("gave up", snap.v)
    v = snap.v + 1
    known: tuple[str, int, str] = ("", 0, "")
    if rules.late_check and now - snap.read_at >= HALF:
        last, _ = yield Request("get", ("last",))
        known, _ = yield Request("get", ("known",))
        if last >= v or known[0] != snap.table or known[1] > v or (known[1] == v and known[2] != number):
            return ("late", v)
    known, _ = yield Request("raise" if rules.known_rises else "write", ("known",), (snap.table, v, number))
    if rules.known_compares and known != (snap.table, v, number) and known[1] <= v:
        return ("replaced", v)
    if rules.commit_before_take:
        yield Request("take", None, tuple((key, etag) for key, etag in work if (key, etag, 0) not in dropped))
    return ("committed", v)


def stream(rules: Rules, cursor: tuple[str, int], seen: frozenset[tuple[str, int]]) -> Steps:
    """A stream that continues after its cursor. Returns all rows that the stream has seen, or the reason to begin
    again.
    """
    snap = yield from opened(rules)
    if isinstance(snap, Refused) or snap.table != cursor[0]:
        return "begins again"
    for v in range(cursor[1] + 1, snap.v + 1):
        version, _ = yield Request("get", ("log", v))
        seen |= {(key, etag) for _, rows, data in version.adds if data for key, etag, _ in rows}
    return seen
