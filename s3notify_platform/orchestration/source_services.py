"""Services of a source that Dagster manages: the inlets and outlets that the YAML enables."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b

from s3notify_platform.channels.service import Service, ServiceContext, ServiceSettings, SourceKeyspace
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.managed_services import ManagedService, ManagedServices
from s3notify_platform.orchestration.source_assets import SourceAssets


def services_of(assets: SourceAssets, services: Mapping[str, ServiceSettings]) -> ManagedServices:
    """These services of a source."""
    made = {name: _SourceService(name=name, settings=settings) for name, settings in services.items()}
    return ManagedServices(
        assets=assets,
        by_name={name: ManagedService(build=each.build, digest=each.digest) for name, each in made.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceService:
    """A service, limited to its source: an inlet signals no other source."""

    name: str
    settings: ServiceSettings

    def build(self, io: SlotIOManager) -> Service:
        return self.settings.build(self._context(io))

    def digest(self, io: SlotIOManager) -> str:
        """See `ManagedService`. A repr of the settings and of the buckets has no secret."""
        place, context = io.source.location, self._context(io)
        used = [getattr(context, each.name) for each in fields(context) if each.name != "queue"]
        text = repr((self.settings, place.queue_prefix, place.records_table, used))
        return blake2b(text.encode(), digest_size=6).hexdigest()

    def _context(self, io: SlotIOManager) -> ServiceContext:
        source, place = io.source, io.source.location
        keyspace = SourceKeyspace(
            signals=place.keyspace_prefix,
            prefix=source.input.prefix,
            slots=place.slots,
            topic=io.name,
            skips_hidden=source.input.hidden_files == "skip",
        )
        return ServiceContext(
            name=self.name,
            queue=io.clients.queue,
            platform=place.platform,
            bucket=source.input.bucket.bucket,
            keyspaces=(keyspace,),
            excluded=source.own,
        )
