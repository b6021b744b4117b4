"""Syncs of one view beside each other and beside commits, under faults: each version is whole, the end is the table."""

import json

from s3notify_platform.table.delta import view as delta

from s3notify_platform.errors import ConflictError, FencedError, UnavailableError, UnknownOutcomeError
from s3notify_platform.slots import Slot
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import TableFile
from tests.support.simulation import ROUGH, VirtualTime, run_simulation, simulated
from tests.support.viewed import Viewed, spark_schema

SLOTS = [Slot(n) for n in range(3)]
EXPECTED = (UnavailableError, UnknownOutcomeError, ConflictError, FencedError)


def in_rounds(act):
    """An actor of 8 rounds, over its crashes; what one is not sure of it leaves to the next."""
    rounds = 0

    def run(store, clock):
        nonlocal rounds
        viewed = Viewed(store=store, clock=clock)
        while rounds < 8:
            rounds += 1
            try:
                act(viewed, rounds)
                clock.sleep(0.05)
            except EXPECTED:
                pass

    return run


def committer(number):
    """Commits one slot again and again."""

    def commit(viewed, nth):
        head = viewed.table.head(SLOTS[number])
        kept = head.files[nth % 2 :] if head else ()
        viewed.commit(number, [*kept, TableFile(name=f"{number}{nth:04x}", rows=1, bytes=9)])

    return in_rounds(commit)


def syncer(number):
    """Syncs all slots, or some; repairs now and then."""

    def sync(viewed, nth):
        viewed.view.sync(SLOTS if nth % 3 else SLOTS[number % 2 :], repair=nth % 5 == 0)

    return in_rounds(sync)


def versions_of(viewed):
    """The files that each version shows, by slot."""
    shown, versions = {}, []
    for name, body in sorted(viewed.log_objects().items()):
        if not name.endswith(".json"):
            continue
        assert int(name[:20]) == len(versions)
        shown = {slot: set(files) for slot, files in shown.items()}
        for action in map(json.loads, body.splitlines()):
            if add := action.get("add"):
                files = shown.setdefault(add["partitionValues"]["slot"], set())
                assert add["path"] not in files
                files.add(add["path"])
            if remove := action.get("remove"):
                shown[remove["partitionValues"]["slot"]].remove(remove["path"])
        versions.append(shown)
    return versions


def files_of(commit):
    return {f"slot={commit.slot}/{file.name}.parquet" for file in commit.files} if commit else set()


@simulated
def test_syncs_and_commits_at_once(seed, monkeypatch):
    """All kinds of faults: no version has half of a commit, none takes a slot back, and the last is the table."""
    monkeypatch.setattr(delta, "CHECKPOINT_VERSIONS", 2)
    monkeypatch.setattr(delta, "MAX_ACTIONS", 4)
    time = VirtualTime()
    store = MemoryObjectStore(clock=time)
    Viewed(store=store).pin(spark_schema(id="long"))
    actors = [*map(committer, range(3)), *map(syncer, range(2))]
    run_simulation(actors, store, seed, faults=ROUGH, time=time)
    viewed = Viewed(store=store)
    viewed.view.sync(SLOTS)
    versions = versions_of(viewed)
    for slot in SLOTS:
        head = viewed.table.head(slot)
        line = [files_of(viewed.table.read(slot, n + 1)) for n in range(head.generation if head else 0)]
        seen = [version.get(str(slot), set()) for version in versions]
        place = 0
        for files in seen:
            if files:
                place = line.index(files, place)
        assert not line or seen[-1] == line[-1]
    before = viewed.log_objects()
    assert viewed.view.sync(SLOTS, repair=True).versions == 0
    assert viewed.log_objects().keys() >= before.keys()
