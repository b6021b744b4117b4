"""`explain` for a real site, with and without the sensor's knowledge in the Dagster instance."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from dagster import DagsterRunStatus

from s3notify_platform.cli.main import main
from s3notify_platform.explain import explain
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.orchestration.partitions import BATCH_TAG
from s3notify_platform.orchestration.sensor_views import sensor_view
from tests.support.cursors import store_cursor
from tests.support.site import Site

TRANSFORMS = "tests.support.transforms"


def asked(site: Site, key: str) -> tuple[str, str]:
    """The verdict, and the whole text. The sensor's cursor is in the Dagster instance, as after a tick of the
    daemon.
    """
    if site.cursor:
        store_cursor(site, site.cursor)
    source = site.io.source
    answer = explain(source, key, sensor=sensor_view(site.instance, source, key))
    return answer.verdict.kind, "\n".join(answer.lines)


@pytest.mark.thorough
def test_a_change_is_explained_from_the_queue_to_the_table(site: Site) -> None:
    """The user must see a change as unknown, waiting, in a batch with its run, committed, overwritten and deleted."""
    site.settle()
    key = site.key(3)
    assert asked(site, key)[0] == "unknown"

    site.write(3)
    verdict, text = asked(site, key)
    assert verdict == "waiting"
    assert "not yet seen by the sensor" in text
    assert "topic 'orders' (pulled): put queued" in text

    (request,) = site.tick()
    run = site.instance.create_run_for_job(
        site.defs.resolve_job_def("orders_ingest"),
        run_config=request.run_config,
        tags=dict(request.tags),
        status=DagsterRunStatus.STARTED,
    )
    verdict, text = asked(site, key)
    assert verdict == "in_batch"
    assert f"in batch {request.tags[BATCH_TAG]}, open for" in text
    assert f"run {run.run_id} (STARTED)" in text
    assert "reads entries" in text

    assert site.launch(request).success
    verdict, text = asked(site, key)
    assert verdict == "committed"
    assert "committed in version 1, " in text
    assert ": 1 record\n" in text
    assert "data file: _s3notify/orders/table/data/" in text
    assert ", seen by the sensor" in text
    events = [line.split("  ")[-1] for line in text.splitlines() if " s  " in line]
    assert events[-3:] == ["read and committed, version 1", "reported to Dagster", "now"]

    site.write(3, body=site.line(300))
    assert "an older version is committed, in version 1" in asked(site, key)[1]
    site.settle()
    assert "committed in version 2" in asked(site, key)[1]

    site.delete(3)
    verdict, text = asked(site, key)
    assert verdict == "waiting"
    assert "the deleted object is committed, in version 2" in text
    site.settle()
    assert asked(site, key)[0] == "deleted"


@pytest.mark.thorough
def test_rejected_records_of_a_real_run_are_explained(site: Site) -> None:
    """The user must see the number of rejected records, and the first one with offset and reason."""
    site.write(5, body=site.line(5) + b"{nonsense\n" + site.line(6))
    site.settle()
    verdict, text = asked(site, site.key(5))
    assert verdict == "rejected"
    offset = len(site.line(5))
    assert f"rejected: 1 of 3 records, first at offset {offset}: " in text
    assert f"reject at offset {offset}: " in text
    assert "the others are committed in version 1" in text


@pytest.mark.thorough
def test_a_change_of_an_unqueued_writer_is_explained(site: Site) -> None:
    """The user must see three states of the change: signalled, in a batch that lists its slot, and committed."""
    site.settle()
    site.write_unqueued(7)
    store_cursor(site, site.cursor or "")
    assert asked(site, site.key(7))[0] == "signalled"
    (request,) = site.tick()
    verdict, text = asked(site, site.key(7))
    assert verdict == "in_batch"
    assert "lists" in text
    assert site.launch(request).success
    assert asked(site, site.key(7))[0] == "committed"


@pytest.mark.thorough
def test_a_failing_slot_is_explained_with_its_reason(site_of: Callable[..., Site]) -> None:
    """The user must see the reason of the last run's failure, and when the slot is due again."""
    site = site_of(transform=f"{TRANSFORMS}.unlucky", max_attempts=2, backoff_seconds=3600.0)
    site.settle()
    site.write(13)
    (request,) = site.tick()
    assert not site.launch(request).success
    site.tick()
    verdict, text = asked(site, site.key(13))
    assert verdict == "failing"
    assert "13 is unlucky" in text
    assert "due again" in text


def test_the_traceback_of_a_failed_slot_is_shown_once(site_of: Callable[..., Site]) -> None:
    """The traceback must be in the answer, and exactly once in the run's log. After the last attempt, the traceback
    must also be in the quarantine.
    """
    site = site_of(transform=f"{TRANSFORMS}.unlucky_in_python", max_attempts=2, backoff_seconds=0.0)
    site.settle()
    site.write(13)
    site.write(5)
    (request,) = site.tick()
    result = site.launch(request)
    assert not result.success
    assert site.rows() == {5: [5]}
    logged = [entry.user_message for entry in site.instance.all_logs(result.run_id)]
    traced = [text for text in logged if "Traceback (most recent call last)" in text]
    assert len([text for text in traced if "13 is unlucky" in text]) == 1
    (request,) = site.tick()
    verdict, text = asked(site, site.key(13))
    assert verdict == "in_batch"
    assert "Traceback (most recent call last)" in text
    assert "KeyError: '13 is unlucky'" in text
    assert site.launch(request).success
    assert site.tick() == []
    verdict, text = asked(site, site.key(13))
    assert verdict == "quarantined"
    assert "Traceback (most recent call last)" in text


def test_a_key_outside_the_source_is_refused(site: Site) -> None:
    """The message must name the source and its prefix."""
    with pytest.raises(
        UsageError, match="'elsewhere/a' does not belong to source 'orders', which reads 'raw/'"
    ):
        asked(site, "elsewhere/a")


def test_an_object_is_explained_before_the_sensor_has_run(site: Site) -> None:
    """Even without cursor, topic and table, there must be an answer."""
    site.write_silently(2)
    verdict, text = asked(site, site.key(2))
    assert verdict == "rescan"
    assert "topic 'orders': not created yet" in text


def test_the_command_finds_the_sensors_cursor_by_dagster_home(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer must name the runs. The cursor of a sensor with the same name in another code location must be
    ignored.
    """
    site.settle()
    site.write(4)
    (request,) = site.tick()
    store_cursor(site, site.cursor or "")
    store_cursor(site, "of another sensor of this name", location="elsewhere", ticked=9.0)
    run = site.instance.create_run_for_job(
        site.defs.resolve_job_def("orders_ingest"), tags=dict(request.tags), status=DagsterRunStatus.STARTED
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    command = [
        "explain",
        site.key(4),
        "--bucket",
        site.component.bucket,
        "--name",
        "orders",
        "--prefix",
        "raw/",
    ]
    command += ["--slot-count", "16", "--endpoint-url", str(site.component.s3.endpoint_url), "--json"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["verdict"] == "in_batch"
    assert document["batches"][0]["runs"] == [f"{run.run_id} (STARTED)"]
    assert document["signal_taken"] is True
