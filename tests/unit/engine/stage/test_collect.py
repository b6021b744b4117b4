"""Staged rows of tasks: the parts of an object are joined, and only the packs of the joined parts are kept."""

from dataclasses import replace

import pytest

from s3notify_platform.engine.stage.collect import Collected, StagedPart
from s3notify_platform.engine.values.object_read import Outcome, joined
from s3notify_platform.engine.values.slot_plan import SlotPlan
from s3notify_platform.engine.values.task_rows import ReadObject, Requests, StoredRows, WrittenPack
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectVersion, SlotChanges, Split
from s3notify_platform.table.delta.actions import Add
from s3notify_platform.table.packs.pack_set import StagedPack

SLOT = Slot(3)


def part(start: int, offset: int, **fields: object) -> Outcome:
    found = Outcome.whole("ok", "e", 100, start=start, offset=offset, reach_end=offset == 100)
    return replace(found, **fields)  # type: ignore[arg-type] - as the test names them


def test_parts_of_an_object_are_joined() -> None:
    """Parts may come in any order. If the object's result ended before the last part, the next read would
    read rows again. If a part's rows were left out of the count, the slot would fail, because more rows would
    arrive than were counted.
    """
    found = joined(
        [part(50, 100, rows=2), part(0, 55, rows=1, rejects=1)],
        whole=False,
    )
    assert (found.status, found.rows, found.rejects, found.parts) == ("ok", 3, 1, (0, 50))
    assert (found.start, found.offset, found.reach_end, found.failed) == (0, 100, True, "")


def test_parts_behind_a_failed_part_are_left_out() -> None:
    """The next read begins at the failed part. If rows behind this part were committed, the next read would
    add these rows again. A transform needs complete objects, so with `whole`, one failed part fails its
    object.
    """
    failed = part(30, 30, status="failed", reason="why", reach_end=False)
    parts = [part(60, 100, rows=4), failed, part(0, 31, rows=1)]
    found = joined(parts, whole=False)
    assert (found.status, found.rows, found.parts) == ("ok", 1, (0,))
    assert (found.offset, found.reach_end, found.failed) == (31, False, "why")
    assert joined(parts, whole=True).status == "failed"
    first = joined([replace(failed, start=0), part(60, 100)], whole=False)
    assert (first.status, first.reason, first.rows) == ("failed", "why", 0)


@pytest.mark.parametrize("status", ["superseded", "deleted"])
def test_one_superseded_part_supersedes_the_object(status: str) -> None:
    found = joined([part(0, 50, rows=3), part(50, 50, status=status)], whole=False)
    assert (found.status, found.rows, found.parts) == (status, 0, ())


def test_only_the_first_part_is_kept_if_an_object_must_be_read_from_its_beginning() -> None:
    """The object cannot be read from its middle, so the tasks of later parts have read no rows. If the later
    parts counted as failed, a good object would end in quarantine.
    """
    beside = part(50, 0, status="by_record", by_record=True, reach_end=False)
    found = joined([beside, part(0, 7, by_record=True, reach_end=False, rows=7)], whole=False)
    assert (found.status, found.rows, found.offset) == ("ok", 7, 7)
    assert not found.reach_end
    assert not found.failed


def test_no_progress_is_a_failure() -> None:
    """Otherwise, a round that does not advance would be repeated forever."""
    found = joined([part(10, 10, reach_end=False)], whole=False)
    assert found.status == "failed"
    assert "raise max_bytes" in found.reason


def plan(*keys: str) -> SlotPlan:
    versions = (ObjectVersion(slot=SLOT, key=key, etag=ETag("e"), size=100) for key in keys)
    read = tuple(Split(version=version, start=0, end=100) for version in versions)
    return SlotPlan(changes=SlotChanges(slot=SLOT, read=read, gone=(), complete=True))


def outcome(key: str, start: int, offset: int, **fields: object) -> ReadObject:
    return ReadObject(slot=SLOT, key=key, outcome=part(start, offset, **fields))


def pack(name: str, rows: int, key: str = "", start: int = 0, *, of_rejects: bool = False) -> WrittenPack:
    add = Add(path=name, size=1, rows=rows, modified_ms=0)
    dumped = StagedPack(add=add, slots={SLOT: rows}).dumps()
    return WrittenPack(of_rejects=of_rejects, key=key, start=start, pack=dumped)


def collected(*rows: object, keys: str = "k", transformed: bool = False) -> StagedPart:
    found = Collected()
    found.add(rows)  # type: ignore[arg-type] - rows of any kind
    return found.part([plan(*keys)], found.outcomes(whole=transformed), transformed=transformed)


def test_lost_rows_are_noticed() -> None:
    """Otherwise a slot would be committed with too few or too many rows, while its objects count as read. No later
    batch would repair the slot.
    """
    for arrived in (1, 3):
        found = collected(outcome("k", 0, 100, rows=2), pack("p", arrived))
        assert f"2 rows were parsed and {arrived} arrived" in found.failed[SLOT].error
    assert not collected(outcome("k", 0, 100, rows=2), pack("p", 2)).failed


def test_packs_of_parts_that_are_left_out_are_dropped() -> None:
    """There are two big objects: the end of one could not be read, and the other was overwritten during the read."""
    found = collected(
        outcome("k", 0, 50, rows=1),
        outcome("k", 50, 50, status="failed", reason="why", reach_end=False),
        pack("first", 1, "k", 0),
        pack("second", 5, "k", 50),
        outcome("l", 0, 50, rows=1),
        outcome("l", 50, 50, status="superseded"),
        pack("other", 1, "l", 0),
        pack("rejects", 1, "k", 0, of_rejects=True),
        keys="kl",
    )
    assert [each.add.path for each in found.rows] == ["first"]
    assert [each.add.path for each in found.rejects] == ["rejects"]
    assert not found.failed
    assert (found.outcomes["k"].failed, found.outcomes["l"].status) == ("why", "superseded")


def test_an_object_that_was_read_in_part_fails_if_there_is_a_transform() -> None:
    failed = outcome("h", 50, 50, status="failed", reason="why", reach_end=False)
    stored = StoredRows(slot=SLOT, key="w", etag="e", rows=7)
    found = collected(
        outcome("h", 0, 50, rows=1),
        failed,
        outcome("w", 0, 100, rows=1),
        stored,
        pack("p", 7),
        keys="hw",
        transformed=True,
    )
    assert (found.outcomes["h"].status, found.outcomes["w"].stored) == ("failed", 7)
    assert not found.failed


def test_slots_fail_if_a_transform_returns_rows_of_other_objects() -> None:
    """Otherwise the table could get rows of an object that no state names, and no later batch would remove these rows.
    The whole batch fails if the rows and their object belong to slots outside the batch.
    """
    stored = StoredRows(slot=SLOT, key="k", etag="e", rows=1)
    for foreign in (replace(stored, key="secret-person"), replace(stored, etag="old")):
        found = collected(outcome("k", 0, 100, rows=1), foreign, transformed=True)
        assert "slot 3 are of an object version that this batch did not read" in found.failed[SLOT].error
        assert "secret" not in found.failed[SLOT].error, "`erase` cannot remove keys from logs"
    found = collected(outcome("k", 0, 100, rows=1), replace(stored, slot=Slot(4)), transformed=True)
    assert found.failed.keys() == {SLOT}
    assert "slot 4 are of an object version that this batch did not read" in found.failed[SLOT].error
    with pytest.raises(UsageError, match="rows of slot 4, which is not in this batch"):
        collected(outcome("k", 0, 100), replace(stored, slot=Slot(4), key="another"), transformed=True)


def test_requests_are_counted() -> None:
    found = Collected()
    found.add([Requests(requests={"GET": 2}), Requests(requests={"GET": 1, "PUT": 1})])
    assert (found.requests, found.tasks) == ({"GET": 3, "PUT": 1}, 2)
