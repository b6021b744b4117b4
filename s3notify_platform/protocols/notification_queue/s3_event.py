"""The S3 event message: `Records[]` in Amazon S3's format, so that existing consumers understand our messages.

Input: messages of Amazon S3, MinIO and Ceph RGW. Keys are URL-encoded (a space is `+`), except in messages of Ceph.
Ceph sends keys unencoded, and leaves `s3:` out of event names (seen with RGW 16). MinIO writes `s3:` before event
names. Removals by MinIO's lifecycle have the event name of ordinary removals; only the client's name differs. The same
messages are accepted inside an SNS notification. EventBridge's format, whose keys are not URL-encoded, is accepted,
too. Sources: "Event message structure", version 2.1, and "EventBridge event message structure", Amazon S3 user guide.

Event names, version ids and configuration ids are passed on unchanged; EventBridge's `reason` is converted to S3's
event name. The rest of the sender's record is passed on, too (`event_details`). Ceph's `opaqueData` belongs to Ceph's
topic, and is not passed on; our topics have their own `opaqueData`. A record that came from Ceph is passed on in Ceph's
format, with an unencoded key. The version of such a record is 2.1, as in all our records; Ceph's own records have
version 2.2. The sequencer of such a record is converted, so that a later event has a greater sequencer.

With versioning an event is a hint, not a fact about the key. `ObjectRemoved:Delete` of a noncurrent version leaves the
object unchanged. A delete of the current version makes the previous version current. So decide only after a HEAD of the
object.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote_plus, unquote_plus

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.protocols.notification_queue.entries import PLAIN_NAMES, Event
from s3notify_platform.protocols.notification_queue.event_details import (
    AMAZON,
    CEPH,
    Details,
    details_of,
    eventbridge_details,
    in_object,
    in_record,
    pairs_of,
)

Op = Literal["put", "delete"]

_VERSION = "2.1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OPS: tuple[tuple[str, Op], ...] = (
    ("ObjectCreated:", "put"),
    ("ObjectRemoved:", "delete"),
    ("LifecycleExpiration:", "delete"),
    # Ceph's own event names: changes made in another zone, and removals by the lifecycle. The removal of a noncurrent
    # version is not a change of the key.
    ("ObjectSynced:Create", "put"),
    ("ObjectSynced:Delet", "delete"),
    ("ObjectLifecycle:Expiration:Current", "delete"),
)
"""Operations by the text with which the event name begins."""

_OF_NO_CHANGE = frozenset(
    f"ObjectCreated:{name}" for name in ("PutTagging", "DeleteTagging", "PutRetention", "PutLegalHold")
)
"""MinIO's names of events that do not change an object's content; the first two are in MinIO's group `put`."""

_EVENTBRIDGE_OPS: dict[str, Op] = {"Object Created": "put", "Object Deleted": "delete"}
_CREATED_BY = {
    "PutObject": "ObjectCreated:Put",
    "POST Object": "ObjectCreated:Post",
    "CopyObject": "ObjectCreated:Copy",
    "CompleteMultipartUpload": "ObjectCreated:CompleteMultipartUpload",
}
"""Event names by EventBridge's `reason`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Events:
    """The changes that a message announces, and the number of the message's records that announce no change."""

    events: tuple[Event, ...]
    ignored: int


def encode_events(events: Iterable[Event], *, configuration: str = "", opaque: str = "") -> bytes:
    """The message that announces these events, in order. Pure.

    `eventTime` is the writer's wall clock, for people; `sequencer` orders the events of one key. `configuration`: the
    `configurationId` of events that have no id. `opaque`: the topic's text, written as `opaqueData` of each record, as
    in Ceph.
    """
    records = [_encode(event, configuration, opaque) for event in events]
    return json.dumps({"Records": records}, separators=(",", ":")).encode("ascii")


def _encode(event: Event, configuration: str, opaque: str) -> dict[str, Any]:
    details, bucket = in_record(event.details, event.bucket)
    by_ceph = details.get("eventSource", "").startswith(CEPH)
    configuration = event.configuration_id or configuration
    return {
        "eventVersion": _VERSION,
        "eventSource": AMAZON,
        "awsRegion": "",
        "eventTime": _iso(event.time_ms),
        "eventName": event.event_name,
        **details,
        "s3": {
            "s3SchemaVersion": "1.0",
            **({"configurationId": configuration} if configuration else {}),
            "bucket": bucket,
            "object": {
                "key": event.key if by_ceph else quote_plus(event.key, safe="/"),
                **({} if event.size is None else {"size": event.size}),
                **({} if event.etag is None else {"eTag": event.etag}),
                **({"versionId": event.version_id} if event.version_id else {}),
                "sequencer": event.sequencer,
                **in_object(event.metadata, event.tags),
            },
        },
        **({"opaqueData": opaque} if opaque else {}),
    }


def decode_events(body: bytes | str) -> S3Events:
    """Decodes a message. `UsageError` if the body is not an S3 event message: refuse the message, or put it aside.
    Pure.

    Records of other kinds (restores, tags, the test event, other services' events) are counted as ignored.
    """
    try:
        message = _unwrapped(json.loads(body))
        if isinstance(message, dict) and message.get("Event") == "s3:TestEvent":
            return S3Events(events=(), ignored=1)
        if isinstance(message, dict) and "detail-type" in message:
            decoded = [_decode_eventbridge(message)]
        else:
            decoded = [_decode(record) for record in message["Records"]]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UsageError(f"no S3 event message: {body[:100]!r}") from error
    events = tuple(event for event in decoded if event is not None)
    return S3Events(events=events, ignored=len(decoded) - len(events))


def _unwrapped(message: Any) -> Any:
    """The message inside the SNS envelope; unchanged if there is no envelope, as with raw delivery."""
    if isinstance(message, dict) and message.get("Type") == "Notification" and "TopicArn" in message:
        return json.loads(message["Message"])
    return message


def _decode(record: dict[str, Any]) -> Event | None:
    name = str(record["eventName"]).removeprefix("s3:")
    if str(record.get("eventSource", "")).startswith("minio:") and _by_lifecycle(record.get("source")):
        name = name.replace("ObjectRemoved:", "LifecycleExpiration:", 1)
    op = next((op for beginning, op in _OPS if name.startswith(beginning)), None)
    if op is None or name in _OF_NO_CHANGE:
        return None
    found = record["s3"]["object"]
    key = str(found["key"])
    by_ceph = str(record.get("eventSource", "")).startswith(CEPH)
    if by_ceph and record.get("eventVersion") != _VERSION:
        found |= {"sequencer": _rising(str(found.get("sequencer") or ""))}
    # RGW does not encode keys: decoding them would turn a `+` into a space.
    if not by_ceph:
        # Invalid UTF-8 raises no error here: only this event is rejected later, and the other events of the message are
        # kept.
        key = unquote_plus(key, errors="surrogateescape")
    return _event(
        op,
        key,
        record["s3"]["bucket"],
        found,
        etag=found.get("eTag"),
        time=record.get("eventTime"),
        name=name,
        version_id=found.get("versionId"),
        configuration_id=record["s3"].get("configurationId"),
        metadata=pairs_of(found.get("metadata"), metadata=True),
        tags=pairs_of(found.get("tags")),
        details=details_of(record),
    )


def _by_lifecycle(source: object) -> bool:
    """True if MinIO's lifecycle removed the object. Only the client's name shows such a removal (before 2022, only the
    host).
    """
    if not isinstance(source, dict):
        return False
    return any("[ilm-expiry]" in str(source.get(field, "")).lower() for field in ("userAgent", "host"))


def _decode_eventbridge(message: dict[str, Any]) -> Event | None:
    op = _EVENTBRIDGE_OPS.get(str(message["detail-type"])) if message["source"] == "aws.s3" else None
    if op is None:
        return None
    detail = message["detail"]
    found = detail["object"]
    if op == "put":
        name = _CREATED_BY.get(str(detail.get("reason")), "")
    else:
        by = "LifecycleExpiration" if detail.get("reason") == "Lifecycle Expiration" else "ObjectRemoved"
        marker = detail.get("deletion-type") == "Delete Marker Created"
        name = f"{by}:{'DeleteMarkerCreated' if marker else 'Delete'}"
    return _event(
        op,
        str(found["key"]),
        detail["bucket"],
        found,
        etag=found.get("etag"),
        time=message.get("time"),
        name=name,
        version_id=found.get("version-id"),
        details=eventbridge_details(message),
    )


def _event(
    op: Op,
    key: str,
    bucket: dict[str, Any],
    found: dict[str, Any],
    *,
    etag: object,
    time: object,
    name: str,
    version_id: object,
    configuration_id: object = None,
    metadata: dict[str, str] | None = None,
    tags: dict[str, str] | None = None,
    details: Details | None = None,
) -> Event:
    etag = str(etag or "").strip('"')
    size = found.get("size")
    return Event(
        key=key,
        op=op,
        bucket=str(bucket["name"]),
        etag=ETag(etag) if etag else None,
        size=int(size) if size is not None and op == "put" else None,
        sequencer=str(found.get("sequencer") or ""),
        time_ms=_milliseconds(str(time or "")),
        name="" if name == PLAIN_NAMES[op] else name,  # a plain name is not stored with each event
        version_id=str(version_id or ""),
        configuration_id=str(configuration_id or ""),
        metadata=metadata,
        tags=tags,
        details=details,
    )


def _iso(time_ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


_STAMP = re.compile(r"[0-9A-Fa-f]{16}")


def _rising(sequencer: str) -> str:
    """Converts a sequencer of Ceph so that a later sequencer is greater.

    RGW's sequencers are seconds and nanoseconds, 4 bytes each, little-endian; the result is big-endian.
    """
    if not _STAMP.fullmatch(sequencer):
        return sequencer
    stamp = bytes.fromhex(sequencer)
    return (stamp[3::-1] + stamp[:3:-1]).hex().upper()


def _milliseconds(text: str) -> int:
    """Unix milliseconds, for people. The result is 0 if the time cannot be parsed, or is outside the years 1 to 9999 in
    UTC, which `_iso` cannot write.
    """
    try:
        moment = datetime.fromisoformat(text)
        return (moment.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1) if moment.tzinfo else 0
    except (ValueError, OverflowError):
        return 0
