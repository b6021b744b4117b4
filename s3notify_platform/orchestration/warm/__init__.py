"""Warm runs: a Dagster run launcher hands runs over to resident workers, so that the runs need not wait for Python and
Spark.

Theory of operation. `launcher` is the `run_launcher:` of dagster.yaml; it runs in daemon, webserver and commands.
`supervisor` (`s3notify warm`) owns the workers: one for each combination of code location, code version and static
Spark configuration. A `worker` has loaded the definitions and started Spark with its Python workers. The worker
executes runs one after another in its main thread.

    launcher ── "run R of this code" ──► supervisor ── an idle worker has this code: R is claimed, then "yes" ──► worker
        └── no supervisor, or "no": the default launcher starts a process       └── no worker: one is started for later

A run is claimed before a worker gets the run. The claim is a file in the folder `warm` of DAGSTER_HOME, created on the
condition that this file is absent. If a launcher gets no answer, the launcher claims the run for the default launcher.
If this claim fails, a worker has the run. So the default launcher never starts a run that a worker has.

A terminated run is interrupted, and its Spark jobs are cancelled. The run's worker ends after the run, and is killed
after ten seconds at the latest. A worker is replaced in four cases: the worker's run was terminated, the worker ended
by itself, the code server has other code, or the worker has reached a limit of runs or memory. If a worker dies during
its run, the supervisor reports the run: as canceled if it was being terminated, else as failed. When the supervisor
dies, its workers end, and the next supervisor reports their runs.

`coordinator`: a run skips the queue if the queue is empty and a warm worker may take the run. In the queue, a run waits
for up to a second.

Edited code takes effect after the code location is reloaded. Only runs that read slots, or advance derived tables,
are warm (`partitions.WARM_TAG`). A run that reads everything is never warm, because all other warm runs would
wait while it runs.
"""

from s3notify_platform.orchestration.warm.coordinator import PromptRunCoordinator
from s3notify_platform.orchestration.warm.launcher import WarmRunLauncher

__all__ = ["PromptRunCoordinator", "WarmRunLauncher"]
