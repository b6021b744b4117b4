"""A slot after a round: the states that are committed, the objects that are read again, and quarantine."""

from dataclasses import replace

import pytest

from s3notify_platform.engine.commit.new_states import RoundFacts, settled
from s3notify_platform.engine.values.object_read import Outcome
from s3notify_platform.engine.values.slot_plan import SlotPlan
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.limits import MAX_UNFORESEEN
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState, SlotChanges
from s3notify_platform.table.manifest import SlotFacts

SLOT = Slot(3)
FACTS = RoundFacts(label=8)
LAST = replace(FACTS, last_attempt=frozenset({SLOT}))
HELD = ObjectState(key="k", etag="old", size=10, offset=10, rows=4, rejects=1, since=2, until=5)


def planned(*before, gone=(), expired=()):
    changes = SlotChanges(slot=SLOT, read=(), gone=tuple(gone), complete=True, expired=frozenset(expired))
    return SlotPlan(changes=changes, before={state.key: state for state in before})


def read(etag="new", **given):
    return Outcome.whole("ok", etag, 10, **{"rows": 3, **given})


def failed(etag="new", **given):
    return Outcome.whole("failed", etag, 10, **{"reason": "it is damaged", **given})


def state_of(found, key="k"):
    return found.round.changes[key]


def test_a_new_object_is_added():
    found = settled(planned(), {"k": read(rejects=2)}, FACTS)
    assert state_of(found) == ObjectState(
        key="k", etag="new", size=10, offset=10, rows=3, rejects=2, since=8, until=8
    )
    assert not found.round.leaving()
    assert found.round.facts(SlotFacts()) == SlotFacts(rows=3, rejects=2, objects=1)
    assert (found.result.objects, found.result.rows, found.result.rejects) == (1, 3, 2)


def test_an_overwritten_object_loses_its_rows():
    found = settled(planned(HELD), {"k": read()}, FACTS)
    assert found.round.leaving() == [HELD]
    assert found.round.facts(SlotFacts(rows=4, rejects=1, objects=1)) == SlotFacts(rows=3, objects=1)


def test_earlier_rows_of_an_object_leave_if_the_same_version_is_read_again():
    found = settled(planned(replace(HELD, again=True)), {"k": read("old")}, FACTS)
    assert [state.key for state in found.round.leaving()] == ["k"]
    assert not state_of(found).again


def test_an_object_keeps_its_rows_if_its_reading_is_resumed():
    part = replace(HELD, offset=4, reach_end=False)
    found = settled(planned(part), {"k": read("old", start=4, offset=10, rejects=1)}, FACTS)
    assert not found.round.leaving()
    assert (state_of(found).rows, state_of(found).rejects) == (4 + 3, 1 + 1)
    assert (state_of(found).since, state_of(found).until) == (2, 8)
    facts = SlotFacts(rows=4, rejects=1, objects=1, pending=1)
    assert found.round.facts(facts) == SlotFacts(rows=7, rejects=2, objects=1)


@pytest.mark.parametrize("held", [(), (HELD,)], ids=["unknown", "another version"])
def test_reading_from_an_offset_without_an_earlier_read_is_refused(held):
    with pytest.raises(CorruptError, match="was read from offset 4") as refused:
        settled(planned(*held), {"k": read(start=4)}, FACTS)
    assert "'k'" not in str(refused.value), (
        "Dagster's log gets this text, and `erase` cannot remove keys from it"
    )


def test_an_object_that_fails_is_left_out_and_its_neighbours_are_committed():
    found = settled(planned(HELD), {"k": failed(), "good": read()}, FACTS)
    assert found.round.changes.keys() == {"good"}
    assert found.result.failed_objects == {"k": "it is damaged"}
    assert not found.result.ok


def test_a_failed_object_goes_to_quarantine_on_the_last_attempt():
    found = settled(planned(HELD), {"k": failed(trace="Traceback"), "good": read()}, LAST)
    state = state_of(found)
    assert (state.etag, state.reason, state.trace, state.rows) == ("new", "it is damaged", "Traceback", 0)
    assert state.failing
    assert found.round.leaving() == [HELD]
    assert found.result.quarantined == {"k": "it is damaged"}
    assert found.result.ok


def test_the_rows_of_an_object_stay_if_the_same_version_is_quarantined():
    part = replace(HELD, offset=4, reach_end=False)
    found = settled(planned(part), {"k": failed("old")}, LAST)
    assert not found.round.leaving()
    assert (state_of(found).rows, state_of(found).failing) == (4, True)


def test_the_rows_of_a_part_stay_if_the_rest_fails():
    outcome = read(offset=6, reach_end=False, failed="the rest is damaged")
    found = settled(planned(), {"k": outcome}, LAST)
    assert (state_of(found).rows, state_of(found).reason) == (3, "the rest is damaged")
    assert settled(planned(), {"k": outcome}, FACTS).result.failed_objects == {"k": "the rest is damaged"}


@pytest.mark.parametrize("facts", [FACTS, LAST])
def test_an_outage_does_not_quarantine_an_object(facts):
    found = settled(planned(HELD), {"k": failed(outage=True)}, facts)
    assert found.round is None
    assert found.result.unavailable == {"k": "it is damaged"}
    assert not found.result.quarantined


def test_a_superseded_object_waits_for_its_next_change():
    found = settled(planned(HELD), {"k": Outcome.whole("superseded", "new", 10)}, FACTS)
    assert found.round is None
    assert found.result.superseded == 1


@pytest.mark.parametrize(
    ("on_delete", "rows", "leaves"), [("withdraw", 4, True), ("keep", 4, False), ("keep", 0, True)]
)
def test_on_delete_applies_to_an_object_that_was_deleted_while_it_was_read(on_delete, rows, leaves):
    held = replace(HELD, rows=rows)
    outcomes = {"k": Outcome.whole("deleted", "old", 10)}
    found = settled(planned(held), outcomes, replace(FACTS, on_delete=on_delete))
    assert state_of(found).gone is leaves
    assert state_of(found).expired is not leaves
    assert found.round.leaving() == ([held] if leaves else [])


def test_an_object_that_was_deleted_before_it_was_ever_read_is_ignored():
    assert settled(planned(), {"k": Outcome.whole("deleted", "new", 10)}, FACTS).round is None


def test_objects_that_left_the_bucket_lose_their_rows():
    found = settled(planned(HELD, gone=["k", "never"]), {}, FACTS)
    assert state_of(found).gone
    assert found.round.changes.keys() == {"k"}
    assert found.round.facts(SlotFacts(rows=4, rejects=1, objects=1)) == SlotFacts()
    assert found.result.gone == 1


def test_an_expired_object_keeps_its_rows_but_is_not_counted():
    found = settled(planned(HELD, gone=["k"], expired=["k"]), {}, replace(FACTS, on_delete="keep_expired"))
    assert state_of(found).expired
    assert not found.round.leaving()
    assert found.round.facts(SlotFacts(rows=4, rejects=1, objects=1)) == SlotFacts(rows=4, rejects=1)


def test_a_slot_with_unknown_fields_waits_for_a_schema_that_has_them():
    outcomes = {"k": read(new_fields=("x", "y")), "m": read(new_fields=("x",))}
    found = settled(planned(), outcomes, replace(FACTS, evolving=True))
    assert found.round is None
    assert found.new_fields == ("x", "y")
    assert settled(planned(), outcomes, FACTS).round is not None


def test_a_slot_reports_all_its_unknown_fields():
    """Otherwise the types of new columns would depend on the fields that are reported first."""
    fields = tuple(f"{number:02}" for number in range(50))
    found = settled(planned(), {"k": read(new_fields=fields)}, replace(FACTS, evolving=True))
    assert found.new_fields == fields


def test_more_unforeseen_errors_than_the_limit_are_not_quarantined():
    """More errors than the limit show a defect of the code. If all objects with such an error went to
    quarantine, the objects' earlier rows would leave the table.
    """
    outcomes = {f"k{n:04}": failed(trace="Traceback") for n in range(MAX_UNFORESEEN + 2)}
    found = settled(planned(), outcomes, LAST)
    assert len(found.result.quarantined) == MAX_UNFORESEEN
    assert len(found.result.failed_objects) == 2


def test_a_slot_whose_quarantine_is_full_keeps_failing():
    found = settled(planned(), {"a": failed(), "b": failed()}, replace(LAST, failing={SLOT: 9_999}))
    assert found.result.quarantined.keys() == {"a"}
    assert found.result.failed_objects.keys() == {"b"}


def test_a_backfill_is_over_once_all_of_the_slot_is_read():
    facts = replace(FACTS, complete=frozenset({SLOT}))
    assert settled(planned(HELD), {"k": read()}, facts).round.backfill == 0
    assert settled(planned(HELD), {"k": read(), "m": failed()}, facts).round.backfill is None


def test_a_slot_is_marked_while_it_has_rows_of_a_transform():
    """Otherwise `s3notify table check` would report a record with rows in two packs as damage, or would no longer find
    such damage after the transform was removed.
    """
    made = settled(planned(), {"k": read(rows=1, stored=2), "m": read(rows=1, stored=2)}, FACTS).round
    facts = made.facts(SlotFacts())
    assert (facts.rows, facts.transformed) == (4, 1)
    held = [replace(state, etag="old") for state in made.changes.values()]
    one = settled(planned(*held), {"k": read(rows=1)}, FACTS).round.facts(facts)
    assert (one.rows, one.transformed) == (3, 1), "rows of the other object stay"
    both = settled(planned(*held), {"k": read(rows=1), "m": read(rows=1)}, FACTS).round.facts(facts)
    assert (both.rows, both.transformed) == (2, 0)


def test_the_code_version_of_a_read_is_noted():
    """Otherwise `s3notify status` would still show a slot as stale after a new read of its objects. A round
    that reads no object must keep the noted code version, because the earlier code made the slot's rows.
    """
    facts = replace(FACTS, code_version="2")
    found = settled(planned(HELD), {"k": read()}, facts).round
    assert (found.code_version, found.label) == ("2", FACTS.label)
    further = Outcome.whole("ok", "old", 10, start=10, rows=1)
    assert settled(planned(HELD), {"k": further}, facts).round.code_version == "2"
    assert settled(planned(HELD, gone="k"), {}, facts).round.code_version is None
    assert settled(planned(), {"k": failed()}, replace(LAST, code_version="2")).round.code_version is None
