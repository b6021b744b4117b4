"""A rollback to an earlier version. The tests cover each row of the table in the docstring of
`maintenance/table_rollback.py`. Versions of other engines are undone in `test_undoing.py`.
"""

import json
from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import ConflictError, NotFoundError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.table_rollback import HOLDER, roll_back
from s3notify_platform.maintenance.vacuuming import FENCE, Fence
from s3notify_platform.table.commit import COMMIT_SECONDS, Committed, NothingLeft
from s3notify_platform.table.delta.actions import MetaData, Protocol
from s3notify_platform.table.delta.metadata import VECTORS
from s3notify_platform.table.known import HOLD_SECONDS
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


def test_rolled_back_table_equals_the_earlier_version(rounds):
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


def test_changed_slots_get_the_new_version_as_generation(rounds):
    _, at_first, _, _ = filled(rounds)
    done = roll_back(rounds().whole, at_first.version)
    before, now = at_first.manifest, done.snapshot.manifest
    assert now.slot(Slot(A)) == replace(before.slot(Slot(A)), generation=done.snapshot.version)
    assert now.slot(Slot(B)) == before.slot(Slot(B))


def test_slot_without_rows_in_the_earlier_version_becomes_empty(rounds):
    first, at_first, second, _ = filled(rounds)
    committed(rounds, {**second, "c1": ("c", (1, 3))})
    roll_back(rounds().whole, at_first.version)
    assert rounds().contents() == first
    assert committed(rounds, {**first, "c1": ("c", (1, 3))}).manifest.slot(Slot(2)).objects == 1


def test_rollback_can_be_rolled_back(rounds):
    _, at_first, second, at_second = filled(rounds)
    roll_back(rounds().whole, at_first.version)
    roll_back(rounds().whole, at_second.version)
    assert rounds().contents() == second


def test_rollback_to_the_newest_version_changes_nothing(rounds):
    _, _, second, at_second = filled(rounds)
    assert isinstance(roll_back(rounds().whole, at_second.version), NothingLeft)
    assert rounds().contents() == second


def test_rollback_to_a_future_version_is_refused(rounds):
    _, _, _, at_second = filled(rounds)
    with pytest.raises(NotFoundError, match=f"the newest readable version is {at_second.version}"):
        roll_back(rounds().whole, 99)


def test_rollback_restores_the_schema(rounds):
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


# Other writers


@pytest.mark.parametrize("slot", ["a", "b", "c"])
def test_rollback_restarts_after_others_changed_a_slot(rounds, slot):
    """Otherwise the table would be a mixture of the earlier version and of another writer's rows. The other writer
    changes a slot that the rollback changes, a slot that the rollback keeps, or a slot without earlier rows.
    """
    first, at_first, second, _ = filled(rounds)
    process = rounds()
    change = planned(process, at_first.version)
    committed(rounds, {**second, f"{slot}1": ("theirs", (5, 6))})
    assert isinstance(begun(process, change), Committed)
    assert rounds().contents() == first


def test_rollback_restarts_after_others_merged_packs(rounds):
    first, at_first, second, _ = filled(rounds)
    process = rounds()
    change = planned(process, at_first.version)
    for n in range(8):
        second[f"b{n}"] = ("theirs", (n, n + 1))
        committed(rounds, second)
    assert isinstance(begun(process, change), Committed)
    assert rounds().contents() == first


def test_rollback_restarts_after_others_let_the_schema_grow(rounds):
    """Otherwise the other writer's column would stay in the schema after the rollback, although the earlier version
    lacks this column.
    """
    first, at_first, second, _ = filled(rounds)

    def other():
        process = rounds()
        process.commit(process.grown(process.planned({**second, "b1": ("theirs", (1, 2))}), "theirs"))
        assert rounds().columns() == ["theirs"]

    assert isinstance(roll_back(beaten(rounds().whole, [other]), at_first.version), Committed)
    assert rounds().columns() == []
    assert rounds().contents() == first


def test_rollback_never_lowers_the_protocol(rounds):
    """Deletion vectors that are in use must stay allowed."""
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


def test_rollback_commits_nothing_if_another_writer_committed_the_same_rollback(rounds):
    first, at_first, _, _ = filled(rounds)
    process = rounds()
    change = planned(process, at_first.version)
    roll_back(rounds().whole, at_first.version)
    assert isinstance(begun(process, change), NothingLeft)
    assert rounds().contents() == first


def test_rollback_fails_if_the_table_was_begun_again(rounds):
    _, at_first, _, _ = filled(rounds)
    change = planned(rounds(), at_first.version)
    with pytest.raises(ConflictError, match="another id"):
        change.onto(replace(change.readable, table="another"))


def test_round_that_was_planned_before_a_rollback_commits_only_unchanged_slots(rounds):
    first, at_first, second, _ = filled(rounds)
    process = rounds()
    change = process.planned({**second, "a1": ("mine", (1, 2)), "b1": ("mine", (1, 2))})
    roll_back(rounds().whole, at_first.version)
    assert isinstance(process.commit(change), Committed)
    assert change.dropped.keys() == {Slot(A)}
    assert rounds().contents() == {**first, "b1": ("mine", (1, 2))}


# Files removed by vacuum


def test_rollback_to_a_version_that_vacuum_removed_fails_and_names_the_oldest_version(rounds, clock):
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


def test_rollback_to_a_version_with_a_missing_file_is_refused(rounds, store):
    _, at_first, second, at_second = filled(rounds)
    committed(rounds, {**second, "b1": ("x", (1,))})
    gone = set(at_first.manifest.rejects) - set(at_second.manifest.rejects) or set(at_first.manifest.rejects)
    store.delete(LAYOUT.file(min(each.path for each in gone)))
    with pytest.raises(NotFoundError, match="files are missing"):
        roll_back(rounds().whole, at_first.version)


def test_rollback_is_refused_while_vacuum_may_remove_files(rounds, clock):
    """Vacuum first commits its own version, and then removes files, so it may not notice a rollback that commits in
    between.
    """
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


def test_rollback_is_possible_beside_a_vacuum_that_does_not_cut_the_log(rounds):
    first, at_first, _, _ = filled(rounds)
    process = rounds()
    change = planned(process, at_first.version)
    other = rounds().table
    other.committer.commit(Fence(), other.opened())
    assert isinstance(begun(process, change), Committed)
    assert rounds().contents() == first
    assert FENCE in [each.operation for each in versions(process.store)]


# A held table


def test_rollback_holds_the_table_after_two_conflicts(rounds, store, clock):
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


def test_writers_wait_for_a_held_table_for_a_limited_time(rounds, clock):
    bucket, at_first, second, _ = filled(rounds)
    rounds().table.known.hold(HOLDER)
    process = rounds()
    change = process.planned({**second, "b1": ("mine", (1, 2))})
    before = clock.monotonic()
    with pytest.raises(ConflictError, match=r"held by `s3notify table rollback`.*repeat it"):
        process.commit(change)
    assert clock.monotonic() - before >= COMMIT_SECONDS
    # A repetition of the killed rollback releases the table.
    assert isinstance(roll_back(rounds().whole, at_first.version), Committed)
    assert held(rounds) == ""
    assert isinstance(process.commit(process.planned({**bucket, "b1": ("mine", (1, 2))})), Committed)


def test_writers_commit_again_if_nobody_repeats_a_killed_command(rounds, clock):
    """Otherwise a killed command would stop all batches until a person notices it."""
    bucket, *_ = filled(rounds)
    rounds().table.known.hold(HOLDER)
    clock.sleep(HOLD_SECONDS)
    assert isinstance(rounds().commit(rounds().planned({**bucket, "b1": ("mine", (1, 2))})), Committed)
    rounds().table.known.hold(HOLDER)
    assert rounds().table.known.read()[0].holder(clock.wall_ms()) == HOLDER


def test_waiting_writer_continues_from_the_holders_version(rounds, clock):
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


def test_error_names_the_command_that_holds_the_table(rounds):
    _, at_first, _, _ = filled(rounds)
    rounds().table.known.hold("table erase")
    with pytest.raises(ConflictError, match="s3notify table erase"):
        roll_back(rounds().whole, at_first.version)
    assert held(rounds) == "table erase"
