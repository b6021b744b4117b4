"""Services of a source that Dagster manages: the inlets and outlets that the YAML enables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b

from s3notify_platform.channels.service import Service, ServiceContext, ServiceSettings, SourceKeyspace
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.managed_services import ManagedService, ManagedServices
from s3notify_platform.orchestration.source_assets import SourceAssets
from s3notify_platform.source.source import Source


def services_of(
    assets: SourceAssets, services: Mapping[str, ServiceSettings], others: Sequence[Source] = ()
) -> ManagedServices:
    """The services of a source. The inlets also signal each source in `others` that has the same bucket and queue."""
    own = _place_of(assets.io.source)
    shared = tuple(_keyspace_of(other) for other in others if _place_of(other) == own)
    made = {
        name: _SourceService(name=name, settings=settings, shared=shared)
        for name, settings in services.items()
    }
    return ManagedServices(
        assets=assets,
        by_name={name: ManagedService(build=each.build, digest=each.digest) for name, each in made.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceService:
    name: str
    settings: ServiceSettings
    shared: tuple[SourceKeyspace, ...]
    """The keyspaces of other sources, which an inlet also signals."""

    def build(self, io: SlotIOManager) -> Service:
        return self.settings.build(self._context(io))

    def digest(self, io: SlotIOManager) -> str:
        """See `ManagedService`. The repr of the settings and of the buckets contains no secret."""
        place, context = io.source.location, self._context(io)
        used = [getattr(context, each.name) for each in fields(context) if each.name != "queue"]
        text = repr((self.settings, place.queue_prefix, place.records_table, used))
        return blake2b(text.encode(), digest_size=6).hexdigest()

    def _context(self, io: SlotIOManager) -> ServiceContext:
        source, place = io.source, io.source.location
        return ServiceContext(
            name=self.name,
            queue=io.clients.queue,
            platform=place.platform,
            bucket=source.input.bucket.bucket,
            keyspaces=(_keyspace_of(source), *self.shared),
            excluded=source.own,
        )


def _keyspace_of(source: Source) -> SourceKeyspace:
    place = source.location
    return SourceKeyspace(
        signals=place.keyspace_prefix,
        prefix=source.input.prefix,
        slots=place.slots,
        topic=place.name,
        skips_hidden=source.input.hidden_files == "skip",
    )


def _place_of(source: Source) -> tuple[object, ...]:
    """The bucket and the queue. If an endpoint is set, the endpoint decides where bucket and queue are, and the region
    is ignored. Credentials matter only for a DynamoDB table, because its name is unique only in one account.
    """
    place = source.location
    buckets = [(each.bucket, each.scheme, each.endpoint) for each in (source.input.bucket, place.platform)]
    return (*buckets, place.queue_prefix, place.records_table)
