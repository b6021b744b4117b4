"""Values from which the Dagster definitions of one source are built: slot assets, shared arguments, errors of steps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from s3notify_platform.kernel.errors import S3NotifyError, UsageError
from s3notify_platform.orchestration.io_manager import SlotIOManager, with_resources
from s3notify_platform.orchestration.partitions import SOURCE_TAG, WARM_TAG
from s3notify_platform.orchestration.resources import SlotSpark, spark_digest
from s3notify_platform.spark.batch_schema import Transform


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAsset:
    """A separate asset, which a function computes from the committed rows of a source's slots. `s3_slot_asset` makes
    it.

    `code_version`: the declared version. If no version is declared, the source's component sets `code_version` to the
    function's fingerprint.
    """

    name: str
    source: str
    function: Transform
    owners: Sequence[str]
    code_version: str


def s3_slot_asset(
    *, source: str, name: str | None = None, owners: Sequence[str] = (), code_version: str = ""
) -> Callable[[Transform], SlotAsset]:
    """Turns a function `(DataFrame of committed rows) -> DataFrame` into a slot-partitioned asset downstream of
    `source`.

    The function must keep the `_slot` column. The function gets the rows of the slots that a batch committed. The
    function's result replaces these slots of the slot asset's table. The function's import path must be under
    `slot_assets` of the source's component.

    A slot is shown as stale if another version of the code made it. A stale slot keeps its rows until the slot changes
    or a person requests the slot. `code_version`, like "v2", names the version; the default is a fingerprint of the
    function's source (`local.fingerprint`).
    """
    return lambda function: SlotAsset(
        name=name or function.__name__,
        source=source,
        function=function,
        owners=tuple(owners),
        code_version=code_version,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAssets:
    """The inputs for building a source's definitions. `running`: True if sensors and schedules are on from the start.

    `fingerprint`: a digest of the transform's source code; "" if the digest is unknown. `resources`: keys of the
    project's own resources that replace the `spark`, `s3` or `dynamodb` of `io`. `run_tags`: tags of all runs of the
    source, except the runs that a person launches for assets. `op_tags`, `pool`: the tags and the pool of the source's
    steps with Spark.
    """

    io: SlotIOManager
    transform: Transform | None = None
    fingerprint: str = ""
    slot_assets: Sequence[SlotAsset] = ()
    description: str | None = None
    owners: Sequence[str] = ()
    group: str | None = None
    interval_seconds: int = 4
    poll_seconds: float = 0.3
    running: bool = True
    fresh_seconds: float = 900.0
    run_tags: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)
    op_tags: Mapping[str, Any] = field(default_factory=dict)
    pool: str | None = None

    @property
    def name(self) -> str:
        """The source's name, which is also the name of its ingest asset."""
        return str(self.io.name)

    @property
    def code_versions(self) -> dict[str, str]:
        """The code versions of the source and of each slot asset, by name; "" if a version is unknown."""
        own = self.io.code_version or self.fingerprint
        return {self.name: own} | {asset.name: asset.code_version for asset in self.slot_assets}

    @property
    def io_key(self) -> str:
        """Resource key of the source's IO manager, and name of the step that ingests."""
        return f"{self.name}_slots"

    def io_of(self, context: Any) -> SlotIOManager:
        """The IO manager in a step or a tick."""
        io: SlotIOManager = getattr(context.resources, self.io_key)
        return io

    @property
    def warm_tags(self) -> dict[str, str]:
        """Tags of jobs and assets whose runs a warm worker may take."""
        spark = self.io.spark
        if "spark" in self.resources or not isinstance(spark, SlotSpark):
            return {}
        return {WARM_TAG: spark_digest(spark)}

    @property
    def definitions(self) -> dict[str, Any]:
        """The source's resources by key; all keys begin with the source's name."""
        own = {"spark": self.io.spark, "s3": self.io.s3, "dynamodb": self.io.dynamodb}
        ours = {f"{self.name}_{part}": found for part, found in own.items() if part not in self.resources}
        # Dagster writes the configurable fields of all resources into the schema of each job of a project. So the IO
        # manager has no configurable fields: the component has them instead.
        hardcoded = dg.IOManagerDefinition.hardcoded_io_manager(self.io)
        return ours | {self.io_key: with_resources(self.io, self.resources) if self.resources else hardcoded}

    @property
    def step(self) -> dict[str, Any]:
        """Arguments that all steps with Spark share."""
        return {
            "required_resource_keys": {self.io_key},
            "op_tags": {**self.op_tags},
            "pool": self.pool,
        }

    @property
    def spec(self) -> dict[str, Any]:
        """Arguments that the specs of all assets of the source share."""
        return {
            "group_name": self.group or self.name,
            "owners": self.owners,
            "tags": {SOURCE_TAG: self.name},
        }

    def place(self, asset: str | None = None) -> dict[str, Any]:
        """Metadata of a spec: the address of a table, and the ways in which other engines read the table. `asset`: the
        asset with this table; None for the source itself.
        """
        location = self.io.source.location
        uri = location.platform.url(location.table_layout(asset).prefix).removesuffix("/")
        hadoop = uri.replace("s3:", "s3a:", 1)
        how = (
            f"```sql\n-- DuckDB\nSELECT * FROM delta_scan('{uri}');\n```\n"
            f'```python\npolars.scan_delta("{uri}")\ndeltalake.DeltaTable("{uri}")\n'
            f'spark.read.format("delta").load("{hadoop}")\n```'
        )
        return {"dagster/uri": uri, "how_to_read": dg.MetadataValue.md(how)}

    @property
    def sensor_status(self) -> dg.DefaultSensorStatus:
        """The initial status of the source's sensors."""
        return dg.DefaultSensorStatus.RUNNING if self.running else dg.DefaultSensorStatus.STOPPED


@contextmanager
def step_failures(note: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Turns an error of this package into a failure of the step, with the error's message. The step may be retried,
    except after a `UsageError`.

    Before the step fails, `note` is called with the error's message.
    """
    try:
        yield
    except S3NotifyError as error:
        note(str(error))
        raise dg.Failure(str(error), allow_retries=not isinstance(error, UsageError)) from error
