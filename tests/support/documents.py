"""The unchanged code blocks of README and guide, and a folder with a server, in which these blocks run.

As on a user's machine, the environment sets only endpoint and credentials. A comment before a block gives the block a
name. Each named block has a separate test. `tests/e2e/test_guide.py` runs the other blocks of the guide, page by page.
`tests/e2e/test_readme.py` runs the other blocks of the README.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import boto3

from tests.benchmarks.report import README
from tests.support.only import PROJECT
from tests.support.servers import S3Server, running_ministack

BUCKET: Final = "acme-landing"
REGION: Final = "eu-central-1"

GUIDE: Final = PROJECT.parent / "s3notify_platform" / "guide"

NAMED: Final = frozenset(
    {
        *("demo command", "test command", "second environment", "in a Dagster project"),
        *("publishing", "Spark", "protocols", "test of assets", "transform of Debezium", "service"),
        *("inlet", "transform and slot asset", "Spark cluster", "DynamoDB"),
    }
)
"""The names of blocks. `.ci/run` runs `test command`. `tests/spark/test_environments.py` runs `second environment`."""

_FENCE: Final = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block. `name` is empty if no comment gives it a name."""

    name: str
    language: str
    body: str


def documents() -> Mapping[str, str]:
    """The text of README and guide pages by their path in the project."""
    return {str(page.relative_to(PROJECT.parent)): page.read_text() for page in (README, *GUIDE.glob("*.md"))}


def blocks(text: str) -> list[Block]:
    """The blocks of a document, in order."""
    return [Block(*found) for found in _FENCE.findall(text)]


def block(name: str) -> str:
    """The one block of this name."""
    (found,) = (each.body for text in documents().values() for each in blocks(text) if each.name == name)
    return found


def source() -> str:
    """The source that the README describes."""
    (found,) = (each.body for each in blocks(README.read_text()) if each.language == "yaml")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder, and a server with the README's bucket. Only the variables in `environment` say where the server is."""

    folder: Path
    environment: Mapping[str, str]

    @classmethod
    def of(cls, server: S3Server, folder: Path) -> "Place":
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "DAGSTER_"))
        }
        place = cls(
            folder=folder,
            environment=kept
            | {
                "PATH": path,
                "PYTHONPATH": str(PROJECT.parent),
                "AWS_ENDPOINT_URL": server.endpoint_url,
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_ALLOW_HTTP": "true",  # needed by Polars and delta-rs
                "AWS_REGION": REGION,
                "AWS_DEFAULT_REGION": REGION,
                "DAGSTER_TELEMETRY_ENABLED": "false",
                "COLUMNS": "200",
            },
        )
        place.client().create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        return place

    @classmethod
    @contextmanager
    def running(cls, folder: Path) -> "Iterator[Place]":
        """A place below `folder`, while its server runs."""
        (folder / "server").mkdir()
        (folder / "here").mkdir()
        with running_ministack(folder / "server") as server:
            yield cls.of(server, folder / "here")

    def shell(
        self, script: str, *, folder: Path | None = None, typed: str = "", seconds: int = 600
    ) -> tuple[int, str]:
        """Runs a Bash script. Returns its exit code and its whole output. `typed`: the user's input."""
        done = subprocess.run(
            ["bash", "-ec", script], cwd=folder or self.folder, env=self.environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=seconds, input=typed,
        )  # fmt: skip
        return done.returncode, done.stdout

    def client(self, service: str = "s3") -> "boto3.client":
        """A client of boto3, which shares no code with the project."""
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL")
        key, secret, url = (self.environment[name] for name in names)
        return boto3.client(
            service, endpoint_url=url, region_name=REGION, aws_access_key_id=key, aws_secret_access_key=secret
        )

    def put(self, key: str, body: bytes) -> None:
        """Writes an object as any writer would."""
        self.client().put_object(Bucket=BUCKET, Key=key, Body=body)

    def keys(self, prefix: str) -> list[str]:
        """The keys below a prefix."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def write_source(self, *, options: str = "") -> Path:
        """Writes the YAML of the source to the file that the YAML's first line names. Returns this file."""
        text = source()
        file = self.folder / text.splitlines()[0].removeprefix("# ")
        file.parent.mkdir(parents=True)
        file.write_text(text + options)
        return file
