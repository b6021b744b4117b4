"""`s3notify table …`: what a person may have to decide about a source's table."""

import click

from s3notify_platform.cli.common import QueuePlace, queue_options, setting_option, slots_of
from s3notify_platform.slots import Slot


@click.group()
def table() -> None:
    """Decide about the table of a source that has lost commits."""


@table.command(short_help="Accept that the commits of slots are lost.")
@queue_options
@setting_option("name")
@setting_option("platform_prefix")
@click.option(
    "--slots", required=True, callback=slots_of, help="Slots that are lost, like 3,17,20-29; or: all."
)
def forget(*, place: QueuePlace, name: str, platform_prefix: str, slots: frozenset[Slot]) -> None:
    """Accept that the commits of slots are lost, so that their objects are taken in again.

    Runs refuse a slot that was committed before and has no commit any more: taking its objects in again without a word
    would hide that history, quarantine, and rows of objects that have left are gone. Restore the table's objects if
    you can. If not, this lets the named slots start again; those that have their commits are left as they are.
    """
    from s3notify_platform.ingest.location import Location
    from s3notify_platform.table.missing import forget_slots

    location = Location(
        name=name,
        platform=place.s3(),
        platform_prefix=platform_prefix,
        records_table=place.records_config(),
    )
    lost = forget_slots(location.table(), location.records(), slots)
    if not lost:
        click.echo("none of these slots has lost its commits; nothing to forget")
        return
    click.echo(
        f"forgot {len(lost)} slots: {','.join(map(str, sorted(lost)))}. Their objects are taken in again by the next "
        "batch that lists; a backfill of these partitions does it now."
    )
