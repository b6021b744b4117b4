"""A service of several sources signals each source in the slots of that source, on a real server."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event as Stop
from typing import Any, Final

import pytest
from click.testing import CliRunner

from s3notify_platform.channels.registry import SERVICES
from s3notify_platform.cli.main import main
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.slots import SLOT_COUNT, slot_of
from s3notify_platform.local.project import sources_of
from s3notify_platform.protocols.notification_queue import Event, TopicSettings, encode_events
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.servers import S3Server
from tests.support.toy_inlet import TOY, ToyInletSettings, ToyQueue
from tests.support.waiting import until

pytestmark = pytest.mark.server

SLOTS: Final = {"clicks": SLOT_COUNT, "orders": 40}
"""The number of slots of each source. The number of `clicks` is the default, and is not in its YAML."""

KEYS: Final = {name: f"raw/{name}/337.jsonl" for name in SLOTS}
FEW: Final = 7


@pytest.fixture
def bucket(ministack: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Config:
    """The bucket of the project's sources. Each source has a topic."""
    monkeypatch.chdir(tmp_path)
    for name in ("S3NOTIFY_DEFS", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    config = ministack.config(ministack.make_bucket())
    for name, slots in SLOTS.items():
        file = tmp_path / "defs" / name / "defs.yaml"
        file.parent.mkdir(parents=True)
        more = f"  slots: {slots}\n" if slots != SLOT_COUNT else ""
        file.write_text(
            f"type: s3notify_platform.S3NotifyComponent\nattributes:\n  name: {name}\n  bucket: {config.bucket}\n"
            f"  prefix: raw/{name}/\n  s3: {{endpoint_url: {config.endpoint_url}}}\n{more}"
        )
    for source in sources_of():
        topic = TopicSettings(
            bucket=config.bucket,
            prefix=f"raw/{source.name}/",
            slots=SLOTS[source.name],
            shards=1,
            stale_seconds=1,
        )
        source.source().location.queue().topics.create(source.name, topic)
    return config


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The services that commands have built. The commands end without running their service."""
    built: list[Any] = []
    for module in ("reconcile", "services"):
        monkeypatch.setattr(
            f"s3notify_platform.cli.{module}.run_in_foreground", lambda service, **_: built.append(service)
        )
    return built


def signals(bucket: S3Config, slots: Mapping[str, int]) -> None:
    """Asserts that each source signalled only the slot of its key. `slots`: the slot count of each source."""
    for name, count in slots.items():
        prefix = f"_s3notify/{name}/keyspace/"
        found = {meta.key.removeprefix(prefix) for meta in list_all(S3ObjectStore(bucket), prefix)}
        assert found == {str(slot_of(KEYS[name], count)), "_"}, name


@pytest.mark.parametrize(
    ("given", "slots"), [([], SLOTS), (["--slot-count", str(FEW)], dict.fromkeys(SLOTS, FEW))]
)
def test_reconcile_signals_each_source_in_its_own_slots(
    bucket: S3Config, services: list[Any], given: list[str], slots: Mapping[str, int]
) -> None:
    """Otherwise the change of a killed writer would wait for the sweep, because another slot would be signalled. The
    command line overrides the YAML.
    """
    ran = CliRunner().invoke(main, ["reconcile", *given])
    assert ran.exit_code == 0, ran.output
    (reconciler,) = services
    for source in sources_of():  # each source has a writer that is killed between its write and its signal
        key = KEYS[source.name]
        source.source().location.queue().reserve(source.name, Event(key=key, bucket=bucket.bucket))
        S3ObjectStore(bucket).put(key, b"{}\n")
    signalled = 0

    def all_signalled() -> bool:
        nonlocal signalled
        signalled += reconciler.reconcile().signalled
        return bool(signalled == len(KEYS))

    until(all_signalled)
    signals(bucket, slots)


@pytest.mark.parametrize("named", [False, True])
def test_an_inlet_signals_each_source_in_its_own_slots(
    bucket: S3Config, services: list[Any], monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Otherwise the inlet would be refused, with the advice to change the slots of a source. If the command line names
    a keyspace, the number of slots still comes from the source in the YAML.
    """
    monkeypatch.setitem(SERVICES, TOY.name, TOY)
    events = [Event(key=key, bucket=bucket.bucket, sequencer="1") for key in KEYS.values()]
    queue = ToyQueue([encode_events([event]).decode() for event in events])  # type: ignore[no-untyped-call]
    monkeypatch.setitem(ToyInletSettings.queues, "changes", queue)
    keyspaces = [
        word for name in KEYS for word in ("--keyspace", f"_s3notify/{name}/keyspace/", f"raw/{name}/")
    ]
    ran = CliRunner().invoke(main, ["inlet", "toy", "--queue-name", "changes", *(keyspaces if named else [])])
    assert ran.exit_code == 0, ran.output
    (inlet,) = services
    stop = Stop()
    inlet.run(stop, lambda _: stop.set())
    assert len(queue.deleted) == len(KEYS)
    signals(bucket, SLOTS)


@pytest.mark.parametrize("missing", [(), ("clicks",)])
@pytest.mark.parametrize("command", [["inlet", "toy", "--queue-name", "changes"], ["reconcile"]])
def test_a_service_names_the_sources_without_a_topic(
    bucket: S3Config,
    services: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    missing: Sequence[str],
) -> None:
    """Otherwise a user would not know why new rows come late. An inlet ignores the changes of a source without a topic,
    and only a sweep finds these changes.
    """
    monkeypatch.setitem(SERVICES, TOY.name, TOY)
    monkeypatch.setitem(ToyInletSettings.queues, "changes", ToyQueue([]))
    for name in missing:
        next(each for each in sources_of() if each.name == name).source().location.queue().topics.delete(name)
    place = ["--bucket", bucket.bucket, "--endpoint-url", str(bucket.endpoint_url)]
    for more in [], [*place, "--keyspace", "_s3notify/clicks/keyspace/", "raw/clicks/"]:
        ran = CliRunner().invoke(main, [*command, *more])
        assert ran.exit_code == 0, ran.output
        warned = [line.split()[0] for line in ran.stderr.splitlines() if "has no topic yet" in line]
        assert warned == [*missing]


def test_inlet_settings_that_differ_are_refused(
    bucket: S3Config, services: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the inlet would run with the default setting, for example at a port to which no store posts."""
    monkeypatch.setenv("S3NOTIFY_RECEIVER_SECRET", "s" * 16)
    for port, name in enumerate(SLOTS, 9001):
        with (tmp_path / "defs" / name / "defs.yaml").open("a") as file:
            file.write(f"  http: {{port: {port}, plain_http: true}}\n")
    ran = CliRunner().invoke(main, ["inlet", "http"])
    assert (ran.exit_code, services) == (1, [])
    said = " ".join(ran.stderr.split())
    assert (
        "the sources differ in http.port: clicks has 9001, orders has 9002: give --port, or the folder"
        in said
    )
    for more in ["--port", "9003"], ["--defs", "defs/orders"]:
        ran = CliRunner().invoke(main, ["inlet", "http", *more])
        assert ran.exit_code == 0, ran.output
    assert len(services) == 2
