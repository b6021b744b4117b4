"""The formats in which events are sent. A new one needs a function for the event, and an item in `FORMATS`. Pure.

    s3             `{"Records": […]}`, as Amazon S3 sends them
    cloudevents    CloudEvents 1.0 in JSON, with the attributes of its adapter for AWS S3; several are a JSON batch

Source: cloudevents/spec, "JSON Event Format" 1.0.2 and "AWS Simple Storage Service CloudEvents Adapter".
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from s3notify_platform.protocols.notification_queue import Entry, encode_events

S3: Final = "s3"
CLOUDEVENTS: Final = "cloudevents"
FORMATS: Final = (S3, CLOUDEVENTS)

Message = tuple[str, bytes]
"""Content type and body."""


def batch_message(format_name: str, entries: Sequence[Entry], opaque: str = "") -> Message:
    """One message of all entries, in order. `opaque`: see `Endpoint.opaque_data`."""
    if format_name == CLOUDEVENTS:
        return "application/cloudevents-batch+json", _dumped(
            [_cloud_event(entry, opaque) for entry in entries]
        )
    return "application/json", encode_events((entry.event for entry in entries), opaque=opaque)


def single_message(format_name: str, entry: Entry, opaque: str = "") -> Message:
    """The message of one entry, for brokers."""
    if format_name == CLOUDEVENTS:
        return "application/cloudevents+json", _dumped(_cloud_event(entry, opaque))
    return "application/json", encode_events([entry.event], opaque=opaque)


def _cloud_event(entry: Entry, opaque: str) -> dict[str, Any]:
    (record,) = json.loads(encode_events([entry.event], opaque=opaque))["Records"]
    return {
        "specversion": "1.0",
        "id": entry.id,
        "source": f"aws:s3.{record['s3']['bucket']['name']}",
        "type": f"com.amazonaws.s3.{record['eventName']}",
        "subject": entry.event.key,
        "time": record["eventTime"],
        "datacontenttype": "application/json",
        "data": record,
    }


def _dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
