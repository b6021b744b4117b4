"""The demo: objects on the embedded S3 server become committed tables, with each step printed.

The demo prints each published round with its request count, each poll with the changed slots that it found, and the
slots that Dagster reports. At the end the demo compares the table with the ledger of all writes. Every order must be in
the table exactly once, and every malformed record in quarantine.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from dagster import AssetKey, AssetRecordsFilter, DagsterInstance, RunsFilter
from rich.console import Console
from rich.table import Table

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import S3NotifyError, UnavailableError
from s3notify_platform.kernel.ports import Written, list_all
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.local.dagster_dev import DagsterDev
from s3notify_platform.local.demo_data import PREFIX, Round, Write, rounds
from s3notify_platform.local.java import java_environment
from s3notify_platform.local.process import free_ports, refuse_taken
from s3notify_platform.local.project import DEMO_FOLDER
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.keyspace import Delete, NotSignalledError, Publisher, Put, Watcher
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.source.location import Location
from s3notify_platform.source.settings import DEFS_VARIABLE
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.open_store import open_store, queue_records
from s3notify_platform.table.arrow_schema import REJECT_SCHEMA, arrow_schema
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.reading import read_slots
from s3notify_platform.table.snapshot import Absent, Snapshot

T = TypeVar("T")

SOURCE: Final = "orders"
KEYSPACE: Final = f"_s3notify/{SOURCE}/keyspace/"
SHOWN_SLOTS: Final = 8
ROUNDS_ONCE: Final = 2
ROUND_SECONDS: Final = 8.0
AWAY_SECONDS: Final = 90.0
PATIENCE_SECONDS: Final = 600.0


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The demo's own record of its writes, and so of the bucket's content."""

    live: dict[str, Write] = field(default_factory=dict)
    puts: int = 0
    deletes: int = 0
    slots: set[Slot] = field(default_factory=set)

    def note(self, change: Round) -> None:
        """Records a published round."""
        for write in change.puts:
            self.live[write.key] = write
        for key in change.deletes:
            self.live.pop(key, None)
        self.puts += len(change.puts)
        self.deletes += len(change.deletes)
        self.slots |= {slot_of(key) for key in (*(w.key for w in change.puts), *change.deletes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The table compared with the ledger."""

    rows: int
    rejects: int
    missing: int
    surplus: int
    wrong_rejects: int

    @property
    def exact(self) -> bool:
        """True if the table has every row exactly once and no other row, and the quarantine has every malformed record
        and no other record.
        """
        return self.missing == self.surplus == self.wrong_rejects == 0

    def ending(self, *, halfway: bool, queued: int) -> tuple[bool, str]:
        """Returns True if the demo ends well, else False, and the text of the demo's last line.
        `halfway`: the demo was stopped before its last round was committed. `queued`: the number of waiting changes.
        """
        if self.exact:
            return True, "[green]every row that was written is in the table exactly once[/green]"
        if halfway:
            waiting = f"{queued} changes are" if queued else "the unfinished writes are"
            return (
                True,
                f"[yellow]stopped: {waiting} not in the table yet; a new start continues[/yellow]",
            )
        return False, "[red]the table differs from what was written[/red]"


class Demo:
    """One demo in one folder. The demo's data survives restarts; the same seed gives the same table."""

    def __init__(
        self,
        folder: Path,
        *,
        objects: int = 120,
        port: int | None = None,
        seed: int = 1,
        console: Console | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.folder = folder.resolve()
        self._objects = objects
        self._port = port
        self._seed = seed
        self._console = console or Console()
        self._clock = clock
        self._began = clock.monotonic()
        self.ledger = Ledger()

    def run(self, *, once: bool) -> bool:
        """Runs until Ctrl-C, or, with `once`, until all rounds are committed. Returns False if the committed table
        differs from the ledger. With `once`, `KeyboardInterrupt` if Ctrl-C ends the demo before that.
        """
        if self._port is not None:
            refuse_taken(self._port, "--port")
        self._say("starting the embedded S3 server")
        with LocalS3Server(self.folder / "s3") as server:
            bucket = os.environ.get("S3NOTIFY_DEMO_BUCKET", "s3notify-demo")
            server.create_bucket(bucket)
            port = self._port or free_ports(1, self._clock)[0]
            environment = {
                **server.environment(),
                **java_environment(),
                "S3NOTIFY_DEMO_BUCKET": bucket,
                DEFS_VARIABLE: str(DEMO_FOLDER),
            }
            self._say(f"S3 at {server.endpoint_url}, bucket {bucket}; starting Dagster")
            with DagsterDev(self.folder / "dagster", port=port, environment=environment) as dagster:
                dagster.wait_ready()
                self._say(f"[bold]Dagster UI at {dagster.url}/assets/{SOURCE}[/bold]")
                return self._play(server.config(bucket), dagster, once=once)

    def _play(self, config: S3Config, dagster: DagsterDev, *, once: bool) -> bool:
        store = CountingStore(open_store(config))
        queue = NotificationQueue(queue_records(config, store=store))
        publisher = QueuedPublisher(Publisher(store, prefix=KEYSPACE), queue, bucket=config.bucket)
        watcher = Watcher(store, prefix=KEYSPACE)
        with DagsterInstance.from_config(str(dagster.home)) as instance:
            feed = _Feed(instance)
            self._await_topic(queue)
            script: Iterator[Round] = rounds(self._seed, self._objects)
            halfway = interrupted = False
            try:
                for number, change in enumerate(islice(script, ROUNDS_ONCE if once else None)):
                    halfway = True
                    if number == 0:
                        change.deletes += self._patiently(partial(self._strays, store, change))
                    # The ledger is written before the round, so that uncommitted changes are known if the demo is
                    # stopped.
                    self.ledger.note(change)
                    self._publish(publisher, store, change, number)
                    self._poll(watcher, store)
                    self._await_commit(self._table(config), feed, change)
                    halfway = False
                    if not once:
                        self._clock.sleep(ROUND_SECONDS)
            except KeyboardInterrupt:
                interrupted = True
                self._say("stopping")
            verdict = self._patiently(lambda: self._verify(self._table(config)))
            feed.lines()
            queued = queue.stats(SOURCE).depth
            self._report(feed, verdict, queued)
            well, line = verdict.ending(halfway=halfway, queued=queued)
            self._console.print(line)
            if once and interrupted:
                raise KeyboardInterrupt
            return well

    def _publish(self, publisher: QueuedPublisher, store: CountingStore, change: Round, number: int) -> None:
        before = Counter(store.counts)
        batch: list[Put | Delete] = [
            *(Put(key=w.key, body=w.body) for w in change.puts),
            *(Delete(key=key) for key in change.deletes),
        ]
        keys = [item.key for item in batch]
        self._until_written(publisher, batch)
        self._say(
            f"round {number}: published {len(change.puts)} objects, {len(change.deletes)} deletes in "
            f"{len({slot_of(key) for key in keys})} slots with {_counted(store.counts - before)}"
        )

    def _await_topic(self, queue: NotificationQueue) -> None:
        """Waits for the sensor's first tick, which creates the topic. Changes that are published before this tick need
        a listing.
        """
        ends = self._clock.monotonic() + PATIENCE_SECONDS
        self._say("waiting for the sensor's first tick")
        while True:
            with suppress(S3NotifyError):
                queue.topics.get(SOURCE)
                return
            if self._clock.monotonic() > ends:
                raise UnavailableError("the sensor did not tick; see Dagster's log")
            self._clock.sleep(0.5)

    def _strays(self, store: CountingStore, first: Round) -> list[str]:
        """Keys of objects in this folder from an earlier demo that ran for longer, or with another seed."""
        ours = {write.key for write in first.puts}
        return [meta.key for meta in list_all(store, PREFIX) if meta.key not in ours]

    def _patiently(self, read: Callable[[], T]) -> T:
        """The result of `read`, once the S3 server answers. The server may have been killed, and is then restarted."""
        ends = self._clock.monotonic() + AWAY_SECONDS
        while True:
            try:
                return read()
            except UnavailableError:
                if self._clock.monotonic() > ends:
                    raise
            self._clock.sleep(1.0)

    def _until_written(self, publisher: QueuedPublisher, batch: Sequence[Put | Delete]) -> None:
        """Publishes until every write is confirmed; writing and signalling again is harmless."""
        ends = self._clock.monotonic() + AWAY_SECONDS
        while True:
            try:
                outcomes = publisher.publish(batch)
            except (NotSignalledError, UnavailableError):
                outcomes = ()
            if outcomes and all(isinstance(outcome, Written) for outcome in outcomes):
                return
            if self._clock.monotonic() > ends:
                raise UnavailableError(f"the S3 server did not answer for {AWAY_SECONDS:.0f} s; see its log")
            self._say("[yellow]the S3 server does not answer; publishing again[/yellow]")
            self._clock.sleep(1.0)

    def _poll(self, watcher: Watcher, store: CountingStore) -> None:
        before = Counter(store.counts)
        try:
            poll = watcher.poll()
        except S3NotifyError as error:
            self._say(f"[yellow]poll failed: {error}[/yellow]")
            return
        shown = ", ".join(map(str, sorted(poll.changed)[:12]))
        self._say(
            f"a poll found {len(poll.changed)} changed slots with {_counted(store.counts - before)}: "
            f"{shown}{' …' if len(poll.changed) > 12 else ''}"
        )

    def _table(self, config: S3Config) -> LogTable:
        return Location(name=SOURCE, platform=config).table()

    def _await_commit(self, table: LogTable, feed: "_Feed", change: Round) -> None:
        """Prints Dagster's reports until the slots of `change` agree with the ledger."""
        pending = {slot_of(key) for key in (*(w.key for w in change.puts), *change.deletes)}
        started = self._clock.monotonic()
        looked = started
        while pending:
            fresh = set()
            for number, (slot, line) in enumerate(feed.lines()):
                fresh.add(slot)
                if number < SHOWN_SLOTS:
                    self._console.print(f"         {line}", highlight=False)
            if len(fresh) > SHOWN_SLOTS:
                self._console.print(f"         … and {len(fresh) - SHOWN_SLOTS} more slots", highlight=False)
            # Dagster does not repeat reports from before a crash, so all pending slots are checked now and then.
            if self._clock.monotonic() - looked > 15:
                fresh, looked = set(pending), self._clock.monotonic()
            pending -= {slot for slot in fresh & pending if self._is_committed(table, slot)}
            if self._clock.monotonic() - started > PATIENCE_SECONDS:
                raise UnavailableError(
                    f"{len(pending)} slots were not committed in {PATIENCE_SECONDS:.0f} s; see the Dagster UI"
                )
            if pending:
                self._clock.sleep(0.5)
        self._say(f"[green]committed, {self._clock.monotonic() - started:.1f} s after publishing[/green]")

    def _is_committed(self, table: LogTable, slot: Slot) -> bool:
        try:
            found = table.newest()
            if isinstance(found, Absent):
                return False
            ((_, states),) = table.states.of_slots(found.manifest.states, [slot])
        except S3NotifyError:
            return False
        wanted = {key: len(write.body) for key, write in self.ledger.live.items() if slot_of(key) == slot}
        held = {key: state.size for key, state in states.items()}
        return wanted == held and all(
            states[key].rows == len(self.ledger.live[key].order_ids) for key in wanted
        )

    def _verify(self, table: LogTable) -> Verdict:
        expected = Counter(
            (key, order) for key, write in self.ledger.live.items() for order in write.order_ids
        )
        expected_rejects = Counter({key: w.malformed for key, w in self.ledger.live.items() if w.malformed})
        found: Counter[tuple[str, int]] = Counter()
        rejects: Counter[str] = Counter()
        if isinstance(newest := table.newest(), Snapshot):
            schema = arrow_schema(newest.metadata.schema)
            store, layout = table.reader.store, table.layout
            for part in read_slots(store, layout, newest.packs.values(), None, schema):
                keys, orders = (part.column(name).to_pylist() for name in ("_key", "order_id"))
                found.update(zip(keys, orders, strict=True))
            for part in read_slots(store, layout, newest.manifest.rejects, None, REJECT_SCHEMA):
                rejects.update(part.column("_key").to_pylist())
        wrong = (rejects - expected_rejects) + (expected_rejects - rejects)
        return Verdict(
            rows=found.total(),
            rejects=rejects.total(),
            missing=(expected - found).total(),
            surplus=(found - expected).total(),
            wrong_rejects=wrong.total(),
        )

    def _report(self, feed: "_Feed", verdict: Verdict, queued: int) -> None:
        table = Table(title="s3notify demo", show_header=False)
        rows: list[tuple[str, object]] = [
            ("objects written / deleted", f"{self.ledger.puts} / {self.ledger.deletes}"),
            ("objects live", len(self.ledger.live)),
            ("slots touched", len(self.ledger.slots)),
            ("slot commits reported", feed.commits),
            ("runs", feed.runs()),
            ("requests by kind, in runs", _counted(feed.requests())),
            ("changes left in the queue", queued),
            ("rows", verdict.rows),
            ("rejects in quarantine", verdict.rejects),
            ("rows missing / surplus", f"{verdict.missing} / {verdict.surplus}"),
            ("seconds", f"{self._clock.monotonic() - self._began:.1f}"),
        ]
        for name, value in rows:
            table.add_row(name, str(value))
        self._console.print(table)

    def _say(self, text: str) -> None:
        self._console.print(
            f"[dim]{self._clock.monotonic() - self._began:6.1f} s[/dim] {text}", highlight=False
        )


REQUESTS: Final = "batch_requests_"
BATCHES_MAX: Final = 1000


class _Feed:
    """Materializations of the source's asset, as Dagster stores them."""

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance
        self._after: int | None = None
        self.commits = 0

    def lines(self) -> Iterator[tuple[Slot, str]]:
        """The materializations since the last call."""
        while True:
            page = self._instance.fetch_materializations(_filter(self._after), limit=200, ascending=True)
            for record in page.records:
                self._after = record.storage_id
                event = record.asset_materialization
                if event is None or event.partition is None:
                    continue
                metadata = {key: value.value for key, value in event.metadata.items()}
                self.commits += metadata.get("outcome") == "committed"
                yield (
                    Slot(int(event.partition)),
                    (
                        f"slot {event.partition:>3} {metadata.get('outcome')} version {metadata.get('table_version')}: "
                        f"{metadata.get('objects_read')} objects, {metadata.get('records_read')} rows, "
                        f"{metadata.get('records_rejected')} rejects, {metadata.get('objects_removed')} removed"
                    ),
                )
            if not page.has_more:
                return

    def requests(self) -> Counter[str]:
        """The requests of the last batches, by kind."""
        found: Counter[str] = Counter()
        summary = AssetKey([f"{SOURCE}_summary"])
        for record in self._instance.fetch_materializations(summary, limit=BATCHES_MAX).records:
            event = record.asset_materialization
            for name, value in event.metadata.items() if event is not None else ():
                if name.startswith(REQUESTS) and isinstance(value.value, int):
                    found[name.removeprefix(REQUESTS)] += value.value
        return found

    def runs(self) -> int:
        """Runs of the source's batches."""
        return self._instance.get_runs_count(RunsFilter(tags={"s3notify/source": SOURCE}))


def _filter(after: int | None) -> AssetRecordsFilter:
    return AssetRecordsFilter(asset_key=AssetKey([SOURCE]), after_storage_id=after)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()) if count) or "0 requests"
