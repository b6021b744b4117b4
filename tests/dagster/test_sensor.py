"""The sensor on a real bucket and a real instance: its requests, tick by tick."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus
from dagster._core.definitions.instigation_logger import get_instigation_log_records
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._core.test_utils import create_run_for_test
from pyspark.serializers import CloudPickleSerializer

from s3notify_platform.engine.batch.heartbeats import HEARTBEATS, Beat, beats_of, heartbeat
from s3notify_platform.orchestration.partitions import BATCH_TAG, PART_TAG
from s3notify_platform.orchestration.source_clients import SourceClients
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.credentials import session_of
from tests.support.site import Site
from tests.support.waiting import until

TRANSFORMS = "tests.support.transforms"
LIMIT = "s3notify_platform.engine.driver.MAX_UNFORESEEN"
"""Tests set this limit to 0. Then a single object that raises an error makes its slot fail, as a defect of this package
would.
"""


def test_the_first_batch_reads_objects_that_nobody_signalled(site: Site) -> None:
    """The first tick must only store a cursor, and the second tick must request a listing. Slots without objects must
    not be reported.
    """
    site.write_silently(1, 5, 9)
    assert site.tick() == []
    (request,) = site.tick()
    assert request.run_config["ops"]["orders_slots"]["config"]["everything"]
    assert site.launch(request).success
    assert site.grid() == {"materialized": {1, 5, 9}, "failed": set(), "running": set()}
    waited = site.batch()
    assert waited["batch_seconds_launch"] >= 0
    assert "batch_seconds_poll" not in waited  # nothing was signalled
    assert site.tick() == []
    assert site.state.enumerated


def test_ticks_in_a_code_server_share_one_instance(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ticks must share one instance, because opening an instance takes longer than a poll. The ticks must use the
    resources of the definitions.

    The log of a tick that requests runs must name these runs.
    """
    opened: list[object] = []
    from_ref = dg.DagsterInstance.from_ref

    def counted(reference: object) -> dg.DagsterInstance:
        opened.append(reference)
        return from_ref(reference)  # type: ignore[arg-type]

    site.write_silently(3)
    repository = site.defs.get_repository_def()
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        monkeypatch.setattr(dg.DagsterInstance, "from_ref", counted)
        cursor = None
        for number in range(2):
            log_key = ["ticks", str(number)]
            sensor = repository.get_sensor_def("orders_sensor")
            with dg.SensorEvaluationContext(
                instance.get_ref(),
                last_tick_completion_time=None,
                last_run_key=None,
                cursor=cursor,
                log_key=log_key,
                repository_name=repository.name,
                repository_def=repository,
                sensor_name=sensor.name,
                resources={},
            ) as context:
                found = sensor.evaluate_tick(context)
            cursor = found.cursor
        (logged,) = get_instigation_log_records(instance, log_key)
        assert "of the whole source" in str(logged)
        (request,) = found.run_requests or []
        assert request.run_config["ops"]["orders_slots"]["config"]["everything"]
    assert len(opened) == 1


def test_a_retry_from_the_ui_completes_a_failed_batch(
    site_of: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry has the config and tags of the failed run. The retry must commit the slot. After that, the slot must no
    longer count as failing.
    """
    monkeypatch.setattr(LIMIT, 0)
    site = site_of(transform=f"{TRANSFORMS}.unlucky", max_attempts=1, parked_seconds=86_400.0)
    site.settle()
    site.write(13)
    (request,) = site.tick()
    failed = site.launch(request)
    assert site.tick() == []
    assert site.state.failing[13].parked
    monkeypatch.setattr(f"{TRANSFORMS}.UNLUCKY", -1)
    retried = {**request.tags, "dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
    assert site.run(run_config=dict(request.run_config), tags=retried).success
    assert site.rows() == {13: [13]}
    site.settle()
    assert site.state.failing == {}
    assert site.grid() == {"materialized": {13}, "failed": set(), "running": set()}
    site.io.clients.chains.delete(request.tags["s3notify/batch"])
    assert site.run(run_config=dict(request.run_config), tags=retried).success, "long after the batch"


def test_scattered_changes_are_requested_as_one_run(site_of: Callable[..., Site]) -> None:
    """The run must have exactly the changed slots, out of a thousand, and no partition tag."""
    site = site_of(slots=1000)
    site.settle()
    changed = [1, 17, 18, 400, 999]
    site.write(*changed)
    (request,) = site.tick()
    assert site.slots_of(request) == changed
    assert not [tag for tag in request.tags if "partition" in tag]
    assert request.partition_key is None
    assert site.launch(request).success
    assert site.grid()["materialized"] == set(changed)
    assert site.tick() == []
    assert site.state.open == ()


@pytest.mark.thorough
def test_a_batch_of_parallel_runs_ends_when_all_its_runs_have_stamped_the_chain(
    site_of: Callable[..., Site],
) -> None:
    """The slots of the runs must be disjoint, and the last run must ack the chain."""
    site = site_of(parallel_runs=2)
    site.settle()
    site.write(1, 2, 3, 4, 5)
    requests = site.tick()
    assert sorted(site.slots_of(request) for request in requests) == [[1, 2], [3, 4, 5]]
    assert [request.tags[PART_TAG] for request in requests] == ["1/2", "2/2"]
    assert site.launch(requests[0]).success
    assert site.tick() == []
    assert site.state.open
    assert site.launch(requests[1]).success
    site.tick()
    assert site.state.open == ()
    assert site.rows() == {slot: [slot] for slot in (1, 2, 3, 4, 5)}


def test_a_slot_in_flight_waits_for_the_next_batch(site: Site) -> None:
    """If a slot changes while it is in flight, the change must be neither lost nor requested twice."""
    site.settle()
    site.write(3)
    (request,) = site.tick()
    site.write(3, body=site.line(300))
    site.write(4)
    assert site.tick() == []
    site.launch(request)
    (second,) = site.tick()
    assert site.slots_of(second) == [3, 4]
    site.launch(second)
    site.settle()
    assert site.rows() == {3: [300], 4: [4]}


def test_a_tick_repeated_after_a_crash_has_the_same_run_key(site: Site) -> None:
    """Dagster launches each run key only once. Changes between the two ticks must belong to the next batch."""
    site.settle()
    site.write(3)
    lost = site.evaluate().run_requests
    site.write(5)
    again = site.evaluate().run_requests
    assert [r.run_key for r in lost or []] == [r.run_key for r in again or []]
    assert [site.slots_of(r) for r in again or []] == [[3]]
    site.settle()
    assert site.rows() == {3: [3], 5: [5]}


def test_a_failed_slot_is_retried_alone_and_then_parked(
    site_of: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that failed too often must be parked: it must not be requested for a long time. If the slot changes, it
    must be requested immediately.
    """
    monkeypatch.setattr(LIMIT, 0)
    site = site_of(transform=f"{TRANSFORMS}.unlucky", max_attempts=2, backoff_seconds=0.0)
    site.settle()
    site.write(12, 13)
    (first,) = site.tick()
    assert not site.launch(first).success
    (second,) = site.tick()
    assert site.slots_of(second) == [13]
    assert not site.launch(second).success
    assert site.tick() == []
    assert site.state.failing[13].parked
    assert "13 is unlucky" in site.state.failing[13].reason
    assert "1 parked for now (13)" in str(site.evaluate().skip_message)
    site.write(13, body=site.line(130))
    site.settle()
    assert site.rows() == {12: [12], 13: [130]}
    assert site.grid() == {"materialized": {12, 13}, "failed": set(), "running": set()}


@pytest.mark.thorough
def test_a_failed_slot_waits_for_its_backoff(site_of: Callable[..., Site]) -> None:
    """Without the backoff, every tick would start another run for a slot that always fails."""
    site = site_of(transform=f"{TRANSFORMS}.unlucky", backoff_seconds=3600.0)
    site.settle()
    site.write(13)
    (request,) = site.tick()
    site.launch(request)
    assert site.tick() == []
    assert "1 to be retried" in str(site.evaluate().skip_message)


@pytest.mark.thorough
def test_a_failed_slot_of_the_first_batch_does_not_hold_up_the_others(site_of: Callable[..., Site]) -> None:
    """The first listing must count as done. The failed slot must be retried with backoff, like any failed slot."""
    site = site_of(transform=f"{TRANSFORMS}.unlucky", backoff_seconds=3600.0)
    site.write_silently(12, 13)
    site.tick()
    (request,) = site.tick()
    assert not site.launch(request).success
    assert site.tick() == []
    assert site.state.enumerated
    assert "13 is unlucky" in site.state.failing[13].reason
    assert not site.state.failing[13].parked
    assert site.grid() == {"materialized": {12}, "failed": {13}, "running": set()}


def test_a_dead_run_is_reported_and_its_slots_are_requested_again(site_of: Callable[..., Site]) -> None:
    """The heartbeat of a dead run has stopped, but Dagster shows the run as started. Without a report, its slots would
    stay in flight.
    """
    site = site_of(silence_seconds=0.0)
    site.settle()
    site.write(3)
    (request,) = site.tick()
    run = site.instance.create_run_for_job(
        site.defs.resolve_job_def("orders_ingest"),
        run_config=request.run_config,
        tags=dict(request.tags),
        status=DagsterRunStatus.STARTED,
    )
    site.io.clients.records.create(HEARTBEATS, run.run_id, Beat(number=7).dumps())
    (again,) = site.tick()
    assert site.slots_of(again) == [3]
    found = site.instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.status is DagsterRunStatus.FAILURE
    assert site.launch(again).success
    assert site.rows() == {3: [3]}


@pytest.mark.parametrize("lives", [True, False])
def test_a_run_killed_while_it_starts_is_reported(site_of: Callable[..., Site], lives: bool) -> None:
    """The run's process has ended, and so has the code server that would report the run. A run that starts slowly must
    be left alone.
    """
    site = site_of(silence_seconds=0.0, startup_seconds=3600.0)
    site.settle()
    site.write(3)
    (request,) = site.tick()
    server = {GRPC_INFO_TAG: json.dumps({"host": "localhost", "socket": "/nowhere"})}
    run = site.instance.create_run_for_job(
        site.defs.resolve_job_def("orders_ingest"),
        run_config=request.run_config,
        tags={**request.tags, **server},
        status=DagsterRunStatus.STARTING,
    )
    if lives:
        site.instance.report_engine_event(f"Started process for run (pid: {os.getpid()}).", run)
    again = site.tick()
    found = site.instance.get_run_by_id(run.run_id)
    assert found is not None
    if lives:
        assert (again, found.status) == ([], DagsterRunStatus.STARTING)
    else:
        assert [site.slots_of(each) for each in again] == [[3]]
        assert found.status is DagsterRunStatus.FAILURE


@pytest.mark.thorough
def test_a_queued_run_may_wait_for_any_time(site_of: Callable[..., Site]) -> None:
    site = site_of(silence_seconds=0.0)
    site.settle()
    site.write(3)
    (request,) = site.tick()
    location = RegisteredCodeLocationOrigin("anywhere")
    create_run_for_test(
        site.instance,
        "orders_ingest",
        tags=dict(request.tags),
        status=DagsterRunStatus.QUEUED,
        remote_job_origin=RemoteJobOrigin(RemoteRepositoryOrigin(location, "any"), "orders_ingest"),
    )
    assert site.tick() == []
    assert site.tick() == []
    assert [batch.id for batch in site.state.open] == [request.tags[BATCH_TAG]]


def test_a_heartbeat_is_removed_when_its_run_ends(site: Site) -> None:
    """If the record stayed, it would cost requests forever."""
    with heartbeat(site.io.clients.records, "some-run"):
        assert until(lambda: beats_of(site.io.clients.records, "some-run")) == 1
    assert beats_of(site.io.clients.records, "some-run") is None


def test_an_idle_tick_sends_one_request(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an idle tick sent more than 1 HEAD, a source without changes would cost more with every tick. A tick that
    requests a batch also sends 1 LIST of the signals, 1 GET of the table's record and 1 LIST of the table's newest
    versions.
    """
    site.settle()
    counting = CountingStore(site.io.clients.store)
    monkeypatch.setattr(SourceClients, "store", property(lambda _: counting))
    assert site.tick() == []
    assert dict(counting.counts) == {"HEAD": 1}
    site.write(3, 4)
    counting.counts.clear()
    assert len(site.tick()) == 1
    assert dict(counting.counts) == {"HEAD": 1, "LIST": 2, "GET": 1}


def test_no_secret_is_in_cursor_config_metadata_definitions_or_logs(
    site_of: Callable[..., Site],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """The settings name environment variables with the credentials. If the variables were looked up too early, a secret
    would be stored or shown.
    """
    secret = "sEcReT-0123456789abcdef"
    monkeypatch.setenv("S3NOTIFY_TEST_SECRET", secret)
    tasks: list[bytes] = []
    pickled = CloudPickleSerializer.dumps

    def kept(serializer: CloudPickleSerializer, task: object) -> bytes:
        tasks.append(pickled(serializer, task))
        return tasks[-1]

    monkeypatch.setattr(CloudPickleSerializer, "dumps", kept)
    site = site_of(transform=f"{TRANSFORMS}.unlucky", slot_assets=[f"{TRANSFORMS}.paid_orders"])
    site.write(12, 13)
    site.tick()
    (request,) = site.tick()
    result = site.launch(request)
    assert not result.success
    site.tick()
    assert session_of(site.io.source.input.bucket).get_credentials().secret_key == secret
    assert tasks
    assert secret.encode() not in b"".join([*tasks, pickle.dumps(site.io.source)])
    logged = [record.message + repr(record.user_message) for record in site.instance.all_logs(result.run_id)]
    events = [repr(event) for event in site.instance.all_logs(result.run_id)]
    run = site.instance.get_run_by_id(result.run_id)
    shown = "".join(
        [
            *logged,
            *events,
            repr(run),
            str(site.cursor),
            repr(request),
            str(capfd.readouterr()),
            repr(site.io.source),
        ]
    )
    assert "13 is unlucky" in shown
    assert secret not in shown
    resources = site.defs.get_repository_def().get_top_level_resources()
    snapshot = json.dumps([repr(resource) for resource in resources.values()])
    assert secret not in snapshot
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file
    for meta in site.store.list("_s3notify/").objects:
        found = site.store.get(meta.key)
        assert found is not None
        assert secret.encode() not in found.body


def test_a_cursor_of_another_keyspace_is_refused(site_of: Callable[..., Site]) -> None:
    """Otherwise changes would be missed, because another number of slots makes another keyspace. The number of slots is
    changed while the sensor runs.
    """
    site = site_of()
    site.settle()
    other = site_of(slots=8, bucket=site.component.bucket)
    other.cursor = site.cursor
    with pytest.raises(Exception, match="slots is 8, but 16 in the table") as raised:
        other.evaluate()
    assert isinstance(raised.value, dg.DagsterError | ValueError)
