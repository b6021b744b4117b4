"""Rules: which of a topic's changes it takes. Pure.

A rule tells by bucket, key and event name, which are always known; and by metadata and tags where they are at hand. Our
publisher knows the metadata of what it writes, and a reconciler that of what its HEAD finds; Ceph's posts have metadata
and tags. S3's events and MinIO's have neither, and no deletion has, but in Ceph's posts: a rule that asks for them
takes none of these.

A rule that takes no change, whatever is written, is refused: an event that no store reports, or that changes no object;
a regular expression that matches no key, or none with the rule's prefix; a name with two values; a bucket or a prefix
that is not the topic's. That is not decided of every pair of a suffix and a regular expression.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final

import re2

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_KEY_BYTES

RULES_MAX: Final = 100
"""Rules of a topic; as many configurations a bucket has on S3."""

RULE_EVENTS_MAX: Final = 20
RULE_PAIRS_MAX: Final = 10

RULE_ID_MAX: Final = 255
"""Characters of an id, as S3 limits that of a notification configuration."""

Pairs = tuple[tuple[str, str], ...]
Known = Mapping[str, str] | None
"""Metadata or tags of an object; None: not known, or none."""

EVENT_NAMES: Final = (
    "ObjectCreated:Put",
    "ObjectCreated:Post",
    "ObjectCreated:Copy",
    "ObjectCreated:CompleteMultipartUpload",
    "ObjectRemoved:Delete",
    "ObjectRemoved:DeleteMarkerCreated",
    "ObjectRemoved:NoOP",
    "ObjectRemoved:DeleteAllVersions",
    "LifecycleExpiration:Delete",
    "LifecycleExpiration:DeleteMarkerCreated",
    "ObjectLifecycle:Expiration:Current",
    "ObjectSynced:Create",
    "ObjectSynced:Delete",
    "ObjectSynced:DeletionMarkerCreated",
)
"""Names of events that are changes, as S3, MinIO (NoOP, DeleteAllVersions) and Ceph (the last four) report them."""

_OPTIONS: Final = re2.Options()
_OPTIONS.dot_nl, _OPTIONS.log_errors, _OPTIONS.max_mem = True, False, 1 << 20

_PAIRS: Final = ("metadata", "tags")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Some of the changes of a topic: those that fit all that is set."""

    id: str = ""
    """The `configurationId` of records that it takes; empty: the sender's, else the topic."""
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
        longer = max(self.prefix, prefix, key=len)
        if self.regex and not _may_begin(self.regex, longer):
            raise UsageError(f"its rule takes nothing: no key that begins with {longer!r} is {self.regex!r}")

    def check(self) -> None:
        """`UsageError` unless a topic may have it."""
        pairs = (*self.metadata, *self.tags)
        keys = (self.prefix, self.suffix, self.regex)
        texts = (self.id, self.bucket, *keys, *(text for pair in pairs for text in pair))
        if not all(isinstance(text, str) and text.isprintable() for text in texts):
            raise UsageError(
                "id, bucket, prefix, suffix, regex, and what metadata and tags hold, are printable texts"
            )
        if max(map(len, texts)) > MAX_KEY_BYTES or len(self.events) > RULE_EVENTS_MAX:
            raise UsageError(f"texts of {MAX_KEY_BYTES} characters and {RULE_EVENTS_MAX} events at most")
        if len(self.id) > RULE_ID_MAX:
            raise UsageError(f"an id has {RULE_ID_MAX} characters at most")
        if len(pairs) > RULE_PAIRS_MAX:
            raise UsageError(f"{RULE_PAIRS_MAX} of metadata and tags at most")
        if any(name != name.lower() or name.startswith("x-amz-meta-") for name, _ in self.metadata):
            raise UsageError("names of metadata are in lower case, and without x-amz-meta-")
        if replace(self, id="") == Rule():
            others = (field.name for field in fields(Rule) if field.name != "id")
            raise UsageError(f"give one or more of {', '.join(others)}")
        self._check_that_it_takes_something()

    def _check_that_it_takes_something(self) -> None:
        for event in self.events:
            if not any(_named(name, event) for name in EVENT_NAMES):
                raise UsageError(
                    f"event {event[:60]!r} is no change that is reported: give {', '.join(EVENT_NAMES)}, or "
                    "ObjectCreated:* for all of a kind"
                )
        for pairs in (self.metadata, self.tags):
            if len({name for name, _ in pairs}) < len({*pairs}):
                raise UsageError("it takes nothing: a name of its metadata or tags has two values")
        if max(len(text.encode()) for text in (self.prefix, self.suffix)) > MAX_KEY_BYTES:
            raise UsageError(f"it takes nothing: a key has {MAX_KEY_BYTES} bytes at most")
        if self.regex and not _may_begin(self.regex, self.prefix):
            beginning = f" that begins with {self.prefix!r}" if self.prefix else ""
            raise UsageError(f"it takes nothing: no key{beginning} is {self.regex!r}")


def _named(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith(":*") else name == wanted


def _may_begin(regex: str, prefix: str) -> bool:
    """Whether some key with this prefix may be matched. False is certain: by the range of all that is matched."""
    try:
        low, high = _pattern(regex).possiblematchrange(2 * MAX_KEY_BYTES)
    except re2.error:  # it is not known
        return True
    begin = prefix.encode()
    return bool(high) and high >= begin and (low <= begin or low.startswith(begin))


@lru_cache(maxsize=4 * RULES_MAX)
def _pattern(text: str) -> Any:
    try:
        return re2.compile(text, _OPTIONS)
    except re2.error as error:
        why = error.args[0] if error.args else error
        why = why.decode("utf-8", "replace") if isinstance(why, bytes) else why
        raise UsageError(f"regular expression {text[:200]!r}: {why}; write it as RE2 does") from None
