"""Dagster's schedule storage of a development home: SQLite, over connections that stay open.

It holds the ticks of the sensors. SQLite's own storage makes an engine and a connection for each of the six operations
of a tick, and waits for the disk with each: with many sources that is most of what the daemon does.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import sqlalchemy as db
from dagster import StringSource

from s3notify_platform.orchestration.dagster_internals import (
    SQLITE_BUSY_TIMEOUT_SECONDS,
    ConfigurableClassData,
    SqliteScheduleStorage,
)


class PooledSqliteSchedules(SqliteScheduleStorage):
    """`SqliteScheduleStorage` in `home`, where it would be by default.

    After a loss of power the newest ticks may be missing, and are made again: their runs have keys.
    """

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """See `ConfigurableClass`."""
        return {"home": StringSource}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> Self:
        """See `ConfigurableClass`."""
        home = Path(config_value["home"])
        return cls.from_local(base_dir=str(home / "schedules"), inst_data=inst_data)  # type: ignore[return-value]

    @contextmanager
    def connect(self) -> Iterator[db.Connection]:
        """See `SqlScheduleStorage`."""
        with self._engine.begin() as connection:
            yield connection

    @cached_property
    def _engine(self) -> db.Engine:
        engine = db.create_engine(self._conn_string, connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS})
        db.event.listen(engine, "connect", lambda made, _: made.execute("PRAGMA synchronous=NORMAL"))
        return engine
