"""`s3notify doctor NAME`: checks whether the platform can run on a bucket."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from s3notify_platform.cli.arriving import Events, examine_events
from s3notify_platform.cli.common import SOURCE, USUAL, SourcePlace, json_option, options_as
from s3notify_platform.cli.configured import command, configured
from s3notify_platform.cli.printing import print_json, print_table, say_wrapped, track
from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.kernel.extras import remedy
from s3notify_platform.source.bucket_settings import access_to_tables
from s3notify_platform.source.settings import LocationSettings, topic_difference

if TYPE_CHECKING:
    from s3notify_platform.source.location import Location
    from s3notify_platform.stores.probe import Capabilities


@command(short_help="Check a bucket, the permissions and the YAML.")
@options_as(
    SourcePlace,
    *SOURCE,
    "commit",
    "committed_tags",
    first=click.argument("name", required=False),
    shown=USUAL,
)
@click.option(
    "--deep", is_flag=True, help="Also check the tables of NAME against their logs; this reads all rows."
)
@json_option
def doctor(
    *,
    place: SourcePlace,
    deep: bool,
    as_json: bool,
) -> None:
    """Check that the bucket and the permissions suffice for the source NAME, and print how tables are committed there.

    The checks are: the versions of Dagster's packages; the YAML (keys, types, formats, schema, cron); the store's
    abilities; the DynamoDB tables; the topic of NAME. If the YAML has an inlet, the command measures how fast the
    bucket's events arrive. For this, the command writes a hidden object below the source's prefix. Without the
    permission to write there, the command looks at the newest object. With --deep, the tables of NAME are read and
    checked against their logs.

    Probe objects are below the platform prefix of NAME, or below .s3notify-probe-… without NAME, and are deleted again.
    Cost: about 50 requests, and 30 more for events.

    If the YAML has the source, the command also names the settings in which an existing topic differs from the YAML. It
    also names topics that no source of the project reads, like the topic of a source that was renamed or deleted from
    the YAML. Such a topic fills up, and then refuses writers.

    Exit code 0 if the platform can run. Exit code 1 if the platform cannot run, or if events do not arrive; the reason
    is printed.
    """
    from s3notify_platform.deploy import Tables, examine_tables
    from s3notify_platform.local.dagster_versions import installed_versions
    from s3notify_platform.stores.open_store import address_of, open_store, open_tags
    from s3notify_platform.stores.probe import choose_commit, probe
    from s3notify_platform.stores.rules import tags_of

    _check_sources()
    platform, given = place.platform(), place.settings
    name, records_table, lease_table = (given.get(one) for one in ("name", "records_table", "lease_table"))
    prefix = LocationSettings(name=name).platform_prefix if name else ""
    prefix = given["platform_prefix"] or prefix
    asked = address_of(platform)  # ends the command before the probe if credentials are missing
    found = probe(open_store(platform), prefix)
    tables = examine_tables(Tables(records=records_table, leases=lease_table, **access_to_tables(given)))
    decision, refusal = None, ""
    try:
        decision = choose_commit(
            found, given["commit"], has_lease_table=bool(lease_table), has_records_table=bool(records_table)
        )
        if tags_of(given["committed_tags"]):
            open_tags(place.s3()).check_versioned()
        refusal, of_source = _examined(place if name and not any(tables.values()) else None, deep=deep)
        tables |= of_source
    except S3NotifyError as error:
        refusal = str(error)
    versions = installed_versions()
    usable = not (refusal or versions.refused or any(tables.values()))
    notes = [*_topic_notes(place)] if name and usable else []
    events = examine_events(place) if name and usable else None
    if as_json:
        print_json(
            {
                "bucket": platform.bucket,
                "endpoint": asked,
                "checks": asdict(found),
                "tables": tables,
                "commit": decision and decision.commit,
                "reason": decision and decision.reason,
                "refused": refusal,
                "versions": versions.problem,
                "notes": notes,
                "events": events and asdict(events),
            }
        )
    else:
        say_wrapped(f"{platform.bucket} at {asked}")
        _print_capabilities(found)
        _say_tables(tables)
        if decision:
            say_wrapped(f"commit: {decision.commit} ({decision.reason})")
            say_wrapped(f"records: {f'table {records_table!r}' if records_table else 'on the bucket'}")
        if versions.problem:
            say_wrapped(f"versions: {versions.problem}")
        for note in notes:
            say_wrapped(note)
        _say_events(name, refusal, events)
    if not usable or (events and not events.fine):
        sys.exit(1)


def _say_tables(tables: Mapping[str, Sequence[str]]) -> None:
    for table_name, problems in tables.items():
        for problem in problems or ("is correct",):
            say_wrapped(f"- {table_name} {problem}")


def _say_events(name: str | None, refusal: str, events: Events | None) -> None:
    if refusal:
        say_wrapped(refusal)
    elif events:
        say_wrapped(f"events: {events.text}")
    elif name:
        say_wrapped(
            f"events: not set up; `s3notify init {name} --events` makes the bucket announce its changes"
        )


def _examined(place: SourcePlace | None, *, deep: bool) -> tuple[str, dict[str, tuple[str, ...]]]:
    """The reason why the source cannot use its topic, or "". With `deep`, also the problems of each table, by the
    table's name.
    """
    from s3notify_platform.engine.batch.list_or_follow import topic_problem

    if place is None:
        return ("--deep needs the NAME of the source" if deep else ""), {}
    location = place.location()
    _check_types(place)
    return topic_problem(location), problems_of_tables(location) if deep else {}


def _topic_notes(place: SourcePlace) -> Iterator[str]:
    """Notes about two kinds of topics: the source's topic if its settings differ from the YAML, and each topic of the
    bucket that has neither an endpoint nor a source in the project. Without YAML, there is no note.

    Other projects may read topics of the second kind, so these topics are not an error. Cost: 1 scan of the topics, and
    `queue.stats` for each topic of the second kind.
    """
    sources = {each.name: each for source in configured() for each in source.project}
    queue = place.queue()
    for topic in queue.topics.all() if sources else ():
        settings = topic.settings
        if (source := sources.get(topic.name)) is not None:
            if topic.name == place.name and (why := topic_difference(topic.name, settings, source.topic)):
                yield why
        elif settings.bucket == place.bucket and settings.persistent and not settings.endpoint:
            yield (
                f"topic {topic.name!r} has {queue.stats(topic.name).depth:,} of {settings.capacity:,} entries, "
                "and no source of this project has its name. If no other project reads the topic, it fills up, and "
                f"then publishers and inlets are refused: delete it with `s3notify topics delete {topic.name} --served`"
            )


def _check_types(place: SourcePlace) -> None:
    """`UsageError` if the YAML declares other types than the table has. Cost: the requests of `open_table`."""
    from s3notify_platform.source.declared_types import check_declared_types

    for source in configured():
        if source.name == place.name:
            found = source.source(**place.settings)
            transformed = bool(source.values.get("transform"))
            check_declared_types(found, found.open_table(create=False), transformed=transformed)


def problems_of_tables(location: "Location") -> dict[str, tuple[str, ...]]:
    """The problems that `check_table` finds in the source's table and in its slot assets, by table."""
    from s3notify_platform.maintenance.erasure import slot_assets
    from s3notify_platform.stores.open_store import open_store
    from s3notify_platform.table.check import check_table
    from s3notify_platform.table.snapshot import Absent

    found = {}
    for asset in (None, *slot_assets(location, open_store(location.platform))):
        table = location.table(asset)
        if not isinstance(snapshot := table.newest(), Absent):
            name = f"slot asset {asset!r}" if asset else "the table"
            found[name] = check_table(table, snapshot, track=track).problems
    return found


def _check_sources() -> None:
    """`UsageError` for an error in the sources' YAML that Dagster or a run would refuse."""
    try:
        for source in configured():
            source.check()
    except ModuleNotFoundError as error:  # an environment that only publishes lacks the packages of formats
        if (text := remedy(error)) is None:
            raise
        say_wrapped(f"formats and schemas in the YAML are not checked: {text}", err=True)


def _print_capabilities(found: "Capabilities") -> None:
    from rich.text import Text

    yes, no = Text("yes", style="green"), Text("no", style="red")
    holds = {name: value for name, value in asdict(found).items() if isinstance(value, bool)}
    rows: list[tuple[str, object]] = [
        (name.replace("_", " "), yes if value else no) for name, value in holds.items()
    ]
    skew = found.clock_skew_ms
    rows.append(
        ("server's clock", "unknown" if skew is None else f"{skew / 1000:+.1f} s from this machine's clock")
    )
    rows.append(("commit mode, if auto", found.mode))
    print_table(("Check", "Result"), rows)
    # If the store is unusable, the error below names the problems.
    for problem in found.problems if found.mode != "unusable" else ():
        say_wrapped(f"- {problem} (the platform does not need it here)")
