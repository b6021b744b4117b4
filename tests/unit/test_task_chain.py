"""Chains of jobs: whose they are, and that those of the dead are removed."""

from s3notify_platform.protocols.ack_chain import Acked
from s3notify_platform.spark.task_chain import forget_ended, task_chains
from s3notify_platform.stores.memory import MemoryRecordStore


def test_chains_of_runs_that_ended_are_removed():
    """Open or done; a living run's stay, and batches' chains are not looked at."""
    records = MemoryRecordStore()
    chains = task_chains(records)
    for tag in ("dead/1", "dead/2", "alive/1"):
        chains.open_batch(tag, ["1", "2"])
    assert chains.stamp_children("dead/2", ["1", "2"]) == Acked()
    assert forget_ended(records, lambda run: run == "dead") == 2
    assert [state.tag for state in chains.states()] == ["alive/1"]
    assert forget_ended(records, lambda run: run == "dead") == 0


def test_a_repeated_or_speculated_task_changes_nothing():
    """It stamps the same slots, before or after the others."""
    chains = task_chains(MemoryRecordStore())
    chains.open_batch("run/1", ["1", "2", "3"])
    chains.stamp_children("run/1", ["1", "2"])
    chains.stamp_children("run/1", ["1", "2"])
    assert chains.state("run/1").missing == ("3",)
