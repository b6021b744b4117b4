"""What a source's sensor knows of one slot. Whoever has a Dagster instance at hand fills it in."""

from dataclasses import dataclass

from s3notify_platform.ingest.batches import Failing


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """A batch that is to commit the slot."""

    id: str
    opened_ms: int
    listing: bool
    """It looks at all of the slot's keys, and not only at those that entries name."""
    runs: tuple[str, ...] = ()
    """Its runs, as people know them; empty where no Dagster instance is at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorView:
    """The sensor's cursor, as far as one slot goes."""

    seen: bytes
    """Digest of the slot's signal that was taken up last (`protocols.keyspace.digest_of`)."""
    enumerated: str
    """Epoch of the topic since which everything was compared."""
    batches: tuple[BatchView, ...] = ()
    failing: Failing | None = None
