"""The notification configurations of one bucket, kept as rules of topics: put, get and delete.

Guarantees. Everything is checked before anything is written. When a put or a delete is answered, the new configurations
apply to each later change. Entries that are in the queue already are delivered as before. Topics change one by one. So
two concurrent puts may leave a mixture of both, and after an error a put may be partly done. In both cases put the
configurations again.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Literal

from s3notify_platform.channels.front.front_answers import FrontError
from s3notify_platform.channels.front.s3_configurations import Configuration
from s3notify_platform.channels.front.sns_topics import is_of_front
from s3notify_platform.kernel.errors import NotFoundError, UsageError
from s3notify_platform.protocols.notification_queue import NotificationQueue, Rule, Topic, TopicSettings
from s3notify_platform.protocols.notification_queue.topic_store import check_change

TOPICS_AT_ONCE: Final = 8
"""Number of topics that are changed in parallel. Each change waits until all writers know the topic's new rules."""

OnPut = Literal["replace", "merge"]


class BucketNotifications:
    """The configurations of one bucket. Thread-safe.

    A configuration is a rule with an id and this bucket, in a topic of the front (`is_of_front`); the front changes no
    other rule.
    """

    def __init__(self, queue: NotificationQueue, bucket: str, on_put: OnPut) -> None:
        """`on_put`: with `replace`, a put removes the configurations that it does not name, as on S3. With `merge`, a
        put keeps these configurations, as in Ceph.
        """
        self._topics = queue.topics
        self._bucket = bucket
        self._on_put = on_put

    def get(self, identity: str = "") -> tuple[Configuration, ...]:
        """All configurations by topic, or only the configuration with this id. Cost: 1 scan. `FrontError` for an
        unknown id.
        """
        found = tuple(
            Configuration(topic=topic.name, rule=rule)
            for topic in self._topics.all()
            if is_of_front(topic)
            for rule in topic.settings.rules
            if self._has(rule)
        )
        if not identity:
            return found
        if one := tuple(each for each in found if each.rule.id == identity):
            return one
        raise FrontError(404, "NoSuchKey", f"There is no notification {identity[:60]!r} of this bucket.")

    def put(self, wanted: Iterable[Configuration]) -> None:
        """Replaces or merges the configurations of the bucket; an empty `wanted` removes all configurations. Requests:
        1 scan, and 3 for each topic that changes. If a topic changes, the call also waits for
        `Topics.outdated_seconds`.
        """
        by_topic: dict[str, list[Rule]] = {}
        for each in wanted:
            by_topic.setdefault(each.topic, []).append(each.rule)
        named = {rule.id for rules in by_topic.values() for rule in rules}
        merged = self._on_put == "merge" and bool(named)
        topics = {topic.name: topic for topic in self._topics.all()}
        if unknown := [name for name in by_topic if name not in topics or not is_of_front(topics[name])]:
            raise FrontError(
                400,
                "InvalidArgument",
                "Unable to validate the following destination configurations: there is no topic "
                f"{', '.join(map(repr, unknown))}, or it was not created by this API",
            )
        self._change(topics, lambda rule: not merged or rule.id in named, by_topic)

    def delete(self, identity: str = "") -> None:
        """Removes the configuration with this id, or all configurations; a missing configuration is ignored. Requests:
        as many as `put`.
        """
        topics = {topic.name: topic for topic in self._topics.all()}
        self._change(topics, lambda rule: identity in ("", rule.id), {})

    def _change(
        self, topics: Mapping[str, Topic], leaves: Callable[[Rule], bool], added: Mapping[str, Iterable[Rule]]
    ) -> None:
        def changed(topic: Topic) -> TopicSettings:
            before = topic.settings
            kept = (rule for rule in before.rules if not (self._has(rule) and leaves(rule)))
            after = replace(before, rules=(*kept, *added.get(topic.name, ())))
            if after != before:
                try:
                    check_change(topic, after)
                except UsageError as error:
                    raise FrontError(400, "InvalidArgument", str(error)) from None
            return after

        front = filter(is_of_front, topics.values())
        touched = [topic.name for topic in front if changed(topic) != topic.settings]

        def change(name: str) -> None:
            try:
                self._topics.revise(name, changed)
            except NotFoundError:
                if added.get(name):
                    raise FrontError(
                        409,
                        "OperationAborted",
                        f"topic {name!r} was deleted meanwhile: put the configurations again",
                    ) from None

        with ThreadPoolExecutor(TOPICS_AT_ONCE, thread_name_prefix="configure") as pool:
            list(pool.map(change, touched))

    def _has(self, rule: Rule) -> bool:
        return bool(rule.id) and rule.bucket == self._bucket
