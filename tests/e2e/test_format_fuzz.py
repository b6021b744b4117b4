"""Random operations over all formats and compressions, with randomly killed runs and tiny limits. In the end each table
equals the bucket.

Settings: `FORMAT_FUZZ_OPERATIONS`, `FORMAT_FUZZ_SEED`, `FORMAT_FUZZ_KILLS`; `poe fuzz` runs the long form. The seed
alone determines the writes. The exact moment of each kill, and the run that sees a write, depend on timing.
"""

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings
from s3notify_platform.stores.open_store import open_store
from tests.support.changing import place_of
from tests.support.checked import all_whole
from tests.support.drivers import WAIT_SECONDS, Driver
from tests.support.fuzz.objects import SCHEMA, SCHEMA_DDL, Drawn
from tests.support.independent import differences, rows_of
from tests.support.servers import S3Server
from tests.support.sources import source_of

OPERATIONS = int(os.environ.get("FORMAT_FUZZ_OPERATIONS", "50"))
SEED = int(os.environ.get("FORMAT_FUZZ_SEED", "1"))
KILLS = int(os.environ.get("FORMAT_FUZZ_KILLS", str(2 + OPERATIONS // 150)))

pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.timeout(600 + 3 * OPERATIONS)]

SOURCES: dict[str, dict[str, Any]] = {
    "mixed": {"format": "auto", "schema": SCHEMA_DDL},
    "logs": {"format": "text"},
    "blobs": {"format": "binary"},
}
SUFFIXES = {
    "mixed": (
        ".jsonl", ".jsonl.gz", ".jsonl.bz2", ".jsonl.zst", ".jsonl.sz", ".jsonl.snappy", ".csv", ".csv.gz", ".csv.zst",
        ".parquet", ".avro", ".orc",
    ),
    "logs": (".txt", ".txt.gz", ".txt.bz2", ".txt.sz"),
    "blobs": (".bin",),
}  # fmt: skip
SHARES = {"mixed": 7, "logs": 2, "blobs": 1}
"""The relative frequency of runs of each source."""

SPLIT_BYTES = 4000
LIMITS: tuple[dict[str, Any], ...] = (
    {}, {}, {"max_bytes": 20_000}, {"max_objects": 3}, {"max_bytes": 9_000, "max_seconds": 2.0},
    {"split_bytes": 1 << 20}, {"split_bytes": 1000, "max_bytes": 60_000},
)  # fmt: skip
SLOTS = 4
NAMES = 3
"""The number of object names for each suffix."""

WHAT = (*("write",) * 3, *("append",) * 2, "empty", "delete", "rename", "restore", "same")


@dataclass
class Fuzz:
    """The bucket, its history, and the runs over it."""

    server: S3Server
    folder: Path
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.dice = random.Random(f"formats {SEED}")
        self.moments = random.Random(f"moments {SEED}")
        self.drawn = Drawn(self.dice)
        self.bucket = self.server.make_bucket()
        config = self.server.config(self.bucket)
        self.sources = {
            name: source_of(
                name=name, bucket=config, platform=config, prefix=f"raw/{name}/", commit="native", slots=SLOTS,
                split_bytes=SPLIT_BYTES, **settings,
            )
            for name, settings in SOURCES.items()
        }  # fmt: skip
        self.places = {name: place_of(source, SCHEMA) for name, source in self.sources.items()}
        self.s3 = self.places["mixed"].client()
        self.s3.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration={"Status": "Enabled"})
        self.queue: NotificationQueue = self.sources["mixed"].location.queue()
        for name, source in self.sources.items():
            settings = TopicSettings(bucket=self.bucket, prefix=source.input.prefix, slots=SLOTS, shards=1)
            self.queue.topics.create(name, settings)
        self.signals = {
            name: Publisher(
                open_store(config), prefix=source.location.keyspace_prefix, slots=SLOTS, queued=True
            )
            for name, source in self.sources.items()
        }
        self.bodies: dict[str, bytes] = {}
        self.versions: dict[str, list[tuple[str, bytes]]] = {}
        self.unannounced: list[tuple[str, str]] = []
        self.done: list[str] = []
        self.killed: list[str] = []
        # A kill is due after a certain share of the operations, so the number of kills does not depend on the clock.
        # Drivers and workers are killed in turn.
        kinds = [("driver", "worker")[n % 2] for n in range(KILLS)]
        self.victims = [
            ((number + self.moments.random()) / KILLS * 0.85, kind) for number, kind in enumerate(kinds)
        ]
        self.runs = self.cut_short = self.superseded = 0
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        given = {"bucket": self.bucket, "endpoint_url": self.server.endpoint_url}
        self.driver = Driver(given, keys, self.folder / "driver.log")

    # Operations

    def operate(self) -> None:
        """Does the next operation, which depends only on the seed and the earlier operations."""
        dice = self.dice
        (name,) = dice.choices([*SHARES], [*SHARES.values()])
        suffix = dice.choice(SUFFIXES[name])
        key = f"raw/{name}/{dice.randrange(NAMES)}{suffix}"
        there = key in self.bodies
        what = dice.choice(WHAT)
        if what == "append" and there and len(self.bodies[key]) < 100_000:
            self.put(key, self.drawn.body(key, self.bodies[key]))
        elif what == "empty" and there:
            self.put(key, b"")
        elif what == "delete" and there:
            self.delete(key)
        elif what == "rename" and there:
            other = f"raw/{name}/{dice.randrange(NAMES)}{suffix}"
            if other != key:
                self.put(other, self.bodies[key])
                self.delete(key)
        elif what == "restore" and self.versions.get(key):
            version, body = dice.choice(self.versions[key])
            origin = {"Bucket": self.bucket, "Key": key, "VersionId": version}
            answer = self.s3.copy_object(Bucket=self.bucket, Key=key, CopySource=origin)
            self.changed(key, body, answer["VersionId"])
        elif what == "same" and there:
            self.put(key, self.bodies[key])
        else:
            what = "write"
            self.put(key, self.drawn.body(key))
        self.done.append(f"{what} {key}")

    def put(self, key: str, body: bytes) -> None:
        answer = self.s3.put_object(Bucket=self.bucket, Key=key, Body=body)
        self.changed(key, body, answer["VersionId"])

    def delete(self, key: str) -> None:
        self.s3.delete_object(Bucket=self.bucket, Key=key)
        self.changed(key, None, "")

    def changed(self, key: str, body: bytes | None, version: str) -> None:
        if body is None:
            self.bodies.pop(key)
        else:
            self.bodies[key] = body
            self.versions.setdefault(key, []).append((version, body))
        self.unannounced.append((key.split("/")[1], key))
        # Some changes are announced late, several together.
        if self.moments.random() < 0.8:
            self.tell_all()

    def tell_all(self) -> None:
        for name in self.sources:
            keys = [key for of, key in self.unannounced if of == name]
            if keys:
                self.queue.push_many(name, [Event(key=key, bucket=self.bucket) for key in keys])
                self.signals[name].signal(keys)
        self.unannounced.clear()

    # Runs

    def run(self, name: str, *, listing: bool, limits: dict[str, Any], operations: int) -> int:
        """Does one run, and meanwhile at most this number of operations. Returns the number of done operations. The run
        may be killed.
        """
        source = self.sources[name]
        settings = {**SOURCES[name], "name": name, "prefix": source.input.prefix, "slots": SLOTS}
        settings |= {"split_bytes": SPLIT_BYTES} | limits
        self.runs += 1
        self.driver.start()
        self.driver.tell({"source": settings, "batch": f"batch-{self.runs}", "listing": listing})
        doomed = operations and self.victims and self.victims[0][0] <= len(self.done) / OPERATIONS
        # The kill comes after some outputs of the run, and a random delay. The first kill comes at most 0.1 s after the
        # first output, and thus before the run's end.
        kill, dies_at = (self.moments.randrange(1, 6) if self.killed else 1) if doomed else 0, None
        ends = time.monotonic() + WAIT_SECONDS
        done = 0
        while True:
            answer = self.driver.answer(self.moments.uniform(0, 0.3) if done < operations or dies_at else 1.0)
            assert time.monotonic() < ends, f"a run does not end: {self.facts()}"
            if answer and "progress" not in answer:
                break
            # The operations continue during the run. Most operations happen just before objects are read.
            reading = answer is not None and answer["progress"].startswith("reading")
            for _ in range(self.moments.randrange(4, 14) if reading else self.moments.randrange(2)):
                if done < operations:
                    self.operate()
                    done += 1
            if kill and answer is not None:
                kill -= 1
                dies_at = (
                    None if kill else time.monotonic() + self.moments.uniform(0, 1.0 if self.killed else 0.1)
                )
            if dies_at and time.monotonic() >= dies_at:
                dies_at = None
                if self.strike():
                    return done
        assert not answer.get("error"), (answer, self.facts())
        self.superseded += answer["superseded"]
        self.cut_short += not answer["complete"]
        self.show(
            f"{name} {'listed' if listing else 'announced'} {limits or ''}: {done} operations, {answer}"
        )
        if answer["failed"] and not operations:
            raise AssertionError(f"{answer['failed']}\n{self.facts()}")
        return done

    def strike(self) -> bool:
        """Kills the driver, or one of its workers; returns True if the run is over."""
        kind = self.victims[0][1]
        workers = self.driver.workers() if kind == "worker" else []
        if kind == "worker" and not workers:
            return False  # the next run gets this kill
        self.victims.pop(0)
        self.killed.append(kind)
        self.show(f"kills a {kind}")
        if kind == "driver":
            self.driver.kill()
            return True
        with suppress(ProcessLookupError):
            os.kill(self.moments.choice(workers), signal.SIGKILL)
        return False

    def settle(self, *, listing: bool) -> None:
        """Announces all changes. Then every table must be consistent and equal its bucket, and no entry may be left."""
        self.tell_all()
        for name, source in self.sources.items():
            for _ in range(20):
                before = self.cut_short
                self.run(name, listing=listing, limits={}, operations=0)
                if self.cut_short == before:
                    break
            else:
                raise AssertionError(f"{name} is never complete: {self.facts()}")
            all_whole(source.location)
            if found := differences(self.places[name]):
                raise AssertionError(
                    f"{name} by {'listing' if listing else 'entries'}: {found}\n{self.facts()}"
                )
            entries = self.queue.entries(name, source.location.all_slots())
            assert not entries, ([entry.event.key for entry in entries], self.facts())

    def show(self, text: str) -> None:
        """Prints a text for a person who watches (`pytest -s`)."""
        print(f"{time.monotonic() - self.began:5.0f} s, {len(self.done)} done: {text}"[:300], flush=True)

    def facts(self) -> str:
        return (
            f"{self.replay()}\nkilled {self.killed} in {self.runs} runs, {time.monotonic() - self.began:.0f} s\n"
            f"the last of {len(self.done)} operations: {self.done[-25:]}\n{self.driver.tail()}"
        )

    @staticmethod
    def replay() -> str:
        """The command that repeats the same operations."""
        return (
            f"FORMAT_FUZZ_SEED={SEED} FORMAT_FUZZ_OPERATIONS={OPERATIONS} FORMAT_FUZZ_KILLS={KILLS} "
            "pytest -s tests/e2e/test_format_fuzz.py"
        )


def test_table_of_every_format_equals_the_bucket_after_kills(ministack: S3Server, tmp_path: Path) -> None:
    """Otherwise a kill would lose or double rows of some format. An independent reader compares bucket and tables,
    between the runs and in the end.
    """
    print(f"\n{Fuzz.replay()}", flush=True)
    fuzz = Fuzz(ministack, tmp_path)
    try:
        fuzz.driver.start()
        checks = 0
        while len(fuzz.done) < OPERATIONS:
            (name,) = fuzz.moments.choices([*SHARES], [*SHARES.values()])
            operations = min(fuzz.moments.randrange(3, 20), OPERATIONS - len(fuzz.done))
            fuzz.run(
                name,
                listing=fuzz.moments.random() < 0.4,
                limits=fuzz.moments.choice(LIMITS),
                operations=operations,
            )
            if len(fuzz.done) // 80 > checks:
                checks = len(fuzz.done) // 80
                fuzz.settle(listing=checks % 2 == 0)
        fuzz.settle(listing=False)
        fuzz.settle(listing=True)
        rows = {name: rows_of(place).total() for name, place in fuzz.places.items()}
    finally:
        fuzz.driver.kill()
    print(
        f"{len(fuzz.done)} operations, {fuzz.runs} runs ({fuzz.cut_short} cut short, {fuzz.superseded} objects changed "
        f"while read), killed {fuzz.killed}, {rows} rows, {time.monotonic() - fuzz.began:.0f} s"
    )
    assert not KILLS or fuzz.killed, "not one run lived long enough to be killed"
