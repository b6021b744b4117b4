"""(4) The time from `put` to committed data, with the demo's source: on the running platform, with warm and with cold
runs, and without Dagster.

With Dagster a sample ends with the materialization of the slot asset, which is the last step. A sample with `s3notify
ingest`, which builds no slot asset, ends with the commit. Warm and cold samples begin some seconds after the end of the
preceding run, at a random point of Dagster's loop. Samples of a burst begin half a second apart, even while runs are in
flight. The first batch is a warm-up. With warm workers, and with `ingest`, the second batch is also a warm-up.
"""

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from operator import sub
from pathlib import Path
from statistics import median, quantiles
from threading import Thread

import yaml
from dagster import AssetKey, AssetRecordsFilter, DagsterInstance, DagsterRunStatus, RunsFilter

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.slots import SLOT_COUNT, Slot, slot_of
from s3notify_platform.local.dagster_dev import INSTANCE, storage
from s3notify_platform.local.java import java_environment
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.keyspace import Publisher, Put
from s3notify_platform.source.source import Source
from s3notify_platform.stores.s3.fast import FastObjectStore
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.snapshot import Snapshot
from tests.benchmarks.figures import Figure, Seconds, short, timed
from tests.benchmarks.lake import DDL, body_of, followed
from tests.benchmarks.slow_proxy import FAR, slow_proxy
from tests.support.platform import BUCKET, Platform, running
from tests.support.sources import source_of
from tests.support.waiting import until

ASSET = AssetKey(["paid_orders"])
BURST_SECONDS = 0.5
EVERY_SECONDS = 0.3
"""The seconds between two polls of `s3notify ingest`, as many as between two polls of a sensor that watches.

The default interval of `s3notify ingest` is 10 s, which needs fewer requests.
"""
_ACTIVE = [DagsterRunStatus[name] for name in ("QUEUED", "STARTING", "STARTED")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sample: the seconds of its phases, in order."""

    phases: dict[str, float]
    process: str = ""

    @property
    def whole(self) -> float:
        return sum(self.phases.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    platform: Platform
    instance: DagsterInstance
    numbers: Iterator[int] = field(default_factory=count)

    def put(self) -> tuple[str, float]:
        """Writes a new object; returns its key, and the time at which `put` returned."""
        number = next(self.numbers)
        key = f"raw/orders/latency {number}.jsonl"
        self.platform.publisher.put(key, _body(number))
        return key, time.time()

    def sample(self) -> Sample:
        self.rest()
        return self.ended(*self.put())

    def burst(self, changes: int) -> list[Sample]:
        began, put = time.monotonic(), []
        for number in range(changes):
            time.sleep(max(0.0, began + number * BURST_SECONDS - time.monotonic()))
            put.append(self.put())
        return [self.ended(*each) for each in put]

    def ended(self, key: str, returned: float) -> Sample:
        """Waits until the object's slot is materialized."""
        wanted = AssetRecordsFilter(ASSET, asset_partitions=[str(slot_of(key))], after_timestamp=returned)
        self.platform.until(
            "materialization", lambda: self.instance.fetch_materializations(wanted, limit=1).records
        )
        (found,) = self.instance.fetch_materializations(wanted, limit=1, ascending=True).records
        (record,) = self.instance.get_run_records(RunsFilter(run_ids=[found.run_id]))
        said = [event.message for event in self.instance.all_logs(found.run_id)]
        created = record.create_timestamp.timestamp()
        return Sample(
            phases={
                "poll": created - returned,
                "launch": record.start_time - created,
                "run": found.timestamp - record.start_time,
            },
            process=next(text for text in said if text.startswith("Started process")),
        )

    def rest(self) -> None:
        """Waits until no run is active, and then for a random part of the interval of Dagster's loop."""
        self.platform.until("rest", lambda: not self.instance.get_runs(RunsFilter(statuses=_ACTIVE), limit=1))
        time.sleep(random.uniform(2, 7))

    def backfill(self) -> tuple[float, float]:
        """Gives every slot an object, and waits until all slots are committed. Then runs a backfill of all slots in one
        run.

        Returns the seconds of this run, and the seconds of its reports.
        """
        keys = {slot_of(key): key for n in range(20 * SLOT_COUNT) if (key := f"raw/orders/all {n}.jsonl")}
        self.platform.publisher.publish([Put(key=key, body=_body(slot)) for slot, key in keys.items()])
        grid = "materializedPartitions"
        self.platform.until("all slots", lambda: len(self.platform.grid("orders")[grid]) == SLOT_COUNT, 600)
        self.rest()
        run_id = self.platform.launch("orders_ingest", ["orders", ASSET.path[0]], {"choose": "all"})
        ended = RunsFilter(run_ids=[run_id], statuses=[DagsterRunStatus.SUCCESS])
        self.platform.until("backfill", lambda: self.instance.get_runs(ended), 600)
        (run,) = self.instance.get_run_records(ended)
        said = "\n".join(event.user_message for event in self.instance.all_logs(run.dagster_run.run_id))
        (reporting,) = re.findall(r"report (\d+\.\d) s", said)
        return run.end_time - run.start_time, float(reporting)


def run(folder: Path, *, small: bool) -> list[Figure]:
    many, changes, few = (2, 3, 1) if small else (30, 10, 3)
    figures = []
    with _site(folder / "warm") as site:
        site.platform.until("worker", lambda: "is ready" in site.platform.dagster.log.read_text(), 600)
        site.ended(*site.put())
        spent, warm = timed(lambda: [site.sample() for _ in range(many)])
        figures.append(_figure("put to materialization, warm", warm, spent))
        site.rest()
        spent, burst = timed(lambda: site.burst(changes))
        figures.append(_figure(f"the same, a burst: {changes} changes {BURST_SECONDS} s apart", burst, spent))
        whole, reporting = site.backfill()
        figures.append(
            Figure(
                what=f"backfill of {SLOT_COUNT:,} slots, nothing changed: reporting both assets of each slot",
                ours=f"{short(reporting)} for {2 * SLOT_COUNT:,} events, of a run of {short(whole)}",
                instead="–",
                ratio="–",
            )
        )
    with _site(folder / "far", way=slow_proxy) as site:
        site.ended(*site.put())
        spent, far = timed(lambda: [site.sample() for _ in range(few * 5)])
    figures.append(_figure(f"put to materialization, warm, {FAR}", far, spent))
    with _site(folder / "cold", cold=True) as site:
        spent, cold = timed(lambda: [site.sample() for _ in range(few)])
    figures.append(
        _figure(
            "put to materialization, cold: a process and a Spark for each run",
            cold,
            spent,
        )
    )
    what = f"put to commit by `s3notify ingest --every {EVERY_SECONDS}`, no slot asset"
    spent, alone = timed(lambda: _by_ingest(folder / "ingest", many))
    figures.append(_figure(what, alone, spent))
    spent, alone = timed(lambda: _by_ingest(folder / "far-ingest", many, way=slow_proxy))
    return [*figures, _figure(f"{what}, {FAR}", alone, spent)]


Way = Callable[[str], AbstractContextManager[str]]
"""Converts the URL of a server to the URL by which a platform reaches the server."""


@contextmanager
def _site(folder: Path, *, cold: bool = False, way: Way = nullcontext) -> Iterator[Site]:
    if cold:
        settings = yaml.safe_load(INSTANCE + storage(folder / "dagster"))
        del settings["run_launcher"]
        (folder / "dagster").mkdir(parents=True)
        (folder / "dagster" / "dagster.yaml").write_text(yaml.safe_dump(settings))
    with (
        running(folder, way=way, ready_seconds=600) as platform,
        DagsterInstance.from_config(str(platform.dagster.home)) as instance,
    ):
        # The first batch enumerates the source, and is not measured.
        site = Site(platform=platform, instance=instance)
        site.put()
        platform.until("first batch", lambda: bool(platform.grid("orders")["materializedPartitions"]))
        yield site


# Without Dagster


def _by_ingest(folder: Path, samples: int, *, way: Way = nullcontext) -> list[Sample]:
    folder.mkdir()
    with LocalS3Server(folder / "s3") as server, way(server.endpoint_url) as url:
        server.create_bucket(BUCKET)
        config = server.config(BUCKET)
        at = {"bucket": config, "platform": config, "commit": "native"}
        source = followed(source_of(name="alone", prefix="in/", format="jsonl", schema=DDL, **at))
        with _ingesting(server, url, folder, source) as said:
            return [_commit(source, said, number) for number in range(-2, samples)][2:]


@contextmanager
def _ingesting(
    server: LocalS3Server, url: str, folder: Path, source: Source
) -> Iterator[list[tuple[float, str]]]:
    """Runs the command in a process; yields the times of its outputs."""
    command = [sys.executable, "-m", "s3notify_platform.cli", "ingest", source.name, "--bucket", BUCKET]
    command += ["--prefix", source.input.prefix, "--format", "jsonl", "--schema", DDL, "--commit", "native"]
    command += ["--endpoint-url", url, "--every", str(EVERY_SECONDS)]
    environment = {**os.environ, **server.environment(), **java_environment(), "PYTHONPATH": str(Path.cwd())}
    said: list[tuple[float, str]] = []
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        stderr = process.stderr
        assert stderr is not None
        reader = Thread(target=lambda: said.extend((time.time(), line) for line in stderr), daemon=True)
        reader.start()
        try:
            yield said
        finally:
            process.terminate()


def _commit(source: Source, said: list[tuple[float, str]], number: int) -> Sample:
    key = f"in/latency {number}.jsonl"
    table, slot = source.table(), slot_of(key)
    before = _newest(table, slot)
    signals = Publisher(
        FastObjectStore(source.input.bucket), prefix=source.location.keyspace_prefix, queued=True
    )
    publisher = QueuedPublisher(signals, source.location.queue(), bucket=BUCKET)
    time.sleep(random.uniform(0, EVERY_SECONDS))
    publisher.put(key, body_of(number))
    returned = time.time()
    until(lambda: _newest(table, slot) > before, seconds=300)
    ended = time.time()
    began = [at for at, line in said if line.startswith("planning") and at > returned][:1]
    read = [at for at, line in said if line.startswith("reading") and at > returned][:1]
    marks = [returned, *began, *read, ended]
    return Sample(
        phases=dict(zip(("poll", "plan", "read and commit"), map(sub, marks[1:], marks), strict=False))
    )


def _newest(table: LogTable, slot: Slot) -> int:
    """The table version that last changed the slot; 0 if no version has changed it."""
    found = table.newest()
    return found.manifest.slot(slot).generation if isinstance(found, Snapshot) else 0


def _figure(what: str, samples: list[Sample], spent: Seconds) -> Figure:
    whole = [sample.whole for sample in samples]
    names = samples[0].phases
    shown = ", ".join(f"{name} {short(median(s.phases.get(name, 0.0) for s in samples))}" for name in names)
    last = f", 95th percentile {short(quantiles(whole, n=20)[-1])}" if len(whole) > 3 else ""
    processes = len({sample.process for sample in samples if sample.process})
    of = f"; {processes} processes" if processes else ""
    server = f", server {spent.server / len(whole):.1f}" if spent.server else ""
    cpu = f"CPU of all processes for each, waiting too, {spent.cpu / len(whole):.1f} s{server}"
    ours = f"median of {len(whole)} {short(median(whole))}{last}: {shown}{of}; {cpu}"
    return Figure(what=what, ours=ours, instead="–", ratio="–")


def _body(number: int) -> bytes:
    return b'{"order_id": %d, "customer": "ada", "amount": "5.00", "at": "2026-01-01T00:00:00Z"}\n' % number
