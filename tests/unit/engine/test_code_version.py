"""Code that changes under a table: what is noted of each slot, and what is read again, and when."""

from collections.abc import Mapping

import pytest

from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.table.reread import backfill, stale_slots
from tests.support.ingested import Place
from tests.support.servers import S3Server

pytestmark = pytest.mark.server


def filled(server: S3Server, **settings: str) -> tuple[Place, Mapping[str, Slot]]:
    """Three objects of at least two slots, read by code `one`; the slot of each."""
    place = Place(server, **settings)
    for value, key in enumerate("abc"):
        place.put(key, value)
    place.run("first", code="one")
    slots = {key: slot_of(f"raw/{key}", 4) for key in "abc"}
    assert len({*slots.values()}) > 1
    return place, slots


def stale(place: Place, code: str) -> set[Slot]:
    """The slots of other code; the table says of each what its states say."""
    place.snapshot()
    return set(stale_slots(place.source.table(), code))


def test_nothing_is_read_again_unasked(ministack: S3Server) -> None:
    """A run by other code reads what has changed. Its slot stays stale as long as other code has rows in it."""
    place, slots = filled(ministack)
    assert stale(place, "one") == set()
    assert stale(place, "two") == {*slots.values()}
    before = place.generations()
    place.run("again", code="two")
    assert place.generations() == before
    place.put("a2", 7)
    slot = slot_of("raw/a2", 4)
    done = place.run("another", code="two").slots[slot]
    assert done.objects == 1
    assert (done.made_by == "two") == (slot not in slots.values())
    assert stale(place, "two") == {*slots.values()}
    assert {s for s, n in place.generations().items() if n != before.get(s)} == {slot}
    for key in "abc":  # overwritten one after the other
        place.put(key, 8)
    assert {each.made_by for each in place.run("last", code="two").slots.values()} == {"two"}
    assert stale(place, "two") == set()


def test_a_backfill_of_what_is_stale(ministack: S3Server) -> None:
    """Reads these slots, which are made by the new code then."""
    place, slots = filled(ministack)
    table = place.source.table()
    found = backfill(table, stale_slots(table, "two"), None)
    assert (found.objects, {*found.slots}) == (3, {*slots.values()})
    results = place.run("backfill", code="two").slots
    assert {each.made_by for each in results.values() if each.objects} == {"two"}
    assert stale(place, "two") == set()
    assert not backfill(table, stale_slots(table, "two"), None).objects


def test_a_declared_version(ministack: S3Server) -> None:
    """Goes before the code's own, and has a slot's objects read again when the slot is next asked for."""
    place, slots = filled(ministack)
    results = place.run("declared", code="one", code_version="v2").slots
    assert sum(each.objects for each in results.values()) == 3
    assert {results[slot].made_by for slot in slots.values()} == {"v2"}
    assert stale(place, "v2") == set()
    assert stale(place, "one") == {*slots.values()}
    assert not sum(each.objects for each in place.run("again", code="two", code_version="v2").slots.values())
    assert not sum(each.objects for each in place.run("undeclared", code="two").slots.values())
    assert stale(place, "two") == {*slots.values()}


def test_a_declared_version_in_several_rounds(ministack: S3Server) -> None:
    """Each object once, whatever a round reads at most."""
    place, _ = filled(ministack)
    for number in range(9):
        place.put(f"d{number}", number)
    place.run("more", code="one")
    results = place.run("declared", code_version="v2", max_objects=2).slots
    assert sum(each.objects for each in results.values()) == 12
    assert stale(place, "v2") == set()
    assert not sum(each.objects for each in place.run("again", code_version="v2").slots.values())


def test_code_that_is_not_known(ministack: S3Server) -> None:
    """Says nothing of slots; what it made is of other code than any that is."""
    place, slots = filled(ministack)
    assert stale(place, "") == set()
    for key in "abc":
        place.put(key, 9)
    results = place.run("unknown").slots
    assert {results[slot].made_by for slot in slots.values()} == {""}
    assert stale(place, "one") == {*slots.values()}
