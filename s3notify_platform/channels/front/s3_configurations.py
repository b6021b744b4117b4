"""S3's notification configurations of a bucket, read and written as XML. Each configuration becomes a rule with an id,
in a topic. Pure.

Only TopicConfigurations are accepted, with S3's prefix and suffix, and with Ceph's `regex` and filters by metadata
(`S3Metadata`) and tags (`S3Tags`). A configuration without an Event takes all changes, as in Ceph. A configuration
without an Id gets an id, as on S3.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

from s3notify_platform.channels.front.front_answers import FrontError, Node
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.notification_queue import Rule
from s3notify_platform.protocols.notification_queue.topic_rules import RULES_MAX

_KEY_FILTERS: Final = ("prefix", "suffix", "regex")
_META: Final = "x-amz-meta-"
_FILTERS: Final = {"S3Key": "key", "S3Metadata": "metadata", "S3Tags": "tags"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One configuration of a bucket: a topic, and the changes that it gets. The rule's id is the configuration's id."""

    topic: str
    rule: Rule


def configurations_in(
    body: bytes, bucket: str, *, named: Callable[[str], str | None], fresh_id: Callable[[], str]
) -> tuple[Configuration, ...]:
    """The configurations in a document. `FrontError` if the document is not valid, or cannot be expressed as rules.

    `named`: returns the topic's name in an ARN, or None if its argument is not an ARN. `fresh_id`: returns an id for a
    configuration without one.
    """
    root = _parsed(body)
    found = []
    for element in root:
        if _tag(element) != "TopicConfiguration":
            raise _invalid(
                f"{_tag(element)[:60]} is not supported: give TopicConfiguration, for a topic of this service"
            )
        found.append(_configuration(element, bucket, named, fresh_id))
    if len(found) > RULES_MAX:
        raise _invalid(f"{len(found)} configurations: give at most {RULES_MAX}")
    ids = [each.rule.id for each in found]
    if twice := next((one for one in ids if ids.count(one) > 1), None):
        raise _invalid(f"Same ID used for multiple configurations: {twice!r}")
    return tuple(found)


def document_of(configurations: Iterable[Configuration], arn: Callable[[str], str]) -> list[Node]:
    """The content of a NotificationConfiguration. `arn`: returns the ARN of the topic with this name."""
    return [("TopicConfiguration", _elements(each, arn(each.topic))) for each in configurations]


def _configuration(
    element: ET.Element, bucket: str, named: Callable[[str], str | None], fresh_id: Callable[[], str]
) -> Configuration:
    parts: dict[str, list[ET.Element]] = {}
    for part in element:
        parts.setdefault(_tag(part), []).append(part)
    if others := {*parts} - {"Id", "Topic", "Event", "Filter"}:
        raise _invalid(f"{min(others)[:60]} is not supported in a TopicConfiguration")
    if max((len(parts.get(name, ())) for name in ("Id", "Topic", "Filter")), default=0) > 1:
        raise _malformed("Id, Topic and Filter may be given only once")
    arn = _text(parts["Topic"][0]) if "Topic" in parts else ""
    identity = _text(parts["Id"][0]) if "Id" in parts else fresh_id()
    if not identity:
        raise _invalid("the Id of a configuration is empty")
    filters = _filters(parts["Filter"][0]) if "Filter" in parts else {}
    key = dict(filters.get("key", ()))
    if len(key) < len(filters.get("key", ())) or {*key} - {*_KEY_FILTERS}:
        raise _invalid("filter rule name must be one of prefix, suffix and regex, each once")
    rule = Rule(
        id=identity,
        bucket=bucket,
        events=tuple(_text(event).removeprefix("s3:") for event in parts.get("Event", ())),
        metadata=tuple((name.removeprefix(_META), value) for name, value in filters.get("metadata", ())),
        tags=tuple(filters.get("tags", ())),
        **key,
    )
    try:
        rule.check()
    except UsageError as error:
        raise _invalid(f"configuration {identity[:60]!r}: {error}") from None
    if (topic := named(arn)) is None:
        raise _invalid(
            f"The ARN is not well formed: {arn[:100]!r}; give a topic's ARN, like arn:aws:sns:REGION::NAME"
        )
    return Configuration(topic=topic, rule=rule)


def _filters(element: ET.Element) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for part in element:
        kind = _FILTERS.get(_tag(part))
        if kind is None or kind in found:
            raise _invalid(f"{_tag(part)[:60]}: a Filter has at most one of each of {', '.join(_FILTERS)}")
        pairs = [{_tag(field): _text(field) for field in rule} for rule in part]
        if any(_tag(rule) != "FilterRule" for rule in part) or any({*p} != {"Name", "Value"} for p in pairs):
            raise _malformed("a filter has FilterRules, each with a Name and a Value")
        # S3 returns `Prefix`, but also accepts `prefix`. Only the names of tags are case-sensitive.
        lower = kind != "tags"
        found[kind] = [(p["Name"].lower() if lower else p["Name"], p["Value"]) for p in pairs]
    return found


def _elements(configuration: Configuration, arn: str) -> Sequence[Node]:
    rule = configuration.rule
    events: list[Node] = [("Event", f"s3:{event}") for event in rule.events]
    pairs = {
        "S3Key": [(name, getattr(rule, name)) for name in _KEY_FILTERS if getattr(rule, name)],
        "S3Metadata": [(f"{_META}{name}", value) for name, value in rule.metadata],
        "S3Tags": list(rule.tags),
    }
    filters: list[Node] = [
        (kind, [("FilterRule", [("Name", name), ("Value", value)]) for name, value in of_kind])
        for kind, of_kind in pairs.items()
        if of_kind
    ]
    return [("Id", rule.id), ("Topic", arn), *events, *([("Filter", filters)] if filters else [])]


def _parsed(body: bytes) -> ET.Element:
    try:
        text = body.decode("utf-8")
        if "<!DOCTYPE" in text or "<!ENTITY" in text:  # both are refused, so no entity is ever expanded
            raise _malformed("a document type is not accepted")
        root = ET.fromstring(text)  # noqa: S314 - without a document type there is no entity to expand
    except (ET.ParseError, ValueError):
        raise _malformed("it is not XML in UTF-8") from None
    if _tag(root) != "NotificationConfiguration":
        raise _malformed("a NotificationConfiguration is expected")
    return root


def _tag(element: ET.Element) -> str:
    """The element's name, without its namespace."""
    return str(element.tag).rpartition("}")[2]


def _text(element: ET.Element) -> str:
    return (element.text or "").strip() if _tag(element) not in ("Name", "Value") else element.text or ""


def _invalid(message: str) -> FrontError:
    return FrontError(400, "InvalidArgument", message)


def _malformed(message: str) -> FrontError:
    return FrontError(
        400,
        "MalformedXML",
        f"The XML you provided was not well-formed or did not validate against our published schema: {message}",
    )
