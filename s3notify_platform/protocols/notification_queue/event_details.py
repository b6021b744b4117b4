"""Details of an event: its sender's region, source, user, request, response, owner and ids. Pure.

They are passed on as they came, for consumers that read them; nothing here is decided by them. Anybody who reports
changes writes records, so only these fields are taken, and of them texts, and mappings of texts, of bounded length.
Anything else is left out, and so are all of them where the event would be too large for its topic: no change is lost
for them.

Metadata and tags of the object, which rules of topics go by, are passed on in the form that Ceph has for them.
"""

from collections.abc import Mapping
from typing import Any, Final

TEXT_MAX: Final = 1024
PAIRS_MAX: Final = 16

AMAZON: Final = "aws:s3"
CEPH: Final = "ceph:"

_TEXTS: Final = ("eventSource", "awsRegion", "eventId")
_MAPPINGS: Final = ("userIdentity", "requestParameters", "responseElements", "source")
_OF_BUCKET: Final = ("ownerIdentity", "arn", "id")

_META: Final = "x-amz-meta-"
_OWN: Final = "s3notify-"
"""The beginning of the names of our own metadata."""

Details = Mapping[str, Any]


def details_of(record: Mapping[str, Any]) -> Details | None:
    """The details of a record; None if it has none."""
    found: dict[str, Any] = {name: _text(record.get(name)) for name in _TEXTS}
    found |= {name: _texts(record.get(name)) for name in _MAPPINGS}
    bucket = record["s3"]["bucket"]
    found |= {f"bucket.{name}": _text(bucket.get(name)) or _texts(bucket.get(name)) for name in _OF_BUCKET}
    return {name: value for name, value in found.items() if value} or None


def eventbridge_details(message: Mapping[str, Any]) -> Details | None:
    """Those of EventBridge's form, by the names that S3 has for them."""
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
    """The fields of a record, and those of its bucket, that hold these details."""
    found = dict(details or {})
    of_bucket = {name: found.pop(f"bucket.{name}", None) for name in _OF_BUCKET}
    given = {name: value for name, value in of_bucket.items() if value}
    return found, {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"} | given


def pairs_of(listed: object, *, metadata: bool = False) -> dict[str, str] | None:
    """Metadata or tags as Ceph lists them; None if there are none, or they are anything else."""
    if not isinstance(listed, list) or not all(isinstance(pair, dict) for pair in listed):
        return None
    prefix = _META if metadata else ""
    pairs = {str(pair.get("key", "")).removeprefix(prefix): str(pair.get("val", "")) for pair in listed}
    return {name: value for name, value in pairs.items() if _is_text(name) and _is_text(value)} or None


def in_object(metadata: Mapping[str, str] | None, tags: Mapping[str, str] | None) -> dict[str, Any]:
    """The fields of a record's object that list its metadata and tags; none where they are not known."""
    own = {name: value for name, value in (metadata or {}).items() if not name.startswith(_OWN)}
    listed = {
        "metadata": [{"key": f"{_META}{name}", "val": value} for name, value in own.items()],
        "tags": [{"key": name, "val": value} for name, value in (tags or {}).items()],
    }
    return {name: pairs for name, pairs in listed.items() if pairs}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.encode("utf-8", "replace").decode() == value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= TEXT_MAX and _is_text(value) else None


def _texts(value: object) -> dict[str, str] | None:
    if not isinstance(value, dict) or len(value) > PAIRS_MAX:
        return None
    return {name: text for name, text in value.items() if _text(name) and _text(text) is not None} or None
