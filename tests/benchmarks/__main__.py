"""Runs the benchmarks, each on an embedded server. Writes all results to `FIGURES.md`, and some rows to the README.

`python -m tests.benchmarks [NAME ...] [--small] [--takeover]` runs all benchmarks, or only the benchmarks with these
names. `FIGURES.md` keeps its results of all other benchmarks. `--small` only shows that the benchmarks run, and writes
nothing. `--takeover` waits another 90 s, until Ceph RGW's second gateway takes over.
"""

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from s3notify_platform.local.server import LocalS3Server
from tests.benchmarks import (
    acking,
    clustering,
    committing,
    deriving,
    discovery,
    growth,
    latency,
    looking_up,
    memory,
    money,
    newest,
    parsing,
    pipeline,
    publishing,
    queueing,
    reading,
    report,
    reporting,
    rewriting,
    scale,
    sources,
    sweeping,
)
from tests.benchmarks.figures import Figure
from tests.support.spark_options import KEY_ID, SECRET

Run = Callable[..., list[Figure]]

ON_SERVER: dict[str, tuple[Run, float]] = {
    "discovery": (discovery.run, 2),
    "publishing": (publishing.run, 0.5),
    "pipeline": (pipeline.run, 1.5),
    "scale": (scale.run, 9),
    "sweeping": (sweeping.run, 7),
    "reading": (reading.run, 9),
    "growth": (growth.run, 8),  # runs after `sweeping`, because `growth` changes some of the million objects
    "memory": (memory.run, 6),
    "deriving": (deriving.run, 3),
    "money": (money.run, 8),
    "newest": (newest.run, 8),
    "clustering": (clustering.run, 11),
}
"""Benchmarks that share a server.

Each function gets the server and `small`. The number is the benchmark's time in minutes, on two quiet cores.
"""

IN_FOLDER: dict[str, tuple[Run, float]] = {
    "committing": (committing.run, 2),
    "latency": (latency.run, 19),
    "sources": (sources.run, 5),
    "queueing": (queueing.run, 6),
    "acking": (acking.run, 2),
    "parsing": (parsing.run, 2),
    "looking_up": (looking_up.run, 4),
    "rewriting": (rewriting.run, 8),
    "reporting": (reporting.run, 0.5),
}
"""Benchmarks that start their own servers.

Each function gets the path of a new folder and `small`. The number is the benchmark's time in minutes.
"""


def main() -> None:
    every = ON_SERVER | IN_FOLDER
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(every)}; default: all")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--takeover", action="store_true")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(every):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}: use one of {', '.join(every)}")
    logging.disable(logging.WARNING)
    chosen = [name for name in every if name in (arguments.names or every)]
    if not arguments.small:
        print(f"about {sum(every[name][1] for name in chosen):.0f} minutes on two quiet cores", flush=True)
    with tempfile.TemporaryDirectory(prefix="s3notify-bench-") as folder:
        if any(name in ON_SERVER for name in chosen):
            with LocalS3Server(Path(folder) / "s3") as server:
                keys = server.config("")
                # The credentials are set before the JVM starts: s3a reads the JVM's environment, and one JVM serves all
                # sessions of this process.
                for key_id, secret in ((KEY_ID, SECRET), ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")):
                    os.environ |= {key_id: str(keys.access_key_id), secret: str(keys.secret_access_key)}
                for name in [name for name in chosen if name in ON_SERVER]:
                    done(name, partial(ON_SERVER[name][0], server), small=arguments.small)
        for name in [name for name in chosen if name in IN_FOLDER]:
            run = partial(IN_FOLDER[name][0], Path(folder) / name)
            if name == "queueing":
                run = partial(run, takeover=arguments.takeover)
            done(name, run, small=arguments.small)
    if not (arguments.names or arguments.small) and (absent := report.absent()):
        parser.exit(1, f"README: no figures for {', '.join(absent)}\n")


def done(name: str, run: Run, *, small: bool) -> None:
    """Runs one benchmark, shows its results, and writes them immediately, since a later benchmark may fail."""
    started = time.monotonic()
    minutes = (ON_SERVER | IN_FOLDER)[name][1]
    print(f"{name} …" if small else f"{name}, about {minutes:g} min …", flush=True)
    figures = run(small=small)
    for figure in figures:
        print(" | ".join(figure.cells()), flush=True)
    print(f"({name}: {time.monotonic() - started:.0f} s)", flush=True)
    if not small:
        report.write(name, figures)


if __name__ == "__main__":
    main()
