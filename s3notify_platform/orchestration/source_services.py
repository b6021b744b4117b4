"""Services of a source that Dagster manages: the inlets and outlets that the YAML enables."""

from collections.abc import Callable, Mapping

from s3notify_platform.channels.service import Service, ServiceContext, ServiceSettings, SourceKeyspace
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.managed_services import ManagedServices
from s3notify_platform.orchestration.source_assets import SourceAssets


def services_of(assets: SourceAssets, services: Mapping[str, ServiceSettings]) -> ManagedServices:
    """These services of a source."""
    return ManagedServices(
        assets=assets, builders={name: _builder(name, settings) for name, settings in services.items()}
    )


def _builder(name: str, settings: ServiceSettings) -> Callable[[SlotIOManager], Service]:
    def service(io: SlotIOManager) -> Service:
        """The service, limited to this source: an inlet signals no other source."""
        source, place = io.source, io.source.location
        keyspace = SourceKeyspace(
            signals=place.keyspace_prefix,
            prefix=source.input.prefix,
            slots=place.slots,
            topic=io.name,
            skips_hidden=source.input.hidden_files == "skip",
        )
        return settings.build(
            ServiceContext(
                name=name,
                queue=io.clients.queue,
                platform=place.platform,
                bucket=source.input.bucket.bucket,
                keyspaces=(keyspace,),
                excluded=source.own,
            )
        )

    return service
