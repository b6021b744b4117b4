"""The formats in which events are sent. A new one needs its functions, and an item in `FORMATS`. Pure.

    s3             `{"Records": […]}`, as Amazon S3 sends them
    cloudevents    CloudEvents 1.0 in JSON, with the attributes of its adapter for AWS S3; several are a JSON batch

Source: cloudevents/spec, "JSON Event Format" 1.0.2 and "AWS Simple Storage Service CloudEvents Adapter".
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from s3notify_platform.protocols.notification_queue import Entry, encode_events

S3: Final = "s3"

Message = tuple[str, bytes]
"""Content type and body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFormat:
    """How entries become messages. The text that both functions are given: see `Endpoint.opaque_data`."""

    batch: Callable[[Sequence[Entry], str], Message]
    """One message of all entries, in order."""
    single: Callable[[Entry, str], Message]
    """The message of one entry, for brokers."""


def _records(entries: Sequence[Entry], opaque: str) -> Message:
    topic = entries[0].topic if entries else ""
    events = (entry.event for entry in entries)
    return "application/json", encode_events(events, configuration=topic, opaque=opaque)


def _cloud_events(entries: Sequence[Entry], opaque: str) -> Message:
    events = [_attributes(entry, opaque) for entry in entries]
    return "application/cloudevents-batch+json", _dumped(events)


def _cloud_event(entry: Entry, opaque: str) -> Message:
    return "application/cloudevents+json", _dumped(_attributes(entry, opaque))


def _attributes(entry: Entry, opaque: str) -> dict[str, Any]:
    (record,) = json.loads(_records([entry], opaque)[1])["Records"]
    place = (record["eventSource"], record["awsRegion"], record["s3"]["bucket"]["name"])
    return {
        "specversion": "1.0",
        "id": entry.id,
        "source": ".".join(filter(None, place)),
        "type": f"com.amazonaws.s3.{record['eventName']}",
        "subject": entry.event.key,
        "time": record["eventTime"],
        "datacontenttype": "application/json",
        "data": record,
    }


def _dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


FORMATS: Final = {
    S3: MessageFormat(batch=_records, single=lambda entry, opaque: _records([entry], opaque)),
    "cloudevents": MessageFormat(batch=_cloud_events, single=_cloud_event),
}
