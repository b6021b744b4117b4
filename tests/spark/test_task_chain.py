"""Tasks say themselves what they have read and staged, and the driver commits nothing else."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from s3notify_platform.ingest import splits as splitting
from s3notify_platform.ingest.task_chain import TaskChain, task_chains
from s3notify_platform.protocols.ack_chain import ChainState
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.slots import Slot
from s3notify_platform.spark import jobs as staging_jobs
from tests.contracts.fault_proxy import FaultProxy
from tests.support.servers import S3Server
from tests.support.spark import Lake

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.fixture
def filled(lake: Lake) -> Lake:
    """12 objects over the 8 slots."""
    lake.put_many({f"{n}.jsonl": b'{"a": %d}\n' % n for n in range(12)})
    return lake


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TaskChain]]:
    """Chains of jobs, not forgotten."""
    chains: list[TaskChain] = []

    def keep(chain: TaskChain) -> None:
        chains.append(chain)

    monkeypatch.setattr(TaskChain, "forget", keep)
    return chains


PART = 1000

BODIES = {
    "big.jsonl": b"".join(b'{"a": %d}\n' % n for n in range(400)),
    "big.csv": b"a,b\n" + b"".join(b'%d,"x\n""y"\n' % n for n in range(400)),
}


@pytest.fixture
def cutting(lake_of: Callable[..., Lake]) -> Lake:
    """A lake of one slot, whose objects are read in parts from 1000 bytes on."""
    return lake_of(slots=1, format="auto", schema="a bigint", split_bytes=PART)


def seen(chain: TaskChain) -> ChainState:
    return chain.chains().state(chain.chain)


@pytest.mark.parametrize("transformed", [False, True])
def test_each_slot_is_ended_by_the_task_that_staged_it(
    filled: Lake, kept: list[TaskChain], transformed: bool
) -> None:
    """In both kinds of job: the chain is acked, and belongs to the run. Objects are named if other tasks read them."""
    result = filled.ingest(transform=(lambda frame: frame) if transformed else None, run="run-7")
    (chain,) = kept
    state = seen(chain)
    assert (state.status, state.missing) == ("acked", ())
    committed = [r for r in result.slots.values() if r.status == "committed"]
    objects = {f"{r.slot}/{n}" for r in committed for n in range(r.objects)} if transformed else set()
    assert set(state.children) == {str(r.slot) for r in committed} | objects
    assert chain.chain.tag.startswith("run-7/")
    assert result.tasks >= 1
    filled.check()


@pytest.mark.thorough
@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("key", BODIES)
def test_a_big_object_ends_and_its_parts_begin(
    cutting: Lake, kept: list[TaskChain], key: str, transformed: bool
) -> None:
    """Each is ended by the task that read it; an object that stays whole has no parts."""
    body = BODIES[key]
    cutting.put_many({key: body, "small.jsonl": b'{"a": 7}\n'})
    (result,) = cutting.ingest(transform=(lambda frame: frame) if transformed else None).slots.values()
    assert (result.status, result.rows) == ("committed", 401)
    (state,) = map(seen, kept)
    assert (state.status, state.missing) == ("acked", ())
    parts = {f"0/0/{n}" for n in range(-(-len(body) // PART))}
    assert len(parts) > 3
    assert set(state.children) == {"0", "0/0", "0/1"} | parts


@pytest.mark.thorough
def test_big_objects_that_stay_whole(cutting: Lake, kept: list[TaskChain]) -> None:
    """CSV with quotes out of place is one child, and so is an object that cannot be read; both come to an end."""
    cutting.put("big.csv", b"a,b\n" + b'1,x"y\n' * 400)
    cutting.put("odd.parquet", b"no Parquet" * 400)
    cutting.ingest()
    (state,) = map(seen, kept)
    assert state.status == "acked"
    assert {name for name in state.children if not name.startswith("0/1/")} == {"0", "0/0", "0/1"}


@pytest.mark.thorough
def test_a_slot_with_much_more_to_read_than_others(
    lake_of: Callable[..., Lake], kept: list[TaskChain], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its objects are assigned to several tasks, so they are named."""
    monkeypatch.setattr(splitting, "TASK_BYTES", 1 << 20)
    lake = lake_of(slots=2)
    slots = {f"{n}.jsonl": lake.slot(f"{n}.jsonl") for n in range(40)}
    few = [key for key, slot in slots.items() if slot == 0][:1]
    many = [key for key, slot in slots.items() if slot == 1][:9]
    lake.put_many(dict.fromkeys(few, b'{"a": 1}\n') | dict.fromkeys(many, b'{"a": 1}\n' * 50_000))
    lake.ingest()
    (state,) = map(seen, kept)
    assert state.status == "acked"
    assert set(state.children) == {"0", "0/0", "1"} | {f"1/{n}" for n in range(9)}
    lake.check()


@pytest.mark.thorough
def test_too_many_children(cutting: Lake, kept: list[TaskChain], monkeypatch: pytest.MonkeyPatch) -> None:
    """Then slots alone are, as in a job whose tasks stage what they read."""
    monkeypatch.setattr(staging_jobs, "CHILDREN_MAX", 8)
    cutting.put_many(BODIES)
    (result,) = cutting.ingest().slots.values()
    assert result.rows == 800
    (state,) = map(seen, kept)
    assert (state.status, state.children) == ("acked", ("0",))


def test_one_stamp_for_each_task(spark: SparkSession, ministack: S3Server) -> None:
    """However many objects and parts there are: one to begin all parts, one for each task that reads or stages."""
    config = ministack.config(ministack.make_bucket())
    with FaultProxy(ministack.endpoint_url) as proxy:
        lake = Lake.of(spark, config, slots=1, schema="a bigint", split_bytes=PART)
        for name in "abcde":
            lake.put(f"{name}.jsonl", BODIES["big.jsonl"])
        lake.put_many({f"{n}.jsonl": b'{"a": 1}\n' for n in range(20)})
        through = lake.with_source(platform=replace(config, endpoint_url=proxy.url))
        (result,) = through.ingest().slots.values()
        assert result.rows == 2020
        puts = [r for r in proxy.answered if r.method == "PUT" and "/records/ack.2etasks/" in r.path]
        writes = [r for r in puts if r.status == 200 and b"1 live " in r.body]
    kinds = ["opened", "parts begun", "read", "read", "staged", "closed"]  # and forgotten
    assert len(writes) == len(kinds), [(r.path, r.body[:40]) for r in puts]


def test_nothing_is_left_behind(filled: Lake) -> None:
    """The chain goes with its job."""
    filled.ingest()
    assert list(task_chains(filled.source.location.records()).tags()) == []


def test_a_slot_that_no_task_has_answered_for_is_not_committed(
    filled: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although a row for it arrived; the others are, and the next run takes it in."""
    slot = filled.slot("0.jsonl")
    monkeypatch.setattr(TaskChain, "missing", lambda _: frozenset({slot}))
    result = filled.ingest()
    assert [s for s, r in result.slots.items() if r.status == "failed"] == [slot]
    assert "come to its end" in result.slots[slot].error
    assert filled.history(slot) == []
    monkeypatch.undo()
    filled.ingest()
    filled.check()


@pytest.mark.thorough
def test_a_slot_with_a_part_that_no_task_has_answered_for_is_not_committed(
    lake_of: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the slot was staged; another slot of the job is, and the next run takes it in."""
    lake = lake_of(slots=2, schema="a bigint", split_bytes=PART)
    keys = {lake.slot(f"{n}.jsonl"): f"{n}.jsonl" for n in range(20)}
    lake.put_many(dict.fromkeys(keys.values(), BODIES["big.jsonl"]))
    cut = TaskChain.cut

    def forgetful(chain: TaskChain, objects: Mapping[str, str], work: Sequence[Split]) -> list[str]:
        """Its task gets another part in its place."""
        names = cut(chain, objects, work)
        assert "1/0/2" in names
        return ["1/0/1" if name == "1/0/2" else name for name in names]

    monkeypatch.setattr(TaskChain, "cut", forgetful)
    result = lake.ingest()
    assert {slot: r.status for slot, r in result.slots.items()} == {0: "committed", 1: "failed"}
    assert "come to its end" in result.slots[Slot(1)].error
    assert lake.history(Slot(1)) == []
    monkeypatch.undo()
    assert lake.ingest().slots[Slot(1)].rows == 400
    lake.check()


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["failed", "deleted"])
@pytest.mark.parametrize("big", [False, True])
def test_a_task_that_cannot_say_so_fails_and_does_not_hang(
    filled: Lake, monkeypatch: pytest.MonkeyPatch, how: str, big: bool
) -> None:
    """The chain was failed, or is gone: the job fails with the reason, and nothing is committed.

    Where objects are big, it is the driver that cannot say that their parts begin.
    """
    if big:
        filled = filled.with_source(split_bytes=4)
    opened = TaskChain.opened.__func__

    def broken(cls: type[TaskChain], *args: object, **kwargs: object) -> TaskChain:
        chain = opened(cls, *args, **kwargs)
        if how == "failed":
            chain.chains().fail(chain.chain, "out of time")
        else:
            chain.chains().delete(chain.chain)
        return chain

    monkeypatch.setattr(TaskChain, "opened", classmethod(broken))
    slot = filled.slot("0.jsonl")
    result = filled.ingest([slot])
    assert result.slots[slot].status == "failed"
    assert ("out of time" if how == "failed" else "was forgotten") in result.slots[slot].error
    assert filled.history(slot) == []


def test_progress_is_reported_while_the_job_runs(lake: Lake) -> None:
    """From the chain, which anybody can read."""
    chain = TaskChain.opened(lake.source, "run", lake.source.location.all_slots())
    chain.stamp(map(str, lake.source.location.all_slots()[:3]), lake.store)
    messages: list[str] = []
    heard = threading.Event()

    def progress(message: str) -> None:
        messages.append(message)
        heard.set()

    with chain.watched(progress, seconds=0.01):
        assert heard.wait(10)
    assert messages[0] == "3 of 8 slots staged"
    assert chain.missing() == set(lake.source.location.all_slots()[3:])
