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
    QUEUE,
    QueuePlace,
    json_lines_option,
    json_option,
    limit_option,
    options_as,
    yes_option,
)
from s3notify_platform.cli.configured import configured, group
from s3notify_platform.cli.help_pages import PUSH
from s3notify_platform.cli.printing import (
    confirm,
    print_found,
    print_json,
    print_table,
    say,
    say_wrapped,
    unbroken,
)
from s3notify_platform.cli.setting_options import option_of, options, setting_option
from s3notify_platform.cli.topic_texts import (
    age_seconds,
    cell_of,
    described,
    document_of,
    endpoint_cell,
    entry_document,
    received_by,
)
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import named, settings_of
from s3notify_platform.protocols.notification_queue import QuotaExceeded, Rule, TopicSettings, owners_of
from s3notify_platform.protocols.notification_queue.topic_settings import check_for_source, check_topic
from s3notify_platform.protocols.notification_queue.topic_store import check_unserved

_ENDPOINT = settings_of(Endpoint)
_OF_ENDPOINT = "push_"
_TOPIC = named(TopicSettings)
_OWN = ("bucket", "prefix", "rules", "shards", "signals", "ttl_seconds")
"""Settings whose options have another name or another form."""

_USUAL = (
    "capacity",
    "max_attempts",
    "without_rules",
    "persistent",
    "url",
    "format",
    "secret_env",
    "login_env",
)
"""Settings that `--help` shows."""


@group(short_help="Create, list and change topics of the queue.")
def topics() -> None:
    """Topics of the notification queue. A topic passes changes on to a source or to an endpoint.

    A topic with an endpoint sends S3 event messages in batches, with an id for each event and an HMAC:

    \b
      s3notify topics create hooks --bucket BUCKET --prefix raw/ \\
        --url https://hooks.example.com/s3 --secret-env S3NOTIFY_PUSH_HOOKS
      S3NOTIFY_PUSH_HOOKS=… s3notify deliver --bucket BUCKET

    The endpoint may also be a broker: amqps://… (extra `amqp`) or kafkas://… (extra `kafka`). A broker gets one message
    for each event. An event leaves the queue after the broker has acknowledged it.

    A topic receives all changes below --prefix, or only changes that match one of its rules:

    \b
      --rule '{"suffix": ".csv", "events": ["ObjectCreated:*"]}'
      --rule '{"regex": "logs/[0-9]{4}/.*"}'
      --rule '{"metadata": {"team": "sales"}}'
      --rule '{"tags": {"class": "public"}}'

    With `--without-rules none`, a topic without rules receives nothing more, and its queued entries are delivered. A
    rule that can never match is refused. (A suffix that contradicts a regular expression is noticed if the
    expression, or each of its alternatives, ends with plain characters.) The "id" of a rule becomes the
    `configurationId` of the rule's events; default: the sender's id, else the topic's name.

    A rule by metadata matches changes that this package publishes or Ceph posts. A rule by tags matches changes that
    Ceph posts. Events of SQS and MinIO have neither metadata nor tags. Only Ceph's events of deletions have metadata
    and tags.

    Events are passed on with all fields that the inlet received: region, source, user, request, response, metadata,
    tags and ids. Each event also gets the topic's --opaque-data.

    Clients of S3, SNS and Ceph can manage topics through `s3notify serve-notifications`.

    With `--no-persistent`, the topic has no queue: the publisher or inlet that announces a change sends it to the
    endpoint itself, before its call returns. So each publisher and inlet needs the secrets, and permission for the
    endpoint. Each change is sent at most once. If the sending fails, the failure is counted and logged, and nothing is
    sent again.

    Delivery from the queue is at least once and unordered: an event may be repeated, also after a later event of the
    same key. An endpoint should store the greatest `sequencer` of each key (as a hexadecimal number), and drop events
    whose `sequencer` is not greater. A sequencer comes from the clock of the program that wrote or reported the change,
    and two clocks may differ. To be certain of an object's state, look at the object.

    A refused batch is split until the bad event is alone. After --max-attempts or --ttl-hours, that event becomes a
    dead letter. An endpoint that is slow or down does not delay other endpoints, and loses no event. When the topic has
    --capacity entries, writers are refused until the endpoint is back, or until the topic's entries are dead letters.
    """  # noqa: D301 - click's own mark


_place_options = options_as(QueuePlace, *QUEUE)
"""The options of `queue_options`. `--help` shows none of them, because the YAML of a source gives their values."""

_settings_options = options(
    click.option("--source-bucket", help=f"{_TOPIC['bucket'].help}; default for a new topic: --bucket."),
    click.option("--prefix", "key_prefix", help=f"{_TOPIC['prefix'].help}."),
    click.option(
        "--rule",
        "rules",
        multiple=True,
        help=f"{_TOPIC['rules'].about.description}. An update replaces all rules; '': no rules.",
    ),
    *(
        option_of(setting, rare=name not in _USUAL, default=None)
        for name, setting in _TOPIC.items()
        if name not in _OWN
    ),
    click.option(
        "--ttl-hours",
        type=click.FloatRange(min=0),
        metavar="HOURS",
        help="Hours for which workers retry an entry; then it becomes a dead letter. Time without a worker does not "
        "count. 0: forever; default: 96.",
    ),
    # The prefix of the parameters' names avoids a clash with `format` in a source's YAML.
    *(
        option_of(setting, prefix=_OF_ENDPOINT, heading=PUSH, rare=setting.name not in _USUAL, default=None)
        for setting in _ENDPOINT
    ),
)


_table_option = click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="ID",
    help="Id of a table (`s3notify status --json`) that the topic serves: no other table uses or removes the topic. "
    "Repeat the option for several tables: each entry goes to one of them. Default for a new topic: the first table "
    "that uses the topic.",
)


@topics.command(short_help="Create a topic.")
@click.argument("topic")
@_place_options
@_settings_options
@option_of(_TOPIC["shards"], default=None)
@option_of(_TOPIC["signals"], rare=True, default=None)
@setting_option("slots", rare=True, default=None)
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
    """Create the topic TOPIC. Safe to repeat with the same settings; other settings of an existing topic are an error.

    The topic of a source has the name of the source. The source's YAML gives its prefix, slots, signals and sizes;
    options override the YAML.
    """
    own = [source.topic for source in configured() if source.name == topic]
    sizes = {"shards": shards, "slots": slots, "signals": signals}
    origin = click.get_current_context().get_parameter_source
    settings |= {name: size for name, size in sizes.items() if origin(name) is ParameterSource.COMMANDLINE}
    made = _changed(own[0] if own else TopicSettings(bucket=place.bucket), settings)
    if own or tables:
        check_for_source(topic, made, made.signals)
    place.queue().topics.create(topic, made, tables=tables)
    say_wrapped(f"topic {topic!r}: {described(made)}, {made.slots} slots")


@topics.command(short_help="Change settings of a topic.")
@click.argument("topic")
@_place_options
@_settings_options
@_table_option
@yes_option
def update(topic: str, *, place: QueuePlace, tables: tuple[str, ...], yes: bool, **settings: Any) -> None:
    """Change the given settings of the topic TOPIC. `--url ""` removes the endpoint: nothing more is sent.

    The command asks before it removes all rules, because the topic then receives all changes below its prefix. With
    `--without-rules none` the topic receives nothing more, and queued entries are delivered.

    `--table` replaces all tables that the topic serves. After `--table ''`, the next table that uses the topic claims
    the topic.
    """
    queue = place.queue()
    found = queue.topics.get(topic).settings
    changed = _changed(found, settings)
    check_topic(topic, changed)
    if found.rules and not changed.rules and changed.without_rules == "all" and not yes:
        confirm(
            f"Remove all {len(found.rules)} rules of topic {topic!r}, so that it receives {received_by(changed)}?"
        )
    queue.topics.update(topic, changed, tables=tuple(filter(None, tables)) if tables else None)
    say_wrapped(f"topic {topic!r}: {described(changed)}")


@topics.command("list", short_help="List all topics and their settings.")
@_place_options
@json_option
def list_topics(*, place: QueuePlace, as_json: bool) -> None:
    """List all topics and their settings. Cost: 1 scan of the topics."""
    found = place.queue().topics.all()
    if as_json:
        print_json(
            [
                {"name": t.name, "paused": t.paused, "tables": t.tables, **document_of(t.settings)}
                for t in found
            ]
        )
        return
    print_table(
        ("Topic", "Bucket", "Prefix", "Endpoint", "Shards", "Capacity", "Attempts", "TTL h"),
        (
            (
                topic.name,
                topic.settings.bucket or "any",
                topic.settings.prefix,
                endpoint_cell(topic),
                topic.settings.shards,
                topic.settings.capacity,
                topic.settings.max_attempts,
                "-" if topic.settings.ttl_seconds is None else f"{topic.settings.ttl_seconds / 3600:g}",
            )
            for topic in found
        ),
    )


@topics.command(short_help="Print depth, age and counts of topics.")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@_place_options
@json_option
def stats(topics: tuple[str, ...], *, place: QueuePlace, as_json: bool) -> None:
    """Print depth, age and counts of the topics TOPIC; default: of all topics. Cost: 1 scan of all entries."""
    queue = place.queue()
    found = [queue.stats(name) for name in topics or [topic.name for topic in queue.topics.all()]]
    columns = {"Topic": "topic", "Depth": "depth", "Oldest s": "oldest_age_seconds", "Reserved": "reserved"}
    columns |= {"In flight": "in_flight", "Delivered": "delivered", "Failed": "failed", "Dead": "dead"}
    print_found([asdict(one) for one in found], columns | {"Capacity": "capacity"}, as_json=as_json)


@topics.command(short_help="Show the settings and shards of one topic.")
@click.argument("topic")
@_place_options
@json_option
def show(topic: str, *, place: QueuePlace, as_json: bool) -> None:
    """Show the topic TOPIC: its settings, whether it is paused, and depth, age and worker of each shard.

    `beat_seconds` is the time since the last heartbeat of the worker; another worker replaces a worker without
    heartbeats. Cost: 1 scan of the topic's entries and dead letters, and at least 3 requests for each shard.
    """
    queue = place.queue()
    found, facts = queue.topics.get(topic), queue.stats(topic)
    now_ms = queue.clock.wall_ms()
    shards = [
        {
            "shard": shard,
            "worker": owner.worker or None,
            "since_seconds": age_seconds(owner.since_ms if owner.worker else None, now_ms),
            "beat_seconds": age_seconds(owner.beat_ms, now_ms),
            **asdict(stats),
        }
        for shard, (owner, stats) in enumerate(zip(owners_of(queue, found), facts.shards, strict=True))
    ]
    document = {"name": topic, "tables": found.tables, **document_of(found.settings), **asdict(facts)}
    document["shards"] = shards
    if as_json:
        print_json(document)
        return
    say_wrapped(f"topic {topic!r}: {described(found.settings)}{'; paused' if found.paused else ''}")
    lines = {name: value for name, value in document.items() if name not in ("name", "topic", "shards")}
    print_table(("Setting or fact", "Value"), ((name, cell_of(value)) for name, value in lines.items()))
    columns = {
        "Shard": "shard",
        "Worker": "worker",
        "Since s": "since_seconds",
        "Heartbeat s": "beat_seconds",
    }
    columns |= {"Depth": "depth", "In flight": "in_flight", "Oldest s": "oldest_age_seconds"}
    print_found(shards, columns, as_json=False)


@topics.command(short_help="Print the pending entries of a topic.")
@click.argument("topic")
@_place_options
@limit_option(None, "Print at most this many entries; default: all.")
@json_lines_option
def dump(topic: str, *, place: QueuePlace, limit: int | None) -> None:
    """Print the pending entries of the topic TOPIC, one JSON object a line.

    The entries are sorted by shard. Within a shard, the oldest entry is first. The entries stay in the queue. Cost: 1
    scan, which ends at the limit.
    """
    for entry in islice(place.queue().pending(topic), limit):
        say(json.dumps(entry_document(entry), ensure_ascii=False))


@topics.command(short_help="Pause the delivery of a topic.")
@click.argument("topic")
@_place_options
def pause(topic: str, *, place: QueuePlace) -> None:
    """Pause the delivery of the topic TOPIC until `s3notify topics resume`, also across restarts.

    Workers stop within a heartbeat, after the requests in flight. Entries stay in the queue without losing attempts or
    time, and new entries are accepted up to the capacity. Safe to repeat. Cost: 2 requests.
    """
    place.queue().topics.pause(topic)
    say_wrapped(f"topic {topic!r}: paused")


@topics.command(short_help="Resume the delivery of a paused topic.")
@click.argument("topic")
@_place_options
def resume(topic: str, *, place: QueuePlace) -> None:
    """Resume the delivery of the topic TOPIC; workers begin within a heartbeat. Safe to repeat. Cost: 2 requests."""
    place.queue().topics.pause(topic, paused=False)
    say_wrapped(f"topic {topic!r}: resumed")


@topics.command(short_help="List the dead letters of a topic.")
@click.argument("topic")
@_place_options
@json_option
def dead(topic: str, *, place: QueuePlace, as_json: bool) -> None:
    """List the dead letters of the topic TOPIC, with reasons. Cost: 1 scan."""
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
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@_place_options
def redrive(topic: str, *, place: QueuePlace, keys: tuple[str, ...]) -> None:
    """Put the dead letters of the topic TOPIC back into its queue, with 0 attempts; with KEY, only the dead letters of
    these objects.

    A dead letter that is larger than the topic's --max-event-bytes stays. The command names this letter, and ends with
    exit code 1.
    """
    found = place.queue().redrive(topic, keys or None)
    if isinstance(found, QuotaExceeded):
        raise click.ClickException(
            f"topic {topic!r} is full: some dead letters may be back in the queue; repeat the command in "
            f"{found.retry_after_seconds:g} s"
        )
    moved, large = found
    say_wrapped(f"topic {topic!r}: {moved} dead letters put back")
    for letter in large:
        say_wrapped(f"{unbroken(letter.event.key)}: larger than the topic's --max-event-bytes")
    if large:
        raise click.ClickException(
            f"topic {topic!r}: {len(large)} dead letters stay, because they are too large"
        )


@topics.command(short_help="Delete the dead letters of a topic.")
@click.argument("topic")
@_place_options
@yes_option
def purge(topic: str, *, place: QueuePlace, yes: bool) -> None:
    """Delete the dead letters of the topic TOPIC, after printing their number and asking. Pending entries stay.

    Cost: 2 scans, and 1 request for each letter.
    """
    queue = place.queue()
    found = len(queue.dead(topic))
    say_wrapped(f"topic {topic!r}: {found} dead letters")
    if found and not yes:
        confirm("Delete these dead letters?")
    say_wrapped(f"topic {topic!r}: {queue.purge(topic) if found else 0} dead letters deleted")


@topics.command(short_help="Delete a topic with its entries.")
@click.argument("topic")
@_place_options
@click.option("--served", is_flag=True, help="Delete the topic even if it serves tables.")
@yes_option
def delete(topic: str, *, place: QueuePlace, served: bool, yes: bool) -> None:
    """Delete the topic TOPIC with its entries and dead letters. A topic that serves tables needs --served."""
    topics = place.queue().topics
    found = topics.find(topic)
    if found is not None and not served:
        check_unserved(found)
    if not yes:
        tables = ", ".join(found.tables) if found else ""
        uses = f", which serves table {tables}," * bool(tables)
        confirm(f"Delete topic {topic!r}{uses} and all its pending entries?")
    topics.delete(topic, served=served)
    say_wrapped(f"topic {topic!r}: deleted")


def _changed(before: TopicSettings, options: Mapping[str, Any]) -> TopicSettings:
    """The settings with the changes of the given options."""
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
