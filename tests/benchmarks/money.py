"""(11) The price of requests at AWS in a month of 30 days.

A proxy counts the requests; `explain.prices` has the prices. The load is a million objects a day. The objects of one
minute are announced and ingested with the same steps as under Dagster. The steps are: sensor, run, commits, queue, ack
chain, `known`, heartbeats, removal of the entries. A row is the price of this minute, multiplied by the minutes of a
month, plus the price of the idle source. Nearly every slot already has a commit. The PUT of each object is not counted,
since it is made in any case. The GET of each object is counted.

The alternative is a full LIST each minute (1 request for 1,000 objects), and the GET of each new object. Its requests
are calculated, not measured.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Event
from typing import Any

import dagster as dg

from s3notify_platform.channels.inlets.intake import intake_of
from s3notify_platform.channels.inlets.pull_inlet import PullInlet
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.channels.service import ServiceContext, SourceKeyspace
from s3notify_platform.explain.prices import dollars
from s3notify_platform.kernel.ports import Written
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.orchestration.sensor import LOOP_SECONDS
from s3notify_platform.orchestration.upkeep import RECONCILE_SECONDS
from s3notify_platform.protocols.keyspace import Publisher, Put
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.stores.config import DynamoConfig, SqsConfig
from s3notify_platform.stores.sqs import SqsQueue
from tests.benchmarks.figures import Figure, times
from tests.benchmarks.lake import DDL, body_of, embedded_spark
from tests.benchmarks.prices import billed
from tests.contracts.fault_proxy import FaultProxy
from tests.support.servers import S3Server, running_ministack
from tests.support.site import Site
from tests.support.spark_options import KEY_ID, SECRET
from tests.support.tables import create_record_table

DAY = 1_000_000
"""The number of objects that are written each day."""
MINUTES = 30 * 24 * 60
MINUTE = DAY // (24 * 60)
SEEN = 3_000
"""The number of objects that exist before the measurement."""
PREFIX = "raw/"
ECONOMICAL = 60
"""Seconds between the ticks of a sensor that does not watch."""


@dataclass(kw_only=True)
class Source:
    """A source, its writer, and a counter of all requests."""

    site: Site
    proxies: tuple[FaultProxy, FaultProxy]
    written: int = 0

    def cost(self, *work: Callable[[], object], objects: int = 0) -> Counter[str]:
        """The requests of the work, without the PUTs of source objects. `objects`: the number of these PUTs."""
        for proxy in self.proxies:
            proxy.answered.clear()
        for each in work:
            each()
        found = billed(request for proxy in self.proxies for request in proxy.answered)
        found["PUT"] -= objects
        return found

    def puts(self, count: int) -> list[Put]:
        """Returns this number of changes, each of which writes a new object."""
        numbers = range(self.written, self.written + count)
        self.written += count
        return [Put(key=f"{PREFIX}{n:08d}.jsonl", body=body_of(n)) for n in numbers]

    @cached_property
    def publisher(self) -> QueuedPublisher:
        place = self.site.io.source.location
        signals = Publisher(self.site.store, prefix=place.keyspace_prefix, slots=place.slots, queued=True)
        queue = self.site.io.clients.queue
        return QueuedPublisher(signals, queue, bucket=place.platform.bucket, topic=place.name)

    def publish(self, count: int) -> None:
        assert all(isinstance(outcome, Written) for outcome in self.publisher.publish(self.puts(count)))

    def put_each(self, count: int, seconds: float = 0.0) -> None:
        """Writes objects one by one, spread over this number of seconds."""
        began = time.monotonic()
        for number, put in enumerate(self.puts(count)):
            time.sleep(max(0.0, began + seconds * number / count - time.monotonic()))
            assert isinstance(self.publisher.put(put.key, put.body), Written)

    def sensor(self, name: str) -> None:
        """Does a tick of the source's sensor with this name, for example of its upkeep."""
        with dg.build_sensor_context(
            instance=self.site.instance,
            resources={f"{self.site.name}_slots": self.site.component.assets().io},
            sensor_name=f"{self.site.name}_{name}",
        ) as context:
            self.site.defs.resolve_sensor_def(f"{self.site.name}_{name}").evaluate_tick(context)

    def watched(self) -> "Source":
        """The same source with a sensor that has the default number of seconds between ticks."""
        attributes = self.site.component.model_copy(update={"interval_seconds": 4, "poll_seconds": 0.3})
        site = Site(
            component=attributes, instance=self.site.instance, store=self.site.store, cursor=self.site.cursor
        )
        return Source(site=site, proxies=self.proxies, written=self.written)


def run(server: LocalS3Server, *, small: bool) -> list[Figure]:
    minute, seen, seconds = (30, 60, 8.0) if small else (MINUTE, SEEN, 60.0)
    with ExitStack() as stack:
        stack.enter_context(embedded_spark())
        instance = stack.enter_context(dg.instance_for_test(overrides={"sensors": {"use_threads": True}}))
        (folder := Path(instance.root_directory) / "ministack").mkdir()
        ministack = stack.enter_context(running_ministack(folder))
        proxies = [
            stack.enter_context(FaultProxy(url)) for url in (server.endpoint_url, ministack.endpoint_url)
        ]
        source = partial(_source, server, instance, (proxies[0], proxies[1]), seen=seen)
        alone = source("bench-money")
        table = replace(ministack.table_config(), endpoint_url=proxies[1].url)
        create_record_table(table)
        in_table = source("bench-money-table", table=table)
        by_root = source("bench-money-root", signals="root")
        idle = _idle(alone)
        queue = _event_queue(ministack, proxies[1])
        once, twice = "as batches of {0}", "one by one"
        ways = {
            once: (alone, lambda: alone.publish(minute)),
            twice: (alone, lambda: alone.put_each(minute)),
            f"{once}, `signals: root`": (by_root, lambda: by_root.publish(minute)),
            f"{twice}, `signals: root`": (by_root, lambda: by_root.put_each(minute)),
            f"{once}, by S3 and SQS": (alone, lambda: _by_sqs(alone, queue, minute, 0.0)),
            f"{twice}, by S3 and SQS": (alone, lambda: _by_sqs(alone, queue, minute, seconds)),
            f"{once}, records in DynamoDB": (in_table, lambda: in_table.publish(minute)),
            f"{twice}, records in DynamoDB": (in_table, lambda: in_table.put_each(minute)),
        }
        minutes = {
            how.format(minute): of.cost(tell, of.site.settle, objects=minute)
            for how, (of, tell) in ways.items()
        }
        sweep = alone.cost(alone.site.sweep)
        at_once = alone.watched()
        runs = alone.cost(lambda: _as_they_come(at_once, minute, seconds), objects=minute)
    if small:  # the same number of objects each day, in smaller batches
        minutes = {how: _times(found, MINUTE / minute) for how, found in minutes.items()}
        runs = _times(runs, MINUTE / minute)
    return [
        *_idle_figures(idle),
        *_day_figures(minutes, runs, len(at_once.site.run_keys), seconds, idle),
        *_sweep_figures(sweep, alone.written),
    ]


def _source(
    server: LocalS3Server,
    instance: dg.DagsterInstance,
    proxies: tuple[FaultProxy, FaultProxy],
    bucket: str,
    *,
    seen: int,
    table: DynamoConfig | None = None,
    signals: str = "slots",
) -> Source:
    """A source of a new bucket. Its first `seen` objects are already committed."""
    server.create_bucket(bucket)
    where = S3Server(
        endpoint_url=proxies[0].url,
        config=lambda name: replace(server.config(name), endpoint_url=proxies[0].url),
    )
    keys = {"access_key_id_env": KEY_ID, "secret_access_key_env": SECRET}
    attributes: dict[str, Any] = {
        "name": bucket.replace("-", "_"),
        "bucket": bucket,
        "prefix": PREFIX,
        "schema": DDL,
        "slots": 1000,
        "signals": signals,
        "list_seconds": BatchSettings().list_seconds,
        "interval_seconds": ECONOMICAL,
    }
    if table is not None:
        attributes["dynamodb"] = {"records_table": table.table, "endpoint_url": table.endpoint_url, **keys}
    source = Source(site=Site.of(where, instance, **attributes), proxies=proxies)
    source.site.settle()
    source.publish(seen)
    source.site.settle()
    return source


# An idle source


def _idle(source: Source) -> dict[str, Counter[str]]:
    """The costs of one tick of a sensor that watches, one tick of a sensor that polls once, and one tick of the
    reconciler.

    Also returns the cost of one relisting.
    """
    watched = source.watched()
    watched.site.tick()
    source.sensor("reconciler")
    time.sleep(RECONCILE_SECONDS)
    found = {
        "watching": source.cost(watched.site.tick),
        "polling": source.cost(source.site.tick),
        "reconciler": source.cost(lambda: source.sensor("reconciler")),
    }
    watched.site.cursor = replace(watched.site.state, listed_ms=0).dumps()
    relisting = source.cost(watched.site.tick)
    return {**found, "relisting": Counter({"LIST": relisting["LIST"] - found["watching"]["LIST"]})}


def _idle_month(idle: dict[str, Counter[str]], *, watching: bool) -> Counter[str]:
    ticks = MINUTES * 60 // (LOOP_SECONDS if watching else ECONOMICAL)
    relistings = MINUTES * 60 / BatchSettings().relist_seconds
    return _times(idle["watching" if watching else "polling"], ticks) + _times(idle["relisting"], relistings)


def _idle_figures(idle: dict[str, Counter[str]]) -> Iterator[Figure]:
    polls = idle["watching"].total()
    listing = Counter({"LIST": MINUTES * DAY // 1000})
    yield _figure(
        f"an idle source: its sensor, which polls {polls} times in {LOOP_SECONDS} s (`poll_seconds: 0.3`)",
        _idle_month(idle, watching=True),
        ("full LIST a minute of 1,000,000 objects", listing),
    )
    yield _figure(
        f"the same, polling once in {ECONOMICAL} s (`interval_seconds: {ECONOMICAL}`)",
        _idle_month(idle, watching=False),
        ("full LIST a minute of 1,000,000 objects", listing),
    )
    yield _figure(
        f"the reconciler of its queue, a pass in {RECONCILE_SECONDS} s, beside it",
        _times(idle["reconciler"], MINUTES * 60 / RECONCILE_SECONDS),
    )


# A million objects a day


def _event_queue(ministack: S3Server, proxy: FaultProxy) -> SqsQueue:
    keys = ministack.config("")
    config = SqsConfig(
        queue_url="",
        endpoint_url=proxy.url,
        access_key_id=keys.access_key_id,
        secret_access_key=keys.secret_access_key,
    )
    url = SqsQueue(config).client.create_queue(QueueName="bench-money")["QueueUrl"]
    return SqsQueue(replace(config, queue_url=url))


def _by_sqs(source: Source, queue: SqsQueue, count: int, seconds: float) -> None:
    """Simulates S3, which sends an event for each object within this number of seconds.

    The inlet reads the events until all of them are queued.
    """
    place, bucket = source.site.io.source.location, source.site.component.bucket
    context = ServiceContext(
        name="sqs",
        queue=source.site.io.clients.queue,
        platform=place.platform,
        bucket=bucket,
        keyspaces=(SourceKeyspace(signals=place.keyspace_prefix, prefix=PREFIX),),
    )
    inlet = PullInlet(queue, intake_of(context), name="sqs")
    stop = Event()
    with ThreadPoolExecutor(1) as pool:
        if seconds:
            running = pool.submit(inlet.run, stop, lambda _: None)
        began = time.monotonic()
        for number, put in enumerate(source.puts(count)):
            time.sleep(max(0.0, began + seconds * number / count - time.monotonic()))
            written = source.site.store.put(put.key, put.body)
            assert isinstance(written, Written)
            event = _event(bucket, put, str(written.etag), number)
            queue.client.send_message(QueueUrl=queue.config.queue_url, MessageBody=event)
        if not seconds:
            running = pool.submit(inlet.run, stop, lambda _: None)
        while inlet.counts()["messages_deleted"] < count:
            assert not running.done(), running.result()
            time.sleep(0.05)
        stop.set()


def _event(bucket: str, put: Put, etag: str, number: int) -> str:
    stored = {
        "key": put.key,
        "size": len(put.body),
        "eTag": etag,
        "sequencer": f"{time.time_ns():016X}{number:04X}",
    }
    record = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "eventTime": "2025-01-01T00:00:00.000Z",
        "s3": {"bucket": {"name": bucket}, "object": stored},
    }
    return json.dumps({"Records": [record]})


def _as_they_come(source: Source, count: int, seconds: float) -> None:
    """Writes objects one by one. The sensor watches, even during a run, and requests a run as soon as there is a
    change.
    """
    site = source.site
    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(source.put_each, count, seconds)]
        while site.state.open or not all(work.done() for work in working):
            began = time.monotonic()
            working += [pool.submit(site.launch, request) for request in site.tick()]
            time.sleep(max(0.0, began + LOOP_SECONDS - time.monotonic()))
        for work in working:
            work.result()
    site.settle()


def _day_figures(
    minutes: dict[str, Counter[str]],
    runs: Counter[str],
    number: int,
    seconds: float,
    idle: dict[str, Counter[str]],
) -> Iterator[Figure]:
    economical, watching = (_idle_month(idle, watching=watched) for watched in (False, True))
    months = {how: _times(found, MINUTES) + economical for how, found in minutes.items()}
    for how, month in months.items():
        what = f"{DAY:,} objects a day, {how}; a run a minute (`interval_seconds: {ECONOMICAL}`)"
        yield _figure(what, month, _listings(DAY))
    month = _times(runs, MINUTES) + watching
    each = f"{number} runs in {seconds:.0f} s"
    yield _figure(
        f"{DAY:,} objects a day, one by one; runs at once, by default: {each}", month, _listings(DAY)
    )
    how, cheapest = next(iter(months.items()))
    for total in (10 * DAY, 100 * DAY):
        yield _figure(f"{DAY:,} objects a day, {how}, in a bucket of {total:,}", cheapest, _listings(total))


def _listings(total: int) -> tuple[str, Counter[str]]:
    counts = Counter({"LIST": MINUTES * total // 1000, "GET": 30 * DAY})
    return f"full LIST a minute of {total:,} objects, and the GETs, nothing committed", counts


def _sweep_figures(sweep: Counter[str], objects: int) -> Iterator[Figure]:
    """The cost of a sweep that compares more objects than the measured sweep. Each 1,000 additional objects take 1 more
    LIST, and each slot's file of states takes 1 GET.
    """
    for total in (DAY, 100 * DAY):
        once = sweep + Counter({"LIST": (total - objects) // 1000, "GET": 1000})
        yield _figure(f"a sweep of {total:,} objects each day", _times(once, 30))


def _times(counts: Counter[str], factor: float) -> Counter[str]:
    return Counter({kind: round(count * factor) for kind, count in counts.items()})


def _figure(what: str, month: Counter[str], instead: tuple[str, Counter[str]] | None = None) -> Figure:
    other = f"{instead[0]}, by arithmetic: {_priced(instead[1])}" if instead else "–"
    ratio = times(dollars(instead[1]), dollars(month)) if instead else "–"
    return Figure(what=f"{what}: a month", ours=_priced(month), instead=other, ratio=ratio)


def _priced(counts: Counter[str]) -> str:
    return f"${dollars(counts):,.2f}: {_counted(counts)}"


def _counted(counts: Counter[str]) -> str:
    shown = {
        kind: f"{n / 1e6:,.1f} M" if n >= 1e5 else f"{n:,}" for kind, n in sorted(counts.items()) if n > 0
    }
    return ", ".join(f"{n} {kind}" for kind, n in shown.items())
