"""Runs that commit and note what is known, and die anywhere: a slot is called lost only if it is."""

from contextlib import suppress

import pytest

from s3notify_platform.errors import CorruptError, FencedError, UnavailableError, UnknownOutcomeError
from s3notify_platform.ports import Written, list_all
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.known import open_table
from tests.support.simulation import ROUGH, run_simulation, simulated
from tests.support.slot_writer import LAYOUT, SLOT, Body, SlotWriter
from tests.support.tables import IDENTITY, table_sides


def one_run(writer, sides, bucket):
    """What a run does, in its order: open the table, plan, commit, merge. Whether the slot seems to miss commits."""
    table = open_table(sides, IDENTITY)
    planned = writer.plan(bucket)
    generation = planned.head.generation if planned.head else 0
    if generation < table.heads.get(SLOT, 0):
        return True
    commit = writer.stage(planned, bucket)
    if commit is not None and isinstance(writer.commit(planned, commit), Written):
        generation += 1
    table.merge({SLOT: generation})
    return False


@simulated
def test_no_false_alarm_and_no_loss_unnoticed(seed):
    """Three runs race under all faults; then the commits are taken away."""
    store, bucket = MemoryObjectStore(), {"a": Body(etag="1", rows=1)}
    alarms = []

    def actor(number):
        rounds = 0

        def run(store, clock):
            nonlocal rounds
            writer = SlotWriter(store=store, clock=clock, name=f"run {number}")
            while rounds < 4:
                rounds += 1
                bucket[f"{number}"] = Body(etag=f"{rounds}", rows=rounds)
                with suppress(UnavailableError, UnknownOutcomeError, FencedError):
                    alarms.append(one_run(writer, table_sides(store, clock=clock), bucket))

        return run

    run_simulation([actor(n) for n in range(3)], store, seed, faults=ROUGH)
    assert not any(alarms)
    last = SlotWriter(store=store, name="last")
    sides = table_sides(store)
    while last.plan(bucket).changes:
        assert not one_run(last, sides, bucket)
    assert not one_run(last, sides, bucket), "found committed, it is noted, whoever died before he could"
    newest = last.plan(bucket).head.generation
    assert sides.known().heads == {SLOT: newest}
    store.delete(LAYOUT.commit(SLOT, newest))
    assert one_run(last, sides, bucket)
    for meta in list(list_all(store, LAYOUT.prefix)):
        store.delete(meta.key)
    with pytest.raises(CorruptError):
        one_run(last, sides, bucket)
    assert not list(list_all(store, LAYOUT.prefix)), "nothing starts again"
