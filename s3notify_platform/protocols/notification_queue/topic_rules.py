r"""Rules: they select the changes that a topic receives. Pure.

A rule matches the bucket, key and event name, which are always known. A rule also matches metadata and tags, if they
are known. Our publisher knows the metadata of the objects that it writes. A reconciler knows the metadata of the
objects that its HEAD finds. Ceph's messages have metadata and tags. The events of S3 and MinIO have no metadata and no
tags. The event of a deletion has metadata and tags only in Ceph's messages. A rule that requires metadata or tags never
matches an event without them.

A rule that can never match is refused. The reason may be:
    - an event that no store reports, or that changes no object
    - a regular expression that matches no key, or no key with the rule's prefix and suffix
    - a key of more than 1,024 bytes, which the prefix, the suffix and plain characters at the ends of the expression
      require
    - one name with two values
    - a bucket or a prefix that differs from the topic's

Limits. A contradiction between a suffix and a regular expression is found if the expression, or each of its
alternatives, ends with plain characters, like `.*\.json`. The contradiction is not found if the expression sets flags,
or ends with a group or a class. The contradiction is also not found if only the length of the matches contradicts the
suffix. Matches that are too long for a key are noticed only by their plain characters at both ends:
`[a-z]{1000}[a-z]{100}` is accepted.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final

import re2

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_KEY_BYTES

RULES_MAX: Final = 100
"""The maximum number of rules of a topic; S3 has the same limit for the notification configurations of a bucket."""

RULE_EVENTS_MAX: Final = 20
RULE_PAIRS_MAX: Final = 10

RULE_ID_MAX: Final = 255
"""The maximum number of characters of a rule's id, as S3 limits the id of a notification configuration."""

Pairs = tuple[tuple[str, str], ...]
Known = Mapping[str, str] | None
"""Metadata or tags of an object; None if they are unknown or missing."""

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

_TOKEN: Final = re.compile(
    r"""
      (?P<nothing> \\[bBAz] | [$^] )                        # matches no character
    | \\(?: [pP](?:\{[^}]*\}|.) | x(?:\{[^}]*\}|..) | [0-7]{1,3} )
    | \\(?P<escaped> [^A-Za-z0-9] )
    | \\.
    | \[ \^? \]? (?: \\. | \[:\^?[a-z]+:\] | [^\]\\] )* \]
    | (?P<plain> [^][(){}*+?.|\\] )
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
"""One token of a regular expression in RE2 syntax without `\\Q`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Selects some changes of a topic: the changes that match every field that is set."""

    id: str = ""
    """The `configurationId` of matching records. If the id is empty, records get the sender's id, or else the topic's
    name.
    """
    bucket: str = ""
    prefix: str = ""
    suffix: str = ""
    regex: str = ""
    """A regular expression that must match the whole key, as in Ceph. The expression has RE2 syntax, so that matching
    takes linear time.
    """
    events: tuple[str, ...] = ()
    """Names like ObjectCreated:Copy, or ObjectCreated:* for all events of this kind; empty: all events."""
    metadata: Pairs = ()
    """User metadata, all of which the object must have. Names are in lower case, without x-amz-meta-."""
    tags: Pairs = ()
    """Tags, all of which the object must have."""

    def takes(self, bucket: str, key: str) -> bool:
        """True if some change of this key matches."""
        if self.bucket not in ("", bucket):
            return False
        if not key.startswith(self.prefix) or not key.endswith(self.suffix):
            return False
        return not self.regex or _pattern(self.regex).fullmatch(key) is not None

    def takes_event(self, name: str | None, metadata: Known, tags: Known) -> bool:
        """True if the event's name, metadata and tags match. The caller has checked the key by `takes`. If `name` is
        None, only metadata and tags are compared.
        """
        if self.events and name is not None and not any(_named(name, event) for event in self.events):
            return False
        return {*self.metadata} <= {*(metadata or {}).items()} and {*self.tags} <= {*(tags or {}).items()}

    @classmethod
    def loads(cls, text: str) -> "Rule":
        """Parses a rule that a person wrote as JSON. `UsageError` for any other text."""
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
        raise UsageError(f"rule {text[:200]!r}: events must be a list of names")

    def check_within(self, bucket: str, prefix: str) -> None:
        """Raises `UsageError` if the rule can match no change of a topic with this bucket and prefix."""
        if bucket and self.bucket not in ("", bucket):
            raise UsageError(
                f"its rule for bucket {self.bucket!r} matches nothing: the topic has bucket {bucket!r}"
            )
        if not (self.prefix.startswith(prefix) or prefix.startswith(self.prefix)):
            raise UsageError(
                f"its rule for prefix {self.prefix!r} matches nothing: the topic has prefix {prefix!r}"
            )
        longer = max(self.prefix, prefix, key=len)
        if why := _why_no_key(longer, self.suffix, self.regex):
            raise UsageError(f"its rule matches nothing: {why}")

    def check(self) -> None:
        """Raises `UsageError` if a topic may not have this rule."""
        pairs = (*self.metadata, *self.tags)
        keys = (self.prefix, self.suffix, self.regex)
        texts = (self.id, self.bucket, *keys, *(text for pair in pairs for text in pair))
        if not all(isinstance(text, str) and text.isprintable() for text in texts):
            raise UsageError("id, bucket, prefix, suffix, regex, metadata and tags must be printable texts")
        if max(map(len, texts)) > MAX_KEY_BYTES or len(self.events) > RULE_EVENTS_MAX:
            raise UsageError(
                f"at most {MAX_KEY_BYTES} characters in a text and {RULE_EVENTS_MAX} events are allowed"
            )
        if len(self.id) > RULE_ID_MAX:
            raise UsageError(f"an id may have at most {RULE_ID_MAX} characters")
        if len(pairs) > RULE_PAIRS_MAX:
            raise UsageError(f"at most {RULE_PAIRS_MAX} metadata and tags are allowed")
        if any(name != name.lower() or name.startswith("x-amz-meta-") for name, _ in self.metadata):
            raise UsageError("names of metadata must be in lower case, and without x-amz-meta-")
        if replace(self, id="") == Rule():
            others = (field.name for field in fields(Rule) if field.name != "id")
            raise UsageError(f"give one or more of {', '.join(others)}")
        self._check_that_it_takes_something()

    def _check_that_it_takes_something(self) -> None:
        for event in self.events:
            if not any(_named(name, event) for name in EVENT_NAMES):
                raise UsageError(
                    f"event {event[:60]!r} is not a reported change: give {', '.join(EVENT_NAMES)}, or "
                    "ObjectCreated:* for all of a kind"
                )
        for pairs in (self.metadata, self.tags):
            if len({name for name, _ in pairs}) < len({*pairs}):
                raise UsageError("it matches nothing: a name of its metadata or tags has two values")
        if why := _why_no_key(self.prefix, self.suffix, self.regex):
            raise UsageError(f"it matches nothing: {why}")


def _named(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith(":*") else name == wanted


def _why_no_key(prefix: str, suffix: str, regex: str) -> str:
    """The reason why no key can have this prefix and suffix, and also match `regex`; "" if such a key may exist."""
    shortest = _shortest(prefix.encode(), suffix.encode())
    if shortest > MAX_KEY_BYTES:
        return f"by its prefix and suffix, a key has {shortest} bytes or more, but may have only {MAX_KEY_BYTES} bytes"
    if not regex or any(
        (tail.endswith(suffix) or suffix.endswith(tail))
        and _may_begin(alternative, prefix, max(tail, suffix, key=len))
        for alternative, tail in _alternatives(regex)
    ):
        return ""
    parts = (f"begins with {prefix!r}" * bool(prefix), f"ends with {suffix!r}" * bool(suffix))
    which = " and ".join(filter(None, parts))
    return f"no key{f' that {which}' if which else ''} matches {regex!r}"


def _shortest(begin: bytes, end: bytes) -> int:
    """The length of the shortest text that has this beginning and this end, which may overlap."""
    shared = (n for n in range(min(len(begin), len(end)), -1, -1) if begin[len(begin) - n :] == end[:n])
    return len(begin) + len(end) - next(shared)


def _alternatives(regex: str) -> Iterator[tuple[str, str]]:
    """Yields each alternative of the whole expression, with the end that all its matches share ("" if unknown)."""
    _pattern(regex)  # refuses invalid expressions, for which the tokens below are wrong
    if "\\Q" in regex or re.search(r"\(\?(?!:|P?<)", regex):
        yield regex, ""
        return
    start, depth, tail = 0, 0, ""
    for token in _TOKEN.finditer(regex):
        depth += (token[0] == "(") - (token[0] == ")")
        literal = token["escaped"] or token["plain"]
        if token[0] == "|" and not depth:
            yield regex[start : token.start()], tail
            start, tail = token.end(), ""
        elif not token["nothing"]:
            tail = tail + literal if literal and not depth else ""
    yield regex[start:], tail


def _may_begin(regex: str, prefix: str, suffix: str) -> bool:
    """True if a key with this prefix may match, and has room for this suffix. The result False is certain. The result
    follows from the range of all matching texts: all of them begin with the characters that both ends of the range
    share.
    """
    try:
        low, high = _pattern(regex).possiblematchrange(2 * MAX_KEY_BYTES)
    except re2.error:  # the range is unknown
        return True
    begin = prefix.encode()
    if not high or high < begin or not (low <= begin or low.startswith(begin)):
        return False
    common = next(
        (n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high))
    )
    return _shortest(max(begin, low[:common], key=len), suffix.encode()) <= MAX_KEY_BYTES


@lru_cache(maxsize=4 * RULES_MAX)
def _pattern(text: str) -> Any:
    try:
        return re2.compile(text, _OPTIONS)
    except re2.error as error:
        why = error.args[0] if error.args else error
        why = why.decode("utf-8", "replace") if isinstance(why, bytes) else why
        raise UsageError(f"regular expression {text[:200]!r}: {why}; use RE2 syntax") from None
