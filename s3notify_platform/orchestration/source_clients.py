"""Clients for the parts of a source in Dagster: sensor, steps, checks and services. No request is sent when the
clients are created.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from s3notify_platform.engine.batch.list_or_follow import ask_again
from s3notify_platform.kernel.errors import NotFoundError
from s3notify_platform.kernel.ports import ObjectStore, RecordStore
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.protocols.keyspace import Watcher
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings, TopicUser
from s3notify_platform.protocols.notification_queue.topic_settings import check_for_source
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.source.settings import topic_difference
from s3notify_platform.source.source import Source
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.open_table import OpenTable

CHAIN_REMOVALS_IN_FLIGHT: Final = 8
"""Number of records of an ack chain that are removed in parallel."""


log = logging.getLogger(__name__)


@lru_cache(maxsize=64)
def _warn(text: str) -> None:
    log.warning("%s", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceClients:
    """Keyspace, queue, ack chains and backlog of one source. `topic`: the settings for creating the source's topic."""

    source: Source
    topic: TopicSettings

    @property
    def store(self) -> ObjectStore:
        """The bucket of the platform's own objects."""
        return open_store(self.source.location.platform)

    @property
    def records(self) -> RecordStore:
        """Ack chains and heartbeats of this source."""
        return self.source.location.records()

    @property
    def chains(self) -> AckChains:
        """The ack chains of this source's batches."""
        return AckChains(self.records, parallelism=CHAIN_REMOVALS_IN_FLIGHT)

    @property
    def backlog(self) -> RescanBacklog:
        """The slots of this source that a listing must compare."""
        return RescanBacklog(self.records)

    @property
    def queue(self) -> NotificationQueue:
        """The notification queue that this source shares with the other sources of its bucket."""
        return self.source.location.queue()

    def watcher(self) -> Watcher:
        """A watcher of this source's keyspace."""
        return self.source.location.watcher(self.store)

    def ensure_topic(self, table: OpenTable | None) -> str:
        """Creates the source's topic if it does not exist, registers `table` with it, and returns the topic's epoch.
        Cost: 1 or 2 requests.

        `UsageError` if the topic has another number of slots or other signals, or serves other tables (`Topics.serve`).
        Other settings and the rules of an existing topic stay unchanged. If the YAML has another value for such a
        setting, one warning names the differences and the remedy. If the topic's rules exclude changes of the source,
        only the sweep finds the excluded changes.
        """
        name, topics, slots = self.source.name, self.queue.topics, self.topic.slots
        user = table.topic_user(slots) if table is not None else TopicUser(slots=slots)
        try:
            found = topics.get(name)
        except NotFoundError:
            found = topics.create(name, self.topic, tables=(user.table,) if user.table else ())
        check_for_source(name, found.settings, self.topic.signals)
        found = topics.serve(found, user)
        if why := topic_difference(name, found.settings, self.topic):
            _warn(why)
        return found.epoch

    def ask_again(self, slots: Iterable[Slot], *, listing: bool = True) -> None:
        """See `follow.ask_again`."""
        ask_again(self.source.location, slots, listing=listing, store=self.store)
