"""All faults disturb one source during the given time: poison objects, outages, restarts, SIGSTOP and SIGKILL.

Runs of the sensor, two `s3notify ingest` processes and a stream read one source. Meanwhile objects are written,
overwritten and deleted, and columns get other types. Other processes, with a different prefix or number of slots, are
refused.

The test reads snapshots all the time. No snapshot has a duplicate, a row of an object version that was never written,
or two types of a column. Each version of a derived table equals the table as of the version that it follows. In the
end, the rows of table and stream equal the bucket, and columns have their last types. The tables of newest rows and of
clustered rows equal the table, and bad objects are in quarantine.

Settings: `FUZZ_HOURS` (`poe fuzz --hours`), `FUZZ_SEED`. By default the faults last half a minute.
"""

import json
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.follow import Rebuilt
from s3notify_platform.table.manifest import Followed
from s3notify_platform.table.quarantined import key_quarantine
from s3notify_platform.table.snapshot import Snapshot
from tests.e2e.test_kills import processes
from tests.support.followed import FollowedVersions, behind
from tests.support.fuzz.kills import Supervised
from tests.support.fuzz.retyping import KINDS, Retyping
from tests.support.fuzz.schedule import (
    POISON,
    POISONED,
    Chaos,
    Drift,
    Outage,
    Snapshots,
    Writer,
    bad_name,
    poison_rows,
    streamed,
)
from tests.support.ingested import Place
from tests.support.platform import BUCKET, KEYSPACE, running
from tests.support.servers import S3Server
from tests.support.sources import source_of, with_settings

HOURS = float(os.environ.get("FUZZ_HOURS") or 0)
SEED = int(os.environ.get("FUZZ_SEED", "1"))
SECONDS = HOURS * 3600 or 30.0
PAUSE = (20.0, 60.0) if HOURS else (2.0, 6.0)
RETYPE_PAUSE = min(40.0, SECONDS / 10), min(120.0, SECONDS / 5)
PREFIX = "raw/orders/"

pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.timeout(SECONDS + 1800)]

DEFS = f"""
type: s3notify_platform.S3NotifyComponent
attributes:
  name: orders
  bucket: {BUCKET}
  prefix: {PREFIX}
  format: auto
  schema: "SCHEMA"
  latest: {{key: customer, order_by: order_id}}
  cluster_by: customer, order_id
  interval_seconds: 1
  silence_seconds: 20
  backoff_seconds: 1
  parked_seconds: 20
  max_attempts: 3
  list_seconds: 2
  s3:
    endpoint_url: "{{{{ env('AWS_ENDPOINT_URL') }}}}"
  spark:
    config: {{spark.driver.memory: 1g}}
"""


def schema_of(kinds: Mapping[str, str]) -> str:
    return f"order_id {kinds['order_id']}, customer string, amount {kinds['amount']}"


def test_no_snapshot_is_wrong_under_faults(tmp_path: Path) -> None:
    """Otherwise a query during an outage or a restart could see a row twice, a row that no object ever had, or two
    types in one column. The module's docstring lists all faults and checks.
    """
    dice = random.Random(SEED)
    schema = schema_of({name: kinds[0] for name, kinds in KINDS.items()})
    (tmp_path / "defs" / "orders").mkdir(parents=True)
    (tmp_path / "defs" / "__init__.py").touch()
    (tmp_path / "defs" / "orders" / "defs.yaml").write_text(DEFS.replace("SCHEMA", schema))
    changes = tmp_path / "changes"
    changes.mkdir()
    outage = Outage()
    with running(tmp_path, {"S3NOTIFY_DEFS": str(tmp_path / "defs")}, proxied=True) as platform:
        proxy = platform.proxy
        proxy.faults = outage
        proxy.answered = proxy.requests = deque(maxlen=0)
        config = platform.server.config(BUCKET)
        following = {
            "latest_key": "customer",
            "latest_order_by": "order_id",
            "cluster_by": "customer, order_id",
        }
        source = source_of(
            bucket=config, name="orders", prefix=PREFIX, format="auto", commit="native", **following
        )
        environment = {
            **platform.server.environment(),
            "AWS_ENDPOINT_URL": proxy.url,
            "FUZZ_FOLDER": str(tmp_path),
        }
        cli = [sys.executable, "-m", "s3notify_platform.cli"]
        options = {"name": "orders", "bucket": BUCKET, "prefix": PREFIX, "format": "auto", "schema": schema}
        flags = [
            word
            for name, value in (options | following).items()
            for word in (f"--{name.replace('_', '-')}", value)
            if name not in ("name", "schema")
        ]

        undeclared = [*cli, "ingest", "orders", *flags, "--master", "local[1]", "--every", "2", "--schema"]
        ingest = [*undeclared, schema]
        stream = [str(changes), str(tmp_path / "checkpoint"), json.dumps(options)]
        commands = {
            "ingest 0": ingest,
            "ingest 1": ingest,
            "stream": [sys.executable, "-m", "tests.support.programs.stream", *stream],
        }
        services = {
            name: Supervised(
                name=name,
                command=command,
                environment=environment,
                log=tmp_path / f"{name}.log",
                restarts_max=200,
            )
            for name, command in commands.items()
        }

        def declare(kinds: Mapping[str, str]) -> None:
            """Sets the types in the YAML, and lets Dagster load the YAML again. Sets the types for both ingests, too,
            and restarts the ingests.
            """
            schema = schema_of(kinds)
            place = tmp_path / "defs" / "orders" / "defs.yaml"
            place.with_suffix(".new").write_text(DEFS.replace("SCHEMA", schema))
            place.with_suffix(".new").rename(place)
            for name in ("ingest 0", "ingest 1"):
                services[name].command = [*undeclared, schema]
                services[name].kill()
            platform.reload()

        publisher = QueuedPublisher(Publisher(platform.store, prefix=KEYSPACE), platform.queue, bucket=BUCKET)
        other_settings = [("--prefix", f"{PREFIX}1"), ("--slot-count", "8")]
        drift = Drift(
            commands=[[*ingest, "--once", *option] for option in other_settings],
            environment={**os.environ, **environment},
        )
        writer = Writer(publisher, PREFIX, dice, keys=40)
        snapshots = Snapshots(source, writer)

        def victims() -> dict[str, list[int]]:
            found = {name: processes(tmp_path, name) for name in ("run", "daemon")}
            found["server"] = [pid] if (pid := platform.server.pid) else []
            found["java"] = java_of(tmp_path)
            for name, service in services.items():
                running = service.process is not None and service.process.poll() is None
                found[name] = [service.process.pid] if running and service.process else []
            return found

        chaos = Chaos(dice=random.Random(SEED + 1), victims=victims, outage=outage, pause=PAUSE)
        began = time.monotonic()

        def say(text: str) -> None:
            print(f"{time.monotonic() - began:6.0f} s: {text}", flush=True)

        retyping = Retyping(
            dice=random.Random(SEED + 2),
            command=[*cli, "schema", "set", "orders", "--bucket", BUCKET],
            environment=environment,
            log=tmp_path / "schema-set.log",
            say=say,
            declare=declare,
            pause=RETYPE_PAUSE,
        )
        platform.until("a topic", lambda: "orders" in {topic.name for topic in platform.queue.topics.all()})
        for _ in range(5):
            writer.write()
        platform.until("columns", lambda: snapshots.take() and snapshots.kinds == retyping.kinds, 600.0)
        looking = threading.Thread(target=snapshots.run)
        drifting = threading.Thread(target=drift.run)
        end = time.monotonic() + SECONDS  # `SECONDS` begin only here, since the first rows may take longer
        breaking = threading.Thread(target=break_things, args=(chaos, end, say))
        looking.start()
        retyping.start()
        breaking.start()
        drifting.start()
        try:
            while time.monotonic() < end:
                for service in services.values():
                    service.reconcile()
                writer.write()
                assert not snapshots.wrong, (snapshots.wrong[:5], chaos.done)
                assert not retyping.wrong, retyping.wrong
                time.sleep(0.5)
            breaking.join()
            drift.stop()
            drifting.join()
            retyping.stop()
            assert not retyping.wrong, retyping.wrong
            # Only a batch updates the derived tables, so one more object is published.
            writer.write()
            said = drift.once()
            assert all("has other settings than its table" in each for each in said), said
            say(
                f"{writer.number} changes, {snapshots.taken} snapshots, {snapshots.feed.changes} changes of the feed, "
                f"{snapshots.followed.compared} versions of derived tables, {drift.refused} refused; "
                f"{len(writer.poisoned)} of {len(POISON)} bad objects; {retyping.done} other types, by commands of "
                f"which {retyping.killed} were killed; {dict(chaos.done)}"
            )

            def settled() -> bool:
                for service in services.values():
                    service.reconcile()
                assert not snapshots.wrong, snapshots.wrong[:5]
                held = {meta.key: meta.etag for meta in list_all(platform.store, PREFIX)}
                expected = {
                    version: rows
                    for version in held.items()
                    if (rows := writer.expected(*version, retyping.kinds))
                }
                given = {row[:2] for row in streamed(changes)}
                return (
                    snapshots.take() == expected
                    and snapshots.kinds == retyping.kinds
                    and given >= expected.keys()
                    and not behind(source)
                )

            platform.until("the table and the stream equal the bucket", settled, 600 + SECONDS / 20)
        finally:
            snapshots.stop()
            drift.stop()
            outage.on = False
            looking.join()
            retyping.stop()
            for service in services.values():
                service.kill()
        assert not drift.wrong
        # If an object is written again with the same bytes, its rows count as new rows.
        assert {row[:2] for row in streamed(changes)} <= writer.rows.keys()
        poisoned = {
            key
            for key, etag in writer.live.items()
            if etag and POISONED in key and poison_rows(bad_name(key))[1]
        }
        table = source.table()
        assert not {key for key in poisoned if not key_quarantine(table, slot_of(key), key, limit=1)}
    assert not snapshots.wrong
    assert snapshots.feed.changes
    assert snapshots.followed.compared
    assert chaos.done.total() >= 3
    assert retyping.done


def break_things(chaos: Chaos, ends: float, say: Callable[[str], None]) -> None:
    """Causes faults, one after another, until the time is over."""
    while time.monotonic() < ends:
        time.sleep(chaos.dice.uniform(2, 10))
        say(chaos.strike())


def java_of(folder: Path) -> list[int]:
    """The JVMs of this platform."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            except OSError:
                continue
            if b"java" in command.split(b"\0")[0] and str(folder).encode() in command + environment:
                found.append(int(entry.name))
    return found


def test_snapshots_report_each_error_that_no_outage_causes(ministack: S3Server) -> None:
    """Otherwise a table could be unreadable for some time, and the fuzz test would pass."""
    place = Place(ministack)
    place.put("a", 1)
    place.run("1")
    publisher = QueuedPublisher(
        Publisher(place.store, prefix=KEYSPACE), place.source.location.queue(), bucket=BUCKET
    )
    writer = Writer(publisher, PREFIX, random.Random(SEED), keys=1)
    nowhere = replace(place.source.location.platform, endpoint_url="http://127.0.0.1:9")
    unreachable = Snapshots(with_settings(place.source, platform=nowhere), writer)
    unreachable.try_to_take()
    assert not unreachable.wrong
    place.store.delete(place.source.location.layout.file(next(iter(place.snapshot().packs))))
    snapshots = Snapshots(place.source, writer)
    snapshots.try_to_take()
    assert "CorruptError" in snapshots.wrong[0]


def test_wrong_version_of_a_derived_table_is_found_although_a_rebuild_repairs_it(ministack: S3Server) -> None:
    """The comparison must use the source's rows as of the version that the derived table follows."""
    place = Place(ministack, latest_key="a", latest_order_by="a", cluster_by="a")
    place.put("a", 1, 2)
    place.run("1")
    for asset in place.source.kinds:
        place.source.following(asset).follow()
    place.put("b", 3)
    place.run("2")
    followed = FollowedVersions(place.source)
    assert not followed.differences()
    assert followed.compared == 2
    for asset in place.source.kinds:
        table, now = place.source.table(asset), place.snapshot()
        held = table.newest()
        assert isinstance(held, Snapshot)
        lost = Rebuilt(
            base=held, packs=(), slots={}, follows=Followed(table=now.table, version=now.version),
            metadata=None, protocol=None, now_ms=SYSTEM_CLOCK.wall_ms(),
        )  # fmt: skip
        assert isinstance(table.commit(lost, held), Committed)
        assert f"{asset}, version {held.version + 1}, as of version {now.version}" in followed.differences()
        place.source.following(asset).follow(rebuild=True)
        assert not followed.differences()
    assert not behind(place.source)
