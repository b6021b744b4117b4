"""Ownership of shards: leases with generations, spread over the running workers.

Each worker has one record, its heartbeat. The heartbeat changes at every renewal, and so shows that the worker runs.
The heartbeat also names the topics that the worker cannot deliver. The owners of a topic are also in one record. So a
renewal costs one write, for any number of shards.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from s3notify_platform.kernel.attempts import ATTEMPTS
from s3notify_platform.kernel.clock import unique_name
from s3notify_platform.kernel.errors import CorruptError, FencedError, UnavailableError, UsageError
from s3notify_platform.kernel.ports import Record, Version
from s3notify_platform.protocols.notification_queue.entries import (
    OWNERS,
    WORKERS,
    Entry,
    Topic,
)
from s3notify_platform.protocols.notification_queue.queue import NotificationQueue
from s3notify_platform.protocols.notification_queue.segments import Segment
from s3notify_platform.protocols.updates import Stored

BALANCE_SECONDS = 2.0
"""Seconds between two calls of `balance`."""

LEASE_SECONDS = 2.5 * BALANCE_SECONDS
"""A worker that could not renew its leases for this long, on its own clock, stops delivering."""

EXPIRY_SECONDS = 5 * BALANCE_SECONDS
"""A worker whose heartbeat did not change for this long, on the observer's clock, is considered ended.

If workers call `balance` every `BALANCE_SECONDS`, the shards of a killed worker have a new owner within 14 s.
"""

UNUSABLE_MAX = 500
"""The maximum number of topics that a heartbeat names, so that its record stays below DynamoDB's limit."""

EXPIRY_MAX_SECONDS = 600.0
"""The longest time that other workers wait for a worker, even if the worker's heartbeat asks for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLease:
    """The right to consume one shard until a newer generation exists."""

    topic: str
    epoch: str
    shard: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOwner:
    """The owner of a shard, for people; times are by the owner's wall clock. An empty `worker` means that the shard has
    no owner.
    """

    worker: str = ""
    generation: int = 0
    since_ms: int = field(default=0, compare=False)
    """Time at which the owner took the shard."""
    beat_ms: int | None = field(default=None, compare=False)
    """Time of the owner's last heartbeat; None if there is no heartbeat."""


def fair_share(worker: str, held: Mapping[str, int], shards: int) -> int:
    """The number of shards that a worker should own. The shares add up to `shards`, and differ by at most one.

    `held`: the workers that may own these shards, with the number of shards that each worker owns. Any other worker
    should own no shard. Workers that own more shards get the larger shares, so few shards move.
    """
    if worker not in held:
        return 0
    names = sorted(held, key=lambda name: (-held[name], name))
    return shards // len(names) + (names.index(worker) < shards % len(names))


def pushed(topic: Topic) -> bool:
    """True if the topic has an endpoint to push to, and so needs owners."""
    return bool(topic.settings.endpoint)


class Worker:
    """One worker: a process that consumes shards. One thread calls `balance`; any thread may call `valid` and `verify`.

    After `balance` has returned a lease, no former owner of the lease's shard can remove any entry of the shard.
    """

    def __init__(
        self,
        queue: NotificationQueue,
        *,
        name: str | None = None,
        serves: Callable[[Topic], bool] = pushed,
        lease_seconds: float = LEASE_SECONDS,
        expiry_seconds: float = EXPIRY_SECONDS,
    ) -> None:
        if not 0 < lease_seconds < expiry_seconds:
            raise UsageError(f"lease_seconds={lease_seconds} must be below expiry_seconds={expiry_seconds}")
        self.queue = queue
        # Each process has a new name, so it never owns the claims of an earlier process.
        self.name = f"{name or 'worker'}-{unique_name(queue.clock)[:16]}"
        self._clock = queue.clock
        self._serves = serves
        self._lease_seconds = lease_seconds
        self._expiry_seconds = expiry_seconds
        self._beat = 0
        self._version: Version | None = None
        self._renewed: float | None = None
        self._seen: dict[str, tuple[bytes, float]] = {}
        self._leases: dict[tuple[str, int], ShardLease] = {}
        self._topics: dict[str, Topic] = {}
        self.surplus: tuple[ShardLease, ...] = ()
        """Busy leases above the fair share, as of the last `balance`. The caller should finish the entries of these
        leases, and begin no others, so that the next `balance` can release these leases.
        """
        self.unadopted = 0
        """Number of shards that the last `balance` took, but could not scan in time. Call `balance` again without a
        pause.
        """
        self._adopted = 0
        self.unusable: dict[str, str] = {}
        """Topics that this worker cannot deliver, each with its endpoint; the caller adds them. The shards of these
        topics are left to the workers that can deliver them, if there are any.
        """
        self.unreadable: dict[tuple[str, int], str] = {}
        """Shards with corrupt records, by topic and number. A person must repair the records before the shards can be
        served.
        """

    @property
    def leases(self) -> tuple[ShardLease, ...]:
        """The leases of the last `balance` that are still valid."""
        return tuple(lease for lease in self._leases.values() if self.valid(lease))

    def balance(self, busy: Collection[ShardLease] = ()) -> tuple[ShardLease, ...]:
        """Renews the leases, takes free or expired shards up to the fair share, and releases shards above the fair
        share. Returns the leases.

        Call `balance` every `BALANCE_SECONDS`, from a separate thread if deliveries may be slow. A lease that is not
        renewed in time ends, and its consumer raises `FencedError`. `busy`: leases whose entries are being delivered.
        Busy leases are kept even above the fair share.

        Requests: 1 write; scans of workers, topics and owners; 1 write for each topic whose owners change. For each
        shard taken: 1 scan, and 1 write for each segment with claims of a former owner. `UnavailableError` or
        `UnknownOutcomeError`: call again; leases stay valid for `lease_seconds`.
        """
        self._renew()
        # The owners are read first, so the read of the workers finds every worker that owns a shard.
        owned = self._owned()
        alive = self._alive()
        for key, lease in tuple(self._leases.items()):
            if key not in owned or owned[key] != ShardOwner(worker=self.name, generation=lease.generation):
                del self._leases[key]
        self.unreadable, self.unadopted, self._adopted = {}, 0, 0
        self._adopt(owned)
        surplus: list[ShardLease] = []
        for workers, topics in self._able(alive).items():
            surplus += self._share(
                workers, {key: owned[key] for key in owned if key[0] in topics}, alive, busy
            )
        self.surplus = tuple(surplus)
        return self.leases

    def stop(self) -> None:
        """Releases everything, so that nobody waits for an expiry. Requests: 2 for each topic, and 1 more.

        Finish the entries in progress before this call; otherwise, the next owner delivers these entries again.
        `UnavailableError` or `UnknownOutcomeError`: the remaining leases expire like the leases of a killed worker.
        """
        self._leases.clear()
        shards = ((name, topic.settings.shards) for name, topic in self._topics.items())
        self._disown((name, shard) for name, count in shards for shard in range(count))
        if self._version is not None:
            self.queue.updates.remove(WORKERS, self.name, expected=self._version)
            self._version = None

    def valid(self, lease: ShardLease) -> bool:
        """True if the lease was renewed recently enough, by this process's clock. Cost: no request."""
        return (
            self._leases.get((lease.topic, lease.shard)) == lease
            and self._renewed is not None
            and self._clock.monotonic() - self._renewed < self._lease_seconds
        )

    def verify(self, lease: ShardLease) -> bool:
        """True if this worker still owns the shard. Cost: 1 request.

        If true, a later owner finds all claims that were made before this call.
        """
        record = self.queue.records.read(OWNERS, lease.topic)
        if record is None:
            return False
        epoch, owners = _decode_owners(record)
        mine = ShardOwner(worker=self.name, generation=lease.generation)
        return epoch == lease.epoch and lease.shard < len(owners) and owners[lease.shard] == mine

    def topic(self, lease: ShardLease) -> Topic:
        """The topic as of the last `balance`; `FencedError` if the topic was deleted, and so the lease has ended."""
        if (topic := self._topics.get(lease.topic)) is None:
            raise FencedError(f"topic {lease.topic!r} is gone")
        return topic

    def _able(self, alive: Mapping[str, Collection[str]]) -> dict[frozenset[str], set[str]]:
        """The topics, grouped by the workers that may own their shards. If no worker can deliver a topic, every worker
        may own its shards, because an owner also removes expired entries.
        """
        able: dict[frozenset[str], set[str]] = {}
        for topic in self._topics:
            workers = frozenset(name for name, unusable in alive.items() if topic not in unusable)
            able.setdefault(workers or frozenset(alive), set()).add(topic)
        return able

    def _share(
        self,
        workers: Collection[str],
        owned: Mapping[tuple[str, int], ShardOwner],
        alive: Collection[str],
        busy: Collection[ShardLease],
    ) -> Sequence[ShardLease]:
        """Takes or releases some of these shards, up to the fair share among `workers`. Returns the busy leases above
        the fair share.
        """
        held = {name: sum(owner.worker == name for owner in owned.values()) for name in {*workers, self.name}}
        surplus = held[self.name] - fair_share(self.name, {name: held[name] for name in workers}, len(owned))
        if surplus > 0:
            mine = [lease for key, lease in self._leases.items() if key in owned and lease not in busy]
            released = mine[-surplus:]
            for lease in released:  # the delivery of released shards stops even if the write fails
                self._leases.pop((lease.topic, lease.shard), None)
            self._disown((lease.topic, lease.shard) for lease in released)
            kept = [lease for key, lease in self._leases.items() if key in owned]
            return kept[: surplus - len(released)]
        if surplus < 0:
            free = [key for key, owner in owned.items() if owner.worker not in alive]
            self._take({key: owned[key] for key in free[:-surplus]})
        return ()

    def _renew(self) -> None:
        started = self._clock.monotonic()
        self._beat += 1
        beat = {"v": 1, "worker": self.name, "beat": self._beat, "at_ms": self._clock.wall_ms()}
        beat |= {"expiry": self._expiry_seconds, "unusable": sorted(self.unusable)[:UNUSABLE_MAX]}
        value = json.dumps(beat).encode()
        for _ in range(ATTEMPTS):
            if self._version is None:
                outcome = self.queue.updates.create(WORKERS, self.name, value)
            else:
                outcome = self.queue.updates.replace(WORKERS, self.name, value, expected=self._version)
            if isinstance(outcome, Stored):
                self._version, self._renewed = outcome.version, started
                return
            # No other worker writes this record. So the record has an earlier heartbeat of this worker. If there is no
            # record, another worker has removed the record, because this worker seemed to have ended.
            self._version = outcome.record.version if outcome.record is not None else None
        raise UnavailableError(f"worker {self.name} could not renew; call balance again")

    def _alive(self) -> dict[str, Collection[str]]:
        """The workers that count as running, each with the topics that it cannot deliver. This worker considers another
        worker ended only if the other worker's heartbeat was unchanged for long enough.

        Removes the record of an ended worker, so that no other worker waits for the ended worker. An ended worker that
        was in fact only paused registers again.
        """
        now, seen = self._clock.monotonic(), {}
        alive: dict[str, Collection[str]] = {self.name: tuple(self.unusable)}
        for record in self.queue.records.scan(WORKERS):
            beat, since = self._seen.get(record.key, (b"", now))
            seen[record.key] = (record.value, since if record.value == beat else now)
            unmoved = now - seen[record.key][1]
            if record.key == self.name:
                continue
            if unmoved < max(self._expiry_seconds, _expiry_of(record)):
                alive[record.key] = _unusable_of(record)
            else:
                self.queue.updates.remove(WORKERS, record.key, expected=record.version)
        self._seen = seen
        return alive

    def _owned(self) -> dict[tuple[str, int], ShardOwner]:
        """The owner of every shard of every topic that is served."""
        self._topics = {topic.name: topic for topic in self.queue.topics.all() if self._serves(topic)}
        for name, endpoint in tuple(self.unusable.items()):
            if name not in self._topics or self._topics[name].settings.endpoint != endpoint:
                self.unusable.pop(name, None)
        records = {record.key: record for record in self.queue.records.scan(OWNERS)}
        return {
            (name, shard): owner
            for name, topic in self._topics.items()
            for shard, owner in enumerate(_owners_of(topic, records.get(name)))
        }

    def _take(self, free: dict[tuple[str, int], ShardOwner]) -> None:
        def change(key: tuple[str, int], owner: ShardOwner) -> ShardOwner:
            mine = ShardOwner(
                worker=self.name, generation=owner.generation + 1, since_ms=self._clock.wall_ms()
            )
            return mine if owner == free[key] else owner

        self._adopt(self._change(free, change))

    def _disown(self, shards: Iterable[tuple[str, int]]) -> None:
        self._change(
            shards, lambda _, owner: replace(owner, worker="") if owner.worker == self.name else owner
        )

    def _change(
        self, shards: Iterable[tuple[str, int]], change: Callable[[tuple[str, int], ShardOwner], ShardOwner]
    ) -> dict[tuple[str, int], ShardOwner]:
        """Changes the current owners of these shards. Returns the owners that this call changed."""
        asked: dict[str, set[int]] = {}
        for name, shard in shards:
            asked.setdefault(name, set()).add(shard)
        changed: dict[tuple[str, int], ShardOwner] = {}
        for name, numbers in asked.items():
            changed |= self._change_topic(name, numbers, change)
        return changed

    def _change_topic(
        self, name: str, shards: Collection[int], change: Callable[[tuple[str, int], ShardOwner], ShardOwner]
    ) -> dict[tuple[str, int], ShardOwner]:
        def decide(record: Record | None) -> tuple[bytes | None, dict[tuple[str, int], ShardOwner]]:
            topic = self._topics[name]
            before = _owners_of(topic, record)
            after = [
                change((name, shard), owner) if shard in shards else owner
                for shard, owner in enumerate(before)
            ]
            pairs = enumerate(zip(before, after, strict=True))
            changed = {(name, shard): new for shard, (old, new) in pairs if new != old}
            stored = [[owner.worker, owner.generation, owner.since_ms] for owner in after]
            value = json.dumps({"v": 1, "epoch": topic.epoch, "shards": stored}).encode()
            return value if changed else None, changed

        return self.queue.updates.change(OWNERS, name, decide)[0]

    def _adopt(self, owned: dict[tuple[str, int], ShardOwner]) -> None:
        """Creates leases for the shards that this worker owns in the store. Before it creates a lease, ensures that no
        former owner can remove entries of the shard.
        """
        for (name, shard), owner in owned.items():
            if owner.worker == self.name and (name, shard) not in self._leases:
                late = self._clock.monotonic() - (self._renewed or 0.0) > self._lease_seconds / 2
                if late and self._adopted:
                    self.unadopted += 1
                    continue
                self._adopted += 1
                try:
                    self._take_over(self._topics[name], shard, owner.generation)
                except (
                    CorruptError
                ) as error:  # the error affects only this shard; the next `balance` tries again
                    self.unreadable[name, shard] = str(error)
                    continue
                self._leases[name, shard] = ShardLease(
                    topic=name, epoch=self._topics[name].epoch, shard=shard, generation=owner.generation
                )

    def _take_over(self, topic: Topic, shard: int, generation: int) -> None:
        """Drops the claims of former owners, so that the replacements by former owners fail.

        A former owner may claim entries after this scan. After such a claim, the former owner reads the owners
        (`verify`), and so delivers nothing.
        """

        def free(segment: Segment) -> tuple[Segment, None]:
            return without_former(segment, generation), None

        claimed = [
            segment
            for segment in self.queue.shards.scan(topic, shard)
            if without_former(segment, generation) != segment
        ]
        self.queue.shards.in_parallel(
            lambda segment: self.queue.shards.edit(segment.place, free, known=segment), claimed
        )


def without_former(segment: Segment, generation: int) -> Segment:
    """The segment without claims of owners before this generation. Pure."""

    def freed(entry: Entry) -> Entry:
        former = entry.claim is not None and entry.claim.generation < generation
        return replace(entry, claim=None) if former else entry

    return segment.edited(freed)


def owners_of(queue: NotificationQueue, topic: Topic) -> tuple[ShardOwner, ...]:
    """The owner of each shard, in order. Cost: 1 request, and 1 scan of the heartbeats."""
    beats = {record.key: _beat_of(record) for record in queue.records.scan(WORKERS)}
    owners = _owners_of(topic, queue.records.read(OWNERS, topic.name))
    return tuple(replace(owner, beat_ms=beats.get(owner.worker)) for owner in owners)


def _beat_of(heartbeat: Record) -> int | None:
    try:
        return int(json.loads(heartbeat.value)["at_ms"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def _expiry_of(heartbeat: Record) -> float:
    """Seconds for which other workers wait for the next heartbeat of this worker. Each worker has its own interval."""
    try:
        return min(float(json.loads(heartbeat.value)["expiry"]), EXPIRY_MAX_SECONDS)
    except (ValueError, KeyError, TypeError):
        return 0.0


def _unusable_of(heartbeat: Record) -> Collection[str]:
    """The topics that this worker cannot deliver."""
    try:
        return frozenset(json.loads(heartbeat.value).get("unusable", ()))
    except (ValueError, AttributeError, TypeError):
        return ()


def _owners_of(topic: Topic, record: Record | None) -> tuple[ShardOwner, ...]:
    epoch, owners = _decode_owners(record) if record is not None else ("", ())
    if epoch == topic.epoch:
        return owners
    # The record belongs to a deleted topic. The generations of the deleted topic still count, because generations must
    # only rise.
    highest = max((owner.generation for owner in owners), default=0)
    return (ShardOwner(generation=highest),) * topic.settings.shards


def _decode_owners(record: Record) -> tuple[str, tuple[ShardOwner, ...]]:
    try:
        fields = json.loads(record.value)
        owners = tuple(
            ShardOwner(worker=worker, generation=number, since_ms=since_ms)
            for worker, number, since_ms in fields["shards"]
        )
        return fields["epoch"], owners
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(
            f"the owners' record of {record.key!r} is unreadable: {record.value[:80]!r}"
        ) from error
