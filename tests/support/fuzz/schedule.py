"""Parts of `e2e/test_schedule_fuzz`: its writes, its faults and its checks."""

import gzip
import json
import os
import random
import signal
import subprocess
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import md5
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from s3notify_platform.channels.publish.pending_change import Refused
from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import format_of
from s3notify_platform.kernel.errors import S3NotifyError, UnavailableError
from s3notify_platform.kernel.ports import Unknown
from s3notify_platform.protocols.keyspace import Change, Delete, Put
from s3notify_platform.source.source import Source
from s3notify_platform.table.snapshot import Absent
from tests.support.feed_copy import FeedCopy
from tests.support.followed import FollowedVersions
from tests.support.fuzz.retyping import Values, is_whole, is_wide, kinds_of, may_be, mixture, values_of
from tests.support.ingested import rows_at
from tests.support.poison import corpus

Version = tuple[str, str]
"""Key and ETag."""


class Outage:
    """A replacement for `FaultProxy.faults`. While an outage is `on`, every request is answered with 503."""

    on = False

    def __bool__(self) -> bool:
        return self.on

    def popleft(self) -> str:
        return "503"


def _in_jsonl() -> dict[str, bytes]:
    """Bad objects in the JSON Lines format, with the columns of the table."""
    return {
        "wrong.jsonl": b'{"order_id": "not a number"}\n' * 50,
        "lists.jsonl": b"".join(b'{"order_id": [%d]}\n' % n for n in range(500)),
        "some-wrong.jsonl": b"".join(
            b'{"order_id": %s}\n' % (b'"no"' if n % 7 == 0 else b"%d" % n) for n in range(99)
        ),
        "large.jsonl.gz": gzip.compress(b"x" * 3_000_000, mtime=0),
    }


SCHEMA: Final = pa.schema(
    [("order_id", pa.int64()), ("customer", pa.string()), ("amount", pa.decimal128(12, 2))]
)
POISON: Final = {**_in_jsonl(), **corpus(heavy=False)}


@cache
def poison_rows(name: str) -> tuple[Mapping[int, Values], bool]:
    """The rows of a bad object by offset, if the object is read alone. The second value is True if the object also
    gives rejects.

    The result is the same for all types of the columns, because the object's numbers are small, and its other values
    fit no type.
    """
    form = format_of(name, "auto")
    assert form is not None
    parsed = list(form.parse([(name, POISON[name])], Target(schema=SCHEMA, inferred=False)))
    rows = {
        offset: values_of(row)
        for part in parsed
        for offset, row in zip(part.offset.tolist(), part.table.to_pylist(), strict=True)
    }
    return rows, any(part.rejects for part in parsed)


CUSTOMERS: Final = 20
"""The number of different customers, which are the keys of the newest rows and the first column of the clustered
rows.
"""

POISONED: Final = "poison-"


def bad_name(key: str) -> str:
    """The name (in `POISON`) of the bad object with this key."""
    return key.split(POISONED)[1].partition("-")[2]


@dataclass
class Writer:
    """Writes objects through the publisher, including bad objects. The writer records every object version that it
    began to write.
    """

    publisher: QueuedPublisher
    prefix: str
    dice: random.Random
    keys: int
    rows: dict[Version, Mapping[int, Values]] = field(default_factory=dict)
    """The rows of each version, by offset."""
    live: dict[str, str | None] = field(default_factory=dict)
    """The ETag of each key's object, after its write is confirmed."""
    number: int = 0
    poisoned: set[str] = field(default_factory=set)
    """Names of the bad objects that were written."""

    def write(self) -> None:
        """Writes one batch of changes. If a write fails, it is repeated, whether it was applied or not."""
        changes = {change.key: change for change in (self._drawn() for _ in range(self.dice.randrange(1, 6)))}
        etags: dict[str, str | None] = {}
        for key, change in changes.items():
            etags[key] = self._known(change) if isinstance(change, Put) else None
        self._until_written([*changes.values()])
        self.live |= etags

    def _drawn(self) -> Change:
        self.number += 1
        place = self.dice.randrange(self.keys)
        if self.dice.random() < 0.1:
            name = self.dice.choice(sorted(POISON))
            self.poisoned.add(name)
            return Put(key=f"{self.prefix}{POISONED}{place % 4}-{name}", body=POISON[name])
        key = f"{self.prefix}{place}.jsonl"
        if self.dice.random() < 0.2:
            return Delete(key=key)
        rows = [self._row(self.number * 100 + n) for n in range(self.dice.randrange(1, 6))]
        return Put(key=key, body=b"".join(json.dumps(row).encode() + b"\n" for row in rows))

    def _row(self, number: int) -> dict[str, Any]:
        """A new row. Sometimes a value of the row fits only some of the column's types."""
        wide = self.dice.random()
        return {
            "order_id": number + (10**12 if wide < 0.05 else 0),
            "customer": f"c{self.dice.randrange(CUSTOMERS)}",
            "amount": f"x{number}" if wide > 0.95 else f"{number}.125" if wide > 0.9 else f"{number}.5",
        }

    def expected(self, key: str, etag: str, kinds: Mapping[str, str]) -> dict[int, Values]:
        """The rows that an object version has after it was read with these types."""
        rows = self.rows[key, etag].items()
        return {offset: values for offset, values in rows if is_whole(values, kinds)}

    def _known(self, put: Put) -> str:
        etag = md5(put.body, usedforsecurity=False).hexdigest()
        if POISONED in put.key:
            self.rows[put.key, etag], _ = poison_rows(bad_name(put.key))
            return etag
        lines = put.body.splitlines(keepends=True)
        self.rows[put.key, etag] = {
            sum(map(len, lines[:n])): values_of(json.loads(line)) for n, line in enumerate(lines)
        }
        return etag

    def _until_written(self, changes: Sequence[Change]) -> None:
        ends = time.monotonic() + 300
        while True:
            failed: object = None
            try:
                outcomes = self.publisher.publish(changes)
                failed = [o for o in outcomes if isinstance(o, Unknown | Refused | S3NotifyError)]
            except S3NotifyError as error:
                failed = error
            if not failed:
                return
            assert time.monotonic() < ends, f"the server accepts no writes: {failed}"
            time.sleep(0.5)


@dataclass
class Snapshots:
    """Reads the table repeatedly, and checks each snapshot.

    In a snapshot, no row may occur twice, and no object may have two object versions. No object version may be unknown
    or incomplete. All files must have the same type for a column. The values must be those of the object, except for
    nulls (`retyping`). The change feed and the derived tables must agree with the table.
    """

    source: Source
    writer: Writer
    taken: int = 0
    rows: int = 0
    kinds: Mapping[str, str] = field(default_factory=dict)
    """The types of the columns in the last snapshot."""
    feed: FeedCopy = field(init=False)
    followed: FollowedVersions = field(init=False)
    wrong: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.feed = FeedCopy(self.source.location.table)
        self.followed = FollowedVersions(self.source)

    def take(self) -> dict[Version, dict[int, Values]]:
        """Reads and checks one snapshot. Returns the rows by version and offset."""
        for reader in (self.feed, self.followed):
            if wrong := reader.differences():
                self.wrong.append(wrong)
        table = self.source.location.table()
        found = table.newest()
        if isinstance(found, Absent):
            return {}
        if wrong := mixture(table, found):
            self.wrong.append(wrong)
        by_version: defaultdict[Version, dict[int, Values]] = defaultdict(dict)
        etags: dict[str, str] = {}
        rows = rows_at(table, found)
        for row in rows:
            key, etag, offset = row["_key"], row["_etag"], row["_offset"]
            if offset in by_version[key, etag]:
                self.wrong.append(f"twice: {key} {etag} at {offset}")
            by_version[key, etag][offset] = values_of(row)
            if etags.setdefault(key, etag) != etag:
                self.wrong.append(f"{key}: rows of versions {etags[key]} and {etag} at once")
        self.kinds = kinds = kinds_of(found)
        for version, shown in by_version.items():
            self._check(version, shown, kinds)
        self.taken, self.rows = self.taken + 1, len(rows)
        return by_version

    def _check(self, version: Version, shown: Mapping[int, Values], kinds: Mapping[str, str]) -> None:
        written = self.writer.rows.get(version)
        if written is None or not shown.keys() <= written.keys():
            self.wrong.append(f"{version}: rows at {sorted(shown)}, not as written")
            return
        if missing := [n for n in written.keys() - shown.keys() if not is_wide(written[n])]:
            self.wrong.append(f"{version}: no rows at {missing}")
        for offset, values in shown.items():
            if not may_be(values, written[offset], kinds):
                self.wrong.append(f"{version} at {offset}: {values}, not {written[offset]} as {kinds}")

    def run(self) -> None:
        """Reads snapshots until `stop`."""
        while not self._stop.wait(1.0):
            self.try_to_take()

    def try_to_take(self) -> None:
        """Reads and checks one snapshot. While the server is down, there is no snapshot to read. Each other error is
        wrong.
        """
        try:
            self.take()
        except UnavailableError:
            pass
        except Exception as error:
            self.wrong.append("".join(traceback.format_exception(error)))

    def stop(self) -> None:
        self._stop.set()


@dataclass
class Chaos:
    """Causes one fault after another, by a plan drawn from a seed: kills or stops a process, or makes the store
    unavailable.
    """

    dice: random.Random
    victims: Callable[[], Mapping[str, Sequence[int]]]
    """Returns process ids by kind of process."""
    outage: Outage
    pause: tuple[float, float]
    """The minimum and maximum seconds for which a process is stopped, or the store is unavailable."""
    done: Counter[str] = field(default_factory=Counter)

    def strike(self) -> str:
        """Causes one fault, and waits until it is over. Returns its description."""
        kind = self.dice.choice(["SIGKILL", "SIGKILL", "SIGSTOP", "outage"])
        if kind == "outage":
            self.outage.on = True
            time.sleep(self.dice.uniform(*self.pause))
            self.outage.on = False
            self.done[kind] += 1
            return kind
        there = {name: pids for name, pids in self.victims().items() if pids}
        name = self.dice.choice(sorted(there))
        pid = self.dice.choice(sorted(there[name]))
        with suppress(ProcessLookupError):
            if kind == "SIGKILL":
                os.kill(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(self.dice.uniform(*self.pause))
                os.kill(pid, signal.SIGCONT)
            self.done[f"{kind} {name}"] += 1
        return f"{kind} {name}"


@dataclass
class Drift:
    """Runs ingests whose settings differ from the settings of the table, one after another. Each of these ingests must
    be refused.
    """

    commands: Sequence[Sequence[str]]
    environment: Mapping[str, str]
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def once(self) -> list[str]:
        """Runs each ingest once. Returns the outputs of the ingests."""
        said = []
        for command in self.commands:
            done = subprocess.run(
                command, check=False, env=self.environment, capture_output=True, text=True, timeout=300
            )
            said.append(done.stderr)
            if done.returncode == 0:
                self.wrong.append(f"{command} was not refused: {done.stdout}{done.stderr}")
            self.refused += 1
        return said

    def run(self) -> None:
        """Runs all ingests again and again, until `stop`."""
        while not self._stop.wait(5):
            self.once()

    def stop(self) -> None:
        """Ends `run` after its present command."""
        self._stop.set()


def streamed(folder: Path) -> Counter[tuple[str, str, int]]:
    """The number of times that a stream (`programs.stream`) returned each row, by key, ETag and offset."""
    rows: Counter[tuple[str, str, int]] = Counter()
    for place in sorted(folder.glob("*.json")):
        rows.update((key, etag, offset) for key, etag, offset in json.loads(place.read_text()))
    return rows
