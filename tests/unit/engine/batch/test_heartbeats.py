"""Heartbeats of runs: living and killed runs, and the cost of heartbeats."""

from s3notify_platform.engine.batch.heartbeats import (
    FRESH_MS,
    HEARTBEATS,
    Beat,
    beats_of,
    fresh_beats,
    heartbeat,
)
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.counted import CountedRecords
from tests.support.waiting import until


def test_a_killed_run_is_not_shown_as_working():
    """The last heartbeat of a killed run stays until the sweep. If an old heartbeat counted, `s3notify status` could
    show that the killed run still works.
    """
    records, now_ms = MemoryRecordStore(), SYSTEM_CLOCK.wall_ms()
    for run, age_ms in (("lives", FRESH_MS // 2), ("was killed", FRESH_MS)):
        beat = Beat(number=3, at_ms=now_ms - age_ms, batch="b", doing=run)
        records.create(HEARTBEATS, run, beat.dumps())
    assert [beat.doing for beat in fresh_beats(records, now_ms)] == ["lives"]


def test_a_heartbeat_in_another_format_counts_as_no_heartbeat():
    """Otherwise a heartbeat of another version of this package would stop the sensor and `s3notify status` with an
    error.
    """
    records = MemoryRecordStore()
    for run, body in (("number", b"7"), ("more", b'{"number": 7, "mood": "good"}'), ("bytes", b"\xff")):
        records.create(HEARTBEATS, run, body)
        assert beats_of(records, run) == 0
    assert fresh_beats(records, SYSTEM_CLOCK.wall_ms()) == []


def test_a_heartbeat_costs_a_write_and_a_removal():
    """If a run read its record before each write, each heartbeat would cost twice as many requests. If a short run
    wrote a record, each small batch would cost two more requests.
    """
    records = CountedRecords(MemoryRecordStore())

    def end_soon():
        with heartbeat(records, "run", batch="b"):
            pass

    def beat_once():
        with heartbeat(records, "run", batch="b", first_seconds=0) as say:
            say("works")
            until(lambda: beats_of(records.records, "run"))

    assert records.cost(end_soon) == {}
    assert records.cost(beat_once) == {"create": 1, "remove": 1}
    assert beats_of(records.records, "run") is None
