"""The requests of a tick: batches, retries, listings."""

from collections import Counter
from dataclasses import replace

import pytest

from s3notify_platform.engine.batch.batches import EVERYTHING
from s3notify_platform.engine.batch.scheduler import TOPIC_SECONDS
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import BALANCE_SLACK
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.table.open_table import forget
from tests.support.batches import World, last_attempt, settled


def test_slots_that_failed_in_the_batch_of_everything_are_retried_apart() -> None:
    """Otherwise one broken slot would make each batch compare the whole source, and no other batch could be opened. A
    slot that failed in the batch of everything waits for its backoff, like any failed slot.
    """
    world = World(slots=1000, settings=BatchSettings(backoff_seconds=10, max_attempts=1))
    world.tick()
    (run,) = world.active()
    world.start(run)
    world.finish(run, failing=frozenset({5, 7}))
    assert world.tick().requests == ()
    assert world.state.enumerated
    assert {slot: item.attempts for slot, item in world.state.failing.items()} == {5: 0, 7: 0}
    assert "slot 5 is broken" in world.state.failing[7].reason
    world.clock.sleep(10)
    tick = world.tick()
    assert world.keys(tick) == [["5", "7"]]
    assert last_attempt(world, tick) == (5, 7)
    (run,) = world.active()
    world.finish(run)
    world.tick()
    assert not world.state.failing


def test_the_first_tick_requests_nothing_and_the_second_everything() -> None:
    """If the first batch were opened before a cursor is stored, a repeated tick would have a new epoch. Dagster would
    then launch a second comparison of the whole source.
    """
    world = World()
    assert world.evaluate() is None
    assert not world.runs
    tick = world.evaluate()
    assert tick is not None
    assert [request.slots for request in tick.requests] == [(EVERYTHING,)]


def test_an_idle_tick_sends_one_head() -> None:
    """Ticks come every few seconds, even if nothing changes for days. Each further request in an idle tick would
    multiply the cost of an idle source.
    """
    world = settled()
    tick = world.tick()
    assert world.counts() == {"keyspace": {"HEAD": 1}, "records": {}}
    assert tick.requests == ()
    assert tick.note == "nothing changed"


def test_a_tick_after_a_change_sends_one_head_one_list_one_get_and_one_put() -> None:
    """Each further request would add to the cost of every batch. The PUT opens the batch's ack chain, and the GET reads
    the backlog. While the batch is open, a tick reads the chain by one LIST.
    """
    world = settled()
    world.publish(3, 999, 42)
    world.counts()
    tick = world.tick()
    assert world.counts() == {"keyspace": {"HEAD": 1, "LIST": 1}, "records": {"GET": 1, "PUT": 1}}
    assert world.keys(tick) == [["3", "42", "999"]]
    world.tick()
    assert world.counts() == {"keyspace": {"HEAD": 1}, "records": {"LIST": 1}}


def test_a_signal_of_an_unqueued_writer_causes_one_listing() -> None:
    """The LIST of the signals shows that the writer does not queue. If the batch followed entries, the batch would miss
    the writer's change, because no entry names the change. The batch waits until a listing is due.
    """
    world = settled(list_seconds=10)
    world.clock.sleep(10)
    for number in range(2):
        world.publish(3 + number, queued=False)
        world.publish(999)
        if number:
            assert world.tick().requests == ()
            world.clock.sleep(10)
        assert world.keys(world.tick()) == [[str(3 + number), "999"]]
        (run,) = world.active()
        world.start(run)
        world.finish(run)
        assert world.tick().requests == ()
        assert (world.listings, world.committed[3 + number]) == (2 + number, 1)


def test_a_slot_in_flight_is_not_requested_again_and_its_change_is_kept() -> None:
    """If a slot in flight were requested again, two runs would read the same objects. If the cursor got the
    root's new ETag while a changed slot still waits, the slot's second change could wait for the next regular
    listing of the signals.
    """
    world = settled()
    world.publish(1, 2)
    world.tick()
    world.publish(2, 3)
    assert world.tick().requests == ()
    (run,) = world.active()
    world.start(run)
    world.finish(run)
    assert world.keys(world.tick()) == [["2", "3"]]


def test_open_batches_are_disjoint_when_several_are_allowed() -> None:
    """If two open batches had a slot in common, two runs would read the same objects, and the commit of one run would
    be a conflict. The new change of a slot in flight waits for a later batch.
    """
    world = settled(max_open=2)
    world.publish(1, 2)
    world.tick()
    world.publish(2, 3)
    assert world.keys(world.tick()) == [["3"]]
    world.publish(4)
    assert world.tick().requests == ()
    assert [batch.slots for batch in world.state.open] == [(1, 2), (3,)]


def test_a_topic_that_is_lost_after_a_tick_died_is_noticed() -> None:
    """The batch of this tick listed the bucket before the topic was made again, so all slots must be listed again."""
    world = World()
    assert world.evaluate() is None
    tick = world.evaluate()
    assert tick is not None
    # The run starts, and the tick dies before the tick's cursor is stored.
    world.launch(tick)
    (run,) = world.active()
    world.finish(run)
    world.publish(5)
    world.lose_topic()
    world.tick()
    world.publish(3)
    for _ in range(3):
        world.tick()
        for run in world.active():
            world.finish(run)
    assert world.listings == 2
    assert world.committed == world.versions


def test_a_batch_of_everything_clears_earlier_failures() -> None:
    """Otherwise the sensor would report a slot as failing, and would request the slot again, although the batch for a
    new topic has committed the slot.
    """
    world = settled(max_attempts=1)
    world.publish(5, 6)
    world.tick()
    world.finish(world.active()[0], failing=frozenset({5, 6}))
    world.tick()
    assert {slot: item.group for slot, item in world.state.failing.items()} == {5: 5, 6: 6}
    world.lose_topic()
    world.publish(3)
    world.clock.sleep(100)
    world.tick()
    (run,) = world.active()
    assert run.request.slots == (EVERYTHING,)
    world.finish(run, failing=frozenset({6}))
    world.tick()
    assert list(world.state.failing) == [6]


def test_a_batch_is_split_into_parallel_runs() -> None:
    """Dagster launches only one run for each run key. If two runs had the same run key, the slots of one run would not
    be read. A run without slots would take a place in Dagster's queue without any work.
    """
    world = settled(parallel_runs=3)
    world.publish(*range(10, 17))
    tick = world.tick()
    assert sorted(request.slots for request in tick.requests) == [(10,), (11, 12, 13), (14, 15, 16)]
    assert len({request.run_key for request in tick.requests}) == 3
    for run in world.active():
        world.finish(run)
    world.tick()
    world.publish(5, 6)
    assert sorted(request.slots for request in world.tick().requests) == [(5,), (6,)]


def test_few_slots_move_to_another_run_if_the_number_of_runs_changes() -> None:
    """The runs of a batch are numbered. If most slots moved to a run with another number, a person could not
    compare the times of a run with its times before the change. No slot moves while a batch has as many runs
    as before, whichever slots have changed.
    """

    def shares(world: World, *slots: int) -> dict[int, int]:
        world.publish(*slots)
        tick = world.tick()
        for run in world.active():
            world.finish(run)
        world.tick()
        assert {slot for request in tick.requests for slot in request.slots} == set(slots)
        return {slot: request.part for request in tick.requests for slot in request.slots}

    world = settled(slots=1000, parallel_runs=4)
    four = shares(world, *range(1000))
    some = shares(world, *range(0, 1000, 3))
    assert {slot: four[slot] for slot in some} == some
    for runs, most in ((5, 300), (4, 300), (1, 800)):
        world.settings = replace(world.settings, parallel_runs=runs)
        after = shares(world, *range(1000))
        assert set(after.values()) == set(range(runs))
        assert max(Counter(after.values()).values()) <= 1000 / runs * BALANCE_SLACK
        assert sum(after[slot] != four[slot] for slot in four) <= most
        four = after


def test_a_tick_that_is_repeated_because_its_cursor_was_not_stored_requests_the_same_run() -> None:
    """Otherwise the repeated tick would have a new run key, and Dagster would launch a second run for the same slots. A
    change after the first tick waits for the next batch, so that no change is lost.
    """
    world = settled()
    world.publish(1, 2)
    first = world.evaluate()
    assert first is not None
    world.launch(first)
    world.publish(2, 7)
    again = world.tick()
    assert [r.run_key for r in again.requests] == [r.run_key for r in first.requests]
    assert world.keys(again) == [["1", "2"]]
    (run,) = world.active()
    world.finish(run)
    assert world.keys(world.tick()) == [["2", "7"]]


def test_a_failed_enumeration_is_repeated_and_never_parked() -> None:
    """The source must be enumerated once before there is any other batch."""
    world = World(settings=BatchSettings(max_attempts=2, backoff_seconds=1, backoff_ceiling_seconds=5))
    for _ in range(4):
        while not (tick := world.tick()).requests:
            world.clock.sleep(1)
        assert tick.requests[0].slots == (EVERYTHING,)
        world.publish(1)
        (run,) = world.active()
        run.status = "failure"
    while not world.tick().requests:
        world.clock.sleep(1)
    (run,) = world.active()
    world.finish(run)
    # Either the repeated batch has read the change of slot 1, or a tick requests this slot again.
    while world.tick().requests:
        (run,) = world.active()
        world.finish(run)
    assert world.committed[1] == world.versions[1]


def test_the_keyspace_is_listed_sometimes_although_the_root_does_not_move() -> None:
    """A publisher signalled a slot, and died before it signalled the root. Without a listing after `relist_seconds`,
    the change would stay out of the table until another change moves the root.
    """
    world = settled(relist_seconds=300)
    world.keyspace.store.put("k/5", b"signalled, and died before the root")
    assert world.tick().requests == ()
    world.clock.sleep(301)
    assert world.keys(world.tick()) == [["5"]]
    world.counts()
    world.tick()
    assert world.counts()["keyspace"] == {"HEAD": 1}


def test_a_slot_that_waits_for_the_next_listing_is_not_forgotten() -> None:
    """A slot is signalled before a listing is due, and no other signal follows. If the tick counted the slot
    as seen, no later tick would request the slot, and the change would stay out of the table.
    """
    world = settled(list_seconds=60)
    world.backlog.add([Slot(7)])
    world.publish(3)
    tick = world.tick()
    assert (tick.requests, "the next listing is due in 60 s" in tick.note) == ((), True)
    world.clock.sleep(60)
    assert world.keys(world.tick()) == [["3", "7"]]


def test_a_slot_whose_listing_failed_is_listed_again() -> None:
    """No entry names a change that only a listing finds.

    If the next batch followed the queue, it would miss the change.
    """
    world = settled(backoff_seconds=10, list_seconds=0)
    world.backlog.add([Slot(7)])
    world.change(3, queued=False)
    world.publish(3)
    world.tick()
    (run,) = world.active()
    world.start(run)
    world.finish(run, failing=frozenset({3}))
    world.tick()
    world.clock.sleep(10)
    tick = world.tick()
    assert world.keys(tick) == [["3"]]
    (run,) = world.active()
    world.finish(run)
    assert world.committed == world.versions


def test_another_sensor_on_the_same_table_causes_a_warning() -> None:
    """Two deployments that share one `platform_prefix` compete for the same table, and may read each change twice.
    Without the warning, nobody would notice the second deployment. A sensor warns in the tick that opens its next
    batch.
    """
    world = settled()
    assert world.state.epoch in world.claimed(world.opened(), "other")
    world.publish(3)
    tick = world.tick()
    (warning,) = tick.warnings
    assert "another sensor (other)" in warning
    assert warning in tick.note
    assert world.state.epoch in world.claimed(world.opened(), "other")


def test_a_table_that_was_forgotten_is_compared_from_the_beginning() -> None:
    """Some versions of the table are lost, but the cursor still counts their changes as done. If the sensor
    continued with this cursor, the table would lack these changes. A cursor with an unknown table id is
    refused, because the present table may be another table.
    """
    world = settled()
    table, epoch = world.state.table, world.state.epoch
    assert table == world.opened().id
    forgotten = forget(world.table.committer, lambda: None).table
    world.publish(3)
    assert "everything is compared again" in world.tick().note
    assert world.state.table == forgotten != table
    assert world.state.epoch != epoch
    assert world.keys(world.tick()) == [[str(EVERYTHING)]]
    elsewhere = forget(world.table.committer, lambda: None).table
    world.table.known.change(lambda known: replace(known, former=()) if known else None)
    world.publish(4)
    before = world.cursor
    for run in world.active():
        world.start(run)
        world.finish(run)
    with pytest.raises(CorruptError, match=f"the id {forgotten}, and the present table is {elsewhere}"):
        world.tick()
    assert world.cursor == before


def test_a_lost_topic_is_reported_while_nothing_changes() -> None:
    """If a tick looked at the topic only after a change, the loss would stay unknown while the source is idle. Changes
    whose entries were lost could then be missing from the table.
    """
    world = settled()
    world.clock.sleep(TOPIC_SECONDS)
    assert world.tick().note == "nothing changed"
    world.lose_topic()
    world.clock.sleep(TOPIC_SECONDS)
    tick = world.tick()
    assert [request.slots for request in tick.requests] == [(EVERYTHING,)]
    assert "the topic 's' is gone" in tick.note
    assert tick.warnings
    (run,) = world.active()
    world.finish(run)
    world.tick()
    assert world.state.enumerated == world.topic
