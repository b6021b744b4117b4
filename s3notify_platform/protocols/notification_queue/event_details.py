"""Details of an event: the sender's region, source, user, request, response, owner and ids. Pure.

Details are passed on unchanged, for consumers that read them; no decision here depends on them. A client that reports a
change may put anything into the record. So only the fields named above are kept. Their values must be texts of bounded
length, or mappings of such texts. Other values are dropped. If the event would be too large for its topic, all details
are dropped. So no change is refused because of its details.

The object's metadata and tags, which rules of topics match, are passed on in Ceph's form.
"""

from collections.abc import Mapping
from typing import Any, Final

from s3notify_platform.kernel.limits import MAX_EVENT_PAIRS, MAX_EVENT_TEXT

AMAZON: Final = "aws:s3"
CEPH: Final = "ceph:"

_TEXTS: Final = ("eventSource", "awsRegion", "eventId")
_MAPPINGS: Final = ("userIdentity", "requestParameters", "responseElements", "source")
_OF_BUCKET: Final = ("ownerIdentity", "arn", "id")

_META: Final = "x-amz-meta-"
_OWN: Final = "s3notify-"
"""The prefix of the names of our own metadata."""

Details = Mapping[str, Any]


def details_of(record: Mapping[str, Any]) -> Details | None:
    """The details of a record; None if it has no details."""
    found: dict[str, Any] = {name: _text(record.get(name)) for name in _TEXTS}
    found |= {name: _texts(record.get(name)) for name in _MAPPINGS}
    bucket = record["s3"]["bucket"]
    found |= {f"bucket.{name}": _text(bucket.get(name)) or _texts(bucket.get(name)) for name in _OF_BUCKET}
    return {name: value for name, value in found.items() if value} or None


def eventbridge_details(message: Mapping[str, Any]) -> Details | None:
    """The details of an EventBridge message, under the names that S3 uses for these details."""
    detail = message["detail"]
    return details_of(
        {
            "eventSource": AMAZON,
            "awsRegion": message.get("region"),
            "userIdentity": {"principalId": detail.get("requester")},
            "requestParameters": {"sourceIPAddress": detail.get("source-ip-address")},
            "responseElements": {"x-amz-request-id": detail.get("request-id")},
            "s3": {"bucket": {}},
        }
    )


def in_record(details: Details | None, bucket: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the fields for a record and the fields for its bucket, made from these details."""
    found = dict(details or {})
    of_bucket = {name: found.pop(f"bucket.{name}", None) for name in _OF_BUCKET}
    given = {name: value for name, value in of_bucket.items() if value}
    return found, {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"} | given


def pairs_of(listed: object, *, metadata: bool = False) -> dict[str, str] | None:
    """Metadata or tags from Ceph's list form; None if the list is empty or has another form."""
    if not isinstance(listed, list) or not all(isinstance(pair, dict) for pair in listed):
        return None
    prefix = _META if metadata else ""
    pairs = {str(pair.get("key", "")).removeprefix(prefix): str(pair.get("val", "")) for pair in listed}
    return {name: value for name, value in pairs.items() if _is_text(name) and _is_text(value)} or None


def in_object(metadata: Mapping[str, str] | None, tags: Mapping[str, str] | None) -> dict[str, Any]:
    """The fields of a record's object that list its metadata and tags; empty if they are unknown."""
    own = {name: value for name, value in (metadata or {}).items() if not name.startswith(_OWN)}
    listed = {
        "metadata": [{"key": f"{_META}{name}", "val": value} for name, value in own.items()],
        "tags": [{"key": name, "val": value} for name, value in (tags or {}).items()],
    }
    return {name: pairs for name, pairs in listed.items() if pairs}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.encode("utf-8", "replace").decode() == value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= MAX_EVENT_TEXT and _is_text(value) else None


def _texts(value: object) -> dict[str, str] | None:
    if not isinstance(value, dict) or len(value) > MAX_EVENT_PAIRS:
        return None
    return {name: text for name, text in value.items() if _text(name) and _text(text) is not None} or None
