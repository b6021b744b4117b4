"""Derived tables, compared with their source after any sequence of puts, overwrites and deletes. Rows may come late,
and may have equal times.

Some objects cannot be read: they go to quarantine, and the next-newest rows of their keys come back.

A table of newest rows must equal the result of a window function over all rows. A clustered table must have all rows.
The sequence contains rounds of the source, kills, erasures, rollbacks, compactions, and steps of any size.
"""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import NotFoundError
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.maintenance.table_erasure import erase
from s3notify_platform.maintenance.table_rollback import roll_back
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.snapshot import Absent
from tests.support.clocks import HandClock
from tests.support.faults import Call, CrashedError, Fault, FaultyStore
from tests.support.keyed_rounds import (
    CLUSTERED,
    NEWEST,
    KeyedRounds,
    clustered_rows,
    following,
    other_table,
    shown,
    window,
)
from tests.support.log_rounds import FAILS, Bucket, slot_of_key

numbers = st.lists(st.integers(1, 120).filter(lambda n: n % 3), max_size=3).map(tuple)
keys = st.builds("{}{}".format, st.sampled_from("abc"), st.integers(0, 1))
buckets = st.dictionaries(keys, st.tuples(st.sampled_from(["x", "y", FAILS]), numbers), max_size=5)
actions = st.sampled_from(
    ["follow", "follow", "wait", "kill", "erase", "roll back", "compact", "compact both"]
)
steps = st.lists(st.tuples(buckets, actions, st.integers(0, 8)), min_size=1, max_size=7)
limits = st.sampled_from([{}, {"step_objects": 2}, {"step_bytes": 3000}, {"step_memory": 20_000}])


QUARANTINED = [
    ({"a0": ("x", (1,)), "b0": ("x", (17,))}, "follow", 0),
    ({"a0": ("x", (1,)), "b0": (FAILS, (17,))}, "follow", 0),
]
"""Steps in which the newest row of a key leaves the table, because the row's object goes to quarantine."""


def read_in(bucket: Bucket) -> set[str]:
    """The objects that have rows."""
    return {key for key, (etag, numbers) in bucket.items() if numbers and not etag.startswith(FAILS)}


def content(bucket: Bucket) -> Bucket:
    """Gives each version of an object a unique ETag."""
    return {key: (f"{etag}{numbers}", numbers) for key, (etag, numbers) in bucket.items()}


@pytest.mark.parametrize("name", [NEWEST, CLUSTERED])
@pytest.mark.parametrize("vectors", [False, True])
@settings(deadline=None)
@given(steps=steps, limits=limits)
@example(steps=QUARANTINED, limits={})
def test_a_derived_table_equals_its_source(
    vectors: bool, name: str, steps: list[Any], limits: dict[str, int]
) -> None:
    clock = HandClock()
    store = MemoryObjectStore(clock=clock)
    source = KeyedRounds(store=store, clock=clock, vectors=vectors, more={"max_run_seconds": 1000.0})
    source.table.opened()
    for bucket, action, number in steps:
        source.commit(source.planned(content(bucket)))
        assert {row["_key"] for row in source.rows()} == read_in(bucket)
        clock.sleep(1)
        match action:
            case "kill":
                dying = following(name, source, FaultyStore(store, after_writes(number)), **limits)
                with suppress(CrashedError):
                    dying.follow()
            case "erase":
                key = sorted(bucket)[number % len(bucket)] if bucket else "a0"
                erase(source.whole, slot_of_key(key), key, clock=clock)
            case "roll back":
                newest = source.table.opened().version
                with suppress(NotFoundError):  # the version was erased
                    roll_back(source.whole, max(0, newest - number))
            case "compact":
                compact(source.whole)
            case "compact both":
                compact(source.whole)
                following(name, source, **limits).follow()
                compact(other_table(name, store, clock=clock, vectors=vectors))
            case _:
                pass
        if action != "wait":
            following(name, source, **limits).follow()
            check(name, source)
    following(name, source, **limits).follow()
    check(name, source)
    assert following(name, source, **limits).follow().changed == 0


def check(name: str, source: KeyedRounds) -> None:
    """Compares the derived table with its source."""
    table = other_table(name, source.store, clock=source.clock, vectors=source.vectors)
    absent = isinstance(table.newest(), Absent)
    if name == NEWEST:
        assert ({} if absent else shown(table)) == window(source.rows())
    else:
        found = [] if absent else clustered_rows(table)
        assert sorted(found, key=str) == sorted(source.rows(), key=str)


def after_writes(number: int) -> Any:
    """A schedule that crashes after this number of writes."""
    seen = 0

    def schedule(call: Call) -> Fault:
        nonlocal seen
        if call.method in ("put", "delete", "create", "replace"):
            seen += 1
        return Fault.CRASH_AFTER if seen > number else Fault.NONE

    return schedule
