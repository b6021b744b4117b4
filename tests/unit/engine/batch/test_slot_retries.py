"""Retries of failed slots: when they are requested again, and with which other slots."""

from s3notify_platform.engine.batch.batches import BatchPayload
from s3notify_platform.source.batch_settings import BatchSettings
from tests.support.batches import World, last_attempt, settled

REFUSED = "UsageError: more objects are missing than the setting withdraw_share (0.5) allows: 70 of 120"


def test_a_failed_slot_is_retried_alone_with_growing_backoff_and_then_parked() -> None:
    """Without backoff and parking, a broken slot would cost a run every few seconds. A change may repair a parked slot,
    so the slot is requested again at once. Otherwise the repaired slot would wait for `parked_seconds`.
    """
    world = settled(max_attempts=3, backoff_seconds=10)
    world.publish(1, 2)
    waits = []
    for attempt in range(3):
        begun = world.clock.now
        while not (tick := world.tick()).requests:
            world.clock.sleep(1)
        waits.append(world.clock.now - begun)
        assert world.keys(tick) == [["1", "2"] if attempt == 0 else ["2"]]
        (run,) = world.active()
        world.finish(run, failing=frozenset({2}))
    assert waits == [0, 10, 20]
    world.clock.sleep(3000)
    tick = world.tick()
    assert tick.requests == ()
    assert "1 parked for now (2): slot 2 is broken" in tick.note
    item = world.state.failing[2]
    assert (item.attempts, item.reason, item.parked) == (3, "slot 2 is broken", True)
    world.publish(2)
    assert world.keys(world.tick()) == [["2"]]
    item = world.state.failing[2]
    assert (item.attempts, item.parked) == (0, False)


def test_a_parked_slot_is_tried_again_alone() -> None:
    """Slots that an outage has parked must recover without a person's help. If parked slots were tried together, a slot
    with a defect would make the recovered slots fail again.
    """
    world = settled(max_attempts=1, parked_seconds=60)
    for slot in (1, 2):
        world.publish(slot)
        world.tick()
        (run,) = world.active()
        world.finish(run, failing=frozenset({slot}))
    assert world.tick().requests == ()
    assert [item.parked for item in world.state.failing.values()] == [True, True]
    world.clock.sleep(59)
    world.publish(3)
    world.clock.sleep(1)
    asked = []
    for _ in range(3):
        tick = world.tick()
        asked += world.keys(tick)
        (run,) = world.active()
        world.finish(run, failing=frozenset({2}))
    assert asked == [["1"], ["3"], ["2"]]
    world.tick()
    assert {slot: item.attempts for slot, item in world.state.failing.items()} == {2: 2}


def drive(world: World, poison: set[int], *, until: float) -> list[tuple[int, ...]]:
    """Evaluates a tick every 5 s. A run with a poisonous slot dies without a commit."""
    asked: list[tuple[int, ...]] = []
    while world.clock.now < until:
        world.tick()
        for run in world.active():
            asked.append(run.request.slots)
            if poison.isdisjoint(run.request.slots):
                world.finish(run)
            else:
                run.status = "failure"
        world.clock.sleep(5)
    return asked


def test_one_slot_that_kills_every_run_does_not_block_nineteen_others() -> None:
    """Failed slots are requested in halves, so that the poisonous slot is alone in the end. Otherwise each retry of all
    20 slots would fail, and the changes of 19 good slots would stay out of the table.
    """
    world = settled(backoff_seconds=10, max_attempts=5, parked_seconds=3600)
    world.publish(*range(20))
    asked = drive(world, {7}, until=world.clock.now + 600)
    assert asked[0] == tuple(range(20))
    assert {slot for slot in range(20) if world.committed[slot] == world.versions[slot]} == {*range(20)} - {7}
    assert set(world.state.failing) == {7}
    assert world.state.failing[7].parked
    assert len(asked) <= 2 * 5 + 2
    assert drive(world, {7}, until=world.clock.now + 3 * 3600) == [(7,)] * 3
    world.clock.sleep(3600)
    drive(world, set(), until=world.clock.now + 30)
    assert world.state.failing == {}


def test_each_of_several_poisonous_slots_is_alone_in_the_end() -> None:
    world = settled(backoff_seconds=1)
    poison = {3, 4, 400, 555, 999}
    world.publish(*range(1000))
    drive(world, poison, until=world.clock.now + 900)
    assert set(world.state.failing) == poison
    assert {item.group for item in world.state.failing.values()} == poison


def test_slots_with_too_many_missing_objects_are_retried_together() -> None:
    """Smaller groups would be refused, too, and each of them would list the bucket. No object may go to quarantine,
    however often its slot was refused.
    """
    world = settled(backoff_seconds=1, backoff_ceiling_seconds=60)
    world.publish(*range(20))
    asked, until = [], world.clock.now + 1200
    while world.clock.now < until:
        world.tick()
        for run in world.active():
            asked.append(run.request.slots)
            payload = BatchPayload.loads(world.chains.state(run.request.batch).payload)
            assert not payload.last_attempt
            run.failure = REFUSED
            run.status = "failure"
        world.clock.sleep(5)
    assert set(asked) == {tuple(range(20))}
    assert 15 < len(asked) < 40, "the backoff grows"
    drive(world, set(), until=world.clock.now + 120)
    assert world.state.failing == {}


def test_failed_slots_take_turns_with_other_slots() -> None:
    """Without turns, the retries of many failed slots would keep changed slots out of the table. If failed
    slots and changed slots shared a batch, the failed slots could make the changed slots fail.
    """
    world = settled(backoff_seconds=0, backoff_ceiling_seconds=0, parked_seconds=0)
    world.publish(1, 2, 3, 4)
    asked: list[tuple[int, ...]] = []
    for _ in range(20):
        asked += drive(world, {1, 2, 3, 4}, until=world.clock.now + 5)
        world.publish(500, 501)
    assert set(asked[1::2]) == {(1, 2), (3, 4), (1,), (2,), (3,), (4,)}
    assert set(asked[2::2]) == {(500, 501)}


def test_the_last_attempt_is_marked() -> None:
    """Unreadable objects go to quarantine in a marked attempt, and their earlier rows leave the table. An early mark
    would quarantine objects that a later attempt could still read. Without a mark, an unreadable object would park its
    slot.
    """
    world = settled(max_attempts=3, backoff_seconds=0)
    world.publish(1, 2)
    marked = []
    for _ in range(4):
        marked.append(last_attempt(world, tick := world.tick()))
        (run,) = world.active()
        world.publish(1)
        world.finish(run, failing=frozenset({2}))
    assert marked == [(), (), (), (2,)]
    assert world.keys(tick) == [["2"]]
    world.tick()
    for run in world.active():
        world.finish(run)
    world.tick()
    world.publish(2)
    assert last_attempt(world, world.tick()) == ()


def test_with_one_attempt_every_attempt_is_the_last() -> None:
    """Without the mark, an unreadable object would park its slot after the only attempt, and would not go to
    quarantine. A batch of all slots has no mark, because such a batch cannot quarantine objects.
    """
    world = World(settings=BatchSettings(max_attempts=1))
    world.evaluate()
    assert last_attempt(world, world.tick()) == ()
    for run in world.active():
        world.finish(run)
    world = settled(max_attempts=1)
    world.publish(4)
    assert last_attempt(world, world.tick()) == (4,)


def test_backoff_has_a_ceiling() -> None:
    world = settled(max_attempts=50, backoff_seconds=10, backoff_ceiling_seconds=60)
    world.publish(1)
    for attempts in range(1, 13):
        world.tick()
        (run,) = world.active()
        world.finish(run, failing=frozenset({1}))
        world.tick()
        assert world.state.failing[1].attempts == attempts
        assert world.state.failing[1].not_before_ms <= world.clock.wall_ms() + 60_000
        world.clock.sleep(60)
