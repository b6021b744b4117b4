"""Services of a source that Dagster manages: the inlets and outlets that the YAML enables. A sensor keeps a run of each
service alive.
"""

from collections.abc import Mapping

import dagster as dg

from s3notify_platform.channels.service import Service, ServiceContext, ServiceSettings
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.managed_services import build_service
from s3notify_platform.orchestration.source_assets import SourceAssets


def build_services(
    assets: SourceAssets, services: Mapping[str, ServiceSettings]
) -> tuple[list[dg.JobDefinition], list[dg.SensorDefinition]]:
    """The jobs and sensors of these services."""
    built = [_build_service(assets, name, settings) for name, settings in services.items()]
    return [job for job, _ in built], [sensor for _, sensor in built]


def _build_service(
    assets: SourceAssets, name: str, settings: ServiceSettings
) -> tuple[dg.JobDefinition, dg.SensorDefinition]:
    def service(io: SlotIOManager) -> Service:
        """The service, limited to this source: an inlet signals no other source."""
        source, place = io.source, io.source.location
        keyspace = (place.keyspace_prefix, source.input.prefix)
        return settings.build(
            ServiceContext(
                name=name,
                queue=io.clients.queue,
                platform=place.platform,
                bucket=source.input.bucket.bucket,
                keyspaces=(keyspace,),
                excluded=source.own,
                sources={keyspace: io.name},
                skipping=frozenset({keyspace} if source.input.hidden_files == "skip" else ()),
                slots=place.slots,
            )
        )

    return build_service(f"{assets.name}_{name}", service, assets)
