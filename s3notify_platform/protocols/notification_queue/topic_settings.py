"""Settings of a topic, each declared once for command line and YAML. Pure."""

import re
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Final, Literal

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import About, check_settings
from s3notify_platform.kernel.slots import SLOT_COUNT, check_slot_count
from s3notify_platform.protocols.notification_queue.topic_rules import RULES_MAX, Rule

TOPIC_NAME: Final = re.compile(r"[a-z0-9_-]{1,63}")
SHARDS_MAX: Final = 64

EVENT_BYTES_MAX: Final = 64 * 1024
"""Highest value of `max_event_bytes`. Events are stored in a segment, a segment is one record, and a record in DynamoDB
has at most 400 KB.
"""

STALE_SECONDS: Final = 120.0
"""Default of `stale_seconds`, as in Ceph."""

FIXED: Final = ("shards", "slots", "signals")
"""Settings that cannot be changed after the topic's creation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic. All settings except those in `FIXED` can be changed after the topic's creation."""

    capacity: Annotated[
        int,
        About(
            "Maximum number of entries in the topic, reservations included. Each shard has an equal part; further "
            "entries are refused",
            unit="entries",
            minimum=1,
        ),
    ] = 10_000
    shards: Annotated[
        int,
        About(
            "Parts of the queue that share the load: many concurrent writers need many shards. One worker delivers "
            "each shard; cannot be changed",
            unit="shards",
            minimum=1,
            maximum=SHARDS_MAX,
        ),
    ] = 8
    max_attempts: Annotated[
        int, About("Deliveries of an entry before it becomes a dead letter", unit="deliveries", minimum=1)
    ] = 20
    ttl_seconds: Annotated[
        float | None,
        About(
            "Seconds for which workers retry an entry; then it becomes a dead letter. Time without a worker does not "
            "count"
        ),
    ] = 4 * 24 * 3600.0
    retry_seconds: Annotated[
        float,
        About(
            "Retry sleep: the pause before the next delivery is a random time up to this value, doubled for each "
            "delivery",
            unit="seconds",
            minimum=0,
            maximum=86_400,
        ),
    ] = 1.0
    retry_max_seconds: Annotated[
        float,
        About(
            "Longest pause between two deliveries of an entry",
            unit="seconds",
            minimum=0,
            maximum=86_400,
        ),
    ] = 300.0
    stale_seconds: Annotated[
        float,
        About(
            "A reservation whose writer is silent for this time is resolved by HEAD; writes must begin within a third "
            "of this time. Lower the value only while nobody writes",
            unit="seconds",
            minimum=1,
            maximum=86_400,
        ),
    ] = STALE_SECONDS
    max_event_bytes: Annotated[
        int,
        About(
            "Largest size of an entry, as it is stored: a larger event is refused before its object is written",
            unit="bytes",
            minimum=1,
            maximum=EVENT_BYTES_MAX,
        ),
    ] = 4096
    slots: int = SLOT_COUNT
    """Number of slots, as in the keyspace of the bucket."""
    signals: Annotated[
        Literal["slots", "root"],
        About(
            "The signals that writers move after a queued change: slots (of the slot and the root), or root (the root "
            "alone: 1 request fewer, if nearly all writers queue). This setting cannot be changed later"
        ),
    ] = "slots"
    bucket: Annotated[str, About("Accept only changes in this bucket; empty: any bucket")] = ""
    prefix: Annotated[str, About("Accept only changes of keys that begin with this")] = ""
    rules: Annotated[
        tuple[Rule, ...],
        About(
            "Accept only changes that match a rule: JSON with any of bucket, prefix, suffix, regex (for the whole "
            "key), events, metadata and tags, and an id, like "
            '\'{"suffix": ".csv", "events": ["ObjectCreated:*"], "metadata": {"team": "sales"}}\'; repeatable'
        ),
    ] = ()
    without_rules: Annotated[
        Literal["all", "none"],
        About(
            "Changes to accept while the topic has no rule; none: queued entries are delivered, and no entry is added"
        ),
    ] = "all"
    persistent: Annotated[
        bool,
        About(
            "Queue each change until it is delivered. Without a queue, the publisher or inlet that announces a change "
            "sends it to the endpoint itself, at most once, before its call returns; a failure loses the notification"
        ),
    ] = True
    endpoint: str = ""
    """Target and method of pushes, as JSON, for the process that sends them. If this setting is empty, the topic is
    pulled."""


def takes(settings: TopicSettings, bucket: str, key: str) -> bool:
    """True if a topic with these settings receives at least some changes of this key."""
    if settings.bucket not in ("", bucket) or not key.startswith(settings.prefix):
        return False
    if not settings.rules:
        return settings.without_rules == "all"
    return any(rule.takes(bucket, key) for rule in settings.rules)


def may_overlap(one: TopicSettings, other: TopicSettings) -> bool:
    """True if topics with these two settings may receive the same change. Only bucket and prefix are compared, not the
    rules.
    """
    if any(not each.rules and each.without_rules == "none" for each in (one, other)):
        return False
    buckets = {one.bucket, other.bucket} - {""}
    prefixes = sorted((one.prefix, other.prefix), key=len)
    return len(buckets) < 2 and prefixes[1].startswith(prefixes[0])


def same_keys(one: TopicSettings, other: TopicSettings) -> bool:
    """True if a topic with the settings `one` takes the same changes as a topic with the settings `other`."""
    return _taking(one) == _taking(other)


def _taking(settings: TopicSettings) -> tuple[object, ...]:
    rules = tuple(replace(rule, id="") for rule in settings.rules)
    return (settings.bucket, settings.prefix, rules or settings.without_rules, settings.persistent)


def check_topic(name: str, settings: TopicSettings) -> None:
    """Raises `UsageError` if a topic may not have this name and these settings."""
    if not TOPIC_NAME.fullmatch(name):
        raise UsageError(f"topic {name!r}: use 1 to 63 of a-z, 0-9, - and _")
    check_slot_count(settings.slots)
    try:
        check_settings(settings, TopicSettings)
        if len(settings.rules) > RULES_MAX:
            raise UsageError(f"{len(settings.rules)} rules: at most {RULES_MAX}")
        for rule in settings.rules:
            rule.check()
            rule.check_within(settings.bucket, settings.prefix)
    except UsageError as error:
        raise UsageError(f"topic {name!r}: {error}") from None
    if settings.shards > settings.capacity:
        raise UsageError(f"topic {name!r}: {settings.shards} shards are more than its capacity")
    if settings.ttl_seconds is not None and settings.ttl_seconds <= 0:
        raise UsageError(f"topic {name!r}: ttl_seconds must be above 0, or None")
    if not settings.persistent and not settings.endpoint:
        raise UsageError(f"topic {name!r}: a topic that is not persistent needs an endpoint: give a URL, too")


def check_slots(name: str, settings: TopicSettings, slots: int) -> None:
    """Raises `UsageError` if the topic has another number of slots than the keyspace of its user: with another number,
    the user would find no entries.
    """
    if settings.slots != slots:
        raise UsageError(
            f"topic {name!r} has {settings.slots} slots, but its source has {slots}: set slots: {settings.slots} for "
            f"the source, or delete the topic and create it with --slot-count {slots}"
        )


def check_for_source(name: str, settings: TopicSettings, signals: str) -> None:
    """Raises `UsageError` if the source of this topic would miss changes. The reason may be that the topic's entries
    are delivered to an endpoint, or that writers of the topic signal in another way than the source expects.
    """
    if settings.endpoint:
        raise UsageError(
            f"topic {name!r} sends its changes to an endpoint, so its source would miss them: remove the endpoint by "
            f"`s3notify topics update {name} --url ''`, and create another topic for the endpoint. Then run a sweep"
        )
    if settings.signals != signals:
        raise UsageError(
            f"topic {name!r} has the setting signals: {settings.signals}, but its source has {signals}: set signals: "
            f"{settings.signals} for the source, or delete the topic and create it with --signals {signals}"
        )


def differing(name: str, found: TopicSettings, wanted: TopicSettings) -> str:
    """Names the settings in which an existing topic differs from `wanted`, and the remedy; empty if all are equal."""
    new = asdict(wanted)
    others = [setting for setting, value in asdict(found).items() if value != new[setting]]
    if not others:
        return ""
    listed = ", ".join(
        f"{setting} is {getattr(found, setting)!r}, not {new[setting]!r}" for setting in others
    )
    how = "delete it first" if set(others) & set(FIXED) else "`s3notify topics update` changes that"
    return f"topic {name!r} exists with other settings: {listed}; {how}"
