"""The run coordinator: Dagster's queue. A run skips an empty queue if a warm worker may take the run. Runs of services
do not count towards the limit of concurrent runs.
"""

from threading import Lock
from typing import Final

from dagster import DagsterRun, DagsterRunStatus, QueuedRunCoordinator, RunsFilter, SubmitRunContext

from s3notify_platform.orchestration.dagster_internals import RunQueueConfig, TagConcurrencyLimitsCounter
from s3notify_platform.orchestration.partitions import SERVICE_TAG, WARM_TAG
from s3notify_platform.orchestration.run_health import ACTIVE
from s3notify_platform.orchestration.warm.launcher import takes_in_everything

_SUBMITTING: Final = Lock()


class PromptRunCoordinator(QueuedRunCoordinator):
    """`QueuedRunCoordinator`, with two differences.

    A run skips an empty queue if a warm worker may take the run, since the daemon checks the queue only once a second.
    The queue's limits still apply. If two processes submit a run at the same moment, the limits may be exceeded by one
    run.

    The coordinator's `max_concurrent_runs` is the limit of the runs that end by themselves. The runs of services do not
    count. Dagster's setting `concurrency.runs.max_concurrent_runs` replaces this limit, and counts all runs.
    """

    def get_run_queue_config(self) -> RunQueueConfig:
        """The limits, with one more run for each running service. Cost: one query of the run storage."""
        limits = super().get_run_queue_config()
        if limits.max_concurrent_runs == -1:
            return limits
        services = sum(
            SERVICE_TAG in run.tags for run in self._instance.get_runs(RunsFilter(statuses=[*ACTIVE]))
        )
        return limits._replace(max_concurrent_runs=limits.max_concurrent_runs + services)

    def submit_run(self, context: SubmitRunContext) -> DagsterRun:
        """Launches a run directly if the run may be warm, the queue is empty, and the limits allow it. Otherwise
        enqueues the run.
        """
        run = context.dagster_run
        if (
            WARM_TAG not in run.tags
            or run.status is not DagsterRunStatus.NOT_STARTED
            or takes_in_everything(run)
            or run.run_op_concurrency is not None  # the run uses pools, whose limits only the queue knows
        ):
            return super().submit_run(context)
        with _SUBMITTING:
            if self._has_room(run):
                return self._instance.launch_run(run.run_id, context.workspace)
        return super().submit_run(context)

    def _has_room(self, run: DagsterRun) -> bool:
        limits = self._instance.get_concurrency_config().run_queue_config
        if limits is None:
            return False
        active = self._instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.QUEUED, *ACTIVE]))
        if any(other.status is DagsterRunStatus.QUEUED for other in active):
            return False
        if limits.max_concurrent_runs != -1 and len(active) >= limits.max_concurrent_runs:
            return False
        return not TagConcurrencyLimitsCounter(limits.tag_concurrency_limits, active).is_blocked(run)
