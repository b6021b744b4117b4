"""Room in the shards: how it is counted, and the spare room that a process holds for its next reservations.

Room is taken by adding to the counter of a shard's quota generation. A process that often makes reservations takes more
room than it needs, as spare room. The process uses its spare room before it asks again. The spare room is 0 at first.
With each further request, the spare room grows to twice its size plus 1, up to `ROOM_HELD` entries. Spare room stays
with its shard, and is taken only while the shard is filled to at most `ROOM_IDLE_SHARE`. If the shard is fuller, a
process takes exactly the room that it needs.

Spare room belongs to one generation of the quota. A reservation that uses spare room is granted only if this generation
is still current (`reserving`). Spare room does not expire. But the spare room of an idle or ended process keeps no
writer out. If room becomes scarce, a reconciler recounts the shard (`reconciler`). After the recount, the spare room
cannot be used.
"""

from collections import Counter
from collections.abc import Iterable
from threading import Lock
from typing import Final

from s3notify_platform.kernel.attempts import ATTEMPTS, attempts
from s3notify_platform.kernel.clock import Clock
from s3notify_platform.kernel.errors import S3NotifyError, UnavailableError
from s3notify_platform.kernel.limits import ROOM_HELD, ROOM_HELD_SHARE, ROOM_IDLE_SHARE
from s3notify_platform.kernel.ports import Conflict, RecordStore
from s3notify_platform.protocols.notification_queue.entries import (
    Place,
    Topic,
    depth_key,
    depth_partition,
    shard_capacity,
)
from s3notify_platform.protocols.notification_queue.segments import ENTRIES_MAX
from s3notify_platform.protocols.notification_queue.shards import Shards
from s3notify_platform.protocols.notification_queue.topic_settings import TopicSettings

SEALED: Final = 1 << 40
"""A counter to which this number is added is above every ceiling."""


def idle_ceiling(shard: int, settings: TopicSettings) -> int:
    """The number of entries in this shard up to which processes take spare room."""
    return int(shard_capacity(shard, settings) * ROOM_IDLE_SHARE)


class Rooms:
    """Room for reservations in the topics of one record store. Thread-safe; keeps spare room."""

    def __init__(self, records: RecordStore, clock: Clock, *, shards: Shards) -> None:
        self._records = records
        self._clock = clock
        self._shards = shards
        # A random start, so that processes begin with different shards.
        self._turn = int.from_bytes(clock.random_bytes(2), "little")
        self._held: Counter[tuple[Place, int]] = Counter()
        """Spare room, by counter and by the shard's capacity when the room was taken."""
        self._more: dict[str, int] = {}
        """For each topic, the spare room to take the next time, in entries."""
        self._lock = Lock()

    def take(self, topic: Topic, wanted: int) -> list[tuple[int, int]]:
        """Takes room for `wanted` entries, or for as many as fit. Returns pairs: a shard, and the number of entries
        with room in this shard.

        Uses spare room first. Then asks for the room of one segment at a time: first in the shard whose turn it is,
        then in the other shards. The shards' counters already include this room.
        """
        shard, held = self._use_held(topic, wanted)
        rooms = Counter({shard: held} if held else {})
        try:
            for number, got in self._ask_in_turn(topic, wanted - held, first=shard):
                rooms[number] += got
        except S3NotifyError:
            with self._lock:
                self._held[_counter(topic, shard)] += held
            raise
        return list(rooms.items())

    def any_held(self) -> bool:
        """True if spare room is held, so that a reservation may need no request for room. Cost: no request."""
        with self._lock:
            return any(self._held.values())

    def give_back(self, topic: Topic, rooms: Iterable[tuple[int, int]]) -> None:
        """Frees room that was not used. Cost: 1 `add` for each shard."""
        places: Counter[Place] = Counter()
        for shard, number in rooms:
            places[counted_at(topic, shard)] += number
        self._shards.give_back_rooms(places)

    def _use_held(self, topic: Topic, wanted: int) -> tuple[int, int]:
        """Uses spare room. Returns the shard to begin with, and how many entries use the shard's spare room."""
        with self._lock:
            for place, capacity in [at for at in self._held if at[0].topic == topic.name]:
                at = place, capacity
                if at != _counter(topic, place.shard) or not self._held[at]:
                    del self._held[at]  # room of another epoch, generation or capacity is not reliable
                    continue
                used = min(wanted, self._held[at])
                self._held[at] -= used
                return place.shard, used
            self._turn += 1
            return self._turn % topic.settings.shards, 0

    def _ask_in_turn(self, topic: Topic, wanted: int, *, first: int) -> list[tuple[int, int]]:
        shards = topic.settings.shards
        in_turn = [(first + turn) % shards for turn in range(shards)]
        full: set[int] = set()
        rooms: list[tuple[int, int]] = []
        asks = [min(ENTRIES_MAX, wanted - start) for start in range(0, wanted, ENTRIES_MAX)]
        while asks:
            if not (left := [shard for shard in in_turn if shard not in full]):
                break
            together: Counter[int] = Counter()
            for turn, ask in enumerate(asks):
                together[left[turn % len(left)]] += ask
            answers = self._shards.in_parallel(lambda asked: self._try(topic, *asked), list(together.items()))
            short = 0
            for (shard, asked), answer in zip(together.items(), answers, strict=True):
                got = answer if isinstance(answer, int) else 0
                rooms += [(shard, got)] if got else []
                if got < asked:
                    full.add(shard)
                    short += asked - got
            if errors := [answer for answer in answers if isinstance(answer, S3NotifyError)]:
                self.give_back(topic, rooms)
                raise errors[0]
            asks = [short] if short else []
        return rooms

    def _try(self, topic: Topic, shard: int, wanted: int) -> int | S3NotifyError:
        try:
            return self.ask(topic, shard, wanted, more=True)
        except S3NotifyError as error:
            return error

    def ask(self, topic: Topic, shard: int, wanted: int, *, more: bool = False) -> int:
        """Takes room for up to `wanted` entries. Returns the number of entries with room. `more`: also takes spare room
        for later.
        """
        quota, capacity = topic.quotas[shard], shard_capacity(shard, topic.settings)
        ceiling, idle = capacity - quota.base, idle_ceiling(shard, topic.settings) - quota.base
        key = depth_key(topic.epoch, shard, quota.generation)
        most = min(ROOM_HELD, int(capacity * ROOM_HELD_SHARE))
        asked = min(wanted, ceiling)
        extra = min(self._more.get(topic.name, 0), most, max(0, idle - asked)) if more else 0
        if asked <= 0:
            return 0
        for attempt in attempts(self._clock):
            try:
                limit = idle if extra else ceiling
                outcome = self._records.add(depth_partition(topic.name), key, asked + extra, ceiling=limit)
                if isinstance(outcome, Conflict) and extra:
                    extra = 0
                    outcome = self._records.add(depth_partition(topic.name), key, asked, ceiling=ceiling)
                if isinstance(outcome, int):
                    with self._lock:
                        self._held[_counter(topic, shard)] += extra
                        # If the shard lacks the room, no spare room is taken the next time.
                        fits = outcome + 2 * extra + 1 <= idle
                        self._more[topic.name] = min(2 * extra + 1, most) if fits else 0
                    return asked
                if isinstance(outcome, Conflict):
                    asked = min(wanted, ceiling - self._shards.counted(topic, shard))
                    if asked <= 0:
                        return 0
                # If the outcome is unknown and the `add` was applied, this room stays unused until the reconciler
                # recounts the shard.
            except UnavailableError:
                if attempt == ATTEMPTS - 1:
                    raise
        raise UnavailableError(f"no room could be counted in topic {topic.name!r}, shard {shard}; try again")


def counted_at(topic: Topic, shard: int, key: str = "") -> Place:
    """A `Place` in the shard, with the shard's current quota generation."""
    quota = topic.quotas[shard].generation
    return Place(topic=topic.name, epoch=topic.epoch, shard=shard, key=key, quota=quota)


def _counter(topic: Topic, shard: int) -> tuple[Place, int]:
    return counted_at(topic, shard), shard_capacity(shard, topic.settings)
