"""A source on a real server, ingested in one process and without Spark."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from s3notify_platform.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.ingest.engine import Ingest
from s3notify_platform.ingest.results import BatchResult
from s3notify_platform.ingest.rounds import Round
from s3notify_platform.ingest.source import Source
from s3notify_platform.ports import list_all
from s3notify_platform.protocols.source_enumerator import RescanBacklog
from s3notify_platform.slots import Slot
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.table.layout import Generation
from s3notify_platform.table.missing import Forgotten, forget_slots
from s3notify_platform.table.reader import read_slots
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server
from tests.support.sources import with_settings


class Place:
    """A source of 4 slots in a new bucket."""

    def __init__(self, server: S3Server, **settings: Any) -> None:
        config = server.config(server.make_bucket())
        given = {"name": "orders", "prefix": "raw/", "format": "jsonl", "slots": 4, "commit": "native"}
        self.source = Source.of(bucket=config, platform=config, **(given | settings))
        self.store = S3ObjectStore(config)

    def put(self, key: str, *values: int) -> None:
        self.store.put(f"raw/{key}", b"".join(b'{"a":%d}\n' % value for value in values))

    def ingest(self, clock: Clock = SYSTEM_CLOCK) -> Ingest:
        return Ingest(jobs=LocalJobs(source=self.source), source=self.source, clock=clock)

    def rounds(self, **arguments: Any) -> Iterator[Round]:
        return self.ingest().rounds(self.source.location.all_slots(), batch="b", **arguments)

    def known(self) -> Mapping[Slot, Generation]:
        return self.source.open_table().heads

    def heads(self) -> dict[Slot, Generation]:
        found = self.source.table().heads(self.source.location.all_slots())
        return {slot: head.generation for slot, head in found.items() if head is not None}

    def run(self, batch: str, **settings: Any) -> BatchResult:
        """One run over all slots, of the source with these settings."""
        source = with_settings(self.source, **settings)
        engine = Ingest(jobs=LocalJobs(source=source), source=source)
        return engine.run(source.location.all_slots(), batch=batch)

    def empty(self, prefix: str) -> None:
        for meta in list(list_all(self.store, prefix)):
            self.store.delete(meta.key)

    def forget(self, *slots: Slot) -> Forgotten:
        location = self.source.location
        backlog = RescanBacklog(location.records())
        chosen = frozenset(slots or location.all_slots())
        return forget_slots(location.sides(), location.table(), backlog, chosen, every=location.slots)

    def snapshot(self) -> dict[str, str]:
        """All objects, with their ETags."""
        return {meta.key: meta.etag for meta in list_all(self.store, "")}

    def values(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for part in read_slots(self.source.table(), self.source.location.all_slots()):
            found.update(part.table["a"].to_pylist() if part.table.num_rows else ())
        return found
