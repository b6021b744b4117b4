"""SNS's actions on topics: CreateTopic, DeleteTopic, ListTopics, Get- and SetTopicAttributes, and Ceph's GetTopic.

A topic of the front takes only changes that a bucket's notification configuration names (`without_rules: none`). Other
topics, like the topics of sources, are neither shown nor changed. An ARN is arn:aws:sns:REGION::NAME.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

from s3notify_platform.channels.front.front_answers import FrontError, Node, Reply
from s3notify_platform.channels.front.topic_attributes import attributes_of, settings_of
from s3notify_platform.channels.inlets.http_server import Answer
from s3notify_platform.kernel.errors import ConflictError, NotFoundError, UsageError
from s3notify_platform.protocols.notification_queue import NotificationQueue, Topic, TopicSettings
from s3notify_platform.protocols.notification_queue.topic_settings import TOPIC_NAME, check_topic
from s3notify_platform.protocols.notification_queue.topic_store import check_change

PAGE: Final = 100
"""Maximum number of topics in one answer, as on SNS."""

ATTRIBUTES_MAX: Final = 50

_ENTRY: Final = re.compile(r"Attributes\.entry\.([0-9]{1,6})\.(key|value)")
_ARN: Final = re.compile(r"arn:aws:sns:([a-z0-9-]*):([a-zA-Z0-9-]*):(.{1,256})")

Parameters = Mapping[str, str]


def is_of_front(topic: Topic) -> bool:
    """True if the front shows and changes this topic."""
    return topic.settings.without_rules == "none"


class SnsTopics:
    """The topics of one queue, managed by SNS's actions. Thread-safe."""

    def __init__(self, queue: NotificationQueue, region: str) -> None:
        self._topics = queue.topics
        self._region = region
        self._actions: Mapping[str, Callable[[Parameters, Reply], Answer]] = {
            "CreateTopic": self._create,
            "DeleteTopic": self._delete,
            "ListTopics": self._list,
            "GetTopic": self._get,
            "GetTopicAttributes": self._get_attributes,
            "SetTopicAttributes": self._set_attributes,
        }

    def answer(self, parameters: Parameters, reply: Reply) -> Answer:
        """The answer to an action. Raises `FrontError`, and errors of the store.

        Requests: 1 scan or read, and in addition 3 to create a topic, or 2 to change a topic. A deletion sends the
        requests of `Topics.delete`, and waits as long as `Topics.delete`.
        """
        name = parameters.get("Action", "")
        if (action := self._actions.get(name)) is None:
            known = ", ".join(self._actions)
            raise FrontError(
                400, "InvalidAction", f"The action {name[:60]!r} is not valid here; valid actions are {known}"
            )
        return action(parameters, reply)

    def arn(self, name: str) -> str:
        """The ARN of a topic."""
        return f"arn:aws:sns:{self._region}::{name}"

    def named(self, arn: str) -> str | None:
        """The name in an ARN; "" if the ARN names another region or account; None if the text is not an ARN of SNS."""
        if (found := _ARN.fullmatch(arn)) is None:
            return None
        return found[3] if (found[1], found[2]) == (self._region, "") else ""

    # Actions.

    def _create(self, parameters: Parameters, reply: Reply) -> Answer:
        name, given = parameters.get("Name", ""), _entries(parameters)
        if not TOPIC_NAME.fullmatch(name):
            raise invalid("Topic Name Reason: use 1 to 63 of a-z, 0-9, - and _")
        _check_known(parameters, "Name")
        found = self._topics.find(name)
        if found is None:
            wanted = _settings(name, given)
            try:
                self._topics.create(name, wanted)
            except ConflictError:
                found = self._topics.get(name)  # a concurrent request created the topic
        if found is not None:
            if not is_of_front(found):
                raise invalid(
                    "Attributes Reason: Topic already exists with different attributes: it takes all changes of its "
                    f"bucket; run `s3notify topics update {name} --without-rules none` to use it in this API"
                )
            if given:
                self._revise(name, lambda before: _settings(name, given, before))
        return reply.action("CreateTopic", [("TopicArn", self.arn(name))])

    def _delete(self, parameters: Parameters, reply: Reply) -> Answer:
        name, found = self._named_in(parameters)
        if found is not None and (not is_of_front(found) or found.tables):
            raise FrontError(
                403, "AuthorizationError", f"Topic {name!r} was not made by this API, or serves a table"
            )
        if found is not None:
            with suppress(NotFoundError):  # another request deleted the topic: no error, as in SNS
                self._topics.delete(name, served=False)
        return reply.action("DeleteTopic", None)

    def _list(self, parameters: Parameters, reply: Reply) -> Answer:
        after = parameters.get("NextToken", "")
        found = [topic for topic in self._topics.all() if is_of_front(topic) and topic.name > after]
        members: list[Node] = [("member", self._described(topic)) for topic in found[:PAGE]]
        more: list[Node] = [("NextToken", found[PAGE - 1].name)] if len(found) > PAGE else []
        return reply.action("ListTopics", [("Topics", members), *more])

    def _get(self, parameters: Parameters, reply: Reply) -> Answer:
        return reply.action("GetTopic", [("Topic", self._described(self._found(parameters)))])

    def _get_attributes(self, parameters: Parameters, reply: Reply) -> Answer:
        topic = self._found(parameters)
        shown = {
            "TopicArn": self.arn(topic.name),
            "Name": topic.name,
            "User": "",
            "OpaqueData": attributes_of(topic.settings).get("OpaqueData", ""),
            "EndPoint": json.dumps(dict(_endpoint(topic))),
        }
        entries: list[Node] = [("entry", [("key", name), ("value", value)]) for name, value in shown.items()]
        return reply.action("GetTopicAttributes", [("Attributes", entries)])

    def _set_attributes(self, parameters: Parameters, reply: Reply) -> Answer:
        name, value = parameters.get("AttributeName", ""), parameters.get("AttributeValue", "")
        topic = self._found(parameters)

        def changed(before: TopicSettings) -> TopicSettings:
            others = {key: old for key, old in attributes_of(before).items() if key != name}
            return _settings(topic.name, others | {name: value}, before)

        self._revise(topic.name, changed)
        return reply.action("SetTopicAttributes", None)

    # Helpers that several actions use.

    def _found(self, parameters: Parameters) -> Topic:
        _, found = self._named_in(parameters)
        if found is None or not is_of_front(found):
            raise FrontError(404, "NotFound", "Topic does not exist")
        return found

    def _named_in(self, parameters: Parameters) -> tuple[str, Topic | None]:
        arn = parameters.get("TopicArn", "")
        if (name := self.named(arn)) is None:
            raise invalid(f"TopicArn Reason: {arn[:100]!r} is not an ARN like {self.arn('NAME')}")
        return name, self._topics.find(name) if TOPIC_NAME.fullmatch(name) else None

    def _revise(self, name: str, change: Callable[[TopicSettings], TopicSettings]) -> None:
        def revised(topic: Topic) -> TopicSettings:
            settings = change(topic.settings)
            try:
                check_change(topic, settings)
            except UsageError as error:
                raise invalid(f"Attributes Reason: {error}") from None
            return settings

        try:
            self._topics.revise(name, revised)
        except NotFoundError:
            raise FrontError(404, "NotFound", "Topic does not exist") from None

    def _described(self, topic: Topic) -> Sequence[Node]:
        opaque = attributes_of(topic.settings).get("OpaqueData", "")
        identity: list[Node] = [("User", ""), ("Name", topic.name)]
        return [
            *identity,
            ("EndPoint", _endpoint(topic)),
            ("TopicArn", self.arn(topic.name)),
            ("OpaqueData", opaque),
        ]


def invalid(what: str) -> FrontError:
    """The error for an invalid parameter, in SNS's words."""
    return FrontError(400, "InvalidParameter", f"Invalid parameter: {what}")


def _endpoint(topic: Topic) -> list[tuple[str, str]]:
    given = attributes_of(topic.settings)
    named = {
        "EndpointAddress": given.get("push-endpoint", ""),
        "EndpointArgs": urlencode(given),
        "EndpointTopic": topic.name,
        "HasStoredSecret": "false",
        "Persistent": given["persistent"],
        "TimeToLive": given.get("time_to_live", "None"),
        "MaxRetries": given.get("max_retries", "None"),
        "RetrySleepDuration": given.get("retry_sleep_duration", "None"),
    }
    return list(named.items())


def _entries(parameters: Parameters) -> dict[str, str]:
    """The attributes: `Attributes.entry.N.key` and `.value`, in any order."""
    pairs: dict[str, dict[str, str]] = {}
    for name, value in parameters.items():
        if found := _ENTRY.fullmatch(name):
            pairs.setdefault(found[1], {})[found[2]] = value
    if len(pairs) > ATTRIBUTES_MAX or any(len(pair) != 2 for pair in pairs.values()):
        raise invalid(
            f"Attributes Reason: give a key and a value for each, and at most {ATTRIBUTES_MAX} attributes"
        )
    named = {pair["key"]: pair["value"] for pair in pairs.values()}
    if len(named) < len(pairs):
        raise invalid("Attributes Reason: an attribute is given twice")
    return named


def _check_known(parameters: Parameters, *known: str) -> None:
    for name in parameters:
        if name not in ("Action", "Version", *known) and not _ENTRY.fullmatch(name):
            raise invalid(f"{name[:60]} Reason: this parameter is not supported here")


def _settings(name: str, given: Mapping[str, str], before: TopicSettings | None = None) -> TopicSettings:
    try:
        settings = settings_of(given) if before is None else settings_of(given, before)
        check_topic(name, settings)
    except (UsageError, ValueError) as error:
        raise invalid(f"Attributes Reason: {error}") from None
    return settings


def action_parameters(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The parameters of an action, without the signature of a presigned URL. `FrontError` if a parameter is given
    twice, or is not UTF-8.
    """
    found: dict[str, str] = {}
    for name, value in pairs:
        try:
            f"{name}{value}".encode()
        except UnicodeEncodeError:
            raise invalid(f"{name[:60]} Reason: this parameter is not UTF-8") from None
        if name in found:
            raise invalid(f"{name[:60]} Reason: this parameter is given twice")
        if not name.startswith("X-Amz-"):
            found[name] = value
    return found
