"""Tasks say themselves what they have sealed, and the driver commits nothing else."""

import threading
from collections.abc import Iterator

import pytest

from s3notify_platform.spark.task_chain import TaskChain, task_chains
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


@pytest.mark.parametrize("transformed", [False, True])
def test_each_slot_is_ended_by_the_task_that_sealed_it(
    filled: Lake, kept: list[TaskChain], transformed: bool
) -> None:
    """In both kinds of job: the chain is acked, and belongs to the run."""
    result = filled.ingest(transform=(lambda frame: frame) if transformed else None, run="run-7")
    (chain,) = kept
    state = chain.chains().state(chain.tag)
    assert (state.status, state.missing) == ("acked", ())
    assert set(state.children) == {str(slot) for slot, r in result.slots.items() if r.status == "committed"}
    assert chain.tag.startswith("run-7/")
    assert result.tasks >= 1
    filled.check()


def test_nothing_is_left_behind(filled: Lake) -> None:
    """The chain goes with its job."""
    filled.ingest()
    assert list(task_chains(filled.source.records()).states()) == []


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


@pytest.mark.parametrize("how", ["failed", "deleted"])
def test_a_task_that_cannot_say_so_fails_and_does_not_hang(
    filled: Lake, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The chain was given up, or is gone: the job fails with the reason, and nothing is committed."""
    opened = TaskChain.opened.__func__

    def broken(cls: type[TaskChain], *args: object, **kwargs: object) -> TaskChain:
        chain = opened(cls, *args, **kwargs)
        if how == "failed":
            chain.chains().fail(chain.tag, "given up")
        else:
            chain.chains().delete(chain.tag)
        return chain

    monkeypatch.setattr(TaskChain, "opened", classmethod(broken))
    slot = filled.slot("0.jsonl")
    result = filled.ingest([slot])
    assert result.slots[slot].status == "failed"
    assert ("given up" if how == "failed" else "was forgotten") in result.slots[slot].error
    assert filled.history(slot) == []


def test_progress_is_told_while_the_job_runs(lake: Lake) -> None:
    """From the chain, which anybody can read."""
    chain = TaskChain.opened(lake.source, "run", lake.source.all_slots())
    chain.stamp(lake.source.all_slots()[:3], lake.store)
    told: list[str] = []
    heard = threading.Event()

    def progress(message: str) -> None:
        told.append(message)
        heard.set()

    with chain.watched(progress, seconds=0.01):
        assert heard.wait(10)
    assert told[0] == "3 of 8 slots sealed"
    assert chain.missing() == set(lake.source.all_slots()[3:])
