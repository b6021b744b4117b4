"""`s3notify table …`: decisions about a source's table that only a person can take."""

import click

from s3notify_platform.cli.common import QueuePlace, queue_options, setting_option, slots_of
from s3notify_platform.slots import Slot


@click.group()
def table() -> None:
    """Decide what to do about a source whose table has missing commits."""


@table.command(short_help="Accept that commits of slots are missing.")
@queue_options
@setting_option("name")
@setting_option("platform_prefix")
@click.option(
    "--slots", required=True, callback=slots_of, help="Slots with missing commits, like 3,17,20-29; or: all."
)
def forget(*, place: QueuePlace, name: str, platform_prefix: str, slots: frozenset[Slot]) -> None:
    """Accept that the commits of slots are missing, so that their objects are taken in again.

    Runs refuse a slot that was committed before and has no commit any more. To take its objects in again would hide
    that its history, its quarantine, and rows of deleted objects are gone. Restore the table's objects if you can. If
    not, this lets the given slots start over; slots that have their commits are not changed.
    """
    from s3notify_platform.ingest.location import Location
    from s3notify_platform.table.missing import forget_slots

    location = Location(
        name=name,
        platform=place.s3(),
        platform_prefix=platform_prefix,
        records_table=place.records_config(),
    )
    forgotten = forget_slots(location.table(), location.records(), slots)
    if not forgotten:
        click.echo("no commits of these slots are missing; nothing to forget")
        return
    click.echo(
        f"forgot {len(forgotten)} slots: {','.join(map(str, sorted(forgotten)))}. The next batch that lists takes "
        "their objects in again; a backfill of these partitions does it now."
    )
