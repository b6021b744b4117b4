"""What runs for long beside the pipeline: inlets, outlets and the reconciler, as commands or managed by Dagster."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.slots import SLOT_COUNT
from s3notify_platform.stores.config import S3Config

Progress = Callable[[str], None]


class Service(Protocol):
    """What serves until it is stopped. Any number of them may run for the same topics."""

    name: str

    def run(self, stop: Event, progress: Progress) -> None:
        """Serve until `stop` is set, then end what is in hand, and return within seconds.

        Outages of what it talks to are waited for, with backoff, and reported by `progress`. Raises `UsageError` for
        what only an operator can fix.
        """
        ...

    def counts(self) -> Mapping[str, int]:
        """What it has done since it began: received, queued, duplicates, failed, delivered, …"""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """What a service is built over.

    `platform`: the bucket of queue and signals, with the credentials to be used. The others are for inlets: `bucket` is
    the one whose changes are reported; `keyspaces` are pairs, a prefix of signals and the prefix of its keys; what
    lies below `excluded` is the platform's own.
    """

    name: str
    """The service's, as registered."""
    queue: NotificationQueue
    platform: S3Config
    bucket: str
    keyspaces: tuple[tuple[str, str], ...] = ()
    excluded: tuple[str, ...] = ()
    slots: int = SLOT_COUNT


class ServiceSettings(BaseModel):
    """Settings of a service, each with its description, unit and default: for the component and for the command.

    The docstring is the command's help. A field's option has the field's name, unless its `json_schema_extra` gives
    another one as `option`. Types: str, int, float, bool, a list of str; each may also be None.
    """

    model_config = ConfigDict(extra="forbid")

    def build(self, context: ServiceContext) -> Service:
        """The service. No request. `UsageError` for settings that are not safe, or cannot work."""
        raise NotImplementedError
