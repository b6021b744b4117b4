"""Makes the archive of `class_archive`: starts Spark with options by which Java writes it at its end.

Source: JEP 350 (Dynamic CDS Archives), JEP 514 (Ahead-of-Time Command-Line Ergonomics).
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.spark.class_archive import QUIET, USE, archive_place, found_at, java_program
from s3notify_platform.spark.session import prepare_environment, session_conf
from s3notify_platform.spark.warm_sessions import warm_up

MAKE_SECONDS: Final = 600.0

_MAKE: Final = {".aot": "-XX:AOTCacheOutput=", ".jsa": "-XX:ArchiveClassesAtExit="}
"""By suffix, in order: Java 25, of which some lack what the older kind is based on; Java 17."""


def make_archive() -> Path:
    """Make the archive, unless it is there. About half a minute of CPU. `UsageError` if this Java makes none."""
    if (place := archive_place()) is None:
        raise UsageError(
            "no archive: there is no Java, or no cache folder (XDG_CACHE_HOME), or its name has spaces or quotes"
        )
    if (found := found_at(place)) is not None:
        return found
    try:
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"no archive: {error}; set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    said = ""
    for suffix, make in _MAKE.items():
        draft = place.with_name(f"draft-{os.getpid()}{suffix}")
        command = [sys.executable, "-m", "s3notify_platform.spark.archiving", f"{QUIET} {make}{draft}"]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=MAKE_SECONDS, check=False)
            said = (ran.stderr.strip().splitlines() or [""])[-1]
            if ran.returncode == 0 and draft.exists() and _starts(f"{USE[suffix]}{draft}"):
                return draft.rename(place.with_name(f"{place.name}-{draft.stat().st_size}{suffix}"))
        except subprocess.TimeoutExpired:
            said = f"not done within {MAKE_SECONDS:g} s"
        finally:
            draft.unlink(missing_ok=True)
            Path(f"{draft}.config").unlink(missing_ok=True)
    raise UsageError(f"no archive: {said or 'this Java makes none'}")


def _starts(option: str) -> bool:
    """Whether Java starts with an archive: one that was cut off, as by a full disk, ends it."""
    java = java_program()
    assert java is not None
    command = [java, *QUIET.split(), *option.split(), "-version"]
    return subprocess.run(command, capture_output=True, timeout=MAKE_SECONDS, check=False).returncode == 0


def _train(options: str) -> None:
    """Start Spark with these options of Java's, run a job, and wait until Java has ended."""
    prepare_environment()
    conf = session_conf(master="local[2]")
    conf["spark.driver.extraJavaOptions"] += f" {options}"
    builder = SparkSession.builder.appName("s3notify archive")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    warm_up(spark)
    spark.stop()
    gateway = SparkContext._gateway  # noqa: SLF001 - there is no other way to its process
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    if code := gateway.proc.wait():
        sys.exit(f"Java ended with {code}")


if __name__ == "__main__":
    _train(sys.argv[1])
