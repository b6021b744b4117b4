"""A change of the code that makes a table's rows: the noted code version, the objects that are read again, and the time
of these reads.
"""

from collections.abc import Mapping

import pytest

from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.table.reread import backfill, stale_slots
from tests.support.ingested import Place
from tests.support.servers import S3Server

pytestmark = pytest.mark.server


def filled(server: S3Server, **settings: str) -> tuple[Place, Mapping[str, Slot]]:
    """Makes three objects in at least two slots; code `one` reads all objects. Returns the place, and the slot of each
    object.
    """
    place = Place(server, **settings)
    for value, key in enumerate("abc"):
        place.put(key, value)
    place.run("first", code="one")
    slots = {key: slot_of(f"raw/{key}", 4) for key in "abc"}
    assert len({*slots.values()}) > 1
    return place, slots


def stale(place: Place, code: str) -> set[Slot]:
    """Returns the slots with rows that other code made. Checks that the table's facts agree with the slots' states."""
    place.snapshot()
    return set(stale_slots(place.source.table(), code))


def test_new_code_alone_reads_nothing_again(ministack: S3Server) -> None:
    """Otherwise each new version of a transform would read all objects of the source again, although nobody requested a
    new read. A slot must stay stale while the slot has rows of the former code. Otherwise a backfill of stale slots
    would omit these rows.
    """
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
    # The objects are overwritten one after the other.
    for key in "abc":
        place.put(key, 8)
    assert {each.made_by for each in place.run("last", code="two").slots.values()} == {"two"}
    assert stale(place, "two") == set()


def test_a_backfill_of_stale_slots_reads_them_again(ministack: S3Server) -> None:
    """Otherwise rows of the former code would stay in the table after the backfill, and a second backfill would read
    the same objects again.
    """
    place, slots = filled(ministack)
    table = place.source.table()
    found = backfill(table, stale_slots(table, "two"), None)
    assert (found.objects, {*found.slots}) == (3, {*slots.values()})
    results = place.run("backfill", code="two").slots
    assert {each.made_by for each in results.values() if each.objects} == {"two"}
    assert stale(place, "two") == set()
    assert not backfill(table, stale_slots(table, "two"), None).objects


def test_a_declared_version_takes_precedence_and_reads_nothing_unasked(ministack: S3Server) -> None:
    """If a batch noted the fingerprint of the code in place of the declared version, slots would stay stale after their
    backfill. If a new declared version caused reads, each new declaration would read the whole source again. A backfill
    must read each object once, even in several rounds.
    """
    place, slots = filled(ministack)
    place.put("a", 7)
    results = place.run("declared", code="one", code_version="v2").slots
    assert sum(each.objects for each in results.values()) == 1
    assert stale(place, "v2") == {*slots.values()} - {
        slot for slot, each in results.items() if each.made_by == "v2"
    }
    table = place.source.table()
    waiting = backfill(table, stale_slots(table, "v2"), None).objects
    results = place.run("backfill", code="two", code_version="v2", max_objects=2).slots
    assert sum(each.objects for each in results.values()) == waiting > 0
    assert stale(place, "v2") == set()
    assert not sum(each.objects for each in place.run("again", code="two", code_version="v2").slots.values())
    assert not sum(each.objects for each in place.run("undeclared", code="two").slots.values())
    assert stale(place, "two") == {*slots.values()}


def test_no_slot_is_stale_for_unknown_code(ministack: S3Server) -> None:
    """If all slots were stale while the present code is unknown, a backfill of stale slots would read the
    whole source again. Rows that unknown code has made must be stale once the present code is known.
    Otherwise a backfill would leave these rows in the table.
    """
    place, slots = filled(ministack)
    assert stale(place, "") == set()
    for key in "abc":
        place.put(key, 9)
    results = place.run("unknown").slots
    assert {results[slot].made_by for slot in slots.values()} == {""}
    assert stale(place, "one") == {*slots.values()}
