"""The end of a batch whose runs are silent, killed, never started, or considered dead."""

import pytest

from s3notify_platform.protocols.ack_chain import AlreadyFailed, Stamped
from tests.support.batches import settled


def test_a_started_run_that_stops_sending_heartbeats_is_failed() -> None:
    """Otherwise the run would keep its place in Dagster's queue forever, and the run's slots would never be requested
    again.
    """
    world = settled(silence_seconds=30, backoff_seconds=5)
    world.publish(1)
    world.tick()
    (run,) = world.active()
    world.start(run)
    for _ in range(5):
        world.clock.sleep(20)
        run.beats = (run.beats or 0) + 1
        assert world.tick().silent_runs == ()
    world.clock.sleep(31)
    assert world.tick().silent_runs == (run.run_id,)
    world.clock.sleep(5)
    assert world.keys(world.tick()) == [["1"]]


def test_a_silent_run_is_reported_even_if_another_run_of_the_batch_still_waits() -> None:
    """Otherwise, the silent run would keep the only place in Dagster's queue, and the waiting run could not start."""
    world = settled(silence_seconds=30, parallel_runs=2)
    world.publish(1, 2)
    world.tick()
    first, second = world.active()
    world.start(first)
    world.tick()
    world.clock.sleep(31)
    assert world.tick().silent_runs == (first.run_id,)
    assert world.state.open
    world.finish(second)
    world.tick()
    assert world.state.failing.keys() == set(map(int, first.request.slots))


def test_a_run_that_never_starts_fails_after_the_startup_time() -> None:
    """Dagster may never launch a run, or may never create a requested run. Without a time limit, the run's batch would
    stay open forever, and no other run would read its slots. A wait in Dagster's queue has no time limit.
    """
    world = settled(startup_seconds=180)
    world.publish(1)
    world.tick()
    (run,) = world.active()
    world.clock.sleep(10_000)
    assert world.tick().silent_runs == ()
    run.status, run.beats = "starting", None
    world.tick()
    world.clock.sleep(181)
    assert world.tick().silent_runs == (run.run_id,)

    world = settled(startup_seconds=180)
    world.publish(1)
    tick = world.evaluate()
    assert tick is not None
    world.cursor = tick.state.dumps()
    world.clock.sleep(179)
    world.tick()
    assert world.state.open
    world.clock.sleep(2)
    world.tick()
    assert set(world.state.failing) == {1}


@pytest.mark.parametrize("status", ["starting", "started"])
def test_a_run_that_was_killed_while_it_started_is_failed_like_a_silent_one(status: str) -> None:
    """The run's process ended before the first heartbeat. If only `startup_seconds` counted, the run's slots would wait
    longer than the slots of a silent run. A run that starts slowly or waits in the queue does not count as dead.
    """
    world = settled(silence_seconds=30, startup_seconds=180, backoff_seconds=5)
    world.publish(1)
    world.tick()
    (run,) = world.active()
    run.gone = True
    world.clock.sleep(10_000)
    assert world.tick().silent_runs == ()
    run.status, run.gone = status, False
    world.tick()
    world.clock.sleep(60)
    assert world.tick().silent_runs == ()
    run.gone = True
    assert world.tick().silent_runs == (run.run_id,)
    world.clock.sleep(5)
    assert world.keys(world.tick()) == [["1"]]

    (run,) = world.active()
    run.status, run.gone = status, True
    world.tick()
    world.clock.sleep(29)
    assert world.tick().silent_runs == ()
    world.clock.sleep(1)
    assert world.tick().silent_runs == (run.run_id,)


def test_a_run_that_was_killed_after_its_last_heartbeat_is_failed_too() -> None:
    """The heartbeat's record was removed, but in Dagster the run has not ended. If the run counted as
    starting, its slots would wait for `startup_seconds`, which is longer than `silence_seconds`.
    """
    world = settled(silence_seconds=30, startup_seconds=180)
    world.publish(1)
    world.tick()
    (run,) = world.active()
    world.start(run)
    world.tick()
    run.beats, run.gone = None, True
    world.tick()
    world.clock.sleep(30)
    assert world.tick().silent_runs == (run.run_id,)


def test_a_batch_waits_for_a_run_that_dagster_has_not_created_yet() -> None:
    """Dagster has created only one of two runs. If the end of the created run ended the batch, the slots of the other
    run would count as failed, and would be requested again although the other run starts later.
    """
    world = settled(parallel_runs=2)
    world.publish(1, 2)
    tick = world.evaluate()
    assert tick is not None
    world.launch(tick, only_part=0)
    world.cursor = tick.state.dumps()
    (run,) = world.active()
    world.finish(run)
    world.tick()
    assert world.state.open
    world.launch(tick)
    (run,) = world.active()
    world.finish(run)
    world.tick()
    assert not world.state.open
    assert world.state.failing == {}


def test_a_chain_that_is_acked_during_the_tick_counts_as_done() -> None:
    """The run stamps the batch's chain after the tick has read the chain, and before the tick looks at the run. If the
    batch counted as failed, its committed slots would be requested again.
    """
    world = settled()
    world.publish(1)
    world.tick()
    (run,) = world.active()
    planner = world.planner()
    planner.runs_of = lambda batch: (world.finish(run), world.runs_of(batch))[1]
    tick = planner.tick(world.state)
    assert tick.state.failing == {}
    assert tick.state.open == ()


def test_a_chain_that_was_purged_counts_as_failed() -> None:
    """The chain was purged while the sensor was off for weeks. If the batch counted as done, changes that its runs did
    not commit could stay out of the table.
    """
    world = settled(backoff_seconds=5)
    world.publish(1)
    world.tick()
    (run,) = world.active()
    world.finish(run)
    world.chains.delete(run.request.batch)
    world.tick()
    assert world.state.failing[1].reason == "the batch's ack chain is gone"
    world.clock.sleep(5)
    assert world.keys(world.tick()) == [["1"]]


def test_a_run_taken_for_dead_may_commit() -> None:
    """The run commits after its batch has failed. If the run's stamp counted for the next batch, the next batch could
    end before its own run has looked for later changes.
    """
    world = settled(silence_seconds=30, backoff_seconds=5)
    world.publish(1)
    world.tick()
    (run,) = world.active()
    world.start(run)
    world.tick()
    world.clock.sleep(31)
    world.tick()
    world.finish(run)
    assert world.committed[1] == 1
    assert world.chains.state(run.request.batch).status == "failed"
    world.clock.sleep(5)
    world.tick()
    (second,) = world.active()
    assert second.request.batch != run.request.batch
    late = world.chains.stamp_children(run.request.batch, ["1"], operation_id=run.run_id)
    assert isinstance(late, AlreadyFailed)
    assert world.chains.state(second.request.batch).missing == ("1",)
    assert world.chains.stamp_children(second.request.batch, [], operation_id="x") == Stamped(missing=1)
