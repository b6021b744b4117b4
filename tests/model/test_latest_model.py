"""The newest rows against a window over all rows: any sequence of puts, overwrites, deletes, late and equal times.

Beside rounds of the source: kills, erasures, rollbacks, compaction of both tables, steps of any size.
"""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import NotFoundError
from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.maintenance.table_erasure import erase
from s3notify_platform.maintenance.table_rollback import roll_back
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.snapshot import Absent
from tests.support.clocks import HandClock
from tests.support.faults import Call, CrashedError, Fault, FaultyStore
from tests.support.keyed_rounds import KeyedRounds, newest_rows, newest_table, shown, window
from tests.support.log_rounds import Bucket, slot_of_key

numbers = st.lists(st.integers(1, 120).filter(lambda n: n % 3), max_size=3).map(tuple)
keys = st.builds("{}{}".format, st.sampled_from("abc"), st.integers(0, 1))
buckets = st.dictionaries(keys, st.tuples(st.sampled_from("xy"), numbers), max_size=5)
actions = st.sampled_from(
    ["follow", "follow", "wait", "kill", "erase", "roll back", "compact", "compact newest"]
)
steps = st.lists(st.tuples(buckets, actions, st.integers(0, 8)), min_size=1, max_size=7)
limits = st.sampled_from([{}, {"step_objects": 2}, {"step_bytes": 3000}])


def content(bucket: Bucket) -> Bucket:
    """Each version of an object has its own ETag."""
    return {key: (f"{etag}{numbers}", numbers) for key, (etag, numbers) in bucket.items()}


@pytest.mark.parametrize("vectors", [False, True])
@settings(deadline=None)
@given(steps=steps, limits=limits)
def test_as_a_window_over_all_rows(vectors: bool, steps: list[Any], limits: dict[str, int]) -> None:
    clock = HandClock()
    store = MemoryObjectStore(clock=clock)
    source = KeyedRounds(store=store, clock=clock, vectors=vectors, more={"max_run_seconds": 1000.0})
    source.table.opened()
    for bucket, action, number in steps:
        source.commit(source.planned(content(bucket)))
        clock.sleep(1)
        match action:
            case "kill":
                dying = newest_rows(source, FaultyStore(store, after_writes(number)), **limits)
                with suppress(CrashedError):
                    dying.follow()
            case "erase":
                key = sorted(bucket)[number % len(bucket)] if bucket else "a0"
                erase(source.whole, slot_of_key(key), key, clock=clock)
            case "roll back":
                newest = source.table.opened().version
                with suppress(NotFoundError):  # it was erased
                    roll_back(source.whole, max(0, newest - number))
            case "compact":
                compact(source.whole)
            case "compact newest":
                newest_rows(source, **limits).follow()
                compact(newest_table(store, clock=clock, vectors=vectors))
            case _:
                pass
        if action != "wait":
            newest_rows(source, **limits).follow()
            check(source)
    newest_rows(source, **limits).follow()
    check(source)
    assert newest_rows(source, **limits).follow().changed == 0


def check(source: KeyedRounds) -> None:
    table = newest_table(source.store, clock=source.clock, vectors=source.vectors)
    found = {} if isinstance(table.newest(), Absent) else shown(table)
    assert found == window(source.rows())


def after_writes(number: int) -> Any:
    """A crash after so many writes."""
    seen = 0

    def schedule(call: Call) -> Fault:
        nonlocal seen
        if call.method in ("put", "delete", "create", "replace"):
            seen += 1
        return Fault.CRASH_AFTER if seen > number else Fault.NONE

    return schedule
