"""Going back to an earlier version: each cell of the table in `lake.rollback`, and versions of other engines undone."""

import io
import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from s3notify_platform.errors import ConflictError, NotFoundError, UsageError
from s3notify_platform.lake.actions import LogVersion, MetaData, Protocol
from s3notify_platform.lake.checkpoint import Checkpoint, encode
from s3notify_platform.lake.commit import COMMIT_SECONDS, Committed, NothingLeft
from s3notify_platform.lake.history import snapshot_of
from s3notify_platform.lake.log_state import UNDOES, LogState, after
from s3notify_platform.lake.metadata import VECTORS
from s3notify_platform.lake.rollback import COMMAND, Rollback, roll_back
from s3notify_platform.lake.vacuum import FENCE, Fence, vacuum
from s3notify_platform.slots import Slot
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.clocks import HandClock
from tests.support.lake import LAYOUT, Table, beaten, versions
from tests.support.lake_rounds import Rounds

A, B = 0, 1
RUN, RETENTION = 100.0, 1000.0


@pytest.fixture(params=[False, True], ids=["plain", "vectors"])
def vectors(request):
    return request.param


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def store(clock):
    return MemoryObjectStore(clock=clock)


@pytest.fixture
def rounds(store, clock, vectors):
    return lambda: Rounds(store=store, clock=clock, vectors=vectors, more={"max_run_seconds": RUN})


def committed(rounds, bucket, slots=None):
    process = rounds()
    done = process.commit(process.planned(bucket, slots))
    assert isinstance(done, Committed)
    return done.snapshot


def filled(rounds, count=6):
    """Objects of two slots, with rejects; then one of the slots changes."""
    first = {f"{letter}{n}": (f"e{n}", (1, 2, 3, 4 + n)) for letter in "ab" for n in range(count)}
    at_first = committed(rounds, first)
    second = {**first, "a1": ("new", (7, 8, 9)), "a9": ("new", (3, 3, 1))}
    del second["a0"]
    at_second = committed(rounds, second)
    return first, at_first, second, at_second


def planned(process, version):
    base = process.table.opened()
    return Rollback(
        target=snapshot_of(process.table.reader, version),
        readable=base,
        refused=False,
        committer=process.table.committer,
    )


def begun(process, change):
    return process.table.committer.commit_alone(change, change.readable, holder=COMMAND)


def held(rounds):
    return rounds().table.known.read()[0].held


def test_the_table_is_what_it_was(rounds):
    first, at_first, _, at_second = filled(rounds)
    warm = rounds()
    kept = warm.table.opened()
    done = roll_back(rounds().whole, at_first.version)
    assert isinstance(done, Committed)
    assert done.snapshot.version == at_second.version + 1
    for found in (rounds().table.opened(), warm.table.reader.refresh(kept)):
        assert warm.contents(found) == first
        assert found.packs.keys() == at_first.packs.keys()
        assert found.manifest.states == at_first.manifest.states
        rejects = [[pack.path for pack in each.manifest.rejects] for each in (found, at_first)]
        assert rejects[0] == rejects[1]


def test_slots_that_change_have_the_new_version_as_their_generation(rounds):
    _, at_first, _, _ = filled(rounds)
    done = roll_back(rounds().whole, at_first.version)
    before, now = at_first.manifest, done.snapshot.manifest
    assert now.slot(Slot(A)) == replace(before.slot(Slot(A)), generation=done.snapshot.version)
    assert now.slot(Slot(B)) == before.slot(Slot(B))


def test_a_slot_that_was_not_there_is_empty(rounds):
    first, at_first, second, _ = filled(rounds)
    committed(rounds, {**second, "c1": ("c", (1, 3))})
    roll_back(rounds().whole, at_first.version)
    assert rounds().contents() == first
    assert committed(rounds, {**first, "c1": ("c", (1, 3))}).manifest.slot(Slot(2)).objects == 1


def test_it_can_be_gone_back_from(rounds):
    _, at_first, second, at_second = filled(rounds)
    roll_back(rounds().whole, at_first.version)
    roll_back(rounds().whole, at_second.version)
    assert rounds().contents() == second


def test_the_newest_version_is_there_already(rounds):
    _, _, second, at_second = filled(rounds)
    assert isinstance(roll_back(rounds().whole, at_second.version), NothingLeft)
    assert rounds().contents() == second


def test_a_version_that_is_not_there_yet(rounds):
    _, _, _, at_second = filled(rounds)
    with pytest.raises(NotFoundError, match=f"can go back to is {at_second.version}"):
        roll_back(rounds().whole, 99)


def test_the_schema_goes_back_too(rounds):
    _, at_first, second, _ = filled(rounds)
    process = rounds()
    change = process.planned({**second, "b1": ("x", (1,))})
    column = {"name": "x", "type": "long", "nullable": True, "metadata": {}}
    change.metadata = MetaData(
        id=change.base.table, schema=json.dumps({"type": "struct", "fields": [column]}), created_ms=1
    )
    process.commit(change)
    done = roll_back(rounds().whole, at_first.version)
    assert done.snapshot.metadata == at_first.metadata


# Beside others


@pytest.mark.parametrize("slot", ["a", "b", "c"])
def test_others_changed_a_slot(rounds, slot):
    """One that the rollback changes, one that it would have left, and one that it does not know."""
    first, at_first, second, _ = filled(rounds)
    process = rounds()
    change = planned(process, at_first.version)
    committed(rounds, {**second, f"{slot}1": ("theirs", (5, 6))})
    assert isinstance(begun(process, change), Committed)
    assert rounds().contents() == first


def test_others_merged_packs_and_let_the_schema_grow(rounds):
    first, at_first, second, _ = filled(rounds)
    process = rounds()
    change = planned(process, at_first.version)
    for n in range(8):
        second[f"b{n}"] = ("theirs", (n, n + 1))
        committed(rounds, second)
    assert isinstance(begun(process, change), Committed)
    assert rounds().contents() == first


def test_others_raised_the_protocol(rounds):
    """It is never lowered, and vectors that are in use stay allowed."""
    first, at_first, second, _ = filled(rounds)
    process = rounds()
    change = planned(process, at_first.version)
    other = rounds()
    theirs = other.planned({**second, "b1": ("x", (1,))})
    theirs.metadata = replace(at_first.metadata, configuration={VECTORS: "true"})
    theirs.protocol = Protocol(reader=3, writer=7, reader_features=("deletionVectors",))
    other.commit(theirs)
    raised_to = other.table.opened().protocol
    assert isinstance(begun(process, change), Committed)
    found = rounds().table.opened()
    assert found.protocol == raised_to
    assert found.metadata.configuration == {VECTORS: "true"}
    assert rounds().contents(found) == first


def test_others_rolled_back_too(rounds):
    first, at_first, _, _ = filled(rounds)
    process = rounds()
    change = planned(process, at_first.version)
    roll_back(rounds().whole, at_first.version)
    assert isinstance(begun(process, change), NothingLeft)
    assert rounds().contents() == first


def test_others_began_the_table_anew(rounds):
    _, at_first, _, _ = filled(rounds)
    change = planned(rounds(), at_first.version)
    with pytest.raises(ConflictError, match="another id"):
        change.onto(replace(change.readable, table="another"))


def test_a_round_that_was_planned_before_is_left_what_the_rollback_did_not_change(rounds):
    first, at_first, second, _ = filled(rounds)
    process = rounds()
    change = process.planned({**second, "a1": ("mine", (1, 2)), "b1": ("mine", (1, 2))})
    roll_back(rounds().whole, at_first.version)
    assert isinstance(process.commit(change), Committed)
    assert change.dropped.keys() == {Slot(A)}
    assert rounds().contents() == {**first, "b1": ("mine", (1, 2))}


# What vacuum has taken


def aged(rounds, clock, bucket, count):
    """So many versions, half of the retention later."""
    clock.sleep(RETENTION / 2)
    for n in range(count):
        bucket["b1"] = (f"later{n}", (n, n + 1))
        committed(rounds, bucket)


def cleaned(rounds, clock):
    table = rounds().table
    return vacuum(table.committer, table.opened(), retention_seconds=RETENTION, clock=clock)


def test_a_version_that_vacuum_has_cut_is_refused_and_the_oldest_is_named(rounds, clock):
    _, at_first, second, _ = filled(rounds, count=2)
    aged(rounds, clock, second, 22)
    cleaned(rounds, clock)
    clock.sleep(RETENTION * 2)
    aged(rounds, clock, second, 1)
    assert cleaned(rounds, clock).versions_removed
    oldest = min(number for number in range(40) if rounds().table.reader.as_of(number))
    with pytest.raises(NotFoundError, match=f"oldest version that one can go back to is {oldest}"):
        roll_back(rounds().whole, at_first.version)
    roll_back(rounds().whole, oldest)
    rounds().contents()


def test_a_version_that_misses_a_file_is_refused(rounds, store):
    _, at_first, second, at_second = filled(rounds)
    committed(rounds, {**second, "b1": ("x", (1,))})
    gone = set(at_first.manifest.rejects) - set(at_second.manifest.rejects) or set(at_first.manifest.rejects)
    store.delete(LAYOUT.file(min(each.path for each in gone)))
    with pytest.raises(NotFoundError, match="is gone"):
        roll_back(rounds().whole, at_first.version)


def test_vacuum_that_may_be_removing_the_version_is_waited_for(rounds, clock):
    """Its pass goes on after its version, and may not see the rollback."""
    first, at_first, second, _ = filled(rounds, count=2)
    aged(rounds, clock, second, 20)
    cleaned(rounds, clock)
    clock.sleep(RUN * 2)
    process = rounds()
    change = planned(process, at_first.version)
    other = rounds().table
    other.committer.commit(Fence(), other.opened())
    with pytest.raises(ConflictError, match="vacuum, which began with version"):
        begun(process, change)
    with pytest.raises(ConflictError, match="vacuum, which began with version"):
        roll_back(rounds().whole, at_first.version)
    clock.sleep(RUN * 2)
    roll_back(rounds().whole, at_first.version)
    assert rounds().contents() == first


def test_vacuum_that_cuts_nothing_is_no_hindrance(rounds):
    first, at_first, _, _ = filled(rounds)
    process = rounds()
    change = planned(process, at_first.version)
    other = rounds().table
    other.committer.commit(Fence(), other.opened())
    assert isinstance(begun(process, change), Committed)
    assert rounds().contents() == first
    assert FENCE in [each.operation for each in versions(process.store)]


# Held


def test_beaten_twice_it_holds_the_table_until_it_has_ended(rounds, store, clock):
    first, at_first, second, _ = filled(rounds)
    seen = []

    def other(n):
        def commit():
            seen.append(held(rounds))
            second["b1"] = (f"theirs{n}", (n,))
            committed(rounds, second)

        return commit

    def last():
        seen.append(held(rounds))

    whole = beaten(rounds().whole, [other(0), other(1), last])
    assert isinstance(roll_back(whole, at_first.version), Committed)
    assert seen == ["", "", COMMAND]
    assert held(rounds) == ""
    assert rounds().contents() == first


def test_others_wait_while_the_table_is_held_but_not_for_ever(rounds, clock):
    bucket, at_first, second, _ = filled(rounds)
    rounds().table.known.hold(COMMAND)
    process = rounds()
    change = process.planned({**second, "b1": ("mine", (1, 2))})
    before = clock.monotonic()
    with pytest.raises(ConflictError, match=r"held by `s3notify table rollback`.*repeat it"):
        process.commit(change)
    assert clock.monotonic() - before >= COMMIT_SECONDS
    # A killed one is repeated, which ends it.
    assert isinstance(roll_back(rounds().whole, at_first.version), Committed)
    assert held(rounds) == ""
    assert isinstance(process.commit(process.planned({**bucket, "b1": ("mine", (1, 2))})), Committed)


def test_who_waits_goes_on_where_the_holder_has_led(rounds, clock):
    first, at_first, second, _ = filled(rounds)
    rounds().table.known.hold(COMMAND)
    process = rounds()
    change = process.planned({**second, "b1": ("mine", (1, 2))})
    sleep = clock.sleep
    clock.sleep = lambda seconds: (
        setattr(clock, "sleep", sleep),
        roll_back(rounds().whole, at_first.version),
    )
    assert isinstance(process.commit(change), Committed)
    assert rounds().contents() == {**first, "b1": ("mine", (1, 2))}


def test_another_command_that_holds_the_table_is_named(rounds):
    _, at_first, _, _ = filled(rounds)
    rounds().table.known.hold("erase")
    with pytest.raises(ConflictError, match="s3notify table erase"):
        roll_back(rounds().whole, at_first.version)
    assert held(rounds) == "erase"


# Versions of other engines


def foreign(store, version, **given):
    body = LogVersion(**given).dumps().splitlines(keepends=True)
    store.put(LAYOUT.version(version), b"".join(line for line in body if b'"txn"' not in line))


def updated(process, base):
    """As UPDATE has it: a pack is rewritten with other rows, as many."""
    held = next(iter(base.packs.values()))
    path = LAYOUT.pack_path("theirs")
    body = process.store.get(LAYOUT.file(held.path)).body
    process.store.put(LAYOUT.file(path), body)
    one = replace(held, path=path, vector=None, since=0, until=2**63 - 1)
    return {"adds": (one,), "removes": (held.removed(1),), "operation": "UPDATE"}


def emptied(_, base):
    return {"removes": tuple(each.removed(1) for each in base.packs.values()), "operation": "DELETE"}


def raised(_, base):
    return {
        "protocol": Protocol(reader=3, writer=7, reader_features=("x",), writer_features=("x",)),
        "metadata": replace(base.metadata, id="theirs", schema='{"type":"struct","fields":[]}'),
    }


def seen_by_engines(store):
    """The log's end as an engine without any rule of ours sees it."""
    state = LogState()
    for version in versions(store):
        state = after(state, version, where="", undone=True)
    return state


@pytest.mark.parametrize("what", [updated, emptied, raised])
@pytest.mark.parametrize("back", [0, 1])
def test_a_refused_version_is_undone(rounds, store, what, back):
    """By going back to the version before it, or to an earlier one. Warm and cold readers accept it, as do engines."""
    first, at_first, second, at_second = filled(rounds)
    warm = rounds()
    kept = warm.table.opened()
    foreign(store, at_second.version + 1, **what(warm, at_second))
    for read in (rounds().table.reader.open, lambda: warm.table.reader.refresh(kept)):
        with pytest.raises(UsageError, match=f"rollback --to-version {at_second.version}"):
            read()
    target, bucket = (at_first, first) if back else (at_second, second)
    done = roll_back(rounds().whole, target.version)
    assert isinstance(done, Committed)
    assert done.snapshot.version == at_second.version + 2
    assert versions(store)[-1].note[UNDOES] == [at_second.version + 1]
    for found in (rounds().table.opened(), warm.table.reader.refresh(kept)):
        assert warm.contents(found) == bucket
        assert found.metadata == at_second.metadata
    engine = seen_by_engines(store)
    assert {pack.id for pack in engine.packs.values()} == {pack.id for pack in target.packs.values()}
    assert (engine.metadata, engine.protocol) == (at_second.metadata, at_second.protocol)
    # The table goes on, and every version of ours can still be read.
    assert committed(rounds, {**bucket, "c1": ("c", (1, 3))}).version == at_second.version + 3
    for version, contents in ((at_first.version, first), (at_second.version, second)):
        assert rounds().contents(rounds().table.reader.as_of(version)) == contents


def test_several_refused_versions_are_undone_together(rounds, store):
    """What is adopted before them stays; what would be adopted after them goes."""
    _, _, second, at_second = filled(rounds)
    process, number = rounds(), at_second.version
    foreign(store, number + 1, metadata=replace(at_second.metadata, description="theirs"))
    foreign(store, number + 2, **updated(process, at_second))
    foreign(store, number + 3, metadata=replace(at_second.metadata, description="more"))
    foreign(store, number + 4, **emptied(process, at_second))
    done = roll_back(rounds().whole, number + 1)
    assert versions(store)[-1].note[UNDOES] == [number + 2, number + 3, number + 4]
    assert done.snapshot.metadata.description == "theirs"
    assert rounds().contents() == second


def test_a_refused_version_right_after_a_checkpoint_is_undone(rounds, store, clock):
    _, _, second, _ = filled(rounds, count=2)
    aged(rounds, clock, second, 18)
    snapshot = rounds().table.opened()
    assert snapshot.version == snapshot.checkpoint == 20
    for version in range(20):
        store.delete(LAYOUT.version(version))
    foreign(store, 21, **emptied(None, snapshot))
    assert isinstance(roll_back(rounds().whole, 20), Committed)
    assert rounds().contents() == second


def checkpointed(store, version, base, packs):
    """As another engine writes it, at a version of its own."""
    state = Checkpoint(
        protocol=base.protocol, metadata=base.metadata, txns={base.table: base.number}, adds=packs
    )
    body, name = encode(state, version=version)
    theirs = pq.read_table(io.BytesIO(body)).replace_schema_metadata(None)
    sink = io.BytesIO()
    pq.write_table(theirs, sink)
    store.put(LAYOUT.checkpoint(version), sink.getvalue())
    store.put(LAYOUT.last_checkpoint, name.dumps())


def test_a_refused_version_is_refused_also_where_its_engine_wrote_a_checkpoint(rounds, store):
    _, _, second, at_second = filled(rounds)
    foreign(store, at_second.version + 1, **emptied(None, at_second))
    checkpointed(store, at_second.version + 1, at_second, ())
    with pytest.raises(UsageError, match="changes rows"):
        rounds().table.reader.open()
    assert isinstance(roll_back(rounds().whole, at_second.version), Committed)
    assert rounds().contents() == second


def test_an_adopted_version_is_read_also_where_its_engine_wrote_a_checkpoint(rounds, store):
    """And where the log is cut below that."""
    _, _, second, at_second = filled(rounds)
    theirs = replace(at_second.metadata, description="theirs")
    foreign(store, at_second.version + 1, metadata=theirs)
    base = replace(at_second, metadata=theirs)
    checkpointed(store, at_second.version + 1, base, tuple(at_second.packs.values()))
    assert rounds().table.opened().metadata == theirs
    for version in range(at_second.version + 1):
        store.delete(LAYOUT.version(version))
    assert rounds().table.opened().metadata == theirs
    assert committed(rounds, {**second, "b1": ("x", (1,))}).version == at_second.version + 2


def test_under_leases_any_version_of_another_engine_is_undone(store, clock):
    process = Rounds(store=store, clock=clock)
    bucket = {"a1": ("a", (1, 2, 3))}
    process.commit(process.planned(bucket))
    leased = Table(store=store, clock=clock, adopt=False)
    base = leased.opened()
    foreign(store, base.version + 1, metadata=replace(base.metadata, description="theirs"))
    with pytest.raises(UsageError, match="under leases"):
        leased.reader.open()
    assert isinstance(roll_back(leased.whole, base.version), Committed)
    assert leased.opened().metadata == base.metadata
    assert process.contents() == bucket


def test_a_version_refused_after_a_rollback_is_refused(rounds, store):
    """What was undone once is no permission."""
    _, _, _, at_second = filled(rounds)
    foreign(store, at_second.version + 1, **emptied(None, at_second))
    roll_back(rounds().whole, at_second.version)
    foreign(store, at_second.version + 3, **emptied(None, at_second))
    with pytest.raises(UsageError, match="changes rows"):
        rounds().table.opened()


def test_a_version_of_ours_that_undoes_nothing_is_no_permission(rounds, store):
    _, _, _, at_second = filled(rounds)
    foreign(store, at_second.version + 1, **emptied(None, at_second))
    later = LogVersion(number=7, parent=at_second.number, table=at_second.table)
    store.put(LAYOUT.version(at_second.version + 2), later.dumps())
    with pytest.raises(UsageError, match="changes rows"):
        rounds().table.opened()


def test_another_engine_goes_on_while_its_version_is_undone(rounds, store, clock):
    first, at_first, _, at_second = filled(rounds)
    foreign(store, at_second.version + 1, **emptied(None, at_second))

    def other():
        foreign(store, at_second.version + 2, protocol=Protocol(reader=3, writer=7))

    roll_back(beaten(rounds().whole, [other]), at_first.version)
    assert versions(store)[-1].note[UNDOES] == [at_second.version + 1, at_second.version + 2]
    assert rounds().contents() == first


def test_a_round_that_met_a_refused_version_commits_after_it_is_undone(rounds, store):
    _, _, second, at_second = filled(rounds)
    process = rounds()
    change = process.planned({**second, "b1": ("mine", (1, 2))})
    foreign(store, at_second.version + 1, **emptied(None, at_second))
    with pytest.raises(UsageError, match="changes rows"):
        process.commit(change)
    roll_back(rounds().whole, at_second.version)
    assert isinstance(process.commit(change), Committed)
    assert rounds().contents() == {**second, "b1": ("mine", (1, 2))}
