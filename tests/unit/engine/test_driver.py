"""The engine in one process, against a real server, without Spark: each round decides which slots the next
round has.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from s3notify_platform.engine.commit.staged import Base
from s3notify_platform.engine.driver import MAX_CONFLICTS, Ingest
from s3notify_platform.engine.loop import commit_round
from s3notify_platform.engine.values.slot_plan import Plan
from s3notify_platform.engine.values.task_rows import FailedSlot
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import CorruptError, UnavailableError, UsageError
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.source.location import CommitMode
from s3notify_platform.table.open_table import confirm
from tests.support.clocks import HandClock
from tests.support.ingested import Place
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server

pytestmark = pytest.mark.server


def test_the_table_follows_created_overwritten_and_deleted_objects(ministack: S3Server) -> None:
    """Otherwise readers would find rows of deleted or overwritten objects, or would miss rows of new objects. Commits
    of unchanged slots would report new data where nothing has changed.
    """
    place = Place(ministack)
    place.put("a", 1, 2)
    place.put("b", 3)
    place.put("c", 4)
    result = place.ingest().run(place.source.location.all_slots(), batch="1")
    assert all(each.ok and each.complete for each in result.slots.values())
    assert place.values() == Counter([1, 2, 3, 4])
    place.put("b", 5)
    place.store.delete("raw/c")
    result = place.ingest().run(place.source.location.all_slots(), batch="2")
    touched = {slot_of("raw/b", 4), slot_of("raw/c", 4)}
    assert {slot for slot, each in result.slots.items() if each.status == "committed"} == touched
    assert place.values() == Counter([1, 2, 5])
    assert place.generations().keys() == {slot_of(f"raw/{k}", 4) for k in "abc"}
    assert set(place.generations().values()) <= {1, 2}


def test_a_reject_has_key_version_and_offset(ministack: S3Server) -> None:
    """Without key, version and offset, a person could not find the rejected record in its object."""
    place = Place(ministack)
    body = b'{"a":1}\nno\n{"a":22}\n{"a":"x"}\n'
    place.store.put("raw/k.jsonl", body)
    place.run("1")
    head = place.store.head("raw/k.jsonl")
    assert head is not None
    assert [(row["_key"], row["_etag"], row["_offset"], row["raw"]) for row in place.rows(rejects=True)] == [
        ("raw/k.jsonl", head.etag, body.index(raw), raw) for raw in (b"no", b'{"a":"x"}')
    ]


def test_a_run_reports_its_progress(ministack: S3Server) -> None:
    """Without the remaining objects and the remaining time, a person could not see how long a large first load still
    takes. The first round has no measured time yet.
    """
    place = Place(ministack, max_objects=1, slots=1)
    for number in range(3):
        place.put(f"{number}", number)
    said: list[str] = []
    ingest = place.ingest()
    ingest.progress = said.append
    ingest.run(place.source.location.all_slots(), batch="1")
    first, second, third = (text for text in said if text.startswith("reading 1 object of 1 slot,"))
    assert first.endswith("; the next rounds read 2 objects")
    assert re.search(r"; the next rounds read 1 object, about [0-9.]+ minutes to go$", second)
    assert "next" not in third
    counts = ingest.result().counts()
    assert (counts["objects"], counts["rows"], counts["slots_committed"], counts["batches"]) == (3, 3, 1, 1)


def test_a_round_reports_finished_slots(ministack: S3Server) -> None:
    """A round reads one object of each slot. If a slot were reported before its last round, its report would count too
    few objects. The slot's entries would also leave the queue before all its objects are read.
    """
    place = Place(ministack, max_objects=4)
    keys = [f"{n}" for n in range(9)]
    for number, key in enumerate(keys):
        place.put(key, number)
    of_slot = Counter(slot_of(f"raw/{key}", 4) for key in keys)
    reported: dict[int, int] = {}
    rounds = 0
    for each in place.rounds():
        rounds += 1
        commit_round(each)
        for slot, result in each.results["orders"].items():
            assert slot not in reported
            assert result.ok
            assert result.complete
            reported[slot] = result.objects
    assert reported == {slot: of_slot[slot] for slot in place.source.location.all_slots()}
    assert 1 < rounds <= max(of_slot.values())
    assert place.values() == Counter(range(9))


def test_a_run_without_time_ends_after_its_first_round(ministack: S3Server) -> None:
    """A run that continued beyond its time limit could be killed before the run reports its results. If slots with
    unread objects counted as complete, no batch would be requested for these objects.
    """
    place = Place(ministack, max_objects=4, max_seconds=0)
    for number in range(9):
        place.put(f"{number}", number)
    (only,) = (commit_round(each) or each for each in place.rounds())
    assert only.results["orders"].keys() == set(place.source.location.all_slots())
    assert only.incomplete()
    assert only.incomplete() <= set(only.good())


class _OutageOfSlot0(LocalJobs):
    """The store answers no request for slot 0."""

    def plan(self, slots: Iterable[Slot], base: Base, **arguments: Any) -> Plan:
        found = super().plan(slots, base, **arguments)
        if found.slots.pop(Slot(0), None) is not None:
            error = UnavailableError("SlowDown")
            found.failed[Slot(0)] = FailedSlot.of(Slot(0), error)
        return found


def test_slots_that_wait_for_the_store_have_a_result_if_the_time_ends(ministack: S3Server) -> None:
    """Otherwise the run would report these slots as done, or with the reason of another failure."""
    place, clock = Place(ministack, max_objects=4, max_seconds=30), HandClock()
    for number in range(9):
        place.put(f"{number}", number)
    ingest = Ingest(jobs=_OutageOfSlot0(source=place.source), source=place.source, clock=clock)
    rounds = []
    for each in ingest.rounds(place.source.location.all_slots(), batch="b"):
        commit_round(each)
        rounds.append(each.results["orders"])
        clock.now += 40
    assert len(rounds) == 2
    assert 0 not in rounds[0]
    assert (rounds[1][Slot(0)].outage, rounds[1][Slot(0)].complete) == (True, False)


def test_a_slot_that_another_run_commits_first_is_planned_again(ministack: S3Server) -> None:
    """If a conflict ended the slot, the run would report a failure of a slot that another run has committed. If the old
    plan were committed, the table would have the object's rows twice. Without a limit of conflicts, a slot that always
    loses would keep the run busy until its time limit.
    """
    place = Place(ministack)
    place.put("a", 1)
    slot = slot_of("raw/a", 4)
    statuses = []
    for each in place.rounds():
        place.ingest().run([slot], batch="other")
        commit_round(each)
        statuses += [result.status for result in [each.results["orders"].get(slot)] if result]
    assert statuses == ["unchanged"]
    assert place.values() == Counter([1])
    rounds = 0
    for number, each in enumerate(place.rounds()):
        rounds += 1
        place.put("a", 10 + number)
        place.ingest().run([slot], batch="other")
        commit_round(each)
    assert place.values() == Counter([10 + rounds - 1])
    assert rounds <= MAX_CONFLICTS


def test_a_round_that_is_not_committed_leaves_the_table_unchanged(ministack: S3Server) -> None:
    """If files belonged to the table before their commit, a killed run would leave rows in the table, and the
    next run would add the same rows again.
    """
    place = Place(ministack)
    place.put("a", 1)
    staged = next(place.rounds())
    assert staged.results == {}
    assert place.values() == Counter()
    (done,) = place.rounds()
    commit_round(done)
    assert place.values() == Counter([1])
    assert place.generations() == {slot_of("raw/a", 4): 1}


# Lost state and drift


@pytest.mark.parametrize("lost", ["_s3notify/orders/", "_s3notify/", "_s3notify/orders/table/"])
def test_an_emptied_table_is_refused_until_it_is_forgotten(ministack: S3Server, lost: str) -> None:
    """Otherwise a batch would silently begin a new table, and nobody would notice the loss in time to restore the
    files. After the table is forgotten, all objects must be read again. Otherwise the new table would lack the rows of
    unchanged objects.
    """
    place = Place(ministack)
    for number, key in enumerate("abcdef"):
        place.put(key, number)
    place.run("1")
    place.empty(lost)
    place.put("a", 100)
    before = place.objects()
    with pytest.raises(CorruptError, match=r"its log is gone.* Restore .*: `s3notify table forget"):
        place.run("2")
    with pytest.raises(CorruptError, match="its log is gone"):
        replace(place.source, commit=CommitMode()).settle_commit_mode(place.store)
    assert place.objects() == before
    assert place.forget().table
    place.run("3")
    assert place.values() == Counter([100, 1, 2, 3, 4, 5])


def test_a_table_without_its_newest_version_is_refused(ministack: S3Server) -> None:
    """The table must not silently go back to an older version. So runs refuse the table until a person accepts the
    older version.
    """
    place = Place(ministack)
    for number in (1, 2):
        place.put("a", number)
        place.run(f"{number}")
    place.store.delete(place.source.location.layout.version(2))
    with pytest.raises(CorruptError, match=r"ends with version 1, but version 2 was committed"):
        place.run("3")
    assert place.forget().version == 1
    assert all(each.ok for each in place.run("4").slots.values())
    assert place.values() == Counter([2])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"prefix": "raw/a/"},
            "prefix is 'raw/a/', but 'raw/' in the table.*`s3notify table migrate .* --to-prefix 'raw/a/'`",
        ),
        (
            {"prefix": "other/"},
            r"prefix is 'other/', but 'raw/' in the table.*give the source another name \(then .*\)$",
        ),
        ({"slots": 8}, "slots is 8, but 4 in the table.*`s3notify table migrate .* --to-slots 8`"),
        ({"slots": 2}, "slots is 2, but 4 in the table.*`s3notify table migrate .* --to-slots 2`"),
    ],
)
def test_a_run_with_other_settings_is_refused(
    ministack: S3Server, changes: dict[str, Any], named: str
) -> None:
    """Otherwise a run with another prefix would withdraw rows of objects that still exist, and a run with fewer slots
    could add rows a second time, under other slots. Without the remedy in the error, a person would not know how to
    change the setting.
    """
    place = Place(ministack)
    for number in range(9):
        place.put(f"a/{number}", number)
    place.run("1")
    before = place.objects()
    with pytest.raises(UsageError, match=named):
        place.run("2", **changes)
    assert place.objects() == before
    assert place.values() == Counter(range(9))
    assert all(each.status == "unchanged" for each in place.run("3").slots.values())


def test_a_run_on_another_bucket_is_refused(ministack: S3Server) -> None:
    """Otherwise, rows of the other bucket would replace all rows, and every check would pass."""
    place, other = Place(ministack), Place(ministack)
    place.put("a", 1)
    other.put("b", 2)
    place.run("1")
    place.source = replace(place.source, input=replace(place.source.input, bucket=other.source.input.bucket))
    with pytest.raises(UsageError, match=r"bucket is .*, but .* in the table"):
        place.run("2")
    assert place.values() == Counter([1])


def test_a_listing_that_would_withdraw_most_objects_is_refused(ministack: S3Server) -> None:
    """Otherwise most rows would leave the table if a person emptied the bucket by mistake. Without the refusal of
    partial retries, the missing objects would be withdrawn in small groups. If usual deletions needed a confirmation,
    sources would often wait for a person. So small sources may lose nearly all objects.
    """
    place = Place(ministack)
    for number in range(99):
        place.put(f"{number}", number)
    place.run("few")
    for number in range(98):
        place.store.delete(f"raw/{number}")
    assert all(each.ok for each in place.run("fewer").slots.values())
    assert place.values() == Counter([98])
    for number in range(120):
        place.put(f"{number}", number)
    place.run("1")
    for number in range(60):
        place.store.delete(f"raw/{number}")
    assert all(each.ok for each in place.run("2").slots.values())
    assert place.values() == Counter(range(60, 120))
    for number in range(60):
        place.put(f"{number}", number)
    place.run("3")
    for number in range(70):
        place.store.delete(f"raw/{number}")
    for batch in ("4", "5"):
        result = place.run(batch)
        assert place.values() == Counter(range(120))
        for each in result.slots.values():
            assert "lacks 70 of 120 objects" in each.error
            assert "`s3notify table confirm" in each.error
    some = [slot for slot, each in result.slots.items() if not each.ok][:1]
    (refused,) = place.ingest().run(some, batch="part").slots.values()
    assert "after an earlier refusal" in refused.error, "a retry of a part must not withdraw its few objects"
    assert place.values() == Counter(range(120))
    assert all(each.ok for each in place.run("6", withdraw_share=1.0).slots.values())
    assert place.values() == Counter(range(70, 120))
    for number in range(70):
        place.put(f"{number}", number)
    place.run("7")
    for number in range(119):
        place.store.delete(f"raw/{number}")
    assert not any(each.ok for each in place.run("8").slots.values())
    assert confirm(place.source.table().reader, place.source.open_table()) > 0
    late = replace(place.source.table().reader.known.read()[0], confirmed_ms=0)
    assert not late.confirms(0, SYSTEM_CLOCK.wall_ms()), "a confirmation ends after a day"
    assert all(each.ok for each in place.run("9").slots.values())
    assert place.values() == Counter([119])


def test_an_emptied_bucket_is_noticed_by_a_known_record_in_another_bucket(ministack: S3Server) -> None:
    """Without a record in another bucket, a run would silently begin a new table, because the emptied bucket has no
    trace of the former table.
    """
    vault = ministack.make_bucket()
    place = Place(ministack, known_bucket=vault)
    place.put("a", 1)
    place.run("1")
    place.empty("")
    place.put("a", 2)
    with pytest.raises(CorruptError, match="its log is gone"):
        place.run("2")
