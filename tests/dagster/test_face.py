"""The parts of a source that Dagster shows and that need no run of their own: batches, present state, freshness."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.snap import JobSnap
from dagster._core.snap.snap_to_yaml import default_values_yaml_from_type_snap
from dagster._core.storage.event_log.base import AssetRecord

from s3notify_platform.explain.prices import dollars
from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.orchestration import S3NotifyComponent
from s3notify_platform.orchestration.check_results import COMPLETE, QUARANTINE, SCHEMA, SETTLED
from s3notify_platform.orchestration.upkeep import beat_seconds, freshness_policy
from s3notify_platform.protocols.keyspace import Put
from tests.support.cursors import store_cursor
from tests.support.site import Site

TRANSFORMS = "tests.support.transforms"
CHECKS = (COMPLETE, SETTLED, QUARANTINE, SCHEMA)


LATEST = {"key": "id", "order_by": "amount"}
ASSETS = {"orders", "orders_summary", "orders_queue"}
JOBS = {"orders_ingest"}
SENSORS = {"orders_sensor", "orders_upkeep"}
SERVICES = {"sqs": {"queue_url": "https://queue.example/orders"}, "deliver": {}, "http": {}}
TABLES: dict[str, Any] = {"latest": LATEST, "cluster_by": "id"}


@pytest.mark.parametrize(
    ("options", "tables", "jobs", "sensors"),
    [
        ({}, set(), set(), set()),
        ({"committed_tags": "archive=yes"}, set(), set(), set()),
        ({"sqs": SERVICES["sqs"]}, set(), {"orders_services"}, set()),
        (SERVICES, set(), {"orders_services"}, set()),
        (TABLES, {"orders_latest", "orders_clustered"}, set(), set()),
        (SERVICES | TABLES, {"orders_latest", "orders_clustered"}, {"orders_services"}, set()),
        ({"slot_assets": [f"{TRANSFORMS}.paid_orders"]}, {"paid_orders"}, set(), {"orders_slot_automation"}),
    ],
    ids=["plain", "tags", "sqs", "services", "tables", "services_and_tables", "slot_assets"],
)
def test_a_source_is_three_assets_one_job_and_two_automations(
    options: dict[str, Any], tables: set[str], jobs: set[str], sensors: set[str]
) -> None:
    """Each derived table of the user adds one asset, services together add one job, and slot assets together add one
    sensor. Only tables may have runs: runs of the other assets would fill the UI.
    """
    given = {"name": "orders", "bucket": "landing", "prefix": "raw/", "schema": "id bigint, amount double"}
    defs = S3NotifyComponent(**given | options).definitions()
    repository, graph = defs.get_repository_def(), defs.resolve_asset_graph()
    assert {key.to_user_string() for key in graph.get_all_asset_keys()} == ASSETS | tables
    assert {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")} == JOBS | jobs
    assert {sensor.name for sensor in repository.sensor_defs} == SENSORS | sensors
    assert not repository.schedule_defs
    assert {key.to_user_string() for key in graph.executable_asset_keys} == {"orders"} | tables
    dg.Definitions.validate_loadable(defs)


def test_the_launchpad_of_the_job_has_one_field(site: Site) -> None:
    """The editor in the UI first shows the fields that have a default value. If a field other than `choose` had a
    default value, a person would first see fields that only sensors set.
    """
    snap = JobSnap.from_job_def(site.defs.resolve_job_def("orders_ingest"))
    schema = snap.config_schema_snapshot
    root = schema.get_config_snap(str(snap.mode_def_snaps[0].root_config_key))
    shown = default_values_yaml_from_type_snap(schema, root)
    assert [line.strip() for line in shown.splitlines() if line.strip()] == [
        *("ops:", "orders_slots:", "config:", "choose: ''"),
    ]


def evaluations(site: Site) -> dict[str, dg.AssetCheckEvaluation]:
    """The newest result of each check, as in the UI."""
    keys = [dg.AssetCheckKey(dg.AssetKey("orders"), name) for name in CHECKS]
    found = site.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    return {key.name: record.evaluation for key, record in found.items() if record.evaluation is not None}


def current(site: Site) -> set[str]:
    """The checks that Dagster shows as evaluated: those of the run that made the last materialization."""
    keys = [dg.AssetCheckKey(dg.AssetKey("orders"), name) for name in CHECKS]
    found = site.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    (asset,) = site.instance.get_asset_records([dg.AssetKey("orders")])
    assert isinstance(asset, AssetRecord)
    last = asset.asset_entry.last_materialization
    assert last is not None
    return {key.name for key, record in found.items() if record.run_id == last.run_id}


def test_each_batch_evaluates_the_checks(site: Site) -> None:
    """Dagster ignores a check's result that is older than the asset's last materialization. If a batch left out a
    check, the UI would show no current result for this check. Only the first batch and the sweeps compare everything,
    so later batches repeat the last sweep's result of `complete`.
    """
    site.write(1, 2)
    site.settle()
    store_cursor(site, site.cursor or "")
    first = evaluations(site)
    passed = {name: each.passed for name, each in first.items()}
    assert passed == dict.fromkeys((COMPLETE, QUARANTINE, SCHEMA), True)
    site.write(3)
    site.settle()
    assert current(site) == {*CHECKS}
    assert {name: each.passed for name, each in evaluations(site).items()} == dict.fromkeys(CHECKS, True)
    assert evaluations(site)[COMPLETE].metadata["swept"] == first[COMPLETE].metadata["swept"]

    site.write_silently(7)
    found = site.sweep()[COMPLETE]
    assert not found.passed
    assert not evaluations(site)[COMPLETE].passed
    site.settle()
    assert site.rows()[7] == [7]
    assert current(site) == {*CHECKS}
    repeated = evaluations(site)[COMPLETE]
    assert repeated.passed, "the missed changes are committed"
    assert repeated.metadata["found_by_sweep"].value == 1
    assert repeated.metadata["swept"] == found.metadata["swept"]


def test_a_check_warns_while_something_is_in_quarantine(site_of: Callable[..., Site]) -> None:
    """Otherwise all checks would be green although a record or a whole object is not in the table. The description must
    name the command that lists these records and objects, but no key. If a person executes the check, it must have the
    same result as in the batch.
    """
    site = site_of(max_attempts=2, transform=f"{TRANSFORMS}.unlucky_in_python")
    site.write(1, body=site.line(1) + b"{broken\n" + b"{broken, too\n")
    site.settle()
    found = evaluations(site)[QUARANTINE]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    listed = "`s3notify quarantine list orders` shows where and why"
    assert found.description == f"In quarantine: 2 rejected records; {listed}"
    site.write(13)
    site.settle()
    found = evaluations(site)[QUARANTINE]
    assert found.description == f"In quarantine: 1 failing object, 2 rejected records; {listed}"
    assert {name: value.value for name, value in found.metadata.items()} == {
        "failing_objects": 1,
        "rejected_records": 2,
        "slots": 2,
    }
    again = site.sweep()[QUARANTINE]
    assert (again.passed, again.severity) == (found.passed, found.severity)
    assert (again.description, again.metadata) == (found.description, found.metadata)
    site.write(1)
    site.delete(13)
    site.settle()
    found = evaluations(site)[QUARANTINE]
    assert (found.passed, found.description) == (True, None)


def test_the_check_of_a_refused_sweep_fails_until_the_next_sweep(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch must not make the check pass: it must repeat the sweep's result."""
    monkeypatch.setattr("s3notify_platform.engine.values.withdrawal_guard.WITHDRAWN_OBJECTS", 4)
    site.write(*range(8))
    site.settle()
    for slot in range(8):
        site.store.delete(site.key(slot))
    site.write(9)
    refused = site.sweep()[COMPLETE]
    assert (refused.passed, refused.severity) == (False, dg.AssetCheckSeverity.ERROR)
    site.settle()
    again = evaluations(site)[COMPLETE]
    assert (again.passed, again.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "nothing was repaired" in str(again.description)


def test_the_numbers_of_a_batch_are_plotted(site: Site) -> None:
    """Dagster plots numeric metadata of an asset without partitions; each batch must be one materialization."""
    site.settle()
    site.write(1, body=site.line(1) + b"{broken\n" + site.line(11))
    site.write(2)
    site.settle()
    batch = site.batch()
    assert (batch["batch_rows"], batch["batch_objects"], batch["batch_rejects"]) == (3, 2, 1)
    assert 0 < batch["batch_lag_seconds"] < 600
    requests = {name.rpartition("_")[2]: n for name, n in batch.items() if name.startswith("batch_requests_")}
    assert batch["batch_requests"] == sum(requests.values()) > 0
    assert batch["batch_dollars"] == pytest.approx(dollars(requests))
    assert batch["batch_dollars"] > 0
    plotted = {name for name, value in batch.items() if isinstance(value, int | float)}
    for name in ("rows", "objects", "lag_seconds", "seconds_plan", "seconds_commit", "requests", "dollars"):
        assert f"batch_{name}" in plotted
    events = site.instance.fetch_materializations(dg.AssetKey("orders_summary"), limit=10).records
    assert len({event.run_id for event in events}) == len(events) == 2


def test_requests_for_records_are_plotted_too(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch also pays for its queue entries, its ack chain and its heartbeats. This test counts COPYs, because the
    engine itself sends no COPY. The description must say which requests are missing.
    """
    site.settle()
    site.write(1)
    (request,) = site.tick()
    sent = iter([Counter(COPY=5), Counter(COPY=12)])
    monkeypatch.setattr("s3notify_platform.orchestration.assets.record_requests", lambda _: next(sent))
    assert site.launch(request).success
    batch = site.batch()
    assert batch["batch_requests_COPY"] == 7
    kinds = {name.rpartition("_")[2]: n for name, n in batch.items() if name.startswith("batch_requests_")}
    assert batch["batch_dollars"] == pytest.approx(dollars(kinds))
    (spec,) = [s for s in site.defs.resolve_all_asset_specs() if s.key == dg.AssetKey("orders_summary")]
    for missing in (
        "the sensors' requests",
        "slot assets",
        "latest",
        "clustered",
        "tags",
        "signals",
        "records in DynamoDB",
    ):
        assert missing in str(spec.description).partition("Not counted: ")[2]


def test_the_summary_shows_all_slots_in_a_table(site_of: Callable[..., Site]) -> None:
    """The slots in flight and the failing slots must come from the sensor's state. The slots of the batch must come
    from its run.
    """
    site = site_of(transform=f"{TRANSFORMS}.unlucky", backoff_seconds=3600.0)
    site.settle()
    assert "slot_map" in site.batch()
    site.write(12, 13)
    (request,) = site.tick()
    store_cursor(site, site.cursor or "")
    assert not site.launch(request).success
    summary = site.batch()
    (row,) = summary["slot_map"].records
    assert row.data["slot"] == "0"
    assert row.data["map"] == "·" * 12 + "▂!··"
    assert (row.data["committed"], row.data["rows"], row.data["failing"]) == (1, 1, 1)
    assert (summary["slots_failing"], summary["slots_in_flight"]) == (1, 0)
    (failing,) = summary["failing_slots"].records
    assert failing.data["slot"] == "13"
    assert "13 is unlucky" in str(failing.data["reason"])
    site.tick()
    site.write(5, 6)
    (other,) = site.tick()
    assert site.slots_of(other) == [5, 6]
    store_cursor(site, site.cursor or "")
    (event,) = [e for e in site.upkeep().asset_events if e.asset_key == dg.AssetKey("orders_summary")]
    (row,) = event.metadata["slot_map"].value.records
    assert row.data["map"] == "·" * 5 + ">>" + "·" * 5 + "▂!··"
    assert [e for e in site.upkeep().asset_events if e.asset_key == dg.AssetKey("orders_summary")] == []


def test_a_batch_succeeds_even_if_its_summary_is_incomplete(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the store is unavailable at the end, the run must still report the batch's numbers."""
    site.write(1)
    site.settle()

    def gone(*_: object) -> dict[int, int]:
        raise UnavailableError("the store is gone")

    monkeypatch.setattr("s3notify_platform.explain.version_times.VersionTimes.of", gone)
    site.write(2)
    site.settle()
    assert site.rows() == {1: [1], 2: [2]}
    assert site.batch()["batch_rows"] == 1
    assert "slot_map" not in site.batch()


def queue_events(site: Site) -> list[tuple[str, int]]:
    events = [e for e in site.upkeep().asset_events if e.asset_key == dg.AssetKey("orders_queue")]
    return [(type(e).__name__, e.metadata["slots_not_committed"].value) for e in events]


def test_the_queue_is_materialized_while_the_table_is_fresh(site_of: Callable[..., Site]) -> None:
    """The queue's metadata must count the changes of queued and unqueued writers. A change that a run has committed
    does not count any more.
    """
    site = site_of(fresh_seconds=0.001)

    def look() -> list[tuple[str, int]]:
        store_cursor(site, site.cursor or "")
        return queue_events(site)

    fresh, late = "AssetMaterialization", "AssetObservation"
    site.settle()
    assert look() == [(fresh, 0)]
    assert look() == [], "just reported"
    site.write(3)
    assert look() == [(late, 1)]
    site.settle()
    assert look() == [(fresh, 0)]
    site.write(5)
    (request,) = site.tick()
    assert look() == [(late, 1)], "in flight"
    assert site.launch(request).success
    assert look() == [(fresh, 0)]
    site.write_unqueued(6)
    assert look() == [(late, 1)]


def test_an_idle_source_stays_fresh(site: Site) -> None:
    """The queue of an idle source must be materialized again long before its policy fails."""
    site.settle()
    store_cursor(site, site.cursor or "")
    assert queue_events(site) == [("AssetMaterialization", 0)]
    cursor = json.loads(site.upkeep_cursor or "")
    assert beat_seconds(900) == 180
    site.upkeep_cursor = json.dumps(cursor | {"beat_ms": cursor["beat_ms"] - 181_000})
    assert queue_events(site) == [("AssetMaterialization", 0)]


def test_a_tick_without_news_says_that_nothing_changed(site: Site) -> None:
    """The list of ticks in the UI must show which ticks found no change."""
    site.upkeep()
    assert site.upkeep(later=False).skip_message == "nothing changed: the last pass was a moment ago"


@pytest.mark.parametrize(("seconds", "fails_after"), [(900, 630), (60, 90), (0.001, 60.0005)])
def test_the_freshness_policy_fails_soon_after_fresh_seconds(
    site_of: Callable[..., Site], seconds: float, fails_after: float
) -> None:
    """The policy must fail after a change has waited for `fresh_seconds`. The failure may be late by at most a fifth of
    `fresh_seconds`, or a minute, whichever is longer. The description must say why Dagster shows another
    time.
    """
    site = site_of(fresh_seconds=seconds)
    (spec,) = [s for s in site.defs.resolve_all_asset_specs() if s.key == dg.AssetKey("orders_queue")]
    assert spec.freshness_policy == freshness_policy(seconds)
    assert f"materializes this asset at least every {beat_seconds(seconds):g} s" in str(spec.description)
    window = freshness_policy(seconds).fail_window.to_timedelta()  # type: ignore[attr-defined]
    assert window == timedelta(seconds=fails_after)
    assert seconds <= seconds / 2 + window.total_seconds() <= seconds + max(60.001, seconds / 5)


def requested(site: Site, cursor: dict[str, Any]) -> tuple[Sequence[dg.RunRequest], dict[str, Any]]:
    sensor = site.defs.resolve_sensor_def("orders_upkeep")
    with dg.build_sensor_context(
        instance=site.instance,
        cursor=json.dumps(cursor),
        definitions=site.defs,
        resources={"orders_slots": site.component.assets().io},
        sensor_name=sensor.name,
    ) as context:
        found = sensor.evaluate_tick(context)
    return found.run_requests or [], json.loads(found.cursor or "")


def test_the_sweep_is_requested_when_it_is_due(site_of: Callable[..., Site]) -> None:
    """The first tick must request no sweep. Several missed sweeps count once, and the run must have the tags of the
    source.
    """
    site = site_of(run_tags={"team": "sales"}, sweep_cron="0 3 * * *")
    site.settle()
    requests, cursor = requested(site, {})
    assert requests == []
    assert requested(site, cursor)[0] == []
    due = datetime.fromtimestamp(cursor["due_at"], UTC)
    assert (due.hour, due.minute) == (3, 0)
    missed = cursor | {"due_at": (due - timedelta(days=3)).timestamp()}
    (request,), after = requested(site, missed)
    assert after["due_at"] == cursor["due_at"]
    assert {key.name for key in request.asset_check_keys or []} == {COMPLETE, SETTLED}
    assert request.asset_selection == []
    assert request.run_key == f"orders-sweep-{due.isoformat()}"
    assert request.tags["team"] == "sales"


def test_dagster_s_log_has_no_keys(site_of: Callable[..., Site]) -> None:
    """The log must have no key of a committed, rejected, failing or missed object, because `erase` could not remove the
    key from the log.
    """
    site = site_of(max_attempts=2, format="auto", transform=f"{TRANSFORMS}.unlucky_in_python")
    site.settle()
    site.write(1, body=site.line(1) + b"{broken\n")
    site.publish([Put(key=bad, body=b"no parquet") for bad in ("raw/secret-person.parquet",)])
    site.write(2, 13)
    site.settle()
    assert site.batch()["quarantine_failing_objects"] >= 1
    assert site.batch()["quarantine_rejected_records"] >= 1
    site.write_silently(3)
    site.sweep()
    site.upkeep()
    known = known_to_dagster(site)
    for key in (site.key(1), site.key(2), site.key(3), site.key(13), "secret-person"):
        assert [line for line in known if key in line] == []


@pytest.mark.parametrize(
    "settings",
    [
        {"transform": f"{TRANSFORMS}.naming_in_python"},
        {"transform": f"{TRANSFORMS}.naming"},
        {"slot_assets": [f"{TRANSFORMS}.naming_orders"]},
    ],
    ids=["python", "sql", "slot asset"],
)
def test_dagster_s_log_has_no_keys_from_a_user_s_error(
    site_of: Callable[..., Site], settings: dict[str, Any]
) -> None:
    """The error's text has a key, which `erase` could not remove from the log. The rest of the text is kept."""
    site = site_of(max_attempts=2, **settings)
    site.settle()
    site.write(1, 2, 13)
    site.settle()
    known = known_to_dagster(site)
    assert [line for line in known if "is unlucky" in line]
    assert [line for line in known if site.key(13) in line] == []


def known_to_dagster(site: Site) -> list[str]:
    """The logs and tags of all runs, and the cursors."""
    runs = site.instance.get_runs()
    logged = [repr(entry) for run in runs for entry in site.instance.all_logs(run.run_id)]
    assert logged
    return [*logged, *(repr(run.tags) for run in runs), str(site.cursor), str(site.upkeep_cursor)]


def test_the_error_names_no_key_if_a_transform_changes_keys(site_of: Callable[..., Site]) -> None:
    """The log, the sensor's cursor and a tag of the run contain the text of the error. If the text named a key, `erase`
    could not remove this key from Dagster.
    """
    site = site_of(transform=f"{TRANSFORMS}.renaming", backoff_seconds=3600.0)
    site.settle()
    site.write(1)
    (request,) = site.tick()
    result = site.launch(request)
    assert "a transform must keep _slot, _key, _etag and _offset unchanged" in site.failure(result)
    site.tick()
    assert site.state.failing
    store_cursor(site, site.cursor or "")
    site.upkeep()
    assert [line for line in known_to_dagster(site) if site.key(1) in line] == []
