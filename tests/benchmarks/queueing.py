"""(6) The notification queue compared with Ceph RGW's own persistent notifications, in one run.

The platform's queue has its records in a bucket (SeaweedFS) or in DynamoDB (ministack). A separate process delivers the
entries. The rows of RGW need Ceph, which `poe ceph` installs. Without Ceph, these rows say that Ceph is missing. Posts
go to a `Recorder`. RGW's gateway needs up to 30 s to notice its topics. In this time, the platform is measured. The CPU
figure of a side (the platform or RGW) includes all of its work: backlog, objects, recorder. The warm-ups are one entry,
one PUT of each kind, and RGW's first deliveries.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.ports import Written
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.keyspace import Publisher, Put
from s3notify_platform.protocols.notification_queue import (
    EntryCommitted,
    Event,
    NotificationQueue,
    TopicSettings,
)
from s3notify_platform.protocols.notification_queue.owners import BALANCE_SECONDS
from s3notify_platform.stores.s3.fast import FastObjectStore
from tests.benchmarks.figures import Figure, Seconds, cpu, short, timed, times
from tests.benchmarks.queue_requests import BATCH, BODY, WRITERS, requests_figures
from tests.support.ceph import Ceph, missing_programs, running_ceph
from tests.support.programs.outlet import Place, delivering, endpoint
from tests.support.recorder import REFUSE, Recorder
from tests.support.servers import running_ministack
from tests.support.tables import create_record_table

_Outage = tuple[int, int]
_BACKLOGS = ("backlog-1", "backlog-2")

OUTAGES = ((1, REFUSE), (10, REFUSE), (10, 500), (60, REFUSE))
"""For each outage: the number of seconds, and the endpoint's answer in this time."""
PATIENCE_SECONDS = 30.0
"""The time to wait for missing posts after an outage. The time to wait for a whole backlog is ten times longer."""
NOT_HERE = "Ceph is not installed (`poe ceph`)"


# The writers' work


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One writer of a bucket. The writer's changes below `in/` go to one topic."""

    store: FastObjectStore
    queue: NotificationQueue
    publisher: QueuedPublisher
    topic: str

    @classmethod
    def of(cls, place: Place, topic: str, **settings: Any) -> "Writer":
        """A writer with a new topic that has these settings."""
        store, queue, bucket = FastObjectStore(place.bucket), place.queue(), place.bucket.bucket
        plain = Publisher(store, prefix="_keyspace/", parallelism=WRITERS, queued=True)
        queue.topics.create(topic, TopicSettings(bucket=bucket, prefix="in/", **settings))
        publisher = QueuedPublisher(plain, queue, bucket=bucket)
        return cls(store=store, queue=queue, publisher=publisher, topic=topic)

    def publish(self, keys: Sequence[str]) -> None:
        """Publishes objects in one batch: reserves, writes, commits and signals."""
        outcomes = self.publisher.publish([Put(key=key, body=BODY) for key in keys])
        assert all(isinstance(outcome, Written) for outcome in outcomes)

    def put(self, key: str) -> None:
        """Publishes one object: reserves, writes, commits and signals."""
        self.publish([key])

    def announce(self, keys: Sequence[str]) -> None:
        """Makes entries without objects."""
        events = [Event(key=key, size=len(BODY)) for key in keys]
        for start in range(0, len(events), BATCH):
            assert all(
                isinstance(outcome, EntryCommitted)
                for outcome in self.queue.push_many(self.topic, events[start:][:BATCH])
            )


# The run


def run(folder: Path, *, small: bool, takeover: bool = False) -> list[Figure]:
    """Makes all rows of figures. `takeover`: if true, also waits until RGW's second gateway takes over, which takes
    90 s.
    """
    folder.mkdir(parents=True)
    count = 400 if small else 10_000
    outages = OUTAGES[:1] if small else OUTAGES
    with ExitStack() as stack:
        rgw = _Rgw.start(stack, folder / "ceph", outages)
        seaweed = stack.enter_context(LocalS3Server(folder / "s3"))
        (folder / "ministack").mkdir()
        table = stack.enter_context(running_ministack(folder / "ministack")).table_config()
        create_record_table(table)

        def place(name: str, *, in_table: bool = False) -> Place:
            seaweed.create_bucket(name)
            return Place(bucket=seaweed.config(name), table=table if in_table else None)

        places = {"bucket alone": place("bench-alone"), "DynamoDB": place("bench-table", in_table=True)}
        ours = {name: timed(partial(_throughput, found, count)) for name, found in places.items()}
        asked = requests_figures(places, small=small)
        several = min(count, 2000) // 5
        added = {name: _added(found, several) for name, found in places.items()}
        theirs = timed(partial(rgw.throughput, count)) if rgw else None
        down = {name: place(f"bench-down-{n}", in_table=bool(n)) for n, name in enumerate(places)}
        return [
            *_throughput_figures(ours, theirs, count),
            *asked,
            *_added_figures(added, rgw, several),
            *_outage_figures(down, rgw, outages, 20 if small else 100),
            *_takeover_figures(place("bench-owner"), rgw if takeover else None),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rgw:
    """Ceph with all topics, each with a separate recorder, since a refusing recorder stalls its topic."""

    ceph: Ceph
    recorders: dict[str, Recorder]
    buckets: dict[str, FastObjectStore]
    plain: FastObjectStore

    @classmethod
    def start(cls, stack: ExitStack, folder: Path, outages: Sequence[_Outage]) -> "_Rgw | None":
        if missing_programs():
            return None
        folder.mkdir()
        ceph = stack.enter_context(running_ceph(folder))
        recorders, buckets = {}, {}
        for name in ("throughput", *_BACKLOGS, *map(_named, outages)):
            recorders[name] = stack.enter_context(Recorder())
            bucket = ceph.server.make_bucket()
            ceph.notify(bucket, name, recorders[name].url(), prefix="in/")
            buckets[name] = FastObjectStore(ceph.config(bucket))
            buckets[name].put("in/first", BODY)
        plain = FastObjectStore(ceph.config(ceph.server.make_bucket()))
        return cls(ceph=ceph, recorders=recorders, buckets=buckets, plain=plain)

    def ready(self, name: str) -> tuple[FastObjectStore, Recorder]:
        """Waits until the gateway has noticed the topic."""
        self.recorders[name].wait(1, seconds=90.0)
        return self.buckets[name], self.recorders[name]

    def throughput(self, count: int) -> "_Throughput":
        """Measures the time from the first PUT to the last post, and the delivery of a backlog. RGW may deliver no
        entry of the backlog.

        A topic whose endpoint has failed for seconds may stall until its gateway is restarted. So there are two tries.
        The second try has a backlog of only 1,000 entries, which is written quickly.
        """
        store, recorder = self.ready("throughput")
        keys = [f"in/{n}" for n in range(count)]
        began = time.monotonic()
        _put_all(store, keys)
        whole = count / (recorder.wait(1 + count, seconds=10 * PATIENCE_SECONDS) - began)
        for name, some in zip(_BACKLOGS, (keys, keys[:1000]), strict=True):
            store, recorder = self.ready(name)
            recorder.answer(500)
            _put_all(store, some)
            before = len(recorder.posts())
            recorder.answer(200)
            with suppress(AssertionError):
                recorder.wait(1 + len(some), seconds=PATIENCE_SECONDS * max(1, len(some) // 1000))
                rate = _rate(recorder, before, len(some))
                return _Throughput(delivered=rate, backlog=len(some), whole=whole)
        return _Throughput(delivered=0.0, backlog=0, whole=whole)


# Throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class _Throughput:
    """The rates of one side (ours or RGW), in entries per second.

    `backlog`: the number of entries for which `delivered` was measured.
    """

    delivered: float
    backlog: int
    whole: float
    committed: float = 0.0


def _throughput(place: Place, count: int) -> _Throughput:
    with Recorder() as recorder:
        writer = Writer.of(place, "throughput", capacity=10 * count, endpoint=endpoint(recorder.url()))
        writer.announce(["in/warm"])
        took, _ = timed(lambda: writer.announce([f"in/backlog-{n}" for n in range(count)]))
        with delivering(place):
            recorder.wait(1 + count, seconds=10 * PATIENCE_SECONDS)
            delivered = _rate(recorder, 0, count)
            began = time.monotonic()
            for start in range(0, count, BATCH):
                writer.publish([f"in/{n}" for n in range(start, min(start + BATCH, count))])
            whole = count / (recorder.wait(1 + 2 * count, seconds=10 * PATIENCE_SECONDS) - began)
        writer.queue.topics.delete("throughput")
    return _Throughput(committed=count / took, delivered=delivered, backlog=count, whole=whole)


def _rate(recorder: Recorder, before: int, count: int) -> float:
    """The rate at which a backlog is delivered, in entries per second, from the first post to the last."""
    posts = recorder.posts()[before:]
    return count / max(posts[-1].seconds - posts[0].seconds, 0.001)


def _throughput_figures(
    ours: dict[str, tuple[Seconds, _Throughput]], theirs: tuple[Seconds, _Throughput] | None, count: int
) -> Iterator[Figure]:
    """The rows of figures that show the throughput.

    The CPU figure of a side (ours, RGW) is the sum over the two rows of this side. The sum includes the CPU time for
    making and delivering the backlog, and for writing objects.
    """
    spent, rgw = theirs or (Seconds(), None)
    backlog = (
        f"RGW {rgw.delivered:.0f}/s over {rgw.backlog:,}, one event a POST; {cpu(spent)}" if rgw else NOT_HERE
    )
    if rgw and not rgw.backlog:
        backlog = f"RGW: none came within {PATIENCE_SECONDS:.0f} s after its endpoint had failed"
    for name, (took, found) in ours.items():
        yield Figure(
            what=f"backlog of {count:,} notifications delivered to one endpoint, queue: {name}",
            ours=f"{found.delivered:.0f}/s, up to 50 events a POST (reserved and committed at "
            f"{found.committed:.0f}/s); {cpu(took)}",
            instead=backlog,
            ratio=f"{found.delivered / rgw.delivered:.2f}×" if rgw and rgw.backlog else "–",
        )
    for name, (_, found) in ours.items():
        yield Figure(
            what=f"{count:,} objects of 2 KB, from the first write to the last delivery, queue: {name}",
            ours=f"{found.whole:.0f}/s: reserve, PUT, commit, signal in batches of {BATCH}, deliver",
            instead=f"RGW {rgw.whole:.0f}/s, {WRITERS} writers" if rgw else NOT_HERE,
            ratio=f"{found.whole / rgw.whole:.2f}×" if rgw else "–",
        )


# The additional cost of a PUT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Costs:
    """Seconds for each PUT: of single PUTs, and of a concurrent batch."""

    plain: tuple[float, float]
    signalled: tuple[float, float]
    queued: tuple[float, float]


def _added(place: Place, count: int) -> _Costs:
    writer = Writer.of(place, "added", capacity=10 * count)
    alone = Publisher(writer.store, prefix="_alone/", parallelism=WRITERS)
    writer.put("in/warm")
    alone.put("in/warm", BODY)
    some = max(count // 4, 10)
    costs = _Costs(
        plain=(
            _each(lambda key: writer.store.put(key, BODY), [f"in/p{n}" for n in range(some)]),
            timed(lambda: _put_all(writer.store, [f"in/pp{n}" for n in range(count)]))[0] / count,
        ),
        signalled=(
            _each(lambda key: alone.put(key, BODY), [f"in/s{n}" for n in range(some)]),
            timed(lambda: alone.publish([Put(key=f"in/ss{n}", body=BODY) for n in range(count)]))[0] / count,
        ),
        queued=(
            _each(writer.put, [f"in/q{n}" for n in range(some)]),
            timed(lambda: writer.publish([f"in/qq{n}" for n in range(count)]))[0] / count,
        ),
    )
    writer.queue.topics.delete("added")
    return costs


def _each(put: Callable[[str], object], keys: Sequence[str]) -> float:
    return timed(lambda: [put(key) for key in keys])[0] / len(keys)


def _put_all(store: FastObjectStore, keys: Sequence[str]) -> None:
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda key: store.put(key, BODY), keys))


def _added_figures(added: dict[str, _Costs], rgw: _Rgw | None, count: int) -> Iterator[Figure]:
    costs = dict(added)
    theirs: dict[str, tuple[float, float]] = {}
    if rgw:
        costs["bucket alone, on RGW"] = _added(Place(bucket=rgw.plain.config), count)
        store, _ = rgw.ready("throughput")
        some = [f"in/cost {n}" for n in range(max(count // 4, 10))]
        theirs["plain"] = costs["bucket alone, on RGW"].plain
        theirs["persistent"] = (
            _each(lambda key: store.put(key, BODY), some),
            timed(lambda: _put_all(store, [f"in/costs {n}" for n in range(count)]))[0] / count,
        )
    for number, how in enumerate(("one by one", f"{count} as one batch, {WRITERS} at once")):
        instead = NOT_HERE
        if theirs:
            plain, persistent = (theirs[kind][number] for kind in ("plain", "persistent"))
            instead = f"RGW plain {_ms(plain)}, persistent notification {_ms(persistent)} ({persistent / plain:.1f}×)"
        for name, cost in costs.items():
            plain, signalled, queued = (kind[number] for kind in (cost.plain, cost.signalled, cost.queued))
            yield Figure(
                what=f"what telling adds to a PUT of 2 KB, {how}, queue: {name}",
                ours=f"plain {_ms(plain)}, signalled {_ms(signalled)}, queued and signalled {_ms(queued)} "
                f"({queued / plain:.1f}×)",
                instead=instead,
                ratio=times(theirs["persistent"][number], queued) if theirs else "–",
            )


def _ms(value: float) -> str:
    return f"{value * 1000:.1f} ms ({1 / value:.0f}/s)"


# An endpoint that is down


def _outage_figures(
    places: dict[str, Place], rgw: _Rgw | None, outages: Sequence[_Outage], count: int
) -> Iterator[Figure]:
    """Runs all outages at the same time, on all sides, since they mostly wait."""
    keys = [f"in/down-{n}" for n in range(count)]
    with ExitStack() as stack, ThreadPoolExecutor(16) as pool:
        sides: dict[tuple[str, _Outage], tuple[Recorder, Callable[[Sequence[str]], object]]] = {}
        for name, place in places.items():
            for outage in outages:
                recorder = stack.enter_context(Recorder())
                writer = Writer.of(place, _named(outage), endpoint=endpoint(recorder.url()))
                writer.announce(["in/first"])
                sides[name, outage] = recorder, writer.announce
            stack.enter_context(delivering(place))
        for recorder, _ in sides.values():
            recorder.wait(1)
        for outage in outages if rgw else ():
            assert rgw is not None
            store, recorder = rgw.ready(_named(outage))
            sides["RGW", outage] = recorder, lambda keys, store=store: _put_all(store, keys)
        running = {
            side: pool.submit(_outage, recorder, tell, keys, side[1])
            for side, (recorder, tell) in sides.items()
        }
        found = {side: future.result() for side, future in running.items()}
    for outage in outages:
        for name in places:
            how = "refuses" if outage[1] == REFUSE else f"answers {outage[1]}"
            yield Figure(
                what=f"endpoint {how} for {outage[0]} s while {count} changes are made, then is back; queue: {name}",
                ours=found[name, outage],
                instead=f"RGW {found['RGW', outage]}" if rgw else NOT_HERE,
                ratio="–",
            )


def _named(outage: _Outage) -> str:
    return f"down-{outage[0]}-{outage[1]}"


def _outage(
    recorder: Recorder, tell: Callable[[Sequence[str]], object], keys: Sequence[str], outage: _Outage
) -> str:
    """The result of an outage: the seconds from the endpoint's return to the last key, the lost keys, and the
    duplicates.
    """
    ends = time.monotonic() + outage[0]
    recorder.answer(outage[1])
    tell(keys)
    time.sleep(max(0.0, ends - time.monotonic()))
    back = time.monotonic()
    recorder.answer(200)
    before = len(set(recorder.posted_keys()) - set(keys))
    try:
        delivered = recorder.wait(before + len(keys), seconds=PATIENCE_SECONDS) - back
    except AssertionError:
        missing = len(set(keys) - set(recorder.posted_keys()))
        return f"{missing} of {len(keys)} have not come within {PATIENCE_SECONDS:.0f} s of that"
    time.sleep(1.0)  # duplicates may arrive in this time
    came = [key for key in recorder.posted_keys() if key in keys]
    return f"all there after {short(delivered)}, 0 lost, {len(came) - len(keys)} duplicates"


# A killed owner


def _takeover_figures(place: Place, rgw: _Rgw | None) -> Iterator[Figure]:
    theirs = _rgw_takeover(rgw) if rgw else None
    with Recorder() as recorder:
        writer = Writer.of(place, "owner", endpoint=endpoint(recorder.url()))
        with delivering(place) as first, delivering(place):
            time.sleep(3 * BALANCE_SECONDS)  # in this time, the workers share the shards
            for n in range(64):  # single puts use all shards
                writer.announce([f"in/before-{n}"])
            recorder.wait(64)
            first.kill()
            killed = time.monotonic()
            for n in range(64):
                writer.announce([f"in/after-{n}"])
            ours = recorder.wait(128) - killed
    yield Figure(
        what="owner killed (SIGKILL), another is there: until everything is delivered again",
        ours=short(ours),
        instead=f"RGW, second gateway there: {short(theirs)}"
        if theirs
        else "RGW, second gateway there: 90 s when tried (`--takeover` tries it again)",
        ratio=times(theirs or 90.0, ours),
    )


def _rgw_takeover(rgw: _Rgw) -> float:
    """The seconds until the second gateway delivers after the first one was killed. The first gateway owns all topics,
    since it was the only gateway when the topics were made.
    """
    store, recorder = rgw.ready("throughput")
    second = rgw.ceph.add_gateway()
    before = len(set(recorder.posted_keys()))
    rgw.ceph.gateways[0].kill()
    killed = time.monotonic()
    FastObjectStore(rgw.ceph.config(store.config.bucket, second)).put("in/after", BODY)
    return recorder.wait(before + 1, seconds=200.0) - killed
