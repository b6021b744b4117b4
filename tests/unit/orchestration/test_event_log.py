"""Events of a development home are stored in groups, with the same result as if each event were stored alone."""

from pathlib import Path

import dagster as dg
import pytest

from s3notify_platform.local.dagster_dev import storage
from s3notify_platform.orchestration.dagster_internals import DATA_VERSION_TAG, log_events

KEYS = [dg.AssetKey("orders"), dg.AssetKey("derived")]
SLOTS = [str(n) for n in range(5)]


@pytest.mark.parametrize("at_once", [0, 3, 1000])
def test_all_events_are_stored_when_logging_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Each event must be found in the run's log, by partition, by tag, and as its asset's last event. Otherwise the UI
    would not show the event.
    """
    (tmp_path / "dagster.yaml").write_text(storage(tmp_path))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", str(at_once))
    seen: list[set[str]] = []

    @dg.op(out=dg.Out(is_required=False))
    def report(context: dg.OpExecutionContext) -> None:
        events = [
            dg.AssetMaterialization(asset_key=key, partition=slot, tags={DATA_VERSION_TAG: f"v{slot}"})
            for slot in SLOTS
            for key in KEYS
        ]
        log_events(context, events)
        seen.extend(context.instance.get_materialized_partitions(key) for key in KEYS)

    @dg.job
    def reporting() -> None:
        report()

    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert (tmp_path / "history" / "runs" / "index.db").exists()
        result = reporting.execute_in_process(instance=instance)
        assert seen == [set(SLOTS)] * 2
        assert len(result.get_asset_materialization_events()) == 10
        logged = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
        assert [entry.get_dagster_event().partition for entry in logged] == [s for s in SLOTS for _ in KEYS]
        for key in KEYS:
            tags = instance.event_log_storage.get_latest_tags_by_partition(
                key, dg.DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION_TAG]
            )
            assert tags == {slot: {DATA_VERSION_TAG: f"v{slot}"} for slot in SLOTS}
            last = instance.get_latest_materialization_event(key)
            assert last is not None
            assert last.get_dagster_event().partition == SLOTS[-1]
            (record,) = instance.get_asset_records([key])
            assert record.asset_entry.last_materialization_record is not None
            assert record.asset_entry.last_run_id == result.run_id
