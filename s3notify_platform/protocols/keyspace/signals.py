"""Signals: their keys and bodies in the bucket, and what a watcher remembers of them."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from json import dumps, loads

from blake3 import blake3

from s3notify_platform.clock import Clock, unique_name
from s3notify_platform.errors import CorruptError, UsageError
from s3notify_platform.ports import ETag
from s3notify_platform.slots import SLOT_COUNT, Slot, check_slot_count, slot_from_partition_key

QUEUED = "s3notify-queued"
"""Metadata of a signal whose changes are also in the notification queue. The vnotify crate ignores it."""

QUEUED_BYTES = 13 + 1 + 32 + 1
"""Bytes of such a signal: one more than of any other, so that a LIST tells, too. The metadata decides."""

DIGEST_BYTES = 8

NEVER_SEEN = bytes(DIGEST_BYTES)


def signal_key(prefix: str, slot: int) -> str:
    """The key of a slot's signal."""
    return f"{prefix}{slot}"


def root_key(prefix: str) -> str:
    """The key of the root signal."""
    return f"{prefix}_"


def signal_body(clock: Clock, *, queued: bool = False) -> bytes:
    """A body that was never written before, so that the ETag moves even where it is a hash of the body.

    `queued`: of `QUEUED_BYTES`.
    """
    return f"{clock.wall_ms():013d},{unique_name(clock)}{'q' if queued else ''}".encode("ascii")


def digest_of(etag: ETag) -> bytes:
    """8 bytes of a hash of a signal's ETag; never `NEVER_SEEN`."""
    digest: bytes = blake3(etag.encode("utf-8")).digest(length=DIGEST_BYTES)
    return digest if digest != NEVER_SEEN else b"\x01".ljust(DIGEST_BYTES, b"\0")


def slot_of_signal(prefix: str, key: str, slots: int) -> Slot | None:
    """The slot whose signal this key is; None for the root and for foreign objects."""
    try:
        return slot_from_partition_key(key.removeprefix(prefix), slots)
    except UsageError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherState:
    """What a watcher remembers: the root's ETag, and 8 bytes for each slot. Immutable; 11 KB as a string.

    To forget a slot, or to leave one out, costs one more request and misses no change. A caller that takes the new
    root but leaves changed slots out must remember these itself: no poll lists them until the root moves.
    """

    slots: int = SLOT_COUNT
    digests: bytes = b""
    root_etag: ETag | None = None

    def __post_init__(self) -> None:
        check_slot_count(self.slots)
        object.__setattr__(self, "digests", self.digests or NEVER_SEEN * self.slots)
        if len(self.digests) != DIGEST_BYTES * self.slots:
            raise CorruptError(f"a state of {self.slots} slots has {len(self.digests)} bytes of digests")

    def seen(self, slot: int) -> bytes:
        """The remembered digest of a slot's signal; `NEVER_SEEN` if there is none."""
        return self.digests[DIGEST_BYTES * slot : DIGEST_BYTES * (slot + 1)]

    def changed(self, signals: Mapping[Slot, ETag]) -> tuple[Slot, ...]:
        """The slots, ascending, whose signal differs from the remembered one. Vanished ones do not."""
        return tuple(slot for slot in sorted(signals) if self.seen(slot) != digest_of(signals[slot]))

    def advance(self, slots: Iterable[int], signals: Mapping[Slot, ETag]) -> "WatcherState":
        """The state with the signals of exactly these slots also remembered. The root stays as it is."""
        vector = bytearray(self.digests)
        for slot in slots:
            if not 0 <= slot < self.slots:
                raise UsageError(f"slot {slot} of {self.slots}")
            digest = digest_of(signals[Slot(slot)])
            vector[DIGEST_BYTES * slot : DIGEST_BYTES * (slot + 1)] = digest
        return replace(self, digests=bytes(vector))

    def at_root(self, root_etag: ETag | None) -> "WatcherState":
        """The state with this root; None makes the next poll LIST."""
        return replace(self, root_etag=root_etag)

    def dumps(self) -> str:
        """A compact string, for a sensor's cursor."""
        vector = b64encode(self.digests).decode("ascii")
        return dumps({"slots": self.slots, "root": self.root_etag, "digests": vector})

    @classmethod
    def loads(cls, text: str) -> "WatcherState":
        """The state that `dumps` wrote; `CorruptError` for any other text."""
        try:
            found = loads(text)
            root, digests = found["root"], b64decode(found["digests"], validate=True)
            return cls(slots=found["slots"], digests=digests, root_etag=None if root is None else ETag(root))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"not the state of a watcher: {text[:80]!r}") from error
