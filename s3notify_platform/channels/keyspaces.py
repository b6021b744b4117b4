"""The sources of a bucket, as seen by the writers and inlets that announce the bucket's changes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, Topic
from s3notify_platform.protocols.notification_queue.topic_settings import check_slots
from s3notify_platform.protocols.source_enumerator import Choice
from s3notify_platform.stores.config import OWN_PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyspace:
    """The signals of one source of the bucket, for the keys below `prefix`.

    `topic`: the source's own topic, if known. `skips_hidden`: hidden files (`Choice`) are neither signalled nor added
    to this topic.
    """

    publisher: Publisher
    prefix: str = ""
    topic: str = ""
    skips_hidden: bool = False

    def takes(self, key: str) -> bool:
        """True if a change of this key concerns the source."""
        return key.startswith(self.prefix) and not (self.skips_hidden and self.is_hidden(key))

    def is_hidden(self, key: str) -> bool:
        """True if sources skip this key by default."""
        return key.startswith(self.prefix) and bool(Choice(prefix=self.prefix, hidden=False).why_not(key))


def checked(topics: tuple[Topic, ...], keyspaces: Iterable[Keyspace]) -> tuple[Topic, ...]:
    """Returns the topics; `UsageError` if a topic and the signals of its source differ in the number of slots. Pure."""
    slots = {keyspace.topic: keyspace.publisher.slots for keyspace in keyspaces}
    for topic in topics:
        if not topic.settings.endpoint:
            check_slots(topic.name, topic.settings, slots.get(topic.name, topic.settings.slots))
    return topics


def named_in_root(
    queue: NotificationQueue, bucket: str, events: Iterable[Event]
) -> frozenset[tuple[str, str]]:
    """One pair of key and topic for each change that a topic with `signals: root` takes. The topic's consumer finds
    these changes by their entries in the queue.

    The result is empty if the topics cannot be read. Requests: as many as `NotificationQueue.topics_of`.
    """
    try:
        return frozenset(
            (event.key, topic.name)
            for event in events
            for topic in queue.topics_of(bucket, event)
            if topic.settings.signals == "root"
        )
    except S3NotifyError:
        return frozenset()


def source_of(signals: str) -> str:
    """The source whose signals are below this prefix by default; "" if the prefix is not a default prefix. Pure."""
    usual = re.fullmatch(rf"{re.escape(OWN_PREFIX)}([^/]+)/keyspace/", signals)
    return usual[1] if usual else ""
