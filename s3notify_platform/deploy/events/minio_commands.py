"""MinIO: only its administrator can make endpoints, so these commands are printed for a person to type."""

from shlex import quote

from s3notify_platform.deploy.events.event_site import EventSite

EVENTS = "put,delete,ilm"


def making(site: EventSite, receiver: str, secret_env: str) -> list[str]:
    """The commands by which MinIO posts the bucket's changes to the HTTP inlet at `receiver`. Pure."""
    target = _target(site)
    return [
        (
            f"mc admin config set ALIAS notify_webhook:{target} endpoint={quote(receiver)} "
            f'auth_token="${secret_env}" queue_dir=/var/lib/minio/events'
        ),
        "mc admin service restart ALIAS",
        f"mc event add {_event(site)} --event {EVENTS}{_prefix(site)}",
    ]


def removing(site: EventSite) -> list[str]:
    """The commands that remove this setup. Pure."""
    return [
        f"mc event remove {_event(site)} --event {EVENTS}{_prefix(site)}",
        f"mc admin config reset ALIAS notify_webhook:{_target(site)}",
        "mc admin service restart ALIAS",
    ]


def _target(site: EventSite) -> str:
    return site.name.replace("-", "_")


def _event(site: EventSite) -> str:
    return f"ALIAS/{quote(site.bucket.bucket)} arn:minio:sqs::{_target(site)}:webhook"


def _prefix(site: EventSite) -> str:
    return f" --prefix {quote(site.prefix)}" if site.prefix else ""
