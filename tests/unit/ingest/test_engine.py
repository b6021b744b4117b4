"""The engine in one process, over a real server and without Spark: rounds, and how each ends decides the next."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from s3notify_platform.errors import CorruptError, UsageError
from s3notify_platform.ingest.engine import MAX_CONFLICTS
from s3notify_platform.ingest.location import CommitMode
from s3notify_platform.ingest.migrate import migrate
from s3notify_platform.ingest.rounds import commit_round, merge_known
from s3notify_platform.protocols.keyspace import Watcher
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.slots import slot_of
from s3notify_platform.table.reader import read_slots
from tests.support.faults import Call, CrashedError, Fault, FaultyStore
from tests.support.ingested import Place
from tests.support.servers import S3Server
from tests.support.sources import with_settings

pytestmark = pytest.mark.server


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
    assert place.known() == place.heads()
    assert place.known().keys() == {slot_of(f"raw/{k}", 4) for k in "abc"}


def test_a_reject_has_its_place(ministack: S3Server) -> None:
    """Key, version and the byte where its record begins: with these a person finds it in the object."""
    place = Place(ministack)
    body = b'{"a":1}\nno\n{"a":22}\n{"a":"x"}\n'
    place.store.put("raw/k.jsonl", body)
    place.run("1")
    head = place.store.head("raw/k.jsonl")
    assert head is not None
    rows = [
        row
        for part in read_slots(place.source.table(), place.source.location.all_slots(), rejects=True)
        for row in part.table.to_pylist()
    ]
    assert [(row["_key"], row["_etag"], row["_offset"], row["raw"]) for row in rows] == [
        ("raw/k.jsonl", head.etag, body.index(raw), raw) for raw in (b"no", b'{"a":"x"}')
    ]


def test_how_far_a_run_is(ministack: S3Server) -> None:
    """Each round says what is left, and from the second on for how long; the last one neither."""
    place = Place(ministack, max_objects=1, slots=1)
    for number in range(3):
        place.put(f"{number}", number)
    said: list[str] = []
    ingest = place.ingest()
    ingest.progress = said.append
    ingest.run(place.source.location.all_slots(), batch="1")
    first, second, third = (text for text in said if text.startswith("reading 1 objects of 1 slots"))
    assert first.endswith("; 2 objects wait for the next rounds")
    assert re.search(r"; 1 objects wait for the next rounds, about [0-9.]+ minutes to go$", second)
    assert "wait" not in third
    counts = ingest.result().counts()
    assert (counts["objects"], counts["rows"], counts["slots_committed"], counts["batches"]) == (3, 3, 1, 1)


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
    merge_known(place.source.open_table(), done)
    assert place.values() == Counter([1])
    assert done.heads == place.known() == {slot_of("raw/a", 4): 1}


# Lost state and drift


@pytest.mark.parametrize("lost", ["_s3notify/orders/", "_s3notify/", "_s3notify/orders/table/"])
def test_an_emptied_table_is_refused_until_it_is_forgotten(ministack: S3Server, lost: str) -> None:
    """A change of one object takes nothing in, and writes nothing; once forgotten, everything is read again."""
    place = Place(ministack)
    for number, key in enumerate("abcdef"):
        place.put(key, number)
    place.run("1")
    place.empty(lost)
    place.put("a", 100)
    before = place.snapshot()
    with pytest.raises(CorruptError, match=r"had commits: restore its objects, or .* `s3notify table forget"):
        place.run("2")
    with pytest.raises(CorruptError, match="had commits"):
        replace(place.source, commit=CommitMode()).settle_commit_mode(place.store)
    assert place.snapshot() == before
    assert place.forget().table
    place.run("3")
    assert place.values() == Counter([100, 1, 2, 3, 4, 5])
    assert place.known() == place.heads()


def test_the_newest_commit_of_a_slot_is_gone(ministack: S3Server) -> None:
    """The slot does not go back a generation unnoticed: it is refused, the others go on."""
    place = Place(ministack)
    slot = slot_of("raw/a", 4)
    other = next(key for key in "bcdefgh" if slot_of(f"raw/{key}", 4) != slot)
    for number in (1, 2):
        place.put("a", number)
        place.put(other, 10 * number)
        place.run(f"{number}")
    place.store.delete(place.source.location.layout.commit(slot, 2))
    place.put(other, 30)
    result = place.run("3")
    assert {each.slot for each in result.slots.values() if not each.ok} == {slot}
    assert f"--slots {slot}`" in result.slots[slot].error
    assert place.values() == Counter([1, 30])
    assert place.forget(slot).slots == {slot}
    assert all(each.ok for each in place.run("4").slots.values())
    assert place.values() == Counter([2, 30])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"prefix": "raw/a/"},
            "prefix is 'raw/a/' and was 'raw/'.*`s3notify table migrate .* --prefix 'raw/a/'`",
        ),
        ({"prefix": "other/"}, "prefix is 'other/' and was 'raw/'.*give the source another name$"),
        ({"slots": 8}, "slots is 8 and was 4.*`s3notify table migrate .* --to-slots 8`"),
        ({"slots": 2}, "slots is 2 and was 4.*`s3notify table migrate .* --to-slots 2`"),
    ],
)
def test_a_run_with_other_settings_is_refused(
    ministack: S3Server, changes: dict[str, Any], named: str
) -> None:
    """Before anything is written, with the command that rewrites the table."""
    place = Place(ministack)
    for number in range(9):
        place.put(f"a/{number}", number)
    place.run("1")
    before = place.snapshot()
    with pytest.raises(UsageError, match=named):
        place.run("2", **changes)
    assert place.snapshot() == before
    assert place.values() == Counter(range(9))
    assert all(each.status == "unchanged" for each in place.run("3").slots.values())


def test_a_run_on_another_bucket_is_refused(ministack: S3Server) -> None:
    """Its rows would take the place of all others, with every check green."""
    place, other = Place(ministack), Place(ministack)
    place.put("a", 1)
    other.put("b", 2)
    place.run("1")
    place.source = replace(place.source, input=replace(place.source.input, bucket=other.source.input.bucket))
    with pytest.raises(UsageError, match=r"bucket is .* and was"):
        place.run("2")
    assert place.values() == Counter([1])


def test_a_narrower_and_a_wider_prefix(ministack: S3Server) -> None:
    """The table becomes that of the other prefix by its next runs; until it is migrated, they are refused."""
    place = Place(ministack)
    for number in range(150):
        place.put(f"{'a' if number < 10 else 'b'}/{number}", number)
    place.run("1")
    was = place.source.open_table().id
    migrate(place.source.location, prefix="raw/a/")
    assert place.values() == Counter(range(150)), "complete until then"
    with pytest.raises(UsageError, match="prefix is 'raw/' and was 'raw/a/'"):
        place.run("2")
    assert RescanBacklog(place.source.location.records()).read().slots.keys() == {0, 1, 2, 3}
    place.run("3", prefix="raw/a/")
    assert place.values() == Counter(range(10))
    migrate(place.source.location, prefix="raw/")
    place.run("4")
    assert place.values() == Counter(range(150))
    assert place.source.open_table(expected=was).id == was
    with pytest.raises(UsageError, match="neither within nor around"):
        migrate(place.source.location, prefix="other/")


@pytest.mark.parametrize("slots", [8, 2])
@pytest.mark.parametrize("dies_at", [None, 0, *(pytest.param(n, marks=pytest.mark.thorough) for n in (2, 5))])
def test_other_slots(
    ministack: S3Server, slots: int, dies_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All objects are taken in again, each once; killed in between, the table is refused until that is repeated."""
    place = Place(ministack)
    for number in range(16):
        place.put(f"{number}", number)
    place.run("1")
    location = place.source.location
    location.signals(place.store).signal_slots(location.all_slots())
    location.queue(place.store).topics.create(
        "orders", TopicSettings(bucket="b", prefix="raw/", slots=4, shards=4)
    )
    was = place.source.open_table().id
    if dies_at is not None:
        store = FaultyStore(place.store, Deletes(dies_at))
        with monkeypatch.context() as patched:
            patched.setattr("s3notify_platform.ingest.migrate.shared_store", lambda _: store)
            with pytest.raises(CrashedError):
                migrate(location, slots=slots)
        for given in ({}, {"slots": slots}):
            with pytest.raises(UsageError, match="is being rewritten"):
                place.run("2", **given)
    done = migrate(location, slots=slots)
    assert done.after == replace(place.source.identity, slots=slots)
    place.source = with_settings(place.source, slots=slots)
    opened = place.source.open_table(expected=was)
    assert (opened.id == was, opened.heads) == (False, {})
    location = place.source.location
    assert location.queue(place.store).topics.get("orders").settings.slots == slots
    assert place.source.table().newest(location.all_slots()).keys() == set(location.all_slots())
    watcher = Watcher(place.store, prefix=location.keyspace_prefix, slots=slots)
    assert watcher.poll().signals.keys() >= {0}
    place.run("3")
    assert place.values() == Counter(range(16))
    assert place.known() == place.heads()
    assert RescanBacklog(location.records()).read().slots.keys() == set(range(slots))


@pytest.mark.parametrize("to", [{"slots": 8}, {"prefix": "raw/a/"}], ids=str)
def test_a_table_whose_topic_serves_others_is_not_migrated(ministack: S3Server, to: dict[str, Any]) -> None:
    """They would be without it. Nothing is written; a queue of its own, as the errors say, lets it."""
    place = Place(ministack)
    place.put("a/1", 1)
    place.run("1")
    location = place.source.location
    topics = location.queue(place.store).topics
    own = place.source.open_table().id
    topics.create("orders", TopicSettings(prefix="raw/", slots=4), tables=(own, "another"))
    before = place.snapshot()
    with pytest.raises(
        UsageError,
        match=r"serves other tables too.*: another\..*--table another`, and give this source a queue_prefix",
    ):
        migrate(location, **to)
    assert place.snapshot() == before
    topics.update("orders", topics.get("orders").settings, tables=("another",))
    with pytest.raises(UsageError, match="serves table another, not this source's"):
        migrate(location, **to)
    migrate(replace(location, queue_prefix="_s3notify/dev/queue/"), **to)
    assert topics.get("orders").tables == ("another",)
    assert place.source.location.sides().known().identity == replace(place.source.identity, **to)


class Deletes:
    """A crash at the delete of this number."""

    def __init__(self, dies_at: int) -> None:
        self.left = dies_at

    def __call__(self, call: Call) -> Fault:
        if call.method != "delete":
            return Fault.NONE
        self.left -= 1
        return Fault.CRASH_BEFORE if self.left < 0 else Fault.NONE


def test_a_listing_that_would_withdraw_most_objects(ministack: S3Server) -> None:
    """It is refused, whatever else changed is taken in, until a person confirms; half of them, or few, just leave."""
    place = Place(ministack)
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
    assert all(each.ok for each in place.run("6", withdraw_share=1.0).slots.values())
    assert place.values() == Counter(range(70, 120))
    for number in range(70):
        place.put(f"{number}", number)
    place.run("7")
    for number in range(119):
        place.store.delete(f"raw/{number}")
    assert not any(each.ok for each in place.run("8").slots.values())
    assert place.source.open_table().confirm() == 4
    assert all(each.ok for each in place.run("9").slots.values())
    assert place.values() == Counter([119])


def test_what_is_known_in_another_bucket_survives_an_emptied_one(ministack: S3Server) -> None:
    """Nothing is left in the platform's bucket that could tell."""
    vault = ministack.make_bucket()
    place = Place(ministack, known_bucket=vault)
    place.put("a", 1)
    place.run("1")
    place.empty("")
    place.put("a", 2)
    with pytest.raises(CorruptError, match="had commits: restore"):
        place.run("2")


def test_a_run_that_died_before_it_had_noted_its_commits(ministack: S3Server) -> None:
    """No false alarm; the next run that finds the heads notes them."""
    place = Place(ministack)
    place.put("a", 1)
    for each in place.rounds():
        commit_round(each)
    assert place.known() == {}
    assert all(each.ok for each in place.run("2").slots.values())
    assert place.known() == place.heads() == {slot_of("raw/a", 4): 1}
