"""(4) From `put` to the materialization in Dagster, on the running platform with the demo's source, warm and cold.

A sample begins some seconds after the run before it has ended, at any moment of Dagster's loop; those of a burst begin
as soon as the one before is materialized. The materialization is that of the slot asset, which comes last.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import yaml
from dagster import AssetKey, AssetRecordsFilter, DagsterInstance, DagsterRunStatus, RunsFilter

from s3notify_platform.local.dagster_dev import INSTANCE
from s3notify_platform.slots import slot_of
from tests.benchmarks.figures import Figure, short
from tests.support.platform import Platform, running

ASSET = AssetKey(["paid_orders"])
_ACTIVE = [DagsterRunStatus[name] for name in ("QUEUED", "STARTING", "STARTED")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Seconds after the return of `put`."""

    requested: float
    started: float
    materialized: float
    process: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    platform: Platform
    instance: DagsterInstance

    def sample(self, number: int) -> Sample:
        key = f"raw/orders/latency {number}.jsonl"
        self.platform.publisher.put(key, _body(number))
        returned = time.time()
        wanted = AssetRecordsFilter(ASSET, asset_partitions=[str(slot_of(key))], after_timestamp=returned)
        self.platform.until(
            "materialization", lambda: self.instance.fetch_materializations(wanted, limit=1).records
        )
        (found,) = self.instance.fetch_materializations(wanted, limit=1, ascending=True).records
        (record,) = self.instance.get_run_records(RunsFilter(run_ids=[found.run_id]))
        said = [event.message for event in self.instance.all_logs(found.run_id)]
        return Sample(
            requested=record.create_timestamp.timestamp() - returned,
            started=record.start_time - returned,
            materialized=found.timestamp - returned,
            process=next(text for text in said if text.startswith("Started process")),
        )

    def rest(self) -> None:
        """Until nothing runs, and then for a random part of Dagster's loop."""
        self.platform.until("rest", lambda: not self.instance.get_runs(RunsFilter(statuses=_ACTIVE), limit=1))
        time.sleep(random.uniform(5, 10))


def run(folder: Path, *, small: bool) -> list[Figure]:
    warm_count, burst_count, cold_count = (2, 2, 1) if small else (30, 10, 5)
    with _site(folder / "warm") as site:
        site.platform.until("worker", lambda: "is ready" in site.platform.dagster.log.read_text(), 600)
        warm = [_rested(site, number) for number in range(warm_count)]
        burst = [site.sample(100 + number) for number in range(burst_count)]
    with _site(folder / "cold", cold=True) as site:
        cold = [_rested(site, number) for number in range(cold_count)]
    return [
        _figure("put to materialization, warm", warm),
        _figure("the same in a burst, each put after the materialization before", burst),
        _figure("the same, cold: a process and a Spark for each run", cold),
    ]


def _rested(site: Site, number: int) -> Sample:
    site.rest()
    return site.sample(number)


@contextmanager
def _site(folder: Path, *, cold: bool = False) -> Iterator[Site]:
    if cold:
        settings = yaml.safe_load(INSTANCE)
        del settings["run_launcher"]
        (folder / "dagster").mkdir(parents=True)
        (folder / "dagster" / "dagster.yaml").write_text(yaml.safe_dump(settings))
    with running(folder) as platform, DagsterInstance.from_config(str(platform.dagster.home)) as instance:
        # The first batch enumerates the source; it is not what is measured.
        platform.publisher.put("raw/orders/first.jsonl", _body(0))
        platform.until("first batch", lambda: bool(platform.grid("orders")["materializedPartitions"]))
        yield Site(platform=platform, instance=instance)


def _figure(what: str, samples: list[Sample]) -> Figure:
    whole = [sample.materialized for sample in samples]
    parts = {
        "poll": median(sample.requested for sample in samples),
        "launch": median(sample.started - sample.requested for sample in samples),
        "run": median(sample.materialized - sample.started for sample in samples),
    }
    last = f", 95th percentile {short(quantiles(whole, n=20)[-1])}" if len(whole) > 1 else ""
    processes = len({sample.process for sample in samples})
    shown = ", ".join(f"{name} {short(took)}" for name, took in parts.items())
    ours = f"median of {len(whole)} {short(median(whole))}{last}; {shown}; {processes} processes"
    return Figure(what=what, ours=ours, instead="–", ratio="–")


def _body(number: int) -> bytes:
    return b'{"order_id": %d, "customer": "ada", "amount": "5.00", "at": "2026-01-01T00:00:00Z"}\n' % number
