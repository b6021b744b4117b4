"""`s3notify init NAME --events`: sets up the events of a bucket, after a plan and a question."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, assert_never
from urllib.parse import urlsplit

import click

from s3notify_platform.cli.common import SourcePlace
from s3notify_platform.cli.configured import configured, receiver_of
from s3notify_platform.cli.help_pages import EVENTS, SettingOption
from s3notify_platform.cli.printing import confirm, print_json, say, say_wrapped
from s3notify_platform.cli.setting_options import Option, options
from s3notify_platform.kernel.errors import S3NotifyError, UsageError
from s3notify_platform.local.project import ConfiguredSource, dagster_command

if TYPE_CHECKING:
    from s3notify_platform.deploy.events.event_part import Part
    from s3notify_platform.deploy.events.event_setup import EventSetup, Planned
    from s3notify_platform.deploy.events.event_site import EventSite, Way
    from s3notify_platform.stores.aws.bucket_notifications import BucketEvents

SECRET_ENV: Final = "S3NOTIFY_RECEIVER_SECRET"  # noqa: S105 - the variable's name
_SERVERS: Final = {"rgw": "Ceph RGW", "minio": "MinIO"}
_URL_ON_AWS: Final = re.compile(r"https://sqs\.([a-z0-9-]+)\.[a-z0-9.-]+/(\d{12})/([A-Za-z0-9_-]+)")


def _of_events(flag: str, **more: Any) -> Option:
    return click.option(flag, cls=SettingOption, heading=EVENTS, **more)


event_options: Option = options(
    click.option("--events", is_flag=True, help="Make the bucket announce its changes to the inlet of NAME."),
    _of_events(
        "--by",
        type=click.Choice(["sqs", "sns", "eventbridge"]),
        help="The way of events to the queue; default: the existing way, else directly from S3 (sqs).",
    ),
    _of_events(
        "--receiver", metavar="URL", help="Ceph, MinIO: URL by which the store reaches the HTTP inlet."
    ),
    _of_events(
        "--remove",
        is_flag=True,
        help="Delete everything that --events created, except the switch for EventBridge.",
    ),
    _of_events("--yes", is_flag=True, help="Do not ask for confirmation."),
    _of_events("--queue-endpoint-url", help="Endpoint of SQS, SNS and EventBridge; default: AWS."),
    _of_events(
        "--bucket-account",
        help="AWS account of the bucket; default: as set up before, else the account of the credentials.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of `--events`, except the options that locate the source."""

    by: "Way | None"
    receiver: str | None
    queue_endpoint_url: str | None
    bucket_account: str | None
    remove: bool
    yes: bool
    account: str | None
    event_queue: str | None
    template: str | None


def set_up_events(place: SourcePlace, asked: Asked) -> None:
    """Print the plan, ask, and carry it out. `UsageError`, before anything is written, if the plan is impossible."""
    from s3notify_platform.stores.aws.bucket_notifications import BucketEvents

    site = site_of(place, asked.event_queue, asked.queue_endpoint_url)
    bucket = BucketEvents(site.bucket)
    if asked.template:
        _check_template(site, asked.template, bucket)
        _print_template(site, asked, bucket)
        return
    server = bucket.server()
    if asked.by and server != "aws":
        raise UsageError(
            f"--by {asked.by}: only AWS has a choice here, and this store posts its events: give --receiver instead"
        )
    match server:
        case "aws":
            _on_aws(site, asked)
        case "rgw":
            _on_gateway(site, asked, bucket)
        case "minio":
            _on_minio(site, asked)
        case _ as unreachable:
            assert_never(unreachable)


def site_of(
    place: SourcePlace, event_queue: str | None = None, services_url: str | None = None
) -> "EventSite":
    """The site of the source's events, from the settings of the source and the inlet in the source's YAML. The account
    is not known yet.
    """
    from s3notify_platform.deploy.events.event_site import EventSite
    from s3notify_platform.kernel.setting import given_of
    from s3notify_platform.source.settings import LocationSettings

    bucket, inlet = place.s3(), inlet_of(place.name, "sqs")
    location = LocationSettings(**given_of(place.settings, LocationSettings))
    own = bucket.endpoint_url if bucket.endpoint_url and ".amazonaws.com" not in bucket.endpoint_url else None
    named = urlsplit(str(inlet.get("queue_url", ""))).path.rpartition("/")[2]
    return EventSite(
        source=place.name,
        bucket=bucket,
        prefix=prefix_of(place),
        platform_bucket=place.platform().bucket,
        platform_prefix=location.platform_prefix,
        queue_prefix=location.queue_prefix,
        services_url=services_url or inlet.get("endpoint_url") or own,
        event_queue=event_queue or named,
    )


def prefix_of(place: SourcePlace) -> str:
    """The prefix of the source's keys, from the command line, else from its YAML."""
    found = next((source for source in configured() if source.name == place.name), None)
    return str(place.settings.get("prefix") or (found.values.get("prefix") if found else "") or "")


def inlet_of(name: str, service: str) -> Mapping[str, Any]:
    """The settings of an inlet in the YAML of the source; empty if the YAML does not have the inlet."""
    found = next((source for source in configured() if source.name == name), None)
    return (found.checked.get(service) if found else None) or {}


def queue_on_aws(name: str | None) -> tuple[str, str, str] | None:
    """Region, account and name of the queue in the source's YAML, if it is a queue of AWS."""
    url = str(inlet_of(name, "sqs").get("queue_url", "")) if name else ""
    found = _URL_ON_AWS.fullmatch(url)
    return (found[1], found[2], found[3]) if found else None


def with_accounts(site: "EventSite", asked: Asked | None = None) -> "EventSite":
    """The site with its accounts. Accounts that are not given are looked up. Cost: 1 request for the account of the
    credentials, and the requests of `EventSetup.bucket_account` for the account of the bucket.
    """
    from s3notify_platform.deploy.events.event_setup import EventSetup
    from s3notify_platform.deploy.events.event_site import account_of

    site = replace(site, account=(asked and asked.account) or account_of(site.bucket, site.services_url))
    given = asked and asked.bucket_account
    return replace(site, bucket_account=given or EventSetup(site=site).bucket_account() or site.account)


def _check_template(site: "EventSite", template: str, bucket: "BucketEvents") -> None:
    """`UsageError` if the store is known not to be AWS. Cost: 1 HEAD."""
    try:
        server = bucket.server()
    except S3NotifyError:  # a template can also be printed for a bucket that does not exist yet
        return
    if server != "aws":
        raise UsageError(
            f"--print {template}: its template is for AWS, and this store is {_SERVERS[server]}: instead, run "
            f"`s3notify init {site.source} --events --receiver URL`"
        )


def _print_template(site: "EventSite", asked: Asked, bucket: "BucketEvents") -> None:
    """Print a template. `UsageError` if S3 would refuse the template's notification. If the bucket's notifications
    cannot be read, CloudFormation's template is printed nevertheless; for Terraform, the error is raised.
    """
    from s3notify_platform.deploy.events.bucket_part import check_apart
    from s3notify_platform.deploy.events.event_templates import cloudformation_events, terraform_events
    from s3notify_platform.stores.aws.bucket_notifications import BucketNotifications

    way: Way = asked.by or "sqs"
    site = replace(site, bucket_account=asked.bucket_account or "")
    try:
        found = bucket.read()
    except S3NotifyError as error:
        # Terraform would delete the notifications that its template does not repeat.
        if asked.template == "terraform":
            raise
        say_wrapped(f"the bucket's notifications were not checked: {error}", err=True)
        found = BucketNotifications()
    subscribes = way == "sns" and site.their_topic(found)
    if way != "eventbridge" and not subscribes:
        check_apart(found, site.notification("queue" if way == "sqs" else "topic", ""))
    if asked.template == "terraform":
        print_json(terraform_events(site, way, found))
        return
    print_json(cloudformation_events(site, way, found))
    if not subscribes:
        say_wrapped(
            f"then, for the notification of the bucket: s3notify init {site.source} --events --by {way}",
            err=True,
        )


def _on_aws(site: "EventSite", asked: Asked) -> None:
    from s3notify_platform.deploy.events.event_setup import EventSetup

    setup = EventSetup(site=with_accounts(site, asked))
    there = setup.way_in_place(surely=asked.remove and not asked.by)
    way: Way = asked.by or (there[0] if there else "sqs")
    url = setup.queue.url()
    if asked.remove:
        say_wrapped(f"Events of source {site.source!r}, bucket {site.bucket.bucket!r}, by {way}:")
        if setup.queue in _removed(setup.parts(way), asked):
            _forget_inlet(site, site.queue_name)
        elif url is None:  # perhaps an earlier removal was killed before it changed the YAML
            _forget_inlet(site, site.name)
        if way == "eventbridge" and setup.bucket.read().eventbridge:
            _say_switch(site.bucket.bucket)
        return
    parts = setup.parts(way)
    setup.check(parts)
    say_wrapped(f"Events of source {site.source!r}, bucket {site.bucket.bucket!r}, by {way}:")
    _make(parts, asked, note=_whole_bucket(site))
    _name_inlet(setup, asked)


def _on_gateway(site: "EventSite", asked: Asked, bucket: "BucketEvents") -> None:
    from s3notify_platform.deploy.events.gateway_part import gateway_parts

    title = f"Events of source {site.source!r}, bucket {site.bucket.bucket!r}, posted by its gateway:"
    if asked.remove:
        say_wrapped(title)
        _removed(gateway_parts(site, bucket), asked)
        return
    secret_env, receiver = _receiver(site, asked)
    if not (secret := os.environ.get(secret_env)):
        raise UsageError(f"no secret: set the environment variable {secret_env}, here and for the inlet")
    parts = gateway_parts(site, bucket, receiver=receiver, secret=secret)
    say_wrapped(title)
    _make(parts, asked, note=_whole_bucket(site))
    _say_http_inlet(site, receiver)


def _on_minio(site: "EventSite", asked: Asked) -> None:
    from s3notify_platform.deploy.events.minio_commands import making, removing

    if asked.remove:
        commands = removing(site)
    else:
        secret_env, receiver = _receiver(site, asked)
        commands = making(site, receiver, secret_env)
    say_wrapped(
        "Only an administrator of MinIO can set up its events. Run, with your alias in place of ALIAS:"
    )
    say("")
    say("\n".join(f"  {line}" for line in commands))
    if not asked.remove:
        _say_http_inlet(site, receiver)


def _receiver(site: "EventSite", asked: Asked) -> tuple[str, str]:
    """The environment variable with the secret, and the URL of the inlet."""
    if not asked.receiver:
        raise UsageError(
            "give --receiver, the URL by which the store reaches the HTTP inlet of the source, like "
            "https://inlet.example.com:8086/"
        )
    inlet = _http_inlet(site) or {}
    return (*(inlet.get("secret_envs") or [SECRET_ENV]),)[0], asked.receiver


def _make(parts: "tuple[Part, ...]", asked: Asked, *, note: str = "") -> None:
    """Print the parts with their missing pieces, ask, and make the incomplete parts in their order."""
    from s3notify_platform.deploy.events.event_setup import planned

    plan = planned(parts, lambda part: part.lacks())
    for each in plan:
        say_wrapped(
            f"  {'+' if each.state else '='} {each.part.title}{f' ({each.state})' if each.state else ''}"
        )
    if note:
        say_wrapped(note)
    if not (lacking := [each for each in plan if each.state]):
        say_wrapped("Everything is there already.")
        return
    _confirm("Create or change the parts that are marked with +?", asked)
    _each(lacking, "make", "made")


def _removed(parts: "tuple[Part, ...]", asked: Asked) -> "list[Part]":
    """Print the existing parts, ask, and delete them in reverse order. Returns the deleted parts."""
    from s3notify_platform.deploy.events.event_setup import planned

    plan = [each for each in planned(parts[::-1], lambda part: part.remains()) if each.state]
    for each in plan:
        say_wrapped(f"  - {each.state}")
    if not plan:
        say_wrapped("Nothing is left to delete.")
        return []
    _confirm("Remove this?", asked)
    _each(plan, "remove", "removed")
    return [each.part for each in plan]


def _each(plan: "list[Planned]", verb: str, done: str) -> None:
    for each in plan:
        getattr(each.part, verb)()
        say_wrapped(f"{done}: {each.part.title}")


def _say_switch(bucket: str) -> None:
    """Prints how to end the events to EventBridge."""
    say_wrapped(
        "The bucket still sends its events to EventBridge, for $1 a million events. This switch stays on, because "
        "other receivers may need it. To switch it off (the second command replaces the whole configuration):"
    )
    configuration = f"bucket-notification-configuration --bucket {bucket}"
    say(f"  aws s3api get-{configuration} > notifications.json")
    say("  # delete EventBridgeConfiguration from notifications.json, and nothing else")
    say(f"  aws s3api put-{configuration} --notification-configuration file://notifications.json")


def _confirm(question: str, asked: Asked) -> None:
    if not asked.yes:
        confirm(question)


def _whole_bucket(site: "EventSite") -> str:
    if site.prefix:
        return ""
    return (
        "  The source is the whole bucket: the bucket announces the platform's own objects too, which costs requests. "
        "A prefix, or another platform_bucket, avoids these requests."
    )


def _name_inlet(setup: "EventSetup", asked: Asked) -> None:
    """Add the queue to the source's YAML, or print the line to add; then print the next steps."""
    from s3notify_platform.local.yaml_attribute import add_attribute, line_of

    site, url = setup.site, setup.queue.url()
    value = {"queue_url": str(url)}
    if asked.queue_endpoint_url or (site.services_url and site.services_url == site.bucket.endpoint_url):
        value["endpoint_url"] = str(site.services_url)
    found = _source(site)
    if found and inlet_of(site.source, "sqs").get("queue_url") == url:
        say_wrapped(f"{found.file} has the queue already.")
    elif found and add_attribute(found.file, site.source, "sqs", value):
        say(f"{found.file}: {line_of('sqs', value)}")
    else:
        say(f"Add to the attributes in the source's YAML:\n  {line_of('sqs', value)}")
    say_wrapped(
        f"To receive the events, restart {dagster_command()}, or reload in the UI; "
        "without Dagster: s3notify inlet sqs"
    )
    say_wrapped(f"Then: s3notify doctor {site.source}")


def _forget_inlet(site: "EventSite", deleted: str) -> None:
    """Remove the deleted queue from the source's YAML, or print the line to remove. `deleted`: the queue's name. If the
    YAML names another queue, its line stays, and a message names that queue.
    """
    from s3notify_platform.local.yaml_attribute import remove_attribute

    found, inlet = _source(site), inlet_of(site.source, "sqs")
    if not found or not (named := str(inlet.get("queue_url", "")).rpartition("/")[2]):
        return
    if named != deleted:
        say_wrapped(f"{found.file}: `sqs` stays: remove it if queue {named!r} is deleted")
    elif remove_attribute(found.file, site.source, "sqs", {k: str(v) for k, v in inlet.items()}):
        say_wrapped(f"{found.file}: the queue is removed")
    else:
        say_wrapped(f"{found.file}: remove `sqs`, since its queue is deleted")


def _http_inlet(site: "EventSite") -> Mapping[str, Any] | None:
    """The settings of the inlet `http` that receives the source's events. The inlet may belong to another source of the
    project. None if the YAML has no such inlet.
    """
    source = _source(site)
    receiver = receiver_of(source) if source else None
    found: Mapping[str, Any] | None = receiver.checked.get("http") if receiver else None
    return found


def _say_http_inlet(site: "EventSite", receiver: str) -> None:
    if _http_inlet(site) is not None:
        say_wrapped(f"Then: s3notify doctor {site.source}")
        return
    port = urlsplit(receiver).port or 8086
    say_wrapped("The source's YAML has no inlet for these events yet. Add to its attributes:")
    say(f"  http: {{host: 0.0.0.0, port: {port}, cert_file: …, key_file: …}}")
    say_wrapped(f"and set {SECRET_ENV} where Dagster runs. Then: s3notify doctor {site.source}")


def _source(site: "EventSite") -> ConfiguredSource | None:
    return next((source for source in configured() if source.name == site.source), None)
