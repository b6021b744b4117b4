"""What a failing Spark job raises, and what of it a person wants to read."""

import re
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from s3notify_platform import errors
from s3notify_platform.errors import S3NotifyError

JOB_ERRORS: Final = (PySparkException, Py4JError)
"""What a failing job raises: Py4JError where PySpark does not know the JVM's exception."""


def reason_of(error: Exception) -> str:
    """The line of a Spark error that a person wants: Python's last, or Spark's first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (python[-1] if python else lines[0] if lines else type(error).__name__)[:1000]


def raise_own(error: Exception) -> None:
    """Raise the error of this package that a task ended with, if it is one."""
    found = re.findall(r"^\s*s3notify_platform\.errors\.(\w+): (.*)$", str(error), re.MULTILINE)
    if found:
        kind = getattr(errors, found[-1][0], S3NotifyError)
        raise kind(found[-1][1]) from error
