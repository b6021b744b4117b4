"""Binary: each object is one record with one value, its bytes."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from s3notify_platform.formats.base import Format, Limits, SplitEnd, SplitRecords, empty_end
from s3notify_platform.formats.object_bytes import ObjectBytes, chunks
from s3notify_platform.formats.records import Parsed, Target
from s3notify_platform.kernel.limits import MAX_OBJECT_BYTES
from s3notify_platform.protocols.source_enumerator import Split

_SCHEMA: Final = pa.schema([pa.field("content", pa.binary())])


class Binary(Format):
    """See the module."""

    name = "binary"
    fixed_schema = _SCHEMA

    def parse(
        self, objects: Sequence[tuple[str, bytes]], target: Target, *, encoding: str = "utf-8"
    ) -> Iterator[Parsed]:
        """See `Format`."""
        rows = target.rows(target.column("content", pa.array([body for _, body in objects], pa.binary())))
        yield Parsed(table=rows, index=np.arange(len(objects)), offset=np.zeros(len(objects), np.int64))

    def records(
        self, source: ObjectBytes, split: Split, target: Target, *, encoding: str, limits: Limits
    ) -> SplitRecords:
        """See `Format`."""
        if split.start > 0:
            return empty_end(source, split)
        if source.size > MAX_OBJECT_BYTES:
            reason = f"larger than {MAX_OBJECT_BYTES} bytes, the limit of one record"
            return SplitEnd(status="failed", reason=reason)
        body = b"".join(chunks(source, 0, source.size, chunk_bytes=limits.chunk_bytes))
        yield from self.parse([(split.version.key, body)], target)
        return SplitEnd(status="ok", offset=source.size, reach_end=True)

    def schemas(self, source: ObjectBytes, key: str, encoding: str) -> Iterator[pa.Schema]:
        """See `Format`."""
        yield _SCHEMA
