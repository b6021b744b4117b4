"""A source that `ContinuousIngest` reads without Spark. Tasks run in this process, and a test can let batches fail."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import pytest

from s3notify_platform.engine.driver import Ingest
from s3notify_platform.engine.values.slot_plan import Plan
from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.source.source import Source
from s3notify_platform.spark.continuous import ContinuousIngest
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.snapshot import Snapshot
from tests.support.local_jobs import LocalJobs
from tests.support.sources import source_of

POISON = Slot(7)


@dataclass(slots=True, kw_only=True)
class Site:
    """A source with 20 slots, and an ingest of it without Spark."""

    source: Source
    store: S3ObjectStore
    planned: list[set[int]] = field(default_factory=list)
    """The slots of each plan that was made."""
    fails: list[Exception] = field(default_factory=list)
    """The exceptions that the next batches raise."""
    before_plan: list[Callable[[], object]] = field(default_factory=list)
    """The functions to call right before the next plans, one for each plan. The last function is called first."""
    poisoned: bool = False
    said: list[str] = field(default_factory=list)

    @property
    def publisher(self) -> Publisher:
        location = self.source.location
        return Publisher(self.store, prefix=location.keyspace_prefix, slots=location.slots)

    def ingest(self, spark: Any = None) -> ContinuousIngest:
        return ContinuousIngest(
            spark=spark, source=self.source, later=lambda *_: None, progress=self.said.append, list_seconds=7
        )

    def committed(self) -> set[Slot]:
        found = self.newest()
        slots = found.manifest.slots.items() if found else ()
        return {slot for slot, facts in slots if facts.generation}

    def newest(self) -> Snapshot | None:
        found = self.source.table().newest()
        return found if isinstance(found, Snapshot) else None

    def failing(self, slot: Slot) -> set[str]:
        found = self.newest()
        states = self.source.table().states
        return {*states.failing(found.manifest.states, [slot]).get(slot, {})} if found else set()


class Works:
    """A replacement for a Spark session, which supports only the check whether the session works."""

    def range(self, number: int) -> "Works":
        return self

    def count(self) -> int:
        return 1


class Rests(Event):
    """An event that is set after a number of waits. It records the duration of each wait, and calls a function at
    each wait.
    """

    def __init__(self, most: int, then: Callable[[int], object] = lambda _: None) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._most = most
        self._then = then

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        self._then(len(self.seconds))
        if len(self.seconds) >= self._most:
            self.set()
        return self.is_set()


@contextmanager
def running_site(config: S3Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site in this bucket."""
    source = source_of(
        bucket=config,
        platform=config,
        name="orders",
        prefix="raw/",
        format="jsonl",
        slots=20,
        commit="native",
    )
    site = Site(source=source, store=S3ObjectStore(config))

    class Jobs(LocalJobs):
        def plan(self, slots: Iterable[Slot], *base: Any, **arguments: Any) -> Plan:
            site.planned.append({*slots})
            if site.before_plan:
                site.before_plan.pop()()
            if site.poisoned and POISON in site.planned[-1]:
                raise CorruptError("each run with this slot fails")
            return super().plan(site.planned[-1], *base, **arguments)

    def ingest(_spark: Any, source: Source, *, clock: Clock, **_: Any) -> Ingest:
        if site.fails:
            raise site.fails.pop()
        return Ingest(jobs=Jobs(source=source), source=source, clock=clock)

    monkeypatch.setattr("s3notify_platform.spark.continuous.spark_ingest", ingest)
    yield site
    site.store.close()
