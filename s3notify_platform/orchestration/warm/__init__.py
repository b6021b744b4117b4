"""Warm runs: a Dagster run launcher that hands runs over to resident workers, so that none waits for Python and Spark.

Theory of operation. `launcher` is the `run_launcher:` of dagster.yaml; it lives in daemon, webserver and commands.
`supervisor` (`s3notify warm`) owns the workers, one for each code location, version of its code, and static Spark
configuration. A `worker` has loaded the definitions and started Spark, with its Python workers; it executes runs one
after another in its main thread.

    launcher ── "run R of this code" ──► supervisor ── an idle worker has this code: R is claimed, then "yes" ──► worker
        └── nobody there, or "no": the default launcher starts a process        └── none: one is started, for the next

A worker's run is claimed before: a file in the home, created if absent. A launcher that gets no answer claims the run
for the default launcher; if the claim is taken, a worker has the run. So it is never started by both.

A run that is terminated is interrupted and its Spark jobs are cancelled; after ten seconds its worker is killed. A
worker is replaced after that, when it has died, when the code server has other code, and when it is used up. If it dies
under its run, the supervisor reports the run: as canceled if it was to be terminated, else as failed. When the
supervisor dies, its workers end, and the next one reports their runs.

`coordinator` spares such runs the queue's second, if nothing waits in it.

Edited code is seen after the code location is reloaded. Only runs of slot assets are warm (`partitions.WARM_TAG`), and
none that takes in everything: it would keep all others waiting.
"""

from s3notify_platform.orchestration.warm.coordinator import PromptRunCoordinator
from s3notify_platform.orchestration.warm.launcher import WarmRunLauncher

__all__ = ["PromptRunCoordinator", "WarmRunLauncher"]
