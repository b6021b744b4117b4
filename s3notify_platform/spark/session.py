"""Configures Spark sessions: embedded, standalone or Connect.

`master` is any master that Spark accepts (`local[*]`, `spark://host:7077`, `yarn`). `remote` is a Connect address
(`sc://host:15002`). Except in local mode, this package is sent to the workers. The package's dependencies (`pip install
's3notify-platform[spark]'`) must be installed on the workers.
"""

import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from s3notify_platform.kernel.errors import UsageError

DEFAULTS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # A row can be a whole object.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    # A batch has a few small jobs. A new plan at each shuffle costs more time than it saves.
    "spark.sql.adaptive.enabled": "false",
}

LOCAL: Final[Mapping[str, str]] = {
    # Spark listens only on loopback, whatever the machine's name is.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # The JVM only passes work to Python. The JVM's second compiler and its parallel collector cost more time
    # than they save.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.unix.domain.socket.enabled": "true",
}


def session_conf(
    *, master: str | None = None, remote: str | None = None, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the Spark configuration of a session.

    Raises `UsageError` if both or neither of `master` and `remote` are given.
    """
    if (master is None) == (remote is None):
        raise UsageError(
            "give a Spark master (local[*], spark://host:7077) "
            "or a Connect remote (sc://host:15002), not both"
        )
    conf = dict(DEFAULTS)
    if master is not None:
        conf["spark.master"] = master
        if master.startswith("local"):
            conf |= LOCAL
    else:
        conf = {"spark.remote": str(remote), "spark.sql.session.timeZone": "UTC"}
    return conf | dict(extra or {})


def prepare_environment() -> None:
    """Makes the workers of an embedded session run the Python of this process.

    Must be called before the session starts.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def has_java() -> bool:
    """True if this process has started a JVM."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None  # noqa: SLF001 - a session may be another thread's


def is_remote(spark: SparkSession) -> bool:
    """True if the session uses Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism(spark: SparkSession) -> int:
    """Returns the number of concurrent tasks of the cluster. With Spark Connect, this number comes from
    `spark.default.parallelism`, or else is the number of this machine's cores.
    """
    if is_remote(spark):
        return int(spark.conf.get("spark.default.parallelism", None) or os.cpu_count() or 2)
    return int(spark.sparkContext.defaultParallelism)


def ship_package(spark: SparkSession) -> None:
    """Sends this package to the workers, once for all sessions.

    In local mode, makes the workers run the Python of this process, unless another Python is configured. By default,
    local workers run the first `python3` in PATH, which is a different Python if the virtual environment is not
    activated.
    """
    if not is_remote(spark) and str(spark.sparkContext.master).startswith("local"):
        spark.sparkContext.pythonExec = os.environ.get("PYSPARK_PYTHON", sys.executable)
        return
    shipped_by: Any = spark if is_remote(spark) else spark.sparkContext
    if getattr(shipped_by, "_s3notify_shipped", False):
        return
    root = Path(__file__).resolve().parents[1]
    target = Path(tempfile.mkdtemp(prefix="s3notify-")) / f"{root.name}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*.py")):
            archive.write(file, Path(root.name) / file.relative_to(root))
    if is_remote(spark):
        spark.addArtifacts(str(target), pyfile=True)
    else:
        spark.sparkContext.addPyFile(str(target))
    shipped_by._s3notify_shipped = True  # noqa: SLF001 - our mark on it
