"""Shared by steps and jobs of a source: errors as step failures, and jobs that people launch."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from s3notify_platform.errors import S3NotifyError, UsageError
from s3notify_platform.orchestration.partitions import SOURCE_TAG


@contextmanager
def step_failures() -> Iterator[None]:
    """Errors of this package fail the step with their message; it may be retried, except after a `UsageError`."""
    try:
        yield
    except S3NotifyError as error:
        raise dg.Failure(str(error), allow_retries=not isinstance(error, UsageError)) from error


def launched_by_hand(op: dg.OpDefinition, *, name: str, source: str, description: str) -> dg.JobDefinition:
    """A job of this one op, in the process of its run, tagged with its source."""

    @dg.job(
        name=name,
        description=description,
        executor_def=dg.in_process_executor,
        tags={SOURCE_TAG: source},
    )
    def job() -> None:
        op()

    return job
