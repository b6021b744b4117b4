"""Segments: the part of one reservation that one shard stores, as a value and as bytes. Pure.

The key is `{shard}-{milliseconds}-{random}.{slots}`. One scan lists all shards of a topic, the old segments of each
shard first, and reads only segments with wanted slots.

The value is JSON: the facts that all entries share, and a row for each entry. A cell is null if its value is the
default value, or equals the value for the whole segment. Trailing nulls are left out. `write` is random, so that no two
writes have equal bytes. So a writer that finds its own bytes knows that its write was applied.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from typing import Any, Final

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.ports import ABSENT, ETag, IfMatch, Precondition, Record, UploadId, Version
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.notification_queue.entries import (
    Claim,
    Entry,
    Event,
    Place,
    SegmentRead,
    State,
    Upload,
    dump,
    load,
    segment_id,
)
from s3notify_platform.protocols.notification_queue.event_details import Details

ENTRIES_MAX: Final = 256
"""The maximum number of entries of a segment."""

BYTES_MAX: Final = 128 * 1024
"""The maximum size, in bytes, of all rows of a segment when it is reserved. ETags, attempts and errors are added later,
and increase this size (`ERRORS_BYTES`).
"""

ERROR_MAX: Final = 500
"""The maximum number of characters of an error that an entry keeps."""

ERRORS_BYTES: Final = 64 * 1024
"""The maximum size, in bytes, of all errors of a segment. Above this size, each error is cut, so that a DynamoDB item
stays below its 400 KB.
"""

SLOTS_NAMED: Final = 12
"""The maximum number of slots in a segment's key; the key of a segment with more slots names no slots."""

_ALL = "all"
_UNWRITTEN = Version("")
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The entries of one record. All claimed entries have the same claim."""

    place: Place
    entries: tuple[Entry, ...]
    version: Version = field(default=_UNWRITTEN, compare=False)

    def edited(self, change: Callable[[Entry], Entry | None]) -> "Segment":
        """The segment with the entries that `change` returns; if `change` returns None, the entry is removed."""
        return replace(self, entries=tuple(found for entry in self.entries if (found := change(entry))))

    def without(self, numbers: Collection[int]) -> "Segment":
        """The segment without the entries with these numbers."""
        return self.edited(lambda entry: None if entry.n in numbers else entry)

    def as_read(self) -> SegmentRead | None:
        """The facts needed to remove all entries; None if an entry is reserved or claimed, and so must stay."""
        if any(entry.state != "committed" or entry.claim is not None for entry in self.entries):
            return None
        return SegmentRead(version=self.version, entries=len(self.entries))


def read_whole(place: Place, entries: Sequence[Entry]) -> Segment | None:
    """The segment of `entries`, as it was read (`Entry.read`); None if the segment had other entries, too."""
    read, distinct = entries[0].read, {entry.n: entry for entry in entries}
    if read is None or len(distinct) < read.entries or any(entry.read != read for entry in entries):
        return None
    return Segment(place=place, entries=tuple(distinct[n] for n in sorted(distinct)), version=read.version)


def parts_of(sizes: Sequence[int]) -> Iterator[slice]:
    """Divides the entries of a reservation into segments. `sizes`: the size of each entry's row, in bytes."""
    start = total = 0
    for place, size in enumerate(sizes):
        if place > start and (place - start == ENTRIES_MAX or total + size > BYTES_MAX):
            yield slice(start, place)
            start, total = place, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))


def with_error(entry: Entry, error: str) -> Entry:
    """The entry with its last error, made printable and cut to `ERROR_MAX` characters."""
    text = "".join(character if character.isprintable() else " " for character in error[:ERROR_MAX])
    return replace(entry, last_error=text)


# Keys


def shard_prefix(shard: int) -> str:
    """The beginning of the keys of a shard's segments."""
    return f"{shard:03d}-"


def segment_key(shard: int, name: str, slots: Iterable[int]) -> str:
    """The key of a segment of this shard. `name` is the segment's unique name; `slots` are the slots of its entries."""
    distinct = sorted(set(slots))
    named = "_".join(map(str, distinct)) if len(distinct) <= SLOTS_NAMED else _ALL
    return f"{shard_prefix(shard)}{name}.{named}"


def slots_in(key: str) -> tuple[Slot, ...] | None:
    """The slots that the key of a segment names; None if the key names no slots."""
    named = key.partition(".")[2].split("_")
    return tuple(Slot(int(slot)) for slot in named) if all(map(str.isdecimal, named)) else None


def committed_in(segments: Iterable[Segment], slots: Collection[int], *, epoch: str) -> tuple[Entry, ...]:
    """The committed entries of these slots, by slot, then roughly by age. Pure."""
    entries = [
        replace(entry, read=read)
        for segment in segments
        if segment.place.epoch == epoch
        for read in [segment.as_read()]
        for entry in segment.entries
        if entry.state == "committed" and entry.slot in slots
    ]
    return tuple(sorted(entries, key=lambda entry: (entry.slot, segment_id(entry.place.key), entry.n)))


def may_hold(slots: Collection[int]) -> Callable[[str], bool]:
    """A test for keys: true if the segment of the key may have entries of these slots."""

    def wanted(key: str) -> bool:
        named = key.partition(".")[2]
        # Keys of other forms are read, too, so that foreign records are noticed.
        return any(not slot.isdecimal() or int(slot) in slots for slot in named.split("_"))

    return wanted


# Bytes


def encode_segment(segment: Segment, write: str) -> bytes:
    """Encodes a segment that is not empty as the value of its record. `write` is unique to this write."""
    first = segment.entries[0].event
    claim = next((entry.claim for entry in segment.entries if entry.claim is not None), None)
    reserved = any(entry.state == "reserved" for entry in segment.entries)
    body: dict[str, Any] = {
        "v": 1,
        "write": write,
        "epoch": segment.place.epoch,
        "quota": segment.place.quota,
        "bucket": first.bucket,
        "writer": first.writer,
        "announced_to": first.announced_to if reserved else (),
        "claim": [claim.worker, claim.generation] if claim else None,
    }
    errors = sum(len(entry.last_error.encode()) for entry in segment.entries)
    most = ERROR_MAX if errors <= ERRORS_BYTES else ERROR_MAX // 8
    rows = [_row(entry, first, most) for entry in segment.entries]
    return dump(
        {name: value for name, value in body.items() if value or name in _REQUIRED} | {"entries": rows}
    )


_REQUIRED = frozenset({"v", "epoch", "quota"})


def decode_segment(topic: str, record: Record) -> Segment:
    """Decodes the segment of a record of this topic; raises `CorruptError` for foreign bytes."""
    try:
        body, shard = load(record), int(record.key.partition("-")[0])
        place = Place(topic=topic, epoch=body["epoch"], shard=shard, key=record.key, quota=int(body["quota"]))
        return Segment(place=place, entries=_entries(place, body), version=record.version)
    except _MALFORMED as error:
        raise CorruptError(
            f"segment {record.key!r} of topic {topic!r} is unreadable: {record.value[:80]!r}"
        ) from error


def encode_letter(entry: Entry) -> bytes:
    """Encodes an entry as the value of a dead letter's record."""
    place = entry.place
    return dump(
        {
            "v": 1,
            "epoch": place.epoch,
            "quota": place.quota,
            "shard": place.shard,
            "segment": place.key,
            "reason": entry.reason,
            "entries": [_row(entry, Event(key=""), ERROR_MAX)],
        }
    )


def decode_letter(topic: str, record: Record) -> Entry:
    """Decodes the dead letter of a record of this topic; raises `CorruptError` for foreign bytes."""
    try:
        body = load(record)
        place = Place(
            topic=topic, epoch=body["epoch"], shard=body["shard"], key=body["segment"], quota=body["quota"]
        )
        (entry,) = _entries(place, body)
        return replace(entry, state="dead", reason=body["reason"])
    except _MALFORMED as error:
        raise CorruptError(
            f"letter {record.key!r} of topic {topic!r} is unreadable: {record.value[:80]!r}"
        ) from error


def letter_key(entry: Entry) -> str:
    """The key of an entry's dead letter. The slot comes first, so that one scan finds the letters of a slot."""
    return f"{entry.slot:03d}.{entry.id}"


def row_bytes(entry: Entry) -> int:
    """The size, in bytes, of the entry's row at its delivery, computed as if the segment had no other entry."""
    event = replace(entry.event, announced_to=(), upload=None)
    return len(
        json.dumps(_row(replace(entry, event=event), Event(key=""), ERROR_MAX), ensure_ascii=False).encode()
    )


_STATES: Final[dict[tuple[State, bool], str]] = {
    ("reserved", False): "r",
    ("committed", False): "c",
    ("committed", True): "claimed",
    ("dead", False): "dead",
}
_STATE_OF = {letter: state for (state, _), letter in _STATES.items()}


def _row(entry: Entry, shared: Event, error_max: int) -> list[Any]:
    event = entry.event
    own_topics = entry.state == "reserved" and event.announced_to != shared.announced_to
    cells = [
        entry.n,
        entry.slot,
        event.key,
        _STATES[entry.state, entry.claim is not None],
        event.time_ms,
        event.sequencer,
        event.size,
        event.etag,
        event.op if event.op != "put" else None,
        _condition(event.precondition),
        entry.attempts or None,
        round(entry.waited_seconds, 3) or None,
        entry.last_error[:error_max] or None,
        event.bucket if event.bucket != shared.bucket else None,
        event.writer if event.writer != shared.writer else None,
        event.announced_to if own_topics else None,
        event.name or None,
        event.version_id or None,
        event.configuration_id or None,
        [event.upload.id, event.upload.beats] if entry.state == "reserved" and event.upload else None,
        _for_endpoints(event),
    ]
    return list(reversed([*dropwhile(lambda cell: cell is None, reversed(cells))]))


_CELLS: Final = 21


def _entries(place: Place, body: dict[str, Any]) -> tuple[Entry, ...]:
    claim = Claim(worker=body["claim"][0], generation=int(body["claim"][1])) if body.get("claim") else None
    bucket, writer = body.get("bucket", ""), body.get("writer", "")
    announced_to = tuple(body.get("announced_to", ()))
    return tuple(
        _entry(place, row, claim, bucket=bucket, writer=writer, announced_to=announced_to)
        for row in body["entries"]
    )


def _entry(
    place: Place,
    row: list[Any],
    claim: Claim | None,
    *,
    bucket: str,
    writer: str,
    announced_to: tuple[str, ...],
) -> Entry:
    cells = row + [None] * (_CELLS - len(row))
    n, slot, key, state, time_ms, sequencer, size, etag, op, condition, attempts, waited, error = cells[:13]
    own_bucket, own_writer, own_topics, name, version_id, configuration_id, upload, for_endpoints = cells[13:]
    metadata, tags, details = for_endpoints or (None, None, None)
    topics = announced_to if own_topics is None else tuple(own_topics)
    event = Event(
        key=key,
        op=op or "put",
        bucket=bucket if own_bucket is None else own_bucket,
        etag=etag,
        size=size,
        precondition=_conditioned(condition),
        writer=writer if own_writer is None else own_writer,
        announced_to=topics if state == "r" else (),
        upload=Upload(id=UploadId(upload[0]), beats=int(upload[1])) if upload else None,
        sequencer=sequencer,
        time_ms=time_ms,
        name=name or "",
        version_id=version_id or "",
        configuration_id=configuration_id or "",
        metadata=metadata,
        tags=tags,
        details=details,
    )
    return Entry(
        place=place,
        n=int(n),
        slot=int(slot),
        state=_STATE_OF[state],
        event=event,
        attempts=attempts or 0,
        waited_seconds=waited or 0.0,
        last_error=error or "",
        claim=claim if state == "claimed" else None,
    )


def _for_endpoints(event: Event) -> list[Details | None] | None:
    """Metadata, tags and details of the event; None if all of them are missing."""
    cells = [event.metadata, event.tags, event.details]
    return [dict(each) if each else None for each in cells] if any(cells) else None


def _condition(precondition: Precondition | None) -> str | None:
    if precondition is None:
        return None
    return precondition.etag if isinstance(precondition, IfMatch) else "*"


def _conditioned(condition: str | None) -> Precondition | None:
    if condition is None:
        return None
    return ABSENT if condition == "*" else IfMatch(etag=ETag(condition))
