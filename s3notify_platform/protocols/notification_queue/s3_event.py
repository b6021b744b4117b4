"""The S3 event message: `Records[]` as Amazon S3 sends them, so that existing consumers understand ours.

Read: what Amazon S3, MinIO and Ceph RGW send. Keys are URL-encoded (a space is `+`), save those of Ceph, which
sends them as they are and leaves `s3:` out of event names (seen with RGW 16); MinIO writes `s3:` in front.
Source: "Event message structure", Amazon S3 user guide, version 2.1.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote_plus, unquote_plus

from s3notify_platform.errors import UsageError
from s3notify_platform.ports import ETag
from s3notify_platform.protocols.notification_queue.entries import Event

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMES = {"put": "ObjectCreated:Put", "delete": "ObjectRemoved:Delete"}
_CREATED, _REMOVED = "ObjectCreated:", "ObjectRemoved:"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Events:
    """The changes that a message tells of, and how many of its records tell of something else."""

    events: tuple[Event, ...]
    ignored: int


def encode_events(events: Iterable[Event], *, region: str = "", source: str = "aws:s3") -> bytes:
    """The message that tells of these events, in order. Pure.

    `eventTime` is the writer's wall clock, for people; `sequencer` orders the events of one key.
    """
    records = [
        {
            "eventVersion": "2.1",
            "eventSource": source,
            "awsRegion": region,
            "eventTime": _iso(event.time_ms),
            "eventName": _NAMES[event.op],
            "s3": {
                "s3SchemaVersion": "1.0",
                "bucket": {"name": event.bucket, "arn": f"arn:aws:s3:::{event.bucket}"},
                "object": {
                    "key": quote_plus(event.key, safe="/"),
                    **({} if event.size is None else {"size": event.size}),
                    **({} if event.etag is None else {"eTag": event.etag}),
                    "sequencer": event.sequencer,
                },
            },
        }
        for event in events
    ]
    return json.dumps({"Records": records}, separators=(",", ":")).encode("ascii")


def decode_events(body: bytes | str) -> S3Events:
    """What a message tells. `UsageError` if it is no S3 event message: refuse it, or put it aside. Pure.

    Records of other kinds (restores, tags, the test event) are counted as ignored.
    """
    try:
        message = json.loads(body)
        if isinstance(message, dict) and message.get("Event") == "s3:TestEvent":
            return S3Events(events=(), ignored=1)
        decoded = [_decode(record) for record in message["Records"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"no S3 event message: {body[:100]!r}") from error
    events = tuple(event for event in decoded if event is not None)
    return S3Events(events=events, ignored=len(decoded) - len(events))


def _decode(record: dict[str, object]) -> Event | None:
    name = str(record["eventName"]).removeprefix("s3:")
    if not name.startswith((_CREATED, _REMOVED)):
        return None
    s3 = record["s3"]
    if not isinstance(s3, dict):
        raise TypeError("s3 is no object")
    found = s3["object"]
    key = str(found["key"])
    found |= {"sequencer": _rising(str(found.get("sequencer") or ""), str(record.get("eventSource", "")))}
    # RGW sends keys as they are: decoding them would turn a `+` into a space.
    if not str(record.get("eventSource", "")).startswith("ceph:"):
        key = unquote_plus(key, errors="strict")
    removed = name.startswith(_REMOVED)
    etag = str(found.get("eTag") or "").strip('"')
    size = found.get("size")
    return Event(
        key=key,
        op="delete" if removed else "put",
        bucket=str(s3["bucket"]["name"]),
        etag=ETag(etag) if etag else None,
        size=int(size) if size is not None and not removed else None,
        sequencer=str(found.get("sequencer") or ""),
        time_ms=_milliseconds(str(record.get("eventTime") or "")),
    )


def _iso(time_ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


_STAMP = re.compile(r"[0-9A-Fa-f]{16}")


def _rising(sequencer: str, source: str) -> str:
    """The sequencer such that a later one is greater.

    RGW's are seconds and nanoseconds, 4 bytes each, lowest byte first: they are turned.
    """
    if not source.startswith("ceph:") or not _STAMP.fullmatch(sequencer):
        return sequencer
    stamp = bytes.fromhex(sequencer)
    return (stamp[3::-1] + stamp[:3:-1]).hex().upper()


def _milliseconds(text: str) -> int:
    """For people; a time that cannot be read is none."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment - _EPOCH) // timedelta(milliseconds=1) if moment.tzinfo else 0
    except ValueError:
        return 0
