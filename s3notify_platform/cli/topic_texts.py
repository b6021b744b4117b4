"""A topic's settings and entries, as texts and JSON documents."""

import json
from dataclasses import asdict
from typing import Any

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.notification_queue import Entry, Topic, TopicSettings


def document_of(settings: TopicSettings) -> dict[str, Any]:
    """The settings as a JSON document."""
    return {**asdict(settings), "endpoint": json.loads(settings.endpoint or "null")}


def entry_document(entry: Entry) -> dict[str, Any]:
    """A pending entry as a JSON document."""
    event = entry.event
    return {
        "id": entry.id,
        "shard": entry.shard,
        "slot": entry.slot,
        "state": entry.state,
        "bucket": event.bucket,
        "key": event.key,
        "event": event.event_name,
        "version_id": event.version_id,
        "configuration_id": event.configuration_id,
        "etag": event.etag,
        "size": event.size,
        "sequencer": event.sequencer,
        "time_ms": event.time_ms,
        "metadata": event.metadata,
        "tags": event.tags,
        "details": event.details,
        "attempts": entry.attempts,
        "waited_seconds": entry.waited_seconds,
        "last_error": entry.last_error,
        "worker": entry.claim.worker if entry.claim else None,
    }


def age_seconds(since_ms: int | None, now_ms: int) -> float | None:
    """The time since `since_ms`; None if `since_ms` is None."""
    return None if since_ms is None else max(0, now_ms - since_ms) / 1000


def cell_of(value: object) -> object:
    """The value as a cell of a table: lists and mappings as JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | tuple) else value


def endpoint_url(settings: TopicSettings) -> str:
    """The URL of the topic's endpoint; "" without an endpoint."""
    if not settings.endpoint:
        return ""
    try:
        return Endpoint.loads(settings.endpoint).url
    except UsageError:
        return settings.endpoint


def endpoint_cell(topic: Topic) -> str:
    """The URL of the topic's endpoint, and whether the topic is paused or not persistent."""
    notes = ("paused" * topic.paused, "not persistent" * (not topic.settings.persistent))
    return ", ".join(filter(None, (endpoint_url(topic.settings) or "pulled", *notes)))


def received_by(settings: TopicSettings) -> str:
    """The bucket and the prefix whose changes the topic receives, like `landing/raw/*`."""
    return f"{settings.bucket or 'any bucket'}/{settings.prefix}*"


def described(settings: TopicSettings) -> str:
    """The changes that the topic receives, and its endpoint, in one line."""
    rules = f", {len(settings.rules)} rules" if settings.rules else ""
    what = f"{received_by(settings)}{rules}"
    if not settings.rules and settings.without_rules == "none":
        what = "nothing until it has a rule"
    kept = "" if settings.persistent else ", not persistent"
    return f"{what} to {endpoint_url(settings)}{kept}" if settings.endpoint else f"{what}, pulled"
