"""Objects piece by piece."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.spark.records import Parsed
from s3notify_platform.stores.config import S3Config


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitEnd:
    """How reading ended."""

    status: str
    offset: int
    reach_end: bool
    reason: str = ""


def read_split(
    config: S3Config, split: Split, fmt: str, schema: pa.Schema, *, inferred: bool
) -> Iterator[Parsed | SplitEnd]:
    """Comes with the reader."""
    raise NotImplementedError
