"""The world of the model `log_commit`: the stored objects, all possible results of a request, and the invariants."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.support.log_commit import Checkpoint, Request, Row, Snapshot, Version, after, changes_data, foreign


class World(NamedTuple):
    """Objects by path, and facts that only the checker sees."""

    objects: frozenset[tuple[Any, Any]]
    now: int = 0
    faults: int = 0
    """Number of answers that may still be lost, or of requests that may still be repeated."""
    flying: tuple[Any, ...] = ()
    """Writes that no process waits for any more, and that may still arrive."""
    taken: frozenset[tuple[str, int]] = frozenset()
    """Entries that have left the queue."""


def put(world: World, path: Any, value: Any) -> World:
    """The world after a write to `path`."""
    stamped = value._replace(at=world.now) if isinstance(value, Version) else value
    if path[0] == "pack":
        stamped = (value, world.now)
    kept = frozenset(one for one in world.objects if one[0] != path)
    return world._replace(objects=kept | {(path, stamped)})


def answers(world: World, request: Request) -> Iterator[tuple[World, Any]]:
    """All possible results of a request."""
    objects = dict(world.objects)
    what, path, value = request
    match what:
        case "get":
            yield world, objects.get(path)
        case "list":
            found = [(one[1], value) for one, value in objects.items() if one[0] == path]
            yield world, tuple(sorted(found, key=lambda one: one[0]))
        case "put":
            for one, body in value:
                world = put(world, one, body)
            yield world, None
        case "write":
            if path == ("last",):
                world = put(world, ("last at",), world.now)
            yield put(world, path, value), value if path == ("known",) else True
        case "create":
            free = path not in objects
            created = put(world, path, value) if free else world
            yield created, free
            if world.faults:
                lost = world._replace(faults=world.faults - 1)
                yield created._replace(faults=world.faults - 1), None
                yield lost, None
                yield lost._replace(flying=(*world.flying, (path, value))), None
                yield created._replace(faults=world.faults - 1), False
        case "arrive":
            for number, (place, body) in enumerate(world.flying):
                rest = world._replace(flying=world.flying[:number] + world.flying[number + 1 :])
                yield (rest if place in objects else put(rest, place, body)), None
        case "raise":
            held = objects.get(path)
            higher = held is None or value > held if path == ("last",) else _raises(held, value)
            raised = put(world, path, value) if higher else world
            if higher and path == ("last",):
                raised = put(raised, ("last at",), world.now)
            yield raised, (value if higher else held)
        case "delete":
            deleted = world._replace(objects=frozenset(one for one in world.objects if one[0] != path))
            yield deleted, True
            if world.faults:
                yield deleted._replace(faults=world.faults - 1), False
                yield world._replace(faults=world.faults - 1), False
        case "take":
            yield world._replace(taken=world.taken | frozenset(value)), None
        case "tick":
            yield world._replace(now=world.now + 1), None


def _raises(held: tuple[str, int, str], value: tuple[str, int, str]) -> bool:
    return value[0] == held[0] and value[1] > held[1]


def broken(world: World, results: dict[str, Any], *, lost: bool = False, leases: bool = False) -> str:  # noqa: PLR0911
    """The invariant that this state breaks; "" if it breaks none."""
    objects = dict(world.objects)
    last = objects["last",]
    checkpoint: Checkpoint = objects.get(("checkpoint", last))
    if checkpoint is None:
        return "the newest checkpoint is missing"
    live, n, v, data = checkpoint.live, checkpoint.n, last, True
    while (version := objects.get(("log", v + 1))) is not None:
        if foreign(version):
            data = data and not changes_data(version, live)
        else:
            if not data:
                return "a version follows a foreign one that changed data"
            if version.parent != n:
                return "" if leases else "the chain is broken"
            n = version.n
            gone = {row for name, rows in live if name in version.removes for row in rows}
            if any(not rows <= gone for _, rows, change in version.adds if not change):
                return "a stream would lose rows, which came in a pack that changes no data"
        if lack := [name for name, _, _ in version.adds if ("pack", name) not in objects]:
            return f"packs of version {v + 1} are gone: {lack}"
        live = after(version, live)
        v += 1
    if any(path[0] == "log" and path[1] > v for path in objects):
        return "a version comes after a gap"
    if lack := [name for name, _ in live if ("pack", name) not in objects]:
        return f"live packs are gone: {lack}"
    if wrong := [name for name, rows in live if objects["pack", name][0] != rows]:
        return f"packs have other rows than their versions: {wrong}"
    back, expected = last, checkpoint.n
    while (version := objects.get(("log", back))) is not None and version.n == expected:
        if any(("pack", name) not in objects for name, _, _ in version.adds):
            return "a pack of a kept version is gone"
        back, expected = back - 1, version.parent
    states: tuple[Row, ...] = objects["manifest", n]
    if data and sorted(row for _, rows in live for row in rows) != sorted(states):
        return f"rows {sorted(row for _, rows in live for row in rows)} are not the states {states}"
    if any(label > v for _, _, label in states):
        return "a label above the version"
    _, known, number = objects["known",]
    if not lost and not leases and known > v:
        return "known is ahead of the log"
    named = objects.get(("log", known))
    if not lost and not leases and known > last and named is not None and named.n != number:
        return "known names another version"
    held = {key: etag for key, etag, _ in states}
    if not lost and not leases and any(held.get(key, 0) < etag for key, etag in world.taken):
        return "an entry has left the queue whose object is not in the table"
    ours = {version.n[0] for path, version in objects.items() if path[0] == "log" and version.n}
    if lied := [
        name
        for name, result in results.items()
        if isinstance(result, tuple) and result[0] == "conflict" and name in ours
    ]:
        return f"reported as lost, but committed: {lied}"
    streamed = results.get("stream")
    if isinstance(streamed, frozenset) and not world.taken <= streamed:
        return "a stream misses a change whose entry has left the queue"
    reader = results.get("reader")
    if results.get("put back"):
        reader = results["put back"]
        if not isinstance(reader, Snapshot):
            return f"the replaced version cannot be restored: {reader}"
    if isinstance(reader, Snapshot):
        seen = {key: etag for key, etag, _ in reader.states}
        if any(seen.get(key, 0) < etag for key, etag in world.taken):
            return "a reader misses a change whose entry has left the queue"
    return ""
