r"""`RecordStore` on a bucket: each record is a small object, so the platform needs only the bucket.

    {prefix}{quoted partition}/{quoted key}     body: "1 {state} {write token}\n" and the value; for a
                                                counter "1 {state} {write token},{token before},…\n"

Guarantees. If several writers expect the same version, one of them succeeds. Create is a PUT if absent, and replace is
a PUT under If-Match. Every write carries a random token. So two writes of equal content have two ETags. This matters
because the version of a record is its ETag, and on many stores the ETag is the body's MD5. A write with an unknown
outcome returns `Unknown`: callers read the record, and send the write again (`protocols.updates`). Only `add`, which
has its own compare-and-set loop, finds out the outcome itself. For this purpose, a counter also holds the tokens of its
last writes. So an addition can be found again until more than `PAST_TOKENS` other additions have followed. Counters
need these tokens because they have many concurrent writers, and because Ceph RGW answers half of the conflicts with 500
instead of 412.

Removal is a DELETE under If-Match if the store honours this condition, which is tested once. If a store ignores the
condition, a DELETE could remove a record that was created in between. On such a store, a tombstone is therefore written
under If-Match, and this write decides who has removed the record. The tombstone stays, and a record can be created over
it. If `keys_recur` is False, no record can have this key again, and the tombstone is deleted. A scan that finds a
tombstone tries to delete it, so no tombstone of an interrupted removal stays forever.

A process caches the counters that it wrote last. So a counter that no other process changes is not read again.

| operation | requests, undisturbed |
|---|---|
| create | 1 PUT; over a tombstone: PUT, GET, PUT |
| read | 1 GET |
| replace | 1 PUT |
| remove, conditions on DELETE work | 1 DELETE; once, 3 requests for the test |
| remove, other stores | 1 PUT; 1 DELETE if the key does not recur; once, 3 requests for the test |
| scan | 1 LIST for each 1000 records, 1 GET for each wanted value that is not known; 1 DELETE for each tombstone |
| add | 1 PUT; 1 GET more if the counter is not cached; 1 GET and 1 PUT more for each conflict |
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.kernel.errors import (
    CorruptError,
    S3NotifyError,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from s3notify_platform.kernel.limits import MAX_KEY_BYTES
from s3notify_platform.kernel.ports import (
    ABSENT,
    Conflict,
    ETag,
    IfMatch,
    ObjectMeta,
    ObjectStore,
    Precondition,
    Record,
    StoredObject,
    Unknown,
    Version,
    WriteOutcome,
    Written,
    list_all,
)
from s3notify_platform.protocols.updates import resolve
from s3notify_platform.stores.rules import counter_sum

CREATE_ATTEMPTS = 6
"""Maximum number of attempts of one `create` that finds tombstones."""

ADD_ATTEMPTS = 60
"""Maximum number of attempts of one `add`. With full jitter, this is enough for some hundred concurrent writers."""

PAST_TOKENS = 16
"""Number of tokens of earlier writes that a counter keeps. Each token takes 33 bytes."""

COUNTERS_KNOWN = 4096
"""Maximum number of counters that a process caches."""

_LIVE, _DEAD = b"live", b"-"
_LIVE_BYTES_MIN = len(b"1 live \n") + 32
"""Size of the smallest object that is not a tombstone. Tombstones are smaller, so they are recognised by the sizes in a
LIST.
"""


def quote(name: str) -> str:
    """A name as one path segment: ASCII letters, digits, `-` and `_` stay unchanged. Pure.

    Every other byte becomes a mark and two hex digits. The mark depends on the place of the byte in the sort order. So
    quoted names sort as the names do, and LIST returns records in the order of their keys.
    """
    return "".join(
        chr(byte) if chr(byte) in _PLAIN else f"{_mark(byte)}{byte:02x}" for byte in name.encode("utf-8")
    )


def unquote(quoted: str) -> str:
    """The name that has this quoted form. `ValueError` if the argument is not a quoted name."""
    name = bytearray()
    rest = iter(quoted)
    for character in rest:
        if character in _PLAIN:
            name.append(ord(character))
        else:
            name.append(int(next(rest, "") + next(rest, ""), 16))
    return name.decode("utf-8")


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
# The unquoted characters leave gaps in the order of bytes. Each gap has its own mark, which sorts in this gap: "!"
# sorts below "-", "." between "-" and "0", and so on. "." is always followed by two digits, so no segment is "." or
# "..".
_MARKS = ((ord("-"), "!"), (ord("0"), "."), (ord("A"), "="), (ord("_"), "^"), (ord("a"), "`"), (256, "~"))


def _mark(byte: int) -> str:
    return next(mark for above, mark in _MARKS if byte < above)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A record's object, as it was read."""

    etag: ETag
    state: bytes
    tokens: tuple[str, ...]
    """The token of the last write is first. A counter also has the tokens of earlier writes, newest first."""
    value: bytes


class ObjectRecordStore:
    """Records below a prefix of any object store with conditional PUT. Thread-safe if the store is."""

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        keys_recur: bool | Callable[[str], bool] = True,
        parallelism: int = 1,
        honours_delete: Callable[[], bool] = lambda: False,
    ) -> None:
        """`keys_recur`: True if a removed key may be created again, or a function that returns this value for a
        partition. `honours_delete`: returns True if a probe found that the store honours conditions on DELETE. If
        `honours_delete` returns False, this object finds out with 3 requests before its first removal.

        `parallelism`: the number of records that this object reads at a time, in its own threads, for all its scans
        together.
        """
        if parallelism < 1:
            raise UsageError(f"parallelism={parallelism}: must be at least 1")
        self.prefix = prefix
        self._store = store
        self._clock = clock
        self._keys_recur = keys_recur
        self._parallelism = parallelism
        self._probed = honours_delete
        self._delete_honours: bool | None = None
        self._counters: dict[str, _Stored] = {}
        """Counters by path, as this process wrote them last."""

    def create(self, partition: str, key: str, value: bytes) -> WriteOutcome:
        path = self._path(partition, key)
        condition: Precondition = ABSENT
        for _ in range(CREATE_ATTEMPTS):
            outcome = self._write(path, _LIVE, value, condition)
            if not isinstance(outcome, Conflict):
                return outcome
            found = self._read(path)
            if found is not None and found.state == _LIVE:
                return outcome
            # The key has a tombstone, or no object any more: there is no record.
            condition = ABSENT if found is None else IfMatch(etag=found.etag)
        return Conflict()

    def read(self, partition: str, key: str) -> Record | None:
        found = self._read(self._path(partition, key))
        return _record(key, found) if found is not None and found.state == _LIVE else None

    def replace(self, partition: str, key: str, value: bytes, *, expected: Version) -> WriteOutcome:
        return self._write(self._path(partition, key), _LIVE, value, IfMatch(etag=ETag(expected)))

    def remove(self, partition: str, key: str, *, expected: Version) -> WriteOutcome:
        """See `RecordStore.remove`. On a store without conditional DELETE, a tombstone is written and then deleted."""
        path, condition = self._path(partition, key), IfMatch(etag=ETag(expected))
        if self._honours_delete():
            return self._store.delete(path, precondition=condition)
        outcome = self._write(path, _DEAD, b"", condition)
        if not isinstance(outcome, Written) or outcome.etag is None:
            return outcome
        # If this deletion fails, the tombstone stays. A record with a tombstone counts as absent, and can be created
        # again.
        self._delete_tombstone(partition, path, outcome.etag)
        return Written(etag=None)

    def scan(
        self,
        partition: str,
        *,
        prefix: str = "",
        known: Mapping[str, Record] | None = None,
        keys_only: Callable[[str], bool] | None = None,
        wanted: Callable[[str], bool] | None = None,
    ) -> Iterator[Record]:
        """See `RecordStore.scan`. The scan is not a snapshot: each record is read shortly before it is yielded.

        Up to `parallelism` records are read ahead. LIST returns names and versions. So a record costs no GET in three
        cases: the record is known, the record is not wanted, or only the record's key is needed.
        """
        below = self._below(partition)
        # A name is quoted byte by byte, so the quoted prefix is a prefix of the quoted names.
        listed = list_all(self._store, below + quote(prefix))
        asked = (meta for meta in listed if wanted is None or wanted(_name(meta.key, below)))
        for meta, found in self._read_ahead(asked, below, known or {}, keys_only):
            match found:
                case Record():
                    yield found
                case _Stored(state=state, etag=etag) if state == _DEAD:
                    self._delete_tombstone(partition, meta.key, etag)
                case _Stored():
                    yield _record(_name(meta.key, below), found)

    def add(
        self, partition: str, key: str, amount: int, *, ceiling: int | None = None
    ) -> int | Conflict | Unknown:
        """See `RecordStore.add`. `UnavailableError` if other writers win `ADD_ATTEMPTS` times in a row."""
        path = self._path(partition, key)
        known = self._counters.pop(path, None)
        for _ in attempts(self._clock, ADD_ATTEMPTS, base=0.02, ceiling=0.5):
            found = known or self._read(path)
            total = _counted(found, amount, ceiling)
            if not isinstance(total, int) and known is not None:
                found = self._read(path)  # the cached total may be stale: another process may have subtracted
                total = _counted(found, amount, ceiling)
            if not isinstance(total, int):
                return total
            known = None
            match self._count(path, total, found):
                case Written():
                    return total
                case Unknown() as unknown:
                    return unknown
                case Conflict():
                    pass
        raise UnavailableError(
            f"counter {path!r} kept changing for {ADD_ATTEMPTS} attempts; nothing was added"
        )

    def _read_ahead(
        self,
        listed: Iterator[ObjectMeta],
        below: str,
        known: Mapping[str, Record],
        keys_only: Callable[[str], bool] | None,
    ) -> Iterator[tuple[ObjectMeta, _Stored | Record | None]]:
        """The listed objects in their order, each with its known or newly read record."""

        def read(meta: ObjectMeta) -> _Stored | Record | None:
            name = _name(meta.key, below) if known or keys_only else ""
            if keys_only is not None and meta.size >= _LIVE_BYTES_MIN and keys_only(name):
                return Record(key=name, value=b"", version=Version(meta.etag))
            record = known.get(name)
            if record is not None and record.version == Version(meta.etag):
                return record
            return self._read(meta.key)

        if self._parallelism == 1:
            yield from ((meta, read(meta)) for meta in listed)
            return
        window: deque[tuple[ObjectMeta, Future[_Stored | Record | None]]] = deque()
        try:
            for meta in listed:
                window.append((meta, self._readers.submit(read, meta)))
                if len(window) >= self._parallelism:
                    ahead, future = window.popleft()
                    yield ahead, future.result()
            while window:
                ahead, future = window.popleft()
                yield ahead, future.result()
        finally:
            for _, future in window:
                future.cancel()

    @cached_property
    def _readers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._parallelism, thread_name_prefix="records")

    def _write(self, path: str, state: bytes, value: bytes, condition: Precondition) -> WriteOutcome:
        """One conditional PUT."""
        return self._store.put(path, _body(state, (unique_name(self._clock),), value), precondition=condition)

    def _count(self, path: str, total: int, found: _Stored | None) -> WriteOutcome:
        """Replaces the counter. If the outcome is unknown, the token shows if the write was applied. A write that was
        not applied is sent again.
        """
        token = unique_name(self._clock)
        past = () if found is None else found.tokens[:PAST_TOKENS]
        body = _body(_LIVE, (token, *past), b"%d" % total)
        condition: Precondition = ABSENT if found is None else IfMatch(etag=found.etag)

        def look() -> Written | Conflict | None:
            now = self._read(path)
            if now is not None and token in now.tokens:
                return Written(etag=now.etag if now.tokens[0] == token else None)
            if now is not None and past and past[0] in now.tokens[1:]:
                return Conflict()  # another write replaced the expected version
            if (now.etag if now is not None else None) == (found.etag if found is not None else None):
                return None
            raise UnknownOutcomeError(
                f"more than {PAST_TOKENS} other additions have followed, or the counter was removed"
            )

        try:
            outcome: WriteOutcome = resolve(
                lambda: self._store.put(path, body, precondition=condition),
                look,
                clock=self._clock,
                subject=f"counter {path!r}",
            )
        except UnknownOutcomeError as error:
            return Unknown(cause=str(error))
        if isinstance(outcome, Written) and outcome.etag is not None:
            if len(self._counters) >= COUNTERS_KNOWN:
                self._counters.clear()
            written = _Stored(etag=outcome.etag, state=_LIVE, tokens=(token, *past), value=b"%d" % total)
            self._counters[path] = written
        return outcome

    def _delete_tombstone(self, partition: str, path: str, etag: ETag) -> None:
        recur = self._keys_recur(partition) if callable(self._keys_recur) else self._keys_recur
        with suppress(S3NotifyError):
            if not recur:
                self._store.delete(path)
            elif self._honours_delete():
                self._store.delete(path, precondition=IfMatch(etag=etag))

    def _honours_delete(self) -> bool:
        if self._delete_honours is None:
            with suppress(S3NotifyError):
                self._delete_honours = self._probed() or self._try_conditional_delete()
        return bool(self._delete_honours)

    def _try_conditional_delete(self) -> bool | None:
        """True if the store honours a condition on DELETE; None if this attempt could not determine it."""
        scratch = f"{self.prefix}.probe-{unique_name(self._clock)}"
        written = self._store.put(scratch, scratch.encode())
        if not isinstance(written, Written) or written.etag is None:
            return None
        refused = self._store.delete(scratch, precondition=IfMatch(etag=ETag("0" * 32)))
        deleted = self._store.delete(scratch, precondition=IfMatch(etag=written.etag))
        if isinstance(refused, Unknown) or isinstance(deleted, Unknown):
            return None
        return isinstance(refused, Conflict) and isinstance(deleted, Written)

    def _read(self, path: str) -> _Stored | None:
        found = self._store.get(path)
        if not isinstance(found, StoredObject):
            return None
        header, newline, value = found.body.partition(b"\n")
        parts = header.split(b" ")
        if not newline or len(parts) != 3 or parts[0] != b"1" or parts[1] not in (_LIVE, _DEAD):
            raise CorruptError(f"{path!r} does not hold a record: {found.body[:60]!r}")
        return _Stored(
            etag=found.meta.etag,
            state=parts[1],
            tokens=tuple(parts[2].decode("ascii", "replace").split(",")),
            value=value,
        )

    def _below(self, partition: str) -> str:
        if not partition:
            raise UsageError("a record's partition must not be empty")
        return f"{self.prefix}{quote(partition)}/"

    def _path(self, partition: str, key: str) -> str:
        path = self._below(partition) + quote(key)
        if not key or len(path.encode("utf-8")) > MAX_KEY_BYTES:
            raise UsageError(
                f"record key {key[:60]!r} is empty, or too long: its object's name would have {len(path)} "
                f"characters, and {MAX_KEY_BYTES} bytes are allowed"
            )
        return path


def _name(path: str, below: str) -> str:
    try:
        return unquote(path[len(below) :])
    except ValueError:
        raise CorruptError(f"{path!r} is not the name of a record") from None


def _body(state: bytes, tokens: tuple[str, ...], value: bytes) -> bytes:
    return b"1 %s %s\n%s" % (state, ",".join(tokens).encode(), value)


def _record(key: str, found: _Stored) -> Record:
    return Record(key=key, value=found.value, version=Version(found.etag))


def _counted(found: _Stored | None, amount: int, ceiling: int | None) -> int | Conflict:
    """The counter's new value, or the conflict that prevents it (`counter_sum`)."""
    live = found is not None and found.state == _LIVE
    return counter_sum(found.value if found and live else None, amount, ceiling)
