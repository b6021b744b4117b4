"""The services of a source in YAML: the digest of their settings, and the sources that an inlet signals."""

from threading import Event as Stop

import pytest

from s3notify_platform.channels.inlets.sqs_inlet import SqsInletSettings
from s3notify_platform.orchestration.component import S3NotifyComponent
from s3notify_platform.protocols.keyspace import root_key
from s3notify_platform.protocols.notification_queue import Event, TopicSettings, encode_events
from s3notify_platform.stores.kinds import KINDS
from s3notify_platform.stores.open_store import open_store
from tests.support.toy_inlet import ToyQueue
from tests.support.toy_store import TOY


def component(**more: object) -> S3NotifyComponent:
    given = {"name": "orders", "bucket": "landing", "prefix": "raw/orders/", "http": {"plain_http": True}}
    return S3NotifyComponent(**(given | more))


def digest(source: S3NotifyComponent, *project: S3NotifyComponent) -> str:
    services = source.services(project)
    return services.by_name["http"].digest(services.assets.io)


@pytest.mark.parametrize(
    "changed",
    [
        {"http": {"plain_http": True, "port": 8087}},
        {"http": {"plain_http": True, "secret_envs": ("NEW_SECRET",)}},
        {"http": {"plain_http": True, "allow_networks": ("10.0.0.0/8",)}},
        {"queue_prefix": "_s3notify/other/"},
        {"platform_bucket": "platform"},
        {"prefix": "raw/"},
        {"slots": 40},
        {"dynamodb": {"records_table": "records"}},
        {"s3": {"access_key_id_env": "KEY", "secret_access_key_env": "SECRET"}},
    ],
    ids=str,
)
def test_a_changed_setting_of_a_service_changes_its_digest(changed: dict[str, object]) -> None:
    """Otherwise the service's run would use the old setting until somebody terminates it."""
    assert digest(component(**changed)) != digest(component())


def test_a_setting_that_a_service_does_not_use_keeps_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each reload after an edit of the YAML would interrupt the service. A secret must not be digested."""
    before = digest(component())
    monkeypatch.setenv("S3NOTIFY_RECEIVER_SECRET", "a secret of one environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another secret")
    assert digest(component(max_objects=7, description="Orders", deliver={})) == before


SHARED: dict[str, object] = {"bucket": "shared", "s3": {"scheme": "toy"}}


def clicks(**more: object) -> S3NotifyComponent:
    """A second source of the bucket, which has no inlet of its own."""
    return component(**(SHARED | {"name": "clicks", "prefix": "raw/clicks/", "http": None} | more))


def test_an_inlet_signals_all_sources_of_its_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the changes of a second source, which shares the inlet, would wait for the source's reconciler."""
    monkeypatch.setitem(KINDS, "toy", TOY)
    project = [component(**SHARED, sqs={"queue_url": "https://sqs.example.com/1/changes"}), clicks(slots=40)]
    places, keys = [each.io().source.location for each in project], []
    for source, place in zip(project, places, strict=True):
        topic = TopicSettings(bucket="shared", prefix=source.prefix, slots=place.slots, shards=1)
        place.queue().topics.create(place.name, topic)
        keys.append(f"{source.prefix}1.jsonl")
    bodies = [
        encode_events([Event(key=key, bucket="shared", op="put", sequencer="1")]).decode() for key in keys
    ]
    monkeypatch.setattr(SqsInletSettings, "messages", lambda *_: ToyQueue(bodies))  # type: ignore[no-untyped-call]
    services = project[0].services(project)
    inlet, stop = services.by_name["sqs"].build(services.assets.io), Stop()
    inlet.run(stop, lambda _: stop.set())
    signalled = [
        open_store(place.platform).head(root_key(place.keyspace_prefix)) is not None for place in places
    ]
    assert signalled == [True, True]


def test_a_new_source_of_the_bucket_changes_the_digest_of_the_inlet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the inlet that runs already would not signal the new source."""
    monkeypatch.setitem(KINDS, "toy", TOY)
    alone = digest(component(**SHARED))
    assert digest(component(**SHARED), component(**SHARED), clicks()) != alone
    for other in (
        {"bucket": "b"},
        {"queue_prefix": "_s3notify/q/"},
        {"platform_bucket": "p"},
        {"resources": {"s3": "s"}},
    ):
        assert digest(component(**SHARED), clicks(**other)) == alone, f"{other}: it has another queue"


def test_a_source_with_wrong_settings_does_not_stop_the_inlet_of_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The definitions of the wrong source report its error. The inlet must serve the other sources."""
    wrong = component(name="clicks", prefix="/raw/clicks/")
    assert digest(component(), wrong) == digest(component())
    assert "inlets of 'orders' do not signal 'clicks': source 'clicks': prefix '/raw/clicks/'" in caplog.text
