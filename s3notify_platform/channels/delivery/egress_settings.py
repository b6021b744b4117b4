"""The settings of services that send to the endpoints of topics: the operator permits the endpoints here."""

from dataclasses import dataclass
from typing import Annotated

from s3notify_platform.channels.delivery.egress import Egress
from s3notify_platform.channels.service import ServiceSettings
from s3notify_platform.kernel.setting import About


@dataclass(frozen=True, kw_only=True)
class EgressSettings(ServiceSettings):
    """The endpoints that a service may send to."""

    allow_networks: Annotated[
        tuple[str, ...],
        About(
            "Also permit topics' endpoints in this network, like 10.1.0.0/16; default: public addresses. Repeatable",
            option="--allow-network",
        ),
    ] = ()
    allow_http: Annotated[
        bool, About("Permit topics' endpoints without encryption, and TLS without verification")
    ] = False
    allow_kafka: Annotated[
        tuple[str, ...], About("Permit topics' Kafka brokers at this host; default: no Kafka. Repeatable")
    ] = ()
    ca_folder: Annotated[
        str | None,
        About(
            "Folder of the files that topics name as ca_file, like /etc/ssl/ours; default: topics may name none"
        ),
    ] = None

    def egress(self) -> Egress:
        """The permitted endpoints. `UsageError` for a text that is not a network."""
        return Egress.of(
            self.allow_networks,
            allow_http=self.allow_http,
            ca_folder=self.ca_folder,
            kafka_hosts=self.allow_kafka,
        )
