"""The programs of the model `log_commit`, except for rounds: checkpoints, vacuum, another engine, the passing time, a
person's action.
"""

from dataclasses import replace
from typing import Any

from tests.support.log_commit import (
    LONGEST,
    Checkpoint,
    Refused,
    Request,
    Rules,
    Snapshot,
    Steps,
    Version,
    opened,
)


def checkpoint_and_cut(rules: Rules, *, kept: Snapshot | None = None) -> Steps:
    """Writes a checkpoint of the newest version, then removes the oldest versions."""
    snap: Any = kept
    if kept is None:
        snap = yield from opened(rules)
    if isinstance(snap, Refused):
        return ("refused", snap.why)
    if rules.checkpoint_before_cut:
        made, _ = yield Request("create", ("checkpoint", snap.v), Checkpoint(snap.table, snap.n, snap.live))
        if made is None and rules.checkpoint_acknowledged:
            return ("unsure", snap.v)
        yield Request("raise" if rules.last_rises else "write", ("last",), snap.v)
    named_at, now = yield Request("get", ("last at",))
    if rules.cut_waits and rules.checkpoint_before_cut and (named_at is None or now - named_at < LONGEST):
        return ("waits", snap.v)
    for number in range(1, snap.v):  # the version of the checkpoint stays
        v = number if rules.cuts_oldest_first else snap.v - number
        found, now = yield Request("get", ("log", v))
        if found is None:
            continue
        if now - found.at < LONGEST:
            if rules.cuts_oldest_first:
                break
            continue
        gone, now = yield Request("delete", ("log", v))
        if not gone and rules.cut_acknowledged:
            return ("unsure", v)
    if not rules.checkpoint_before_cut:
        yield Request("create", ("checkpoint", snap.v), Checkpoint(snap.table, snap.n, snap.live))
        yield Request("raise", ("last",), snap.v)
    return ("cut", snap.v)


def vacuum(rules: Rules, name: str = "v") -> Steps:
    """Removes packs that no version names."""
    packs, now = yield Request("list", "pack")
    old = tuple(pack for pack, (_, at) in packs if not rules.vacuum_waits or now - at >= LONGEST)
    if not old:
        return ("nothing", 0)
    snap = yield from opened(rules)
    if isinstance(snap, Refused):
        return ("refused", snap.why)
    # After this version, no writer may commit the old packs any more: a writer that slept gets a conflict.
    if rules.vacuum_fences:
        version = Version(snap.table, name, snap.n, frozenset(), frozenset())
        yield Request("put", None, ((("manifest", name), snap.states),))
        won, _ = yield Request("create", ("log", snap.v + 1), version)
        if not won:
            return ("conflict", snap.v)
        yield Request("raise", ("known",), (snap.table, snap.v + 1, name))
    log, _ = yield Request("list", "log")
    named = {pack for pack, _ in snap.live}
    if rules.vacuum_keeps_history:
        named |= {pack for _, version in log for pack, _, _ in version.adds}
        named |= {pack for _, version in log for pack in version.removes}
    doomed = tuple(pack for pack in old if pack not in named)
    for number in range(len(doomed)):
        yield Request("delete", ("pack", doomed[number]))
    return ("vacuumed", doomed)


def put_back(rules: Rules) -> Steps:
    """Restores the versions that were replaced, and opens the table."""
    (_, newest, number), _ = yield Request("get", ("known",))
    log, _ = yield Request("list", "log")
    right = {v: version.n for v, version in log}
    for step in range(9):
        v = newest - step
        if v not in right:
            break
        found, _ = yield Request("get", ("log", v))
        if found.n != number:
            found, _ = yield Request("get", ("staged", number))
            if found is None:
                return Refused("the staged version is missing")
            yield Request("write", ("log", v), found)
        number = found.parent
    return (yield from opened(rules))


def engine(rules: Rules, *, deletes: bool) -> Steps:
    """Commits another engine's version: OPTIMIZE, or DELETE of the rows of a pack."""
    snap = yield from opened(rules)
    if isinstance(snap, Refused) or not snap.live:
        return ("refused", 0)
    rows = frozenset(row for _, rows in snap.live for row in rows)
    adds = frozenset() if deletes else frozenset({("foreign", rows, False)})
    yield Request("put", None, ((("pack", "foreign"), rows),))
    version = Version(snap.table, "", "", adds, frozenset(pack for pack, _ in snap.live))
    won, _ = yield Request("create", ("log", snap.v + 1), version)
    return ("foreign", bool(won))


def ticks(count: int) -> Steps:
    """Lets time pass."""
    for _ in range(count):
        yield Request("tick")
    return ("passed", count)


def accept_loss(rules: Rules) -> Steps:
    """A person accepts that versions are lost. The table continues under a new id."""
    snap = yield from opened(replace(rules, refuses_missing=False))
    if isinstance(snap, Refused):
        return ("refused", snap.why)
    table = "id2" if rules.new_id_after_loss else snap.table
    version = Version(table, "accepted", snap.n, frozenset(), frozenset())
    yield Request("put", None, ((("manifest", "accepted"), snap.states),))
    won, _ = yield Request("create", ("log", snap.v + 1), version)
    if won:
        yield Request("write", ("known",), (table, snap.v + 1, "accepted"))
    return ("accepted", bool(won))
