"""Unit tests of `failures`, with the texts of errors that Spark 4.3 has."""

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, PythonException

from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.spark.failures import TransformError, failed_slot, own_error

WORKER = "An exception was thrown from the Python worker:\n"
TRACE = """Traceback (most recent call last):
  File "/p/orders.py", line 3, in transform
    raise ValueError(f"cancelled: {status}")
           ^^^^^^^^^^
"""
LOST = (
    "Job aborted due to stage failure: Task 1 in stage 7.0 failed 4 times, most recent failure: "
    "Lost task 1.3 in stage 7.0 (TID 15) (192.0.2.2 executor driver): "
)
AT = "\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$doCancelAllJobs$2(DAGScheduler.scala:4404)\n"
CAST = '[CAST_INVALID_INPUT] The value \'%s\' of the type "STRING" cannot be cast to "BIGINT" because it is malformed.'
OWN = "s3notify_platform.kernel.errors.UnavailableError: bucket 'b' is unavailable"


def of_java(text: str) -> Py4JError:
    """An exception of the JVM in the form of py4j, including the exceptions that caused it."""
    return Py4JError(
        "An error occurred while calling o286.getResult.\n: org.apache.spark.SparkException: Exception thrown in "
        f"awaitResult: \n{AT}{AT}Caused by: {text}\n{AT}"
    )


def of_transform(cause: Exception) -> TransformError:
    error = TransformError(f"{type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        PythonException(f"{WORKER}{TRACE}ValueError: CANCELLED\n"),
        PythonException(f"{WORKER}{TRACE}ValueError: status\nJob 3 cancelled\n"),
        PySparkException(
            f"{LOST}org.apache.spark.api.python.PythonException: {TRACE}ValueError: shutdown\n\n{AT}"
        ),
        of_java(f"{LOST}org.apache.spark.api.python.PythonException: {TRACE}ValueError: No space left"),
        PySparkException(CAST % "CANCELLED"),
        PySparkException(CAST % "x\nJob 3 cancelled because SparkContext was shut down"),
        PySparkException("[USER_RAISED_EXCEPTION] FetchFailed SQLSTATE: P0001"),
        of_transform(KeyError("cancelled_at")),
    ],
)
def test_words_in_a_record_or_in_code_do_not_count_as_a_fault_of_the_cluster(error: Exception) -> None:
    """Otherwise, if the error of a transform quotes the word CANCELLED from a record, the record's object never goes to
    quarantine, and the other objects of the slot are never committed.
    """
    assert failed_slot(Slot(3), error).by_object


@pytest.mark.parametrize(
    "error",
    [
        of_java(
            "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 6 cancelled as part of cancellation"
        ),
        of_java("org.apache.spark.SparkException: Job 8 cancelled because SparkContext was shut down"),
        of_java(f"org.apache.spark.SparkException: {LOST}java.io.IOException: No space left on device"),
        of_java(
            "org.apache.spark.SparkException: Job aborted due to stage failure: ResultStage 4 (toArrow at /p/x.py:3) "
            "has failed the maximum allowable number of times: 4. Most recent failure reason:\n"
            "org.apache.spark.shuffle.MetadataFetchFailedException: Missing an output location for shuffle 0"
        ),
        of_java(
            'java.lang.NullPointerException: Cannot invoke "org.apache.spark.scheduler.DAGScheduler.cleanupQueryJobs'
            '(long)" because the return value of "org.apache.spark.SparkContext.dagScheduler()" is null'
        ),
        Py4JError(
            "An error occurred while calling o9.range.\n: java.lang.IllegalStateException: "
            f"Cannot call methods on a stopped SparkContext.\nThis stopped SparkContext was created at:\n\n{AT}"
        ),
        PySparkException(
            "[SPARK_JOB_CANCELLED] Job 7 cancelled part of cancelled job group g SQLSTATE: XXKDA"
        ),
        PySparkException("[OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008"),
        PySparkException(
            "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.CANCELLED\n"
        ),
        PythonException(f"{WORKER}{TRACE}OSError: [Errno 28] No space left on device\n"),
        of_transform(PySparkException("[OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008")),
    ],
)
def test_a_cancelled_job_a_stopped_context_and_a_full_disk_are_no_fault_of_an_object(
    error: Exception,
) -> None:
    """Otherwise a cancelled run searches for an object at fault, and sends a good object to quarantine."""
    assert not failed_slot(Slot(3), error).by_object


@pytest.mark.parametrize(
    "error",
    [
        PythonException(f"{WORKER}{TRACE}{OWN}\n"),
        PythonException(f"[PYTHON_EXCEPTION] An exception was thrown from the Python worker: {TRACE}{OWN}\n"),
        PythonException(
            "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
            f"{WORKER}{TRACE}{OWN}\n"
        ),
        PySparkException(f"{LOST}org.apache.spark.api.python.PythonException: {TRACE}{OWN}\n\n{AT}"),
        of_java(
            f"org.apache.spark.SparkException: {LOST}org.apache.spark.api.python.PythonException: {TRACE}{OWN}"
        ),
    ],
)
def test_an_error_of_this_package_in_a_task_keeps_its_class(error: Exception) -> None:
    """Otherwise an outage of the store counts as a failure of an object."""
    own = own_error(error)
    assert (type(own), str(own)) == (UnavailableError, "bucket 'b' is unavailable")
    assert failed_slot(Slot(3), error).outage


@pytest.mark.parametrize(
    "value", [OWN, OWN.replace("UnavailableError", "OUTAGES"), "ConnectionError: x", "Timeout"]
)
@pytest.mark.parametrize(
    "text",
    [
        f"{WORKER}{TRACE}ValueError: bad status: x\n%s\n",
        f"{WORKER}{TRACE}ValueError: x\n{AT}{TRACE}%s\n{AT}",
        CAST % "x\n%s",
        CAST % f"%s\n{WORKER}{TRACE}%s",
    ],
)
def test_a_value_of_a_record_cannot_pose_as_an_outage(text: str, value: str) -> None:
    """Otherwise the object of a hostile record never goes to quarantine, and its slot is tried again for ever."""
    kind = PythonException if text.startswith(WORKER) else PySparkException
    failure = failed_slot(Slot(3), kind(text.replace("%s", value)))
    assert failure.by_object
    assert not failure.outage


@pytest.mark.parametrize("name", ["OUTAGES", "NoSuchError"])
def test_an_unknown_name_in_the_module_of_errors_is_no_error_of_this_package(name: str) -> None:
    """Otherwise the description of a failure itself raises an error."""
    text = f"{WORKER}{TRACE}{OWN.replace('UnavailableError', name)}\n"
    assert own_error(PythonException(text)) is None
    assert failed_slot(Slot(3), PythonException(text)).by_object
