"""A source whose objects change while they are read. A proxy in front of the source's bucket determines the time of
each change.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import SparkSession

from s3notify_platform.engine.values.results import SlotResult
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import Event, TopicSettings
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.source.source import Source
from s3notify_platform.spark.spark_jobs import spark_ingest
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.table.snapshot import Absent
from tests.contracts.fault_proxy import FaultProxy
from tests.support.checked import all_whole
from tests.support.independent import Place, differences
from tests.support.sources import source_of
from tests.support.spark_options import named

SCHEMA = "id bigint, note string"
COLUMNS = pa.schema([("id", pa.int64()), ("note", pa.string())])
LOOK_BYTES = 16

PART = 2000
"""The size from which an object is big, in tests with big objects. Big objects are read in parts of this size."""

COUNT = 400
"""The number of rows of a big object, which has ten parts."""


def lines(count: int, note: str = "") -> bytes:
    """Rows of about 50 bytes, each different."""
    return b"".join(json.dumps({"id": n, "note": f"{note}{n:020d}"}).encode() + b"\n" for n in range(count))


def packed(count: int, note: str = "") -> bytes:
    return gzip.compress(lines(count, note), mtime=0, compresslevel=1)


def changing_source(bucket: S3Config, proxy: FaultProxy, **settings: Any) -> Source:
    """A source with one slot. The source's objects are read through the proxy. The table and the signals are reached
    without the proxy.
    """
    fields = {"name": "orders", "prefix": "raw/", "format": "auto", "schema": SCHEMA, "slots": 1} | settings
    bucket = named(bucket)
    behind = replace(bucket, endpoint_url=proxy.url)
    return source_of(bucket=behind, platform=bucket, commit="native", **fields)


def place_of(source: Source, schema: pa.Schema) -> Place:
    """The source as the independent check sees it, without the proxy."""
    reached = source.location.platform
    assert reached.endpoint_url
    return Place(
        endpoint_url=reached.endpoint_url,
        bucket=source.input.bucket.bucket,
        prefix=source.input.prefix,
        format=source.input.format,
        table_prefix=source.location.layout.prefix,
        schema=schema,
    )


class Teller:
    """Announces changes in the queue, and moves signals, as an inlet does for S3's events."""

    def __init__(self, source: Source) -> None:
        self.name, self.bucket = source.name, source.input.bucket.bucket
        self.queue = source.location.queue()
        settings = TopicSettings(
            bucket=self.bucket, prefix=source.input.prefix, slots=source.location.slots, shards=1
        )
        self.queue.topics.create(self.name, settings)
        self.signals = Publisher(
            open_store(source.location.platform),
            prefix=source.location.keyspace_prefix,
            slots=source.location.slots,
            queued=True,
        )

    def tell(self, *keys: str) -> None:
        self.queue.push_many(self.name, [Event(key=key, bucket=self.bucket) for key in keys])
        self.signals.signal(keys)


@dataclass(kw_only=True)
class Changing:
    """The bucket as writers see it, and runs that read the bucket. Changes bypass the proxy, and are announced."""

    spark: SparkSession
    source: Source
    proxy: FaultProxy
    listing: bool
    last: SlotResult = field(default_factory=lambda: SlotResult(slot=Slot(0), status="unchanged"))
    waiting: dict[str, tuple[int, Callable[[], object]]] = field(default_factory=dict)
    """By key, changes that wait for a GET of their object."""
    _runs: Any = field(default_factory=count)
    _lock: Any = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.place = place_of(self.source, COLUMNS)
        self.s3 = self.place.client()
        self.bucket = self.source.input.bucket.bucket
        self.teller = None if self.listing else Teller(self.source)

    # Changes

    def tell(self, *keys: str) -> None:
        if self.teller:
            self.teller.tell(*keys)

    def put(self, key: str, body: bytes, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.s3.put_object(Bucket=self.bucket, Key=key, Body=body, **arguments)
        self.tell(key)
        return answer

    def delete(self, key: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.s3.delete_object(Bucket=self.bucket, Key=key, **arguments)
        self.tell(key)
        return answer

    def copy(self, source: str, target: str, version: str = "", **arguments: Any) -> None:
        origin = {"Bucket": self.bucket, "Key": source} | ({"VersionId": version} if version else {})
        self.s3.copy_object(Bucket=self.bucket, Key=target, CopySource=origin, **arguments)
        self.tell(target)

    def rename(self, source: str, target: str) -> None:
        self.copy(source, target)
        self.delete(source)

    def multipart(self, key: str, parts: Sequence[bytes]) -> str:
        """Writes an object in parts; returns its ETag."""
        place = {"Bucket": self.bucket, "Key": key}
        upload = self.s3.create_multipart_upload(**place)["UploadId"]
        done = [
            {
                "PartNumber": number,
                "ETag": self.s3.upload_part(**place, UploadId=upload, PartNumber=number, Body=body)["ETag"],
            }
            for number, body in enumerate(parts, 1)
        ]
        self.s3.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": done})
        self.tell(key)
        return str(self.s3.head_object(**place)["ETag"].strip('"'))

    # Reads

    def when_asked(self, change: Callable[[], object], *, key: str, number: int = 1) -> None:
        """Makes the change once, just before the proxy forwards the GET with this `number`.

        GETs of the object are counted after this call, beginning with 1.
        """
        self.waiting[key] = (number, change)
        self.proxy.before = self._before

    def _before(self, method: str, path: str, headers: dict[str, str]) -> None:
        if method != "GET" or "list-type" in path:
            return
        key = self._key(path)
        # One request at a time, so that a change is complete when the next request is forwarded.
        with self._lock:
            if key in self.waiting:
                number, change = self.waiting.pop(key)
                if number == 1:
                    change()
                else:
                    self.waiting[key] = (number - 1, change)

    def asked(self) -> Counter[str]:
        """The GETs of objects since the last call, by key."""
        found = Counter(key for key, _ in self._gets())
        self.proxy.answered.clear()
        return found

    def rows_begun(self, key: str) -> int:
        """The number of times that an object was read from its beginning. Reads that only check the object version do
        not count.
        """
        found = 0
        for request in list(self.proxy.answered):
            if request.method == "GET" and self._key(request.path) == key:
                match = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", "bytes=0-999"))
                found += match is not None and int(match[1]) == 0 and int(match[2]) >= LOOK_BYTES
        return found

    def _gets(self) -> list[tuple[str, int]]:
        return [
            (self._key(request.path), request.sent if request.status < 300 else 0)
            for request in list(self.proxy.answered)
            if request.method == "GET" and "list-type" not in request.path
        ]

    def _key(self, path: str) -> str:
        return unquote(urlsplit(path).path).removeprefix(f"/{self.bucket}/")

    def run(self, *, before_round: Callable[[], object] = lambda: None) -> SlotResult:
        """Does one run, and the work after its commit. `before_round`: called before each plan."""

        def progress(message: str) -> None:
            if message.startswith("planning"):
                before_round()

        batch = f"batch-{next(self._runs)}"
        result = spark_ingest(self.spark, self.source, progress=progress).run(
            [Slot(0)], batch=batch, listing=self.listing
        )
        self.last = result.slots.get(Slot(0), SlotResult(slot=Slot(0), status="unchanged"))
        if self.teller and self.last.ok and self.last.complete:
            self.teller.queue.remove(entry for of_slot in result.entries.values() for entry in of_slot)
        return self.last

    def pending(self) -> set[str]:
        """Keys of objects that are committed in part."""
        return {key for key, state in self._states().items() if state.pending}

    def committed(self) -> dict[str, int]:
        """The number of rows of each key, from its state."""
        return {key: state.rows for key, state in self._states().items()}

    def _states(self) -> dict[str, ObjectState]:
        table = self.source.table()
        found = table.newest()
        if isinstance(found, Absent):
            return {}
        ((_, states),) = table.states.of_slots(found.manifest.states, [Slot(0)])
        return states

    def settled(self) -> None:
        """Checks that the table is consistent, that table and bucket are equal, that no entry is left, and that another
        run reads and commits nothing.
        """
        assert not self.waiting
        all_whole(self.source.location)
        assert not differences(self.place)
        assert self.entries() == []
        generation = self.last.generation
        self.asked()
        assert (self.run().status, self.last.generation) == ("unchanged", generation)
        assert not self.asked()

    def entries(self) -> list[str]:
        """The keys of the topic's entries."""
        if self.teller is None:
            return []
        found = self.teller.queue.entries(self.source.name, [Slot(0)])
        return [entry.event.key for entry in found]
