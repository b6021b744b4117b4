"""A backfill of all slots, started as the UI does and executed as the daemon does: one run, and a correct grid."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import dagster as dg
import pytest
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.backfill import execute_backfill_iteration
from dagster._utils.hosted_user_process import recon_job_from_origin
from dagster_graphql.test.utils import execute_dagster_graphql
from pyspark.sql import SparkSession

from s3notify_platform.kernel.slots import partition_keys
from s3notify_platform.source.settings import DEFS_VARIABLE
from tests.support.servers import S3Server
from tests.support.site import Site

LAUNCH = """
mutation Launch($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}"""
GRID = """
query Grid {
  assetNodeOrError(assetKey: {path: ["orders"]}) {
    ... on AssetNode {
      assetPartitionStatuses {
        ... on DefaultPartitionStatuses { materializedPartitions failedPartitions materializingPartitions }
      }
      partitionStats { numMaterialized numFailed numPartitions }
    }
  }
}"""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance that launches no runs: the test executes them in this process, which has a Spark session."""
    overrides = {
        "run_launcher": {"module": "dagster._core.test_utils", "class": "MockedRunLauncher"},
        "run_coordinator": {
            "module": "dagster._core.run_coordinator.default_run_coordinator",
            "class": "DefaultRunCoordinator",
        },
    }
    with dg.instance_for_test(temp_dir=str(tmp_path), overrides=overrides) as found:
        yield found


@pytest.fixture
def site(
    spark: SparkSession,
    ministack: S3Server,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Site:
    """A source of a thousand slots, in a folder that `S3NOTIFY_DEFS` names."""
    bucket = ministack.make_bucket()
    folder = tmp_path / "backfill_sources" / "orders"
    folder.mkdir(parents=True)
    attributes = f"""
        name: orders
        bucket: {bucket}
        prefix: raw/
        format: jsonl
        schema: "id bigint, amount double"
        transform: tests.support.transforms.unlucky
        s3:
          endpoint_url: {ministack.endpoint_url}
          access_key_id_env: S3NOTIFY_TEST_KEY
          secret_access_key_env: S3NOTIFY_TEST_SECRET
    """
    text = "type: s3notify_platform.S3NotifyComponent\nattributes:\n" + dedent(attributes).strip().replace(
        "\n", "\n  "
    )
    (folder / "defs.yaml").write_text(text.replace("attributes:\n", "attributes:\n  "))
    monkeypatch.setenv(DEFS_VARIABLE, str(folder.parent))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Site.of(ministack, instance, bucket=bucket, slots=1000)


@pytest.mark.thorough
def test_a_backfill_of_all_slots_is_one_run(site: Site, instance: dg.DagsterInstance) -> None:
    """One of the thousand slots fails; the grid must show 999 as materialized."""
    site.write_silently(1, 13, 500, 999)
    target = LoadableTargetOrigin(
        executable_path=sys.executable, module_name="s3notify_platform.definitions", attribute="defs"
    )
    load = InProcessWorkspaceLoadTarget(InProcessCodeLocationOrigin(target, location_name="here"))
    with WorkspaceProcessContext(instance, load) as workspace:
        launched = execute_dagster_graphql(
            workspace.create_request_context(),
            LAUNCH,
            {
                "params": {
                    "assetSelection": [{"path": ["orders"]}],
                    "partitionNames": partition_keys(range(1000)),
                }
            },
        ).data["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        for _ in range(3):
            errors = list(execute_backfill_iteration(workspace, logging.getLogger("backfill")))
            assert not [error for error in errors if error], errors

        (run,) = instance.get_runs()
        assert run.tags["dagster/backfill"] == launched["backfillId"]
        assert run.tags["dagster/asset_partition_range_start"] == "0"
        assert run.tags["dagster/asset_partition_range_end"] == "999"
        assert run.job_code_origin is not None
        job = recon_job_from_origin(run.job_code_origin)
        assert not execute_run(job, run, instance, raise_on_error=False).success
        seen = execute_dagster_graphql(workspace.create_request_context(), GRID).data["assetNodeOrError"]
    assert seen["partitionStats"] == {"numMaterialized": 999, "numFailed": 1, "numPartitions": 1000}
    assert seen["assetPartitionStatuses"]["failedPartitions"] == ["13"]
    assert site.rows(slots=[1, 13, 500, 999]) == {1: [1], 500: [500], 999: [999]}
