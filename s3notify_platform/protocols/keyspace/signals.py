"""Signals: their keys and bodies in the bucket, and the state that a watcher remembers."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps, loads

from blake3 import blake3

from s3notify_platform.kernel.clock import Clock, unique_name
from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.kernel.slots import SLOT_COUNT, Slot, check_slot_count, slot_from_partition_key

QUEUED = "s3notify-queued"
"""Metadata key of a signal whose changes are also in the notification queue. The vnotify crate ignores this metadata.
"""

QUEUED_BYTES = 13 + 1 + 32 + 1
"""The size of a queued signal: one byte more than the size of other signals, so that a LIST shows the difference.
Watchers recognise a queued signal by its size; `explain` recognises it by its metadata.
"""

ALONE_BYTES = QUEUED_BYTES + 1
"""The size of a root that moved without the signal of a slot: entries of the queue name the slots."""

_OF_ENTRIES = "entries:"

DIGEST_BYTES = 8

NEVER_SEEN = bytes(DIGEST_BYTES)


def signal_key(prefix: str, slot: int) -> str:
    """The key of a slot's signal."""
    return f"{prefix}{slot}"


def root_key(prefix: str) -> str:
    """The key of the root signal."""
    return f"{prefix}_"


def signal_body(clock: Clock, *, queued: bool = False, alone: bool = False) -> bytes:
    """A body that was never written before, so that the ETag changes even if it is a hash of the body.

    `queued`: the body has `QUEUED_BYTES`; `alone`: the body has `ALONE_BYTES`.
    """
    mark = "qr" if alone else "q" if queued else ""
    return f"{clock.wall_ms():013d},{unique_name(clock)}{mark}".encode("ascii")


def entries_etag(marks: Sequence[str]) -> ETag:
    """An artificial ETag, made from the marks of a slot's entries in the queue. Watchers use it like the ETag of the
    slot's signal.
    """
    return ETag(_OF_ENTRIES + blake3("\n".join(sorted(marks)).encode()).hexdigest(length=16))


def digest_of(etag: ETag) -> bytes:
    """8 bytes of a hash of a signal's ETag; never equal to `NEVER_SEEN`."""
    digest: bytes = blake3(etag.encode("utf-8")).digest(length=DIGEST_BYTES)
    return digest if digest != NEVER_SEEN else b"\x01".ljust(DIGEST_BYTES, b"\0")


def slot_of_signal(prefix: str, key: str, slots: int) -> Slot | None:
    """The slot whose signal has this key; None for the root and for foreign objects."""
    try:
        return slot_from_partition_key(key.removeprefix(prefix), slots)
    except UsageError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherState:
    """The state that a watcher remembers: the root's ETag, and 8 bytes for each slot. Immutable; 11 KB as a string.

    A change that the state does not remember is reported again: the second report costs one request, and no change is
    missed. A caller may store the new root without the signals of some changed slots. In this case, the caller must
    remember these slots itself, because no poll reports them until the root moves.

    If the root moves alone, the state needs another 11 KB: `entries` has 8 bytes for each slot. These bytes are a hash
    of the marks of the slot's entries in the queue. `listed_root` is the root as of the last LIST of the signals.
    """

    slots: int = SLOT_COUNT
    digests: bytes = b""
    root_etag: ETag | None = None
    entries: bytes = b""
    listed_root: ETag | None = None

    def __post_init__(self) -> None:
        check_slot_count(self.slots)
        object.__setattr__(self, "digests", self.digests or NEVER_SEEN * self.slots)
        if len(self.digests) != DIGEST_BYTES * self.slots or len(self.entries) not in (0, len(self.digests)):
            raise CorruptError(
                f"a watcher's state of {self.slots} slots has {len(self.digests)} bytes of digests"
            )

    def seen(self, slot: int) -> bytes:
        """The remembered digest of a slot's signal; `NEVER_SEEN` if no signal was seen."""
        return self.digests[DIGEST_BYTES * slot : DIGEST_BYTES * (slot + 1)]

    def changed(self, signals: Mapping[Slot, ETag]) -> tuple[Slot, ...]:
        """The slots, ascending, whose signal differs from the remembered signal. A signal that has vanished is not a
        change.
        """

        def seen(slot: Slot) -> bytes:
            if not signals[slot].startswith(_OF_ENTRIES):
                return self.seen(slot)
            return self.entries[DIGEST_BYTES * slot : DIGEST_BYTES * (slot + 1)] or NEVER_SEEN

        return tuple(slot for slot in sorted(signals) if seen(slot) != digest_of(signals[slot]))

    def advance(self, slots: Iterable[int], signals: Mapping[Slot, ETag]) -> "WatcherState":
        """A copy of the state that also remembers the signals of `slots`. The root stays unchanged."""
        digests, entries = bytearray(self.digests), bytearray(self.entries)
        for slot in slots:
            if not 0 <= slot < self.slots:
                raise UsageError(f"slot {slot} is not one of {self.slots} slots")
            etag = signals[Slot(slot)]
            if etag.startswith(_OF_ENTRIES):
                vector = entries = entries or bytearray(NEVER_SEEN * self.slots)
            else:
                vector = digests
            vector[DIGEST_BYTES * slot : DIGEST_BYTES * (slot + 1)] = digest_of(etag)
        return replace(self, digests=bytes(digests), entries=bytes(entries))

    def at_root(self, root_etag: ETag | None) -> "WatcherState":
        """The state with this root; None forces the next poll to LIST."""
        return replace(self, root_etag=root_etag)

    def dumps(self) -> str:
        """The state as a compact string, for a sensor's cursor."""
        body = {"slots": self.slots, "root": self.root_etag, "listed": self.listed_root}
        vectors = {"digests": self.digests, "entries": self.entries}
        return dumps(body | {name: b64encode(vector).decode("ascii") for name, vector in vectors.items()})

    @classmethod
    def loads(cls, text: str) -> "WatcherState":
        """Decodes a state from `dumps`; raises `CorruptError` for any other text."""
        try:
            found = loads(text)
            root, listed = (None if etag is None else ETag(etag) for etag in (found["root"], found["listed"]))
            digests, entries = (b64decode(found[name], validate=True) for name in ("digests", "entries"))
            return cls(
                slots=found["slots"], digests=digests, root_etag=root, entries=entries, listed_root=listed
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"not the state of a watcher: {text[:80]!r}") from error
