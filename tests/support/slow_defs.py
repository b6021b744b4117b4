"""A code location. A run that loads this module waits until the file that the variable `HOLD` names is removed."""

import multiprocessing
import os
from pathlib import Path

import dagster as dg

from s3notify_platform.kernel.clock import SYSTEM_CLOCK

HOLD = "S3NOTIFY_TEST_HOLD"

if multiprocessing.parent_process() is not None:  # this is the process of a run
    while Path(os.environ[HOLD]).exists():
        SYSTEM_CLOCK.sleep(0.05)


@dg.job(executor_def=dg.in_process_executor)
def started() -> None:
    """Does nothing."""


defs = dg.Definitions(jobs=[started])
