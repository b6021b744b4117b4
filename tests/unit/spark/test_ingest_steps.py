"""The steps of `s3notify ingest` after a commit: which slots wait in the backlog, and the content of the backlog."""

from collections.abc import Callable

import pytest

from s3notify_platform.engine.batch.list_or_follow import Decision
from s3notify_platform.engine.loop import Round, close
from s3notify_platform.engine.values.results import SlotResult
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, unique_name
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.keyspace import signal_key
from s3notify_platform.protocols.source_enumerator import Failed, RescanBacklog, Rescans
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.source.source import Source
from s3notify_platform.spark.ingest_steps import IngestSteps
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.kinds import KINDS
from s3notify_platform.stores.open_store import open_store
from tests.support.clocks import HandClock
from tests.support.raw_search import holding
from tests.support.slot_rounds import source_in
from tests.support.toy_store import TOY

KEY = "raw/it's person4711.jsonl"
GOOD, BAD, PART, MENDED, OLD = map(Slot, range(5))


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setitem(KINDS, "toy", TOY)
    return source_in(S3Config(bucket=unique_name(SYSTEM_CLOCK), scheme="toy"))


def done(source: Source) -> Round:
    """One slot is committed, one failed, one was not read to its end, and one no longer fails."""
    unread = {KEY: f"403 for {KEY} ({KEY!r})", "raw/other": "timed out"}
    results = {slot: SlotResult(slot=slot, status="committed") for slot in (GOOD, MENDED)}
    results[PART] = SlotResult(slot=PART, status="committed", complete=False)
    results[BAD] = SlotResult(
        slot=BAD, status="committed", failed_objects=unread, traces={KEY: f"Error: {KEY!r} is bad"}
    )
    return Round(tables=iter(()), unannounced=1, results={source.name: results})


def steps_of(
    source: Source,
    decision: Decision,
    clock: HandClock,
    later: list[tuple[float, Callable[[], None]]],
    said: list[str],
) -> IngestSteps:
    backlog = RescanBacklog(source.location.records(), clock=clock)
    before = Failed(attempts=2, not_before_ms=0, reason="before")
    backlog.note_failed({BAD: before, MENDED: before})
    backlog.add([OLD])
    rescans = backlog.read()
    backlog.add([GOOD])  # after the backlog was read
    return IngestSteps(
        source=source,
        backlog=backlog,
        decision=decision,
        rescans=rescans,
        settings=BatchSettings(backoff_seconds=10.0),
        clock=clock,
        progress=said.append,
        later=lambda seconds, call: later.append((seconds, call)),
    )


def test_failures_are_kept_without_keys(clock: HandClock, source: Source) -> None:
    """Otherwise `erase` would leave keys of unreadable objects in the backlog. Only the process's
    log may have these keys.
    """
    said: list[str] = []
    slots = frozenset({GOOD, BAD, PART, MENDED})
    steps = steps_of(source, Decision(how="follow", topic="e", slots=slots), clock, [], said)
    close(done(source), steps)
    assert holding(open_store(source.location.platform), KEY, "person4711") == set()
    failed = steps.backlog.read().failed
    assert failed.keys() == {BAD}
    assert (failed[BAD].attempts, failed[BAD].trace) == (3, 'Error: "…" is bad')
    assert failed[BAD].reason.startswith("2 of its objects could not be read: 403 for …")
    assert failed == steps.failed
    assert any(KEY in line or repr(KEY) in line for line in said)


def test_failed_and_unfinished_slots_wait_in_the_backlog(clock: HandClock, source: Source) -> None:
    """Otherwise the unread objects of such slots would be ingested only after another change or the next sweep. Without
    a listing, no slot leaves the backlog. The failed slot is requested again after its backoff.
    """
    later: list[tuple[float, Callable[[], None]]] = []
    slots = frozenset({GOOD, BAD, PART, MENDED})
    steps = steps_of(source, Decision(how="follow", topic="e", slots=slots), clock, later, [])
    close(done(source), steps)
    assert steps.backlog.read().slots.keys() == {GOOD, BAD, PART, MENDED, OLD}
    ((seconds, call),) = later
    assert seconds == pytest.approx(BatchSettings(backoff_seconds=10.0).retry_seconds(3))
    key = signal_key(source.location.keyspace_prefix, BAD)
    store = open_store(source.location.platform)
    assert store.head(key) is None
    call()
    assert store.head(key) is not None


def test_a_listing_settles_the_slots_that_waited_before_it(clock: HandClock, source: Source) -> None:
    """Otherwise each later batch would list the bucket for slots that are already compared. Three kinds of
    slots must stay, because they still need work: failed slots, unfinished slots, and slots that were added
    after the read of the backlog.
    """
    steps = steps_of(source, Decision(how="everything", topic="e"), clock, [], [])
    close(done(source), steps)
    rescans: Rescans = steps.backlog.read()
    assert rescans.slots.keys() == {GOOD, BAD, PART}
    assert rescans.enumerated == "e"
    assert not rescans.unqueued_ms, "unannounced changes are normal if everything is compared"


def test_unqueued_writer_is_noted(clock: HandClock, source: Source) -> None:
    clock.sleep(1)
    steps = steps_of(source, Decision(how="rescan", topic="e", slots=frozenset({GOOD})), clock, [], [])
    close(Round(tables=iter(()), unannounced=1, results={source.name: {}}), steps)
    assert steps.backlog.read().unqueued_ms
