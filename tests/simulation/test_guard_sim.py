"""Runs that commit and note first commits, and die anywhere: a slot is called lost only if it is."""

from s3notify_platform.errors import FencedError, UnavailableError, UnknownOutcomeError
from s3notify_platform.ports import list_all
from s3notify_platform.protocols.source_enumerator import CommittedSlots
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.simulation import ROUGH, run_simulation, simulated
from tests.support.slot_writer import LAYOUT, SLOT, Body, SlotWriter


def committed_in(store, clock):
    return CommittedSlots(ObjectRecordStore(store, "r/", clock=clock), clock=clock)


def one_run(writer, committed, bucket):
    """What a run does, in its order: the guard, the table, the commit, the note. Whether the slot seems lost."""
    known = committed.read()
    planned = writer.plan(bucket)
    if planned.head is None and SLOT in known:
        return True
    commit = writer.stage(planned, bucket)
    made = commit is not None and bool(writer.commit(planned, commit))
    if (planned.head is not None or made) and SLOT not in known:
        committed.add([SLOT])
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
                try:
                    alarms.append(one_run(writer, committed_in(store, clock), bucket))
                except (UnavailableError, UnknownOutcomeError, FencedError):
                    pass
                except AssertionError as error:
                    if "UnavailableError" not in str(error):
                        raise

        return run

    run_simulation([actor(n) for n in range(3)], store, seed, faults=ROUGH)
    assert not any(alarms)
    last = SlotWriter(store=store, name="last")
    committed = CommittedSlots(ObjectRecordStore(store, "r/"))
    while last.plan(bucket).changes:
        assert not one_run(last, committed, bucket)
    assert not one_run(last, committed, bucket), "found committed, it is noted, whoever died before he could"
    assert committed.read() == {SLOT}
    for meta in list(list_all(store, LAYOUT.prefix)):
        store.delete(meta.key)
    assert one_run(last, committed, bucket)
    assert not list(list_all(store, LAYOUT.prefix)), "nothing starts again"
