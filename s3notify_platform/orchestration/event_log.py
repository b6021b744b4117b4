"""Dagster's event log of a development home: SQLite, with a batch of events stored at once.

Dagster's own SQLite storage opens five connections for each event, and waits for the disk twelve times
(`tests/benchmarks/FIGURES.md`, Reporting). Events are written in batches only if `DAGSTER_EVENT_BATCH_SIZE` is set.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from dagster import EventLogEntry, StringSource

from s3notify_platform.orchestration.dagster_internals import ConfigurableClassData, SqliteEventLogStorage


class BatchedSqliteEventLog(SqliteEventLogStorage):
    """`SqliteEventLogStorage` in the default folder of the DAGSTER_HOME `home`."""

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """See `ConfigurableClass`."""
        return {"home": StringSource}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> Self:
        """See `ConfigurableClass`."""
        return cls(base_dir=str(Path(config_value["home"]) / "history" / "runs"), inst_data=inst_data)

    def store_event_batch(self, events: Sequence[EventLogEntry]) -> None:
        """Stores a run's materializations in two transactions. The second transaction makes all materializations
        visible at the same moment.

        Other events are stored one by one.
        """
        runs = {event.run_id for event in events}
        if len(runs) > 1 or not all(self._is_materialization(event) for event in events):
            super().store_event_batch(events)
            return
        inserts = [self.prepare_insert_event(event) for event in events]
        with self.run_connection(runs.pop()) as run:
            for insert in inserts:
                run.execute(insert)
        with self.index_transaction() as index:
            ids: list[int] = [index.execute(insert).lastrowid for insert in inserts]
            self._store_asset_event_tags(index, events, ids)
            # Dagster's row of an asset refers to the asset's last event.
            last = {
                event.get_dagster_event().asset_key: (event, id_)
                for event, id_ in zip(events, ids, strict=True)
            }
            for event, id_ in last.values():
                self._store_asset_event(index, event, id_)

    @staticmethod
    def _is_materialization(event: EventLogEntry) -> bool:
        return event.dagster_event is not None and event.dagster_event.is_step_materialization
