"""Long-running services: inlets, outlets and the reconciler, as commands or managed by Dagster."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Protocol

from s3notify_platform.kernel.setting import check_settings
from s3notify_platform.kernel.slots import SLOT_COUNT
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.stores.config import S3Config

Progress = Callable[[str], None]


class Service(Protocol):
    """A service runs until it is stopped. Any number of instances may run for the same topics."""

    name: str

    def run(self, stop: Event, progress: Progress) -> None:
        """Serves until `stop` is set, then finishes or releases the work in progress, and returns within seconds.

        During outages of other systems, the service waits with backoff, and reports the outages by `progress`. Raises
        `UsageError` for problems that only an operator can fix.
        """
        ...

    def counts(self) -> Mapping[str, int]:
        """Counts of the service's work since its start: received, queued, duplicates, failed, delivered, …"""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKeyspace:
    """The keyspace of one source. `signals`: the prefix of its signals. `prefix`: the prefix of its keys.

    `topic`: the source's own topic; not needed if the signals are below the default prefix. `skips_hidden`: the source
    skips hidden files.
    """

    signals: str
    prefix: str = ""
    slots: int = SLOT_COUNT
    topic: str = ""
    skips_hidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """The context in which a service is built.

    `platform`: the bucket of queue and signals, with the credentials to use. The other fields are for inlets. `bucket`:
    the bucket whose changes are reported. `keyspaces`: the keyspaces that are signalled. `excluded`: prefixes of the
    platform's own objects in `bucket` (`table.own_objects`).
    """

    name: str
    """The service's name, as registered."""
    queue: NotificationQueue
    platform: S3Config
    bucket: str
    keyspaces: tuple[SourceKeyspace, ...] = ()
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Declared settings of a service (`setting`). The component and the command use these settings. The docstring of
    the class is the help text of the command.

    Types: str, int, float, bool, a tuple of str; each may also be None. `UsageError` for invalid values.
    """

    def __post_init__(self) -> None:
        check_settings(self, type(self))

    def build(self, context: ServiceContext) -> Service:
        """Builds the service. Cost: no request. Raises `UsageError` for settings that are unsafe or cannot work."""
        raise NotImplementedError
