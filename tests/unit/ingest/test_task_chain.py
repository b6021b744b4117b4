"""Chains of jobs: whose they are, and that those of the dead are removed."""

import random

import pytest

from s3notify_platform.ingest.task_chain import (
    CHILDREN_MAX,
    TASKS,
    forget_ended,
    object_children,
    progress_of,
    task_chains,
)
from s3notify_platform.ports import Record, Version
from s3notify_platform.protocols.ack_chain import Acked
from s3notify_platform.protocols.ack_chain.records import head_key, seen, stamp_record
from s3notify_platform.protocols.source_enumerator import ObjectVersion, Split
from s3notify_platform.slots import Slot
from s3notify_platform.stores.memory import MemoryRecordStore


def test_chains_of_runs_that_ended_are_removed():
    """Open or done; a living run's stay, and batches' chains are not looked at."""
    records = MemoryRecordStore()
    chains = task_chains(records)
    for tag in ("dead/1", "dead/2", "alive/1"):
        chains.open_batch(tag, ["1", "2"])
    assert chains.stamp_children("dead/2", ["1", "2"]) == Acked()
    assert forget_ended(records, lambda run: run == "dead") == 2
    assert list(chains.tags()) == ["alive/1"]
    assert forget_ended(records, lambda run: run == "dead") == 0


def test_a_repeated_or_speculated_task_changes_nothing():
    """It stamps the same slots, before or after the others."""
    chains = task_chains(MemoryRecordStore())
    chains.open_batch("run/1", ["1", "2", "3"])
    chains.stamp_children("run/1", ["1", "2"])
    chains.stamp_children("run/1", ["1", "2"])
    assert chains.state("run/1").missing == ("3",)


def test_objects_are_numbered_slot_by_slot():
    """In the order in which the slot's changes name them."""
    splits = [
        Split(version=ObjectVersion(slot=Slot(slot), key=key, etag="e", size=1), start=0, end=1)
        for slot, key in ((7, "x"), (3, "y"), (7, "b"))
    ]
    assert object_children(splits) == {"x": "7/0", "y": "3/0", "b": "7/1"}


def test_progress_counts_parts_in_place_of_the_objects_that_were_cut():
    """And objects only where they are named."""
    chains = task_chains(MemoryRecordStore())
    chains.open_batch("slots", ["1", "2", "3"])
    chains.stamp_children("slots", ["2"])
    assert progress_of(chains.state("slots")) == "1 of 3 slots staged"
    chains.open_batch("objects", ["1", "2", "1/0", "1/1", "2/0"])
    chains.stamp_children("objects", ["1/1"])
    assert progress_of(chains.state("objects")) == "0 of 2 slots staged, 1 of 3 objects read"
    chains.stamp_children("objects", ["1/0"], starts=["1/0/0", "1/0/1", "1/0/2"])
    chains.stamp_children("objects", ["1/0/2"])
    expected = "0 of 2 slots staged, 2 of 5 objects and parts of big ones read"
    assert progress_of(chains.state("objects")) == expected
    chains.stamp_children("objects", chains.state("objects").missing)
    expected = "2 of 2 slots staged, 5 of 5 objects and parts of big ones read"
    assert progress_of(chains.state("objects")) == expected


@pytest.mark.parametrize("slots", [1, 10, 1000])
@pytest.mark.parametrize("parts", [0, 2, 3, 50])
def test_the_largest_record_that_falls_to_pieces(slots: int, parts: int) -> None:
    """Stays far below the 400 KB that a record may have, whichever half of its children a stamp ends."""
    children = [str(999 - n) for n in range(slots)]
    begun = []
    for number in range((CHILDREN_MAX - slots) // (1 + parts)):
        name = f"{999 - number % slots}/{number // slots}"
        children.append(name)
        begun += [f"{name}/{part}" for part in range(parts)]
    records = MemoryRecordStore()
    chains = task_chains(records)
    chain = chains.open_batch("run/1", children)
    assert len(records.read(TASKS, head_key("run/1")).value) < 100_000
    start, value = stamp_record(chain, [], begun)
    first = Record(key=start, value=value, version=Version("1"))
    every = [*children, *begun]
    halves = (every[::2], every[1::2], random.Random(7).sample(every, len(every) // 2))
    for ended in halves:
        key, value = stamp_record(chain, ended, [])
        assert len(key.rpartition("\0")[2]) < 350
        assert len(value) < 50_000
        found = seen(chain, [first, Record(key=key, value=value, version=Version("2"))])
        assert found.children == frozenset(every)
        assert found.missing == frozenset(every) - frozenset(ended)
