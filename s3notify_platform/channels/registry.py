"""The services of a queue by name: inlets, which receive changes, and outlets, which deliver the changes.

A new service needs a file, and an item in `SERVICES`. The file defines the service's settings: a subclass of
`ServiceSettings` whose method `build` makes the service. An inlet that reads S3's event messages from a message queue
derives its settings from `PullInletSettings`, and supplies a `ports.MessageQueue`, like `inlets/sqs_inlet.py`. Any
other inlet is a `Service` of its own that passes events to an `Intake`, like `inlets/http_inlet.py`. The item adds:
    - The command `s3notify inlet NAME`, or `s3notify NAME` for an outlet; the settings are its options.
    - The field NAME of the component's YAML, with the same settings.
    - A service in Dagster's job `{source}_services`. The upkeep's sensor keeps one run of this job for each service
      alive.

A setting is never a secret: a setting `…_env` or `…_envs` names the environment variable that has the secret, like
`secret_envs` of `inlets/http_inlet.py`. The command line's help and the component import the settings of all services.
So a library that only an extra installs must be imported in `messages` or `build`, not at the top of the file. After a
new item or setting, run `poe options` to write the guide's page. A new extra is declared in `pyproject.toml`, and named
in `kernel/extras.py`. Then `poe lock` writes the versions for CI.

No other file lists the services. `tests/support/intake_site.py` has the place in which the tests run an inlet.
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
    """Import path of the class of the service's settings: `module:class`."""
    summary: str
    """One line, for help texts and for the component."""

    def settings(self) -> type["ServiceSettings"]:
        """Imports and returns the class of the service's settings."""
        found: type[ServiceSettings] = resolve_name(self.settings_class)
        return found


_CHANNELS = "s3notify_platform.channels"

SERVICES: Final = {
    kind.name: kind
    for kind in (
        ServiceKind(
            name="sqs",
            direction="inlet",
            settings_class=f"{_CHANNELS}.inlets.sqs_inlet:SqsInletSettings",
            summary="Receive S3's events from an SQS queue.",
        ),
        ServiceKind(
            name="http",
            direction="inlet",
            settings_class=f"{_CHANNELS}.inlets.http_inlet:HttpInletSettings",
            summary="Receive events that Ceph RGW and MinIO post.",
        ),
        ServiceKind(
            name="deliver",
            direction="outlet",
            settings_class=f"{_CHANNELS}.delivery.delivery_worker:DeliverySettings",
            summary="Push all topics that have an endpoint.",
        ),
    )
}

FRONT: Final = ServiceKind(
    name="serve-notifications",
    direction="outlet",
    settings_class=f"{_CHANNELS}.front.notification_front:FrontSettings",
    summary="Answer S3's and SNS's requests for topics and notifications.",
)
"""This item adds only a command. All users of a bucket share the front, so the YAML of a source does not contain it."""
