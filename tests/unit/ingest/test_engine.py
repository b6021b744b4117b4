"""The engine in one process, over a real server and without Spark: rounds, and how each ends decides the next."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from s3notify_platform.ingest.engine import MAX_CONFLICTS, Ingest
from s3notify_platform.ingest.rounds import Round, commit_round, note_first_commits
from s3notify_platform.ingest.source import Source
from s3notify_platform.protocols.source_enumerator import CommittedSlots
from s3notify_platform.slots import slot_of
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.reader import read_slots
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server

pytestmark = pytest.mark.server


class Place:
    """A source of 4 slots in a new bucket."""

    def __init__(self, server: S3Server, **settings: Any) -> None:
        config = server.config(server.make_bucket())
        given = {"name": "orders", "prefix": "raw/", "format": "jsonl", "slots": 4, "commit": "native"}
        self.source = Source.of(bucket=config, platform=config, **(given | settings))
        self.store = S3ObjectStore(config)

    def put(self, key: str, *values: int) -> None:
        self.store.put(f"raw/{key}", b"".join(b'{"a":%d}\n' % value for value in values))

    def ingest(self) -> Ingest:
        return Ingest(jobs=LocalJobs(source=self.source), source=self.source)

    def rounds(self, **arguments: Any) -> Iterator[Round]:
        return self.ingest().rounds(self.source.location.all_slots(), batch="b", **arguments)

    def values(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for part in read_slots(self.source.table(), self.source.location.all_slots()):
            found.update(part.table["a"].to_pylist())
        return found


def test_created_overwritten_deleted(ministack: S3Server) -> None:
    """The table holds what the bucket holds; what did not change is not committed again."""
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
    assert CommittedSlots(place.source.location.records()).read() == {slot_of(f"raw/{k}", 4) for k in "abc"}


def test_a_round_reports_what_the_run_is_done_with(ministack: S3Server) -> None:
    """One object a slot and round: each slot is in the results of one round, its last, with all that the run did."""
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


def test_a_run_without_time_leaves_the_rest(ministack: S3Server) -> None:
    """After its first round it is done with all slots; those that have more to read are not complete."""
    place = Place(ministack, max_objects=4, max_seconds=0)
    for number in range(9):
        place.put(f"{number}", number)
    (only,) = (commit_round(each) or each for each in place.rounds())
    assert only.results["orders"].keys() == set(place.source.location.all_slots())
    assert only.incomplete()
    assert only.incomplete() <= set(only.good())


def test_a_slot_that_another_run_commits_first_is_planned_again(ministack: S3Server) -> None:
    """It finds nothing left to do. If that happens each time, the slot fails, and no row is there twice."""
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


def test_a_round_that_nobody_commits_leaves_nothing(ministack: S3Server) -> None:
    """Files that no commit names are not data; the next run takes everything in."""
    place = Place(ministack)
    place.put("a", 1)
    staged = next(place.rounds())
    assert staged.results == {}
    assert place.values() == Counter()
    (done,) = place.rounds()
    commit_round(done)
    note_first_commits(place.source.location.records(), done)
    assert place.values() == Counter([1])
    assert done.first_commits == {slot_of("raw/a", 4)}
