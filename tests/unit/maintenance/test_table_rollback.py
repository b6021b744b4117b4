"""Going back to an earlier version: each cell of `maintenance.table_rollback`; versions of other engines undone."""

import json
from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import ConflictError, NotFoundError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.table_rollback import HOLDER, roll_back
from s3notify_platform.maintenance.vacuum import FENCE, Fence
from s3notify_platform.table.commit import COMMIT_SECONDS, Committed, NothingLeft
from s3notify_platform.table.delta.actions import MetaData, Protocol
from s3notify_platform.table.delta.metadata import VECTORS
from tests.support.log_back import (
    RETENTION,
    RUN,
    A,
    B,
    aged,
    begun,
    cleaned,
    committed,
    filled,
    held,
    planned,
)
from tests.support.log_tables import LAYOUT, beaten, versions


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


def test_a_version_that_vacuum_has_cut_is_refused_and_the_oldest_is_named(rounds, clock):
    _, at_first, second, _ = filled(rounds, count=2)
    aged(rounds, clock, second, 22)
    cleaned(rounds, clock)
    clock.sleep(RETENTION * 2)
    aged(rounds, clock, second, 1)
    assert cleaned(rounds, clock).versions_removed
    oldest = min(number for number in range(40) if rounds().table.reader.as_of(number))
    with pytest.raises(NotFoundError, match=f"oldest version that can be restored is {oldest}"):
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
    assert seen == ["", "", HOLDER]
    assert held(rounds) == ""
    assert rounds().contents() == first


def test_others_wait_while_the_table_is_held_but_not_for_ever(rounds, clock):
    bucket, at_first, second, _ = filled(rounds)
    rounds().table.known.hold(HOLDER)
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
    rounds().table.known.hold(HOLDER)
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
    rounds().table.known.hold("table erase")
    with pytest.raises(ConflictError, match="s3notify table erase"):
        roll_back(rounds().whole, at_first.version)
    assert held(rounds) == "table erase"
