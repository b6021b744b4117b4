"""The registry of services: one item makes a command, a field of the YAML, and a job."""

import json
import socket
from threading import Event as Stop

import pytest
from click.testing import CliRunner

from s3notify_platform.channels.registry import SERVICES
from s3notify_platform.channels.service import ServiceContext, ServiceSettings, SourceKeyspace
from s3notify_platform.cli.main import main
from s3notify_platform.kernel.setting import settings_of
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.local.attributes import attributes_of
from s3notify_platform.orchestration.setting_fields import resolvable
from s3notify_platform.protocols.keyspace import QUEUED, signal_key
from s3notify_platform.protocols.notification_queue import (
    Event,
    NotificationQueue,
    TopicSettings,
    encode_events,
)
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.toy_inlet import TOY, ToyInletSettings, ToyQueue


@pytest.fixture
def toy(monkeypatch):
    """The registered toy inlet, and its queue with three messages."""
    monkeypatch.setitem(SERVICES, TOY.name, TOY)
    events = [Event(key=f"raw/{n}", bucket="b", sequencer=str(n)) for n in range(3)]
    queue = ToyQueue([encode_events([event]).decode() for event in events])
    monkeypatch.setitem(ToyInletSettings.queues, "changes", queue)
    return queue


def test_a_new_inlet_needs_only_a_file_and_an_item(toy, monkeypatch):
    """Otherwise a new inlet would need more code to queue and signal changes, and to delete the messages of its
    service.
    """
    objects = MemoryObjectStore()
    monkeypatch.setattr("s3notify_platform.channels.inlets.intake.open_store", lambda _: objects)
    queue = NotificationQueue(MemoryRecordStore(), parallelism=1)
    queue.topics.create("orders", TopicSettings(bucket="b"))
    context = ServiceContext(
        name="toy",
        queue=queue,
        platform=S3Config(bucket="p"),
        bucket="b",
        keyspaces=(SourceKeyspace(signals="_s/", prefix="raw/"),),
    )
    inlet = SERVICES["toy"].settings()(queue_name="changes").build(context)
    stop = Stop()
    inlet.run(stop, lambda _: stop.set())
    keys = sorted(entry.event.key for entry in queue.entries("orders", range(1000)))
    assert keys == ["raw/0", "raw/1", "raw/2"]
    assert all(QUEUED in objects.head(signal_key("_s/", slot_of(key))).metadata for key in keys)
    assert len(toy.deleted) == 3
    assert inlet.name == "toy"
    assert inlet.counts()["queued"] == 3


def test_a_registered_service_has_a_command(toy, monkeypatch):
    """Otherwise a new service would need code in `cli` for its options and their bounds."""
    listed = CliRunner().invoke(main, ["inlet", "--help"]).stdout
    assert "Receive changes that the toy service reports." in listed
    shown = CliRunner().invoke(main, ["inlet", "toy", "--help"]).stdout
    assert "--queue-name" in shown
    assert "--visibility-seconds" in shown
    assert "--keyspace" in shown
    ran = []
    monkeypatch.setattr(
        "s3notify_platform.cli.services.run_in_foreground", lambda service, **_: ran.append(service)
    )
    options = ["inlet", "toy", "--bucket", "b", "--region", "r", "--queue-name", "changes"]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 0, result.output
    assert "no source is signalled" in result.stderr
    assert [inlet.name for inlet in ran] == ["toy"]
    for option, value, why in (
        ("--visibility-seconds", "2", "--visibility-seconds=2: must be at least 3"),
        ("--pause-seconds", "0", "--pause-seconds=0.0: must be at least 0.1"),
        ("--pause-seconds", "61", "--pause-seconds=61.0: must be at most 60"),
        ("--tries", "often", "--tries='often': give a whole number"),
    ):
        result = CliRunner().invoke(main, [*options, option, value])
        assert result.exit_code == 2
        assert why in result.stderr
    helped = CliRunner().invoke(main, ["inlet", "toy", "--help"]).stdout
    assert "(0.1 to 60)" in " ".join(helped.split())
    assert "None" not in helped
    assert CliRunner().invoke(main, ["toy", "--help"]).exit_code == 2


def test_a_registered_service_has_a_field_of_the_component(toy):
    """Otherwise a new service could not be configured in the YAML, or its settings in the YAML would differ from its
    command's options.
    """
    attributes = attributes_of(*SERVICES)
    assert [*attributes][-len(SERVICES) :] == [*SERVICES]
    given = {"name": "orders", "bucket": "b", "toy": {"queue_name": "changes", "visibility_seconds": 9}}
    component = resolvable("Attributes", tuple(attributes.values()))(**given)
    assert component.sqs is None
    assert component.toy.visibility_seconds == 9
    assert ToyInletSettings(**component.toy.model_dump(exclude_unset=True)).queue_name == "changes"


@pytest.mark.parametrize("kind", SERVICES.values(), ids=SERVICES)
def test_each_registered_service_shows_its_help(kind):
    """Otherwise a setting without a description, or a service whose module fails to import, would break its command."""
    settings = kind.settings()
    assert issubclass(settings, ServiceSettings)
    assert all(setting.about.description for setting in settings_of(settings))
    command = ["inlet", kind.name] if kind.direction == "inlet" else [kind.name]
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0, result.output
    assert settings.__doc__.split(":")[0].split(".")[0] in " ".join(result.stdout.split())


def test_the_heartbeat_sets_lease_and_expiry_in_proportion():
    """Otherwise leases would expire between two heartbeats if an operator chooses slower heartbeats."""
    assert "--heartbeat-seconds" in CliRunner().invoke(main, ["deliver", "--help"]).stdout
    records = MemoryRecordStore()
    context = ServiceContext(
        name="deliver", queue=NotificationQueue(records), platform=S3Config(bucket="p"), bucket="b"
    )
    for beat, expiry in ((None, 10), (10, 50)):
        given = {} if beat is None else {"heartbeat_seconds": beat}
        SERVICES["deliver"].settings()(**given).build(context).beat()
        heartbeats = [json.loads(record.value) for record in records.scan("workers")]
        assert expiry in [heartbeat["expiry"] for heartbeat in heartbeats]
        assert all(socket.gethostname()[:10] in heartbeat["worker"] for heartbeat in heartbeats)
    with pytest.raises(ValueError, match="heartbeat_seconds"):
        SERVICES["deliver"].settings()(heartbeat_seconds=0.1)
