"""Four processes write through all inlets at the same time, and all kinds of processes get random SIGKILLs. In the end
the table equals the bucket.

During the writes, columns repeatedly get other types. The first types of the columns are inferred from a first object.

Settings: `FUZZ_OPERATIONS`, `FUZZ_SEED`, `FUZZ_KILLS`; `poe thorough` does 300 operations, `poe fuzz` 10,000.

A long run has two parts. In the first part, all writers queue, so batches find changes only by entries. A change that
lacks its entry would be missing from the table. In the second part, unqueued writers join. A queued signal can hide an
unqueued signal of the same slot, as long as no unqueued writer has been seen (`protocols.source_enumerator`). So before
the second part begins, one object is published unqueued, and a batch must see it. From then on every batch lists its
slots. A short run has only the second part, and begins with an unqueued writer.
"""

import json
import os
import random
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import boto3
import pytest

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.ports import StoredObject, list_all
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.local.process import free_ports
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import TopicSettings, decode_events
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.stores.config import QUEUE_PREFIX
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.snapshot import Absent
from tests.e2e.test_kills import processes
from tests.support.endpoints import Receiver
from tests.support.feed_copy import FeedCopy
from tests.support.followed import behind
from tests.support.fuzz.kills import Killer, Supervised
from tests.support.fuzz.operations import (
    ANNOUNCED,
    BUCKET,
    DELETED,
    HTTP,
    KEYSPACE,
    PLAIN,
    PREFIX,
    QUEUED,
    SECRET_ENV,
    SQS,
    WRITERS,
    Operation,
    Phase,
    read_journal,
)
from tests.support.fuzz.retyping import Retyping, Values, kinds_of, mixture, values_of
from tests.support.ingested import rows_at
from tests.support.platform import Platform, running
from tests.support.servers import running_ministack
from tests.support.sources import source_of

OPERATIONS = int(os.environ.get("FUZZ_OPERATIONS", "100"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
KILLS = int(os.environ.get("FUZZ_KILLS", str(10 + OPERATIONS // 75)))

LONG = 1000
"""A run with at least this number of operations has both parts."""

pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.timeout(600 + OPERATIONS)]

FIRST = b'{"order_id": 1, "customer": "first", "amount": "1.5"}\n'
DELETED_WHEN = f"customer = '{DELETED}'"
HOOK = "hook"
SECRET = "a-secret-of-some-length"

DEFS = f"""
type: s3notify_platform.S3NotifyComponent
attributes:
  name: orders
  bucket: {BUCKET}
  prefix: {PREFIX}
  format: jsonl
  latest: {{key: order_id, order_by: amount, deleted_when: "{DELETED_WHEN}"}}
  cluster_by: customer, order_id
  interval_seconds: 1
  silence_seconds: 20
  backoff_seconds: 1
  max_attempts: 50
  list_seconds: 2
  s3:
    endpoint_url: "{{{{ env('AWS_ENDPOINT_URL') }}}}"
  spark:
    config: {{spark.driver.memory: 1g}}
"""


class Fuzz:
    """One run of the fuzz test: its processes, its history, and the conditions at its end."""

    def __init__(self, platform: Platform, sqs, sink: Receiver, folder: Path) -> None:
        self.platform, self.sink, self.folder = platform, sink, folder
        self.began = time.monotonic()
        config = platform.server.config(BUCKET)
        self.source = source_of(
            name="orders",
            bucket=config,
            prefix=PREFIX,
            format="jsonl",
            platform=config,
            commit="native",
            latest_key="order_id",
            latest_order_by="amount",
            latest_deleted_when=DELETED_WHEN,
            cluster_by="customer, order_id",
        )
        self.feed = FeedCopy(self.source.location.table)
        self.store = open_store(config)
        self.queue = self.source.location.queue()
        self.chains = AckChains(self.source.location.records())
        self.backlog = RescanBacklog(self.source.location.records())
        self.sqs_endpoint = sqs.endpoint_url
        client = boto3.client(
            "sqs", endpoint_url=sqs.endpoint_url, region_name="us-east-1",
            aws_access_key_id="test", aws_secret_access_key="test",
        )  # fmt: skip
        self.queue_url = client.create_queue(QueueName="fuzz")["QueueUrl"]
        self.sqs = client
        (self.http_port,) = free_ports(1, SYSTEM_CLOCK)
        self.environment = {**platform.server.environment(), SECRET_ENV: SECRET}
        place = ["--bucket", BUCKET, "--endpoint-url", platform.server.endpoint_url]
        keyspace = ["--keyspace", KEYSPACE, PREFIX]
        cli = [sys.executable, "-m", "s3notify_platform.cli"]
        commands = {
            "sqs": [
                *cli, "inlet", "sqs", *place, *keyspace, "--queue-url", self.queue_url,
                "--queue-endpoint-url", sqs.endpoint_url, "--visibility-seconds", "5",
            ],
            "http": [
                *cli, "inlet", "http", *place, *keyspace, "--port", str(self.http_port),
                "--secret-env", SECRET_ENV,
            ],
            "deliver": [
                *cli, "deliver", *place, "--allow-network", "127.0.0.0/8", "--allow-http",
                "--poll-seconds", "1",
            ],
            "reconcile": [sys.executable, "-m", "tests.support.fuzz.reconciler", platform.server.endpoint_url],
        }  # fmt: skip
        self.services = {
            name: Supervised(
                name=name, command=command, environment=self.environment, log=folder / f"{name}.log"
            )
            for name, command in commands.items()
        }
        self.phases: list[tuple[Phase, list[Path]]] = []
        self.killed: list[str] = []

        self.retyping = Retyping(
            dice=random.Random(SEED + 2),
            command=[*cli, "schema", "set", "orders", *place],
            environment=self.environment,
            log=folder / "schema-set.log",
            say=self.tell,
            kinds={"order_id": "bigint", "amount": "string"},
            pause=(20.0, 60.0) if OPERATIONS >= LONG else (3.0, 8.0),
        )

    def phase(self, phase: Phase, kills: int) -> None:
        """Lets the writers work, kills processes, and waits until everything has been announced."""
        journals = [self.folder / f"journal-{phase.first}-{n}" for n in range(WRITERS)]
        self.phases.append((phase, journals))
        writers = {}
        for number, journal in enumerate(journals):
            given = {
                "phase": asdict(phase), "writer": number, "journal": str(journal), "http_port": self.http_port,
                "endpoint_url": self.platform.server.endpoint_url, "sqs_url": self.sqs_endpoint,
                "queue_url": self.queue_url,
            }  # fmt: skip
            command = [sys.executable, "-m", "tests.support.fuzz.writer", json.dumps(given)]
            name = f"writer {number}"
            writers[name] = Supervised(
                name=name, command=command, environment=self.environment, log=self.folder / f"{name}.log",
                forever=False,
            )  # fmt: skip
        supervised = {**self.services, **writers}
        killer = Killer(
            seed=SEED + phase.first,
            count=kills,
            services=supervised,
            runs=lambda: processes(self.folder, "run"),
            killed=self.killed,
        )
        began, total = time.monotonic(), WRITERS * (phase.last - phase.first)

        def reconcile(share: float) -> None:
            for process in supervised.values():
                process.reconcile()
            killer.strike(share, time.monotonic() - self.began)

        self.retyping.start()
        try:
            while not all(writer.done for writer in writers.values()):
                reconcile(sum(len(read_journal(journal)) for journal in journals) / total)
                time.sleep(0.3)
            written = time.monotonic() - began
            self.retyping.stop()
            assert not self.retyping.wrong, self.retyping.wrong
            # Only a batch updates the derived tables, so one more object is published.
            self.platform.publisher.put(f"{PREFIX}last-{phase.last}.jsonl", FIRST)
            # From now on all killed processes run again, and only runs are killed.
            self.wait(lambda: reconcile(1.0))
        finally:
            self.retyping.stop()
            for writer in writers.values():
                writer.kill()
        settled = time.monotonic() - began - written
        self.tell(f"{total} operations in {written:.0f} s, settled after {settled:.0f} s more")

    def tell(self, text: str) -> None:
        """Prints a text for a person who watches (`pytest -s`)."""
        print(f"{time.monotonic() - self.began:5.0f} s: {text}", flush=True)

    def wait(self, reconcile, seconds: float = 240.0 + OPERATIONS / 20) -> None:
        """Waits until nothing is in flight, and the table equals the bucket."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            reconcile()
            if not (waits := self.on_its_way()) and not (waits := self.differences()):
                return
            self.tell(f"waits for {waits[:250]}")
            time.sleep(3)
        raise AssertionError(f"not settled: {waits}\n{self.differences()}\n{self.facts()}")

    def on_its_way(self) -> str:
        """A description of the changes that are still in flight; empty if there are none."""
        found = self.sqs.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=["All"])["Attributes"]
        messages = {name: int(n) for name, n in found.items() if name.startswith("ApproximateNumber")}
        if any(messages.values()):
            return f"SQS: {messages}"
        # This LIST is cheaper than the statistics below, which read each topic.
        if (entries := sum(1 for _ in list_all(self.store, f"{QUEUE_PREFIX}queue"))) > 100:
            return f"{entries} entries"
        for topic in ("orders", HOOK):
            stats = self.queue.stats(topic)
            assert stats.dead == 0, self.queue.dead(topic)[:3]
            if stats.depth:
                return str(stats)
        batches = [chain.tag for chain in self.chains.open_states()]
        return f"open batches {batches}" if batches else ""

    def differences(self) -> str:
        """The differences between bucket and table, row by row; empty if there are none."""
        objects = list(list_all(self.store, PREFIX))
        expected: Counter[tuple[str, str, int, Values]] = Counter()

        def rows(key: str):
            found = self.store.get(key)
            assert isinstance(found, StoredObject), key
            offset = 0
            for line in found.body.splitlines(keepends=True):
                yield key, found.meta.etag, offset, values_of(json.loads(line))
                offset += len(line)

        with ThreadPoolExecutor(16) as pool:
            for part in pool.map(lambda meta: list(rows(meta.key)), objects):
                expected.update(part)
        shown = self.source.table()
        snapshot = shown.newest()
        if isinstance(snapshot, Absent):
            return "no table"
        if wrong := mixture(shown, snapshot):
            return wrong
        if (kinds := kinds_of(snapshot)) != self.retyping.kinds:
            return f"the types are {kinds}, not {self.retyping.kinds}"
        names = ("_key", "_etag", "_offset")
        table = Counter((*(row[name] for name in names), values_of(row)) for row in rows_at(shown, snapshot))
        missing, surplus = expected - table, table - expected
        if not missing and not surplus:
            return self.feed.differences() or behind(
                self.source, deleted=lambda row: row["customer"] == DELETED
            )
        keys = sorted({row[0] for row in [*missing, *surplus]})
        history = "\n".join(f"{key} slot {slot_of(key)}: {self.history(key)}" for key in keys[:3])
        return (
            f"{len(missing)} rows missing, {len(surplus)} too many, of {len(keys)} keys; "
            f"missing {sorted(missing)[:5]}, too many {sorted(surplus)[:5]}\n{history}"
        )

    def operations(self, key: str):
        """The operations that writers began on a key, in order, with their results."""
        for phase, journals in self.phases:
            for writer, journal in enumerate(journals):
                if f"/w{writer}/" in key:
                    for number, what in read_journal(journal).items():
                        if (operation := phase.draw(writer, number)).key == key:
                            yield operation, what

    def history(self, key: str) -> str:
        return ", ".join(
            f"{o.number} {o.way} {'delete' if o.body is None else o.etag} {what}"
            for o, what in self.operations(key)
        )

    def undelivered(self) -> list[str]:
        """Keys whose last change in the queue never reached the endpoint."""
        seen: defaultdict[str, set[str | None]] = defaultdict(set)
        for _, body in list(self.sink.requests):
            for event in decode_events(body).events:
                seen[event.key].add(event.etag if event.op == "put" else None)
        there = {meta.key: meta.etag for meta in list_all(self.store, PREFIX)}
        begun: defaultdict[str, list[tuple[Operation, str]]] = defaultdict(list)
        for phase, journals in self.phases:
            for writer, journal in enumerate(journals):
                for number, what in read_journal(journal).items():
                    operation = phase.draw(writer, number)
                    begun[operation.key].append((operation, what))
        wrong = []
        for key in sorted(begun):
            # A key's last operation is its last confirmed operation, or a later operation whose writer was killed.
            causes = []
            for operation, what in reversed(begun[key]):
                if operation.etag == there.get(key):
                    causes.append(operation)
                if what == "done":
                    break
            else:
                if key not in there:
                    continue  # possibly no operation was applied
            announced = all(cause.way in ANNOUNCED for cause in causes)
            if announced and causes and there.get(key) not in seen[key]:
                wrong.append(f"{key}: {self.history(key)}; came: {seen[key]}")
            assert causes or key not in there, f"{key}: no writer wrote this: {self.history(key)}"
        return wrong

    def sweep(self) -> dict[str, int]:
        """Runs the asset check `complete`, which compares all objects as a sweep does; returns its result."""
        launch = """
        mutation Launch($params: ExecutionParams!) { launchRun(executionParams: $params) {
          __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
        selector = {
            "repositoryLocationName": "s3notify_platform.definitions",
            "repositoryName": "__repository__",
            "jobName": "__ASSET_JOB",
            "assetSelection": [],
            "assetCheckSelection": [{"assetKey": {"path": ["orders"]}, "name": "complete"}],
        }
        answer = self.platform.graphql(launch, params={"selector": selector, "runConfigData": {}})[
            "launchRun"
        ]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        run = answer["run"]["runId"]
        query = """
        query Checks { assetCheckExecutions(assetKey: {path: ["orders"]}, checkName: "complete", limit: 10) {
          runId evaluation { metadataEntries { label ... on IntMetadataEntry { intValue } } } } }"""
        found: dict[str, int] = {}

        def checked() -> bool:
            for execution in self.platform.graphql(query)["assetCheckExecutions"]:
                if execution["runId"] == run and execution["evaluation"]:
                    entries = execution["evaluation"]["metadataEntries"]
                    found.update({e["label"]: e["intValue"] for e in entries if "intValue" in e})
            return bool(found)

        self.platform.until("sweep", checked)
        return found

    def facts(self) -> str:
        logs = "\n".join(f"--- {name}: {service.tail()}" for name, service in self.services.items())
        return f"FUZZ_SEED={SEED} FUZZ_OPERATIONS={OPERATIONS} killed {self.killed}\n{logs}\n{self.platform.tail()}"

    def check(self) -> None:
        """Checks that no row is lost or doubled, and that no person has to repair anything."""
        found = self.sweep()
        assert (found["found_by_sweep"], found["pending"]) == (0, 0), (found, self.facts())
        assert not self.differences(), self.facts()
        assert not (wrong := self.undelivered()), (wrong[:5], self.facts())
        assert self.feed.changes


def test_table_equals_the_bucket_after_random_kills(tmp_path: Path) -> None:
    """Otherwise a kill would leave an entry or an open batch, or would lose or double a row. At the end, the sweep must
    find no difference.
    """
    defs = tmp_path / "fuzz_defs"
    (defs / "orders").mkdir(parents=True)
    (defs / "__init__.py").touch()
    (defs / "orders" / "defs.yaml").write_text(DEFS)
    (tmp_path / "sqs").mkdir()
    half, keys = OPERATIONS // WRITERS // 2, max(12, OPERATIONS // WRITERS // 8)
    with (
        running_ministack(tmp_path / "sqs") as sqs,
        Receiver().serving() as sink,
        running(tmp_path, {"S3NOTIFY_DEFS": str(defs)}) as platform,
    ):
        fuzz = Fuzz(platform, sqs, sink, tmp_path)
        platform.until("a topic", lambda: "orders" in {topic.name for topic in fuzz.queue.topics.all()})
        endpoint = Endpoint(url=sink.url).dumps()
        fuzz.queue.topics.create(HOOK, TopicSettings(bucket=BUCKET, prefix=PREFIX, endpoint=endpoint))
        plain = Publisher(platform.store, prefix=KEYSPACE)
        try:
            # The schema is inferred from this object.
            platform.store.put(f"{PREFIX}first.jsonl", FIRST)
            plain.signal([f"{PREFIX}first.jsonl"])
            platform.until("the first batch", lambda: not fuzz.differences(), 600.0)
            if OPERATIONS >= LONG:
                fuzz.phase(Phase(seed=SEED, first=0, last=half, ways=ANNOUNCED, keys=keys), KILLS // 2)
                plain.put(f"{PREFIX}plain.jsonl", b'{"order_id": 2}\n')
                platform.until(
                    "an unqueued writer seen",
                    lambda: fuzz.backlog.read().unqueued_writers(SYSTEM_CLOCK.wall_ms()),
                )
            else:
                half = 0
                fuzz.backlog.add((), unqueued=True)
            ways = (QUEUED, SQS, HTTP, PLAIN)
            last = OPERATIONS // WRITERS
            kills = KILLS // 2 if half else KILLS
            fuzz.phase(Phase(seed=SEED, first=half, last=last, ways=ways, keys=keys), kills)
            fuzz.check()
        finally:
            for service in fuzz.services.values():
                service.kill()
    retyping = fuzz.retyping
    fuzz.tell(f"killed {fuzz.killed}, and {retyping.killed} of the commands of {retyping.done} other types")
    assert retyping.done
    killed = {name.partition(" at")[0] for name in fuzz.killed}
    assert killed >= {"run", *fuzz.services}
    assert any(name.startswith("writer") for name in killed)
