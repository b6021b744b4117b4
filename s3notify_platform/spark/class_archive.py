"""An archive of Spark's classes as Java has loaded and verified them: with it a session starts in half the CPU time.

One file for each Java and PySpark, of some 170 MB, in `~/.cache/s3notify` (XDG_CACHE_HOME). Java checks that it fits,
and goes on without it if not; only one that was cut off would crash it, so the name has the size. `spark.archiving`
makes it.
"""

import os
import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

import pyspark

ROOT: Final = 0
"""As whom an image is built."""

QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""Else Java warns of each class that it leaves out."""

USE: Final = {
    ".aot": "-XX:+IgnoreUnrecognizedVMOptions -XX:AOTCache=",
    ".jsa": "-XX:SharedArchiveFile=",
}
"""The options that use an archive, by its suffix. An older Java than the one that made it goes on without it."""

_OWN_HOME: Final = Path(__file__).resolve().parents[1] / "local" / "java_home"
"""The JAVA_HOME of the Java that is brought along: see `local.java`."""


def archive_options() -> str:
    """Options of Java that use the archive; "" if there is none for this Java and PySpark, or another user made it."""
    if (place := archive_place()) is None or (found := found_at(place)) is None:
        return ""
    return f" {QUIET} {USE[found.suffix]}{found}"


def found_at(place: Path) -> Path | None:
    """The archive at this place."""
    with suppress(OSError):
        for found in place.parent.glob(f"{place.name}-*"):
            about, size = found.stat(), found.stem.rpartition("-")[2]
            if found.suffix in USE and size == str(about.st_size) and about.st_uid in (ROOT, os.geteuid()):
                return found
    return None


def java_program() -> str | None:
    """The Java that Spark starts; None if it is not known."""
    home = os.environ.get("JAVA_HOME")
    if home == str(_OWN_HOME):
        return os.environ.get("S3NOTIFY_JAVA")
    return f"{home}/bin/java" if home else shutil.which("java")


def archive_place() -> Path | None:
    """Where the archive of this Java and PySpark is, without size and suffix; None if there can be none."""
    java = java_program()
    cache = Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"))  # noqa: PTH111 - never raises
    if java is None or not cache.is_absolute() or set(str(cache)) & set(" \t'\"\\"):
        return None
    try:
        found = Path(java).resolve(strict=True)
        of = (found, found.stat().st_mtime_ns, pyspark.__version__, Path(pyspark.__file__).resolve())
    except OSError:
        return None
    return cache / "s3notify" / sha256(repr(of).encode()).hexdigest()[:32]
