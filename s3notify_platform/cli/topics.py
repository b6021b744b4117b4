"""`s3notify topics …`: the topics of a bucket's queue."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from s3notify_platform.cli.common import QueuePlace, print_table, queue_options

if TYPE_CHECKING:
    from s3notify_platform.protocols.notification_queue import Topic, TopicSettings

_ENDPOINT_OPTIONS = ("url", "secret_env", "batch_size", "concurrency", "timeout_seconds", "ca_file", "verify")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON document, for machines.")


@click.group(short_help="Create, watch and change topics of the queue.")
def topics() -> None:
    """Topics of the notification queue: who receives changes, and how far behind they are.

    A topic with an endpoint gets S3 event messages in batches, with an id for each event and an HMAC:

    \b
      s3notify topics create hooks --bucket BUCKET --prefix raw/ \\
        --url https://hooks.example.com/s3 --secret-env S3NOTIFY_PUSH_HOOKS
      S3NOTIFY_PUSH_HOOKS=… s3notify deliver --bucket BUCKET

    A refused batch is split until the event at fault is alone; after --max-attempts or --ttl-hours it becomes a dead
    letter. An endpoint that is down or slow does not delay others, and nothing is dropped for it: once its topic holds
    --capacity entries, writers are refused until it is back, or its entries are dead letters.
    """  # noqa: D301 - click's own mark


def _settings_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--verify/--no-verify", default=None, help="Check the endpoint's certificate."),
        click.option("--ca-file", help="Certificates to trust, on the machines that deliver."),
        click.option("--timeout-seconds", type=float, help="For one request as a whole; default 10."),
        click.option("--concurrency", type=int, help="Requests in flight from one worker; default 8."),
        click.option("--batch-size", type=int, help="Events of one request, at most; default 50."),
        click.option(
            "--secret-env",
            help="Name of the environment variable with the HMAC key, S3NOTIFY_PUSH_…; not the key itself.",
        ),
        click.option("--url", help="Endpoint to push to, https://…; without one, consumers pull."),
        click.option("--ttl-hours", type=float, help="How long an entry is tried; 0: for ever. Default 96."),
        click.option(
            "--max-attempts", type=int, help="Deliveries of an entry until it is a dead letter; 20."
        ),
        click.option("--capacity", type=int, help="Entries it holds at most; default 10000."),
        click.option("--prefix", help="Only changes of keys that begin with it."),
        click.option("--source-bucket", help="Only changes of this bucket; default for a new one: --bucket."),
    ):
        command = option(command)
    return command


@topics.command(short_help="Create a topic.")
@click.argument("name")
@queue_options
@_settings_options
@click.option(
    "--shards", type=int, help="Parts that are consumed in parallel, 1 to 64; default 8. Cannot be changed."
)
def create(name: str, *, place: QueuePlace, shards: int | None, **options: Any) -> None:
    """Create topic NAME. Safe to repeat with the same settings; refused if it has others."""
    from s3notify_platform.protocols.notification_queue import TopicSettings

    if options["source_bucket"] is None:
        options["source_bucket"] = place.bucket
    settings = _changed(TopicSettings() if shards is None else TopicSettings(shards=shards), options)
    place.queue().topics.create(name, settings)
    click.echo(f"topic {name!r}: {_described(settings)}")


@topics.command(short_help="Change settings of a topic.")
@click.argument("name")
@queue_options
@_settings_options
def update(name: str, *, place: QueuePlace, **options: Any) -> None:
    """Change the given settings of topic NAME. `--url ""` makes it a topic that is pulled."""
    queue = place.queue()
    settings = _changed(queue.topics.get(name).settings, options)
    queue.topics.update(name, settings)
    click.echo(f"topic {name!r}: {_described(settings)}")


@topics.command("list")
@queue_options
@_json
def list_topics(*, place: QueuePlace, as_json: bool) -> None:
    """List all topics and their settings. One scan."""
    found = place.queue().topics.all()
    if as_json:
        click.echo(json.dumps([_document(topic) for topic in found], indent=2))
        return
    print_table(
        ("Topic", "Bucket", "Prefix", "Endpoint", "Shards", "Capacity", "Attempts", "TTL h"),
        (
            (
                topic.name,
                topic.settings.bucket or "any",
                topic.settings.prefix,
                _url(topic.settings) or "pulled",
                topic.settings.shards,
                topic.settings.capacity,
                topic.settings.max_attempts,
                "-" if topic.settings.ttl_seconds is None else f"{topic.settings.ttl_seconds / 3600:g}",
            )
            for topic in found
        ),
    )


@topics.command(short_help="Depth, age and counts of each topic.")
@click.argument("names", nargs=-1)
@queue_options
@_json
def stats(names: tuple[str, ...], *, place: QueuePlace, as_json: bool) -> None:
    """Print depth, age and counts of each topic, or of NAMES. One scan of all entries."""
    queue = place.queue()
    found = [queue.stats(name) for name in names or [topic.name for topic in queue.topics.all()]]
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    print_table(
        ("Topic", "Depth", "Oldest s", "Reserved", "In flight", "Delivered", "Failed", "Dead", "Capacity"),
        (
            (
                one.topic,
                one.depth,
                "-" if one.oldest_age_seconds is None else f"{one.oldest_age_seconds:.0f}",
                one.reserved,
                one.in_flight,
                one.delivered,
                one.failed,
                one.dead,
                one.capacity,
            )
            for one in found
        ),
    )


@topics.command()
@click.argument("name")
@queue_options
@_json
def dead(name: str, *, place: QueuePlace, as_json: bool) -> None:
    """List the dead letters of topic NAME, with reasons. One scan."""
    letters = place.queue().dead(name)
    if as_json:
        shown = [
            {
                "key": letter.event.key,
                "op": letter.event.op,
                "etag": letter.event.etag,
                "attempts": letter.attempts,
                "reason": letter.reason,
                "last_error": letter.last_error,
            }
            for letter in letters
        ]
        click.echo(json.dumps(shown, indent=2))
        return
    print_table(
        ("Key", "Change", "Attempts", "Reason"),
        ((letter.event.key, letter.event.op, letter.attempts, letter.reason) for letter in letters),
    )


@topics.command(short_help="Put dead letters back into the queue.")
@click.argument("name")
@queue_options
@click.option("--key", "keys", multiple=True, help="Only dead letters of this object; repeatable.")
def redrive(name: str, *, place: QueuePlace, keys: tuple[str, ...]) -> None:
    """Put the dead letters of topic NAME back into its queue, with attempts from 0."""
    moved = place.queue().redrive(name, keys or None)
    if not isinstance(moved, int):
        raise click.ClickException(
            f"topic {name!r} is full: some dead letters may be back; repeat this in {moved.retry_after_seconds:g} s"
        )
    click.echo(f"topic {name!r}: {moved} dead letters put back")


@topics.command()
@click.argument("name")
@queue_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(name: str, *, place: QueuePlace, yes: bool) -> None:
    """Delete topic NAME with all its pending entries and dead letters."""
    if not yes:
        click.confirm(f"Delete topic {name!r} and everything pending in it?", abort=True)
    place.queue().topics.delete(name)
    click.echo(f"topic {name!r}: deleted")


def _changed(before: "TopicSettings", options: Mapping[str, Any]) -> "TopicSettings":
    """The settings, changed by the options that were given."""
    from s3notify_platform.channels.delivery.endpoint import Endpoint
    from s3notify_platform.errors import UsageError

    given = {name: value for name, value in options.items() if value is not None}
    endpoint = {name: given.pop(name) for name in _ENDPOINT_OPTIONS if name in given}
    fields: dict[str, Any] = {}
    if "source_bucket" in given:
        fields["bucket"] = given.pop("source_bucket")
    if "ttl_hours" in given:
        hours = given.pop("ttl_hours")
        fields["ttl_seconds"] = hours * 3600 if hours else None
    if endpoint.get("url") == "":
        fields["endpoint"] = ""
    elif endpoint:
        if before.endpoint:
            fields["endpoint"] = replace(Endpoint.loads(before.endpoint), **endpoint).dumps()
        elif "url" in endpoint:
            fields["endpoint"] = Endpoint(**endpoint).dumps()
        else:
            raise UsageError(f"{', '.join(endpoint)}: an endpoint needs --url")
    return replace(before, **fields, **given)


def _url(settings: "TopicSettings") -> str:
    from s3notify_platform.channels.delivery.endpoint import Endpoint
    from s3notify_platform.errors import UsageError

    if not settings.endpoint:
        return ""
    try:
        return Endpoint.loads(settings.endpoint).url
    except UsageError:
        return settings.endpoint


def _described(settings: "TopicSettings") -> str:
    what = f"{settings.bucket or 'any bucket'}/{settings.prefix}*"
    return f"{what} to {_url(settings)}" if settings.endpoint else f"{what}, pulled"


def _document(topic: "Topic") -> dict[str, Any]:
    endpoint = json.loads(topic.settings.endpoint) if topic.settings.endpoint else None
    return {"name": topic.name, **asdict(topic.settings), "endpoint": endpoint}
