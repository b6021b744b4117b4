"""README's blocks, unchanged, and the machine on which they run as written.

Only endpoint and credentials come from the environment, as they do for a user. `PARTS` distinguishes the blocks; a new
block needs an entry, and a test that runs it.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import boto3

from tests.benchmarks.report import README
from tests.support.only import PROJECT
from tests.support.servers import S3Server

BUCKET: Final = "acme-landing"
REGION: Final = "eu-central-1"

PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "demo": ("sh", "s3notify demo --once"),
    "source": ("yaml", "type: s3notify_platform.S3NotifyComponent"),
    "without Dagster": ("sh", "\ns3notify dev "),
    "in a Dagster project": ("sh", "dg scaffold defs "),
    "second environment": ("yaml", "_s3notify/dev/"),
    "options": ("yaml", "partition_columns:"),
    "publishing": ("python", "open_publisher("),
    "Spark": ("python", 'spark.read.format("s3notify")'),
    "protocols": ("python", "AckChains("),
    "checks": ("sh", "poe check"),
}
"""Language and a text that only this block has.

`.ci/run` runs `checks`; `tests/spark/test_environments.py` runs the second environment.
"""

_FENCE: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# A replacement of the AWS CLI, for machines without it.
_AWS: Final = f"""#!{sys.executable}
import sys
from urllib.parse import urlsplit
import boto3
service, command, source, target = sys.argv[1:]
assert (service, command) == ("s3", "cp")
place = urlsplit(target)
boto3.client("s3").upload_file(source, place.netloc, place.path.lstrip("/"))
"""


def blocks() -> list[tuple[str, str]]:
    """Language and text of every block."""
    return _FENCE.findall(README.read_text())


def block(part: str) -> str:
    """The block with this name in `PARTS`."""
    language, text = PARTS[part]
    (found,) = (body for kind, body in blocks() if kind == language and text in body)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder, and a server with the README's bucket, which only the environment names."""

    folder: Path
    environment: Mapping[str, str]

    @classmethod
    def of(cls, server: S3Server, folder: Path) -> "Place":
        own = folder / ".venv" / "bin"
        own.mkdir(parents=True)
        path = os.pathsep.join([str(own), str(Path(sys.executable).parent), os.environ["PATH"]])
        (own / "activate").write_text(f"export PATH='{path}'\n")
        (own / "aws").write_text(_AWS)
        (own / "aws").chmod(0o755)
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
                "AWS_REGION": REGION,
                "AWS_DEFAULT_REGION": REGION,
                "DAGSTER_TELEMETRY_ENABLED": "false",
                "COLUMNS": "200",
            },
        )
        place.client().create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        return place

    def client(self, service: str = "s3") -> "boto3.client":
        """A client of boto3, independent of the platform's code."""
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
        """Writes the source's YAML to the file that its first line names; returns the file."""
        text = block("source")
        file = self.folder / text.splitlines()[0].removeprefix("# ")
        file.parent.mkdir(parents=True)
        file.write_text(text + options)
        return file
