"""What the Dagster definitions of one source are built from: slot assets, the source's parts, errors of its steps."""

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
    """A function of the committed rows of a source's slots, as an asset of its own. Made by `s3_slot_asset`.

    `code_version`: the declared one, else the function's fingerprint, once the source's component has loaded it.
    """

    name: str
    source: str
    function: Transform
    owners: Sequence[str]
    code_version: str


def s3_slot_asset(
    *, source: str, name: str | None = None, owners: Sequence[str] = (), code_version: str = ""
) -> Callable[[Transform], SlotAsset]:
    """A slot-partitioned asset downstream of `source`: `(DataFrame of committed rows) -> DataFrame`.

    The function must keep the `_slot` column. It is called with the slots that a batch committed, and what it
    returns replaces these slots of its own table. Name it under `slot_assets` of the source's component.

    Slots that other code has made are shown as stale, and stay until they change or someone asks for them. The code is
    known by `code_version`, like "v2"; by default by a fingerprint of its source (`local.fingerprint`).
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
    """A source as its definitions are built. `running`: whether sensors and schedules are on from the start.

    `fingerprint`: of the transform's source; "" if it is not known.
    `resources`: keys of the project's own, instead of the `spark`, `s3` or `dynamodb` of `io`.
    `run_tags`: of all its runs but those that a person launches for assets. `op_tags`, `pool`: of its steps with Spark.
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
        """The source's name, which is also its ingest asset's."""
        return str(self.io.name)

    @property
    def code_versions(self) -> dict[str, str]:
        """The version of the code of the source and of each slot asset, by name; "" where it is not known."""
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
        """The source's resources by their keys, all of which begin with its name."""
        own = {"spark": self.io.spark, "s3": self.io.s3, "dynamodb": self.io.dynamodb}
        ours = {f"{self.name}_{part}": found for part, found in own.items() if part not in self.resources}
        # Without fields of its own: Dagster writes those of all resources into the schema of each job of a project, and
        # those of this one are the component's.
        hardcoded = dg.IOManagerDefinition.hardcoded_io_manager(self.io)
        return ours | {self.io_key: with_resources(self.io, self.resources) if self.resources else hardcoded}

    @property
    def step(self) -> dict[str, Any]:
        """Arguments that its steps with Spark have in common."""
        return {
            "required_resource_keys": {self.io_key},
            "op_tags": {**self.op_tags},
            "pool": self.pool,
        }

    @property
    def spec(self) -> dict[str, Any]:
        """What the specs of all assets of the source have in common."""
        return {
            "group_name": self.group or self.name,
            "owners": self.owners,
            "tags": {SOURCE_TAG: self.name},
        }

    def place(self, asset: str | None = None) -> dict[str, Any]:
        """The place of the table, or of that of an asset, and how other engines read it, as metadata of a spec."""
        location = self.io.source.location
        uri = f"s3://{location.platform.bucket}/{location.table_layout(asset).prefix.removesuffix('/')}"
        how = (
            f"```sql\n-- DuckDB\nSELECT * FROM delta_scan('{uri}');\n```\n"
            f'```python\npolars.scan_delta("{uri}")\ndeltalake.DeltaTable("{uri}")\n'
            f'spark.read.format("delta").load("s3a{uri[2:]}")\n```'
        )
        return {"dagster/uri": uri, "how_to_read": dg.MetadataValue.md(how)}

    @property
    def sensor_status(self) -> dg.DefaultSensorStatus:
        """Whether its sensors are on from the start."""
        return dg.DefaultSensorStatus.RUNNING if self.running else dg.DefaultSensorStatus.STOPPED


@contextmanager
def step_failures(note: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Errors of this package fail the step with their message; it may be retried, except after a `UsageError`.

    `note` takes the message before.
    """
    try:
        yield
    except S3NotifyError as error:
        note(str(error))
        raise dg.Failure(str(error), allow_retries=not isinstance(error, UsageError)) from error
