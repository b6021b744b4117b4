"""`s3notify topics …`: the topics of a bucket's queue."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, Literal

import click
from click.core import ParameterSource

from s3notify_platform.channels.delivery.endpoint import Endpoint
from s3notify_platform.cli.common import (
    QueuePlace,
    json_option,
    limit_option,
    option_of,
    options,
    queue_options,
    setting_option,
    yes_option,
)
from s3notify_platform.cli.configured import configured, group
from s3notify_platform.cli.printing import print_found, print_json, print_table, say
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import named, settings_of
from s3notify_platform.protocols.notification_queue import Entry, Rule, TopicSettings, owners_of
from s3notify_platform.protocols.notification_queue.topic_settings import check_topic
from s3notify_platform.protocols.notification_queue.topic_store import check_unserved

_ENDPOINT = settings_of(Endpoint)
_OF_ENDPOINT = "push_"
_TOPIC = named(TopicSettings)
_OWN = ("bucket", "prefix", "rules", "shards", "signals", "ttl_seconds")
"""Settings whose options are not called or given as they are."""


@group(short_help="Create, watch and change topics of the queue.")
def topics() -> None:
    """Topics of the notification queue: who receives changes, and how far behind they are.

    A topic with an endpoint gets S3 event messages in batches, with an id for each event and an HMAC:

    \b
      s3notify topics create hooks --bucket BUCKET --prefix raw/ \\
        --url https://hooks.example.com/s3 --secret-env S3NOTIFY_PUSH_HOOKS
      S3NOTIFY_PUSH_HOOKS=… s3notify deliver --bucket BUCKET

    Or to a broker: amqps://…, with the extra `amqp`, and kafkas://…, with `kafka`: a message for each event, which
    leaves the queue once the broker has acknowledged it.

    Of the changes below --prefix it takes all, or those that one of its rules takes:

    \b
      --rule '{"suffix": ".csv", "events": ["ObjectCreated:*"]}' --rule '{"regex": "logs/[0-9]{4}/.*"}'
      --rule '{"metadata": {"team": "sales"}}' --rule '{"tags": {"class": "public"}}'

    Without a rule it takes all of them; with --without-rules none, nothing: so a notification ends, and what is queued
    is delivered. A rule that can take nothing is refused. Its "id" is the `configurationId` of what it takes; without
    one that is the sender's, else the topic's name.

    A rule by metadata takes what this package publishes and Ceph posts, one by tags what Ceph posts; neither takes
    deletions but Ceph's, nor what comes from SQS or MinIO, whose events have none of both.

    Records are passed on whole, as the inlet got them: region, source, user, request, response, metadata, tags and ids;
    and the topic's --opaque-data.

    Clients of S3, SNS and Ceph can do all this by `s3notify serve-notifications`.

    Delivery is at least once and unordered: an event may come again, and after a later one of its key. Keep the
    greatest `sequencer` of each key (as hexadecimal numbers), and drop events that have no greater one. Sequencers are
    of the clock of whoever wrote or reported the change: to be certain, look at the object.

    A refused batch is split until the event at fault is alone; after --max-attempts or --ttl-hours it becomes a dead
    letter. An endpoint that is down or slow does not delay others, and nothing is dropped for it: once its topic holds
    --capacity entries, writers are refused until it is back, or its entries are dead letters.
    """  # noqa: D301 - click's own mark


_settings_options = options(
    click.option("--source-bucket", help=f"{_TOPIC['bucket'].help}; default for a new one: --bucket."),
    click.option("--prefix", "key_prefix", help=f"{_TOPIC['prefix'].help}."),
    click.option(
        "--rule",
        "rules",
        multiple=True,
        help=f"{_TOPIC['rules'].about.description}. With an update they replace all; '': none.",
    ),
    *(option_of(setting, default=None) for name, setting in _TOPIC.items() if name not in _OWN),
    click.option(
        "--ttl-hours",
        type=click.FloatRange(min=0),
        help=f"{_TOPIC['ttl_seconds'].about.description} (hours); 0: forever; default: 96.",
    ),
    # Prefixed, since a source's YAML has a `format` too.
    *(option_of(setting, prefix=_OF_ENDPOINT, default=None) for setting in _ENDPOINT),
)


_table_option = click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="ID",
    help="Id of a table (`s3notify status --json`) that the topic serves: no other takes its entries, or removes it. "
    "Repeatable: each entry goes to one of them. Default for a new topic: the first table that uses it.",
)


@topics.command(short_help="Create a topic.")
@click.argument("topic")
@queue_options
@_settings_options
@option_of(_TOPIC["shards"], default=None)
@option_of(_TOPIC["signals"], default=None)
@setting_option("slots", default=None)
@_table_option
def create(
    topic: str,
    *,
    place: QueuePlace,
    shards: int | None,
    slots: int | None,
    signals: Literal["slots", "root"] | None,
    tables: tuple[str, ...],
    **settings: Any,
) -> None:
    """Create TOPIC. Safe to repeat with the same settings. If it has others it stays as it is: the error names them.

    A source's topic has the source's name, and its slots and signals, which are taken from its YAML.
    """
    if settings["source_bucket"] is None:
        settings["source_bucket"] = place.bucket
    fixed: dict[str, Any] = {"slots": slots, "signals": signals}
    own = [source for source in configured() if source.name == topic]
    for name, value in fixed.items():
        if click.get_current_context().get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            fixed[name] = own[0].values.get(name) if own else value
    sizes = {"shards": shards, **fixed}
    given: dict[str, Any] = {name: value for name, value in sizes.items() if value is not None}
    made = _changed(TopicSettings(**given), settings)
    place.queue().topics.create(topic, made, tables=tables)
    say(f"topic {topic!r}: {_described(made)}, {made.slots} slots")


@topics.command(short_help="Change settings of a topic.")
@click.argument("topic")
@queue_options
@_settings_options
@_table_option
@yes_option
def update(topic: str, *, place: QueuePlace, tables: tuple[str, ...], yes: bool, **settings: Any) -> None:
    """Change the given settings of TOPIC. `--url ""` removes its endpoint: nothing is pushed any more.

    To remove all its rules is asked about: it takes all changes of its prefix then; with `--without-rules none` it
    takes no further ones, and what is queued is delivered. `--table` replaces all tables that it serves; `--table ''`:
    none, so that the next one that uses it claims it.
    """
    queue = place.queue()
    found = queue.topics.get(topic).settings
    changed = _changed(found, settings)
    check_topic(topic, changed)
    if found.rules and not changed.rules and changed.without_rules == "all" and not yes:
        click.confirm(
            f"Remove the {len(found.rules)} rules of {topic!r}, so that it takes {_taken(changed)}?",
            abort=True,
        )
    queue.topics.update(topic, changed, tables=tuple(filter(None, tables)) if tables else None)
    say(f"topic {topic!r}: {_described(changed)}")


@topics.command("list")
@queue_options
@json_option
def list_topics(*, place: QueuePlace, as_json: bool) -> None:
    """List all topics and their settings. One scan."""
    found = place.queue().topics.all()
    if as_json:
        print_json(
            [{"name": t.name, "paused": t.paused, "tables": t.tables, **_document(t.settings)} for t in found]
        )
        return
    print_table(
        ("Topic", "Bucket", "Prefix", "Endpoint", "Shards", "Capacity", "Attempts", "TTL h"),
        (
            (
                topic.name,
                topic.settings.bucket or "any",
                topic.settings.prefix,
                f"{_url(topic.settings) or 'pulled'}{', paused' if topic.paused else ''}",
                topic.settings.shards,
                topic.settings.capacity,
                topic.settings.max_attempts,
                "-" if topic.settings.ttl_seconds is None else f"{topic.settings.ttl_seconds / 3600:g}",
            )
            for topic in found
        ),
    )


@topics.command(short_help="Depth, age and counts of each topic.")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@queue_options
@json_option
def stats(topics: tuple[str, ...], *, place: QueuePlace, as_json: bool) -> None:
    """Print depth, age and counts of each topic, or of these. One scan of all entries."""
    queue = place.queue()
    found = [queue.stats(name) for name in topics or [topic.name for topic in queue.topics.all()]]
    columns = {"Topic": "topic", "Depth": "depth", "Oldest s": "oldest_age_seconds", "Reserved": "reserved"}
    columns |= {"In flight": "in_flight", "Delivered": "delivered", "Failed": "failed", "Dead": "dead"}
    print_found([asdict(one) for one in found], columns | {"Capacity": "capacity"}, as_json=as_json)


@topics.command(short_help="Show one topic: settings, owners, depth and age of each shard.")
@click.argument("topic")
@queue_options
@json_option
def show(topic: str, *, place: QueuePlace, as_json: bool) -> None:
    """Show TOPIC: its settings, whether it is paused, and of each shard who delivers it since when, depth and age.

    One scan of its entries and dead letters, and at least 3 requests for each shard. `beat_seconds`: since the last
    heartbeat of the owner; a worker that is silent for long is replaced, if another one runs.
    """
    queue = place.queue()
    found, facts = queue.topics.get(topic), queue.stats(topic)
    now_ms = queue.clock.wall_ms()
    shards = [
        {
            "shard": shard,
            "worker": owner.worker or None,
            "since_seconds": _age(owner.since_ms if owner.worker else None, now_ms),
            "beat_seconds": _age(owner.beat_ms, now_ms),
            **asdict(stats),
        }
        for shard, (owner, stats) in enumerate(zip(owners_of(queue, found), facts.shards, strict=True))
    ]
    document = {"name": topic, "tables": found.tables, **_document(found.settings), **asdict(facts)}
    document["shards"] = shards
    if as_json:
        print_json(document)
        return
    say(f"topic {topic!r}: {_described(found.settings)}{'; paused' if found.paused else ''}")
    lines = {name: value for name, value in document.items() if name not in ("name", "topic", "shards")}
    print_table(("Setting or fact", "Value"), ((name, _text(value)) for name, value in lines.items()))
    columns = {
        "Shard": "shard",
        "Worker": "worker",
        "Since s": "since_seconds",
        "Heartbeat s": "beat_seconds",
    }
    columns |= {"Depth": "depth", "In flight": "in_flight", "Oldest s": "oldest_age_seconds"}
    print_found(shards, columns, as_json=False)


@topics.command(short_help="Print what is pending, a line for each entry.")
@click.argument("topic")
@queue_options
@limit_option(None, "Entries at most; default: all.")
@click.option(
    "--json", is_flag=True, expose_value=False, help="No effect: the output is lines of JSON anyway."
)
def dump(topic: str, *, place: QueuePlace, limit: int | None) -> None:
    """Print the entries of TOPIC that are not dead, one JSON object a line, as they are read.

    Shard by shard, old ones first. Nothing is taken out. One scan, which ends with the limit.
    """
    for entry in islice(place.queue().pending(topic), limit):
        say(json.dumps(_pending(entry), ensure_ascii=False))


@topics.command(short_help="Stop the delivery of a topic; entries stay.")
@click.argument("topic")
@queue_options
def pause(topic: str, *, place: QueuePlace) -> None:
    """Stop the delivery of TOPIC until `resume`, whatever is restarted meanwhile.

    Workers stop within a heartbeat, after the requests in flight. Entries stay, and new ones are accepted, up to its
    capacity; none uses up attempts or time. Safe to repeat. 2 requests.
    """
    place.queue().topics.pause(topic)
    say(f"topic {topic!r}: paused")


@topics.command(short_help="Deliver a topic again that was paused.")
@click.argument("topic")
@queue_options
def resume(topic: str, *, place: QueuePlace) -> None:
    """Deliver TOPIC again; workers begin within a heartbeat. Safe to repeat. 2 requests."""
    place.queue().topics.pause(topic, paused=False)
    say(f"topic {topic!r}: delivered again")


@topics.command()
@click.argument("topic")
@queue_options
@json_option
def dead(topic: str, *, place: QueuePlace, as_json: bool) -> None:
    """List the dead letters of TOPIC, with reasons. One scan."""
    found = [
        {
            "key": letter.event.key,
            "op": letter.event.op,
            "etag": letter.event.etag,
            "attempts": letter.attempts,
            "reason": letter.reason,
            "last_error": letter.last_error,
        }
        for letter in place.queue().dead(topic)
    ]
    columns = {"Key": "key", "Change": "op", "Attempts": "attempts", "Reason": "reason"}
    print_found(found, columns, as_json=as_json)


@topics.command(short_help="Put dead letters back into the queue.")
@click.argument("topic")
@queue_options
@click.option("--key", "keys", multiple=True, help="Only dead letters of this object; repeatable.")
def redrive(topic: str, *, place: QueuePlace, keys: tuple[str, ...]) -> None:
    """Put the dead letters of TOPIC back into its queue, with attempts from 0."""
    moved = place.queue().redrive(topic, keys or None)
    if not isinstance(moved, int):
        raise click.ClickException(
            f"topic {topic!r} is full: some dead letters may be back; repeat this in {moved.retry_after_seconds:g} s"
        )
    say(f"topic {topic!r}: {moved} dead letters put back")


@topics.command(short_help="Remove dead letters for good.")
@click.argument("topic")
@queue_options
@yes_option
def purge(topic: str, *, place: QueuePlace, yes: bool) -> None:
    """Remove the dead letters of TOPIC for good; says first how many there are. Entries that are pending stay.

    2 scans, and 1 request for each letter.
    """
    queue = place.queue()
    found = len(queue.dead(topic))
    say(f"topic {topic!r}: {found} dead letters")
    if found and not yes:
        click.confirm("Remove them for good?", abort=True)
    say(f"topic {topic!r}: {queue.purge(topic) if found else 0} dead letters removed")


@topics.command()
@click.argument("topic")
@queue_options
@click.option("--served", is_flag=True, help="Also a topic that serves tables, which then are without it.")
@yes_option
def delete(topic: str, *, place: QueuePlace, served: bool, yes: bool) -> None:
    """Delete TOPIC with all its pending entries and dead letters. One that serves tables stays, without --served."""
    topics = place.queue().topics
    found = topics.find(topic)
    if found is not None and not served:
        check_unserved(found)
    if not yes:
        tables = ", ".join(found.tables) if found else ""
        uses = f", which serves table {tables}," * bool(tables)
        click.confirm(f"Delete topic {topic!r}{uses} and everything pending in it?", abort=True)
    topics.delete(topic, served=served)
    say(f"topic {topic!r}: deleted")


def _changed(before: TopicSettings, options: Mapping[str, Any]) -> TopicSettings:
    """The settings, changed by the options that were given."""
    given = {name: value for name, value in options.items() if value is not None}
    names = {f"{_OF_ENDPOINT}{setting.name}": setting.name for setting in _ENDPOINT}
    endpoint = {name: given.pop(option) for option, name in names.items() if option in given}
    renamed = {"source_bucket": "bucket", "key_prefix": "prefix"}
    given = {renamed.get(name, name): value for name, value in given.items()}
    if rules := given.pop("rules", ()):
        given["rules"] = tuple(Rule.loads(rule) for rule in rules if rule)
    if "ttl_hours" in given:
        given["ttl_seconds"] = given.pop("ttl_hours") * 3600 or None
    if endpoint.get("url") == "":
        given["endpoint"] = ""
    elif endpoint and before.endpoint:
        given["endpoint"] = replace(Endpoint.loads(before.endpoint), **endpoint).dumps()
    elif "url" in endpoint:
        given["endpoint"] = Endpoint(**endpoint).dumps()
    elif endpoint:
        raise UsageError(f"{', '.join(endpoint)}: an endpoint needs --url")
    return replace(before, **given)


def _document(settings: TopicSettings) -> dict[str, Any]:
    """The settings as JSON's values."""
    return {**asdict(settings), "endpoint": json.loads(settings.endpoint or "null")}


def _pending(entry: Entry) -> dict[str, Any]:
    event = entry.event
    return {
        "id": entry.id,
        "shard": entry.shard,
        "slot": entry.slot,
        "state": entry.state,
        "bucket": event.bucket,
        "key": event.key,
        "event": event.event_name,
        "version_id": event.version_id,
        "configuration_id": event.configuration_id,
        "etag": event.etag,
        "size": event.size,
        "sequencer": event.sequencer,
        "time_ms": event.time_ms,
        "metadata": event.metadata,
        "tags": event.tags,
        "details": event.details,
        "attempts": entry.attempts,
        "waited_seconds": entry.waited_seconds,
        "last_error": entry.last_error,
        "worker": entry.claim.worker if entry.claim else None,
    }


def _age(since_ms: int | None, now_ms: int) -> float | None:
    return None if since_ms is None else max(0, now_ms - since_ms) / 1000


def _text(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | tuple) else value


def _url(settings: TopicSettings) -> str:
    if not settings.endpoint:
        return ""
    try:
        return Endpoint.loads(settings.endpoint).url
    except UsageError:
        return settings.endpoint


def _taken(settings: TopicSettings) -> str:
    return f"{settings.bucket or 'any bucket'}/{settings.prefix}*"


def _described(settings: TopicSettings) -> str:
    rules = f", {len(settings.rules)} rules" if settings.rules else ""
    what = f"{_taken(settings)}{rules}"
    if not settings.rules and settings.without_rules == "none":
        what = "nothing, until it has a rule"
    return f"{what} to {_url(settings)}" if settings.endpoint else f"{what}, pulled"
