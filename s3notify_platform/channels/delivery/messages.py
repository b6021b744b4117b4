"""The formats in which events are sent. A new format needs its functions, and an item in `FORMATS`. Pure.

    - `s3`: `{"Records": […]}`, as Amazon S3 sends them.
    - `cloudevents`: CloudEvents 1.0 in JSON, with the attributes of the CloudEvents adapter for AWS S3, except the id.
      The id is the entry's id, because one request to the store may cause several events. Several events form one JSON
      batch.
    - `cloudevents-binary`: the attributes in HTTP headers, as Ceph sends them. The body is as in the format `s3`. In
      this format, each request has one event. `ce-type` lacks the `s3.` that the adapter writes. `ce-id` is
      REQUEST.ID2, made of the record's ids `x-amz-request-id` and `x-amz-id-2`. If the record lacks one of these ids,
      as our own events do, `ce-id` is the entry's id. Values are percent-encoded where the protocol binding requires
      it, whereas Ceph sends unencoded values.

Source: ceph/ceph, rgw_pubsub_push.cc; cloudevents/spec, "JSON Event Format" 1.0.2, "HTTP Protocol Binding" 1.0.2 and
"AWS Simple Storage Service CloudEvents Adapter".
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from s3notify_platform.protocols.notification_queue import Entry, encode_events

S3: Final = "s3"

_AS_IT_IS: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""Characters of a header's value that are not percent-encoded."""

Message = tuple[str, bytes]
"""Content type and body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFormat:
    """The functions that turn entries into messages. The text argument of these functions is `Endpoint.opaque_data`."""

    batch: Callable[[Sequence[Entry], str], Message]
    """One message of all entries, in order."""
    single: Callable[[Entry, str], Message]
    """The message of one entry, for brokers."""
    headers: Callable[[Entry], Mapping[str, str]] | None = None
    """HTTP headers that describe an entry, for formats with one entry in each request. None for formats without such
    headers.
    """


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


def _binary(entry: Entry) -> Mapping[str, str]:
    attributes = _attributes(entry, "")
    record = attributes["data"]
    said = {name: attributes[name] for name in attributes if name not in ("data", "datacontenttype")}
    said["type"] = f"com.amazonaws.{record['eventName']}"
    ids = [record.get("responseElements", {}).get(name) for name in ("x-amz-request-id", "x-amz-id-2")]
    if all(ids):
        said["id"] = ".".join(ids)
    return {f"ce-{name}": quote(value, safe=_AS_IT_IS) for name, value in said.items()}


def _dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


FORMATS: Final = {
    S3: MessageFormat(batch=_records, single=lambda entry, opaque: _records([entry], opaque)),
    "cloudevents": MessageFormat(batch=_cloud_events, single=_cloud_event),
    "cloudevents-binary": MessageFormat(
        batch=_records, single=lambda entry, opaque: _records([entry], opaque), headers=_binary
    ),
}
