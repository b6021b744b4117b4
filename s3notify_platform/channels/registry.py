"""The services of a queue by name: inlets, which take changes in, and outlets, which deliver them.

A new one takes a file and a line. The file has its settings, a `ServiceSettings`, whose `build` makes the service; one
that receives messages derives them from `PullInletSettings`, and gives a `ports.MessageQueue`. The line stands in
`SERVICES`. From it come
    the command         `s3notify inlet NAME`, or `s3notify NAME` for an outlet; the settings are its options
    the YAML            a field NAME of the component, with the same settings
    in Dagster          the job `{source}_NAME`, and the sensor that keeps one run of it alive
Nothing is imported before a service is asked for.
"""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from s3notify_platform.channels.service import ServiceSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKind:
    """A registered service."""

    name: str
    direction: Literal["inlet", "outlet"]
    settings_class: str
    """Where its settings are: `module:class`."""
    summary: str
    """One line, for help texts and for the component."""

    def settings(self) -> type["ServiceSettings"]:
        """The class of its settings, imported."""
        found: type[ServiceSettings] = resolve_name(self.settings_class)
        return found


_CHANNELS = "s3notify_platform.channels"

SERVICES: Final = {
    kind.name: kind
    for kind in (
        ServiceKind(
            name="sqs",
            direction="inlet",
            settings_class=f"{_CHANNELS}.inlets.sqs:SqsInletSettings",
            summary="Take in S3's events from an SQS queue.",
        ),
        ServiceKind(
            name="http",
            direction="inlet",
            settings_class=f"{_CHANNELS}.inlets.http:HttpInletSettings",
            summary="Take in posts of Ceph RGW and MinIO.",
        ),
        ServiceKind(
            name="deliver",
            direction="outlet",
            settings_class=f"{_CHANNELS}.delivery.worker:DeliverySettings",
            summary="Push all topics that have an endpoint.",
        ),
    )
}
