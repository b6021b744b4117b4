"""What a topic is created with: its settings, each declared once for command line and YAML, and its rules. Pure.

A rule tells by bucket, key and event name, which are always known; and by metadata and tags where they are at hand. Our
publisher knows the metadata of what it writes, and a reconciler that of what its HEAD finds; Ceph's posts have metadata
and tags. S3's events and MinIO's have neither, and no deletion has: a rule that asks for them takes none of these.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import re2

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_KEY_BYTES
from s3notify_platform.kernel.setting import About, check_settings
from s3notify_platform.kernel.slots import SLOT_COUNT, check_slot_count

TOPIC_NAME: Final = re.compile(r"[a-z0-9_-]{1,63}")
SHARDS_MAX: Final = 64

EVENT_BYTES_MAX: Final = 64 * 1024
"""The highest limit of an entry: a segment is one record, of 400 KB at most in DynamoDB."""

STALE_SECONDS: Final = 120.0
"""As in Ceph."""

RULES_MAX: Final = 100
"""Rules of a topic; as many configurations a bucket has on S3."""

RULE_EVENTS_MAX: Final = 20
RULE_PAIRS_MAX: Final = 10

Pairs = tuple[tuple[str, str], ...]
Known = Mapping[str, str] | None
"""Metadata or tags of an object; None: not known, or none."""

EVENT_KINDS: Final = (
    "ObjectCreated",
    "ObjectRemoved",
    "LifecycleExpiration",
    "ObjectLifecycle",
    "ObjectSynced",
)
"""What event names of changes begin with, the last two in Ceph."""

_EVENT: Final = re.compile(rf"(?:{'|'.join(EVENT_KINDS)})(?::[A-Za-z]{{1,40}}){{0,2}}(?::\*)?")

_OPTIONS: Final = re2.Options()
_OPTIONS.dot_nl, _OPTIONS.log_errors, _OPTIONS.max_mem = True, False, 1 << 20

FIXED: Final = ("shards", "slots", "signals")
"""Settings that a topic keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Some of the changes of a topic: those that fit all that is set."""

    bucket: str = ""
    prefix: str = ""
    suffix: str = ""
    regex: str = ""
    """For the whole key, as in Ceph, and as RE2 understands it: in linear time, whatever the key."""
    events: tuple[str, ...] = ()
    """Names like ObjectCreated:Copy, or ObjectCreated:* for all of a kind; empty: all."""
    metadata: Pairs = ()
    """User metadata that the object has, all of these: names in lower case, without x-amz-meta-."""
    tags: Pairs = ()
    """Tags that the object has, all of these."""

    def takes(self, bucket: str, key: str) -> bool:
        """Whether some change of this key fits."""
        if self.bucket not in ("", bucket):
            return False
        if not key.startswith(self.prefix) or not key.endswith(self.suffix):
            return False
        return not self.regex or _pattern(self.regex).fullmatch(key) is not None

    def takes_event(self, name: str | None, metadata: Known, tags: Known) -> bool:
        """Whether a change of a key that fits does, too; by whatever event, if that has no `name`."""
        if self.events and name is not None and not any(_named(name, event) for event in self.events):
            return False
        return {*self.metadata} <= {*(metadata or {}).items()} and {*self.tags} <= {*(tags or {}).items()}

    @classmethod
    def loads(cls, text: str) -> "Rule":
        """A rule that a person wrote as JSON. `UsageError` for anything else."""
        try:
            given = json.loads(text)
            if isinstance(events := given.get("events", []), list):
                names = (str(event).removeprefix("s3:") for event in events)
                pairs = {name: tuple(sorted(given[name].items())) for name in _PAIRS if name in given}
                rule = cls(**given | {"events": tuple(names)} | pairs)
                rule.check()
                return rule
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(f"rule {text[:200]!r}: {error}") from None
        raise UsageError(f"rule {text[:200]!r}: events is a list of names")

    def check_within(self, bucket: str, prefix: str) -> None:
        """`UsageError` if it takes nothing of what a topic of this bucket and prefix does."""
        if bucket and self.bucket not in ("", bucket):
            raise UsageError(f"its rule for bucket {self.bucket!r} takes nothing: the topic is of {bucket!r}")
        if not (self.prefix.startswith(prefix) or prefix.startswith(self.prefix)):
            raise UsageError(f"its rule for prefix {self.prefix!r} takes nothing: the topic is of {prefix!r}")

    def check(self) -> None:
        """`UsageError` unless a topic may have it."""
        pairs = (*self.metadata, *self.tags)
        texts = (
            self.bucket,
            self.prefix,
            self.suffix,
            self.regex,
            *(text for pair in pairs for text in pair),
        )
        if not all(isinstance(text, str) and text.isprintable() for text in texts):
            raise UsageError(
                "bucket, prefix, suffix, regex, and what metadata and tags hold, are printable texts"
            )
        if max(map(len, texts)) > MAX_KEY_BYTES or len(self.events) > RULE_EVENTS_MAX:
            raise UsageError(f"texts of {MAX_KEY_BYTES} characters and {RULE_EVENTS_MAX} events at most")
        if len(pairs) > RULE_PAIRS_MAX:
            raise UsageError(f"{RULE_PAIRS_MAX} of metadata and tags at most")
        if any(name != name.lower() or name.startswith("x-amz-meta-") for name, _ in self.metadata):
            raise UsageError("names of metadata are in lower case, and without x-amz-meta-")
        if self == Rule():
            raise UsageError(f"give one or more of {', '.join(field.name for field in fields(Rule))}")
        if self.regex:
            _pattern(self.regex)
        for event in self.events:
            if not _EVENT.fullmatch(event):
                raise UsageError(
                    f"event {event[:60]!r}: a name of S3, of {', '.join(EVENT_KINDS)}, like ObjectCreated:Copy or "
                    "ObjectCreated:*"
                )


_PAIRS: Final = ("metadata", "tags")


def _named(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What a topic is created with; all but those in `FIXED` may be changed later."""

    capacity: Annotated[
        int,
        About(
            "Entries that it holds at most, reservations included, an equal part in each shard; writers beyond are "
            "refused",
            unit="entries",
            minimum=1,
        ),
    ] = 10_000
    shards: Annotated[
        int,
        About(
            "Shares of the load: more for more writers at once, each delivered by one worker; cannot be changed",
            unit="shards",
            minimum=1,
            maximum=SHARDS_MAX,
        ),
    ] = 8
    max_attempts: Annotated[
        int, About("Deliveries of an entry until it is a dead letter", unit="deliveries", minimum=1)
    ] = 20
    ttl_seconds: Annotated[
        float | None,
        About("How long workers try an entry, counted while they watch it, until it is a dead letter"),
    ] = 4 * 24 * 3600.0
    retry_seconds: Annotated[
        float,
        About(
            "Retry sleep: the pause before an entry is delivered again is drawn below this, times 2 for each delivery",
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
            "After so long without its writer a reservation is resolved by HEAD; writes begin within a third of it. "
            "Lower it only while nobody writes",
            unit="seconds",
            minimum=1,
            maximum=86_400,
        ),
    ] = STALE_SECONDS
    max_event_bytes: Annotated[
        int,
        About(
            "Size of an entry at most, as it is stored: a larger event is refused before its object is written",
            unit="bytes",
            minimum=1,
            maximum=EVENT_BYTES_MAX,
        ),
    ] = 4096
    slots: int = SLOT_COUNT
    """As in the keyspace of the bucket."""
    signals: Annotated[
        Literal["slots", "root"],
        About(
            "What writers move after a change that is in the queue: the signals of its slot and the root; or the root "
            "alone, which is 1 request fewer, where nearly all of them queue; cannot be changed"
        ),
    ] = "slots"
    bucket: Annotated[str, About("Only changes of this bucket; empty: of any")] = ""
    prefix: Annotated[str, About("Only changes of keys that begin with it")] = ""
    rules: Annotated[
        tuple[Rule, ...],
        About(
            "Of these changes only those that a rule takes: JSON with any of bucket, prefix, suffix, regex (of the "
            "whole key), events, metadata and tags, like "
            '\'{"suffix": ".csv", "events": ["ObjectCreated:*"], "metadata": {"team": "sales"}}\'; repeatable'
        ),
    ] = ()
    endpoint: str = ""
    """Where and how to push: JSON that only the outlet reads. Empty: the topic is pulled."""


@lru_cache(maxsize=4 * RULES_MAX)
def _pattern(text: str) -> Any:
    try:
        return re2.compile(text, _OPTIONS)
    except re2.error as error:
        why = error.args[0] if error.args else error
        why = why.decode("utf-8", "replace") if isinstance(why, bytes) else why
        raise UsageError(f"regular expression {text[:200]!r}: {why}; write it as RE2 does") from None


def takes(settings: TopicSettings, bucket: str, key: str) -> bool:
    """Whether a topic with these settings takes some change of this key."""
    if settings.bucket not in ("", bucket) or not key.startswith(settings.prefix):
        return False
    return not settings.rules or any(rule.takes(bucket, key) for rule in settings.rules)


def may_overlap(one: TopicSettings, other: TopicSettings) -> bool:
    """Whether some change may be taken by topics of both settings; by bucket and prefix alone."""
    buckets = {one.bucket, other.bucket} - {""}
    prefixes = sorted((one.prefix, other.prefix), key=len)
    return len(buckets) < 2 and prefixes[1].startswith(prefixes[0])


def same_keys(one: TopicSettings, other: TopicSettings) -> bool:
    """Whether topics of both settings take the same changes."""
    return (one.bucket, one.prefix, one.rules) == (other.bucket, other.prefix, other.rules)


def check_topic(name: str, settings: TopicSettings) -> None:
    """`UsageError` unless a topic may have this name and these settings."""
    if not TOPIC_NAME.fullmatch(name):
        raise UsageError(f"topic {name!r}: 1 to 63 of a-z, 0-9, - and _")
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
        raise UsageError(f"topic {name!r}: ttl_seconds is above 0, or None")


def check_slots(name: str, settings: TopicSettings, slots: int) -> None:
    """`UsageError` if a topic has other slots than the keyspace of those who use it: they would look for no entry."""
    if settings.slots != slots:
        raise UsageError(
            f"topic {name!r} has {settings.slots} slots, and its source {slots}: set slots: {settings.slots}, or "
            f"delete the topic and create it with --slot-count {slots}"
        )


def check_signals(name: str, settings: TopicSettings, signals: str) -> None:
    """`UsageError` if writers of a topic do not signal as its source expects: it would not see all changes."""
    if settings.signals != signals:
        raise UsageError(
            f"topic {name!r} has signals: {settings.signals}, and its source {signals}: set signals: "
            f"{settings.signals}, or delete the topic and create it with --signals {signals}"
        )


def differing(name: str, found: TopicSettings, wanted: TopicSettings) -> str:
    """In which settings a topic that exists is not as it is `wanted`, and what to do; empty if it is. For people."""
    new = asdict(wanted)
    others = [setting for setting, value in asdict(found).items() if value != new[setting]]
    if not others:
        return ""
    listed = ", ".join(
        f"{setting} is {getattr(found, setting)!r}, not {new[setting]!r}" for setting in others
    )
    how = "delete it first" if set(others) & set(FIXED) else "`s3notify topics update` changes that"
    return f"topic {name!r} exists with other settings: {listed}; {how}"
