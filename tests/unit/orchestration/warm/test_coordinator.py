"""Runs bypass the queue only if they may be warm, the queue is empty, and the queue's limits allow another run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterRun, DagsterRunStatus
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.run_coordinator import SubmitRunContext
from dagster._core.storage.dagster_run import RunOpConcurrency
from dagster._core.test_utils import create_run_for_test

from s3notify_platform.orchestration.partitions import SERVICE_TAG, SOURCE_TAG, WARM_TAG
from s3notify_platform.orchestration.warm import PromptRunCoordinator

REMOTE = RemoteJobOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("any"), "__repository__"), "any")
WARM = {WARM_TAG: "spark", SOURCE_TAG: "orders"}
INSTANCE = {
    "run_coordinator": {
        "module": "s3notify_platform.orchestration.warm",
        "class": "PromptRunCoordinator",
        "config": {"max_concurrent_runs": 3, "tag_concurrency_limits": [{"key": SOURCE_TAG, "limit": 2}]},
    },
    "run_launcher": {"module": "dagster._core.test_utils", "class": "MockedRunLauncher"},
}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path), overrides=INSTANCE) as found:
        assert isinstance(found.run_coordinator, PromptRunCoordinator)
        yield found


def submitted(
    instance: dg.DagsterInstance, tags: dict[str, str], pools: frozenset[str] = frozenset()
) -> DagsterRunStatus:
    run = create_run_for_test(
        instance, job_name="any", status=DagsterRunStatus.NOT_STARTED, tags=tags, remote_job_origin=REMOTE
    )
    if pools:
        of_run = RunOpConcurrency(
            root_key_counts=dict.fromkeys(pools, 1), has_unconstrained_root_nodes=False, all_pools=pools
        )
        run = run._replace(run_op_concurrency=of_run)
    workspace: Any = None
    instance.run_coordinator.submit_run(SubmitRunContext(run, workspace))
    launched = [one.run_id for one in instance.run_launcher.queue()]
    found: DagsterRun = instance.get_run_by_id(run.run_id)
    assert (found.status is DagsterRunStatus.STARTING) == (run.run_id in launched)
    return found.status


def test_a_run_waits_if_another_run_is_queued(instance: dg.DagsterInstance) -> None:
    """A run that may not be warm waits for Dagster's daemon. A warm run that is submitted later must wait, too."""
    assert submitted(instance, {}) is DagsterRunStatus.QUEUED
    assert submitted(instance, WARM) is DagsterRunStatus.QUEUED


def test_a_run_that_uses_a_pool_waits(instance: dg.DagsterInstance) -> None:
    """The run must be queued, because only the daemon's queue knows the limit of a pool."""
    assert submitted(instance, WARM, frozenset({"spark"})) is DagsterRunStatus.QUEUED


def test_as_many_warm_runs_start_as_the_limit_of_their_tag_allows(instance: dg.DagsterInstance) -> None:
    found = [submitted(instance, WARM) for _ in range(3)]
    assert found == [DagsterRunStatus.STARTING] * 2 + [DagsterRunStatus.QUEUED]


def test_as_many_warm_runs_start_as_the_limit_of_all_runs_allows(instance: dg.DagsterInstance) -> None:
    found = [submitted(instance, {WARM_TAG: "spark"}) for _ in range(4)]
    assert found == [DagsterRunStatus.STARTING] * 3 + [DagsterRunStatus.QUEUED]


def test_runs_of_services_do_not_count_towards_the_limit(instance: dg.DagsterInstance) -> None:
    """A service's run does not end. Otherwise no batch could start once as many inlets run as the limit allows."""
    for name in ("sqs", "http", "deliver"):
        create_run_for_test(
            instance, job_name="any", status=DagsterRunStatus.STARTED, tags={SERVICE_TAG: name}
        )
    found = [submitted(instance, {WARM_TAG: "spark"}) for _ in range(4)]
    assert found == [DagsterRunStatus.STARTING] * 3 + [DagsterRunStatus.QUEUED]


def test_the_daemon_does_not_count_runs_of_services(instance: dg.DagsterInstance) -> None:
    """The daemon starts the runs that no warm worker may take, so it must use the same limits as the coordinator."""
    create_run_for_test(
        instance, job_name="any", status=DagsterRunStatus.STARTED, tags={SERVICE_TAG: "deliver"}
    )
    limits = instance.get_concurrency_config().run_queue_config
    assert limits is not None
    assert limits.max_concurrent_runs == 4
