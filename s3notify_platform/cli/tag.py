"""`s3notify tag NAME`: tag the objects that are committed."""

import click

from s3notify_platform.cli.common import SourcePlace, json_option, source_with
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import print_json, say


@command(short_help="Tag the objects that are committed.")
@source_with("prefix", "committed_tags")
@click.option(
    "--again", is_flag=True, help="Look at all committed objects, not only at those of new commits."
)
@json_option
def tag(*, place: SourcePlace, again: bool, as_json: bool) -> None:
    """Tag the objects that were committed since the last time, so that lifecycle rules may archive or delete them.

    In Dagster {name}_tags does this after each batch, and `s3notify ingest` too, once committed_tags is set. Tagged is
    exactly the version that was committed, whole and without rejects: the bucket needs versions. Tags of others stay.
    With a rule that deletes, set on_delete: keep, or the rows leave with their objects.

    Safe to repeat. Exit code 1 if the store refused tags, with the reason; those that it refused among others that it
    took are tried again with --again.
    """
    from dataclasses import asdict

    from s3notify_platform.ingest.tagging import tag_again, tag_committed

    source = place.source()
    if again:
        tag_again(source.location, source.location.all_slots())
    done = tag_committed(source, progress=say)
    if as_json:
        print_json(asdict(done))
    else:
        say(
            "; ".join(
                [f"{done.slots} slots with new commits", *(f"{n} {what}" for what, n in done.counts.items())]
            )
        )
    if done.refused:
        say(f"refused, like: {done.refused}")
        raise click.exceptions.Exit(1)
