"""A source with `signals: root` in Dagster: its sensor requests the slots that entries name, and the slots of unqueued
writers.
"""

from collections.abc import Callable

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.orchestration.freshness import freshness
from s3notify_platform.protocols.keyspace import root_key
from s3notify_platform.protocols.notification_queue import TopicSettings
from tests.support.site import Site


@pytest.fixture
def site(site_of: Callable[..., Site]) -> Site:
    """A source after its first listing; the sensor has created its topic."""
    site = site_of(signals="root", slots=40)
    site.settle()
    assert site.io.clients.queue.topics.get(site.name).settings.signals == "root"
    return site


def signals(site: Site) -> list[str]:
    """The existing signals."""
    return [meta.key for meta in list_all(site.store, site.io.source.location.keyspace_prefix)]


def test_a_batch_has_the_slots_that_entries_name(site: Site) -> None:
    """Creates, overwrites and deletes must be found although no slot has a signal."""
    site.write(3, 7)
    assert freshness(site.io, site.instance).slots == 2
    (request,) = site.tick()
    assert site.slots_of(request) == [3, 7]
    assert site.launch(request).success
    site.write(3, body=site.line(30))
    site.delete(7)
    site.write(*range(8, 30))
    site.settle()
    assert site.rows() == {3: [30], **{slot: [slot] for slot in range(8, 30)}}
    assert site.batch()["batch_found_by"] == "queue"
    assert signals(site) == [root_key(site.io.source.location.keyspace_prefix)]
    assert not site.tick()
    assert freshness(site.io, site.instance).slots == 0


def test_unqueued_changes_beside_queued_changes_are_found(site: Site) -> None:
    """The root's metadata shows an unqueued writer, so a listing must follow."""
    site.write(3)
    site.write_unqueued(5)
    site.settle()
    assert site.rows() == {3: [3], 5: [5]}


def test_a_topic_with_other_signals_is_refused(site: Site) -> None:
    """If the topic and the source had different `signals`, the sensor would miss changes."""
    topics = site.io.clients.queue.topics
    topics.delete(site.name)
    topics.create(site.name, TopicSettings(slots=site.component.slots))
    with pytest.raises(UsageError, match="has the setting signals: slots, but its source has root"):
        site.io.clients.ensure_topic(None)
